//! The cost of a program's faults: /proc/PID/stat and /proc/PID/io.

use super::text::{number, number_after, read};

/// Counts since the program began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Faults that waited for a device.
    pub major_faults: u64,
    /// Faults that began no read. Those that waited for a page that is being read ahead are among them.
    pub minor_faults: u64,
    /// Bytes that the program had read from devices, what was read around and ahead for it included. Zero where
    /// /proc/PID/io may not be read.
    pub read_bytes: u64,
}

impl Spent {
    /// Both together.
    pub fn and(&self, other: &Spent) -> Spent {
        Spent {
            major_faults: self.major_faults + other.major_faults,
            minor_faults: self.minor_faults + other.minor_faults,
            read_bytes: self.read_bytes + other.read_bytes,
        }
    }

    /// The counts since an earlier look.
    pub fn since(&self, before: &Spent) -> Spent {
        Spent {
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
        }
    }
}

/// Reads [`Spent`] of one program.
#[derive(Debug)]
pub struct Effort {
    stat: String,
    io: String,
    text: Vec<u8>,
}

impl Effort {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Effort {
        Effort { stat: format!("/proc/{pid}/stat"), io: format!("/proc/{pid}/io"), text: Vec::new() }
    }

    /// `None` once the process is gone.
    pub fn look(&mut self) -> Option<Spent> {
        if !read(&self.stat, &mut self.text) {
            return None;
        }
        let (minor_faults, major_faults) = faults(&self.text)?;
        let read_bytes =
            if read(&self.io, &mut self.text) { number_after(&self.text, "read_bytes:").unwrap_or(0) } else { 0 };
        Some(Spent { major_faults, minor_faults, read_bytes })
    }
}

/// Fields 10 and 12 of proc_pid_stat(5).
pub(super) fn faults(stat: &[u8]) -> Option<(u64, u64)> {
    let mut fields = fields(stat)?.skip(7);
    Some((number(fields.next()?)?, number(fields.nth(1)?)?))
}

/// The fields of proc_pid_stat(5) from the third on, after the name, which may hold anything.
pub(super) fn fields(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    Some(stat[name_ends + 1..].trim_ascii_start().split(|byte| *byte == b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_passed_over() {
        let stat = b"7 (a) b (c) S 1 2 3 4 5 6 7 8 99 10 11\n";
        assert_eq!(faults(stat), Some((7, 99)));
    }

    #[test]
    fn this_process_has_counts_and_one_that_is_not_there_has_none() {
        assert!(Effort::of(std::process::id()).look().is_some());
        assert_eq!(Effort::of(u32::MAX).look(), None);
    }
}
