//! Where the time of all processors went: to the process, in user mode or in the kernel; to others, such as the kernel's own
//! write-back threads; to nobody, while somebody waited for I/O or not. proc_stat(5), getrusage(2).

use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::sys;

/// Parts of the time of all processors; together 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The process's own code.
    pub user: f64,
    /// The kernel for the process.
    pub system: f64,
    /// Everybody else: kernel threads, interrupts, the virtual machine's host, other programs.
    pub others: f64,
    /// Nobody, while a thread of any program waited for I/O.
    pub io_wait: f64,
    /// Nobody.
    pub idle: f64,
}

/// The counters at one moment.
pub struct Moment {
    /// When.
    pub at: Instant,
    user: f64,
    system: f64,
    machine: Machine,
}

/// Ticks of all processors together, from the first line of /proc/stat.
#[derive(Clone, Copy, Default)]
struct Machine {
    processors: u64,
    all: u64,
    idle: u64,
    io_wait: u64,
}

impl Moment {
    /// This one.
    pub fn now() -> Moment {
        let (user, system) = sys::cpu_times();
        let machine = Machine::of(&fs::read_to_string("/proc/stat").unwrap_or_default());
        Moment { at: Instant::now(), user: user.as_secs_f64(), system: system.as_secs_f64(), machine }
    }

    /// What came between this and a `later` one.
    pub fn until(&self, later: &Moment) -> Times {
        let (before, after) = (self.machine, later.machine);
        let whole = (later.at - self.at).as_secs_f64().max(f64::MIN_POSITIVE) * after.processors.max(1) as f64;
        let ticks = |of: fn(Machine) -> u64| of(after).saturating_sub(of(before)) as f64;
        let part = |of| ticks(of) / ticks(|machine| machine.all).max(1.0);
        let (user, system) = ((later.user - self.user) / whole, (later.system - self.system) / whole);
        let (io_wait, idle) = (part(|machine| machine.io_wait), part(|machine| machine.idle));
        // The two clocks do not tick alike: what is left may be a little below nothing.
        let others = (1.0 - user - system - io_wait - idle).max(0.0);
        Times { user, system, others, io_wait, idle }
    }
}

impl Machine {
    /// user nice system idle iowait irq softirq steal, then guests, who are in user already.
    fn of(stat: &str) -> Machine {
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).map_while(|n| n.parse().ok()).collect();
        let &[_, _, _, idle, io_wait, ..] = ticks.as_slice() else { return Machine::default() };
        let processors = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as u64;
        Machine { processors, all: ticks.iter().sum(), idle, io_wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn parts_of_the_time_between_two_moments() {
        let at = Instant::now();
        let moment = |at, user, system, stat| Moment { at, user, system, machine: Machine::of(stat) };
        let processors = 2.0;
        let before = moment(at, 1.0, 1.0, "cpu  100 0 100 100 100 0 0 0 9 9\ncpu0 1 1\ncpu1 1 1\nintr 1");
        let later = at + Duration::from_secs(10);
        let after = moment(
            later,
            1.0 + processors * 2.0,
            1.0 + processors,
            "cpu  120 10 120 130 110 5 3 2 9 9\ncpu0 1 1\ncpu1 1 1\nintr 1",
        );
        let times = before.until(&after);
        let near = |part: f64, expected: f64| assert!((part - expected).abs() < 1e-9, "{times:?}");
        near(times.user, 0.2);
        near(times.system, 0.1);
        near(times.idle, 0.3);
        near(times.io_wait, 0.1);
        near(times.others, 0.3);
    }

    #[test]
    fn this_machine_counts() {
        let before = Moment::now();
        while before.at.elapsed() < Duration::from_millis(50) {}
        let times = before.until(&Moment::now());
        assert!(times.user + times.system > 0.0 && times.user < 1.1, "{times:?}");
    }
}
