//! The page cache as the second tier: what it has is not read from the device, and what is copied from it is right.

use crate::coherent::{read, write};
use crate::common::settle;
use crate::common::{
    DirectReader, PAGE, Random, create, folder, map, map_mut, pattern, quick_or_full, ready, refuse_call,
};
use crate::common::{seed, skip, small, sparse, uncache};
use fastmap::Cache;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PAGES: usize = 256;

/// Pages of a file that the page cache has, if the kernel says (cachestat(2), Linux 6.5).
fn cached_pages(file: &File) -> Option<u64> {
    let (range, mut counts) = ([0u64; 2], [0u64; 5]);
    // SAFETY: the kernel reads two and writes five numbers.
    let done = unsafe { libc::syscall(451, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    (done == 0).then_some(counts[0])
}

/// Whether the kernel counts what the page cache has; otherwise says that the test is skipped.
fn counts() -> bool {
    let folder = folder();
    let file = create(&folder.path().join("probe"), &[1; PAGE]);
    let counts = cached_pages(&file) == Some(1);
    if !counts {
        skip("the kernel does not count a file's pages in the page cache (cachestat(2), Linux 6.5)");
    }
    counts
}

fn drop_cached(file: &File, at: usize, len: usize) {
    // SAFETY: numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), at as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Bytes that this thread had devices read.
fn device_reads() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).expect("a count");
    line.parse().expect("a number")
}

#[test]
fn what_was_just_written_is_not_read_from_the_device() {
    if !ready() || !counts() {
        return;
    }
    let (folder, cache) = (folder(), Cache::new(4 << 20).unwrap());
    let bytes = pattern(PAGES * PAGE - 100);
    let file = create(&folder.path().join("file"), &bytes);
    let map = map(&cache, &file);
    map.set_readahead(0).unwrap();
    let before = device_reads();
    assert_eq!(map[..], bytes[..]);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.page_cache_hits), (PAGES as u64, PAGES as u64), "{stats:?}");
    assert_eq!(device_reads(), before);
}

#[test]
fn readers_and_prefetch_find_it_too() {
    if !ready() || !counts() {
        return;
    }
    let folder = folder();
    let bytes = pattern(4 * PAGES * PAGE);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = Cache::new(16 << 20).unwrap();
    let walked = map(&cache, &file);
    for (part, expected) in walked.chunks(64 * PAGE).zip(bytes.chunks(64 * PAGE)) {
        assert_eq!(part, expected);
        settle(&cache);
    }
    let stats = cache.stats();
    assert!(stats.ahead_used > 0 && stats.page_cache_hits >= 4 * PAGES as u64, "{stats:?}");
    // The page cache has let go of what was copied, but for large folios.
    let other = create(&folder.path().join("other"), &bytes);
    let prefetched = map(&cache, &other);
    prefetched.prefetch_wait(std::slice::from_ref(&(0..bytes.len()))).unwrap();
    assert_eq!(prefetched[..], bytes[..]);
    let after = cache.stats();
    assert!(after.page_cache_hits - stats.page_cache_hits >= 4 * PAGES as u64, "{after:?}");
}

#[test]
fn what_the_page_cache_lacks_is_read() {
    if !ready() || !counts() {
        return;
    }
    let (folder, cache) = (folder(), Cache::new(4 << 20).unwrap());
    let bytes = pattern(PAGES * PAGE - 100);
    let file = create(&folder.path().join("file"), &bytes);
    uncache(&file);
    assert_eq!(cached_pages(&file), Some(0));
    let map = map(&cache, &file);
    map.set_readahead(0).unwrap();
    assert_eq!(map[..], bytes[..]);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.page_cache_hits), (PAGES as u64, 0), "{stats:?}");
    assert_eq!(cached_pages(&file), Some(0), "nothing is read into the page cache");
}

#[test]
fn the_page_cache_lets_go_of_clean_pages_that_were_copied() {
    if !ready() || !counts() {
        return;
    }
    let (folder, cache) = (folder(), Cache::new(4 << 20).unwrap());
    let bytes = pattern(PAGES * PAGE);
    let file = sparse(&folder.path().join("file"), bytes.len() as u64);
    // Page by page from the back: no folio of several.
    for page in (0..PAGES).rev() {
        file.write_all_at(&bytes[page * PAGE..(page + 1) * PAGE], (page * PAGE) as u64).unwrap();
    }
    file.sync_all().unwrap();
    let map = map(&cache, &file);
    map.set_readahead(0).unwrap();
    assert_eq!(map[..], bytes[..]);
    assert_eq!(cache.stats().page_cache_hits, PAGES as u64);
    let left = cached_pages(&file).unwrap();
    assert!(left < PAGES as u64 / 8, "{left} pages are in memory twice");
}

#[test]
fn the_last_unmap_hands_dirty_pages_to_the_page_cache() {
    if !ready() || !counts() {
        return;
    }
    let (folder, cache) = (folder(), Cache::new(4 << 20).unwrap());
    let path = folder.path().join("file");
    let file = create(&path, &pattern(2 * PAGES * PAGE + 100));
    uncache(&file);
    let mut map = map_mut(&cache, &file);
    let mut sum = 0;
    for page in 0..PAGES {
        map[page * PAGE] = 201;
        sum += usize::from(map[(PAGES + page) * PAGE]);
    }
    map[2 * PAGES * PAGE + 99] = 202;
    assert!(sum > 0 && cache.stats().dirty_pages >= PAGES as u64);
    drop(map);
    let cached = cached_pages(&file).unwrap();
    assert!((PAGES as u64 + 1..PAGES as u64 + 64).contains(&cached), "{cached} pages: dirty ones, and no clean ones");
    let mut expected = pattern(2 * PAGES * PAGE + 100);
    (0..PAGES).for_each(|page| expected[page * PAGE] = 201);
    expected[2 * PAGES * PAGE + 99] = 202;
    assert!(std::fs::read(&path).unwrap() == expected);
    // Synced by a descriptor of the program's, it is on the device.
    file.sync_data().unwrap();
    let mut direct = DirectReader::open(&path);
    assert!((0..PAGES).all(|page| direct.page(page)[0].to_ne_bytes()[0] == 201));
}

#[test]
fn a_kernel_that_refuses_to_count_is_not_asked_again() {
    alone!();
    let (folder, cache) = (folder(), Cache::new(4 << 20).unwrap());
    let bytes = pattern(PAGES * PAGE - 100);
    let file = create(&folder.path().join("file"), &bytes);
    const CACHESTAT: libc::c_long = 451;
    refuse_call(CACHESTAT);
    assert_eq!(cached_pages(&file), None);
    assert_eq!(map(&cache, &file)[..], bytes[..]);
    assert_eq!(cache.stats().page_cache_hits, 0);
}

/// Stores, write(2), flushes, reads into the page cache and its emptying in any order, in memory for a sixth of the file: each load
/// finds what was stored or written last.
#[test]
fn whatever_the_page_cache_has_loads_find_what_was_written_last() {
    if !ready() {
        return;
    }
    const LEN: usize = 96 * PAGE + 1234;
    let seed = seed(77);
    for round in 0..quick_or_full(4, 16) {
        let mut random = Random::new(seed + round as u64);
        let (folder, cache) = (folder(), small());
        let mut shadow = pattern(LEN);
        let file = create(&folder.path().join("file"), &shadow);
        let mut map = map_mut(&cache, &file);
        for _ in 0..3000 {
            let at = random.below(LEN);
            let len = random.below(4 * PAGE).min(LEN - at);
            match random.below(12) {
                0..2 => {
                    let value = random.next() as u8;
                    map[at..at + len].fill(value);
                    shadow[at..at + len].fill(value);
                }
                2 | 3 if len > 0 => {
                    let data = vec![random.next() as u8; len];
                    write(&file, at, &[&data]);
                    shadow[at..at + len].copy_from_slice(&data);
                }
                4 => assert!(read(&file, at, len) == shadow[at..at + len], "read(2) at {at}"),
                5 => map.flush_range(at, len).unwrap(),
                6 => drop_cached(&file, 0, 0),
                7 => drop_cached(&file, at, len),
                _ => assert!(map[at..at + len] == shadow[at..at + len], "load at {at}, {len} bytes"),
            }
        }
        assert!(map[..] == shadow[..]);
        let stats = cache.stats();
        drop(map);
        assert!(std::fs::read(folder.path().join("file")).unwrap() == shadow);
        assert!(stats.page_cache_hits > 0 || !counts(), "{stats:?}");
    }
}
