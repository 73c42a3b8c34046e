//! `fastmap bench micro`: one load, on the engines that the user names.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::json;

use crate::args::{once_each, one_of, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{
    cpu, longest, merged, p50, p99, p999, peak, queue, rate, times_mmap, write_size,
};
use crate::experiment::{
    ANY_FASTMAP, Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Over, Part, Plan, Plot, Stage, Turn,
};
use crate::results::Kind;
use crate::substrates::{self, Advice, Engine, Meter, Op, PAGE, Pattern, Spec, prepare};
use crate::target::{DEFAULT_BYTES, Target, enough_for, length_for};

/// Measure one load, with the engines, threads, sizes and repetitions you choose
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure one load.

Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns \
within each repetition; the file is dropped from the page cache before each run. A run reads until memory is full and all in it \
has been replaced once; meanwhile every engine that can be told what comes next is, so that this takes no longer than the device \
does (four times --seconds at most: a row that ran out of time says (cold)). It is then measured for --seconds, and until what it \
stored is flushed. Rows whose repetitions are more than 10 % apart say so (!). Every operation \
checks the page's stamp. After a load that writes, the whole file is read back and every byte checked. One wrong byte \
fails the command. Figures are medians over the repetitions.

The pattern fill is another kind of load: every run starts with an empty file, extended to --size without a write, and \
writes it forward, each page once and whole, then flushes it. What is measured is the time until the file is on stable \
storage, for every engine, so --seconds bounds nothing; latencies are those of single pages, without the flush (pread and direct write when 256 have come \
together).")]
#[command(after_help = "\
Engines:
  mmap, mmap-random, mmap-sequential   kernel mmap: no advice, MADV_RANDOM, MADV_SEQUENTIAL
  mmap-willneed                        kernel mmap, each thread tells the pages it needs next, 64, or on a walk 1024: MADV_WILLNEED,
                                       a batch a call of process_madvise
  mmap-fadvise                         the same by posix_fadvise(POSIX_FADV_WILLNEED)
  mmap-populate                        as mmap-willneed, and what comes at once by MADV_POPULATE_READ (stores: MADV_POPULATE_WRITE)
                                       too; the whole file beforehand, if it fits
  fastmap                              this project, plain loads and stores
  fastmap-pin                          the same, each page pinned while it is read or written
  fastmap-prefetch                     the same, plain loads and stores; each thread prefetches the pages it needs next, as many as above
  steered                              kernel mmap without advice, steered, as `fastmap run` does it
  pread                                buffered pread and pwrite, one page a call (fill: 1 MiB)
  direct                               the same past the page cache (O_DIRECT); forward and backward reads: 2 MiB a call

Each row is compared with the best kernel mmap that knows no more: engines that are told what comes next with all, the others with those
that are not told; walks (forward, backward, stride), whose order anybody knows, with all.

Examples:
  fastmap bench micro
  fastmap bench micro --pattern zipf --threads 2 --size 4GiB --memory 1GiB --repeat 5
  fastmap bench micro --engines mmap,fastmap --op write --file /mnt/disk/bench --size 4GiB --json out.json
  fastmap bench micro --engines mmap-sequential,fastmap,direct --pattern fill --op write --size 4GiB
  fastmap bench micro --engines mmap-random,fastmap,fastmap-prefetch,fastmap-pin --threads 2 --size 4GiB
  fastmap bench micro --engines mmap-willneed,mmap-fadvise,mmap-populate,fastmap-prefetch
  fastmap bench micro --engines mmap,mmap-sequential,mmap-willneed,fastmap,direct --pattern backward --advice backward
  fastmap bench micro --engines mmap,mmap-random,mmap-sequential,steered --threads 4
  fastmap bench micro --pattern order --size 1280MiB --memory 1GiB     a loop of 1.25 times memory; or --pattern forward
  fastmap bench micro --memory none       without root: nothing limits kernel mmap then")]
pub struct Args {
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap,mmap-random,mmap-sequential,fastmap",
        value_parser = one_of(Engine::PAGED)
    )]
    pub engines: Vec<Engine>,
    /// Order of the pages: random, zipf (theta 0.99), forward, backward, stride (every 16th page), order (every
    /// page once, scattered, then all again in the same order), fill (forward, a fresh file written whole; needs --op write)
    #[arg(long, default_value_t = Pattern::Random)]
    pub pattern: Pattern,
    /// Operation on each page: read (load and check its stamp), write (store a new generation, check the stamp), rmw (load the generation,
    /// store the next)
    #[arg(long, default_value_t = Op::Read)]
    pub op: Op,
    /// Advice to the fastmap engines about the order of pages: normal (none), random, sequential, backward. For kernel mmap choose an
    /// engine whose name carries the advice [default: normal]
    #[arg(long)]
    pub advice: Option<Advice>,
    /// Threads, all on one map
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = threads)]
    pub threads: u32,
    /// The file. It is made if it is missing, extended if it is shorter than --size, and used again if `fastmap bench` made it. Any other
    /// file is refused. The pattern fill writes it anew, --size long [default: a temporary file in the current directory]
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 1GiB]
    #[arg(long)]
    pub size: Option<Size>,
}

/// The experiment.
pub struct Micro;

impl Experiment for Micro {
    const NAME: &'static str = "micro";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("5", "Seconds to measure each run; warming up takes four times that at most, or 2 s; fill takes what it takes")),
        memory: Some("a quarter of --size"),
        dir: None,
    };
    const COLUMNS: &'static [Column<Nothing>] = PAGES;
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Throughput", &["ops_per_s"], Kind::Bars, Over::Arms),
        Plot::new("Latency", &["latency_us.p50", "latency_us.p99", "latency_us.p999", "latency_us.max"], Kind::Bars, Over::Arms)
            .log(),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Micro>, Failure> {
        if args.pattern == Pattern::Fill && args.op != Op::Write {
            let what = format!("fill writes a fresh file, {} has nothing to read in it", args.op);
            return Err(Failure::usage("--op", what, "give --op write, or --pattern forward"));
        }
        let ours = args.engines.iter().any(|engine| engine.is_fastmap());
        if let Some(advice) = args.advice
            && !ours
        {
            let what = format!("{advice} is for the fastmap engines, and --engines has none of them");
            return Err(Failure::usage("--advice", what, "add fastmap, or choose mmap-random or mmap-sequential there"));
        }
        let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
        enough_for(bytes, &[args.threads])?;
        let limit = ctx.limit_of_file(bytes, args.op.writes(), ours)?;
        let target = match &args.file {
            Some(path) => Target::named(path, args.size, args.op.writes())?,
            None => Target::temporary(&ctx.dir_for(bytes)?, Size(bytes), prepare::stamp_page)?,
        };
        if args.pattern == Pattern::Fill && !target.is_regular() {
            let what = "is a device, and fill begins with an empty file";
            return Err(Failure::new(&target.label, what, "name a regular file on it, or give --pattern forward"));
        }
        let advice = args.advice.unwrap_or_default();
        let case = |engine| {
            let spec = target.spec(engine, args.pattern, args.op, args.threads, limit.bytes(), ctx.seconds);
            let labels = if engine.is_fastmap() { vec![("advice", json!(advice))] } else { Vec::new() };
            Arm { labels, ..Arm::of(engine, Spec { advice, ..spec }) }
        };
        let advised = args.advice.map_or_else(String::new, |advice| format!(", fastmap advised {advice}"));
        let what = format!("{}{advised}", in_words(args.pattern, args.op));
        let labels = vec![
            ("pattern", json!(args.pattern.name())),
            ("op", json!(args.op.name())),
            ("threads", json!(args.threads)),
        ];
        let group = Group::new(what, labels, once_each(&args.engines).into_iter().map(case).collect());
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            limit,
            groups: vec![group],
            until_steady: None,
            stage: Box::new(Pages { target, spec: |case| case }),
        })
    }

    fn run(case: &Spec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        Ok(Part::whole(substrates::run(case, meter)?, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("ops_per_s").between(ANY_FASTMAP, MMAP)]
    }
}

/// How loads on a stamped file are verified.
pub const VERIFIED: &str = "Every operation checked its page's stamp; after each run that wrote, the whole file was read back and every byte \
                            checked.";

/// The columns of loads on pages.
pub const PAGES: &[Column<Nothing>] = &[
    rate(),
    times_mmap(),
    Column::new("bytes_per_s", "GB/s", "GB/s of touched pages", |t| Some(t.reading.ops_per_s * PAGE as f64)).per(1e9),
    cpu(),
    Column::new("cpu_ns_per_byte", "CPU ns/B", "nanoseconds of processor time a byte", |t| {
        Some(t.reading.cpu_us_per_op * 1e3 / PAGE as f64)
    })
    .less(),
    p50(),
    p99(),
    p999(),
    longest(),
    peak(),
    Column::new("hit_ratio", "hits %", "per cent of operations that found their page mapped", |t| {
        Some(t.reading.hits?.hit_ratio)
    })
    .per(0.01),
    Column::new("misses", "", "operations that read their page themselves", |t| Some(t.reading.hits?.misses as f64)),
    Column::new("readahead.pages", "", "pages read ahead", |t| Some(t.reading.readahead?.pages as f64)),
    Column::new("readahead.used", "", "pages read ahead and used", |t| Some(t.reading.readahead?.used as f64)),
    Column::new("readahead.wasted", "", "pages read ahead and dropped", |t| Some(t.reading.readahead?.wasted as f64)),
    queue(),
    write_size(),
    merged(),
];

/// A load in words.
pub fn in_words(pattern: Pattern, op: Op) -> String {
    match pattern {
        Pattern::Stride => format!("every 16th page, {op}"),
        Pattern::Order => format!("a scattered order again and again, {op}"),
        Pattern::Fill => "a fresh file filled and flushed".to_owned(),
        other => format!("{other} {op}"),
    }
}

/// A stage with one stamped file, which it makes ready for each run.
pub struct Pages<E: Experiment> {
    /// The file.
    pub target: Target,
    /// Finds the load of a case.
    pub spec: fn(&mut E::Case) -> &mut Spec,
}

impl<E: Experiment> Stage<E> for Pages<E> {
    fn before(&mut self, _: &Turn<'_, E>, case: &mut E::Case) -> Result<Launch, Failure> {
        self.target.ready((self.spec)(case))
    }
}
