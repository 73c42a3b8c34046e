//! Predicts whether the pages of a block are soon stored to after they are read. This spares traps.
//!
//! A page that is read is installed write-protected, and the first store to it traps once more (4 µs). Where nearly every page that is read
//! is soon stored to (a read-modify-write load), pages are installed writable from the start, and count as dirty from then on. A wrong
//! guess costs one needless write to the file.
//!
//! One page in 16, chosen by a hash of its number, is a *sample*: it is installed write-protected whatever the guess, so that its next
//! store traps and is noticed. After every 16 sample pages the block decides anew: it guesses while at least 12 of them were stored to
//! before the decision. When the pages of a block are no longer stored to, it has guessed wrong about 240 times before it stops. Until a
//! block has decided for the first time, it goes by what the file's pages showed before.

use crate::page::dirty::BLOCK_PAGES;
use crate::sys::memory::Zeroed;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// One page in so many is a sample.
pub const SAMPLES: usize = 16;
/// Sample pages loaded between two decisions.
const WINDOW: u32 = 16;
/// Of these, as many must be stored to for the block to guess.
const ENOUGH: u32 = 12;

const LOADS: u32 = 0xFF;
const STORE: u32 = 1 << 8;
const STORES: u32 = 0xFF << 8;
const GUESSING: u32 = 1 << 16;
const DECIDED: u32 = 1 << 17;

/// Whether a page is a sample: its first store traps, and tests the guess.
#[inline]
pub fn is_sample(page: usize) -> bool {
    // The high bits of a multiplicative hash: a program that writes every 16th page is not mistaken for one that writes all.
    (page as u32).wrapping_mul(0x9E37_79B1) >> 28 == 0
}

/// Whether the pages of a block, or of a whole file, are soon written after they are read. Zero: undecided.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct StorePrediction(AtomicU32);

impl StorePrediction {
    /// Whether a page that is read should be installed writable; `None`: undecided.
    #[inline]
    pub fn expects_store(&self) -> Option<bool> {
        let seen = self.0.load(Ordering::Relaxed);
        (seen & DECIDED != 0).then_some(seen & GUESSING != 0)
    }

    /// Notes that a sample page was loaded by a read. If this load ends a window in which the block was guessing, returns how many sample
    /// pages showed the guess wrong; else 0.
    pub fn note_load(&self) -> u32 {
        let mut wrong = 0;
        let decide = |seen: u32| {
            let loads = (seen & LOADS) + 1;
            let stores = (seen & STORES) / STORE;
            wrong = 0;
            if loads < WINDOW {
                return Some(seen + 1);
            }
            if seen & GUESSING != 0 {
                wrong = WINDOW.saturating_sub(stores);
            }
            Some(if stores >= ENOUGH { DECIDED | GUESSING } else { DECIDED })
        };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decide);
        wrong
    }

    /// Notes the first store to a sample page that was loaded by a read.
    pub fn note_store(&self) {
        let add = |seen: u32| (seen & STORES != STORES).then_some(seen + STORE);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// A region's predictions: one for each block, and one for the file.
#[derive(Debug)]
#[repr(align(128))] // written by all cores: on lines of its own, beside what they only read
pub struct Predictions {
    of_blocks: Zeroed<StorePrediction>,
    of_file: StorePrediction,
}

impl Predictions {
    /// No predictions yet, for so many pages.
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Predictions { of_blocks: Zeroed::new(pages.div_ceil(BLOCK_PAGES))?, of_file: StorePrediction::default() })
    }

    #[inline]
    pub fn expects_store(&self, page: usize) -> bool {
        let of_block = self.of_blocks[page / BLOCK_PAGES].expects_store();
        of_block.unwrap_or_else(|| self.of_file.expects_store().unwrap_or(false))
    }

    /// The predictions that a page is a sample of: its block's, and while that one is undecided, the file's.
    pub fn samples_at(&self, page: usize) -> impl Iterator<Item = &StorePrediction> {
        let of_block = &self.of_blocks[page / BLOCK_PAGES];
        let of_file = of_block.expects_store().is_none().then_some(&self.of_file);
        [Some(of_block), of_file].into_iter().flatten()
    }
}

// SAFETY: an integer.
unsafe impl crate::sys::memory::Zeroable for StorePrediction {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_guesses_while_most_controls_are_written_and_counts_what_was_wrong() {
        let habit = StorePrediction(AtomicU32::new(0));
        for _ in 0..WINDOW {
            assert_eq!(habit.expects_store(), None);
            habit.note_store(); // late and early stores count alike
            assert_eq!(habit.note_load(), 0);
        }
        assert_eq!(habit.expects_store(), Some(true));
        // A quarter not written: goes on, counted.
        (0..ENOUGH).for_each(|_| habit.note_store());
        let wrong: u32 = (0..WINDOW).map(|_| habit.note_load()).sum();
        assert_eq!((wrong, habit.expects_store()), (WINDOW - ENOUGH, Some(true)));
        // Nothing written any more: one window, then it stops.
        let wrong: u32 = (0..WINDOW).map(|_| habit.note_load()).sum();
        assert_eq!((wrong, habit.expects_store()), (WINDOW, Some(false)));
        assert_eq!((0..10 * WINDOW).map(|_| habit.note_load()).sum::<u32>(), 0);
    }

    #[test]
    fn stores_without_end_do_not_overflow_into_the_guess() {
        let habit = StorePrediction(AtomicU32::new(0));
        (0..1000).for_each(|_| habit.note_store());
        assert_eq!(habit.expects_store(), None);
    }

    #[test]
    fn controls_are_a_sixteenth_of_any_stride() {
        for stride in [1usize, 2, 3, 7, 16, 17, 64, 512] {
            let count = (0..16_000).filter(|step| is_sample(step * stride)).count();
            assert!((500..1500).contains(&count), "stride {stride}: {count}");
        }
    }
}
