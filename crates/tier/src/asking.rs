//! Requests for parts of objects, and their answers. They are in slots in shared memory, between the threads that ask and a *server*, the thread
//! that passes requests on and answers them. So a fault handler of any process can ask, without descriptors, allocation or async code.
//!
//! A slot's word holds its state:
//!
//! ```text
//! Free -> Claimed -> Asked ------> Taken -> Answering -> Answered -> Free
//!                      |             |
//!                      | (deadline)  +-> Abandoned -> Free
//!                      +-> Free
//! ```
//!
//! * The asking thread takes a slot from Free to Asked, and from Answered to Free. It also gives up: from Asked to Free, and from Taken to
//!   Abandoned.
//! * The server makes all other changes. It frees the slots of threads that died. It frees the slot of a request that nobody waits for as soon
//!   as it has read it.
//! * The word also holds the number of the asking thread, and a count. So a change of a slot that belongs to another request by now fails, and
//!   the thread asks again.
//! * The kernel tells when the server has died, however it was killed. The number of its thread is in a word on the thread's list of robust
//!   futexes (get_robust_list(2)), and there the kernel sets a bit.
//!
//! `models.rs` explores all of this but deaths (loom).

#[cfg(not(loom))]
mod memory;
#[cfg(loom)]
mod models;

#[cfg(not(loom))]
use memory::{AtomicBool, AtomicU32, AtomicU64, Memory, RobustList, fence, sys};
#[cfg(loom)]
use models::{AtomicBool, AtomicU32, AtomicU64, Memory, RobustList, fence, sys};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Slots: more than a gather has rows. A request that is not awaited and finds no slot is dropped; the part is asked for again when it is
/// needed.
const SLOTS: usize = if cfg!(loom) { 1 } else { 4096 };
const MAGIC: u64 = u64::from_le_bytes(*b"FMASKS02");
/// The longest that asking threads and the server sleep before they look whether the other side still lives.
const LOOK: Duration = Duration::from_millis(200);
/// How much longer than its deadline a thread waits for the server, whose answer says better what went wrong, milliseconds.
const GRACE: u64 = if cfg!(loom) { 0 } else { 1000 };

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const ASKED: u32 = 2;
const TAKEN: u32 = 3;
const ANSWERING: u32 = 4;
const ANSWERED: u32 = 5;
const ABANDONED: u32 = 6;

/// In [`Head::server`], set by the kernel.
const DIED: u32 = libc::FUTEX_OWNER_DIED;
/// In [`Head::server`]: the server has ended by itself. No thread has this number.
const ENDED: u32 = libc::FUTEX_TID_MASK;

#[repr(C)]
#[derive(Debug)]
struct Head {
    magic: AtomicU64,
    /// Counts requests. The server sleeps on this word.
    doorbell: AtomicU32,
    /// Counts slots that became free. Threads that found no free slot sleep on this word.
    freed: AtomicU32,
    /// The entry of the server's list of robust futexes for the futex `server`.
    robust: AtomicU64,
    /// Number of the server's thread; 0: there has been none yet.
    server: AtomicU32,
    /// Where the search for a free slot begins next.
    next: AtomicU32,
    _unused: [AtomicU64; 3],
    /// A bit a slot: it became Asked, and the server is to look at it.
    asked: [AtomicU64; SLOTS.div_ceil(64)],
}

#[repr(C)]
#[derive(Debug)]
struct Slot {
    /// State (3 bits), count (7), thread (22).
    word: AtomicU32,
    object: AtomicU32,
    is_awaited: AtomicU32,
    answer: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    /// The deadline, by [`sys::now`]; `u64::MAX`: none.
    until: AtomicU64,
    _unused: [AtomicU64; 3],
}

impl Slot {
    /// Changes the state to `to` if the word is still `seen`. Returns the new word.
    fn change(&self, seen: u32, to: u32) -> Option<u32> {
        let word = seen & !7 | to;
        self.word.compare_exchange(seen, word, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(word)
    }
}

fn state(word: u32) -> u32 {
    word & 7
}

fn thread_of(word: u32) -> u32 {
    word >> 10
}

/// The slots in which programs ask for parts of objects, in memory that they share with the server.
///
/// ```
/// use fastmap_tier::Asking;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// let asking = Asking::anonymous().unwrap();
/// let stop = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         asking.serve(&stop, |request| {
///             let is_known = request.object == 7;
///             request.answer(if is_known { Ok(()) } else { Err(2) });   // ENOENT
///         })
///     });
///     assert_eq!(asking.bring(7, 0..4096, Some(Duration::from_secs(30))), Ok(()));
///     assert_eq!(asking.bring(8, 0..4096, None), Err(2));
///     stop.store(true, Ordering::Release);
///     asking.ring();
/// });
/// ```
#[derive(Debug)]
pub struct Asking {
    memory: Memory,
}

impl Asking {
    fn head(&self) -> &Head {
        self.memory.head()
    }

    fn slots(&self) -> &[Slot] {
        self.memory.slots()
    }

    fn has_server_gone(&self) -> bool {
        let server = self.head().server.load(Ordering::Acquire);
        server == ENDED || server & DIED != 0
    }

    /// Asks for a range of an object, and waits for the answer. For fault handlers.
    ///
    /// # Errors
    /// The error number that the server answered; `ETIMEDOUT` if the deadline passed before; `ESHUTDOWN` if the server has ended.
    pub fn bring(&self, object: u32, range: Range<u64>, deadline: Option<Duration>) -> Result<(), i32> {
        let until = deadline.map_or(u64::MAX, |time| sys::now().saturating_add(time.as_millis() as u64 + 1));
        loop {
            let (at, word) = self.claim(until)?;
            let asked = self.put(at, word, object, &range, until, true);
            if let Some(answer) = asked.and_then(|word| self.wait(&self.slots()[at], word, until)) {
                return answer;
            }
        }
    }

    /// Asks for a range of an object, and does not wait. Nothing happens if all slots are taken. For fault handlers.
    pub fn ask(&self, object: u32, range: Range<u64>) {
        if let Some((at, word)) = self.try_claim() {
            self.put(at, word, object, &range, u64::MAX, false);
        }
    }

    fn try_claim(&self) -> Option<(usize, u32)> {
        let thread = sys::thread();
        let first = self.head().next.fetch_add(1, Ordering::Relaxed) as usize;
        (first..first + SLOTS).map(|at| at % SLOTS).find_map(|at| {
            let slot = &self.slots()[at];
            let seen = slot.word.load(Ordering::Relaxed);
            let count = (seen >> 3).wrapping_add(1) & 0x7F;
            let word = thread << 10 | count << 3 | CLAIMED;
            let is_mine = state(seen) == FREE
                && slot.word.compare_exchange(seen, word, Ordering::Acquire, Ordering::Relaxed).is_ok();
            is_mine.then_some((at, word))
        })
    }

    fn claim(&self, until: u64) -> Result<(usize, u32), i32> {
        loop {
            let freed = self.head().freed.load(Ordering::Acquire);
            if self.has_server_gone() {
                return Err(libc::ESHUTDOWN);
            }
            if let Some(mine) = self.try_claim() {
                return Ok(mine);
            }
            let left = until.saturating_sub(sys::now());
            if left == 0 {
                return Err(libc::ETIMEDOUT);
            }
            // A thread that was woken may have given up, and then wakes no other: so each looks again after 50 ms.
            sys::wait(&self.head().freed, freed, Duration::from_millis(left.min(50)));
        }
    }

    fn put(&self, at: usize, word: u32, object: u32, range: &Range<u64>, until: u64, is_awaited: bool) -> Option<u32> {
        let slot = &self.slots()[at];
        slot.object.store(object, Ordering::Relaxed);
        slot.is_awaited.store(u32::from(is_awaited), Ordering::Relaxed);
        slot.start.store(range.start, Ordering::Relaxed);
        slot.end.store(range.end, Ordering::Relaxed);
        slot.until.store(until, Ordering::Relaxed);
        let asked = slot.change(word, ASKED);
        // Either the server sees this request as it ends, or this thread sees that the server has ended.
        fence(Ordering::SeqCst);
        self.head().asked[at / 64].fetch_or(1 << (at % 64), Ordering::Release);
        self.ring();
        asked
    }

    /// Waits for the answer. `None`: the slot was taken away.
    fn wait(&self, slot: &Slot, asked: u32, until: u64) -> Option<Result<(), i32>> {
        loop {
            let word = slot.word.load(Ordering::Acquire);
            if word & !7 != asked & !7 {
                return None;
            }
            if state(word) == ANSWERED {
                let answer = slot.answer.load(Ordering::Relaxed) as i32;
                return self.free(slot, word).then_some(if answer == 0 { Ok(()) } else { Err(answer) });
            }
            let is_late = |by| sys::now() >= until.saturating_add(by);
            let given_up = match state(word) {
                ASKED if is_late(0) => self.free(slot, word).then_some(libc::ETIMEDOUT),
                TAKEN if is_late(GRACE) => slot.change(word, ABANDONED).map(|_| libc::ETIMEDOUT),
                _ if self.has_server_gone() => self.free(slot, word).then_some(libc::ESHUTDOWN),
                _ => None,
            };
            if let Some(error) = given_up {
                return Some(Err(error));
            }
            let by = if state(word) == ASKED { 0 } else { GRACE };
            let left = until.saturating_add(by).saturating_sub(sys::now()).max(1);
            sys::wait(&slot.word, word, LOOK.min(Duration::from_millis(left)));
        }
    }

    fn free(&self, slot: &Slot, seen: u32) -> bool {
        let was_mine =
            slot.word.compare_exchange(seen, seen & 0x3F8 | FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.head().freed.fetch_add(1, Ordering::Release);
        sys::wake(&self.head().freed, 1);
        was_mine
    }

    /// Wakes the server, which looks for requests and whether it is to stop.
    pub fn ring(&self) {
        self.head().doorbell.fetch_add(1, Ordering::Release);
        sys::wake(&self.head().doorbell, 1);
    }

    /// Serves requests until `stop` is set, which it notices within 200 ms, or at once after [`ring`](Self::ring). Then all waiting threads get
    /// `ESHUTDOWN` at once. If this thread ends otherwise, or its process is killed, they get it within 200 ms.
    ///
    /// Only one thread may serve at a time. `each` must pass the request on at once, since the other requests wait. Threads that ask before
    /// there is a server wait for it.
    pub fn serve(self: &Arc<Self>, stop: &AtomicBool, mut each: impl FnMut(Request)) {
        let _serving = Serving::begin(self);
        let mut looked = sys::now();
        loop {
            // Loaded before all else is looked at: a thread that changes anything rings afterwards.
            let rung = self.head().doorbell.load(Ordering::Acquire);
            if stop.load(Ordering::Acquire) {
                break;
            }
            let mut has_found = false;
            for (word, slots) in self.head().asked.iter().zip((0..).step_by(64)) {
                // Most are zero, and a swap would take the cache line from the threads that write to it.
                let mut asked = if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::AcqRel) };
                has_found |= asked != 0;
                while asked != 0 {
                    self.take(slots + asked.trailing_zeros() as usize).into_iter().for_each(&mut each);
                    asked &= asked - 1;
                }
            }
            if Duration::from_millis(sys::now() - looked) >= LOOK {
                self.free_those_of_the_dead();
                looked = sys::now();
            }
            if !has_found {
                sys::wait(&self.head().doorbell, rung, LOOK);
            }
        }
    }

    fn take(self: &Arc<Self>, at: usize) -> Option<Request> {
        let slot = &self.slots()[at];
        let seen = slot.word.load(Ordering::Acquire);
        if state(seen) != ASKED {
            return None;
        }
        let [start, end, until] = [&slot.start, &slot.end, &slot.until].map(|word| word.load(Ordering::Relaxed));
        let object = slot.object.load(Ordering::Relaxed);
        let is_awaited = slot.is_awaited.load(Ordering::Relaxed) != 0;
        let word = if is_awaited { slot.change(seen, TAKEN)? } else { self.free(slot, seen).then_some(0)? };
        let deadline = (until != u64::MAX).then(|| Duration::from_millis(until.saturating_sub(sys::now())));
        Some(Request { object, range: start..end, deadline, is_awaited, asking: self.clone(), slot: at, word })
    }

    fn free_those_of_the_dead(&self) {
        let mut known = HashMap::new();
        for slot in self.slots() {
            let seen = slot.word.load(Ordering::Relaxed);
            let mut is_dead = || *known.entry(thread_of(seen)).or_insert_with(|| sys::is_dead(thread_of(seen)));
            // Slots in Abandoned and Answering are the server's.
            if matches!(state(seen), CLAIMED | ASKED | TAKEN | ANSWERED) && is_dead() {
                self.free(slot, seen);
            }
        }
    }

    /// Answers a slot if it still belongs to the request. Frees it if the asking thread has given up.
    fn answer(&self, slot: &Slot, taken: u32, answer: i32) {
        if let Some(word) = slot.change(taken, ANSWERING) {
            slot.answer.store(answer as u32, Ordering::Relaxed);
            slot.change(word, ANSWERED);
            sys::wake(&slot.word, 1);
        } else if slot.word.load(Ordering::Relaxed) == taken & !7 | ABANDONED {
            self.free(slot, taken & !7 | ABANDONED);
        }
    }
}

/// Marks that a thread serves, until dropped.
struct Serving<'a> {
    asking: &'a Asking,
    _list: RobustList,
}

impl<'a> Serving<'a> {
    fn begin(asking: &'a Asking) -> Self {
        let head = asking.head();
        let list = RobustList::begin(head);
        for slot in asking.slots() {
            let seen = slot.word.load(Ordering::Acquire);
            match state(seen) {
                // Left by a server that has died.
                TAKEN | ANSWERING => drop(slot.change(seen, ASKED)),
                ABANDONED => drop(asking.free(slot, seen)),
                _ => {}
            }
        }
        let all = u64::MAX >> (64 - SLOTS.min(64));
        // Not a plain store: it would not synchronise with the requests whose bits it replaces.
        for word in &head.asked {
            word.fetch_or(all, Ordering::AcqRel);
        }
        head.server.store(sys::thread(), Ordering::Release);
        Serving { asking, _list: list }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if cfg!(loom) && std::thread::panicking() {
            // A model has failed: its memory may not be used any more.
            return;
        }
        let head = self.asking.head();
        head.server.store(ENDED, Ordering::Release);
        fence(Ordering::SeqCst);
        for slot in self.asking.slots() {
            let seen = slot.word.load(Ordering::Acquire);
            if matches!(state(seen), ASKED | TAKEN) {
                self.asking.answer(slot, seen, libc::ESHUTDOWN);
            }
        }
        head.freed.fetch_add(1, Ordering::Release);
        sys::wake(&head.freed, i32::MAX);
    }
}

/// A request. If it is dropped without an answer, the answer is `EIO`.
#[derive(Debug)]
pub struct Request {
    /// The object's number, as both sides have agreed on it.
    pub object: u32,
    /// The bytes of the object that are asked for.
    pub range: Range<u64>,
    /// How long the asking thread was still willing to wait when the request was taken; `None`: for ever.
    pub deadline: Option<Duration>,
    /// Whether a thread waits for the answer.
    pub is_awaited: bool,
    asking: Arc<Asking>,
    slot: usize,
    word: u32,
}

impl Request {
    /// Answers that the bytes are there, or with an error number: see [`TierOrigin`](crate::TierOrigin).
    pub fn answer(self, result: Result<(), i32>) {
        self.finish(result.err().unwrap_or(0));
    }

    /// The first answer counts.
    fn finish(&self, answer: i32) {
        if self.is_awaited {
            self.asking.answer(&self.asking.slots()[self.slot], self.word, answer);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        self.finish(libc::EIO);
    }
}
