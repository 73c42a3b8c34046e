//! The turn: a lock that no thread has to wait for to get work done.
//!
//! A thread that wants work done first writes down what it is, somewhere else, and then asks for the turn ([`Turn::take_or_call`]). If it
//! gets the turn it does the work itself. Otherwise the thread that has the turn looks for work once more before it lets go. A thread that
//! waits for a result sleeps until the turn is free or something has come ([`Turn::sleep_unless`]), and then takes the turn itself.
//!
//! The turn is taken with signals blocked, so that no handler that wants it interrupts its owner.

use crate::sys::futex;
use crate::sys::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and its owner is to look once more.
const CALLED: u32 = 2;

/// How threads sleep on a word: loom's models have another way.
pub trait Sleep {
    /// Sleeps while the word has a value; may return at any time.
    fn sleep(&self, word: &AtomicU32, expected: u32);

    /// Wakes all that sleep on the word.
    fn wake(&self, word: &AtomicU32);
}

/// futex(2).
#[derive(Debug, Default)]
pub struct Futex;

impl Sleep for Futex {
    fn sleep(&self, word: &AtomicU32, expected: u32) {
        futex::wait(word, expected, None);
    }

    fn wake(&self, word: &AtomicU32) {
        futex::wake_all(word);
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Turn<S = Futex> {
    word: AtomicU32,
    /// Counts the events that sleepers are woken for.
    news: AtomicU32,
    sleepers: AtomicU32,
    pub by: S,
}

impl<S: Sleep> Turn<S> {
    /// A free one.
    pub fn new(by: S) -> Self {
        Turn { word: AtomicU32::new(FREE), news: AtomicU32::new(0), sleepers: AtomicU32::new(0), by }
    }

    /// Takes the turn if it is free.
    pub fn take(&self) -> bool {
        self.word.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes the turn; false: another thread has it. That thread looks once more, and sees what was written down before this call.
    pub fn take_or_call(&self) -> bool {
        // Exchanged even where it is CALLED: the owner clears it after this, and then sees what was written down.
        let next = |word: u32| Some(if word == FREE { TAKEN } else { CALLED });
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(FREE)
    }

    /// Lets the turn go; false: this thread has been called. It still has the turn, and has to look once more.
    pub fn let_go(&self) -> bool {
        let has_gone = self.word.compare_exchange(TAKEN, FREE, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if has_gone {
            self.wake_sleepers();
        } else {
            self.word.swap(TAKEN, Ordering::SeqCst);
        }
        has_gone
    }

    /// Tells threads that sleep that something has come.
    pub fn wake_sleepers(&self) {
        // An exchange, so that it is ordered behind what came before. Either this thread sees the sleeper, or the sleeper sees that something
        // has come or that the turn is free.
        if self.sleepers.fetch_add(0, Ordering::SeqCst) > 0 {
            self.news.fetch_add(1, Ordering::SeqCst);
            self.by.wake(&self.news);
        }
    }

    /// Sleeps until the turn is free or something has come; it may return at any time. It does not sleep if `is_over`.
    pub fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let before = self.news.fetch_add(0, Ordering::SeqCst);
        if self.word.fetch_add(0, Ordering::SeqCst) != FREE && !is_over() {
            self.by.sleep(&self.news, before);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
