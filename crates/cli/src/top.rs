//! `fastmap top`: what programs that use FastMap are doing.
//!
//! `watch` finds them and takes rates between two looks, `rows` makes rows of that, `screen` shows them until it is told to
//! stop.

mod json;
mod rows;
mod screen;
mod watch;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::table;
use watch::Watch;

/// Shows the programs; fails if there are none.
pub fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    let mut watch = Watch::new(args.pid)?;
    if !args.once {
        if !stdout().is_terminal() {
            return Err(Failure::usage("top", "standard output is no terminal", "give --once for one table"));
        }
        screen::run(&mut watch, interval)?;
        return Ok(ExitCode::SUCCESS);
    }
    std::thread::sleep(interval);
    watch.look();
    if watch.programs().is_empty() {
        return Err(none(args.pid));
    }
    if args.json {
        crate::print(&json::text(&watch));
    } else {
        let rows: Vec<_> = rows::of(&watch).into_iter().map(rows::Row::plain).collect();
        crate::print(&table::render(&rows::plain_headings(), &rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// There is nothing to show, any more.
fn none(pid: Option<u32>) -> Failure {
    match pid {
        Some(pid) => Failure::new(format!("process {pid}"), "has ended", "name one that runs"),
        None => Failure::new(
            "top",
            "no program that you may look at has files in a FastMap cache",
            "start one (fastmap run --cache SIZE -- PROGRAM), or look as root for those of others",
        ),
    }
}
