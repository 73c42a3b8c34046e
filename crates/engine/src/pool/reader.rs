//! Readers: where what lies ahead is read, by whichever thread has the turn.
//!
//! A reader serves the streams whose number is its own modulo their count, and requests to prefetch. It has a context for reads (`sys/aio.rs`),
//! and notes of how far it is; they are whose turn it is (`turn.rs`). Threads that trap say what there is to do (`pending`), take the turn,
//! and submit the reads themselves; the device works by itself. Whoever needs a page that a reader has on its way takes the turn and
//! waits for it in the kernel. Only where reads end inside the call that asks for them ([`Reader::reads_inline`]) a thread of the
//! reader's does them, beside the program.

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

/// Chunks and pieces on their way, at most.
pub const TRANSFERS: usize = 128;
/// Neighbouring pages that are mapped as soon as they are there, in one request, at most.
pub const PIECE_PAGES: usize = 4;
/// The same, where reads take long and memory is free.
pub const LARGE_PIECE_PAGES: usize = 32;
/// Submissions in a row that have ended in the call, after which the reader's thread does them; after half as many that have not,
/// threads that trap do.
pub const INLINE: i32 = 4;
/// Requests that wait for a reader, at most.
const REQUESTS: usize = 4096;

/// What a reader is asked to read.
#[derive(Debug, Clone)]
pub enum ReadRequest {
    /// Pages that the program prefetches.
    Pages(Pages),
    /// The pages of a file that fits into the cache, while there is room.
    Fill(Pages),
    /// A chunk whose pages are claimed, into a slot that is taken, of a region in use.
    Chunk(RegionUse, SlotNumber, Chunk),
}

/// Neighbouring pages that a reader is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub region: RegionId,
    pub first: usize,
    pub count: usize,
}

/// A chunk or a piece on its way, in a region that stays until it is there.
#[derive(Debug)]
pub struct Transfer {
    pub held: RegionUse,
    pub destination: Destination,
    /// How many there were before it.
    pub order: u64,
    /// Pages of each request but, perhaps, the last.
    pub each: usize,
    /// Requests that have not ended.
    pub left: usize,
    /// Bytes that are there: from the front, where there is one request.
    pub filled: usize,
}

impl Transfer {
    /// Whether it brings a page of its region.
    pub fn has(&self, page: usize) -> bool {
        match self.destination {
            Destination::Chunk(_, chunk) => chunk.pages().any(|one| one == page),
            Destination::Piece { first, count, .. } => (first..first + count).contains(&page),
        }
    }
}

/// Where it goes.
#[derive(Debug, Clone, Copy)]
pub enum Destination {
    /// Into a slot, to be Staged.
    Chunk(SlotNumber, Chunk),
    /// Neighbouring pages that are mapped as soon as they are there; into the transfer's own buffer. A bit of
    /// `protected_queue` for each whose queue is the protected one. `is_awaited`: prefetched.
    Piece { first: usize, count: usize, protected_queue: u64, is_awaited: bool },
}

/// How far a stream is.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub start: Start,
    /// The next page to read; negative, or past the end, when there is none.
    pub next: isize,
    /// Where the furthest chunk ended. A page that was passed over, and is gone when the program comes to it, sets `next` back, and not this.
    pub reached: isize,
    pub window: usize,
    /// Pages read or being read, and neither mapped nor dropped.
    pub outstanding: usize,
    /// What was read last was a frame.
    pub in_frames: bool,
    pub live: bool,
    /// What `Ahead::clock` showed when there was no slot for it, unless there was one since.
    pub starved: Option<usize>,
}

/// What belongs to the thread that has the turn.
#[derive(Debug)]
pub struct Reading {
    /// None: threads do all reads; if there are none either, every read is a pread(2).
    pub aio: Option<Aio>,
    /// Reads by threads.
    pub asked: Asked,
    pub positions: Box<[Position]>,
    pub transfers: Box<[Option<Transfer>]>,
    /// A buffer for each transfer.
    pieces: Zeroed<[u8; PAGE]>,
    /// And one for each that is a large piece.
    large_pieces: Zeroed<[u8; PAGE]>,
    /// Large pieces under way.
    large: usize,
    /// Transfers whose large buffer has memory, a bit each: free frames are held for it.
    large_held: u128,
    /// Transfers begun so far.
    begun: u64,
    /// Submissions of late that ended in the call, less those that did not.
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
            // In no huge page: the memory of what is used, which is beside the budget, and not of all.
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

    /// Waits until so many requests have ended, if as many are under way, or for a while.
    pub fn wait(&mut self, wanted: usize) {
        /// While both the kernel and threads have some: of the one that ends first the other does not tell.
        const BOTH: Duration = Duration::from_micros(200);
        let others = self.asked.in_flight();
        match &mut self.aio {
            Some(aio) if others == 0 => aio.wait(wanted),
            Some(aio) if aio.in_flight() > 0 => {
                aio.submit();
                self.asked.wait(1, Some(BOTH));
            }
            // No thread is left without a request for long.
            _ => self.asked.wait(wanted.min(others.saturating_sub(self.asked.preads.threads())), None),
        }
    }

    /// A transfer's place, if there is one, and room for as many requests.
    pub fn room_for(&self, requests: usize) -> Option<usize> {
        let fits = self.in_flight() + requests <= aio::DEPTH.min(preads::DEPTH);
        self.transfers.iter().position(Option::is_none).filter(|_| fits)
    }

    /// Where a transfer's piece of so many pages is read into.
    pub fn piece_memory(&self, transfer: usize, pages: usize) -> *mut u8 {
        if pages > PIECE_PAGES {
            return self.large_pieces.as_mut_ptr().wrapping_add(transfer * LARGE_PIECE_PAGES).cast();
        }
        self.pieces.as_mut_ptr().wrapping_add(transfer * PIECE_PAGES).cast()
    }

    /// A transfer's place for a large piece, if there is one: of so many at most, their idle buffers counted.
    pub fn room_for_large(&self, most: usize) -> Option<usize> {
        self.room_for(1)?;
        let is_free = |place: &usize| self.transfers[*place].is_none();
        let has_buffer = |place: &usize| self.frames_for_large(*place) == 0;
        let with_buffer = (0..TRANSFERS).filter(has_buffer).find(is_free);
        let is_room = (self.large_held.count_ones() as usize) < most;
        with_buffer.or_else(|| (0..TRANSFERS).find(is_free).filter(|_| is_room))
    }

    /// Free frames that a transfer's large buffer needs.
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
    /// Streams that are to go on, a bit each.
    pub pending: AtomicU64,
    lock: Lock,
    requests: UnsafeCell<VecDeque<ReadRequest>>,
    /// As many as those.
    queued: AtomicUsize,
    /// Transfers on their way.
    open: AtomicUsize,
    /// Large pieces are among them: its thread takes notice of them.
    has_large: AtomicBool,
    /// Reads end in the call that asks for them: its thread does them.
    pub reads_inline: AtomicBool,
    /// Its thread is to look at what there is to do.
    called: AtomicBool,
    /// Its thread waits, or is about to, and wants the bell rung.
    asleep: AtomicBool,
    bell: Bell,
}

// SAFETY: `reading` is reached with the turn alone, `requests` under the lock; the rest is atomics.
unsafe impl Sync for Reader {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Reader {}

const _: () = assert!(STREAMS == u64::BITS as usize && TRANSFERS == u128::BITS as usize);

impl Reader {
    /// One that has nothing to do.
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

    /// Takes the turn if it is free. Signals are blocked.
    pub fn take_turn<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> Option<OnTurn<'a>> {
        self.turn.take().then(|| self.on_turn(ahead, pool))
    }

    /// Likewise; or the thread that has it looks at what there is to do once more.
    pub fn take_turn_or_call<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> Option<OnTurn<'a>> {
        self.turn.take_or_call().then(|| self.on_turn(ahead, pool))
    }

    fn on_turn<'a>(&'a self, ahead: &'a Ahead, pool: &'a Pool) -> OnTurn<'a> {
        // SAFETY: it is this thread's turn.
        OnTurn { ahead, pool, reader: self, reading: unsafe { &mut *self.reading.get() }, waits: false }
    }

    /// Sleeps until the turn is free or something has arrived, or for less. Not if `is_over`.
    pub fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        self.turn.sleep_unless(is_over);
    }

    /// Whether something waits to be asked of the device.
    pub fn has_work(&self) -> bool {
        self.pending.load(Ordering::SeqCst) != 0 || self.queued.load(Ordering::SeqCst) > 0
    }

    /// Whether its thread has something to do: what it was called for, what ends in the call, or to take notice of large pieces. All else
    /// is better done by threads that need it.
    pub fn needs_thread(&self) -> bool {
        let is_inline = || self.reads_inline.load(Ordering::Relaxed) && self.has_work();
        self.called.load(Ordering::SeqCst) || self.has_large.load(Ordering::SeqCst) || is_inline()
    }

    /// Whether something is on its way.
    pub fn is_under_way(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// It has work, or transfers under way.
    pub fn is_at_work(&self) -> bool {
        self.has_work() || self.is_under_way()
    }

    /// Puts requests into its queue, at the front if they are first of all; false: there is no room. Signals are blocked.
    pub fn ask(&self, requests: &mut dyn ExactSizeIterator<Item = ReadRequest>, first: bool) -> bool {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        let queue = unsafe { &mut *self.requests.get() };
        // It never grows: a thread that waits for the lock may have interrupted the allocator.
        if queue.len() + requests.len() > REQUESTS {
            return false;
        }
        requests.for_each(|request| if first { queue.push_front(request) } else { queue.push_back(request) });
        self.queued.store(queue.len(), Ordering::SeqCst);
        true
    }

    /// The next request. Signals are blocked.
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

    /// Lets go of its context, which takes the kernel some ten milliseconds. Nothing is under way, and nothing is asked for any more.
    pub fn close(&self) {
        let _blocked = Blocked::all();
        while !self.turn.take() {
            std::thread::yield_now();
        }
        // SAFETY: it is this thread's turn.
        drop(unsafe { (*self.reading.get()).aio.take() });
        while !self.turn.let_go() {}
    }

    /// Whether its thread sleeps: it could do something at once.
    pub fn is_idle(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes its thread. SeqCst pairs with `rest`: either this sees it asleep, or that sees what is new.
    pub fn wake(&self) {
        self.called.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Notes that its thread looks at what there is to do.
    pub fn note_looked(&self) {
        self.called.store(false, Ordering::SeqCst);
    }

    /// Its thread's sleep, until there is something to do, or something else that it is woken for.
    pub fn rest(&self, is_wanted: impl FnOnce() -> bool) {
        // Before this thread says that it sleeps: a ring of the bell that comes after that is not missed.
        let rung = self.bell.rung();
        self.asleep.store(true, Ordering::SeqCst);
        if !self.needs_thread() && !is_wanted() {
            self.bell.wait(rung, None);
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// A reader's turn, taken.
pub struct OnTurn<'a> {
    pub ahead: &'a Ahead,
    pub pool: &'a Pool,
    pub reader: &'a Reader,
    pub reading: &'a mut Reading,
    /// It may wait for what has to be fetched.
    pub waits: bool,
}

impl OnTurn<'_> {
    /// Begins a transfer of so many requests of so many pages each.
    pub fn begin(&mut self, place: usize, held: RegionUse, destination: Destination, each: usize, requests: usize) {
        self.reading.begun += 1;
        let transfer = Transfer { held, destination, order: self.reading.begun, each, left: requests, filled: 0 };
        self.reading.transfers[place] = Some(transfer);
        self.reader.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a large piece begins, whose buffer has its free frames.
    pub fn note_large_begun(&mut self, place: usize) {
        self.reading.large += 1;
        self.reading.large_held |= 1 << place;
        self.reader.has_large.store(true, Ordering::SeqCst);
        self.reader.wake();
    }

    /// Notes that one has ended. The memory of all goes with the last of them, where the kernel lets it go.
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

    /// Ends a transfer, all of whose requests have ended, for those who wait for what came.
    pub fn end(&mut self) {
        self.reader.open.fetch_sub(1, Ordering::SeqCst);
        self.reader.turn.wake_sleepers();
        self.pool.waiting().wake_waiters();
    }

    /// Lets the turn go; or this thread has been called meanwhile, and looks once more.
    pub fn let_go(self) -> Option<Self> {
        if !self.reader.turn.let_go() {
            return Some(self);
        }
        std::mem::forget(self);
        None
    }
}

impl Drop for OnTurn<'_> {
    /// Lets the turn go, and leaves what there is to do to the reader's thread: for who may not do it.
    fn drop(&mut self) {
        while !self.reader.turn.let_go() {}
        if self.reader.has_work() {
            self.reader.wake();
        }
    }
}
