//! What mmap(2) has no word for, by address: pins that are counted, copies and prefetching across maps and other memory.

use crate::common::{PAGE, Random, create, folder, seed};
use fastmap::by_address::{self, Request};
use fastmap::{Cache, Error, Fallback};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn map(file: &File, cache: &Cache, pages: usize, prot: i32, at: Option<usize>) -> usize {
    let flags = libc::MAP_SHARED | if at.is_some() { libc::MAP_FIXED } else { 0 };
    let (addr, len, fallback) = (at.unwrap_or(0), pages * PAGE, Fallback::Kernel);
    let (one_writer, async_stores) = (true, false);
    let request =
        Request { addr, len, prot, flags, offset: 0, one_writer, own: true, fallback, async_stores, layers: true };
    // SAFETY: files and memory of the test's own.
    unsafe { by_address::map(file.as_fd(), cache, &request) }.unwrap().expect("served by the cache") as usize
}

fn numbered(path: &std::path::Path, pages: usize) -> File {
    create(path, &(0..pages).flat_map(|page| [page as u8; PAGE]).collect::<Vec<u8>>())
}

fn unmap(at: usize, pages: usize) {
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { by_address::unmap(at, pages * PAGE) }, Ok(()));
}

#[test]
fn pins_are_counted_and_end_with_their_maps() {
    alone!();
    let folder = folder();
    let file = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(64 * PAGE).unwrap();
    let at = map(&file, &cache, 64, RW, None);
    let pinned = || cache.stats().pinned_pages;
    // On three pages, though it is two long.
    let (start, len) = (at + 3 * PAGE + 100, 2 * PAGE);
    assert!(by_address::keep(start, len, false).is_ok() && by_address::keep(start, len, false).is_ok());
    assert_eq!(pinned(), 3);
    assert!(by_address::keep(start, len, true).is_ok());
    assert_eq!(by_address::let_go(start, len, false), Ok(()));
    assert_eq!(by_address::let_go(start, len, false), Ok(()));
    assert_eq!(
        (pinned(), by_address::let_go(start, len, false)),
        (3, Err(libc::EINVAL)),
        "the one for writing is left"
    );
    assert_eq!(by_address::let_go(start, len, true), Ok(()));
    assert_eq!(pinned(), 0);
    assert!(matches!(by_address::keep(at, 64 * PAGE, false), Err(Error::PinBudget { .. })));
    // A map that is pinned stays where it is.
    let reader = numbered(&folder.path().join("reader"), 8);
    let small = map(&reader, &cache, 8, libc::PROT_READ, None);
    assert!(by_address::keep(small, PAGE, false).is_ok());
    // More than there is room for behind a file that is open to be written.
    const LARGE: usize = 65 << 30;
    let grow = || {
        reader.set_len(LARGE as u64).unwrap();
        // SAFETY: a map of the test's own.
        unsafe { by_address::remap(small, 8 * PAGE, LARGE, libc::MREMAP_MAYMOVE, 0) }
    };
    assert_eq!(grow(), Err(libc::EAGAIN));
    assert_eq!(by_address::let_go(small, PAGE, false), Ok(()));
    let moved = grow().unwrap() as usize;
    assert!(!by_address::is_cached(moved, LARGE));
    unmap(moved, LARGE / PAGE);
    // Unmapping ends pins; their counts are still to be taken back.
    assert!(by_address::keep(at + 5 * PAGE, PAGE, true).is_ok());
    unmap(at + 5 * PAGE, 1);
    assert_eq!(pinned(), 0);
    assert_eq!(by_address::let_go(at + 5 * PAGE, PAGE, true), Ok(()));
    assert!(by_address::keep(at + 4 * PAGE, 2 * PAGE, false).is_err() && pinned() == 0, "all of it or nothing");
    unmap(at, 64);
    assert_eq!((cache.stats().pinned_pages, cache.stats().resident_pages), (0, 0));
}

/// 32 pages in a row: 8 of one file and 8 of another in the cache, whose bytes are their pages' numbers; 8 that are anonymous, zeros; 8 that may not be
/// touched.
struct Mixed {
    at: usize,
    one: File,
    _cache: Cache,
    _folder: tempfile::TempDir,
}

impl Mixed {
    fn new() -> Self {
        let folder = folder();
        let (one, two) = (numbered(&folder.path().join("one"), 8), numbered(&folder.path().join("two"), 8));
        let cache = Cache::new(256 * PAGE).unwrap();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(ptr::null_mut(), 32 * PAGE, RW, flags, -1, 0) } as usize;
        assert_eq!(map(&one, &cache, 8, RW, Some(at)), at);
        assert_eq!(map(&two, &cache, 8, RW, Some(at + 8 * PAGE)), at + 8 * PAGE);
        let mixed = Mixed { at, one, _cache: cache, _folder: folder };
        mixed.protect(24..32, libc::PROT_NONE);
        mixed
    }

    fn protect(&self, pages: Range<usize>, prot: i32) {
        // SAFETY: memory of the test's own.
        assert_eq!(unsafe { by_address::protect(self.at + pages.start * PAGE, pages.len() * PAGE, prot) }, Ok(()));
    }

    /// Copies pages to a buffer, as far as they go.
    fn read(&self, pages: Range<usize>) -> fastmap::Result<Vec<u8>> {
        let mut bytes = vec![0; pages.len() * PAGE];
        // SAFETY: a buffer of as many bytes.
        unsafe { by_address::read(self.at + pages.start * PAGE, bytes.as_mut_ptr(), bytes.len()) }.map(|_| bytes)
    }

    fn write(&self, at: usize, bytes: &[u8]) -> fastmap::Result<()> {
        // SAFETY: ranges that nobody else uses.
        unsafe { by_address::write(self.at + at, bytes.as_ptr(), bytes.len()) }
    }
}

impl Drop for Mixed {
    fn drop(&mut self) {
        unmap(self.at, 32);
    }
}

#[test]
fn prefetches_cross_maps_and_other_memory() {
    alone!();
    let mixed = Mixed::new();
    let at = mixed.at;
    assert!(by_address::is_cached(at + 1, 16 * PAGE - 1) && !by_address::is_cached(at, 17 * PAGE));
    let ranges = [at + PAGE..at + PAGE + 1, at + 7 * PAGE..at + 9 * PAGE, at + 15 * PAGE..at + 17 * PAGE];
    assert_eq!(by_address::prefetch(&ranges).unwrap(), 3);
    assert!(by_address::prefetch_wait(&ranges).is_ok());
    let mut there = [0; 16];
    // SAFETY: a byte for each page.
    assert_eq!(unsafe { by_address::residency(at, 16 * PAGE, there.as_mut_ptr()) }, Ok(()));
    assert!([1, 7, 8, 15].iter().all(|page| there[*page] & 1 == 1), "{there:?}");
    let nowhere = std::slice::from_ref(&(0..PAGE));
    assert!(by_address::prefetch(nowhere).is_err() && by_address::prefetch_wait(nowhere).is_err());
}

#[test]
fn copies_cross_maps_and_other_memory() {
    alone!();
    let mixed = Mixed::new();
    let expected = (2..8).chain(0..8).chain([0; 6]).flat_map(|page: u8| [page; PAGE]);
    assert!(mixed.read(2..22).unwrap().into_iter().eq(expected));
    mixed.write(7 * PAGE + 5, &[200; 10 * PAGE]).unwrap();
    assert_eq!(mixed.read(17..18).unwrap()[..6], [200, 200, 200, 200, 200, 0]);
    // As far as it goes, then an error.
    assert_eq!(mixed.read(20..25).unwrap_err().errno(), libc::EFAULT);
    assert_eq!(mixed.write(24 * PAGE, &[200]).unwrap_err().errno(), libc::EFAULT);
    assert_eq!(by_address::sync(mixed.at, 16 * PAGE, libc::MS_SYNC), Ok(()));
    let mut bytes = [0; 8];
    mixed.one.read_exact_at(&mut bytes, 7 * PAGE as u64).unwrap();
    assert_eq!(bytes, [7, 7, 7, 7, 7, 200, 200, 200]);
}

/// Rows that change from one map to the other, lie on both sides of a border, repeat, and are none.
#[test]
fn rows_cross_maps_and_other_memory() {
    alone!();
    let mixed = Mixed::new();
    let at = mixed.at;
    mixed.write(7 * PAGE + 5, &[200; 10 * PAGE]).unwrap();
    let seen = |at: usize| match at / PAGE {
        _ if (7 * PAGE + 5..17 * PAGE + 5).contains(&at) => 200,
        page if page < 16 => page as u8 % 8,
        _ => 0,
    };
    let mut random = Random::new(seed(6));
    for _ in 0..50 {
        let rows = || (random.below(23 * PAGE), [0, 1, 8, 100, PAGE][random.below(5)]);
        let rows: Vec<_> = std::iter::repeat_with(rows).take(300).collect();
        let expected: Vec<u8> = rows.iter().flat_map(|(start, len)| (*start..start + len).map(seen)).collect();
        let ranges: Vec<_> = rows.iter().map(|(start, len)| at + start..at + start + len).collect();
        let mut found = vec![0; expected.len()];
        by_address::gather(&ranges, &mut found).unwrap();
        assert!(found == expected, "{rows:?}");
        // SAFETY: a map of the test's own.
        assert_eq!(unsafe { by_address::advise(at, 16 * PAGE, libc::MADV_DONTNEED) }, Ok(()));
    }
}

#[test]
fn rows_that_may_not_be_read_are_errors() {
    alone!();
    let mixed = Mixed::new();
    let at = mixed.at;
    let a_byte = |range: Range<usize>| by_address::gather(&[range], &mut [0]).map_err(|error| error.errno());
    assert_eq!(a_byte(at + 24 * PAGE..at + 24 * PAGE + 1), Err(libc::EFAULT));
    assert_eq!(a_byte(at + 10..at + 12), Err(libc::EINVAL), "longer than the buffer");
    mixed.protect(0..8, libc::PROT_NONE);
    assert_eq!((a_byte(at..at + 1), a_byte(at + 8 * PAGE..at + 8 * PAGE + 1)), (Err(libc::EFAULT), Ok(())));
    mixed.protect(0..8, RW);
    assert_eq!(a_byte(at..at + 1), Ok(()));
}

#[test]
fn what_was_protected_apart_is_one_again_and_grows() {
    alone!();
    let folder = folder();
    let file = numbered(&folder.path().join("file"), 16);
    let cache = Cache::new(64 * PAGE).unwrap();
    let at = map(&file, &cache, 16, RW, None);
    // SAFETY: maps of the test's own.
    unsafe {
        assert_eq!(by_address::protect(at + 4 * PAGE, PAGE, libc::PROT_READ), Ok(()));
        let grow = || by_address::remap(at, 16 * PAGE, 32 * PAGE, 0, 0);
        assert_eq!(grow(), Err(libc::EFAULT), "three mappings, as with the kernel");
        assert_eq!(by_address::protect(at + 4 * PAGE, PAGE, RW), Ok(()));
        assert_eq!(grow(), Ok(at as *mut u8));
        assert_eq!(by_address::advise(at, PAGE, 12345), Err(libc::EINVAL));
        assert_eq!(by_address::expect_backward(at, 32 * PAGE), Ok(()));
    }
    unmap(at, 32);
}
