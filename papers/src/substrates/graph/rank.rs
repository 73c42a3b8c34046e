//! PageRank (Page, Brin, Motwani and Winograd, 1999), as Ligra's: a fixed number of iterations over all edges.
//!
//! Each vertex adds up what comes in, in the order of its edges, so that the result is the same to the last bit however many
//! threads there are.

use super::csr::Graph;
use super::team::fill;

/// The share that follows edges.
const DAMPING: f64 = 0.85;

/// Vertices in a piece of work, at least.
const PIECE: usize = 1024;

/// Ranks after so many iterations.
pub fn rank(graph: &Graph, iterations: u32, threads: u32) -> Vec<f64> {
    let vertices = graph.vertices() as usize;
    let mut ranks = vec![1.0 / vertices as f64; vertices];
    let mut shares = vec![0.0; vertices];
    for _ in 0..iterations {
        fill(threads, &mut shares, PIECE, |start, shares| {
            for (share, vertex) in shares.iter_mut().zip(start..) {
                // What nobody asks for where there are no edges.
                *share = ranks[vertex] / graph.out.degree(vertex as u64) as f64;
            }
        });
        fill(threads, &mut ranks, PIECE, |start, ranks| {
            for (rank, vertex) in ranks.iter_mut().zip(start..) {
                *rank = next(graph, &shares, vertex as u64);
            }
        });
    }
    ranks
}

#[inline]
fn next(graph: &Graph, shares: &[f64], vertex: u64) -> f64 {
    let sum: f64 = graph.into.of_vertex(vertex).iter().map(|from| shares[*from as usize]).sum();
    (1.0 - DAMPING) / graph.vertices() as f64 + DAMPING * sum
}
