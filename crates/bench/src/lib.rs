//! `fastmap-bench`: what `fastmap bench` and `fastmap report` start.
//!
//! An `experiment` is one file in `experiments`: what to run, and columns. The `driver` has the one loop over repetitions and
//! engines, `show` makes tables, plots, claims and JSON of the columns, `report` shows them. `runner` makes a fresh process for each
//! run, which `worker` is; `target` makes the file, `volume` and `fast` what it can be on. `try_it` is `fastmap bench try`, which is no experiment; nor is
//! `storage`, a slow file system. `substrates` has the loads, and what is larger than an experiment.
//!
//! The papers' experiments are built of the same parts, in the command `fastmap-papers`.

pub mod args;
pub mod driver;
pub mod experiment;
pub mod experiments;
mod fast;
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

/// Their names.
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
        _ => match papers()? {},
    })
}

/// Runs one of the experiments, a worker of one, or, with its name and arguments, any other subcommand; no name is none.
pub fn dispatch(
    command: Command,
    known: &'static [Known],
    other: impl FnOnce(&str, &ArgMatches) -> Result<(), Failure>,
) -> ExitCode {
    // One run of one engine, in a process of its own.
    let worker = Command::new("worker").hide(true).arg(Arg::new("order").required(true));
    let bytes = Arg::new("bytes").required(true).value_parser(value_parser!(u64));
    let keeper = Command::new(fast::NAME).hide(true).arg(bytes);
    // Storages are processes beside this one.
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

/// Becomes the command with the papers' experiments, with the same arguments.
fn papers() -> Result<Infallible, Failure> {
    become_other(
        PAPERS,
        env::args_os().skip(1),
        "build it by `make papers`, in a checkout of FastMap, and put it there",
    )
}

/// The command line: the tour, an experiment, or the report.
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
