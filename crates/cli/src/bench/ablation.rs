//! `fastmap bench ablation`: everything on, and one thing off.

mod tell;

use fastmap_workloads::ablation::{Off, Outcome, Work};
use fastmap_workloads::{Advice, Engine, PAGE, STRIDE_PAGES, capacity_for, least_memory, prepare};
use serde::Serialize;

use super::runner::Limit;
use super::session::{Load, Session};
use super::summary::Summary;
use super::table::{figure, render};
use super::target::{Target, directory_for, length_for, progress_bar};
use crate::args::AblationArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::machine::FileSystem;
use crate::results::{Headline, JsonFile, Report, Spread};
use crate::size::Size;

/// What is on and what is off: one row of a load's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    /// FastMap with everything.
    Everything,
    /// FastMap without one thing.
    Without(Off),
    /// Kernel mmap.
    Kernel,
}

/// One load and its arms.
struct Group {
    work: Work,
    load: Load,
    arms: Vec<Arm>,
}

/// One arm of one load; figures are medians over the repetitions, each by itself.
#[derive(Debug, Clone, Serialize)]
struct Row {
    load: Work,
    /// What the fastmap engine did without; null for everything on, and for kernel mmap.
    off: Option<Off>,
    #[serde(flatten)]
    summary: Summary,
    /// `cpu_us_per_op` of each repetition, in order.
    cpu_runs: Vec<f64>,
    /// The rate with everything on, divided by this one's; null for everything on.
    worth: Option<Spread>,
    /// This one's processor time an operation, divided by that with everything on; null likewise.
    worth_cpu: Option<Spread>,
    /// Calls of process_madvise(2) a page evicted, each with a TLB flush; of fastmap where pages were evicted.
    drops_per_page: Option<f64>,
    /// Interrupts to flush TLBs a page evicted, all processors and causes together; likewise.
    shootdowns_per_page: Option<f64>,
}

impl Row {
    /// `everything`: the row with all mechanisms, if this is another one.
    fn of((work, load): (Work, Load), arm: Arm, outcomes: &[Outcome], everything: Option<&Row>) -> Row {
        let runs: Vec<_> = outcomes.iter().map(|outcome| outcome.run.clone()).collect();
        let summary = Summary::of(load, &runs);
        let cpu_runs: Vec<f64> = runs.iter().map(|run| run.cpu_us_per_op).collect();
        let counted: Vec<_> = runs.iter().filter_map(|run| Some(run.fastmap?.counters)).collect();
        let evicted: u64 = counted.iter().map(|c| c.evicted_pages).sum();
        let per_page = |count: u64| (evicted > 0).then(|| count as f64 / evicted as f64);
        let shootdowns: Option<u64> = outcomes.iter().map(|outcome| outcome.shootdowns).sum();
        Row {
            load: work,
            off: match arm {
                Arm::Without(off) => Some(off),
                Arm::Everything | Arm::Kernel => None,
            },
            worth: everything.map(|on| Spread::of_ratios(&on.summary.runs, &summary.runs)),
            worth_cpu: everything.map(|on| Spread::of_ratios(&cpu_runs, &on.cpu_runs)),
            drops_per_page: per_page(counted.iter().map(|c| c.eviction_batches).sum()),
            shootdowns_per_page: shootdowns.and_then(per_page),
            summary,
            cpu_runs,
        }
    }

    fn arm(&self) -> Arm {
        match self.off {
            Some(off) => Arm::Without(off),
            None if self.summary.engine.is_mmap() => Arm::Kernel,
            None => Arm::Everything,
        }
    }
}

/// Runs it.
///
/// # Errors
///
/// Any run's failure; nothing is left behind.
pub fn run(args: &AblationArgs) -> Result<(), Failure> {
    interrupt::watch();
    let bytes = length_for(None, Some(args.size), 0)?;
    let pages = bytes / PAGE as u64;
    let dir = args.dir.clone().unwrap_or_else(|| directory_for(bytes));
    let loads = loads(args, pages, FileSystem::of(&dir).is_memory())?;
    // Loads that write need more beside the cache; all are given the same.
    let suits = |limit| Ok(capacity_for(limit, pages, true).map(drop)?);
    let limit = Limit::of(args.memory, (bytes / 4).max(least_memory(pages, true)), suits)?;
    let json = args.json.as_deref().map(JsonFile::open).transpose()?;
    let target = Target::temporary(&dir, args.size, prepare::stamp_page)?;
    let session = Session::new(&target, &limit);
    session.touch_memory()?;
    let mut report: Report<Row> = session.report("ablation");
    report.results = measure(&loads, &session, args)?;
    tell::tell(args, &mut report);
    crate::print(&text(args, &report));
    json.map_or(Ok(()), |json| json.write(report))
}

/// What is measured, in this order: for each load and number of threads the arms, which take turns. `in_memory`: the file will be
/// in memory, where a fresh one's own pages would count against the limit of who fills it.
fn loads(args: &AblationArgs, pages: u64, in_memory: bool) -> Result<Vec<Group>, Failure> {
    let most = args.threads.iter().copied().max().unwrap_or(1);
    let least = (u64::from(most) * STRIDE_PAGES).max(64);
    if pages < least {
        let what = format!("{} is too small for {most} threads", args.size);
        return Err(Failure::usage("--size", what, format!("give at least {}", Size(least * PAGE as u64))));
    }
    let mut loads = Vec::new();
    for (n, &work) in args.loads.iter().enumerate() {
        if args.loads[..n].contains(&work) || in_memory && work == Work::Fill {
            continue;
        }
        let wanted = work.needs().iter().filter(|off| args.off.is_empty() || args.off.contains(off));
        let off: Vec<Arm> = wanted.map(|off| Arm::Without(*off)).collect();
        if off.is_empty() {
            continue;
        }
        let arms: Vec<Arm> = [vec![Arm::Everything], off, vec![Arm::Kernel]].concat();
        let (pattern, op) = work.is();
        for &threads in if work.is_for_threads() { args.threads.as_slice() } else { &[1] } {
            let load = Load { engine: Engine::Fastmap, pattern, op, threads, advice: Advice::Normal };
            loads.push(Group { work, load, arms: arms.clone() });
        }
    }
    if loads.is_empty() {
        let what = if in_memory {
            "nothing is left of them for a file in memory"
        } else {
            "nothing in --off matters for them"
        };
        return Err(Failure::usage("--loads", what, "see `fastmap bench ablation --help` for what matters where"));
    }
    Ok(loads)
}

/// All loads, arms in turn within each repetition.
fn measure(loads: &[Group], session: &Session<'_>, args: &AblationArgs) -> Result<Vec<Row>, Failure> {
    let runs = loads.iter().map(|group| group.arms.len()).sum::<usize>() as u64 * u64::from(args.repeat);
    let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    let mut results = Vec::new();
    for Group { work, load, arms } in loads {
        let through = |arm: Arm| match arm {
            Arm::Kernel => Load { engine: work.kernel(), ..*load },
            Arm::Everything | Arm::Without(_) => *load,
        };
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); arms.len()];
        for repetition in 1..=args.repeat {
            // Each begins a repetition once: who is first meets what the load before left behind.
            for turn in 0..arms.len() {
                let at = (turn + repetition as usize - 1) % arms.len();
                let arm = arms[at];
                let off = if let Arm::Without(off) = arm { Some(off) } else { None };
                bar.set_message(format!("{work}: {}, repetition {repetition}", name(arm)));
                outcomes[at].push(session.ablate(*work, through(arm), off, args.seconds)?);
                bar.inc(1);
            }
        }
        let mut everything = None;
        for (&arm, outcomes) in arms.iter().zip(&outcomes) {
            let row = Row::of((*work, through(arm)), arm, outcomes, everything.as_ref());
            everything.get_or_insert_with(|| row.clone());
            results.push(row);
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

/// How a row is called.
fn name(arm: Arm) -> &'static str {
    match arm {
        Arm::Everything => "everything on",
        Arm::Without(off) => without(off),
        Arm::Kernel => "kernel mmap",
    }
}

fn without(off: Off) -> &'static str {
    match off {
        Off::PerCore => "one shard for all cores",
        Off::Batch64 => "batches of 64",
        Off::Batch1 => "batches of 1",
        Off::Protection => "each page protected alone",
        Off::Stripes => "one stripe",
        Off::Merging => "each page written alone",
        Off::Tracking => "no dirty bitmap",
        Off::Readahead => "no readahead",
        Off::Habits => "no habits learnt",
    }
}

/// A load in words.
fn of_load(row: &Row) -> String {
    let what = match row.load {
        Work::RandomRead => "random read",
        Work::RandomWrite => "random write",
        Work::Rmw => "zipf read-modify-write",
        Work::Fill => "fill and flush",
        Work::Flush => "flush of 16 pages",
        Work::Forward => "forward scan",
        Work::Backward => "backward scan",
        Work::Stride => "every 16th page",
    };
    let threads = row.summary.threads;
    if threads == 1 { what.to_owned() } else { format!("{what}, {threads} threads") }
}

fn text(args: &AblationArgs, report: &Report<Row>) -> String {
    let limit = match report.memory_limit_bytes {
        Some(bytes) => format!("{} of memory each ({})", Size(bytes), report.memory_limit),
        None => format!(
            "NO LIMIT on memory: kernel mmap may use all of it, fastmap's cache is {}",
            Size(report.file_bytes / 4)
        ),
    };
    let mut text = format!(
        "{} file ({} on {}), {limit}; medians of {} x {} s\n\
         worth: the rate with everything on, divided by this row's; CPU worth: this row's processor time an operation, divided by \
         that with everything on\n",
        Size(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        args.repeat,
        args.seconds,
    );
    let headings = [
        "",
        "kops/s",
        "min..max",
        "worth",
        "min..max",
        "CPU us/op",
        "CPU worth",
        "min..max",
        "p99 us",
        "drops/page",
        "TLB ints/page",
        "pages a write",
    ];
    for group in report.results.chunk_by(|a, b| (a.load, a.summary.threads) == (b.load, b.summary.threads)) {
        let rows: Vec<Vec<String>> = group.iter().map(cells).collect();
        text.push_str(&format!("\n{}\n{}", of_load(&group[0]), render(&headings, &rows)));
    }
    let headlines = report.headlines.iter();
    let line = |h: &Headline| {
        let why = h.why.as_ref().map_or_else(String::new, |why| format!("\n  {why}"));
        format!("\n{}: {:.2}x ({:.2}..{:.2}){why}", h.what, h.ratio.median, h.ratio.low, h.ratio.high)
    };
    text.extend(headlines.map(line));
    text.push('\n');
    text.extend(report.notes.iter().map(|note| format!("\n{note}\n")));
    text
}

fn cells(row: &Row) -> Vec<String> {
    let s = &row.summary;
    let (low, high) = s.spread();
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let worth = |worth: Option<Spread>| match worth {
        Some(Spread { median, low, high }) => (format!("{median:.2}"), format!("{low:.2}..{high:.2}")),
        None => ("-".to_owned(), String::new()),
    };
    let (rate, rate_range) = worth(row.worth);
    let (cpu, cpu_range) = worth(row.worth_cpu);
    let name = match row.arm() {
        Arm::Kernel => s.engine.name().to_owned(),
        arm => name(arm).to_owned(),
    };
    vec![
        name,
        figure(s.ops_per_s / 1e3),
        format!("{}..{}", figure(low / 1e3), figure(high / 1e3)),
        rate,
        rate_range,
        figure(s.cpu_us_per_op),
        cpu,
        cpu_range,
        figure(s.latency_us.p99),
        optional(row.drops_per_page),
        optional(row.shootdowns_per_page),
        optional(s.writeback.map(|w| w.merge_ratio)),
    ]
}
