//! How much memory a program's files can have: its memory group and /proc/meminfo.

use super::text::{number, number_after, read};

/// The files with a group's limit and use.
#[derive(Debug)]
struct Group {
    limit: String,
    stat: String,
    /// The names, in `stat`, of memory that is no file's. (To subtract the files' memory from the group's total use would be less exact: the
    /// kernel counts the two at different times.)
    others: &'static [&'static str],
}

/// A limit of this or more means no limit: version 1 of cgroups reports a very large number where there is none.
const NO_LIMIT: u64 = 1 << 60;

/// Reads the limits of one program's group, and of the groups that it lies in.
#[derive(Debug)]
pub struct Memory {
    groups: Vec<Group>,
    text: Vec<u8>,
}

impl Memory {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Memory {
        let mut text = Vec::new();
        let mut groups = Vec::new();
        if read(&format!("/proc/{pid}/cgroup"), &mut text) {
            groups = groups_of(&text);
            groups.retain(|group| read(&group.limit, &mut Vec::new()));
        }
        Memory { groups, text }
    }

    /// Bytes of files that can be in memory at once.
    pub fn for_files(&mut self) -> u64 {
        let machine = if read("/proc/meminfo", &mut self.text) {
            number_after(&self.text, "MemAvailable:").map_or(u64::MAX, |kib| kib << 10)
        } else {
            u64::MAX
        };
        let Memory { groups, text } = self;
        groups.iter().filter_map(|group| group.for_files(text)).fold(machine, u64::min)
    }

    /// Pages of files that the program's own group had to read again soon after they were dropped, counted since the group was made.
    /// `None` where the group does not tell.
    pub fn refaults(&mut self) -> Option<u64> {
        let group = self.groups.first()?;
        read(&group.stat, &mut self.text).then(|| number_after(&self.text, "workingset_refault_file ")).flatten()
    }
}

impl Group {
    fn for_files(&self, text: &mut Vec<u8>) -> Option<u64> {
        let limit = read(&self.limit, text).then(|| number(text)).flatten().filter(|limit| *limit < NO_LIMIT)?;
        if !read(&self.stat, text) {
            return None;
        }
        let others: u64 = self.others.iter().filter_map(|name| number_after(text, name)).sum();
        Some(limit.saturating_sub(others))
    }
}

/// Whether process `pid` is in the memory group of this process. Pages are charged to the group of the process that reads them.
pub fn same_group(pid: u32) -> bool {
    let group = |process: &str| {
        let mut text = Vec::new();
        let is_read = read(&format!("/proc/{process}/cgroup"), &mut text);
        is_read.then(|| groups_of(&text).into_iter().map(|group| group.limit).collect::<Vec<_>>())
    };
    group("self").is_some_and(|own| group(&pid.to_string()) == Some(own))
}

/// The groups that may hold a limit, of version 1 and of version 2: the program's and all above it. Inside a container the root of
/// /sys/fs/cgroup is the container's own group, while the path in /proc may be the one on the host, or just `/`. So some of these groups
/// may not exist.
fn groups_of(text: &[u8]) -> Vec<Group> {
    let mut found = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.splitn(3, |byte| *byte == b':').map(|field| String::from_utf8_lossy(field).into_owned());
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, limit, others): (_, _, &'static [&'static str]) = match controllers.as_str() {
            "" => ("/sys/fs/cgroup", "memory.max", &["anon ", "shmem ", "kernel "]),
            list if list.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", &["total_rss ", "total_shmem "])
            }
            _ => continue,
        };
        let mut path = Some(path.trim_end_matches('/'));
        while let Some(one) = path {
            let at = format!("{root}{one}");
            found.push(Group { limit: format!("{at}/{limit}"), stat: format!("{at}/memory.stat"), others });
            path = one.rsplit_once('/').map(|(above, _)| above);
        }
    }
    found
}

/// Pages, or bytes, that may be brought before they are touched: seven eighths of the `room` that files can have.
pub fn may_load(room: u64) -> u64 {
    room - room / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_groups_above_count() {
        let found = groups_of(b"4:memory:/a/b\n0::/c\n");
        let limits: Vec<&str> = found.iter().map(|group| group.limit.as_str()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
    }

    #[test]
    fn this_process_can_have_files_in_memory() {
        assert!(Memory::of(std::process::id()).for_files() > 0);
    }
}
