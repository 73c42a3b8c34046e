//! A reader's turn: what is said before it is asked for is done, and who waits for what is on its way gets it, though no thread is there
//! to serve others. The turn is the library's own (`pool/turn.rs`); what is done with it follows `readahead/reads.rs` and
//! `region/arrivals.rs`.

use super::{explore, join, spawn};
use crate::pool::turn::{Sleep, Turn};
use crate::sys::sync::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

/// A step to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Calling the owner of the turn.
    Calling,
    /// The owner's second look.
    SecondLook,
    /// Waking those that sleep when the turn is let go, or something has come.
    Waking,
}

/// futex(2), of one word.
struct Bucket {
    /// Wakes so far, and whether there will be no more: a thread that sleeps then is lost.
    wakes: Mutex<(usize, bool)>,
    woken: Condvar,
    /// Not loom's, and told at the end: a deadlock takes loom down.
    lost: std::sync::atomic::AtomicBool,
    without: Without,
}

impl Sleep for Bucket {
    fn sleep(&self, word: &AtomicU32, expected: u32) {
        let mut wakes = self.wakes.lock().unwrap();
        if word.fetch_or(0, Ordering::AcqRel) != expected {
            return;
        }
        let before = wakes.0;
        if !wakes.1 {
            wakes = self.woken.wait(wakes).unwrap();
        }
        self.lost.fetch_or(wakes.0 == before, Ordering::Relaxed);
    }

    fn wake(&self, _: &AtomicU32) {
        if self.without != Without::Waking {
            self.wakes.lock().unwrap().0 += 1;
            self.woken.notify_all();
        }
    }
}

struct Reader {
    turn: Turn<Bucket>,
    without: Without,
    /// What there is to do, a bit each.
    pending: AtomicU32,
    done: AtomicU32,
    /// Reads that the device has ended: the next one that is taken notice of arrives.
    ended: AtomicUsize,
    arrived: [AtomicU32; 2],
}

impl Reader {
    fn new(without: Without) -> Arc<Self> {
        let wakes = Mutex::new((0, false));
        let bucket = Bucket { wakes, woken: Condvar::new(), lost: Default::default(), without };
        Arc::new(Reader {
            turn: Turn::new(bucket),
            without,
            pending: AtomicU32::new(0),
            done: AtomicU32::new(0),
            ended: AtomicUsize::new(0),
            arrived: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn work(&self) {
        self.done.fetch_or(self.pending.swap(0, Ordering::SeqCst), Ordering::SeqCst);
    }

    /// `Ahead::go_on_with`.
    fn go_on_with(&self, stream: u32) {
        self.pending.fetch_or(1 << stream, Ordering::SeqCst);
        let is_ours = if self.without == Without::Calling { self.turn.take() } else { self.turn.take_or_call() };
        if is_ours {
            self.work();
            while !self.turn.let_go() {
                if self.without != Without::SecondLook {
                    self.work();
                }
            }
        }
    }

    /// `OnTurn::await_some`: the reads end in their order.
    fn take_notice(&self) {
        let next = self.ended.fetch_add(1, Ordering::SeqCst);
        if let Some(page) = self.arrived.get(next) {
            page.fetch_or(1, Ordering::SeqCst);
            self.turn.wake_sleepers();
        }
    }

    /// `Ahead::await_page`.
    fn await_page(&self, page: usize) {
        let is_over = || self.arrived[page].fetch_or(0, Ordering::SeqCst) == 1;
        while !is_over() && !self.is_lost() {
            if self.turn.take() {
                if !is_over() {
                    self.take_notice();
                }
                while !self.turn.let_go() {}
            } else {
                self.turn.sleep_unless(is_over);
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.turn.by.lost.load(Ordering::Relaxed)
    }

    /// Nobody is left who would wake anybody.
    fn no_more_wakes(&self) {
        self.turn.by.wakes.lock().unwrap().1 = true;
        self.turn.by.woken.notify_all();
    }
}

/// Two threads that trap, for one stream each.
fn saying(without: Without) {
    explore(3, move || {
        let reader = Reader::new(without);
        let other = spawn(&reader, |reader| reader.go_on_with(0));
        reader.go_on_with(1);
        join([other]);
        assert_eq!(reader.done.load(Ordering::SeqCst), 3, "something was said and not done");
    });
}

#[test]
fn what_is_said_is_done() {
    saying(Without::Nothing);
}

#[test]
#[should_panic(expected = "said and not done")]
fn turns_bite_when_the_owner_is_not_called() {
    saying(Without::Calling);
}

#[test]
#[should_panic(expected = "said and not done")]
fn turns_bite_when_the_owner_does_not_look_again() {
    saying(Without::SecondLook);
}

/// Two threads wait for a page each, one of which arrives first, whoever takes notice.
fn waiting(without: Without) {
    explore(3, move || {
        let reader = Reader::new(without);
        let other = spawn(&reader, |reader| {
            reader.await_page(0);
            reader.no_more_wakes();
        });
        reader.await_page(1);
        reader.no_more_wakes();
        join([other]);
        assert!(!reader.is_lost(), "a thread sleeps for ever");
    });
}

#[test]
fn what_is_waited_for_arrives() {
    waiting(Without::Nothing);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn turns_bite_when_nobody_is_woken() {
    waiting(Without::Waking);
}
