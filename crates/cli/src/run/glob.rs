//! `--map GLOB` chooses the files whose mappings the cache serves.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use globset::GlobBuilder;

use crate::failure::Failure;

/// Checks the globs of the flag, or else of the variable. Returns them absolute, and joined with colons.
pub fn checked(flags: &[OsString], variable: Option<OsString>) -> Result<Option<OsString>, Failure> {
    if flags.is_empty() {
        let Some(text) = variable else { return Ok(None) };
        // Colons separate the globs of the variable, so no glob there can contain a colon.
        let parts = text.as_bytes().split(|byte| *byte == b':').map(|part| part.to_vec());
        return joined("FASTMAP_MAP", parts.map(|part| String::from_utf8_lossy(&part).into_owned())).map(Some);
    }
    joined("--map", flags.iter().map(|flag| flag.to_string_lossy().into_owned())).map(Some)
}

fn joined(source: &str, globs: impl Iterator<Item = String>) -> Result<OsString, Failure> {
    let here = env::current_dir().unwrap_or_default();
    let mut all = Vec::new();
    for glob in globs {
        all.push(absolute(source, &glob, &here.to_string_lossy())?);
    }
    Ok(all.join(":").into())
}

/// The glob as it is matched against absolute paths.
fn absolute(source: &str, glob: &str, here: &str) -> Result<String, Failure> {
    let refuse = |what: String, remedy: &str| Err(Failure::usage(source, what, remedy));
    if glob.is_empty() {
        return refuse("an empty glob matches nothing".into(), "give one such as '/data/*.db'");
    }
    if glob.contains(':') {
        return refuse(format!("\"{glob}\" has a colon, which separates globs"), "put a ? in its place");
    }
    let whole = match glob {
        _ if glob.starts_with('/') => glob.to_owned(),
        _ if !glob.contains('/') => format!("**/{glob}"),
        _ => format!("{}/{}", globset::escape(here), glob.trim_start_matches("./")),
    };
    match GlobBuilder::new(&whole).literal_separator(true).build() {
        Ok(_) => Ok(whole),
        Err(error) => {
            let what = format!("\"{glob}\" is not a glob: {}", error.kind());
            refuse(what, "see `fastmap run --help` for what a glob is made of")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_become_absolute() {
        for (glob, whole) in [
            ("/data/*.db", "/data/*.db"),
            ("*.db", "**/*.db"),
            ("./x/*.db", "/home/me/x/*.db"),
            ("x/**", "/home/me/x/**"),
        ] {
            assert_eq!(absolute("--map", glob, "/home/me").unwrap(), whole);
        }
        assert_eq!(absolute("--map", "x/y", "/home/[me]").unwrap(), "/home/[[]me[]]/x/y");
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        for (glob, what) in
            [("", "an empty glob"), ("/a[", "is not a glob"), ("/a{b", "is not a glob"), ("/a:b", "a colon")]
        {
            assert!(absolute("--map", glob, "/").unwrap_err().to_string().contains(what), "{glob}");
        }
    }
}
