//! Groups of clean pages that become writable together, at a store to one of them: those that were dirty when they were last written.
//!
//! A flush write-protects the pages that it writes, so the next store to each of them would trap (4 µs each). Therefore a trap makes
//! neighbours of its page writable as well (0.1 µs each in a run): the pages of its *group*, 64 at most, that were dirty when a writer last
//! took the group. Such a page counts as dirty; if nobody stores to it, it is written in vain. So a guess wastes no more than the program
//! itself had dirtied before, and whether to guess is learnt.
//!
//! Writers learn it. Each time a writer takes a whole group, it knows which of its pages were dirty then and which are now. One of the
//! former, the *sample*, becomes writable by its own store only. So whether it is dirty now tells whether the guess was right, or would
//! have been. After every 16 samples of a block (`region/prediction.rs`) the block guesses on while at least 12 of them were stored to. A
//! sample that was not stored to leaves the group, and another page takes its place. Until a block has decided, it goes by what the file's
//! groups showed before. Until the file has, it guesses with groups of 8 pages: so at most 8 pages are written for one, and once.

use crate::page::dirty::BLOCK_PAGES;
use crate::region::prediction::StorePrediction;
use crate::sys::memory::{Zeroable, Zeroed};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages in a group: those under one word of the dirty bitmap.
pub const GROUP_PAGES: usize = 64;
/// Pages in a group before anything was learnt.
const HOPEFUL: usize = 8;

/// The groups of a block, and the prediction for them.
#[derive(Debug)]
struct Block {
    /// For each group, which of its pages were dirty when a writer last took it.
    members: [AtomicU64; BLOCK_PAGES / GROUP_PAGES],
    prediction: StorePrediction,
}

// SAFETY: integers.
unsafe impl Zeroable for Block {}

/// The groups of a region.
#[derive(Debug)]
#[repr(align(128))] // on lines of its own, beside what threads only read
pub struct StoreGroups {
    blocks: Zeroed<Block>,
    of_file: StorePrediction,
}

impl StoreGroups {
    /// For so many pages, of which the first `likely` are expected to be touched. Nothing is known of them yet.
    pub fn new(pages: usize, likely: usize) -> io::Result<Self> {
        let blocks = Zeroed::sparse(pages.div_ceil(BLOCK_PAGES), likely / BLOCK_PAGES)?;
        Ok(StoreGroups { blocks, of_file: StorePrediction::default() })
    }

    /// The pages that should become writable with a page that is stored to: a bit for each page of its group, without its own.
    #[inline]
    pub fn companions(&self, page: usize) -> u64 {
        let (group, within) = (page / GROUP_PAGES, page % GROUP_PAGES);
        let block = &self.blocks[page / BLOCK_PAGES];
        let members = block.members[group % block.members.len()].load(Ordering::Relaxed);
        if members >> within & 1 == 0 {
            return 0;
        }
        let around = match self.guess(page / BLOCK_PAGES) {
            Some(true) => u64::MAX,
            Some(false) => 0,
            None => ((1 << HOPEFUL) - 1) << (within / HOPEFUL * HOPEFUL),
        };
        members & around & !(1 << within | sample_of(group, members))
    }

    /// Learns from a writer that takes pages of a block, under the block's lock. The writer has gone over `pages`; `dirty` has a word for
    /// each group of the block, with the pages that were dirty. Groups that it has gone over in part say nothing. Returns an estimate of
    /// how many of the dirty pages nobody has stored to.
    pub fn note_taken(&self, block: usize, pages: Range<usize>, dirty: impl Iterator<Item = u64>) -> usize {
        let guessed = self.guess(block) == Some(true);
        let groups = (block * BLOCK_PAGES / GROUP_PAGES..).zip(dirty);
        let whole = |group: usize| pages.start <= group * GROUP_PAGES && (group + 1) * GROUP_PAGES <= pages.end;
        let wrong =
            groups.filter(|(group, dirty)| *dirty != 0 && whole(*group)).map(|(group, dirty)| self.learn(group, dirty));
        // The sum runs `learn` for all groups, also where nothing was guessed.
        let wrong = wrong.sum();
        if guessed { wrong } else { 0 }
    }

    /// Returns how many pages of the group are likely to have become dirty by a guess only, if there was one.
    fn learn(&self, group: usize, dirty: u64) -> usize {
        let block = &self.blocks[group * GROUP_PAGES / BLOCK_PAGES];
        let members = &block.members[group % block.members.len()];
        let before = members.load(Ordering::Relaxed);
        if before != dirty {
            members.store(dirty, Ordering::Relaxed);
        }
        if before.count_ones() < 2 || before & dirty == 0 {
            return 0;
        }
        let of_file = block.prediction.expects_store().is_none().then_some(&self.of_file);
        let is_stored_to = dirty & sample_of(group, before) != 0;
        for prediction in [Some(&block.prediction), of_file].into_iter().flatten() {
            if is_stored_to {
                prediction.note_store();
            }
            prediction.note_load();
        }
        // The others are taken to be like the sample.
        if is_stored_to { 0 } else { (before & dirty).count_ones() as usize }
    }

    fn guess(&self, block: usize) -> Option<bool> {
        self.blocks[block].prediction.expects_store().or_else(|| self.of_file.expects_store())
    }
}

/// The sample among a group's pages, as a bit: the first page from a place on that a hash of the group's number gives, going round.
fn sample_of(group: usize, members: u64) -> u64 {
    let from = (group as u32).wrapping_mul(0x9E37_79B1) >> 26;
    let turned = members.rotate_right(from);
    (turned & turned.wrapping_neg()).rotate_left(from)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = BLOCK_PAGES;

    /// The pages that are dirty after these were stored to, a word for each group of the block.
    fn stores(groups: &StoreGroups, pages: impl IntoIterator<Item = usize>) -> Vec<u64> {
        let mut dirty = vec![0; PAGES / GROUP_PAGES];
        for page in pages {
            let word: &mut u64 = &mut dirty[page / GROUP_PAGES];
            if *word >> (page % GROUP_PAGES) & 1 == 0 {
                *word |= 1 << (page % GROUP_PAGES) | groups.companions(page);
            }
        }
        dirty
    }

    fn count(dirty: &[u64]) -> usize {
        dirty.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// One page in 20, others each time.
    fn some(round: usize) -> impl Iterator<Item = usize> {
        (0..PAGES).filter(move |page| (page * 31 + round * 17) as u32 % 1021 % 20 == 7)
    }

    fn traps(groups: &StoreGroups, dirty: &[u64]) -> usize {
        let mut traps = 0;
        let mut seen = vec![0u64; dirty.len()];
        for page in 0..PAGES {
            if seen[page / GROUP_PAGES] >> (page % GROUP_PAGES) & 1 == 0 {
                traps += 1;
                seen[page / GROUP_PAGES] |= 1 << (page % GROUP_PAGES) | groups.companions(page);
            }
        }
        traps
    }

    #[test]
    fn groups_grow_while_all_of_them_is_stored_to_and_end_when_it_is_not() {
        let groups = StoreGroups::new(PAGES, PAGES).unwrap();
        let all = vec![u64::MAX; PAGES / GROUP_PAGES];
        assert_eq!(traps(&groups, &all), PAGES, "nothing is known");
        assert_eq!(groups.note_taken(0, 0..PAGES, all.iter().copied()), 0);
        // One of 8 pages, and the samples but where one is the first of its 8.
        let hopeful = traps(&groups, &all);
        assert!((PAGES / 8..PAGES / 8 + PAGES / 64).contains(&hopeful), "{hopeful}");
        assert_eq!(groups.note_taken(0, 0..PAGES, all.iter().copied()), 0);
        let learnt = traps(&groups, &all);
        assert!((PAGES / 64..=PAGES / 32).contains(&learnt), "{learnt}");
        // The program changes to one page in 20: once, most pages are written; then only those that it stores to.
        let dirty = stores(&groups, some(0));
        assert!(count(&dirty) > PAGES / 2);
        assert!(groups.note_taken(0, 0..PAGES, dirty.into_iter()) > PAGES / 2, "what was wrong is counted");
        for round in 1..10 {
            let dirty = stores(&groups, some(round));
            assert_eq!(count(&dirty), some(round).count(), "round {round}");
            assert_eq!(groups.note_taken(0, 0..PAGES, dirty.into_iter()), 0);
        }
        // All of them again: twice a trap for each, for the last time's one in 20 are what it may guess by.
        let rounds = (0..3).map(|_| {
            let dirty = stores(&groups, 0..PAGES);
            let traps = traps(&groups, &dirty);
            groups.note_taken(0, 0..PAGES, dirty.into_iter());
            traps
        });
        let rounds: Vec<usize> = rounds.collect();
        assert!(rounds[0] == PAGES && rounds[2] <= PAGES / 32, "{rounds:?}");
    }

    #[test]
    fn before_anything_is_learnt_at_most_eight_pages_are_written_for_one() {
        let groups = StoreGroups::new(PAGES, PAGES).unwrap();
        groups.note_taken(0, 0..PAGES, vec![u64::MAX; PAGES / GROUP_PAGES].into_iter());
        let dirty = stores(&groups, some(0));
        assert!((2 * some(0).count()..8 * some(0).count()).contains(&count(&dirty)), "{}", count(&dirty));
        groups.note_taken(0, 0..PAGES, dirty.into_iter());
        assert_eq!(count(&stores(&groups, some(1))), some(1).count());
    }

    #[test]
    fn a_group_that_is_written_in_part_says_nothing() {
        let groups = StoreGroups::new(PAGES, PAGES).unwrap();
        let all = || vec![u64::MAX; PAGES / GROUP_PAGES].into_iter();
        groups.note_taken(0, 1..127, all());
        assert!((0..PAGES).all(|page| groups.companions(page) == 0));
        groups.note_taken(0, 64..129, all());
        assert!((0..PAGES).all(|page| (groups.companions(page) != 0) == (64..128).contains(&page)));
    }

    proptest! {
        #[test]
        fn companions_were_dirty_and_are_neither_the_page_nor_the_sample(
            rounds in prop::collection::vec((any::<u64>(), any::<u64>()), 1..60), page in 0usize..64
        ) {
            let groups = StoreGroups::new(PAGES, PAGES).unwrap();
            for (some, others) in rounds {
                // Dense, half, and sparse ones.
                let dirty = if others % 3 == 0 { u64::MAX } else if others % 3 == 1 { some } else { some & others };
                groups.note_taken(0, 0..PAGES, [dirty, dirty.reverse_bits()].into_iter());
                let before = if dirty == 0 { groups.blocks[0].members[0].load(Ordering::Relaxed) } else { dirty };
                let found = groups.companions(page);
                prop_assert_eq!(found & !before, 0);
                prop_assert_eq!(found & (1 << page), 0);
                if before != 0 {
                    prop_assert_eq!(sample_of(0, before).count_ones(), 1);
                    prop_assert_eq!(sample_of(0, before) & before & !found, sample_of(0, before));
                }
            }
        }
    }
}
