//! The rights of a process: /proc/PID/status.

use super::text::read;

/// The identity, capabilities and filters of a process's first thread, or of the calling one, to be compared.
#[derive(Debug, PartialEq, Eq)]
pub struct Rights(Vec<u8>);

impl Rights {
    /// Of process `pid`. `None` if it is gone, or may not be looked at.
    pub fn of(pid: u32) -> Option<Rights> {
        Rights::read(&format!("/proc/{pid}/status"))
    }

    /// Of the calling thread.
    pub fn own() -> Option<Rights> {
        Rights::read("/proc/thread-self/status")
    }

    fn read(path: &str) -> Option<Rights> {
        let mut text = Vec::new();
        if !read(path, &mut text) {
            return None;
        }
        const NAMES: [&[u8]; 6] = [b"Uid:", b"Gid:", b"CapEff:", b"CapPrm:", b"NoNewPrivs:", b"Seccomp:"];
        let lines = text.split(|byte| *byte == b'\n');
        Some(Rights(lines.filter(|line| NAMES.iter().any(|name| line.starts_with(name))).flatten().copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_some_and_one_that_is_not_there_none() {
        let own = Rights::of(std::process::id()).unwrap();
        assert!(own.0.starts_with(b"Uid:"));
        assert_eq!(Rights::own(), Some(own));
        assert_eq!(Rights::of(u32::MAX), None);
    }
}
