//! `fastmap bench` without a subcommand: the tour. It measures eight works, and needs no preparation.

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use fastmap_cli::table::{figure, render};
use serde_json::json;
use tempfile::TempDir;

use super::micro::{PAGES, VERIFIED};
use crate::driver::{Ctx, own_directory};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Over, Part, Plan, Plot, Row, Stage, TEMPORARY, Turn,
};
use crate::results::{Kind, median};
use crate::show::{advice, is_steady};
use crate::substrates::{self, Engine, Meter, Op, Pattern, Spec, capacity_for};
use crate::target::Target;

const FILE: Size = Size(512 << 20);
/// The memory of each run, if `--memory` says nothing else.
const MEMORY: u64 = FILE.0 / 4;

/// A work whose repetitions do not agree is repeated, up to this many times as often.
const TIMES: u32 = 2;

/// A kernel engine with advice is run no more if in the first repetition it is slower than this share of the best: it will not be the best.
const HOPELESS: f64 = 0.7;

/// Measure FastMap beside kernel mmap: a tour of eight works, or one experiment in detail (`bench micro`)
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure FastMap beside kernel mmap.

Without a subcommand: the tour. It makes a file of 512 MiB, allows each run 128 MiB of memory (--memory), and does eight works on the file: on kernel \
mmap as it is, on kernel mmap with the advice that serves the work best, under `fastmap run` with its defaults, and through the engine. \
Every run is a fresh process that begins with nothing of the file in memory; the time in which FastMap finds out what to do counts. Stores \
count when they are flushed. Of two kinds of advice the one that is far worse in the first repetition is not measured again. A work whose repetitions do not agree is repeated, up to twice as often as --repeat says; figures that do \
not agree then are marked.

The file is on --storage, by default a disk with the readahead of 128 KiB that most disks have. As root, or where the user may make memory cgroups, every run is limited by a \
cgroup of its own; elsewhere nothing limits kernel mmap, and the tour says so. It takes six to twelve minutes.

The papers' experiments (random-64k, sync, async, breakdown, ablation, kv, graph, oltp, olap, study) are started in the same way, \
`fastmap bench kv`, once `make papers` has built them.")]
#[command(after_help = "\
Storages:
  disk   readahead of 128 KiB: as root a loop device with direct I/O over a file on the disk of --dir, else that disk as it is
  slow   each request takes 2 ms, all together pass at 1 GB/s: a loop device over a file system of FUSE; as root
  fast   zram, compressed memory behind the block layer; as root
  here   the folder as it is, with its disk's readahead

A storage that was made is gone when the bench ends, however it ends.

Examples:
  fastmap bench
  fastmap bench --storage slow --json slow.json
  fastmap bench --storage here --dir /mnt/disk
  systemd-run --user --scope -p Delegate=yes fastmap bench     limits without being root")]
pub struct Args {}

/// The experiment.
pub struct Tour;

/// One row of the table: its name, the order of pages, the operation, the threads, whether it goes through 1.25 memories again and again and not
/// through the whole file, and the kernel engines whose advice may serve it best.
struct Work {
    name: &'static str,
    pattern: Pattern,
    op: Op,
    threads: u32,
    loops: bool,
    advised: &'static [Engine],
}

const fn work(name: &'static str, pattern: Pattern, op: Op, threads: u32, advised: &'static [Engine]) -> Work {
    Work { name, pattern, op, threads, loops: false, advised }
}

/// The rows. A program that touches pages at random does not know its next pages, so it cannot tell the kernel. A program that walks does.
const WORKS: [Work; 8] = {
    use Engine::{MmapPopulate, MmapRandom, MmapSequential, MmapWillneed};
    [
        work("random read", Pattern::Random, Op::Read, 1, &[MmapRandom]),
        work("random read, 4 threads", Pattern::Random, Op::Read, 4, &[MmapRandom]),
        work("skewed read, 2 threads", Pattern::Zipf, Op::Read, 2, &[MmapRandom]),
        work("random write, 2 threads", Pattern::Random, Op::Write, 2, &[MmapRandom]),
        work("walk forward", Pattern::Forward, Op::Read, 1, &[MmapSequential, MmapWillneed]),
        work("walk backward", Pattern::Backward, Op::Read, 1, &[MmapWillneed, MmapPopulate]),
        work("every 16th page", Pattern::Stride, Op::Read, 1, &[MmapWillneed, MmapPopulate]),
        Work { loops: true, ..work("loop, 1.25 memories", Pattern::Forward, Op::Read, 1, &[MmapSequential, MmapWillneed]) },
    ]
};

/// The bytes that a loop goes through: 1.25 memories.
fn loop_of(memory: u64) -> u64 {
    memory / 4 * 5
}

impl Experiment for Tour {
    const NAME: &'static str = "tour";
    type Args = Args;
    type Case = Spec;
    type Outcome = Nothing;
    const FLAGS: Flags =
        Flags { repeat: "3", seconds: Some(("2.5", "Seconds of each run")), memory: Some("128MiB"), dir: Some(TEMPORARY) };
    const COLUMNS: &'static [Column<Nothing>] = PAGES;
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Throughput", &["ops_per_s"], Kind::Bars, Over::Groups).log(),
        Plot::new("Processor time", &["cpu_ns_per_byte"], Kind::Bars, Over::Groups).log(),
    ];
    const VERIFIED: &'static str = VERIFIED;

    fn plan(_: &Args, ctx: &mut Ctx) -> Result<Plan<Tour>, Failure> {
        let limit = ctx.limit(MEMORY, |limit| {
            if loop_of(limit) > FILE.0 {
                let most = Size((FILE.0 / 5 * 4) >> 20 << 20);
                let what = format!("1.25 memories must lie in the file of {FILE}");
                return Err(Failure::usage(format!("--memory {}", Size(limit)), what, format!("give at most {most}")));
            }
            Ok(capacity_for(limit, FILE.0 / substrates::PAGE as u64, true).map(drop)?)
        })?;
        let dir = ctx.dir_for(FILE.0)?;
        // The file has a name, as the files of programs have.
        let place = own_directory(&dir, FILE.0)?;
        let target = Target::named(&place.path().join("file"), Some(FILE), true)?;
        let group = |work: &Work| {
            let Work { name, pattern, op, threads, loops, advised } = *work;
            let bytes = if loops { loop_of(limit.bytes().unwrap_or(MEMORY)) } else { FILE.0 };
            let spec = |engine| {
                let spec = target.spec(engine, pattern, op, threads, limit.bytes(), ctx.seconds);
                Spec { pages: bytes / substrates::PAGE as u64, cold: true, ..spec }
            };
            // The program knows nothing of `fastmap run`, which steers it.
            let steered = Arm { name: "fastmap run".to_owned(), ..Arm::of(Engine::Steered, spec(Engine::Mmap)) };
            let kernel = [Engine::Mmap].into_iter().chain(advised.iter().copied());
            let plain = |engine| Arm::of(engine, spec(engine));
            let arms = kernel.map(plain).chain([steered, plain(Engine::Fastmap)]).collect();
            let labels =
                vec![("work", json!(name)), ("pattern", json!(pattern)), ("op", json!(op)), ("threads", json!(threads))];
            Group { named_whole: true, rotate: true, ..Group::new(name, labels, arms) }
        };
        let groups = WORKS.iter().map(group).collect();
        Ok(Plan {
            about: String::new(),
            place: dir.clone(),
            file: format!("file in {}", ctx.folder_for(FILE.0).display()),
            bytes: FILE.0,
            limit,
            groups,
            until_steady: Some(TIMES * ctx.repeat),
            stage: Box::new(Files { target, _place: place }),
        })
    }

    fn run(case: &Spec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        Ok(Part::whole(substrates::run(case, meter)?, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("ops_per_s").between(&[Engine::Steered, Engine::Fastmap], MMAP)]
    }

    fn work(row: &Row<Nothing>) -> Option<String> {
        Some(row.text("work").to_owned())
    }

    fn page(rows: &[Row<Nothing>]) -> Option<String> {
        Some(table(rows))
    }
}

fn rate(row: &Row<Nothing>) -> f64 {
    median(rates(row))
}

fn rates(row: &Row<Nothing>) -> Vec<f64> {
    row.trials.iter().map(|trial| trial.reading.ops_per_s).collect()
}

/// The first letter of the kernel's advice, behind a space. Empty: there is none.
fn letter(engine: Engine) -> String {
    let named = advice(engine).strip_prefix("MADV_").and_then(|name| name.chars().next());
    named.map_or_else(String::new, |first| format!(" {first}"))
}

/// The one table: a row for each work.
fn table(rows: &[Row<Nothing>]) -> String {
    let shown = |row: &Row<Nothing>| {
        format!("{}{}", figure(rate(row) / 1e3), if is_steady(&rates(row)) { "" } else { "~" })
    };
    let lines = rows.chunk_by(|a, b| a.group == b.group).filter_map(|group| {
        let of = |engine: Engine| group.iter().find(|row| row.engine == engine);
        let kernel = of(Engine::Mmap)?;
        let advised = group.iter().filter(|row| row.engine.is_mmap() && row.engine != Engine::Mmap);
        let advised = advised.filter(|row| 2 * row.trials.len() > kernel.trials.len());
        let best = advised.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
        let ours = |engine| of(engine).map_or([String::new(), String::new()], |row| [shown(row), times(rate(row) / rate(kernel))]);
        let told = format!("{}{}", shown(best), letter(best.engine));
        Some([vec![kernel.text("work").to_owned(), shown(kernel), told], ours(Engine::Steered).into(), ours(Engine::Fastmap).into()].concat())
    });
    let headings = ["work", "kernel", "advised", "fastmap run", "times", "engine", "times"];
    format!(
        "\nMedians, thousands of pages a second from a cold start; the kernel as it is: 1\n\n{}\n\
         R: MADV_RANDOM, S: MADV_SEQUENTIAL, W: MADV_WILLNEED, P: MADV_POPULATE_READ\n\
         ~: repetitions do not agree: their middle half is more than 10 % apart\n",
        render(&headings, &lines.collect::<Vec<Vec<String>>>())
    )
}

fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") }
}

/// Whether the arm is a kernel engine with advice that was far from the best in the first repetition.
fn is_hopeless(turn: &Turn<'_, Tour>) -> bool {
    let first = |row: &Row<Nothing>| row.trials.first().map_or(0.0, |trial| trial.reading.ops_per_s);
    let advised = || turn.group().filter(|row| row.engine.is_mmap() && row.engine != Engine::Mmap);
    let best = advised().map(first).fold(0.0, f64::max);
    advised().any(|row| row.arm == turn.at.1 && first(row) < HOPELESS * best)
}

/// The file. The fields are dropped in this order, so the file is closed before its folder is removed.
struct Files {
    target: Target,
    _place: TempDir,
}

impl Stage<Tour> for Files {
    fn before(&mut self, turn: &Turn<'_, Tour>, case: &mut Spec) -> Result<Launch, Failure> {
        if turn.repetition > 1 && is_hopeless(turn) {
            return Ok(Launch { skip: true, ..Launch::default() });
        }
        let launch = self.target.ready(case)?;
        Ok(Launch { under: (turn.engine == Engine::Steered).then(Vec::new), ..launch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Trial;
    use crate::substrates::Reading;

    fn row(arm: usize, engine: Engine, rates: &[f64]) -> Row<Nothing> {
        let trial = |(at, &ops_per_s): (usize, &f64)| {
            let reading = Reading { ops_per_s, ..Reading::default() };
            Trial { repetition: at as u32 + 1, reading, outcome: Nothing {} }
        };
        Row {
            group: 0,
            arm,
            part: String::new(),
            nth: 0,
            what: "random read".to_owned(),
            engine,
            name: engine.to_string(),
            labels: vec![("work", json!("random read, 4 threads"))],
            trial: false,
            trials: rates.iter().enumerate().map(trial).collect(),
            late: Vec::new(),
        }
    }

    #[test]
    fn one_table_has_all_and_is_narrow() {
        let table = table(&[
            row(0, Engine::Mmap, &[10_000.0, 10_100.0, 10_200.0]),
            row(1, Engine::MmapSequential, &[15_000.0]),
            row(2, Engine::MmapRandom, &[20_000.0, 20_000.0, 20_100.0]),
            row(3, Engine::Steered, &[19_000.0, 30_000.0, 60_000.0]),
            row(4, Engine::Fastmap, &[202_000.0, 202_000.0, 202_000.0]),
        ]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{table}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = lines.iter().any(|line| words(line) == "random read, 4 threads 10.1 20.0 R 30.0~ 2.97 202 20");
        assert!(found, "{table}");
    }

    #[test]
    fn every_work_has_the_kernel_as_it_is_and_advised() {
        for work in &WORKS {
            assert!(!work.advised.is_empty() && work.advised.iter().all(|engine| engine.is_mmap()), "{}", work.name);
        }
        assert!(loop_of(MEMORY) > MEMORY && loop_of(MEMORY) <= FILE.0);
    }
}
