//! Models of pages that are seized for a file operation (`seize.rs`).

use super::{Omit, World, explore, join, spawn};
use crate::page::State;
use crate::sync::Ordering;

/// What the operation writes.
const WRITTEN: u32 = 4;

impl World {
    /// `seize::seize` of the page, a write of it past the mapping, and letting it go: in memory again, as it was written, or
    /// absent. Its entry in the queue is left alone.
    fn write_past(&self, put_back: bool) {
        loop {
            let seen = self.word.look();
            match seen.state() {
                State::Absent if self.word.begin_load(seen) => break,
                State::Absent => {}
                State::Clean | State::Dirty if !seen.is_upgrading() => {
                    if self.expel_for_good() {
                        break;
                    }
                }
                State::Staged | State::Unread | State::Kept => {
                    unreachable!("no slot names the page, nothing is read behind")
                }
                State::Loading | State::Evicting | State::Clean | State::Dirty => {
                    if let Some(expected) = self.word.announce_waiter(seen) {
                        self.sleep(expected);
                    }
                }
            }
        }
        self.owned.with_mut(|_| {
            let bits = self.file.fetch_or(WRITTEN, Ordering::Relaxed) | WRITTEN;
            if put_back {
                self.frame.install(bits, true);
            }
        });
        self.after(if put_back { self.word.finish_load(false, false, false) } else { self.word.abort_load() });
    }

    /// `Seized::expel_run`, of one page.
    fn expel_for_good(&self) -> bool {
        let _held = self.writing.lock().unwrap();
        let Some((was_dirty, _)) = self.word.begin_seize() else { return false };
        if was_dirty {
            self.take_bit();
            if self.omit != Omit::ProtectBeforeWrite {
                self.frame.protect(true);
            }
            let bits = self.frame.load().expect("a page that is being written is resident");
            self.file.swap(bits, Ordering::Relaxed);
        }
        self.owned.with_mut(|_| {
            let bits = self.frame.drop_memory();
            assert_eq!(bits, self.file.fetch_or(0, Ordering::Relaxed), "a page dropped that the file has not");
        });
        self.word.hold();
        true
    }

    /// With all threads gone: an entry is of a page that is there, or the word says that it may be void.
    fn check_entries(&self) {
        let entries = self.entries.load(Ordering::Relaxed);
        assert!(entries <= 1);
        if entries == 1 && self.word.look().state() == State::Absent {
            assert!(self.word.void_entry(), "an entry of which the page's word does not know");
        }
    }
}

/// A thread stores twice to a page that another writes past the mapping, while a third evicts it.
fn store_write_evict(omit: Omit, put_back: bool) {
    explore(2, move || {
        let world = World::clean(omit);
        let threads = [spawn(&world, move |world| world.write_past(put_back)), spawn(&world, |world| world.evict())];
        world.store(1);
        world.store(2);
        join(threads);
        world.check_entries();
        world.check(3 | WRITTEN);
    });
}

#[test]
fn stores_beside_a_write_past_the_mapping() {
    store_write_evict(Omit::Nothing, true);
    store_write_evict(Omit::Nothing, false);
}

/// The page is written to the file before it is protected.
#[test]
#[should_panic(expected = "a page dropped that the file has not")]
fn stores_beside_a_write_past_the_mapping_bite() {
    store_write_evict(Omit::ProtectBeforeWrite, true);
}

/// A page that is written past the mapping twice, while others flush it and load it: it keeps one entry.
#[test]
fn two_writes_past_the_mapping_keep_one_entry() {
    explore(2, || {
        let world = World::clean(Omit::Nothing);
        world.store(1);
        let threads = [
            spawn(&world, |world| {
                world.flush(true);
                world.evict();
            }),
            spawn(&world, |world| world.write_past(true)),
        ];
        world.write_past(false);
        assert_eq!(world.load(), 1 | WRITTEN);
        join(threads);
        world.check_entries();
        world.check(1 | WRITTEN);
    });
}
