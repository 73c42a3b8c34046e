//! `fastmap bench oltp`: TPC-C over a heap in a file, on one file system after the other.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{count, once_each, one_of, threads};
use crate::driver::Ctx;
use crate::experiment::columns::{idle, iowait, others, p50, p99, p999, queue, system, user};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Of, Over, Paper, Part, Plan, Plot, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind as Drawn;
use crate::substrates::tpcc::{self, Kind, Order, Scale};
use crate::substrates::{self, Engine, Meter, PAGE, Reading, capacity_for};
use fastmap_bench::storages;
use crate::volume::{FileSystem, Image, Volume, missing};

/// Bytes that a thread's transactions add in a second, at most.
const GROWTH: u64 = 8 << 20;

/// Measure transactions over a heap larger than memory: TPC-C, on several file systems
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure transactions over a heap larger than memory: TPC-C, on several file systems.

After the FastMap paper's table 2 and figure 11: an in-memory database (there Silo) whose heap a library extends over a file. \
The five transactions of TPC-C run without thinking time over tables on the ordinary heap of a program that knows nothing of \
FastMap. The very same allocator hands out memory of a file that the kernel maps (`fastmap run --direct always --heap`, which is \
what libvmmalloc does) or FastMap (`fastmap run --heap`). Nothing is logged: the database lives as long as the process.

Each file system is made anew on a loop device over one unnamed file in --dir, past the page cache beneath, and goes with \
this command, however that ends. That takes root, and mkfs for each of them. Where there is none of it, the heap is in --dir itself.

Every engine and repetition is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns. A run \
fills the tables, which are the same each time, runs transactions for a third of --seconds that do not count, and then for --seconds. At its \
end the conditions of consistency 1 to 10 and 12 of the specification (clause 3.3.2) are checked over all tables, and that they \
hold what the terminals counted. Every row carries a check word, which is verified whenever it is read. One wrong row fails the command. \
Figures are medians over the repetitions.")]
#[command(after_help = "\
Engines:
  mmap, mmap-random   kernel mmap: no advice, MADV_RANDOM
  fastmap             this project

A warehouse takes about 80 MB. tpmC counts new orders as the specification does, but for its rules of thinking time and \
durability: it compares engines, not products.

Examples:
  fastmap bench oltp
  fastmap bench oltp --file-systems here --dir /mnt/disk --warehouses 8 --threads 2,8 --json out.json
  fastmap bench oltp --file-systems xfs --engines mmap-random,fastmap --seconds 30 --repeat 5")]
pub struct Args {
    /// File systems to have the heap on, separated by commas: ext4, xfs, btrfs (each made for this), here (that of --dir as it
    /// is) [default: ext4, xfs and btrfs, as far as they can be had; else here]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub file_systems: Vec<FileSystem>,
    /// Engines to compare, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "mmap,mmap-random,fastmap", value_parser = one_of(Engine::PROGRAMS))]
    pub engines: Vec<Engine>,
    /// Size of the database
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = warehouses)]
    pub warehouses: u32,
    /// Threads, each a terminal with its share of the warehouses; several numbers, separated by commas, are measured one after
    /// the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = threads)]
    pub threads: Vec<u32>,
}

/// All transactions of a run, or one kind of them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// None of one kind.
    all: Option<tpcc::Outcome>,
}

/// The experiment.
pub struct Oltp;

/// A figure of all transactions.
macro_rules! of_all {
    ($field:ident, $title:literal, $axis:literal) => {
        Column::new(stringify!($field), $title, $axis, |t: &Trial<Outcome>| Some(t.outcome.all.as_ref()?.$field as f64))
    };
}

impl Experiment for Oltp {
    const NAME: &'static str = "oltp";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const PART: &'static str = "transaction";
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: Some(("3", "Seconds to measure each run")),
        memory: Some("two sevenths of the rows' size"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Outcome>] = &[
        Column::new("transactions_per_s", "tx/s", "transactions a second", |t: &Trial<Outcome>| {
            t.outcome.all.as_ref().map(|_| t.reading.ops_per_s)
        })
        .range(),
        Column::from("times_best_mmap", "x best mmap", "times the best kernel mmap", Of::TimesMmap("transactions_per_s")),
        of_all!(new_orders_per_min, "ktpmC", "thousands of new orders a minute").per(1e3),
        Column::new("latency_us.mean", "mean us", "microseconds", |t: &Trial<Outcome>| Some(t.reading.latency_us?.mean)).less(),
        p50(),
        p99(),
        p999(),
        user(),
        system(),
        others(),
        iowait(),
        idle(),
        queue(),
        Column::new("peak_rss_bytes", "peak MiB", "MiB", |t: &Trial<Outcome>| {
            t.outcome.all.as_ref().map(|_| t.reading.peak_rss_bytes as f64)
        })
        .per((1 << 20) as f64)
        .less(),
        Column::new("major_faults", "", "faults that waited", |t: &Trial<Outcome>| {
            t.outcome.all.as_ref().map(|_| t.reading.major_faults as f64)
        })
        .less(),
        of_all!(transactions, "", "transactions, the warm-up included"),
        of_all!(rolled_back, "", "new orders rolled back"),
        of_all!(load_seconds, "", "seconds to fill the tables").less(),
        of_all!(check_seconds, "", "seconds to check them").less(),
        of_all!(rows, "", "rows checked"),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("TPC-C in memory over a file: throughput", &["transactions_per_s"], Drawn::Bars, Over::Groups)
            .of(|row| row.part == "all")
            .after("FastMap, USENIX ATC '20, table 2: EXT4 on NVMe, 32 threads: FastMap 52.5 times mmap; on pmem 75.9 times"),
        Plot::new("TPC-C in memory over a file: average latency", &["latency_us.mean"], Drawn::Bars, Over::Groups)
            .of(|row| row.part == "all")
            .after("FastMap, USENIX ATC '20, table 2: up to 75 times lower with FastMap"),
        Plot::new("99th percentile by transaction", &["latency_us.p99"], Drawn::Bars, Over::Parts).log(),
        Plot::new("Where the time goes", &["user", "system", "others", "iowait", "idle"], Drawn::Stacked, Over::Arms)
            .of(|row| row.part == "all")
            .after(
                "FastMap, USENIX ATC '20, figure 11: on EXT4 74.2 % of the time is mmap's buffer management in the kernel, and 10.3 % FastMap's",
            ),
    ];
    const VERIFIED: &'static str = "At the end of every run the conditions of consistency 1 to 10 and 12 of TPC-C's clause 3.3.2 held over all \
                                    tables, the counts of orders, payments and deliveries were those the terminals had counted, and every \
                                    row, whenever it was read, had the check word of its bytes and its place.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Oltp>, Failure> {
        let scale = Scale::of(args.warehouses);
        let data = scale.bytes();
        let warmup = ctx.seconds / 3.0;
        let most = args.threads.iter().copied().max().unwrap_or(1);
        // Twice the rows for what an allocator wastes, room for what transactions add, and some more.
        let growth = (ctx.seconds + warmup).ceil() as u64 * u64::from(most) * GROWTH;
        let heap = (2 * data + (128 << 20) + growth).next_multiple_of(1 << 20);
        // FastMap's bookkeeping grows with the pages in use, not with the file.
        let cache_of = |memory| -> Result<u64, Failure> { Ok(capacity_for(memory, data / 4 * 5 / PAGE as u64, false)? as u64) };
        let limit = ctx.limit((data / 7 * 2).next_multiple_of(1 << 20), |limit| cache_of(limit).map(drop))?;
        let cache = limit.bytes().map_or(Ok(data / 4 / PAGE as u64 * PAGE as u64), cache_of)?;
        let kinds = file_systems(&args.file_systems, ctx)?;
        // A file system's own tables and journal, and blocks that btrfs keeps until all of an extent is stored to anew.
        let image_bytes = heap + heap / 4 + (128 << 20);
        // Each file system has a loop device of its own, with the usual readahead, which is what a disk's is.
        let dir = if ctx.storage == storages::Kind::Disk { ctx.folder_for(image_bytes) } else { ctx.dir_for(image_bytes + image_bytes / 16)? };
        ctx.notes.push(match kinds.iter().any(|kind| *kind != FileSystem::Here) {
            true => "File systems are on a loop device over a file in --dir, past the page cache there; its kernel readahead is a loop \
                     device's, not that of the disk beneath."
                .to_owned(),
            false => "File systems are not compared: the heap was in --dir itself.".to_owned(),
        });
        ctx.notes.push(
            "tpmC is without thinking time and without a log, as Silo's in the paper: it compares engines, not products. NOVA and a pmem \
             device, of which the paper's table has figures too, are not part of this."
                .to_owned(),
        );
        let (mut groups, mut kind_of) = (Vec::new(), Vec::new());
        for kind in kinds {
            for threads in once_each(&args.threads) {
                let arm = |engine| {
                    let (seconds, device) = (ctx.seconds, PathBuf::new());
                    Arm::of(engine, Order { engine, scale, threads, warmup, seconds, seed: 0, device })
                };
                let labels = vec![("file_system", json!(kind)), ("threads", json!(threads))];
                let arms = once_each(&args.engines).into_iter().map(arm).collect();
                groups.push(Group::new(format!("TPC-C on {kind}"), labels, arms));
                kind_of.push(kind);
            }
        }
        Ok(Plan {
            about: format!("{} warehouses", args.warehouses),
            place: dir.clone(),
            file: dir.display().to_string(),
            bytes: data,
            limit,
            groups,
            until_steady: None,
            stage: Box::new(Volumes { dir, kind_of, image_bytes, heap, cache, image: None, volume: None }),
        })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        let (reading, outcome) = tpcc::run(case, meter)?;
        let of_kind = |(kind, latency): (Kind, _)| Part {
            name: kind.to_string(),
            reading: Reading { latency_us: Some(latency), ..Reading::default() },
            outcome: Outcome { all: None },
        };
        let kinds: Vec<_> = Kind::ALL.into_iter().zip(outcome.kinds.clone()).map(of_kind).collect();
        let all = Part { name: "all".to_owned(), reading, outcome: Outcome { all: Some(outcome) } };
        Ok(std::iter::once(all).chain(kinds).collect())
    }

    fn claims() -> Vec<Claim<Outcome>> {
        const TABLE: &str = "FastMap, USENIX ATC '20, table 2";
        const SETTING: &str = "32 threads, Optane SSD, EXT4, Silo's heap by libvmmalloc, mmap without advice";
        const PLAIN: &[Engine] = &[Engine::Mmap];
        let rate = |theirs| {
            let claim = Claim::new("transactions_per_s").between(&[Engine::Fastmap], theirs).most_threads();
            claim.what("transactions a second").of(|row| row.part == "all").paper(|_| Paper::says(52.5, TABLE, SETTING))
        };
        let latency = Claim::new("latency_us.mean").most_threads().what("average latency").of(|row| row.part == "all");
        let latency = latency.paper(|_| {
            Paper::says(75.0, TABLE, "the best of several settings; 32 threads, Silo's heap by libvmmalloc, mmap without advice")
        });
        vec![rate(MMAP), latency, rate(PLAIN)]
    }
}

/// The file systems to measure on, each once; those that are left out are told of.
fn file_systems(asked: &[FileSystem], ctx: &mut Ctx) -> Result<Vec<FileSystem>, Failure> {
    for &kind in asked.iter().filter(|kind| **kind != FileSystem::Here) {
        if let Some(why) = missing(kind) {
            return Err(Failure::new("--file-systems", format!("no {kind}: {why}"), "install or allow that, or give others"));
        }
    }
    if !asked.is_empty() {
        return Ok(once_each(asked));
    }
    let mut kinds = Vec::new();
    for kind in FileSystem::MADE {
        match missing(kind) {
            Some(why) => ctx.notes.push(format!("{kind} is left out: {why}.")),
            None => kinds.push(kind),
        }
    }
    Ok(if kinds.is_empty() { vec![FileSystem::Here] } else { kinds })
}

/// The file systems, one after the other, since they share a file.
struct Volumes {
    dir: PathBuf,
    /// Of each group.
    kind_of: Vec<FileSystem>,
    image_bytes: u64,
    heap: u64,
    cache: u64,
    // Dropped in this order: the mount goes before the image that it is in.
    volume: Option<Volume>,
    image: Option<Image>,
}

impl Stage<Oltp> for Volumes {
    fn before(&mut self, turn: &Turn<'_, Oltp>, case: &mut Order) -> Result<Launch, Failure> {
        let kind = self.kind_of[turn.at.0];
        let volume = match self.volume.take().filter(|volume| volume.kind == kind) {
            Some(volume) => volume,
            None if kind == FileSystem::Here => Volume::here(&self.dir),
            None => {
                let image = match self.image.take() {
                    Some(image) => image,
                    None => Image::new(&self.dir, self.image_bytes)?,
                };
                Volume::make(kind, self.image.insert(image))?
            }
        };
        (case.device, case.seed) = (volume.device.clone(), turn.repetition.into());
        let mut heap = volume.root.join(format!("heap-{}", std::process::id())).into_os_string();
        heap.push(format!(":{}", self.heap));
        self.volume = Some(volume);
        // Both have the cache's size: by it the allocator decides how many small blocks stay in memory. And the way is said in any
        // case: the environment may say otherwise.
        let direct = if turn.engine.is_mmap() { "always" } else { "never" };
        let cache = self.cache.to_string();
        let under = ["--cache", &cache, "--faults", "signal", "--direct", direct, "--heap"].map(OsString::from);
        Ok(Launch { under: Some(under.into_iter().chain([heap]).collect()), ..Launch::default() })
    }

    fn after(&mut self, _: &Turn<'_, Oltp>, _: &Order, _: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        if let Some(volume) = &self.volume {
            volume.settle(self.heap);
        }
        Ok(())
    }
}

fn warehouses(text: &str) -> Result<u32, String> {
    count(text, "warehouses", 1000)
}
