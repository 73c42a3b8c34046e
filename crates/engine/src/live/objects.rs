//! Counters of the objects that this process has fetched. Code that fills files with an [`Origin`](crate::Origin) counts them.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Bytes of objects in stores. Parts of the objects are kept in local files.
///
/// Bytes that are in memory already are not read, and not counted.
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

/// The counters of another copy of this library in the process, e.g. `libfastmap_object.so`'s.
static ALSO: AtomicPtr<[AtomicU64; WORDS]> = AtomicPtr::new(std::ptr::null_mut());

/// The counters of this copy of the library, for another copy's [`count_also`].
#[doc(hidden)]
pub const fn counted() -> &'static [AtomicU64; WORDS] {
    &NOW
}

/// Includes the counters of another copy of the library in this one's.
#[doc(hidden)]
pub fn count_also(words: &'static [AtomicU64; WORDS]) {
    ALSO.store(std::ptr::from_ref(words).cast_mut(), Ordering::Release);
}

/// Adds to this process's counters. Others see them once this process maps a file, or has called [`offer`](super::offer). A fault handler
/// may call this.
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

    /// All counts so far.
    pub(super) fn now() -> Self {
        // SAFETY: null, or a reference that is valid for ever.
        let also = unsafe { ALSO.load(Ordering::Acquire).as_ref() };
        let all = [Some(&NOW), also];
        let word = |at: usize| all.iter().flatten().map(|words| words[at].load(Ordering::Relaxed)).sum();
        Objects::of_words(std::array::from_fn(word))
    }
}
