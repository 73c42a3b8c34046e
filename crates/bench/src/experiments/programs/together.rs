//! Results of all programs together: a table, geometric means, and plots of the means.

use fastmap_cli::table::{figure, render};

use super::Outcome;
use crate::experiment::{Row, paired};
use crate::results::{Axis, Figure, Headline, Kind, Point, Series, Spread, X, median};
use crate::substrates::Engine;

/// A table with a column for each program. There is a line for each setting (memory, and cold or warm) and each way but kernel mmap as it is. The
/// last columns are the means.
pub fn table(rows: &[Row<Outcome>]) -> String {
    let programs = distinct(rows.iter().map(|row| row.text("program")));
    let titles: Vec<&str> = [""].into_iter().chain(programs.iter().copied()).chain(["mean", "to best"]).collect();
    let line = |memory: &str, temperature: &str, name: &str| {
        let means = [mean(rows, memory, temperature, name, Kernel::AsItIs)?, mean(rows, memory, temperature, name, Kernel::Best)?];
        let of = |program: &&str| {
            let row = rows.iter().find(|row| is(row, memory, temperature, name) && row.text("program") == *program);
            let none = if row.is_some_and(|row| row.trials.is_empty()) { "killed" } else { "-" };
            row.and_then(|row| times_kernel(row, rows)).map_or_else(|| none.to_owned(), figure)
        };
        let cells = programs.iter().map(of).chain(means.map(|mean| figure(mean.median)));
        Some([format!("{memory}, {temperature}: {name}")].into_iter().chain(cells).collect())
    };
    let mut lines: Vec<Vec<String>> = Vec::new();
    for (memory, temperature) in settings(rows) {
        lines.extend(names(rows).into_iter().filter_map(|name| line(memory, temperature, name)));
    }
    if lines.is_empty() {
        return String::new();
    }
    let what = "How many times as fast as kernel mmap as it is. mean: the geometric mean of these ratios. to best: the geometric mean of the \
                ratios to kernel or advised, whichever is better for the program";
    format!("\n{what}\n\n{}", render(&titles, &lines))
}

/// The kernel mmap that a way is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// Kernel mmap as it is.
    AsItIs,
    /// The better of kernel mmap as it is and kernel mmap with advice, for each program.
    Best,
}

/// The geometric means of FastMap's ways, as headlines.
pub fn headlines(rows: &[Row<Outcome>]) -> Vec<Headline> {
    let ours = |name: &str| rows.iter().any(|row| row.name == name && row.engine == Engine::Fastmap);
    let mut told = Vec::new();
    for (memory, temperature) in settings(rows) {
        let part = match memory {
            "all" => "all".to_owned(),
            "most" => "four fifths".to_owned(),
            "eighth" => "an eighth".to_owned(),
            other => format!("a {other}"),
        };
        for name in names(rows).into_iter().filter(|name| ours(name)) {
            let Some(ratio) = mean(rows, memory, temperature, name, Kernel::Best) else { continue };
            let what = format!("real programs, memory for {part} of the data, {temperature}, geometric mean");
            let what = format!("{what}: {name} to kernel or advised, whichever is better");
            told.push(Headline { what, ratio, paper: None });
        }
    }
    told
}

/// The means for each share of memory: a plot of cold runs and a plot of warm runs.
pub fn figures(rows: &[Row<Outcome>]) -> Vec<Figure> {
    let plot = |temperature: &str| {
        let series = |name: &str| {
            let points = settings(rows).into_iter().filter(|(_, of)| *of == temperature).filter_map(|(memory, _)| {
                let Spread { median, low, high } = mean(rows, memory, temperature, name, Kernel::AsItIs)?;
                Some(Point { x: X::from(memory), y: median, range: Some((low, high)) })
            });
            Series { name: name.to_owned(), points: points.collect() }
        };
        let series: Vec<Series> = names(rows).into_iter().map(series).filter(|series| !series.points.is_empty()).collect();
        let caption = "How many times as fast as kernel mmap as it is, over all programs, for each share of the data that fits into memory; \
                       more is better.";
        (!series.is_empty()).then(|| Figure {
            title: format!("Real programs, geometric mean, {temperature}"),
            caption: caption.to_owned(),
            paper: None,
            kind: Kind::Bars,
            x: Axis::of("memory"),
            y: Axis::log("times kernel mmap as it is"),
            series,
        })
    };
    distinct(settings(rows).into_iter().map(|(_, temperature)| temperature)).into_iter().filter_map(plot).collect()
}

/// The row's operations a second, divided by those of kernel mmap as it is. A median of the repetitions.
pub fn times_kernel(row: &Row<Outcome>, rows: &[Row<Outcome>]) -> Option<f64> {
    let pairs = pairs(row, rows, Kernel::AsItIs)?;
    (!pairs.is_empty()).then(|| median(pairs))
}

/// The ratios of the row to the kernel, repetition by repetition.
fn pairs(row: &Row<Outcome>, rows: &[Row<Outcome>], kernel: Kernel) -> Option<Vec<f64>> {
    let rates = |row: &Row<Outcome>| row.trials.iter().map(|t| (t.repetition, t.reading.ops_per_s)).collect::<Vec<_>>();
    if row.trials.is_empty() {
        return None;
    }
    let middle = |row: &&Row<Outcome>| median(rates(row).into_iter().map(|(_, rate)| rate).collect());
    let theirs = rows.iter().filter(|other| (other.group, &other.part) == (row.group, &row.part) && !other.trials.is_empty());
    let theirs = theirs.filter(|other| other.engine == Engine::Mmap || kernel == Kernel::Best && other.engine.is_mmap());
    let best = theirs.max_by(|a, b| middle(a).total_cmp(&middle(b)))?;
    (row.engine != Engine::Mmap).then(|| paired(&rates(row), &rates(best), false))
}

/// The geometric mean over all programs in one setting, repetition by repetition.
fn mean(rows: &[Row<Outcome>], memory: &str, temperature: &str, name: &str, kernel: Kernel) -> Option<Spread> {
    let of_name = rows.iter().filter(|row| is(row, memory, temperature, name));
    let all: Vec<Vec<f64>> = of_name.filter_map(|row| pairs(row, rows, kernel)).collect();
    let all: Vec<_> = all.into_iter().filter(|pairs| !pairs.is_empty()).collect();
    let repetitions = all.iter().map(Vec::len).min()?;
    let mean = |n: usize| (all.iter().map(|pairs| pairs[n].ln()).sum::<f64>() / all.len() as f64).exp();
    Some(Spread::of(&(0..repetitions).map(mean).collect::<Vec<_>>()))
}

fn is(row: &Row<Outcome>, memory: &str, temperature: &str, name: &str) -> bool {
    row.text("memory") == memory && heat(row) == temperature && row.name == name
}

/// `cold` or `warm`: the last word of a part's name.
fn heat<O>(row: &Row<O>) -> &str {
    row.part.rsplit(", ").next().unwrap_or_default()
}

fn settings(rows: &[Row<Outcome>]) -> Vec<(&str, &str)> {
    distinct(rows.iter().map(|row| (row.text("memory"), heat(row))))
}

fn names(rows: &[Row<Outcome>]) -> Vec<&str> {
    distinct(rows.iter().map(|row| row.name.as_str()))
}

/// The items without repetitions, in their order.
pub fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut once, one| {
        if !once.contains(&one) {
            once.push(one);
        }
        once
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::experiment::Trial;
    use crate::substrates::Reading;

    #[test]
    fn the_mean_is_over_programs_and_by_repetition() {
        let row = |group, arm, program: &str, rates: [f64; 2]| Row {
            group,
            arm,
            part: "half, cold".to_owned(),
            nth: 0,
            what: program.to_owned(),
            engine: [Engine::Mmap, Engine::Fastmap, Engine::MmapAdvised][arm],
            late: Vec::new(),
            name: ["kernel", "fastmap", "advised"][arm].to_owned(),
            labels: vec![("program", json!(program)), ("memory", json!("half"))],
            trial: false,
            trials: (1..)
                .zip(rates)
                .map(|(repetition, ops_per_s)| Trial {
                    repetition,
                    reading: Reading { ops_per_s, ..Reading::default() },
                    outcome: Outcome::default(),
                })
                .collect(),
        };
        let rows = [
            row(0, 0, "lmdb", [10.0, 20.0]),
            row(0, 1, "lmdb", [40.0, 20.0]),
            row(0, 2, "lmdb", [40.0, 10.0]),
            row(1, 0, "sqlite", [3.0, 3.0]),
            row(1, 1, "sqlite", [3.0, 12.0]),
            row(1, 2, "sqlite", [6.0, 24.0]),
        ];
        let of = |name, kernel| mean(&rows, "half", "cold", name, kernel).unwrap();
        let near = |spread: Spread, low: f64, high: f64| (spread.low - low).abs() < 1e-9 && (spread.high - high).abs() < 1e-9;
        assert!(near(of("fastmap", Kernel::AsItIs), 2.0, 2.0));
        // For sqlite advice is better in both repetitions. For lmdb it is better only in the first, but has the higher median.
        assert!(near(of("fastmap", Kernel::Best), 0.5f64.sqrt(), 1.0), "{:?}", of("fastmap", Kernel::Best));
        assert!(near(of("advised", Kernel::Best), 1.0, 1.0));
        assert!(mean(&rows, "half", "cold", "kernel", Kernel::Best).is_none());
        assert!(mean(&rows, "half", "warm", "fastmap", Kernel::AsItIs).is_none());
        assert_eq!((times_kernel(&rows[1], &rows), times_kernel(&rows[0], &rows)), (Some(2.5), None));
        let table = table(&rows);
        assert!(table.contains("lmdb  sqlite  mean  to best\n"), "{table}");
        assert!(table.contains("half, cold: fastmap  2.50    2.50  2.00    0.854\n"), "{table}");
        let headlines = headlines(&rows);
        assert!(headlines.len() == 1 && headlines[0].what.contains("a half of the data, cold"), "{headlines:?}");
    }
}
