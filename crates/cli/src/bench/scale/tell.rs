//! What `bench scale` found: a table, headlines, figures.

use fastmap_workloads::Op;
use fastmap_workloads::faults::Room;

use super::{Behind, FAULTS, Row, processors};
use crate::args::ScaleArgs;
use crate::bench::faulting::Place;
use crate::bench::table::{figure, render, threads};
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread};
use crate::size::Size;

const PAPER: &str = "FastMap, USENIX ATC '20";

/// Rows of one place, room and operation.
fn cases(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| (a.place, a.room, a.op) == (b.place, b.room, b.op))
}

/// `random reads, out of memory`.
fn what(row: &Row) -> String {
    let op = if row.op == Op::Read { "reads" } else { "writes" };
    format!("random {op}, {}", if row.room == Room::InMemory { "in memory" } else { "out of memory" })
}

fn name(places: &[Place], behind: Behind) -> &str {
    places.iter().find(|place| place.behind == behind).map_or("", |place| &place.name)
}

/// Fills in everything but the rows.
pub fn tell(args: &ScaleArgs, places: &[Place], report: &mut Report<Row>) {
    report.verified = "Every operation checked its page's stamp (in the hole, that it is zero); after each run that stores, the whole \
                       file was read back, every byte checked."
        .to_owned();
    report.notes = notes(args, places, report);
    report.headlines = headlines(places, report);
    report.figures = figures(args, places, &report.results);
}

fn notes(args: &ScaleArgs, places: &[Place], report: &Report<Row>) -> Vec<String> {
    let mut notes = Vec::new();
    if report.memory_limit_bytes.is_none() {
        notes.push(
            "No memory cgroup limits kernel mmap, so it may keep what FastMap's cache must drop: what is called out of memory \
             favours mmap."
                .to_owned(),
        );
    }
    if args.fast_dir.is_none() {
        notes.push(
            "There was no fast device (--fast-dir), so in its place is a file that is one hole: a page fault gives zeros and no \
             device takes part, as over the paper's null_blk. Stores to a hole need blocks, so only reads are measured there."
                .to_owned(),
        );
    }
    let read_around = report.results.iter().filter(|row| row.trial && row.faults_per_op < FAULTS);
    notes.extend(read_around.map(|row| {
        let ours = report.results.iter().find(|other| {
            let case = |row: &Row| (row.place, row.room, row.op, row.threads);
            other.engine.is_fastmap() && case(other) == case(row)
        });
        let ours = ours.map_or_else(String::new, |ours| format!("; FastMap, fault by fault, did {}", figure(ours.ops_per_s / 1e3)));
        format!(
            "{} without advice, {}, {}, {}: only {:.0} % of its operations were page faults, since it reads around each for as much \
             as the device's readahead, and so loads the file as a scan would; it did {} thousand operations a second{ours}. That \
             is no rate of page faults and in no ratio here.",
            row.engine,
            what(row),
            name(places, row.place),
            threads(row.threads),
            row.faults_per_op * 100.0,
            figure(row.ops_per_s / 1e3),
        )
    }));
    notes.push(
        "Rates count operations as they end: what was stored and not yet written back when a run ends is in neither engine's rate."
            .to_owned(),
    );
    notes
}

/// The rival's row and ours at the most threads of one case.
fn pair(rows: &[Row], place: Behind, room: Room, op: Op) -> Option<(&Row, &Row)> {
    let of_case = |row: &&Row| (row.place, row.room, row.op) == (place, room, op) && !row.trial;
    let most = rows.iter().filter(of_case).map(|row| row.threads).max()?;
    let at =
        |ours: bool| rows.iter().find(|row| of_case(row) && row.threads == most && row.engine.is_fastmap() == ours);
    Some((at(false)?, at(true)?))
}

fn headlines(places: &[Place], report: &Report<Row>) -> Vec<Headline> {
    let rows = &report.results;
    let memory = if places.iter().any(|place| place.behind == Behind::Fast) { Behind::Fast } else { Behind::NoDevice };
    let setting = "32 threads on 32 hardware threads, null_blk, Linux 4.14";
    let paper = |ratio, figure: &str, setting: &str| {
        Some(Paper { ratio, source: format!("{PAPER}, {figure}"), setting: setting.to_owned() })
    };
    let rate = |place, op, paper: Option<Paper>| {
        let (theirs, ours) = pair(rows, place, Room::OutOfMemory, op)?;
        let ratio = Spread::of_ratios(&ours.runs, &theirs.runs);
        let lower = ratio.median < paper.as_ref().map_or(1.0, |paper| paper.ratio);
        let what = format!("{}, {}, {}", what(ours), threads(ours.threads), name(places, place));
        Some(Headline {
            what: format!("{what}: {} to {}", ours.engine, theirs.engine),
            ratio,
            why: lower.then(|| why(theirs, ours, &report.machine.kernel)),
            paper,
        })
    };
    let depth = || {
        let (theirs, ours) = pair(rows, Behind::Disk, Room::OutOfMemory, Op::Write)?;
        let measured =
            ours.queue_depths.len() == theirs.queue_depths.len() && theirs.queue_depths.iter().all(|&d| d > 0.0);
        if !measured || ours.queue_depths.is_empty() {
            return None;
        }
        let ratio = Spread::of_ratios(&ours.queue_depths, &theirs.queue_depths);
        let (a, b) = (figure(ours.queue_depth?), figure(theirs.queue_depth?));
        let why = format!(
            "FastMap's queue is {a} requests deep, the kernel's {b}: a faulting thread waits for its own read, whoever serves it, so that \
             {} cannot ask for more at a time; the rest is write-back.",
            threads(ours.threads)
        );
        let what =
            format!("device queue depth, {}, {}, {}", what(ours), threads(ours.threads), name(places, Behind::Disk));
        let lower = ratio.median < 39.2 / 17.5;
        let paper = paper(39.2 / 17.5, "figure 8(c)", "Kreon, Load A, 32 threads, Optane SSD: 39.2 to 17.5 requests");
        Some(Headline {
            what: format!("{what}: {} to {}", ours.engine, theirs.engine),
            ratio,
            paper,
            why: lower.then_some(why),
        })
    };
    let all = [
        rate(memory, Op::Read, paper(3.7, "figure 1", setting)),
        rate(memory, Op::Write, paper(6.6, "figure 1", setting)),
        rate(Behind::Disk, Op::Read, None),
        depth(),
    ];
    all.into_iter().flatten().collect()
}

/// Why a ratio is lower than the paper's or than 1.
fn why(theirs: &Row, ours: &Row, kernel: &str) -> String {
    let cpus = processors();
    // No more of them can be busy with the load.
    let used = cpus.min(ours.threads);
    let busy = |row: &Row| row.ops_per_s * row.cpu_us_per_op / 1e6 / f64::from(used);
    let cost = format!(
        "An operation takes {} us of processor time in the kernel (its own write-back threads not counted) and {} with FastMap, where the \
         trap comes to user space as a signal.",
        figure(theirs.cpu_us_per_op),
        figure(ours.cpu_us_per_op),
    );
    if busy(theirs).max(busy(ours)) < 0.7 {
        let depth = |row: &Row| row.queue_depth.filter(|depth| ours.place != Behind::NoDevice && *depth > 0.0);
        let at_device = depth(theirs).zip(depth(ours)).map_or_else(String::new, |(theirs, ours)| {
            format!(
                ", and the device had {} (mmap) and {} (FastMap) requests under way on average",
                figure(theirs),
                figure(ours)
            )
        });
        return format!(
            "Processors are not what limits either: with {} on {cpus}, mmap takes {:.0} % and FastMap {:.0} % of the time of {used}{at_device}. \
             {cost}",
            threads(ours.threads),
            busy(theirs) * 100.0,
            busy(ours) * 100.0,
        );
    }
    match cpus {
        // The paper's figure 1: mmap does not scale beyond 8 threads.
        ..=8 => format!(
            "On the paper's 32-core server (Linux 4.14) mmap does not scale beyond 8 threads; here are {cpus} processors, and Linux \
             {kernel}. {cost}"
        ),
        _ => format!("The paper's kernel is Linux 4.14, this is {kernel}. {cost}"),
    }
}

fn figures(args: &ScaleArgs, places: &[Place], rows: &[Row]) -> Vec<Figure> {
    let mut figures: Vec<Figure> = cases(rows).map(|case| rates(args, places, case)).collect();
    for place in places {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.place == place.behind && !row.trial).collect();
        let lines = |y: &dyn Fn(&Row) -> Option<Point>| -> Vec<Series> {
            let mut series: Vec<Series> = Vec::new();
            for row in &rows {
                let Some(point) = y(row) else { continue };
                let engine = if row.engine.is_fastmap() { "fastmap" } else { "mmap" };
                let name = format!("{engine}: {} {}", row.op, row.room);
                match series.iter_mut().find(|series| series.name == name) {
                    Some(series) => series.points.push(point),
                    None => series.push(Series { name, points: vec![point] }),
                }
            }
            series
        };
        let x = |row: &Row| f64::from(row.threads);
        let figure = |title: &str, caption: &str, paper: &str, y: &str, series: Vec<Series>| Figure {
            title: format!("{title}: {}", place.name),
            caption: caption.to_owned(),
            paper: Some(format!("{PAPER}, {paper}")),
            kind: Kind::Lines,
            x: Axis::log("threads"),
            y: Axis::of(y),
            series,
        };
        let depths =
            lines(&|row| (!row.queue_depths.is_empty()).then(|| Point::spread(x(row), Spread::of(&row.queue_depths))));
        if !depths.is_empty() && place.behind == Behind::Disk {
            figures.push(figure(
                "Device queue depth",
                "Reads and writes queued or in flight, on average over the window; the more, the better a fast device is used.",
                "figure 8(c): with 32 threads 39.2 (FastMap) and 17.5 (mmap) in Load A, 13 and 3 in Run C",
                "requests",
                depths,
            ));
        }
        figures.push(figure(
            "Efficiency",
            "Operations a second by thread, over those of the first number of threads; no more threads are counted than there are \
             processors, so 1 is perfect where processors are the limit, and more is possible where threads wait for a device.",
            "figure 1, read as efficiency: there, on a 32-core server, mmap does not scale beyond 8 threads",
            "share of the first rate by thread",
            lines(&|row| Some(Point::bare(x(row), row.efficiency?))),
        ));
    }
    figures
}

/// Operations over threads of one case.
fn rates(args: &ScaleArgs, places: &[Place], case: &[Row]) -> Figure {
    let mut series: Vec<Series> = Vec::new();
    let rival = case.iter().find(|row| !row.trial && row.engine.is_mmap()).map(|row| row.engine);
    for row in case.iter().filter(|row| !row.trial || Some(row.engine) != rival) {
        let name = if row.trial { format!("{} (a trial)", row.engine) } else { row.engine.to_string() };
        let thousands: Vec<f64> = row.runs.iter().map(|rate| rate / 1e3).collect();
        let point = Point::spread(f64::from(row.threads), Spread::of(&thousands));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point] }),
        }
    }
    let first = &case[0];
    Figure {
        title: format!("Page faults, {}: {}", what(first), name(places, first.place)),
        caption: format!(
            "Every page once before any again; medians of {}, engines in turn. A trial is the slower of two runs of the kernel, here with the advice that did worse.",
            args.repeat
        ),
        paper: Some(format!(
            "{PAPER}, figures 1 and 4: over null_blk, FastMap does {} the random {}s of mmap; on the 32-core server of figure 1 mmap does \
             not scale beyond 8 threads; with 80 hardware threads FastMap with speculative page faults reads 11.8 times as much",
            if first.op == Op::Read {
                "3.7 (32 threads) and 4.7 times (80)"
            } else {
                "6.6 (32 threads) and 7 times (80)"
            },
            first.op,
        )),
        kind: Kind::Lines,
        x: Axis::log("threads"),
        y: Axis::of("thousands of operations a second"),
        series,
    }
}

/// What is printed.
pub fn text(args: &ScaleArgs, places: &[Place], memory: u64, report: &Report<Row>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(_) => format!("{} of memory for each run out of memory ({})", Size(memory), report.memory_limit),
        None => "NO LIMIT on memory, which favours mmap out of memory".to_owned(),
    };
    let mut text = format!("{} file, {limit}; medians of {} x {} s\n", args.size, args.repeat, args.seconds);
    for case in cases(&report.results) {
        text.push_str(&format!("\n{}: {}\n\n", what(&case[0]), name(places, case[0].place)));
        text.push_str(&table(case));
    }
    let lines = report.headlines.iter().map(|headline| {
        let Spread { median, low, high } = headline.ratio;
        let paper = headline.paper.as_ref().map_or_else(String::new, |paper| format!("; paper {:.1}", paper.ratio));
        format!("{}: {median:.2}x ({low:.2}..{high:.2}{paper})\n", headline.what)
    });
    text.push('\n');
    text.extend(lines);
    let notes = report.notes.iter().map(|note| format!("{note}\n"));
    text.push('\n');
    text.extend(notes);
    text
}

fn table(case: &[Row]) -> String {
    let against = |row: &Row| {
        let theirs = case.iter().find(|other| other.engine.is_mmap() && !other.trial && other.threads == row.threads);
        match theirs {
            Some(theirs) if row.engine.is_fastmap() => format!("{:.2}", row.ops_per_s / theirs.ops_per_s),
            _ => "-".to_owned(),
        }
    };
    let maybe = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), figure);
    let row = |row: &Row| {
        let Spread { low, high, .. } = Spread::of(&row.runs);
        vec![
            if row.trial { format!("{} (trial)", row.engine) } else { row.engine.to_string() },
            row.threads.to_string(),
            figure(row.ops_per_s / 1e3),
            format!("{}..{}", figure(low / 1e3), figure(high / 1e3)),
            against(row),
            maybe(row.efficiency),
            figure(row.faults_per_op),
            maybe(row.queue_depth),
            figure(row.cpu_us_per_op),
            figure(row.latency_us.p50),
            figure(row.latency_us.p99),
        ]
    };
    let headings = [
        "engine",
        "threads",
        "kops/s",
        "min..max",
        "x mmap",
        "effic.",
        "faults/op",
        "queue",
        "CPU us/op",
        "p50 us",
        "p99 us",
    ];
    render(&headings, &case.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use fastmap_workloads::Engine;
    use fastmap_workloads::faults::Outcome;

    use super::*;
    use crate::bench::faulting::Load;

    fn row(place: Behind, op: Op, engine: Engine, threads: u32, rate: f64, trial: bool) -> Row {
        let load = Load { engine, op, room: Room::OutOfMemory, threads, seconds: 1.0 };
        let outcome = Outcome { ops_per_s: rate, faults_per_op: 1.0, ..Outcome::default() };
        Row::of(place, load, trial, &[outcome])
    }

    #[test]
    fn the_pair_is_of_the_most_threads_and_no_trial() {
        let rows = [
            row(Behind::Disk, Op::Read, Engine::Mmap, 16, 9e3, true),
            row(Behind::Disk, Op::Read, Engine::MmapRandom, 1, 1e3, false),
            row(Behind::Disk, Op::Read, Engine::Fastmap, 1, 1e3, false),
            row(Behind::Disk, Op::Read, Engine::MmapRandom, 16, 4e3, false),
            row(Behind::Disk, Op::Read, Engine::Fastmap, 16, 6e3, false),
            row(Behind::Disk, Op::Write, Engine::Fastmap, 16, 7e3, false),
        ];
        let (theirs, ours) = pair(&rows, Behind::Disk, Room::OutOfMemory, Op::Read).unwrap();
        assert_eq!((theirs.ops_per_s, ours.ops_per_s), (4e3, 6e3));
        assert!(pair(&rows, Behind::Disk, Room::OutOfMemory, Op::Write).is_none(), "nobody to compare with");
        assert_eq!(cases(&rows).count(), 2);
        let table = table(&rows[..5]);
        assert!(table.contains("mmap (trial)") && table.contains("1.50"), "{table}");
    }

    #[test]
    fn idle_processors_are_not_laid_to_a_device_that_was_not_seen() {
        let of = |place, depth| {
            let row = |engine| Row { queue_depth: depth, ..row(place, Op::Read, engine, 1, 1e3, false) };
            why(&row(Engine::MmapRandom), &row(Engine::Fastmap), "6.0")
        };
        assert!(!of(Behind::NoDevice, Some(1.0)).contains("device"));
        assert!(!of(Behind::Disk, None).contains("device"));
        let said = of(Behind::Disk, Some(0.5));
        assert!(said.contains("the device had 0.5"), "{said}");
    }
}
