//! Files that become the engine's and the kernel's in turn while threads load, store and flush: every thread knows what it stored last.

use crate::by_address::{self, Refusal};
use crate::effort::quick_or_full;
use crate::page::claims::{Loading, PageAccess};
use crate::page::word::State;
use crate::region::registry;
use crate::sys::PAGE;
use crate::sys::maps::{self, FileMapping};
use crate::{Cache, requirements};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const THREADS: usize = 8;

/// A file that is mapped by the kernel.
struct Bench {
    file: File,
    pages: usize,
    at: usize,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(pages: usize, prot: i32) -> Option<Self> {
        Bench::of_kind(pages, prot, libc::MAP_SHARED)
    }

    fn of_kind(pages: usize, prot: i32, kind: i32) -> Option<Self> {
        if let Some(missing) = requirements::missing() {
            crate::effort::skip(missing.name);
            return None;
        }
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(folder.path().join("data"));
        let file = open.unwrap();
        file.set_len((pages * PAGE) as u64).unwrap();
        for page in 0..pages {
            file.write_all_at(&(page as u64).to_ne_bytes(), (page * PAGE) as u64).unwrap();
        }
        // SAFETY: a fresh mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, prot, kind, file.as_raw_fd(), 0) as usize };
        assert_ne!(at, libc::MAP_FAILED as usize);
        Some(Bench { file, pages, at, _folder: folder })
    }

    fn word(&self, page: usize, slot: usize) -> &AtomicU64 {
        // SAFETY: mapped as long as this lives, and only used by atomic operations.
        unsafe { AtomicU64::from_ptr((self.at + page * PAGE + slot * 8) as *mut u64) }
    }

    fn parts(&self) -> Vec<FileMapping> {
        let inode = self.file.metadata().unwrap().ino();
        maps::own().unwrap().into_iter().filter(|one| one.file.2 == inode).collect()
    }

    fn take(&self, cache: &Cache) -> bool {
        // Another test of this process may be starting a program, which has its descriptors until it is there; or has a ring.
        patiently(|| self.try_to_take(cache))
    }

    fn try_to_take(&self, cache: &Cache) -> bool {
        match by_address::take_over(&self.file, &self.parts(), true, cache, || true) {
            Ok(_) => true,
            Err(Refusal::Busy(_)) => false,
            Err(Refusal::Unfit(why)) if why.contains("uses it") => false,
            Err(Refusal::Unfit(why)) => panic!("{why}"),
        }
    }

    fn give_back(&self) {
        let identity = crate::sys::file::facts(&self.file).unwrap().identity;
        while !by_address::return_to_kernel(identity, false, || true).unwrap() {}
        assert!(!by_address::holds(self.at, self.pages * PAGE));
    }

    fn is_taken(&self) -> bool {
        by_address::holds(self.at, self.pages * PAGE)
    }

    /// As munmap(2), of whoever it is.
    fn unmap(self) -> (File, tempfile::TempDir) {
        // SAFETY: the test's own mapping, which nobody uses any more.
        unsafe { by_address::unmap(self.at, self.pages * PAGE).unwrap() };
        (self.file, self._folder)
    }
}

/// Tries until it is so, for a while.
fn patiently(mut is_so: impl FnMut() -> bool) -> bool {
    (0..200).any(|tries: u32| {
        if tries > 20 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        is_so()
    })
}

/// Loads and stores of a thread that owns one word of each page, until it is told to end; what it stored last.
fn work(bench: &Bench, slot: usize, end: &AtomicBool) -> Vec<u64> {
    let mut stored = vec![0u64; bench.pages];
    let mut random = slot as u64 + 1;
    while !end.load(Ordering::Relaxed) {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let page = (random >> 33) as usize % bench.pages;
        assert_eq!(bench.word(page, 0).load(Ordering::Relaxed), page as u64, "another page's bytes");
        let word = bench.word(page, slot);
        assert_eq!(word.load(Ordering::Relaxed), stored[page], "page {page}: a store is gone");
        if random & 1 == 0 {
            stored[page] += 1;
            word.store(stored[page], Ordering::Relaxed);
        }
    }
    stored
}

fn switches(pages: usize, cache: usize, rounds: usize) {
    let Some(bench) = Bench::new(pages, libc::PROT_READ | libc::PROT_WRITE) else { return };
    let cache = Cache::new(cache).unwrap();
    let end = AtomicBool::new(false);
    let mut taken = 0;
    let stored: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let (bench, end) = (&bench, &end);
        let threads: Vec<_> = (1..=THREADS).map(|slot| scope.spawn(move || work(bench, slot, end))).collect();
        for round in 0..rounds {
            if bench.take(&cache) {
                taken += 1;
                assert!(bench.is_taken());
                std::thread::sleep(std::time::Duration::from_micros(round as u64 * 37 % 3000));
                if round % 7 == 3 {
                    assert_eq!(by_address::sync(bench.at, bench.pages * PAGE, libc::MS_SYNC), Ok(()));
                }
                bench.give_back();
            }
            std::thread::sleep(std::time::Duration::from_micros(round as u64 * 61 % 2000));
        }
        // Half the time it ends as the engine's.
        if rounds.is_multiple_of(2) {
            bench.take(&cache);
        }
        end.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Other tests of this process may keep the file busy for most of a round, so how many succeed depends on their load.
    assert!(taken > 0, "none of {rounds}");
    let (file, _folder) = bench.unmap();
    let mut bytes = vec![0u8; PAGE];
    for page in 0..pages {
        file.read_exact_at(&mut bytes, (page * PAGE) as u64).unwrap();
        let word = |slot: usize| u64::from_ne_bytes(bytes[slot * 8..][..8].try_into().unwrap());
        assert_eq!(word(0), page as u64);
        for (slot, stored) in (1..).zip(&stored) {
            assert_eq!(word(slot), stored[page], "page {page} in the file");
        }
    }
}

#[test]
fn a_map_goes_to_and_fro_under_loads_and_stores() {
    switches(1000, 1 << 20, 60);
}

#[test]
fn all_stripes_go() {
    switches((160 << 20) / PAGE, 8 << 20, quick_or_full(3, 9));
}

#[test]
fn one_that_is_read_goes_too() {
    let Some(bench) = Bench::new(500, libc::PROT_READ) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    for _ in 0..5 {
        assert!(bench.take(&cache));
        for page in 0..bench.pages {
            assert_eq!(bench.word(page, 0).load(Ordering::Relaxed), page as u64);
        }
        assert!(cache.stats().resident_pages > 0);
        bench.give_back();
        assert_eq!(bench.word(7, 0).load(Ordering::Relaxed), 7);
    }
    bench.unmap();
}

#[test]
fn one_with_a_second_mapping_stays() {
    let Some(bench) = Bench::new(500, libc::PROT_READ | libc::PROT_WRITE) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    // SAFETY: a fresh mapping, private: it shows what the page cache has.
    let other = unsafe {
        let fd = bench.file.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0)
    };
    let of_kind = |is_shared| bench.parts().into_iter().filter(|one| one.is_shared == is_shared).collect();
    for parts in [bench.parts(), of_kind(true), of_kind(false)] {
        let mapped = by_address::take_over(&bench.file, &parts, true, &cache, || true);
        assert!(matches!(mapped, Err(Refusal::Busy(_))), "{mapped:?}");
        assert!(!bench.is_taken());
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(other, 2 * PAGE) };
    assert!(bench.take(&cache));
    bench.unmap();
}

/// A thread may trap on a region, and look for it when another one is to take its place, with the kernel's mapping there still. That one
/// may not be found: it goes if it is not wanted after all.
#[test]
fn a_trap_that_comes_late_finds_no_region_that_may_go() {
    let Some(bench) = Bench::new(500, libc::PROT_READ) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    let look = || {
        // SAFETY: none is to be found.
        assert!(unsafe { registry::find(bench.at) }.is_none());
        true
    };
    assert!(patiently(|| by_address::take_over(&bench.file, &bench.parts(), true, &cache, look).is_ok()));
    assert_eq!(bench.word(7, 0).load(Ordering::Relaxed), 7);
    bench.unmap();
}

fn private(pages: usize, prot: i32) -> Option<Bench> {
    Bench::of_kind(pages, prot, libc::MAP_PRIVATE)
}

impl Bench {
    /// Every page of a range, as loads find it, and how the kernel has it mapped.
    fn check(&self, pages: Range<usize>, prot: i32) {
        for page in pages.clone() {
            assert_eq!(self.word(page, 0).load(Ordering::Relaxed), page as u64);
        }
        let range = self.at + pages.start * PAGE..self.at + pages.end * PAGE;
        let mapped = self.parts().into_iter().filter(|one| one.at.start < range.end && range.start < one.at.end);
        let bytes = mapped.inspect(|one| assert_eq!((one.prot, one.is_shared), (prot, false))).map(|one| one.at.len());
        assert!(bytes.sum::<usize>() >= range.len());
    }

    /// Stores to what is private by now; nothing of it is in the file.
    fn store_privately(&self, pages: Range<usize>) {
        pages.clone().for_each(|page| self.word(page, 3).store(!0, Ordering::Relaxed));
        let mut word = [0; 8];
        for page in pages {
            assert_eq!(self.word(page, 3).load(Ordering::Relaxed), !0);
            self.file.read_exact_at(&mut word, (page * PAGE + 24) as u64).unwrap();
            assert_eq!(word, [0; 8], "the file has what is private");
        }
    }

    fn protect(&self, pages: Range<usize>, prot: i32) {
        // SAFETY: the test's own mapping.
        unsafe { by_address::protect(self.at + pages.start * PAGE, pages.len() * PAGE, prot).unwrap() };
    }

    fn refusal(&self, cache: &Cache) -> String {
        let mut said = String::new();
        patiently(|| {
            said = by_address::take_over(&self.file, &self.parts(), true, cache, || true).unwrap_err().to_string();
            // Another test's.
            !said.contains("io_uring")
        });
        said
    }
}

const READ_AND_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[test]
fn a_private_one_comes_back_private() {
    let Some(bench) = private(500, libc::PROT_READ) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    for round in 0..5 {
        assert!(bench.take(&cache));
        for page in 0..bench.pages {
            assert_eq!(bench.word(page, 0).load(Ordering::Relaxed), page as u64);
        }
        assert!(cache.stats().resident_pages > 0);
        assert_eq!(by_address::sync(bench.at, 500 * PAGE, libc::MS_SYNC), Ok(()));
        // Written by others, through the page cache.
        bench.file.write_all_at(&[round], 7 * PAGE as u64 + 8).unwrap();
        bench.give_back();
        assert_eq!(bench.word(7, 1).load(Ordering::Relaxed), u64::from(round));
        bench.check(0..500, libc::PROT_READ);
    }
    bench.protect(0..500, READ_AND_WRITE);
    bench.store_privately(0..500);
    bench.unmap();
}

#[test]
fn a_private_one_that_is_to_be_stored_to_goes_back_for_good() {
    for part in [0..500, 100..101, 499..500] {
        let Some(bench) = private(500, libc::PROT_READ) else { return };
        let cache = Cache::new(1 << 20).unwrap();
        assert!(bench.take(&cache));
        assert_eq!(bench.word(100, 0).load(Ordering::Relaxed), 100);
        bench.protect(part.clone(), READ_AND_WRITE);
        assert!(!bench.is_taken());
        bench.check(0..part.start, libc::PROT_READ);
        bench.check(part.clone(), READ_AND_WRITE);
        bench.check(part.end..500, libc::PROT_READ);
        bench.store_privately(part.clone());
        bench.protect(part.clone(), libc::PROT_READ);
        assert_eq!(bench.refusal(&cache), "it went back to the kernel");
        bench.check(0..500, libc::PROT_READ);
        assert!(part.clone().all(|page| bench.word(page, 3).load(Ordering::Relaxed) == !0));
        bench.unmap();
    }
}

#[test]
fn one_with_private_pages_stays() {
    let Some(bench) = private(500, READ_AND_WRITE) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    assert_eq!(bench.refusal(&cache), "it is mapped in more than one place or way");
    bench.store_privately(321..322);
    bench.protect(0..500, libc::PROT_READ);
    for _ in 0..3 {
        assert_eq!(bench.refusal(&cache), "it has private pages");
        assert_eq!(bench.word(321, 3).load(Ordering::Relaxed), !0);
    }
    bench.check(0..500, libc::PROT_READ);
    bench.unmap();
    // One that could have been stored to, and was not.
    let Some(bench) = private(500, READ_AND_WRITE) else { return };
    bench.check(0..500, READ_AND_WRITE);
    bench.protect(0..500, libc::PROT_READ);
    assert!(bench.take(&cache));
    bench.unmap();
}

#[test]
fn parts_of_a_private_one_are_unmapped() {
    let Some(bench) = private(500, libc::PROT_READ) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    assert!(bench.take(&cache));
    // SAFETY: the test's own mapping, of which this part is not used any more.
    unsafe { by_address::unmap(bench.at + 200 * PAGE, 100 * PAGE).unwrap() };
    assert_eq!(bench.word(199, 0).load(Ordering::Relaxed), 199);
    assert_eq!(bench.word(300, 0).load(Ordering::Relaxed), 300);
    let mut there = vec![0; 500];
    // SAFETY: as many bytes as pages.
    let hole = unsafe { by_address::residency(bench.at, 500 * PAGE, there.as_mut_ptr()) };
    assert_eq!(hole, Err(libc::ENOMEM));
    bench.give_back();
    bench.check(0..200, libc::PROT_READ);
    bench.check(300..500, libc::PROT_READ);
    bench.protect(300..500, READ_AND_WRITE);
    bench.store_privately(300..500);
    // What lay between is anybody's by now.
    for pages in [0..200, 300..500] {
        // SAFETY: the test's own mappings, which nobody uses any more.
        unsafe { by_address::unmap(bench.at + pages.start * PAGE, pages.len() * PAGE).unwrap() };
    }
}

/// A thread may trap, find the page absent and be held up there while the file goes back and its region's words are cleared.
#[test]
fn a_claim_that_comes_late_wakes_who_waits_for_it() {
    let Some(bench) = Bench::new(500, libc::PROT_READ) else { return };
    let cache = Cache::new(1 << 20).unwrap();
    assert!(bench.take(&cache));
    // SAFETY: its values stay when the file goes back.
    let region = unsafe { registry::find(bench.at) }.unwrap();
    bench.give_back();
    assert!(region.is_converted());
    let page = region.page(7);
    let claim = Loading::begin(page, page.look()).unwrap();
    std::thread::scope(|scope| {
        let seen = page.look();
        let waiter = scope.spawn(move || region.page(7).wait(seen));
        while page.look() == seen {
            std::thread::yield_now();
        }
        // Asleep, as good as surely.
        std::thread::sleep(std::time::Duration::from_millis(20));
        region.clear_words();
        let again = Loading::begin(page, page.look()).unwrap();
        claim.abort_late();
        waiter.join().unwrap();
        again.abort_late();
    });
    assert_eq!(page.look().state(), State::Absent);
    bench.unmap();
}
