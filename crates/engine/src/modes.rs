//! The choices that users have, as plain enums.

use std::fmt;

/// How page faults of cached maps are served, in the whole process ([`faults::choose`](crate::faults::choose)).
///
/// ```
/// use fastmap::faults::{self, Faults};
///
/// match faults::choose(Faults::Service) {
///     Ok(()) => println!("system calls may be given memory of maps"),
///     Err(error) => println!("{error}"), // what is missing, and how to have it
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Faults {
    /// The faulting thread serves them, in a handler of SIGBUS. No other thread is woken, and no privilege is needed. A
    /// system call that is given memory of a map fails with EFAULT where a page is absent. The first miss of a thread
    /// that blocks SIGBUS ends the process.
    #[default]
    Signal,
    /// Threads of the engine serve them, woken by the kernel. System calls find their pages, and blocked signals do not
    /// matter. Each miss costs two more switches between threads. Handling faults taken inside the kernel is a
    /// privilege: CAP_SYS_PTRACE, the sysctl `vm.unprivileged_userfaultfd`, or access to /dev/userfaultfd.
    ///
    /// The kernel refuses (EFAULT) a few accesses to an absent page that must not wait: priority-inheriting futexes,
    /// and `FUTEX_WAKE_OP`. As with [`Faults::Signal`], bytes that are read with direct I/O into a page that is evicted
    /// meanwhile are lost.
    Service,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Faults::Signal => "by signal",
            Faults::Service => "by service threads",
        })
    }
}

/// How to go on where the engine lacks something it needs ([`MapOptions::fallback`](crate::MapOptions::fallback)).
///
/// ```
/// use fastmap::{Fallback, MapOptions};
///
/// let file = tempfile::tempfile()?;
/// file.set_len(4096)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { MapOptions::new().fallback(Fallback::Kernel).map(&file)? };
/// assert_eq!(map[0], 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Map the file through the kernel instead (mmap(2)), outside any budget. A warning through
    /// `tracing`, or one line on standard error where the program has no subscriber, says what is missing, and [`Map::engine`](crate::Map::engine) says who serves the map.
    Kernel,
    /// Where only direct I/O is missing, cache the file over buffered reads and writes: the page cache then holds a
    /// second copy. Anything else missing is an error.
    Buffered,
    /// Fail, naming what is missing and what to do about it ([`Error::Missing`](crate::Error::Missing)).
    #[default]
    Refuse,
}

/// Whether a file is mapped behind a cache or *straight*: without one, so that loads and stores reach the memory that
/// is the file ([`MapOptions::mode`](crate::MapOptions::mode)).
///
/// ```
/// use fastmap::{MapOptions, Mode};
///
/// let options = MapOptions::new().mode(Mode::Cached).clone();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Straight where the file is in memory (tmpfs, ramfs, hugetlbfs, DAX). Elsewhere behind the map's cache; without
    /// one the kernel serves the map.
    #[default]
    Automatic,
    /// Behind the cache: the map's, or [`Cache::global`](crate::Cache::global). For a file in memory that is a second
    /// copy, and needs [`Fallback::Buffered`](crate::Fallback::Buffered).
    Cached,
    /// Straight. A file that is not in memory is mapped through the kernel with
    /// [`Fallback::Kernel`](crate::Fallback::Kernel), and is [`Error::Missing`](crate::Error::Missing) otherwise.
    Direct,
}

/// How a flush makes stores to a direct map last ([`MapOptions::persist`](crate::MapOptions::persist)).
///
/// ```
/// use fastmap::{MapOptions, Persist};
///
/// let options = MapOptions::new().persist(Persist::CacheLines).clone();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persist {
    /// As the file needs: by cache line on DAX where the kernel can (`MAP_SYNC`, mmap(2)), by msync(2) on other DAX,
    /// not at all on tmpfs and hugetlbfs, which do not outlive the machine.
    #[default]
    Automatic,
    /// By cache line on tmpfs and hugetlbfs, too, for memory that is persistent, or stands in for such. A flush then
    /// covers stores through any map of the file in this process, the kernel's in system calls included. Direct I/O
    /// into a map must have ended before any flush of its file begins.
    CacheLines,
}

/// Advice on a range of a map ([`Map::advise`](crate::Map::advise)), after madvise(2).
///
/// The first four are remembered for the file, in units of 2 MiB, whichever of its maps was advised. The others are
/// acted upon at once. A map that the kernel serves passes advice to madvise(2), [`Advice::Backward`] as `MADV_NORMAL`.
/// A direct map does so too, but ignores [`Advice::DontNeed`].
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use fastmap::{Advice, Map};
///
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 16)?;
/// // SAFETY: nobody else changes the file.
/// let map = unsafe { Map::map(&file)? };
/// map.advise(Advice::WillNeed)?;
/// map.advise_range(Advice::DontNeed, 0, 4096)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing in particular: the default, which takes the next three back. Walks with a constant step are recognised
    /// and read ahead of. Several pages in a row, at random places, are read at once when their number is known. A file
    /// that fits into the cache is read whole when misses have cost as much as that.
    Normal,
    /// It will be accessed at random: nothing is read ahead.
    Random,
    /// It will be walked forward: reading ahead begins with the first page that is missed.
    Sequential,
    /// It will be walked backward: reading ahead, down the file, begins with the first page that is missed. (madvise(2)
    /// has no such advice.)
    Backward,
    /// Bring the range into memory now, as far as it fits the cache.
    WillNeed,
    /// Write the range's dirty pages back and drop it from memory, except for pinned pages. Unlike madvise(2) on
    /// private memory it loses nothing.
    DontNeed,
}
