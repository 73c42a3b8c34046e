//! Readers, which read pages ahead of the program. A reader is no thread: the thread that has its turn does the work.
//!
//! A reader has a context for reads (`sys/aio.rs`) and the state of what it reads ([`Reading`]). Only one thread at a time may use these: the
//! one that has the reader's turn (`turn.rs`). Of `n` readers, reader `r` serves the streams whose number modulo `n` is `r`. It also serves
//! requests to prefetch.
//!
//! A thread that traps notes what there is to do (`pending`), takes the turn, and submits the reads itself. It does not wait for the device. A
//! thread that needs a page which a reader is reading takes the turn, and waits for the page in the kernel.
//!
//! Each reader also has a thread of its own. Where a read ends inside the call that asks for it ([`Reader::reads_inline`]), this thread does
//! the reads, so that the program can go on meanwhile. It also does what other threads leave to it ([`Reader::needs_thread`]).

use crate::page::entry::{RegionId, RegionUse};
use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::pool::staging::{Chunk, SlotNumber};
use crate::pool::streams::{STREAMS, Start};
use crate::pool::turn::{Futex, Turn};
use crate::sys::PAGE;
use crate::sys::aio::{self, Aio};
use crate::sys::lock::Lock;
use crate::sys::madvise;
use crate::sys::memory::Zeroed;
use crate::sys::preads::{self, Asked, Preads};
use crate::sys::signal::Blocked;
use crate::sys::uring::Bell;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Transfers under way in one reader, at most. A transfer brings a chunk or a piece ([`Destination`]).
pub const TRANSFERS: usize = 128;
/// Pages of a piece, at most. A piece is a run of neighbouring pages, read with one request and mapped once it has been read.
pub const PIECE_PAGES: usize = 4;
/// Pages of a large piece, at most: where reads take long and memory is free.
pub const LARGE_PIECE_PAGES: usize = 32;
/// The value of [`Reading::inline_calls`] at which the reader's thread does the reads. Below it, threads that trap do them.
pub const INLINE: i32 = 4;
/// Requests in a reader's queue, at most.
const REQUESTS: usize = 4096;

/// A request to a reader.
#[derive(Debug, Clone)]
pub enum ReadRequest {
    /// Pages that the program prefetches, or that lie behind one that it missed.
    Pages(Pages),
    /// Pages of a file that fits into the cache. They are read only while enough of the cache is free.
    Fill(Pages),
    /// A chunk, to be read into a slot. Its pages are claimed, the slot is taken, and the region stays until the chunk has been read.
    Chunk(RegionUse, SlotNumber, Chunk),
}

/// Neighbouring pages that a reader is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub region: RegionId,
    pub first: usize,
    pub count: usize,
}

/// A chunk or a piece that is being read.
#[derive(Debug)]
pub struct Transfer {
    /// Keeps the region until the transfer has ended.
    pub held: RegionUse,
    pub destination: Destination,
    /// Its number in the order in which transfers began.
    pub order: u64,
    /// Pages of each request. The last request may have fewer.
    pub each: usize,
    /// Requests that have not ended.
    pub left: usize,
    /// Bytes that have been read. With a single request they are the first bytes of the transfer.
    pub filled: usize,
}

impl Transfer {
    /// Whether a page of its region is among those that it brings.
    pub fn has(&self, page: usize) -> bool {
        match self.destination {
            Destination::Chunk(_, chunk) => chunk.pages().any(|one| one == page),
            Destination::Piece { first, count, .. } => (first..first + count).contains(&page),
        }
    }
}

/// Where a transfer's pages go.
#[derive(Debug, Clone, Copy)]
pub enum Destination {
    /// Into a slot; the pages become Staged.
    Chunk(SlotNumber, Chunk),
    /// Into the transfer's own buffer; the pages, which are neighbours, are mapped once they have been read. `protected_queue` has a bit for
    /// each page that goes into the protected queue. `is_awaited`: the program asked for the pages; else their file is read whole.
    Piece { first: usize, count: usize, protected_queue: u64, is_awaited: bool },
}

/// How far a reader has come with a stream.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub start: Start,
    /// The next page to read; negative, or past the end, when there is none.
    pub next: isize,
    /// The end of the furthest chunk. The reader passes over pages that are in memory. If such a page is evicted before the program comes to
    /// it, the miss sets `next` back; `reached` stays.
    pub reached: isize,
    pub window: usize,
    /// Pages read or being read, and neither mapped nor dropped.
    pub outstanding: usize,
    /// The last chunk was a whole frame.
    pub in_frames: bool,
    pub live: bool,
    /// The value of `Ahead::clock` when the stream last found no slot; `None`: its last attempt found one.
    pub starved: Option<usize>,
}

/// The part of a reader that only the thread with the turn may use.
#[derive(Debug)]
pub struct Reading {
    /// `None`: threads do all reads (`asked`), or, while there are none, the thread that has the turn does them with pread(2).
    pub aio: Option<Aio>,
    /// Reads that threads do (`sys/preads.rs`).
    pub asked: Asked,
    pub positions: Box<[Position]>,
    pub transfers: Box<[Option<Transfer>]>,
    /// A small buffer for each transfer.
    pieces: Zeroed<[u8; PAGE]>,
    /// A large buffer for each transfer, for large pieces.
    large_pieces: Zeroed<[u8; PAGE]>,
    /// Large pieces under way.
    large: usize,
    /// A bit for each transfer whose large buffer has memory. The reader holds free frames for this memory.
    large_held: u128,
    /// Transfers begun so far.
    begun: u64,
    /// Tells whether reads end in the call that asks for them. A submission whose reads have ended in the call adds 1, up to [`INLINE`]; any
    /// other takes 2 off, down to 0.
    pub inline_calls: i32,
}

impl Reading {
    fn new(aio: Option<Aio>, asked: Asked) -> io::Result<Self> {
        let start = Start { region: RegionId(0), next: 0, step: 1, window: 0, tag: u64::MAX };
        let idle = Position {
            start,
            next: -1,
            reached: -1,
            window: 0,
            outstanding: 0,
            in_frames: false,
            live: false,
            starved: None,
        };
        Ok(Reading {
            positions: vec![idle; STREAMS].into(),
            transfers: (0..TRANSFERS).map(|_| None).collect(),
            // Without huge pages, so that a buffer takes memory only once it is used: the small ones' is not in the cache's budget.
            pieces: Zeroed::sparse(TRANSFERS * PIECE_PAGES, 0)?,
            large_pieces: Zeroed::sparse(TRANSFERS * LARGE_PIECE_PAGES, 0)?,
            large: 0,
            large_held: 0,
            begun: 0,
            inline_calls: 0,
            aio,
            asked,
        })
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.aio.as_ref().map_or(0, Aio::in_flight) + self.asked.in_flight()
    }

    /// A request that has ended: its tag, and the count of bytes or a negative error number.
    pub fn next_done(&mut self) -> Option<(u64, i32)> {
        self.aio.as_mut().and_then(Aio::next_done).or_else(|| self.asked.next_done())
    }

    /// Waits until so many requests have ended, or all, if fewer are under way. It may return earlier.
    pub fn wait(&mut self, wanted: usize) {
        /// The longest wait while both the kernel and threads have requests: a wait for the threads does not notice that the kernel's end.
        const BOTH: Duration = Duration::from_micros(200);
        let others = self.asked.in_flight();
        match &mut self.aio {
            Some(aio) if others == 0 => aio.wait(wanted),
            Some(aio) if aio.in_flight() > 0 => {
                aio.submit();
                self.asked.wait(1, Some(BOTH));
            }
            // It returns while as many requests are left as there are threads, so that no thread is without one for long.
            _ => self.asked.wait(wanted.min(others.saturating_sub(self.asked.preads.threads())), None),
        }
    }

    /// A free place for a transfer of so many requests, if there is room for it.
    pub fn room_for(&self, requests: usize) -> Option<usize> {
        let fits = self.in_flight() + requests <= aio::DEPTH.min(preads::DEPTH);
        self.transfers.iter().position(Option::is_none).filter(|_| fits)
    }

    /// The buffer for a transfer's piece of so many pages.
    pub fn piece_memory(&self, transfer: usize, pages: usize) -> *mut u8 {
        if pages > PIECE_PAGES {
            return self.large_pieces.as_mut_ptr().wrapping_add(transfer * LARGE_PIECE_PAGES).cast();
        }
        self.pieces.as_mut_ptr().wrapping_add(transfer * PIECE_PAGES).cast()
    }

    /// A free place for a large piece, if there is room for it: one whose large buffer has memory, if possible. At most `most` large buffers
    /// have memory, idle ones included.
    pub fn room_for_large(&self, most: usize) -> Option<usize> {
        self.room_for(1)?;
        let is_free = |place: &usize| self.transfers[*place].is_none();
        let has_buffer = |place: &usize| self.frames_for_large(*place) == 0;
        let with_buffer = (0..TRANSFERS).filter(has_buffer).find(is_free);
        let is_room = (self.large_held.count_ones() as usize) < most;
        with_buffer.or_else(|| (0..TRANSFERS).find(is_free).filter(|_| is_room))
    }

    /// Free frames that have to be taken for a transfer's large buffer. None if it has memory.
    pub fn frames_for_large(&self, transfer: usize) -> usize {
        if self.large_held >> transfer & 1 == 0 { LARGE_PIECE_PAGES } else { 0 }
    }
}

/// One reader.
#[derive(Debug)]
pub struct Reader {
    turn: Turn,
    reading: UnsafeCell<Reading>,
    pub number: usize,
    /// A bit for each stream that is to be read on.
    pub pending: AtomicU64,
    lock: Lock,
    requests: UnsafeCell<VecDeque<ReadRequest>>,
    /// The number of `requests`.
    queued: AtomicUsize,
    /// Transfers under way.
    open: AtomicUsize,
    /// Large pieces are among them. The reader's thread waits for these, and maps them.
    has_large: AtomicBool,
    /// Reads end in the call that asks for them. The reader's thread does them then.
    pub reads_inline: AtomicBool,
    /// The reader's thread is to look at what there is to do.
    called: AtomicBool,
    /// The reader's thread sleeps, or is about to. `bell` wakes it.
    asleep: AtomicBool,
    bell: Bell,
}

// SAFETY: only the thread that has the turn reaches `reading`; `requests` is reached under the lock; the rest is atomics.
unsafe impl Sync for Reader {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Reader {}

const _: () = assert!(STREAMS == u64::BITS as usize && TRANSFERS == u128::BITS as usize);

impl Reader {
    /// A reader that has nothing to do.
    pub fn new(number: usize, aio: Option<Aio>, preads: &Arc<Preads>) -> io::Result<Self> {
        Ok(Reader {
            turn: Turn::new(Futex),
            reads_inline: AtomicBool::new(false),
            reading: UnsafeCell::new(Reading::new(aio, Asked::of(preads))?),
            number,
            pending: AtomicU64::new(0),
            lock: Lock::new(),
            requests: UnsafeCell::new(VecDeque::with_capacity(REQUESTS)),
            queued: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            has_large: AtomicBool::new(false),
            called: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bell: Bell::default(),
        })
    }

    /// Takes the turn if it is free. The caller has blocked signals.
    pub fn take_turn<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> Option<OnTurn<'a>> {
        self.turn.take().then(|| self.on_turn(ahead, pool))
    }

    /// Takes the turn if it is free. Otherwise the thread that has it will look once more at what there is to do. The caller has blocked
    /// signals.
    pub fn take_turn_or_call<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> Option<OnTurn<'a>> {
        self.turn.take_or_call().then(|| self.on_turn(ahead, pool))
    }

    fn on_turn<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> OnTurn<'a> {
        // SAFETY: it is this thread's turn.
        OnTurn { ahead, pool, reader: self, reading: unsafe { &mut *self.reading.get() }, waits: false }
    }

    /// Sleeps until the turn is free or something has arrived. It may return earlier, and does not sleep if `is_over`.
    pub fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        self.turn.sleep_unless(is_over);
    }

    /// Whether streams are to be read on, or requests wait.
    pub fn has_work(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0 || self.queued.load(Ordering::SeqCst) > 0
    }

    /// Whether the reader's thread has something to do:
    ///
    /// * It was called.
    /// * Large pieces are under way.
    /// * The reader has work, and reads end in the call that asks for them.
    ///
    /// All other work is left to the threads that need it.
    pub fn needs_thread(&self) -> bool {
        let is_inline = || self.reads_inline.load(Ordering::Relaxed) && self.has_work();
        self.called.load(Ordering::SeqCst) || self.has_large.load(Ordering::SeqCst) || is_inline()
    }

    /// Whether transfers are under way.
    pub fn is_under_way(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// Whether it has work, or transfers are under way.
    pub fn is_at_work(&self) -> bool {
        self.has_work() || self.is_under_way()
    }

    /// Puts requests into the queue: at the front if `first`, else at the end. False: there is no room. The caller has blocked signals.
    pub fn ask(&self, requests: &mut dyn ExactSizeIterator<Item = ReadRequest>, first: bool) -> bool {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        let queue = unsafe { &mut *self.requests.get() };
        // The queue never grows. Growing would call the allocator under the lock, and a thread that waits for the lock may have interrupted
        // the allocator.
        if queue.len() + requests.len() > REQUESTS {
            return false;
        }
        requests.for_each(|request| if first { queue.push_front(request) } else { queue.push_back(request) });
        self.queued.store(queue.len(), Ordering::SeqCst);
        true
    }

    /// Takes the next request out of the queue. The caller has blocked signals.
    pub fn next_request(&self) -> Option<ReadRequest> {
        if self.queued.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        let queue = unsafe { &mut *self.requests.get() };
        let request = queue.pop_front();
        self.queued.store(queue.len(), Ordering::SeqCst);
        request
    }

    /// Closes the context for reads, which takes the kernel about ten milliseconds. When this is called nothing is under way, and nothing will
    /// be asked for any more.
    pub fn close(&self) {
        let _blocked = Blocked::all();
        while !self.turn.take() {
            std::thread::yield_now();
        }
        // SAFETY: it is this thread's turn.
        drop(unsafe { (*self.reading.get()).aio.take() });
        while !self.turn.let_go() {}
    }

    /// Whether the reader's thread sleeps, and so could begin with something at once.
    pub fn is_idle(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes the reader's thread. SeqCst pairs with `rest`: either this call sees the thread asleep, or the thread sees that it was called.
    pub fn wake(&self) {
        self.called.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Notes that the reader's thread looks at what there is to do.
    pub fn note_looked(&self) {
        self.called.store(false, Ordering::SeqCst);
    }

    /// Called by the reader's thread: sleeps until it is woken. Does not sleep if there is something to do, or if `is_wanted`.
    pub fn rest(&self, is_wanted: impl FnOnce() -> bool) {
        // Read before `asleep` is set, so that no ring of the bell after that is missed.
        let rung = self.bell.rung();
        self.asleep.store(true, Ordering::SeqCst);
        if !self.needs_thread() && !is_wanted() {
            self.bell.wait(rung, None);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// A reader's turn, which this thread has taken.
pub struct OnTurn<'a> {
    pub ahead: &'a Ahead,
    pub pool: &'a Pool,
    pub reader: &'a Reader,
    pub reading: &'a mut Reading,
    /// This thread may wait for bytes that have to be fetched from elsewhere (the store's origin).
    pub waits: bool,
}

impl OnTurn<'_> {
    /// Notes that a transfer begins, of so many requests of so many pages each.
    pub fn begin(&mut self, place: usize, held: RegionUse, destination: Destination, each: usize, requests: usize) {
        self.reading.begun += 1;
        let transfer = Transfer { held, destination, order: self.reading.begun, each, left: requests, filled: 0 };
        self.reading.transfers[place] = Some(transfer);
        self.reader.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a large piece begins. The caller has taken the free frames that its buffer needs.
    pub fn note_large_begun(&mut self, place: usize) {
        self.reading.large += 1;
        self.reading.large_held |= 1 << place;
        self.reader.has_large.store(true, Ordering::SeqCst);
        self.reader.wake();
    }

    /// Notes that a large piece has ended. When no other is under way, the memory of all large buffers is given back to the kernel and their
    /// free frames to the cache, unless the kernel refuses.
    pub fn note_large_ended(&mut self) {
        self.reading.large -= 1;
        if self.reading.large > 0 {
            return;
        }
        self.reader.has_large.store(false, Ordering::SeqCst);
        let buffers = self.reading.large_pieces.as_mut_ptr().cast();
        let buffers = libc::iovec { iov_base: buffers, iov_len: TRANSFERS * LARGE_PIECE_PAGES * PAGE };
        // SAFETY: no transfer has a buffer there.
        if unsafe { madvise::drop_pages(&[buffers]) } {
            let held = std::mem::take(&mut self.reading.large_held).count_ones() as usize;
            self.pool.give_free_frames(self.pool.here(), held * LARGE_PIECE_PAGES);
        }
    }

    /// Notes that a transfer has ended, all of whose requests have ended. Wakes threads that wait for something to arrive, and threads that
    /// wait for room.
    pub fn end(&mut self) {
        self.reader.open.fetch_sub(1, Ordering::SeqCst);
        self.reader.turn.wake_sleepers();
        self.pool.waiting().wake_waiters();
    }

    /// Lets the turn go. If this thread has been called meanwhile, it keeps the turn, which is returned, and has to look once more.
    pub fn let_go(self) -> Option<Self> {
        if !self.reader.turn.let_go() {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }
}

impl Drop for OnTurn<'_> {
    /// Lets the turn go, and leaves the work that is left to the reader's thread. For threads that may not do it themselves.
    fn drop(&mut self) {
        while !self.reader.turn.let_go() {}
        if self.reader.has_work() {
            self.reader.wake();
        }
    }
}
