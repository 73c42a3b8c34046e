//! What is right: the same questions answered by the plainest algorithms, by one thread, in memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::bfs::UNREACHED;
use super::csr::Graph;

/// Bytes compared at a time.
const BUFFER: usize = 64 << 10;

/// The level of every vertex: neighbours of neighbours, first come, first served.
pub fn levels(graph: &Graph, source: u64) -> Vec<u32> {
    let mut levels = vec![UNREACHED; graph.vertices() as usize];
    let mut queue = VecDeque::from([source]);
    levels[source as usize] = 0;
    while let Some(vertex) = queue.pop_front() {
        let next = levels[vertex as usize] + 1;
        for &neighbour in graph.out.of_vertex(vertex) {
            if levels[neighbour as usize] == UNREACHED {
                levels[neighbour as usize] = next;
                queue.push_back(neighbour);
            }
        }
    }
    levels
}

/// The rank of every vertex, added up in the order that [`super::rank`] promises.
pub fn ranks(graph: &Graph, iterations: u32) -> Vec<f64> {
    let count = graph.vertices() as f64;
    let mut ranks = vec![1.0 / count; graph.vertices() as usize];
    for _ in 0..iterations {
        let before = ranks.clone();
        for (rank, vertex) in ranks.iter_mut().zip(0..) {
            let coming = graph.into.of_vertex(vertex).iter();
            let sum: f64 = coming.map(|from| before[*from as usize] / graph.out.degree(*from) as f64).sum();
            *rank = (1.0 - 0.85) / count + 0.85 * sum;
        }
    }
    ranks
}

/// Adds right levels to a file.
///
/// # Errors
///
/// What the file system answers.
pub fn put_levels(levels: &[u32], file: &File) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER, file);
    levels.iter().try_for_each(|level| to.write_all(&level.to_le_bytes()))?;
    to.flush()
}

/// Adds right ranks to a file.
///
/// # Errors
///
/// What the file system answers.
pub fn put_ranks(ranks: &[f64], file: &File) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(BUFFER, file);
    ranks.iter().try_for_each(|rank| to.write_all(&rank.to_le_bytes()))?;
    to.flush()
}

/// Compares levels with those that come next in a file; the first that is wrong, with what was found and what is right.
///
/// # Errors
///
/// What the file system answers.
pub fn wrong_level(levels: &[AtomicU32], file: &mut File) -> io::Result<Option<(usize, u32, u32)>> {
    first_wrong(levels, file, |level| level.load(Relaxed), u32::from_le_bytes)
}

/// The same of ranks, to the last bit.
///
/// # Errors
///
/// What the file system answers.
pub fn wrong_rank(ranks: &[f64], file: &mut File) -> io::Result<Option<(usize, f64, f64)>> {
    let found = first_wrong(ranks, file, |rank| rank.to_bits(), u64::from_le_bytes)?;
    Ok(found.map(|(vertex, found, right)| (vertex, f64::from_bits(found), f64::from_bits(right))))
}

fn first_wrong<T, V: PartialEq + Copy, const N: usize>(
    cells: &[T],
    file: &mut File,
    value: impl Fn(&T) -> V,
    parse: impl Fn([u8; N]) -> V,
) -> io::Result<Option<(usize, V, V)>> {
    let mut buffer = vec![0; BUFFER];
    let mut wrong = None;
    for (cells, first) in cells.chunks(BUFFER / N).zip((0..).step_by(BUFFER / N)) {
        let bytes = &mut buffer[..cells.len() * N];
        file.read_exact(bytes)?;
        for ((cell, bytes), vertex) in cells.iter().zip(bytes.as_chunks::<N>().0).zip(first..) {
            let (found, right) = (value(cell), parse(*bytes));
            if found != right && wrong.is_none() {
                wrong = Some((vertex, found, right));
            }
        }
    }
    Ok(wrong)
}
