//! Errors of a load. Each message names the thing, then what happened, then the remedy.

use std::io;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a load could not be prepared, run or verified. `Display` is one line, `thing: what: remedy`.
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
    /// A page does not hold the generation that this run stored last to it. Or this run has stored none to it, and the page's generation is
    /// above all earlier ones. A store was lost, or an old page was seen.
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
        /// The generations that may be there, in words.
        expected: String,
    },
    /// The system refused an operation on the file.
    #[error("{thing}: {what}: {source}: {remedy}")]
    Io {
        /// The file, by the user's name for it.
        thing: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// The file system has no room for the benchmark file.
    #[error(
        "{thing}: no room: it needs {needed} more bytes and the file system has {free}: \
         free some space, name another place with --file or --dir, or make it smaller with --size"
    )]
    NoSpace {
        /// The file, by the user's name for it.
        thing: String,
        /// Bytes that the file still needed.
        needed: u64,
        /// Bytes that the file system had left.
        free: u64,
    },
    /// The file does not hold a benchmark's pages, or holds them where a hole must be.
    #[error("{thing}: holds something other than a benchmark's pages: name a new file, or remove this one yourself")]
    Foreign {
        /// The file, by the user's name for it.
        thing: String,
    },
    /// A database or a program is missing, or refuses its work.
    #[error("{thing}: {what}: {remedy}")]
    Refused {
        /// The database, its file or folder, the query, or the program.
        thing: String,
        /// The event.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The answer of a load, or the data that it left behind, are wrong.
    #[error("{thing}: {what}: bytes were lost or mixed up on the way: run it again, and report it if it comes back")]
    Answer {
        /// The store, the rows, or the algorithm.
        thing: String,
        /// The mistake.
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
    /// The fastmap engine refused. Its reason names the file.
    #[error("{0}: `fastmap doctor` tells what this machine lacks")]
    Fastmap(#[from] fastmap::Error),
    /// The caller asked to stop.
    #[error("benchmark: interrupted: run it again")]
    Interrupted,
}

/// Bytes as a size of the command line, in whole MiB, rounded up.
fn in_mib(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}
