//! Graph analytics on a heap larger than memory: breadth-first search and PageRank over an R-MAT graph.
//!
//! One call of [`run`] is one measurement in the calling process. It knows nothing of files behind its heap: it reads the graph
//! into plain vectors and works on them. `fastmap run --heap` puts these into a file, served by the engine or, with `--direct
//! always`, mapped by the kernel as libvmmalloc has it.
//!
//! Before the clock runs, every word of the graph is looked at once: that proves it whole, and leaves in memory what the same
//! scan leaves there for any engine, and none of the stores by which it got there.

mod bfs;
mod csr;
mod rank;
mod reference;
mod rmat;
mod team;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

pub use bfs::UNREACHED;
pub use csr::Graph;

use crate::substrates::{Engine, Error, Meter, Reading, Result, heap, sys};

/// Which graph, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Number of vertices.
    pub vertices: u64,
    /// Number of directed edges.
    pub edges: u64,
    /// Where searches begin.
    pub sources: Vec<u64>,
    /// Iterations of PageRank.
    pub iterations: u32,
    /// [`Graph::digest`].
    pub digest: u64,
}

impl Load {
    /// Bytes of everything on the heap at a time: the graph, and the arrays of the greediest algorithm.
    pub fn footprint(vertices: u64, edges: u64) -> u64 {
        Graph::bytes(vertices, edges) + 2 * 8 * vertices
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// What is behind the heap. It is there already; this is for its advice.
    pub engine: Engine,
    /// Of what.
    pub load: Load,
    /// The graph's file.
    pub graph: PathBuf,
    /// The file with the right answers.
    pub answers: PathBuf,
    /// A place on the heap's file system.
    pub place: PathBuf,
    /// How many threads work.
    pub threads: u32,
}

/// One search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Searched {
    /// How long it took.
    pub seconds: f64,
    /// Rounds in which the frontier looked for its neighbours.
    pub from_frontier: u32,
    /// Rounds in which the vertices not yet reached looked for the frontier.
    pub for_frontier: u32,
}

/// What one run gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Each search, in order.
    pub searches: Vec<Searched>,
    /// All searches together; operations are searches.
    pub bfs: Reading,
    /// All iterations together, if there were any.
    pub rank: Option<Reading>,
    /// Bringing the graph to the heap and the scan of it, which nothing else counts.
    pub load_seconds: f64,
}

/// Draws a graph with 2^`scale` vertices, 32 at most. The same arguments, the same graph.
pub fn draw(scale: u32, edges: u64, seed: u64) -> Graph {
    Graph::of(1 << scale, &rmat::edges(scale, edges as usize, seed))
}

/// Puts a graph into an empty file, from where workers read it.
///
/// # Errors
///
/// What the file system answers.
pub fn store(graph: &Graph, file: &File) -> io::Result<()> {
    graph.write(file)?;
    // Workers drop it from the page cache, which keeps what is dirty.
    file.sync_all()
}

/// The right answers for a source, added to a file: a draw of one that reaches a tenth of the graph, if a hundred draws find any.
/// The source, and how many edges come from what it reaches.
///
/// # Errors
///
/// What the file system answers.
pub fn add_source(graph: &Graph, seed: u64, answers: &File) -> io::Result<(u64, u64)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut draws = 0;
    loop {
        draws += 1;
        let source = random.random_range(0..graph.vertices());
        let levels = reference::levels(graph, source);
        let reached = || (0..).zip(&levels).filter(|(_, level)| **level != UNREACHED).map(|(vertex, _)| vertex);
        if reached().count() as u64 > graph.vertices() / 10 || draws == 100 {
            reference::put_levels(&levels, answers)?;
            return Ok((source, reached().map(|vertex| graph.out.degree(vertex)).sum()));
        }
    }
}

/// The right ranks, added to a file behind the sources' levels.
///
/// # Errors
///
/// What the file system answers.
pub fn add_ranks(graph: &Graph, iterations: u32, answers: &File) -> io::Result<()> {
    reference::put_ranks(&reference::ranks(graph, iterations), answers)
}

/// Runs `order` in this process. `peak` is asked for the peak of memory once, at the end.
///
/// # Errors
///
/// A graph that did not arrive whole, a wrong answer, or files that cannot be read.
pub fn run(order: &Order, meter: &Meter) -> Result<Outcome> {
    let Load { vertices, edges, sources, iterations, digest } = &order.load;
    let start = Instant::now();
    let graph = load(&order.graph, *vertices, *edges)?;
    if graph.digest() != *digest {
        let what = format!("the graph's digest is {:#018x} where {digest:#018x} belongs", graph.digest());
        return Err(wrong(what));
    }
    if order.engine == Engine::MmapRandom {
        graph.each_array(|array| heap::advise_random(array.as_ptr().cast()))?;
    }
    let load_seconds = start.elapsed().as_secs_f64();
    let mut answers = File::open(&order.answers).map_err(failed(&order.answers, "cannot open"))?;
    let unread = || failed(&order.answers, "cannot be read");
    let mut searches = Vec::new();
    let mut bfs: Option<Reading> = None;
    for &source in sources {
        let begun = meter.start(&order.place);
        let search = bfs::search(&graph, source, order.threads);
        let window = begun.end();
        bfs = Some(match bfs {
            Some(bfs) => bfs.and(&window),
            None => window.clone(),
        });
        let (from_frontier, for_frontier) = search.rounds;
        searches.push(Searched { seconds: window.seconds, from_frontier, for_frontier });
        if let Some((vertex, found, right)) = reference::wrong_level(&search.levels, &mut answers).map_err(unread())? {
            let what = format!("search from {source}: vertex {vertex} is on level {found} where {right} is right");
            return Err(wrong(what));
        }
    }
    let rank = (*iterations > 0).then(|| {
        let begun = meter.start(&order.place);
        let ranks = rank::rank(&graph, *iterations, order.threads);
        let window = begun.end();
        match reference::wrong_rank(&ranks, &mut answers).map_err(unread())? {
            None => Ok(window),
            Some((vertex, found, right)) => {
                Err(wrong(format!("PageRank: vertex {vertex} has {found:e} where {right:e} is right")))
            }
        }
    });
    Ok(Outcome { searches, bfs: bfs.unwrap_or_default(), rank: rank.transpose()?, load_seconds })
}

/// Reads the graph; its file's pages do not stay in memory to be counted against this process.
fn load(path: &Path, vertices: u64, edges: u64) -> Result<Graph> {
    let file = File::open(path).map_err(failed(path, "cannot open"))?;
    let graph = Graph::read(&file, vertices, edges).map_err(failed(path, "cannot be read"))?;
    sys::drop_cached(&file).map_err(failed(path, "cannot be dropped from the page cache"))?;
    Ok(graph)
}

fn wrong(what: String) -> Error {
    Error::Answer { thing: "graph".to_owned(), what }
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Error {
    let thing = path.display().to_string();
    move |source| Error::Io { thing, what, source, remedy: "check the place that --dir names" }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const VERTICES: u64 = 1 << 12;
    const EDGES: u64 = 40_000;

    struct Files {
        graph: tempfile::NamedTempFile,
        answers: tempfile::NamedTempFile,
        order: Order,
    }

    fn files(sources: u64, iterations: u32) -> Files {
        let file = || tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (graph, answers, drawn) = (file(), file(), draw(12, EDGES, 1));
        store(&drawn, graph.as_file()).unwrap();
        let sources = (0..sources).map(|seed| add_source(&drawn, seed, answers.as_file()).unwrap().0).collect();
        add_ranks(&drawn, iterations, answers.as_file()).unwrap();
        let load = Load { vertices: VERTICES, edges: EDGES, sources, iterations, digest: drawn.digest() };
        let (engine, threads, place) = (Engine::Mmap, 3, env!("CARGO_MANIFEST_DIR").into());
        let order = Order { engine, load, graph: graph.path().into(), answers: answers.path().into(), place, threads };
        Files { graph, answers, order }
    }

    #[test]
    fn both_algorithms_answer_right_with_any_number_of_threads() {
        let mut files = files(3, 4);
        for threads in [1, 2, 7] {
            files.order.threads = threads;
            let outcome = run(&files.order, &Meter::default()).unwrap();
            assert_eq!((outcome.searches.len(), outcome.bfs.ops), (3, 3));
            let sum: f64 = outcome.searches.iter().map(|search| search.seconds).sum();
            assert!((sum - outcome.bfs.seconds).abs() < 1e-9 && outcome.rank.unwrap().seconds > 0.0);
            let both = |search: &Searched| search.from_frontier > 0 && search.for_frontier > 0;
            assert!(outcome.searches.iter().all(both), "a search goes both ways: {:?}", outcome.searches);
        }
    }

    #[test]
    fn a_source_that_leads_nowhere_and_a_graph_without_edges() {
        let graph = Graph::of(8, &[(1, 2), (2, 1)]);
        let search = bfs::search(&graph, 5, 2);
        assert_eq!(search.levels.into_iter().map(|l| l.into_inner()).collect::<Vec<_>>(), reference::levels(&graph, 5));
        assert_eq!(rank::rank(&Graph::of(8, &[]), 3, 2), reference::ranks(&Graph::of(8, &[]), 3));
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let flip = |file: &tempfile::NamedTempFile, offset: u64| {
            let mut byte = [0];
            file.as_file().read_exact_at(&mut byte, offset).unwrap();
            file.as_file().write_all_at(&[byte[0] ^ 1], offset).unwrap();
        };
        let said = |files: &Files| run(&files.order, &Meter::default()).unwrap_err().to_string();
        for offset in [8, Graph::bytes(VERTICES, EDGES) - 8] {
            let files = files(1, 1);
            flip(&files.graph, offset);
            assert!(said(&files).contains("the graph's digest is"), "{}", said(&files));
        }
        let one = files(2, 1);
        flip(&one.answers, VERTICES * 4 + 77 * 4);
        let source = one.order.load.sources[1];
        assert!(said(&one).contains(&format!("search from {source}: vertex 77 is on level")), "{}", said(&one));
        let other = files(2, 1);
        flip(&other.answers, 2 * VERTICES * 4 + 5 * 8);
        assert!(said(&other).contains("PageRank: vertex 5 has"), "{}", said(&other));
    }
}
