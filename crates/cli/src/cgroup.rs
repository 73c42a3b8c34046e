//! Memory cgroups, version 1 or 2. Each run of a benchmark gets its own group, below the cgroup of this process.

mod locate;
mod v1;
mod v2;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// The names of all groups made here begin with this. The process id and a number follow.
const PREFIX: &str = "fastmap-bench-";

/// The cgroup version that limits a run's memory. `Display` gives its name in the JSON.
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

/// The reason why no memory cgroup can be made. `Display` gives `PATH: what: error`, without a remedy.
#[derive(Debug)]
pub struct Unavailable {
    /// The directory or file on which it failed.
    pub path: PathBuf,
    /// The step that failed, such as `cannot set the limit`.
    pub what: &'static str,
    /// The error of the system call.
    pub error: io::Error,
}

/// The remedy where this user may not make memory cgroups.
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

/// The limit of this process's own memory cgroup, in bytes. `u64::MAX` if there is no limit.
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

/// A cgroup below which groups with a memory limit can be made.
pub struct Controller {
    version: Version,
    parent: PathBuf,
    /// The changes to the version 2 hierarchy that this took. Dropping it undoes them.
    _delegation: Option<v2::Delegation>,
}

impl Controller {
    /// Finds the cgroup, removes groups that killed processes have left, and makes and removes a group as a proof.
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

    /// The version of the hierarchy.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Makes a group whose processes together use at most `limit` bytes of memory, and no swap.
    ///
    /// # Errors
    ///
    /// The step that failed. No group is left.
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

/// The memory cgroup of one run. Dropping it removes the cgroup.
pub struct Group {
    version: Version,
    dir: PathBuf,
}

impl Group {
    /// A process joins the group by writing "0" to this file.
    pub fn join_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The file with the group's peak of memory in bytes, if the kernel has it (version 2: since Linux 5.19).
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

/// Removes a group. Waits at most half a second until processes that have just ended are out of it.
fn remove(dir: &Path) {
    for _ in 0..50 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(Duration::from_millis(10)),
            _ => return,
        }
    }
}

/// Removes groups of processes that have ended without removing them, because they were killed.
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
