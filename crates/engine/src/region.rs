//! A region: one mapped file, its address range, and the state of each of its pages. All maps of a file share one.

use crate::behind::{Behind, Wish};
use crate::cache::Inner;
use crate::contents::Contents;
use crate::credits::Padded;
use crate::dirty::{self, BLOCK_PAGES, DirtyBitmap};
use crate::dirty_pages::DirtyPages;
use crate::error::{Error, Result};
use crate::evict;
use crate::extents::Extents;
use crate::faults::Userfaultfds;
use crate::files;
use crate::habits::StoreHabit;
use crate::holes::Holes;
use crate::live::{self, Ended, MapCounters};
use crate::lock::Lock;
use crate::mechanism::Mechanism;
use crate::page::{PageWord, State};
use crate::registry;
pub use crate::registry::SlotIndex;
use crate::resizes::Resizes;
use crate::service;
use crate::staging::FRAME_PAGES;
use crate::store::Store;
use crate::streams::{Expect, MOST_WINDOW};
use crate::sync::AtomicU64;
use crate::sys::memory::{self, Zeroed};
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, cpu, descriptor_table, fork, madvise};
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

/// In a count of visitors: no more of them.
const LEAVING: usize = 1 << (usize::BITS - 1);

/// Bound of the count of wasted chunks: so many used ones make them good.
const MOST_WASTE: u32 = 16;

/// One mapped file.
#[derive(Debug)]
pub struct Region {
    slot: SlotIndex,
    cache: Arc<Inner>,
    store: Arc<dyn Store>,
    /// Where the file's first page is, or would be: address space before `own` may be somebody else's.
    base: *mut u8,
    span: usize,
    /// Where the address range that it has begins, bytes from `base`.
    own: usize,
    /// Parts of it that were mapped over since, bytes: not its to give back.
    lent: Mutex<Vec<Range<usize>>>,
    stripe_bytes: usize,
    stripes: usize,
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
    /// Of a scratch region: what its file has.
    contents: Option<Contents>,
    /// Where stores to absent pages need not wait.
    behind: OnceLock<Behind>,
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
    /// Its maps were made by address (`calls/`): what may be done to which of its addresses is said there, and nothing to those
    /// that no map covers.
    by_address: AtomicBool,
    handed_over: AtomicBool,
    /// It is never dropped.
    stays: AtomicBool,
    /// It is to be handed over: nobody pins pages for longer.
    leaving: AtomicBool,
    /// Threads in a system call on the file (`coherent.rs`), and [`LEAVING`].
    visitors: AtomicUsize,
    /// It could not be saved when somebody wanted it, or when its last map went: the writers try again.
    unsaved: AtomicBool,
    /// An error of background writing has been told (see `complain`).
    complained: AtomicBool,
    growing: Mutex<()>,
    /// Held by system calls that use a descriptor's position, or append (`coherent.rs`).
    position: Lock,
    resizes: Resizes,
    length: Mutex<u64>,
    left_behind: AtomicU64,
    counters: Box<[Padded<MapCounters>]>,
}

// SAFETY: `base` is an address range the region owns; everything else is shared safely by itself.
unsafe impl Send for Region {}
// SAFETY: likewise.
unsafe impl Sync for Region {}

/// Where a region goes.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Where there is room, with address space for so many bytes of the file at least.
    Room(usize),
    /// Only part of the file, from this offset on, at this address: both page multiples. What is there goes.
    Fixed { address: usize, offset: usize },
}

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

impl Region {
    /// Makes a region over a file, able to hold `need` bytes of it, and serves its faults from now on. `scratch`: see
    /// `contents.rs`. Its addresses are open to loads, or `by_address` closed, for the maps to open theirs.
    pub fn new(
        cache: Arc<Inner>,
        store: Arc<dyn Store>,
        need: usize,
        place: Place,
        scratch: bool,
        by_address: bool,
    ) -> Result<Arc<Self>> {
        let fail = |operation| {
            let path = store.path().to_owned();
            move |source| Error::Io { path: path.clone(), operation, source }
        };
        // Room for the file to double, as far as addresses go: what is not touched costs nothing.
        const MOST: usize = 1 << 46;
        let least = need.max(store.size() as usize);
        let doubled = least.saturating_mul(2).min(MOST).max(least).checked_next_multiple_of(STRIPE_BYTES);
        let doubled = doubled.filter(|span| *span <= MOST).ok_or_else(|| Error::LengthOverflow {
            path: store.path().to_owned(),
            offset: 0,
            len: least as u64,
        })?;
        let (span, own) = match place {
            Place::Room(room) => (doubled.max(room.min(MOST).next_multiple_of(STRIPE_BYTES)), 0),
            Place::Fixed { offset, .. } => (need.next_multiple_of(PAGE), offset),
        };
        // By the file as it is; what it grows by belongs to the last stripe.
        let stripes = if cache.has(Mechanism::Stripes) { (STRIPES_PER_CORE * cpu::count()).min(64) } else { 1 };
        let stripe_bytes = (doubled / stripes).max(STRIPE_BYTES).next_multiple_of(STRIPE_BYTES);
        let pages = span / PAGE;
        fork::claim().map_err(fail("map a word that children do not inherit (madvise)"))?;
        let opened = Userfaultfds::get().map_err(fail("open userfaultfds to serve its page faults"))?;
        let bookkeeping = fail("map memory for its page words");
        let likely = doubled / PAGE;
        let words = Zeroed::sparse(pages, likely).map_err(&bookkeeping)?;
        let mut levels = dirty::words_for(pages).into_iter().map(|words| Zeroed::sparse(words, likely / 64));
        let mut level = || levels.next().expect("three levels").map_err(&bookkeeping);
        let dirty = DirtyBitmap::new(level()?, level()?, level()?);
        let blocks = pages.div_ceil(BLOCK_PAGES);
        let ages = Zeroed::new(blocks).map_err(&bookkeeping)?;
        let habits = Zeroed::new(blocks).map_err(&bookkeeping)?;
        let holes = Holes::new(pages, likely).map_err(&bookkeeping)?;
        let contents = scratch.then(|| Contents::new(pages)).transpose().map_err(&bookkeeping)?;
        let expectations = Zeroed::new(pages.div_ceil(FRAME_PAGES)).map_err(&bookkeeping)?;
        let slot = registry::reserve().ok_or_else(|| {
            fail("map it")(io::Error::other(format!(
                "{} files are mapped already: drop some maps",
                registry::MOST_REGIONS
            )))
        })?;
        let length = Mutex::new(store.size());
        let base = match place {
            Place::Room(_) => memory::reserve(span, STRIPE_BYTES),
            // SAFETY: the caller wants it there, whatever is there now.
            Place::Fixed { address, offset } => unsafe { memory::reserve_at(address as *mut u8, span - offset) }
                .map(|()| (address as *mut u8).wrapping_sub(offset)),
        }
        .inspect_err(|_| registry::cancel(slot))
        .map_err(fail("reserve address space for it"))?;
        let region = Arc::new(Region {
            slot,
            cache,
            store,
            base,
            span,
            own,
            lent: Mutex::default(),
            stripe_bytes,
            stripes,
            userfaultfds: &opened.regions,
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
            contents,
            behind: OnceLock::new(),
            expectations,
            readahead: AtomicUsize::new(MOST_WINDOW),
            waste: AtomicU32::new(0),
            frames: AtomicBool::new(false),
            moving: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            by_address: AtomicBool::new(by_address),
            handed_over: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            visitors: AtomicUsize::new(0),
            unsaved: AtomicBool::new(false),
            complained: AtomicBool::new(false),
            growing: Mutex::new(()),
            position: Lock::new(),
            resizes: Resizes::new(),
            length,
            left_behind: AtomicU64::new(u64::MAX),
            counters: MapCounters::per_core(),
        });
        if let Err(error) = region.register() {
            registry::cancel(slot);
            // SAFETY: nobody knows the region yet.
            unsafe { memory::release(base.wrapping_add(own), span - own) };
            return Err(region.io_error("register it with userfaultfd", error));
        }
        registry::publish(&region);
        region.cache.start_readers(opened.staging());
        live::note(&region.cache);
        Ok(region)
    }

    /// Has the engine serve the faults of a part of its reserved addresses, bytes from the start of the file, to which nobody
    /// has access. Traps come before access: a locked address space (mlockall(2)) would fill the range with zeros otherwise.
    fn serve_faults(&self, part: Range<usize>) -> io::Result<()> {
        // SAFETY: the range is this region's own, and nothing is there.
        unsafe {
            madvise::prepare_region(self.base.wrapping_add(part.start), part.len());
            let mut at = part.start;
            while at < part.end {
                let end = (self.stripe_end(at / PAGE) * PAGE).min(part.end);
                self.userfaultfd(at / PAGE).register(self.base.wrapping_add(at), end - at)?;
                at = end;
            }
        }
        Ok(())
    }

    fn register(&self) -> io::Result<()> {
        self.serve_faults(self.own..self.span)?;
        let (start, len) = (self.base.wrapping_add(self.own), self.span - self.own);
        // Before the first of them may come.
        self.frames.store((self.base as usize).is_multiple_of(FRAME_PAGES * PAGE), Ordering::Release);
        // SAFETY: the range is this region's own, not handed out yet.
        if self.is_by_address() { Ok(()) } else { unsafe { self.open_to_loads(start, len) } }
    }

    /// Lets a region's addresses, which nobody stores to, be loaded from. The kernel moves pages between writable mappings only; all
    /// pages are write-protected, and a store that traps is refused (`forbid_stores`). Where so much writable memory is not to be
    /// had, pages are copied.
    ///
    /// # Safety
    /// They are the region's own.
    pub unsafe fn open_to_loads(&self, start: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            memory::protect(start, len, true).or_else(|_| {
                self.forbid_frames();
                memory::protect(start, len, false)
            })
        }
    }

    /// Whether its maps say what may be done to its addresses.
    pub fn is_by_address(&self) -> bool {
        self.by_address.load(Ordering::Acquire)
    }

    /// Opens all of its addresses, for a map that is not known by its address.
    pub fn open(&self) -> Result<()> {
        if !self.by_address.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        for part in self.own_parts() {
            let start = self.base.wrapping_add(part.start);
            // SAFETY: the region's own.
            let opened = unsafe {
                if self.is_writable() {
                    memory::protect(start, part.len(), true)
                } else {
                    self.open_to_loads(start, part.len())
                }
            };
            opened.map_err(|source| self.io_error("open its map", source))?;
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
        self.forbid_frames();
        // Maps that are known by address stay read-only until they are said to be more: until now that was this region's doing.
        let (parts, is_open) = if self.is_by_address() {
            (self.extents.all().into_iter().map(|pages| pages.start * PAGE..pages.end * PAGE).collect(), false)
        } else {
            (self.own_parts(), true)
        };
        for part in parts {
            // SAFETY: pages resident so far were installed write-protected, so a store to them traps.
            unsafe { memory::protect(self.base.wrapping_add(part.start), part.len(), is_open) }
                .map_err(|source| self.io_error("make its map writable", source))?;
        }
        self.writable.store(true, Ordering::Release);
        self.cache.start_writers();
        Ok(())
    }

    /// Has no frames in it from now on; the caller holds no page.
    pub fn forbid_frames(&self) {
        self.frames.store(false, Ordering::SeqCst);
        while self.moving.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        // A range that is dropped at this moment has frames' entries in its hands.
        let _length = self.lock_length();
        evict::dissolve_frames(self);
    }

    /// Ends a region that no map refers to and whose pages are all clean. Its credits go back.
    pub fn dissolve(&self) {
        // Before the locks: it may be waiting for room.
        service::await_leaving(self.slot);
        self.see_visitors_off();
        let mut ended = self.cache.ended.lock();
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
            for part in self.own_parts() {
                // SAFETY: no map refers to the region, and no thread is in it any more.
                unsafe { memory::release(self.base.wrapping_add(part.start), part.len()) };
            }
            // All its resident pages are clean, and each has one entry, or its frame has; entries of others are void.
            let entries = self.cache.clean.purge(self.slot, 0..self.span / PAGE).into_iter();
            let is_here = |entry: &Entry| entry.is_frame() || self.word(entry.page()).look().state() == State::Clean;
            idle + entries.filter(is_here).map(Entry::pages).sum::<usize>()
        };
        Ended::keep(&mut ended, self);
        drop(ended);
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

    /// What happens to its pages, counted for each core.
    pub fn counters(&self) -> &[Padded<MapCounters>] {
        &self.counters
    }

    /// One core's part of that.
    #[inline]
    pub fn counters_at(&self, core: usize) -> &MapCounters {
        &self.counters[core].0
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

    /// Keeps the region from being dissolved until `leave`; false: that has begun. Unlike a thread in its slot, a visitor may
    /// wait for anything but a map of the file to go.
    pub fn visit(&self) -> bool {
        let welcome = self.visitors.fetch_add(1, Ordering::AcqRel) & LEAVING == 0;
        if !welcome {
            self.leave();
        }
        welcome
    }

    /// Lets no visitor in any more, and waits until all have left. The caller holds nothing: a visitor may want any lock.
    pub fn see_visitors_off(&self) {
        self.visitors.fetch_or(LEAVING, Ordering::AcqRel);
        while self.visitors.load(Ordering::Acquire) != LEAVING {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Lets visitors in again: the region stays after all.
    pub fn welcome_visitors(&self) {
        self.visitors.fetch_and(!LEAVING, Ordering::AcqRel);
    }

    /// Takes `visit` back.
    pub fn leave(&self) {
        self.visitors.fetch_sub(1, Ordering::AcqRel);
    }

    /// Held by system calls on the file that use a descriptor's position.
    pub fn position(&self) -> &Lock {
        &self.position
    }

    /// Changes of the file's length that are under way by system calls.
    pub fn resizes(&self) -> &Resizes {
        &self.resizes
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

    /// First address that is its own, and the one past the last.
    pub fn addresses(&self) -> (usize, usize) {
        (self.base as usize + self.own, self.base as usize + self.span)
    }

    /// Where the file's first page is, or would be.
    pub fn start(&self) -> *mut u8 {
        self.base
    }

    /// The addresses that are its own.
    pub fn own_addresses(&self) -> Vec<Range<usize>> {
        let base = self.base as usize;
        self.own_parts().into_iter().map(|part| base.wrapping_add(part.start)..base.wrapping_add(part.end)).collect()
    }

    /// The page at one of its addresses.
    #[inline]
    pub fn page_at(&self, address: usize) -> usize {
        (address - self.base as usize) / PAGE
    }

    /// Makes a part of its addresses, bytes from the start of the file, its own again, which has been mapped over; nothing of it
    /// is in memory, and whoever touches it misses.
    ///
    /// # Safety
    /// What is mapped there has no bytes that the file has not.
    pub unsafe fn take_back(&self, part: Range<usize>, prot: i32) -> io::Result<()> {
        let start = self.base.wrapping_add(part.start);
        // SAFETY: the caller's contract.
        unsafe {
            memory::reserve_at(start, part.len())?;
            self.serve_faults(part.clone())?;
            if libc::mprotect(start.cast(), part.len(), prot) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        }
    }

    /// Whether its maps are the kernel's now (`handover.rs`). Asked by a thread that has claimed a page, or found it absent:
    /// pairs with the release of the page after `note_handed_over`.
    #[inline]
    pub fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Whether it is to be handed over as soon as no page is pinned: whoever would pin some for longer lets that happen first.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Says so, or that it stays after all.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
    }

    /// Has its values stay for good: threads that trapped may still look at it when its maps are the kernel's, and nobody counts them.
    pub fn keep_for_good(self: &Arc<Self>) {
        self.stays.store(true, Ordering::Release);
        std::mem::forget(self.clone());
    }

    /// Closes the file of one that stays, when it has been dissolved: whoever still looks at it finds it handed over, and asks for
    /// nothing of the file but its name.
    pub fn close_file(&self) {
        if self.stays.load(Ordering::Acquire) {
            // SAFETY: it is never dropped, and nobody reads or writes the file through it any more.
            unsafe { self.store.close() };
        }
    }

    /// Notes that, by a thread that holds all pages that are mapped: these parts of its addresses, bytes from the start of the
    /// file.
    pub fn note_handed_over(&self, parts: impl Iterator<Item = Range<usize>>) {
        self.handed_over.store(true, Ordering::Release);
        self.lent.lock().unwrap_or_else(|poison| poison.into_inner()).extend(parts);
        registry::hide(self);
    }

    /// Notes that a part of its addresses, bytes from the start of the file, has been mapped over, or is about to be, and is not
    /// its own any more. Nothing of it is in memory, and the caller has its pages. False: there is no room for the note.
    pub fn lend(&self, part: Range<usize>) -> bool {
        let base = self.base as usize;
        let noted = registry::cut(self, base.wrapping_add(part.start)..base.wrapping_add(part.end));
        if noted {
            self.lent.lock().unwrap_or_else(|poison| poison.into_inner()).push(part);
        }
        noted
    }

    /// Whether part of a range of the file, bytes, has no address here.
    pub fn lacks(&self, range: &Range<usize>) -> bool {
        let lent = self.lent.lock().unwrap_or_else(|poison| poison.into_inner());
        range.start < self.own
            || range.end > self.span
            || lent.iter().any(|part| part.start < range.end && range.start < part.end)
    }

    /// The addresses that are its own, bytes from the start of the file.
    fn own_parts(&self) -> Vec<Range<usize>> {
        let mut lent = self.lent.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
        lent.sort_by_key(|part| part.start);
        let mut parts = Vec::new();
        let mut at = self.own;
        for part in lent.into_iter().chain(std::iter::once(self.span..self.span)) {
            if part.start > at {
                parts.push(at..part.start);
            }
            at = at.max(part.end);
        }
        parts
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
    #[inline]
    pub fn dirty(&self) -> DirtyPages<'_> {
        if self.cache.has(Mechanism::DirtyBitmap) {
            DirtyPages::InBitmap(&self.dirty)
        } else {
            DirtyPages::InWords(&self.words)
        }
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
        if let Some(contents) = &self.contents {
            return !contents.has(page);
        }
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
        self.is_writable()
            && self.cache.has(Mechanism::StoreHabits)
            && self.expects_store(page)
            && self.store.is_locked()
    }

    /// The smallest end of the region's maps, in whole pages: what lies before it, behind a page of some map, is inside that
    /// map.
    pub fn least_end(&self) -> &AtomicUsize {
        &self.least_end
    }

    /// What the file has of a scratch region: memory that is never saved but for want of room.
    #[inline]
    pub fn scratch(&self) -> Option<&Contents> {
        self.contents.as_ref()
    }

    /// Whether the file has what an absent page holds. A hole counts as such, unless it is a scratch region's.
    #[inline]
    pub fn is_in_file(&self, page: usize) -> bool {
        self.contents.as_ref().is_none_or(|contents| contents.has(page))
    }

    /// Has stores to absent pages go on without the read, as wished, if that is possible here.
    pub fn go_on_behind(&self, wish: Wish) -> Result<()> {
        if wish == Wish::default() {
            return Ok(());
        }
        if !descriptor_table::is_engines() {
            // The merger would have this thread's.
            return Err(files::in_another_table(self.store.path()));
        }
        self.cache.start_merger();
        if self.behind.get().is_none() {
            let behind = Behind::new(self.span / PAGE)
                .map_err(|source| self.io_error("map memory for its page words", source))?;
            let _ = self.behind.set(behind);
        }
        match self.behind().map_or(Ok(true), |behind| behind.grant(wish)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::InitialValue { path: self.store.path().to_owned() }),
            Err(source) => Err(self.io_error("map memory for its initial value", source)),
        }
    }

    /// Where stores to absent pages need not wait: what it takes.
    #[inline]
    pub fn behind(&self) -> Option<&Behind> {
        self.behind.get()
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
        let stripe = page * PAGE / self.stripe_bytes + 1;
        if stripe >= self.stripes { self.span / PAGE } else { (stripe * self.stripe_bytes).min(self.span) / PAGE }
    }

    /// True the first time something has to be said about this region's file.
    pub fn complain(&self) -> bool {
        !self.complained.swap(true, Ordering::AcqRel)
    }

    /// The userfaultfd that serves a page.
    #[inline]
    pub fn userfaultfd(&self, page: usize) -> &'static Userfaultfd {
        let stripe = (page * PAGE / self.stripe_bytes).min(self.stripes - 1);
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
