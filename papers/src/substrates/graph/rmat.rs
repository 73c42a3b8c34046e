//! R-MAT graphs (Chakrabarti, Zhan and Faloutsos, SDM 2004): how edges are drawn.
//!
//! Each edge descends into one quarter of the adjacency matrix after the other. The quarters' probabilities are those of
//! Ligra's own generator (`rMatGraph`): 0.5, 0.1, 0.1, 0.3. Edges that are drawn twice stay, as they do there.

use std::thread;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Edges drawn from one random sequence: the graph does not depend on the number of threads.
const CHUNK: usize = 1 << 16;

/// Bounds of the first three quarters in 2^32.
const BOUNDS: [u32; 3] = [part(0.5), part(0.6), part(0.7)];

const fn part(share: f64) -> u32 {
    (share * 4294967296.0) as u32
}

/// Draws the directed edges of a graph with 2^`scale` vertices; the same `seed`, the same edges. `scale` is 32 at most.
pub fn edges(scale: u32, count: usize, seed: u64) -> Vec<(u32, u32)> {
    let mut edges = vec![(0, 0); count];
    let chunks = edges.len().div_ceil(CHUNK);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let mut chunked = edges.chunks_mut(CHUNK).zip(0u64..);
        for _ in 0..threads {
            let part: Vec<_> = chunked.by_ref().take(chunks.div_ceil(threads)).collect();
            scope.spawn(move || {
                for (edges, number) in part {
                    let mut random = Pcg64Mcg::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
                    edges.fill_with(|| edge(scale, &mut random));
                }
            });
        }
    });
    edges
}

fn edge(scale: u32, random: &mut Pcg64Mcg) -> (u32, u32) {
    let (mut from, mut to) = (0, 0);
    for _ in 0..scale {
        let drawn = random.next_u32();
        // Upper left, upper right, lower left, lower right.
        let quarter = BOUNDS.iter().filter(|bound| drawn >= **bound).count() as u32;
        from = from << 1 | quarter >> 1;
        to = to << 1 | quarter & 1;
    }
    (from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_as_probable_as_they_should_be_on_every_level() {
        let edges = edges(10, 200_000, 7);
        for bit in 0..10 {
            let mut quarters = [0.0; 4];
            edges
                .iter()
                .for_each(|(from, to)| quarters[(from >> bit & 1) as usize * 2 + (to >> bit & 1) as usize] += 1.0);
            for (found, expected) in quarters.iter().zip([0.5, 0.1, 0.1, 0.3]) {
                let share: f64 = found / 200_000.0;
                assert!((share - expected).abs() < 0.01, "bit {bit}: {share} for {expected}");
            }
        }
    }

    #[test]
    fn a_seed_is_a_graph() {
        assert_eq!(edges(12, 70_000, 1), edges(12, 70_000, 1));
        assert_ne!(edges(12, 100, 1), edges(12, 100, 2));
    }
}
