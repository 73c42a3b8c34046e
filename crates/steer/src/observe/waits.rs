//! How long a program's loads wait for storage: /proc/PID/task/TID/stat and schedstat.

use super::effort::{faults, fields};
use super::text::{number, read};
use crate::clock::now;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time that threads waited between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waited {
    /// Faults of all threads, of either kind.
    pub faults: u64,
    /// Time in which threads with faults were neither on a processor nor waiting for one. They waited for faults so long at most: a
    /// thread may have slept for other reasons, too.
    pub slept: Duration,
    /// Time in which threads with faults waited for a device. `None` where the kernel does not count it
    /// (`kernel.task_delayacct`).
    pub blocked: Option<Duration>,
}

/// Looks at the threads of one program.
#[derive(Debug)]
pub struct Waits {
    folder: String,
    threads: BTreeMap<String, Thread>,
    looked: Duration,
    /// The kernel counts how long threads wait for devices.
    counts: bool,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    faults: u64,
    /// Time on a processor, and waiting for one.
    ran: Duration,
    /// Ticks in which it waited for a device.
    blocked: u64,
}

/// Ticks of proc_pid_stat(5) in a second (`USER_HZ`).
const TICKS: u64 = 100;

/// Threads whose state is looked at, at most.
const THREADS: usize = 64;

impl Waits {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Waits {
        let folder = format!("/proc/{pid}/task");
        let mut text = Vec::new();
        let counts = read("/proc/sys/kernel/task_delayacct", &mut text) && number(&text) == Some(1);
        Waits { folder, threads: BTreeMap::new(), looked: Duration::ZERO, counts, text }
    }

    /// Time that threads with faults have waited since the last look. (A fault that waits for a page that is being read ahead is a
    /// minor one.)
    pub fn waited(&mut self) -> Waited {
        let (before, at) = (std::mem::take(&mut self.threads), now());
        let lasted = at - std::mem::replace(&mut self.looked, at);
        let (mut faults, mut slept, mut blocked) = (0, Duration::ZERO, 0);
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let Some(thread) = self.thread(&name) else { continue };
            if let Some(before) = before.get(&name).filter(|before| before.faults < thread.faults) {
                faults += thread.faults - before.faults;
                slept += lasted.saturating_sub(thread.ran.saturating_sub(before.ran));
                blocked += thread.blocked.saturating_sub(before.blocked);
            }
            self.threads.insert(name, thread);
        }
        let blocked = self.counts.then(|| Duration::from_millis(blocked * 1000 / TICKS));
        Waited { faults, slept, blocked }
    }

    /// Whether one of its threads is in state D now, as one that waits for storage is.
    pub fn is_blocked(&mut self) -> bool {
        let threads = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|entry| entry.file_name().to_str().map(str::to_owned)).take(THREADS);
        names.any(|name| {
            read(&format!("{}/{name}/stat", self.folder), &mut self.text)
                && fields(&self.text).and_then(|mut fields| fields.next()) == Some(b"D")
        })
    }

    fn thread(&mut self, name: &str) -> Option<Thread> {
        let folder = &self.folder;
        let file = |kind, text: &mut Vec<u8>| read(&format!("{folder}/{name}/{kind}"), text).then_some(());
        file("stat", &mut self.text)?;
        let (minor, major) = faults(&self.text)?;
        let faults = minor + major;
        // Field 42.
        let blocked = fields(&self.text)?.nth(39).and_then(number).unwrap_or(0);
        file("schedstat", &mut self.text)?;
        let (ran, waited) = self.text.split_at(self.text.iter().position(|byte| *byte == b' ')? + 1);
        Some(Thread { faults, ran: Duration::from_nanos(number(ran)? + number(waited)?), blocked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_looked_at() {
        let mut waits = Waits::of(std::process::id());
        assert_eq!(waits.waited().faults, 0, "the first look is a beginning");
        assert!(!waits.threads.is_empty());
        waits.waited();
        let waited = waits.waited();
        assert_eq!(waited.blocked.is_some(), waits.counts);
    }
}
