//! Whose turn it is: a lock that nobody waits for in order to have something done.
//!
//! A thread that wants something done which takes the turn says what it is, somewhere else, and then asks for the turn. Either it gets
//! it, and does that; or the thread that has it looks once more before it lets go ([`Turn::take_or_call`]). A thread that waits for what
//! comes of it sleeps until the turn is free or something has come ([`Turn::sleep_unless`]), and takes the turn itself then.
//!
//! Taken with signals blocked: its owner is never interrupted by a handler that wants it.

use crate::sys::futex;
use crate::sys::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and its owner is to look once more.
const CALLED: u32 = 2;

/// How threads sleep on a word; loom's models have a way of their own.
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
    /// Counts what sleepers are woken for.
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

    /// Takes the turn, or has its owner look once more for what was said before this call.
    pub fn take_or_call(&self) -> bool {
        // An exchange where it is CALLED, too: the owner that clears that comes after this, and sees what was said.
        let next = |word: u32| Some(if word == FREE { TAKEN } else { CALLED });
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) == Ok(FREE)
    }

    /// Lets the turn go; false: its owner has been called, still has it, and looks once more.
    pub fn let_go(&self) -> bool {
        let has_gone = self.word.compare_exchange(TAKEN, FREE, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if has_gone {
            self.wake_sleepers();
        } else {
            self.word.swap(TAKEN, Ordering::SeqCst);
        }
        has_gone
    }

    /// Tells those that sleep that something has come.
    pub fn wake_sleepers(&self) {
        // An exchange: it is ordered behind what came before. Either this sees a sleeper, or that one sees what has come, or the turn free.
        if self.sleepers.fetch_add(0, Ordering::SeqCst) > 0 {
            self.news.fetch_add(1, Ordering::SeqCst);
            self.by.wake(&self.news);
        }
    }

    /// Sleeps until the turn is free, or something has come, and returns; it may do so at any time. Not if `is_over`.
    pub fn sleep_unless(&self, is_over: impl FnOnce() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let before = self.news.fetch_add(0, Ordering::SeqCst);
        if self.word.fetch_add(0, Ordering::SeqCst) != FREE && !is_over() {
            self.by.sleep(&self.news, before);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
