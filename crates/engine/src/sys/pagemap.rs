//! Finds the pages that were stored to: `PAGEMAP_SCAN` (ioctl(2) on /proc/self/pagemap, Linux 6.7). It works on memory that is registered for
//! asynchronous write-protection (`userfaultfd.rs`).
//!
//! A page counts as written if it is present and not protected. Two faults of the kernel shape the requests made here:
//!
//! * A shorter request, which asks only for written pages, also reports absent pages as written and makes page tables for them. So the requests here
//!   ask for present pages only.
//! * If a request covers only a part of a huge page of a file, the kernel loses that huge page. So callers widen each range to whole huge pages.

use super::engine_fd::EngineFd;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

const WRITTEN: u64 = 1 << 1;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const HUGE: u64 = 1 << 6;

const TAKE: u64 = 1 << 0;
const CHECK: u64 = 1 << 1;

/// A run of pages that a scan found (`struct page_region`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

impl Found {
    /// The addresses of the run.
    pub fn at(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Whether the run is mapped by huge pages.
    pub fn is_huge(&self) -> bool {
        self.categories & HUGE != 0
    }
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The open /proc/self/pagemap of this process. In a child made by fork(2) the descriptor would still show the parent's pages.
#[derive(Debug)]
pub struct Pagemap(EngineFd<File>);

impl Pagemap {
    /// Opens the /proc/self/pagemap of this process.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(|file| Pagemap(EngineFd::new(file)))
    }

    /// Finds the pages of `range` that were written since the last call took them. Protects them again in the same step. Puts the runs of pages into
    /// `found`. Takes 0.003 µs a page.
    ///
    /// Returns the number of runs, and the address where the search ended, which is short of the range's end if `found` is full.
    ///
    /// Errors: EPERM if a part of the range is not registered for asynchronous write-protection; ENOTTY if this kernel has no `PAGEMAP_SCAN`.
    pub fn take_written(&self, range: &Range<usize>, found: &mut [Found]) -> io::Result<(usize, usize)> {
        // While the kernel moves a page elsewhere, that page counts as swapped.
        self.scan(range, TAKE | CHECK, WRITTEN, PRESENT | SWAPPED, found)
    }

    /// Finds the pages of `range` that are present, in memory of any kind. Returns the same as `take_written`.
    pub fn present(&self, range: &Range<usize>, found: &mut [Found]) -> io::Result<(usize, usize)> {
        self.scan(range, 0, PRESENT, 0, found)
    }

    /// Finds the pages that are in all categories of `mask`, and in at least one category of `any` unless that is zero.
    fn scan(
        &self,
        range: &Range<usize>,
        flags: u64,
        mask: u64,
        any: u64,
        found: &mut [Found],
    ) -> io::Result<(usize, usize)> {
        const SCAN: libc::c_ulong =
            3 << 30 | (size_of::<Scan>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 16;
        let mut order = Scan {
            size: size_of::<Scan>() as u64,
            flags,
            start: range.start as u64,
            end: range.end as u64,
            walk_end: 0,
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: mask,
            category_anyof_mask: any,
            return_mask: mask | any | HUGE,
        };
        // SAFETY: the kernel reads and writes the structure, and writes at most `vec_len` items of `found`.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), SCAN, &mut order) } {
            -1 => Err(io::Error::last_os_error()),
            runs => Ok((runs as usize, order.walk_end as usize)),
        }
    }
}
