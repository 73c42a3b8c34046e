//! Replacement: which pages to keep. A user of userfaultfd(2) sees no accessed bits, only misses. So a page shows that it is wanted by coming
//! back soon after it was evicted.
//!
//! The unit of time is the *memory*: as many evictions as the cache has pages. The word of an evicted page keeps a *ghost*: when the page was
//! evicted, and from which queue. For half a memory the ghost is *young*. A page that misses with a young ghost goes to its core's protected
//! queue, all others to the probationary one. Both queues are first in, first out, but for this: a page that came back soon twice in a row goes
//! to the end of the protected queue once more when its time comes, and one that came back more often three times (*turns*). Batches come
//! from the probationary queues while these hold more than a share of the clean pages of all cores, else from the protected ones.
//!
//! The share adapts, as in ARC (Megiddo and Modha, FAST 2003), but from misses alone:
//!
//! * A page that comes back soon from the probationary queue was given too little time there: the share grows.
//! * A page that comes back soon from the protected queue was pushed out by pages that the probationary queue holds for nothing: the share
//!   shrinks. This counts four times as much, since pages in the protected queue have proved themselves, and seldom miss.
//!
//! Each core counts its votes and folds them into the share with its next eviction, so a miss touches nothing that all cores write. With the
//! share at nine tenths this is first in, first out with a small reserve, which suits a hot set that moves. With the share at a 16th it is a
//! filter that a scan cannot get past.
//!
//! `Pool::note_missed`, `Pool::note_came_back` and `Pool::note_brought` choose the queue that a page enters; `evict_batch` chooses the queue that
//! gives a batch. Pages that a run brings count as missed, and so do those that a stream brings in its beginning, an eighth of the cache: it may be a
//! list or a block. Further on it is a walk. A chunk of 2 MiB that was read ahead has one stamp for all of its pages, which only loops use. Pages that
//! are dropped on advice leave no ghost. A page that was stored to enters its queue once it is written, and a page that may not go when its turn
//! comes enters again at the end. Of a loop larger than memory a part is kept (`loops.rs`).
//!
//! Ghosts have a second user: `auto_capacity.rs` grows a cache whose pages come back soon.

use crate::page::word::Ghost;
use crate::sys::sync::{AtomicU64, Ordering};

/// One memory of time, or a share of one.
const ONE: u64 = 1 << 40;
/// Stamps are 64ths of a memory: 21 bits of them last for 32768 memories, so that a page away for longer is rarely
/// mistaken for one that comes back soon (and then only kept for a while).
const STAMP_SHIFT: u32 = 34;
/// Age below which a ghost is young, in units of stamps.
const YOUNG: u32 = 32;
/// Births of queue entries are 256ths of a memory.
const BIRTH_SHIFT: u32 = 32;
/// Bounds of the probationary queue's share. It is at most nine tenths: the protected queue must give ghosts for the share to fall again.
const LEAST: u64 = ONE / 16;
const MOST: u64 = ONE / 10 * 9;
/// Pages by which one return moves the share: from the probationary queue up, from the protected queue down.
const TRIED: isize = 2;
const PROVED: isize = 8;

/// The clock that ghosts are stamped with, and the share of the probationary queues.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Ghosts {
    clock: AtomicU64,
    share: AtomicU64,
}

impl Ghosts {
    /// The state before the first eviction: the share is at its upper bound.
    pub fn new() -> Self {
        // Not zero: a stamp of zero is none.
        Ghosts { clock: AtomicU64::new(ONE), share: AtomicU64::new(MOST) }
    }

    /// Lets time pass by so many evicted pages of a cache of `capacity`. Called once a batch. True once in a quarter of a memory.
    pub fn advance(&self, evicted: usize, capacity: usize) -> bool {
        let passed = (evicted as u64 * ONE).checked_div(capacity as u64).unwrap_or(0);
        let before = self.clock.fetch_add(passed, Ordering::Relaxed);
        before / (ONE / 4) != before.wrapping_add(passed) / (ONE / 4)
    }

    /// The stamp for the word of a page that is evicted now; never zero.
    pub fn stamp(&self) -> u32 {
        ((self.clock.load(Ordering::Relaxed) >> STAMP_SHIFT) as u32 & Ghost::MOST).max(1)
    }

    /// The time of birth of an entry that is queued now.
    #[inline]
    pub fn birth(&self) -> u32 {
        (self.clock.load(Ordering::Relaxed) >> BIRTH_SHIFT) as u32
    }

    /// How long ago a page was evicted, in stamps.
    #[inline]
    pub fn away(&self, stamp: u32) -> u32 {
        self.stamp().wrapping_sub(stamp) & Ghost::MOST
    }

    /// Whether a page comes back soon.
    #[inline]
    pub fn is_young(&self, ghost: Ghost) -> bool {
        Self::is_young_at(self.away(ghost.stamp))
    }

    /// Whether a page that comes back after so long goes to the protected queue.
    #[inline]
    pub fn is_young_at(away: u32) -> bool {
        away < YOUNG
    }

    /// How often a page goes to the end of the protected queue before it is evicted: 0, 1 or 3 times, by how often in a row it came back soon.
    #[inline]
    pub fn turns(returns: u32) -> u32 {
        (1 << returns.saturating_sub(1)) - 1
    }

    /// The vote of such a page on the share; votes are gathered per core.
    #[inline]
    pub fn vote(ghost: Ghost) -> isize {
        if ghost.protected { -PROVED } else { TRIED }
    }

    /// The vote of a page of a loop: time in the probationary queue is no use to it.
    pub const OF_LOOP: isize = -PROVED;

    /// Moves the share by a core's votes, in pages.
    pub fn adapt(&self, votes: isize, capacity: usize) {
        let step = (votes.unsigned_abs() as u64).min(capacity as u64) * (ONE / capacity.max(1) as u64);
        let moved = |share: u64| if votes < 0 { share.saturating_sub(step) } else { share + step };
        let share = self.share.load(Ordering::Relaxed);
        // If two cores do this at once, the votes of one are lost, which does not matter.
        self.share.store(moved(share).clamp(LEAST, MOST), Ordering::Relaxed);
    }

    /// Whether the next batch comes from the protected queues, given the pages in both kinds of queue.
    pub fn takes_protected(&self, probationary: usize, protected: usize) -> bool {
        let target =
            u128::from(self.share.load(Ordering::Relaxed)) * (probationary + protected) as u128 / u128::from(ONE);
        probationary == 0 || protected > 0 && probationary as u128 <= target
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_young_for_half_a_memory_whatever_the_clock() {
        for start in [ONE, (1 << 56) - ONE / 4, u64::MAX - ONE / 4] {
            for capacity in [16, 1000, 1 << 18] {
                let ghosts = Ghosts { clock: AtomicU64::new(start), share: AtomicU64::new(MOST) };
                let ghost = Ghost { stamp: ghosts.stamp(), protected: false };
                assert!(ghost.stamp > 0 && ghosts.is_young(ghost));
                let mut evicted = 0;
                while ghosts.is_young(ghost) {
                    ghosts.advance(1, capacity);
                    evicted += 1;
                    assert!(evicted < capacity);
                }
                assert!(evicted * 32 > capacity * 15 && evicted * 32 <= capacity * 17 + 32, "{evicted} of {capacity}");
            }
        }
    }

    #[test]
    fn the_share_follows_the_votes_within_its_bounds() {
        let ghosts = Ghosts::new();
        assert!(!ghosts.takes_protected(901, 99) && ghosts.takes_protected(899, 101));
        ghosts.adapt(-400, 1000);
        assert!(!ghosts.takes_protected(501, 499) && ghosts.takes_protected(499, 501));
        ghosts.adapt(100, 1000);
        assert!(!ghosts.takes_protected(601, 399) && ghosts.takes_protected(599, 401));
        ghosts.adapt(isize::MIN, 1000);
        assert!(!ghosts.takes_protected(63, 937) && ghosts.takes_protected(62, 938));
        ghosts.adapt(isize::MAX, 1000);
        assert!(ghosts.takes_protected(899, 101));
        assert!(!ghosts.takes_protected(1, 0) && ghosts.takes_protected(0, 1), "a queue that is empty gives nothing");
    }
}
