//! Mechanisms that a cache can do without, so that a benchmark can show what each of them is worth.

/// A mechanism that only saves time: without it everything works, and is slower.
///
/// For benchmarks; there is no other reason to leave one out. Two others have public settings: the size of eviction
/// batches ([`CacheBuilder::evict_batch`](crate::CacheBuilder::evict_batch)) and readahead
/// ([`Map::set_readahead`](crate::Map::set_readahead)).
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mechanism {
    /// Free frames, clean queues, read buffers, miss histories and counters of each core's own. Without: one of each,
    /// for all cores.
    PerCore,
    /// Several userfaultfds, and so several VMAs and their locks, for one file. Without: one.
    Stripes,
    /// One write-protection, and so one TLB flush, for all pages of a block that are written back. Without: one a page.
    BatchedProtection,
    /// One write for a run of neighbouring dirty pages. Without: one a page.
    MergedWrites,
    /// Pages that are read are installed writable where a store is predicted, and pages that were dirty together become
    /// writable together. Without: pages are always installed write-protected, and each becomes writable by its own
    /// store.
    StorePrediction,
}

impl Mechanism {
    /// Every one.
    pub const ALL: [Mechanism; 5] = [
        Mechanism::PerCore,
        Mechanism::Stripes,
        Mechanism::BatchedProtection,
        Mechanism::MergedWrites,
        Mechanism::StorePrediction,
    ];
}

/// The mechanisms that a cache does without, a bit each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Without(u8);

impl Without {
    /// These and one more.
    pub fn and(self, mechanism: Mechanism) -> Self {
        Without(self.0 | 1 << mechanism as u8)
    }

    /// Whether a mechanism is among them.
    #[inline]
    pub fn has(self, mechanism: Mechanism) -> bool {
        self.0 & 1 << mechanism as u8 != 0
    }
}
