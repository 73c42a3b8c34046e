//! Direct mappings: files that are memory already are mapped straight, and flushes make the stores there last.
//!
//! On DAX with `MAP_SYNC` (mmap(2), Linux 4.15) a store lasts once its cache line is written to memory, which takes no
//! system call. Only the kernel knows which pages are dirty. So a small range is written line by line, whether dirty or not,
//! and a large one is left to msync(2).
//!
//! Files of tmpfs and hugetlbfs do not outlive the machine, so there is nothing to do, unless the caller knows better
//! ([`Persist::CacheLines`]). Then stores are tracked here, by asynchronous write-protection (`sys/pagemap.rs`), and large
//! flushes write dirty pages only. Tracking is each mapping's own, so a flush looks at all mappings of the file
//! (`direct/table.rs`). It costs a trap for each page that is stored to. A program that stores to most pages between flushes
//! gains nothing from it, so there most flushes write all lines ([`LargeFlushes`]).

use crate::counters::per_cpu::PerCpuCounter;
use crate::direct::table::{self, Span};
use crate::error::Error;
use crate::fault::handler;
use crate::modes::Persist;
use crate::sys::file::{Identity, Medium};
use crate::sys::lock::Lock;
use crate::sys::pagemap::{Found, Pagemap};
use crate::sys::signal::Blocked;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, errno, file, fork, lines};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};

/// How stores to a mapping are made to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing lasts, so a flush does nothing.
    Nothing,
    /// By cache line, since the mapping is `MAP_SYNC`. The kernel knows which pages are dirty.
    Synchronous,
    /// By cache line. This module knows which pages are dirty.
    Tracked,
    /// By cache line, all lines of the range.
    Lines,
    /// By msync(2).
    Kernel,
}

impl Durability {
    /// Whether flushes are by cache line. `live` shows the counts of these to other processes.
    pub fn is_by_line(self) -> bool {
        !matches!(self, Durability::Nothing | Durability::Kernel)
    }

    /// The inverse of `as usize`.
    pub fn from_number(number: usize) -> Self {
        let all = [Durability::Nothing, Durability::Synchronous, Durability::Tracked, Durability::Lines];
        all.get(number).copied().unwrap_or(Durability::Kernel)
    }
}

/// Bytes up to which a flush writes all lines of its range, and does not ask which pages are dirty. To ask, and to protect the page again
/// so that its next store traps, costs as much as 64 KiB of lines.
const SMALL: usize = 64 << 10;

/// Flushes in a row that write all lines, at most. Two flushes that track come between.
const MOST_PLAIN: u32 = 64;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// The arguments of mmap(2) for a shared mapping of a file, less the descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub addr: usize,
    pub len: usize,
    pub prot: i32,
    /// `MAP_SHARED`, and other flags that the caller wants.
    pub flags: i32,
    pub offset: i64,
}

/// mmap(2).
///
/// # Safety
/// A mapping at a fixed address replaces the memory there.
pub unsafe fn map_plainly(file: &File, wanted: Wanted) -> io::Result<usize> {
    let Wanted { addr, len, prot, flags, offset } = wanted;
    // SAFETY: the caller's contract.
    let at = unsafe { libc::mmap(addr as *mut _, len, prot, flags, file.as_raw_fd(), offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}

/// Maps a file straight. Returns the address, and how stores are made to last.
///
/// # Safety
/// As for `map_plainly`.
pub unsafe fn map(file: &File, medium: Medium, persist: Persist, wanted: Wanted) -> io::Result<(usize, Durability)> {
    let durability = match medium {
        Medium::Dax if wanted.prot & libc::PROT_WRITE != 0 => {
            let flags = wanted.flags & !libc::MAP_TYPE | libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
            prepare()?;
            // SAFETY: the caller's contract.
            match unsafe { map_plainly(file, Wanted { flags, ..wanted }) } {
                Ok(at) => return Ok((at, Durability::Synchronous)),
                // DAX of another kind (virtiofs), or a kernel that does not support this.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                    Durability::Kernel
                }
                Err(error) => return Err(error),
            }
        }
        Medium::Dax | Medium::Storage => Durability::Kernel,
        Medium::Memory { .. } if persist == Persist::Automatic => Durability::Nothing,
        // Nobody can store through such a mapping, and the kernel does not track it.
        Medium::Memory { .. } if file::access_mode(file) == libc::O_RDONLY => Durability::Nothing,
        Medium::Memory { unit } => {
            prepare()?;
            // The kernel does not find stores to larger huge pages.
            if unit <= HUGE && Tracking::get().is_some() { Durability::Tracked } else { Durability::Lines }
        }
    };
    // SAFETY: the caller's contract covers the memory at a fixed address.
    unsafe { map_plainly(file, wanted) }.map(|at| (at, durability))
}

/// Prepares for writing lines: installs the SIGBUS handler, for lines past a file's end, and makes sure that a child knows that it is one.
fn prepare() -> io::Result<()> {
    fork::claim()?;
    handler::install()
}

/// The error of a file that cannot be mapped straight.
pub fn not_in_memory(from: &File) -> Error {
    Error::Missing {
        path: file::path_of(from),
        missing: "a file in memory",
        remedy: "only files on tmpfs, hugetlbfs and DAX are mapped directly: put it there, or map it in another mode"
            .into(),
    }
}

/// Asynchronous write-protection: one userfaultfd for all mappings, and the file that tells which pages were stored to.
struct Tracking {
    userfaultfd: Userfaultfd,
    pagemap: Pagemap,
}

impl Tracking {
    fn open() -> io::Result<Self> {
        let tracking = Tracking { userfaultfd: Userfaultfd::open_for_tracking()?, pagemap: Pagemap::open()? };
        // A request for an empty range, which fails if the kernel does not have it.
        tracking.pagemap.present(&(0..0), &mut [Found::default()])?;
        Ok(tracking)
    }

    fn get() -> Option<&'static Tracking> {
        static TRACKING: OnceLock<Option<Tracking>> = OnceLock::new();
        TRACKING.get_or_init(|| Tracking::open().ok()).as_ref()
    }

    /// Writes the lines of pages in `part` of a span, and in the huge pages around it, that were stored to since they were last
    /// found here. Returns the bytes written. The caller holds the file's lock.
    fn write_dirty(&self, span: &Span, part: Range<usize>) -> Result<usize, i32> {
        // Whole huge pages: asked for a part of one, the kernel forgets that it was stored to.
        let end = part.end.next_multiple_of(HUGE).min(span.at.end);
        let mut at = (part.start / HUGE * HUGE).max(span.at.start);
        let mut found = [Found::default(); 128];
        let (mut bytes, mut is_registered) = (0, false);
        while at < end {
            let (count, walked) = match self.pagemap.take_written(&(at..end), &mut found) {
                Ok((count, walked)) if count > 0 || walked > at => (count, walked),
                // It is not registered: this is the first time, or the program has moved the mapping. All pages that are present then count
                // as stored to.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && !is_registered => {
                    // SAFETY: a mapping of a file in memory; only stores are looked at.
                    let registered =
                        unsafe { self.userfaultfd.register_stores(span.at.start as *mut u8, span.at.len()) };
                    is_registered = true;
                    match registered {
                        Ok(()) => continue,
                        Err(_) => return write_lines(part),
                    }
                }
                _ => return write_lines(part),
            };
            let found = &found[..count];
            // At the next store the kernel would map all of a huge page, and take all of it for stored to. Protected once more it
            // is split. Stores between the two protections are written below, after both.
            for one in found.iter().filter(|one| one.is_huge()).map(Found::at) {
                // SAFETY: registered, or the scan would have found nothing. If memory is lacking, the huge page stays whole.
                let _ = unsafe { self.userfaultfd.write_protect(one.start as *mut u8, one.len(), true) };
            }
            for one in found {
                bytes += write_lines(one.at()).inspect_err(|_| {
                    // The pages are still dirty.
                    // SAFETY: registered.
                    let _ = unsafe { self.userfaultfd.write_protect(at as *mut u8, walked - at, false) };
                })?;
            }
            at = walked;
        }
        Ok(bytes)
    }
}

/// Tries to track stores to files in memory. The error says why that is not possible here.
pub fn try_tracking() -> io::Result<()> {
    Tracking::open().map(drop)
}

/// The state of large flushes. Files share it by their numbers: it is about one range of one of them.
struct LargeFlushes {
    /// A flush waits for pages that another flush has found dirty and is writing.
    lock: Lock,
    /// The file, and the range in it, of the last flush that was told which pages are dirty.
    last: [AtomicU64; 4],
    /// The flushes ahead, of this range, that write all lines and leave the pages unprotected.
    plain: AtomicU32,
    /// How many they were the last time; 2 before the first time, 0 if few pages were dirty.
    before: AtomicU32,
    /// The flush before protected the pages of this range, so the next one tells what was stored since then.
    was_tracked: AtomicBool,
}

impl LargeFlushes {
    fn of(file: Identity) -> &'static LargeFlushes {
        static ALL: LazyLock<[LargeFlushes; 64]> = LazyLock::new(|| {
            std::array::from_fn(|_| LargeFlushes {
                lock: Lock::new(),
                last: [const { AtomicU64::new(0) }; 4],
                plain: AtomicU32::new(0),
                before: AtomicU32::new(0),
                was_tracked: AtomicBool::new(false),
            })
        });
        &ALL[file.numbers()[1] as usize % ALL.len()]
    }

    /// Whether the last flush was of this range of this file.
    fn is_again(&self, of: &[u64; 4]) -> bool {
        self.last.iter().zip(of).all(|(last, now)| last.load(Ordering::Relaxed) == *now)
    }

    /// Whether the next flush writes all lines. The caller holds the lock.
    fn is_plain(&self, of: &[u64; 4]) -> bool {
        let plain = self.plain.load(Ordering::Relaxed);
        let is_plain = plain > 0 && self.is_again(of);
        if is_plain {
            self.plain.store(plain - 1, Ordering::Relaxed);
            self.was_tracked.store(false, Ordering::Relaxed);
        }
        is_plain
    }

    /// Notes a flush that was told which pages are dirty: `dirty` bytes of `all`. The caller holds the lock.
    fn note(&self, of: &[u64; 4], dirty: usize, all: usize) {
        let is_again = self.is_again(of);
        self.last.iter().zip(of).for_each(|(last, now)| last.store(*now, Ordering::Relaxed));
        let was_tracked = self.was_tracked.swap(true, Ordering::Relaxed);
        if is_again && !was_tracked {
            // Stores of many rounds are found together.
            return;
        }
        let is_dense = is_again && dirty >= all / 4 * 3;
        let (before, plain) = match self.before.load(Ordering::Relaxed) {
            _ if !is_dense => (0, 0),
            // The first of them may be the only one.
            0 => (2, 0),
            before => ((before * 4).min(MOST_PLAIN), (before * 4).min(MOST_PLAIN)),
        };
        self.before.store(before, Ordering::Relaxed);
        self.plain.store(plain, Ordering::Relaxed);
    }
}

/// Writes a range of lines to memory. Returns the bytes written. There are no lines past the file's end.
fn write_lines(range: Range<usize>) -> Result<usize, i32> {
    let mut at = range.start / lines::LINE * lines::LINE;
    let end = range.end.next_multiple_of(lines::LINE);
    let mut bytes = end - at;
    let mut tried_again = 0;
    #[cfg(all(test, not(loom)))]
    tests::note(&(at..end));
    // SAFETY: the range lies in a mapping that may be read, and `prepare` was called before it was made.
    while let Err(stopped) = unsafe { lines::write_back(at..end) } {
        const EHWPOISON: i32 = 133;
        let page = stopped / PAGE * PAGE;
        // SAFETY: it destroys nothing.
        match unsafe { libc::madvise(page as *mut _, PAGE, libc::MADV_POPULATE_READ) } {
            // The page is there now: once more.
            0 if tried_again != stopped => {
                (at, tried_again) = (stopped, stopped);
                continue;
            }
            -1 if errno() == EHWPOISON => return Err(libc::EIO),
            _ => {}
        }
        at = (page + PAGE).min(end);
        bytes -= at - stopped;
        if at == end {
            break;
        }
    }
    Ok(bytes)
}

/// Makes stores to a range of a mapping last. Returns the bytes written by cache line. Errors are error numbers.
#[inline]
pub fn flush(span: &Span, range: Range<usize>) -> Result<usize, i32> {
    let is_small = range.len() <= SMALL;
    let bytes = match span.durability {
        _ if range.is_empty() => return Ok(0),
        Durability::Nothing => return Ok(0),
        Durability::Synchronous | Durability::Tracked if is_small => write_lines(range)?,
        Durability::Lines => write_lines(range)?,
        // The tracking is for the parent's mapping.
        Durability::Tracked if fork::is_child() => write_lines(range)?,
        Durability::Tracked => flush_tracked(span, &range)?,
        Durability::Synchronous | Durability::Kernel => {
            let start = range.start / PAGE * PAGE;
            // SAFETY: it writes to files only.
            return match unsafe { libc::msync(start as *mut _, range.end - start, libc::MS_SYNC) } {
                0 => Ok(0),
                _ => Err(errno()),
            };
        }
    };
    count(bytes);
    Ok(bytes)
}

/// Writes the pages of a range that were stored to, through whichever mapping of the file. Returns the bytes written.
#[cold]
fn flush_tracked(span: &Span, range: &Range<usize>) -> Result<usize, i32> {
    let of_file = span.in_file(range);
    let [device, inode] = span.file.numbers();
    let of = [device, inode, of_file.start, of_file.end];
    let flushes = LargeFlushes::of(span.file);
    let _blocked = Blocked::but_sigbus();
    let _held = flushes.lock.lock();
    if flushes.is_plain(&of) {
        // The lines are those of all mappings of the file.
        return write_lines(range.clone());
    }
    let dirty = write_tracked(span, range)?;
    flushes.note(&of, dirty, range.len());
    Ok(dirty)
}

/// The same by what the kernel has tracked. The caller holds the lock of the file's large flushes.
fn write_tracked(span: &Span, range: &Range<usize>) -> Result<usize, i32> {
    let Some(tracking) = Tracking::get() else { return write_lines(range.clone()) };
    let of_file = span.in_file(range);
    let all = table::meeting(0..usize::MAX);
    let mut others = all.filter(|other| other.file == span.file && other.durability == Durability::Tracked);
    others.try_fold(0, |bytes, other| match other.part(&of_file) {
        Some(part) => tracking.write_dirty(&other, part).map(|written| bytes + written),
        None => Ok(bytes),
    })
}

/// Forgets the mappings in a range of addresses, before it is unmapped. Stores through them are written first: flushes of
/// the file's other mappings promise that.
#[cold]
pub fn retire(range: &Range<usize>) {
    if fork::is_child() {
        return;
    }
    for span in table::meeting(range.clone()) {
        let part = span.at.start.max(range.start)..span.at.end.min(range.end);
        let _blocked = Blocked::but_sigbus();
        let _held = LargeFlushes::of(span.file).lock.lock();
        if span.durability == Durability::Tracked
            && let Some(tracking) = Tracking::get()
        {
            // Memory that went bad raises SIGBUS when it is read next.
            count(tracking.write_dirty(&span, part.clone()).unwrap_or(0));
        }
        table::remove(&part);
    }
}

/// Writes the stores to tracked mappings in a range of addresses, before the kernel forgets which pages they are in.
#[cold]
pub fn settle(range: &Range<usize>) {
    for span in table::meeting(range.clone()).filter(|span| span.durability == Durability::Tracked) {
        let _blocked = Blocked::but_sigbus();
        let _held = LargeFlushes::of(span.file).lock.lock();
        // Memory that went bad raises SIGBUS when it is read next.
        let _ = write_tracked(&span, &(span.at.start.max(range.start)..span.at.end.min(range.end))).map(count);
    }
}

/// Bytes written by cache line.
static WRITTEN: PerCpuCounter = PerCpuCounter::new();

fn count(bytes: usize) {
    WRITTEN.add(bytes as u64);
}

/// Bytes that this process has written by cache line.
pub fn written_bytes() -> u64 {
    WRITTEN.sum()
}

#[cfg(all(test, not(loom)))]
#[path = "tests.rs"]
mod tests;
