//! What can go wrong in a load; each message names the thing, what happened, and the remedy, in that order.

use std::io;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a load could not be prepared, run or verified. `Display` is one line, `thing: what: remedy`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page does not hold the bytes it must.
    #[error(
        "page {page} at offset {offset}: holds {found:#018x} where {expected:#018x} belongs: the file is damaged \
         or the engine lost a byte; remove the file and run again to tell which"
    )]
    Stamp {
        /// Number of the page within the file.
        page: u64,
        /// Byte offset of the wrong word within the file.
        offset: u64,
        /// The word that belongs there.
        expected: u64,
        /// The word that is there.
        found: u64,
    },
    /// A page holds a generation that no store of this run can have left there: a store was lost or a stale page seen.
    #[error(
        "page {page} at offset {offset}: holds generation {found:#x} where {expected} belongs: a store was lost; \
         remove the file and run again to tell the file from the engine"
    )]
    Generation {
        /// Number of the page within the file.
        page: u64,
        /// Byte offset of the generation within the file.
        offset: u64,
        /// The generation that is there.
        found: u64,
        /// What belongs there, in words.
        expected: String,
    },
    /// The system refused an operation on the file.
    #[error("{thing}: {what}: {source}: {remedy}")]
    Io {
        /// The file, as the user knows it.
        thing: String,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The file system has no room for the benchmark file.
    #[error(
        "{thing}: no room: it needs {needed} more bytes and the file system has {free}: \
         free some space, name another place with --file or --dir, or make it smaller with --size"
    )]
    NoSpace {
        /// The file, as the user knows it.
        thing: String,
        /// Bytes that had to be added.
        needed: u64,
        /// Bytes the file system had left.
        free: u64,
    },
    /// An existing file that this benchmark did not write.
    #[error("{thing}: holds something other than a benchmark's pages: name a new file, or remove this one yourself")]
    Foreign {
        /// The file, as the user knows it.
        thing: String,
    },
    /// A database is not there, or refused.
    #[error("{thing}: {what}: {remedy}")]
    Refused {
        /// The database, its file or folder, or the query.
        thing: String,
        /// What happened.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A load's answer, or what it left behind, is not what it must be.
    #[error("{thing}: {what}: bytes were lost or mixed up on the way: run it again, and report it if it comes back")]
    Answer {
        /// The store, the rows, or the algorithm.
        thing: String,
        /// What is wrong.
        what: String,
    },
    /// The memory limit leaves no room for a cache.
    #[error("--memory: {memory} bytes are too few for the engine fastmap: give at least {}", in_mib(*least))]
    Memory {
        /// The limit that was asked for, bytes.
        memory: u64,
        /// The least limit that works, bytes.
        least: u64,
    },
    /// The fastmap engine refused; its reason names the file.
    #[error("{0}: `fastmap doctor` tells what this machine lacks")]
    Fastmap(#[from] fastmap::Error),
    /// The caller asked to stop.
    #[error("benchmark: interrupted: run it again")]
    Interrupted,
}

/// Whole MiB, rounded up, as a SIZE the command line takes.
fn in_mib(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}
