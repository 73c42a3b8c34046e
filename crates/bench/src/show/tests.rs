//! Tests with an experiment that was never run: its figures are made up.

use serde::{Deserialize, Serialize};

use super::*;
use crate::driver::{self, Ctx};
use crate::experiment::columns::rate;
use crate::experiment::{
    Arm, FASTMAP, Flags, Group, Labels, Launch, MMAP, Nothing, Paper, Part, Plan, Stage, Trial, Turn,
};
use crate::report::ReportArgs;
use crate::results::{JsonFile, Report};
use crate::runner::Limit;
use crate::substrates::{Engine, Meter, Reading, Result};

#[derive(Debug, clap::Args)]
struct NoFlags {}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Extra {
    #[serde(default)]
    flush_seconds: Option<f64>,
}

struct Made;

impl Experiment for Made {
    const NAME: &'static str = "made";
    type Args = NoFlags;
    type Case = u32;
    type Outcome = Extra;
    const PART: &'static str = "workload";
    const FLAGS: Flags = Flags { repeat: "3", seconds: None, memory: None, dir: None };
    const COLUMNS: &'static [Column<Extra>] = &[
        rate(),
        Column::from("times", "x best mmap", "times", Of::TimesMmap("ops_per_s")),
        Column::new("flush.seconds", "flush s", "seconds", |t: &Trial<Extra>| t.outcome.flush_seconds).less().range(),
        Column::from("worth", "worth", "times", Of::Worth("flush.seconds")),
        Column::new("deviation", "", "%", |t: &Trial<Extra>| Some(t.reading.ops_per_s)).stat(Stat::RelativeDeviation),
        Column::from("rows", "", "rows", Of::Rows(|_, rows| Some(rows.len() as f64))),
    ];
    const PLOTS: &'static [Plot<Extra>] = &[
        Plot::new("Rates", &["ops_per_s"], Kind::Lines, Over::Label("threads")).after("A paper, figure 1"),
        Plot::new("Both", &["ops_per_s", "flush.seconds"], Kind::Bars, Over::Arms)
            .of(|row| row.number("threads") == Some(1.0)),
        Plot::new("Works", &["ops_per_s"], Kind::Bars, Over::Parts).log(),
        Plot::new("Groups", &["ops_per_s"], Kind::Bars, Over::Groups).of(|row| row.part == "load"),
    ];
    const VERIFIED: &'static str = "By nobody.";

    fn plan(_: &NoFlags, _: &mut Ctx) -> std::result::Result<Plan<Made>, fastmap_cli::failure::Failure> {
        unreachable!("nobody runs it")
    }

    fn run(_: &u32, _: &Meter) -> Result<Vec<Part<Extra>>> {
        unreachable!("nobody runs it")
    }

    fn claims() -> Vec<Claim<Extra>> {
        vec![
            Claim::new("ops_per_s").of(|row| row.part == "load").paper(|_| Paper::says(3.5, "A paper", "elsewhere")),
            Claim { mean: true, ..Claim::new("ops_per_s").most_threads() },
            Claim::new("flush.seconds").between(FASTMAP, MMAP).what("flush"),
            Claim { best: true, ..Claim::new("ops_per_s").between(&[Engine::FastmapPin, Engine::Fastmap], MMAP) }
                .of(|row| row.part == "run"),
        ]
    }
}

/// A row of one arm and part, in the group with so many threads, with the rates of three repetitions.
fn row(threads: u64, engine: Engine, part: &str, rates: [f64; 3], flush: Option<f64>) -> Row<Extra> {
    let trial = |(n, ops_per_s): (usize, &f64)| Trial {
        repetition: n as u32 + 1,
        reading: Reading { ops_per_s: *ops_per_s, ops: 7, ..Reading::default() },
        outcome: Extra { flush_seconds: flush.map(|s| s * (n + 1) as f64) },
    };
    let engines = [Engine::Mmap, Engine::MmapRandom, Engine::Fastmap, Engine::FastmapPin];
    let labels: Labels = vec![("threads", json!(threads)), ("what", json!("work"))];
    Row {
        group: threads as usize,
        arm: engines.iter().position(|one| *one == engine).unwrap(),
        part: part.to_owned(),
        nth: usize::from(part == "run"),
        what: format!("work, {threads} threads"),
        engine,
        name: engine.to_string(),
        labels,
        trial: false,
        late: Vec::new(),
        trials: rates.iter().enumerate().map(trial).collect(),
    }
}

fn rows() -> Vec<Row<Extra>> {
    let mut rows = Vec::new();
    for threads in [1, 2] {
        let k = threads as f64 * 1e3;
        rows.push(row(threads, Engine::Mmap, "load", [k, 9.0 * k, 2.0 * k], Some(4.0)));
        rows.push(row(threads, Engine::MmapRandom, "load", [4.0 * k, 5.0 * k, 3.0 * k], Some(1.0)));
        rows.push(row(threads, Engine::Fastmap, "load", [8.0 * k, 5.0 * k, 9.0 * k], Some(2.0)));
        rows.push(row(threads, Engine::MmapRandom, "run", [k, k, k], None));
        rows.push(row(threads, Engine::Fastmap, "run", [8.0 * k, 9.0 * k, 4.0 * k / 3.0], None));
        rows.push(row(threads, Engine::FastmapPin, "run", [9.0 * k, 9.0 * k, 9.0 * k], None));
    }
    rows
}

#[test]
fn columns_come_to_known_figures() {
    let rows = rows();
    let shown = Shown::<Made>::new(&rows);
    let value = |row: usize, key: &str| shown.value(&rows[row], shown.column(key));
    assert_eq!((value(0, "ops_per_s"), value(1, "ops_per_s")), (Some(2000.0), Some(4000.0)), "medians");
    // The repetitions are compared with those of mmap-random, whose median is the best: 8/4, 5/5, 9/3.
    assert_eq!(value(2, "times"), Some(2.0));
    assert_eq!(shown.spread(&rows[2], shown.column("times")), Some(Spread { median: 2.0, low: 1.0, high: 3.0 }));
    assert_eq!(value(1, "times"), Some(1.0), "the best itself");
    // The first arm's flush takes 4, and mmap-random's takes 1. So the worth is a quarter.
    assert_eq!((value(0, "worth"), value(1, "worth"), value(3, "worth")), (None, Some(0.25), None));
    assert_eq!((value(5, "deviation"), value(0, "rows")), (Some(0.0), Some(12.0)));
    assert_eq!(value(3, "flush.seconds"), None);
    assert_eq!(shown.spread(&rows[0], shown.column("deviation")), None, "no figure of a repetition");
}

#[test]
fn tables_have_a_row_for_each_arm_and_leave_out_what_nobody_measured() {
    let rows = rows();
    let tables = Shown::<Made>::new(&rows).tables();
    let lines: Vec<Vec<&str>> = tables.lines().map(|line| line.split_whitespace().collect()).collect();
    // The groups differ only in their threads, so they share a table.
    assert_eq!(lines[1], ["work"]);
    let headings = ["engine", "threads", "kops/s", "min..max", "x", "best", "mmap", "flush", "s", "min..max", "worth"];
    assert_eq!(lines[3], headings);
    assert_eq!(
        lines[4],
        ["load:", "mmap", "1", "2.00", "1.00..9.00", "(!400%)", "0.667", "8.00", "4.00..12.0", "(!100%)", "-"]
    );
    assert_eq!(
        lines[6],
        ["load:", "fastmap", "1", "8.00", "5.00..9.00", "(!50%)", "2.00", "4.00", "2.00..6.00", "(!100%)", "0.500"]
    );
    assert_eq!(lines[9], ["run:", "fastmap-pin", "1", "9.00", "9.00..9.00", "9.00", "-", "-", "-"]);
    let run: Vec<Row<Extra>> = rows.into_iter().filter(|row| row.part == "run" && row.group == 1).collect();
    let tables = Shown::<Made>::new(&run).tables();
    assert!(tables.starts_with("\nwork, 1 threads\n\nengine") && !tables.contains("flush"), "{tables}");
}

#[test]
fn claims_are_ratios_repetition_by_repetition_beside_the_papers() {
    let rows = rows();
    let headlines = Shown::<Made>::new(&rows).headlines(&Made::claims());
    let said: Vec<(&str, Spread)> = headlines.iter().map(|h| (h.what.as_str(), h.ratio)).collect();
    let spread = |median, low, high| Spread { median, low, high };
    assert_eq!(said[0], ("work, 1 threads, load: fastmap to mmap-random", spread(2.0, 1.0, 3.0)));
    assert_eq!(said[1].0, "work, 2 threads, load: fastmap to mmap-random");
    assert_eq!(headlines[0].paper.as_ref().unwrap().ratio, 3.5);
    assert_eq!(
        line(&headlines[0]),
        "work, 1 threads, load: fastmap to mmap-random: 2.00x (1.00..3.00; paper 3.50), ahead\n"
    );
    // The mean of both parts, with the most threads only: sqrt(2 * 8), sqrt(1 * 9), sqrt(3 * 4/3).
    assert_eq!(said[2].0, "work, 2 threads, mean of all: fastmap to mmap-random");
    let mean = said[2].1;
    assert!(
        (mean.low - 2.0).abs() < 1e-9 && (mean.median - 3.0).abs() < 1e-9 && (mean.high - 4.0).abs() < 1e-9,
        "{mean:?}"
    );
    assert_eq!(
        said[3],
        ("flush, work, 1 threads, load: fastmap to mmap-random", spread(0.5, 0.5, 0.5)),
        "less is better"
    );
    assert_eq!(said[5].0, "work, 1 threads, run: fastmap-pin to mmap-random", "the best of ours alone");
    assert_eq!(said.len(), 7);
}

#[test]
fn a_trial_is_in_no_comparison() {
    let mut rows = rows();
    rows[1].trial = true;
    let shown = Shown::<Made>::new(&rows);
    let to = |what: &str| shown.headlines(&Made::claims()).iter().any(|h| h.what == what);
    assert!(to("work, 1 threads, load: fastmap to mmap") && !to("work, 1 threads, load: fastmap to mmap-random"));
    assert!(shown.tables().contains("load: mmap-random (trial)"));
}

#[test]
fn plots_are_columns_over_an_axis() {
    let rows = rows();
    let figures = Shown::<Made>::new(&rows).figures(3);
    let said: Vec<(&str, usize, usize)> =
        figures.iter().map(|f| (f.title.as_str(), f.series.len(), f.series[0].points.len())).collect();
    let expected = [
        ("Rates: work, load", 3, 2),
        ("Rates: work, run", 3, 2),
        ("Both: work, 1 threads, load", 2, 3),
        ("Both: work, 1 threads, run", 1, 3),
        ("Works: work, 1 threads", 4, 1),
        ("Works: work, 2 threads", 4, 1),
        ("Groups: load", 3, 2),
    ];
    assert_eq!(said, expected);
    let rates = &figures[0];
    assert_eq!(
        (rates.kind, rates.x.label.as_str(), rates.paper.as_deref()),
        (Kind::Lines, "threads", Some("A paper, figure 1"))
    );
    let point = &rates.series[2].points[1];
    assert_eq!((&point.x, point.y, point.range), (&X::Number(2.0), 16.0, Some((10.0, 18.0))), "thousands");
    assert!(figures[4].y.log && figures[2].series[1].name == "flush s");
    // With one number of threads there is no axis of threads, so the plot has bars.
    let one: Vec<Row<Extra>> = rows.into_iter().filter(|row| row.group == 1 && row.part == "load").collect();
    assert_eq!(Shown::<Made>::new(&one).figures(1)[0].kind, Kind::Bars);
}

#[test]
fn the_json_has_labels_columns_runs_and_every_trial_and_the_report_reads_it() {
    let rows = rows();
    let shown = Shown::<Made>::new(&rows);
    let json = shown.json();
    let row = &json[2];
    assert_eq!(
        (row["engine"].as_str(), row["workload"].as_str(), row["threads"].as_u64()),
        (Some("fastmap"), Some("load"), Some(1))
    );
    assert_eq!((row["ops_per_s"].as_u64(), row["flush"]["seconds"].as_u64()), (Some(8000), Some(4)), "{row}");
    assert_eq!(row["runs"], json!([8000.0, 5000.0, 9000.0]));
    assert!(row.get("what").is_none() && row.get("trial").is_none() && json[3].get("flush").is_none());
    let trials: Vec<Trial<Extra>> = serde_json::from_value(row["trials"].clone()).unwrap();
    assert_eq!(
        (trials[1].repetition, trials[1].reading.ops_per_s, trials[1].outcome.flush_seconds),
        (2, 5000.0, Some(4.0))
    );

    let mut report = Report::new("made", std::path::Path::new("."), "a file", 4096, &Limit::none());
    (report.headlines, report.figures, report.results) = (shown.headlines(&Made::claims()), shown.figures(3), json);
    report.verified = Made::VERIFIED.to_owned();
    let dir = tempfile::tempdir().unwrap();
    let [json, output] = ["made.json", "made.md"].map(|name| dir.path().join(name));
    JsonFile::open(&json).unwrap().write(&mut report).unwrap();
    crate::report::run(&ReportArgs { results: vec![json], output: output.clone() }).unwrap();
    let text = std::fs::read_to_string(output).unwrap();
    for part in [
        "* **2.00x (1.00x to 3.00x)** made: work, 1 threads, load: fastmap to mmap-random",
        "| 3.50x |",
        "### Rates: work, load",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A stage for the driver's loop that never lets a run begin.
struct Refuses(Vec<(usize, usize, u32)>);

impl Stage<Idle> for std::rc::Rc<std::cell::RefCell<Refuses>> {
    fn before(
        &mut self,
        turn: &Turn<'_, Idle>,
        _: &mut u32,
    ) -> std::result::Result<Launch, fastmap_cli::failure::Failure> {
        self.borrow_mut().0.push((turn.at.0, turn.at.1, turn.repetition));
        Ok(Launch { skip: true, ..Launch::default() })
    }
}

struct Idle;

impl Experiment for Idle {
    const NAME: &'static str = "idle";
    type Args = NoFlags;
    type Case = u32;
    type Outcome = Nothing;
    const FLAGS: Flags = Made::FLAGS;
    const COLUMNS: &'static [Column<Nothing>] = &[rate()];
    const PLOTS: &'static [Plot<Nothing>] = &[];
    const VERIFIED: &'static str = "";

    fn plan(_: &NoFlags, _: &mut Ctx) -> std::result::Result<Plan<Idle>, fastmap_cli::failure::Failure> {
        unreachable!("nobody runs it")
    }

    fn run(_: &u32, _: &Meter) -> Result<Vec<Part<Nothing>>> {
        unreachable!("nobody runs it")
    }

    fn claims() -> Vec<Claim<Nothing>> {
        Vec::new()
    }
}

#[test]
fn arms_take_turns_and_each_begins_once_where_that_is_asked_for() {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Refuses(Vec::new())));
    let arms = || vec![Arm::of(Engine::Mmap, 1), Arm::of(Engine::Fastmap, 2)];
    let rotated = Group { rotate: true, ..Group::new("second", Vec::new(), arms()) };
    let trial = Group { trial: true, repeat: Some(1), ..Group::new("first", Vec::new(), arms()) };
    let mut plan = Plan::<Idle> {
        about: String::new(),
        place: ".".into(),
        file: String::new(),
        bytes: 0,
        limit: Limit::none(),
        groups: vec![trial, rotated],
        until_steady: None,
        stage: Box::new(std::rc::Rc::clone(&seen)),
    };
    assert!(driver::measure(&mut plan, 2, |_, _| Ok(())).unwrap().is_empty(), "what is skipped leaves no row");
    assert_eq!(seen.borrow().0, [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1), (1, 1, 2), (1, 0, 2)]);
}

#[test]
fn what_is_told_ahead_is_no_rival_of_what_is_not_but_on_a_walk() {
    let told = |engine, rate: f64| Row {
        arm: 9,
        engine,
        name: engine.to_string(),
        ..row(1, Engine::Mmap, "load", [rate; 3], None)
    };
    let mut rows = vec![
        row(1, Engine::MmapRandom, "load", [1e3; 3], None),
        told(Engine::MmapWillneed, 8e3),
        row(1, Engine::Fastmap, "load", [2e3; 3], None),
        told(Engine::FastmapPrefetch, 4e3),
    ];
    let times = |rows: &[Row<Extra>]| {
        let shown = Shown::<Made>::new(rows);
        [2, 3].map(|row| shown.value(&rows[row], shown.column("times")))
    };
    let headline = |rows: &[Row<Extra>]| Shown::<Made>::new(rows).headlines(&Made::claims())[0].what.clone();
    assert_eq!(times(&rows), [Some(2.0), Some(0.5)]);
    assert!(headline(&rows).ends_with("fastmap to mmap-random"));
    rows.iter_mut().for_each(|row| row.labels.insert(0, ("pattern", json!("backward"))));
    assert_eq!(times(&rows), [Some(0.25), Some(0.5)]);
    assert!(headline(&rows).ends_with("fastmap to mmap-willneed"));
}

#[test]
fn rows_that_do_not_agree_or_were_cold_say_so() {
    let mut rows = vec![
        row(1, Engine::Mmap, "load", [1000.0, 1050.0, 1100.0], None),
        row(1, Engine::MmapRandom, "load", [1000.0, 1100.0, 1120.0], None),
        row(1, Engine::Fastmap, "load", [1000.0; 3], None),
    ];
    rows[2].trials[1].reading.cold = true;
    let shown = Shown::<Made>::new(&rows);
    let tables = shown.tables();
    assert!(tables.contains("1.00..1.12 (!11%)") && tables.matches("(!").count() == 1, "{tables}");
    assert!(tables.contains("load: fastmap (cold)"), "{tables}");
    let notes = shown.notes();
    assert!(
        notes[0].ends_with("work, 1 threads, mmap-random (11 %).") && notes[1].ends_with("work, 1 threads, fastmap."),
        "{notes:?}"
    );
    rows[2].trials[1].reading.cold = false;
    assert!(Shown::<Made>::new(&rows[2..]).notes().is_empty());
}
