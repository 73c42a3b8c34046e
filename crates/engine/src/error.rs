//! Errors at the library's edge. A message names the file and the place in it, where there are such, and what to do
//! next.

use crate::modes::Faults;
use crate::sys::fork;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// An error of mapping, flushing, pinning or advising on a file, or of making or resizing a cache.
///
/// Converts into [`std::io::Error`] and keeps the operating system's error kind. So `?` works in functions that return
/// `io::Result`, as with `memmap2`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::{Error, MapOptions};
///
/// # let file = tempfile::tempfile()?;
/// file.set_len(100)?;
/// // SAFETY: nobody else changes the file.
/// match unsafe { MapOptions::new().offset(101).map(&file) } {
///     Err(Error::OffsetPastEnd { offset: 101, size: 100, .. }) => {}
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on the file failed.
    #[error("{path}: cannot {operation}: {source}", path = path.display())]
    Io {
        /// The file, as `/proc/self/fd` names it; `kernel mapping` or `cache` where no file is known.
        path: PathBuf,
        /// The attempt, as a verb phrase.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// Bytes could not be written back. They stay in memory, dirty; the next flush and the background writers try
    /// again. `source` tells a full disk (ENOSPC, [`io::ErrorKind::StorageFull`]) from a failing one (EIO).
    #[error(
        "{path}: cannot write back {len} bytes at offset {offset}: {source}; they are kept in memory: {remedy}",
        path = path.display(),
        remedy = remedy(source)
    )]
    WriteBack {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// The cache's capacity is below [`Cache::MIN_CAPACITY`](crate::Cache::MIN_CAPACITY).
    #[error("a cache of {capacity} bytes is too small: give it at least {minimum} bytes")]
    CapacityTooSmall {
        /// Bytes asked for.
        capacity: usize,
        /// Bytes needed.
        minimum: usize,
    },
    /// The cache's capacity is above what memory allows ([`Cache::memory_limit`](crate::Cache::memory_limit)), or above what
    /// the cache can be resized to ([`Cache::resize`](crate::Cache::resize)).
    #[error("a cache of {capacity} bytes is too large: give it at most {maximum} bytes, the most here")]
    CapacityTooLarge {
        /// Bytes asked for.
        capacity: usize,
        /// The largest capacity that the cache can have, bytes.
        maximum: usize,
    },
    /// The map's offset lies past the end of the file.
    #[error("{path}: offset {offset} is past the end of the file ({size} bytes): map from a smaller offset", path = path.display())]
    OffsetPastEnd {
        /// The file.
        path: PathBuf,
        /// Offset asked for, bytes.
        offset: u64,
        /// Length of the file, bytes.
        size: u64,
    },
    /// Offset plus length does not fit the address space.
    #[error("{path}: offset {offset} plus length {len} does not fit the address space: map a smaller part", path = path.display())]
    LengthOverflow {
        /// The file.
        path: PathBuf,
        /// Offset asked for, bytes.
        offset: u64,
        /// Length asked for, bytes.
        len: u64,
    },
    /// A range given to a method of a map does not lie inside the map.
    #[error("range of {len} bytes at {offset} is outside the map of {map_len} bytes")]
    RangeOutside {
        /// Start of the range in the map, bytes.
        offset: usize,
        /// Length of the range, bytes.
        len: usize,
        /// Length of the map, bytes.
        map_len: usize,
    },
    /// The length of the output is not that of the ranges to be copied to it ([`Map::gather`](crate::Map::gather)).
    #[error(
        "ranges of {wanted} bytes in all do not fill an output of {room} bytes exactly: pass one of {wanted} bytes"
    )]
    OutputLength {
        /// Bytes of the ranges, all together.
        wanted: usize,
        /// Bytes of the output.
        room: usize,
    },
    /// A map was to grow to less than it has.
    #[error("cannot shrink a map from {len} to {new_len} bytes: drop it and map again")]
    Shrinking {
        /// Length of the map, bytes.
        len: usize,
        /// Length asked for, bytes.
        new_len: usize,
    },
    /// A map was to extend a block device, whose size is fixed.
    #[error("{path}: is a block device of {size} bytes, which cannot be extended: map no more than that", path = path.display())]
    FixedSize {
        /// The device.
        path: PathBuf,
        /// Its size, bytes.
        size: u64,
    },
    /// Disk space for a map could not be allocated ([`MapOptions::reserve`](crate::MapOptions::reserve)). The file's
    /// length is as before.
    #[error("{path}: cannot reserve {len} bytes at offset {offset}: {source}; {remedy}", path = path.display())]
    Reserve {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The operating system's error.
        source: io::Error,
        /// The remedy.
        remedy: &'static str,
    },
    /// A mutable map of a file opened for reading only.
    #[error("{path}: opened for reading only: open it for reading and writing to map it mutable", path = path.display())]
    ReadOnlyFile {
        /// The file.
        path: PathBuf,
    },
    /// The descriptor cannot be read from.
    #[error("{path}: opened for writing only: a map needs to read, open it for reading too", path = path.display())]
    WriteOnlyFile {
        /// The file.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: is a {kind}: only regular files and block devices can be mapped", path = path.display())]
    NotMappable {
        /// The file.
        path: PathBuf,
        /// Its kind, as a noun.
        kind: &'static str,
    },
    /// Another process has the file mapped for writing, and [`MapOptions::one_writer`](crate::MapOptions::one_writer)
    /// is on in both.
    #[error(
        "{path}: is mapped for writing by {holder}: end it, map for reading only, or let several write \
         (MapOptions::one_writer)",
        path = path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The other process, if this one may see it.
        pid: Option<u32>,
        /// The other process, for messages: number and command name.
        holder: String,
    },
    /// The map would end past the address range that the file's first map reserved, and other maps of the file use it.
    #[error(
        "{path}: does not fit into {span} bytes, the address range reserved when it was first mapped: drop its other maps, \
         then map or grow it again",
        path = path.display()
    )]
    Outgrown {
        /// The file.
        path: PathBuf,
        /// Reserved bytes.
        span: u64,
    },
    /// The file is mapped already with another initial value
    /// ([`MapOptions::async_read`](crate::MapOptions::async_read)).
    #[error(
        "{path}: is mapped with another initial value, which all maps of a file in a process share: give the same one, or drop \
         the other map first",
        path = path.display()
    )]
    InitialValue {
        /// The file.
        path: PathBuf,
    },
    /// Bytes asked for through [`Map::pin`](crate::Map::pin) and its kin lie on a page wholly past the file's end.
    #[error(
        "{path}: offset {offset} is past the end of the file ({size} bytes): extend the file, or ask for less of it",
        path = path.display()
    )]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// Start of the page, in the file, bytes.
        offset: u64,
        /// Length of the file, bytes.
        size: u64,
    },
    /// A page of an object could not be fetched ([`Origin`](crate::Origin)).
    #[error(
        "{path}: cannot fetch the page at offset {offset}: {reason} (os error {errno})",
        path = path.display()
    )]
    Fetch {
        /// The object's name ([`Origin::name`](crate::Origin::name)).
        path: PathBuf,
        /// Start of the page, in the object, bytes.
        offset: u64,
        /// The error number (errno(3)): `ETIMEDOUT` after the deadline, `ESTALE` if the object has changed.
        errno: i32,
        /// Its meaning and a remedy.
        reason: String,
    },
    /// A page could not be brought into memory.
    #[error(
        "{path}: cannot bring in the page at offset {offset}: {operation} failed: {source}; nothing else is affected: \
         remove the cause and try again",
        path = path.display()
    )]
    Load {
        /// The file.
        path: PathBuf,
        /// Start of the page, in the file, bytes.
        offset: u64,
        /// The step that failed, as a noun phrase.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// More pages would be pinned than the cache allows. No page of the range is pinned then.
    #[error(
        "{path}: cannot pin {len} bytes at offset {offset}: {pinned} bytes are pinned, and the cache allows {most} at a time: \
         drop other pins, pin less at a time, or enlarge the cache (Cache::resize)",
        path = path.display()
    )]
    PinBudget {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes.
        offset: u64,
        /// Bytes asked for, in whole pages.
        len: u64,
        /// Bytes that may be pinned at a time.
        most: u64,
        /// Bytes that were pinned, in whole pages.
        pinned: u64,
    },
    /// One page has as many pins as can be counted: 2047, or 1023 for writing.
    #[error(
        "{path}: the page at offset {offset} has {most} pins, and no room for more: share one, or drop some",
        path = path.display()
    )]
    TooManyPins {
        /// The file.
        path: PathBuf,
        /// Start of the page, in the file, bytes.
        offset: u64,
        /// Pins a page can have.
        most: u32,
    },
    /// A cache was to become smaller than its pins allow ([`Cache::resize`](crate::Cache::resize)).
    #[error(
        "a cache cannot be resized to {capacity} bytes while {pinned} bytes are pinned: drop pins first, or keep it larger"
    )]
    PinsHold {
        /// Bytes asked for.
        capacity: usize,
        /// Bytes pinned, in whole pages.
        pinned: usize,
    },
    /// An earlier choice ([`faults::choose`](crate::faults::choose)), or the first cached map, has settled otherwise
    /// how page faults are served.
    #[error("page faults of this process are served {chosen} already: set the fault mode once, before the first map")]
    FaultsChosen {
        /// How they are served.
        chosen: Faults,
    },
    /// Something the engine needs is missing, and [`Fallback`](crate::Fallback) allows no map without it. Also in a
    /// child made by fork(2), where the engine does not run.
    #[error("{path}: {missing} is missing: {remedy}", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The missing thing, as a noun phrase.
        missing: &'static str,
        /// The remedy.
        remedy: String,
    },
}

/// Tells that a file is mapped through the kernel instead, by `tracing`. If the program has no subscriber, one line on standard error says so,
/// once: a limit that was asked for does not hold. Maps by address have a line of their own ([`say_kernels`](crate::by_address::say_kernels)).
pub(crate) fn tell_of_fallback(error: &Error, by_address: bool) {
    static SAID: AtomicBool = AtomicBool::new(false);
    tracing::warn!(%error, "mapped through the kernel instead");
    let is_heard = by_address || fork::is_child() || tracing::dispatcher::has_been_set();
    if !is_heard && !SAID.swap(true, Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "fastmap: {error}; mapped through the kernel, outside any cache (said once)");
    }
}

/// As `Display`: a program that returns an error from `main`, or unwraps one, shows the file and the remedy.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// The error number that a system call would fail with (errno(3)).
    ///
    /// ```
    /// let error = fastmap::Cache::new(100).unwrap_err();
    /// assert_eq!(error.errno(), libc::EINVAL);
    /// ```
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. }
            | Error::WriteBack { source, .. }
            | Error::Reserve { source, .. }
            | Error::Load { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Fetch { errno, .. } => *errno,
            Error::ReadOnlyFile { .. } | Error::WriteOnlyFile { .. } => libc::EACCES,
            Error::NotMappable { .. } => libc::ENODEV,
            Error::Locked { .. } => libc::EAGAIN,
            Error::LengthOverflow { .. } => libc::EOVERFLOW,
            Error::PastEnd { .. } => libc::ENXIO,
            Error::Outgrown { .. } | Error::PinBudget { .. } | Error::TooManyPins { .. } => libc::ENOMEM,
            Error::PinsHold { .. } | Error::FaultsChosen { .. } => libc::EBUSY,
            Error::Missing { .. } => libc::ENOSYS,
            Error::CapacityTooSmall { .. }
            | Error::CapacityTooLarge { .. }
            | Error::OffsetPastEnd { .. }
            | Error::RangeOutside { .. }
            | Error::OutputLength { .. }
            | Error::Shrinking { .. }
            | Error::InitialValue { .. }
            | Error::FixedSize { .. } => libc::EINVAL,
        }
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "make room there and flush again",
        Some(libc::EIO) => "the device fails: copy them elsewhere, or repair it and flush again",
        _ => "remove the cause and flush again",
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. }
            | Error::WriteBack { source, .. }
            | Error::Reserve { source, .. }
            | Error::Load { source, .. } => source.kind(),
            Error::Fetch { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
            Error::PastEnd { .. } => io::ErrorKind::UnexpectedEof,
            Error::PinBudget { .. } | Error::TooManyPins { .. } => io::ErrorKind::QuotaExceeded,
            Error::PinsHold { .. } => io::ErrorKind::ResourceBusy,
            Error::ReadOnlyFile { .. } | Error::WriteOnlyFile { .. } => io::ErrorKind::PermissionDenied,
            Error::Locked { .. } => io::ErrorKind::ResourceBusy,
            Error::Missing { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// Result with this crate's [`Error`].
///
/// ```
/// fn capacity() -> fastmap::Result<usize> {
///     Ok(fastmap::Cache::new(1 << 20)?.capacity())
/// }
/// assert_eq!(capacity()?, 1 << 20);
/// # Ok::<(), fastmap::Error>(())
/// ```
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The `operation` of errors with ESTALE: the file's maps became the kernel's while the engine worked on one of
    /// them.
    pub(crate) const CHANGED_HANDS: &str = "its maps are the kernel's now, and bringing it in";

    /// Whether it is such an error, and not one of the file or object itself.
    pub(crate) fn is_of_changed_hands(&self) -> bool {
        matches!(
            self,
            Error::Load { operation: Self::CHANGED_HANDS, .. } | Error::Io { operation: Self::CHANGED_HANDS, .. }
        )
    }

    /// The error in a child made by fork(2), which has none of the engine's threads, memory or userfaultfds.
    pub(crate) fn in_a_child(path: &Path) -> Error {
        Error::Missing {
            path: path.to_owned(),
            missing: "the process that started the engine",
            remedy:
                "this is a child made by fork(2), where the engine does not run: call exec, or map through the kernel"
                    .into(),
        }
    }

    /// The error in a thread that does not share the descriptor table of the engine's threads.
    pub(crate) fn in_another_table(path: &Path) -> Error {
        Error::Missing {
            path: path.to_owned(),
            missing: "the engine's descriptors",
            remedy: "this thread has a descriptor table of its own (unshare(2), or close_range(2) with CLOSE_RANGE_UNSHARE): \
                     map in a thread that has not, or before"
                .into(),
        }
    }

    /// The error of a cache for whose bookkeeping there is no memory.
    pub(crate) fn no_bookkeeping(source: io::Error) -> Error {
        Error::Io { path: PathBuf::from("cache"), operation: "map memory for its bookkeeping", source }
    }
}
