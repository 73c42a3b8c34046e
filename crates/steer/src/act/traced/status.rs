//! /proc/PID/status and /proc/PID/task/TID/status: the state of a process or a thread, and its rights.

use crate::observe::Descriptor;
use crate::observe::text::{number, read};
use rustix::io::pread;

/// The text of one status file.
#[derive(Debug)]
pub(super) struct Status(Vec<u8>);

impl Status {
    /// The status of process `pid`. `None`: there is no such process.
    pub(super) fn of(pid: u32) -> Option<Status> {
        Status::read(&format!("/proc/{pid}/status"))
    }

    /// The status of the calling thread.
    pub(super) fn own() -> Option<Status> {
        Status::read("/proc/thread-self/status")
    }

    fn read(path: &str) -> Option<Status> {
        let mut text = Vec::new();
        (read(path, &mut text) && !text.is_empty()).then_some(Status(text))
    }

    /// The status that an open file tells now. `None` if the thread is gone.
    pub(super) fn again(file: &Descriptor) -> Option<Status> {
        let mut text = vec![0; 4096];
        loop {
            let length = pread(file, &mut *text, 0).ok().filter(|length| *length > 0)?;
            if length < text.len() {
                text.truncate(length);
                return Some(Status(text));
            }
            text.resize(length * 2, 0);
        }
    }

    #[cfg(test)]
    pub(super) fn made_up(text: &str) -> Status {
        Status(text.into())
    }

    /// The text that follows `name`. The name includes its colon.
    fn field(&self, name: &str) -> Option<&[u8]> {
        let lines = || self.0.split(|byte| *byte == b'\n');
        lines().find_map(|line| line.strip_prefix(name.as_bytes())).map(<[u8]>::trim_ascii)
    }

    /// The first number of a field.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        number(self.field(name)?)
    }

    /// The numbers of a field.
    pub(super) fn numbers(&self, name: &str) -> Vec<u64> {
        let field = self.field(name).unwrap_or_default();
        field.split(u8::is_ascii_whitespace).filter_map(number).collect()
    }

    /// A field of bits, in hexadecimal.
    pub(super) fn bits(&self, name: &str) -> u64 {
        let text = self.field(name).and_then(|field| std::str::from_utf8(field).ok());
        text.and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
    }

    /// The letter of the state: `R`, `S`, `D`, `T`, `t`, `Z`, `X`.
    pub(super) fn state(&self) -> u8 {
        self.field("State:").and_then(|field| field.first().copied()).unwrap_or(b'X')
    }

    /// Whether the process or thread has no memory of its own: it is a kernel thread, or is exiting.
    pub(super) fn has_no_memory(&self) -> bool {
        self.field("VmSize:").is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = Status::made_up(
            "State:\tS (sleeping)\nPid:\t7\nUid:\t1\t2\t3\t4\nSeccomp:\t2\nCapPrm:\t00000000000000ff\n",
        );
        assert_eq!((status.state(), status.number("Pid:"), status.number("Seccomp_filters:")), (b'S', Some(7), None));
        assert_eq!((status.numbers("Uid:"), status.bits("CapPrm:")), (vec![1, 2, 3, 4], 255));
        assert!(status.has_no_memory());
    }
}
