//! Mechanisms that a cache can do without, so that a benchmark can show what each of them is worth.
//!
//! The switches exist only with the feature `ablation`. Without it [`Without`] is empty and `Pool::has` the constant
//! `true`, so the compiler drops what a cache would do without a mechanism.

/// A mechanism that only saves time: without it everything works, and is slower.
///
/// For benchmarks; there is no other reason to leave one out. What is not here can be had with a public setting:
/// batches of any size ([`CacheBuilder::evict_batch`](crate::CacheBuilder::evict_batch)), no readahead
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
    /// The dirty bitmap with its summaries. Without: dirty pages are those whose page words say so, and are found by
    /// looking at all of them.
    #[cfg(feature = "ablation")]
    DirtyBitmap,
    /// Pages that are read are installed writable where a store is predicted, and pages that were dirty together become writable
    /// together. Without: write-protected, always, and each by its own store.
    StorePrediction,
}

#[cfg(feature = "ablation")]
impl Mechanism {
    /// Every one.
    pub const ALL: [Mechanism; 6] = [
        Mechanism::PerCore,
        Mechanism::Stripes,
        Mechanism::BatchedProtection,
        Mechanism::MergedWrites,
        Mechanism::DirtyBitmap,
        Mechanism::StorePrediction,
    ];
}

/// The mechanisms that a cache does without, a bit each.
#[cfg(feature = "ablation")]
#[derive(Debug, Clone, Copy, Default)]
pub struct Without(u8);

#[cfg(feature = "ablation")]
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

/// The mechanisms that a cache does without: none.
#[cfg(not(feature = "ablation"))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Without(());

#[cfg(not(feature = "ablation"))]
impl Without {
    /// Whether a mechanism is among them.
    #[inline]
    pub const fn has(self, _mechanism: Mechanism) -> bool {
        false
    }
}
