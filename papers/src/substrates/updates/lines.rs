//! What every 64-byte line of an update benchmark's file holds, and how it is checked.
//!
//! | word | what | depends on |
//! | --- | --- | --- |
//! | 0 | generation of the last store of the whole line | |
//! | 1 .. 6 | body, incompressible | line number, word 0 and position |
//! | 7 | generation of the last store to the line, whole or of this word alone | |
//!
//! So a line mixed from two stores, from a store and what the file held, or from another line does not pass, and a lost store
//! shows by its generation. Generations are `Shadow`'s: the run's number in the upper half.

use crate::substrates::stamp::mix;
use crate::substrates::{Error, PAGE, Result};

/// Bytes in a cache line.
pub const LINE: usize = 64;

/// Lines in a page.
pub const PAGE_LINES: u64 = (PAGE / LINE) as u64;

/// Word of a line that 8-byte stores go to.
pub const LAST: usize = 7;

/// What absent lines read as under the AR protocol. No line ever holds it: its word 0 is no generation.
pub const INITIAL: [u8; LINE] = [0xff; LINE];

const WORDS: usize = LINE / 8;

/// A line's words.
pub type Words = [u64; WORDS];

/// What a line must show after some stores of a run whose generations begin above `base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The run did not store to it.
    Before {
        /// No generation is above it.
        base: u64,
    },
    /// The run stored to word [`LAST`] only.
    Word {
        /// The whole line is no newer.
        base: u64,
        /// The last store's.
        generation: u64,
    },
    /// The run stored all of it.
    Whole {
        /// The last store's.
        generation: u64,
    },
}

/// What `line` holds after a store of all of it.
#[inline]
pub fn whole(line: u64, generation: u64) -> Words {
    let key = key(line, generation);
    std::array::from_fn(|word| match word {
        0 | LAST => generation,
        _ => body(key, word),
    })
}

/// Checks every word of `line`.
///
/// # Errors
///
/// [`Error::Generation`] or [`Error::Stamp`] naming the page and the offset of the first wrong word.
#[inline]
pub fn check(line: u64, words: &Words, expected: Expected) -> Result<()> {
    let (first, last) = (words[0], words[LAST]);
    let right = |found: u64, at: usize, right: bool, belongs: &dyn Fn() -> String| match right {
        true => Ok(()),
        false => Err(lost(line, at, found, belongs())),
    };
    match expected {
        Expected::Before { base } => {
            right(first, 0, first <= base, &|| format!("at most {base:#x}"))?;
            right(last, LAST, (first..=base).contains(&last), &|| format!("{first:#x} to {base:#x}"))?;
        }
        Expected::Word { base, generation } => {
            right(first, 0, first <= base, &|| format!("at most {base:#x}"))?;
            right(last, LAST, last == generation, &|| format!("{generation:#x}"))?;
        }
        Expected::Whole { generation } => {
            right(first, 0, first == generation, &|| format!("{generation:#x}"))?;
            right(last, LAST, last == generation, &|| format!("{generation:#x}"))?;
        }
    }
    let key = key(line, first);
    for (word, &found) in words.iter().enumerate().take(LAST).skip(1) {
        let expected = body(key, word);
        if found != expected {
            let offset = line * LINE as u64 + word as u64 * 8;
            return Err(Error::Stamp { page: offset / PAGE as u64, offset, expected, found });
        }
    }
    Ok(())
}

#[cold]
fn lost(line: u64, word: usize, found: u64, expected: String) -> Error {
    let offset = line * LINE as u64 + word as u64 * 8;
    Error::Generation { page: offset / PAGE as u64, offset, found, expected }
}

/// The words of the line that `bytes` begin with.
///
/// # Panics
///
/// If `bytes` are fewer than [`LINE`].
#[inline]
pub fn words(bytes: &[u8]) -> Words {
    let (words, _) = bytes[..LINE].as_chunks::<8>();
    std::array::from_fn(|word| u64::from_le_bytes(words[word]))
}

/// Puts a line into `bytes`.
///
/// # Panics
///
/// If `bytes` are fewer than [`LINE`].
#[inline]
pub fn put(bytes: &mut [u8], words: &Words) {
    for (bytes, word) in bytes[..LINE].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Fills `bytes`, a page or a part of one that begins with `line`, with whole stores of a generation.
pub fn fill(bytes: &mut [u8], line: u64, generation: u64) {
    for (bytes, line) in bytes.chunks_exact_mut(LINE).zip(line..) {
        put(bytes, &whole(line, generation));
    }
}

/// Which line of `page` single stores go to: any, but the same in every run.
pub fn target(page: u64) -> u64 {
    page * PAGE_LINES + mix(page ^ 0x6c69_6e65) % PAGE_LINES
}

/// What line and generation contribute to the body.
#[inline]
fn key(line: u64, generation: u64) -> u64 {
    mix(line.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.rotate_left(32))
}

#[inline]
fn body(key: u64, word: usize) -> u64 {
    key ^ (word as u64).wrapping_mul(0xd1b5_4a32_d192_ed03)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 3 << 32;

    #[test]
    fn what_was_stored_passes_and_nothing_else() {
        let (line, generation) = (77, BASE + 1);
        let old = whole(line, 2 << 32);
        let new = whole(line, generation);
        check(line, &old, Expected::Before { base: BASE }).unwrap();
        check(line, &new, Expected::Whole { generation }).unwrap();
        assert!(check(line + 1, &old, Expected::Before { base: BASE }).is_err(), "another line's bytes");
        assert!(check(line, &new, Expected::Before { base: BASE }).is_err(), "a store nobody made");
        assert!(check(line, &old, Expected::Whole { generation }).is_err(), "a lost store");
        let mut word = old;
        word[LAST] = generation;
        check(line, &word, Expected::Word { base: BASE, generation }).unwrap();
        assert!(check(line, &old, Expected::Word { base: BASE, generation }).is_err());
        assert!(check(line, &new, Expected::Word { base: BASE, generation }).is_err());
        check(line, &word, Expected::Before { base: BASE + 1 }).expect("the next run finds it so");
        for (mixed, take) in (1..WORDS).map(|count| (count, &new[..count])) {
            let mut words = old;
            words[..mixed].copy_from_slice(take);
            assert!(check(line, &words, Expected::Whole { generation }).is_err(), "{mixed} words of the new line");
        }
    }

    #[test]
    fn any_flipped_word_is_found_and_located() {
        for word in 0..WORDS {
            let mut words = whole(130, BASE + 9);
            words[word] ^= 1 << 40;
            match check(130, &words, Expected::Whole { generation: BASE + 9 }) {
                Err(Error::Stamp { page: 2, offset, .. } | Error::Generation { page: 2, offset, .. }) => {
                    // The body depends on word 0, which is looked at first.
                    assert_eq!(offset, 130 * 64 + word as u64 * 8);
                }
                other => panic!("word {word}: {other:?}"),
            }
        }
    }

    #[test]
    fn no_line_is_the_initial_value_and_bytes_go_both_ways() {
        let mut bytes = [0; PAGE];
        fill(&mut bytes, 640, BASE);
        for (line, bytes) in (640..).zip(bytes.chunks_exact(LINE)) {
            assert_ne!(bytes, INITIAL);
            check(line, &words(bytes), Expected::Whole { generation: BASE }).unwrap();
        }
        assert!(check(3, &words(&INITIAL), Expected::Before { base: u64::MAX - 1 }).is_err());
    }

    #[test]
    fn targets_lie_in_their_page_and_anywhere_in_it() {
        let seen: std::collections::HashSet<u64> = (0..2000).map(|page| target(page) - page * PAGE_LINES).collect();
        assert_eq!(seen.len() as u64, PAGE_LINES);
        assert!(seen.iter().all(|line| *line < PAGE_LINES));
    }
}
