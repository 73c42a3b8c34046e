//! The amount of memory that this process may use: sysconf(3), cgroups(7) versions 1 and 2. A group for what outlives a kill of all of a group.

use super::{engine_fd, proc_files};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

/// The least of physical memory and the memory limits of the process's cgroup and of that group's ancestors, in bytes.
pub fn memory_limit() -> usize {
    let limits = group_folders().into_iter().flat_map(|(root, folder, limit_file)| {
        let mut limits = Vec::new();
        let mut at = folder.as_path();
        while at.starts_with(&root) {
            limits.extend(proc_files::text(at.join(limit_file)).trim().parse::<usize>().ok());
            let Some(parent) = at.parent() else { break };
            at = parent;
        }
        limits
    });
    limits.chain([physical_memory()]).min().unwrap_or(usize::MAX)
}

/// Physical memory in bytes (sysconf(3)).
pub fn physical_memory() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PHYS_PAGES).max(0) as usize * libc::sysconf(libc::_SC_PAGESIZE).max(0) as usize }
}

/// For each cgroup hierarchy that limits memory: its mount point, the folder of this process's group, and the name of the file that holds
/// the limit.
pub(super) fn group_folders() -> Vec<(PathBuf, PathBuf, &'static str)> {
    let groups = proc_files::text("/proc/self/cgroup");
    let mounts = proc_files::text("/proc/self/mountinfo");
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (file_system, limit_file) = match controllers {
            "" => ("cgroup2", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => ("cgroup", "memory.limit_in_bytes"),
            _ => continue,
        };
        for (root, mount) in mount_points(&mounts, file_system) {
            // Inside a container the mount shows only a part of the hierarchy: the group `root` is at the mount point.
            let inside = Path::new(path).strip_prefix(&root).or_else(|_| Path::new(path).strip_prefix("/"));
            let folder = inside.map_or(mount.clone(), |inside| mount.join(inside));
            if folder.join(limit_file).exists() || mount.join(limit_file).exists() {
                folders.push((mount, folder, limit_file));
            }
        }
    }
    folders
}

/// The group for processes that are to outlive a kill of all of a group (cgroup.kill, systemd's final kill), by its name beside that.
const APART: &str = "fastmap-keepers";

/// Whether all processes of this process's group may be killed at once, and nothing of this user's can be kept apart from them.
pub fn is_killed_as_a_whole() -> bool {
    if COULD_NOT.load(Ordering::Relaxed) {
        return true;
    }
    let may_write = |path: PathBuf| {
        let path = CString::new(path.into_os_string().into_vec());
        // SAFETY: a C string.
        path.is_ok_and(|path| unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0)
    };
    match parent_of_killable() {
        Killable::No => false,
        Killable::Beside(parent) => !(may_write(parent.clone()) && may_write(parent.join("cgroup.procs"))),
        Killable::Alone => true,
    }
}

/// Moves a process to a group beside this process's own, if that may be killed as a whole. An empty group stays behind.
pub fn keep_apart(process: i32) -> io::Result<()> {
    let Killable::Beside(parent) = parent_of_killable() else { return Ok(()) };
    let apart = parent.join(APART);
    let _low = engine_fd::low();
    let made = match fs::create_dir(&apart) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::write(apart.join("cgroup.procs"), process.to_string()),
    };
    made.inspect_err(|_| COULD_NOT.store(true, Ordering::Relaxed))
}

/// A process could not be kept apart, whatever the rights seemed to be.
static COULD_NOT: AtomicBool = AtomicBool::new(false);

/// Whether this process's group may be killed as a whole.
enum Killable {
    No,
    /// There may be a group beside it, in this folder.
    Beside(PathBuf),
    /// It is the outermost group that is seen here, or of version 1, in which systemd kills all that it finds.
    Alone,
}

fn parent_of_killable() -> Killable {
    let groups = proc_files::text("/proc/self/cgroup");
    let of = |prefix: &str| groups.lines().find_map(|line| line.split_once(prefix).map(|(_, path)| path));
    let path = of("0::").unwrap_or("/");
    for (root, mount) in mount_points(&proc_files::text("/proc/self/mountinfo"), "cgroup2") {
        let Ok(inside) = Path::new(path).strip_prefix(&root) else { continue };
        let folder = mount.join(inside);
        // The first group of all has no such file.
        if folder.join("cgroup.kill").exists() {
            let parent = folder.parent().filter(|parent| parent.starts_with(&mount));
            return parent.map_or(Killable::Alone, |parent| Killable::Beside(parent.to_owned()));
        }
    }
    if of(":name=systemd:").is_some_and(|path| path != "/") { Killable::Alone } else { Killable::No }
}

/// The (root, mount point) pairs of all mounts of one file system type in /proc/self/mountinfo (proc_pid_mountinfo(5)).
fn mount_points(mounts: &str, file_system: &str) -> Vec<(PathBuf, PathBuf)> {
    let of_type =
        |line: &&str| line.split(" - ").nth(1).is_some_and(|tail| tail.split(' ').next() == Some(file_system));
    let pair = |line: &str| {
        let mut fields = line.split(' ').skip(3);
        Some((PathBuf::from(fields.next()?), PathBuf::from(fields.next()?)))
    };
    mounts.lines().filter(of_type).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_mount_points_by_type() {
        let mounts = "36 32 0:29 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      37 32 0:30 /box /sys/fs/cgroup rw - cgroup2 none rw\n";
        assert_eq!(mount_points(mounts, "cgroup"), [("/".into(), "/sys/fs/cgroup/memory".into())]);
        assert_eq!(mount_points(mounts, "cgroup2"), [("/box".into(), "/sys/fs/cgroup".into())]);
    }

    #[test]
    fn the_limit_is_no_more_than_physical_memory() {
        assert!((1 << 20..=physical_memory()).contains(&memory_limit()));
    }
}
