//! System calls on mapped files: mapping and file are one, whatever the order of loads, stores, reads, writes and changes of
//! length.

use crate::common;
use crate::common::{PAGE, Random, Stop, create, folder, quick_or_full, ready, seed, sleeps, under_load, until};
use fastmap::by_address::{self, Request};
use fastmap::coherence::{self, MappedFile};
use fastmap::{Cache, Fallback, MapMut, MapOptions};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn mapped(file: &File) -> MappedFile {
    coherence::file(file.as_raw_fd()).expect("the file is mapped through the cache")
}

pub fn read(file: &File, at: usize, len: usize) -> Vec<u8> {
    mapped(file).before_read(at as u64..(at + len) as u64).unwrap();
    let mut bytes = vec![0; len];
    // SAFETY: our own buffer.
    let got = unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), len, at as i64) };
    assert!(got >= 0, "pread: {}", io::Error::last_os_error());
    bytes.truncate(got as usize);
    bytes
}

fn iovecs(parts: &[&[u8]]) -> Vec<libc::iovec> {
    parts.iter().map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }).collect()
}

pub fn write(file: &File, at: usize, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mapped = mapped(file);
    let data = iovecs(parts);
    let writing = mapped.writing(at as u64..(at + len) as u64).unwrap();
    // SAFETY: our own buffers.
    unsafe {
        let put = libc::pwritev(file.as_raw_fd(), data.as_ptr(), data.len() as i32, at as i64);
        assert_eq!(put, len as isize, "pwritev: {}", io::Error::last_os_error());
        writing.written(at as u64, &data, put as usize);
    }
}

fn truncate(file: &File, len: usize) {
    let mapped = mapped(file);
    let resizing = mapped.resizing(len as u64).unwrap();
    file.set_len(len as u64).unwrap();
    // SAFETY: nobody has a reference into the map.
    unsafe { resizing.done() };
}

/// False where the file system cannot.
fn allocate(file: &File, mode: i32, range: Range<usize>) -> bool {
    let mapped = mapped(file);
    let writing = mapped.writing(range.start as u64..range.end as u64).unwrap();
    // SAFETY: numbers only.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as i64, range.len() as i64) };
    let error = io::Error::last_os_error().raw_os_error();
    // SAFETY: nobody has a reference into the map.
    unsafe { writing.done() };
    assert!(done == 0 || error == Some(libc::EOPNOTSUPP), "fallocate: error {error:?}");
    done == 0
}

fn copy(file: &File, from: usize, to: usize, len: usize) -> usize {
    let mapped = mapped(file);
    mapped.before_read(from as u64..(from + len) as u64).unwrap();
    let writing = mapped.writing(to as u64..(to + len) as u64).unwrap();
    let (mut from, mut to) = (from as i64, to as i64);
    // SAFETY: numbers of our own.
    let copied = unsafe { libc::copy_file_range(file.as_raw_fd(), &mut from, file.as_raw_fd(), &mut to, len, 0) };
    let error = io::Error::last_os_error();
    // SAFETY: nobody has a reference into the map.
    unsafe { writing.done() };
    if copied < 0 && matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EOPNOTSUPP | libc::ENOSYS)) {
        return 0;
    }
    assert!(copied >= 0, "copy_file_range: {error}");
    copied as usize
}

fn map(file: &File, cache: &Cache, pages: usize) -> MapMut {
    // SAFETY: changed through the functions above only.
    unsafe { MapOptions::new().cache(cache).fallback(Fallback::Refuse).len(pages * PAGE).map_mut(file).unwrap() }
}

fn cache(pages: usize) -> Cache {
    Cache::builder().capacity(pages * PAGE).keeper(false).build().unwrap()
}

#[test]
fn a_file_is_known_while_it_is_mapped() {
    if !ready() {
        return;
    }
    let folder = folder();
    let [one, other] = ["one", "other"].map(|name| create(&folder.path().join(name), &[1; 3 * PAGE]));
    assert!(coherence::file(one.as_raw_fd()).is_none());
    let map = map(&one, &cache(16), 3);
    assert!(coherence::any());
    let again = common::open(&folder.path().join("one"));
    assert!(coherence::file(one.as_raw_fd()).is_some() && coherence::file(again.as_raw_fd()).is_some());
    assert!(coherence::file(other.as_raw_fd()).is_none());
    drop(map);
    assert!(coherence::file(one.as_raw_fd()).is_none());
    assert!(coherence::file(-1).is_none());
}

#[test]
fn a_read_sees_stores_and_a_mapping_sees_writes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &[1; 8 * PAGE]);
    let cache = cache(16);
    let mut map = map(&file, &cache, 8);
    map[5000] = 7;
    assert_eq!(read(&file, 4999, 3), [1, 7, 1]);
    // Part of a page that has a store beside it, a whole page, and part of one that is not in memory.
    let data = vec![9; 2 * PAGE];
    write(&file, 6000, &[&data]);
    assert_eq!((map[5000], map[5999], map[6000], map[6000 + 2 * PAGE - 1], map[6000 + 2 * PAGE]), (7, 1, 9, 9, 1));
    // A page written whole is there without a read.
    let misses = cache.stats().misses;
    write(&file, 4 * PAGE, &[&data[..PAGE]]);
    assert_eq!(map[4 * PAGE + 17], 9);
    assert_eq!(cache.stats().misses, misses);
    // Clean: nothing is written when it is read.
    let written = cache.stats().writeback_pages;
    assert_eq!(read(&file, 4 * PAGE, 10), [9; 10]);
    assert_eq!(cache.stats().writeback_pages, written);
}

#[test]
fn what_is_cut_off_is_never_written() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &[1; 8 * PAGE]);
    let cache = cache(16);
    let mut map = map(&file, &cache, 8);
    map.fill(2);
    let written = cache.stats().writeback_pages;
    truncate(&file, 2 * PAGE + 100);
    assert!(cache.stats().writeback_pages <= written + 1, "the page of the new end alone is saved");
    truncate(&file, 8 * PAGE);
    assert!(map[..2 * PAGE + 100].iter().all(|byte| *byte == 2));
    assert!(map[2 * PAGE + 100..].iter().all(|byte| *byte == 0));
    // A call that fails leaves what was stored.
    map[7 * PAGE] = 5;
    drop(mapped(&file).resizing(PAGE as u64).unwrap());
    assert_eq!(map[7 * PAGE], 5);
    assert_eq!(read(&file, 7 * PAGE, 1), [5]);
}

#[test]
fn no_flush_says_that_bytes_are_in_the_file_while_a_truncation_has_them() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &[1; 400 * PAGE]);
    let cache = cache(1000);
    let mut map = map(&file, &cache, 400);
    type Flush = fn(&MapMut, &File);
    let whole = 0..400 * PAGE as u64;
    let ways: [(&str, usize, Flush); 6] = [
        ("flush", 1, |map, _| map.flush().unwrap()),
        ("by the writers", 400, |map, _| map.flush().unwrap()),
        ("flush_range", 1, |map, _| map.flush_range(399 * PAGE, 1).unwrap()),
        ("flush_async", 3, |map, _| map.flush_async().wait().unwrap()),
        ("before_read", 2, |_, file| mapped(file).before_read(399 * PAGE as u64..400 * PAGE as u64).unwrap()),
        ("sync", 2, |_, file| mapped(file).sync().unwrap()),
    ];
    for (round, (name, pages, flush)) in ways.into_iter().enumerate() {
        let value = 10 + round as u8;
        (400 - pages..400).for_each(|page| map[page * PAGE] = value);
        let resized = mapped(&file);
        let resizing = resized.resizing(PAGE as u64).unwrap();
        // In the thread that has it nothing waits for itself.
        assert!(map.flush().is_err() && map.flush_async().wait().is_err(), "{name}");
        assert_eq!(resized.before_read(whole.clone()), Err(libc::EDEADLK), "{name}");
        assert_eq!(resized.sync(), Err(libc::EDEADLK), "{name}");
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (map, file) = (&map, &file);
            let flushing = scope.spawn(move || {
                // SAFETY: no preconditions.
                tell.send(unsafe { libc::gettid() }).unwrap();
                flush(map, file);
                let mut byte = [0];
                file.read_exact_at(&mut byte, 399 * PAGE as u64).unwrap();
                byte[0]
            });
            let thread = told.recv().unwrap();
            until("the flush waits, or is through", || flushing.is_finished() || sleeps(thread));
            // The call has failed.
            drop(resizing);
            assert_eq!(flushing.join().unwrap(), value, "{name}");
        });
        assert_eq!(map[399 * PAGE], value);
    }
    // One that was asked for before a truncation took the pages, and is waited for after it failed.
    map[399 * PAGE] = 99;
    let flush = map.flush_async();
    drop(mapped(&file).resizing(PAGE as u64).unwrap());
    flush.wait().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 399 * PAGE as u64).unwrap();
    assert_eq!(byte, [99]);
}

/// Blocks for a store to a hole are zeros that are written there, which must not meet a call's bytes.
#[test]
fn calls_and_stores_meet_in_holes_of_a_file_system_without_fallocate() {
    const PAGES: usize = 2000;
    // Files of blocks that are listed one by one, as ext3 has them.
    let Some(disk) = common::small_disk_with(&["-O", "^extent,^64bit"]) else { return };
    let path = disk.path("file");
    let file = create(&path, &[]);
    file.set_len((PAGES * PAGE) as u64).unwrap();
    // SAFETY: numbers, and an open descriptor.
    let refused = unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, PAGE as i64) } != 0;
    assert!(refused, "this file system was to have no fallocate(2)");
    let cache = cache(64);
    let mut map = map(&file, &cache, PAGES);
    let (base, turn) = (map.as_mut_ptr() as usize, AtomicUsize::new(0));
    // Both are at the same page.
    let meet = |page: usize| {
        turn.fetch_add(1, Ordering::SeqCst);
        while turn.load(Ordering::SeqCst) < 2 * (page + 1) {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for page in 0..PAGES {
                meet(page);
                // SAFETY: inside the map; the other thread writes other bytes.
                unsafe { ((base + page * PAGE) as *mut u8).write_volatile(page as u8 | 1) };
            }
        });
        for page in 0..PAGES {
            meet(page);
            write(&file, page * PAGE + 100, &[&[page as u8 | 2]]);
        }
    });
    map.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for page in 0..PAGES {
        assert_eq!([bytes[page * PAGE], bytes[page * PAGE + 100]], [page as u8 | 1, page as u8 | 2], "page {page}");
        assert_eq!(map[page * PAGE + 100], page as u8 | 2, "page {page}");
    }
}

#[test]
fn a_call_that_was_not_made_changes_no_byte() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &[1; 2 * PAGE]);
    let cache = cache(16);
    let mut map = map(&file, &cache, 2);
    map.fill(2);
    let mapped = mapped(&file);
    let mut pinned = map.pin_mut(0, PAGE).unwrap();
    let writing = mapped.writing(0..2 * PAGE as u64).unwrap();
    // No trap: it is the pin's.
    pinned[7] = 3;
    drop(writing);
    assert_eq!(pinned[6..9], [2, 3, 2]);
    drop(pinned);
    assert!(map[PAGE..].iter().all(|byte| *byte == 2));
}

#[test]
fn pinned_pages_get_what_is_written() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &[1; 40 * PAGE]);
    let mut map = map(&file, &cache(64), 40);
    map[3 * PAGE] = 3;
    let at = map.as_ptr();
    // SAFETY: in the map.
    let byte = |offset: usize| unsafe { at.add(offset).read_volatile() };
    {
        let _reading = map.pin(0, 4 * PAGE).unwrap();
        write(&file, PAGE + 10, &[&[4; 3 * PAGE - 10]]);
        assert_eq!([PAGE + 9, PAGE + 10, 3 * PAGE - 1, 3 * PAGE, 4 * PAGE - 1].map(byte), [1, 4, 4, 4, 4]);
    }
    {
        let mut writing = map.pin_mut(30 * PAGE, PAGE).unwrap();
        writing[0] = 6;
        write(&file, 29 * PAGE + 10, &[&[7; PAGE]]);
        assert_eq!((writing[0], writing[9], writing[10]), (7, 7, 1));
        writing[20] = 8;
        if allocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 30 * PAGE..30 * PAGE + 15) {
            assert_eq!((writing[0], writing[14], writing[15], writing[20]), (0, 0, 1, 8));
        }
    }
    map.flush().unwrap();
    assert_eq!(read(&file, PAGE + 9, 2), [1, 4]);
    assert_eq!(read(&file, 30 * PAGE + 20, 1), [8]);
}

/// Memory that is locked, and may not be stored to: for good, or at the moment.
#[test]
fn locked_pages_that_are_protected_get_what_is_written() {
    if !ready() {
        return;
    }
    let folder = folder();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    for prot in [libc::PROT_READ, both] {
        let file = create(&folder.path().join("data"), &[1; 8 * PAGE]);
        let cache = cache(64);
        let flags = libc::MAP_SHARED;
        let (one_writer, fallback, async_stores) = (true, Fallback::Refuse, false);
        let len = 8 * PAGE;
        let request = Request {
            addr: 0,
            len,
            prot,
            flags,
            offset: 0,
            one_writer,
            own: true,
            fallback,
            async_stores,
            layers: true,
        };
        // SAFETY: a map of our own.
        unsafe {
            let at = by_address::map(file.as_fd(), &cache, &request).unwrap().expect("through the cache");
            if prot == both {
                at.add(PAGE).write(2);
                by_address::protect(at as usize, 8 * PAGE, libc::PROT_READ).unwrap();
            }
            by_address::lock(at as usize, 8 * PAGE, false).unwrap();
            write(&file, PAGE + 1, &[&[3; 5 * PAGE]]);
            let first = if prot == both { 2 } else { 1 };
            let found = [PAGE, PAGE + 1, 4 * PAGE, 6 * PAGE, 6 * PAGE + 1].map(|place| at.add(place).read_volatile());
            assert_eq!(found, [first, 3, 3, 3, 1]);
            by_address::unmap(at as usize, 8 * PAGE).unwrap();
        }
        assert_eq!(std::fs::read(folder.path().join("data")).unwrap()[PAGE + 1..6 * PAGE + 1], [3; 5 * PAGE]);
    }
}

/// A file's last map goes while others are in system calls on it, and another file needs room: nobody waits for ever.
#[test]
fn maps_come_and_go_under_system_calls() {
    if !ready() {
        return;
    }
    let folder = folder();
    let [file, other] = ["one", "other"].map(|name| create(&folder.path().join(name), &[0; 64 * PAGE]));
    let cache = cache(32);
    let stop = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (file, other, cache, stop, rounds) = (&file, &other, &cache, &stop, &rounds);
        let _stop = Stop(stop);
        for mapper in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut map = map(file, cache, 64);
                    (0..20).for_each(|page| map[page * PAGE + mapper] = 1);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(move || {
            let mut map = map(other, cache, 64);
            while !stop.load(Ordering::Relaxed) {
                (0..64).for_each(|page| map[page * PAGE] = map[page * PAGE].wrapping_add(1));
            }
        });
        for caller in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(caller);
                while !stop.load(Ordering::Relaxed) {
                    let Some(mapped) = coherence::file(file.as_raw_fd()) else { continue };
                    let place = (random.below(60) * PAGE) as u64 + 100;
                    let writing = mapped.writing(place..place + 8).unwrap();
                    // SAFETY: our own buffer.
                    unsafe {
                        assert_eq!(libc::pwrite(file.as_raw_fd(), [2; 8].as_ptr().cast(), 8, place as i64), 8);
                    }
                    // SAFETY: likewise.
                    unsafe { writing.done() };
                    match random.below(8) {
                        0 => mapped.sync().unwrap(),
                        1 => mapped.before_read(0..64 * PAGE as u64).unwrap(),
                        2 => {
                            let resizing = mapped.resizing(64 * PAGE as u64).unwrap();
                            file.set_len(64 * PAGE as u64).unwrap();
                            // SAFETY: nobody has a reference into the map.
                            unsafe { resizing.done() };
                        }
                        _ => drop(mapped.position()),
                    }
                }
            });
        }
        std::thread::sleep(under_load());
        until("twenty rounds", || rounds.load(Ordering::Relaxed) > 20);
    });
    assert_eq!(cache.stats().resident_pages, 0);
}

/// One thread: after every step that could tell, file and mapping are what the shadow says.
#[test]
fn one_thread_agrees_with_a_shadow() {
    if !ready() {
        return;
    }
    const MOST: usize = 100;
    let mut random = Random::new(seed(5));
    let folder = folder();
    let start = Instant::now();
    for case in 0..400 {
        if case >= 40 && start.elapsed() > quick_or_full(Duration::from_secs(3), Duration::from_secs(20)) {
            break;
        }
        let len = random.below(MOST * PAGE);
        let mut shadow: Vec<u8> = (0..len).map(|at| (at / 300) as u8).collect();
        let file = create(&folder.path().join("data"), &shadow);
        let cache = cache(16 + random.below(49));
        let mut map = map(&file, &cache, MOST);
        for step in 0..150 {
            let value = random.next() as u8;
            // A place and a length, in the file.
            let some = |random: &mut Random, most: usize, len: usize| {
                let at = random.below(len.max(1));
                let whole = random.below(4) == 0;
                let at = if whole { at / PAGE * PAGE } else { at };
                let want = if whole { PAGE * (1 + random.below(4)) } else { 1 + random.below(most) };
                at..(at + want).min(len).max(at)
            };
            match random.below(16) {
                0..4 => {
                    let range = some(&mut random, 300, shadow.len());
                    assert_eq!(map[range.clone()], shadow[range.clone()], "case {case}, step {step}: load {range:?}");
                }
                4..8 => {
                    let range = some(&mut random, 300, shadow.len());
                    map[range.clone()].fill(value);
                    shadow[range].fill(value);
                }
                8 => {
                    let range = some(&mut random, 3 * PAGE, shadow.len());
                    let found = read(&file, range.start, range.len());
                    assert_eq!(found, shadow[range.clone()], "case {case}, step {step}: read {range:?}");
                }
                9..12 => {
                    // Also behind the end, and far behind it.
                    let range = some(&mut random, 3 * PAGE, MOST * PAGE);
                    let data: Vec<u8> = range.clone().map(|at| value.wrapping_add((at % 251) as u8)).collect();
                    let (one, rest) = data.split_at(random.below(data.len() + 1));
                    let (two, three) = rest.split_at(random.below(rest.len() + 1));
                    let parts = if value < 128 { vec![&data[..]] } else { vec![one, two, three] };
                    write(&file, range.start, &parts);
                    shadow.resize(shadow.len().max(range.end), 0);
                    shadow[range].copy_from_slice(&data);
                }
                12 => {
                    let end = shadow.len();
                    if !end.is_multiple_of(PAGE) && random.below(2) == 0 {
                        // Behind the end, on its page: nobody's.
                        map[end] = 77;
                    }
                    let len = if random.below(3) == 0 { end + random.below(PAGE) } else { random.below(MOST * PAGE) };
                    let len = len.min(MOST * PAGE);
                    truncate(&file, len);
                    shadow.resize(len, 0);
                }
                13 => {
                    let range = some(&mut random, 5 * PAGE, MOST * PAGE);
                    let keep = libc::FALLOC_FL_KEEP_SIZE;
                    let mode =
                        [libc::FALLOC_FL_PUNCH_HOLE | keep, libc::FALLOC_FL_ZERO_RANGE, 0, keep][random.below(4)];
                    if !range.is_empty() && allocate(&file, mode, range.clone()) {
                        if mode & keep == 0 {
                            shadow.resize(shadow.len().max(range.end), 0);
                        }
                        if mode & !keep != 0 {
                            let end = range.end.min(shadow.len());
                            shadow[range.start.min(end)..end].fill(0);
                        }
                    }
                }
                14 => {
                    let from = some(&mut random, 5 * PAGE, shadow.len());
                    let to = random.below(MOST * PAGE - from.len());
                    if !from.is_empty() && (to >= from.end || to + from.len() <= from.start) {
                        let copied = copy(&file, from.start, to, from.len());
                        let bytes = shadow[from.start..from.start + copied].to_vec();
                        shadow.resize(shadow.len().max(if copied > 0 { to + copied } else { 0 }), 0);
                        shadow[to..to + copied].copy_from_slice(&bytes);
                    }
                }
                _ => match random.below(3) {
                    0 => mapped(&file).sync().unwrap(),
                    1 => map.flush().unwrap(),
                    _ => {
                        let (range, pages) = (some(&mut random, 9 * PAGE, shadow.len()), shadow.len());
                        assert_eq!(file.metadata().unwrap().len() as usize, pages, "case {case}, step {step}");
                        map.prefetch_wait(std::slice::from_ref(&range)).unwrap();
                    }
                },
            }
        }
        assert_eq!(map[..shadow.len()], shadow, "case {case}: the mapping");
        assert_eq!(read(&file, 0, MOST * PAGE), shadow, "case {case}: the file");
        drop(map);
        assert_eq!(std::fs::read(folder.path().join("data")).unwrap(), shadow, "case {case}: the file at the end");
        assert_eq!(cache.stats().resident_pages, 0, "case {case}: every free frame is back");
    }
}

/// Threads that own bytes of the same pages: some store, some write, some do both, while pages are pinned and the file's end
/// moves. Nobody's bytes are lost.
#[test]
fn neighbours_in_a_page_lose_nothing() {
    if !ready() {
        return;
    }
    /// Bytes that one thread owns in a row: no divisor of a page.
    const CHUNK: usize = 232;
    const PAGES: usize = 96;
    /// Behind these the file's end moves.
    const OWNED: usize = 64 * PAGE;
    const THREADS: usize = 4;
    let seed = seed(3);
    for round in 0..4 {
        let folder = folder();
        let path = folder.path().join("data");
        let file = create(&path, &vec![0; PAGES * PAGE]);
        let cache = cache(24 + 20 * round);
        let map = map(&file, &cache, PAGES);
        let at = map.as_ptr() as usize;
        let (stop, steps) = (AtomicBool::new(false), AtomicUsize::new(0));
        let chunks = OWNED / CHUNK;
        let last = std::thread::scope(|scope| {
            let (file, map, stop, steps) = (&file, &map, &stop, &steps);
            let _stop = Stop(stop);
            let owners: Vec<_> = (0..THREADS)
                .map(|owner| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed + (round * THREADS + owner) as u64);
                        let mut last = vec![0u8; chunks];
                        while !stop.load(Ordering::Relaxed) {
                            let chunk = random.below(chunks / THREADS) * THREADS + owner;
                            let place = chunk * CHUNK;
                            // SAFETY: in the map, and this thread's.
                            let load =
                                || unsafe { std::slice::from_raw_parts((at + place) as *const u8, CHUNK).to_vec() };
                            let found = if random.below(2) == 0 { load() } else { read(file, place, CHUNK) };
                            assert!(
                                found.iter().all(|byte| *byte == last[chunk]),
                                "chunk {chunk} is not {}",
                                last[chunk]
                            );
                            let value = random.next() as u8;
                            // The first stores, the second writes, the others do both.
                            if owner == 0 || owner > 1 && random.below(2) == 0 {
                                // SAFETY: as above.
                                unsafe { std::slice::from_raw_parts_mut((at + place) as *mut u8, CHUNK).fill(value) };
                            } else {
                                write(file, place, &[&[value; CHUNK]]);
                            }
                            last[chunk] = value;
                            steps.fetch_add(1, Ordering::Relaxed);
                        }
                        last
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut random = Random::new(seed + 100);
                while !stop.load(Ordering::Relaxed) {
                    let page = random.below(64);
                    let _pinned = map.pin(page * PAGE, PAGE).unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            scope.spawn(move || {
                let mut random = Random::new(seed + 200);
                while !stop.load(Ordering::Relaxed) {
                    truncate(file, OWNED + random.below((PAGES * PAGE - OWNED) / PAGE) * PAGE);
                    let page = 64 + random.below(8);
                    write(file, page * PAGE, &[&[round as u8; 2 * PAGE]]);
                    // SAFETY: in the map; this thread alone moves the file's end.
                    assert_eq!(unsafe { ((at + page * PAGE + 5000) as *const u8).read_volatile() }, round as u8);
                }
            });
            let start = Instant::now();
            while start.elapsed() < under_load() || steps.load(Ordering::Relaxed) <= 100 {
                std::thread::sleep(Duration::from_millis(20));
                if owners.iter().any(|owner| owner.is_finished()) {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            owners.into_iter().map(|owner| owner.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(steps.into_inner() > 100, "the threads got on");
        let in_file = read(&file, 0, OWNED);
        for chunk in 0..chunks / THREADS * THREADS {
            let expected = last[chunk % THREADS][chunk];
            let place = chunk * CHUNK..(chunk + 1) * CHUNK;
            assert!(map[place.clone()].iter().all(|byte| *byte == expected), "chunk {chunk} in the mapping");
            assert!(in_file[place].iter().all(|byte| *byte == expected), "chunk {chunk} in the file");
        }
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0);
        assert_eq!(std::fs::read(&path).unwrap()[..OWNED], in_file);
    }
}
