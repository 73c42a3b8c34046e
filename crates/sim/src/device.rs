//! Storage with latency, depth and bandwidth.

use crate::Time;

/// What a device can do.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Its name in tables.
    pub name: &'static str,
    /// A request of one page takes so long.
    pub latency: Time,
    /// Requests that it serves at a time.
    pub depth: usize,
    /// Nanoseconds that a page takes on the way: 2 GB a second are 2048.
    pub page: Time,
    /// Pages of the longest request.
    pub longest: u64,
    /// Whether what a program reads is counted in /proc/PID/io, and posix_fadvise(2) begins reads: not on FUSE.
    pub counts: bool,
}

/// A virtual disk.
pub const DISK: Kind = Kind { name: "disk", latency: 57_000, depth: 32, page: 2_000, longest: 256, counts: true };
/// A solid-state disk.
pub const SSD: Kind = Kind { name: "ssd", latency: 100_000, depth: 64, page: 1_300, longest: 256, counts: true };
/// A volume of a cloud.
pub const CLOUD: Kind = Kind { name: "cloud", latency: 500_000, depth: 64, page: 4_000, longest: 64, counts: true };
/// A slow one.
pub const SLOW: Kind = Kind { name: "slow", latency: 2_000_000, depth: 64, page: 8_000, longest: 64, counts: true };
/// A file system in user space over a slow one.
pub const FUSE: Kind = Kind { name: "fuse", latency: 2_000_000, depth: 12, page: 8_000, longest: 32, counts: false };

/// A device at work.
#[derive(Debug)]
pub struct Device {
    kind: Kind,
    /// When each place for a request is free.
    places: Vec<Time>,
    /// When the way is free.
    way: Time,
    /// Requests until now.
    pub requests: u64,
}

impl Device {
    /// An idle device.
    pub fn new(kind: Kind) -> Device {
        Device { kind, places: vec![0; kind.depth], way: 0, requests: 0 }
    }

    /// Its kind.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Serves a request of `pages`, made at `now`. Returns when it is done.
    pub fn serve(&mut self, now: Time, pages: u64) -> Time {
        self.requests += 1;
        let mut first = 0;
        for (index, free) in self.places.iter().enumerate() {
            if *free <= now {
                first = index;
                break;
            }
            if *free < self.places[first] {
                first = index;
            }
        }
        let begin = now.max(self.places[first]);
        self.way = self.way.max(begin) + self.kind.page * pages;
        // The first page's time on the way is part of the latency.
        let done = self.way - self.kind.page + self.kind.latency;
        self.places[first] = done;
        done
    }
}
