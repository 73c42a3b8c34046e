//! Which pages were stored to: `PAGEMAP_SCAN` (ioctl(2) on /proc/self/pagemap, Linux 6.7) over memory that is
//! registered for asynchronous write-protection (`userfaultfd.rs`).
//!
//! A page counts as written when it is present and not protected. The kernel offers shorter questions, which also take
//! absent pages for written ones, and bring page tables into being for them; and it loses a huge page of a file of
//! which only a part is asked for. So only present pages are asked for here, and callers widen a range to whole huge
//! pages.

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

/// `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

impl Found {
    /// Its addresses.
    pub fn at(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Mapped by huge pages.
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

/// This process's /proc/self/pagemap. A child made by fork(2) would see its parent's.
#[derive(Debug)]
pub struct Pagemap(EngineFd<File>);

impl Pagemap {
    /// Opens it.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(|file| Pagemap(EngineFd::new(file)))
    }

    /// Finds pages of `range` that were written since they were taken last, protects them again in the same step, and
    /// puts them into `found`: how many runs, and where the search ended for want of room. 0.003 µs a page. EPERM: part
    /// of it is not registered for asynchronous write-protection. ENOTTY: this kernel has no such request.
    pub fn take_written(&self, range: &Range<usize>, found: &mut [Found]) -> io::Result<(usize, usize)> {
        // A page that the kernel is moving elsewhere counts as swapped meanwhile.
        self.scan(range, TAKE | CHECK, WRITTEN, PRESENT | SWAPPED, found)
    }

    /// Finds pages that are present, whatever their memory.
    pub fn present(&self, range: &Range<usize>, found: &mut [Found]) -> io::Result<(usize, usize)> {
        self.scan(range, 0, PRESENT, 0, found)
    }

    /// Finds pages that are all of `mask`, and any of `any` unless that is none.
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
        // SAFETY: reads and writes the structure, and at most `vec_len` items of `found`.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), SCAN, &mut order) } {
            -1 => Err(io::Error::last_os_error()),
            runs => Ok((runs as usize, order.walk_end as usize)),
        }
    }
}
