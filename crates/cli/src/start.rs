//! Starts `fastmap-bench`, which measures, and `fastmap-papers`, which repeats the papers' experiments. Both are large, so they are programs of
//! their own, and need not be installed.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;

/// Becomes `fastmap-bench` with these arguments.
///
/// # Errors
///
/// See [`become_other`].
pub fn bench(first: &[&str], args: &[OsString]) -> Result<Infallible, Failure> {
    let args = first.iter().map(OsString::from).chain(args.iter().cloned());
    become_other("fastmap-bench", args, "install the package fastmap-bench, or: `make && make install BENCH=1`")
}

/// Becomes the command `name`: the program beside this executable, or else the first in PATH.
///
/// # Errors
///
/// There is no such program, or it cannot be run. The failure names `remedy`. On success this does not return.
pub fn become_other(name: &str, args: impl Iterator<Item = OsString>, remedy: &str) -> Result<Infallible, Failure> {
    let beside = beside(name);
    let program = beside.as_deref().map_or(OsStr::new(name), |path| path.as_os_str());
    let error = Command::new(program).args(args).exec();
    let what = match error.kind() {
        ErrorKind::NotFound => "is neither beside this command nor in PATH".to_owned(),
        _ => format!("cannot be run: {error}"),
    };
    Err(Failure::new(name, what, remedy))
}

fn beside(name: &str) -> Option<PathBuf> {
    let path = env::current_exe().ok()?.with_file_name(name);
    path.exists().then_some(path)
}
