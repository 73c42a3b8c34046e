//! The one shape of all experiments: what to run (a [`Plan`] of groups of arms, which are compared), how to run one case in a
//! process of its own, and [`Column`]s, from which the table, the plots, the claims and the JSON are made. The driver does the rest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use fastmap_cli::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::driver::Ctx;
use crate::results::{Kind, Report, Spread, median};
use crate::runner::Limit;
use crate::substrates::{self, Engine, Meter, Reading};

/// An experiment.
pub trait Experiment: Sized + 'static {
    /// On the command line and in the JSON.
    const NAME: &'static str;
    /// Its own flags; the common ones are [`Flags`].
    type Args: clap::Args;
    /// One run, as it travels to the process that makes it.
    type Case: Serialize + DeserializeOwned + Clone;
    /// What a run gives beside its [`Reading`].
    type Outcome: Serialize + DeserializeOwned + Clone + Default;
    /// Which of the common flags it has, with their defaults.
    const FLAGS: Flags;
    /// What is measured; the first column is what rows are ranked by.
    const COLUMNS: &'static [Column<Self::Outcome>];
    /// Columns over an axis.
    const PLOTS: &'static [Plot<Self::Outcome>];
    /// What the parts of a run are, in the JSON.
    const PART: &'static str = "part";
    /// How answers are checked, a sentence.
    const VERIFIED: &'static str;

    /// What to run: the data, the limit on memory, and the cases.
    ///
    /// # Errors
    ///
    /// A command line that makes no sense, and whatever keeps the data from being made.
    fn plan(args: &Self::Args, ctx: &mut Ctx) -> Result<Plan<Self>, Failure>;

    /// Runs one case in this process, a fresh one, and verifies what it did; several parts that are measured apart, or one.
    ///
    /// # Errors
    ///
    /// Whatever kept it from running, and the first wrong byte.
    fn run(case: &Self::Case, meter: &Meter) -> substrates::Result<Vec<Part<Self::Outcome>>>;

    /// What is said beside what a paper says.
    fn claims() -> Vec<Claim<Self::Outcome>>;

    /// How a row's work is called in the table of gains over the kernel, which is by the first column; nothing: it is not there.
    fn work(_: &Row<Self::Outcome>) -> Option<String> {
        None
    }

    /// How FastMap does a row's work, in that table; nothing: it does not.
    fn way(row: &Row<Self::Outcome>) -> Option<&'static str> {
        match row.engine {
            Engine::Steered => Some("fastmap run"),
            Engine::Fastmap => Some("engine"),
            _ => None,
        }
    }

    /// One table that says all, printed in place of the tables, the headlines and the notes on rows.
    fn page(_: &[Row<Self::Outcome>]) -> Option<String> {
        None
    }

    /// What is printed below the tables: one that is over all groups. Nothing by default.
    fn summary(_: &[Row<Self::Outcome>]) -> String {
        String::new()
    }
}

/// The flags that most experiments have.
pub struct Flags {
    /// Default of `--repeat`.
    pub repeat: &'static str,
    /// Default of `--seconds`, and what they are.
    pub seconds: Option<(&'static str, &'static str)>,
    /// `--memory`, and what its default is.
    pub memory: Option<&'static str>,
    /// `--dir`, and what is put there.
    pub dir: Option<&'static str>,
}

impl Flags {
    /// Whether its files can be on several storages.
    pub fn has_storage(&self) -> bool {
        self.dir.is_none_or(|what| what == TEMPORARY)
    }
}

/// Where in the world `--dir` looks by default.
pub const TEMPORARY: &str = "Where to put temporary files [default: the first of the current directory, /var/tmp and $HOME that is on a disk and has room]";

/// What an experiment has decided to run.
pub struct Plan<E: Experiment> {
    /// What it is about, for the caption: `random read, 1 thread`, or nothing.
    pub about: String,
    /// The directory (or device) of the data.
    pub place: PathBuf,
    /// How they are called.
    pub file: String,
    /// Their length.
    pub bytes: u64,
    /// Of every run that says nothing else.
    pub limit: Limit,
    /// What is compared with each other, in the order in which it is run.
    pub groups: Vec<Group<E::Case>>,
    /// A group whose repetitions do not agree is repeated, until there are so many.
    pub until_steady: Option<u32>,
    /// The data, and what is done with them around each run.
    pub stage: Box<dyn Stage<E>>,
}

/// Arms that are compared; they take turns within each repetition.
pub struct Group<C> {
    /// In words, but for the number of threads, which is a label: `random read`. Groups called alike are one table.
    pub what: String,
    /// The same for the JSON.
    pub labels: Labels,
    /// Who.
    pub arms: Vec<Arm<C>>,
    /// How often, if not `--repeat` times.
    pub repeat: Option<u32>,
    /// Each arm begins a repetition once: who is first meets what the group before left behind.
    pub rotate: bool,
    /// Its name says how many threads there are.
    pub named_whole: bool,
    /// A trial run, of which the slower one counts: it decides something, and is compared with nothing.
    pub trial: bool,
}

impl<C> Group<C> {
    /// Arms under a name.
    pub fn new(what: impl Into<String>, labels: Labels, arms: Vec<Arm<C>>) -> Group<C> {
        Group { what: what.into(), labels, arms, repeat: None, rotate: false, named_whole: false, trial: false }
    }
}

/// One of those that are compared.
pub struct Arm<C> {
    /// Through what.
    pub engine: Engine,
    /// How its row is called.
    pub name: String,
    /// What is special about it, for the JSON.
    pub labels: Labels,
    /// What it runs.
    pub case: C,
}

impl<C> Arm<C> {
    /// Called like its engine.
    pub fn of(engine: Engine, case: C) -> Arm<C> {
        Arm { engine, name: engine.to_string(), labels: Labels::new(), case }
    }
}

/// Names and values, in order.
pub type Labels = Vec<(&'static str, Value)>;

/// What is done around each run, in the process of the bench; it owns the data.
pub trait Stage<E: Experiment> {
    /// Just before a run: the data are made cold, and what changes from run to run is put into the case.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from running.
    fn before(&mut self, turn: &Turn<'_, E>, case: &mut E::Case) -> Result<Launch, Failure>;

    /// Just after it.
    ///
    /// # Errors
    ///
    /// A wrong answer.
    fn after(&mut self, _: &Turn<'_, E>, _: &E::Case, _: &mut Vec<Part<E::Outcome>>) -> Result<(), Failure> {
        Ok(())
    }

    /// What the parts of a run are called, for one that took too long to say so.
    fn parts(&self, _: &Turn<'_, E>) -> Vec<String> {
        vec![String::new()]
    }

    /// At the end: notes, and figures that are no columns over an axis.
    fn tell(&mut self, _: &[Row<E::Outcome>], _: &mut Report<Value>) {}
}

/// Whose turn it is.
pub struct Turn<'a, E: Experiment> {
    /// Which group, and arm in it.
    pub at: (usize, usize),
    /// Through what.
    pub engine: Engine,
    /// From 1.
    pub repetition: u32,
    /// Of a trial.
    pub trial: bool,
    /// All that was measured so far.
    pub rows: &'a [Row<E::Outcome>],
    /// The plan's limit.
    pub limit: &'a Limit,
}

impl<E: Experiment> Turn<'_, E> {
    /// Rows of this group so far.
    pub fn group(&self) -> impl Iterator<Item = &Row<E::Outcome>> {
        self.rows.iter().filter(|row| row.group == self.at.0)
    }
}

/// How a run is started.
#[derive(Default)]
pub struct Launch {
    /// Not at all, this time.
    pub skip: bool,
    /// Its limit in bytes, if not the plan's; none where the plan has none.
    pub memory: Option<u64>,
    /// No limit at all.
    pub unlimited: bool,
    /// Arguments of `fastmap run`, if it is run under that.
    pub under: Option<Vec<OsString>>,
    /// It is killed when it takes longer, and that is what its row says.
    pub within: Option<Duration>,
    /// What to undo if it fails.
    pub undo: Option<Undo>,
}

/// Undoes something when it is dropped, unless it was kept.
pub struct Undo(Option<Box<dyn FnOnce()>>);

impl Undo {
    /// Does `undo` if the run fails.
    pub fn by(undo: impl FnOnce() + 'static) -> Undo {
        Undo(Some(Box::new(undo)))
    }

    /// The run is done.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(undo) = self.0.take() {
            undo();
        }
    }
}

/// What a run, or a part of it, gave.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Part<O> {
    /// Which part: a workload, a query; nothing if the run has only one.
    pub name: String,
    /// What the meter read.
    pub reading: Reading,
    /// What else.
    pub outcome: O,
}

impl<O> Part<O> {
    /// The only one.
    pub fn whole(reading: Reading, outcome: O) -> Vec<Part<O>> {
        vec![Part { name: String::new(), reading, outcome }]
    }
}

/// An experiment whose runs give nothing beside their reading.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Nothing {}

/// One repetition of a row.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Trial<O> {
    /// From 1.
    pub repetition: u32,
    /// What the meter read.
    #[serde(flatten)]
    pub reading: Reading,
    /// What else there was.
    #[serde(flatten)]
    pub outcome: O,
}

/// A repetition that took too long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Late {
    /// From 1.
    pub repetition: u32,
    /// It was killed after so many seconds.
    pub killed_after_s: f64,
}

/// One arm of one group, or a part of its runs.
#[derive(Debug, Clone)]
pub struct Row<O> {
    /// Which group.
    pub group: usize,
    /// Which of its arms.
    pub arm: usize,
    /// Which part; nothing where there are none.
    pub part: String,
    /// Its number among the parts.
    pub nth: usize,
    /// The group in words, the number of threads too.
    pub what: String,
    /// Through what.
    pub engine: Engine,
    /// How the arm is called.
    pub name: String,
    /// The group's and the arm's.
    pub labels: Labels,
    /// A trial, which is in no comparison.
    pub trial: bool,
    /// Its repetitions, in order.
    pub trials: Vec<Trial<O>>,
    /// Repetitions that took too long, and were killed.
    pub late: Vec<Late>,
}

impl<O> Row<O> {
    /// A label's text.
    pub fn text(&self, label: &str) -> &str {
        self.labels.iter().find(|(name, _)| *name == label).and_then(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Whether it knows no more of what comes next than another row of its group. A program that knows gives the hint whichever way it
    /// goes: what is told ahead is compared with what is told ahead, and a walk, whose order anybody knows, with everything.
    pub fn knows_no_more_than(&self, other: &Row<O>) -> bool {
        let walks = ["forward", "backward", "stride"].contains(&other.text("pattern"));
        !self.engine.is_told_ahead() || other.engine.is_told_ahead() || walks
    }

    /// Whether a run of it began before memory was full and all in it had been replaced once.
    pub fn cold(&self) -> bool {
        self.trials.iter().any(|trial| trial.reading.cold)
    }

    /// A label's number.
    pub fn number(&self, label: &str) -> Option<f64> {
        self.labels.iter().find(|(name, _)| *name == label).and_then(|(_, value)| value.as_f64())
    }
}

/// What repetitions come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// The middle one.
    Median,
    /// The average.
    Mean,
    /// The least.
    Least,
    /// The greatest.
    Most,
    /// The standard deviation, as of a sample.
    Deviation,
    /// That as a share of the average, per cent.
    RelativeDeviation,
}

impl Stat {
    /// Of some figures; there is at least one.
    pub fn of(self, figures: &[f64]) -> f64 {
        let mean = figures.iter().sum::<f64>() / figures.len() as f64;
        let deviation = || {
            let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
            (squares / (figures.len() - 1).max(1) as f64).sqrt()
        };
        match self {
            Stat::Median => median(figures.to_vec()),
            Stat::Mean => mean,
            Stat::Least => figures.iter().copied().fold(f64::INFINITY, f64::min),
            Stat::Most => figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Stat::Deviation => deviation(),
            Stat::RelativeDeviation => deviation() / mean * 100.0,
        }
    }
}

/// A figure of a repetition.
pub type Figure<O> = fn(&Trial<O>) -> Option<f64>;

/// Where a column's figures come from.
pub enum Of<O> {
    /// From each repetition.
    Each(Figure<O>),
    /// Times as good as the best kernel mmap of the group that knows no more of what comes next, at another column, repetition by repetition.
    TimesMmap(&'static str),
    /// Times as good as this row the first arm of the group is at another column: what was left out is worth.
    Worth(&'static str),
    /// From this row and all rows.
    Rows(fn(&Row<O>, &[Row<O>]) -> Option<f64>),
}

/// One thing that is measured: a column of tables, an axis of plots, a key of the JSON, the ground of claims.
pub struct Column<O> {
    /// In the JSON; a dot makes it a part of an object.
    pub key: &'static str,
    /// In tables; nothing: not there.
    pub title: &'static str,
    /// On axes: what it is, with its unit.
    pub axis: &'static str,
    /// Shown divided by this.
    pub unit: f64,
    /// Less is better.
    pub less: bool,
    /// With the least and the greatest repetition beside it.
    pub range: bool,
    /// What repetitions come to.
    pub stat: Stat,
    /// Its figures.
    pub of: Of<O>,
}

impl<O> Column<O> {
    /// A figure of each repetition.
    pub const fn new(key: &'static str, title: &'static str, axis: &'static str, of: Figure<O>) -> Column<O> {
        Column::from(key, title, axis, Of::Each(of))
    }

    /// The same from elsewhere.
    pub const fn from(key: &'static str, title: &'static str, axis: &'static str, of: Of<O>) -> Column<O> {
        Column { key, title, axis, unit: 1.0, less: false, range: false, stat: Stat::Median, of }
    }

    /// Shown divided by `unit`.
    pub const fn per(mut self, unit: f64) -> Column<O> {
        self.unit = unit;
        self
    }

    /// Less is better.
    pub const fn less(mut self) -> Column<O> {
        self.less = true;
        self
    }

    /// Shown with its range.
    pub const fn range(mut self) -> Column<O> {
        self.range = true;
        self
    }

    /// Not the median.
    pub const fn stat(mut self, stat: Stat) -> Column<O> {
        self.stat = stat;
        self
    }
}

/// Points of columns over an axis.
pub struct Plot<O> {
    /// What it shows.
    pub title: &'static str,
    /// Keys of what is shown.
    pub columns: &'static [&'static str],
    /// How.
    pub kind: Kind,
    /// Over what.
    pub over: Over,
    /// The values' axis is logarithmic.
    pub log: bool,
    /// The paper's figure that it is after, and what that one shows in numbers.
    pub paper: Option<&'static str>,
    /// Of which rows.
    pub of: fn(&Row<O>) -> bool,
}

impl<O> Plot<O> {
    /// Of all rows.
    pub const fn new(title: &'static str, columns: &'static [&'static str], kind: Kind, over: Over) -> Plot<O> {
        Plot { title, columns, kind, over, log: false, paper: None, of: |_| true }
    }

    /// With a logarithmic axis.
    pub const fn log(mut self) -> Plot<O> {
        self.log = true;
        self
    }

    /// After a paper's figure.
    pub const fn after(mut self, paper: &'static str) -> Plot<O> {
        self.paper = Some(paper);
        self
    }

    /// Of some rows.
    pub const fn of(mut self, of: fn(&Row<O>) -> bool) -> Plot<O> {
        self.of = of;
        self
    }
}

/// The axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The arms of a group; a plot for each group and part, a series for each column.
    Arms,
    /// Groups; a series for each arm.
    Groups,
    /// Parts of a run; a plot for each group, a series for each arm.
    Parts,
    /// The numbers of a label; a series for each arm.
    Label(&'static str),
}

/// A comparison that is told in one sentence, of what FastMap does with what somebody else does.
pub struct Claim<O> {
    /// What is compared, if not what is done: `device queue depth`.
    pub what: &'static str,
    /// By which column.
    pub column: &'static str,
    /// Ours; each is told by itself.
    pub ours: &'static [Engine],
    /// Of ours the best alone.
    pub best: bool,
    /// Theirs, of which the best counts.
    pub theirs: &'static [Engine],
    /// Whether a row of ours is compared.
    pub of: fn(&Row<O>) -> bool,
    /// With the most threads alone.
    pub most_threads: bool,
    /// All parts of a run together: the geometric mean.
    pub mean: bool,
    /// What the paper says of the same.
    pub paper: fn(&Row<O>) -> Option<Paper>,
}

/// Kernel mmap, whatever it is told.
pub const MMAP: &[Engine] = &[
    Engine::Mmap,
    Engine::MmapRandom,
    Engine::MmapSequential,
    Engine::MmapWillneed,
    Engine::MmapFadvise,
    Engine::MmapPopulate,
    Engine::MmapAdvised,
];

/// Plain loads and stores through FastMap.
pub const FASTMAP: &[Engine] = &[Engine::Fastmap];

/// FastMap in whatever way.
pub const ANY_FASTMAP: &[Engine] =
    &[Engine::Fastmap, Engine::FastmapPin, Engine::FastmapPrefetch, Engine::FastmapAdvised, Engine::FastmapPersist];

impl<O> Claim<O> {
    /// FastMap to the best kernel mmap, of every group and part.
    pub fn new(column: &'static str) -> Claim<O> {
        Claim {
            what: "",
            column,
            ours: FASTMAP,
            best: false,
            theirs: MMAP,
            of: |_| true,
            most_threads: false,
            mean: false,
            paper: |_| None,
        }
    }

    /// Of some rows.
    pub fn of(self, of: fn(&Row<O>) -> bool) -> Claim<O> {
        Claim { of, ..self }
    }

    /// Of others.
    pub fn between(self, ours: &'static [Engine], theirs: &'static [Engine]) -> Claim<O> {
        Claim { ours, theirs, ..self }
    }

    /// Called so.
    pub fn what(self, what: &'static str) -> Claim<O> {
        Claim { what, ..self }
    }

    /// With the most threads alone.
    pub fn most_threads(self) -> Claim<O> {
        Claim { most_threads: true, ..self }
    }

    /// Beside a paper's.
    pub fn paper(self, paper: fn(&Row<O>) -> Option<Paper>) -> Claim<O> {
        Claim { paper, ..self }
    }
}

/// What a paper says.
pub struct Paper {
    /// Times as good; the same way round as ours.
    pub ratio: f64,
    /// Where it says so.
    pub source: &'static str,
    /// Where it was measured.
    pub setting: &'static str,
}

impl Paper {
    /// So many times, said there, measured so.
    pub fn says(ratio: f64, source: &'static str, setting: &'static str) -> Option<Paper> {
        Some(Paper { ratio, source, setting })
    }
}

/// The columns that most experiments have.
pub mod columns {
    use super::{Column, Of};

    /// Operations a second, thousands.
    pub const fn rate<O>() -> Column<O> {
        Column::new("ops_per_s", "kops/s", "thousands of operations a second", |t| Some(t.reading.ops_per_s))
            .per(1e3)
            .range()
    }

    /// The rate, to that of the best kernel mmap.
    pub const fn times_mmap<O>() -> Column<O> {
        Column::from("times_best_mmap", "x best mmap", "times the best kernel mmap", Of::TimesMmap("ops_per_s"))
    }

    /// Processor time of an operation.
    pub const fn cpu<O>() -> Column<O> {
        Column::new("cpu_us_per_op", "CPU us/op", "microseconds of processor time", |t| Some(t.reading.cpu_us_per_op))
            .less()
    }

    /// The middle latency.
    pub const fn p50<O>() -> Column<O> {
        Column::new("latency_us.p50", "p50 us", "microseconds", |t| Some(t.reading.latency_us?.p50)).less()
    }

    /// The latency that one of a hundred exceeds.
    pub const fn p99<O>() -> Column<O> {
        Column::new("latency_us.p99", "p99 us", "microseconds", |t| Some(t.reading.latency_us?.p99)).less()
    }

    /// The latency that one of a thousand exceeds.
    pub const fn p999<O>() -> Column<O> {
        Column::new("latency_us.p999", "p99.9 us", "microseconds", |t| Some(t.reading.latency_us?.p999)).less()
    }

    /// The longest latency.
    pub const fn longest<O>() -> Column<O> {
        Column::new("latency_us.max", "max us", "microseconds", |t| Some(t.reading.latency_us?.max)).less()
    }

    /// The peak of memory.
    pub const fn peak<O>() -> Column<O> {
        Column::new("peak_rss_bytes", "peak MiB", "MiB", |t| Some(t.reading.peak_rss_bytes as f64))
            .per((1 << 20) as f64)
            .less()
    }

    /// User time of the process, of all processors' time.
    pub const fn user<O>() -> Column<O> {
        Column::new("user", "user %", "per cent of all processors' time", |t| {
            Some(t.reading.user_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// System time of the process, of all processors' time.
    pub const fn system<O>() -> Column<O> {
        Column::new("system", "system %", "per cent of all processors' time", |t| {
            Some(t.reading.system_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// What others ran, kernel threads among them, of all processors' time. The two clocks do not tick alike: what is left may be a
    /// little below nothing.
    pub const fn others<O>() -> Column<O> {
        Column::new("others", "others %", "per cent of all processors' time", |t| {
            let busy = t.reading.machine?.busy_s - t.reading.user_s - t.reading.system_s;
            Some(busy.max(0.0) / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Idle while I/O was awaited, of all processors' time.
    pub const fn iowait<O>() -> Column<O> {
        Column::new("iowait", "iowait %", "per cent of all processors' time", |t| {
            Some(t.reading.machine?.iowait_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Idle otherwise, of all processors' time.
    pub const fn idle<O>() -> Column<O> {
        Column::new("idle", "idle %", "per cent of all processors' time", |t| {
            Some(t.reading.machine?.idle_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Requests at the device, on average.
    pub const fn queue<O>() -> Column<O> {
        Column::new("device.average_queue_depth", "queue", "requests at the device", |t| {
            Some(t.reading.device?.average_queue_depth)
        })
    }

    /// Bytes of a write at the device.
    pub const fn write_size<O>() -> Column<O> {
        Column::new("device.average_write_bytes", "KiB a write", "KiB a write at the device", |t| {
            Some(t.reading.device?.average_write_bytes)
        })
        .per(1024.0)
    }

    /// Pages that FastMap wrote back in a run of neighbours.
    pub const fn merged<O>() -> Column<O> {
        Column::new("writeback.merge_ratio", "pages a write", "pages a write", |t| {
            Some(t.reading.writeback?.merge_ratio)
        })
    }
}

/// A spread of ratios.
pub fn ratios(ours: &[(u32, f64)], theirs: &[(u32, f64)], less: bool) -> Option<Spread> {
    let pairs = paired(ours, theirs, less);
    (!pairs.is_empty() && pairs.iter().all(|ratio| ratio.is_finite())).then(|| Spread::of(&pairs))
}

/// How many times as good ours is, by repetition: of those that both made.
pub fn paired(ours: &[(u32, f64)], theirs: &[(u32, f64)], less: bool) -> Vec<f64> {
    let pair = |&(repetition, ours): &(u32, f64)| {
        let theirs = theirs.iter().find(|(other, _)| *other == repetition)?.1;
        Some(if less { theirs / ours } else { ours / theirs })
    };
    ours.iter().filter_map(pair).collect()
}
