//! Everything at once, by seed: pool, write-back, keeper, leases and fork over a store that fails, and an end at any moment.
//!
//! A *program*, which is this executable with a role, maps two files by address in one small cache: one that it stores to, and one that it only
//! reads, by a lease. One thread takes steps that the seed chooses ([`program`]), and in the middle of one of them the program ends: killed or
//! gone at a moment that the engine passes ([`crash`]), or in another way between two steps. It tells in memory that outlives it
//! what it has stored ([`told`]). When its keeper is done, the file has all that was stored before the end, and nothing else; without a
//! keeper it has at least what was flushed. Meanwhile every load, every flush, every error of a flush and every child is checked, and this test
//! plays the other program that writes the leased file.
//!
//! **What a seed determines.** The steps, the disk's faults, and the moment and the way of the end. In three seeds of four the pool has no
//! threads: what writers do is steps, too. Then the same seed passes the same moments, reads and writes the same pages and ends at the same
//! place, which [`a_seed_is_a_run`] checks. The engine's other threads (leases, children, keeper) act while the program's thread waits for
//! them.
//!
//! **What it does not.** How long things take: a read's size follows the disk's times where nothing is advised, so a seed of the three may differ
//! now and then. In the fourth seed the writers, the readers and the threads of deferred stores run as ever, in an order that no seed has. One
//! thread stores, so that a store meets another thread's write-back or eviction in the fourth seed only (`tests/suite/killed.rs` has more of
//! that). Disks whose syncs or reads fail are in `tests/faulty.rs`.
//!
//! `make sim` runs all seeds of `FASTMAP_EFFORT`; `FASTMAP_SEED=7 make sim` one, `FASTMAP_SEED=1000..5000 make sim` many.

mod program;
mod told;

use crate::effort::{quick_or_full, skip};
use crate::store::faulty::{Disk, Random, SECTOR};
use crate::store::one_writer;
use crate::sys::{crash, file};
use program::Program;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use told::{IN_PAGE, Least, PAGES, Told};

/// No run takes as long, unless something hangs.
const DEADLINE: Duration = Duration::from_secs(40);

/// How a program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Never,
    /// At a moment.
    Kill,
    Exit,
    /// Between two steps.
    Abort,
    Crash,
    Return,
    Exec,
}

/// What a seed says of a run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Pages.
    capacity: usize,
    high_water: u8,
    batch: usize,
    keeper: bool,
    threads: bool,
    /// Stores to absent pages do not wait.
    keeps: bool,
    /// Pages become writable because stores are expected. They are dirty then, and may fill memory on a disk that takes none of them: so there
    /// it takes some.
    predicts: bool,
    /// Sectors that the files have at first.
    sectors: [usize; 2],
    steps: usize,
    end: End,
    end_at: usize,
    moment: u64,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let threads = seed % 4 == 3;
        let steps = 10 + random.below(60);
        let magnitude = random.below(9);
        Plan {
            capacity: 16 + random.below(30),
            high_water: 1 + random.below(75) as u8,
            batch: 1 + random.below(8),
            keeper: !random.chance(15),
            threads,
            keeps: random.chance(50) && threads,
            predicts: random.chance(60),
            sectors: [0, 0].map(|_| IN_PAGE * 20 + random.below(IN_PAGE * (PAGES - 20))),
            steps,
            end: match random.below(12) {
                0 | 1 => End::Never,
                2..6 => End::Kill,
                6 | 7 => End::Exit,
                8 => End::Abort,
                9 => End::Crash,
                10 => End::Return,
                _ => End::Exec,
            },
            end_at: random.below(steps),
            moment: 1 + random.below(1 << magnitude) as u64,
        }
    }

    /// Ends the process, or sees to it.
    fn end(&self) {
        let end = self.end;
        if matches!(end, End::Kill | End::Exit) {
            return crash::at(self.moment, end == End::Kill);
        }
        if end == End::Never {
            return;
        }
        crash::begin_end();
        // SAFETY: the process ends, and nothing of it is used any more.
        unsafe {
            match end {
                End::Abort => libc::abort(),
                // The first one removes std's handler.
                End::Crash => loop {
                    libc::raise(libc::SIGSEGV);
                },
                End::Exec => {
                    libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<libc::c_char>());
                }
                _ => {}
            }
        }
        std::process::exit(7);
    }

    fn has_ended(&self, status: ExitStatus) -> bool {
        match self.end {
            End::Never | End::Exec => status.success(),
            // The moment may not have come.
            End::Kill => status.signal() == Some(libc::SIGKILL) || status.success(),
            End::Exit => status.code() == Some(7) || status.success(),
            End::Abort => status.signal() == Some(libc::SIGABRT),
            End::Crash => status.signal() == Some(libc::SIGSEGV),
            End::Return => status.code() == Some(7),
        }
    }
}

/// What a run has come to.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    steps: u32,
    /// The number that all steps make.
    trace: u64,
    /// The program ended before its last step.
    ended: bool,
    served: u32,
}

/// Runs a seed.
fn run(seed: u64) -> Result<Run, String> {
    let plan = Plan::new(seed);
    let folder = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
    let folder = folder.path();
    let told = Told::open(&folder.join("told"));
    let lives = File::open(folder.join("told")).unwrap();
    let path = |number: usize| folder.join(format!("file{number}"));
    for (number, shadow) in told.files.iter().enumerate() {
        std::fs::write(path(number), shadow.begin(number as u32 + 1, plan.sectors[number])).unwrap();
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["tests::sim::program_of_a_seed", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    program.env("FASTMAP_TEST_ROLE", folder).env("FASTMAP_SEED", seed.to_string()).env("RUST_BACKTRACE", "0");
    let said = File::create(folder.join("said")).unwrap();
    let mut program = program.stdout(Stdio::null()).stderr(said).spawn().unwrap();
    let ended = await_end(&mut program, told, &path(1));
    told.over.store(1, Ordering::SeqCst);
    let result = ended.and_then(|status| match plan.has_ended(status) {
        true => check(&plan, told, &lives, [&path(0), &path(1)]).map(|()| status),
        false => Err(format!("the program: {status}")),
    });
    let said = std::fs::read_to_string(folder.join("said")).unwrap();
    let wrong = said.lines().find(|line| line.contains("cannot be saved") || line.contains("wrong in a child"));
    let result = wrong.map_or(result, |wrong| Err(wrong.to_owned()));
    let steps = told.steps.load(Ordering::SeqCst);
    let run = result.map(|status| Run {
        steps,
        trace: told.trace.load(Ordering::SeqCst),
        ended: !status.success() || plan.end == End::Exec,
        served: told.served.load(Ordering::SeqCst),
    });
    told.close();
    run.map_err(|why| {
        let lines: Vec<_> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(25)..].join("\n");
        format!("{why}\n{plan:?}\n{last}\nAgain: FASTMAP_SEED={seed} make sim")
    })
}

/// Waits for a program, and writes its leased file when it asks for that.
fn await_end(program: &mut Child, told: &Told, leased: &Path) -> Result<ExitStatus, String> {
    let start = Instant::now();
    loop {
        if let Some(status) = program.try_wait().unwrap() {
            return Ok(status);
        }
        let asked = told.asked.load(Ordering::SeqCst);
        if asked != told.answered.load(Ordering::SeqCst) {
            let sectors = told.to_write.each_ref().map(|sector| sector.load(Ordering::SeqCst) as usize);
            let (sectors, generation) = (sectors[0]..sectors[1], told.next_generation());
            let shadow = &told.files[1];
            let file = OpenOptions::new().write(true).open(leased).unwrap();
            shadow.begin_write(&sectors, generation);
            file.write_all_at(&shadow.bytes(sectors.clone(), generation), (sectors.start * SECTOR) as u64).unwrap();
            shadow.end_write(&sectors, generation);
            drop(file);
            told.answered.store(asked, Ordering::SeqCst);
        }
        if start.elapsed() > DEADLINE {
            program.kill().unwrap();
            program.wait().unwrap();
            return Err("the program hangs".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits for keeper and children, then checks the files.
fn check(plan: &Plan, told: &Told, lives: &File, paths: [&Path; 2]) -> Result<(), String> {
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            if start.elapsed() > DEADLINE {
                return Err(format!("waited in vain: {what}"));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    };
    if plan.keeper {
        let stored = File::open(paths[0]).unwrap();
        until("the keeper saves", &|| !file::byte_is_locked(&stored, one_writer::BYTE))?;
    }
    until("children end", &|| !file::byte_is_locked(lives, 0))?;
    for (path, shadow) in paths.into_iter().zip(&told.files) {
        let words = Disk::new(path, 0).unwrap().contents();
        let least = if plan.keeper { Least::Done } else { Least::Written };
        shadow.wrong_file(&words, least).map_or(Ok(()), |wrong| Err(format!("after the end: {wrong}")))?;
    }
    Ok(())
}

/// The seeds to run, and whether the environment says so.
fn seeds(default: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("FASTMAP_SEED") else { return default };
    let parse =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("FASTMAP_SEED is a number, or two with .. between"));
    match text.split_once("..") {
        Some((start, end)) => parse(start)..parse(end),
        None => parse(&text)..parse(&text) + 1,
    }
}

fn ready() -> bool {
    let folder = std::env::current_exe().unwrap();
    let probe = tempfile::tempfile_in(folder.parent().unwrap()).unwrap();
    let of_file = || crate::requirements::of_file(&probe).into_iter().find(|one| one.found.is_err());
    match crate::requirements::missing().or_else(of_file) {
        Some(missing) => skip(format!("{} is missing", missing.name)),
        None => return true,
    }
    false
}

#[test]
fn nothing_is_lost_by_any_seed() {
    if !ready() {
        return;
    }
    let seeds = seeds(0..quick_or_full(20, 1000));
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let results = Mutex::new((0u64, 0u64, 0u64, 0u64, None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            scope.spawn(|| {
                while !failed.load(Ordering::SeqCst) {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let run = run(seed);
                    let mut results = results.lock().unwrap();
                    match run {
                        Ok(run) => {
                            results.0 += 1;
                            results.1 += u64::from(run.steps);
                            results.2 += u64::from(run.served);
                            results.3 += u64::from(run.ended);
                        }
                        Err(why) => {
                            failed.store(true, Ordering::SeqCst);
                            results.4.get_or_insert(why);
                        }
                    }
                }
            });
        }
    });
    let (runs, steps, served, ended, why) = results.into_inner().unwrap();
    println!(
        "{runs} seeds, {steps} steps, both files the engine's after {served} of them; {ended} programs ended early"
    );
    if let Some(why) = why {
        panic!("{why}");
    }
}

#[test]
fn a_seed_is_a_run() {
    if !ready() {
        return;
    }
    for seed in (0..quick_or_full(4, 40)).filter(|seed| !Plan::new(*seed).threads) {
        let [first, second] = [(); 2].map(|()| run(seed).unwrap_or_else(|why| panic!("{why}")));
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Not a test: the program of a seed.
#[test]
#[ignore = "a child's role"]
fn program_of_a_seed() {
    let Some(folder) = std::env::var_os("FASTMAP_TEST_ROLE") else { return };
    let seed = seeds(0..1).start;
    let plan = Plan::new(seed);
    std::panic::set_hook(Box::new(|panic| {
        crash::begin_end();
        eprintln!("{panic}");
    }));
    // SAFETY: a structure that the kernel reads.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    Program::new(Path::new(&folder), seed, &plan).run(&plan);
}
