//! How threads spent their time: running, waiting for a processor, or waiting for anything else.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::substrates::sys;

/// How a window's time was spent, seconds. The first four times are those of the threads that operate. Their sum is the window's length
/// times the number of those threads.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Time {
    /// Time in user space.
    pub user_s: f64,
    /// Time in the kernel.
    pub system_s: f64,
    /// Time in which threads were ready to run, and waited for a processor.
    pub queued_s: f64,
    /// Time in which threads waited for anything else: a read, another thread.
    pub waiting_s: f64,
    /// Processor time of the process's other threads: the engine's writers and readers.
    pub workers_s: f64,
}

impl Time {
    /// The time of `threads` threads in a window, from what they `used` and what the `whole` process used.
    pub fn of(threads: u32, window: Duration, used: Threads, whole: Duration) -> Time {
        let running = used.user + used.system;
        let all = window * threads;
        Time {
            user_s: used.user.as_secs_f64(),
            system_s: used.system.as_secs_f64(),
            queued_s: used.queued.as_secs_f64(),
            waiting_s: all.saturating_sub(running + used.queued).as_secs_f64(),
            workers_s: whole.saturating_sub(running).as_secs_f64(),
        }
    }
}

/// The times of one or more threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Threads {
    user: Duration,
    system: Duration,
    queued: Duration,
}

impl Threads {
    /// The times of the calling thread so far.
    pub fn of_this() -> Threads {
        let (user, system) = sys::thread_times();
        // "Time spent waiting to run on the run queue", Documentation/scheduler/sched-stats.rst. Zero if the kernel does not count it.
        let task = procfs::process::Process::myself().and_then(|me| me.task_from_tid(sys::thread_id() as i32));
        let queued = task.and_then(|task| task.schedstat()).map_or(0, |stat| stat.run_delay);
        Threads { user, system, queued: Duration::from_nanos(queued) }
    }

    /// The times since an earlier moment.
    pub fn since(self, before: Threads) -> Threads {
        let Threads { user, system, queued } = before;
        Threads { user: self.user - user, system: self.system - system, queued: self.queued.saturating_sub(queued) }
    }

    /// Adds the times of another thread.
    pub fn add(&mut self, other: Threads) {
        self.user += other.user;
        self.system += other.system;
        self.queued += other.queued;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_s_time_is_one_of_four() {
        let before = Threads::of_this();
        let begun = std::time::Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let (used, window) = (Threads::of_this().since(before), begun.elapsed());
        let time = Time::of(1, window, used, used.user + used.system);
        let sum = time.user_s + time.system_s + time.queued_s + time.waiting_s;
        assert!((sum - window.as_secs_f64()).abs() < 0.01, "{time:?} in {window:?}");
        assert!(time.waiting_s > 0.02 && time.workers_s == 0.0, "{time:?}");
    }
}
