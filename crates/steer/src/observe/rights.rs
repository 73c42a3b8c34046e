//! The rights of a process: /proc/PID/status.

use super::text::read;

/// The identity, capabilities and filters of a process's first thread, to be compared.
#[derive(Debug, PartialEq, Eq)]
pub struct Rights {
    identity: Vec<u8>,
    filters: Vec<u8>,
}

impl Rights {
    /// Of process `pid`. `None` if it is gone, or may not be looked at.
    pub fn of(pid: u32) -> Option<Rights> {
        let mut text = Vec::new();
        if !read(&format!("/proc/{pid}/status"), &mut text) {
            return None;
        }
        let of = |names: &[&str]| {
            let lines = text.split(|byte| *byte == b'\n');
            lines.filter(|line| names.iter().any(|name| line.starts_with(name.as_bytes()))).flatten().copied().collect()
        };
        // `Seccomp:` has the mode, `Seccomp_filters:` the number (Linux 5.9).
        Some(Rights { identity: of(&["Uid:", "Gid:", "CapEff:", "CapPrm:", "NoNewPrivs:"]), filters: of(&["Seccomp"]) })
    }

    /// Whether the filters are the same.
    pub fn has_filters_of(&self, other: &Rights) -> bool {
        self.filters == other.filters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_some_and_one_that_is_not_there_none() {
        let own = Rights::of(std::process::id()).unwrap();
        assert!(own.identity.starts_with(b"Uid:") && own.filters.starts_with(b"Seccomp:"));
        assert!(Rights::of(std::process::id()) == Some(own));
        assert_eq!(Rights::of(u32::MAX), None);
    }
}
