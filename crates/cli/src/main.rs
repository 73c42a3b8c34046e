//! The `fastmap` command: parses, dispatches, and turns failures into one line and an exit status.

mod args;
mod bench;
mod cgroup;
mod doctor;
mod failure;
mod interrupt;
mod machine;
mod report;
mod results;
mod run;
mod size;
mod top;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Args, BenchCommand, Command};
use failure::Failure;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    match dispatch(args) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("fastmap: {failure}");
            failure.status()
        }
    }
}

fn dispatch(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Run(args) => match run::run(&args)? {},
        Command::Top(args) => top::run(&args),
        Command::Report(args) => {
            report::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => {
            match args.command {
                Some(BenchCommand::Worker { order }) => return Ok(bench::worker::run(&order)),
                Some(BenchCommand::Micro(micro)) => bench::micro::run(&micro)?,
                Some(BenchCommand::Async(args)) => bench::updates::run(&args)?,
                Some(BenchCommand::Ablation(args)) => bench::ablation::run(&args)?,
                Some(BenchCommand::Kv(args)) => bench::kv::run(&args)?,
                Some(BenchCommand::Graph(args)) => bench::graph::run(&args)?,
                Some(BenchCommand::Oltp(args)) => bench::oltp::run(&args)?,
                Some(BenchCommand::Olap(args)) => bench::olap::run(&args)?,
                Some(BenchCommand::Replacement(args)) => bench::replacement::run(&args)?,
                Some(BenchCommand::Sync(args)) => bench::sync::run(&args)?,
                Some(BenchCommand::Scale(args)) => bench::scale::run(&args)?,
                Some(BenchCommand::Breakdown(args)) => bench::breakdown::run(&args)?,
                Some(BenchCommand::Study(args)) => bench::study::run(&args)?,
                Some(BenchCommand::Peers(args)) => bench::peers::run(&args)?,
                None => bench::tour::run(&args.tour)?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Help and version go out as clap made them; a usage error becomes one line and status 2.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::{ContextKind, ContextValue};
    if !error.use_stderr() {
        print(&error.to_string());
        return ExitCode::SUCCESS;
    }
    let line = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{error}");
            return ExitCode::from(2);
        }
        ErrorKind::ValueValidation => {
            let flag = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(arg)) => arg.split([' ', '<']).next().unwrap_or(arg).to_owned(),
                _ => "command line".to_owned(),
            };
            let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
            format!("{flag}: {reason}")
        }
        _ => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ");
            format!("command line: {first}: see `fastmap --help`")
        }
    };
    eprintln!("fastmap: {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    ExitCode::from(2)
}

/// Writes to standard output; a reader that has gone (`| head`) is no failure.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
