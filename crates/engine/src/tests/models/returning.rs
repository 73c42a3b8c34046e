//! A page word whose memory goes back to the kernel, against threads that load its page, store to it and evict it. `give_back` follows
//! `evict/bookkeeping.rs`.

use super::{Omit, World, explore, join, spawn};
use crate::sys::sync::Ordering;

impl World {
    /// Gives the word back, if the page is absent: the kernel puts zeros in its place, and wakes nobody.
    fn give_back(&self) {
        if self.word.may_return() && (self.omit == Omit::BeginReturn || self.word.begin_return()) {
            self.word.futex().swap(0, Ordering::AcqRel);
        }
    }
}

/// A page is stored to, written, evicted and loaded again while its word goes back whenever the page is absent.
fn word_goes_back(omit: Omit) {
    explore(2, move || {
        let world = World::absent(omit);
        let threads = [
            spawn(&world, World::give_back),
            spawn(&world, |world| {
                world.evict();
                world.give_back();
            }),
        ];
        world.store(1);
        assert_eq!(world.load(), 1, "the page has the store");
        join(threads);
        world.check(1);
    });
}

#[test]
fn a_word_goes_back_between_loads() {
    word_goes_back(Omit::Nothing);
}

/// The word is not claimed first: a load that has begun meanwhile is forgotten.
#[test]
#[should_panic]
fn a_word_goes_back_bites_without_a_claim() {
    word_goes_back(Omit::BeginReturn);
}
