//! A failure of the command: an exit status, and one line that names the thing, what happened, and the remedy.

use std::fmt;
use std::process::ExitCode;

use crate::table::printable;

/// A failure of the whole command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    status: u8,
}

/// Exit statuses: a failure, and wrong usage.
const FAILED: u8 = 1;
const USAGE: u8 = 2;

impl Failure {
    /// The run failed: exit status 1.
    pub fn new(thing: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { message: format!("{thing}: {what}: {remedy}"), status: FAILED }
    }

    /// The command line makes no sense: exit status 2.
    pub fn usage(thing: impl fmt::Display, what: impl fmt::Display, remedy: impl fmt::Display) -> Failure {
        Failure { status: USAGE, ..Failure::new(thing, what, remedy) }
    }

    /// A value makes no sense: exit status 2. `reason` also says what to give instead.
    pub fn refused(thing: impl fmt::Display, reason: impl fmt::Display) -> Failure {
        Failure { message: format!("{thing}: {reason}"), status: USAGE }
    }

    /// The same failure with another exit status.
    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }

    /// A failure with a complete message, which another process or library has made: exit status 1.
    pub fn told(message: String) -> Failure {
        Failure { message, status: FAILED }
    }

    /// The exit status as a number.
    pub fn number(&self) -> u8 {
        self.status
    }

    /// The exit status: 1, 2 for wrong usage, or the value of [`Failure::with_status`].
    pub fn status(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    /// Always one line, without control characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(self.message.replace('\n', " ")))
    }
}
