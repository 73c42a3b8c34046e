//! `fastmap report`: makes a Markdown document of experiments' results. It begins with a page for people, which has a picture.
//!
//! * `read` reads the files.
//! * `page` makes the page's table, and `picture` draws it.
//! * `summary` counts where FastMap is ahead, level and behind.
//! * `table` turns a figure into rows.
//! * `words` writes numbers and dates for people.
//! * `markdown` makes the document.

mod markdown;
mod page;
mod picture;
mod read;
mod summary;
mod table;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use serde_json::Value;

use self::page::Page;
use self::picture::Palette;
use crate::results::Report;

pub use self::summary::Verdict;

/// Show what benchmarks measured: one Markdown document, and a picture of it
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what benchmarks measured.

Reads what `fastmap bench NAME --json FILE` wrote, of any experiments, in the order given, and writes one Markdown document. It begins with \
a page for people: a table with rows for each work (something that a benchmark measures) and a column for each storage. It also has what was \
slower than the kernel. Then come the comparisons one by one, the papers' ratios beside ours, and for each experiment its numbers, how its \
answers were checked, the machine, and the command that reproduces it. The page's picture goes beside the document, once for light and once \
for dark screens: of results.md they are results-light.svg and results-dark.svg. Some experiments have no works. Their results alone make \
neither page nor picture.")]
#[command(override_usage = "fastmap report RESULTS... --output FILE.md")]
#[command(after_help = "\
Examples:
  fastmap bench --json tour.json && fastmap report tour.json -o tour.md
  fastmap report results/*.json -o results.md")]
pub struct ReportArgs {
    /// Files that `fastmap bench` wrote with --json; one experiment may be there several times
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,
    /// The document, overwritten if it is there, as its pictures are; its name ends in .md
    #[arg(short, long, value_name = "FILE.md")]
    pub output: PathBuf,
}

/// The results of one experiment, whichever it is.
type Results = Report<Value>;

/// Reads the results, and writes the document and its pictures.
///
/// # Errors
///
/// A file holds no results, or the output cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let output = &args.output;
    if !output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md")) {
        let what = format!("\"{}\" is not a name of a Markdown document: give one that ends in .md", output.display());
        return Err(Failure::refused("--output", what));
    }
    let experiments = args.results.iter().map(|path| read::read(path)).collect::<Result<Vec<_>, _>>()?;
    let page = Page::of(&experiments);
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let mut pictures = Vec::new();
    if let Some(page) = &page {
        for palette in Palette::ALL {
            pictures.extend(picture::draw(page, &palette).map(|drawn| (palette.file(&stem), drawn)));
        }
    }
    let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    write(output, &markdown::document(&experiments, page.as_ref(), &names))?;
    pictures.iter().try_for_each(|(name, drawn)| write(&output.with_file_name(name), drawn))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let refused =
        |e| Failure::new(path.display(), format!("cannot be written: {e}"), "name a writable file with --output");
    fs::write(path, text).map_err(refused)
}

/// The names of the experiments. If an experiment is there several times, its storage follows its name. If the storage is not known, or two of the
/// experiment's results have the same storage, a number follows instead.
fn names(experiments: &[Results]) -> Vec<String> {
    let name = |(at, results): (usize, &Results)| {
        let Report { experiment, storage, .. } = results;
        let same: Vec<&Results> = experiments.iter().filter(|other| other.experiment == *experiment).collect();
        let by_storage = same.iter().all(|one| same.iter().filter(|other| other.storage == one.storage).count() == 1);
        match same.len() {
            1 => experiment.clone(),
            _ if by_storage && !storage.is_empty() => format!("{experiment} ({storage})"),
            _ => {
                let number = experiments[..=at].iter().filter(|other| other.experiment == *experiment).count();
                format!("{experiment} ({number})")
            }
        }
    };
    experiments.iter().enumerate().map(name).collect()
}

#[cfg(test)]
mod samples {
    //! Made-up results.

    use super::*;
    use crate::results::{Figure, Headline};

    /// Results of an experiment, with these headlines and figures.
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
    fn several_of_one_experiment_are_numbered_or_have_their_storages() {
        let mut all = ["kv", "scale", "kv"].map(|name| samples::results(name, Vec::new(), Vec::new()));
        assert_eq!(names(&all), ["kv (1)", "scale", "kv (2)"]);
        (all[0].storage, all[2].storage) = ("disk".to_owned(), "slow".to_owned());
        assert_eq!(names(&all), ["kv (disk)", "scale", "kv (slow)"]);
        all[2].storage = "disk".to_owned();
        assert_eq!(names(&all), ["kv (1)", "scale", "kv (2)"]);
    }
}
