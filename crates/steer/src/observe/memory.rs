//! How much memory a program's files can have: its memory group and /proc/meminfo.

use super::text::{number, number_after, read};

/// Where a group's limit and use are read.
#[derive(Debug)]
struct Group {
    limit: String,
    stat: String,
    /// The names, in `stat`, of what is no file's. (The group's use less its files would be less exact: the two are counted at
    /// different times.)
    others: &'static [&'static str],
}

/// Reads the memory of one program's group.
#[derive(Debug)]
pub struct Memory {
    group: Option<Group>,
    text: Vec<u8>,
}

impl Memory {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Memory {
        let mut text = Vec::new();
        let mut group = None;
        if read(&format!("/proc/{pid}/cgroup"), &mut text) {
            group = groups(&text).into_iter().find(|group| read(&group.limit, &mut Vec::new()));
        }
        Memory { group, text }
    }

    /// Bytes of files that can be in memory at once.
    pub fn for_files(&mut self) -> u64 {
        let machine = if read("/proc/meminfo", &mut self.text) {
            number_after(&self.text, "MemAvailable:").map_or(u64::MAX, |kib| kib << 10)
        } else {
            u64::MAX
        };
        machine.min(self.in_group().unwrap_or(u64::MAX))
    }

    fn in_group(&mut self) -> Option<u64> {
        let group = self.group.as_ref()?;
        let limit = read(&group.limit, &mut self.text).then(|| number(&self.text)).flatten()?;
        if !read(&group.stat, &mut self.text) {
            return None;
        }
        let others: u64 = group.others.iter().filter_map(|name| number_after(&self.text, name)).sum();
        Some(limit.saturating_sub(others))
    }
}

/// The groups that may hold the limit: of version 1, then of version 2, as the program sees them, then as a container
/// does, which sees its own group as the root.
fn groups(text: &[u8]) -> Vec<Group> {
    let mut found = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.splitn(3, |byte| *byte == b':').map(|field| String::from_utf8_lossy(field).into_owned());
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if controllers.split(',').any(|one| one == "memory") {
            for path in [path.trim_end_matches('/'), ""] {
                let at = format!("/sys/fs/cgroup/memory{path}");
                found.push(Group {
                    limit: format!("{at}/memory.limit_in_bytes"),
                    stat: format!("{at}/memory.stat"),
                    others: &["total_rss ", "total_shmem "],
                });
            }
        } else if controllers.is_empty() {
            for path in [path.trim_end_matches('/'), ""] {
                let at = format!("/sys/fs/cgroup{path}");
                found.push(Group {
                    limit: format!("{at}/memory.max"),
                    stat: format!("{at}/memory.stat"),
                    others: &["anon ", "shmem ", "kernel "],
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_version_1_comes_before_one_of_version_2() {
        let found = groups(b"4:memory:/a/b\n0::/c\n");
        let limits: Vec<&str> = found.iter().map(|group| group.limit.as_str()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
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
