//! The experiments, each a file. A new one is a file and a word in the list below.

use clap::{ArgMatches, Command};
use fastmap_cli::failure::Failure;
use serde_json::Value;

use crate::experiment::Experiment;
use crate::substrates::Meter;
use crate::{driver, worker};

/// What the command line and the worker need of an experiment.
pub struct Known {
    /// On the command line and in the JSON.
    pub name: &'static str,
    /// Its flags.
    pub command: fn() -> Command,
    /// Runs all of it.
    pub run: fn(&ArgMatches) -> Result<(), Failure>,
    /// Runs a case of it, in this process.
    pub work: fn(Value, &Meter) -> Result<Value, String>,
}

impl Known {
    /// Of an experiment.
    pub const fn of<E: Experiment>() -> Known {
        Known { name: E::NAME, command: driver::command::<E>, run: driver::run::<E>, work: worker::work::<E> }
    }
}

macro_rules! experiments {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// All of them, in the order in which help shows them.
        pub const ALL: &[Known] = &[$(Known::of::<$module::$name>()),*];
    };
}

experiments! {
    tour::Tour,
    micro::Micro,
    replacement::Replacement,
    calls::Calls,
    loads::Loads,
    scale::Scale,
    peers::Peers,
    programs::Programs,
}
