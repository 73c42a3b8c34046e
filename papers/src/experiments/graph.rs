//! `fastmap bench graph`: breadth-first search and PageRank on a heap that lies in a file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use fastmap_cli::{interrupt, machine};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{count, once_each, one_of, threads};
use crate::driver::{Ctx, progress_bar};
use crate::experiment::columns::{idle, iowait, peak, queue, system, user};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Of, Over, Paper, Part, Plan, Plot, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind;
use crate::substrates::graph::{self, Load, Order, Searched};
use crate::substrates::{self, Engine, Error, Meter, PAGE, capacity_for, prepare};
use crate::target::make_cold;

/// What a run may use beyond its share of the data: code, stacks, tables. The same for all.
const PROCESS: u64 = 8 << 20;

/// Kernel mmap without advice reads as much around each page that it misses as the device's readahead says: with 8 MiB a search
/// takes 40 s that takes 2 s with MADV_RANDOM.
const MOST_READAHEAD_KIB: u64 = 256;

/// An engine that takes so many times as long as the fastest is not run again.
const HOPELESS: f64 = 8.0;

/// Which random graph.
const SEED: u64 = 7;

/// Measure graph analytics on a heap that lies in a file: breadth-first search and PageRank, memory an eighth
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure graph analytics on a heap that lies in a file.

After figure 7 of the FastMap paper: Ligra on a heap extended over storage with libvmmalloc. An R-MAT graph, as Ligra's generator \
draws it (0.5, 0.1, 0.1, 0.3), in compressed sparse rows both ways round, with 8 bytes for a vertex; breadth-first search that \
chooses its direction, from several sources, and PageRank that pulls along the edges. The program knows nothing of files: it runs \
under `fastmap run --heap`, and for kernel mmap under the same allocator with --direct always, where the kernel maps the heap's \
file.

The graph is drawn once. Every engine and repetition is a fresh process in a memory cgroup of its own; engines take turns. A \
run reads the graph into its heap and scans all of it, which is not measured, and has then no more in memory than fits. All \
levels of every search, and all ranks to the last bit, are compared with those that plain algorithms found in memory; a wrong \
one fails the command. Figures are medians over the repetitions. An engine that takes eight times as long as the fastest is \
run once.

Shares of time are of all processors over the time measured: user and system of the process, I/O wait as the kernel counts it \
for the machine.")]
#[command(after_help = "\
Engines:
  mmap, mmap-random   the heap's file mapped by the kernel: no advice, MADV_RANDOM
  fastmap             this project

Examples:
  fastmap bench graph
  fastmap bench graph --dir /mnt/disk --scale 22 --threads 2,8,32 --repeat 5 --json out.json
  fastmap bench graph --engines mmap-random,fastmap --iterations 0 --sources 8")]
pub struct Args {
    /// Engines to compare, separated by commas [default: mmap-random,fastmap; mmap too where the device's readahead is at most
    /// 256 KiB: with more it takes minutes]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(Engine::PROGRAMS))]
    pub engines: Vec<Engine>,
    /// The graph has 2^N vertices
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(10..=30))]
    pub scale: u32,
    /// Directed edges for each vertex
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = edges)]
    pub edges: u32,
    /// Searches of a run, each from another vertex
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = sources)]
    pub sources: u32,
    /// Iterations of PageRank; 0: none of it
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub iterations: u32,
    /// Threads that share the work; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8", value_parser = threads)]
    pub threads: Vec<u32>,
}

/// What an algorithm gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Edges from all vertices reached; of PageRank all, once an iteration.
    edges: u64,
    /// Bringing the graph to the heap and the scan of it, which nothing else counts.
    load_seconds: f64,
    /// Each search, in order.
    searches: Vec<Searched>,
}

/// The experiment.
pub struct Graph;

impl Experiment for Graph {
    const NAME: &'static str = "graph";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const PART: &'static str = "algorithm";
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: None,
        memory: Some("an eighth of graph and arrays, and 8MiB for the process itself"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Outcome>] = &[
        Column::new("seconds", "s", "seconds", |t: &Trial<Outcome>| Some(t.reading.seconds)).less().range(),
        Column::from("times_best_mmap", "x best mmap", "times as fast as the best kernel mmap", Of::TimesMmap("seconds")),
        Column::new("edges_per_s", "Medges/s", "millions of edges a second", |t: &Trial<Outcome>| {
            Some(t.outcome.edges as f64 / t.reading.seconds)
        })
        .per(1e6),
        user(),
        system(),
        iowait(),
        idle(),
        Column::new("device.read_bytes", "MiB read", "MiB read", |t: &Trial<Outcome>| Some(t.reading.device?.read_bytes as f64))
            .per((1 << 20) as f64)
            .less(),
        Column::new("device.average_read_bytes", "KiB a read", "KiB a read", |t: &Trial<Outcome>| {
            let device = t.reading.device?;
            Some(device.read_bytes as f64 / device.reads.max(1) as f64)
        })
        .per(1024.0),
        Column::new("device.write_bytes", "MiB written", "MiB written", |t: &Trial<Outcome>| Some(t.reading.device?.write_bytes as f64))
            .per((1 << 20) as f64)
            .less(),
        queue(),
        Column::new("load_seconds", "load s", "seconds to load", |t: &Trial<Outcome>| Some(t.outcome.load_seconds)).less(),
        peak(),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("On a heap larger than memory", &["seconds"], Kind::Bars, Over::Arms)
            .after("FastMap, USENIX ATC '20, figure 7: BFS takes 6.42 s with FastMap, 21.3 s with Linux mmap, on an Optane SSD"),
        Plot::new("Where the processors' time goes", &["user", "system", "iowait", "idle"], Kind::Stacked, Over::Arms).after(
            "FastMap, USENIX ATC '20, figure 7: system 10.3 % and I/O wait 19.31 % with FastMap, 27.38 % and 9.5 % with Linux mmap",
        ),
    ];
    const VERIFIED: &'static str = "Each run's copy of the graph was compared by digest, the levels of all vertices with those of a plain serial \
                                    search in memory, and all ranks, to the last bit, with serial PageRank.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Graph>, Failure> {
        let vertices = 1u64 << args.scale;
        let footprint = Load::footprint(vertices, vertices * u64::from(args.edges));
        // What the allocator has not yet given back lies beside what is in use.
        let heap = (2 * footprint + (64 << 20)).next_multiple_of(1 << 20);
        let limit = ctx.limit(footprint / 8 + PROCESS, |limit| Ok(cache_for(Some(limit), heap).map(drop)?))?;
        let dir = ctx.dir_for(2 * footprint + heap)?;
        let files = Files::make(args, &dir)?;
        let engines = match args.engines.as_slice() {
            [] if readahead_kib(&files.dir) > MOST_READAHEAD_KIB => {
                ctx.notes.push(
                    "Kernel mmap without advice is left out, for it would take minutes: the device's readahead is so large that each page \
                     missed brings in more than memory holds. `--engines mmap,mmap-random,fastmap` has it."
                        .to_owned(),
                );
                vec![Engine::MmapRandom, Engine::Fastmap]
            }
            [] => Engine::PROGRAMS.to_vec(),
            some => once_each(some),
        };
        ctx.notes.push(format!(
            "This is not Ligra itself but its breadth-first search and PageRank written again: vertices of 8 bytes, Ligra's R-MAT parameters \
             and its rule for when to change direction. Kernel mmap has the same allocator over a file that the kernel maps; mmap-random \
             has it advised MADV_RANDOM once the graph is loaded. The paper's kernel has no advice. What takes more than {HOPELESS} times as \
             long as the fastest is run once."
        ));
        let group = |threads| {
            let arm = |&engine: &Engine| {
                let (load, place) = (files.load.clone(), files.dir.clone());
                Arm::of(engine, Order { engine, load, graph: files.graph.path.clone(), answers: files.answers.path.clone(), place, threads })
            };
            let what = format!("2^{} vertices, {} edges each, {} searches, {} iterations", args.scale, args.edges, args.sources, args.iterations);
            Group::new(what, vec![("threads", json!(threads))], engines.iter().map(arm).collect())
        };
        Ok(Plan {
            about: "R-MAT graph with arrays on a heap in a file".to_owned(),
            place: dir.clone(),
            file: format!("heap in {}", dir.display()),
            bytes: footprint,
            groups: once_each(&args.threads).into_iter().map(group).collect(),
            until_steady: None,
            stage: Box::new(Heap { files, heap, cache: cache_for(limit.bytes(), heap)? }),
            limit,
        })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        let graph::Outcome { searches, bfs, rank, load_seconds } = graph::run(case, meter)?;
        let edges = case.load.edges * u64::from(case.load.iterations);
        let of = |edges, searches| Outcome { edges, load_seconds, searches };
        let rank = rank.map(|reading| Part { name: "PageRank".to_owned(), reading, outcome: of(edges, Vec::new()) });
        let bfs = Part { name: "BFS".to_owned(), reading: bfs, outcome: of(0, searches) };
        Ok([Some(bfs), rank].into_iter().flatten().collect())
    }

    fn claims() -> Vec<Claim<Outcome>> {
        vec![Claim::new("seconds").paper(|row| {
            let setting = "Ligra, 100 million vertices, 32 threads, 8 of 64 GB of memory, Optane SSD; 6.42 s to 21.3 s";
            if row.part == "BFS" { Paper::says(3.31, "FastMap, USENIX ATC '20, figure 7", setting) } else { None }
        })]
    }
}

/// How far the device under a directory is read ahead of, KiB; zero where nobody tells. The kernel's
/// Documentation/ABI/testing/sysfs-class-bdi.
fn readahead_kib(dir: &Path) -> u64 {
    let device = dir.metadata().map_or(0, |facts| facts.dev());
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The engine's cache in a process with so much memory.
fn cache_for(memory: Option<u64>, heap: u64) -> substrates::Result<u64> {
    match memory {
        Some(memory) => Ok(capacity_for(memory, heap / PAGE as u64, false)? as u64),
        None => Ok((heap / 16).max(fastmap::Cache::MIN_CAPACITY as u64)),
    }
}

/// Starts runs under `fastmap run --heap`.
struct Heap {
    files: Files,
    heap: u64,
    cache: u64,
}

impl Stage<Graph> for Heap {
    fn before(&mut self, turn: &Turn<'_, Graph>, _: &mut Order) -> Result<Launch, Failure> {
        let took = |arm: usize| {
            let rows: Vec<_> = turn.group().filter(|row| row.arm == arm).collect();
            (!rows.is_empty()).then(|| rows.iter().filter_map(|row| row.trials.first()).map(|t| t.reading.seconds).sum::<f64>())
        };
        let arms = turn.group().map(|row| row.arm).max().unwrap_or(0);
        let fastest = (0..=arms).filter_map(took).fold(f64::INFINITY, f64::min);
        if turn.repetition > 1 && took(turn.at.1).is_some_and(|own| own > HOPELESS * fastest) {
            return Ok(Launch { skip: true, ..Launch::default() });
        }
        self.files.make_cold()?;
        let mut at = self.files.dir.join(format!(".fastmap-bench-{}", std::process::id())).into_os_string();
        at.push(format!(":{}", Size(self.heap)));
        // Said in any case: the environment may say otherwise.
        let direct = if turn.engine == Engine::Fastmap { "never" } else { "always" };
        let cache = self.cache.to_string();
        let under = ["--cache", &cache, "--faults", "signal", "--direct", direct, "--heap"].map(OsString::from);
        Ok(Launch { under: Some(under.into_iter().chain([at]).collect()), ..Launch::default() })
    }

    fn after(&mut self, _: &Turn<'_, Graph>, _: &Order, parts: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        parts.iter_mut().filter(|part| part.name == "BFS").for_each(|part| part.outcome.edges = self.files.traversed);
        Ok(())
    }
}

/// A file without a name, gone when this process ends, however it ends.
struct Unnamed {
    file: File,
    /// Where a worker process can open it.
    path: PathBuf,
}

impl Unnamed {
    fn make(dir: &Path) -> io::Result<Unnamed> {
        let file = tempfile::tempfile_in(dir)?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok(Unnamed { file, path })
    }
}

/// What all runs work on.
struct Files {
    /// The directory.
    dir: PathBuf,
    /// The graph.
    graph: Unnamed,
    /// What is right.
    answers: Unnamed,
    /// Which graph, and what is asked.
    load: Load,
    /// Edges that come from what the searches of a run reach.
    traversed: u64,
}

impl Files {
    /// Draws the graph, answers what will be asked of it, and puts both into files.
    ///
    /// # Errors
    ///
    /// No room, whatever else the directory refuses, or an interruption.
    fn make(args: &Args, dir: &Path) -> Result<Files, Failure> {
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
            let error = Error::NoSpace { thing: label, needed, free };
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
    fn make_cold(&self) -> Result<(), Failure> {
        for file in [&self.graph.file, &self.answers.file] {
            let len = file.metadata().map_or(0, |facts| facts.len());
            make_cold(file, "the graph's file", len)?;
        }
        Ok(())
    }
}

fn edges(text: &str) -> Result<u32, String> {
    count(text, "edges", 1000)
}

fn sources(text: &str) -> Result<u32, String> {
    count(text, "sources", 1000)
}
