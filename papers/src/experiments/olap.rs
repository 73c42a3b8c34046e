//! `fastmap bench olap`: the TPC-H queries over MonetDB, unchanged, on kernel mmap and under `fastmap run`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;

use crate::driver::{Ctx, own_directory, progress_bar};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Of, Over, Paper, Part, Plan, Plot, Stage, TEMPORARY, Trial, Turn,
};
use crate::experiment::columns::{peak, queue};
use crate::results::Kind;
use crate::substrates::olap::{self, Answer, Load, Loaded, Order, QUERIES, Rows};
use crate::substrates::{self, Engine, Meter, Reading, cold};
use crate::target::make_cold;

/// Less than that and MonetDB's own memory leaves nothing for a cache.
const LEAST_MEMORY: u64 = 96 << 20;

/// How many times the text all that is on the disk at once takes, with some room.
const ON_DISK: f64 = 3.0;

/// Measure the 22 TPC-H queries over MonetDB, which maps its files and is not changed: kernel mmap, and under `fastmap run`
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure the 22 TPC-H queries over MonetDB.

MonetDB maps the files of its columns. It is the library in the wheel of monetdbe 0.11, as it comes from PyPI (scripts/monetdb \
gets it), and runs twice: on kernel mmap, and under `fastmap run`. After the FastMap paper's experiment (USENIX ATC '20, section 5, \
MonetDB): 6.06 % better on average, between 7.2 % worse and 45.7 % better, with 50 GB of data and 16 GB of memory.

The eight tables are generated and loaded once. Each run gets a copy of the database, cold, and a fresh process in a memory \
cgroup of its own limited to --memory; it answers the queries one after the other; engines take turns. All rows and columns of \
every answer are compared with those of the first run on kernel mmap, and at --scale 1 also with the answers in the \
specification: one wrong cell fails the command. Figures are medians over the repetitions.

`fastmap run` has --risk-stores, and a cache of what MonetDB leaves of its memory.")]
#[command(after_help = "\
Examples:
  scripts/monetdb && fastmap bench olap
  fastmap bench olap --queries 1,6,9 --repeat 5 --json olap.json
  fastmap bench olap --scale 10 --memory 4GiB --dir /mnt/disk")]
pub struct Args {
    /// Where MonetDB is: the folder of scripts/monetdb [default: ~/.cache/fastmap/monetdb]
    #[arg(long, value_name = "DIR")]
    pub monetdb: Option<PathBuf>,
    /// TPC-H's scale factor: 1 is 1.1 GB of text, 6 million rows in the largest table
    #[arg(long, value_name = "F", default_value = "1", value_parser = scale)]
    pub scale: f64,
    /// Queries to run, 1 to 22, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=22))]
    pub queries: Vec<u32>,
    /// MonetDB's threads [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = crate::args::threads)]
    pub threads: Option<u32>,
    /// A cache for FastMap; of much more than a quarter of --memory MonetDB, whose smaller intermediate results are no files, has too
    /// little for itself and is killed [default: what MonetDB leaves of its memory]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
}

/// What a process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Case {
    /// Makes the database.
    Load(Load),
    /// Queries it.
    Run(Order),
}

/// What a query, or all of them, gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Which; none of all together.
    query: Option<u32>,
    /// Rows of the answer.
    rows: usize,
    /// The answer, until it is checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answer: Rows,
    /// What `fastmap run` did for the run.
    served: Option<Served>,
    /// Of the run that makes the database.
    loaded: Option<Loaded>,
}

/// Parts of what `fastmap run` writes with `--stats`.
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

/// The experiment.
pub struct Olap;

/// A figure of all queries together.
fn of_all(trial: &Trial<Outcome>, of: fn(&Reading) -> Option<f64>) -> Option<f64> {
    if trial.outcome.query.is_none() { of(&trial.reading) } else { None }
}

impl Experiment for Olap {
    const NAME: &'static str = "olap";
    type Args = Args;
    type Case = Case;
    type Outcome = Outcome;
    const PART: &'static str = "query";
    const FLAGS: Flags = Flags {
        repeat: "3",
        seconds: None,
        memory: Some("a third of the text, 96MiB at least"),
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Outcome>] = &[
        Column::new("seconds", "s", "seconds", |t: &Trial<Outcome>| Some(t.reading.seconds)).less().range(),
        Column::from("times_as_fast", "x mmap", "times as fast as kernel mmap", Of::TimesMmap("seconds")),
        Column::new("rows", "rows", "rows of the answer", |t: &Trial<Outcome>| Some(t.outcome.rows as f64)),
        Column::new("query_seconds", "", "seconds of a query", |t: &Trial<Outcome>| t.outcome.query.map(|_| t.reading.seconds)).less(),
        Column::new("user_seconds", "user s", "seconds of processor time", |t| of_all(t, |r| Some(r.user_s))).less(),
        Column::new("system_seconds", "system s", "seconds of processor time", |t| of_all(t, |r| Some(r.system_s))).less(),
        Column::new("major_faults", "waiting faults", "faults that waited for a read by the kernel", |t| {
            of_all(t, |r| Some(r.major_faults as f64))
        })
        .less(),
        Column::new("device.read_bytes", "read MiB", "MiB read", |t| of_all(t, |r| Some(r.device?.read_bytes as f64)))
            .per((1 << 20) as f64)
            .less(),
        Column::new("device.write_bytes", "written MiB", "MiB written", |t| of_all(t, |r| Some(r.device?.write_bytes as f64)))
            .per((1 << 20) as f64)
            .less(),
        queue(),
        peak(),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("TPC-H over MonetDB: time", &["query_seconds"], Kind::Bars, Over::Parts),
        Plot::new("TPC-H over MonetDB: times as fast", &["times_as_fast"], Kind::Bars, Over::Parts)
            .of(|row| row.engine == Engine::Fastmap)
            .after("FastMap, USENIX ATC '20, section 5, MonetDB: 6.06 % better on average, from -7.2 % to 45.7 %"),
        Plot::new("TPC-H over MonetDB: processor time", &["user_seconds", "system_seconds"], Kind::Stacked, Over::Arms)
            .of(|row| row.part == "all")
            .after("FastMap, USENIX ATC '20, section 5, MonetDB: system time below 10 %, and 5.4 % to 48.6 % less of it with FastMap"),
    ];
    const VERIFIED: &'static str = "All columns of all rows that the queries answer were compared, exactly and in order, between kernel mmap and \
                                    FastMap in each repetition; at scale factor 1 also with the answers in the TPC-H specification, to five \
                                    cents.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Olap>, Failure> {
        let monetdb = args.monetdb.clone().unwrap_or_else(olap::usual_folder);
        olap::check_monetdb(&monetdb)?;
        let monetdb = monetdb.canonicalize().unwrap_or(monetdb);
        let text_bytes = (args.scale * olap::TEXT_BYTES) as u64;
        let default = (text_bytes / 3).next_multiple_of(1 << 20).max(LEAST_MEMORY);
        let limit = ctx.limit(default, |limit| match limit < LEAST_MEMORY {
            true => {
                let what = format!("{} is too little for MonetDB and a cache", Size(limit));
                Err(Failure::usage("--memory", what, format!("give at least {}", Size(LEAST_MEMORY))))
            }
            false => Ok(()),
        })?;
        let memory = limit.bytes().unwrap_or(default);
        let cache = args.cache.map(|cache| cache.0);
        if let Some(cache) = cache.filter(|cache| *cache >= memory) {
            let what = format!("{} leaves nothing of {} to MonetDB", Size(cache), Size(memory));
            let usual = (memory / 4) & !((1 << 20) - 1);
            return Err(Failure::usage("--cache", what, format!("give less, such as {}", Size(usual))));
        }
        let on_disk = (text_bytes as f64 * ON_DISK) as u64;
        let dir = ctx.dir_for(on_disk)?;
        let place = own_directory(&dir, on_disk)?;
        let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32));
        let mut queries = if args.queries.is_empty() { (1..=QUERIES).collect() } else { args.queries.clone() };
        queries.sort_unstable();
        queries.dedup();

        let bar = progress_bar(1, "generating and loading the tables, {elapsed}");
        bar.enable_steady_tick(std::time::Duration::from_secs(1));
        let (scratch, scale) = (place.path().to_owned(), args.scale);
        let load = Load { monetdb: monetdb.clone(), database: original(&place), scratch, scale, threads };
        let loaded = limit.obey::<Olap>("MonetDB", &Case::Load(load), None, None)?;
        bar.finish_and_clear();
        if let Some(Loaded { seconds, text_bytes }) = loaded.into_iter().find_map(|part| part.outcome.loaded) {
            ctx.notes.push(format!(
                "TPC-H at scale factor {scale}: {} MiB of text, generated and loaded in {seconds:.0} s; MonetDB Jul2021 (monetdbe 0.11 from \
                 PyPI, unchanged) with {threads} threads, its limit on address space at the default; the queries have the specification's \
                 validation parameters. FastMap has {}; mappings smaller than 1 MiB are the kernel's. Every run had a copy of the \
                 database, since opening writes to it and queries leave indexes in it.",
                text_bytes >> 20,
                cache.map_or("a cache of what MonetDB leaves of its memory".to_owned(), |cache| format!("a cache of {}", Size(cache)))
            ));
        }
        let files = cold::files(&original(&place))?;
        let bytes: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|facts| facts.len()).sum();
        let arm = |engine| {
            let (monetdb, database, queries) = (monetdb.clone(), place.path().join("copy"), queries.clone());
            Arm::of(engine, Case::Run(Order { monetdb, database, threads, queries }))
        };
        let what = if queries.len() == 22 { "22 TPC-H queries".to_owned() } else { format!("{} of the TPC-H queries", queries.len()) };
        let short = limit.bytes().is_some_and(|limit| limit < bytes);
        let labels = vec![("queries", json!(queries)), ("short", json!(if short { "yes" } else { "no" })), ("cache_bytes", json!(cache))];
        let group = Group::new(format!("{what} over MonetDB"), labels, [Engine::Mmap, Engine::Fastmap].map(arm).into());
        Ok(Plan {
            about: String::new(),
            place: dir.clone(),
            file: format!("database in {}", dir.display()),
            bytes,
            limit,
            groups: vec![group],
            until_steady: None,
            stage: Box::new(Databases { place, cache, checks: Checks { official: scale == 1.0, first: None } }),
        })
    }

    fn run(case: &Case, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        let order = match case {
            Case::Load(load) => {
                let loaded = Some(olap::load(load)?);
                return Ok(Part::whole(Reading::default(), Outcome { loaded, ..Outcome::default() }));
            }
            Case::Run(order) => order,
        };
        let olap::Outcome { answers, all, .. } = olap::run(order, meter)?;
        let rows = answers.iter().map(|answer| answer.rows.len()).sum();
        let all = Part { name: "all".to_owned(), reading: all, outcome: Outcome { rows, ..Outcome::default() } };
        let of = |Answer { query, seconds, rows }: Answer| Part {
            name: format!("Q{query}"),
            reading: Reading { ops: 1, seconds, ops_per_s: 1.0 / seconds, ..Reading::default() },
            outcome: Outcome { query: Some(query), rows: rows.len(), answer: rows, ..Outcome::default() },
        };
        Ok(std::iter::once(all).chain(answers.into_iter().map(of)).collect())
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let mean = Claim { mean: true, ..Claim::new("query_seconds").what("geometric mean of the speed-ups") };
        let mean = mean.paper(|row| {
            let setting = "50 GB of data, 16 GB of memory, 32 cores, Optane SSD; queries from 7.2 % worse to 45.7 % better";
            let same = row.what.starts_with("22 ") && row.text("short") == "yes";
            if same { Paper::says(1.0606, "FastMap, USENIX ATC '20, section 5, MonetDB", setting) } else { None }
        });
        vec![mean, Claim::new("seconds").of(|row| row.part == "all").what("time of all of them together")]
    }
}

fn original(place: &TempDir) -> PathBuf {
    place.path().join("database")
}

/// The database, and what every run's answers are compared with.
struct Databases {
    place: TempDir,
    cache: Option<u64>,
    checks: Checks,
}

impl Stage<Olap> for Databases {
    fn before(&mut self, turn: &Turn<'_, Olap>, _: &mut Case) -> Result<Launch, Failure> {
        self.fresh_copy()?;
        let under = (turn.engine == Engine::Fastmap).then(|| {
            let cache = self.cache.map_or("auto".to_owned(), |cache| cache.to_string());
            // Its memory group has a limit.
            vec!["--cache".into(), cache.into(), "--risk-stores".into(), "--own".into(), "*".into(), "--stats".into(), self.stats().into()]
        });
        Ok(Launch { under, ..Launch::default() })
    }

    fn after(&mut self, turn: &Turn<'_, Olap>, _: &Case, parts: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        self.checks.check(turn.engine, turn.repetition, parts)?;
        parts.iter_mut().for_each(|part| part.outcome.answer.clear());
        if turn.engine == Engine::Fastmap {
            let path = self.stats();
            let told = fs::read(&path).map_err(|e| e.to_string());
            let served = told.and_then(|text| serde_json::from_slice::<Served>(&text).map_err(|e| e.to_string()));
            let served =
                served.map_err(|e| Failure::new(path.display(), format!("cannot be read: {e}"), "please report this"))?;
            if served.candidates > 0 && served.caches.iter().all(|cache| cache.misses + cache.born_zero == 0) {
                let what = "`fastmap run` served none of MonetDB's mappings, so there is nothing to compare";
                return Err(Failure::new("fastmap", what, "see what `fastmap doctor` says of this place"));
            }
            if let Some(all) = parts.first_mut() {
                all.outcome.served = Some(served);
            }
        }
        Ok(())
    }
}

impl Databases {
    fn stats(&self) -> PathBuf {
        self.place.path().join("stats.json")
    }

    /// A copy of the database out of the page cache: opening writes to it, and queries leave indexes in it.
    fn fresh_copy(&self) -> Result<(), Failure> {
        let (from, to) = (original(&self.place), self.place.path().join("copy"));
        let failed = |path: &Path, e| {
            Failure::new(path.display(), format!("cannot be copied: {e}"), "make room, or name another place with --dir")
        };
        if to.exists() {
            fs::remove_dir_all(&to).map_err(|e| failed(&to, e))?;
        }
        let files = cold::files(&from)?;
        let copy = |file: &Path| to.join(file.strip_prefix(&from).expect("a file of the database"));
        for file in &files {
            interrupt::check()?;
            let copy = copy(file);
            let made = fs::create_dir_all(copy.parent().expect("in a directory"));
            made.and_then(|()| fs::copy(file, &copy)).map_err(|e| failed(file, e))?;
        }
        File::open(&to).and_then(|to| cold::write_back_all(&to)).map_err(|e| failed(&to, e))?;
        for file in &files {
            let copy = copy(file);
            let opened = File::open(&copy).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (bytes, opened) = opened.map_err(|e| failed(&copy, e))?;
            make_cold(&opened, &copy.display().to_string(), bytes)?;
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
    fn check(&mut self, engine: Engine, repetition: u32, parts: &[Part<Outcome>]) -> Result<(), Failure> {
        let answers: Vec<(u32, &Rows)> =
            parts.iter().filter_map(|part| Some((part.outcome.query?, &part.outcome.answer))).collect();
        let first = self.first.get_or_insert_with(|| answers.iter().map(|(query, rows)| (*query, (*rows).clone())).collect());
        for ((query, rows), (_, expected)) in answers.iter().zip(first) {
            let official = self.official.then(|| olap::from_official(*query, rows)).flatten();
            let wrong = olap::difference(expected, rows).map(|what| (what, "the first run on kernel mmap"));
            if let Some((what, of)) = wrong.or(official.map(|what| (what, "the specification"))) {
                let thing = format!("{engine}, repetition {repetition}, query {query}");
                let what = format!("the answer is not that of {of}: {what}");
                return Err(Failure::new(thing, what, "this is an error in fastmap or in MonetDB: please report it"));
            }
        }
        Ok(())
    }
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.01..=1000.0).contains(&scale) => Ok(scale),
        _ => Err(format!("\"{text}\" is not a scale factor: give 0.01 to 1000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(cell: &str) -> Vec<Part<Outcome>> {
        let answer = vec![vec![Some("x".to_owned()), Some(cell.to_owned())]];
        Part::whole(Reading::default(), Outcome { query: Some(6), answer, ..Outcome::default() })
    }

    #[test]
    fn an_answer_that_differs_from_the_first_fails() {
        let mut checks = Checks { official: false, first: None };
        checks.check(Engine::Mmap, 1, &parts("1.00")).unwrap();
        checks.check(Engine::Fastmap, 1, &parts("1.00")).unwrap();
        let why = checks.check(Engine::Fastmap, 2, &parts("1.01")).unwrap_err().to_string();
        let said = "fastmap, repetition 2, query 6: the answer is not that of the first run on kernel mmap: row 1, column 2: \
                    \"1.01\" where \"1.00\" belongs";
        assert!(why.starts_with(said), "{why}");
    }

    #[test]
    fn an_answer_that_is_not_the_specifications_fails() {
        let mut checks = Checks { official: true, first: None };
        let why = checks.check(Engine::Mmap, 1, &parts("1.00")).unwrap_err().to_string();
        assert!(why.contains("not that of the specification"), "{why}");
    }
}
