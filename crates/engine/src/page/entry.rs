//! How a region and its pages are named where nothing may point to them: in queues, slots and words.

use std::sync::atomic::{AtomicU32, Ordering};

/// Files mapped at a time in one process, at most.
pub const MOST_REGIONS: usize = 8192;

/// Pages of a frame, 2 MiB.
pub const FRAME_PAGES: usize = 512;

/// The number of a region: its place in the registry (`region/registry.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionId(pub u32);

/// Threads that use a region which they do not access: it waits for them before it goes.
static USERS: [AtomicU32; MOST_REGIONS] = [const { AtomicU32::new(0) }; MOST_REGIONS];

/// A use of the region that has a number, until dropped. Whether there is a region is the registry's to say.
#[derive(Debug)]
pub struct RegionUse(RegionId);

impl RegionUse {
    /// One use more. SeqCst pairs with the registry's withdrawal of a region: either that sees the use, or this thread finds the
    /// region gone.
    #[inline]
    pub fn begin(region: RegionId) -> Self {
        USERS[region.0 as usize].fetch_add(1, Ordering::SeqCst);
        RegionUse(region)
    }

    /// Ends a use that was begun and forgotten.
    ///
    /// # Safety
    /// There is such a one, and nobody else ends it.
    pub unsafe fn end(region: RegionId) {
        drop(RegionUse(region));
    }

    /// The number.
    pub fn region(&self) -> RegionId {
        self.0
    }
}

impl RegionId {
    /// Uses of it at this moment.
    pub fn users(self) -> u32 {
        USERS[self.0 as usize].load(Ordering::SeqCst)
    }
}

impl Clone for RegionUse {
    fn clone(&self) -> Self {
        RegionUse::begin(self.0)
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        USERS[self.0.0 as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Threads that look at a region in a system call of the program on its file. Nobody waits for them to go: a signal handler may have left the
/// call by longjmp(3), and then its visit stays.
static VISITS: [AtomicU32; MOST_REGIONS] = [const { AtomicU32::new(0) }; MOST_REGIONS];

/// A visit to the region that has a number, until dropped: its values stay, although it may end.
#[derive(Debug)]
pub struct RegionVisit(RegionId);

impl RegionVisit {
    /// One visit more. SeqCst as for a use.
    #[inline]
    pub fn begin(region: RegionId) -> Self {
        VISITS[region.0 as usize].fetch_add(1, Ordering::SeqCst);
        RegionVisit(region)
    }
}

impl RegionId {
    /// Whether anybody visits a region of this number, or has left a visit behind.
    pub fn is_visited(self) -> bool {
        VISITS[self.0 as usize].load(Ordering::SeqCst) != 0
    }
}

impl Drop for RegionVisit {
    #[inline]
    fn drop(&mut self) {
        VISITS[self.0.0 as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

/// A page of a region, or a frame, as clean queues hold it: slot in the high 24 bits, page number in the low 40.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    const PAGE_BITS: u32 = 40;
    /// It stands for all pages of a frame. (Addresses have room for 2^34 pages.)
    const FRAME: u64 = 1 << (Self::PAGE_BITS - 1);

    /// The entry of a page.
    #[inline]
    pub fn new(region: RegionId, page: usize) -> Self {
        Entry(u64::from(region.0) << Self::PAGE_BITS | page as u64)
    }

    /// The entry of a frame that begins with a page.
    pub fn of_frame(region: RegionId, first: usize) -> Self {
        Entry(Self::new(region, first).0 | Self::FRAME)
    }

    /// Whether it stands for a frame.
    #[inline]
    pub fn is_frame(self) -> bool {
        self.0 & Self::FRAME != 0
    }

    /// Pages that it stands for.
    #[inline]
    pub fn pages(self) -> usize {
        if self.is_frame() { FRAME_PAGES } else { 1 }
    }

    /// The region's number.
    #[inline]
    pub fn region(self) -> RegionId {
        RegionId((self.0 >> Self::PAGE_BITS) as u32)
    }

    /// The page's number in its file, or that of the frame's first.
    #[inline]
    pub fn page(self) -> usize {
        (self.0 & (Self::FRAME - 1)) as usize
    }
}

impl From<u64> for Entry {
    fn from(word: u64) -> Self {
        Entry(word)
    }
}

impl From<Entry> for u64 {
    fn from(entry: Entry) -> u64 {
        entry.0
    }
}
