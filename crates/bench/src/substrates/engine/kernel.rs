//! Kernel mmap, with advice for the whole map. It can also be told its next pages, in each of the kernel's ways.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Hinted, Load, Mapped, open};
use crate::substrates::{Engine, Error, PAGE, Pattern, Result, Spec};

/// Opens the spec's file through kernel mmap and runs the load.
pub fn with<L: Load>(spec: &Spec, load: L) -> Result<L::Output> {
    let file = open(spec, 0)?;
    let failed = |what| {
        move |source| Error::Io { thing: spec.label.clone(), what, source, remedy: "check the file and its device" }
    };
    let mut options = memmap2::MmapOptions::new();
    options.len(spec.pages as usize * PAGE);
    let writes = spec.op.writes();
    let map = if writes { options.map_raw(&file) } else { options.map_raw_read_only(&file) }.map_err(failed("mmap"))?;
    map.advise(advice(spec)).map_err(failed("madvise"))?;
    if spec.engine == Engine::Steered {
        fastmap_steer::start();
    }
    let base = map.as_mut_ptr();
    let flush = || if writes { map.flush().map_err(failed("msync")) } else { Ok(()) };
    let populate = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let advised = Advised::new(base).map_err(failed("pidfd_open"))?;
    let whole = spec.engine == Engine::MmapPopulate && spec.memory.is_some_and(|memory| memory >= map.len() as u64);
    if whole && spec.pattern != Pattern::Fill {
        advised.give(std::slice::from_ref(&(0..map.len())), populate).map_err(failed("MADV_POPULATE"))?;
    }
    let ahead = |near: &[Range<usize>], far: &[Range<usize>]| {
        match spec.engine {
            _ if whole => {}
            Engine::MmapFadvise => fadvise(&file, far).map_err(failed("posix_fadvise"))?,
            _ => advised.give(far, libc::MADV_WILLNEED).map_err(failed("MADV_WILLNEED"))?,
        }
        if spec.engine == Engine::MmapPopulate && !whole {
            advised.give(near, populate).map_err(failed("MADV_POPULATE"))?;
        }
        Ok(far.len())
    };
    // SAFETY: the map lives until the load is over. It is writable if the load writes, and a load that does not write never stores.
    let mapped = unsafe { Mapped::new(base, spec.pages, &flush) };
    load.over(&Hinted::new(spec, mapped, &ahead), None)
}

/// The advice for the whole map. If the kernel is told page by page, it should not read other pages at a miss. A walk upwards is the
/// exception: there the kernel reads on where hints came late.
fn advice(spec: &Spec) -> memmap2::Advice {
    match spec.engine {
        Engine::Mmap | Engine::Steered => memmap2::Advice::Normal,
        Engine::MmapRandom => memmap2::Advice::Random,
        _ if spec.engine == Engine::MmapSequential || spec.pattern == Pattern::Forward => memmap2::Advice::Sequential,
        _ => memmap2::Advice::Random,
    }
}

/// Asks the kernel to read ranges of a file into the page cache. posix_fadvise(2) with POSIX_FADV_WILLNEED.
///
/// # Errors
///
/// The system's error.
pub fn fadvise(file: &File, ranges: &[Range<usize>]) -> io::Result<()> {
    for range in merged(ranges) {
        let (offset, len) = (range.start as libc::off_t, range.len() as libc::off_t);
        // SAFETY: no memory is handed over, and the descriptor is open as long as `file` lives.
        match unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_WILLNEED) } {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
    Ok(())
}

/// Gives advice for parts of a map. One call of process_madvise(2) advises a whole batch; madvise(2) takes a call for each part.
struct Advised {
    base: *mut u8,
    myself: OwnedFd,
}

// SAFETY: the pointer is only handed to the kernel, and never followed here.
unsafe impl Sync for Advised {}

/// Most ranges of a call. process_madvise(2).
const MOST: usize = libc::UIO_MAXIOV as usize;

impl Advised {
    fn new(base: *mut u8) -> io::Result<Advised> {
        // SAFETY: no memory is handed over. The descriptor that comes back is ours.
        let myself = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
        if myself < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now, and nobody else has it.
        Ok(Advised { base, myself: unsafe { OwnedFd::from_raw_fd(myself as i32) } })
    }

    /// Gives advice for ranges of the map. If the kernel refuses a batch, each range is advised by itself. It refuses `MADV_POPULATE_READ`
    /// before Linux 6.13, and all advice in a sandbox without process_madvise(2).
    fn give(&self, ranges: &[Range<usize>], advice: libc::c_int) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = merged(ranges).map(|range| self.vector(range)).collect();
        for batch in vectors.chunks(MOST) {
            // SAFETY: the ranges lie within the map. The advice only reads or maps pages there, and does nothing else.
            let advised = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    self.myself.as_raw_fd(),
                    batch.as_ptr(),
                    batch.len(),
                    advice,
                    0,
                )
            };
            if advised >= 0 {
                continue;
            }
            for one in batch {
                // SAFETY: the range lies within the map. The advice only reads or maps pages there, and does nothing else.
                if unsafe { libc::madvise(one.iov_base, one.iov_len, advice) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
        Ok(())
    }

    fn vector(&self, range: Range<usize>) -> libc::iovec {
        libc::iovec { iov_base: self.base.wrapping_add(range.start).cast(), iov_len: range.len() }
    }
}

/// The ranges, with neighbours joined into one range, upwards or downwards.
fn merged(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> + '_ {
    let neighbours = |a: &Range<usize>, b: &Range<usize>| a.end == b.start || b.end == a.start;
    ranges.chunk_by(neighbours).map(|run| {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        first.start.min(last.start)..first.end.max(last.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range_in_either_direction() {
        let pages = |numbers: &[usize]| numbers.iter().map(|n| n * PAGE..(n + 1) * PAGE).collect::<Vec<_>>();
        let runs =
            |numbers: &[usize]| merged(&pages(numbers)).map(|r| (r.start / PAGE, r.end / PAGE)).collect::<Vec<_>>();
        assert_eq!(runs(&[4, 5, 6, 9, 11, 10, 3]), [(4, 7), (9, 10), (10, 12), (3, 4)]);
        assert_eq!(runs(&[7, 6, 5]), [(5, 8)]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn what_was_asked_for_is_in_the_page_cache() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        crate::substrates::prepare::fill(&file, "file", 0, 64, crate::substrates::prepare::stamp_page, |_| true)
            .unwrap();
        let cold = || assert_eq!(crate::substrates::cold::make_cold(&file, 64 * PAGE as u64).unwrap(), 0);
        let cached = || crate::substrates::cold::cached_pages(&file, 64 * PAGE as u64).unwrap();
        let ranges = [0..PAGE, 4 * PAGE..5 * PAGE, 5 * PAGE..6 * PAGE];
        cold();
        fadvise(&file, &ranges).unwrap();
        assert!(cached() >= 3);
        cold();
        let map = memmap2::MmapOptions::new().len(64 * PAGE).map_raw_read_only(&file).unwrap();
        let advised = Advised::new(map.as_mut_ptr()).unwrap();
        advised.give(&ranges, libc::MADV_WILLNEED).unwrap();
        assert!(cached() >= 3);
        advised.give(&ranges, libc::MADV_POPULATE_READ).unwrap();
        assert!(advised.give(&ranges, libc::MADV_POPULATE_WRITE).is_err(), "the map is not writable");
    }
}
