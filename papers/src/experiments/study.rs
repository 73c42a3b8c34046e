//! `fastmap bench study`: one pass over a file, or over many small ones, again and again; how long, how steady, and in which
//! order the device is asked.

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::{count, once_each, one_of};
use crate::driver::{Ctx, own_directory};
use crate::experiment::columns::peak;
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Labels, Launch, MMAP, Of, Over, Paper, Part, Plan, Plot, Row, Stage, Stat,
    TEMPORARY, Trial, Turn, ratios,
};
use crate::requests::{Request, Tracer};
use crate::results::{Axis, Figure, Headline, Kind, Point, Report, Series};
use crate::show::{Shown, line};
use crate::substrates::study::{self, ENGINES, Order, Work, does};
use crate::substrates::{self, Engine, Meter, PAGE, capacity_for, least_memory, prepare};
use crate::target::{Target, length_for, make_cold};

/// How many times as slow as the fastest an engine is whose passes would take most of the time; it makes one of so many passes.
const SLOW: u32 = 10;

/// Repetitions in a group over which a standard deviation is taken, where there are at least two such groups.
const GROUP: usize = 20;

/// Points of a trace in a plot, at most: more cannot be told apart.
const POINTS: usize = 700;

/// The paper, as it is cited, and where it measured.
const STUDY: &str = "Najafi, Kohler, VanDeBogart, Linux Memory Mapped System Call Performance";
const SETTING: &str = "pread and mmap of Linux in a file of 256 MB, 128 MB of memory, a hard disk";

/// Measure how long one pass over a file takes, a hundred times over: pread, mmap and FastMap, and how steady each is
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure how long one pass over a file takes, a hundred times over.

After the paper \"Linux Memory Mapped System Call Performance\" (Najafi, Kohler, VanDeBogart): a file twice as large as memory is \
read forward, backward and at random, and many small files are; each pass is timed from opening the first file to having let go of \
the last. The paper's finding is that kernel mmap was not only slower than pread but unsteady, so what is shown is average, \
least, greatest and standard deviation.

Every pass is a fresh process in a memory cgroup of its own, limited to --memory; engines take turns within each repetition; \
what is read is dropped from the page cache before. Every byte read is checked. An engine that \
takes ten times as long as the fastest at a work makes a tenth of the repetitions there. In the end one more pass of each engine over the \
large file is made with the requests recorded that its device gets (the paper's block traces), where tracefs allows that: as \
root, mostly.")]
#[command(after_help = "\
Works:
  forward, backward   the whole file, from its first page to its last, from its last to its first
  random              --touches pages of the file, drawn at random
  small-forward, small-backward, small-random
                      files of 16 to 64 KiB, --small together, in the order of their names and each forward; in the opposite
                      order and each backward; shuffled, with the pages of each shuffled

Engines:
  pread          128 KiB a call forward and backward, a page a call at random, through the page cache
  mmap           kernel mmap without advice
  mmap-advised   kernel mmap with MADV_SEQUENTIAL (forward) and MADV_RANDOM (random); left out elsewhere, where every advice makes it
                 slower or changes nothing
  fastmap        this project, without advice
  fastmap-advised
                 the same with Advice::Random (random), Advice::WillNeed (small files); left out forward and backward, which it
                 sees by itself

Examples:
  fastmap bench study
  fastmap bench study --works forward,backward --dir /mnt/disk --json study.json
  fastmap bench study --size 1GiB --memory 512MiB --touches 10000 --repeat 10")]
pub struct Args {
    /// What to read, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "forward,backward,random,small-forward,small-backward,small-random"
    )]
    pub works: Vec<Work>,
    /// Engines to compare, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "pread,mmap,mmap-advised,fastmap,fastmap-advised",
        value_parser = one_of(ENGINES)
    )]
    pub engines: Vec<Engine>,
    /// Size of the large file, a multiple of 4096
    #[arg(long, default_value = "256MiB")]
    pub size: Size,
    /// Size of all small files together, a multiple of 4096
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub small: Size,
    /// Pages that a pass at random touches
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = touches)]
    pub touches: u32,
}

/// A device's requests in a pass that was traced.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Requests {
    /// How many.
    count: u64,
    /// Bytes of one, on average.
    average_bytes: f64,
    /// Bytes of all, to the bytes that the pass wanted.
    amplification: f64,
    /// The share of them that lie next to the one before.
    adjacent: f64,
    /// The longest time between one and the next.
    longest_gap_ms: f64,
}

impl Requests {
    fn of(requests: &[Request], wanted: u64) -> Requests {
        let bytes: u64 = requests.iter().map(|r| r.bytes).sum();
        let pairs = requests.windows(2);
        let next = |a: &Request, b: &Request| a.offset + a.bytes == b.offset || b.offset + b.bytes == a.offset;
        let between = requests.len().saturating_sub(1).max(1) as f64;
        Requests {
            count: requests.len() as u64,
            average_bytes: bytes as f64 / requests.len().max(1) as f64,
            amplification: bytes as f64 / wanted as f64,
            adjacent: pairs.clone().filter(|pair| next(&pair[0], &pair[1])).count() as f64 / between,
            longest_gap_ms: pairs.map(|pair| pair[1].ms - pair[0].ms).fold(0.0, f64::max),
        }
    }
}

/// What a pass gave beside its time.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Of a pass that was traced; its time is not counted.
    requests: Option<Requests>,
}

/// Seconds of a pass that is counted.
fn seconds(trial: &Trial<Outcome>) -> Option<f64> {
    trial.outcome.requests.is_none().then_some(trial.reading.seconds)
}

/// The experiment.
pub struct Study;

/// A figure of what the device was asked for.
macro_rules! of_requests {
    ($field:ident, $title:literal, $unit:expr) => {
        Column::new(concat!("requests.", stringify!($field)), $title, $title, |t: &Trial<Outcome>| {
            Some(t.outcome.requests?.$field as f64)
        })
        .per($unit)
    };
}

impl Experiment for Study {
    const NAME: &'static str = "study";
    type Args = Args;
    type Case = Order;
    type Outcome = Outcome;
    const FLAGS: Flags =
        Flags { repeat: "100", seconds: None, memory: Some("half of --size"), dir: Some(TEMPORARY) };
    const COLUMNS: &'static [Column<Outcome>] = &[
        Column::new("average_s", "average ms", "milliseconds", seconds).per(1e-3).less().stat(Stat::Mean),
        Column::new("minimum_s", "min", "milliseconds", seconds).per(1e-3).less().stat(Stat::Least),
        Column::new("maximum_s", "max", "milliseconds", seconds).per(1e-3).less().stat(Stat::Most),
        Column::new("deviation_s", "deviation", "milliseconds", seconds).per(1e-3).less().stat(Stat::Deviation),
        Column::new("relative_deviation", "% of average", "standard deviation, per cent of the average", seconds)
            .less()
            .stat(Stat::RelativeDeviation),
        Column::from("times_best_mmap", "x best mmap", "times as fast as the best kernel mmap", Of::TimesMmap("average_s")),
        Column::new("cpu_s", "CPU ms", "milliseconds of processor time", |t: &Trial<Outcome>| {
            seconds(t).map(|_| t.reading.user_s + t.reading.system_s)
        })
        .per(1e-3)
        .less(),
        Column::new("pages", "pages", "pages of a pass", |t: &Trial<Outcome>| Some(t.reading.ops as f64)),
        peak(),
        of_requests!(count, "requests", 1.0),
        of_requests!(average_bytes, "KiB each", 1024.0),
        of_requests!(amplification, "x what was wanted", 1.0),
        of_requests!(adjacent, "% adjacent", 0.01),
        of_requests!(longest_gap_ms, "longest gap ms", 1.0),
    ];
    const PLOTS: &'static [Plot<Outcome>] = &[
        Plot::new("Time of one pass", &["average_s"], Kind::Bars, Over::Groups).log().after(
            "Najafi, Kohler, VanDeBogart: forward pread 4.698 s, mmap 9.504 s (5.488 to 19.121); backward pread 19.457 s, mmap 17.513 s \
             (11.758 to 25.156)",
        ),
        Plot::new("How unsteady a pass is", &["relative_deviation"], Kind::Bars, Over::Groups)
            .after("Najafi, Kohler, VanDeBogart: forward pread 0.3 %, mmap 47 %; backward pread 0.3 %, mmap 20 %"),
    ];
    const VERIFIED: &'static str =
        "Every byte of every page read was compared with what belongs there, by every engine in every pass.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Study>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        let small_pages = args.small.0 / PAGE as u64;
        if small_pages == 0 || !args.small.0.is_multiple_of(PAGE as u64) {
            let up = Size(args.small.0.max(1).next_multiple_of(PAGE as u64));
            return Err(Failure::usage("--small", format!("{} is not a multiple of 4096", args.small), format!("give {up}")));
        }
        let (works, engines) = (once_each(&args.works), once_each(&args.engines));
        let most = (bytes / PAGE as u64).max(small_pages);
        let limit = ctx.limit((bytes / 2).max(least_memory(most, false)), |limit| {
            match engines.iter().any(|engine| engine.is_fastmap()) {
                true => Ok(capacity_for(limit, most, false).map(drop)?),
                false => Ok(()),
            }
        })?;
        let dir = ctx.dir_for(bytes + args.small.0)?;
        let big = Target::temporary(&dir, args.size, prepare::stamp_page)?;
        let small = own_directory(&dir, args.small.0)?;
        let small_label = format!("small files in {}", dir.display());
        if works.iter().any(|work| work.is_small()) {
            study::make_small(small.path(), &small_label, small_pages, || !interrupt::requested())
                .map_err(|e| interrupt::check().err().unwrap_or_else(|| e.into()))?;
        }
        ctx.notes.push(format!(
            "A pass at random touches {} pages, not all: the paper does not say how many its own did. The small files are {} together, 16 to \
             64 KiB each; the paper gives no numbers for them. An engine that takes ten times as long as the fastest at a work made a tenth \
             of the passes there; a ratio is of the repetitions in which both made one. Times include opening, mapping and letting go; \
             FastMap's include making its cache. The process's start is in none.",
            args.touches, args.small
        ));
        let group = |work: Work, traced: bool| {
            let arm = |&engine: &Engine| {
                let (path, label, pages) = match work.is_small() {
                    true => (small.path().to_owned(), small_label.clone(), small_pages),
                    false => (big.path.clone(), big.label.clone(), big.pages),
                };
                let (touches, memory) = (u64::from(args.touches), limit.bytes());
                Arm::of(engine, Order { engine, work, path, label, pages, touches, seed: 0, memory })
            };
            let labels: Labels = vec![("work", json!(work)), ("traced", json!(traced))];
            let arms = engines.iter().filter(|engine| does(**engine, work)).map(arm).collect();
            let what = if traced { format!("{work}, one pass traced") } else { work.to_string() };
            Group { repeat: traced.then_some(1), ..Group::new(what, labels, arms) }
        };
        let mut groups: Vec<Group<Order>> = works.iter().map(|&work| group(work, false)).collect();
        let tracer = match Tracer::of(&big.file) {
            Ok(tracer) => Some(tracer),
            Err(why) => {
                ctx.notes.push(format!(
                    "The order of requests is not shown: {why}. Kernel mmap's can be seen in no other way; run it as root, with tracefs \
                     mounted, and the files on a plain disk or partition."
                ));
                None
            }
        };
        let untraced = groups.len();
        if tracer.is_some() {
            groups.extend(works.iter().filter(|work| !work.is_small()).map(|&work| group(work, true)));
        }
        Ok(Plan {
            about: "every byte checked".to_owned(),
            place: big.place.clone(),
            file: big.label.clone(),
            bytes,
            limit,
            groups,
            until_steady: None,
            stage: Box::new(Passes { big, small, small_label, small_pages, tracer, untraced, traces: Vec::new() }),
        })
    }

    fn run(case: &Order, meter: &Meter) -> substrates::Result<Vec<Part<Outcome>>> {
        Ok(Part::whole(study::run(case, meter)?, Outcome::default()))
    }

    fn claims() -> Vec<Claim<Outcome>> {
        let time = || Claim::new("average_s").what("one pass");
        vec![
            time().of(|row| row.text("work") == "forward"),
            time().of(|row| row.text("work") == "backward"),
            time().between(&[Engine::Fastmap], &[Engine::Pread]).of(|row| row.text("work") == "forward"),
            Claim { best: true, ..time().between(&[Engine::FastmapAdvised, Engine::Fastmap], MMAP) }
                .of(|row| row.text("work") == "small-forward"),
        ]
    }
}

/// The paper's averages and standard deviations in seconds: of pread, of mmap.
fn published(work: &str) -> Option<[(f64, f64); 2]> {
    match work {
        "forward" => Some([(4.698, 0.0141), (9.504, 4.505)]),
        "backward" => Some([(19.457, 0.0572), (17.513, 3.451)]),
        _ => None,
    }
}

/// Relative standard deviations, group of repetitions by group.
fn deviations(row: &Row<Outcome>) -> Vec<(u32, f64)> {
    let seconds: Vec<f64> = row.trials.iter().filter_map(seconds).collect();
    let groups: Vec<&[f64]> = match seconds.len() {
        few if few < 2 * GROUP => vec![&seconds],
        _ => seconds.chunks_exact(GROUP).collect(),
    };
    (1..).zip(groups).filter(|(_, group)| group.len() > 1).map(|(n, group)| (n, Stat::RelativeDeviation.of(group))).collect()
}

/// The files, and the record of what the device is asked for.
struct Passes {
    big: Target,
    small: TempDir,
    small_label: String,
    small_pages: u64,
    tracer: Option<Tracer>,
    /// Groups from here on are traced.
    untraced: usize,
    traces: Vec<(Work, Engine, Vec<Request>)>,
}

fn failed(e: std::io::Error) -> Failure {
    Failure::new("tracefs", e, "look whether something else on this machine removes traces")
}

impl Stage<Study> for Passes {
    fn before(&mut self, turn: &Turn<'_, Study>, case: &mut Order) -> Result<Launch, Failure> {
        let first = |arm: usize| turn.group().find(|row| row.arm == arm).and_then(|row| row.trials.first()).map(|t| t.reading.seconds);
        let fastest = turn.group().filter_map(|row| first(row.arm)).fold(f64::INFINITY, f64::min);
        let slow = turn.repetition > 1 && first(turn.at.1).is_some_and(|own| own > fastest * f64::from(SLOW));
        if slow && turn.repetition % SLOW != 1 {
            return Ok(Launch { skip: true, ..Launch::default() });
        }
        match case.work.is_small() {
            true => drop(study::make_cold(self.small.path(), &self.small_label, self.small_pages)?),
            false => make_cold(&self.big.file, &self.big.label, self.big.bytes())?,
        }
        let traced = turn.at.0 >= self.untraced;
        case.seed = if traced { 0 } else { turn.repetition.into() };
        if let Some(tracer) = self.tracer.as_ref().filter(|_| traced) {
            tracer.clear().map_err(failed)?;
        }
        Ok(Launch::default())
    }

    fn after(&mut self, turn: &Turn<'_, Study>, case: &Order, parts: &mut Vec<Part<Outcome>>) -> Result<(), Failure> {
        if let Some(tracer) = self.tracer.as_ref().filter(|_| turn.at.0 >= self.untraced) {
            let requests = tracer.requests().map_err(failed)?;
            let of = |part: &Part<Outcome>| Requests::of(&requests, part.reading.ops * PAGE as u64);
            parts.iter_mut().for_each(|part| part.outcome.requests = Some(of(part)));
            self.traces.push((case.work, turn.engine, requests));
        }
        Ok(())
    }

    fn tell(&mut self, rows: &[Row<Outcome>], report: &mut Report<Value>) {
        let of = |work: &str, engine| {
            let counted = rows.iter().filter(|row| row.text("work") == work && row.group < self.untraced);
            counted.into_iter().find(|row| row.engine == engine)
        };
        let short = report.memory_limit_bytes.is_some_and(|limit| limit < report.file_bytes);
        let steady = |ours: &Row<Outcome>, theirs: &Row<Outcome>| {
            let ratio = ratios(&deviations(ours), &deviations(theirs), true)?;
            let what = format!("{} passes {}: times as steady {} is as {}", ours.trials.len(), ours.what, ours.name, theirs.name);
            Some(Headline { what, ratio, paper: None })
        };
        let fastmap = of("forward", Engine::Fastmap).zip(of("forward", Engine::Mmap));
        report.headlines.extend(fastmap.and_then(|(ours, theirs)| steady(ours, theirs)));
        // What the paper compares, the kernel with itself: sentences, since no headlines of FastMap's.
        let kernel: Vec<Claim<Outcome>> = vec![
            Claim::new("average_s")
                .between(&[Engine::Pread], &[Engine::Mmap])
                .what("the kernel alone")
                .of(|row| published(row.text("work")).is_some())
                .paper(|row| {
                    let [pread, mmap] = published(row.text("work"))?;
                    Paper::says(mmap.0 / pread.0, STUDY, SETTING)
                }),
        ];
        let mut told = Shown::<Study>::new(rows).headlines(&kernel);
        for work in ["forward", "backward"] {
            let Some((pread, mmap)) = of(work, Engine::Pread).zip(of(work, Engine::Mmap)) else { continue };
            let paper = published(work).map(|[pread, mmap]| crate::results::Paper {
                ratio: (mmap.1 / mmap.0) / (pread.1 / pread.0),
                source: STUDY.to_owned(),
                setting: SETTING.to_owned(),
            });
            told.extend(steady(pread, mmap).map(|headline| Headline { paper, ..headline }));
        }
        if !short {
            told.iter_mut().for_each(|headline| headline.paper = None);
        }
        report.notes.extend(told.iter().map(|headline| line(headline).trim_end().to_owned()));
        if self.tracer.is_some() && !self.traces.is_empty() && self.traces.iter().all(|(_, _, requests)| requests.is_empty()) {
            report.notes.push("The order of requests is not shown: they go to a device below the one that holds the file.".to_owned());
        }
        for work in ["forward", "backward"] {
            let of_work = rows.iter().filter(|row| row.text("work") == work && row.group < self.untraced && row.trials.len() > 1);
            let passes = |row: &Row<Outcome>| {
                let points = row.trials.iter().map(|t| Point::bare(f64::from(t.repetition), t.reading.seconds * 1e3));
                Series { name: row.name.clone(), points: points.collect() }
            };
            let caption = "Each pass by itself, in the order they were made; less is better.";
            let paper = "graphs of 100 runs, in which pread is a straight line and mmap's runs differ threefold";
            let axes = (Axis::of("repetition"), Axis::of("milliseconds"));
            report.figures.extend(figure(format!("Consecutive passes, {work}"), caption, paper, Kind::Lines, axes, of_work.map(passes).collect()));
        }
        for work in [Work::Forward, Work::Backward, Work::Random] {
            let of_work = self.traces.iter().filter(|(of, _, requests)| *of == work && !requests.is_empty());
            let trace = |(_, engine, requests): &(Work, Engine, Vec<Request>)| {
                let step = requests.len().div_ceil(POINTS);
                let mib = |offset: u64| offset as f64 / f64::from(1 << 20);
                let points = requests.iter().step_by(step).map(|r| Point::bare(r.ms, mib(r.offset)));
                Series { name: engine.to_string(), points: points.collect() }
            };
            let caption = "Each read that the kernel hands to the device in one pass (block:block_rq_issue), by its place in the file; of many \
                           not every one.";
            let paper = "block traces, in which pread is one solid line, and mmap a line with gaps of a quarter and half a second and a long tail";
            let axes = (Axis::of("milliseconds since the first request"), Axis::of("MiB from the file's beginning"));
            report.figures.extend(figure(format!("What the device is asked for, {work}"), caption, paper, Kind::Scatter, axes, of_work.map(trace).collect()));
        }
    }
}

fn figure(title: String, caption: &str, paper: &str, kind: Kind, (x, y): (Axis, Axis), series: Vec<Series>) -> Option<Figure> {
    let paper = Some(format!("{STUDY}: {paper}"));
    (!series.is_empty()).then(|| Figure { title, caption: caption.to_owned(), paper, kind, x, y, series })
}

fn touches(text: &str) -> Result<u32, String> {
    count(text, "pages to touch", 100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_up() {
        let request = |ms, offset, bytes| Request { ms, offset, bytes };
        let requests = [request(0.0, 0, 100), request(1.0, 100, 100), request(4.0, 700, 50), request(5.0, 650, 50)];
        let of = Requests::of(&requests, 600);
        assert_eq!((of.count, of.average_bytes, of.amplification), (4, 75.0, 0.5));
        assert!((of.adjacent - 2.0 / 3.0).abs() < 1e-12 && of.longest_gap_ms == 3.0);
        assert_eq!(Requests::of(&[], 600).count, 0);
    }
}
