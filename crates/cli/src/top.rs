//! `fastmap top` shows what programs do with files that they have mapped, by FastMap or by the kernel.
//!
//! `watch` finds the programs and takes rates between two looks. Programs with a FastMap cache have counters. Processes whose files the kernel
//! serves (`processes`, `observed`) are seen in /proc, and get a `pattern` and `advice`. `rows`, `json` and `metrics` make text of the figures.
//! `screen` shows the text until it is stopped, and `serve` sends it to HTTP clients. `file` shows one file instead.

mod advice;
mod file;
mod json;
mod metrics;
mod observed;
mod pattern;
mod process_rows;
mod processes;
mod rows;
mod screen;
pub mod serve;
mod watch;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use fastmap_steer::observe::Process;

use crate::args::{TopArgs, What};
use crate::failure::Failure;
use watch::Watch;

/// Shows the programs. Fails if there are none, except with `--metrics`.
pub fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let pid = match &args.what {
        Some(What::File(path)) => return of_file(args, path),
        Some(What::Process(pid)) => Some(*pid),
        None => None,
    };
    let interval = Duration::from_secs_f64(args.interval);
    if args.json && !args.once {
        return Err(Failure::usage("--json", "prints one look only", "give --once, too"));
    }
    let mut watch = Watch::new(pid)?;
    if let Some(address) = args.metrics {
        serve::run(&mut watch, address, interval)?;
        return Ok(ExitCode::SUCCESS);
    }
    if watch.is_empty() {
        return Err(none(&watch));
    }
    if !args.once {
        if !stdout().is_terminal() {
            return Err(Failure::usage("top", "standard output is not a terminal", "give --once for one table"));
        }
        screen::run(&mut watch, interval)?;
        return Ok(ExitCode::SUCCESS);
    }
    std::thread::sleep(interval);
    watch.look();
    if watch.is_empty() {
        return Err(none(&watch));
    }
    if args.json {
        crate::print(&json::text(&watch));
    } else {
        crate::print(&rows::table(rows::headings(&watch), rows::of(&watch)));
    }
    Ok(ExitCode::SUCCESS)
}

fn of_file(args: &TopArgs, path: &std::path::Path) -> Result<ExitCode, Failure> {
    if args.metrics.is_some() {
        return Err(Failure::usage("--metrics", "shows processes, not a file", "leave out the file"));
    }
    let told = file::Told::of(path)?;
    crate::print(&if args.json { told.json() } else { told.text() });
    Ok(ExitCode::SUCCESS)
}

/// The failure where there is nothing to show, or nothing any more.
fn none(watch: &Watch) -> Failure {
    match watch.only() {
        Some(pid) if Process::of(pid).is_some() => Failure::new(
            format!("process {pid}"),
            "maps no data file of 4 MiB or more, and has no files in a FastMap cache",
            "wait until it does, or start it with fastmap run --cache",
        ),
        Some(pid) => Failure::new(format!("process {pid}"), "has ended", "name one that runs"),
        None => Failure::new(
            "top",
            "no program that you may look at maps 32 MiB of data files or more, or has files in a FastMap cache",
            "start one, or look as root for those of others",
        ),
    }
}
