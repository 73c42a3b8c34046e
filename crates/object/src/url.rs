//! Which object a URL names, and how its service is reached. Endpoint and credentials are found where the service's own tools find them.
//!
//! The secret part of a URL (a query string with a signature) is kept in [`Location`] alone, which never shows it.

use crate::aws::{self, Profile};
use crate::error::Error;
use opendal::{Operator, services};
use std::fmt;
use std::path::PathBuf;

/// The schemes, for messages.
const SCHEMES: &str = "s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://, webdav(s)://, webhdfs://, hdfs://, sftp:// and file://";

/// Names of the query parameters that sign a URL (S3, GCS, Azure, CloudFront). They change while the object stays the same.
const SIGNATURES: &[&str] = &[
    "awsaccesskeyid",
    "expires",
    "googleaccessid",
    "key-pair-id",
    "policy",
    "se",
    "sig",
    "signature",
    "ske",
    "skoid",
    "sks",
    "skt",
    "sktid",
    "skv",
    "sp",
    "spr",
    "sr",
    "st",
    "sv",
    "token",
    "access_token",
];

/// Where an object is. `Debug` shows nothing secret.
#[derive(Clone)]
pub(crate) struct Location {
    /// The URL, for people, messages and the local copies' keys.
    pub name: String,
    pub service: Service,
}

impl fmt::Debug for Location {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.name)
    }
}

/// A service, and the object in it.
#[derive(Clone)]
pub(crate) enum Service {
    S3 {
        bucket: String,
        key: String,
    },
    Gcs {
        bucket: String,
        key: String,
    },
    Azure {
        container: String,
        key: String,
    },
    /// WebDAV, too: reading from it is HTTP.
    Http {
        url: reqwest::Url,
    },
    WebHdfs {
        endpoint: String,
        path: String,
    },
    File {
        path: String,
    },
    #[cfg(feature = "sftp")]
    Sftp {
        endpoint: String,
        user: String,
        path: String,
    },
}

/// Facts that a service's answers have shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// There are no credentials: requests are not signed.
    pub is_anonymous: bool,
    /// The region that AWS named instead of the one that was set.
    pub region: Option<String>,
}

/// The way to an object by OpenDAL.
pub(crate) struct Reached {
    pub operator: Operator,
    /// The object's path within the operator.
    pub path: String,
    /// The endpoint, if it is not the service's default: there the same name means another object.
    pub endpoint: Option<String>,
}

/// The part of a URL that may be shown, also if the URL is malformed: without user, password and query string. A password may have slashes and
/// the like in it.
///
/// ```
/// assert_eq!(fastmap_object::shown("http://me:pass/word@host/x?token=1"), "http://host/x");
/// ```
pub fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let place = rest.rsplit('@').next().unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

impl Location {
    pub fn parse(url: &str) -> Result<Location, Error> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        // No error may show a URL as it is, since its secret parts are not known yet.
        let place = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let wrong = |why: String| Err(Error::Url { url: shown(url), why });
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        if user.is_some_and(|user| scheme != "sftp" || user.contains(':')) {
            let remedy = match scheme {
                "s3" => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                "gs" => "set GOOGLE_APPLICATION_CREDENTIALS",
                "az" => "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
                "sftp" => "use a key of ssh(1)'s",
                _ => "put the host's login and password into ~/.netrc",
            };
            return wrong(format!(
                "credentials in a URL end up in logs and process lists: leave them out, and {remedy}"
            ));
        }
        // A key is taken as it stands, with all its characters, as the services' own tools do.
        let keyed = || match rest.split_once('/') {
            Some((bucket, key)) if !bucket.is_empty() && is_plain(key) => Ok((bucket.to_owned(), key.to_owned())),
            Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                Err("a key that begins or ends with a slash or white space, or has two slashes on end, cannot be read"
                    .to_owned())
            }
            _ => Err(format!("names no object: write {scheme}://BUCKET/KEY")),
        };
        let mut name = url.to_owned();
        let service = match scheme {
            "s3" => keyed().map(|(bucket, key)| Service::S3 { bucket, key }),
            "gs" => keyed().map(|(bucket, key)| Service::Gcs { bucket, key }),
            "az" => keyed().map(|(container, key)| Service::Azure { container, key }),
            "http" | "https" | "webdav" | "webdavs" => {
                let secure = if scheme.ends_with('s') { "https" } else { "http" };
                reqwest::Url::parse(&format!("{secure}://{rest}")).map_err(|error| error.to_string()).map(
                    |mut exact| {
                        exact.set_fragment(None);
                        name = format!("{scheme}://{place}{}", query_name(&exact));
                        Service::Http { url: exact }
                    },
                )
            }
            "hdfs" | "webhdfs" | "swebhdfs" if !authority.is_empty() && is_plain(path) => {
                let host = authority.split(':').next().unwrap_or_default();
                let endpoint = match scheme {
                    // The URL's port is that of Hadoop's own protocol.
                    "hdfs" => format!("http://{host}:9870"),
                    "webhdfs" => format!("http://{authority}"),
                    _ => format!("https://{authority}"),
                };
                Ok(Service::WebHdfs { endpoint, path: path.to_owned() })
            }
            "hdfs" | "webhdfs" | "swebhdfs" => Err(format!("names no object: write {scheme}://HOST:PORT/PATH")),
            "file" if authority.is_empty() && is_plain(path) => Ok(Service::File { path: path.to_owned() }),
            "file" => Err("write file:///PATH".to_owned()),
            #[cfg(feature = "sftp")]
            "sftp" if !authority.is_empty() && is_plain(path) => {
                let (user, endpoint) = authority.rsplit_once('@').unwrap_or(("", authority));
                Ok(Service::Sftp { endpoint: endpoint.to_owned(), user: user.to_owned(), path: path.to_owned() })
            }
            #[cfg(not(feature = "sftp"))]
            "sftp" => Err("this FastMap was built without the feature sftp".to_owned()),
            _ => Err(format!("no URL of an object: known are {SCHEMES}")),
        };
        service.map(|service| Location { name, service }).or_else(wrong)
    }

    /// Whether the service's responses say their range and version. If not, the version is looked at after each read.
    pub fn is_http(&self) -> bool {
        matches!(self.service, Service::S3 { .. } | Service::Gcs { .. } | Service::Azure { .. } | Service::Http { .. })
    }

    /// Whether requests are signed if there are credentials.
    pub fn is_signed(&self) -> bool {
        matches!(self.service, Service::S3 { .. } | Service::Gcs { .. } | Service::Azure { .. })
    }

    /// The way to the object. Each call looks for credentials anew.
    pub fn reach(&self, found: &Found) -> opendal::Result<Reached> {
        let (operator, path, endpoint) = match &self.service {
            Service::S3 { bucket, key } => {
                let profile = Profile::load();
                let endpoint = aws::endpoint(&profile);
                let region = found.region.clone().unwrap_or_else(|| aws::region(&profile));
                let mut builder = services::S3::default().bucket(bucket).region(&region);
                match &endpoint {
                    Some(endpoint) => builder = builder.endpoint(endpoint),
                    // Certificates do not cover host names of buckets with a dot in their names.
                    None if !bucket.contains('.') => builder = builder.enable_virtual_host_style(),
                    None => {}
                }
                if found.is_anonymous {
                    builder = builder.skip_signature();
                } else {
                    builder = aws::assume_role(builder, &profile);
                }
                (Operator::new(builder)?.finish(), key, endpoint)
            }
            Service::Gcs { bucket, key } => {
                let emulator = variable(&["STORAGE_EMULATOR_HOST"]).map(|host| with_scheme(&host));
                let mut builder = services::Gcs::default().bucket(bucket);
                if let Some(endpoint) = &emulator {
                    builder = builder.endpoint(endpoint);
                }
                if variable(&["NO_GCE_CHECK"]).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
                    builder = builder.disable_vm_metadata();
                }
                if found.is_anonymous || emulator.is_some() {
                    builder = builder.skip_signature();
                }
                (Operator::new(builder)?.finish(), key, emulator)
            }
            Service::Azure { container, key } => {
                let mut builder = match variable(&["AZURE_STORAGE_CONNECTION_STRING"]) {
                    Some(connection) => services::Azblob::from_connection_string(&connection)?,
                    None => services::Azblob::default(),
                }
                .container(container);
                let account = variable(&["AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"]);
                if let Some(account) = &account {
                    let endpoint = format!("https://{account}.blob.core.windows.net");
                    builder = builder.account_name(account).endpoint(&endpoint);
                }
                if let Some(key) =
                    variable(&["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"])
                {
                    builder = builder.account_key(&key);
                }
                if let Some(token) = variable(&["AZURE_STORAGE_SAS_TOKEN"]) {
                    builder = builder.sas_token(token.trim_start_matches('?'));
                }
                if found.is_anonymous {
                    builder = builder.skip_signature();
                }
                let place =
                    account.or_else(|| variable(&["AZURE_STORAGE_CONNECTION_STRING"]).and_then(|all| account_in(&all)));
                (Operator::new(builder)?.finish(), key, place)
            }
            Service::Http { url } => {
                let mut builder = services::Http::default().endpoint(&url.origin().ascii_serialization());
                if let Some((login, password)) = url.host_str().and_then(netrc) {
                    builder = builder.username(&login).password(&password);
                }
                // The client sends the URL as it was given.
                (Operator::new(builder)?.finish(), &"object".to_owned(), None)
            }
            Service::WebHdfs { endpoint, path } => {
                let user = variable(&["HADOOP_USER_NAME", "USER", "LOGNAME"]).unwrap_or_default();
                let builder = services::Webhdfs::default().endpoint(endpoint).user_name(&user);
                (Operator::new(builder)?.finish(), path, None)
            }
            Service::File { path } => (Operator::new(services::Fs::default().root("/"))?.finish(), path, None),
            #[cfg(feature = "sftp")]
            Service::Sftp { endpoint, user, path } => {
                let builder = services::Sftp::default().endpoint(endpoint).user(user).root("/");
                (Operator::new(builder)?.finish(), path, None)
            }
        };
        Ok(Reached { operator, path: path.to_owned(), endpoint })
    }
}

/// Whether OpenDAL takes a path as it stands. It would read another object otherwise.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && !path.ends_with('/') && !path.contains("//") && path.trim() == path
}

/// The text that stands for a query string in the object's name: a hash of the parameters that choose the object, without those that sign the
/// request. Neither can be read from it.
fn query_name(url: &reqwest::Url) -> String {
    let is_signature = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.starts_with("x-amz-") || name.starts_with("x-goog-") || SIGNATURES.contains(&name.as_str())
    };
    let mut chosen: Vec<_> = url.query_pairs().filter(|(name, _)| !is_signature(name)).collect();
    if chosen.is_empty() {
        return String::new();
    }
    chosen.sort();
    // FNV-1a.
    let hash = format!("{chosen:?}")
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    format!("?{hash:016x}")
}

/// The value of the first of some environment variables that is set and not empty.
pub(crate) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn with_scheme(host: &str) -> String {
    let host = host.trim_end_matches('/');
    if host.contains("://") { host.to_owned() } else { format!("http://{host}") }
}

fn account_in(connection: &str) -> Option<String> {
    let of = |name| connection.split(';').find_map(|part| part.trim().strip_prefix(name));
    of("BlobEndpoint=").or_else(|| of("AccountName=")).map(str::to_owned)
}

/// The user's home folder.
pub(crate) fn home() -> Option<PathBuf> {
    variable(&["HOME"]).map(PathBuf::from)
}

/// Login and password for a host, where curl(1) and wget(1) look for them: `$NETRC`, else `~/.netrc`.
fn netrc(host: &str) -> Option<(String, String)> {
    let path = variable(&["NETRC"]).map(PathBuf::from).or_else(|| Some(home()?.join(".netrc")))?;
    netrc_entry(&std::fs::read_to_string(path).ok()?, host)
}

fn netrc_entry(text: &str, host: &str) -> Option<(String, String)> {
    let mut words = text.split_whitespace();
    let (mut is_host, mut login, mut password) = (false, None, None);
    while let Some(word) = words.next() {
        match word {
            "machine" | "default" if login.is_some() && password.is_some() => break,
            "machine" => is_host = words.next() == Some(host),
            "default" => is_host = true,
            "login" => login = words.next().filter(|_| is_host).or(login),
            "password" => password = words.next().filter(|_| is_host).or(password),
            _ => {}
        }
    }
    Some((login?.to_owned(), password?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(url: &str) -> Result<String, String> {
        Location::parse(url).map(|location| location.name).map_err(|error| error.to_string())
    }

    #[test]
    fn urls_are_read() {
        for url in [
            "s3://bucket/a/b?c#d",
            "gs://bucket/key",
            "az://container/key",
            "file:///tmp/x",
            "http://host/a/b",
            "hdfs://nn:8020/x",
        ] {
            assert_eq!(name(url).as_deref(), Ok(url));
        }
        assert!(matches!(Location::parse("s3://bucket/a?b").unwrap().service, Service::S3 { key, .. } if key == "a?b"));
        assert!(matches!(Location::parse("hdfs://nn:8020/x").unwrap().service,
            Service::WebHdfs { endpoint, path } if endpoint == "http://nn:9870" && path == "x"));
        assert!(
            matches!(Location::parse("webdavs://host/x").unwrap().service, Service::Http { url } if url.as_str() == "https://host/x")
        );
    }

    #[test]
    fn wrong_ones_say_what_is_right() {
        for (url, says) in [
            ("", "known are s3://"),
            ("ftp://host/file", "known are s3://"),
            ("/etc/passwd", "known are s3://"),
            ("s3://bucket", "write s3://BUCKET/KEY"),
            ("s3:///key", "write s3://BUCKET/KEY"),
            ("s3://bucket/a//b", "two slashes"),
            ("s3://bucket/folder/", "ends with a slash"),
            ("file://host/x", "file:///PATH"),
            ("webhdfs://host", "HOST:PORT"),
            ("http://", "host"),
        ] {
            let said = name(url).unwrap_err();
            assert!(said.contains(says), "{url}: {said}");
        }
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        for url in [
            "http://user:hunter2@host/x",
            "s3://key:hunter2@bucket/x",
            "https://hunter2@host/x?q=1",
            "ftp://a:hunter2@host/?hunter2",
            "http://user:hunter2/x@host/x",
            "http://user:hunter2?@host/x",
            "http://user:hunter2#@host/x",
        ] {
            let said = name(url).unwrap_err();
            assert!(!said.contains("hunter2"), "{said}");
        }
        assert!(name("http://user:hunter2@host/x").unwrap_err().contains(".netrc"));
        let signed = "https://host/x?X-Amz-Signature=hunter2&X-Amz-Expires=5";
        assert_eq!(name(signed).as_deref(), Ok("https://host/x"));
        assert_eq!(format!("{:?}", Location::parse(signed).unwrap()), "https://host/x");
        let [one, other] =
            ["https://host/x?id=1&sig=hunter2", "https://host/x?id=2&sig=hunter2"].map(|url| name(url).unwrap());
        assert_ne!(one, other);
        assert!(!one.contains("id") && !one.contains("hunter2"));
        assert_eq!(name("https://host/x?sig=other&id=1"), Ok(one));
    }

    #[test]
    fn netrc_is_read() {
        let text =
            "machine a login one password two\nmachine b\n  login three\n  password four default login x password y";
        let of = |host| netrc_entry(text, host).map(|(login, password)| format!("{login} {password}"));
        assert_eq!([of("a"), of("b"), of("c")].map(Option::unwrap), ["one two", "three four", "x y"]);
        assert_eq!(netrc_entry("machine a login b", "a"), None);
    }
}
