//! Random numbers for tests, of all crates: the same for the same seed.

#![allow(dead_code)] // each crate uses its own part

/// xorshift64*: the same numbers for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub fn below_u64(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }
}

/// The seed of a run: `FASTMAP_SEED`, else the one given. Printed, so that a failure can be run again.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("FASTMAP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("FASTMAP_SEED={seed}");
    seed
}
