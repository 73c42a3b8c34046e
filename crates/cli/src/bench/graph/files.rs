//! The graph and the right answers, on disk, for every run to read.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use fastmap_workloads::graph::{self, Load};
use fastmap_workloads::prepare;

use crate::args::GraphArgs;
use crate::bench::session::make_cold;
use crate::bench::target::progress_bar;
use crate::failure::Failure;
use crate::size::Size;
use crate::{interrupt, machine};

/// Which random graph.
const SEED: u64 = 7;

/// A file without a name, gone when this process ends, however it ends.
pub struct Unnamed {
    file: File,
    /// Where a worker process can open it.
    pub path: PathBuf,
}

impl Unnamed {
    fn make(dir: &Path) -> io::Result<Unnamed> {
        let file = tempfile::tempfile_in(dir)?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok(Unnamed { file, path })
    }
}

/// What all runs work on.
pub struct Files {
    /// The directory.
    pub dir: PathBuf,
    /// The graph.
    pub graph: Unnamed,
    /// What is right.
    pub answers: Unnamed,
    /// Which graph, and what is asked.
    pub load: Load,
    /// Edges that come from what the searches of a run reach.
    pub traversed: u64,
}

impl Files {
    /// Draws the graph, answers what will be asked of it, and puts both into files.
    ///
    /// # Errors
    ///
    /// No room, whatever else the directory refuses, or an interruption.
    pub fn make(args: &GraphArgs, dir: &Path) -> Result<Files, Failure> {
        let label = format!("temporary file in {}", dir.display());
        let failed = |what: &'static str| {
            let label = &label;
            move |e: io::Error| {
                Failure::new(label, format!("{what}: {e}"), "name a writable place with room with --dir")
            }
        };
        let unnamed = || Unnamed::make(dir).map_err(failed("cannot make it"));
        let (graph, answers) = (unnamed()?, unnamed()?);
        let vertices = 1u64 << args.scale;
        let edges = vertices * u64::from(args.edges);
        // Graph and heap; what the answers take is little beside.
        let needed = 2 * Load::footprint(vertices, edges);
        let free = prepare::free_bytes(&graph.file).map_err(failed("cannot ask for room"))?;
        if free < needed {
            let error = fastmap_workloads::Error::NoSpace { thing: label, needed, free };
            return Err(Failure::told(error.to_string().replace("--size", "--scale").replace("--file or ", "")));
        }
        // Drawn in memory: both directions, and a list of edges to sort.
        let (drawing, available) = (needed, machine::meminfo("MemAvailable"));
        if available < drawing {
            let what = format!(
                "{vertices} vertices with {edges} edges are drawn in {} of memory, {} are available",
                Size(drawing),
                Size(available)
            );
            return Err(Failure::usage("--scale", what, "give a smaller --scale or fewer --edges"));
        }
        let steps = 3 + u64::from(args.sources);
        let bar = progress_bar(steps, "{msg:44} {bar:30} {pos}/{len} steps");
        let step = |what: String| {
            bar.inc(1);
            bar.set_message(what);
            interrupt::check()
        };
        step(format!("drawing {edges} edges"))?;
        let drawn = graph::draw(args.scale, edges, SEED);
        step("writing the graph".to_owned())?;
        graph::store(&drawn, &graph.file).map_err(failed("cannot write the graph"))?;
        let (mut sources, mut traversed) = (Vec::new(), 0);
        for seed in 0..u64::from(args.sources) {
            step(format!("searching in memory, source {} of {}", seed + 1, args.sources))?;
            let (source, edges) =
                graph::add_source(&drawn, seed, &answers.file).map_err(failed("cannot write the answers"))?;
            sources.push(source);
            traversed += edges;
        }
        step("ranking in memory".to_owned())?;
        graph::add_ranks(&drawn, args.iterations, &answers.file).map_err(failed("cannot write the answers"))?;
        bar.finish_and_clear();
        let load = Load { vertices, edges, sources, iterations: args.iterations, digest: drawn.digest() };
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Ok(Files { dir, graph, answers, load, traversed })
    }

    /// Out of the page cache, which would be charged to nobody.
    ///
    /// # Errors
    ///
    /// What the system answers.
    pub fn make_cold(&self) -> Result<(), Failure> {
        for file in [&self.graph.file, &self.answers.file] {
            let len = file.metadata().map_or(0, |facts| facts.len());
            make_cold(file, "the graph's file", len)?;
        }
        Ok(())
    }
}
