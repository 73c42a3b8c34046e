//! `fastmap bench peers`: FastMap beside the usual alternatives, in one run.

use std::fs::File;
use std::io;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;
use serde_json::json;
use tempfile::TempDir;

use crate::args::{once_each, one_of, threads};
use crate::driver::{Ctx, own_directory};
use crate::experiment::columns::{cpu, longest, p50, p99, p999, peak, queue, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Over, Part, Plan, Plot, Stage, TEMPORARY, Turn,
};
use crate::results::Kind;
use crate::substrates::peers::{self, ENGINES, Work};
use crate::substrates::{self, Engine, Meter, Spec, prepare};
use crate::target::{Target, enough_for, length_for, make_cold};

/// Measure FastMap beside what people use instead: mmap, a cache over pread, a database's buffer pool, plain calls
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure FastMap beside what people use instead.

The same work, with the same memory, through every engine: pages of 4 KiB (the database: records of 4032 bytes, which fill one of \
its own pages), read or read and updated by several threads. Every engine and repetition is a fresh process in a memory \
cgroup of its own, limited to --memory, whatever part of it the engine's own cache takes; engines take turns; the file is \
dropped from the page cache before each run. A run reads until memory is full and all in it has been replaced once (every engine \
that can be told what comes next is, meanwhile) and is then measured for --seconds, and until what it stored is flushed. Every operation checks its page's stamp; after a work that updates, \
every page is read back and every byte checked. Figures are medians over the repetitions.")]
#[command(after_help = "\
Works:
  random-read   reads, uniformly over the file
  zipf-read     reads, Zipf (theta 0.99), hot pages scattered
  zipf-update   the same, each read followed by a store to the same page

Engines:
  mmap, mmap-random  kernel mmap (crate memmap2): no advice, MADV_RANDOM
  mmap-willneed, mmap-fadvise, mmap-populate
                     the same, told the 64 pages that each thread needs next: MADV_WILLNEED (a batch a call), posix_fadvise,
                     or both MADV_WILLNEED and MADV_POPULATE_READ (to be stored to: MADV_POPULATE_WRITE)
  fastmap            this project, plain loads and stores
  fastmap-pin        the same, each page pinned while it is worked on
  fastmap-prefetch   the same, each thread prefetches the 64 pages it needs next
  pread, direct      pread and pwrite, a page a call, through the page cache and past it (O_DIRECT)
  quick-cache        a cache of pages (crate quick_cache) over pread with O_DIRECT; an update is written through at once
  redb               an embedded database (crate redb) with its cache limited; an update is a transaction, every 256th durable;
                     one thread at a time can write

scripts/peers runs the same beside a UMap or vmcache that you have built.

Examples:
  fastmap bench peers
  fastmap bench peers --engines fastmap-pin,quick-cache,redb --threads 1,2,4 --size 4GiB --memory 1GiB --seconds 5 --json out.json")]
pub struct Args {
    /// Works to do, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "random-read,zipf-read,zipf-update")]
    pub works: Vec<Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "mmap-random,mmap-willneed,mmap-fadvise,mmap-populate,fastmap,fastmap-pin,fastmap-prefetch,pread,direct,quick-cache,redb",
        value_parser = one_of(ENGINES)
    )]
    pub engines: Vec<Engine>,
    /// Numbers of threads, separated by commas, which are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Size of the file, a multiple of 4096. The database takes about as much beside it
    #[arg(long, default_value = "256MiB")]
    pub size: Size,
}

/// The experiment.
pub struct Peers;

impl Experiment for Peers {
    const NAME: &'static str = "peers";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("0.5", "Seconds to measure each run; warming up takes four times that at most, or 2 s")),
        memory: Some("a quarter of --size"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Nothing>] =
        &[rate(), times_mmap(), cpu(), p50(), p99(), p999(), longest(), peak(), queue()];
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Operations a second", &["ops_per_s"], Kind::Bars, Over::Groups),
        Plot::new("Latencies", &["latency_us.p50", "latency_us.p99", "latency_us.p999"], Kind::Bars, Over::Arms).log(),
        Plot::new("Processor time of an operation", &["cpu_us_per_op"], Kind::Bars, Over::Groups),
    ];
    const VERIFIED: &'static str = "Every operation checked three words of its page or record; after each run that updated, every byte of every \
                                    page and record was read back and compared with what was stored last.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Peers>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        enough_for(bytes, &args.threads)?;
        let limit = ctx.limit_of_file(bytes, true, true)?;
        // Updates let redb's file grow to about three times its first size.
        let with_redb = args.engines.contains(&Engine::Redb);
        let dir = ctx.dir_for(if with_redb { bytes * 4 } else { bytes })?;
        let target = Target::temporary(&dir, args.size, prepare::stamp_page)?;
        let database = if with_redb {
            let own = own_directory(&dir, bytes)?;
            peers::make_database(&own.path().join("redb"), &label(&own), target.pages, || !interrupt::requested())
                .map_err(|e| interrupt::check().err().unwrap_or_else(|| e.into()))?;
            ctx.notes.push(
                "redb keeps its records in a tree, reads through the page cache, and makes every update a transaction that is atomic after \
                 a crash; no other engine here promises that, and redb alone pays for it."
                    .to_owned(),
            );
            Some(own)
        } else {
            None
        };
        ctx.notes.push(
            "quick-cache, pread and direct hand each update to the kernel at once (quick-cache and direct: to the device); kernel mmap and \
             FastMap write back later, several updates of a page together, and the measurement lasts until all is flushed. UMap and vmcache are \
             in no package registry: scripts/peers measures one that you have built beside these."
                .to_owned(),
        );
        let mut groups = Vec::new();
        for work in once_each(&args.works) {
            for threads in once_each(&args.threads) {
                let arm = |engine| {
                    let spec = target.spec(engine, work.pattern(), work.op(), threads, limit.bytes(), ctx.seconds);
                    Arm::of(engine, spec)
                };
                let labels = vec![("work", json!(work)), ("threads", json!(threads))];
                groups.push(Group::new(work.name(), labels, once_each(&args.engines).into_iter().map(arm).collect()));
            }
        }
        Ok(Plan {
            about: String::new(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            limit,
            groups,
            until_steady: None,
            stage: Box::new(Both { pages: target, database, epoch: 0 }),
        })
    }

    fn run(case: &Spec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        Ok(Part::whole(peers::run(case, meter)?, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        // Plain loads are compared with plain loads. Calls are compared with any of FastMap's interfaces, since a program that makes calls
        // may use any.
        const OURS: &[Engine] = &[Engine::Fastmap, Engine::FastmapPin, Engine::FastmapPrefetch];
        let best = |ours, theirs| Claim { best: true, ..Claim::new("ops_per_s").between(ours, theirs).most_threads() };
        vec![
            best(&OURS[..1], MMAP).of(|row| row.text("work") == "random-read"),
            best(&OURS[2..], MMAP).of(|row| row.text("work") == "random-read"),
            best(OURS, &[Engine::Direct, Engine::QuickCache]).of(|row| row.text("work") == "random-read"),
            best(&OURS[..2], &[Engine::QuickCache, Engine::Redb]).of(|row| row.text("work") == "zipf-read"),
            best(&OURS[..2], &[Engine::Mmap, Engine::MmapRandom, Engine::QuickCache, Engine::Redb])
                .of(|row| row.text("work") == "zipf-update"),
        ]
    }
}

fn label(own: &TempDir) -> String {
    format!("temporary database in {}", own.path().display())
}

/// The file of pages, and the database.
struct Both {
    pages: Target,
    database: Option<TempDir>,
    /// The number of runs so far that updated the database.
    epoch: u32,
}

impl Stage<Peers> for Both {
    fn before(&mut self, _: &Turn<'_, Peers>, case: &mut Spec) -> Result<Launch, Failure> {
        let Some(database) = self.database.as_ref().filter(|_| case.engine == Engine::Redb) else {
            return self.pages.ready(case);
        };
        (case.path, case.label) = (database.path().join("redb"), label(database));
        let failed = |e: io::Error| {
            Failure::new(&case.label, format!("cannot be dropped from the page cache: {e}"), "check its device")
        };
        let file = File::open(&case.path).map_err(failed)?;
        make_cold(&file, &case.label, file.metadata().map_err(failed)?.len())?;
        self.epoch += u32::from(case.op.writes());
        case.epoch = self.epoch;
        Ok(Launch::default())
    }
}
