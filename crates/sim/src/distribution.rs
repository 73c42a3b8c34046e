//! Many seeds: how they come out.

use crate::policy::Outcome;
use crate::seed;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How one seed came out.
#[derive(Debug, Clone)]
pub struct Row {
    /// The seed.
    pub seed: u64,
    /// Its workload.
    pub name: String,
    /// Times as fast as it is.
    pub of_as_is: f64,
    /// Times as fast as with the best advice.
    pub of_best: f64,
    /// The best advice.
    pub best: String,
    /// How long it ran as it is, in seconds.
    pub seconds: f64,
    /// The part of a processor that the watcher took.
    pub share: f64,
    /// What it said.
    pub report: String,
}

impl Row {
    fn new(seed: u64, name: String, outcome: &Outcome) -> Row {
        Row {
            seed,
            name,
            of_as_is: outcome.of_as_is(),
            of_best: outcome.of_best(),
            best: format!("{:?}", outcome.best.0),
            seconds: outcome.as_is.time as f64 / crate::SECOND as f64,
            share: outcome.share(),
            report: outcome.watcher.report.clone().unwrap_or_default(),
        }
    }
}

/// Runs these seeds on all processors, in order of what comes out.
pub fn run(seeds: std::ops::Range<u64>) -> Vec<Row> {
    let (next, rows) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let case = seed::case(seed);
                    let row = Row::new(seed, case.name.clone(), &case.outcome(false));
                    rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by(|one, other| one.of_as_is.total_cmp(&other.of_as_is).then(one.seed.cmp(&other.seed)));
    rows
}

/// The distribution, and the worst seeds.
pub fn text(rows: &[Row], worst: usize) -> String {
    let mut text = String::new();
    for (name, of) in [("as it is", (|row| row.of_as_is) as fn(&Row) -> f64), ("the best advice", |row| row.of_best)] {
        let mut all: Vec<f64> = rows.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let at = |part: f64| all[((all.len() - 1) as f64 * part) as usize];
        let mean = (all.iter().map(|one| one.ln()).sum::<f64>() / all.len() as f64).exp();
        let below = all.iter().filter(|one| **one < 0.97).count();
        let _ = writeln!(
            text,
            "times as fast as {name}: mean {mean:.3}, least {:.3}, 0.1 % {:.3}, 1 % {:.3}, 10 % {:.3}, median {:.3}, 90 % {:.3}, most {:.2}; {below} of {} below 0.97",
            all[0],
            at(0.001),
            at(0.01),
            at(0.1),
            at(0.5),
            at(0.9),
            all[all.len() - 1],
            all.len(),
        );
    }
    let share = rows.iter().map(|row| row.share).fold(0.0, f64::max);
    let mean = rows.iter().map(|row| row.share).sum::<f64>() / rows.len() as f64;
    let idle = rows.iter().filter(|row| row.of_as_is < 1.02).map(|row| row.share).fold(0.0, f64::max);
    let _ = writeln!(
        text,
        "the watcher: {:.2} % of a processor in the mean, {:.2} % at most, {:.2} % where nothing was gained",
        mean * 100.0,
        share * 100.0,
        idle * 100.0
    );
    let mut rows: Vec<&Row> = rows.iter().collect();
    let _ = writeln!(text, "the least of as it is:");
    rows.iter().take(worst).for_each(|row| line(&mut text, row));
    rows.sort_by(|one, other| one.of_best.total_cmp(&other.of_best));
    let _ = writeln!(text, "the least of the best advice:");
    rows.iter().take(worst).for_each(|row| line(&mut text, row));
    text
}

fn line(text: &mut String, row: &Row) {
    let Row { seed, name, of_as_is, of_best, best, seconds, report, .. } = row;
    let _ = writeln!(
        text,
        "  {seed}: {of_as_is:.3} of as it is ({seconds:.1} s), {of_best:.3} of {best}: {name}\n      {report}"
    );
}
