//! Functions that mmap(2) has no counterpart of: prefetching, pins, deferred stores, copies that return errors.

use crate::boundary::{Failure, call};
use fastmap::by_address;
use libc::ssize_t;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// For fm_pin() and fm_unpin(): the program, or a system call, stores to the range while it is pinned.
pub const FM_PIN_WRITE: c_int = 1;

/// A range of mapped memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fm_range {
    /// Its first byte; need not be the first of a page.
    pub addr: *const c_void,
    /// Bytes.
    pub length: usize,
}

fn ranges_at(ranges: *const fm_range, count: usize) -> Result<Vec<Range<usize>>, Failure> {
    if count == 0 {
        return Ok(vec![]);
    }
    if ranges.is_null() || !ranges.is_aligned() {
        return Err(Failure::new(
            libc::EFAULT,
            "ranges is not an array of struct fm_range: pass one of `count` entries",
        ));
    }
    if count > isize::MAX as usize / size_of::<fm_range>() {
        let why = format_args!("{count} ranges do not fit the address space: pass how many there are");
        return Err(Failure::new(libc::EINVAL, why));
    }
    // SAFETY: the caller has as many there.
    let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
    let range_of = |range: &fm_range| {
        let end = range.addr.addr().checked_add(range.length).ok_or_else(|| {
            let why = format_args!("{} bytes at {:p} do not fit the address space", range.length, range.addr);
            Failure::new(libc::EINVAL, why)
        })?;
        Ok(range.addr.addr()..end)
    };
    ranges.iter().map(range_of).collect()
}

/// Starts to bring scattered ranges into memory, in the order given, with many reads under way, and returns
/// before they are there. A thread that touches a page on its way waits for it.
///
/// Returns how many ranges were taken, counted from the first. Fewer than `count` means that the queue is full
/// (it has room for 2048 pages, or for an eighth of the cache if that is less): ask for the rest later. Of a
/// range longer than the queue only the first part is brought in. On failure returns -1 and sets errno: ENOMEM
/// (the first range is not mapped); EINVAL; EFAULT (`ranges` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_prefetch(ranges: *const fm_range, count: usize) -> ssize_t {
    call("fm_prefetch", || {
        let ranges = ranges_at(ranges, count)?;
        Ok(by_address::prefetch(&ranges)? as isize)
    })
}

/// fm_prefetch() of all ranges, which returns when each has been in memory. All of them are in memory together
/// if they fit into the cache.
///
/// Returns 0, or -1 and sets errno: ENOMEM (a range is not mapped); ENXIO (a range is past the file's end);
/// EIO; EINVAL; EFAULT (`ranges` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_prefetch_wait(ranges: *const fm_range, count: usize) -> c_int {
    call("fm_prefetch_wait", || {
        by_address::prefetch_wait(&ranges_at(ranges, count)?)?;
        Ok(0)
    })
}

/// Copies scattered ranges to `buffer`, one after the other in the order given: fm_prefetch() and fm_read() of
/// all of them in one call. Absent pages are read in parallel, as many as the device takes, in windows ahead of
/// the copy. So all ranges together may be larger than the cache. They may be unsorted, overlap, repeat, and
/// lie in any number of maps. `length` is the sum of their lengths in bytes. `buffer` may be in a map, but not
/// in the ranges.
///
/// Returns 0, or -1 and sets errno. The contents of `buffer` are then unspecified.
/// - EINVAL: `length` is not the sum, or a range does not fit the address space; nothing is read
/// - ENXIO: a range is past the file's end (EFAULT in kernel mappings)
/// - EIO and the other errors of read(2)
/// - EFAULT: memory is not mapped, or not for reading, or `ranges` or `buffer` is NULL
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_gather(ranges: *const fm_range, count: usize, buffer: *mut c_void, length: usize) -> c_int {
    call("fm_gather", || {
        let ranges = ranges_at(ranges, count)?;
        let mut nothing = [];
        let output = if length == 0 {
            &mut nothing[..]
        } else {
            is_there("buffer", buffer, length)?;
            // SAFETY: the caller has as many bytes there.
            unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) }
        };
        by_address::gather(&ranges, output)?;
        Ok(0)
    })
}

/// Bytes of a line: the unit of stores for fm_async_read().
pub const FM_LINE: usize = 64;

/// Makes stores to absent pages of a mapped file complete at once (the protocol of AR-MMAP, by Imamura and
/// Yoshida). Such a page is first filled with copies of a line of FM_LINE bytes, the initial value, while the
/// file's bytes are read in the background. When these are there, they replace the lines that still hold the
/// initial value, never under a store. This holds for all writable maps of the file in the process, while there
/// are any.
///
/// The program has duties. If it breaks one, bytes of the file are lost:
/// - It stores whole lines, each at a multiple of FM_LINE.
/// - It never stores the initial value, nor in any 8-byte word of a line what the initial value has there.
/// - Where it loads a line that holds the initial value (fm_is_initial()), it calls fm_synchronise() and loads
///   again.
///
/// Kernel mappings stay what they are: stores wait there. Map with FM_MAP_CACHED to have none.
///
/// Returns 0, or -1 and sets errno: EINVAL (the map is not writable, or the file has another initial value);
/// EFAULT (`initial_line` is NULL); ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_async_read(addr: *mut c_void, length: usize, initial_line: *const c_void) -> c_int {
    call("fm_async_read", || {
        if initial_line.is_null() {
            return Err(Failure::new(libc::EFAULT, "initial_line is NULL: pass FM_LINE bytes that are never stored"));
        }
        // SAFETY: the caller has as many there.
        let line = unsafe { initial_line.cast::<[u8; FM_LINE]>().read() };
        // SAFETY: the caller keeps the duties.
        unsafe { by_address::async_read(addr.addr(), length, line) }.map_err(|errno| {
            let why = "needs a writable map of a file without another initial value";
            Failure::of(errno, format_args!("{length} bytes at {addr:p}: {why}"))
        })?;
        Ok(0)
    })
}

/// 1 if at least one 8-byte word of a line of a map holds what the initial value of fm_async_read() has there,
/// otherwise 0. At 1 the file's bytes may not have come yet, or may have come while the line was loaded.
///
/// If other threads store to the page, the line may differ a moment later from what the program loaded. Such a
/// program copies the line instead, and compares the words of the copy with those of the initial value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_is_initial(line: *const c_void) -> c_int {
    call("fm_is_initial", || {
        let holds = |initial: [u8; FM_LINE]| {
            // SAFETY: a line of the caller's map.
            let line = unsafe { line.cast::<[u8; FM_LINE]>().read_volatile() };
            line.chunks(8).zip(initial.chunks(8)).any(|(word, initial)| word == initial)
        };
        Ok(c_int::from(by_address::initial_line(line.addr()).is_some_and(holds)))
    })
}

/// Waits until the file's bytes are in every page of a range that was stored to before it was read.
///
/// Returns 0, or -1 and sets errno: EIO and the other errors of pread(2) (what was stored is kept); EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_synchronise(addr: *const c_void, length: usize) -> c_int {
    call("fm_synchronise", || {
        let failed = |errno| Failure::of(errno, format_args!("{length} bytes at {addr:p}"));
        by_address::synchronise(addr.addr(), length).map_err(failed)?;
        Ok(0)
    })
}

fn is_for_writing(flags: c_int) -> Result<bool, Failure> {
    match flags {
        0 => Ok(false),
        FM_PIN_WRITE => Ok(true),
        _ => Err(Failure::new(libc::EINVAL, format_args!("flags {flags:#x}: pass 0 or FM_PIN_WRITE"))),
    }
}

/// Keeps a range in memory, at its addresses, until it has been unpinned as often as it was pinned. It can then
/// be given to system calls: to write(2) and its kin, and with FM_PIN_WRITE to read(2) and its kin as well.
/// Loads from the range do not trap, and with FM_PIN_WRITE neither do stores. Absent pages are read first. The
/// range needs no alignment. All of it is pinned, or nothing.
///
/// Pins and locks together leave a sixteenth of a cache free, 64 KiB at least (in caches below 85 KiB, three
/// quarters). To unmap a part of a pinned range ends its pins. A child made by fork(2) has none of its parent's
/// pins. A range of a kernel mapping is brought in and left to the kernel, which lets system calls wait for
/// pages.
///
/// Returns 0, or -1 and sets errno: ENOMEM (too much is pinned); ENXIO (past the file's end); EFAULT (not
/// mapped, or not for such access); EIO; EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_pin(addr: *const c_void, length: usize, flags: c_int) -> c_int {
    call("fm_pin", || {
        by_address::keep(addr.addr(), length, is_for_writing(flags)?)?;
        Ok(0)
    })
}

/// Takes back one fm_pin() of the same range with the same flags.
///
/// Returns 0, or -1 and sets errno: EINVAL (there is no such pin).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_unpin(addr: *const c_void, length: usize, flags: c_int) -> c_int {
    call("fm_unpin", || {
        let not_pinned = |errno| {
            let why = format_args!(
                "{length} bytes at {addr:p} with flags {flags:#x} are not pinned: pass what fm_pin was passed"
            );
            Failure::new(errno, why)
        };
        by_address::let_go(addr.addr(), length, is_for_writing(flags)?).map(|()| 0).map_err(not_pinned)
    })
}

fn is_there(what: &str, at: *const c_void, length: usize) -> Result<(), Failure> {
    if length > isize::MAX as usize {
        let why = format_args!("{length} bytes do not fit the address space: pass how many there are");
        return Err(Failure::new(libc::EINVAL, why));
    }
    if at.is_null() { Err(Failure::new(libc::EFAULT, format_args!("{what} is NULL"))) } else { Ok(()) }
}

/// Copies `length` bytes of mapped memory to `buffer`. Where a load would raise SIGBUS or SIGSEGV, it returns
/// an error. `buffer` may be in a map.
///
/// Returns 0, or -1 and sets errno: ENXIO (past the file's end; in kernel mappings this is EFAULT); EIO and the
/// other errors of read(2); EFAULT (not mapped, or not for reading). The contents of `buffer` are then
/// unspecified.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_read(addr: *const c_void, buffer: *mut c_void, length: usize) -> c_int {
    call("fm_read", || {
        if length > 0 {
            is_there("buffer", buffer, length)?;
            // SAFETY: the caller has as many bytes there.
            unsafe { by_address::read(addr.addr(), buffer.cast(), length) }?;
        }
        Ok(0)
    })
}

/// Copies `length` bytes from `data` to mapped memory. Where a store would raise SIGBUS or SIGSEGV, it returns
/// an error. `data` may be in a map. The bytes reach the file as those of any store do: see fm_msync().
///
/// Returns 0, or -1 and sets errno: ENXIO (past the file's end; in kernel mappings this is EFAULT); EIO and the
/// other errors of read(2); EFAULT (not mapped, or not for writing). Part of the data may have been stored
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_write(addr: *mut c_void, data: *const c_void, length: usize) -> c_int {
    call("fm_write", || {
        if length > 0 {
            is_there("data", data, length)?;
            // SAFETY: the caller has as many bytes there.
            unsafe { by_address::write(addr.addr(), data.cast(), length) }?;
        }
        Ok(0)
    })
}

/// Limits how far the file that is mapped at `addr` is read ahead of a walk, in bytes: at most 8 MiB, the
/// default; 0 turns it off. The file keeps the limit. Kernel mappings are left alone.
///
/// Returns 0, or -1 and sets errno: ENOMEM (nothing is mapped there).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_set_readahead(addr: *const c_void, bytes: usize) -> c_int {
    call("fm_set_readahead", || {
        let failure = |errno| Failure::of(errno, format_args!("{addr:p}"));
        by_address::set_readahead(addr.addr(), bytes).map(|()| 0).map_err(failure)
    })
}
