//! The command `fastmap`, with its subcommands `run`, `attach`, `warm`, `top`, `doctor` and `cache`. The subcommands `bench` and `report` start
//! `fastmap-bench`, which uses the public modules of this crate.

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

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::Failure;

/// Parses the command line, dispatches, and turns a failure into one line and an exit status.
pub fn main() -> ExitCode {
    /// The least stack for the parser of the command line, bytes.
    const STACK: usize = 1 << 20;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills one structure of this function's.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    let parse = || match Args::try_parse() {
        // The program that `run` starts is a child of the first thread, which has all signals.
        Ok(args) if matches!(args.command, Command::Run(_)) => Err(Box::new(args)),
        Ok(args) => Ok(ended(dispatch(args))),
        Err(error) => Ok(usage(&error)),
    };
    let parsed = if is_known && limit.rlim_cur < STACK as u64 {
        // The larger stack is the thread's alone: the program that `run` starts still gets the old limit.
        match std::thread::Builder::new().stack_size(2 * STACK).spawn(parse).map(std::thread::JoinHandle::join) {
            Ok(Ok(parsed)) => parsed,
            // The thread panicked, and the panic hook has reported it.
            Ok(Err(_)) => return ExitCode::from(101),
            Err(_) => parse(),
        }
    } else {
        parse()
    };
    parsed.unwrap_or_else(|args| ended(dispatch(*args)))
}

/// The command line's definition, for man pages and completions. The arguments of `bench` and `report` are defined by `fastmap-bench`.
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

/// The exit status of a command. A failure is reported in one line on standard error.
pub fn ended(result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        eprintln!("fastmap: {failure}");
        failure.status()
    })
}

/// Prints help and version as clap made them. A usage error becomes one line on standard error, and status 2.
pub fn usage(error: &clap::Error) -> ExitCode {
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
            let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
            format!("{}: {reason}", argument(error))
        }
        ErrorKind::InvalidValue if !texts(error, ContextKind::ValidValue).is_empty() => {
            let given = texts(error, ContextKind::InvalidValue).concat();
            let words = texts(error, ContextKind::ValidValue).join(" or ");
            format!("{}: \"{given}\" is not one of its values: give {words}{}", argument(error), meant(error))
        }
        _ => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text).trim_start_matches("error: ");
            let mut of = subcommand(&text);
            let mut hint = meant(error);
            let flag = argument(error);
            if error.kind() == ErrorKind::UnknownArgument && of == "fastmap" {
                let command = command();
                let has = |one: &&clap::Command| {
                    one.get_arguments()
                        .any(|arg| arg.get_long().is_some_and(|name| flag.strip_prefix("--") == Some(name)))
                };
                if let Some(owner) = command.get_subcommands().find(has) {
                    of = format!("fastmap {}", owner.get_name());
                    hint = format!("; it is a flag of `{of}`");
                }
            }
            format!("command line: {first}{hint}: see `{of} --help`")
        }
    };
    eprintln!("fastmap: {}", table::printable(line.split_whitespace().collect::<Vec<_>>().join(" ")));
    ExitCode::from(2)
}

/// The texts of one kind that a usage error has.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// The argument that a usage error is about, without its value's name.
fn argument(error: &clap::Error) -> String {
    let arg = texts(error, ContextKind::InvalidArg).concat();
    let name = arg.split([' ', '<', '=', ']']).next().unwrap_or_default().trim_start_matches('[');
    if name.is_empty() { "command line".to_owned() } else { name.to_owned() }
}

/// A hint: words that are like the wrong one.
fn meant(error: &clap::Error) -> String {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let words: Vec<_> = kinds.into_iter().flat_map(|kind| texts(error, kind)).collect();
    if words.is_empty() { String::new() } else { format!("; did you mean {}?", words.join(" or ")) }
}

/// The subcommand whose usage clap shows with an error, or else that of the command line.
fn subcommand(text: &str) -> String {
    let Some(usage) = text.split("Usage: ").nth(1) else {
        let first = std::env::args_os().nth(1).filter(|first| command().find_subcommand(first).is_some());
        return first.map_or_else(|| "fastmap".to_owned(), |first| format!("fastmap {}", first.display()));
    };
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let words: Vec<_> = usage.split_whitespace().take_while(is_name).filter(|word| !word.starts_with('-')).collect();
    if words.is_empty() { "fastmap".to_owned() } else { words.join(" ") }
}

/// Writes to standard output. It is no failure if the reader has gone (`| head`).
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
