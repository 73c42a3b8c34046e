//! Globs choose files: those that the cache serves (`--map`), and those that only this program uses (`--own`).

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use glob::Pattern;

use crate::failure::Failure;

/// Checks the globs of the flag, or else of the variable. Returns them absolute, and joined with colons.
pub fn checked(name: &'static str, flags: &[OsString], variable: &'static str) -> Result<Option<OsString>, Failure> {
    if flags.is_empty() {
        let Some(text) = env::var_os(variable) else { return Ok(None) };
        // Colons separate the globs of the variable, so no glob there can contain a colon.
        let parts = text.as_bytes().split(|byte| *byte == b':').map(|part| part.to_vec());
        return joined(variable, parts.map(|part| String::from_utf8_lossy(&part).into_owned())).map(Some);
    }
    joined(name, flags.iter().map(|flag| flag.to_string_lossy().into_owned())).map(Some)
}

fn joined(source: &str, globs: impl Iterator<Item = String>) -> Result<OsString, Failure> {
    let here = env::current_dir().unwrap_or_default();
    let mut all = Vec::new();
    for glob in globs {
        for choice in expanded(source, &glob)? {
            all.push(absolute(source, &choice, &here.to_string_lossy())?);
        }
    }
    Ok(all.join(":").into())
}

/// Expands `{one,other}` in a glob: returns a glob for each choice.
fn expanded(source: &str, glob: &str) -> Result<Vec<String>, Failure> {
    /// Each file that is mapped is matched against all of them.
    const MOST: usize = 256;
    let refuse = |what: &str| Err(Failure::usage(source, format!("\"{glob}\" is not a glob: {what}"), REMEDY));
    let (mut done, mut left) = (Vec::new(), vec![glob.to_owned()]);
    while let Some(one) = left.pop() {
        // The innermost choice: the first that closes.
        let Some(end) = one.find('}') else {
            if one.contains('{') {
                return refuse("a { without a }");
            }
            done.push(one);
            continue;
        };
        let Some(start) = one[..end].rfind('{') else { return refuse("a } without a {") };
        left.extend(
            one[start + 1..end].split(',').map(|choice| format!("{}{choice}{}", &one[..start], &one[end + 1..])),
        );
        if done.len() + left.len() > MOST {
            return refuse("it has more than 256 choices");
        }
    }
    done.reverse();
    Ok(done)
}

const REMEDY: &str = "see `fastmap run --help` for what a glob is made of";

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
        _ => format!("{}/{}", Pattern::escape(here), glob.trim_start_matches("./")),
    };
    match Pattern::new(&whole) {
        Ok(_) => Ok(whole),
        Err(error) => refuse(format!("\"{glob}\" is not a glob: {}", error.msg), REMEDY),
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
    fn choices_become_globs_of_their_own() {
        for (glob, all) in [
            ("/a/*.db", "/a/*.db"),
            ("/a.{db,idx}", "/a.db:/a.idx"),
            ("/{a,b}/{c,d}", "/a/c:/b/c:/a/d:/b/d"),
            ("/{a,b{c,d}}", "/a:/bc:/bd"),
            ("/x{}y", "/xy"),
        ] {
            let mut found = expanded("--map", glob).unwrap();
            let mut wanted: Vec<_> = all.split(':').collect();
            found.sort();
            found.dedup();
            wanted.sort();
            assert_eq!(found, wanted, "{glob}");
        }
        assert!(expanded("--map", &"{a,b}".repeat(9)).unwrap_err().to_string().contains("256 choices"));
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        for (glob, what) in [
            ("", "an empty glob"),
            ("/a[", "is not a glob"),
            ("/a{b", "is not a glob"),
            ("/a}b", "is not a glob"),
            ("/a:b", "a colon"),
        ] {
            assert!(joined("--map", [glob.to_owned()].into_iter()).unwrap_err().to_string().contains(what), "{glob}");
        }
    }
}
