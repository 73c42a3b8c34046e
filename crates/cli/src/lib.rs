//! The command `fastmap`: `run`, `attach`, `warm`, `top`, `doctor`, `cache`; and what it shares with `fastmap-bench`, which `bench` and `report` start.

mod args;
mod attach;
mod cache;
pub mod cgroup;
mod doctor;
pub mod failure;
pub mod interrupt;
pub mod machine;
mod run;
pub mod size;
pub mod start;
pub mod table;
mod top;
mod warm;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::Failure;

/// Parses the command line, dispatches, and turns a failure into one line and an exit status.
pub fn main() -> ExitCode {
    /// Bytes of stack that the command line's parser is given at least.
    const STACK: usize = 1 << 20;
    let body = || match Args::try_parse() {
        Ok(args) => ended(dispatch(args)),
        Err(error) => usage(&error),
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    if is_known && limit.rlim_cur < STACK as u64 {
        // The program that `run` becomes has the limit all the same.
        match std::thread::Builder::new().stack_size(2 * STACK).spawn(body).map(std::thread::JoinHandle::join) {
            Ok(Ok(status)) => return status,
            // It has panicked, and said so.
            Ok(Err(_)) => return ExitCode::from(101),
            Err(_) => {}
        }
    }
    body()
}

/// The command line, for its man pages and completions. What `bench` and `report` take is for `fastmap-bench` to say.
pub fn command() -> clap::Command {
    Args::command()
}

fn dispatch(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Attach(args) => attach::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Run(args) => match run::run(&args)? {},
        Command::Top(args) => top::run(&args),
        Command::Warm(args) => warm::run(&args),
        Command::Bench { args } => match start::bench(&[], &args)? {},
        Command::Report { args } => match start::bench(&["report"], &args)? {},
    }
}

/// The exit status of a command; a failure is told in one line.
pub fn ended(result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        eprintln!("fastmap: {failure}");
        failure.status()
    })
}

/// Help and version go out as clap made them; a usage error becomes one line and status 2.
pub fn usage(error: &clap::Error) -> ExitCode {
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
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
