//! What users choose between, and nothing that follows from it.

use std::fmt;

/// What serves page faults of cached maps, in all of the process.
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
    /// The faulting thread, in a handler of SIGBUS: no other thread is woken, and no privilege is needed. A system call
    /// that is given memory of a map fails with EFAULT where a page is absent, and a thread that blocks SIGBUS dies at
    /// its first miss.
    #[default]
    Signal,
    /// Threads of the engine's, which the kernel wakes: system calls find their pages, and signals do not matter. Each
    /// miss costs two switches between threads more. Handling faults taken inside the kernel is a privilege:
    /// CAP_SYS_PTRACE, the sysctl `vm.unprivileged_userfaultfd`, or access to /dev/userfaultfd.
    ///
    /// The kernel itself refuses a few accesses that must not wait (EFAULT): priority-inheriting futexes, and
    /// `FUTEX_WAKE_OP`, on an absent page. And what is read with direct I/O into a page that is evicted meanwhile is
    /// lost in this mode, too.
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

/// What to do where the engine lacks something it needs. Nothing is done silently: what is not asked for is an error.
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
    /// Map the file through the kernel instead (mmap(2)), outside any budget, with a warning through `tracing` that says what is missing.
    /// [`Map::engine`](crate::Map::engine) tells.
    Kernel,
    /// Where only direct I/O is missing, cache the file all the same, over buffered reads and writes: the page cache
    /// then holds a second copy. Anything else missing is an error.
    Buffered,
    /// Fail, naming what is missing and what to do about it ([`Error::Missing`](crate::Error::Missing)).
    #[default]
    Refuse,
}

/// Whether a file is mapped straight or behind the cache ([`MapOptions::mode`](crate::MapOptions::mode)).
///
/// ```
/// use fastmap::{MapOptions, Mode};
///
/// let options = MapOptions::new().mode(Mode::Cached).clone();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Straight where the file is in memory (tmpfs, ramfs, hugetlbfs, DAX), else behind the cache.
    #[default]
    Automatic,
    /// DeferredStores the cache. Of a file in memory that is a second copy, and takes
    /// [`Fallback::Buffered`](crate::Fallback::Buffered).
    Cached,
    /// Straight. A file that is not in memory is what the [`Fallback`](crate::Fallback) is for.
    Direct,
}

/// What makes stores to a direct map last ([`MapOptions::persist`](crate::MapOptions::persist)).
///
/// ```
/// use fastmap::{MapOptions, Persist};
///
/// let options = MapOptions::new().persist(Persist::CacheLines).clone();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persist {
    /// What the file needs: cache lines on DAX, where the kernel can (`MAP_SYNC`), else msync(2); nothing on tmpfs and
    /// hugetlbfs, which do not outlive the machine.
    #[default]
    Automatic,
    /// Cache lines on tmpfs and hugetlbfs as well: the memory behind them is persistent, or stands in for such. A flush
    /// then covers what was stored through maps of this process, by itself or in system calls; direct I/O into a map
    /// must have ended before any flush of its file begins.
    CacheLines,
}

/// Advice on a range of a map ([`Map::advise`](crate::Map::advise)), after madvise(2).
///
/// The first four are remembered for the file, whichever map they came by, in units of 2 MiB; the others are acted
/// upon.
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
    /// Nothing in particular: walks with a constant step are recognised and read ahead of, rows of several pages at random places are
    /// read at once when their length is known, and a file that fits into the cache is read whole when misses have cost as much. The
    /// default, and what takes the next three back.
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
    /// Write the range's dirty pages back and drop it from memory, less what is pinned. Unlike madvise(2) on private
    /// memory it loses nothing.
    DontNeed,
}
