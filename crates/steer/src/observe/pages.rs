//! Which pages of a mapping are mapped, and which are new since the last look: /proc/PID/pagemap.

use super::descriptor::Descriptor;
use crate::PAGE;
use crate::run::Run;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::ops::Range;

/// One program's page tables.
#[derive(Debug)]
pub struct Pages {
    file: Descriptor,
    regions: Vec<Region>,
    /// Linux 6.7 has PAGEMAP_SCAN; before, each page's word is read.
    scans: bool,
}

/// The pages of one mapping that were mapped when it was last looked at: a bit a page.
#[derive(Debug)]
pub struct Seen {
    start: u64,
    bits: Vec<u64>,
    pages: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg` of <linux/fs.h>.
#[repr(C)]
#[derive(Debug, Default)]
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

const PRESENT: u64 = 1 << 3;
/// Regions that one scan returns at most.
const REGIONS: usize = 4096;

// SAFETY: the kernel reads and writes one `pm_scan_arg`, and the vector that it names, which `Pages::scan` holds.
unsafe impl Ioctl for &mut Scan {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Scan>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut::<Scan>(self).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(out as usize)
    }
}

impl Seen {
    /// A mapping of `pages` at address `start`, of which no page was seen mapped. Where there is no memory for that, none ever is.
    pub fn nothing(start: u64, pages: u64) -> Seen {
        let (mut bits, words) = (Vec::new(), pages.div_ceil(64) as usize);
        if bits.try_reserve_exact(words).is_err() {
            return Seen { start, bits, pages: 0 };
        }
        bits.resize(words, 0);
        Seen { start, bits, pages }
    }

    /// The mapping's address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether page `page` was mapped.
    pub fn has(&self, page: u64) -> bool {
        page < self.pages && self.bits[(page / 64) as usize] >> (page % 64) & 1 != 0
    }

    /// How many pages were mapped.
    pub fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Takes `pages` for not mapped.
    pub fn forget(&mut self, pages: Range<u64>) {
        self.note(pages, false, &mut Vec::new());
    }

    /// Notes that all of `pages` are mapped, or none of them. Adds to `new` those that are mapped and were not before.
    pub fn note(&mut self, pages: Range<u64>, is_present: bool, new: &mut Vec<Run>) {
        let mut page = pages.start;
        while page < pages.end.min(self.pages) {
            let (word, bit) = ((page / 64) as usize, page % 64);
            let count = (64 - bit).min(pages.end.min(self.pages) - page);
            let mask = if count == 64 { !0 } else { ((1 << count) - 1) << bit };
            let before = self.bits[word];
            if is_present {
                let mut fresh = mask & !before;
                self.bits[word] |= mask;
                while fresh != 0 {
                    let first = u64::from(fresh.trailing_zeros());
                    let len = u64::from((fresh >> first).trailing_ones());
                    add(new, page - bit + first, len);
                    fresh &= if len == 64 { 0 } else { !(((1 << len) - 1) << first) };
                }
            } else {
                self.bits[word] &= !mask;
            }
            page += count;
        }
    }
}

/// Runs that a look returns at most: more say nothing new.
const RUNS: usize = 16384;

fn add(new: &mut Vec<Run>, at: u64, len: u64) {
    if let Some(last) = new.last_mut().filter(|last| last.end() == at) {
        last.len += len;
    } else if new.len() < RUNS {
        new.push(Run { at, len });
    }
}

impl Pages {
    /// Of `process`: a number, or `self`. `None` where its page tables may not be read.
    pub fn of(process: &str) -> Option<Pages> {
        let mut regions = Vec::new();
        regions.try_reserve_exact(REGIONS).ok()?;
        regions.resize(REGIONS, Region::default());
        let file = Descriptor::open(&format!("/proc/{process}/pagemap"))?.aside();
        Some(Pages { file, regions, scans: true })
    }

    /// The interface that the last look has used.
    pub fn interface(&self) -> &'static str {
        if self.scans { "PAGEMAP_SCAN" } else { "pagemap" }
    }

    /// Looks at the pages of `seen` in `range`, notes what is mapped, and returns what is new, in order.
    pub fn look(&mut self, seen: &mut Seen, range: Range<u64>) -> Vec<Run> {
        let mut new = Vec::new();
        let end = range.end.min(seen.pages);
        let mut page = range.start;
        while page < end {
            let known =
                if self.scans { self.scan(seen, page, end, &mut new) } else { self.read(seen, page, end, &mut new) };
            match known {
                Ok(next) if next > page => page = next,
                Err(Errno::NOTTY | Errno::INVAL) if self.scans => self.scans = false,
                _ => break,
            }
        }
        new
    }

    fn scan(&mut self, seen: &mut Seen, page: u64, end: u64, new: &mut Vec<Run>) -> rustix::io::Result<u64> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: seen.start + page * PAGE,
            end: seen.start + end * PAGE,
            vec: self.regions.as_mut_ptr().addr() as u64,
            vec_len: REGIONS as u64,
            category_mask: PRESENT,
            return_mask: PRESENT,
            ..Scan::default()
        };
        // SAFETY: `regions` has `vec_len` entries for the kernel to write.
        let count = unsafe { rustix::ioctl::ioctl(&self.file, &mut scan)? };
        let mut at = page;
        for region in &self.regions[..count.min(REGIONS)] {
            let (first, last) = ((region.start - seen.start) / PAGE, (region.end - seen.start) / PAGE);
            seen.note(at..first, false, new);
            seen.note(first..last, true, new);
            at = last;
        }
        // Where the kernel has walked in several steps, `walk_end` may be the end of an earlier step. Pages that were told are not
        // asked for again: those that have changed meanwhile would be out of order.
        let next = ((scan.walk_end - seen.start) / PAGE).max(at);
        seen.note(at..next, false, new);
        Ok(next)
    }

    fn read(&mut self, seen: &mut Seen, page: u64, end: u64, new: &mut Vec<Run>) -> rustix::io::Result<u64> {
        const WORDS: u64 = 4096;
        let count = WORDS.min(end - page) as usize;
        let mut bytes = vec![0u8; count * 8];
        let got = rustix::io::pread(&self.file, &mut bytes[..], (seen.start / PAGE + page) * 8)? / 8;
        for (index, word) in bytes.chunks_exact(8).take(got).enumerate() {
            // Bit 63 of proc_pid_pagemap(5): present.
            let is_present = word[7] & 0x80 != 0;
            seen.note(page + index as u64..page + index as u64 + 1, is_present, new);
        }
        Ok(page + got as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn new_pages_are_runs_and_are_new_once() {
        let mut seen = Seen::nothing(0, 1000);
        let mut new = Vec::new();
        seen.note(60..70, true, &mut new);
        seen.note(128..192, true, &mut new);
        assert_eq!(new, [Run { at: 60, len: 10 }, Run { at: 128, len: 64 }]);
        new.clear();
        seen.note(58..72, true, &mut new);
        assert_eq!(new, [Run { at: 58, len: 2 }, Run { at: 70, len: 2 }]);
        seen.note(0..100, false, &mut new);
        assert!(!seen.has(60) && seen.has(130));
        assert_eq!(seen.count(), 64);
        new.clear();
        seen.note(999..2000, true, &mut new);
        assert_eq!(new, [Run { at: 999, len: 1 }]);
    }

    #[test]
    fn a_mapping_for_which_there_is_no_memory_has_no_pages() {
        let mut seen = Seen::nothing(0, 1 << 62);
        let mut new = Vec::new();
        seen.note(0..70, true, &mut new);
        assert!(new.is_empty() && !seen.has(0));
    }

    #[test]
    fn touches_of_a_mapping_are_seen_by_both_interfaces() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 256 * PAGE as usize]).unwrap();
        for scans in [true, false] {
            // SAFETY: a fresh mapping of a file that nobody cuts.
            let map = unsafe { memmap2::MmapOptions::new().map(&file).unwrap() };
            map.advise(memmap2::Advice::Random).unwrap();
            let at = map.as_ptr().addr() as u64;
            let mut seen = Seen::nothing(at, 256);
            let mut pages = Pages::of("self").unwrap();
            pages.scans = scans;
            pages.look(&mut seen, 0..256);
            if scans {
                // For tests/kernels: which one the kernel has.
                println!("looks by: {}", pages.interface());
            }
            std::hint::black_box(map[200 * PAGE as usize]);
            let new = pages.look(&mut seen, 0..256);
            assert!(new.iter().any(|run| (run.at..run.at + run.len).contains(&200)), "{new:?}");
            assert!(seen.has(200));
            assert_eq!(pages.look(&mut seen, 0..256), []);
        }
    }

    #[test]
    fn what_changes_during_a_look_is_in_order() {
        const COUNT: u64 = 16384;
        let file = tempfile::tempfile().unwrap();
        file.set_len(COUNT * PAGE).unwrap();
        // SAFETY: a fresh mapping of a file that nobody cuts.
        let map = unsafe { memmap2::MmapOptions::new().map(&file).unwrap() };
        map.advise(memmap2::Advice::Random).unwrap();
        let at = map.as_ptr().addr() as u64;
        let rounds = std::sync::atomic::AtomicU64::new(0);
        let count_rounds = |more| rounds.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut page = 1;
                while count_rounds(1) < 100 {
                    // SAFETY: pages of a file that nobody stores to.
                    unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed).unwrap() };
                    for _ in 0..4000 {
                        page = (page * 48271) % 0x7fff_ffff;
                        std::hint::black_box(map[(page % COUNT * PAGE) as usize]);
                    }
                }
            });
            let (mut seen, mut pages) = (Seen::nothing(at, COUNT), Pages::of("self").unwrap());
            while count_rounds(0) < 100 {
                let new = pages.look(&mut seen, 0..COUNT);
                assert!(new.is_sorted_by(|one, next| one.end() <= next.at), "{new:?}");
            }
        });
    }
}
