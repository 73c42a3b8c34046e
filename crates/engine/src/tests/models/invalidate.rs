//! Models of pages that are invalidated for a file operation (`evict/invalidate.rs`).

use super::{Omit, World, explore, explore_large, join, spawn};
use crate::page::claims::{Loading, PageAccess};
use crate::page::word::{PageWord, State};
use crate::region::reach::Reach;
use crate::sys::sync::{AtomicUsize, Ordering};
use loom::sync::Arc;

/// What the operation writes.
const WRITTEN: u32 = 4;

impl World {
    /// `invalidate::invalidate` of the page, a write of it past the mapping, and letting it go: in memory again, as it was written,
    /// or absent. Its entry in the queue is left alone.
    fn write_past(&self, put_back: bool) {
        let claim = loop {
            let seen = self.word.look();
            match seen.state() {
                State::Absent => {
                    if let Some(claim) = Loading::begin(self, seen) {
                        break claim;
                    }
                }
                State::Clean | State::Dirty if !seen.is_upgrading() => {
                    if let Some(claim) = self.invalidate_page(true) {
                        break claim;
                    }
                }
                State::Staged | State::Unfilled | State::Buffered => {
                    unreachable!("no slot names the page, no store is deferred")
                }
                State::Loading | State::Evicting | State::Clean | State::Dirty => self.wait(seen),
            }
        };
        self.owned.with_mut(|_| {
            let bits = self.file.fetch_or(WRITTEN, Ordering::Relaxed) | WRITTEN;
            if put_back {
                self.frame.install(bits, true);
            }
        });
        if put_back { claim.finish(false, false, false, 0) } else { claim.abort() }
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
    explore_large(2, omit, move || {
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
    explore_large(2, Omit::Nothing, || {
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

/// A page that no thread has claimed before is held by the gate or by its word while its region's memory is replaced; another thread
/// claims it.
fn gate(omit: Omit) {
    struct Region {
        reach: Reach,
        word: PageWord,
        replacing: AtomicUsize,
    }
    fn claim(region: &Region) -> bool {
        let seen = region.word.look();
        seen.state() == State::Absent && region.word.begin_load(seen)
    }
    explore(3, move || {
        let region =
            Arc::new(Region { reach: Reach::default(), word: PageWord::new(), replacing: AtomicUsize::new(0) });
        let replace = move |region: &Region| {
            let early = region.reach.end();
            let shut = region.reach.shut();
            let end = if omit == Omit::ShutBeforeEnd { early } else { region.reach.end() };
            // An unlucky attempt does nothing.
            if end == 0 || claim(region) {
                region.replacing.fetch_add(1, Ordering::AcqRel);
                region.replacing.fetch_sub(1, Ordering::AcqRel);
                if end > 0 {
                    region.word.abort_load();
                }
            }
            drop(shut);
        };
        let thread = {
            let region = region.clone();
            loom::thread::spawn(move || replace(&region))
        };
        if region.reach.admits(0) && claim(&region) {
            assert_eq!(region.replacing.fetch_add(0, Ordering::AcqRel), 0, "a page comes into memory that is replaced");
            region.word.abort_load();
        }
        thread.join().unwrap();
    });
}

#[test]
fn the_gate_before_pages_never_claimed() {
    gate(Omit::Nothing);
}

/// How far pages were claimed is asked before the gate is shut.
#[test]
#[should_panic(expected = "a page comes into memory that is replaced")]
fn the_gate_before_pages_never_claimed_bites() {
    gate(Omit::ShutBeforeEnd);
}
