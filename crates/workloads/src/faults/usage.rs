//! Where the time of threads and of processors goes, as the kernel counts it for anybody.

use std::fs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sys;

pub use crate::sys::monotonic_ns;

/// What a tick of /proc/stat is, in seconds: USER_HZ, 100 on every architecture that Linux has kept.
const TICK: f64 = 0.01;

/// Where the time of a window went. The threads that operate have `threads` times the window's length; it is the sum of the first
/// four.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Time {
    /// Of the threads that operate: running in user space.
    pub user_s: f64,
    /// Running in the kernel.
    pub system_s: f64,
    /// Ready to run, and waiting for a processor.
    pub queued_s: f64,
    /// Waiting for anything else: a read, another thread.
    pub waiting_s: f64,
    /// Processor time of the process's other threads: the engine's writers and readers.
    pub workers_s: f64,
    /// Of the whole machine; None where /proc/stat cannot be read.
    pub machine: Option<MachineTime>,
}

/// Processor time of the whole machine in a window, everybody's; in ticks of 10 ms.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct MachineTime {
    /// Running anything.
    pub busy_s: f64,
    /// Idle while a read or write was awaited there.
    pub iowait_s: f64,
    /// Idle otherwise.
    pub idle_s: f64,
}

impl Time {
    /// Of `threads` threads in a window: what they `used` and what the `whole` process did.
    pub fn of(threads: u32, window: Duration, used: Threads, whole: Duration, machine: Option<MachineTime>) -> Time {
        let running = used.user + used.system;
        let all = window * threads;
        Time {
            user_s: used.user.as_secs_f64(),
            system_s: used.system.as_secs_f64(),
            queued_s: used.queued.as_secs_f64(),
            waiting_s: all.saturating_sub(running + used.queued).as_secs_f64(),
            workers_s: whole.saturating_sub(running).as_secs_f64(),
            machine,
        }
    }
}

/// What one or more threads used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Threads {
    user: Duration,
    system: Duration,
    queued: Duration,
}

impl Threads {
    /// The calling thread so far.
    pub fn of_this() -> Threads {
        let (user, system) = sys::thread_times();
        // "Time spent waiting to run on the run queue", Documentation/scheduler/sched-stats.rst; zero where it is not counted.
        let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let queued = schedstat.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0);
        Threads { user, system, queued: Duration::from_nanos(queued) }
    }

    /// What was used since an earlier moment.
    pub fn since(self, before: Threads) -> Threads {
        let Threads { user, system, queued } = before;
        Threads { user: self.user - user, system: self.system - system, queued: self.queued.saturating_sub(queued) }
    }

    /// Another's, too.
    pub fn add(&mut self, other: Threads) {
        self.user += other.user;
        self.system += other.system;
        self.queued += other.queued;
    }
}

/// Ticks of all processors at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    busy: u64,
    iowait: u64,
    idle: u64,
}

impl Machine {
    /// Now. proc_stat(5).
    pub fn now() -> Option<Machine> {
        Machine::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Machine> {
        let columns = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = columns.split_whitespace().map_while(|column| column.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, ..] = ticks.as_slice() else { return None };
        // What the host took is nobody's here.
        Some(Machine { busy: user + nice + system + irq + softirq, iowait, idle })
    }

    /// What came between this moment and a `later` one.
    pub fn until(self, later: Machine) -> MachineTime {
        let seconds = |before: u64, after: u64| after.saturating_sub(before) as f64 * TICK;
        MachineTime {
            busy_s: seconds(self.busy, later.busy),
            iowait_s: seconds(self.iowait, later.iowait),
            idle_s: seconds(self.idle, later.idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_seconds() {
        let before = Machine::parse("cpu  100 10 200 1000 50 1 2 99 7 0\ncpu0 1 2 3\n").unwrap();
        let after = Machine::parse("cpu  150 10 300 1200 60 1 4 990 9 0\n").unwrap();
        let time = before.until(after);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(time.busy_s, 1.52) && close(time.iowait_s, 0.1) && close(time.idle_s, 2.0), "{time:?}");
        assert!(Machine::parse("cpu 1 2 3\n").is_none() && Machine::parse("").is_none());
        assert!(Machine::now().is_some());
    }

    #[test]
    fn a_thread_s_time_is_one_of_four() {
        let before = Threads::of_this();
        let begun = std::time::Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let (used, window) = (Threads::of_this().since(before), begun.elapsed());
        let time = Time::of(1, window, used, used.user + used.system, None);
        let sum = time.user_s + time.system_s + time.queued_s + time.waiting_s;
        assert!((sum - window.as_secs_f64()).abs() < 0.01, "{time:?} in {window:?}");
        assert!(time.waiting_s > 0.02 && time.workers_s == 0.0, "{time:?}");
    }
}
