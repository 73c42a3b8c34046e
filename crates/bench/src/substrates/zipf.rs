//! Zipf-distributed ranks. They are exact, and cheap enough not to hide the cost of the operation that is measured.
//!
//! `rand_distr::Zipf` takes 149 ns a sample on the machine of `docs/log/measurements.md` (two `powf` and a logarithm). That is as much as a
//! hundred page hits. Here ranks are grouped: a bucket that begins at rank r is about r/64 ranks wide. First a bucket is drawn from an alias
//! table. Then a rank is drawn uniformly within it, and accepted with the ratio of its weight to the bucket's heaviest weight. For a theta up
//! to 1.2 that ratio is above 0.98, so at most one draw in fifty computes a `powf`.

use rand::{Rng, RngExt};
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

/// A bucket that begins at `rank` has rank / SPLIT ranks, at least one. Its least acceptance ratio is about 1 - theta / SPLIT.
const SPLIT: u64 = 64;

/// Below this rank weights are summed one by one. Above it, by the Euler-Maclaurin formula, whose relative error is below 1e-12 there.
const SUMMED: u64 = 4096;

/// Draws ranks `0..n` with probability proportional to `(rank + 1)^-theta`.
pub struct Zipf {
    theta: f64,
    buckets: Vec<Bucket>,
    choose: WeightedAliasIndex<f64>,
}

/// Ranks `low..low + width`, counted from 1.
struct Bucket {
    low: u64,
    width: u64,
    /// The weight of the bucket's lightest rank, divided by that of its heaviest. A draw below it needs no `powf`.
    sure: f64,
}

impl Zipf {
    /// The distribution over `n` ranks.
    ///
    /// # Panics
    ///
    /// `n` is zero, or `theta` is zero, negative or 1.
    pub fn new(n: u64, theta: f64) -> Zipf {
        assert!(n > 0 && theta > 0.0 && theta != 1.0);
        let mut buckets = Vec::new();
        let mut weights = Vec::new();
        let mut low = 1;
        while low <= n {
            let width = (low / SPLIT).max(1).min(n - low + 1);
            let high = low + width - 1;
            buckets.push(Bucket { low, width, sure: (low as f64 / high as f64).powf(theta) });
            weights.push(weight_between(low, high, theta));
            low += width;
        }
        let choose = WeightedAliasIndex::new(weights).expect("weights are finite and positive");
        Zipf { theta, buckets, choose }
    }

    /// Draws a rank, `0..n`. Rank 0 is the most frequent.
    #[inline]
    pub fn sample(&self, rng: &mut impl Rng) -> u64 {
        let bucket = &self.buckets[self.choose.sample(rng)];
        if bucket.width == 1 {
            return bucket.low - 1;
        }
        loop {
            let rank = bucket.low + rng.random_range(0..bucket.width);
            let draw: f64 = rng.random();
            if draw < bucket.sure || draw < (bucket.low as f64 / rank as f64).powf(self.theta) {
                return rank - 1;
            }
        }
    }
}

/// Sum of `r^-theta` for `r` in `low..=high`.
fn weight_between(low: u64, high: u64, theta: f64) -> f64 {
    if low < SUMMED {
        return (low..=high).map(|r| (r as f64).powf(-theta)).sum();
    }
    let (a, b) = (low as f64, high as f64);
    // (b / a)^(1-theta) - 1, written so that nothing cancels when theta is near 1.
    let span = ((1.0 - theta) * ((b - a) / a).ln_1p()).exp_m1();
    let integral = a.powf(1.0 - theta) * span / (1.0 - theta);
    let ends = (a.powf(-theta) + b.powf(-theta)) / 2.0;
    let slopes = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
    integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    #[test]
    fn frequencies_follow_the_law() {
        let (n, theta, draws) = (10_000u64, 0.99, 2_000_000u64);
        let zipf = Zipf::new(n, theta);
        let mut rng = Pcg64Mcg::seed_from_u64(5);
        let mut counts = vec![0u64; n as usize];
        for _ in 0..draws {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        let total: f64 = (1..=n).map(|r| (r as f64).powf(-theta)).sum();
        // Single ranks, and ranges of less frequent ones: each count is within five standard deviations.
        for (from, to) in [(1, 1), (2, 2), (3, 3), (10, 10), (100, 199), (1000, 1999), (5000, 10_000)] {
            let share: f64 = (from..=to).map(|r| (r as f64).powf(-theta)).sum::<f64>() / total;
            let expected = share * draws as f64;
            let found: u64 = counts[from as usize - 1..to as usize].iter().sum();
            let sigma = (expected * (1.0 - share)).sqrt();
            assert!((found as f64 - expected).abs() < 5.0 * sigma, "ranks {from} to {to}: {found}, not {expected}");
        }
    }

    #[test]
    fn ranks_stay_in_range_for_any_count() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for n in [1, 2, 3, 63, 64, 65, 129, 4097, 1 << 20] {
            let zipf = Zipf::new(n, 0.99);
            assert!((0..2000).all(|_| zipf.sample(&mut rng) < n));
        }
    }

    #[test]
    fn the_integral_agrees_with_the_sum() {
        for (low, high) in [(4096, 4160), (100_000, 101_562), (1 << 24, (1 << 24) + 500)] {
            let summed: f64 = (low..=high).map(|r: u64| (r as f64).powf(-0.99)).sum();
            assert!((weight_between(low, high, 0.99) / summed - 1.0).abs() < 1e-12);
        }
    }
}
