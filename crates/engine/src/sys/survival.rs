//! Whether what outlives this process outlives all that can end it: pid_namespaces(7), cgroups(7).

use super::{cgroup, proc_files};
use std::fmt;

/// What may end this process and the keeper, which saves what it stored, at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peril {
    /// It is the first process of a PID namespace: with it the kernel kills all others.
    First,
    /// It is in a PID namespace, whose end ends the keeper, too.
    Namespace,
    /// Its memory group has a limit, bytes: the group's OOM killer kills all that share the memory of what it kills.
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

/// What threatens the keeper of the calling process now. A group that the process is moved to later, and a limit that is set or comes in
/// sight later, are not seen.
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
