//! Stores to absent pages that do not wait for the read: with an initial value (AR-MMAP), and kept. Against a shadow of what the
//! file should hold, with few pages and many threads, and with programs that are killed.

use crate::common::*;
use fastmap::{Advice, Cache, Error, Fallback, MapMut, MapOptions, Stats};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LINE: usize = 64;
const LINES: usize = PAGE / LINE;
/// No word of it is ever stored by these tests, nor in a stamped file.
const INITIAL: [u8; LINE] = *b"A line that no test here stores, nor any eight of its bytes 4711";

/// The two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Initial,
    Kept,
}

const BOTH: [Way; 2] = [Way::Initial, Way::Kept];

impl Way {
    fn map(self, cache: &Cache, path: &Path) -> MapMut {
        let mut options = MapOptions::new();
        options.cache(cache).fallback(Fallback::Refuse);
        match self {
            Way::Initial => options.async_read(INITIAL),
            Way::Kept => options.async_stores(true),
        };
        // SAFETY: nobody else changes the file.
        unsafe { options.map_mut(&open(path)).unwrap() }
    }

    /// Whether stores went on without their reads, as they must where signals serve faults.
    fn works(stats: &Stats) -> bool {
        let by_service = std::env::var("FASTMAP_FAULTS").is_ok_and(|by| by == "service");
        by_service || stats.async_loads > 0
    }
}

fn stamped_bytes(pages: usize) -> Vec<u8> {
    (0..pages).flat_map(|page| stamp(page).to_vec()).collect()
}

/// Stores a line as a program does: with a few moves.
fn store_line(map: &MapMut, offset: usize, line: &[u8; LINE]) {
    // SAFETY: within the map; who else stores to it stores elsewhere.
    unsafe { map.as_ptr().add(offset).cast_mut().cast::<[u8; LINE]>().write_volatile(*line) };
}

/// Loads a line, again if it holds the initial value.
fn load_line(map: &MapMut, offset: usize) -> [u8; LINE] {
    loop {
        // SAFETY: within the map.
        let line = unsafe { map.as_ptr().add(offset).cast::<[u8; LINE]>().read_volatile() };
        if !map.is_initial(&line) {
            return line;
        }
        map.synchronise(offset, LINE).unwrap();
    }
}

fn random_line(random: &mut Random) -> [u8; LINE] {
    let words: [u64; 8] = std::array::from_fn(|_| random.next());
    std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
}

/// Stores part of a line, of a width that has a move of its own.
fn store_part(map: &MapMut, random: &mut Random, offset: usize, shadow: &mut [u8; LINE]) {
    let width = 1 << random.below(7);
    let at = random.below(LINE - width + 1);
    let line = random_line(random);
    shadow[at..at + width].copy_from_slice(&line[..width]);
    // SAFETY: within the map; who else stores to it stores elsewhere.
    unsafe {
        let to = map.as_ptr().add(offset + at).cast_mut();
        let from = line.as_ptr();
        match width {
            1 => to.write_volatile(from.read()),
            2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
            4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            16 => to.cast::<u128>().write_unaligned(from.cast::<u128>().read_unaligned()),
            _ => std::ptr::copy_nonoverlapping(from, to, width),
        }
    }
}

#[test]
fn what_is_stored_and_what_is_not_are_both_in_the_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for way in BOTH {
        const PAGES: usize = 64;
        drop(stamped(&path, PAGES));
        let cache = Cache::new(1 << 20).unwrap();
        let map = way.map(&cache, &path);
        let mut expected = stamped_bytes(PAGES);
        for page in (0..PAGES).step_by(3) {
            let offset = page * PAGE + page % LINES * LINE;
            let line = [page as u8 + 1; LINE];
            store_line(&map, offset, &line);
            expected[offset..offset + LINE].copy_from_slice(&line);
        }
        map.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected, "{way:?}");
        assert!(map[..] == expected[..], "{way:?}");
        let stats = cache.stats();
        assert!(way == Way::Kept || Way::works(&stats), "{stats:?}");
        assert_eq!((stats.partial_lines, stats.writeback_errors), (0, 0));
    }
}

#[test]
fn lines_that_are_not_read_yet_hold_the_initial_value_or_the_files() {
    if !ready() {
        return;
    }
    const PAGES: usize = 256;
    let folder = folder();
    let path = folder.path().join("file");
    drop(stamped(&path, PAGES));
    let stored = || {
        let cache = Cache::new(4 << 20).unwrap();
        let map = Way::Initial.map(&cache, &path);
        let mut initial = 0;
        for page in 0..PAGES {
            store_line(&map, page * PAGE, &[1; LINE]);
            // SAFETY: within the map.
            let next = unsafe { map.as_ptr().add(page * PAGE + LINE).cast::<[u8; LINE]>().read_volatile() };
            initial += usize::from(map.is_initial(&next));
            assert!(map.is_initial(&next) || next == stamp(page)[LINE..2 * LINE]);
        }
        assert!(Way::works(&cache.stats()));
        (initial > 0 || cache.stats().async_loads == 0).then_some((cache, map))
    };
    // A thread that waits for a processor between the store and the load finds the page read.
    let Some((_cache, map)) = (0..100).find_map(|_| stored()) else { panic!("no store went on without its read") };
    map.synchronise(0, PAGES * PAGE).unwrap();
    for page in 0..PAGES {
        let bytes = &map[page * PAGE..(page + 1) * PAGE];
        assert!(bytes[..LINE] == [1; LINE] && bytes[LINE..] == stamp(page)[LINE..], "page {page}");
    }
    assert!(matches!(map.synchronise(PAGES * PAGE, 1), Err(Error::RangeOutside { .. })));
}

#[test]
fn pins_and_copies_wait() {
    if !ready() {
        return;
    }
    const PAGES: usize = 128;
    let folder = folder();
    let path = folder.path().join("file");
    for way in BOTH {
        drop(stamped(&path, PAGES));
        let cache = Cache::new(2 << 20).unwrap();
        let map = way.map(&cache, &path);
        for page in 0..PAGES {
            let start = page * PAGE;
            store_line(&map, start, &[2; LINE]);
            let mut copy = [0; PAGE];
            if page % 2 == 0 {
                copy.copy_from_slice(&map.pin(start, PAGE).unwrap());
            } else {
                map.read_at(&mut copy, start).unwrap();
            }
            assert!(copy[..LINE] == [2; LINE] && copy[LINE..] == stamp(page)[LINE..], "{way:?}, page {page}");
        }
    }
}

#[test]
fn stores_are_not_kept_where_threads_wait_for_them() {
    if !ready() {
        return;
    }
    const PAGES: usize = 2048;
    let folder = folder();
    let path = folder.path().join("file");
    // What the page cache has nobody waits for.
    uncache(&stamped(&path, PAGES));
    let cache = Cache::new(16 << 20).unwrap();
    let map = Way::Kept.map(&cache, &path);
    map.advise(Advice::Random).unwrap();
    let mut random = Random::new(seed(3));
    // In an order without walks.
    let pages = |half: usize| (0..PAGES / 2).map(move |at| at * 701 % (PAGES / 2) * 2 + half);
    for page in pages(0) {
        store_line(&map, page * PAGE, &random_line(&mut random));
        assert_eq!(load_line(&map, page * PAGE + LINE), stamp(page)[LINE..2 * LINE]);
    }
    let first = cache.stats();
    let (kept, learnt) = (first.async_loads, first.async_loads < PAGES as u64 / 4);
    // Beside other work a page may be read before its thread runs again, which then waits for nothing.
    assert!(learnt || 2 * first.waits < kept, "{kept} pages were kept though each was waited for: {first:?}");
    for page in pages(1) {
        store_line(&map, page * PAGE, &random_line(&mut random));
    }
    map.flush().unwrap();
    let stats = cache.stats();
    assert!(
        kept == 0 || !learnt || stats.async_loads > 2 * kept,
        "{kept} before, and it was not learned anew: {stats:?}"
    );
}

#[test]
fn all_maps_of_a_file_have_one_initial_value() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    drop(stamped(&path, 4));
    let cache = Cache::new(1 << 20).unwrap();
    let map = Way::Initial.map(&cache, &path);
    // SAFETY: nobody else changes the file.
    let other = unsafe { MapOptions::new().cache(&cache).async_read([1; LINE]).map_mut(&open(&path)) };
    assert!(matches!(other, Err(Error::InitialValue { path: named }) if named.ends_with("file")));
    let same = Way::Initial.map(&cache, &path);
    assert!(same.is_initial(&INITIAL) && !same.is_initial(&[1; LINE]) && !same.is_initial(&INITIAL[..8]));
    drop((map, same));
    // SAFETY: as above.
    drop(unsafe { MapOptions::new().cache(&cache).async_read([1; LINE]).map_mut(&open(&path)) }.unwrap());
}

#[test]
fn lines_stored_in_part_are_counted() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    // A store that comes when its page has been read meanwhile is an ordinary one: its thread was off the processor.
    until("stores before their pages are there", || {
        drop(stamped(&path, 64));
        let cache = Cache::new(1 << 20).unwrap();
        let map = Way::Initial.map(&cache, &path);
        for page in 0..64 {
            // SAFETY: within the map.
            unsafe { map.as_ptr().add(page * PAGE).cast_mut().cast::<u64>().write_volatile(5) };
        }
        map.flush().unwrap();
        let stats = cache.stats();
        assert!(stats.partial_lines <= stats.async_loads && Way::works(&stats), "{stats:?}");
        stats.partial_lines == stats.async_loads
    });
}

#[test]
fn ends_of_files_and_holes_are_as_ever() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for way in BOTH {
        // A tail that is no page, behind a hole.
        let file = sparse(&path, 40 * PAGE as u64 + 100);
        std::os::unix::fs::FileExt::write_all_at(&file, &[3; 100], 40 * PAGE as u64).unwrap();
        let cache = Cache::new(1 << 20).unwrap();
        let map = way.map(&cache, &path);
        store_line(&map, 40 * PAGE, &[4; LINE]);
        store_line(&map, 7 * PAGE, &[5; LINE]);
        map.flush().unwrap();
        let mut expected = vec![0; 40 * PAGE + 100];
        expected[40 * PAGE..].fill(3);
        expected[40 * PAGE..][..LINE].fill(4);
        expected[7 * PAGE..][..LINE].fill(5);
        assert!(std::fs::read(&path).unwrap() == expected, "{way:?}");
        assert_eq!(cache.stats().async_loads, 0);
        file.set_len(10).unwrap();
        map.flush().unwrap();
    }
}

#[test]
fn files_that_are_cut_and_grow_meanwhile() {
    if !ready() {
        return;
    }
    const PAGES: usize = 256;
    let folder = folder();
    let path = folder.path().join("file");
    for way in BOTH {
        let file = stamped(&path, PAGES);
        let cache = Cache::new(4 << 20).unwrap();
        let mut map = way.map(&cache, &path);
        for page in 0..PAGES {
            store_line(&map, page * PAGE + LINE, &[6; LINE]);
        }
        file.set_len(100 * PAGE as u64).unwrap();
        map.flush().unwrap();
        file.set_len(PAGES as u64 * PAGE as u64).unwrap();
        map.grow(2 * PAGES * PAGE).unwrap();
        let mut expected = stamped_bytes(PAGES);
        (0..100).for_each(|page| expected[page * PAGE + LINE..][..LINE].fill(6));
        expected[100 * PAGE..].fill(0);
        expected.resize(2 * PAGES * PAGE, 0);
        assert!(map[..] == expected[..], "{way:?}");
        store_line(&map, 50 * PAGE, &[7; LINE]);
        map.unmap().unwrap();
        expected[50 * PAGE..][..LINE].fill(7);
        assert!(std::fs::read(&path).unwrap() == expected, "{way:?}");
    }
}

/// Threads, each with lines of its own, in a cache of a few pages: every load sees the thread's own last store, and in the end
/// the file has all of them.
#[test]
fn threads_against_a_shadow() {
    if !ready() {
        return;
    }
    const PAGES: usize = 512;
    const THREADS: usize = 4;
    let steps = quick_or_full(1000, 3000);
    let folder = folder();
    let path = folder.path().join("file");
    let seed = seed(77);
    for (way, capacity) in BOTH.into_iter().flat_map(|way| [(way, 24), (way, 96), (way, 1024)]) {
        drop(stamped(&path, PAGES));
        let cache = Cache::new(capacity * PAGE).unwrap();
        let map = way.map(&cache, &path);
        let shadows: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let map = &map;
                    scope.spawn(move || {
                        let mut random = Random::new(seed + thread as u64);
                        let mut shadow = stamped_bytes(PAGES);
                        for step in 0..steps {
                            let offset = (random.below(PAGES * LINES / THREADS) * THREADS + thread) * LINE;
                            let own: &mut [u8; LINE] = (&mut shadow[offset..offset + LINE]).try_into().unwrap();
                            match random.below(100) {
                                0..60 if way == Way::Initial => {
                                    *own = random_line(&mut random);
                                    store_line(map, offset, own);
                                }
                                0..60 => store_part(map, &mut random, offset, own),
                                60..95 => assert_eq!(load_line(map, offset), *own, "step {step} at {offset}"),
                                95 if step % 8 == 0 => map.flush_range(offset, LINE).unwrap(),
                                96 => map.advise_range(Advice::DontNeed, offset, LINE).unwrap(),
                                97 => map.prefetch_wait(std::slice::from_ref(&(offset..offset + LINE))).unwrap(),
                                98 => {
                                    let mut copy = [0; LINE];
                                    map.read_at(&mut copy, offset).unwrap();
                                    assert_eq!(copy, *own, "step {step} at {offset}");
                                }
                                _ => assert_eq!(map.pin(offset, LINE).unwrap()[..], own[..], "step {step} at {offset}"),
                            }
                        }
                        shadow
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        map.flush().unwrap();
        let stats = cache.stats();
        println!("{way:?}, {capacity} pages: {} of {} misses", stats.async_loads, stats.misses);
        drop(map);
        let (file, stamped) = (std::fs::read(&path).unwrap(), stamped_bytes(PAGES));
        for line in 0..PAGES * LINES {
            let at = line * LINE..(line + 1) * LINE;
            let (found, stored, first) = (&file[at.clone()], &shadows[line % THREADS][at.clone()], &stamped[at]);
            assert!(
                found == stored,
                "{way:?}, {capacity} pages, line {line}: {found:?} for {stored:?}, at first {first:?}"
            );
        }
    }
}

/// Programs killed while pages are being read and merged: all that they stored is in the file, and nothing else.
#[test]
fn killed_programs_lose_nothing() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut random = Random::new(seed(5));
    for way in BOTH {
        let mut expected = stamped_bytes(KILLED_PAGES);
        drop(stamped(&path, KILLED_PAGES));
        let told = create(&folder.path().join("told"), &[0; PAGE]);
        let counter = shared_counter(&told);
        for round in 1..=quick_or_full(5, 25) {
            counter.store(0, Ordering::Release);
            let mut child = child(&format!("{way:?}"), Path::new(""))
                .env("FASTMAP_TEST_ROUND", round.to_string())
                .current_dir(folder.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            until("the first store", || counter.load(Ordering::Acquire) > 0);
            std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
            child.kill().unwrap();
            child.wait().unwrap();
            let done = counter.load(Ordering::Acquire);
            let own = Cache::builder().capacity(Cache::MIN_CAPACITY).keeper(false).build().unwrap();
            // Waits for the keeper.
            // SAFETY: nobody else changes the file.
            drop(unsafe { MapOptions::new().cache(&own).map_mut(&open(&path)).unwrap() });
            let mut reader = DirectReader::open(&path);
            for number in 0..done {
                let (offset, line) = store_of(round, number);
                expected[offset..offset + LINE].copy_from_slice(&line);
            }
            let (offset, line) = store_of(round, done);
            for page in 0..KILLED_PAGES {
                let bytes: Vec<u8> = reader.page(page).iter().flat_map(|word| word.to_le_bytes()).collect();
                if bytes != expected[page * PAGE..(page + 1) * PAGE] {
                    assert_eq!(offset / PAGE, page, "{way:?}, round {round}, {done} stores: not as it should be");
                    let within = offset % PAGE..offset % PAGE + LINE;
                    for at in (0..PAGE).filter(|at| bytes[*at] != expected[page * PAGE + at]) {
                        assert!(within.contains(&at), "{way:?}, round {round}: page {page} at {at}");
                        // It may have died between two moves of one line, and then so has its first duty.
                        let at_line = at - within.start;
                        let is_torn = way == Way::Initial && bytes[at] == INITIAL[at_line];
                        assert!(bytes[at] == line[at_line] || is_torn, "{way:?}, round {round}: the last store");
                    }
                    expected[page * PAGE..(page + 1) * PAGE].copy_from_slice(&bytes);
                }
            }
        }
    }
}

const KILLED_PAGES: usize = 2048;

/// How many stores a child has done, in a page that parent and child have mapped.
fn shared_counter(told: &File) -> &'static AtomicU64 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a page of the test's own, which stays; nothing but a counter is there.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, told.as_raw_fd(), 0);
        assert!(at != libc::MAP_FAILED);
        &*at.cast::<AtomicU64>()
    }
}

/// What a child stores: where, and what.
fn store_of(round: u64, number: u64) -> (usize, [u8; LINE]) {
    let mut random = Random::new(round << 32 | number);
    let offset = random.below(KILLED_PAGES * LINES) * LINE;
    (offset, random_line(&mut random))
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Ok(role) = std::env::var("FASTMAP_TEST_ROLE") else { return };
    let round: u64 = std::env::var("FASTMAP_TEST_ROUND").unwrap().parse().unwrap();
    let way = if role == "Initial" { Way::Initial } else { Way::Kept };
    let counter = shared_counter(&open(Path::new("told")));
    // Rounds with room for all, and with few pages.
    let capacity = if round.is_multiple_of(2) { 2 * KILLED_PAGES } else { KILLED_PAGES / 16 };
    let cache = Cache::new(capacity * PAGE).unwrap();
    let map = way.map(&cache, Path::new("file"));
    for number in 0.. {
        let (offset, line) = store_of(round, number);
        store_line(&map, offset, &line);
        counter.store(number + 1, Ordering::Release);
    }
}
