//! What this process has fetched of objects, as those count it who fill files with an [`Origin`](crate::Origin).

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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

/// What another copy of this library in the process counts, e.g. `libfastmap_object.so`'s.
static ALSO: AtomicPtr<[AtomicU64; WORDS]> = AtomicPtr::new(std::ptr::null_mut());

/// Where this copy of the library counts, for another copy's [`count_also`].
#[doc(hidden)]
pub const fn counted() -> &'static [AtomicU64; WORDS] {
    &NOW
}

/// Counts what another copy of the library counts, too.
#[doc(hidden)]
pub fn count_also(words: &'static [AtomicU64; WORDS]) {
    ALSO.store(std::ptr::from_ref(words).cast_mut(), Ordering::Release);
}

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
        // SAFETY: null, or a reference that is valid for ever.
        let also = unsafe { ALSO.load(Ordering::Acquire).as_ref() };
        let all = [Some(&NOW), also];
        let word = |at: usize| all.iter().flatten().map(|words| words[at].load(Ordering::Relaxed)).sum();
        Objects::of_words(std::array::from_fn(word))
    }
}
