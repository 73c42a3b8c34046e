//! Where reading ahead and prefetching end: cuts, the ends of maps, walks that were given up, rings that break, forks,
//! pins, maps that move.

use crate::common::*;
use fastmap::{Advice, Cache, Error, Map, MapMut};
use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn nap(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn check(map: &[u8], page: usize) {
    assert!(map[page * PAGE..][..PAGE] == *stamp(page), "page {page}");
}

/// Nothing is left of the map in its cache.
fn ends(map: Map, cache: &Cache) {
    drop(map);
    assert_eq!(cache.stats().resident_pages, 0, "{:?}", cache.stats());
}

// --- cuts -------------------------------------------------------------------------------------------------------------

/// Of the chunk across the cut a part is read.
#[test]
fn a_strided_walk_comes_to_a_cut() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), 4096);
    let cache = Cache::new(64 << 20).unwrap();
    let map = map(&cache, &file);
    file.set_len((16 * 20 * PAGE) as u64).unwrap();
    for page in (0..16 * 18).step_by(16) {
        check(&map, page);
        settle(&cache);
    }
    let stats = settle(&cache);
    assert!(stats.streams > 0, "{stats:?}");
    ends(map, &cache);
}

/// The cut goes through what would have been a frame.
#[test]
fn a_walk_in_frames_comes_to_a_cut() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), 12_288);
    let cache = Cache::new(512 << 20).unwrap();
    let map = map(&cache, &file);
    file.set_len(((8192 + 256) * PAGE) as u64).unwrap();
    at_leisure(&cache, 0..8192, |page| check(&map, page));
    let stats = settle(&cache);
    assert!(stats.ahead_used > 0, "{stats:?}");
    ends(map, &cache);
}

// --- the ends of maps -------------------------------------------------------------------------------------------------

const FILE: usize = 4096;
/// Pages of a map in the middle of a file: not whole chunks.
const MIDDLE: Range<usize> = 1029..2053;

/// A file of ones, [`FILE`] pages.
fn ones(path: &Path) -> File {
    let file = create(path, &vec![1; FILE * PAGE]);
    file.sync_all().unwrap();
    file
}

/// All of a map's pages, towards one of its ends, and the pages of the file beyond that end.
fn toward(end: bool) -> (Box<dyn Iterator<Item = usize>>, Range<usize>) {
    if end {
        (Box::new(0..MIDDLE.len()), MIDDLE.end..FILE)
    } else {
        (Box::new((0..MIDDLE.len()).rev()), 0..MIDDLE.start)
    }
}

fn twos(file: &File, pages: &Range<usize>) {
    file.write_all_at(&vec![2; pages.len() * PAGE], (pages.start * PAGE) as u64).unwrap();
}

/// What no map covers is the program's to write, and the map that it makes of it then shows that.
#[test]
fn nothing_is_stale_beyond_the_ends_of_a_map_that_was_walked() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for (end, header) in [(false, false), (false, true), (true, false), (true, true)] {
        let file = ones(&path);
        let cache = Cache::new(64 << 20).unwrap();
        let part = |pages: &Range<usize>| {
            // SAFETY: the file is this test's own.
            unsafe { options(&cache).offset((pages.start * PAGE) as u64).len(pages.len() * PAGE).map(&file) }.unwrap()
        };
        let _header = header.then(|| part(&(0..1)));
        let middle = part(&MIDDLE);
        let (pages, beyond) = toward(end);
        at_leisure(&cache, pages, |page| assert_eq!(middle[page * PAGE], 1));
        let stats = settle(&cache);
        assert!(stats.ahead_used > 0, "{stats:?}");
        // The header's page is the header's.
        let beyond = beyond.start.max(1)..beyond.end;
        twos(&file, &beyond);
        let map = part(&beyond);
        let stale = (0..beyond.len()).filter(|page| map[page * PAGE] != 2).count();
        assert_eq!(stale, 0, "stale pages toward the end ({end}), with a header ({header}): {stats:?}");
    }
}

/// Likewise, what stores are guessed about.
#[test]
fn nothing_is_written_beyond_the_ends_of_a_map_that_was_stored_to() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for (end, header) in [(false, false), (false, true), (true, false), (true, true)] {
        let file = ones(&path);
        let cache = Cache::new(64 << 20).unwrap();
        let part = |pages: &Range<usize>| {
            // SAFETY: the file is this test's own.
            unsafe { options(&cache).offset((pages.start * PAGE) as u64).len(pages.len() * PAGE).map_mut(&file) }
                .unwrap()
        };
        let header_map = header.then(|| part(&(0..1)));
        let mut middle = part(&MIDDLE);
        let (pages, beyond) = toward(end);
        at_leisure(&cache, pages, |page| middle[page * PAGE] = 9);
        let stats = settle(&cache);
        assert!(stats.ahead_used > 0, "{stats:?}");
        let beyond = beyond.start.max(1)..beyond.end;
        twos(&file, &beyond);
        drop((header_map, middle));
        let bytes = std::fs::read(&path).unwrap();
        let lost = beyond.filter(|page| bytes[page * PAGE] != 2).count();
        assert_eq!(lost, 0, "pages overwritten toward the end ({end}), with a header ({header}): {stats:?}");
        assert!(MIDDLE.into_iter().all(|page| bytes[page * PAGE] == 9));
    }
}

/// A short map of the file that is long gone limits nobody.
#[test]
fn prefetch_after_a_look_at_the_header() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), 1024);
    let cache = Cache::new(64 << 20).unwrap();
    let map = map(&cache, &file);
    // SAFETY: the file is this test's own.
    drop(unsafe { options(&cache).len(PAGE).map(&file) }.unwrap());
    map.prefetch_wait(from_ref(&(0..1024 * PAGE))).unwrap();
    let stats = cache.stats();
    assert!(stats.prefetched_pages > 1000, "{stats:?}");
    (0..1024).for_each(|page| check(&map, page));
}

/// What was said of the file holds for the file, wherever its map is.
#[test]
fn readahead_stays_off_when_the_map_moves() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), 2000);
    let cache = Cache::new(64 << 20).unwrap();
    let mut map: MapMut = map_mut(&cache, &file);
    let before = map.as_ptr();
    map.set_readahead(0).unwrap();
    map.grow(256 << 20).unwrap();
    assert!(map.as_ptr() != before, "it should have moved");
    at_leisure(&cache, 0..1000, |page| check(&map, page));
    let stats = settle(&cache);
    assert_eq!(stats.ahead_pages, 0, "{stats:?}");
    map.set_readahead(usize::MAX).unwrap();
    at_leisure(&cache, 1000..2000, |page| check(&map, page));
    assert!(cache.stats().ahead_used > 0, "{:?}", cache.stats());
}

// --- walks that were given up -----------------------------------------------------------------------------------------

/// Walks of four pages each leave what was read ahead of them; a walk that goes on is read ahead of all the same.
fn is_read_ahead_of_after(cache: &Cache, abandoned: usize) {
    const WALKED: usize = 3000;
    let folder = folder();
    let file = sparse(&folder.path().join("file"), 1 << 30);
    let map = map(cache, &file);
    for at in (0..abandoned).map(|walk| 16_384 + walk * 4992) {
        (at..at + 4).for_each(|page| assert_eq!(map[page * PAGE], 0));
        settle(cache);
    }
    let before = cache.stats();
    assert!(before.streams > 0, "{before:?}");
    at_leisure(cache, 0..WALKED, |page| assert_eq!(map[page * PAGE], 0));
    let after = cache.stats();
    let used = after.ahead_used - before.ahead_used;
    assert!(used > 2000, "{used} of {WALKED} pages were read ahead: {before:?}, then {after:?}");
}

/// They hold all buffers.
#[test]
fn readahead_survives_abandoned_walks() {
    if ready() {
        is_read_ahead_of_after(&Cache::new(128 << 20).unwrap(), 40);
    }
}

/// In a cache that has few.
#[test]
fn readahead_survives_abandoned_walks_in_a_small_cache() {
    if ready() {
        is_read_ahead_of_after(&Cache::new(8 << 20).unwrap(), 20);
    }
}

// --- pins and stores --------------------------------------------------------------------------------------------------

/// Frames that cannot go stand in the queue before pages that can: faults come to the latter.
#[test]
fn faults_find_room_behind_pinned_frames() {
    if !ready() {
        return;
    }
    const FAULTS: usize = 150_000;
    let folder = folder();
    let file = sparse(&folder.path().join("file"), 2 << 30);
    let cache = Cache::new(512 << 20).unwrap();
    let map = map(&cache, &file);
    let pages = (2 << 30) / PAGE;
    at_leisure(&cache, 0..(320 << 20) / PAGE, |page| assert_eq!(map[page * PAGE], 0));
    let pinned = map.pin(16 << 20, 256 << 20).unwrap();
    let mut random = Random::new(seed(1));
    for _ in 0..FAULTS {
        black_box(map[(pages / 4 + random.below(pages * 3 / 4)) * PAGE]);
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert!(stats.evicted_pages > FAULTS as u64 / 4 && stats.resident_pages <= (512 << 8), "{stats:?}");
    assert!(pinned.iter().step_by(PAGE).all(|byte| *byte == 0));
    drop(pinned);
    ends(map, &cache);
}

/// In the middle of a walk in frames, some of them pinned: every store is in the file.
#[test]
fn becoming_mutable_under_frames() {
    if !ready() {
        return;
    }
    const PAGES: usize = 8192;
    let folder = folder();
    let path = folder.path().join("file");
    let file = stamped(&path, PAGES);
    for round in 0..8u64 {
        let cache = Cache::new(256 << 20).unwrap();
        let read = map(&cache, &file);
        let value = |page: usize| (page as u64 + round).to_ne_bytes();
        std::thread::scope(|scope| {
            // Behind what is stored to.
            scope.spawn(|| (0..PAGES).for_each(|page| assert_eq!(read[page * PAGE + 16], stamp(page)[16])));
            scope.spawn(|| {
                nap(round * 3);
                let _pin = read.pin(100 * PAGE, 700 * PAGE).unwrap();
                nap(15);
            });
            nap(5 + round * 3);
            let mut write = map_mut(&cache, &file);
            (0..PAGES).for_each(|page| write[page * PAGE + 8..][..8].copy_from_slice(&value(page)));
        });
        drop(read);
        let bytes = std::fs::read(&path).unwrap();
        for page in 0..PAGES {
            assert!(bytes[page * PAGE + 8..][..8] == value(page), "page {page}, round {round}");
        }
        assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
    }
}

/// Walks and pins of three threads, under resizes, advice of all kinds, prefetches, and readahead that goes off and on.
#[test]
fn everything_at_once() {
    if !ready() {
        return;
    }
    const PAGES: usize = 16_384;
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let cache = Cache::new(256 << 20).unwrap();
    let map = map(&cache, &file);
    let stop = AtomicBool::new(false);
    let seed = seed(99);
    std::thread::scope(|scope| {
        for thread in 1..=3 {
            let (map, stop) = (&map, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed + thread);
                while !stop.load(Ordering::Relaxed) {
                    walks_of_all_kinds(map, &mut random);
                }
            });
        }
        let _stop = Stop(&stop);
        let mut random = Random::new(seed);
        let end = Instant::now() + 2 * under_load();
        for turn in 0.. {
            if Instant::now() >= end {
                break;
            }
            let at = random.below(PAGES / 2);
            match random.below(6) {
                0 => cache.resize([32 << 20, 64 << 20, 256 << 20][random.below(3)]).unwrap(),
                1 => map.advise_range(Advice::DontNeed, at * PAGE, random.below(PAGES / 2) * PAGE).unwrap(),
                2 => drop(map.prefetch(from_ref(&(at * PAGE..(at + random.below(4000)) * PAGE))).unwrap()),
                3 => map.prefetch_wait(from_ref(&(at * PAGE..(at + 300) * PAGE))).unwrap(),
                4 => map.set_readahead([0, 1 << 20, usize::MAX][random.below(3)]).unwrap(),
                _ => map
                    .advise([Advice::Normal, Advice::Random, Advice::Sequential, Advice::Backward][random.below(4)])
                    .unwrap(),
            }
            if turn % 10 == 9 {
                nap(20);
            }
        }
    });
    println!("{:?}", cache.stats());
    ends(map, &cache);
}

/// One walk from anywhere, with a step, and perhaps a pin.
fn walks_of_all_kinds(map: &Map, random: &mut Random) {
    let pages = map.len() / PAGE;
    let mut bytes = [0; PAGE];
    let step = [1, -1, 1, -1, 3, -7, 16][random.below(7)];
    let mut page = random.below(pages);
    for _ in 0..random.below(6000) {
        check(map, page);
        if random.below(200) == 0 {
            map.read_at(&mut bytes, page * PAGE).unwrap();
            assert!(bytes == *stamp(page), "page {page}, copied");
        }
        match page.checked_add_signed(step) {
            Some(next) if next < pages => page = next,
            _ => break,
        }
    }
    if random.below(10) == 0 {
        let first = random.below(pages - 600);
        let pin = map.pin(first * PAGE, 600 * PAGE).unwrap();
        nap(2);
        (0..600)
            .for_each(|index| assert!(pin[index * PAGE..][..PAGE] == *stamp(first + index), "page {index} of a pin"));
    }
}

// --- what ends a process, or changes it -------------------------------------------------------------------------------

/// Chunks that are on their way when the readers' ring breaks are nobody's; the map goes all the same.
#[test]
fn a_map_outlives_a_broken_ring_and_ends() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    stamped(&path, 4096);
    println!("{}", run_child("broken ring", &path));
}

fn broken_ring(path: &Path) {
    let cache = Cache::new(64 << 20).unwrap();
    let map = map(&cache, &open(path));
    (0..200).for_each(|page| check(&map, page));
    nap(50);
    println!("{} rings broken", break_rings());
    (200..2000).for_each(|page| check(&map, page));
    println!("{:?}", cache.stats());
    ends(map, &cache);
}

/// What a program does that closes descriptors it does not know. They stay taken, so that nobody else gets their numbers.
fn break_rings() -> usize {
    let null = File::open("/dev/null").unwrap();
    let rings = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains("io_uring"))
    });
    let rings: Vec<i32> = rings.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
    // SAFETY: the numbers stay open; what they were for is to break.
    rings.iter().for_each(|ring| assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), *ring) }, *ring));
    rings.len()
}

/// Not even to find that the file is shorter: it would drop the parent's pages.
#[test]
fn a_forked_child_that_waits_for_nothing_is_refused() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    stamped(&path, 64);
    run_child("fork", &path);
}

fn fork(path: &Path) {
    let file = open(path);
    let cache = small();
    let map = map(&cache, &file);
    (0..64).for_each(|page| check(&map, page));
    file.set_len(32 * PAGE as u64).unwrap();
    let before = resident(addresses(&map));
    assert!(before > 0);
    // SAFETY: the child calls little; the other threads sleep.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(map.prefetch_wait(&[]), Err(Error::Missing { .. }));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(resident(addresses(&map)), before, "the child dropped its parent's pages");
}

#[test]
fn role() {
    match role_of_child() {
        Some((role, path)) if role == "broken ring" => broken_ring(&path),
        Some((role, path)) if role == "fork" => fork(&path),
        _ => {}
    }
}
