//! What an ablation comes to: headlines and figures.

use fastmap_workloads::ablation::{Off, Work};

use super::{Arm, Row, name, of_load};
use crate::args::AblationArgs;
use crate::machine::FileSystem;
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread};

/// Worth less than this is called nothing: repetitions differ by as much.
const LEVEL: f64 = 1.03;

/// Share of the processors' time below which something else sets the pace.
const BUSY: f64 = 0.75;

/// Processors of the paper's server.
const PAPERS_CORES: usize = 32;

/// Mechanisms of the random loads, in the order of the figures.
const OF_RANDOM: [Off; 8] =
    [Off::PerCore, Off::Batch64, Off::Batch1, Off::Protection, Off::Stripes, Off::Merging, Off::Tracking, Off::Habits];

/// And of the others.
const OF_OTHERS: [Off; 4] = [Off::Readahead, Off::Merging, Off::Protection, Off::Tracking];

/// Headlines, figures and notes.
pub fn tell(args: &AblationArgs, report: &mut Report<Row>) {
    report.verified =
        "Every operation checked its page's stamp; after each run of a load that writes the whole file was read \
                       back, every byte checked."
            .to_owned();
    report.notes = notes(report);
    report.headlines = headlines(report);
    report.figures = figures(args, report);
}

fn notes(report: &Report<Row>) -> Vec<String> {
    let mut notes = vec![
        "Kernel mmap is there for scale, with the one advice that suits each load; `fastmap bench micro` compares with all of \
         them."
            .to_owned(),
        "The paper gives no numbers for its figure 6, a plot; what it says in words of TLB invalidations, and of the lock on all \
         VMAs, stands beside ours. Our one shard stands for single lists and queues, our page states without the bitmap for one \
         tree with tags."
            .to_owned(),
        "Without merging each page is a write of its own for io_uring; the kernel's block layer may still merge neighbours that \
         are handed over together."
            .to_owned(),
    ];
    if FileSystem::is_memory_kind(&report.machine.file_system) {
        notes.push(
            "The file is in memory: kernel mmap has the file itself mapped, evicts nothing, and is no comparison. Fill is left \
             out: a fresh file's own pages would count against the limit."
                .to_owned(),
        );
    }
    let random = || report.results.iter().filter(|row| row.arm() == Arm::Everything && row.load.is_for_threads());
    if let Some(row) = random().find(|row| row.drops_per_page.is_none()) {
        notes.push(format!(
            "{}: memory did not fill up in the time, so nothing was evicted: give more --seconds, or less --size.",
            of_load(row)
        ));
    }
    let batch =
        random().filter(|row| row.load == Work::RandomRead).find_map(|row| row.drops_per_page).map(|drops| 1.0 / drops);
    if let Some(pages) = batch.filter(|pages| *pages < 500.0) {
        notes.push(format!(
            "The cache is small: a full batch is {pages:.0} pages, not the paper's 512 (a 64th of the cache at most)."
        ));
    }
    notes
}

/// What the paper boasts of, and of the rest what is nearest to it.
fn headlines(report: &Report<Row>) -> Vec<Headline> {
    let paper = |ratio, source: &str, setting: &str| {
        Some(Paper { ratio, source: format!("FastMap, USENIX ATC '20, {source}"), setting: setting.to_owned() })
    };
    let told = [
        (
            Off::Batch1,
            Work::RandomRead,
            "pages evicted in batches with one TLB flush, to each alone",
            paper(1.24, "section on false TLB invalidations", "TPC-C over Silo on a server, with batches to without"),
        ),
        (
            Off::Stripes,
            Work::RandomRead,
            "the file in several VMAs with locks of their own, to one",
            paper(
                2.51,
                "figure 4",
                "FastMap with speculative page faults, which take no lock on all VMAs, to without; 80 hyper-threads, null_blk",
            ),
        ),
        (Off::PerCore, Work::RandomRead, "credits and queues of each core's own, to one of each", None),
        (Off::Tracking, Work::Flush, "dirty pages kept apart, to looking at all pages' states", None),
    ];
    let mut headlines = Vec::new();
    for (off, load, what, paper) in told {
        // With the last number of threads.
        let rows = || report.results.iter().filter(|row| row.load == load);
        let Some(row) = rows().rfind(|row| row.off == Some(off)) else { continue };
        let same = |on: &&Row| on.arm() == Arm::Everything && on.summary.threads == row.summary.threads;
        let (Some(ratio), Some(cpu), Some(on)) = (row.worth, row.worth_cpu, rows().find(same)) else { continue };
        if load.is_for_threads() && on.drops_per_page.is_none() {
            // All of it is about a cache that is full.
            continue;
        }
        let (cpus, done) = (report.machine.cpus, &on.summary);
        // No more of them can be busy with the load.
        let used = cpus.min(done.threads as usize).max(1);
        let busy = done.cpu_us_per_op * done.ops_per_s / 1e6 / used as f64;
        headlines.push(Headline {
            what: format!("{}: {what}", of_load(row)),
            ratio,
            why: why(ratio, cpu, paper.as_ref().map(|paper| paper.ratio), (busy, used), cpus),
            paper,
        });
    }
    headlines
}

/// Why a mechanism is worth less than in the paper, or nothing; `busy`: the share of the time of so many processors, as there are
/// threads for at most, that the engine and its program take.
fn why(ratio: Spread, cpu: Spread, paper: Option<f64>, (busy, used): (f64, usize), cpus: usize) -> Option<String> {
    if ratio.median >= paper.unwrap_or(LEVEL) {
        return None;
    }
    let (verdict, either) = match ratio {
        Spread { high, .. } if high < 1.0 / LEVEL && cpu.high < 1.0 => ("Costs more than it brings here: ", ""),
        Spread { median, .. } if median < LEVEL => ("Worth nothing in throughput here: ", " either"),
        _ => ("", ""),
    };
    let cause = if busy < BUSY {
        let waits = (1.0 - busy) * 100.0;
        let plural = if used == 1 { "" } else { "s" };
        format!("{waits:.0} % of the time of {used} processor{plural} goes by in waiting, or goes to others")
    } else if cpus >= PAPERS_CORES {
        format!("why was not measured on these {cpus} processors")
    } else if cpus > 2 {
        format!(
            "{cpus} processors want one lock or cache line less often than the paper's {PAPERS_CORES}, and TLB flushes interrupt fewer"
        )
    } else {
        format!(
            "{cpus} processors seldom want one lock or cache line at once, and TLB flushes interrupt one other at most"
        )
    };
    let saved = if cpu.low > 1.0 && cpu.median >= LEVEL {
        format!("it saves {:.0} % of an operation's processor time", (1.0 - 1.0 / cpu.median) * 100.0)
    } else {
        format!("no processor time is seen to be saved{either}")
    };
    let sentence = format!("{verdict}{cause}; {saved}.");
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect())
}

fn figures(args: &AblationArgs, report: &Report<Row>) -> Vec<Figure> {
    let rows = &report.results;
    let taken = format!(
        "Medians of {} repetitions of {} s, rows in turn; bars show least and greatest.",
        args.repeat, args.seconds
    );
    let bars = |title: &str, caption: &str, x: &str, y: &str, series: Vec<Series>| Figure {
        title: title.to_owned(),
        caption: format!("{caption} {taken}"),
        paper: None,
        kind: Kind::Bars,
        x: Axis::of(x),
        y: Axis::of(y),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
    };
    // Each mechanism a series; a point is a load that was measured without it.
    let each = |of: &[Off], threads: bool, worth: &dyn Fn(&Row) -> Option<Spread>| {
        let series = of.iter().map(|off| {
            let without = rows.iter().filter(|row| row.off == Some(*off) && row.load.is_for_threads() == threads);
            let point = |row: &Row| Some(Point::spread(of_load(row).as_str(), worth(row)?));
            Series { name: name(Arm::Without(*off)).to_owned(), points: without.filter_map(point).collect() }
        });
        series.collect::<Vec<_>>()
    };
    let rate = |row: &Row| {
        let same =
            |on: &&Row| on.arm() == Arm::Everything && on.load == row.load && on.summary.threads == row.summary.threads;
        rows.iter().find(same).map(|on| Spread::of_ratios(&row.summary.runs, &on.summary.runs))
    };
    let relative = "rate, everything on = 1";
    let paper = "FastMap, USENIX ATC '20, figure 6: what its page tree, clean queues, free lists and dirty queues of each core's own \
                 bring, a plot without numbers";
    let below = "Rate with one mechanism left out: the further below 1, the more it is worth.";
    // None where it is no comparison.
    let in_memory = FileSystem::is_memory_kind(&report.machine.file_system);
    let kernel = rows.iter().filter(|row| row.arm() == Arm::Kernel && !in_memory);
    let to_kernel = kernel.filter_map(|row| Some(Point::spread(of_load(row).as_str(), row.worth?)));
    let to_kernel = vec![Series { name: "FastMap, everything on".to_owned(), points: to_kernel.collect() }];
    let figures = [
        Figure {
            paper: Some(paper.to_owned()),
            ..bars("One mechanism off: random loads", below, "load", relative, each(&OF_RANDOM, true, &rate))
        },
        bars(
            "One mechanism off: processor time of random loads",
            "Processor time an operation with one mechanism left out: the further above 1, the more it saves.",
            "load",
            "processor time an operation, everything on = 1",
            each(&OF_RANDOM, true, &|row| row.worth_cpu),
        ),
        bars("One mechanism off: other loads", below, "load", relative, each(&OF_OTHERS, false, &rate)),
        Figure {
            paper: Some(
                "FastMap, USENIX ATC '20, section on false TLB invalidations: without batches flush_tlb_mm_range() takes 20.3 % of \
                 system time, with them 0.1 %"
                    .to_owned(),
            ),
            ..bars(
                "TLB flushes of eviction, by batch",
                "A drop is one process_madvise(2), which flushes the TLBs of all processors once; interrupts are the kernel's count \
                 of TLB shootdowns, whoever caused them.",
                "pages a batch",
                "for each page evicted",
                of_batches(rows),
            )
        },
        bars(
            "Everything on, beside kernel mmap",
            "Rate, divided by that of kernel mmap with the advice that suits the load.",
            "load",
            "times kernel mmap",
            to_kernel,
        ),
    ];
    figures.into_iter().filter(|figure| !figure.series.is_empty()).collect()
}

/// Drops and interrupts a page over the size of batches, of random reads with the most threads.
fn of_batches(rows: &[Row]) -> Vec<Series> {
    let reads = || rows.iter().filter(|row| row.load == Work::RandomRead);
    let Some(threads) = reads().map(|row| row.summary.threads).max() else { return Vec::new() };
    let by_batch = |figure: fn(&Row) -> Option<f64>| {
        let batches = [(Arm::Without(Off::Batch1), "1"), (Arm::Without(Off::Batch64), "64"), (Arm::Everything, "512")];
        let point = |(arm, batch): (Arm, &str)| {
            let row = reads().find(|row| row.arm() == arm && row.summary.threads == threads)?;
            Some(Point::bare(batch, figure(row)?))
        };
        batches.into_iter().filter_map(point).collect::<Vec<_>>()
    };
    let series = |name: &str, points: Vec<Point>| Series { name: name.to_owned(), points };
    let all = [
        series("drops", by_batch(|row| row.drops_per_page)),
        series("TLB shootdown interrupts", by_batch(|row| row.shootdowns_per_page)),
    ];
    // One size is no comparison.
    all.into_iter().filter(|series| series.points.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(low: f64, median: f64, high: f64) -> Spread {
        Spread { median, low, high }
    }

    #[test]
    fn what_is_worth_less_than_in_the_paper_says_why() {
        let (level, more) = (spread(0.9, 1.01, 1.1), spread(1.2, 1.3, 1.4));
        assert_eq!(why(more, level, Some(1.24), (0.9, 2), 2), None);
        assert_eq!(why(more, level, None, (0.9, 2), 2), None);
        assert_eq!(
            why(level, spread(1.2, 1.25, 1.3), Some(1.24), (0.4, 2), 8).unwrap(),
            "Worth nothing in throughput here: 60 % of the time of 2 processors goes by in waiting, or goes to others; it saves \
             20 % of an operation's processor time."
        );
        assert_eq!(
            why(more, level, Some(2.51), (0.95, 8), 8).unwrap(),
            "8 processors want one lock or cache line less often than the paper's 32, and TLB flushes interrupt fewer; no \
             processor time is seen to be saved."
        );
        assert!(!why(more, level, Some(2.51), (0.95, 64), 64).unwrap().contains("less often"));
        // Slower, but with no more work: others had the processors.
        let (slow, dear) = (spread(0.7, 0.8, 0.9), spread(0.7, 0.8, 0.9));
        let said = why(slow, level, None, (0.8, 2), 2).unwrap();
        assert!(said.starts_with("Worth nothing in throughput here: 2 processors seldom want"), "{said}");
        let said = why(slow, dear, None, (0.8, 2), 2).unwrap();
        assert!(said.starts_with("Costs more than it brings here: 2 processors seldom want"), "{said}");
    }
}
