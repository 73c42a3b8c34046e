//! A region: one mapped file, its address range, and the state of each of its pages. All maps of a file share one.

use crate::cache::Inner;
use crate::dirty::{self, BLOCK_PAGES, DirtyBitmap};
use crate::error::{Error, Result};
use crate::evict;
use crate::extents::Extents;
use crate::habits::StoreHabit;
use crate::holes::Holes;
use crate::lock::Lock;
use crate::page::PageWord;
use crate::registry;
pub use crate::registry::SlotIndex;
use crate::staging::FRAME_PAGES;
use crate::store::Store;
use crate::streams::{Expect, MOST_WINDOW};
use crate::sync::AtomicU64;
use crate::sys::memory::{self, Zeroed};
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, cpu, fork, madvise};
use crate::writers::MOST_WRITERS;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Locks that writers hold, one for every 64th block. A writer holds the locks of the blocks it works on.
pub const WRITE_LOCKS: usize = 64;
/// Smallest part of a region with a userfaultfd, and so a kernel VMA lock, of its own.
const STRIPE_BYTES: usize = 64 << 20;
/// Such parts a processor, at most: enough that two threads seldom meet in one, and no more, because each is a VMA (of
/// which a process may have 65530) and every system call on a page looks its VMA up: 64 of them cost a miss 0.1 to 0.2 µs.
const STRIPES_PER_CORE: usize = 4;

/// Bound of the count of wasted chunks: so many used ones make them good.
const MOST_WASTE: u32 = 16;

/// One mapped file.
#[derive(Debug)]
pub struct Region {
    slot: SlotIndex,
    cache: Arc<Inner>,
    store: Arc<dyn Store>,
    base: *mut u8,
    span: usize,
    stripe_bytes: usize,
    userfaultfds: &'static [Userfaultfd],
    words: Zeroed<PageWord>,
    dirty: DirtyBitmap<Zeroed<AtomicU64>>,
    write_locks: [Lock; WRITE_LOCKS],
    /// Where each background writer looks first, a block.
    write_cursors: [AtomicUsize; MOST_WRITERS],
    /// For each block, for how many looks of the writers it has been dirty (see `write_ripe`).
    ages: Zeroed<AtomicU8>,
    habits: Zeroed<StoreHabit>,
    habit: StoreHabit,
    least_end: AtomicUsize,
    extents: Extents,
    holes: Holes,
    /// What the user expects of each 2 MiB ([`Expect`]).
    expectations: Zeroed<AtomicU8>,
    /// Largest window of readahead, pages.
    readahead: AtomicUsize,
    /// Chunks wasted of late, less those used.
    waste: AtomicU32,
    /// Frames may be moved into it: it is mapped so that the kernel moves them, and nobody stores to it.
    frames: AtomicBool,
    /// Threads that are moving one in.
    moving: AtomicUsize,
    writable: AtomicBool,
    /// It could not be saved when somebody wanted it, or when its last map went: the writers try again.
    unsaved: AtomicBool,
    /// An error of background writing has been told (see `complain`).
    complained: AtomicBool,
    growing: Mutex<()>,
    length: Mutex<u64>,
    left_behind: AtomicU64,
}

// SAFETY: `base` is an address range the region owns; everything else is shared safely by itself.
unsafe impl Send for Region {}
// SAFETY: likewise.
unsafe impl Sync for Region {}

/// A frame is on its way into a region.
#[derive(Debug)]
pub struct Moving<'a>(&'a AtomicUsize);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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
    pub fn new(slot: SlotIndex, page: usize) -> Self {
        Entry(u64::from(slot.0) << Self::PAGE_BITS | page as u64)
    }

    /// The entry of a frame that begins with a page.
    pub fn of_frame(slot: SlotIndex, first: usize) -> Self {
        Entry(Self::new(slot, first).0 | Self::FRAME)
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

    /// The region's slot.
    #[inline]
    pub fn slot(self) -> SlotIndex {
        SlotIndex((self.0 >> Self::PAGE_BITS) as u32)
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

/// The process's userfaultfds, shared by all regions: two neighbouring stripes never have the same one, so the kernel
/// keeps their VMAs, and the locks in them, apart.
fn userfaultfds() -> io::Result<&'static [Userfaultfd]> {
    static OPENED: OnceLock<Vec<Userfaultfd>> = OnceLock::new();
    if let Some(opened) = OPENED.get() {
        return Ok(opened);
    }
    let count = cpu::count().clamp(2, 16);
    let opened = (0..count).map(|_| Userfaultfd::open()).collect::<io::Result<Vec<_>>>()?;
    Ok(OPENED.get_or_init(|| opened))
}

impl Region {
    /// Makes a region over a file, able to hold `need` bytes of it, and serves its faults from now on.
    pub fn new(cache: Arc<Inner>, store: Arc<dyn Store>, need: usize) -> Result<Arc<Self>> {
        let fail = |operation| {
            let path = store.path().to_owned();
            move |source| Error::Io { path: path.clone(), operation, source }
        };
        // Room for the file to double, as far as addresses go: what is not touched costs nothing.
        const MOST: usize = 1 << 46;
        let least = need.max(store.size() as usize);
        let span = least.saturating_mul(2).min(MOST).max(least).checked_next_multiple_of(STRIPE_BYTES);
        let span = span.filter(|span| *span <= MOST).ok_or_else(|| Error::LengthOverflow {
            path: store.path().to_owned(),
            offset: 0,
            len: least as u64,
        })?;
        let most_stripes = (STRIPES_PER_CORE * cpu::count()).min(64);
        let stripe_bytes = (span / most_stripes).max(STRIPE_BYTES).next_multiple_of(STRIPE_BYTES);
        let pages = span / PAGE;
        fork::claim().map_err(fail("map a word that children do not inherit (madvise)"))?;
        let userfaultfds = userfaultfds().map_err(fail("open a userfaultfd"))?;
        let bookkeeping = fail("map memory for its page words");
        let words = Zeroed::new(pages).map_err(&bookkeeping)?;
        let mut levels = dirty::words_for(pages).into_iter().map(Zeroed::new);
        let mut level = || levels.next().expect("three levels").map_err(&bookkeeping);
        let dirty = DirtyBitmap::new(level()?, level()?, level()?);
        let blocks = pages.div_ceil(BLOCK_PAGES);
        let ages = Zeroed::new(blocks).map_err(&bookkeeping)?;
        let habits = Zeroed::new(blocks).map_err(&bookkeeping)?;
        let holes = Holes::new(pages).map_err(&bookkeeping)?;
        let expectations = Zeroed::new(pages.div_ceil(FRAME_PAGES)).map_err(&bookkeeping)?;
        let slot = registry::reserve().ok_or_else(|| {
            fail("map it")(io::Error::other(format!(
                "{} files are mapped already: drop some maps",
                registry::MOST_REGIONS
            )))
        })?;
        let length = Mutex::new(store.size());
        let base = memory::reserve(span, STRIPE_BYTES)
            .inspect_err(|_| registry::cancel(slot))
            .map_err(fail("reserve address space for it"))?;
        let region = Arc::new(Region {
            slot,
            cache,
            store,
            base,
            span,
            stripe_bytes,
            userfaultfds,
            words,
            dirty,
            write_locks: std::array::from_fn(|_| Lock::new()),
            write_cursors: std::array::from_fn(|_| AtomicUsize::new(0)),
            ages,
            habits,
            habit: StoreHabit::default(),
            least_end: AtomicUsize::new(usize::MAX),
            extents: Extents::default(),
            holes,
            expectations,
            readahead: AtomicUsize::new(MOST_WINDOW),
            waste: AtomicU32::new(0),
            frames: AtomicBool::new(false),
            moving: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            unsaved: AtomicBool::new(false),
            complained: AtomicBool::new(false),
            growing: Mutex::new(()),
            length,
            left_behind: AtomicU64::new(u64::MAX),
        });
        if let Err(error) = region.register() {
            registry::cancel(slot);
            // SAFETY: nobody knows the region yet.
            unsafe { memory::release(base, span) };
            return Err(region.io_error("register it with userfaultfd", error));
        }
        registry::publish(&region);
        region.cache.start_readers(&userfaultfds[0]);
        Ok(region)
    }

    /// Traps come before access: a locked address space (mlockall(2)) would fill the range with zeros otherwise.
    fn register(&self) -> io::Result<()> {
        // SAFETY: the range is this region's own, not handed out yet.
        unsafe {
            madvise::prepare_region(self.base, self.span);
            for at in (0..self.span).step_by(self.stripe_bytes) {
                let len = self.stripe_bytes.min(self.span - at);
                self.userfaultfd(at / PAGE).register(self.base.add(at), len)?;
            }
            // The kernel moves pages between writable mappings only; all pages are write-protected, and a store that traps is
            // refused (`forbid_stores`). Where so much writable memory is not to be had, pages are copied.
            match memory::protect(self.base, self.span, true) {
                Ok(()) => self.frames.store(true, Ordering::Release),
                Err(_) => memory::protect(self.base, self.span, false)?,
            }
        }
        Ok(())
    }

    /// Has the store to a page of a map that is read-only, which trapped, end in SIGSEGV when it is repeated, as with mmap(2).
    /// Called by fault handlers.
    #[cold]
    pub fn forbid_stores(&self, page: usize) -> bool {
        // SAFETY: a page of this region; nobody may store to it.
        self.is_writable() || unsafe { memory::protect(self.address_of(page), PAGE, false) }.is_ok()
    }

    /// Lets stores through to the fault path, and pages to the file, through a descriptor that may write. With
    /// `one_writer`, no other process may do so meanwhile.
    pub fn allow_writing(&self, from: &std::fs::File, one_writer: bool) -> Result<()> {
        let _growing = self.growing.lock().unwrap_or_else(|poison| poison.into_inner());
        self.store.allow_writing(from)?;
        if one_writer {
            self.store.lock()?;
        }
        if !self.is_writable() {
            self.allow_stores()?;
        }
        Ok(())
    }

    /// Lets stores through to the fault path; the file can be written to.
    pub fn allow_stores(&self) -> Result<()> {
        // Frames come in writable, for a moment, and leave memory whole: not where pages are stored to.
        self.frames.store(false, Ordering::SeqCst);
        while self.moving.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        {
            // A range that is dropped at this moment has frames' entries in its hands.
            let _length = self.lock_length();
            evict::dissolve_frames(self);
        }
        // SAFETY: pages resident so far were installed write-protected, so a store to them traps.
        unsafe { memory::protect(self.base, self.span, true) }
            .map_err(|source| self.io_error("make its map writable", source))?;
        self.writable.store(true, Ordering::Release);
        self.cache.start_writers();
        Ok(())
    }

    /// Ends a region that no map refers to and whose pages are all clean. Its credits go back.
    pub fn dissolve(&self) {
        let credits = {
            // An evictor holds popped entries before it enters their region. Entries of this one in its hands would be in
            // no queue when they are counted below, and their credits gone: no evictor may be between the two.
            let _blocked = Blocked::all();
            let _evicting: Vec<_> = self.cache.cores.iter().map(|core| core.0.evicting.lock()).collect();
            registry::withdraw(self);
            let idle = self.cache.ahead().map_or(0, |ahead| {
                ahead.drop_region(self);
                ahead.reclaim_idle()
            });
            // SAFETY: no map refers to the region, and no thread is in it any more.
            unsafe { memory::release(self.base, self.span) };
            // All its resident pages are clean, and each has one entry, or its frame has.
            let entries = self.cache.clean.purge(self.slot, 0..self.span / PAGE);
            idle + entries.into_iter().map(Entry::pages).sum::<usize>()
        };
        registry::cancel(self.slot);
        self.cache.release_credits(0, credits);
    }

    /// Its slot.
    pub fn slot(&self) -> SlotIndex {
        self.slot
    }

    /// The cache that holds its pages.
    pub fn cache(&self) -> &Arc<Inner> {
        &self.cache
    }

    /// The file.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The file's length that was followed last (`sizes.rs`), bytes. Held while it is followed or changed; taken after the
    /// table of files, if both are.
    pub fn lock_length(&self) -> MutexGuard<'_, u64> {
        self.length.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The least end of the file at which pages had to stay because they were pinned, bytes; `u64::MAX`: none. Used by
    /// whoever holds the length.
    pub fn left_behind(&self) -> &AtomicU64 {
        &self.left_behind
    }

    /// Bytes of address range it has.
    pub fn span(&self) -> usize {
        self.span
    }

    /// First address and the one past the last.
    pub fn addresses(&self) -> (usize, usize) {
        (self.base as usize, self.base as usize + self.span)
    }

    /// Whether stores are let through.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether it is there: a child after fork(2) has the values but not the memory, and must leave it alone. No system call.
    #[inline]
    pub fn is_ours(&self) -> bool {
        !fork::is_child()
    }

    /// Where a page lies in memory.
    #[inline]
    pub fn address_of(&self, page: usize) -> *mut u8 {
        debug_assert!(page < self.span / PAGE);
        self.base.wrapping_add(page * PAGE)
    }

    /// A page's word.
    #[inline]
    pub fn word(&self, page: usize) -> &PageWord {
        &self.words[page]
    }

    /// The dirty pages.
    pub fn dirty(&self) -> &DirtyBitmap<Zeroed<AtomicU64>> {
        &self.dirty
    }

    /// The write lock of a block: each guards the blocks whose number is its own modulo [`WRITE_LOCKS`].
    pub fn write_lock(&self, block: usize) -> &Lock {
        &self.write_locks[block % WRITE_LOCKS]
    }

    /// Where a background writer looks next.
    pub fn write_cursor(&self, writer: usize) -> &AtomicUsize {
        &self.write_cursors[writer]
    }

    /// For each block, for how many looks of the writers it has been dirty.
    pub fn ages(&self) -> &[AtomicU8] {
        &self.ages
    }

    /// Raised when the file could not be saved as somebody wanted; taken down by the writers, who try again.
    pub fn unsaved(&self) -> &AtomicBool {
        &self.unsaved
    }

    #[inline]
    fn expects_store(&self, page: usize) -> bool {
        let of_block = self.habits[page / BLOCK_PAGES].expects_store();
        of_block.unwrap_or_else(|| self.habit.expects_store().unwrap_or(false))
    }

    /// The habits that a control page is an example of: its block's, and while that one is undecided, the file's.
    pub fn habits_at(&self, page: usize) -> impl Iterator<Item = &StoreHabit> {
        let of_block = &self.habits[page / BLOCK_PAGES];
        let of_file = of_block.expects_store().is_none().then_some(&self.habit);
        [Some(of_block), of_file].into_iter().flatten()
    }

    /// Whether a page that this thread is loading lies in a hole of the file: it is zeros then. Called by fault handlers.
    #[inline]
    pub fn take_hole(&self, page: usize) -> bool {
        if !self.store.is_locked() {
            // Other processes may write there, now or after this.
            self.holes.spoil(page);
            return false;
        }
        self.holes.take(page, &*self.store)
    }

    /// Whether pages around this one are soon stored to after they are read, and no other process writes the file: one that
    /// is installed writable is written back, with what was read.
    #[inline]
    pub fn may_guess_store(&self, page: usize) -> bool {
        self.is_writable() && self.expects_store(page) && self.store.is_locked()
    }

    /// The smallest end of the region's maps, in whole pages: what lies before it, behind a page of some map, is inside that
    /// map.
    pub fn least_end(&self) -> &AtomicUsize {
        &self.least_end
    }

    /// What is known of the file's holes.
    pub fn holes(&self) -> &Holes {
        &self.holes
    }

    /// The parts of the file that are mapped.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// What may be read ahead around a page: what is mapped, up to the file's last whole page.
    pub fn ahead_of(&self, page: usize) -> Range<usize> {
        let end = (self.store.size() as usize / PAGE).min(self.span / PAGE);
        let Range { start, end: of_maps } = self.extents.around(page);
        start..of_maps.min(end).max(start)
    }

    /// Expects the same as another region of the same file, which this one replaces.
    pub fn inherit(&self, other: &Region) {
        self.set_readahead(other.readahead());
        for (one, theirs) in self.expectations.iter().zip(other.expectations.iter()) {
            let theirs = theirs.load(Ordering::Relaxed);
            // What is not touched costs nothing.
            if theirs != 0 {
                one.store(theirs, Ordering::Relaxed);
            }
        }
    }

    /// Largest window of readahead, pages; 0: nothing is read ahead.
    pub fn readahead(&self) -> usize {
        self.readahead.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_readahead(&self, pages: usize) {
        self.readahead.store(pages, Ordering::Relaxed);
    }

    /// What the user expects of a page.
    #[inline]
    pub fn expect_at(&self, page: usize) -> Expect {
        Expect::from_number(self.expectations[page / FRAME_PAGES].load(Ordering::Relaxed))
    }

    /// Notes what the user expects of pages, and of their neighbours in the same 2 MiB.
    pub fn expect(&self, pages: Range<usize>, expect: Expect) {
        for one in &self.expectations[pages.start / FRAME_PAGES..pages.end.div_ceil(FRAME_PAGES)] {
            one.store(expect as u8, Ordering::Relaxed);
        }
    }

    /// Whether its streams were mostly wasted of late.
    #[inline]
    pub fn wastes_streams(&self) -> bool {
        self.waste.load(Ordering::Relaxed) >= MOST_WASTE / 2
    }

    /// Notes that a chunk of pages read ahead was touched.
    pub fn note_used_chunk(&self) {
        let less = |waste: u32| waste.checked_sub(1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Notes that one was dropped untouched.
    pub fn note_wasted_chunk(&self) {
        let more = |waste: u32| (waste < MOST_WASTE).then_some(waste + 1);
        let _ = self.waste.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether frames are moved into it.
    pub fn takes_frames(&self) -> bool {
        self.frames.load(Ordering::Relaxed)
    }

    /// Announces a thread that moves a frame in, until the guard is dropped; `None`: no frames any more.
    pub fn begin_move(&self) -> Option<Moving<'_>> {
        // SeqCst with `allow_stores`: either it sees this thread, or this thread sees that frames are over.
        self.moving.fetch_add(1, Ordering::SeqCst);
        let moving = Moving(&self.moving);
        self.frames.load(Ordering::SeqCst).then_some(moving)
    }

    /// The end of the stripe that holds a page.
    pub fn stripe_end(&self, page: usize) -> usize {
        let stripe = self.stripe_bytes / PAGE;
        ((page / stripe + 1) * stripe).min(self.span / PAGE)
    }

    /// True the first time something has to be said about this region's file.
    pub fn complain(&self) -> bool {
        !self.complained.swap(true, Ordering::AcqRel)
    }

    /// The userfaultfd that serves a page.
    #[inline]
    pub fn userfaultfd(&self, page: usize) -> &'static Userfaultfd {
        let stripe = page * PAGE / self.stripe_bytes;
        &self.userfaultfds[(stripe + self.slot.0 as usize) % self.userfaultfds.len()]
    }

    /// The descriptors that the keeper needs: the file's, and the userfaultfds. With the last of those closed, absent pages
    /// would read as zeros, and be written.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.store.descriptors().into_iter().flatten().chain(self.userfaultfds.iter().map(|one| one.as_raw_fd()))
    }

    /// An error of a system call on this region's file.
    pub fn io_error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.store.path().to_owned(), operation, source }
    }
}
