//! Breadth-first search that chooses its direction (Beamer, Asanović and Patterson, SC 2012), as Ligra's (Shun and Blelloch,
//! PPoPP 2013): a small frontier looks for its neighbours, and where it is large the vertices not yet reached look for it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::csr::Graph;
use super::team::share;

/// Level of a vertex that no path leads to.
pub const UNREACHED: u32 = u32::MAX;

/// A frontier is large when its vertices and their edges are more than the graph's edges by this; Ligra's.
const LARGE: u64 = 20;

/// Pieces of work: vertices of a list, and of the whole graph.
const LISTED: usize = 16;
const SCANNED: usize = 1024;

/// What one search found.
#[derive(Debug)]
pub struct Search {
    /// Edges on the shortest way from the source to each vertex.
    pub levels: Vec<AtomicU32>,
    /// Rounds in which the frontier looked for its neighbours, and in which the others looked for it.
    pub rounds: (u32, u32),
}

/// What a thread found in a round.
#[derive(Default)]
struct Found {
    /// Only if the frontier looks.
    list: Vec<u64>,
    vertices: u64,
    /// Edges that come from them.
    edges: u64,
}

/// Searches from `source`.
pub fn search(graph: &Graph, source: u64, threads: u32) -> Search {
    let levels: Vec<AtomicU32> = (0..graph.vertices()).map(|_| AtomicU32::new(UNREACHED)).collect();
    levels[source as usize].store(0, Relaxed);
    let mut search = Search { levels, rounds: (0, 0) };
    let (mut vertices, mut edges) = (1, graph.out.degree(source));
    let mut list = Some(vec![source]);
    let mut depth = 0;
    while vertices > 0 {
        let found = if vertices + edges > graph.edges() / LARGE {
            search.rounds.1 += 1;
            list = None;
            look_for_frontier(graph, &search.levels, depth, threads)
        } else {
            search.rounds.0 += 1;
            let frontier = list.take().unwrap_or_else(|| listed(&search.levels, depth, threads));
            let mut found = look_from_frontier(graph, &search.levels, depth, &frontier, threads);
            list = Some(found.iter_mut().flat_map(|found| std::mem::take(&mut found.list)).collect());
            found
        };
        (vertices, edges) = found.iter().fold((0, 0), |sum, found| (sum.0 + found.vertices, sum.1 + found.edges));
        depth += 1;
    }
    search
}

fn look_from_frontier(graph: &Graph, levels: &[AtomicU32], depth: u32, frontier: &[u64], threads: u32) -> Vec<Found> {
    share(threads, frontier.len(), LISTED, |found: &mut Found, piece| {
        for &vertex in &frontier[piece] {
            for &neighbour in graph.out.of_vertex(vertex) {
                let level = &levels[neighbour as usize];
                // Whoever changes it has found the vertex. Rounds are ordered by the threads' ends.
                let is_new = level.load(Relaxed) == UNREACHED
                    && level.compare_exchange(UNREACHED, depth + 1, Relaxed, Relaxed).is_ok();
                if is_new {
                    found.list.push(neighbour);
                    found.vertices += 1;
                    found.edges += graph.out.degree(neighbour);
                }
            }
        }
    })
}

fn look_for_frontier(graph: &Graph, levels: &[AtomicU32], depth: u32, threads: u32) -> Vec<Found> {
    share(threads, levels.len(), SCANNED, |found: &mut Found, piece| {
        for vertex in piece {
            // A vertex is looked at by one thread.
            let level = &levels[vertex];
            let in_frontier = |neighbour: &u64| levels[*neighbour as usize].load(Relaxed) == depth;
            if level.load(Relaxed) == UNREACHED && graph.into.of_vertex(vertex as u64).iter().any(in_frontier) {
                level.store(depth + 1, Relaxed);
                found.vertices += 1;
                found.edges += graph.out.degree(vertex as u64);
            }
        }
    })
}

/// The vertices of a level.
fn listed(levels: &[AtomicU32], depth: u32, threads: u32) -> Vec<u64> {
    let lists = share(threads, levels.len(), SCANNED, |list: &mut Vec<u64>, piece| {
        list.extend(piece.filter(|vertex| levels[*vertex].load(Relaxed) == depth).map(|vertex| vertex as u64));
    });
    lists.concat()
}
