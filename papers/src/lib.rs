//! `fastmap-papers`: the experiments of the papers behind FastMap, which `fastmap bench NAME` starts.
//!
//! They are built of the parts of `fastmap-bench` and shaped as its own: `experiments` has a file for each, `substrates` what is larger than
//! an experiment, `perf` reads a profiler's samples, `requests` the kernel's record of a device's requests.

pub mod experiments;
mod perf;
mod requests;
mod substrates;

use std::process::ExitCode;

use clap::Command;
pub(crate) use fastmap_bench::{args, driver, experiment, results, runner, show, target, volume};
use fastmap_cli::failure::Failure;

/// Parses the command line, dispatches, and turns a failure into one line and an exit status.
pub fn main() -> ExitCode {
    fastmap_bench::dispatch(cli(), experiments::ALL, |_, _| Err(Failure::told("no experiment is named".to_owned())))
}

/// The command line: an experiment.
fn cli() -> Command {
    Command::new("fastmap-papers")
        .bin_name("fastmap bench")
        .about("The experiments of the papers behind FastMap")
        .version(env!("CARGO_PKG_VERSION"))
        .max_term_width(100)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand_value_name("EXPERIMENT")
        .subcommand_help_heading("Experiments")
        .subcommands(experiments::ALL.iter().map(|known| (known.command)()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn fastmap_bench_hands_over_each_experiment() {
        for known in super::experiments::ALL {
            assert!(fastmap_bench::OF_PAPERS.contains(&known.name), "{}", known.name);
        }
        assert_eq!(super::experiments::ALL.len(), fastmap_bench::OF_PAPERS.len());
    }
}
