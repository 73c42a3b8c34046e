//! What this process has fetched of objects, as those count it who fill files with an [`Origin`](crate::Origin).

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of objects in stores, parts of which are kept in files here.
///
/// What is in memory is not read, and not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objects {
    /// Fetched from stores.
    pub fetched_bytes: u64,
    /// Read from local copies, fetched just now or long ago.
    pub hit_bytes: u64,
    /// Fetched, and given up before anything read them.
    pub wasted_bytes: u64,
}

/// As words, for the page that others see.
pub(super) const WORDS: usize = 3;

static NOW: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Adds to what this process has counted. Others see it once this process maps a file, or by [`offer`](super::offer). It may be called in a
/// fault handler.
///
/// ```
/// use fastmap::live::{self, Objects};
///
/// live::count_objects(Objects { fetched_bytes: 1 << 20, ..Objects::default() });
/// assert!(live::snapshot_of_self().objects.fetched_bytes >= 1 << 20);
/// ```
pub fn count_objects(more: Objects) {
    for (word, value) in NOW.iter().zip(more.words()).filter(|(_, value)| *value > 0) {
        word.fetch_add(value, Ordering::Relaxed);
    }
}

impl Objects {
    pub(super) fn of_words([fetched_bytes, hit_bytes, wasted_bytes]: [u64; WORDS]) -> Self {
        Objects { fetched_bytes, hit_bytes, wasted_bytes }
    }

    pub(super) fn words(self) -> [u64; WORDS] {
        [self.fetched_bytes, self.hit_bytes, self.wasted_bytes]
    }

    /// What has been counted.
    pub(super) fn now() -> Self {
        Objects::of_words(std::array::from_fn(|at| NOW[at].load(Ordering::Relaxed)))
    }
}
