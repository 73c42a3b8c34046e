//! The results of a benchmark. `--json` writes them, and `fastmap report` shows them.
//!
//! Each experiment writes its own rows (`results`), and three things for the report:
//!
//! * gains, which are the cells of the table on the first page;
//! * headlines, which are ratios to the kernel's best, some with the paper's ratio beside them;
//! * figures.
//!
//! So the report needs to know nothing of any experiment.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fastmap_cli::failure::Failure;
use fastmap_cli::machine::Machine;
use serde::{Deserialize, Serialize};
use serde_json::ser::{CompactFormatter, Formatter};

use crate::runner::Limit;

/// The results of one command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report<R> {
    /// The subcommand of `fastmap bench`, or `tour`.
    pub experiment: String,
    /// The subject of the measurement, in a line. Empty in files of older versions.
    #[serde(default)]
    pub about: String,
    /// The command line, quoted for a shell.
    pub command: String,
    /// When the command began, seconds since 1970.
    pub began_unix_s: f64,
    /// How long the command took, seconds.
    pub took_s: f64,
    /// The machine.
    pub machine: Machine,
    /// `cgroup-v1`, `cgroup-v2` or `none`.
    pub memory_limit: String,
    /// The memory limit of each run, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The name of the file or directory.
    pub file: String,
    /// Length of the data in use, bytes.
    pub file_bytes: u64,
    /// How answers were checked, in a sentence.
    pub verified: String,
    /// Facts that a reader must know, in sentences: what was left out and why, and what cannot be compared.
    pub notes: Vec<String>,
    /// The storage of the data: `disk`, `slow`, `fast` or `here`. Empty in files of older versions.
    #[serde(default)]
    pub storage: String,
    /// The gains for the page for people, on this storage. Empty in files of older versions.
    #[serde(default)]
    pub gains: Vec<Gain>,
    /// Ratios of FastMap to others, each in a sentence.
    pub headlines: Vec<Headline>,
    /// Plots of the results.
    pub figures: Vec<Figure>,
    /// The rows, as the experiment measured them.
    pub results: Vec<R>,
}

impl<R> Report<R> {
    /// A report without results yet. The data are at `place` or under it.
    pub fn new(experiment: &str, place: &Path, file: &str, file_bytes: u64, limit: &Limit) -> Report<R> {
        Report {
            experiment: experiment.to_owned(),
            about: String::new(),
            command: command_line(env::args_os().map(|argument| argument.to_string_lossy().into_owned())),
            began_unix_s: now(),
            took_s: 0.0,
            machine: Machine::of(place),
            memory_limit: limit.version().map_or_else(|| "none".to_owned(), |version| version.to_string()),
            memory_limit_bytes: limit.bytes(),
            file: file.to_owned(),
            file_bytes,
            verified: String::new(),
            notes: Vec::new(),
            storage: String::new(),
            gains: Vec::new(),
            headlines: Vec::new(),
            figures: Vec::new(),
            results: Vec::new(),
        }
    }
}

/// FastMap's gain over the kernel in one work: a cell of the table for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gain {
    /// The work, in the same words on every storage: `touches at random, 4 threads`.
    pub work: String,
    /// How FastMap serves it: `fastmap run` or `engine`.
    pub way: String,
    /// How many times as good FastMap is as kernel mmap as it is. Above 1 FastMap is better, also where less is better (time, bytes).
    pub as_is: Option<Spread>,
    /// How many times as good FastMap is as kernel mmap with the advice that serves this work best.
    pub best: Option<Spread>,
    /// The name of that advice: `MADV_RANDOM`.
    pub best_name: String,
    /// The repetitions are too far apart to be relied on.
    #[serde(default)]
    pub unsteady: bool,
}

/// One comparison, in one sentence.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Headline {
    /// The comparison in words, for people: `random reads, 2 threads, data larger than memory: FastMap to mmap`.
    pub what: String,
    /// How many times as good FastMap is as the best of the others. Above 1 FastMap is better, also where less is better (time, bytes).
    pub ratio: Spread,
    /// The paper's ratio for the same comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<Paper>,
}

/// A ratio that a paper gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Paper {
    /// How many times as good, the same way round as ours.
    pub ratio: f64,
    /// `FastMap, USENIX ATC '20, figure 4`.
    pub source: String,
    /// The setting of the paper's measurement: cores, device, memory.
    pub setting: String,
}

/// The spread of a figure over its repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Spread {
    /// The spread of some figures, of which there is at least one.
    pub fn of(figures: &[f64]) -> Spread {
        let (low, high) = spread(figures);
        Spread { median: median(figures.to_vec()), low, high }
    }
}

/// One plot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Its title, a few words.
    pub title: String,
    /// How to read it and how it was measured, in sentences.
    pub caption: String,
    /// The paper's figure that it follows, such as `FastMap, USENIX ATC '20, figure 4`, and the numbers in that figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<String>,
    /// How points are drawn.
    pub kind: Kind,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// Its series.
    pub series: Vec<Series>,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points joined by lines, with error bars; x are numbers.
    Lines,
    /// Bars side by side at each name, with error bars; x are names.
    Bars,
    /// Bars on top of each other at each name, one piece a series; x are names.
    Stacked,
    /// Points alone; x are numbers.
    Scatter,
}

/// One axis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Axis {
    /// Its quantity and unit: `threads`, `thousands of operations a second`.
    pub label: String,
    /// Whether the axis is logarithmic.
    #[serde(default)]
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    pub fn of(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: false }
    }

    /// A logarithmic axis, on which no zero can be shown.
    pub fn log(label: &str) -> Axis {
        Axis { label: label.to_owned(), log: true }
    }
}

/// Points of a plot that belong together, such as those of an engine, or of a part of the time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<Point>,
}

/// One point of a plot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// Its place on the axis to the right.
    pub x: X,
    /// Its value on the axis upwards.
    pub y: f64,
    /// The least and the greatest repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
}

impl Point {
    /// A point without a range.
    pub fn bare(x: impl Into<X>, y: f64) -> Point {
        Point { x: x.into(), y, range: None }
    }
}

/// The place of a point on its axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum X {
    /// A number.
    Number(f64),
    /// A name.
    Name(String),
}

impl From<f64> for X {
    fn from(number: f64) -> X {
        X::Number(number)
    }
}

impl From<&str> for X {
    fn from(name: &str) -> X {
        X::Name(name.to_owned())
    }
}

/// The least and the greatest of some figures.
pub fn spread(figures: &[f64]) -> (f64, f64) {
    figures.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &figure| (low.min(figure), high.max(figure)))
}

/// The median of some figures, of which there is at least one.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len().is_multiple_of(2) { (figures[middle - 1] + figures[middle]) / 2.0 } else { figures[middle] }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The arguments as a user would type them. The command is `fastmap bench`, whatever the path of this executable is.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+@%".contains(c);
    let quoted = arguments.skip(1).map(|argument| match argument.is_empty() || !argument.chars().all(plain) {
        true => format!("'{}'", argument.replace('\'', r"'\''")),
        false => argument,
    });
    ["fastmap".to_owned(), "bench".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

/// A JSON format that a repository can keep: each field has a line, and so has each entry of a field's list. Numbers have six digits, since
/// more mean nothing.
#[derive(Default)]
struct Lines {
    depth: usize,
    /// Whether the innermost list or object has no entry yet.
    empty: bool,
}

impl Lines {
    /// Lists and objects at a greater depth are on one line.
    const DEPTH: usize = 2;

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        write!(writer, "\n{:1$}", "", self.depth)
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn entry<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        match (first, self.depth <= Lines::DEPTH) {
            (true, false) => Ok(()),
            (false, false) => writer.write_all(b", "),
            (true, true) => self.line(writer),
            (false, true) => writer.write_all(b",").and_then(|()| self.line(writer)),
        }
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty && self.depth < Lines::DEPTH {
            self.line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.entry(writer, first)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.entry(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        CompactFormatter.write_f64(writer, six_digits(value))
    }
}

/// A number rounded to six significant digits, but never to less than whole units.
fn six_digits(value: f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let decimals = (5.0 - value.abs().log10().floor()).clamp(0.0, 300.0) as usize;
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// The file of `--json`. It is opened before anything is measured, so that a path that cannot be written costs no benchmark.
pub struct JsonFile {
    file: File,
    path: PathBuf,
    /// The file was made here and is not written yet. It is removed if it is never written.
    orphan: bool,
}

impl JsonFile {
    /// Opens the file. Its contents stay until it is written.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn open(path: &Path) -> Result<JsonFile, Failure> {
        let (file, orphan) = match OpenOptions::new().write(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                (OpenOptions::new().write(true).create_new(true).open(path), true)
            }
            opened => (opened, false),
        };
        let file = file.map_err(|e| refused(path, &e))?;
        Ok(JsonFile { file, path: path.to_owned(), orphan })
    }

    /// Replaces the contents by the results so far, so that they stay if the rest fails. A pipe or another special file gets nothing now:
    /// it gets all results at the end.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep<R: Serialize>(&mut self, report: &mut Report<R>) -> Result<(), Failure> {
        if self.is_file() { self.write(report) } else { Ok(()) }
    }

    /// Replaces the contents by the results of the whole experiment, which is over now.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write<R: Serialize>(&mut self, report: &mut Report<R>) -> Result<(), Failure> {
        report.took_s = now() - report.began_unix_s;
        let mut text = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, Lines::default());
        report.serialize(&mut serializer).map_err(|e| refused(&self.path, &e.into()))?;
        text.push(b'\n');
        let written = match self.is_file() {
            true => self.file.write_all_at(&text, 0).and_then(|()| self.file.set_len(text.len() as u64)),
            false => self.file.write_all(&text),
        };
        written.map_err(|e| refused(&self.path, &e))?;
        self.orphan = false;
        Ok(())
    }

    fn is_file(&self) -> bool {
        self.file.metadata().is_ok_and(|facts| facts.is_file())
    }
}

impl Drop for JsonFile {
    fn drop(&mut self) {
        if self.orphan {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    Failure::new(path.display(), format!("cannot write the JSON: {error}"), "name a writable file with --json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let typed = ["/usr/bin/fastmap-bench", "kv", "--dir", "/my disk/it's", ""].map(str::to_owned);
        assert_eq!(command_line(typed.into_iter()), r"fastmap bench kv --dir '/my disk/it'\''s' ''");
    }

    #[test]
    fn json_has_a_line_an_entry_and_six_digits() {
        let mut text = Vec::new();
        let value = serde_json::json!({
            "a": [], "b": 1_795_311_255.25, "c": [{"d": [0.123456789, -1234.5678], "e": {}}, {}], "f": {"g": 18446744073709551615u64}, "h": 0.0,
        });
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Lines::default())).unwrap();
        let lines = [
            "{",
            " \"a\": [],",
            " \"b\": 1795311255.0,",
            " \"c\": [",
            "  {\"d\": [0.123457, -1234.57], \"e\": {}},",
            "  {}",
            " ],",
            " \"f\": {",
            "  \"g\": 18446744073709551615",
            " },",
            " \"h\": 0.0",
            "}",
        ];
        assert_eq!(String::from_utf8(text).unwrap(), lines.join("\n"));
    }

    #[test]
    fn a_json_file_that_is_never_written_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        drop(JsonFile::open(&path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "before").unwrap();
        drop(JsonFile::open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
}
