//! Pages that become writable with a neighbour, against writers, evictors and threads that do the same from the other side.
//! `group` follows `region/install.rs::upgrade_group`.

use super::{Omit, World, explore_large, join, spawn};
use crate::page::claims::{PageAccess, Upgrading};
use crate::page::word::State;
use crate::sys::sync::Ordering;
use loom::sync::Arc;

impl World {
    /// A trap for a store: makes this page writable, and the other, if nobody has it.
    fn group(&self, other: &World) {
        let seen = self.word.look();
        if seen.state() != State::Clean || seen.is_upgrading() {
            return self.trap(true);
        }
        let Some(claim) = Upgrading::begin(self, seen) else { return };
        claim.mark_dirty();
        claim.keep();
        let seen = other.word.look();
        let with = if seen.may_accompany() { Upgrading::begin(other, seen) } else { None };
        let with = with.map(|claim| {
            claim.mark_dirty();
            claim.keep()
        });
        for page in [Some(self), with].into_iter().flatten() {
            let _ = page.protect(false);
            Upgrading::adopt(page).finish(0);
        }
    }

    fn store_with(&self, bits: u32, other: &World) {
        while !self.frame.store(bits) {
            self.group(other);
        }
    }
}

/// Two threads store to two pages, each with the other's as its companion; one flushes and evicts.
fn pages_together(omit: Omit) {
    explore_large(2, omit, move || {
        let pages = Arc::new((World::clean(omit), World::clean(omit)));
        let other = spawn(&pages, |pages| {
            pages.0.flush(true);
            pages.0.evict();
        });
        let back = spawn(&pages, |pages| pages.1.store_with(1, &pages.0));
        pages.0.store_with(1, &pages.1);
        pages.0.flush(true);
        let file = pages.0.file.load(Ordering::Relaxed);
        join([other, back]);
        assert_eq!(file, 1, "flushed: the file has the store");
        pages.0.check(1);
        pages.1.check(1);
    });
}

#[test]
fn pages_become_writable_together() {
    pages_together(Omit::Nothing);
}

/// The companion's dirty bit comes after it is writable.
#[test]
#[should_panic(expected = "the file has the store")]
fn pages_become_writable_together_bite() {
    pages_together(Omit::BitBeforeUnprotect);
}
