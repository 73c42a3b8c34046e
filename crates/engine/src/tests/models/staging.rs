//! Pages that are read ahead, handed over through a slot: readers, threads that trap, those that drop chunks, and the evictors of
//! what was mapped with a frame. `publish`, `put_back` and `serve` follow `readahead/map_chunk.rs` and `fault/serve.rs`; the slot's states are those of
//! `staging.rs`, which has memory of the kernel's that is not modelled.

use super::{explore, join, spawn};
use crate::page::word::{After, PageWord, State};
use crate::sys::sync::{AtomicU32, AtomicUsize, Ordering, UnsafeCell, fence};
use loom::sync::{Arc, Condvar, Mutex};

const FREE: u32 = 0;
const TAKEN: u32 = 2;
const READY: u32 = 3;

/// A step to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Calling those who sleep on the pages of a slot that is put back.
    Calling,
    /// The change of a word whose sleepers are called: a wake alone.
    ChangeOfWord,
    /// The look at the slot between the announcement and the sleep.
    SecondLook,
    /// Calling those who came while a page was Loading.
    CallingEarly,
}

/// Two pages and the slot of their chunk.
struct Chunk {
    words: [PageWord; 2],
    slot: AtomicU32,
    /// Touched by who has the slot alone.
    memory: UnsafeCell<()>,
    loads: AtomicUsize,
    maps: AtomicUsize,
    /// Wakes so far, and whether there will be no more: a thread that sleeps then is lost.
    bucket: Mutex<(usize, bool)>,
    woken: Condvar,
    /// Not loom's, and told at the end: a deadlock takes loom down.
    lost: std::sync::atomic::AtomicBool,
    without: Without,
}

impl Chunk {
    /// Claimed by a reader.
    fn loading(without: Without) -> Arc<Self> {
        let chunk = Arc::new(Chunk {
            words: [PageWord::new(), PageWord::new()],
            slot: AtomicU32::new(TAKEN),
            memory: UnsafeCell::new(()),
            loads: AtomicUsize::new(0),
            maps: AtomicUsize::new(0),
            bucket: Mutex::new((0, false)),
            woken: Condvar::new(),
            lost: Default::default(),
            without,
        });
        chunk.words.iter().for_each(|word| assert!(word.begin_load(word.look())));
        chunk
    }

    fn staged(without: Without) -> Arc<Self> {
        let chunk = Self::loading(without);
        chunk.publish();
        chunk
    }

    /// Mapped with a frame.
    fn framed() -> Arc<Self> {
        let chunk = Self::staged(Without::Nothing);
        assert!(chunk.claim());
        chunk.words.iter().for_each(|word| chunk.after(word.finish_huge()));
        chunk.slot.store(FREE, Ordering::Release);
        chunk
    }

    fn wake(&self) {
        self.bucket.lock().unwrap().0 += 1;
        self.woken.notify_all();
    }

    /// Nobody is left who would wake anybody.
    fn no_more_wakes(&self) {
        self.bucket.lock().unwrap().1 = true;
        self.woken.notify_all();
    }

    fn after(&self, after: After) {
        if after.wake {
            self.wake();
        }
    }

    /// futex(2); false: for ever.
    fn sleep(&self, word: &PageWord, expected: u32) -> bool {
        let mut bucket = self.bucket.lock().unwrap();
        if word.futex().fetch_or(0, Ordering::AcqRel) != expected {
            return true;
        }
        let before = bucket.0;
        if !bucket.1 {
            bucket = self.woken.wait(bucket).unwrap();
        }
        let woken = bucket.0 != before;
        self.lost.fetch_or(!woken, Ordering::Relaxed);
        woken
    }

    fn claim(&self) -> bool {
        self.slot.load(Ordering::Relaxed) == READY
            && self.slot.compare_exchange(READY, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// `Ahead::publish`.
    fn publish(&self) {
        self.memory.with_mut(|_| {});
        let waited_for = [0, 1].map(|page| self.words[page].stage(5).wake && self.without != Without::CallingEarly);
        self.slot.store(READY, Ordering::Release);
        self.call(waited_for);
    }

    fn call(&self, waited_for: [bool; 2]) {
        fence(Ordering::SeqCst);
        for (word, waited_for) in self.words.iter().zip(waited_for) {
            let called = match self.without {
                Without::Calling => false,
                Without::ChangeOfWord => true,
                _ => word.call_waiters(),
            };
            if called || waited_for {
                self.wake();
            }
        }
    }

    /// `Ahead::claim_some` that finds it is not what it looks for.
    fn claim_and_put_back(&self) {
        if self.claim() {
            self.memory.with_mut(|_| {});
            self.slot.store(READY, Ordering::Release);
            self.call([false; 2]);
        }
    }

    /// `Ahead::drop_chunk`.
    fn drop_chunk(&self) {
        if self.claim() {
            self.memory.with_mut(|_| {});
            self.words.iter().for_each(|word| self.after(word.unstage()));
            self.slot.store(FREE, Ordering::Release);
        }
    }

    /// `fault::serve` for a load.
    fn touch(&self, page: usize) {
        let word = &self.words[page];
        loop {
            let seen = word.look();
            match seen.state() {
                State::Absent => {
                    if word.begin_load(seen) {
                        self.loads.fetch_add(1, Ordering::Relaxed);
                        return self.after(word.finish_load(false, false, false));
                    }
                }
                State::Staged if self.claim() => {
                    if word.look().slot() != Some(5) {
                        self.slot.store(READY, Ordering::Release);
                        self.call([false; 2]);
                        continue;
                    }
                    self.memory.with_mut(|_| {});
                    self.maps.fetch_add(1, Ordering::Relaxed);
                    self.words.iter().for_each(|word| self.after(word.finish_load(false, false, false)));
                    self.slot.store(FREE, Ordering::Release);
                }
                State::Staged => {
                    let announced = word.announce_waiter(seen);
                    fence(Ordering::SeqCst);
                    let is_claimable = || self.slot.load(Ordering::Acquire) == READY;
                    if let Some(expected) = announced
                        && (self.without == Without::SecondLook || !is_claimable())
                        && !self.sleep(word, expected)
                    {
                        return;
                    }
                }
                State::Clean | State::Dirty => return,
                State::Unfilled | State::Buffered => unreachable!("nothing is read behind"),
                State::Loading | State::Evicting => {
                    if let Some(expected) = word.announce_waiter(seen)
                        && !self.sleep(word, expected)
                    {
                        return;
                    }
                }
            }
        }
    }

    /// `evict::drop_frame`.
    fn evict_frame(&self) {
        let claimed = self.words.iter().take_while(|word| word.begin_evict_huge()).count();
        if claimed == self.words.len() {
            self.memory.with_mut(|_| {});
            self.words.iter().for_each(|word| self.after(word.finish_evict(None)));
        } else {
            self.words[..claimed].iter().for_each(|word| self.after(word.abort_evict_huge()));
        }
    }

    /// `pinning::pin_one` and `let_go`; true when what was pinned was part of the frame.
    fn pin(&self, page: usize) {
        let word = &self.words[page];
        loop {
            let seen = word.look();
            if !matches!(seen.state(), State::Clean | State::Dirty) {
                self.touch(page);
            } else if word.try_pin(seen) {
                // The evictor of the frame, who has its memory, would be a second owner.
                if seen.is_huge() {
                    self.memory.with(|_| {});
                }
                assert!(word.look().is_pinned());
                let (last, after) = word.unpin(false);
                assert!(last && (!after.enqueue || !seen.is_huge()));
                return;
            }
        }
    }

    fn check_mapped(&self) {
        assert!(!self.lost.load(Ordering::Relaxed), "a thread sleeps for ever");
        assert_eq!(self.states(), [State::Clean; 2]);
        assert_eq!((self.maps.load(Ordering::Relaxed), self.loads.load(Ordering::Relaxed)), (1, 0));
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|page| self.words[page].look().state())
    }
}

/// A reader publishes a chunk on whose pages two threads trap.
#[test]
fn a_chunk_that_is_waited_for_is_mapped_once() {
    explore(2, move || {
        let chunk = Chunk::loading(Without::Nothing);
        let threads = [0, 1].map(|page| spawn(&chunk, move |chunk| chunk.touch(page)));
        chunk.publish();
        join(threads);
        assert_eq!(chunk.states(), [State::Clean; 2]);
        assert_eq!((chunk.maps.load(Ordering::Relaxed), chunk.loads.load(Ordering::Relaxed)), (1, 0));
    });
}

/// Likewise, and one thread traps.
fn publishing(without: Without) {
    explore(3, move || {
        let chunk = Chunk::loading(without);
        let reader = spawn(&chunk, |chunk| {
            chunk.publish();
            chunk.no_more_wakes();
        });
        chunk.touch(1);
        join([reader]);
        chunk.check_mapped();
    });
}

#[test]
fn a_chunk_is_published_to_who_waits_for_it() {
    publishing(Without::Nothing);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn staging_bites_when_early_waiters_are_not_called() {
    publishing(Without::CallingEarly);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn publishing_bites_when_nobody_looks_at_the_slot_again() {
    publishing(Without::SecondLook);
}

/// Somebody looks into the slot at the wrong moment.
fn putting_back(without: Without) {
    explore(3, move || {
        let chunk = Chunk::staged(without);
        let other = spawn(&chunk, |chunk| {
            chunk.claim_and_put_back();
            chunk.no_more_wakes();
        });
        chunk.touch(0);
        join([other]);
        chunk.check_mapped();
    });
}

#[test]
fn a_slot_that_is_put_back_is_found_again() {
    putting_back(Without::Nothing);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn staging_bites_when_nobody_is_called() {
    putting_back(Without::Calling);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn staging_bites_when_a_wake_leaves_the_word_as_it_was() {
    putting_back(Without::ChangeOfWord);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn staging_bites_when_nobody_looks_at_the_slot_again() {
    putting_back(Without::SecondLook);
}

/// Two threads want it, one looks into it, and one drops it.
#[test]
fn a_chunk_that_is_dropped_is_read_by_those_who_wait_for_it() {
    explore(2, || {
        let chunk = Chunk::staged(Without::Nothing);
        let dropper = spawn(&chunk, |chunk| chunk.drop_chunk());
        let other = spawn(&chunk, |chunk| chunk.touch(0));
        chunk.touch(1);
        join([dropper, other]);
        assert_eq!(chunk.states(), [State::Clean; 2]);
        let (maps, loads) = (chunk.maps.load(Ordering::Relaxed), chunk.loads.load(Ordering::Relaxed));
        assert!(matches!((maps, loads), (1, 0) | (0, 2)), "{maps} {loads}");
    });
}

#[test]
fn dropping_against_putting_back() {
    explore(2, || {
        let chunk = Chunk::staged(Without::Nothing);
        let dropper = spawn(&chunk, |chunk| chunk.drop_chunk());
        let other = spawn(&chunk, |chunk| chunk.claim_and_put_back());
        chunk.touch(0);
        join([dropper, other]);
        assert_eq!(chunk.states()[0], State::Clean);
    });
}

/// A frame goes whole or not at all, whatever is pinned or touched of it meanwhile.
#[test]
fn a_frame_against_pins_and_touches() {
    explore(2, || {
        let chunk = Chunk::framed();
        let evictor = spawn(&chunk, |chunk| chunk.evict_frame());
        let pinner = spawn(&chunk, |chunk| chunk.pin(1));
        chunk.touch(0);
        join([evictor, pinner]);
        let huge = [0, 1].map(|page| chunk.words[page].look().is_huge());
        assert!(huge == [true; 2] && chunk.states() == [State::Clean; 2] || huge == [false; 2], "{huge:?}");
        assert!(chunk.states().iter().all(|state| matches!(state, State::Clean | State::Absent)));
    });
}

/// Two evictors come by one after the other, since the first puts the frame back into its queue.
#[test]
fn a_pinned_frame_goes_once_it_is_unpinned() {
    explore(2, || {
        let chunk = Chunk::framed();
        let evictor = spawn(&chunk, |chunk| chunk.evict_frame());
        chunk.pin(0);
        join([evictor]);
        if chunk.words[0].look().is_huge() {
            chunk.evict_frame();
            assert_eq!(chunk.states(), [State::Absent; 2]);
        }
    });
}
