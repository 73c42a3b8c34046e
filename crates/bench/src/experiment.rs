//! The shape that all experiments have.
//!
//! An [`Experiment`] makes a [`Plan`], runs one case in a process of its own, and lists [`Column`]s. Tables, plots, claims and JSON are
//! made from the columns. The driver does everything else.
//!
//! * A *case* describes one run.
//! * An *arm* is a case, with the engine that runs it.
//! * A *group* holds arms that are compared with each other.
//! * A *part* is a section of a run that is measured by itself, such as a query.
//! * A *row* has all repetitions of one arm, or of one part of its runs.

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
    /// Its name on the command line and in the JSON.
    const NAME: &'static str;
    /// Its own flags. [`Flags`] are the common ones.
    type Args: clap::Args;
    /// One run. It is sent to the process that makes the run.
    type Case: Serialize + DeserializeOwned + Clone;
    /// The measurements of a run beside its [`Reading`].
    type Outcome: Serialize + DeserializeOwned + Clone + Default;
    /// The common flags that it has, with their defaults.
    const FLAGS: Flags;
    /// The columns of figures. Rows are ranked by the first column.
    const COLUMNS: &'static [Column<Self::Outcome>];
    /// Plots of columns over an axis.
    const PLOTS: &'static [Plot<Self::Outcome>];
    /// The key of a part's name in the JSON.
    const PART: &'static str = "part";
    /// How answers are checked, in a sentence.
    const VERIFIED: &'static str;

    /// Decides everything about the runs: the data, the limit on memory, and the cases.
    ///
    /// # Errors
    ///
    /// The command line makes no sense, or the data cannot be made.
    fn plan(args: &Self::Args, ctx: &mut Ctx) -> Result<Plan<Self>, Failure>;

    /// Runs one case in this process, which is a fresh one, and verifies the answer. Returns the parts of the run, or the whole run as its
    /// only part.
    ///
    /// # Errors
    ///
    /// The case cannot be run, or a byte is wrong.
    fn run(case: &Self::Case, meter: &Meter) -> substrates::Result<Vec<Part<Self::Outcome>>>;

    /// Comparisons that are told in one sentence each, some of them beside a paper's figure.
    fn claims() -> Vec<Claim<Self::Outcome>>;

    /// The name of a row's work in the table of gains over the kernel. The gains are those of the first column. None: the row has no gain
    /// there.
    fn work(_: &Row<Self::Outcome>) -> Option<String> {
        None
    }

    /// The way in which FastMap does a row's work, for the same table. None: the row is not FastMap's.
    fn way(row: &Row<Self::Outcome>) -> Option<&'static str> {
        match row.engine {
            Engine::Steered => Some("fastmap run"),
            Engine::Fastmap => Some("engine"),
            _ => None,
        }
    }

    /// One page that is printed in place of the tables, the headlines and the notes on rows. None: those are printed.
    fn page(_: &[Row<Self::Outcome>]) -> Option<String> {
        None
    }

    /// A text that is printed below the tables, about all groups together. Empty by default.
    fn summary(_: &[Row<Self::Outcome>]) -> String {
        String::new()
    }
}

/// The flags that most experiments have.
pub struct Flags {
    /// Default of `--repeat`.
    pub repeat: &'static str,
    /// Default and help of `--seconds`. None: there is no such flag.
    pub seconds: Option<(&'static str, &'static str)>,
    /// The default of `--memory`, in words. None: there is no such flag.
    pub memory: Option<&'static str>,
    /// Help of `--dir`. None: there is no such flag.
    pub dir: Option<&'static str>,
}

impl Flags {
    /// Whether `--storage` chooses where the files are.
    pub fn has_storage(&self) -> bool {
        self.dir.is_none_or(|what| what == TEMPORARY)
    }
}

/// Help of a `--dir` for temporary files.
pub const TEMPORARY: &str = "Where to put temporary files [default: the first of the current directory, /var/tmp and $HOME that is on a disk and has room]";

/// Everything that an experiment is to run.
pub struct Plan<E: Experiment> {
    /// The subject of the runs, for the caption, such as `random read, 1 thread`; or nothing.
    pub about: String,
    /// The directory (or device) of the data.
    pub place: PathBuf,
    /// The name of the data in the report.
    pub file: String,
    /// Length of the data, bytes.
    pub bytes: u64,
    /// The memory limit of every run that has no limit of its own.
    pub limit: Limit,
    /// The groups, in the order in which they are run.
    pub groups: Vec<Group<E::Case>>,
    /// A group whose repetitions do not agree is repeated further, up to this number of repetitions.
    pub until_steady: Option<u32>,
    /// The owner of the data, which prepares them for each run.
    pub stage: Box<dyn Stage<E>>,
}

/// Arms that are compared. They take turns within each repetition.
pub struct Group<C> {
    /// The group in words, without the number of threads, which is a label: `random read`. Groups with the same words share a table.
    pub what: String,
    /// The group's labels, for the JSON.
    pub labels: Labels,
    /// The arms.
    pub arms: Vec<Arm<C>>,
    /// The number of repetitions, if not that of `--repeat`.
    pub repeat: Option<u32>,
    /// Each repetition begins with another arm, since the first arm meets the traces of the group before.
    pub rotate: bool,
    /// `what` says already how many threads there are.
    pub named_whole: bool,
    /// A trial run. It decides something, and is compared with nothing. Only its slowest repetition counts.
    pub trial: bool,
}

impl<C> Group<C> {
    /// A group of these arms.
    pub fn new(what: impl Into<String>, labels: Labels, arms: Vec<Arm<C>>) -> Group<C> {
        Group { what: what.into(), labels, arms, repeat: None, rotate: false, named_whole: false, trial: false }
    }
}

/// One arm of a group.
pub struct Arm<C> {
    /// The engine.
    pub engine: Engine,
    /// The name of its row.
    pub name: String,
    /// Labels of this arm alone, for the JSON.
    pub labels: Labels,
    /// The run that it makes.
    pub case: C,
}

impl<C> Arm<C> {
    /// An arm with the name of its engine.
    pub fn of(engine: Engine, case: C) -> Arm<C> {
        Arm { engine, name: engine.to_string(), labels: Labels::new(), case }
    }
}

/// Labels for the JSON: names and values, in order.
pub type Labels = Vec<(&'static str, Value)>;

/// The work of the bench's own process around each run. A stage owns the data.
pub trait Stage<E: Experiment> {
    /// Called just before a run. It drops the data from the page cache, and puts what changes from run to run into the case.
    ///
    /// # Errors
    ///
    /// The run cannot be made.
    fn before(&mut self, turn: &Turn<'_, E>, case: &mut E::Case) -> Result<Launch, Failure>;

    /// Called just after a run.
    ///
    /// # Errors
    ///
    /// An answer is wrong.
    fn after(&mut self, _: &Turn<'_, E>, _: &E::Case, _: &mut Vec<Part<E::Outcome>>) -> Result<(), Failure> {
        Ok(())
    }

    /// The names of the parts of a run, for a run that is killed before it can name them.
    fn parts(&self, _: &Turn<'_, E>) -> Vec<String> {
        vec![String::new()]
    }

    /// Called at the end. It adds notes, and figures that no plot gives.
    fn tell(&mut self, _: &[Row<E::Outcome>], _: &mut Report<Value>) {}
}

/// The turn of an arm: one run.
pub struct Turn<'a, E: Experiment> {
    /// The number of the group, and the number of the arm in it.
    pub at: (usize, usize),
    /// The engine of the arm.
    pub engine: Engine,
    /// The repetition, from 1.
    pub repetition: u32,
    /// Whether it is a trial run.
    pub trial: bool,
    /// All rows so far.
    pub rows: &'a [Row<E::Outcome>],
    /// The plan's limit.
    pub limit: &'a Limit,
}

impl<E: Experiment> Turn<'_, E> {
    /// The rows of this group so far.
    pub fn group(&self) -> impl Iterator<Item = &Row<E::Outcome>> {
        self.rows.iter().filter(|row| row.group == self.at.0)
    }
}

/// How a run is started.
#[derive(Default)]
pub struct Launch {
    /// The run is left out this time.
    pub skip: bool,
    /// The memory limit of this run in bytes, if not the plan's. It has no effect where the plan has no limit.
    pub memory: Option<u64>,
    /// The run has no memory limit.
    pub unlimited: bool,
    /// Arguments of `fastmap run`, if the run is made under it.
    pub under: Option<Vec<OsString>>,
    /// The run is killed if it takes longer than this, and its row says so.
    pub within: Option<Duration>,
    /// The step to undo if the run fails.
    pub undo: Option<Undo>,
}

/// Undoes something when it is dropped, unless [`Undo::keep`] was called.
pub struct Undo(Option<Box<dyn FnOnce()>>);

impl Undo {
    /// Calls `undo` if the run fails.
    pub fn by(undo: impl FnOnce() + 'static) -> Undo {
        Undo(Some(Box::new(undo)))
    }

    /// The run has not failed, so nothing is undone.
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

/// The result of a run, or of a part of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Part<O> {
    /// The name of the part, such as a workload or a query. Empty if the run has only one.
    pub name: String,
    /// The meter's measurements.
    pub reading: Reading,
    /// All other measurements.
    pub outcome: O,
}

impl<O> Part<O> {
    /// The only part of a run.
    pub fn whole(reading: Reading, outcome: O) -> Vec<Part<O>> {
        vec![Part { name: String::new(), reading, outcome }]
    }
}

/// The outcome of a run that measures nothing beside its reading.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Nothing {}

/// One repetition of a row.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Trial<O> {
    /// The repetition, from 1.
    pub repetition: u32,
    /// The meter's measurements.
    #[serde(flatten)]
    pub reading: Reading,
    /// All other measurements.
    #[serde(flatten)]
    pub outcome: O,
}

/// A repetition that was killed because it took too long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Late {
    /// The repetition, from 1.
    pub repetition: u32,
    /// The seconds after which it was killed.
    pub killed_after_s: f64,
}

/// All repetitions of one arm, or of one part of its runs.
#[derive(Debug, Clone)]
pub struct Row<O> {
    /// The number of the group.
    pub group: usize,
    /// The number of the arm in the group.
    pub arm: usize,
    /// The name of the part. Empty if a run has only one.
    pub part: String,
    /// The number of the part in the run.
    pub nth: usize,
    /// The group in words, with its number of threads.
    pub what: String,
    /// The engine of the arm.
    pub engine: Engine,
    /// The name of the arm.
    pub name: String,
    /// The labels of the group, then those of the arm.
    pub labels: Labels,
    /// Whether it is a trial run, which is in no comparison.
    pub trial: bool,
    /// The repetitions, in order.
    pub trials: Vec<Trial<O>>,
    /// Repetitions that were killed because they took too long.
    pub late: Vec<Late>,
}

impl<O> Row<O> {
    /// The text of a label. Empty: there is no such label.
    pub fn text(&self, label: &str) -> &str {
        self.labels.iter().find(|(name, _)| *name == label).and_then(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// Whether this row's engine knows no more of the next pages than the engine of the `other` row. Only then can this row be its rival.
    /// An engine that is told its next pages has all engines as rivals, since the program could tell them as well. On a walk any program
    /// knows the next pages, so there, too, all engines are rivals.
    pub fn knows_no_more_than(&self, other: &Row<O>) -> bool {
        let walks = ["forward", "backward", "stride"].contains(&other.text("pattern"));
        !self.engine.is_told_ahead() || other.engine.is_told_ahead() || walks
    }

    /// Whether a run of this row was measured too early: before memory was full and everything in it had been replaced once.
    pub fn cold(&self) -> bool {
        self.trials.iter().any(|trial| trial.reading.cold)
    }

    /// The number in a label.
    pub fn number(&self, label: &str) -> Option<f64> {
        self.labels.iter().find(|(name, _)| *name == label).and_then(|(_, value)| value.as_f64())
    }
}

/// How the figures of repetitions become one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// The median.
    Median,
    /// The mean.
    Mean,
    /// The least.
    Least,
    /// The greatest.
    Most,
    /// The sample standard deviation.
    Deviation,
    /// The sample standard deviation, per cent of the mean.
    RelativeDeviation,
}

impl Stat {
    /// The statistic of some figures, of which there is at least one.
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

/// Takes a figure from a repetition.
pub type Figure<O> = fn(&Trial<O>) -> Option<f64>;

/// Where a column's figures come from.
pub enum Of<O> {
    /// From each repetition.
    Each(Figure<O>),
    /// How many times as good the row is as the best kernel mmap of its group, at another column, repetition by repetition. Only kernel
    /// engines that know no more count ([`Row::knows_no_more_than`]).
    TimesMmap(&'static str),
    /// How many times as good the first arm of the group is as this row, at another column. If this row leaves something out, that is the
    /// worth of what it leaves out.
    Worth(&'static str),
    /// From this row and all rows.
    Rows(fn(&Row<O>, &[Row<O>]) -> Option<f64>),
}

/// One thing that is measured. It is a column of tables, an axis of plots and a key of the JSON, and claims are made from it.
pub struct Column<O> {
    /// Its key in the JSON. A dot puts it into an object.
    pub key: &'static str,
    /// Its title in tables. Empty: tables do not show it.
    pub title: &'static str,
    /// Its label on axes: what it is, with its unit.
    pub axis: &'static str,
    /// Figures are shown divided by this.
    pub unit: f64,
    /// Less is better.
    pub less: bool,
    /// Tables show the least and the greatest repetition, too.
    pub range: bool,
    /// How the figures of repetitions become one figure.
    pub stat: Stat,
    /// The source of its figures.
    pub of: Of<O>,
}

impl<O> Column<O> {
    /// A column with a figure for each repetition.
    pub const fn new(key: &'static str, title: &'static str, axis: &'static str, of: Figure<O>) -> Column<O> {
        Column::from(key, title, axis, Of::Each(of))
    }

    /// A column whose figures come from `of`.
    pub const fn from(key: &'static str, title: &'static str, axis: &'static str, of: Of<O>) -> Column<O> {
        Column { key, title, axis, unit: 1.0, less: false, range: false, stat: Stat::Median, of }
    }

    /// Figures are shown divided by `unit`.
    pub const fn per(mut self, unit: f64) -> Column<O> {
        self.unit = unit;
        self
    }

    /// Less is better.
    pub const fn less(mut self) -> Column<O> {
        self.less = true;
        self
    }

    /// Tables show the range, too.
    pub const fn range(mut self) -> Column<O> {
        self.range = true;
        self
    }

    /// Another statistic than the median.
    pub const fn stat(mut self, stat: Stat) -> Column<O> {
        self.stat = stat;
        self
    }
}

/// A plot of columns over an axis.
pub struct Plot<O> {
    /// Its title.
    pub title: &'static str,
    /// The keys of its columns.
    pub columns: &'static [&'static str],
    /// How points are drawn.
    pub kind: Kind,
    /// The axis to the right.
    pub over: Over,
    /// The values' axis is logarithmic.
    pub log: bool,
    /// The paper's figure that it follows, and the numbers in that figure.
    pub paper: Option<&'static str>,
    /// The rows that it shows.
    pub of: fn(&Row<O>) -> bool,
}

impl<O> Plot<O> {
    /// A plot of all rows.
    pub const fn new(title: &'static str, columns: &'static [&'static str], kind: Kind, over: Over) -> Plot<O> {
        Plot { title, columns, kind, over, log: false, paper: None, of: |_| true }
    }

    /// With a logarithmic axis of values.
    pub const fn log(mut self) -> Plot<O> {
        self.log = true;
        self
    }

    /// A plot that follows a paper's figure.
    pub const fn after(mut self, paper: &'static str) -> Plot<O> {
        self.paper = Some(paper);
        self
    }

    /// A plot of these rows only.
    pub const fn of(mut self, of: fn(&Row<O>) -> bool) -> Plot<O> {
        self.of = of;
        self
    }
}

/// The axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The arms of a group. There is a plot for each group and part, and a series for each column.
    Arms,
    /// Groups. There is a series for each arm.
    Groups,
    /// Parts of a run. There is a plot for each group, and a series for each arm.
    Parts,
    /// The numbers in a label. There is a series for each arm.
    Label(&'static str),
}

/// A comparison of FastMap with others, told in one sentence.
pub struct Claim<O> {
    /// The subject of the comparison, such as `device queue depth`. Empty: the rows' work is the subject.
    pub what: &'static str,
    /// The column that is compared.
    pub column: &'static str,
    /// Our engines. Each of them has a sentence of its own.
    pub ours: &'static [Engine],
    /// Only the best of our engines has a sentence.
    pub best: bool,
    /// The others' engines. Ours are compared with the best of them.
    pub theirs: &'static [Engine],
    /// Whether a row of ours is compared.
    pub of: fn(&Row<O>) -> bool,
    /// Only rows with the most threads are compared.
    pub most_threads: bool,
    /// All parts of a run are compared together, by the geometric mean.
    pub mean: bool,
    /// The paper's figure for the same comparison.
    pub paper: fn(&Row<O>) -> Option<Paper>,
}

/// Kernel mmap with any advice.
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

/// FastMap, however its pages are reached.
pub const ANY_FASTMAP: &[Engine] =
    &[Engine::Fastmap, Engine::FastmapPin, Engine::FastmapPrefetch, Engine::FastmapAdvised, Engine::FastmapPersist];

impl<O> Claim<O> {
    /// Compares FastMap with the best kernel mmap, for every group and part.
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

    /// Compares these rows only.
    pub fn of(self, of: fn(&Row<O>) -> bool) -> Claim<O> {
        Claim { of, ..self }
    }

    /// Compares other engines.
    pub fn between(self, ours: &'static [Engine], theirs: &'static [Engine]) -> Claim<O> {
        Claim { ours, theirs, ..self }
    }

    /// Says what is compared.
    pub fn what(self, what: &'static str) -> Claim<O> {
        Claim { what, ..self }
    }

    /// Compares only rows with the most threads.
    pub fn most_threads(self) -> Claim<O> {
        Claim { most_threads: true, ..self }
    }

    /// Adds the paper's figure.
    pub fn paper(self, paper: fn(&Row<O>) -> Option<Paper>) -> Claim<O> {
        Claim { paper, ..self }
    }
}

/// A paper's figure for a comparison.
pub struct Paper {
    /// How many times as good, the same way round as ours.
    pub ratio: f64,
    /// The place in the paper.
    pub source: &'static str,
    /// The machine and the setting of the paper's measurement.
    pub setting: &'static str,
}

impl Paper {
    /// The figure with its source and its setting.
    pub fn says(ratio: f64, source: &'static str, setting: &'static str) -> Option<Paper> {
        Some(Paper { ratio, source, setting })
    }
}

/// The columns that most experiments have.
pub mod columns {
    use super::{Column, Of};

    /// Thousands of operations a second.
    pub const fn rate<O>() -> Column<O> {
        Column::new("ops_per_s", "kops/s", "thousands of operations a second", |t| Some(t.reading.ops_per_s))
            .per(1e3)
            .range()
    }

    /// The rate, divided by the rate of the best kernel mmap.
    pub const fn times_mmap<O>() -> Column<O> {
        Column::from("times_best_mmap", "x best mmap", "times the best kernel mmap", Of::TimesMmap("ops_per_s"))
    }

    /// Processor time per operation.
    pub const fn cpu<O>() -> Column<O> {
        Column::new("cpu_us_per_op", "CPU us/op", "microseconds of processor time", |t| Some(t.reading.cpu_us_per_op))
            .less()
    }

    /// The median latency.
    pub const fn p50<O>() -> Column<O> {
        Column::new("latency_us.p50", "p50 us", "microseconds", |t| Some(t.reading.latency_us?.p50)).less()
    }

    /// The latency that one operation in a hundred exceeds.
    pub const fn p99<O>() -> Column<O> {
        Column::new("latency_us.p99", "p99 us", "microseconds", |t| Some(t.reading.latency_us?.p99)).less()
    }

    /// The latency that one operation in a thousand exceeds.
    pub const fn p999<O>() -> Column<O> {
        Column::new("latency_us.p999", "p99.9 us", "microseconds", |t| Some(t.reading.latency_us?.p999)).less()
    }

    /// The longest latency.
    pub const fn longest<O>() -> Column<O> {
        Column::new("latency_us.max", "max us", "microseconds", |t| Some(t.reading.latency_us?.max)).less()
    }

    /// The peak of memory use.
    pub const fn peak<O>() -> Column<O> {
        Column::new("peak_rss_bytes", "peak MiB", "MiB", |t| Some(t.reading.peak_rss_bytes as f64))
            .per((1 << 20) as f64)
            .less()
    }

    /// User time of the process, as a share of all processors' time.
    pub const fn user<O>() -> Column<O> {
        Column::new("user", "user %", "per cent of all processors' time", |t| {
            Some(t.reading.user_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// System time of the process, as a share of all processors' time.
    pub const fn system<O>() -> Column<O> {
        Column::new("system", "system %", "per cent of all processors' time", |t| {
            Some(t.reading.system_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Time of everything else, kernel threads among it, as a share of all processors' time. It is the difference of two clocks that do not
    /// tick alike, so it may come out slightly below zero. It counts as zero then.
    pub const fn others<O>() -> Column<O> {
        Column::new("others", "others %", "per cent of all processors' time", |t| {
            let busy = t.reading.machine?.busy_s - t.reading.user_s - t.reading.system_s;
            Some(busy.max(0.0) / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Idle time in which I/O was awaited, as a share of all processors' time.
    pub const fn iowait<O>() -> Column<O> {
        Column::new("iowait", "iowait %", "per cent of all processors' time", |t| {
            Some(t.reading.machine?.iowait_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// All other idle time, as a share of all processors' time.
    pub const fn idle<O>() -> Column<O> {
        Column::new("idle", "idle %", "per cent of all processors' time", |t| {
            Some(t.reading.machine?.idle_s / t.reading.processors_s()?)
        })
        .per(0.01)
        .less()
    }

    /// Average number of requests at the device.
    pub const fn queue<O>() -> Column<O> {
        Column::new("device.average_queue_depth", "queue", "requests at the device", |t| {
            Some(t.reading.device?.average_queue_depth)
        })
    }

    /// Average bytes of a write at the device.
    pub const fn write_size<O>() -> Column<O> {
        Column::new("device.average_write_bytes", "KiB a write", "KiB a write at the device", |t| {
            Some(t.reading.device?.average_write_bytes)
        })
        .per(1024.0)
    }

    /// Average number of neighbouring pages that FastMap wrote back in one write.
    pub const fn merged<O>() -> Column<O> {
        Column::new("writeback.merge_ratio", "pages a write", "pages a write", |t| {
            Some(t.reading.writeback?.merge_ratio)
        })
    }
}

/// The spread of the ratios, repetition by repetition. None: there is no common repetition, or a ratio is not finite.
pub fn ratios(ours: &[(u32, f64)], theirs: &[(u32, f64)], less: bool) -> Option<Spread> {
    let pairs = paired(ours, theirs, less);
    (!pairs.is_empty() && pairs.iter().all(|ratio| ratio.is_finite())).then(|| Spread::of(&pairs))
}

/// How many times as good ours is, for each repetition that both made.
pub fn paired(ours: &[(u32, f64)], theirs: &[(u32, f64)], less: bool) -> Vec<f64> {
    let pair = |&(repetition, ours): &(u32, f64)| {
        let theirs = theirs.iter().find(|(other, _)| *other == repetition)?.1;
        Some(if less { theirs / ours } else { ours / theirs })
    };
    ours.iter().filter_map(pair).collect()
}
