//! Errors at the library's edge. An error about an object names it and, where there is one, a remedy.

use std::io;

/// A failure to open or map an object.
///
/// Converts into [`std::io::Error`] with the kind that belongs to the error.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL cannot be used. It is shown without user, password and query string.
    #[error("{url}: {why}")]
    Url {
        /// The URL.
        url: String,
        /// The fault in it, and the remedy.
        why: String,
    },
    /// The store did not give the object.
    #[error("{url}: {why}{remedy}", remedy = remedy(*errno))]
    Store {
        /// The object.
        url: String,
        /// The error number: `ENOENT`, `EACCES`, `ETIMEDOUT`, or `EIO` for any other reason.
        errno: i32,
        /// The reason.
        why: String,
    },
    /// The folder of local copies, or the local copy, cannot be used.
    #[error(transparent)]
    Tier(#[from] fastmap_tier::Error),
    /// The object cannot be mapped.
    #[error(transparent)]
    Map(#[from] fastmap::Error),
    /// A system call failed: no memory, or no threads.
    #[error("cannot {operation}: {source}")]
    Io {
        /// The attempted operation, as a verb phrase.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// As `Display`: a program that returns an error from `main`, or unwraps one, shows the file and the remedy.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The remedy that follows the message of an error. Empty if there is none.
fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EACCES => {
            "; give credentials the way the service's own tools take them (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), or renew them"
        }
        libc::ENOENT => "; look at the bucket's and the object's name",
        libc::ETIMEDOUT => "; look whether the store can be reached from here, or allow more time",
        _ => "",
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Url { .. } => io::Error::new(io::ErrorKind::InvalidInput, error),
            Error::Store { errno, .. } => io::Error::new(io::Error::from_raw_os_error(errno).kind(), error),
            Error::Tier(error) => error.into(),
            Error::Map(error) => error.into(),
            Error::Io { ref source, .. } => io::Error::new(source.kind(), error),
        }
    }
}
