//! The one instrument of all experiments. It measures time, processor time, page faults, the processors of the whole machine, the device
//! under the data, and the peak of memory use. It always measures everything; the columns of an experiment show a part.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use procfs::CurrentSI;
use serde::{Deserialize, Serialize};

use super::device::{Counts, Device};
use super::engine::Cached;
use super::{DeviceReport, FastmapReport, Hits, LatencyUs, Readahead, Writeback, sys};

/// The measurements of a run, or of a part of it, between two moments.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Operations of all threads in the window.
    pub ops: u64,
    /// Length of the window, seconds.
    pub seconds: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// User and system time of the process in the window, per operation. It does not include the kernel's own write-back threads.
    pub cpu_us_per_op: f64,
    /// User time of the process.
    pub user_s: f64,
    /// System time of the process.
    pub system_s: f64,
    /// Page faults of the process that the kernel served. Minor and major ones.
    pub faults: u64,
    /// Page faults that waited for a read.
    pub major_faults: u64,
    /// Processor time of the whole machine. None: /proc/stat cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineTime>,
    /// The work of the device under the data. None: the data are on no block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
    /// The warm-up ran out of time before memory was full and all in it had been replaced once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cold: bool,
    /// Time between successive operations of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<LatencyUs>,
    /// The peak of the memory cgroup when the map was dropped, before anything is read back. Without a cgroup, the peak resident set of the
    /// process. Bytes.
    pub peak_rss_bytes: u64,
    /// Interrupts that flush TLBs, on all processors and for all processes, from the beginning of the run until the map was dropped. None:
    /// the kernel does not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tlb_shootdowns: Option<u64>,
    /// Beginning and end of the window, nanoseconds of CLOCK_MONOTONIC.
    pub window_ns: (u64, u64),
    /// Set-up and counters of a fastmap engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fastmap: Option<FastmapReport>,
    /// How often the engine's operations found their page in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<Hits>,
    /// Pages that the engine read ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readahead: Option<Readahead>,
    /// The engine's write-back, in a load that writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writeback: Option<Writeback>,
}

/// Processor time of the whole machine in a window, for all processes. The kernel counts it in ticks of 10 ms. proc_stat(5).
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct MachineTime {
    /// Time in which a processor ran anything.
    pub busy_s: f64,
    /// Idle time in which a read or write of that processor was awaited.
    pub iowait_s: f64,
    /// All other idle time.
    pub idle_s: f64,
}

impl MachineTime {
    /// The time of all processors since the machine was started.
    fn now() -> Option<MachineTime> {
        let stat = procfs::KernelStats::current().ok()?.total;
        let tick = procfs::ticks_per_second().max(1) as f64;
        // Time that the host has taken (steal) is in no column.
        let busy = stat.user + stat.nice + stat.system + stat.irq.unwrap_or(0) + stat.softirq.unwrap_or(0);
        let [busy_s, iowait_s, idle_s] = [busy, stat.iowait.unwrap_or(0), stat.idle].map(|ticks| ticks as f64 / tick);
        Some(MachineTime { busy_s, iowait_s, idle_s })
    }

    fn since(self, before: MachineTime) -> MachineTime {
        MachineTime {
            busy_s: (self.busy_s - before.busy_s).max(0.0),
            iowait_s: (self.iowait_s - before.iowait_s).max(0.0),
            idle_s: (self.idle_s - before.idle_s).max(0.0),
        }
    }
}

impl Reading {
    /// The reading of `ops` operations in a window of length `window`. `latency` has the nanoseconds of each operation.
    pub fn counting(self, ops: u64, window: Duration, latency: Option<&Histogram<u32>>) -> Reading {
        let seconds = window.as_secs_f64().max(1e-9);
        Reading {
            ops,
            seconds,
            ops_per_s: ops as f64 / seconds,
            cpu_us_per_op: (self.user_s + self.system_s) * 1e6 / ops.max(1) as f64,
            latency_us: latency.map(LatencyUs::of),
            window_ns: (self.window_ns.0, self.window_ns.0 + window.as_nanos() as u64),
            ..self
        }
    }

    /// Adds what a fastmap engine counted between two readings of its counters.
    pub fn cached(
        self,
        cached: Option<&Cached<'_>>,
        stats: Option<(fastmap::Stats, fastmap::Stats)>,
        writes: bool,
    ) -> Reading {
        let Some((cached, (before, after))) = cached.zip(stats) else { return self };
        Reading {
            fastmap: Some(cached.report(after)),
            hits: Some(Hits::between(&before, &after, self.ops)),
            readahead: Some(Readahead::between(&before, &after)),
            writeback: writes.then(|| Writeback::between(&before, &after)),
            ..self
        }
    }

    /// Two windows of the same run together. Latencies, the engine's counters and the place of the window are those of this one.
    pub fn and(self, other: &Reading) -> Reading {
        let seconds = self.seconds + other.seconds;
        let ops = self.ops + other.ops;
        let machine = self.machine.zip(other.machine).map(|(a, b)| MachineTime {
            busy_s: a.busy_s + b.busy_s,
            iowait_s: a.iowait_s + b.iowait_s,
            idle_s: a.idle_s + b.idle_s,
        });
        let (user_s, system_s) = (self.user_s + other.user_s, self.system_s + other.system_s);
        let device = self.device.zip(other.device).map(|(a, b)| a.and(&b, self.seconds, other.seconds));
        Reading {
            ops,
            seconds,
            ops_per_s: ops as f64 / seconds.max(1e-9),
            cpu_us_per_op: (user_s + system_s) * 1e6 / ops.max(1) as f64,
            user_s,
            system_s,
            faults: self.faults + other.faults,
            major_faults: self.major_faults + other.major_faults,
            machine,
            device,
            ..self
        }
    }

    /// Seconds of all processors in the window. None: they were not measured.
    pub fn processors_s(&self) -> Option<f64> {
        self.machine.map(|m| m.busy_s + m.iowait_s + m.idle_s).filter(|sum| *sum > 0.0)
    }
}

/// Measures windows of one run. It takes the peak of memory use when the map is dropped.
pub struct Meter {
    peak: Box<dyn Fn() -> u64 + Send + Sync>,
    shootdowns: Option<u64>,
    /// The peak, and the TLB shootdowns so far, when the map was dropped.
    let_go: OnceLock<(u64, Option<u64>)>,
}

impl Meter {
    /// A meter that asks `peak` for the peak of memory use, bytes.
    pub fn new(peak: impl Fn() -> u64 + Send + Sync + 'static) -> Meter {
        Meter { peak: Box::new(peak), shootdowns: shootdowns(), let_go: OnceLock::new() }
    }

    /// Opens a window. Its device is the one that holds the data at `place`.
    pub fn start(&self, place: &Path) -> Window {
        let device = Device::of(place);
        let requests = device.as_ref().and_then(Device::counts);
        let machine = MachineTime::now();
        let (faults, major_faults) = (sys::faults(), sys::major_faults());
        let cpu = sys::cpu_times();
        Window { device, requests, machine, faults, major_faults, cpu, at_ns: sys::monotonic_ns(), at: Instant::now() }
    }

    /// Says that the map was dropped. The engine has no part in what comes later, such as the read-back.
    pub fn let_go(&self) {
        self.let_go.get_or_init(|| self.so_far());
    }

    fn so_far(&self) -> (u64, Option<u64>) {
        ((self.peak)(), shootdowns())
    }

    /// Adds the measurements of the whole run to a reading.
    pub fn complete(&self, reading: &mut Reading) {
        let (peak, after) = self.let_go.get().copied().unwrap_or_else(|| self.so_far());
        reading.peak_rss_bytes = peak;
        reading.tlb_shootdowns = self.shootdowns.zip(after).map(|(before, after)| after.saturating_sub(before));
    }
}

impl Default for Meter {
    /// A meter that measures the peak of this process's resident set.
    fn default() -> Meter {
        Meter::new(resident_peak)
    }
}

/// TLB shootdowns of all processors so far: the row `TLB` of /proc/interrupts. The crate `procfs` does not read that file.
fn shootdowns() -> Option<u64> {
    shootdowns_in(&std::fs::read_to_string("/proc/interrupts").ok()?)
}

fn shootdowns_in(interrupts: &str) -> Option<u64> {
    let row = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(row.split_whitespace().map_while(|count| count.parse::<u64>().ok()).sum())
}

/// This process's peak resident set (VmHWM), bytes. proc_pid_status(5).
pub fn resident_peak() -> u64 {
    let status = procfs::process::Process::myself().and_then(|me| me.status());
    status.ok().and_then(|status| status.vmhwm).unwrap_or(0) * 1024
}

/// An open window.
pub struct Window {
    /// When it was opened.
    pub at: Instant,
    at_ns: u64,
    device: Option<Device>,
    requests: Option<Counts>,
    machine: Option<MachineTime>,
    faults: u64,
    major_faults: u64,
    cpu: (Duration, Duration),
}

impl Window {
    /// Closes the window. It counts as one operation until [`Reading::counting`] gives the number.
    pub fn end(self) -> Reading {
        let window = self.at.elapsed();
        let (user, system) = sys::cpu_times();
        let machine = self.machine.zip(MachineTime::now()).map(|(before, after)| after.since(before));
        let requests = self.requests.zip(self.device.as_ref().and_then(Device::counts));
        let reading = Reading {
            user_s: user.saturating_sub(self.cpu.0).as_secs_f64(),
            system_s: system.saturating_sub(self.cpu.1).as_secs_f64(),
            faults: sys::faults() - self.faults,
            major_faults: sys::major_faults() - self.major_faults,
            machine,
            device: requests.map(|(before, after)| before.until(&after)),
            window_ns: (self.at_ns, self.at_ns),
            ..Reading::default()
        };
        reading.counting(1, window, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_counts_what_this_process_uses() {
        let window = Meter::default().start(Path::new("."));
        while window.at.elapsed() < Duration::from_millis(60) {}
        let reading = window.end();
        assert!(reading.seconds >= 0.06 && reading.user_s + reading.system_s > 0.0, "{reading:?}");
        assert!(reading.machine.is_some_and(|m| m.busy_s > 0.0), "{reading:?}");
        let two = reading.clone().and(&reading);
        assert_eq!((two.ops, two.seconds), (2, reading.seconds * 2.0));
    }

    #[test]
    fn the_peak_is_taken_when_the_map_goes() {
        let meter = Meter::default();
        let peak = || {
            let mut reading = Reading::default();
            meter.complete(&mut reading);
            reading.peak_rss_bytes
        };
        assert!(peak() > 1 << 20);
        meter.let_go();
        let before = peak();
        let more = vec![1u8; 64 << 20];
        assert!(more.iter().step_by(4096).all(|byte| *byte == 1));
        assert_eq!(peak(), before);
    }

    #[test]
    fn shootdowns_of_all_processors_are_summed() {
        let text = "           CPU0       CPU1\n TLB:         17         25   TLB shootdowns\n TRM:          0          0   Thermal\n";
        assert_eq!(shootdowns_in(text), Some(42));
        assert_eq!(shootdowns_in(" LOC:  1  2  Local timer\n"), None);
    }
}
