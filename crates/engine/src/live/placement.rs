//! Who serves this process's large file mappings, as the room `placement` has decided.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is decided on the mappings that began as the kernel's, and what came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// Who serves them now; `None`: there are none.
    pub way: Option<PlacedBy>,
    /// How often that changed.
    pub switches: u64,
    /// Bytes of files of which this process has such mappings, at the last look at a time when memory was short.
    pub watched_bytes: u64,
    /// Files that are the engine's now.
    pub taken_files: u64,
    /// Processor time of the thread that looks.
    pub looking: Duration,
}

/// Who serves mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacedBy {
    /// The kernel, as the program has it.
    Kernel,
    /// The kernel, told that accesses are random (`MADV_RANDOM`), so that it does not read around them in vain.
    Advised,
    /// The engine.
    Engine,
}

impl PlacedBy {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            PlacedBy::Kernel => "kernel",
            PlacedBy::Advised => "advised",
            PlacedBy::Engine => "engine",
        }
    }
}

/// As words, for the page that others see; the first is zero where there is nothing.
pub(super) const WORDS: usize = 5;

static NOW: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

impl Placement {
    pub(super) fn of_words(words: [u64; WORDS]) -> Self {
        let way = [None, Some(PlacedBy::Kernel), Some(PlacedBy::Advised), Some(PlacedBy::Engine)];
        Placement {
            way: way.get(words[0] as usize).copied().flatten(),
            switches: words[1],
            watched_bytes: words[2],
            taken_files: words[3],
            looking: Duration::from_micros(words[4]),
        }
    }

    pub(super) fn words(self) -> [u64; WORDS] {
        let looking = self.looking.as_micros() as u64;
        [self.way.map_or(0, |way| way as u64 + 1), self.switches, self.watched_bytes, self.taken_files, looking]
    }

    /// What was noted last.
    pub(super) fn now() -> Self {
        Placement::of_words(std::array::from_fn(|at| NOW[at].load(Ordering::Relaxed)))
    }
}

/// Notes what is so now.
pub(crate) fn note(placement: Placement) {
    NOW.iter().zip(placement.words()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}
