//! The one loop over groups, repetitions and arms. It handles interrupts, memory limits, fresh processes, trial runs and progress, and
//! makes the report.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches, value_parser};
use fastmap_cli::failure::Failure;
use fastmap_cli::size::{Memory, Size};
use fastmap_cli::{cgroup, interrupt, machine};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::args::{repetitions, seconds};
use crate::experiment::{Experiment, Group, Late, Part, Plan, Row, Trial, Turn};
use crate::results::{JsonFile, Report};
use crate::runner::Limit;
use crate::show::{Shown, line};
use crate::storages::{Kind, Storage};
use crate::substrates::{PAGE, capacity_for, least_memory, prepare};
use crate::target::count_threads;

/// Help of `--storage`.
const STORAGE: &str = "What the files are on: disk, with the readahead of 128 KiB that most disks have (as root a loop device with direct I/O on \
                       the disk of --dir; else that disk as it is); slow, where each request takes 2 ms and all together 1 GB/s at most (as root); \
                       fast, compressed memory behind the block layer (zram; as root); here, the folder as it is";

/// The command line of an experiment.
pub fn command<E: Experiment>() -> Command {
    let flags = E::FLAGS;
    let mut command = E::Args::augment_args(Command::new(E::NAME));
    let path = || value_parser!(PathBuf);
    if let Some(what) = flags.dir {
        command = command.arg(Arg::new("dir").long("dir").value_name("DIR").value_parser(path()).help(what));
    }
    if flags.has_storage() {
        let parser = |text: &str| text.parse::<Kind>();
        let storage = Arg::new("storage").long("storage").value_name("KIND").value_parser(parser).default_value("disk");
        let has_file = command.get_arguments().any(|arg| arg.get_id() == "file");
        // A named file lies on a storage already.
        command = command.arg(storage.help(STORAGE).conflicts_with_all(has_file.then_some("file")));
    }
    if let Some(default) = flags.memory {
        let help = format!(
            "Limit on all memory of each run, cache and bookkeeping included; or none, where no memory cgroup can be made [default: \
             {default}, or none where no memory cgroup can be made]"
        );
        let parser = |text: &str| text.parse::<Memory>();
        command =
            command.arg(Arg::new("memory").long("memory").value_name("SIZE|none").value_parser(parser).help(help));
    }
    if let Some((default, what)) = flags.seconds {
        let arg = Arg::new("seconds").long("seconds").value_name("S").value_parser(seconds);
        command = command.arg(arg.default_value(default).help(what));
    }
    let repeat = Arg::new("repeat").long("repeat").value_name("R").value_parser(repetitions).help("Repetitions");
    let json = Arg::new("json").long("json").value_name("FILE").value_parser(path());
    command
        .arg(repeat.default_value(flags.repeat))
        .arg(json.help("Also write the results here as JSON, for `fastmap report`"))
}

/// The common flags, from which an experiment makes its plan. It also collects the notes for the report.
pub struct Ctx {
    /// `--dir`
    pub dir: Option<PathBuf>,
    /// `--storage`
    pub storage: Kind,
    /// The experiment makes its storage by itself.
    pub is_itself: bool,
    /// The storage that [`Ctx::dir_for`] made.
    made: Option<Storage>,
    /// `--memory`
    pub memory: Option<Memory>,
    /// `--seconds`
    pub seconds: f64,
    /// `--repeat`
    pub repeat: u32,
    /// Facts that a reader must know, in sentences: what was left out and why, and what cannot be compared.
    pub notes: Vec<String>,
}

impl Ctx {
    fn of<E: Experiment>(matches: &ArgMatches) -> Ctx {
        let flags = E::FLAGS;
        Ctx {
            dir: flags.dir.and_then(|_| matches.get_one("dir").cloned()),
            storage: flags.has_storage().then(|| matches.get_one("storage").copied()).flatten().unwrap_or_default(),
            made: None,
            is_itself: false,
            memory: flags.memory.and_then(|_| matches.get_one("memory").copied()),
            seconds: flags.seconds.and_then(|_| matches.get_one("seconds").copied()).unwrap_or_default(),
            repeat: matches.get_one("repeat").copied().unwrap_or(1),
            notes: Vec::new(),
        }
    }

    /// The folder of `--dir`. Without `--dir`, a folder with room for so many bytes.
    pub fn folder_for(&self, bytes: u64) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| crate::target::directory_for(bytes))
    }

    /// Makes the storage that `--storage` asks for, with room for `bytes`, and returns its folder.
    ///
    /// # Errors
    ///
    /// The storage cannot be made.
    pub fn dir_for(&mut self, bytes: u64) -> Result<PathBuf, Failure> {
        let (made, not_made) = Storage::make(self.storage, &self.folder_for(bytes), bytes)?;
        if let Some(why) = not_made {
            self.notes.push(format!(
                "The disk is the folder's as it is, with the readahead that the first line names, since no device with the usual one can be \
                 made over it: {why}."
            ));
        }
        Ok(self.made.insert(made).root.clone())
    }

    /// The kind of storage that the files are on, for the JSON. The storage was made by [`Ctx::dir_for`] or by the experiment itself.
    fn on(&self) -> &'static str {
        match &self.made {
            Some(made) => made.kind.name(),
            None if self.is_itself => self.storage.name(),
            None => Kind::Here.name(),
        }
    }

    /// The limit of `--memory`, else `default`. `suits` fails if the engines cannot work within a limit.
    ///
    /// # Errors
    ///
    /// `suits` fails, or the user asks for a limit and no memory cgroup can be made.
    pub fn limit(&self, default: u64, suits: impl FnOnce(u64) -> Result<(), Failure>) -> Result<Limit, Failure> {
        Limit::of(self.memory, default, suits)
    }

    /// The limit for runs on a file of `bytes` bytes. The default is a quarter of the file, or the least memory that works. If a fastmap
    /// engine takes part (`ours`), the limit must leave room for its cache.
    ///
    /// # Errors
    ///
    /// As [`Ctx::limit`].
    pub fn limit_of_file(&self, bytes: u64, writes: bool, ours: bool) -> Result<Limit, Failure> {
        let pages = bytes / PAGE as u64;
        self.limit((bytes / 4).max(least_memory(pages, writes)), |limit| match ours {
            true => Ok(capacity_for(limit, pages, writes).map(drop)?),
            false => Ok(()),
        })
    }
}

/// Runs an experiment.
///
/// # Errors
///
/// The failure of a run, or a run that was killed because it took too long. Only files that the user named are left behind.
pub fn run<E: Experiment>(matches: &ArgMatches) -> Result<(), Failure> {
    interrupt::watch();
    let args = E::Args::from_arg_matches(matches).map_err(|e| Failure::told(e.to_string()))?;
    let mut ctx = Ctx::of::<E>(matches);
    let mut json = matches.get_one::<PathBuf>("json").map(|path| JsonFile::open(path)).transpose()?;
    let mut plan = E::plan(&args, &mut ctx)?;
    let mut report = Report::new(E::NAME, &plan.place, &plan.file, plan.bytes, &plan.limit);
    report.about = command::<E>().get_about().map(ToString::to_string).unwrap_or_default();
    report.storage = ctx.on().to_owned();
    if let Some(under) = ctx.made.as_ref().and_then(|made| made.under.clone()) {
        report.machine.device = under;
    }
    let rows = measure(&mut plan, ctx.repeat, |rows, (done, all)| {
        let Some(json) = &mut json else { return Ok(()) };
        report.verified = E::VERIFIED.to_owned();
        report.results = Shown::<E>::new(rows).json();
        report.notes = vec![format!("NOT FINISHED: these are {done} of {all} runs.")];
        report.notes.extend(ctx.notes.iter().cloned());
        json.keep(&mut report)
    })?;
    tell(&mut plan, &ctx, &rows, &mut report);
    fastmap_cli::print(&text::<E>(&plan, &ctx, &rows, &report));
    if let Some(json) = &mut json {
        json.write(&mut report)?;
    }
    match rows.iter().map(|row| row.late.len()).sum::<usize>() {
        0 => Ok(()),
        late => {
            let what = format!("{late} figures are not there: their runs took too long and were killed");
            Err(Failure::new(
                format!("fastmap bench {}", E::NAME),
                what,
                "the notes say which: run one by itself to see why",
            ))
        }
    }
}

/// Makes all runs of all groups. The arms of a group take turns within each repetition. After every run `keep` gets the rows, the number of
/// runs made, and the number of all runs.
///
/// # Errors
///
/// The failure of a run, or of `keep`.
pub fn measure<E: Experiment>(
    plan: &mut Plan<E>,
    repeat: u32,
    mut keep: impl FnMut(&[Row<E::Outcome>], (u64, u64)) -> Result<(), Failure>,
) -> Result<Vec<Row<E::Outcome>>, Failure> {
    let Plan { groups, stage, limit, until_steady, bytes, .. } = plan;
    let until_steady = *until_steady;
    let times = |group: &Group<E::Case>| group.repeat.unwrap_or(repeat);
    let runs: u64 = groups.iter().map(|group| group.arms.len() as u64 * u64::from(times(group))).sum();
    let bar = progress_bar(runs, "{msg:44} {bar:30} {pos}/{len} runs, {eta} left");
    let mut rows: Vec<Row<E::Outcome>> = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        let mut repetition = 0;
        while repetition < times(group) || is_to_go_on::<E>(until_steady, repetition, &rows, at) {
            repetition += 1;
            if repetition > times(group) {
                bar.inc_length(group.arms.len() as u64);
            }
            for turn in 0..group.arms.len() {
                let first = if group.rotate { repetition as usize - 1 } else { 0 };
                let number = (turn + first) % group.arms.len();
                let arm = &group.arms[number];
                bar.set_message(format!("{}: {}, repetition {repetition}", group.what, arm.name));
                interrupt::check()?;
                let (engine, trial) = (arm.engine, group.trial);
                let turn = Turn { at: (at, number), engine, repetition, trial, rows: &rows, limit };
                let mut case = arm.case.clone();
                let launch = stage.before(&turn, &mut case)?;
                if !launch.skip {
                    let memory =
                        limit.bytes().filter(|_| !launch.unlimited).map(|bytes| launch.memory.unwrap_or(bytes));
                    touch_memory(memory.unwrap_or(*bytes + *bytes / 8))?;
                    let made = limit.attempt::<E>(&arm.name, &case, memory, launch.under.as_deref(), launch.within)?;
                    if let Some(undo) = launch.undo {
                        undo.keep();
                    }
                    match made {
                        Some(mut parts) => {
                            stage.after(&turn, &case, &mut parts)?;
                            for (nth, Part { name, reading, outcome }) in parts.into_iter().enumerate() {
                                let row = row_of(&mut rows, (at, group), number, (nth, name));
                                row.trials.push(Trial { repetition, reading, outcome });
                            }
                        }
                        None => {
                            let killed_after_s = launch.within.unwrap_or_default().as_secs_f64();
                            for part in stage.parts(&turn).into_iter().enumerate() {
                                let row = row_of(&mut rows, (at, group), number, part);
                                row.late.push(Late { repetition, killed_after_s });
                            }
                        }
                    }
                    keep(&rows, (bar.position() + 1, bar.length().unwrap_or(runs)))?;
                }
                bar.inc(1);
            }
        }
        if group.trial {
            rows.iter_mut().filter(|row| row.group == at).for_each(keep_the_slowest::<E>);
        }
    }
    bar.finish_and_clear();
    rows.sort_by_key(|row| (row.group, row.nth, row.arm));
    Ok(rows)
}

/// Whether the group is repeated once more: its repetitions do not agree yet, and fewer than `most` were made.
fn is_to_go_on<E: Experiment>(most: Option<u32>, repetition: u32, rows: &[Row<E::Outcome>], group: usize) -> bool {
    let shown = Shown::<E>::new(rows);
    most.is_some_and(|most| repetition < most) && rows.iter().any(|row| row.group == group && !shown.is_steady(row))
}

/// The row of a part of a run. It is added if it is missing.
fn row_of<'a, C, O>(
    rows: &'a mut Vec<Row<O>>,
    (at, group): (usize, &Group<C>),
    number: usize,
    (nth, part): (usize, String),
) -> &'a mut Row<O> {
    let same = |row: &Row<O>| (row.group, row.arm, &row.part) == (at, number, &part);
    let place = rows.iter().position(same).unwrap_or_else(|| {
        let arm = &group.arms[number];
        let mut labels = group.labels.clone();
        labels.push(("what", json!(group.what)));
        labels.extend(arm.labels.iter().cloned());
        rows.push(Row {
            group: at,
            arm: number,
            part,
            nth,
            what: in_full(group),
            engine: arm.engine,
            name: arm.name.clone(),
            labels,
            trial: group.trial,
            trials: Vec::new(),
            late: Vec::new(),
        });
        rows.len() - 1
    });
    &mut rows[place]
}

/// A group in words, with its number of threads.
fn in_full<C>(group: &Group<C>) -> String {
    let threads = group.labels.iter().find(|(name, _)| *name == "threads").and_then(|(_, number)| number.as_u64());
    match threads {
        Some(threads) if !group.named_whole => format!("{}, {}", group.what, count_threads(threads as u32)),
        _ => group.what.clone(),
    }
}

fn keep_the_slowest<E: Experiment>(row: &mut Row<E::Outcome>) {
    row.trials.sort_by(|a, b| a.reading.ops_per_s.total_cmp(&b.reading.ops_per_s));
    row.trials.truncate(1);
}

/// Fills in every field of the report except the time that the experiment took.
fn tell<E: Experiment>(plan: &mut Plan<E>, ctx: &Ctx, rows: &[Row<E::Outcome>], report: &mut Report<Value>) {
    let shown = Shown::<E>::new(rows);
    report.verified = E::VERIFIED.to_owned();
    report.headlines = shown.headlines(&E::claims());
    report.gains = shown.gains();
    report.figures = shown.figures(ctx.repeat);
    report.results = shown.json();
    report.notes = ctx.notes.clone();
    for row in rows {
        let part = if row.part.is_empty() { String::new() } else { format!(", {}", row.part) };
        report.notes.extend(row.late.iter().map(|late| {
            let Late { repetition, killed_after_s } = late;
            format!(
                "{}{part}: {}, repetition {repetition}: took too long, killed after {killed_after_s:.0} s.",
                row.what, row.name
            )
        }));
    }
    if E::page(rows).is_none() {
        report.notes.extend(shown.notes());
    }
    if plan.limit.bytes().is_none() && E::FLAGS.memory.is_some() {
        report.notes.push(
            "Nothing limited memory: kernel mmap may use all there is, FastMap only its cache. The comparison favours mmap.".to_owned(),
        );
    }
    plan.stage.tell(rows, report);
}

fn text<E: Experiment>(plan: &Plan<E>, ctx: &Ctx, rows: &[Row<E::Outcome>], report: &Report<Value>) -> String {
    // Groups with limits of their own have them in their labels.
    let own = plan.groups.iter().any(|group| group.labels.iter().any(|(name, _)| *name == "memory_limit_bytes"));
    let limit = match report.memory_limit_bytes.filter(|_| !own) {
        Some(bytes) => format!(", {} of memory each ({})", in_mib(bytes), report.memory_limit),
        None if E::FLAGS.memory.is_some() => ", NO LIMIT on memory".to_owned(),
        None => String::new(),
    };
    let seconds = if E::FLAGS.seconds.is_some() { format!(" x {} s", ctx.seconds) } else { String::new() };
    let about = if plan.about.is_empty() { String::new() } else { format!("{}, ", plan.about) };
    let mut text = format!(
        "{about}{} ({} on {}, {}){limit}; {}{seconds}\n",
        in_mib(report.file_bytes),
        report.machine.file_system,
        report.machine.device,
        report.machine.readahead(),
        ctx.repeat
    );
    match E::page(rows) {
        Some(page) => text.push_str(&page),
        None => {
            text.push_str(&Shown::<E>::new(rows).tables());
            text.push_str(&E::summary(rows));
            text.push('\n');
            text.extend(report.headlines.iter().map(line));
        }
    }
    text.extend(report.notes.iter().map(|note| format!("\n{note}\n")));
    text
}

/// A size for people: exact if it is a whole number of MiB, else rounded to a tenth.
fn in_mib(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 20) {
        true => Size(bytes).to_string(),
        false => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// Touches as much memory as a run will use. On a virtual machine the first touch of guest memory takes up to 25 times as long as a page
/// fault, since the host must provide the memory, and some hosts take back what lies free in pieces of 2 MiB for a second. The run would
/// pay for that, by which memory it happens to get. If less memory is available, less is touched.
fn touch_memory(wanted: u64) -> Result<(), Failure> {
    let bytes = wanted.min(machine::meminfo("MemAvailable") / 2).min(cgroup::own_limit() / 2) as usize;
    let Ok(mut memory) = memmap2::MmapMut::map_anon(bytes.max(1)) else {
        return Ok(());
    };
    // Small pages would come from what each processor keeps of those, which no huge page is made of. Without huge pages, small ones will do.
    _ = memory.advise(memmap2::Advice::HugePage);
    for chunk in memory.chunks_mut(64 << 20) {
        chunk.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        interrupt::check()?;
    }
    Ok(())
}

/// A progress bar on standard error. It is drawn only on a terminal.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Checks that `free` bytes in `dir` are enough for `bytes`.
///
/// # Errors
///
/// `free` is less than `bytes`.
pub fn check_room(dir: &Path, free: u64, bytes: u64) -> Result<(), Failure> {
    if free >= bytes {
        return Ok(());
    }
    let what = format!("has {} MiB left, and {} are needed", free >> 20, bytes >> 20);
    Err(Failure::new(dir.display(), what, "make room, name another place with --dir, or ask for less"))
}

/// A directory of our own in `dir`, which has room for `bytes`. It is removed when the value is dropped.
///
/// # Errors
///
/// `dir` has too little room, or cannot be written to.
pub fn own_directory(dir: &Path, bytes: u64) -> Result<tempfile::TempDir, Failure> {
    let failed = |e| {
        Failure::new(dir.display(), format!("cannot make a directory in it: {e}"), "name a writable place with --dir")
    };
    let free = File::open(dir).and_then(|dir| prepare::free_bytes(&dir)).map_err(failed)?;
    check_room(dir, free, bytes)?;
    // Some programs need an absolute path.
    let dir = dir.canonicalize().map_err(failed)?;
    tempfile::Builder::new().prefix("fastmap-bench-").tempdir_in(dir).map_err(failed)
}
