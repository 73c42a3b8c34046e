//! `fastmap bench policy`: steering on a model of the kernel, by seed.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Command};
use fastmap_cli::failure::Failure;
use fastmap_sim::{check, distribution, policy};

/// The subcommand.
pub const NAME: &str = "policy";

/// Tries steering on a model of the kernel: workloads and machines by seed, each as it is, with each single advice, and steered. All times are the model's.
#[derive(Debug, Args)]
struct Policy {
    /// Seeds, the last one not included
    #[arg(long, default_value = "0..500", value_parser = seeds)]
    seeds: Range<u64>,
    /// One seed: what happened over time
    #[arg(long, conflicts_with_all = ["seeds", "check"])]
    seed: Option<u64>,
    /// Seeds that are shown of each end
    #[arg(long, default_value_t = 20)]
    worst: usize,
    /// Writes the workloads by which the model is held against a kernel to this folder, and prints the model's counts
    #[arg(long, value_name = "FOLDER")]
    check: Option<PathBuf>,
    /// The kernel of --check: 6.18, 6.12, 6.12-mglru or 6.1
    #[arg(long, default_value = "6.18", value_parser = ["6.18", "6.12", "6.12-mglru", "6.1"])]
    kernel: String,
    /// Pages of the file of --check
    #[arg(long, default_value_t = 65_536)]
    pages: u64,
    /// Its readahead in pages
    #[arg(long, default_value_t = 32)]
    readahead: u64,
}

pub fn command() -> Command {
    Policy::augment_args(Command::new(NAME))
}

pub fn run(args: &clap::ArgMatches) -> Result<(), Failure> {
    let args = <Policy as clap::FromArgMatches>::from_arg_matches(args).map_err(|e| Failure::told(e.to_string()))?;
    if let Some(folder) = args.check {
        let rules =
            check::KERNELS.iter().find(|(name, _)| *name == args.kernel).map_or(check::KERNELS[0].1, |one| one.1);
        let table = check::table(&folder, rules, args.pages.max(1024), args.readahead);
        print!("{}", table.map_err(|e| Failure::told(format!("{}: {e}", folder.display())))?);
    } else if let Some(seed) = args.seed {
        print!("{}", policy::told(seed));
    } else {
        print!("{}", distribution::text(&distribution::run(args.seeds), args.worst));
    }
    Ok(())
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.filter(|range| range.start < range.end).ok_or_else(|| format!("\"{text}\" are no seeds: give 0..500, say"))
}
