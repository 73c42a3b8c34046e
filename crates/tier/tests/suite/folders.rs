//! Folders that cannot do, and what is said of them.

use crate::common::*;
use fastmap_tier::{Error, Tier};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What opening a folder fails with.
fn refusal(folder: &Path) -> String {
    let error = Tier::open(Some(folder), Some(64 * MIB)).unwrap_err().to_string();
    assert!(error.contains(folder.to_str().unwrap()), "{error}");
    error
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn a_folder_is_made_for_this_user_alone() {
    let folder = folder();
    // No more is made than the folder: one that is not there may be a disk that is not mounted.
    let said = refusal(&folder.path().join("a/b"));
    assert!(said.contains(&format!("there is no {}/a to make it in", folder.path().display())), "{said}");
    assert!(refusal(Path::new("/fastmap-no-such")).contains("none is made at /"));
    let inner = folder.path().join("b");
    let tier = tier(&inner, 64 * MIB);
    let local = tier.local(&object(1, 1, 5)).unwrap();
    assert_eq!(std::fs::metadata(&inner).unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(tier.dir()).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    drop(local);
}

#[test]
fn a_folder_that_others_write_to_or_that_is_anothers_is_refused() {
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let said = refusal(folder.path());
    assert!(said.contains("chmod go-w") && said.contains("FASTMAP_TIER"), "{said}");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    tier(folder.path(), 64 * MIB);
    if !is_root() {
        return skip("only root can make a folder another user's");
    }
    std::os::unix::fs::chown(folder.path(), Some(12345), None).unwrap();
    let said = refusal(folder.path());
    assert!(said.contains("user 12345's") && said.contains("FASTMAP_TIER"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused() {
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    refusal(&file);
    let said = refusal(&file.join("inner"));
    assert!(said.contains("FASTMAP_TIER"), "{said}");
    assert!(refusal(Path::new("/proc/fastmap")).contains("cannot make the folder"));
    if let Some(mount) = Mount::new("tmpfs", "ro,mode=700") {
        let said = refusal(mount.0.path());
        assert!(said.contains("FASTMAP_TIER"), "{said}");
    }
}

#[test]
fn a_file_system_without_holes_is_refused() {
    // It keeps files in memory, and knows nothing of fallocate(2).
    let Some(mount) = Mount::new("ramfs", "mode=700") else { return };
    let said = refusal(mount.0.path());
    assert!(said.contains("the file system has no") && said.contains("FASTMAP_TIER"), "{said}");
}

#[test]
fn limits_that_are_none_are_refused() {
    let folder = folder();
    let error = Tier::open(Some(folder.path()), Some(Tier::MIN_LIMIT - 1)).unwrap_err();
    assert!(matches!(&error, Error::LimitTooSmall { .. }) && error.to_string().contains("16777216"), "{error}");
    // Without a limit, a tenth of what is free.
    let tier = Tier::open(Some(folder.path()), None).unwrap();
    assert!(tier.limit() >= Tier::MIN_LIMIT);
    drop(tier);
    // As many as there is place for.
    let first = self::tier(folder.path(), 64 * MIB);
    let many: Vec<_> = (0..40).map(|_| self::tier(folder.path(), 64 * MIB)).collect();
    assert_eq!((first.limit(), many.len()), (64 * MIB, 40));
}

#[test]
fn a_folder_of_another_format_is_begun_anew_when_nobody_uses_it() {
    use std::os::unix::fs::FileExt;
    let folder = folder();
    let first = tier(folder.path(), 64 * MIB);
    let usage = std::fs::File::options().write(true).open(folder.path().join("usage")).unwrap();
    usage.write_all_at(b"FMUSED99", 0).unwrap();
    let error = Tier::open(Some(folder.path()), None).unwrap_err().to_string();
    assert!(error.contains("end that program"), "{error}");
    drop(first);
    assert_eq!(tier(folder.path(), 32 * MIB).limit(), 32 * MIB);
}

const BY_ENVIRONMENT: &str = "folders::where_it_lies_is_told_by_the_environment";

#[test]
fn where_it_lies_is_told_by_the_environment() {
    if let Some((expected, on)) = role() {
        match Tier::open(None, None) {
            Ok(tier) => {
                let (dir, limit) = expected.split_once(' ').unwrap();
                assert_eq!(tier.dir(), on.join(dir));
                assert!(limit == "-" || limit.parse() == Ok(tier.limit()), "{limit} {}", tier.limit());
            }
            Err(error) => {
                assert!(expected.starts_with("error ") && error.to_string().contains(&expected[6..]), "{error}")
            }
        }
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name).into_os_string();
    let cases: [(&str, &[(&str, std::ffi::OsString)]); 7] = [
        ("a 33554432", &[("FASTMAP_TIER", at("a")), ("FASTMAP_TIER_LIMIT", "32MiB".into()), ("HOME", at("home"))]),
        ("b/fastmap -", &[("XDG_CACHE_HOME", at("b")), ("HOME", at("home"))]),
        (
            "home/.cache/fastmap -",
            &[("HOME", at("home")), ("XDG_CACHE_HOME", "relative".into()), ("FASTMAP_TIER", "".into())],
        ),
        ("error set FASTMAP_TIER to one, or HOME", &[]),
        ("error set FASTMAP_TIER to one, or HOME", &[("HOME", "".into())]),
        (
            "error FASTMAP_TIER_LIMIT: \"much\" is not a size",
            &[("FASTMAP_TIER", at("c")), ("FASTMAP_TIER_LIMIT", "much".into())],
        ),
        ("error too small", &[("FASTMAP_TIER", at("d")), ("FASTMAP_TIER_LIMIT", "1MiB".into())]),
    ];
    for (expected, variables) in cases {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for name in ["FASTMAP_TIER", "FASTMAP_TIER_LIMIT", "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
            .args([BY_ENVIRONMENT, "--exact"])
            .env("FASTMAP_TIER_ROLE", expected)
            .env("FASTMAP_TIER_ON", folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{expected}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// A file system of its own, unmounted when dropped; or says why not.
pub struct Mount(pub tempfile::TempDir);

impl Mount {
    pub fn new(kind: &str, options: &str) -> Option<Mount> {
        let at = folder();
        let done = Command::new("mount").args(["-t", kind, "-o", options, "fastmap"]).arg(at.path()).output();
        match done {
            Ok(done) if done.status.success() => return Some(Mount(at)),
            Ok(done) => skip(format!("mount: {}", String::from_utf8_lossy(&done.stderr).trim())),
            Err(error) => skip(format!("mount: {error}")),
        }
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}
