//! Finds the directory of this process's memory cgroup from /proc/self/cgroup and /proc/self/mountinfo. cgroups(7)

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Unavailable, Version};

/// The version of the hierarchy that has the memory controller, and the directory of this process's cgroup in it.
pub fn own_memory_cgroup() -> Result<(Version, PathBuf), Unavailable> {
    let read = |path: &str| fs::read_to_string(path).map_err(Unavailable::at(Path::new(path), "cannot read"));
    locate(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
}

fn locate(cgroups: &str, mounts: &str) -> Result<(Version, PathBuf), Unavailable> {
    let missing = |what| Unavailable {
        path: PathBuf::from("/proc/self/mountinfo"),
        what,
        error: io::Error::from_raw_os_error(libc::ENOENT),
    };
    if let Some(own) = path_in(cgroups, |controllers| controllers.split(',').any(|c| c == "memory")) {
        let mount = mounts
            .lines()
            .filter_map(Mount::parse)
            .find(|m| m.kind == "cgroup" && m.options.split(',').any(|o| o == "memory"))
            .ok_or_else(|| missing("the memory hierarchy of cgroup v1 is not mounted"))?;
        return Ok((Version::V1, mount.directory_of(own)));
    }
    let own = path_in(cgroups, str::is_empty).ok_or_else(|| missing("this process is in no memory cgroup"))?;
    let mount = mounts
        .lines()
        .filter_map(Mount::parse)
        .find(|m| m.kind == "cgroup2")
        .ok_or_else(|| missing("no cgroup file system is mounted"))?;
    Ok((Version::V2, mount.directory_of(own)))
}

/// The path on the first line of /proc/self/cgroup (`ID:CONTROLLERS:PATH`) whose controllers match.
fn path_in(cgroups: &str, controllers: impl Fn(&str) -> bool) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        controllers(fields.next()?).then(|| fields.next())?
    })
}

/// The fields that are used of a line of /proc/self/mountinfo. proc_pid_mountinfo(5)
struct Mount<'a> {
    root: String,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        Some(Mount {
            root: crate::machine::unescape(left.next()?),
            point: crate::machine::unescape(left.next()?),
            kind: right.next()?,
            options: right.nth(1)?,
        })
    }

    /// The directory of the cgroup `own`. In containers, `own` may lie outside the mounted part: then it is the mount point.
    fn directory_of(&self, own: &str) -> PathBuf {
        match Path::new(own).strip_prefix(&self.root) {
            Ok(below) => Path::new(&self.point).join(below),
            Err(_) => PathBuf::from(&self.point),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2_MOUNT: &str = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    fn found(cgroups: &str, mounts: &str) -> (Version, String) {
        let (version, path) = locate(cgroups, mounts).unwrap();
        (version, path.display().to_string())
    }

    #[test]
    fn version_1_wins_where_it_has_the_controller() {
        let cgroups = "9:name=systemd:/\n4:memory:/api/42\n1:cpu,cpuacct:/\n0::/\n";
        let mounts = format!("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n{V1_MOUNT}\n{V2_MOUNT}");
        assert_eq!(found(cgroups, &mounts), (Version::V1, "/sys/fs/cgroup/memory/api/42".into()));
    }

    #[test]
    fn version_2_alone() {
        let cgroups = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n";
        let (version, path) = found(cgroups, V2_MOUNT);
        assert_eq!(version, Version::V2);
        assert_eq!(path, "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope");
    }

    #[test]
    fn containers_see_only_their_part() {
        let bound = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        assert_eq!(found("4:memory:/docker/abc/x\n", bound).1, "/sys/fs/cgroup/memory/x");
        assert_eq!(found("4:memory:/elsewhere\n", bound).1, "/sys/fs/cgroup/memory");
        assert_eq!(found("0::/\n", V2_MOUNT).1, "/sys/fs/cgroup/");
    }

    #[test]
    fn colons_and_spaces_in_names() {
        let mount = r"35 31 0:32 / /mnt/c\040g rw - cgroup cgroup rw,memory";
        assert_eq!(found("4:memory:/a:b/c\n", mount).1, "/mnt/c g/a:b/c");
    }

    #[test]
    fn nothing_mounted_is_told() {
        let error = locate("0::/\n", "").unwrap_err().to_string();
        assert!(error.starts_with("/proc/self/mountinfo: no cgroup file system is mounted"), "{error}");
        assert!(locate("4:memory:/\n", V2_MOUNT).is_err());
        assert!(locate("", V2_MOUNT).is_err());
    }
}
