//! `fastmap-bench`: what `fastmap bench` and `fastmap report` start.
//!
//! An `experiment` is one file in `experiments`: what to run, and columns. The `driver` has the one loop over repetitions and
//! engines, `show` makes tables, plots, claims and JSON of the columns, `report` shows them. `runner` makes a fresh process for each
//! run, which `worker` is; `target` makes the file, `volume` and `fast` what it can be on. `try_it` is `fastmap bench try`, which is no experiment; nor is
//! `storage`, a slow file system. `substrates` has the loads, and what is larger than an experiment.

mod args;
mod driver;
mod experiment;
mod experiments;
mod fast;
mod perf;
mod report;
mod requests;
mod results;
mod runner;
mod show;
mod storage;
mod substrates;
mod target;
mod try_it;
mod volume;
mod worker;

use std::process::ExitCode;

use clap::{Arg, Args as _, Command, FromArgMatches, value_parser};
use fastmap_cli::failure::Failure;

use experiments::tour::Tour;
use report::ReportArgs;
use substrates::programs;

/// Parses the command line, dispatches, and turns a failure into one line and an exit status.
pub fn main() -> ExitCode {
    let matches = match cli().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return fastmap_cli::usage(&error),
    };
    let done = match matches.subcommand() {
        None => driver::run::<Tour>(&matches),
        Some(("worker", order)) => return worker::run(order.get_one::<String>("order").map_or("", |order| order)),
        Some((programs::monetdb::NAME, words)) => {
            let words: Vec<String> = words.get_many("words").into_iter().flatten().cloned().collect();
            programs::monetdb::main(&words).map_err(Failure::from)
        }
        Some((fast::NAME, args)) => fast::keeper(args.get_one("bytes").copied().unwrap_or_default()),
        Some(("report", args)) => ReportArgs::from_arg_matches(args)
            .map_err(|e| Failure::told(e.to_string()))
            .and_then(|args| report::run(&args)),
        Some((try_it::NAME, args)) => try_it::run(args),
        Some((storage::NAME, args)) => storage::run(args),
        Some((name, args)) => match experiments::ALL.iter().find(|known| known.name == name) {
            Some(known) => (known.run)(args),
            None => unreachable!("clap knows the experiments alone"),
        },
    };
    fastmap_cli::ended(done.map(|()| ExitCode::SUCCESS))
}

/// The command line: the tour, an experiment, or the report.
pub fn cli() -> Command {
    let experiments = experiments::ALL.iter().filter(|known| known.name != "tour").map(|known| (known.command)());
    let report = ReportArgs::augment_args(Command::new("report")).bin_name("fastmap report");
    // One run of one engine, in a process of its own.
    let worker = Command::new("worker").hide(true).arg(Arg::new("order").required(true));
    let monetdb = Command::new(programs::monetdb::NAME).hide(true).arg(Arg::new("words").num_args(0..));
    let bytes = Arg::new("bytes").required(true).value_parser(value_parser!(u64));
    let keeper = Command::new(fast::NAME).hide(true).arg(bytes);
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
        .subcommand(worker)
        .subcommand(monetdb)
        .subcommand(keeper)
}

impl From<substrates::Error> for Failure {
    fn from(error: substrates::Error) -> Failure {
        let failure = Failure::told(error.to_string());
        if matches!(error, substrates::Error::Memory { .. }) { failure.with_status(2) } else { failure }
    }
}
