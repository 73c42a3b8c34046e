//! Memory cgroups: one for each run, under the cgroup this process is in, of version 1 or 2.

mod locate;
mod v1;
mod v2;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// Beginning of the names of all groups made here; the process's id and a number follow.
const PREFIX: &str = "fastmap-bench-";

/// What limits a run's memory; `Display` is the JSON's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The memory hierarchy of version 1.
    V1,
    /// The unified hierarchy.
    V2,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Version::V1 => "cgroup-v1",
            Version::V2 => "cgroup-v2",
        })
    }
}

/// Why no memory cgroup can be made. `Display` is `PATH: what: errno`, without a remedy.
#[derive(Debug)]
pub struct Unavailable {
    /// The directory or file that refused.
    pub path: PathBuf,
    /// What was tried.
    pub what: &'static str,
    /// The system's answer.
    pub error: io::Error,
}

/// How to be allowed to make memory cgroups.
pub const REMEDY: &str = "run as root, or `systemd-run --user --scope -p Delegate=yes fastmap bench ...`";

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.path.display(), self.what, self.error)
    }
}

impl Unavailable {
    fn at<'a>(path: &'a Path, what: &'static str) -> impl FnOnce(io::Error) -> Unavailable + 'a {
        move |error| Unavailable { path: path.to_owned(), what, error }
    }
}

/// The limit of the memory cgroup this process is in itself, bytes; `u64::MAX` if there is none.
pub fn own_limit() -> u64 {
    let Ok((version, own)) = locate::own_memory_cgroup() else {
        return u64::MAX;
    };
    let file = match version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    };
    fs::read_to_string(own.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// The place where groups can be made.
pub struct Controller {
    version: Version,
    parent: PathBuf,
    /// What had to be changed in version 2 to get there; undone when dropped.
    _delegation: Option<v2::Delegation>,
}

impl Controller {
    /// Finds the place, and proves it by making a group and removing it.
    ///
    /// # Errors
    ///
    /// The step that failed.
    pub fn find() -> Result<Controller, Unavailable> {
        let controller = match locate::own_memory_cgroup()? {
            (Version::V1, own) => Controller { version: Version::V1, parent: own, _delegation: None },
            (Version::V2, own) => {
                let (parent, delegation) = v2::delegate(&own, "memory")?;
                Controller { version: Version::V2, parent, _delegation: Some(delegation) }
            }
        };
        remove_orphans(&controller.parent);
        controller.group(1 << 30)?;
        Ok(controller)
    }

    /// Which hierarchy it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// A fresh group whose processes together use at most `limit` bytes, without swap.
    ///
    /// # Errors
    ///
    /// The step that failed; nothing is left then.
    pub fn group(&self, limit: u64) -> Result<Group, Unavailable> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = self.parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&dir).map_err(Unavailable::at(&dir, "cannot make a memory cgroup"))?;
        let group = Group { version: self.version, dir };
        match self.version {
            Version::V1 => v1::limit(&group.dir, limit)?,
            Version::V2 => v2::limit(&group.dir, limit)?,
        }
        Ok(group)
    }
}

/// One run's memory cgroup, removed when dropped.
pub struct Group {
    version: Version,
    dir: PathBuf,
}

impl Group {
    /// The file into which a process writes "0" to join.
    pub fn join_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The file that tells the peak in bytes, if this kernel has one (version 2: since Linux 5.19).
    pub fn peak_file(&self) -> Option<PathBuf> {
        let name = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        Some(self.dir.join(name)).filter(|path| path.exists())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Removes a group, waiting up to half a second for processes that have just ended to leave it.
fn remove(dir: &Path) {
    for _ in 0..50 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(Duration::from_millis(10)),
            _ => return,
        }
    }
}

/// Removes groups of earlier processes that were killed before they could do it themselves.
fn remove_orphans(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_go_and_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}-0", std::process::id());
        let orphan = format!("{PREFIX}4194999-3"); // above any pid_max
        for name in [own.as_str(), &orphan, "other"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        remove_orphans(parent.path());
        let left = |name: &str| parent.path().join(name).exists();
        assert!(left(&own) && left("other") && !left(&orphan));
    }

    #[test]
    fn a_group_limits_and_leaves_nothing() {
        let controller = match Controller::find() {
            Ok(controller) => controller,
            Err(why) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot run in CI: {why}");
                return println!("skipped, no memory cgroup here: {why}");
            }
        };
        let group = controller.group(64 << 20).unwrap();
        let dir = group.dir.clone();
        let file = if controller.version() == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        assert_eq!(fs::read_to_string(dir.join(file)).unwrap().trim(), (64 << 20).to_string());
        drop(group);
        assert!(!dir.exists());
    }
}
