//! Models of stores to a page that is not in memory and does not wait for its read (`deferred/`): kept in a store buffer, and
//! made on a page that holds the initial value.
//!
//! What is in the file from the start is the bit `IN_FILE`; the initial value has no bits, so that putting a page together is an or.

use super::{Frame, Omit, World, explore, join, spawn};
use crate::page::claims::{Evicting, Loading, PageAccess, Upgrading};
use crate::page::word::State;
use crate::sys::sync::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use std::ops::Deref;

const IN_FILE: u32 = 4;

struct DeferredStores {
    world: Arc<World>,
    /// The one slot's lock, and the stores in it.
    slot: Mutex<u32>,
    /// `DeferredStores::announced`, of the block.
    announced: AtomicUsize,
}

impl Deref for DeferredStores {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DeferredStores {
    fn new(omit: Omit) -> Arc<Self> {
        let world = World::absent(omit);
        world.file.store(IN_FILE, Ordering::Relaxed);
        Arc::new(DeferredStores { world, slot: Mutex::new(0), announced: AtomicUsize::new(0) })
    }

    fn page(&self) -> &World {
        &self.world
    }

    fn announce(&self) {
        if self.omit != Omit::Announce {
            self.announced.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn note_done(&self) {
        if self.omit != Omit::Announce {
            self.announced.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// `protocol::defer` of the first store, which is buffered.
    fn keep_first(&self, bits: u32) {
        Loading::begin(self.page(), self.word.look()).expect("absent").keep();
        *self.slot.lock().unwrap() |= bits;
        self.announce();
        self.page().settle(self.word.buffer(0), 0);
    }

    /// Likewise, on a page with the initial value.
    fn install_initial(&self) {
        Loading::begin(self.page(), self.word.look()).expect("absent").keep();
        self.word.begin_writable_install();
        self.announce();
        self.frame.install(0, false);
        self.page().settle(self.word.publish_unfilled(), 0);
    }

    /// `protocol::buffer_another`.
    fn keep_another(&self, bits: u32) -> bool {
        let is_kept = || self.word.look().buffered_in() == Some(0);
        let before = self.omit == Omit::LookUnderLock && is_kept();
        let mut slot = self.slot.lock().unwrap();
        let kept = if self.omit == Omit::LookUnderLock { before } else { is_kept() };
        if kept {
            *slot |= bits;
        }
        kept
    }

    /// A program's store; `fault/serve.rs` as far as it goes here.
    fn put(&self, bits: u32) {
        while !self.frame.store(bits) {
            let seen = self.word.look();
            match seen.state() {
                State::Buffered => {
                    if self.keep_another(bits) {
                        return;
                    }
                }
                State::Unfilled if self.omit == Omit::BeginLift => self.frame.unprotect_resident(),
                State::Unfilled if !seen.is_upgrading() => {
                    if self.word.begin_lift(seen) {
                        self.frame.protect(false);
                        if self.word.finish_lift() {
                            self.wake();
                        }
                    }
                }
                State::Clean | State::Dirty if !seen.is_upgrading() => {
                    if let Some(claim) = Upgrading::begin(self.page(), seen) {
                        let _ = claim.upgrade(0);
                    }
                }
                State::Absent => unreachable!("nobody evicts it"),
                _ => self.page().wait(seen),
            }
        }
    }

    fn wake(&self) {
        let _bucket = self.bucket.lock().unwrap();
        self.woken.notify_all();
    }

    /// `protocol::await_read`; false: the read has failed.
    fn await_read(&self) -> bool {
        loop {
            let seen = self.word.look();
            if seen.has_failed() {
                return false;
            }
            if !matches!(seen.state(), State::Unfilled | State::Buffered) && !seen.is_upgrading() {
                return true;
            }
            self.page().wait(seen);
        }
    }

    /// `sweep::write_out`, which settles first.
    fn flush_settled(&self) {
        if self.announced.fetch_or(0, Ordering::AcqRel) > 0 {
            assert!(self.await_read());
        }
        self.flush(true);
    }

    /// A thread's load once the page is there.
    fn load_settled(&self) -> u32 {
        loop {
            match self.frame.load() {
                Some(bits) => return bits,
                None => assert!(self.await_read()),
            }
        }
    }

    /// `fill_thread::install` and `fill_thread::publish`.
    fn install_and_publish(&self, bits: u32) {
        if self.omit != Omit::BitBeforeDone {
            self.dirty.set(0);
        }
        self.frame.install(bits, false);
        self.note_done();
        if self.omit == Omit::BitBeforeDone {
            Loading::adopt(self.page()).finish(true, false, false, 0);
            return self.dirty.set(0);
        }
        Loading::adopt(self.page()).finish(true, false, false, 0);
    }

    /// `Worker::fill`.
    fn fill(&self) {
        {
            let _held = self.slot.lock().unwrap();
            self.word.begin_fill();
        }
        self.owned.with_mut(|_| ());
        // No more stores are put into it.
        let kept = std::mem::take(&mut *self.slot.lock().unwrap());
        self.install_and_publish(kept | self.file.fetch_or(0, Ordering::Relaxed));
    }

    /// `Worker::merge_unfilled`.
    fn merge(&self) {
        while !self.word.begin_merge() {
            let seen = self.word.look();
            if seen.is_upgrading() {
                self.page().wait(seen);
            }
        }
        if self.omit != Omit::ProtectBeforeWrite {
            self.frame.protect(true);
        }
        let stored = self.frame.load().expect("an Unfilled page is resident");
        self.owned.with_mut(|_| {
            assert_eq!(self.frame.drop_memory(), stored, "dropped: a store after what was there was taken over");
        });
        Evicting::adopt(self.page()).hold().keep();
        self.install_and_publish(stored | self.file.fetch_or(0, Ordering::Relaxed));
    }

    /// `Worker::fail`.
    fn fail(&self) {
        if self.word.note_failed() && self.omit != Omit::WakeOfFailure {
            self.wake();
        }
    }

    fn check_all(&self, stored: u32) {
        assert_eq!(self.announced.load(Ordering::Relaxed), 0);
        assert_eq!(*self.slot.lock().unwrap(), 0, "a store is left in a slot");
        self.check(stored | IN_FILE);
    }
}

impl Frame {
    /// A writer of the page's neighbours protects what lies between them.
    fn protect_resident(&self) {
        let protected = |entry: u32| (entry & Self::RESIDENT != 0).then_some(entry | Self::PROTECTED);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, protected);
    }

    fn unprotect_resident(&self) {
        let lifted = |entry: u32| (entry & Self::RESIDENT != 0).then_some(entry & !Self::PROTECTED);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, lifted);
    }
}

/// A thread stores to a Kept page once more, and flushes, while the fill thread fills it and a third one loads it.
fn kept(omit: Omit) {
    explore(2, move || {
        let behind = DeferredStores::new(omit);
        behind.keep_first(1);
        let threads = [
            spawn(&behind, |behind| behind.fill()),
            spawn(&behind, |behind| assert_eq!(behind.load_settled() & (1 | IN_FILE), 1 | IN_FILE)),
        ];
        behind.put(2);
        behind.flush_settled();
        let saved = behind.file.fetch_or(0, Ordering::Relaxed) & 3;
        join(threads);
        assert_eq!(saved, 3, "flushed: the file has what was stored before");
        behind.check_all(3);
    });
}

#[test]
fn stores_that_are_kept() {
    kept(Omit::Nothing);
}

/// The word is looked at before the slot's lock is taken.
#[test]
#[should_panic]
fn stores_that_are_kept_bite() {
    kept(Omit::LookUnderLock);
}

/// A flush has nothing to wait for.
#[test]
#[should_panic(expected = "flushed: the file has what was stored before")]
fn pages_that_are_not_announced_bite() {
    kept(Omit::Announce);
}

/// A page is done before a writer can find it.
#[test]
#[should_panic(expected = "flushed: the file has what was stored before")]
fn pages_that_are_done_too_early_bite() {
    kept(Omit::BitBeforeDone);
}

/// A thread stores to an Unread page, and flushes, while the fill thread takes it over and a writer of its neighbours
/// protects it.
fn unread(omit: Omit, flush: bool) {
    explore(2, move || {
        let behind = DeferredStores::new(omit);
        behind.install_initial();
        let threads =
            [spawn(&behind, |behind| behind.merge()), spawn(&behind, |behind| behind.frame.protect_resident())];
        behind.put(1);
        behind.put(2);
        let saved = if flush {
            behind.flush_settled();
            behind.file.fetch_or(0, Ordering::Relaxed) & 3
        } else {
            3
        };
        join(threads);
        assert_eq!(saved, 3, "flushed: the file has what was stored before");
        behind.check_all(3);
    });
}

#[test]
fn stores_over_the_initial_value() {
    unread(Omit::Nothing, false);
}

#[test]
fn stores_over_the_initial_value_are_flushed() {
    unread(Omit::Nothing, true);
}

/// The fill thread takes over what is there before it protects the page.
#[test]
#[should_panic(expected = "dropped: a store after what was there was taken over")]
fn stores_over_the_initial_value_bite() {
    unread(Omit::ProtectBeforeWrite, false);
}

/// A store lifts the protection that the fill thread has put on.
#[test]
#[should_panic(expected = "dropped: a store after what was there was taken over")]
fn protection_lifted_from_the_merger_bites() {
    unread(Omit::BeginLift, false);
}

/// The read fails while a thread waits for it and another stores; then it is tried again.
fn failing(omit: Omit) {
    explore(2, move || {
        let behind = DeferredStores::new(omit);
        behind.keep_first(1);
        let threads = [
            spawn(&behind, |behind| assert!(!behind.await_read(), "the read has failed")),
            spawn(&behind, |behind| behind.put(2)),
        ];
        behind.fail();
        join(threads);
        behind.fill();
        behind.check_all(3);
    });
}

#[test]
fn reads_that_fail() {
    failing(Omit::Nothing);
}

/// Whoever waits for it is not woken.
#[test]
#[should_panic(expected = "deadlock")]
fn reads_that_fail_bite() {
    failing(Omit::WakeOfFailure);
}
