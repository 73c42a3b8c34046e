//! `fastmap bench kv`: YCSB over key-value stores that map their files, after figure 8 of the FastMap paper.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::{Memory, Size};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::{once_each, one_of, operations, threads};
use crate::driver::{Ctx, own_directory};
use crate::experiment::columns::{p99, p999, peak, queue, rate, times_mmap};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Over, Paper, Part, Plan, Plot, Row, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind as Drawn;
use crate::runner::Limit;
use crate::substrates::kv::{self, Checked, Kind, Order, Phase};
use crate::substrates::{self, Engine, Error, Meter, Reading};

/// Measure key-value stores over mapped memory under YCSB: a B+-tree of our own, LMDB, RocksDB
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure key-value stores over mapped memory under YCSB, after FastMap (USENIX ATC '20), figure 8.

Each run is YCSB's sequence over one store: Load A inserts all records; A (half reads, half updates), B (5 % updates), C (reads), F (half \
reads, half read-modify-writes), D (reads of the latest, 5 % inserts); then, into an empty store, Load E and E (scans of 1 to 100 \
records, 5 % inserts). Keys have 30 bytes, values 1000; requests follow a scrambled Zipf distribution (0.99). A load does all its \
records and is flushed, which is timed apart; the others do --ops operations or as many as --seconds allow.

Every run is a fresh process in a memory cgroup of its own; engines take turns. Every value that is read is checked, all its \
bytes, against its key and the versions it may have; after each run another process reads both stores whole, and each record must \
be there with its last version. One wrong answer fails the command. Figures are medians over the repetitions.")]
#[command(after_help = "\
Stores:
  own       a B+-tree and a log written for mapped memory, as the paper's Kreon: locks a node, an optimistic root
  lmdb      LMDB, unchanged; writes through its map (MDB_WRITEMAP), one transaction a put, no syncs (MDB_NOSYNC)
  rocksdb   RocksDB, unchanged, reading tables through maps (allow_mmap_reads); the system's librocksdb, left out where there is none

Engines:
  mmap          kernel mmap without advice
  mmap-random   the same with MADV_RANDOM (lmdb: MDB_NORDAHEAD; rocksdb: given to its maps from outside)
  fastmap       this project: own through the library with a cache of all the memory, the others under `fastmap run`
                with a cache of what they leave of it (--cache SIZE --risk-stores)
mmap is not among the defaults: it reads around every page that is missing, which at random costs it more than it gains.

Memory, for everything that a run uses, cache and page cache included:
  all      room for all of the store
  sixth    a sixth of what the store takes (records' bytes and a sixteenth more; lmdb: twice the records' bytes)
  SIZE, none

Examples:
  fastmap bench kv
  fastmap bench kv --stores own --threads 1,2,4 --memory all        figure 8(a)
  fastmap bench kv --stores lmdb --engines mmap,mmap-random,fastmap --records 1000000 --seconds 5 --repeat 3 --json out.json")]
pub struct Args {
    /// Stores, separated by commas [default: own,lmdb,rocksdb, this one if its library is installed]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub stores: Vec<Kind>,
    /// Engines to compare, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "mmap-random,fastmap", value_parser = one_of(Engine::PROGRAMS))]
    pub engines: Vec<Engine>,
    /// Limits on all memory of a run, separated by commas: all, sixth, a SIZE, or none [default: all,sixth]
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "all,sixth", hide_default_value = true)]
    pub memory: Vec<Room>,
    /// Threads, all on one store; several numbers, separated by commas, are measured one after the other
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = threads)]
    pub threads: Vec<u32>,
    /// Records of a load, 1030 bytes each [default: 300000; lmdb 100000, which take as long]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub records: Option<u64>,
    /// Most operations of a workload that is no load, all threads together [default: as many as records]
    #[arg(long, value_name = "N", value_parser = operations)]
    pub ops: Option<u64>,
}

/// How much memory a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// As much as its store needs.
    All,
    /// A sixth of what its store takes.
    Sixth,
    /// So much, or as much as there is.
    Given(Memory),
}

impl FromStr for Room {
    type Err = String;

    fn from_str(text: &str) -> Result<Room, String> {
        match text {
            "all" => Ok(Room::All),
            "sixth" => Ok(Room::Sixth),
            _ => text.parse().map(Room::Given).map_err(|why: String| format!("{why}; or all, or sixth")),
        }
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Room::All => f.write_str("all"),
            Room::Sixth => f.write_str("sixth"),
            Room::Given(Memory::Limit(Size(bytes))) => Size(*bytes).fmt(f),
            Room::Given(Memory::Unlimited) => f.write_str("none"),
        }
    }
}

/// What a process does: the sequence, or, another one, unlimited and on kernel mmap, reading all that it left.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Case {
    /// The sequence.
    Run(Order),
    /// The check.
    Check(Order),
}

/// What a workload gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    #[serde(flatten)]
    phase: Phase,
    /// Misses that FastMap served in the whole run.
    misses: Option<u64>,
    /// What was found after the whole run.
    checked: Option<Checked>,
}

/// The experiment.
pub struct Kv;

impl Experiment for Kv {
    const NAME: &'static str = "kv";
    type Args = Args;
    type Case = Case;
    type Outcome = Outcome;
    const PART: &'static str = "workload";
    const FLAGS: Flags = Flags {
        repeat: "1",
        seconds: Some(("2", "Most seconds of a workload that is no load")),
        memory: None,
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Outcome>] = &[
        rate(),
        times_mmap(),
        Column::new("flush_seconds", "flush s", "seconds of the flush", |t: &Trial<Outcome>| t.outcome.phase.flush_seconds).less(),
        Column::new("user_us_per_op", "user us/op", "microseconds", |t: &Trial<Outcome>| per_op(&t.reading, t.reading.user_s)).less(),
        Column::new("system_us_per_op", "system us/op", "microseconds", |t: &Trial<Outcome>| {
            per_op(&t.reading, t.reading.system_s)
        })
        .less(),
        Column::new("waiting", "waiting %", "per cent of the threads' time without a processor", |t: &Trial<Outcome>| {
            Some(t.outcome.phase.waiting)
        })
        .per(0.01)
        .less(),
        p99(),
        p999(),
        queue(),
        Column::new("request_bytes", "KiB a request", "KiB a request", |t: &Trial<Outcome>| {
            let device = t.reading.device?;
            let count = device.reads + device.writes;
            (count > 0).then(|| (device.read_bytes + device.write_bytes) as f64 / count as f64)
        })
        .per(1024.0),
        peak(),
        Column::new("misses", "misses", "misses of the run that FastMap served", |t: &Trial<Outcome>| Some(t.outcome.misses? as f64)),
        Column::new("records_checked", "", "records read after the run", |t: &Trial<Outcome>| {
            Some(t.outcome.checked.as_ref()?.records as f64)
        }),
        Column::new("store_bytes", "", "bytes of the store", |t: &Trial<Outcome>| Some(t.outcome.checked.as_ref()?.bytes as f64)),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("YCSB", &["ops_per_s"], Drawn::Bars, Over::Parts)
            .log()
            .after("FastMap, USENIX ATC '20, figure 8: Kreon, out of memory 2.48 times mmap on average, 1.25 to 3.65"),
        Plot::new("All in memory", &["ops_per_s"], Drawn::Lines, Over::Label("threads"))
            .of(|row| row.text("memory") == "all" && ["Load A", "Run C"].contains(&row.part.as_str()))
            .after("FastMap, USENIX ATC '20, figure 8(a): with 32 threads 1.55 times mmap-filter in Load A, 1.09 times in Run C"),
        Plot::new("Requests", &["device.average_queue_depth", "request_bytes"], Drawn::Bars, Over::Parts)
            .of(|row| row.text("memory") != "all" && row.text("store") == "own")
            .after(
                "FastMap, USENIX ATC '20, figure 8(c): with 32 threads 39.2 requests in flight to mmap's 17.5 in Load A, of 51.2 KB to 26.5; \
                 13 to 3 in Run C, of 4 KB",
            ),
    ];
    const VERIFIED: &'static str = "Every value read or scanned was checked, all its bytes, against its key and the versions it could have; \
                                    after each run another process read both stores whole, and each record was there once, with its last \
                                    version.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Kv>, Failure> {
        let stores = stores(args, ctx)?;
        let engines = once_each(&args.engines);
        let records_of = |store| args.records.unwrap_or(if store == Kind::Lmdb { 100_000 } else { 300_000 });
        let data = stores.iter().map(|&store| records_of(store) * kv::RECORD).max().unwrap_or(0);
        let limit = limit(args, stores.iter().map(|&store| kv::stored_bytes(store, records_of(store)) / 6).min())?;
        // Two stores of one run at a time; LMDB's are half empty, RocksDB's are written anew.
        let dir = ctx.dir_for(data * 6)?;
        let mut groups = Vec::new();
        for &store in &stores {
            let records = records_of(store);
            let ops = args.ops.unwrap_or(records);
            let (most, bytes) = (kv::most_records(records, ops), kv::stored_bytes(store, records));
            for room in once_each(&args.memory) {
                let memory = match room {
                    Room::All => Some(kv::room_for(store, most)),
                    Room::Sixth => Some(bytes / 6),
                    Room::Given(Memory::Limit(size)) => Some(size.0),
                    Room::Given(Memory::Unlimited) => None,
                };
                let capacity = match memory {
                    _ if !engines.contains(&Engine::Fastmap) => 0,
                    Some(memory) => kv::capacity_for(store, memory, most).map_err(|error| too_small(store, room, error))?,
                    None => (bytes / 4).max(fastmap::Cache::MIN_CAPACITY as u64),
                };
                let memory = memory.filter(|_| limit.bytes().is_some());
                let room_in_words = match room {
                    Room::All => "all in memory".to_owned(),
                    Room::Sixth => format!("memory for a sixth of the data ({} MiB)", (bytes / 6) >> 20),
                    Room::Given(_) => format!("{room} of memory"),
                };
                for threads in once_each(&args.threads) {
                    let arm = |&engine: &Engine| {
                        let (dir, seconds) = (PathBuf::new(), ctx.seconds);
                        let order = Order { store, engine, dir, records, ops, seconds, threads, capacity };
                        let labels = vec![("capacity_bytes", json!((engine == Engine::Fastmap).then_some(capacity)))];
                        Arm { labels, ..Arm::of(engine, Case::Run(order)) }
                    };
                    let labels = vec![
                        ("store", json!(store)),
                        ("records", json!(records)),
                        ("memory", json!(room.to_string())),
                        ("memory_limit_bytes", json!(memory)),
                        ("threads", json!(threads)),
                    ];
                    let what = format!("{}, {records} records, {room_in_words}", store.title());
                    groups.push(Group::new(what, labels, engines.iter().map(arm).collect()));
                }
            }
        }
        notes(&stores, ctx);
        let limits = groups.iter().map(|group| label(group, "memory_limit_bytes").as_u64()).collect();
        Ok(Plan {
            about: "YCSB, records of 1030 bytes".to_owned(),
            place: dir.clone(),
            file: format!("temporary directory in {}", dir.display()),
            bytes: data,
            limit,
            groups,
            until_steady: None,
            stage: Box::new(Stores { place: own_directory(&dir, 0)?, run: None, limits }),
        })
    }

    fn run(case: &Case, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        match case {
            Case::Check(order) => {
                let checked = Some(kv::check(order)?);
                Ok(Part::whole(Reading::default(), Outcome { checked, ..Outcome::default() }))
            }
            Case::Run(order) => {
                let part = |(reading, phase): (Reading, Phase)| {
                    let name = phase.workload.map_or_else(String::new, |workload| workload.title());
                    Part { name, reading, outcome: Outcome { phase, ..Outcome::default() } }
                };
                Ok(kv::run(order, meter)?.into_iter().map(part).collect())
            }
        }
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let rate = || Claim::new("ops_per_s").most_threads();
        let mean = |of| Claim { mean: true, ..rate().of(of) };
        vec![
            mean(|row| is_short(row, "own")).paper(|row| {
                let limited = label_of(row, "memory_limit_bytes").is_u64();
                let setting = "Kreon, 32 threads on 32 cores, Optane SSD, 80 million records, 16 GB of memory for 76 GB; 1.25 to 3.65";
                if limited { Paper::says(2.48, "FastMap, USENIX ATC '20, figure 8 and its text", setting) } else { None }
            }),
            mean(|row| is_short(row, "lmdb")),
            mean(|row| is_short(row, "rocksdb")),
            rate().of(|row| is_large(row, "Load A")).paper(|_| {
                in_memory(1.55, "Kreon, 32 threads on 32 cores, all in memory, to mmap-filter (2.77 to plain mmap)")
            }),
            rate().of(|row| is_large(row, "Run C")).paper(|_| {
                in_memory(1.09, "Kreon, 32 threads on 32 cores, all in memory, to mmap-filter (1.28 to plain mmap)")
            }),
        ]
    }
}

fn is_short(row: &Row<Outcome>, store: &str) -> bool {
    row.text("memory") != "all" && row.text("store") == store
}

fn is_large(row: &Row<Outcome>, workload: &str) -> bool {
    row.text("memory") == "all" && row.text("store") == "own" && row.part == workload
}

fn in_memory(ratio: f64, setting: &'static str) -> Option<Paper> {
    Paper::says(ratio, "FastMap, USENIX ATC '20, figure 8(a)", setting)
}

fn per_op(reading: &Reading, seconds: f64) -> Option<f64> {
    Some(seconds * 1e6 / reading.ops.max(1) as f64)
}

fn label(group: &Group<Case>, name: &str) -> Value {
    group.labels.iter().find(|(label, _)| *label == name).map_or(Value::Null, |(_, value)| value.clone())
}

fn label_of(row: &Row<Outcome>, name: &str) -> Value {
    row.labels.iter().find(|(label, _)| *label == name).map_or(Value::Null, |(_, value)| value.clone())
}

/// The stores to measure; one that cannot be is told of.
fn stores(args: &Args, ctx: &mut Ctx) -> Result<Vec<Kind>, Failure> {
    let asked = match args.stores.as_slice() {
        [] => vec![Kind::Own, Kind::Lmdb, Kind::Rocksdb],
        some => once_each(some),
    };
    match asked.contains(&Kind::Rocksdb).then(kv::why_rocksdb_is_missing).flatten() {
        None => Ok(asked),
        Some(why) if asked == [Kind::Rocksdb] => Err(Failure::told(why)),
        Some(why) => {
            ctx.notes.push(format!("RocksDB was left out: {why}."));
            Ok(asked.into_iter().filter(|store| *store != Kind::Rocksdb).collect())
        }
    }
}

/// What limits runs: by as little as any is allowed, for the report.
fn limit(args: &Args, sixth: Option<u64>) -> Result<Limit, Failure> {
    let given = args.memory.iter().filter_map(|room| match room {
        Room::Given(Memory::Limit(size)) => Some(size.0),
        _ => None,
    });
    match given.min() {
        Some(least) => Limit::of(Some(Memory::Limit(Size(least))), 0, |_| Ok(())),
        None if args.memory.iter().all(|room| *room == Room::Given(Memory::Unlimited)) => Ok(Limit::none()),
        None => Limit::of(None, sixth.unwrap_or(0), |_| Ok(())),
    }
}

/// A sixth that is too small is a matter of how many records there are.
fn too_small(store: Kind, room: Room, error: Error) -> Failure {
    match (room, &error) {
        (Room::Sixth, Error::Memory { memory, least }) => Failure::usage(
            "--records",
            format!("a sixth of what {} takes with so few, {memory} bytes, is too little memory", store.title()),
            format!("give at least {}, or --memory all", (least * 6).div_ceil(kv::stored_bytes(store, 1000) / 1000)),
        ),
        _ => error.into(),
    }
}

fn notes(stores: &[Kind], ctx: &mut Ctx) {
    ctx.notes.push(
        "Kernel mmap is shown with MADV_RANDOM; without advice it reads around every page that is missing (--engines mmap). Loads are shown \
         without the flush after them; new pages of the own store and of LMDB lie in space that the file never held, which neither the kernel \
         nor FastMap reads: kernel mmap here is what the paper calls mmap-filter. The own store overwrites values of the same length where \
         they are, which reads their page first; Kreon appends them."
            .to_owned(),
    );
    if stores.contains(&Kind::Lmdb) {
        ctx.notes.push(
            "LMDB (mdb.master, built with this command) writes through its map (MDB_WRITEMAP), each put in a transaction of its own, and \
             syncs only after a load and in the end (MDB_NOSYNC); it allows one writer at a time."
                .to_owned(),
        );
    }
    if stores.contains(&Kind::Rocksdb) {
        ctx.notes.push(
            "RocksDB maps only tables that it has written by write(2), so the kernel has them in its page cache already. It runs without its log of writes. It \
             advises MADV_RANDOM itself when it opens a table, and MADV_NORMAL when it begins to read one for a compaction; mmap-random gives \
             MADV_RANDOM to all its maps from outside, every 20 ms."
                .to_owned(),
        );
    }
}

/// The directory in which runs have theirs; gone in the end, however that comes.
struct Stores {
    place: TempDir,
    run: Option<TempDir>,
    /// Of each group.
    limits: Vec<Option<u64>>,
}

impl Stage<Kv> for Stores {
    fn before(&mut self, turn: &Turn<'_, Kv>, case: &mut Case) -> Result<Launch, Failure> {
        let place = self.place.path();
        let failed = |error| {
            let what = format!("cannot make a directory in it: {error}");
            Failure::new(place.display(), what, "name another place with --dir")
        };
        // The last run's is gone first.
        self.run = None;
        let dir = self.run.insert(tempfile::tempdir_in(place).map_err(failed)?);
        let (Case::Run(order) | Case::Check(order)) = case;
        order.dir = dir.path().to_owned();
        let under = order.store.mapped_files().filter(|_| order.engine == Engine::Fastmap).map(|files| {
            let cache = order.capacity.to_string();
            ["--cache", &cache, "--risk-stores", "--own", files, "--map", files, "--stats"].map(OsString::from).into_iter().chain([stats_in(dir.path()).into()]).collect()
        });
        let memory = self.limits[turn.at.0];
        Ok(Launch { memory, unlimited: memory.is_none(), under, ..Launch::default() })
    }

    fn after(&mut self, turn: &Turn<'_, Kv>, case: &Case, parts: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        let Case::Run(order) = case else { return Ok(()) };
        let who = format!("{} over {}", order.store.title(), order.engine);
        let served = order.store.mapped_files().is_some() && order.engine == Engine::Fastmap;
        let misses = match served {
            true => Some(served_in(&stats_in(&order.dir), &who)?),
            false => parts.iter().find_map(|part| Some(part.reading.fastmap?.counters.misses)),
        };
        let checked = turn.limit.obey::<Kv>(&who, &Case::Check(order.clone()), None, None)?;
        if let Some(last) = parts.last_mut() {
            last.outcome.misses = misses;
            last.outcome.checked = checked.into_iter().find_map(|part| part.outcome.checked);
        }
        Ok(())
    }
}

fn stats_in(dir: &Path) -> PathBuf {
    dir.join("stats.json")
}

/// Misses that FastMap served: none, where the kernel kept all maps from beginning to end.
fn served_in(stats: &Path, who: &str) -> Result<u64, Failure> {
    let stats: Option<Value> = fs::read(stats).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let misses = stats.as_ref().and_then(|stats| {
        let caches = stats["caches"].as_array()?;
        Some(caches.iter().filter_map(|cache| cache["misses"].as_u64()).sum())
    });
    misses.ok_or_else(|| Failure::new(who, "`fastmap run` told nothing of it", "`fastmap doctor` tells what this machine lacks"))
}
