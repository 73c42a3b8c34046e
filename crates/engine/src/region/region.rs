//! A region: one mapped file, its address range, and the state of each of its pages. All maps of a file share one.

use crate::counters::per_map::MapCounters;
use crate::error::{Error, Result};
use crate::mechanism::Mechanism;
use crate::page::dirty::DirtyBitmap;
use crate::page::entry::{MOST_REGIONS, RegionId};
use crate::page::word::PageWord;
use crate::pool::attachment::Attachment;
use crate::pool::pool::Pool;
use crate::region::address::{Address, Place, STRIPE_BYTES};
use crate::region::extents::Extents;
use crate::region::frames::Frames;
use crate::region::hints::Hints;
use crate::region::holes::Holes;
use crate::region::in_flight::InFlight;
use crate::region::page_ref::PageRef;
use crate::region::prediction::Predictions;
use crate::region::reach::Reach;
use crate::region::registry;
use crate::region::saved::SavedPages;
use crate::region::space::Space;
use crate::region::store_groups::StoreGroups;
use crate::region::userfaultfds::Userfaultfds;
use crate::region::write_state::WriteState;
use crate::store::Store;
use crate::sys::memory::Zeroed;
use crate::sys::sync::Padded;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, fork, madvise, memory};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Whether the page words of a file of `size` bytes would take more than a sixteenth of a cache of `capacity` pages, were all of them
/// touched. Then most words are for pages that are not in memory.
pub fn is_sparse(size: u64, capacity: usize) -> bool {
    const PART: u64 = 16;
    size / PAGE as u64 * size_of::<PageWord>() as u64 > capacity as u64 * PAGE as u64 / PART
}

/// One mapped file. All maps of a file share one.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    serial: u64,
    pool: Arc<Pool>,
    store: Arc<dyn Store>,
    address: Address,
    words: Zeroed<PageWord>,
    writes: WriteState,
    predictions: Predictions,
    store_groups: StoreGroups,
    hints: Hints,
    frames: Frames,
    in_flight: InFlight,
    /// The message about a touch of a page past the end of the file has been printed.
    said_past_end: AtomicBool,
    /// The message about a page that cannot be served has been printed.
    said_failure: AtomicBool,
    reach: Reach,
    least_end: AtomicUsize,
    extents: Extents,
    holes: Holes,
    space: Space,
    /// Of a scratch region: which pages its file has.
    saved: Option<SavedPages>,
    /// A value of `deferred/`, for files where stores to absent pages need not wait.
    deferred: Attachment,
    writable: AtomicBool,
    /// All its maps were made by address (`by_address/`): each map says which of its addresses are accessible, and addresses that no map
    /// covers are not.
    by_address: AtomicBool,
    converted: AtomicBool,
    /// Parts of its addresses are foreign.
    cut: AtomicBool,
    /// It is never dropped.
    stays: AtomicBool,
    /// Its maps are to become kernel mappings: no thread pins pages for long.
    leaving: AtomicBool,
    growing: Mutex<()>,
    length: Mutex<u64>,
    left_behind: AtomicU64,
    counters: Box<[Padded<MapCounters>]>,
}

impl Region {
    /// Makes a region over a file, with room for at least `need` bytes of it. Its addresses are inaccessible and not registered with a
    /// userfaultfd yet. `scratch`: see `saved.rs`. `by_address`: see [`Region::is_by_address`].
    pub fn new(
        pool: Arc<Pool>,
        store: Arc<dyn Store>,
        need: usize,
        place: Place,
        scratch: bool,
        by_address: bool,
        opened: &'static Userfaultfds,
    ) -> Result<Self> {
        let fail = |operation| {
            let path = store.path().to_owned();
            move |source| Error::Io { path: path.clone(), operation, source }
        };
        // Address space for the file to double: what is not touched costs nothing.
        const MOST: usize = 1 << 46;
        let least = need.max(store.size() as usize);
        let doubled = least.saturating_mul(2).min(MOST).max(least).checked_next_multiple_of(STRIPE_BYTES);
        let doubled = doubled.filter(|span| *span <= MOST).ok_or_else(|| Error::LengthOverflow {
            path: store.path().to_owned(),
            offset: 0,
            len: least as u64,
        })?;
        let span = match place {
            Place::Room(room) => doubled.max(room.min(MOST).next_multiple_of(STRIPE_BYTES)),
            Place::Fixed { room, .. } => doubled.max(room.min(MOST)),
        };
        let pages = span / PAGE;
        fork::claim().map_err(fail("map a word that children do not inherit (madvise)"))?;
        let bookkeeping = fail("map memory for its page words");
        // No huge pages for bookkeeping of which little is ever touched (`evict/bookkeeping.rs`).
        let likely = if is_sparse(least as u64, pool.capacity()) { 0 } else { doubled / PAGE };
        let words = Zeroed::sparse(pages, likely).map_err(&bookkeeping)?;
        let writes = WriteState::new(pages, likely).map_err(&bookkeeping)?;
        let predictions = Predictions::new(pages).map_err(&bookkeeping)?;
        let store_groups = StoreGroups::new(pages, likely).map_err(&bookkeeping)?;
        let holes = Holes::new(pages, likely).map_err(&bookkeeping)?;
        let space = Space::new(pages, likely).map_err(&bookkeeping)?;
        let saved = scratch.then(|| SavedPages::new(pages)).transpose().map_err(&bookkeeping)?;
        let hints = Hints::new(pages).map_err(&bookkeeping)?;
        let id = registry::reserve().ok_or_else(|| {
            let full = format!("{MOST_REGIONS} files are mapped already: drop some maps");
            fail("map it")(io::Error::other(full))
        })?;
        let (need, striped) = (need.next_multiple_of(PAGE), pool.has(Mechanism::Stripes));
        let address = Address::reserve(place, need, span, doubled, striped, opened, id.0 as usize)
            .inspect_err(|_| registry::cancel(id))
            .map_err(fail("reserve address space for it"))?;
        Ok(Region {
            id,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            length: Mutex::new(store.size()),
            pool,
            store,
            address,
            words,
            writes,
            predictions,
            store_groups,
            hints,
            frames: Frames::default(),
            in_flight: InFlight::new(),
            said_past_end: AtomicBool::new(false),
            said_failure: AtomicBool::new(false),
            reach: Reach::default(),
            least_end: AtomicUsize::new(usize::MAX),
            extents: Extents::default(),
            holes,
            space,
            saved,
            deferred: Attachment::default(),
            writable: AtomicBool::new(false),
            by_address: AtomicBool::new(by_address),
            converted: AtomicBool::new(false),
            // A region at a fixed place has foreign parts from the start.
            cut: AtomicBool::new(matches!(place, Place::Fixed { .. })),
            stays: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            growing: Mutex::new(()),
            left_behind: AtomicU64::new(u64::MAX),
            counters: MapCounters::per_core(),
        })
    }

    /// Whether all its maps were made by address (`by_address/`): then each map says which of its addresses are accessible.
    pub fn is_by_address(&self) -> bool {
        self.by_address.load(Ordering::Acquire)
    }

    /// Its number. Another region may have had it before, and may have it after.
    #[inline]
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Its serial number. No two regions of the process ever have the same.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Where it lies.
    #[inline]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How far into the file its pages were ever claimed.
    #[inline]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The writers' state for it.
    #[inline]
    pub fn writes(&self) -> &WriteState {
        &self.writes
    }

    /// The dirty pages.
    #[inline]
    pub fn dirty(&self) -> &DirtyBitmap<Zeroed<crate::sys::sync::AtomicU64>> {
        self.writes.dirty()
    }

    /// The user's expectations of its pages.
    #[inline]
    pub fn hints(&self) -> &Hints {
        &self.hints
    }

    /// Predictions of stores to its pages.
    #[inline]
    pub fn predictions(&self) -> &Predictions {
        &self.predictions
    }

    /// Huge frames in it.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// System calls on its file that are under way.
    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// The value of `deferred/`.
    #[inline]
    pub fn deferred(&self) -> &Attachment {
        &self.deferred
    }

    /// Held by a thread that makes the region writable.
    pub fn lock_growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// True the first time that a page past the end of the file is touched. A message is printed then, only once.
    #[cold]
    pub fn is_first_past_end(&self) -> bool {
        !self.said_past_end.swap(true, Ordering::Relaxed)
    }

    /// True the first time that a page cannot be served. A message is printed then, only once: where a device fails, all pages may.
    #[cold]
    pub fn is_first_failure(&self) -> bool {
        !self.said_failure.swap(true, Ordering::Relaxed)
    }

    /// Lets stores through from now on.
    pub fn set_writable(&self) {
        self.writable.store(true, Ordering::Release);
    }

    /// Notes that it has a map that was not made by address: from now on all of its addresses are accessible. False: they were before.
    pub fn leave_by_address(&self) -> bool {
        self.by_address.swap(false, Ordering::AcqRel)
    }

    /// Bytes of address range it has.
    #[inline]
    pub fn span(&self) -> usize {
        self.address.span()
    }

    /// Where a page lies in memory.
    #[inline]
    pub fn address_of(&self, page: usize) -> *mut u8 {
        self.address.address_of(page)
    }

    /// The userfaultfd that serves a page.
    #[inline]
    pub fn userfaultfd(&self, page: usize) -> &'static Userfaultfd {
        self.address.userfaultfd(page)
    }

    /// The cache that holds its pages.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Counters of what happens to its pages, for each core.
    pub fn counters(&self) -> &[Padded<MapCounters>] {
        &self.counters
    }

    /// One core's counters.
    #[inline]
    pub fn counters_at(&self, core: usize) -> &MapCounters {
        &self.counters[core].0
    }

    /// The file.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The file's length in bytes, as it was last met (`files/length.rs` `follow`). The lock is held while this is brought up to date or
    /// changed. A thread that also locks the table of files locks that first.
    pub fn lock_length(&self) -> MutexGuard<'_, u64> {
        self.length.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The shortest length of the file, bytes, at which pages past the end had to stay in memory because they were pinned; `u64::MAX`:
    /// none. Only the thread that holds the length uses this.
    pub fn left_behind(&self) -> &AtomicU64 {
        &self.left_behind
    }

    /// Whether its maps are kernel mappings now (`coherence/to_kernel.rs`). A thread asks this after it has claimed a page, or found it
    /// absent. Acquire pairs with the release of the page after `note_converted`.
    #[inline]
    pub fn is_converted(&self) -> bool {
        self.converted.load(Ordering::Acquire)
    }

    /// Whether some of its addresses are foreign, or were (`registry::has`).
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Whether the addresses of some pages are the region's own, and no address of the region ever was foreign. If the caller has claimed
    /// these pages, the answer holds until it lets them go.
    pub fn owns(&self, pages: &Range<usize>) -> bool {
        !self.is_converted() && !self.is_cut() && pages.end * PAGE <= self.span()
    }

    /// Gives the memory of some pages' words back to the kernel: the words are zero then. False: the kernel refused, and they are
    /// unchanged.
    ///
    /// # Safety
    /// The words fill whole pages of memory, and the caller has claimed all of them: no other thread changes one or sleeps on it.
    pub unsafe fn drop_words(&self, pages: &Range<usize>) -> bool {
        let words = &self.words[pages.clone()];
        let range = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: size_of_val(words) };
        // SAFETY: the caller's contract.
        unsafe { madvise::drop_pages(&[range]) }
    }

    /// Whether its maps are to become kernel mappings as soon as no page is pinned. A thread that wants to pin pages for long waits for
    /// that first.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Sets that, or takes it back.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
    }

    /// Keeps the values of a region that has ended for ever, for visitors that stay. Its page words take no memory: all are Absent.
    pub fn keep_for_good(self: &Arc<Self>) {
        self.stays.store(true, Ordering::Release);
        self.words.clear();
        std::mem::forget(self.clone());
    }

    /// Closes the file of a region that is kept for ever, once the region has been dissolved. A thread that still looks at the region finds
    /// it converted, and asks for nothing of the file but its name.
    pub fn close_file(&self) {
        if self.stays.load(Ordering::Acquire) {
            // SAFETY: it is never dropped, and nobody reads or writes the file through it any more.
            unsafe { self.store.close() };
        }
    }

    /// Notes that its maps are kernel mappings now. `parts` of its addresses, bytes from the start of the file, are foreign from now on.
    /// The caller holds all pages that are mapped.
    pub fn note_converted(&self, parts: impl Iterator<Item = Range<usize>>) {
        self.converted.store(true, Ordering::Release);
        self.address.add_foreign(parts);
        registry::hide(self);
    }

    /// Notes that a part of its addresses, bytes from the start of the file, is foreign from now on: other memory has been mapped there, or
    /// is about to be. No page of it is in memory, and the caller has claimed its pages. False: there is no room for the note.
    pub fn make_foreign(&self, part: Range<usize>) -> bool {
        let base = self.address.start() as usize;
        let noted = registry::cut(self, base.wrapping_add(part.start)..base.wrapping_add(part.end));
        if noted {
            self.cut.store(true, Ordering::Release);
            self.address.add_foreign(std::iter::once(part));
        }
        noted
    }

    /// Makes the foreign parts of a range, bytes from the start of the file, the region's own: a map is about to be made there. False:
    /// there is no room for the note, or no memory; parts that have become its own by then stay so.
    ///
    /// # Safety
    /// Nobody needs what is at these addresses any more.
    pub unsafe fn make_own(&self, range: &Range<usize>) -> bool {
        let base = self.address.start() as usize;
        self.address.foreign_in(range).into_iter().all(|part| {
            let at = base.wrapping_add(part.start)..base.wrapping_add(part.end);
            // SAFETY: the caller's contract.
            registry::join(self, at.clone())
                && unsafe {
                    let taken = self.address.take_back(part, libc::PROT_NONE).is_ok();
                    taken || !registry::cut(self, at)
                }
        })
    }

    /// Protects a page of a read-only map after a store to it has trapped: when the store is repeated it raises SIGSEGV, as with mmap(2).
    /// False: the kernel refuses. Called by fault handlers.
    #[cold]
    pub fn forbid_stores(&self, page: usize) -> bool {
        // SAFETY: a page of this region; nobody may store to it.
        self.is_writable() || unsafe { memory::protect(self.address_of(page), PAGE, false) }.is_ok()
    }

    /// Whether stores are let through.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether the region's memory exists in this process. A child made by fork(2) has the values but not the memory, and must not touch
    /// it. Makes no system call.
    #[inline]
    pub fn is_ours(&self) -> bool {
        !fork::is_child()
    }

    /// One of its pages.
    #[inline]
    pub fn page(&self, number: usize) -> PageRef<'_> {
        PageRef::new(self, number)
    }

    /// A page's word.
    #[inline]
    pub fn word(&self, page: usize) -> &PageWord {
        &self.words[page]
    }

    /// Whether a page that this thread is loading lies in a hole of the file, and so is zeros. Called by fault handlers.
    #[inline]
    pub fn take_hole(&self, page: usize) -> bool {
        if let Some(saved) = &self.saved {
            return !saved.has(page);
        }
        if !self.store.is_locked() {
            // Other processes may write there, now or after this.
            self.holes.spoil(page);
            return false;
        }
        self.holes.take(page, &*self.store)
    }

    /// Groups of pages that are stored to together.
    #[inline]
    pub fn store_groups(&self) -> &StoreGroups {
        &self.store_groups
    }

    /// The pages that should become writable together with a clean page that is stored to: a bit for each of the 64 pages among which it
    /// lies. None where another process may write the file, because a page that becomes writable is written back.
    #[inline]
    pub fn companions(&self, page: usize) -> u64 {
        let guesses = self.pool.has(Mechanism::StorePrediction) && self.store.is_locked();
        if guesses { self.store_groups.companions(page) } else { 0 }
    }

    /// Whether a page that is read should be installed writable: pages around it are usually stored to soon after they are read. False
    /// where another process may write the file, because a page installed writable is written back with the bytes that were read.
    #[inline]
    pub fn predicts_store(&self, page: usize) -> bool {
        self.is_writable()
            && self.pool.has(Mechanism::StorePrediction)
            && self.predictions.expects_store(page)
            && self.store.is_locked()
    }

    /// The smallest end of the region's maps, in whole pages. From a page of any map up to this end, all pages lie inside that map.
    pub fn least_end(&self) -> &AtomicUsize {
        &self.least_end
    }

    /// Of a scratch region, the pages that its file has. A scratch region is memory that is written to its file only to make room, or for a
    /// snapshot. `None`: the region is none.
    #[inline]
    pub fn scratch(&self) -> Option<&SavedPages> {
        self.saved.as_ref()
    }

    /// Whether the file has the bytes of an absent page. In a scratch region that is so only for pages that were written to the file. In
    /// others it is always so, also in a hole.
    #[inline]
    pub fn is_in_file(&self, page: usize) -> bool {
        self.saved.as_ref().is_none_or(|saved| saved.has(page))
    }

    /// The file's holes, as far as they are known.
    pub fn holes(&self) -> &Holes {
        &self.holes
    }

    /// The pages of the file that are known to have blocks on the disk.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Whether a page may become writable: it is known to have blocks on the disk, or needs none.
    #[inline]
    pub fn has_space(&self, page: usize) -> bool {
        self.space.has(page) || self.saved.is_some()
    }

    /// Allocates blocks on the disk for a page that has none, unless it lies past the file's end. Fails with an error number where the disk
    /// is full, and with ESTALE where the region has ended and has no file any more.
    #[inline]
    pub fn take_space(&self, page: usize) -> std::result::Result<(), i32> {
        if self.has_space(page) { Ok(()) } else { self.reserve_space(page, None) }
    }

    /// Does the same for a page that the caller has claimed, on file systems without fallocate(2), too: `take_space` allocates nothing there.
    #[inline]
    pub fn take_space_of_claimed(&self, page: usize) -> std::result::Result<(), i32> {
        if self.has_space(page) { Ok(()) } else { self.reserve_space(page, Some(self.pool.zeros())) }
    }

    #[cold]
    fn reserve_space(&self, page: usize, zeros: Option<*const u8>) -> std::result::Result<(), i32> {
        // The caller has trapped and may hold no page yet that would keep the region.
        let _entered = registry::enter(self.id()).filter(|region| ptr::eq(&**region, self)).ok_or(libc::ESTALE)?;
        self.space.reserve(page, &*self.store, zeros)
    }

    /// Forgets what is known of the file from a page on: it was cut there, or others may have changed it.
    pub fn distrust(&self, page: usize) {
        self.holes.distrust(page);
        self.space.forget(page..usize::MAX);
    }

    /// Forgets what is known of pages that a system call writes to, or punches out.
    pub fn forget_file(&self, pages: Range<usize>) {
        self.holes.forget(pages.clone());
        self.space.forget(pages);
    }

    /// The parts of the file that are mapped.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// The pages that may be read ahead around a page: those that are mapped, up to the last whole page of the file.
    pub fn ahead_of(&self, page: usize) -> Range<usize> {
        let end = (self.store.size() as usize / PAGE).min(self.span() / PAGE);
        let Range { start, end: of_maps } = self.extents.around(page);
        start..of_maps.min(end).max(start)
    }

    /// The descriptors that the keeper needs: those of the file and of the userfaultfds. If the last userfaultfd were closed, absent pages
    /// would read as zeros, and these would be written.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.store.descriptors().into_iter().flatten().chain(self.address.descriptors())
    }

    /// An error of a system call on this region's file.
    pub fn io_error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.store.path().to_owned(), operation, source }
    }
}
