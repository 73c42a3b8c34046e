//! `fastmap bench`: the tour, about two minutes, nothing to set up.

mod shown;

use std::ops::Range;
use std::time::{Duration, Instant};

use fastmap_workloads::{Advice, Engine, Op, Outcome, Pattern, prepare};

use super::runner::Limit;
use super::session::{Load, Session};
use super::summary::{Summary, best_mmap};
use super::table::{figure, render};
use super::target::{Target, directory_for, progress_bar};
use crate::args::TourArgs;
use crate::cgroup::{Controller, REMEDY};
use crate::failure::Failure;
use crate::interrupt;
use crate::report::Place;
use crate::results::{JsonFile, Report};
use crate::size::Size;

const FILE: Size = Size(1 << 30);
const MEMORY: u64 = 256 << 20;
const REPETITIONS: u32 = 3;

/// What the whole tour should take, preparation included.
const WHOLE: Duration = Duration::from_secs(120);

/// Shortest and longest measurement of a run, seconds, whatever the machine.
const SECONDS: (f64, f64) = (0.25, 4.0);

/// Ratios this close to 1 are called level: less than repetitions differ.
const LEVEL: f64 = 0.03;

/// One line of the tour.
#[derive(Debug, Clone, Copy)]
struct Work {
    name: &'static str,
    pattern: Pattern,
    op: Op,
    threads: u32,
    /// The advice for kernel mmap that suits the work, beside none.
    advised: Engine,
    /// The fastmap engines that suit the work: plain loads, and what a program can do better where it knows more.
    ours: &'static [Engine],
}

/// The lines of the tour; with one processor, one of them is the same twice and left out.
fn works() -> Vec<Work> {
    let two = std::thread::available_parallelism().map_or(1, usize::from).min(2) as u32;
    let random = Engine::MmapRandom;
    let sequential = Engine::MmapSequential;
    let work =
        |name, pattern, op, threads, advised| Work { name, pattern, op, threads, advised, ours: &[Engine::Fastmap] };
    let with = |ours, work| Work { ours, ..work };
    let mut works = vec![
        work("fill a new file", Pattern::Fill, Op::Write, 1, sequential),
        with(
            &[Engine::Fastmap, Engine::FastmapPrefetch],
            work("random read, 1 thread", Pattern::Random, Op::Read, 1, random),
        ),
        with(
            &[Engine::Fastmap, Engine::FastmapPin],
            work("random read, 2 threads", Pattern::Random, Op::Read, 2, random),
        ),
        work("skewed read (zipf)", Pattern::Zipf, Op::Read, two, random),
        work("random write", Pattern::Random, Op::Write, two, random),
        work("random read-modify-write", Pattern::Random, Op::Rmw, two, random),
        work("forward scan", Pattern::Forward, Op::Read, 1, sequential),
        work("backward scan", Pattern::Backward, Op::Read, 1, sequential),
        work("every 16th page", Pattern::Stride, Op::Read, 1, random),
    ];
    works.retain(|w| w.threads <= two);
    works
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &TourArgs) -> Result<(), Failure> {
    interrupt::watch();
    let start = Instant::now();
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let place = Place::of(args.report.as_deref())?;
    let (limit, unlimited) = match Controller::find() {
        Ok(controller) => (Limit::new(controller, MEMORY), None),
        Err(why) => (Limit::none(), Some(why)),
    };
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(FILE.0));
    let target = Target::temporary(&dir, FILE, prepare::stamp_page)?;
    let session = Session::new(&target, &limit);
    session.touch_memory()?;

    let mut report: Report<Summary> = session.report("tour");
    report.results = measure(&session, start, target.takes_direct_io())?;

    let limit = match &unlimited {
        None => format!("{} of memory for each run ({})", Size(MEMORY), report.memory_limit),
        Some(why) => format!(
            "NO LIMIT on memory, so that kernel mmap may keep the whole file while fastmap's cache is {}:\n\
             the comparison favours mmap. No memory cgroup can be made ({why});\n\
             for a fair one {REMEDY}",
            Size(FILE.0 / 4)
        ),
    };
    let hurried = report.results.iter().any(|s| s.engine == Engine::Fastmap && s.runs.len() < REPETITIONS as usize);
    let but = if hurried { " (1 where the disk is too slow for more)" } else { "" };
    let caption = format!(
        "\n{FILE} file on {} ({}), {limit}\nMedians of {REPETITIONS} interleaved repetitions{but}, thousands of 4 KiB pages a second\n\n",
        report.machine.file_system, report.machine.device
    );
    crate::print(&(caption + &text(&report.results)));
    shown::show(&mut report, unlimited.as_ref().map(ToString::to_string).as_deref());
    report.took_s = start.elapsed().as_secs_f64();
    let page = page(place, &report);
    json.map_or(Ok(()), |json| json.write(report))?;
    page
}

/// Writes the page to look at and says where it is. That it cannot be where nobody asked for it is said, and is no failure: the
/// results are on the screen.
fn page(place: Place, report: &Report<Summary>) -> Result<(), Failure> {
    let asked = matches!(place, Place::Named(..));
    match place.write(report) {
        Ok(path) => crate::print(&format!("\nTo look at: {}\n", path.display())),
        Err(failure) if asked => return Err(failure),
        Err(failure) => eprintln!("fastmap: no page to look at: {failure}"),
    }
    Ok(())
}

/// All works, engines in turn within each repetition. `direct` is for reference and runs once.
fn measure(session: &Session<'_>, start: Instant, direct: bool) -> Result<Vec<Summary>, Failure> {
    let works = works();
    let runs_left: usize = works.iter().map(|work| work.runs(0..REPETITIONS, direct)).sum();
    let bar = progress_bar(runs_left as u64, "{msg:44} {bar:30} {pos}/{len} runs, {elapsed} so far");
    let mut pace = Pace { start, runs_left: runs_left as u32, overhead: 0.3 };
    let mut results = Vec::new();
    let share = WHOLE / works.len() as u32;
    for work in &works {
        let work_began = Instant::now();
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); work.engines(0, true).len()];
        for repetition in 0..REPETITIONS {
            // Where 1 GiB takes long to write and to read back, no choice of seconds keeps the tour short.
            if repetition == 1 && work_began.elapsed() * REPETITIONS > share * 2 {
                let runs = work.runs(1..REPETITIONS, direct);
                pace.runs_left -= runs as u32;
                bar.inc(runs as u64);
                break;
            }
            let seconds = pace.seconds();
            for (engine, outcomes) in work.engines(repetition, direct).into_iter().zip(&mut outcomes) {
                bar.set_message(format!("{}: {engine}", work.name));
                let began = Instant::now();
                outcomes.push(session.run(work.through(engine), seconds)?);
                pace.ran(began.elapsed().as_secs_f64(), seconds);
                bar.inc(1);
            }
        }
        for (engine, outcomes) in work.engines(0, true).into_iter().zip(&outcomes).filter(|(_, o)| !o.is_empty()) {
            results.push(Summary { work: Some(work.name), ..Summary::of(work.through(engine), outcomes) });
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

impl Work {
    fn through(&self, engine: Engine) -> Load {
        let Work { pattern, op, threads, .. } = *self;
        Load { engine, pattern, op, threads, advice: Advice::Normal }
    }

    /// The engines of a repetition, in turn; always the same ones first.
    fn engines(&self, repetition: u32, direct: bool) -> Vec<Engine> {
        let mut engines = vec![Engine::Mmap, self.advised];
        engines.extend(self.ours);
        engines.extend((repetition == 0 && direct).then_some(Engine::Direct));
        engines
    }

    /// How many runs some repetitions take.
    fn runs(&self, repetitions: Range<u32>, direct: bool) -> usize {
        repetitions.map(|repetition| self.engines(repetition, direct).len()).sum()
    }
}

/// Shares out what is left of the tour's time.
struct Pace {
    start: Instant,
    runs_left: u32,
    /// What a run takes beside warming up and measuring, seconds: starting, flushing, reading back. A moving average.
    overhead: f64,
}

impl Pace {
    /// Seconds to measure each of the next runs, if warming up takes as long.
    fn seconds(&self) -> f64 {
        let left = WHOLE.saturating_sub(self.start.elapsed()).as_secs_f64();
        ((left / f64::from(self.runs_left.max(1)) - self.overhead) / 2.0).clamp(SECONDS.0, SECONDS.1)
    }

    fn ran(&mut self, took: f64, seconds: f64) {
        self.runs_left -= 1;
        self.overhead = 0.8 * self.overhead + 0.2 * (took - 2.0 * seconds).max(0.0);
    }
}

fn text(results: &[Summary]) -> String {
    let mut rows = Vec::new();
    let (mut ahead, mut level, mut behind) = (Vec::new(), Vec::new(), Vec::new());
    for lines in results.chunk_by(|a, b| a.work == b.work) {
        let of = |engine| lines.iter().find(|s| s.engine == engine);
        let (Some(work), Some(best)) = (lines[0].work, best_mmap(lines)) else { continue };
        let k = |s: Option<&Summary>| s.map_or_else(|| "-".to_owned(), |s| figure(s.ops_per_s / 1e3));
        for ours in lines.iter().filter(|s| s.engine.is_fastmap()) {
            let name = match ours.engine {
                Engine::FastmapPin => format!("{work}, pinned"),
                Engine::FastmapPrefetch => format!("{work}, prefetched"),
                _ => work.to_owned(),
            };
            let ratio = ours.ops_per_s / best.ops_per_s;
            let verdict = match ratio - 1.0 {
                d if d > LEVEL => ("ahead", &mut ahead),
                d if d < -LEVEL => ("behind", &mut behind),
                _ => ("level", &mut level),
            };
            verdict.1.push(format!("{name} ({ratio:.2}x)"));
            rows.push(vec![
                name,
                best.engine.to_string(),
                k(Some(best)),
                k(Some(ours)),
                format!("{ratio:.2}"),
                verdict.0.to_owned(),
                k(of(Engine::Direct)),
                figure(best.cpu_ns_per_byte),
                figure(ours.cpu_ns_per_byte),
            ]);
        }
    }
    let headings = [
        "work",
        "best mmap",
        "its rate",
        "fastmap",
        "ratio",
        "fastmap is",
        "O_DIRECT calls",
        "mmap CPU ns/B",
        "fastmap CPU ns/B",
    ];
    let mut text = render(&headings, &rows) + "\n";
    for (what, names) in [("ahead of", ahead), ("level with", level), ("behind", behind)] {
        if !names.is_empty() {
            text.push_str(&format!("fastmap is {what} the best mmap in: {}.\n", names.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(work: &'static str, engine: Engine, ops_per_s: f64) -> Summary {
        let outcome = Outcome { ops: 1, seconds: 1.0, ops_per_s, cpu_us_per_op: 4.096, ..Outcome::default() };
        let work = Work { name: work, pattern: Pattern::Random, op: Op::Read, threads: 1, advised: engine, ours: &[] };
        Summary { work: Some(work.name), ..Summary::of(work.through(engine), &[outcome]) }
    }

    #[test]
    fn the_table_and_the_closing_lines_say_who_is_ahead() {
        let mut results = Vec::new();
        for (work, ours) in [("first", 150e3), ("second", 102e3), ("third", 50e3)] {
            results.push(summary(work, Engine::Mmap, 20e3));
            results.push(summary(work, Engine::MmapRandom, 100e3));
            results.push(summary(work, Engine::Fastmap, ours));
        }
        results.push(summary("third", Engine::FastmapPin, 200e3));
        results.push(summary("third", Engine::Direct, 70e3));
        let text = text(&results);
        let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1), ["first", "mmap-random", "100", "150", "1.50", "ahead", "-", "1.00", "1.00"]);
        assert_eq!(words(2), ["second", "mmap-random", "100", "102", "1.02", "level", "-", "1.00", "1.00"]);
        assert_eq!(words(3), ["third", "mmap-random", "100", "50.0", "0.50", "behind", "70.0", "1.00", "1.00"]);
        assert_eq!(words(4)[..6], ["third,", "pinned", "mmap-random", "100", "200", "2.00"]);
        assert!(
            text.contains("fastmap is ahead of the best mmap in: first (1.50x), third, pinned (2.00x).\n"),
            "{text}"
        );
        assert!(text.contains("fastmap is level with the best mmap in: second (1.02x).\n"), "{text}");
        assert!(text.contains("fastmap is behind the best mmap in: third (0.50x).\n"), "{text}");
    }

    #[test]
    fn each_work_runs_its_engines_in_turn_and_direct_calls_once() {
        let works = works();
        for work in &works {
            assert_eq!(work.engines(0, true)[..work.engines(1, true).len()], work.engines(2, true));
            assert_eq!(work.runs(0..REPETITIONS, true), work.runs(0..REPETITIONS, false) + 1);
            assert!(work.ours.contains(&Engine::Fastmap) && work.ours.iter().all(|engine| engine.is_fastmap()));
        }
        // Half a second each and more, if starting and warming up take as long as they do on an idle disk.
        let runs: usize = works.iter().map(|work| work.runs(0..REPETITIONS, true)).sum();
        let pace = Pace { start: Instant::now(), runs_left: runs as u32, overhead: 0.3 };
        assert!(pace.seconds() >= 0.4, "{} seconds for each of {runs} runs", pace.seconds());
    }

    #[test]
    fn the_pace_keeps_to_two_minutes() {
        let mut pace = Pace { start: Instant::now(), runs_left: 60, overhead: 0.3 };
        assert!((0.8..0.9).contains(&pace.seconds()), "two seconds a run, less overhead, halved: {}", pace.seconds());
        for _ in 0..30 {
            pace.ran(3.0, 0.5);
        }
        assert!(
            (0.95..1.05).contains(&pace.seconds()),
            "half the runs left in the same time, two seconds of overhead each"
        );
        pace.start -= WHOLE;
        assert_eq!(pace.seconds(), SECONDS.0, "late, but measured all the same");
    }
}
