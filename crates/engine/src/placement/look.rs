//! What the controller is given at each look, and what it answers.

use std::fmt;
use std::time::Duration;

/// Who serves the mappings; from the simplest, which needs no reason, to the one that needs the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The kernel, as the program has it.
    Kernel,
    /// The kernel, with `MADV_RANDOM`.
    Advised,
    /// The engine.
    Engine,
}

/// What was seen: since the look before, where nothing else is said.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// When: since any start, never going back.
    pub at: Duration,
    /// User-mode time of the program's threads, the engine's handler and threads taken off.
    pub user: Duration,
    /// Faults that waited for a device.
    pub major_faults: u64,
    /// Faults that did not.
    pub minor_faults: u64,
    /// Misses served by the engine.
    pub misses: u64,
    /// Pages that came back soon after they were evicted (`workingset_refault_file` of the cgroup), 0 where unknown.
    pub refaults: u64,
    /// Bytes the process caused to be read from devices.
    pub read: u64,
    /// At this moment: bytes that the kernel reads at a major fault of a mapping without advice (the device's readahead).
    pub around: u64,
    /// At this moment: the files do not fit into the headroom.
    pub short: bool,
    /// At this moment: they all would. Between the two, neither.
    pub fits: bool,
    /// At this moment: bytes of mappings that are watched.
    pub mapped: u64,
}

/// What may be tried now, besides the kernel as it is.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// There is something that the program gave no advice of its own on.
    pub advised: bool,
    /// Nothing forbids the engine: another process that has the file open, a part that the program protected.
    pub engine: bool,
}

impl Allowed {
    pub(super) fn has(self, way: Way) -> bool {
        match way {
            Way::Kernel => true,
            Way::Advised => self.advised,
            Way::Engine => self.engine,
        }
    }

    /// Whether a way may be kept. Where the program has come to advise all that is mapped at this moment, our advice is for what it maps next.
    pub(super) fn lets_keep(self, way: Way) -> bool {
        way != Way::Engine || self.engine
    }
}

/// The way until the next look, and why, where something was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The way until the next look.
    pub way: Way,
    /// What was decided at this look, if anything was.
    pub why: Option<Why>,
}

/// A reason, and the progress before and now (in cores) where it was progress that decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    pub(super) reason: &'static str,
    pub(super) progress: Option<(f64, f64)>,
}

impl fmt::Display for Why {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(self.reason)?;
        let percent = |(before, now)| (100.0 * before, 100.0 * now);
        self.progress
            .map(percent)
            .map_or(Ok(()), |(before, now)| write!(to, ": {before:.1} % of a core, then {now:.1} %"))
    }
}
