//! The work of the block device under the file in the measured window, as the kernel counts it: how large writes were when they arrived,
//! and how many requests were in flight.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::substrates::DeviceReport;

/// The unit in which the kernel counts, bytes. It does not depend on the device.
const SECTOR: u64 = 512;

impl DeviceReport {
    /// Adds a window of `others` seconds to this one of `seconds`.
    pub fn and(&self, other: &DeviceReport, seconds: f64, others: f64) -> DeviceReport {
        let (writes, write_bytes) = (self.writes + other.writes, self.write_bytes + other.write_bytes);
        let queued = self.average_queue_depth * seconds + other.average_queue_depth * others;
        DeviceReport {
            reads: self.reads + other.reads,
            writes,
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes,
            average_write_bytes: write_bytes as f64 / writes.max(1) as f64,
            average_queue_depth: queued / (seconds + others).max(f64::MIN_POSITIVE),
        }
    }
}

/// A block device's counters. They count the requests of all processes.
pub struct Device {
    stat: PathBuf,
}

impl Device {
    /// The device that holds the file at `path`, or `path` itself if that is a device. None: no single device holds the file, as in memory,
    /// on an overlay, or on a file system over several devices.
    pub fn of(path: &Path) -> Option<Device> {
        let metadata = fs::metadata(path).ok()?;
        let number = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
        let stat = PathBuf::from(format!("/sys/dev/block/{}:{}/stat", libc::major(number), libc::minor(number)));
        stat.exists().then_some(Device { stat })
    }

    /// Its counters now.
    pub fn counts(&self) -> Option<Counts> {
        Counts::parse(&fs::read_to_string(&self.stat).ok()?)
    }
}

/// A block device's counters at one moment.
pub struct Counts {
    at: Instant,
    reads: u64,
    sectors_read: u64,
    writes: u64,
    sectors_written: u64,
    /// Milliseconds that reads and writes have spent on the device or in its queue, summed over requests. The kernel's own sum also counts
    /// discards, which a file system sends late, for the earlier contents of a file.
    queued_ms: u64,
}

impl Counts {
    /// The columns of Documentation/block/stat.rst.
    fn parse(stat: &str) -> Option<Counts> {
        let columns: Vec<u64> = stat.split_whitespace().map_while(|column| column.parse().ok()).collect();
        let &[reads, _, sectors_read, read_ms, writes, _, sectors_written, write_ms, ..] = columns.as_slice() else {
            return None;
        };
        Some(Counts { at: Instant::now(), reads, sectors_read, writes, sectors_written, queued_ms: read_ms + write_ms })
    }

    /// The work between this moment and a `later` one.
    pub fn until(&self, later: &Counts) -> DeviceReport {
        let writes = later.writes.saturating_sub(self.writes);
        let write_bytes = later.sectors_written.saturating_sub(self.sectors_written) * SECTOR;
        let queued = later.queued_ms.saturating_sub(self.queued_ms) as f64 / 1e3;
        DeviceReport {
            reads: later.reads.saturating_sub(self.reads),
            writes,
            read_bytes: later.sectors_read.saturating_sub(self.sectors_read) * SECTOR,
            write_bytes,
            average_write_bytes: write_bytes as f64 / writes.max(1) as f64,
            average_queue_depth: queued / (later.at - self.at).as_secs_f64().max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_difference_of_two_moments_in_bytes_and_requests_in_flight() {
        let before = Counts::parse(" 10 0 80 5  100 7 1600 900 0 50 905 9 0 72 1000 3 1\n").unwrap();
        let mut after = Counts::parse(" 12 0 96 1005  104 7 1728 3900 2 60 6905 19 0 152 3000 3 1\n").unwrap();
        after.at = before.at + Duration::from_secs(2);
        let report = before.until(&after);
        assert_eq!((report.reads, report.read_bytes), (2, 16 * 512));
        assert_eq!((report.writes, report.write_bytes), (4, 128 * 512));
        assert_eq!(report.average_write_bytes, 16384.0);
        assert_eq!(report.average_queue_depth, 2.0, "4 s of reads and writes in 2 s");
        assert_eq!(before.until(&before).average_write_bytes, 0.0);
    }

    #[test]
    fn too_few_columns_are_no_counts() {
        assert!(Counts::parse("1 2 3").is_none() && Counts::parse("").is_none());
    }

    #[test]
    fn files_in_memory_have_no_device() {
        assert!(Device::of(Path::new("/proc/self/stat")).is_none());
        assert!(Device::of(Path::new("/no/such/file")).is_none());
    }
}
