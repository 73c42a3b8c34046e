//! The page for people: one table of what FastMap gains over the kernel. It has a column for each storage, and rows for each work.
//!
//! * A *work* is something that a benchmark measures, such as `touches at random, 4 threads`.
//! * A *way* is how FastMap serves a work: `fastmap run` or `engine`.

use super::Results;
use super::markdown::{escaped, table};
use super::summary::Verdict;
use super::words::{bytes, day, machine, ratio_of};
use crate::results::{Gain, Spread};
use crate::storages::LATENCY;
use fastmap_cli::machine::Machine;

/// The name of one way in results. The picture shows this way if any work was measured in it.
const RUN: &str = "fastmap run";

/// How to read the table.
const HOW_TO_READ: &str = "Each cell has two ratios. They say how many times as good FastMap is as kernel mmap. The first compares it with mmap as it is. \
    The second, behind the semicolon, compares it with mmap under the advice that serves the work best. Above 1 FastMap is better. A ratio is the \
    median of paired repetitions; the lowest and the highest are in brackets.";

/// The meaning of its signs.
const LEGEND: &str = "**Bold**: FastMap is ahead. ▼: FastMap is behind. No mark: level, which is within 3 % of 1, or with repetitions on both sides of 1. \
    `~`: the repetitions are far apart. –: not measured.";

/// The page.
pub struct Page<'a> {
    /// Storages, ordered by `rank`; at least one.
    pub columns: Vec<Column>,
    /// A row for each work and way. Rows of one work follow each other.
    pub rows: Vec<Row<'a>>,
    /// The machines, each with the days of its measurements.
    pub measured: Vec<Measured>,
}

/// A storage on a machine.
#[derive(PartialEq)]
pub struct Column {
    /// The storage, with its readahead or latency.
    pub title: String,
    /// The machine, and the days of its measurements on this storage.
    pub measured: Measured,
    /// Its place in the order of storages.
    rank: usize,
}

/// A machine, and the days on which it was measured.
#[derive(PartialEq)]
pub struct Measured {
    pub machine: String,
    pub days: Vec<String>,
}

/// A work, served in one way.
pub struct Row<'a> {
    /// The work's name, which no other work on the page has.
    pub work: String,
    /// `fastmap run` or `engine`.
    pub way: &'a str,
    /// The gain on each storage.
    pub cells: Vec<Option<&'a Gain>>,
}

/// An experiment, its work, and the number of the measurement, from 1: a work may be measured several times on one storage.
type Key<'a> = (&'a str, &'a str, usize);

impl<'a> Page<'a> {
    /// Makes the page of experiments. None: no experiment has gains.
    pub fn of(experiments: &'a [Results]) -> Option<Page<'a>> {
        let experiments: Vec<&Results> = experiments.iter().filter(|results| !results.gains.is_empty()).collect();
        if experiments.is_empty() {
            return None;
        }
        let measured = measured(&experiments);
        let (columns, column_of) = columns(&experiments, &measured);
        let mut works: Vec<Key<'_>> = Vec::new();
        let mut rows: Vec<(usize, Row<'_>)> = Vec::new();
        for (results, column) in experiments.iter().zip(column_of) {
            for gain in &results.gains {
                place(gain, &results.experiment, (column, columns.len()), &mut works, &mut rows);
            }
        }
        rows.sort_by_key(|(work, _)| *work);
        for (work, row) in &mut rows {
            row.work = told_apart(&works, works[*work]);
        }
        Some(Page { columns, rows: rows.into_iter().map(|(_, row)| row).collect(), measured })
    }

    /// The column and the way that the picture shows.
    pub fn shown(&self) -> (usize, &'a str) {
        let way = self.rows.iter().map(|row| row.way).find(|way| *way == RUN).unwrap_or(self.rows[0].way);
        let is_there = |column: &usize| self.rows.iter().any(|row| row.way == way && row.cells[*column].is_some());
        ((0..self.columns.len()).find(is_there).unwrap_or(0), way)
    }

    /// The page as Markdown. `pictures` holds the file names of the picture for light screens and of the picture for dark screens, or
    /// nothing.
    pub fn section(&self, pictures: &[&str]) -> String {
        let mut text = format!("\n## At a glance\n\n{HOW_TO_READ}\n\n{LEGEND}\n\nMeasured on:\n\n");
        for (n, measured) in self.measured.iter().enumerate() {
            let number = if self.measured.len() > 1 { format!("machine {}: ", n + 1) } else { String::new() };
            text.push_str(&format!("* {number}{}\n", escaped(&measured.to_string())));
        }
        if let [light, dark] = pictures {
            let (light, dark) = (address(light), address(dark));
            text.push_str(&format!(
                "\n<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"{dark}\">\n  \
                 <img src=\"{light}\" width=\"800\" alt=\"Bars of the ratios on one storage; the table has their numbers.\">\n</picture>\n"
            ));
        }
        let headings =
            ["Work", "By"].into_iter().map(str::to_owned).chain(self.columns.iter().map(|c| escaped(&c.title)));
        let mut before = None;
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                // Only the first row of a work has its name.
                let work =
                    if before.replace(&row.work) == Some(&row.work) { String::new() } else { escaped(&row.work) };
                let way = if row.way == RUN { format!("`{RUN}`") } else { escaped(row.way) };
                [work, way].into_iter().chain(row.cells.iter().map(|gain| cell(*gain))).collect()
            })
            .collect();
        text.push_str(&format!("\n{}", table(&headings.collect::<Vec<_>>(), &rows, 0)));
        text.push_str(&self.best_advice());
        text
    }

    /// A list of the advice that served best: for each storage, each advice and its works. The second ratio of a cell compares with this
    /// advice.
    fn best_advice(&self) -> String {
        let mut text = String::new();
        for (at, column) in self.columns.iter().enumerate() {
            let mut advice: Vec<(&str, Vec<&str>)> = Vec::new();
            for row in &self.rows {
                let Some(gain) = row.cells[at].filter(|gain| gain.best.is_some() && !gain.best_name.is_empty()) else {
                    continue;
                };
                let of = advice.iter().position(|(name, _)| *name == gain.best_name).unwrap_or_else(|| {
                    advice.push((&gain.best_name, Vec::new()));
                    advice.len() - 1
                });
                if !advice[of].1.contains(&row.work.as_str()) {
                    advice[of].1.push(&row.work);
                }
            }
            let said: Vec<_> = advice
                .iter()
                .map(|(name, works)| format!("{} ({})", escaped(name), escaped(&works.join("; "))))
                .collect();
            if !said.is_empty() {
                text.push_str(&format!("* {}: {}\n", escaped(&column.title), said.join(", ")));
            }
        }
        if text.is_empty() { text } else { format!("\nThe advice that served best:\n\n{text}") }
    }
}

/// The storages of experiments, in order, and for each experiment the number of its storage.
fn columns(experiments: &[&Results], machines: &[Measured]) -> (Vec<Column>, Vec<usize>) {
    let mut columns: Vec<Column> = Vec::new();
    let titles: Vec<_> = experiments
        .iter()
        .map(|results| {
            let number = machines.iter().position(|measured| measured.machine == machine(&results.machine));
            let number =
                number.filter(|_| machines.len() > 1).map_or_else(String::new, |n| format!(", machine {}", n + 1));
            let (rank, storage) = storage(&results.storage, &results.machine);
            (rank, format!("{storage}{number}"))
        })
        .collect();
    for (rank, title) in &titles {
        if !columns.iter().any(|column| column.title == *title) {
            let of: Vec<&Results> =
                experiments.iter().zip(&titles).filter(|(_, (_, other))| other == title).map(|(r, _)| *r).collect();
            columns.extend(measured(&of).into_iter().map(|measured| Column {
                title: title.clone(),
                measured,
                rank: *rank,
            }));
        }
    }
    columns.sort_by_key(|column| column.rank);
    let at = |title: &String| columns.iter().position(|column| column.title == *title).unwrap_or_default();
    let column_of = titles.iter().map(|(_, title)| at(title)).collect();
    (columns, column_of)
}

/// A storage's place in the order of storages, and the storage in words.
fn storage(name: &str, machine: &Machine) -> (usize, String) {
    let readahead = machine.read_ahead_kb.map_or_else(String::new, |kib| format!(", readahead {}", bytes(kib << 10)));
    match name {
        "disk" => (0, format!("disk{readahead}")),
        // `LATENCY` is the latency with which experiments make slow storage.
        "slow" => (1, format!("slow storage, {} a request", LATENCY.replace("ms", " ms"))),
        "fast" => (2, format!("fast (zram){readahead}")),
        "here" => (3, format!("this disk as it is{readahead}")),
        other => (4, format!("storage \"{other}\"{readahead}")),
    }
}

/// Each machine once, with the days of its experiments.
fn measured(experiments: &[&Results]) -> Vec<Measured> {
    let mut all: Vec<Measured> = Vec::new();
    for results in experiments {
        let (machine, day) = (machine(&results.machine), day(results.began_unix_s));
        match all.iter_mut().find(|known| known.machine == machine) {
            Some(known) if known.days.contains(&day) => {}
            Some(known) => known.days.push(day),
            None => all.push(Measured { machine, days: vec![day] }),
        }
    }
    all
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.machine, self.days.join(", "))
    }
}

/// Puts a gain into the row of its work and way. If that row has a gain on this storage already, the gain goes into the row of the next
/// measurement (the number in [`Key`]). A row that is missing is added.
fn place<'a>(
    gain: &'a Gain,
    experiment: &'a str,
    (column, columns): (usize, usize),
    works: &mut Vec<Key<'a>>,
    rows: &mut Vec<(usize, Row<'a>)>,
) {
    for nth in 1.. {
        let key = (experiment, gain.work.as_str(), nth);
        let work = works.iter().position(|known| *known == key).unwrap_or_else(|| {
            works.push(key);
            works.len() - 1
        });
        let at = rows.iter().position(|(of, row)| (*of, row.way) == (work, gain.way.as_str())).unwrap_or_else(|| {
            rows.push((work, Row { work: String::new(), way: &gain.way, cells: vec![None; columns] }));
            rows.len() - 1
        });
        let cell = &mut rows[at].1.cells[column];
        if cell.is_none() {
            *cell = Some(gain);
            return;
        }
    }
}

/// The name of a work. The experiment stands behind it if another experiment has a work of this name. The number of the measurement
/// stands behind it if it is not the first.
fn told_apart(works: &[Key<'_>], (experiment, work, nth): Key<'_>) -> String {
    let elsewhere = works.iter().any(|(other, same, _)| *same == work && *other != experiment);
    let experiment = if elsewhere { format!(" ({experiment})") } else { String::new() };
    let nth = if nth > 1 { format!(" ({nth})") } else { String::new() };
    format!("{work}{experiment}{nth}")
}

fn cell(gain: Option<&Gain>) -> String {
    let Some(gain) = gain else { return "–".to_owned() };
    // Markdown strikes out text between two `~`. At the end of a cell, behind a space, a `~` does not begin that.
    let unsteady = if gain.unsteady { " ~" } else { "" };
    format!("{}; {}{unsteady}", marked(gain.as_is), marked(gain.best))
}

fn marked(ratio: Option<Spread>) -> String {
    let Some(ratio) = ratio else { return "–".to_owned() };
    let text = ratio_of(ratio);
    match Verdict::of(ratio) {
        Verdict::Ahead => format!("**{text}**"),
        Verdict::Level => text,
        Verdict::Behind => format!("▼ {text}"),
    }
}

/// A file's name as the address of a link, percent-encoded.
fn address(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::samples::results;

    /// A gain with these medians. The repetitions are up to a tenth below and above.
    pub fn gain(work: &str, way: &str, as_is: f64, best: f64) -> Gain {
        let spread = |median: f64| Some(Spread { median, low: median * 0.9, high: median * 1.1 });
        Gain {
            work: work.into(),
            way: way.into(),
            as_is: spread(as_is),
            best: spread(best),
            best_name: "MADV_RANDOM".into(),
            unsteady: false,
        }
    }

    /// Results on a storage.
    pub fn on(storage: &str, experiment: &str, gains: Vec<Gain>) -> Results {
        let mut results = results(experiment, Vec::new(), Vec::new());
        results.machine.read_ahead_kb = Some(128);
        (results.storage, results.gains) = (storage.into(), gains);
        results
    }

    #[test]
    fn storages_are_columns_in_their_order_and_what_was_not_measured_is_missing() {
        let mut behind = gain("walk", RUN, 0.5, 0.5);
        (behind.unsteady, behind.best) = (true, None);
        let all = [
            on("here", "tour", vec![gain("walk", RUN, 1.0, 1.0)]),
            on("fast", "tour", vec![behind]),
            on(
                "disk",
                "tour",
                vec![gain("random", RUN, 4.0, 1.5), gain("walk", RUN, 1.0, 1.0), gain("random", "engine", 5.0, 2.0)],
            ),
        ];
        let page = Page::of(&all).unwrap();
        let titles: Vec<&str> = page.columns.iter().map(|c| c.title.as_str()).collect();
        assert_eq!(
            titles,
            ["disk, readahead 128 KiB", "fast (zram), readahead 128 KiB", "this disk as it is, readahead 128 KiB"]
        );
        assert_eq!(page.shown(), (0, RUN));
        let text = page.section(&[]);
        for line in [
            "| walk | `fastmap run` | 1 (0.9-1.1); 1 (0.9-1.1) | ▼ 0.5 (0.45-0.55); – ~ | 1 (0.9-1.1); 1 (0.9-1.1) |\n\
             | random | `fastmap run` | **4 (3.6-4.4)**; **1.5 (1.35-1.65)** | – | – |\n\
             |  | engine | **5 (4.5-5.5)**; **2 (1.8-2.2)** | – | – |\n",
            "\n* disk, readahead 128 KiB: MADV\\_RANDOM (walk; random)\n* this disk",
            "* 2 processors (CPU), 8 GiB of memory, Linux 6.1; 22 November 2026\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("<picture>") && !text.contains("machine 1"));
    }

    #[test]
    fn what_is_called_alike_is_told_apart() {
        let mut other = on("disk", "tour", vec![gain("walk", RUN, 2.0, 1.0)]);
        other.machine.cpus = 16;
        let all = [
            on("disk", "tour", vec![gain("walk", RUN, 2.0, 1.0), gain("loop", RUN, 2.0, 1.0)]),
            on("disk", "loads", vec![gain("walk", RUN, 2.0, 1.0)]),
            on("disk", "tour", vec![gain("walk", RUN, 2.0, 1.0)]),
            other,
        ];
        let page = Page::of(&all).unwrap();
        let works: Vec<&str> = page.rows.iter().map(|row| row.work.as_str()).collect();
        assert_eq!(works, ["walk (tour)", "loop", "walk (loads)", "walk (tour) (2)"]);
        let titles: Vec<&str> = page.columns.iter().map(|c| c.title.as_str()).collect();
        assert_eq!(titles, ["disk, readahead 128 KiB, machine 1", "disk, readahead 128 KiB, machine 2"]);
        assert!(page.section(&[]).contains("* machine 2: 16 processors"));
    }

    #[test]
    fn results_without_gains_give_no_page() {
        assert!(Page::of(&[results("kv", Vec::new(), Vec::new())]).is_none());
        assert_eq!(address("a b\"ü-light.svg"), "a%20b%22%C3%BC-light.svg");
    }
}
