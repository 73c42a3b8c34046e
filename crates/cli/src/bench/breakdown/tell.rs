//! What `bench breakdown` found: a table, headlines, figures.

use fastmap_workloads::Op;
use fastmap_workloads::faults::Room;

use super::parts::Part;
use super::perf::HERTZ;
use super::{Row, Threads};
use crate::args::BreakdownArgs;
use crate::bench::faulting::{Behind, Place};
use crate::bench::table::{figure, render};
use crate::results::{Axis, Figure, Headline, Kind, Paper, Point, Report, Series, Spread};
use crate::size::Size;

const PAPER: &str = "FastMap, USENIX ATC '20";

/// How parts are put together in plots, which get crowded otherwise; other programs' time is left out there.
const GROUPS: [(&str, &[Part]); 8] = [
    ("program", &[Part::Program]),
    ("trap", &[Part::Trap, Part::Wasted]),
    ("install and bookkeeping", &[Part::Bookkeeping, Part::Install]),
    ("read", &[Part::Read]),
    ("evict and write back", &[Part::Evict, Part::WriteBack]),
    ("workers", &[Part::Workers]),
    ("locks, scheduling, interrupts, other", &[Part::Locks, Part::Scheduling, Part::Interrupts, Part::Other]),
    ("idle and I/O wait", &[Part::IoWait, Part::Idle]),
];

/// Rows of one place, room and operation.
fn cases(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| (a.place, a.room, a.op) == (b.place, b.room, b.op))
}

fn what(row: &Row, places: &[Place]) -> String {
    let op = if row.op == Op::Read { "reads" } else { "writes" };
    let room = if row.room == Room::InMemory { "in memory" } else { "out of memory" };
    let place = places.iter().find(|place| place.behind == row.place).map_or("", |place| &place.name);
    format!("random {op}, {room}, {place}")
}

fn bar(row: &Row) -> String {
    format!("{} x{}", row.engine, row.threads)
}

/// Fills in everything but the rows; `sampled` is why perf was not used, if it was not.
pub fn tell(args: &BreakdownArgs, places: &[Place], sampled: Result<(), String>, report: &mut Report<Row>) {
    report.verified = "Every operation checked its page's stamp (in the hole, that it is zero); after each run that stores, the whole \
                       file was read back, every byte checked."
        .to_owned();
    let mut notes = vec![match &sampled {
        Ok(()) => format!(
            "perf sampled all processors {HERTZ} times a second by the processor's clock (cpu-clock); a sample belongs to the innermost \
             of its functions that is in a table of the kernel's and FastMap's, and to `other` if none is. Time with \
             interrupts off shows at the first instruction after it. Workers include the kernel's threads for write-back and block \
             devices, whomever they serve."
        ),
        Err(why) => format!(
            "Not sampled: {why}. What is left is coarser: user and system time, waiting for a processor and waiting for anything else, \
             as the kernel counts them for each thread (getrusage, schedstat)."
        ),
    }];
    let elsewhere = report.results.iter().map(|row| share(row, &[Part::Elsewhere])).fold(0.0, f64::max);
    if sampled.is_ok() && elsewhere > 0.02 {
        notes.push(format!(
            "Other programs took up to {:.0} % of the processors' time in a run; plots leave that out, the table has it.",
            elsewhere * 100.0
        ));
    }
    let unknown = report.results.iter().map(|row| share(row, &[Part::Other])).fold(0.0, f64::max);
    if unknown > 0.05 {
        notes.push(format!(
            "Up to {:.0} % of a run's time is in no line of the table (`other_functions` in the JSON).",
            unknown * 100.0
        ));
    }
    if args.fast_dir.is_none() {
        notes.push(
            "There was no fast device (--fast-dir), so in its place is a file that is one hole, as the paper's null_blk; only reads."
                .to_owned(),
        );
    }
    if report.memory_limit_bytes.is_none() {
        notes.push("No memory cgroup limits kernel mmap: what is called out of memory favours it.".to_owned());
    }
    report.notes = notes;
    report.headlines = headlines(places, report);
    report.figures = figures(places, &report.results);
}

/// Of all processors' time.
fn share(row: &Row, parts: &[Part]) -> f64 {
    let of = |part: &Part| row.processors_us_per_op.get(part).copied().unwrap_or(0.0);
    parts.iter().map(of).sum::<f64>() / row.processors_us_per_op.values().sum::<f64>().max(f64::MIN_POSITIVE)
}

/// The best kernel engine's row and ours at the most threads of one case.
fn pair(rows: &[Row], place: Behind, op: Op) -> Option<(&Row, &Row)> {
    let of_case = |row: &&Row| (row.place, row.room, row.op) == (place, Room::OutOfMemory, op);
    let most = rows.iter().filter(of_case).map(|row| row.threads).max()?;
    let at = |ours: bool| {
        let rows = rows.iter().filter(|row| of_case(row) && row.threads == most && row.engine.is_fastmap() == ours);
        rows.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
    };
    Some((at(false)?, at(true)?))
}

fn headlines(places: &[Place], report: &Report<Row>) -> Vec<Headline> {
    let rows = &report.results;
    let headline = |name: &str, op, of: fn(&Row) -> &[f64], paper: Option<Paper>| {
        let (theirs, ours) = pair(rows, Behind::Disk, op)?;
        let measured = of(ours).iter().chain(of(theirs)).all(|us| *us > 0.0);
        let spread = measured.then(|| Spread::of_ratios(of(theirs), of(ours)))?;
        Some(Headline {
            what: format!(
                "{name}, {}, {} threads: {} to {}",
                what(ours, places),
                ours.threads,
                ours.engine,
                theirs.engine
            ),
            why: (spread.median < paper.as_ref().map_or(1.0, |paper| paper.ratio.max(1.0))).then(|| why(theirs, ours)),
            ratio: spread,
            paper,
        })
    };
    let paper = |ratio, figure: &str, setting: &str| {
        Some(Paper { ratio, source: format!("{PAPER}, {figure}"), setting: setting.to_owned() })
    };
    // Only samples tell page faults from the program and from workers, as the paper's pgfault does.
    let fault = |op, of_paper: Option<Paper>| {
        let (theirs, ours) = pair(rows, Behind::Disk, op)?;
        match theirs.samples > 0 && ours.samples > 0 {
            true => headline("processor time of a page fault, workers apart", op, |row| &row.fault_runs, of_paper),
            false => {
                headline("processor time of an operation, program and workers too", op, |row| &row.fault_runs, None)
            }
        }
    };
    let (load, run) = (
        "Kreon, Load A, 32 threads on 32 hardware threads, Optane SSD",
        "Kreon, Run C, 32 threads on 32 hardware threads, Optane SSD",
    );
    let all = [
        fault(Op::Write, paper(2.64, "figure 9 (pgfault)", load)),
        fault(Op::Read, paper(2.88, "figure 10 (pgfault)", run)),
        headline(
            "waiting time of a page fault",
            Op::Read,
            |row| &row.waiting_runs,
            paper(1.41, "figure 10 (iowait)", run),
        ),
    ];
    all.into_iter().flatten().collect()
}

/// Where the difference lies, from the parts themselves.
fn why(theirs: &Row, ours: &Row) -> String {
    let Threads { system, user, workers, waiting, .. } = ours.threads_us_per_op;
    let kernel = theirs.threads_us_per_op;
    let coarse = format!(
        "An operation takes {} us of user and {} of system time in FastMap's threads, {} in its workers and {} of waiting; {}, {}, {} and {} \
         with mmap.",
        figure(user),
        figure(system),
        figure(workers),
        figure(waiting),
        figure(kernel.user),
        figure(kernel.system),
        figure(kernel.workers),
        figure(kernel.waiting),
    );
    let us = |row: &Row, part: Part| row.processors_us_per_op.get(&part).copied().unwrap_or(0.0);
    let mut dearer: Vec<(Part, f64)> = Part::ALL
        .into_iter()
        .filter(|part| part.is_fault() || *part == Part::Workers)
        .map(|part| (part, us(ours, part) - us(theirs, part)))
        .collect();
    dearer.sort_by(|a, b| b.1.total_cmp(&a.1));
    let named: Vec<String> = dearer
        .iter()
        .filter(|(_, more)| *more > 0.05)
        .take(3)
        .map(|(part, _)| format!("{} {} us to {}", part.name(), figure(us(ours, *part)), figure(us(theirs, *part))))
        .collect();
    let dear = match named.is_empty() {
        true => String::new(),
        false => format!(" What FastMap pays more for: {}.", named.join(", ")),
    };
    format!(
        "{coarse}{dear} The paper's FastMap is in the kernel, and its rival's threads queue on locks of Linux 4.14."
    )
}

fn figures(places: &[Place], rows: &[Row]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for case in cases(rows) {
        let title = what(&case[0], places);
        let paper = match (case[0].place, case[0].op) {
            (Behind::Disk, Op::Read) => {
                "figure 10: with 32 threads mmap spends 2.88 times as much on page faults and 1.41 times on iowait"
            }
            (Behind::Disk, _) => {
                "figure 9: with 32 threads FastMap spends 2.64 times less on page faults, 12.3 times less on iowait, 3.39 times less idle"
            }
            _ => {
                "figure 5: of random reads mmap spends almost 80 % of the time on the tree of cached pages and its lock, FastMap has no single cause"
            }
        };
        let stacked = |name: &str, caption: &str, y: &str, series: Vec<Series>| Figure {
            title: format!("{name}: {title}"),
            caption: caption.to_owned(),
            paper: Some(format!("{PAPER}, {paper}")),
            kind: Kind::Stacked,
            x: Axis::of("engine and threads"),
            y: Axis::of(y),
            series,
        };
        if case.iter().all(|row| row.samples > 0) {
            let groups = |of: &dyn Fn(&Row, &[Part]) -> f64| -> Vec<Series> {
                let points =
                    |parts: &[Part]| case.iter().map(|row| Point::bare(bar(row).as_str(), of(row, parts))).collect();
                GROUPS.iter().map(|(name, parts)| Series { name: (*name).to_owned(), points: points(parts) }).collect()
            };
            let mine = |row: &Row| 1.0 - share(row, &[Part::Elsewhere]);
            figures.push(stacked(
                "Shares of processor time",
                "By samples of all processors, other programs left out; means over repetitions.",
                "per cent",
                groups(&|row, parts| 100.0 * share(row, parts) / mine(row).max(f64::MIN_POSITIVE)),
            ));
            figures.push(stacked(
                "Processor time an operation",
                "The same, of all processors, idle ones too, by operation: the lower, the better. With one thread most of it is idle.",
                "microseconds",
                groups(&|row, parts| parts.iter().filter_map(|part| row.processors_us_per_op.get(part)).sum()),
            ));
        }
        type Of = fn(&Threads) -> f64;
        let threads: [(&str, Of); 5] = [
            ("user", |t| t.user),
            ("system", |t| t.system),
            ("waiting for a processor", |t| t.queued),
            ("waiting for a page", |t| t.waiting),
            ("workers' processor time", |t| t.workers),
        ];
        let points =
            |of: Of| case.iter().map(|row| Point::bare(bar(row).as_str(), of(&row.threads_us_per_op))).collect();
        figures.push(stacked(
            "Time of the faulting threads",
            "As the kernel counts it for each thread, by operation; on top, the processor time of the process's other threads.",
            "microseconds an operation",
            threads.map(|(name, of)| Series { name: name.to_owned(), points: points(of) }).to_vec(),
        ));
    }
    figures
}

/// What is printed.
pub fn text(args: &BreakdownArgs, places: &[Place], memory: u64, report: &Report<Row>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(_) => format!("{} of memory for each run out of memory ({})", Size(memory), report.memory_limit),
        None => "NO LIMIT on memory, which favours mmap out of memory".to_owned(),
    };
    let mut text = format!(
        "{} file, {limit}; {} x {} s; microseconds an operation, means\n",
        args.size, args.repeat, args.seconds
    );
    for case in cases(&report.results) {
        text.push_str(&format!("\n{}\n\n", what(&case[0], places)));
        text.push_str(&table(case));
    }
    text.push('\n');
    text.extend(report.headlines.iter().map(|headline| {
        let Spread { median, low, high } = headline.ratio;
        let paper = headline.paper.as_ref().map_or_else(String::new, |paper| format!("; paper {:.2}", paper.ratio));
        format!("{}: {median:.2}x ({low:.2}..{high:.2}{paper})\n", headline.what)
    }));
    text.push('\n');
    text.extend(report.notes.iter().map(|note| format!("{note}\n")));
    text
}

/// Engines across, parts down.
fn table(case: &[Row]) -> String {
    let mut headings = vec![""];
    let names: Vec<String> = case.iter().map(bar).collect();
    headings.extend(names.iter().map(String::as_str));
    let line = |name: &str, of: &dyn Fn(&Row) -> String| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(case.iter().map(of)).collect()
    };
    let mut rows = vec![line("kops/s", &|row| figure(row.ops_per_s / 1e3))];
    if case.iter().any(|row| row.samples > 0) {
        let of = |row: &Row, part| row.processors_us_per_op.get(&part).copied().unwrap_or(0.0);
        rows.extend(Part::ALL.into_iter().map(|part| line(part.name(), &|row| figure(of(row, part)))));
    }
    rows.push(line("threads: user", &|row| figure(row.threads_us_per_op.user)));
    rows.push(line("threads: system", &|row| figure(row.threads_us_per_op.system)));
    rows.push(line("threads: queued", &|row| figure(row.threads_us_per_op.queued)));
    rows.push(line("threads: waiting", &|row| figure(row.threads_us_per_op.waiting)));
    rows.push(line("their workers", &|row| figure(row.threads_us_per_op.workers)));
    render(&headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_but_other_programs_is_in_one_group() {
        for part in Part::ALL {
            let groups = GROUPS.iter().filter(|(_, parts)| parts.contains(&part)).count();
            assert_eq!(groups, usize::from(part != Part::Elsewhere), "{part:?}");
        }
    }
}
