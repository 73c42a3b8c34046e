//! Where the processors' time went while something was measured: figure 7's four parts.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::device::{Counts, Device};
use crate::{DeviceReport, sys};

/// What one part of a run took.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Window {
    /// From its beginning to its end.
    pub seconds: f64,
    /// Processor time of this process in user mode, seconds.
    pub user_s: f64,
    /// The same in the kernel. The kernel's own threads are not in it.
    pub system_s: f64,
    /// Time that the machine's processors had nothing to do while somebody waited for a device, seconds summed over them.
    /// /proc/stat, see proc_stat(5): by whom is not told.
    pub iowait_s: f64,
    /// What the device under the heap did; None where it is on no block device.
    pub device: Option<DeviceReport>,
}

impl Window {
    /// Adds another, that came later. Queue depths are averaged over both.
    pub fn add(&mut self, other: &Window) {
        let device = match (self.device, other.device) {
            (Some(a), Some(b)) => {
                let (writes, write_bytes) = (a.writes + b.writes, a.write_bytes + b.write_bytes);
                let queued = a.average_queue_depth * self.seconds + b.average_queue_depth * other.seconds;
                Some(DeviceReport {
                    reads: a.reads + b.reads,
                    writes,
                    read_bytes: a.read_bytes + b.read_bytes,
                    write_bytes,
                    average_write_bytes: write_bytes as f64 / writes.max(1) as f64,
                    average_queue_depth: queued / (self.seconds + other.seconds).max(f64::MIN_POSITIVE),
                })
            }
            (a, b) => a.or(b),
        };
        *self = Window {
            seconds: self.seconds + other.seconds,
            user_s: self.user_s + other.user_s,
            system_s: self.system_s + other.system_s,
            iowait_s: self.iowait_s + other.iowait_s,
            device,
        };
    }
}

/// The beginning of a window.
pub struct Begun {
    device: Option<Device>,
    requests: Option<Counts>,
    cpu: (Duration, Duration),
    iowait: f64,
    at: Instant,
}

impl Begun {
    /// Now; the heap is on the file system of `place`.
    pub fn now(place: &Path) -> Begun {
        let device = Device::of(place);
        let requests = device.as_ref().and_then(Device::counts);
        Begun { requests, device, cpu: sys::cpu_times(), iowait: iowait(), at: Instant::now() }
    }

    /// What it was until now.
    pub fn end(self) -> Window {
        let seconds = self.at.elapsed().as_secs_f64();
        let (user, system) = sys::cpu_times();
        let requests = self.requests.zip(self.device.as_ref().and_then(Device::counts));
        Window {
            seconds,
            user_s: (user - self.cpu.0).as_secs_f64(),
            system_s: (system - self.cpu.1).as_secs_f64(),
            iowait_s: (iowait() - self.iowait).max(0.0),
            device: requests.map(|(before, after)| before.until(&after)),
        }
    }
}

/// Seconds that all processors have waited so far; zero where nobody tells.
fn iowait() -> f64 {
    // SAFETY: sysconf has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    iowait_ticks(&fs::read_to_string("/proc/stat").unwrap_or_default()) as f64 / ticks
}

/// user, nice, system, idle, iowait
fn iowait_ticks(stat: &str) -> u64 {
    let all = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    all.and_then(|line| line.split_whitespace().nth(4)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifth_column_of_all_processors() {
        assert_eq!(iowait_ticks("cpu  10 2 30 4000 55 6 7 8 0 0\ncpu0 1 1 1 1 1\n"), 55);
        assert_eq!(iowait_ticks("cpu0 1 1 1 1 1\n"), 0);
    }

    #[test]
    fn a_window_counts_what_this_process_uses() {
        let begun = Begun::now(Path::new("."));
        let until = Instant::now() + std::time::Duration::from_millis(60);
        while Instant::now() < until {}
        let window = begun.end();
        assert!(window.seconds >= 0.06 && window.user_s + window.system_s > 0.0, "{window:?}");
    }
}
