//! `fastmap bench kv`: YCSB over key-value stores that map their files, after figure 8 of the FastMap paper.

mod headlines;
mod show;
mod summary;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use fastmap_workloads::kv::{self, Checked, Engine, Kind, Order, Outcome};
use serde_json::Value;

use self::summary::{Ran, Sequence};
use super::runner::Limit;
use super::target::{directory_for, progress_bar};
use super::worker::Job;
use crate::args::{KvArgs, Room, once_each};
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report};
use crate::size::{Memory, Size};

/// Several sequences that are compared: they differ in the engine.
struct Group {
    store: Kind,
    records: u64,
    ops: u64,
    room: Room,
    threads: u32,
    /// The limit, where memory can be limited.
    memory: Option<u64>,
    /// Of a fastmap cache.
    capacity: u64,
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &KvArgs) -> Result<(), Failure> {
    interrupt::watch();
    let (stores, mut notes) = stores(args)?;
    let engines = once_each(&args.engines);
    let data = stores.iter().map(|&store| args.records_of(store) * kv::RECORD).max().unwrap_or(0);
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let limit = limit(args, &stores)?;
    let groups = groups(args, &stores, &engines, &limit)?;
    // Two stores of one run at a time; LMDB's are half empty, RocksDB's are written anew.
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(data * 6));
    let place = Place::in_dir(&dir)?;
    let mut report = Report::new("kv", &dir, &format!("temporary directory in {}", dir.display()), data, &limit);
    let runs = groups.len() as u64 * engines.len() as u64 * u64::from(args.repeat);
    let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    for group in &groups {
        let mut ran: Vec<Vec<Ran>> = vec![Vec::new(); engines.len()];
        for repetition in 1..=args.repeat {
            for (&engine, ran) in engines.iter().zip(&mut ran) {
                bar.set_message(format!("{}: {engine}, repetition {repetition} of {}", group.store, args.repeat));
                let Group { store, records, ops, threads, capacity, .. } = *group;
                let seconds = args.seconds;
                let order = |dir| Order { store, engine, dir, records, ops, seconds, threads, capacity };
                ran.push(one(&limit, group.memory, &place, order)?);
                bar.inc(1);
            }
        }
        let sequences = engines.iter().zip(&ran);
        report.results.extend(sequences.map(|(&engine, ran)| Sequence::of(group, engine, ran)));
    }
    bar.finish_and_clear();
    report.verified = verified(&report.results);
    notes.extend(general_notes(&stores, &report));
    report.notes = notes;
    report.headlines = headlines::of(&report.results, report.machine.cpus);
    report.figures = show::figures(&report.results);
    crate::print(&show::text(args.repeat, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// The stores to measure, and a note of one that cannot be.
fn stores(args: &KvArgs) -> Result<(Vec<Kind>, Vec<String>), Failure> {
    let asked = match args.stores.as_slice() {
        [] => vec![Kind::Own, Kind::Lmdb, Kind::Rocksdb],
        some => once_each(some),
    };
    let missing = asked.contains(&Kind::Rocksdb).then(kv::why_rocksdb_is_missing).flatten();
    match missing {
        None => Ok((asked, Vec::new())),
        Some(why) if asked == [Kind::Rocksdb] => Err(Failure::told(why)),
        Some(why) => {
            let rest = asked.into_iter().filter(|store| *store != Kind::Rocksdb).collect();
            Ok((rest, vec![format!("RocksDB was left out: {why}.")]))
        }
    }
}

/// What limits runs: by as little as any is allowed, for the report.
fn limit(args: &KvArgs, stores: &[Kind]) -> Result<Limit, Failure> {
    let asked: Vec<u64> = args
        .memory
        .iter()
        .filter_map(|room| match room {
            Room::Given(Memory::Limit(size)) => Some(size.0),
            _ => None,
        })
        .collect();
    match asked.iter().min() {
        Some(&least) => Limit::of(Some(Memory::Limit(Size(least))), 0, |_| Ok(())),
        None if args.memory.iter().all(|room| *room == Room::Given(Memory::Unlimited)) => Ok(Limit::none()),
        None => {
            let least = stores.iter().map(|&store| kv::stored_bytes(store, args.records_of(store)) / 6).min();
            Limit::of(None, least.unwrap_or(0), |_| Ok(()))
        }
    }
}

/// What is measured, in this order.
fn groups(args: &KvArgs, stores: &[Kind], engines: &[Engine], limit: &Limit) -> Result<Vec<Group>, Failure> {
    let mut groups = Vec::new();
    for &store in stores {
        let records = args.records_of(store);
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
            let threads = once_each(&args.threads);
            let group = |threads| Group { store, records, ops, room, threads, memory, capacity };
            groups.extend(threads.into_iter().map(group));
        }
    }
    Ok(groups)
}

/// A sixth that is too small is a matter of how many records there are.
fn too_small(store: Kind, room: Room, error: fastmap_workloads::Error) -> Failure {
    match (room, &error) {
        (Room::Sixth, fastmap_workloads::Error::Memory { memory, least }) => Failure::usage(
            "--records",
            format!("a sixth of what {} takes with so few, {memory} bytes, is too little memory", store.title()),
            format!("give at least {}, or --memory all", (least * 6).div_ceil(kv::stored_bytes(store, 1000) / 1000)),
        ),
        _ => error.into(),
    }
}

/// One sequence and its check.
fn one(
    limit: &Limit,
    memory: Option<u64>,
    place: &Place,
    order: impl FnOnce(PathBuf) -> Order,
) -> Result<Ran, Failure> {
    let dir = place.fresh()?;
    let order = order(dir.path().to_owned());
    let stats = dir.path().join("stats.json");
    let under: Option<Vec<OsString>> = match order.store.mapped_files() {
        Some(files) if order.engine == Engine::Fastmap => {
            let cache = order.capacity.to_string();
            Some(
                ["--cache", &cache, "--map", files, "--stats"]
                    .map(OsString::from)
                    .into_iter()
                    .chain([stats.clone().into()])
                    .collect(),
            )
        }
        _ => None,
    };
    let name = format!("{} over {}", order.store.title(), order.engine);
    let outcome: Outcome = limit.obey(&name, Job::Kv(order.clone()), memory, under.as_deref())?;
    let misses = match under {
        Some(_) => Some(served(&stats, &name)?),
        None => outcome.fastmap.map(|fastmap| fastmap.counters.misses),
    };
    let checked: Checked = limit.obey(&name, Job::KvCheck(order), None, None)?;
    Ok(Ran { outcome, checked, misses })
}

/// Misses that FastMap served; what the kernel served instead would be a comparison with itself.
fn served(stats: &Path, name: &str) -> Result<u64, Failure> {
    let stats: Option<Value> = fs::read(stats).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let misses = stats.as_ref().and_then(|stats| {
        let caches = stats["caches"].as_array()?;
        Some(caches.iter().filter_map(|cache| cache["misses"].as_u64()).sum::<u64>())
    });
    let kernel = stats.as_ref().and_then(|stats| stats["kernel"].as_u64());
    match (misses, kernel) {
        (Some(misses @ 1..), Some(0)) => Ok(misses),
        _ => {
            let what = "its maps were the kernel's and not FastMap's";
            Err(Failure::new(name, what, "`fastmap doctor` tells what this machine lacks"))
        }
    }
}

/// The directory in which runs have theirs; gone in the end, however that comes.
struct Place(tempfile::TempDir);

impl Place {
    fn in_dir(dir: &Path) -> Result<Place, Failure> {
        let made = dir.canonicalize().and_then(|dir| tempfile::Builder::new().prefix("fastmap-kv-").tempdir_in(dir));
        made.map(Place).map_err(|error| {
            Failure::new(
                dir.display(),
                format!("cannot make a directory in it: {error}"),
                "name a writable place with --dir",
            )
        })
    }

    fn fresh(&self) -> Result<tempfile::TempDir, Failure> {
        tempfile::tempdir_in(self.0.path()).map_err(|error| {
            let what = format!("cannot make a directory in it: {error}");
            Failure::new(self.0.path().display(), what, "name another place with --dir")
        })
    }
}

fn verified(sequences: &[Sequence]) -> String {
    let records: u64 = sequences.iter().map(|sequence| sequence.records_checked).sum();
    format!(
        "Every value read or scanned was checked, all its bytes, against its key and the versions it could have; after each run \
         another process read both stores whole ({records} records in all), and each record was there once, with its last version."
    )
}

fn general_notes(stores: &[Kind], report: &Report<Sequence>) -> Vec<String> {
    let mut notes = vec![
        "Kernel mmap is shown with MADV_RANDOM; without advice it reads around every page that is missing (--engines mmap).".to_owned(),
        "Loads are shown without the flush after them, whose time is in the JSON; new pages of the own store and of LMDB lie in space \
         that the file never held, which neither the kernel nor FastMap reads: kernel mmap here is what the paper calls mmap-filter."
            .to_owned(),
        "The own store overwrites values of the same length where they are, which reads their page first; Kreon appends them."
            .to_owned(),
    ];
    if stores.contains(&Kind::Lmdb) {
        notes.push(
            "LMDB (mdb.master, built with this command) writes through its map (MDB_WRITEMAP), each put in a transaction of its own, and syncs only after a load and in the \
             end (MDB_NOSYNC); it allows one writer at a time."
                .to_owned(),
        );
    }
    if stores.contains(&Kind::Rocksdb) {
        notes.push(
            "RocksDB maps only tables that it has written by write(2), so the kernel has them in its page cache already, and FastMap \
             reads them from the device; memory for all of them favours the kernel. It runs without its log of writes, and has no \
             option for MADV_RANDOM: mmap-random gives that to its maps from outside, every 20 ms."
                .to_owned(),
        );
    }
    if report.memory_limit_bytes.is_none() {
        notes.push(
            "No run's memory was limited: kernel mmap could use all there is, FastMap only its cache.".to_owned(),
        );
    }
    notes
}
