//! TPC-C's random values: non-uniform numbers (clause 2.1.6), last names (4.3.2.3), strings (4.3.2.2).

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Syllables of last names.
const SYLLABLES: [&[u8]; 10] =
    [b"BAR", b"OUGHT", b"ABLE", b"PRI", b"PRES", b"ESE", b"ANTI", b"CALLY", b"ATION", b"EING"];

/// The constants C of NURand. Those of last names differ by 66 between load and run, as clause 2.1.6.1 wants (65 to 119, not 96 and
/// 112).
const C_LAST_LOAD: u32 = 157;
const C_LAST_RUN: u32 = 223;
const C_CUSTOMER: u32 = 867;
const C_ITEM: u32 = 4711;

/// A source of random values.
pub struct Random(Pcg64Mcg);

impl Random {
    /// The one of this seed.
    pub fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        self.0.random_range(low..=high)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.within(1, 100) <= percent
    }

    /// NURand(A, x, y) of clause 2.1.6.
    #[inline]
    fn nurand(&mut self, a: u32, c: u32, low: u32, high: u32) -> u32 {
        let both = self.within(0, a) | self.within(low, high);
        (both + c) % (high - low + 1) + low
    }

    /// A customer of `customers`, from 1.
    pub fn customer(&mut self, customers: u32) -> u32 {
        self.nurand(1023, C_CUSTOMER, 1, customers)
    }

    /// An item of `items`, from 1.
    pub fn item(&mut self, items: u32) -> u32 {
        self.nurand(8191, C_ITEM, 1, items)
    }

    /// Number of the last name of a customer that is loaded, of `names`.
    pub fn loaded_name(&mut self, names: u32) -> u32 {
        self.nurand(255, C_LAST_LOAD, 0, names - 1)
    }

    /// Number of a last name that is looked for, of `names`.
    pub fn sought_name(&mut self, names: u32) -> u32 {
        self.nurand(255, C_LAST_RUN, 0, names - 1)
    }

    /// Fills all of `text` with letters and figures; the specification's alphanumeric strings.
    pub fn text(&mut self, text: &mut [u8]) {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -";
        for bytes in text.chunks_mut(10) {
            let mut bits: u64 = self.0.random();
            for byte in bytes {
                *byte = LETTERS[(bits & 63) as usize];
                bits >>= 6;
            }
        }
    }

    /// As [`Random::text`], of `least` bytes to all of them; the rest is zeros.
    pub fn some_text(&mut self, text: &mut [u8], least: usize) {
        let len = self.within(least as u32, text.len() as u32) as usize;
        self.text(&mut text[..len]);
        text[len..].fill(0);
    }

    /// Fills `text` with figures.
    pub fn figures(&mut self, text: &mut [u8]) {
        text.fill_with(|| b'0' + self.within(0, 9) as u8);
    }

    /// The numbers from 1 to `count` in random order.
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (1..=count).collect();
        for at in (1..count).rev() {
            numbers.swap(at as usize, self.within(0, at) as usize);
        }
        numbers
    }
}

/// The last name of this number, 0 to 999, ended by zeros.
pub fn last_name(number: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let mut at = 0;
    for syllable in [number / 100, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES[syllable as usize];
        name[at..at + syllable.len()].copy_from_slice(syllable);
        at += syllable.len();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_the_specifications() {
        // The example of clause 4.3.2.3.
        assert_eq!(&last_name(371)[..], b"PRICALLYOUGHT\0\0\0");
        assert_eq!(&last_name(40)[..], b"BARPRESBAR\0\0\0\0\0\0");
        assert_eq!(&last_name(777)[..], b"CALLYCALLYCALLY\0");
        let names: std::collections::HashSet<_> = (0..1000).map(last_name).collect();
        assert_eq!(names.len(), 1000);
    }

    #[test]
    fn the_constants_are_as_far_apart_as_clause_2_1_6_1_wants() {
        let delta = C_LAST_RUN.abs_diff(C_LAST_LOAD);
        assert!((65..=119).contains(&delta) && ![96, 112].contains(&delta));
        for (constant, a) in [(C_LAST_RUN, 255), (C_CUSTOMER, 1023), (C_ITEM, 8191)] {
            assert!(constant <= a);
        }
    }

    #[test]
    fn non_uniform_numbers_keep_to_their_range_and_are_not_uniform() {
        let mut random = Random::new(1);
        let mut counts = vec![0u32; 3001];
        for _ in 0..300_000 {
            counts[random.customer(3000) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        // Uniform would be 100 each. The OR sets each of the low ten bits in three cases of four: all of them in one of 18.
        let most = *counts.iter().max().unwrap();
        assert!((3000..10_000).contains(&most), "{most}");
        for _ in 0..100_000 {
            assert!((1..=100_000).contains(&random.item(100_000)));
            assert!(random.loaded_name(1000) < 1000 && random.sought_name(1000) < 1000);
            assert!((1..=7).contains(&random.item(7)));
        }
    }

    #[test]
    fn permutations_have_every_number_once() {
        let mut numbers = Random::new(5).permutation(3000);
        assert_ne!(numbers[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(1..=3000));
    }

    #[test]
    fn strings_are_as_long_as_they_should_be() {
        let mut random = Random::new(2);
        for _ in 0..1000 {
            let mut text = [0xff; 50];
            random.some_text(&mut text, 26);
            let len = text.iter().position(|&byte| byte == 0).unwrap_or(50);
            assert!((26..=50).contains(&len) && text[len..].iter().all(|&byte| byte == 0));
            let mut zip = [0; 9];
            random.figures(&mut zip);
            assert!(zip.iter().all(u8::is_ascii_digit));
        }
    }
}
