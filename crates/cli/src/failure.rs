//! How the command fails: one line that names the thing, what happened and the remedy, and an exit status.

use std::fmt;
use std::process::ExitCode;

/// A failure of the whole command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    usage: bool,
}

impl Failure {
    /// The run failed: exit status 1.
    pub fn new(thing: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { message: format!("{thing}: {what}: {remedy}"), usage: false }
    }

    /// The command line asks for something that makes no sense: exit status 2.
    pub fn usage(thing: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { usage: true, ..Failure::new(thing, what, remedy) }
    }

    /// A failure whose message another process has already put together.
    pub fn told(message: String) -> Failure {
        Failure { message, usage: false }
    }

    /// 1, or 2 for usage.
    pub fn status(&self) -> ExitCode {
        ExitCode::from(if self.usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    /// Always one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message.replace('\n', " "))
    }
}

impl From<fastmap_workloads::Error> for Failure {
    fn from(error: fastmap_workloads::Error) -> Failure {
        Failure { message: error.to_string(), usage: matches!(error, fastmap_workloads::Error::Memory { .. }) }
    }
}
