//! Finds a place for groups in the version 2 (unified) hierarchy, and limits groups. Kernel documentation: admin-guide/cgroup-v2.rst
//!
//! A cgroup enables a controller for its children through `cgroup.subtree_control`. Only a cgroup without processes of its own can do so
//! ("no internal processes"; the root is exempt). So this process may first have to move into a leaf.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{PREFIX, Unavailable, remove};

/// The changes that were made so that groups can be made. Dropping it undoes them.
#[derive(Default)]
pub struct Delegation {
    /// The cgroup that enabled a controller for its children, and the controller's name.
    enabled: Option<(PathBuf, String)>,
    /// The cgroup that this process was in, and the leaf that it moved to.
    moved: Option<(PathBuf, PathBuf)>,
}

impl Drop for Delegation {
    fn drop(&mut self) {
        // This order is needed: no process can enter a cgroup that enables controllers for its children.
        if let Some((dir, controller)) = &self.enabled {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("-{controller}"));
        }
        if let Some((from, leaf)) = &self.moved {
            let _ = fs::write(from.join("cgroup.procs"), "0");
            remove(leaf);
        }
    }
}

/// Finds a cgroup whose children have `controller`. This is `own` if possible: this process moves into a leaf below `own` if need be. Where
/// `own` has other processes too (a login session), it is the parent of `own`, if that enables the controller already.
///
/// # Errors
///
/// The step that failed.
pub fn delegate(own: &Path, controller: &str) -> Result<(PathBuf, Delegation), Unavailable> {
    let mut delegation = Delegation::default();
    if hands_out(own, controller)? {
        return Ok((own.to_owned(), delegation));
    }
    let offered = own.join("cgroup.controllers");
    if !lists(&offered, controller)? {
        return Err(Unavailable {
            path: offered,
            what: "the memory controller is not delegated to this cgroup",
            error: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        });
    }
    let mut result = enable(own, controller);
    if is_busy(&result) {
        let leaf = own.join(format!("{PREFIX}{}-self", std::process::id()));
        fs::create_dir(&leaf).map_err(Unavailable::at(&leaf, "cannot make a cgroup"))?;
        delegation.moved = Some((own.to_owned(), leaf.clone()));
        let join = leaf.join("cgroup.procs");
        fs::write(&join, "0").map_err(Unavailable::at(&join, "cannot move into it"))?;
        result = enable(own, controller);
    }
    match result {
        Ok(()) => {
            delegation.enabled = Some((own.to_owned(), controller.to_owned()));
            Ok((own.to_owned(), delegation))
        }
        Err(busy) if busy.error.kind() == io::ErrorKind::ResourceBusy => match own.parent() {
            Some(above) if hands_out(above, controller).unwrap_or(false) => {
                drop(delegation);
                Ok((above.to_owned(), Delegation::default()))
            }
            _ => Err(busy),
        },
        Err(error) => Err(error),
    }
}

fn is_busy(result: &Result<(), Unavailable>) -> bool {
    matches!(result, Err(e) if e.error.kind() == io::ErrorKind::ResourceBusy)
}

fn enable(dir: &Path, controller: &str) -> Result<(), Unavailable> {
    let file = dir.join("cgroup.subtree_control");
    fs::write(&file, format!("+{controller}")).map_err(Unavailable::at(&file, "cannot enable the memory controller"))
}

fn hands_out(dir: &Path, controller: &str) -> Result<bool, Unavailable> {
    lists(&dir.join("cgroup.subtree_control"), controller)
}

fn lists(file: &Path, controller: &str) -> Result<bool, Unavailable> {
    let text = fs::read_to_string(file).map_err(Unavailable::at(file, "cannot read"))?;
    Ok(text.split_whitespace().any(|c| c == controller))
}

/// Limits the group to `bytes`, kernel memory such as page tables included, and keeps it out of swap.
pub fn limit(dir: &Path, bytes: u64) -> Result<(), Unavailable> {
    let file = dir.join("memory.max");
    fs::write(&file, bytes.to_string()).map_err(Unavailable::at(&file, "cannot set the limit"))?;
    // The file is missing where the kernel does not account swap.
    let _ = fs::write(dir.join("memory.swap.max"), "0");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mount point of the unified hierarchy.
    fn unified() -> Option<PathBuf> {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(PathBuf::from)
            .find(|p| p.join("cgroup.subtree_control").exists())
    }

    /// Uses real cgroups, and the first controller that the root offers. This process moves into a new cgroup, which must then enable the
    /// controller for its children although a process is in it.
    #[test]
    fn a_busy_cgroup_is_made_to_delegate_and_left_as_it_was() {
        /// The environment variable is set in the process that runs this test alone. Otherwise processes that other tests start meanwhile would
        /// stay in the cgroup.
        const ALONE: &str = "FASTMAP_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "cgroup::v2::tests::a_busy_cgroup_is_made_to_delegate_and_left_as_it_was";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let status = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").status().unwrap();
            return assert!(status.success(), "{status}");
        }
        let Some(root) = unified() else {
            return println!("skipped: no unified hierarchy is mounted");
        };
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap();
        let home = root.join(own);
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap();
        let Some(controller) = controllers.split_whitespace().next() else {
            return println!("skipped: the unified hierarchy has no controller");
        };
        let handed = hands_out(&root, controller).unwrap();
        let dir = root.join(format!("{PREFIX}test-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&dir) {
            return println!("skipped: cannot make a cgroup: {error}");
        }
        if !handed {
            enable(&root, controller).unwrap();
        }
        fs::write(dir.join("cgroup.procs"), "0").unwrap();

        let (parent, delegation) = delegate(&dir, controller).unwrap();
        assert_eq!(parent, dir);
        assert!(hands_out(&dir, controller).unwrap());
        let now = fs::read_to_string("/proc/self/cgroup").unwrap();
        assert!(now.contains("-self"), "{now}");
        let child = dir.join("child");
        fs::create_dir(&child).unwrap();
        assert!(lists(&child.join("cgroup.controllers"), controller).unwrap());
        fs::remove_dir(&child).unwrap();
        drop(delegation);

        assert!(!hands_out(&dir, controller).unwrap());
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert!(procs.lines().any(|p| p == std::process::id().to_string()), "not moved back");
        fs::write(home.join("cgroup.procs"), "0").unwrap();
        remove(&dir);
        assert!(!dir.exists());
        if !handed {
            fs::write(root.join("cgroup.subtree_control"), format!("-{controller}")).unwrap();
        }
    }

    #[test]
    fn a_cgroup_without_the_controller_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.subtree_control"), "cpu\n").unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu pids\n").unwrap();
        let Err(error) = delegate(dir.path(), "memory") else { panic!("it was found") };
        assert!(error.to_string().contains("cgroup.controllers: the memory controller is not delegated"), "{error}");
    }
}
