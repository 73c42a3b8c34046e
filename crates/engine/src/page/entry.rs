//! Names of regions and pages, for places that may not hold a pointer: queues, slots and words.

use std::sync::atomic::{AtomicU32, Ordering};

/// Files mapped at a time in one process, at most.
pub const MOST_REGIONS: usize = 8192;

/// Pages of a huge frame: 2 MiB.
pub const FRAME_PAGES: usize = 512;

/// The number of a region: its place in the registry (`region/registry.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionId(pub u32);

/// For each region, how many uses ([`RegionUse`]) there are. A region waits until there are none before it goes away.
static USERS: [AtomicU32; MOST_REGIONS] = [const { AtomicU32::new(0) }; MOST_REGIONS];

/// A use of the region with a number. The region does not go away before this is dropped. Only the registry knows whether there is such a
/// region.
#[derive(Debug)]
pub struct RegionUse(RegionId);

impl RegionUse {
    /// Begins a use. SeqCst pairs with the registry's `withdraw`: either `withdraw` sees the use, or this thread finds the region gone.
    #[inline]
    pub fn begin(region: RegionId) -> Self {
        USERS[region.0 as usize].fetch_add(1, Ordering::SeqCst);
        RegionUse(region)
    }

    /// Ends a use that was begun and forgotten.
    ///
    /// # Safety
    /// Such a use exists, and nobody else ends it.
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

/// For each region, how many visits ([`RegionVisit`]) there are: threads that look at the region in a system call of the program on its
/// file. A region that ends looks for visits for a short time only, and keeps its values if some are left (`files/lifecycle.rs`): a signal
/// handler may have left the call by longjmp(3), and then the visit stays for ever.
static VISITS: [AtomicU32; MOST_REGIONS] = [const { AtomicU32::new(0) }; MOST_REGIONS];

/// A visit to the region with a number. The region's values stay valid until this is dropped, although the region may end.
#[derive(Debug)]
pub struct RegionVisit(RegionId);

impl RegionVisit {
    /// Begins a visit. SeqCst as for a use.
    #[inline]
    pub fn begin(region: RegionId) -> Self {
        VISITS[region.0 as usize].fetch_add(1, Ordering::SeqCst);
        RegionVisit(region)
    }
}

impl RegionId {
    /// Whether a visit to a region with this number is under way, or was left behind.
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

/// A page or a huge frame, as clean queues hold it: the region's number in the high 24 bits, the page's number in the low 37, and
/// what the queue needs between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    const PAGE_BITS: u32 = 40;
    /// Set: the entry stands for all pages of a huge frame. No page number needs this bit: addresses have room for 2^34 pages.
    const FRAME: u64 = 1 << (Self::PAGE_BITS - 1);

    /// Turns that are left to the entry of a page, in two bits below: no page number needs these either.
    const TURN: u64 = Self::FRAME >> 2;
    const TURNS: u64 = 0b11 * Self::TURN;

    /// The entry of a page.
    #[inline]
    pub fn new(region: RegionId, page: usize) -> Self {
        Entry(u64::from(region.0) << Self::PAGE_BITS | page as u64)
    }

    /// The entry of a frame that begins with a page.
    pub fn of_frame(region: RegionId, first: usize) -> Self {
        Entry(Self::new(region, first).0 | Self::FRAME)
    }

    /// The same, which goes back to the end of its queue so many times before its page is evicted: 3 at most.
    #[inline]
    pub fn with_turns(self, turns: u32) -> Self {
        let turns = u64::from(turns.min(3)) * Self::TURN;
        Entry(self.0 & !Self::TURNS | turns)
    }

    /// The same with one turn less, if it has any left.
    #[inline]
    pub fn next_turn(self) -> Option<Self> {
        (self.0 & Self::TURNS != 0).then(|| Entry(self.0 - Self::TURN))
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

    /// The number of the page in its file, or of the frame's first page.
    #[inline]
    pub fn page(self) -> usize {
        (self.0 & (Self::TURN - 1)) as usize
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
