//! The contents of every page of a benchmark file, and how they are checked.
//!
//! | offset | word | depends on |
//! | --- | --- | --- |
//! | 0 | identity | page number |
//! | 8 | generation | the last store: epoch in the upper half, count of stores in that epoch in the lower |
//! | 16 | epoch | page 0 only: the number of write runs the file has seen; zero elsewhere |
//! | 24 .. 4088 | body | page number and position, incompressible |
//! | 4088 | check | page number |
//!
//! Each word of identity, body and check is the exclusive-or of two pseudo-random words. One depends on the word's position and is the same in
//! all pages; the other depends on the page. No two of these words are equal within a page, nor at the same position of two pages. So a
//! compressing device (zram, some SSDs) finds nothing to compress. Stamping a page is a loop of vector instructions, which takes about 0.1 us.
//! That matters where whole pages are stored (the `fill` pattern).
//!
//! Each operation of a load checks three words ([`check_stamp`]); the read-back after a write run checks all 512
//! ([`check_page`]).

use crate::substrates::{Error, PAGE, Result};

const WORDS: usize = PAGE / 8;
const GENERATION: usize = 1;
const EPOCH: usize = 2;
const MIDDLE: usize = WORDS / 2;
const LAST: usize = WORDS - 1;

/// Byte offset of the generation within a page.
pub const GENERATION_OFFSET: usize = GENERATION * 8;

/// Byte offset of the epoch within page 0.
pub const EPOCH_OFFSET: usize = EPOCH * 8;

/// The generation of a page that no run has written. Before the first write run no page has a higher one.
pub const FIRST_GENERATION: u64 = 0;

/// The generation before those of write run `epoch`. The first store of the run to a page has `base_generation(epoch) + 1`, the next one `+ 2`.
pub fn base_generation(epoch: u32) -> u64 {
    u64::from(epoch) << 32
}

/// splitmix64's finaliser: every bit of the result depends on every bit of `x`.
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The part of a word that depends on its position.
static POSITIONS: [u64; WORDS] = {
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < WORDS {
        words[index] = mix((index as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        index += 1;
    }
    words
};

/// The part of a word that depends on its page. It differs for any two pages, since each step is a bijection.
fn key(page: u64) -> u64 {
    mix(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6661_7374_6d61_7021)
}

/// Fills `bytes`, which are one page, with the stamp of `page` and a generation. Page 0 also gets the generation's epoch.
///
/// # Panics
///
/// If `bytes` is not [`PAGE`] bytes long.
pub fn fill(bytes: &mut [u8], page: u64, generation: u64) {
    assert_eq!(bytes.len(), PAGE);
    let key = key(page);
    for (chunk, position) in bytes.chunks_exact_mut(8).zip(&POSITIONS) {
        chunk.copy_from_slice(&(position ^ key).to_le_bytes());
    }
    set_generation(bytes, generation);
    let epoch = if page == 0 { generation >> 32 } else { 0 };
    bytes[EPOCH_OFFSET..EPOCH_OFFSET + 8].copy_from_slice(&epoch.to_le_bytes());
}

/// The generation in a page held in a buffer.
pub fn generation(bytes: &[u8]) -> u64 {
    load(bytes, GENERATION)
}

/// Stores a generation into a page held in a buffer.
pub fn set_generation(bytes: &mut [u8], generation: u64) {
    bytes[GENERATION_OFFSET..GENERATION_OFFSET + 8].copy_from_slice(&generation.to_le_bytes());
}

/// The epoch in page 0 held in a buffer.
pub fn epoch(bytes: &[u8]) -> u64 {
    load(bytes, EPOCH)
}

fn load(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// Checks the first word of `page`, one in the middle, and the last one. `load` reads the word at a byte offset within the page.
///
/// The three words lie on different cache lines. So zeros, or another page's bytes, are found at the page's start, in its middle and at its
/// end.
///
/// # Errors
///
/// [`Error::Stamp`] naming the page and the offset of the first word that is wrong.
#[inline]
pub fn check_stamp(page: u64, load: impl Fn(usize) -> u64) -> Result<()> {
    let key = key(page);
    for index in [0, MIDDLE, LAST] {
        let (found, expected) = (load(index * 8), POSITIONS[index] ^ key);
        if found != expected {
            return Err(mismatch(page, index, expected, found));
        }
    }
    Ok(())
}

/// [`check_stamp`] on a page held in a buffer.
///
/// # Errors
///
/// As [`check_stamp`].
pub fn check_stamp_in(page: u64, bytes: &[u8]) -> Result<()> {
    check_stamp(page, |offset| load(bytes, offset / 8))
}

/// Checks every byte of a page except the generation, which it returns, and the epoch in page 0.
///
/// # Errors
///
/// [`Error::Stamp`] naming the page and the offset of the first word that is wrong.
pub fn check_page(page: u64, bytes: &[u8]) -> Result<u64> {
    let key = key(page);
    for index in (0..WORDS).filter(|&i| i != GENERATION && !(i == EPOCH && page == 0)) {
        let (found, expected) = (load(bytes, index), if index == EPOCH { 0 } else { POSITIONS[index] ^ key });
        if found != expected {
            return Err(mismatch(page, index, expected, found));
        }
    }
    Ok(generation(bytes))
}

/// Checks every byte of a page that no run has written. The loop over the words has no branch, so that it runs at the speed of memory.
///
/// # Errors
///
/// [`Error::Stamp`] naming the page and the offset of the first word that is wrong.
pub fn check_fresh(page: u64, bytes: &[u8]) -> Result<()> {
    let key = key(page);
    let words = bytes.chunks_exact(8).zip(&POSITIONS).skip(EPOCH + 1);
    let body = words.fold(0, |wrong, (word, position)| {
        wrong | (u64::from_le_bytes(word.try_into().expect("8 bytes")) ^ position ^ key)
    });
    let head =
        (load(bytes, 0) ^ POSITIONS[0] ^ key) | (load(bytes, GENERATION) ^ FIRST_GENERATION) | load(bytes, EPOCH);
    if body | head == 0 && bytes.len() == PAGE {
        return Ok(());
    }
    let generation = check_page(page, bytes)?;
    Err(match generation == FIRST_GENERATION {
        true => mismatch(page, EPOCH, 0, epoch(bytes)),
        false => mismatch(page, GENERATION, FIRST_GENERATION, generation),
    })
}

#[cold]
fn mismatch(page: u64, index: usize, expected: u64, found: u64) -> Error {
    Error::Stamp { page, offset: page * PAGE as u64 + index as u64 * 8, expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        fill(&mut bytes, page, FIRST_GENERATION);
        bytes
    }

    #[test]
    fn a_filled_page_passes_and_another_page_does_not() {
        for page in [0, 1, 77, 1 << 40] {
            let bytes = stamped(page);
            check_stamp_in(page, &bytes).unwrap();
            assert_eq!(check_page(page, &bytes).unwrap(), FIRST_GENERATION);
            assert!(check_stamp_in(page + 1, &bytes).is_err());
            assert!(check_page(page + 1, &bytes).is_err());
        }
    }

    #[test]
    fn any_flipped_byte_is_found_and_located() {
        let mut bytes = stamped(9);
        for offset in (0..PAGE).filter(|o| !(GENERATION_OFFSET..GENERATION_OFFSET + 8).contains(o)) {
            bytes[offset] ^= 0x40;
            match check_page(9, &bytes) {
                Err(Error::Stamp { page: 9, offset: at, .. }) => assert_eq!(at, 9 * 4096 + (offset as u64 & !7)),
                other => panic!("byte {offset} flipped, and the page gives {other:?}"),
            }
            bytes[offset] ^= 0x40;
        }
    }

    #[test]
    fn a_fresh_page_may_have_no_byte_changed() {
        for page in [0, 9] {
            let mut bytes = stamped(page);
            check_fresh(page, &bytes).unwrap();
            check_fresh(page + 1, &bytes).unwrap_err();
            for offset in 0..PAGE {
                bytes[offset] ^= 0x40;
                match check_fresh(page, &bytes) {
                    Err(Error::Stamp { offset: at, .. }) => assert_eq!(at, page * 4096 + (offset as u64 & !7)),
                    other => panic!("byte {offset} flipped, and the page gives {other:?}"),
                }
                bytes[offset] ^= 0x40;
            }
        }
    }

    #[test]
    fn the_generation_may_change_and_is_returned() {
        let mut bytes = stamped(3);
        set_generation(&mut bytes, base_generation(7) + 5);
        assert_eq!(check_page(3, &bytes).unwrap(), (7 << 32) + 5);
        check_stamp_in(3, &bytes).unwrap();
    }

    #[test]
    fn a_page_filled_by_a_run_has_its_generation_and_page_zero_its_epoch() {
        for (page, expected) in [(0, 7), (1, 0)] {
            let mut bytes = vec![0xff; PAGE];
            fill(&mut bytes, page, base_generation(7) + 1);
            assert_eq!(check_page(page, &bytes).unwrap(), (7 << 32) + 1);
            assert_eq!(epoch(&bytes), expected);
        }
    }

    #[test]
    fn only_page_zero_may_hold_an_epoch() {
        for (page, passes) in [(0, true), (1, false)] {
            let mut bytes = stamped(page);
            bytes[EPOCH_OFFSET] = 12;
            assert_eq!(check_page(page, &bytes).is_ok(), passes);
            assert_eq!(epoch(&bytes), 12);
        }
    }

    #[test]
    fn the_body_does_not_compress() {
        // No word occurs twice in 64 pages, so a dictionary coder finds no match.
        let words: Vec<u64> = (0..64)
            .flat_map(|page| (EPOCH + 1..WORDS).map(move |i| (page, i)))
            .map(|(page, i)| load(&stamped(page), i))
            .collect();
        assert_eq!(words.iter().collect::<std::collections::HashSet<_>>().len(), words.len());
        // Each value of a byte occurs equally often, within 15 %, so an entropy coder gains almost nothing.
        let mut counts = [0u32; 256];
        for page in 0..64 {
            stamped(page)[24..].iter().for_each(|&b| counts[usize::from(b)] += 1);
        }
        let mean = counts.iter().sum::<u32>() / 256;
        assert!(counts.iter().all(|&c| c.abs_diff(mean) * 100 < mean * 15), "{counts:?}");
    }
}
