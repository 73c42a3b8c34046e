//! `fastmap bench olap`: the TPC-H queries over MonetDB, unchanged, on kernel mmap and under `fastmap run`.
//!
//! Here is what runs in which order and what is checked; `tell.rs` says what it comes to.

mod tell;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fastmap_workloads::olap::{self, Load, Loaded, Order, Outcome, QUERIES, Rows};
use fastmap_workloads::{cold, prepare};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::runner::Limit;
use super::target::{directory_for, progress_bar};
use super::worker::Job;
use crate::args::OlapArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::results::{JsonFile, Report};
use crate::size::Size;

/// Less than that and MonetDB's own memory leaves nothing for a cache.
const LEAST_MEMORY: u64 = 96 << 20;

/// How many times the text all that is on the disk at once takes, with some room.
const ON_DISK: f64 = 3.0;

/// On what MonetDB runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Engine {
    /// As it is.
    Mmap,
    /// Under `fastmap run`.
    Fastmap,
}

impl Engine {
    const ALL: [Engine; 2] = [Engine::Mmap, Engine::Fastmap];

    fn name(self) -> &'static str {
        match self {
            Engine::Mmap => "mmap",
            Engine::Fastmap => "fastmap",
        }
    }
}

/// What `fastmap run` did for a run: parts of what it writes with `--stats`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Served {
    /// Shared mappings of files larger than 1 MiB.
    candidates: u64,
    /// Those of them that were left to the kernel.
    kernel: u64,
    /// The cache's counters, if there was one.
    caches: Vec<Counters>,
}

/// Of the fields of `fastmap::Stats`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Counters {
    capacity_bytes: u64,
    misses: u64,
    ghost_hits: u64,
    born_zero: u64,
    ahead_used: u64,
    ahead_wasted: u64,
    evicted_pages: u64,
    writeback_pages: u64,
}

/// One run.
#[derive(Debug, Clone)]
struct Run {
    outcome: Outcome,
    served: Option<Served>,
}

/// Runs it.
///
/// # Errors
///
/// No MonetDB, a wrong answer, or any run's failure; nothing is left behind.
pub fn run(args: &OlapArgs) -> Result<(), Failure> {
    interrupt::watch();
    let monetdb = args.monetdb();
    olap::check_monetdb(&monetdb)?;
    let monetdb = monetdb.canonicalize().unwrap_or(monetdb);
    let text_bytes = (args.scale * olap::TEXT_BYTES) as u64;
    let default = (text_bytes / 3).next_multiple_of(1 << 20).max(LEAST_MEMORY);
    let limit = Limit::of(args.memory, default, |limit| match limit < LEAST_MEMORY {
        true => {
            let what = format!("{} is too little for MonetDB and a cache", Size(limit));
            Err(Failure::usage("--memory", what, format!("give at least {}", Size(LEAST_MEMORY))))
        }
        false => Ok(()),
    })?;
    let memory = limit.bytes().unwrap_or(default);
    let usual = (memory / 4) & !((1 << 20) - 1);
    let cache = args.cache.map_or(usual, |cache| cache.0);
    if cache >= memory {
        let what = format!("{} leaves nothing of {} to MonetDB", Size(cache), Size(memory));
        return Err(Failure::usage("--cache", what, format!("give less, such as {}", Size(usual))));
    }
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let on_disk = (text_bytes as f64 * ON_DISK) as u64;
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(on_disk));
    let place = place(&dir, on_disk)?;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32));
    let mut queries = if args.queries.is_empty() { (1..=QUERIES).collect() } else { args.queries.clone() };
    queries.sort_unstable();
    queries.dedup();
    let bench = Bench { monetdb, place, threads, queries, cache, limit, warned_warm: Cell::new(false) };

    let (loaded, bytes) = bench.load(args.scale)?;
    let mut report = Report::new("olap", &dir, &format!("database in {}", dir.display()), bytes, &bench.limit);
    let mut checks = Checks { official: args.scale == 1.0, first: None };
    let runs = bench.measure(args.repeat, &mut checks)?;
    tell::tell(&mut report, &runs, &tell::Setting { cache, threads, scale: args.scale, loaded, checks: &checks });
    crate::print(&tell::text(&report, args.repeat));
    json.map_or(Ok(()), |json| json.write(report))
}

/// A directory of our own in `dir`, gone at the end.
fn place(dir: &Path, bytes: u64) -> Result<TempDir, Failure> {
    let failed =
        |e| Failure::new(dir.display(), format!("cannot make a directory in it: {e}"), "name another with --dir");
    let free = File::open(dir).and_then(|dir| prepare::free_bytes(&dir)).map_err(failed)?;
    if free < bytes {
        let what = format!("has {} MiB left, and {} are needed", free >> 20, bytes >> 20);
        return Err(Failure::new(
            dir.display(),
            what,
            "make room, name another place with --dir, or give less --scale",
        ));
    }
    // MonetDB wants a path from the root on.
    let dir = dir.canonicalize().map_err(failed)?;
    tempfile::Builder::new().prefix("fastmap-olap-").tempdir_in(dir).map_err(failed)
}

/// Everything that stays the same over the runs.
struct Bench {
    monetdb: PathBuf,
    place: TempDir,
    threads: u32,
    queries: Vec<u32>,
    cache: u64,
    limit: Limit,
    warned_warm: Cell<bool>,
}

impl Bench {
    /// Makes the database, without a limit; answers also how large it is.
    fn load(&self, scale: f64) -> Result<(Loaded, u64), Failure> {
        let bar = progress_bar(1, "generating and loading the tables, {elapsed}");
        bar.enable_steady_tick(std::time::Duration::from_secs(1));
        let load = Load {
            monetdb: self.monetdb.clone(),
            database: self.original(),
            scratch: self.place.path().to_owned(),
            scale,
            threads: self.threads,
        };
        let loaded = self.limit.obey("MonetDB", Job::OlapLoad(load), None, None)?;
        bar.finish_and_clear();
        Ok((loaded, olap::files(&self.original())?.1))
    }

    /// All runs: for each engine its repetitions.
    fn measure(&self, repeat: u32, checks: &mut Checks) -> Result<[Vec<Run>; 2], Failure> {
        let bar = progress_bar(u64::from(repeat) * 2, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
        let mut runs = [Vec::new(), Vec::new()];
        for repetition in 1..=repeat {
            for (engine, runs) in Engine::ALL.into_iter().zip(&mut runs) {
                bar.set_message(format!("{}, repetition {repetition} of {repeat}", engine.name()));
                let run = self.run(engine)?;
                checks.check(engine, repetition, &run.outcome)?;
                runs.push(run);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(runs)
    }

    fn run(&self, engine: Engine) -> Result<Run, Failure> {
        let database = self.fresh_copy()?;
        let (queries, threads) = (self.queries.clone(), self.threads);
        let job = Job::Olap(Order { monetdb: self.monetdb.clone(), database, threads, queries });
        let memory = self.limit.bytes();
        if engine == Engine::Mmap {
            return Ok(Run { outcome: self.limit.obey(engine.name(), job, memory, None)?, served: None });
        }
        let stats = self.place.path().join("stats.json");
        let under: Vec<OsString> =
            vec!["--cache".into(), self.cache.to_string().into(), "--stats".into(), stats.clone().into()];
        let outcome = self.limit.obey(engine.name(), job, memory, Some(&under))?;
        let told = fs::read(&stats).map_err(|e| e.to_string());
        let served: Result<Served, String> =
            told.and_then(|text| serde_json::from_slice(&text).map_err(|e| e.to_string()));
        let served =
            served.map_err(|e| Failure::new(stats.display(), format!("cannot be read: {e}"), "please report this"))?;
        if served.candidates > 0 && served.caches.iter().all(|cache| cache.misses + cache.born_zero == 0) {
            let what = "`fastmap run` served none of MonetDB's mappings, so there is nothing to compare";
            return Err(Failure::new("fastmap", what, "see what `fastmap doctor` says of this place"));
        }
        Ok(Run { outcome, served: Some(served) })
    }

    fn original(&self) -> PathBuf {
        self.place.path().join("database")
    }

    /// A copy of the database out of the page cache: opening writes to it, and queries leave indexes in it.
    fn fresh_copy(&self) -> Result<PathBuf, Failure> {
        let (from, to) = (self.original(), self.place.path().join("copy"));
        let failed = |path: &Path, e| {
            Failure::new(
                path.display(),
                format!("cannot be copied: {e}"),
                "make room, or name another place with --dir",
            )
        };
        if to.exists() {
            fs::remove_dir_all(&to).map_err(|e| failed(&to, e))?;
        }
        let files = olap::files(&from)?.0;
        let copy = |file: &Path| to.join(file.strip_prefix(&from).expect("a file of the database"));
        for file in &files {
            interrupt::check()?;
            let copy = copy(file);
            let made = fs::create_dir_all(copy.parent().expect("in a directory"));
            made.and_then(|()| fs::copy(file, &copy)).map_err(|e| failed(file, e))?;
        }
        File::open(&to).and_then(|to| cold::write_back_all(&to)).map_err(|e| failed(&to, e))?;
        files.iter().try_for_each(|file| self.make_cold(&copy(file)))?;
        Ok(to)
    }

    fn make_cold(&self, path: &Path) -> Result<(), Failure> {
        let left = File::open(path).and_then(|file| cold::make_cold(&file, file.metadata()?.len()));
        let left = left.map_err(|e| {
            let what = format!("cannot be dropped from the page cache: {e}");
            Failure::new(path.display(), what, "check the file and its device")
        })?;
        if left > 0 && !self.warned_warm.replace(true) {
            eprintln!(
                "fastmap: {}: {left} of its pages stay in the page cache and favour mmap: do not use a memory file system",
                path.display()
            );
        }
        Ok(())
    }
}

/// What every run's answers are compared with.
struct Checks {
    /// The specification has answers at this scale.
    official: bool,
    /// The first run's, by query.
    first: Option<Vec<(u32, Rows)>>,
}

impl Checks {
    fn check(&mut self, engine: Engine, repetition: u32, outcome: &Outcome) -> Result<(), Failure> {
        let first = self
            .first
            .get_or_insert_with(|| outcome.answers.iter().map(|answer| (answer.query, answer.rows.clone())).collect());
        for (answer, (query, expected)) in outcome.answers.iter().zip(first) {
            let official = self.official.then(|| olap::from_official(*query, &answer.rows)).flatten();
            let wrong = olap::difference(expected, &answer.rows).map(|what| (what, "the first run on kernel mmap"));
            if let Some((what, of)) = wrong.or(official.map(|what| (what, "the specification"))) {
                let thing = format!("{}, repetition {repetition}, query {query}", engine.name());
                let what = format!("the answer is not that of {of}: {what}");
                return Err(Failure::new(thing, what, "this is an error in fastmap or in MonetDB: please report it"));
            }
        }
        Ok(())
    }

    /// Rows of all answers together.
    fn rows(&self) -> usize {
        self.first.iter().flatten().map(|(_, rows)| rows.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastmap_workloads::olap::Answer;

    fn outcome(cell: &str) -> Outcome {
        let rows = vec![vec![Some("x".to_owned()), Some(cell.to_owned())]];
        let answers = vec![Answer { query: 6, seconds: 1.0, rows }];
        Outcome {
            open_seconds: 0.0,
            answers,
            user_seconds: 0.0,
            system_seconds: 0.0,
            major_faults: 0,
            device: None,
            peak_rss_bytes: 0,
        }
    }

    #[test]
    fn an_answer_that_differs_from_the_first_fails() {
        let mut checks = Checks { official: false, first: None };
        checks.check(Engine::Mmap, 1, &outcome("1.00")).unwrap();
        checks.check(Engine::Fastmap, 1, &outcome("1.00")).unwrap();
        assert_eq!(checks.rows(), 1);
        let why = checks.check(Engine::Fastmap, 2, &outcome("1.01")).unwrap_err().to_string();
        let said = "fastmap, repetition 2, query 6: the answer is not that of the first run on kernel mmap: row 1, column 2: \
                    \"1.01\" where \"1.00\" belongs";
        assert!(why.starts_with(said), "{why}");
    }

    #[test]
    fn an_answer_that_is_not_the_specifications_fails() {
        let mut checks = Checks { official: true, first: None };
        let why = checks.check(Engine::Mmap, 1, &outcome("1.00")).unwrap_err().to_string();
        assert!(why.contains("not that of the specification"), "{why}");
    }
}
