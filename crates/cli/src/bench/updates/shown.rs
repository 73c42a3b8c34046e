//! What updates show: what stores that do not wait are worth, beside the AR-MMAP paper.

use fastmap_workloads::updates::{Engine, Work};

use super::Summary;
use crate::bench::figures::{bars, latencies, thousands};
use crate::bench::table::threads;
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread};

/// Share of the time that the paper saves with the slower of its devices, at the fewest and at the most threads.
const SAVED: [(u32, f64); 2] = [(1, 0.305), (16, 0.073)];

/// Fills in how it was checked, the headlines and the figures.
pub fn show(report: &mut Report<Summary>, repeat: u32) {
    report.verified = "Reads checked every byte of their record; after the flush the whole file was read back from the device and every \
        byte compared with what it held before and what was stored since."
        .to_owned();
    report.notes = vec![
        "Ratios are of the time until the operations are done, as in the AR-MMAP paper; the reads that were put off and the flush come \
         after it and are in the plots."
            .to_owned(),
        "A program under the AR protocol (fastmap-ar) is written for it; fastmap-stores needs nothing of the program.".to_owned(),
    ];
    let groups = || report.results.chunk_by(|a, b| (a.work, a.threads) == (b.work, b.threads));
    let fewest = report.results.iter().map(|s| s.threads).min().unwrap_or(1);
    // Of the paper's own load every number of threads, of the others one.
    let told = groups().filter(|group| group[0].work == Work::Record || group[0].threads == fewest);
    report.headlines = told.flat_map(headlines).collect();
    let of_work: Vec<&[Summary]> = report.results.chunk_by(|a, b| a.work == b.work).collect();
    report.figures = of_work.into_iter().flat_map(|of_work| figures(of_work, repeat)).collect();
}

/// What is done, in words.
fn words(work: Work) -> &'static str {
    match work {
        Work::Store8 => "stores of 8 bytes to absent pages",
        Work::Line => "stores of a line to absent pages",
        Work::Record => "reads and updates of records, half and half",
    }
}

/// The engines whose stores do not wait, each to the best kernel mmap.
fn headlines(group: &[Summary]) -> Vec<Headline> {
    let kernel = group.iter().filter(|s| s.engine.is_mmap());
    let Some(best) = kernel.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s)) else { return Vec::new() };
    let headline = |s: &Summary| {
        let ratio = Spread::of_ratios(&s.runs, &best.runs);
        let paper = (s.engine == Engine::FastmapAr && s.work == Work::Record).then(|| paper(s.threads)).flatten();
        let lower = ratio.median < paper.as_ref().map_or(1.0, |paper| paper.ratio);
        let why = lower.then(|| why(s, group)).flatten();
        Headline {
            what: format!("{}, {}: {} to {}", words(s.work), threads(s.threads), s.engine, best.engine),
            ratio,
            paper,
            why,
        }
    };
    let does_not_wait = |s: &&Summary| match s.work {
        Work::Store8 => s.engine == Engine::FastmapStores,
        Work::Line | Work::Record => s.engine == Engine::FastmapAr,
    };
    group.iter().filter(does_not_wait).map(headline).collect()
}

fn paper(threads: u32) -> Option<Paper> {
    let (_, saved) = SAVED.into_iter().find(|(of, _)| *of == threads)?;
    Some(Paper {
        ratio: 1.0 / (1.0 - saved),
        source: "AR-MMAP (poster, Fujitsu Laboratories), figure 3".to_owned(),
        setting: format!(
            "{:.1} % less time: YCSB, half reads and half updates, on a memcached made for it, page cache a quarter of the data, Xeon \
             E5-2697 v4 and Intel P3700; taken to be at {}, where it says the benefit is {}",
            saved * 100.0,
            self::threads(threads),
            if threads == 1 { "greatest" } else { "smallest" }
        ),
    })
}

/// What is known of the reason from the run itself: what waiting stores do through the same engine.
fn why(ours: &Summary, group: &[Summary]) -> Option<String> {
    let waiting = group.iter().find(|s| s.engine == Engine::Fastmap)?;
    let saved = (1.0 - waiting.ops_per_s / ours.ops_per_s) * 100.0;
    Some(match saved > 0.0 {
        true => format!(
            "Stores that do not wait save {saved:.1} % of the time that the same engine takes with stores that do; half of a mixed load is \
             reads, which wait for the device as before, at a median of {:.0} us an operation here.",
            waiting.latency_us.p50
        ),
        false if ours.threads > 1 => {
            "Stores that do not wait gained nothing over the same engine with stores that do: with several threads, as \
            the paper finds too, there is less to gain, for one works while others wait."
                .to_owned()
        }
        false => "Stores that do not wait gained nothing over the same engine with stores that do.".to_owned(),
    })
}

fn figures(of_work: &[Summary], repeat: u32) -> Vec<Figure> {
    let work = of_work[0].work;
    let fewest = of_work[0].threads;
    let first: Vec<&Summary> = of_work.iter().filter(|s| s.threads == fewest).collect();
    let paper = (work == Work::Record).then(|| {
        "AR-MMAP (poster), figure 3: 30.5 to 7.3 % less time than kernel mmap at 1 to 16 threads, which is 1.44 to 1.08 times the rate."
            .to_owned()
    });
    let caption = format!("Medians of {repeat} repetitions, engines in turn.");
    let y = Axis::of("thousands of operations a second");
    let title = format!("Throughput: {}", words(work));
    let rates = if first.len() == of_work.len() {
        type Runs = fn(&Summary) -> &[f64];
        let series = |(name, runs): (&str, Runs)| Series {
            name: name.to_owned(),
            points: first.iter().map(|s| Point::spread(s.engine.name(), thousands(runs(s)))).collect(),
        };
        let both: [(&str, Runs); 2] = [("operations alone", |s| &s.runs), ("with the flush", |s| &s.flushed_runs)];
        bars(format!("{title}, {}", threads(fewest)), &caption, "engine", y, both.map(series).to_vec())
    } else {
        let points = |engine: Engine| {
            let of_engine = of_work.iter().filter(|s| s.engine == engine);
            of_engine.map(|s| Point::spread(f64::from(s.threads), thousands(&s.runs))).collect()
        };
        let series = first.iter().map(|s| Series { name: s.engine.to_string(), points: points(s.engine) }).collect();
        Figure { title, caption: caption.clone(), paper: None, kind: Kind::Lines, x: Axis::log("threads"), y, series }
    };
    let latency = first.iter().map(|s| (s.engine.name(), s.latency_us));
    let title = format!("Latency: {}, {}", words(work), threads(fewest));
    vec![Figure { paper, ..rates }, latencies(title, &caption, "engine", latency)]
}
