//! Reads region, endpoint, and a role to assume from the environment and the profile, as the AWS tools do. OpenDAL looks for these in fewer
//! places. OpenDAL finds the keys by itself: in the environment or the profile, by SSO or web identity, or from the container or instance.

use crate::url::{home, variable};
use opendal::services::S3;
use std::collections::HashMap;
use std::path::PathBuf;

/// The profile in use: `AWS_PROFILE`, else `default`.
#[derive(Default)]
pub(crate) struct Profile {
    values: HashMap<String, String>,
    /// Values of the profile that `source_profile` names: its keys are used to assume the role.
    source: HashMap<String, String>,
}

impl Profile {
    pub fn load() -> Profile {
        let file = |name: &str, default: &str| {
            let path = variable(&[name]).map(PathBuf::from).or_else(|| Some(home()?.join(default)));
            path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
        };
        let config = file("AWS_CONFIG_FILE", ".aws/config");
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let of = |name: &str| {
            let mut values =
                section(&config, &if name == "default" { name.to_owned() } else { format!("profile {name}") });
            values.extend(section(&credentials, name));
            values
        };
        let values = of(&variable(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]).unwrap_or_else(|| "default".to_owned()));
        let source = values.get("source_profile").map(|name| of(name)).unwrap_or_default();
        Profile { values, source }
    }

    fn get(&self, name: &str) -> Option<String> {
        self.values.get(name).cloned()
    }
}

/// The values of one section of an AWS configuration file (INI). Indented lines, which are nested values, and empty values are left out.
fn section(text: &str, name: &str) -> HashMap<String, String> {
    let mut values = HashMap::new();
    let mut is_here = false;
    for line in text.lines().map(str::trim_end) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            is_here = header.split_whitespace().eq(name.split_whitespace());
        } else if is_here
            && !line.starts_with(['#', ';', ' ', '\t'])
            && let Some((key, value)) = line.split_once('=')
            && !value.trim().is_empty()
        {
            values.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    values
}

pub(crate) fn region(profile: &Profile) -> String {
    // A wrong region does little harm: AWS refuses the request and names the right one (`Found::region`), and most other services ignore it.
    variable(&["AWS_REGION", "AWS_DEFAULT_REGION"])
        .or_else(|| profile.get("region"))
        .unwrap_or_else(|| "us-east-1".to_owned())
}

pub(crate) fn endpoint(profile: &Profile) -> Option<String> {
    if variable(&["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"]).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).or_else(|| profile.get("endpoint_url"))
}

/// Gives the builder the profile's role, and the keys of its source profile to assume it with. The role is not assumed where the environment
/// has keys, or where the profile names a web identity token, which takes the place of a source profile.
pub(crate) fn assume_role(mut builder: S3, profile: &Profile) -> S3 {
    let Some(role) = profile.get("role_arn") else {
        return builder;
    };
    if variable(&["AWS_ACCESS_KEY_ID"]).is_some() || profile.values.contains_key("web_identity_token_file") {
        return builder;
    }
    let of_source = |name: &str| profile.source.get(name).map_or("", String::as_str);
    builder =
        builder.access_key_id(of_source("aws_access_key_id")).secret_access_key(of_source("aws_secret_access_key"));
    builder = builder.session_token(of_source("aws_session_token")).role_arn(&role);
    let external = profile.get("external_id").unwrap_or_default();
    builder.external_id(&external).role_session_name(&profile.get("role_session_name").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn a_section_is_read() {
        let text = "[default]\nregion = a\n[profile  work]\n# x = y\nregion=b \nendpoint_url = http://h:1\ns3 =\n  region = c\n[other]\nregion=d";
        let values = section(text, "profile work");
        assert_eq!(values.get("region").map(String::as_str), Some("b"));
        assert_eq!(values.get("endpoint_url").map(String::as_str), Some("http://h:1"));
        assert_eq!(values.len(), 2);
        assert!(section(text, "nobody").is_empty());
    }
}
