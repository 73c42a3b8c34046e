//! Pins against evictors, writers, stores and each other. `pin` and its kin follow `pin/pin.rs`.

use super::{Omit, World, explore, explore_large, join, spawn};
use crate::page::claims::{PageAccess, Upgrading, Writing};
use crate::page::word::{Claim, State};
use crate::sys::sync::Ordering;

impl World {
    /// `pinning::pin_one`, without the budget.
    fn pin(&self) {
        loop {
            let seen = self.word.look();
            if !matches!(seen.state(), State::Clean | State::Dirty) {
                self.trap(false);
            } else if self.word.try_pin(seen) {
                return;
            }
        }
    }

    /// `pinning::pin_one` and `keep_writable`.
    fn pin_for_writing(&self) {
        self.pin();
        let held = (self.omit != Omit::LockOfWritePin).then(|| self.writing.lock().unwrap());
        // Not if it was pinned so already: nobody has protected it then.
        while !self.word.look().is_pinned_for_writing() {
            let seen = self.word.look();
            if seen.is_upgrading() {
                self.wait(seen);
            } else if let Some(claim) = Upgrading::begin(self, seen) {
                let _ = claim.upgrade(0);
                break;
            }
        }
        assert!(self.word.pin_for_writing());
        drop(held);
    }

    /// `pinning::let_go`.
    fn unpin(&self, writing: bool) {
        let (_, after) = self.word.unpin(writing);
        if after.enqueue && self.omit != Omit::Requeue && self.word.requeue().is_some() {
            assert_eq!(self.entries.fetch_add(1, Ordering::AcqRel), 0, "two entries for one page");
        }
    }

    /// A load of a page that is pinned.
    fn load_pinned(&self) -> u32 {
        self.frame.load().expect("a pinned page is resident")
    }

    /// A store, perhaps the kernel's, to a page that is pinned for writing.
    fn store_pinned(&self, bits: u32) {
        if !self.frame.store(bits) {
            self.trapped.store(true, Ordering::Relaxed);
            self.store(bits);
        }
    }

    /// `sweep`: the flush of somebody who wants clean pages.
    fn sweep(&self) {
        let _held = self.writing.lock().unwrap();
        if self.take_bit() {
            if self.word.look().is_pinned_for_writing() {
                self.dirty.set(0);
            } else if let Some((claim, how)) = Writing::begin(self) {
                assert_eq!(how, Claim::Protect, "write pins come under the lock only");
                self.write(true, claim, how);
            }
        }
    }

    fn check_pins(&self, stored: u32) {
        let seen = self.word.look();
        assert!(!seen.is_pinned() && !seen.is_pinned_for_writing());
        assert!(!self.trapped.load(Ordering::Relaxed), "a store to a page pinned for writing trapped");
        if seen.state() == State::Absent {
            assert_eq!(self.entries.load(Ordering::Relaxed), 0, "an entry of a page that is gone");
        }
        self.check(stored);
    }
}

/// Two evictors want a page that two threads pin, one after the other unpins it: it stays, and its entry is neither lost nor
/// doubled.
fn pins_and_evictors(omit: Omit) {
    explore_large(3, omit, move || {
        let world = World::clean(omit);
        let other = spawn(&world, |world| {
            world.pin();
            assert_eq!(world.load_pinned(), 0);
            world.unpin(false);
        });
        let evictor = spawn(&world, |world| {
            world.evict();
            world.evict();
        });
        world.pin();
        assert_eq!(world.load_pinned(), 0);
        world.unpin(false);
        join([other, evictor]);
        world.check_pins(0);
    });
}

#[test]
fn pinned_pages_stay_and_come_back_to_a_queue() {
    pins_and_evictors(Omit::Nothing);
}

#[test]
#[should_panic(expected = "an evictor can find it")]
fn pins_bite_when_an_unpinned_page_is_not_queued_again() {
    pins_and_evictors(Omit::Requeue);
}

/// A page that is stored to and written back while it is pinned.
#[test]
fn a_pin_against_a_store_and_write_back() {
    explore_large(2, Omit::Nothing, || {
        let world = World::clean(Omit::Nothing);
        let threads = [
            spawn(&world, |world| {
                world.pin();
                assert!(world.load_pinned() < 2);
                world.unpin(false);
            }),
            spawn(&world, |world| {
                world.flush(true);
                world.evict();
            }),
        ];
        world.store(1);
        join(threads);
        world.check_pins(1);
    });
}

/// A page is expelled while it is pinned, or before or after.
#[test]
fn a_pin_against_an_expulsion() {
    explore(2, || {
        let world = World::clean(Omit::Nothing);
        world.store(1);
        let threads = [spawn(&world, |world| world.drop_page(true)), spawn(&world, |world| world.evict())];
        world.pin();
        assert_eq!(world.load_pinned(), 1);
        world.unpin(false);
        join(threads);
        world.check_pins(1);
    });
}

/// One thread pins a page for writing, stores and flushes; another flushes or sweeps, and evicts what is clean.
fn write_pin_and_writer(omit: Omit, sweep: bool) {
    explore(2, move || {
        let world = World::clean(omit);
        let writer = spawn(&world, move |world| {
            if sweep {
                world.sweep()
            } else {
                world.flush(true)
            }
            world.evict();
        });
        world.pin_for_writing();
        world.store_pinned(1);
        world.flush(true);
        assert_eq!(world.file.fetch_or(0, Ordering::Relaxed), 1, "flushed and not in the file");
        world.store_pinned(2);
        world.unpin(true);
        join([writer]);
        world.check_pins(3);
    });
}

#[test]
fn a_page_pinned_for_writing_against_a_flush() {
    write_pin_and_writer(Omit::Nothing, false);
}

#[test]
fn a_page_pinned_for_writing_against_a_sweep() {
    write_pin_and_writer(Omit::Nothing, true);
}

#[test]
#[should_panic(expected = "pinned for writing trapped")]
fn write_pins_bite_when_writers_protect_the_page() {
    write_pin_and_writer(Omit::KeepWritable, false);
}

#[test]
#[should_panic(expected = "a writer can find it")]
fn write_pins_bite_when_writers_forget_the_bit() {
    write_pin_and_writer(Omit::BitAfterKeeping, false);
}

#[test]
#[should_panic(expected = "pinned for writing trapped")]
fn write_pins_bite_without_the_lock() {
    write_pins_of_a_dirty_page(Omit::LockOfWritePin);
}

/// A page that is dirty when it is pinned for writing, so that a writer may have begun with it, and is stored to by others.
fn write_pins_of_a_dirty_page(omit: Omit) {
    explore(2, move || {
        let world = World::clean(omit);
        world.store(1);
        let writer = spawn(&world, |world| world.flush(true));
        let other = spawn(&world, |world| world.store(2));
        world.pin_for_writing();
        world.store_pinned(4);
        world.unpin(true);
        join([writer, other]);
        world.check_pins(7);
    });
}

#[test]
fn a_dirty_page_is_pinned_for_writing() {
    write_pins_of_a_dirty_page(Omit::Nothing);
}

/// Two threads pin one page for writing, and a writer comes by.
#[test]
fn two_write_pins_against_a_writer() {
    explore(2, || {
        let world = World::clean(Omit::Nothing);
        let other = spawn(&world, |world| {
            world.pin_for_writing();
            world.store_pinned(2);
            world.unpin(true);
        });
        let writer = spawn(&world, |world| world.flush(true));
        world.pin_for_writing();
        world.store_pinned(1);
        world.unpin(true);
        join([other, writer]);
        world.check_pins(3);
    });
}
