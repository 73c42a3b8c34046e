//! What a watcher learns of its program, and by which clock.

use crate::clock;
use crate::observe::{Effort, Flags, Mapping, Mappings, Memory, Pages, Seen, Spent, Waited, Waits, readahead};
use crate::run::Run;
use std::ops::Range;
use std::time::Duration;

/// Looks at one program. A simulation has a program and a clock of its own.
pub trait Samples {
    /// The monotonic clock.
    fn now(&self) -> Duration;

    /// Processor time that the watcher has had.
    fn processor_time(&self) -> Duration;

    /// Waits for a moment.
    fn sleep(&mut self, time: Duration);

    /// What the program's faults have cost since it began. `None` once it is gone.
    fn spent(&mut self) -> Option<Spent>;

    /// The mappings that may be steered.
    fn mappings(&mut self) -> Vec<Mapping>;

    /// The mappings of one file, by its device and inode.
    fn mappings_of(&mut self, device: (u64, u64), inode: u64) -> Vec<Mapping>;

    /// The advice of what is mapped at each of `at`. `None` if it cannot be read.
    fn flags(&mut self, at: &[Range<u64>]) -> Option<Vec<Flags>>;

    /// Whether the page tables may be read.
    fn has_pages(&mut self) -> bool;

    /// Notes which pages of `range` are mapped, and returns those that `seen` did not have, in order.
    fn pages(&mut self, seen: &mut Seen, range: Range<u64>) -> Vec<Run>;

    /// Bytes of files that can be in memory at once.
    fn for_files(&mut self) -> u64;

    /// Pages that the kernel reads ahead of a walk through a file of the device.
    fn readahead(&self, device: (u64, u64)) -> u64;

    /// How long threads have waited since this was asked last.
    fn waited(&mut self) -> Waited;

    /// Whether a thread waits for storage now.
    fn is_blocked(&mut self) -> bool;
}

/// Looks at a process by /proc.
#[derive(Debug)]
pub struct Sampler {
    process: String,
    effort: Effort,
    mappings: Mappings,
    memory: Memory,
    waits: Waits,
    pages: Option<Pages>,
}

impl Sampler {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Sampler {
        let process = pid.to_string();
        Sampler {
            effort: Effort::of(pid),
            mappings: Mappings::of(&process),
            memory: Memory::of(pid),
            waits: Waits::of(pid),
            pages: None,
            process,
        }
    }
}

impl Samples for Sampler {
    fn now(&self) -> Duration {
        clock::now()
    }

    fn processor_time(&self) -> Duration {
        clock::processor_time()
    }

    fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn spent(&mut self) -> Option<Spent> {
        self.effort.look()
    }

    fn mappings(&mut self) -> Vec<Mapping> {
        self.mappings.look()
    }

    fn mappings_of(&mut self, device: (u64, u64), inode: u64) -> Vec<Mapping> {
        self.mappings.of_file(device, inode)
    }

    fn flags(&mut self, at: &[Range<u64>]) -> Option<Vec<Flags>> {
        self.mappings.flags(at)
    }

    fn has_pages(&mut self) -> bool {
        if self.pages.is_none() {
            self.pages = Pages::of(&self.process);
        }
        self.pages.is_some()
    }

    fn pages(&mut self, seen: &mut Seen, range: Range<u64>) -> Vec<Run> {
        self.pages.as_mut().map_or_else(Vec::new, |pages| pages.look(seen, range))
    }

    fn for_files(&mut self) -> u64 {
        self.memory.for_files()
    }

    fn readahead(&self, device: (u64, u64)) -> u64 {
        readahead(device).unwrap_or(0)
    }

    fn waited(&mut self) -> Waited {
        self.waits.waited()
    }

    fn is_blocked(&mut self) -> bool {
        self.waits.is_blocked()
    }
}
