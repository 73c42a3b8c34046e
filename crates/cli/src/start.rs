//! Starting `fastmap-bench`, which measures: it is large, and not everybody wants it.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;

/// Its name.
const BENCH: &str = "fastmap-bench";

/// Becomes `fastmap-bench` with these arguments: the one beside this executable, else the one in PATH.
///
/// # Errors
///
/// If there is none, or it cannot be run.
pub fn bench(first: &[&str], args: &[OsString]) -> Result<Infallible, Failure> {
    let beside = beside();
    let program = beside.as_deref().map_or(OsStr::new(BENCH), |path| path.as_os_str());
    let error = Command::new(program).args(first).args(args).exec();
    let what = match error.kind() {
        ErrorKind::NotFound => "is neither beside this command nor in PATH".to_owned(),
        _ => format!("cannot be run: {error}"),
    };
    Err(Failure::new(BENCH, what, "build and install it with this command: `make && make install`"))
}

fn beside() -> Option<PathBuf> {
    let path = env::current_exe().ok()?.with_file_name(BENCH);
    path.exists().then_some(path)
}
