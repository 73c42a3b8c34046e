//! How long a program's loads wait for storage: /proc/PID/task/TID/stat and schedstat.

use super::effort::{faults, fields};
use super::text::{number, read};
use crate::clock::now;
use std::collections::HashMap;
use std::time::Duration;

/// Looks at the threads of one program.
#[derive(Debug)]
pub struct Waits {
    folder: String,
    threads: HashMap<String, Thread>,
    looked: Duration,
    text: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Thread {
    faults: u64,
    /// Time on a processor, and waiting for one.
    ran: Duration,
}

/// Threads whose state is looked at.
const THREADS: usize = 64;

impl Waits {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Waits {
        let folder = format!("/proc/{pid}/task");
        Waits { folder, threads: HashMap::new(), looked: Duration::ZERO, text: Vec::new() }
    }

    /// Faults since the last look, and how long their threads have slept: at most so long did they wait, since a thread may have slept for
    /// other reasons, too. `None` where there were none. (A fault that waits for what is being read ahead is a minor one.)
    pub fn look(&mut self) -> Option<(u64, Duration)> {
        let (before, at) = (std::mem::take(&mut self.threads), now());
        let lasted = at - std::mem::replace(&mut self.looked, at);
        let (mut faults, mut slept) = (0, Duration::ZERO);
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let Some(thread) = self.thread(&name) else { continue };
            if let Some(before) = before.get(&name).filter(|before| before.faults < thread.faults) {
                faults += thread.faults - before.faults;
                slept += lasted.saturating_sub(thread.ran.saturating_sub(before.ran));
            }
            self.threads.insert(name, thread);
        }
        (faults > 0).then_some((faults, slept))
    }

    /// Whether one of its threads waits as for storage now.
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
        file("schedstat", &mut self.text)?;
        let (ran, waited) = self.text.split_at(self.text.iter().position(|byte| *byte == b' ')? + 1);
        Some(Thread { faults, ran: Duration::from_nanos(number(ran)? + number(waited)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_looked_at() {
        let mut waits = Waits::of(std::process::id());
        waits.look();
        assert!(!waits.threads.is_empty());
    }
}
