//! `fastmap-bench`: the program behind `fastmap bench` and `fastmap report`.
//!
//! * `experiment` is the shape of an experiment. `experiments` has a file for each one: its runs, and its columns of figures.
//! * `driver` has the one loop over repetitions and engines. `runner` starts a fresh process for each run, and `worker` is that process.
//! * `show` makes tables, plots, claims and JSON from the columns. `results` writes the JSON, and `report` shows it.
//! * `target` makes the file that is measured. `storages`, `volume` and `fast` make the storage under it.
//! * `try_it` is `fastmap bench try`, `storage` is `fastmap bench storage`, a slow file system, and `policy` is `fastmap bench policy`, steering on a
//!   model of the kernel. They are not experiments.
//! * `substrates` has the loads, and the engines that the loads run on.
//!
//! The papers' experiments are built from the same parts, in the command `fastmap-papers`.

pub mod args;
pub mod driver;
pub mod experiment;
pub mod experiments;
mod fast;
mod policy;
mod report;
pub mod results;
pub mod runner;
pub mod show;
mod storage;
pub mod storages;
pub mod substrates;
pub mod target;
mod try_it;
pub mod volume;
mod worker;

use std::convert::Infallible;
use std::env;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Args as _, Command, FromArgMatches, value_parser};
use fastmap_cli::failure::Failure;
use fastmap_cli::start::become_other;

use experiments::Known;
use experiments::tour::Tour;
use report::ReportArgs;

/// The command that has the papers' experiments.
const PAPERS: &str = "fastmap-papers";

/// The names of the papers' experiments.
pub const OF_PAPERS: &[&str] =
    &["random-64k", "sync", "async", "breakdown", "ablation", "kv", "graph", "oltp", "olap", "study"];

/// Parses the command line, dispatches, and turns a failure into one line and an exit status.
pub fn main() -> ExitCode {
    dispatch(cli(), experiments::ALL, |name, args| match name {
        "" => driver::run::<Tour>(args),
        "report" => ReportArgs::from_arg_matches(args)
            .map_err(|e| Failure::told(e.to_string()))
            .and_then(|args| report::run(&args)),
        try_it::NAME => try_it::run(args),
        policy::NAME => policy::run(args),
        _ => match papers()? {},
    })
}

/// Runs the subcommand on the command line: an experiment, a worker, a keeper or the storage. `other` gets the name and the arguments of
/// any other subcommand. The name is empty if there is no subcommand.
pub fn dispatch(
    command: Command,
    known: &'static [Known],
    other: impl FnOnce(&str, &ArgMatches) -> Result<(), Failure>,
) -> ExitCode {
    // One run of one engine, in a process of its own.
    let worker = Command::new("worker").hide(true).arg(Arg::new("order").required(true));
    let bytes = Arg::new("bytes").required(true).value_parser(value_parser!(u64));
    let keeper = Command::new(fast::NAME).hide(true).arg(bytes);
    // An experiment starts its storage as a process of its own, so every command needs this subcommand.
    let storage = match command.find_subcommand(storage::NAME) {
        Some(_) => None,
        None => Some(storage::command().hide(true)),
    };
    let matches = match command.subcommands([worker, keeper]).subcommands(storage).try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return fastmap_cli::usage(&error),
    };
    let done = match matches.subcommand() {
        None => other("", &matches),
        Some(("worker", order)) => {
            return worker::run(order.get_one::<String>("order").map_or("", |order| order), known);
        }
        Some((fast::NAME, args)) => fast::keeper(args.get_one("bytes").copied().unwrap_or_default()),
        Some((storage::NAME, args)) => storage::run(args),
        Some((name, args)) => match known.iter().find(|known| known.name == name) {
            Some(known) => (known.run)(args),
            None => other(name, args),
        },
    };
    fastmap_cli::ended(done.map(|()| ExitCode::SUCCESS))
}

/// Becomes the command with the papers' experiments, with the same arguments. Returns only if that fails.
fn papers() -> Result<Infallible, Failure> {
    become_other(
        PAPERS,
        env::args_os().skip(1),
        "build it by `make papers`, in a checkout of FastMap, and put it there",
    )
}

/// The command line: the tour, the experiments, the storage and the report.
pub fn cli() -> Command {
    let experiments = experiments::ALL.iter().filter(|known| known.name != "tour").map(|known| (known.command)());
    let report = ReportArgs::augment_args(Command::new("report")).bin_name("fastmap report");
    let passed_on = Arg::new("args").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
    let of_papers = |name: &&'static str| Command::new(*name).hide(true).disable_help_flag(true).arg(passed_on.clone());
    driver::command::<Tour>()
        .name("fastmap-bench")
        .bin_name("fastmap bench")
        .version(env!("CARGO_PKG_VERSION"))
        .max_term_width(100)
        .args_conflicts_with_subcommands(true)
        .subcommand_value_name("EXPERIMENT")
        .subcommand_help_heading("Experiments")
        .subcommand(try_it::command())
        .subcommand(policy::command())
        .subcommands(experiments)
        .subcommand(storage::command())
        .subcommand(report)
        .subcommands(OF_PAPERS.iter().map(of_papers))
}

impl From<substrates::Error> for Failure {
    fn from(error: substrates::Error) -> Failure {
        let failure = Failure::told(error.to_string());
        if matches!(error, substrates::Error::Memory { .. }) { failure.with_status(2) } else { failure }
    }
}
