//! The results of `fastmap bench try`: a table and a sentence.

use fastmap_cli::table::{figure, render};

use crate::substrates::programs::heard::Heard;

/// The names of the two ways.
pub const KERNEL: &str = "kernel mmap";
pub const OURS: &str = "fastmap run";

/// Between these ratios there is no gain and no loss: the difference is below a tenth.
const LESS: f64 = 0.9;
const MORE: f64 = 1.1;

/// How a program's result is shown: as which figure, in which unit.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// Operations a second. The string names the unit.
    Each(&'static str),
    /// Megabytes a second, of a program whose operations are counted in bytes.
    Megabytes,
    /// The time that all of its operations took.
    Seconds,
}

impl Unit {
    /// The figure of a run.
    fn of(self, heard: &Heard) -> String {
        match self {
            Unit::Seconds => format!("{} s", figure(heard.seconds)),
            _ => self.rate(heard.rate()),
        }
    }

    /// The rate at this moment.
    pub fn now(self, heard: &Heard) -> String {
        self.rate(heard.now)
    }

    fn rate(self, rate: f64) -> String {
        let Unit::Each(name) = self else { return format!("{} MB/s", figure(rate / 1e6)) };
        match rate {
            rate if rate >= 1e6 => format!("{} M {name}", figure(rate / 1e6)),
            rate if rate >= 1e3 => format!("{} k {name}", figure(rate / 1e3)),
            rate => format!("{} {name}", figure(rate)),
        }
    }
}

/// The two runs of a program.
pub struct Row {
    /// The work of the program, in words.
    pub name: &'static str,
    /// How its result is shown.
    pub unit: Unit,
    /// The run on kernel mmap.
    pub kernel: Heard,
    /// The run under `fastmap run`.
    pub ours: Heard,
}

impl Row {
    /// How many times as fast the program is under `fastmap run`.
    fn ratio(&self) -> f64 {
        self.ours.rate() / self.kernel.rate()
    }

    fn times(&self) -> String {
        let ratio = self.ratio();
        if ratio >= 10.0 { format!("{ratio:.0}") } else { figure(ratio) }
    }
}

/// The table, with a line for each program.
pub fn table(rows: &[Row]) -> String {
    let cells = rows.iter().map(|row| {
        let Row { name, unit, kernel, ours } = row;
        vec![(*name).to_owned(), unit.of(kernel), unit.of(ours), row.times()]
    });
    render(&["", KERNEL, OURS, "times"], &cells.collect::<Vec<_>>())
}

/// The sentence: which programs FastMap makes faster on this machine, on a disk with this readahead, and which not.
pub fn gained(rows: &[Row], readahead: &str) -> String {
    let among = |from: f64, to: f64, said: &dyn Fn(&Row) -> String| {
        listed(rows.iter().filter(|row| (from..to).contains(&row.ratio())).map(said).collect())
    };
    let figure_behind = |row: &Row| format!("{} ({})", row.name, row.times());
    let faster = among(MORE, f64::INFINITY, &|row| format!("{} {} times", row.name, row.times()));
    let same = among(LESS, MORE, &figure_behind);
    let slower = among(0.0, LESS, &figure_behind);
    let parts = [
        faster.map(|which| format!("makes {which} as fast")),
        same.map(|which| format!("changes nothing for {which}")),
        slower.map(|which| format!("slows down {which}")),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("On this machine ({readahead}) FastMap {}.", parts.join("; it "))
}

/// `a, b and c`.
fn listed(mut all: Vec<String>) -> Option<String> {
    let last = all.pop()?;
    Some(if all.is_empty() { last } else { format!("{} and {last}", all.join(", ")) })
}

/// A size in MiB, for people.
pub fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, unit: Unit, [kernel, ours]: [(u64, f64); 2]) -> Row {
        let heard = |(ops, seconds)| Heard { ops, seconds, ..Heard::default() };
        Row { name, unit, kernel: heard(kernel), ours: heard(ours) }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("gets from LMDB", Unit::Each("gets/s"), [(500, 5.0), (20_000, 5.0)]),
            row("a numpy column", Unit::Each("rows/s"), [(20_000, 5.0), (60_000, 5.0)]),
            row("a model layer by layer", Unit::Megabytes, [(1_000_000_000, 5.0), (1_050_000_000, 5.0)]),
            row("a load from slow storage", Unit::Seconds, [(1 << 28, 4.0), (1 << 28, 5.0)]),
        ]
    }

    #[test]
    fn a_table_in_80_columns() {
        let table = table(&rows());
        let lines: Vec<_> = table.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty())).collect();
        let cells: Vec<Vec<_>> = lines.into_iter().map(|line| line.map(str::trim).collect()).collect();
        assert_eq!(cells[0], ["kernel mmap", "fastmap run", "times"]);
        assert_eq!(cells[1], ["gets from LMDB", "100 gets/s", "4.00 k gets/s", "40"]);
        assert_eq!(cells[2], ["a numpy column", "4.00 k rows/s", "12.0 k rows/s", "3.00"]);
        assert_eq!(cells[3], ["a model layer by layer", "200 MB/s", "210 MB/s", "1.05"]);
        assert_eq!(cells[4], ["a load from slow storage", "4.00 s", "5.00 s", "0.800"]);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_sentence() {
        let all = rows();
        assert_eq!(
            gained(&all, "readahead 128KiB"),
            "On this machine (readahead 128KiB) FastMap makes gets from LMDB 40 times and a numpy column 3.00 times as fast; it changes nothing for a model \
             layer by layer (1.05); it slows down a load from slow storage (0.800)."
        );
        assert_eq!(
            gained(&all[2..3], "readahead 8MiB"),
            "On this machine (readahead 8MiB) FastMap changes nothing for a model layer by layer (1.05)."
        );
    }
}
