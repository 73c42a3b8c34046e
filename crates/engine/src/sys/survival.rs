//! Tells what could end the keeper together with this process: pid_namespaces(7), cgroups(7). The keeper is a process that outlives this one, and
//! saves what was stored.

use super::{cgroup, proc_files};
use std::fmt;

/// A danger that may end this process and its keeper at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peril {
    /// This is the first process of a PID namespace. When it ends, the kernel kills all others there.
    First,
    /// This process is in a PID namespace. The end of that namespace ends the keeper, too.
    Namespace,
    /// The memory group has a limit, in bytes. When the group's OOM killer kills a process, it kills all that share its memory.
    Limit(usize),
    /// /proc does not tell.
    Unknown,
}

impl fmt::Display for Peril {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peril::First => to.write_str("this is the first process of a PID namespace"),
            Peril::Namespace => to.write_str("this process is in a PID namespace of its own (a container, say)"),
            Peril::Limit(bytes) => write!(to, "the memory group of this process has a limit of {} MiB", bytes >> 20),
            Peril::Unknown => to.write_str("/proc does not say which namespace and memory group this process is in"),
        }
    }
}

/// Returns what threatens the keeper of the calling process now. Later changes are not seen: a move of the process to another group, or a limit that
/// is set or becomes visible later.
pub fn peril() -> Option<Peril> {
    /// The inode of the initial PID namespace (include/uapi/linux/nsfs.h).
    const INITIAL: &str = "pid:[4026531836]";
    if std::process::id() == 1 {
        return Some(Peril::First);
    }
    let Ok(namespace) = std::fs::read_link("/proc/self/ns/pid") else { return Some(Peril::Unknown) };
    if namespace.as_os_str() != INITIAL {
        return Some(Peril::Namespace);
    }
    if proc_files::text("/proc/self/cgroup").is_empty() || proc_files::text("/proc/self/mountinfo").is_empty() {
        return Some(Peril::Unknown);
    }
    let limit = cgroup::memory_limit();
    (limit < cgroup::physical_memory()).then_some(Peril::Limit(limit))
}
