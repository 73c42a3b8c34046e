//! Errors at the library's edge: each names the folder or the file, and what to do next.

use std::io;
use std::path::PathBuf;

/// A failure to open a folder or a local copy.
///
/// Converts into [`std::io::Error`], with the kind of the operating system's error if there is one.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{path}: cannot {operation}: {source}{remedy}", path = path.display(), remedy = remedy(source))]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The attempted operation, as a verb phrase.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// Neither the caller nor the environment says where the folder is.
    #[error("no folder for local copies: set FASTMAP_TIER to one, or HOME")]
    NoFolder,
    /// The folder that the caller or the environment names does not exist, and is not made.
    #[error("{path}: there is no such folder, and {why}: make it (mkdir), or name another", path = path.display())]
    Absent {
        /// The folder.
        path: PathBuf,
        /// The reason why it is not made.
        why: String,
    },
    /// The folder is another user's, or others may write into it: they could put bytes there that were never in an object.
    #[error("{path}: {why}: local copies need a folder that only you write to; name another with FASTMAP_TIER, or {remedy}", path = path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The reason why it cannot be used.
        why: String,
        /// How this folder can be made usable.
        remedy: &'static str,
    },
    /// The file system lacks something.
    #[error("{path}: the file system has no {lacks}: name a folder on a local disk (ext4, xfs, btrfs) with FASTMAP_TIER", path = path.display())]
    FileSystem {
        /// The folder.
        path: PathBuf,
        /// The missing feature.
        lacks: &'static str,
    },
    /// The environment variable `FASTMAP_TIER_LIMIT` cannot be read.
    #[error("FASTMAP_TIER_LIMIT: {0}")]
    NoSize(String),
    /// The limit is below [`Tier::MIN_LIMIT`](crate::Tier::MIN_LIMIT).
    #[error("{path}: a limit of {limit} bytes is too small: give it at least {minimum} bytes", path = path.display())]
    LimitTooSmall {
        /// The folder.
        path: PathBuf,
        /// Bytes asked for.
        limit: u64,
        /// Bytes needed.
        minimum: u64,
    },
    /// More processes have the folder open than it has places for.
    #[error("{path}: {processes} processes use it already: name another folder with FASTMAP_TIER", path = path.display())]
    TooManyProcesses {
        /// The folder.
        path: PathBuf,
        /// How many can.
        processes: u64,
    },
    /// A file of the folder is not of the format that this version writes, and other programs use it now.
    #[error("{path}: not a file that this version of FastMap can use, and a program has it open: end that program, or name another folder with FASTMAP_TIER", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Nothing tells one version of the object from another.
    #[error(
        "{url}: the store gives neither ETag nor version nor modification time: a local copy cannot be told from one of another version"
    )]
    Unversioned {
        /// The object.
        url: String,
    },
}

/// As `Display`: a program that returns an error from `main`, or unwraps one, shows the file and the remedy.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The remedy for an error, to stand behind the message.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOTDIR) => {
            "; name a folder that you can write to with FASTMAP_TIER"
        }
        Some(libc::ENOSPC | libc::EDQUOT) => "; make room on the disk, or name a folder on another with FASTMAP_TIER",
        _ => "",
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::NoFolder | Error::Absent { .. } => io::ErrorKind::NotFound,
            Error::NotOurs { .. } => io::ErrorKind::PermissionDenied,
            Error::FileSystem { .. } => io::ErrorKind::Unsupported,
            Error::NoSize(_) | Error::LimitTooSmall { .. } | Error::Unversioned { .. } => io::ErrorKind::InvalidInput,
            Error::TooManyProcesses { .. } | Error::InUse { .. } => io::ErrorKind::ResourceBusy,
        };
        io::Error::new(kind, error)
    }
}
