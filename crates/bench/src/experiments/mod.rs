//! The experiments, a file for each. A new experiment needs a file, and an entry in the list at the end of this one.

use clap::{ArgMatches, Command};
use fastmap_cli::failure::Failure;
use serde_json::Value;

use crate::experiment::Experiment;
use crate::substrates::Meter;
use crate::{driver, worker};

/// An experiment, as the command line and the worker see it.
pub struct Known {
    /// Its name on the command line and in the JSON.
    pub name: &'static str,
    /// Makes its command line.
    pub command: fn() -> Command,
    /// Runs the whole experiment.
    pub run: fn(&ArgMatches) -> Result<(), Failure>,
    /// Runs one case in this process.
    pub work: fn(Value, &Meter) -> Result<Value, String>,
}

impl Known {
    /// The entry of an experiment.
    pub const fn of<E: Experiment>() -> Known {
        Known { name: E::NAME, command: driver::command::<E>, run: driver::run::<E>, work: worker::work::<E> }
    }
}

macro_rules! experiments {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// All experiments, in the order in which help shows them.
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
