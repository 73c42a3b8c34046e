//! `fastmap report`: what experiments measured, as a page or as Markdown.
//!
//! `read` takes the files, `summary` says what they come to, `words` writes numbers and dates for people, `table` turns a plot into
//! rows; `html` is the page with the plots of `svg`, `markdown` the same without them.

mod html;
mod markdown;
mod read;
mod summary;
mod svg;
mod table;
mod words;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use serde::Serialize;
use serde_json::Value;

use crate::results::Report;

pub use self::summary::Verdict;

/// Show what benchmarks measured: one page with plots, to look at, print or send
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what benchmarks measured.

Reads what `fastmap bench NAME --json FILE` wrote, of any experiments, in the order given, and writes one page that needs nothing \
else, no network either: what is faster and what is not, the papers' figures beside ours, and for each experiment its plots, \
their numbers, how its answers were checked, the machine, and the command that reproduces it. A file name that ends in .md \
gives the same as Markdown, without the plots.")]
#[command(override_usage = "fastmap report RESULTS... --output FILE")]
#[command(after_help = "\
Examples:
  fastmap bench micro --json micro.json && fastmap report micro.json -o report.html
  fastmap report results/*.json -o results.md")]
pub struct ReportArgs {
    /// Files that `fastmap bench` wrote with --json; one experiment may be there several times
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,
    /// What to write, overwritten if it is there: .html for a page, .md for Markdown
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// One experiment's results, whatever they are.
type Results = Report<Value>;

/// Runs it.
///
/// # Errors
///
/// A file that is no result, or an output that cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let format = Format::of(&args.output, "--output")?;
    let experiments = args.results.iter().map(|path| read::read(path)).collect::<Result<Vec<_>, _>>()?;
    fs::write(&args.output, format.render(&experiments)).map_err(|e| refused(&args.output, &e, "--output"))
}

/// Where `fastmap bench` puts its page.
pub enum Place {
    /// What the user named.
    Named(PathBuf, Format),
    /// A name that is free, in the current directory.
    Here,
}

impl Place {
    /// What is asked for, looked at before anything is measured.
    ///
    /// # Errors
    ///
    /// A name that says no format, or a directory that is not there.
    pub fn of(named: Option<&Path>) -> Result<Place, Failure> {
        let Some(path) = named else { return Ok(Place::Here) };
        let format = Format::of(path, "--report")?;
        match path.parent().filter(|dir| *dir != Path::new("") && !dir.is_dir()) {
            Some(dir) => Err(Failure::new(dir.display(), "is no directory", "make it first, or name another --report")),
            None => Ok(Place::Named(path.to_owned(), format)),
        }
    }

    /// Writes the page of one experiment; where it is.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write<R: Serialize>(self, results: &Report<R>) -> Result<PathBuf, Failure> {
        let value = serde_json::to_value(results);
        let results = value.and_then(read::results_of).map_err(|e| {
            Failure::new("page", format!("cannot be made: {e}"), "give --json FILE, and make it with `fastmap report`")
        })?;
        match self {
            Place::Named(path, format) => {
                fs::write(&path, format.render(&[results])).map_err(|e| refused(&path, &e, "--report")).map(|()| path)
            }
            Place::Here => beside_others(Path::new(""), Format::Html.render(&[results]).as_bytes()),
        }
    }
}

/// Writes a new file in a directory; what is there stays.
fn beside_others(dir: &Path, page: &[u8]) -> Result<PathBuf, Failure> {
    let mut others = (2..).map(|n| dir.join(format!("fastmap-report-{n}.html")));
    let mut path = dir.join("fastmap-report.html");
    loop {
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => path = others.next().unwrap_or_default(),
            opened => {
                let written = opened.and_then(|mut file| file.write_all(page));
                return written.map_err(|e| refused(&path, &e, "--report")).map(|()| path);
            }
        }
    }
}

/// What to write.
#[derive(Debug, Clone, Copy)]
pub enum Format {
    /// A page with plots.
    Html,
    /// Text with tables.
    Markdown,
}

impl Format {
    fn of(path: &Path, flag: &str) -> Result<Format, Failure> {
        match path.extension().map(|e| e.to_ascii_lowercase()) {
            Some(e) if e == "html" || e == "htm" => Ok(Format::Html),
            Some(e) if e == "md" || e == "markdown" => Ok(Format::Markdown),
            _ => Err(Failure::refused(
                flag,
                format!("\"{}\" says no format: give a name that ends in .html or .md", path.display()),
            )),
        }
    }

    fn render(self, experiments: &[Results]) -> String {
        match self {
            Format::Html => html::page(experiments),
            Format::Markdown => markdown::document(experiments),
        }
    }
}

fn refused(path: &Path, error: &io::Error, flag: &str) -> Failure {
    Failure::new(path.display(), format!("cannot be written: {error}"), format!("name a writable file with {flag}"))
}

/// What an experiment is: what its command says of itself, in a line and at length. Nothing for one that this version does not have.
fn about(experiment: &str) -> Option<(String, Vec<String>)> {
    let bench = crate::cli();
    let command = if experiment == "tour" { &bench } else { bench.find_subcommand(experiment)? };
    let line = command.get_about()?.to_string();
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    let paragraphs = long.split("\n\n").map(str::to_owned).skip(1).filter(|p| !p.is_empty()).collect();
    Some((line, paragraphs))
}

/// What each experiment is called here: its name, numbered where there are several of it.
fn names(experiments: &[Results]) -> Vec<String> {
    let of = |at: usize| {
        let same = |e: &&Results| e.experiment == experiments[at].experiment;
        match experiments.iter().filter(same).count() {
            1 => experiments[at].experiment.clone(),
            _ => format!("{} ({})", experiments[at].experiment, experiments[..=at].iter().filter(same).count()),
        }
    };
    (0..experiments.len()).map(of).collect()
}

#[cfg(test)]
mod samples {
    //! Results that nobody measured.

    use super::*;
    use crate::results::{Figure, Headline};

    /// An experiment with these headlines and figures.
    pub fn results(experiment: &str, headlines: Vec<Headline>, figures: Vec<Figure>) -> Results {
        serde_json::from_value(serde_json::json!({
            "experiment": experiment, "command": format!("fastmap bench {experiment}"), "began_unix_s": 1_795_311_255.0,
            "took_s": 125.0, "memory_limit": "cgroup-v2", "memory_limit_bytes": 268_435_456, "file": "f", "file_bytes": 1 << 30,
            "machine": {"cpus": 2, "model": "CPU", "kernel": "6.1", "memory_bytes": 1u64 << 33, "file_system": "ext4", "device": "/dev/vda"},
            "verified": "All of it.", "notes": [], "headlines": headlines, "figures": figures, "results": [],
        }))
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_of_one_experiment_are_numbered() {
        let all = ["kv", "scale", "kv"].map(|name| samples::results(name, Vec::new(), Vec::new()));
        assert_eq!(names(&all), ["kv (1)", "scale", "kv (2)"]);
    }

    #[test]
    fn a_page_nobody_named_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let write = |page: &str| beside_others(dir.path(), page.as_bytes());
        let paths = ["one", "two", "three"].map(|page| write(page).unwrap());
        let names = ["fastmap-report.html", "fastmap-report-2.html", "fastmap-report-3.html"];
        assert_eq!(paths, names.map(|name| dir.path().join(name)));
        assert_eq!(paths.map(|path| fs::read_to_string(path).unwrap()), ["one", "two", "three"]);
        let refused = beside_others(&dir.path().join("gone"), b"").unwrap_err().to_string();
        assert!(refused.contains("gone/fastmap-report.html: cannot be written: No such file"), "{refused}");
    }

    #[test]
    fn experiments_are_described_by_their_own_help() {
        let (line, paragraphs) = about("replacement").unwrap();
        assert!(line.starts_with("Measure which pages are kept") && paragraphs[0].starts_with("Each trace is"));
        assert!(about("tour").is_some() && about("no such").is_none());
    }
}
