//! Every byte of what is read ahead: scans larger than the cache from several sides, stores among them, files that change
//! their length, maps that go in the middle.

use crate::common::*;
use fastmap::{Advice, Cache, Error, Map};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Pages of a file that are visited with a step, all of them: round after round.
fn every(pages: usize, step: isize) -> impl Iterator<Item = usize> {
    let stride = step.unsigned_abs();
    let rounds = (0..stride).flat_map(move |round| (round..pages).step_by(stride));
    rounds.map(move |page| if step > 0 { page } else { pages - 1 - page })
}

fn check(map: &[u8], page: usize) {
    assert!(map[page * PAGE..][..PAGE] == *stamp(page), "page {page}");
}

/// A scan of all pages by each of some threads, with its own step.
fn scan(map: &Map, cache: &Cache, steps: &[isize]) {
    let pages = map.len() / PAGE;
    let capacity = (cache.capacity() / PAGE) as u64;
    std::thread::scope(|scope| {
        for step in steps {
            scope.spawn(move || {
                for (index, page) in every(pages, *step).enumerate() {
                    check(map, page);
                    if index % 512 == 0 {
                        let stats = cache.stats();
                        assert!(stats.resident_pages <= capacity, "{stats:?}");
                    }
                }
            });
        }
    });
    println!("{steps:?}: {:?}", cache.stats());
}

/// Bytes of a range that huge pages map.
fn in_huge_pages(map: &[u8]) -> usize {
    let addresses = addresses(map);
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|first| first.split_once('-')) {
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            inside = address(start) < addresses.end && addresses.start < address(end);
        } else if inside && line.starts_with("AnonHugePages:") {
            sum += line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10;
        }
    }
    sum
}

#[test]
fn a_file_larger_than_the_cache_from_all_sides() {
    if !ready() {
        return;
    }
    const PAGES: usize = 192 << 8;
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    // Two frames and one walk, or two; then too many for frames; then room for all four to have some.
    for (mebibytes, walks) in
        [(64, &[&[1isize][..], &[-1], &[1, -1], &[1, -1, 7, -16]][..]), (128, &[&[1, -1, 7, -16], &[1, 1, -1, -1]])]
    {
        let cache = Cache::new(mebibytes << 20).unwrap();
        let map = map(&cache, &file);
        for steps in walks {
            scan(&map, &cache, steps);
            println!("{} MiB in huge pages", in_huge_pages(&map) >> 20);
        }
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0);
    }
}

/// In a cache that has no frames, and few buffers.
#[test]
fn a_small_cache_from_all_sides() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), 8000);
    for pages in quick_or_full(&[300, 1024][..], &[300, 1024, 4096]) {
        let cache = Cache::new(pages * PAGE).unwrap();
        let map = map(&cache, &file);
        scan(&map, &cache, &[1, -1, 7, -16]);
        scan(&map, &cache, &[2, 3]);
    }
}

/// Threads walk with steps of their own and store to words of their own in each page, which others load at the same time.
#[test]
fn scans_with_stores_among_them() {
    if !ready() {
        return;
    }
    const PAGES: usize = 6000;
    const STEPS: [isize; 4] = [1, -1, 7, -16];
    let folder = folder();
    let path = folder.path().join("file");
    let file = stamped(&path, PAGES);
    let mut wanted: Vec<u8> = (0..PAGES).flat_map(stamp).copied().collect();
    let cache = Cache::new(8 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    for round in 1..=3u64 {
        let base = map.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            for (thread, step) in STEPS.into_iter().enumerate() {
                let (map, cache) = (&map, &cache);
                scope.spawn(move || {
                    for (index, page) in every(PAGES, step).enumerate() {
                        let own = page * PAGE + thread * 64;
                        // SAFETY: inside the map, aligned; these words are this thread's.
                        let word = unsafe { &*((base + own) as *const std::sync::atomic::AtomicU64) };
                        if (page + thread).is_multiple_of(3) {
                            word.store(round << 32 | page as u64, Ordering::Relaxed);
                            assert_eq!(word.load(Ordering::Relaxed), round << 32 | page as u64);
                        }
                        // Behind what anybody stores to.
                        assert!(map[page * PAGE + 256..][..PAGE - 256] == stamp(page)[256..], "page {page}");
                        if index % 1000 == 999 {
                            map.flush_range(page * PAGE, PAGE).unwrap();
                            let stats = cache.stats();
                            assert!(stats.resident_pages <= 2048, "{stats:?}");
                        }
                    }
                });
            }
        });
        for page in 0..PAGES {
            for thread in (0..STEPS.len()).filter(|thread| (page + thread).is_multiple_of(3)) {
                let value = round << 32 | page as u64;
                wanted[page * PAGE + thread * 64..][..8].copy_from_slice(&value.to_ne_bytes());
            }
        }
        if round == 2 {
            map.flush().unwrap();
            assert!(std::fs::read(&path).unwrap() == wanted, "after the flush");
        }
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert!(stats.ahead_used > 0);
    assert!(map[..] == wanted[..]);
    drop(map);
    assert!(std::fs::read(&path).unwrap() == wanted, "at the end");
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

/// Frames come into a read-only map; then the file is mapped for writing, while the scan goes on.
#[test]
fn a_map_that_was_scanned_becomes_mutable() {
    if !ready() {
        return;
    }
    const PAGES: usize = 24_000;
    let folder = folder();
    let path = folder.path().join("file");
    let file = stamped(&path, PAGES);
    for pinned in [false, true] {
        let cache = Cache::new(64 << 20).unwrap();
        let read = map(&cache, &file);
        (0..12_000).for_each(|page| check(&read, page));
        println!("{} MiB in huge pages", in_huge_pages(&read) >> 20);
        let pin = pinned.then(|| read.pin(11_000 * PAGE, 3 * PAGE).unwrap());
        let mut write = std::thread::scope(|scope| {
            scope.spawn(|| (12_000..PAGES).for_each(|page| check(&read, page)));
            map_mut(&cache, &file)
        });
        if let Some(pin) = &pin {
            assert!(pin[..PAGE] == *stamp(11_000));
        }
        let stored: Vec<usize> = (0..PAGES).step_by(37).chain(11_000..11_003).collect();
        stored.iter().for_each(|page| write[page * PAGE + 9] = !stamp(*page)[9]);
        write.flush().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for page in 0..PAGES {
            let mut wanted = stamp(page).to_vec();
            if stored.contains(&page) {
                wanted[9] = !wanted[9];
            }
            assert!(bytes[page * PAGE..][..PAGE] == wanted, "page {page} of the file");
            assert!(read[page * PAGE..][..PAGE] == wanted && write[page * PAGE..][..PAGE] == wanted, "page {page}");
        }
        stored.iter().for_each(|page| write[page * PAGE + 9] = stamp(*page)[9]);
        drop(pin);
        drop(write);
        drop(read);
        assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
    }
}

/// A page of the middle of what was scanned, one that was mapped with a frame, perhaps.
#[test]
fn a_store_to_a_read_only_map_that_was_scanned_is_fatal() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    stamped(&path, 20_000);
    let output = child("store to a scanned map", &path).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    assert!(std::fs::read(&path).unwrap().chunks(PAGE).enumerate().all(|(page, bytes)| bytes == stamp(page)));
}

fn store_to_a_scanned_map(path: &Path) {
    let cache = Cache::new(64 << 20).unwrap();
    let map = map(&cache, &open(path));
    (0..15_000).for_each(|page| check(&map, page));
    // SAFETY: none, which is the point.
    unsafe { map.as_ptr().cast_mut().add(14_000 * PAGE).write_volatile(1) };
}

/// All memory of a process that scans is inside the budget, staging memory too.
#[test]
fn memory_stays_within_the_budget_while_it_is_read_ahead() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    // From the page cache pages come faster than smaps can be walked: what moves on meanwhile is counted twice.
    uncache(&stamped(&path, 40_000));
    println!("{}", run_child("budget", &path));
}

fn budget(path: &Path) {
    // The kernel's count, not a walk through the page tables (smaps): that meets a page twice which is moved meanwhile.
    let rss = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE
    };
    stamp(0);
    for mebibytes in [8, 64] {
        let before = rss();
        let cache = Cache::new(mebibytes << 20).unwrap();
        let map = map(&cache, &open(path));
        let stop = AtomicBool::new(false);
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (most, stop, cache) = (&most, &stop, &cache);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(rss(), Ordering::Relaxed);
                    assert!(cache.stats().resident_pages as usize <= mebibytes << 8);
                }
            });
            let _stop = Stop(stop);
            for steps in [&[1][..], &[-1], &[1, -1], &[1, -1, 7, -16]] {
                scan(&map, cache, steps);
            }
        });
        let grown = most.load(Ordering::Relaxed) - before;
        println!("{} KiB for a cache of {mebibytes} MiB", grown >> 10);
        // Page words, queues, stacks and the readers' own buffers beside it: as promised.
        let most = (mebibytes << 20) / 100 * 101 + (16 << 20);
        assert!(grown <= most, "{grown} bytes for a cache of {mebibytes} MiB");
    }
}

#[test]
fn role() {
    match role_of_child() {
        Some((role, path)) if role == "budget" => budget(&path),
        Some((role, path)) if role == "store to a scanned map" => store_to_a_scanned_map(&path),
        Some((role, path)) if role == "going" => going(&path),
        _ => {}
    }
}

/// What was read ahead of a cut vanishes with the next look at the file, whichever way that comes.
#[test]
fn what_was_read_ahead_does_not_outlive_a_truncation() {
    if !ready() {
        return;
    }
    const PAGES: usize = 20_000;
    let folder = folder();
    let path = folder.path().join("file");
    for (turn, (capacity, step)) in
        [(1 << 20, 1isize), (8 << 20, 1), (8 << 20, -1), (8 << 20, 5), (64 << 20, 1), (64 << 20, -1)]
            .into_iter()
            .enumerate()
    {
        // Each way to notice the cut, or every second.
        for notice in (0..4).filter(|notice| quick_or_full((notice + turn) % 2 == 0, true)) {
            let file = stamped(&path, PAGES);
            let cache = Cache::new(capacity).unwrap();
            let read = map(&cache, &file);
            let write = (notice == 0).then(|| map_mut(&cache, &file));
            let walked = if capacity > 8 << 20 { 6000 } else { 300 };
            // It stops where much is read ahead, and the cut is where the walk came to, or a bit further.
            let at = |index: usize| 10_000usize.checked_add_signed(index as isize * step).unwrap();
            (0..walked).for_each(|index| check(&read, at(index)));
            let staged = settle(&cache);
            let cut = if step > 0 { at(walked + 3) } else { at(walked + 40) };
            file.set_len((cut * PAGE + 100) as u64).unwrap();
            match notice {
                0 => write.as_ref().unwrap().flush().unwrap(),
                1 => read.advise(Advice::Normal).unwrap(),
                2 => drop(map(&cache, &file)),
                _ => drop(map_mut(&cache, &file)),
            }
            file.set_len((PAGES * PAGE) as u64).unwrap();
            let what = format!("{capacity}, step {step}, notice {notice}, {staged:?}");
            assert!(read[cut * PAGE..][..100] == stamp(cut)[..100], "{what}");
            let rest = &read[cut * PAGE + 100..];
            assert_eq!(rest.iter().position(|byte| *byte != 0), None, "{what}");
            (0..cut).for_each(|page| check(&read, page));
        }
    }
}

/// A file that is cut and extended all the time under scans: a page is what it was, or zeros behind a cut, or an error.
#[test]
fn scans_of_a_file_that_is_cut_and_extended_all_the_time() {
    if !ready() {
        return;
    }
    const PAGES: usize = 20_000;
    const KEPT: usize = 3000;
    let folder = folder();
    let path = folder.path().join("file");
    for mebibytes in [4, 64] {
        let file = stamped(&path, PAGES);
        let cache = Cache::new(mebibytes << 20).unwrap();
        let map = map(&cache, &file);
        let (stop, errors) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (map, stop, errors, cache) = (&map, &stop, &errors, &cache);
            for step in [1isize, -1, 3, -16] {
                scope.spawn(move || {
                    let mut bytes = vec![0; PAGE];
                    while !stop.load(Ordering::Relaxed) {
                        for page in every(PAGES, step) {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            match map.read_at(&mut bytes, page * PAGE) {
                                Ok(()) => {
                                    // Of a page that a cut went through there may be a part.
                                    let same = bytes.iter().zip(stamp(page)).take_while(|(one, other)| one == other);
                                    let same = same.count();
                                    assert!(page >= KEPT || same == PAGE, "page {page} differs at {same}");
                                    assert!(bytes[same..].iter().all(|byte| *byte == 0), "page {page} from {same} on");
                                }
                                Err(Error::PastEnd { .. }) => {
                                    assert!(page >= KEPT);
                                    errors.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(error) => panic!("page {page}: {error}"),
                            }
                        }
                    }
                });
            }
            let _stop = Stop(stop);
            let mut random = Random::new(seed(8));
            let end = Instant::now() + under_load();
            while Instant::now() < end {
                file.set_len((KEPT * PAGE + random.below((PAGES - KEPT) * PAGE)) as u64).unwrap();
                if random.below(2) == 0 {
                    map.advise_range(Advice::Normal, 0, PAGE).unwrap();
                }
                std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
                file.set_len((PAGES * PAGE) as u64).unwrap();
                let stats = cache.stats();
                assert!(stats.resident_pages as usize <= mebibytes << 8, "{stats:?}");
            }
        });
        println!("{} errors, {:?}", errors.load(Ordering::Relaxed), cache.stats());
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0);
    }
}

/// Maps and caches that go while chunks of theirs are staged, and being read.
#[test]
fn maps_and_caches_that_go_in_the_middle() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    stamped(&path, 20_000);
    println!("{}", run_child("going", &path));
}

fn going(path: &Path) {
    // Not the kernel's, which serve rings and stay for some seconds.
    let named = |is_wanted: fn(&str) -> bool| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| is_wanted(name)).count()
    };
    // A cache has these from when a disk has much to do for others on.
    let preads = || named(|name| name.trim_end() == "fastmap-pread");
    let threads = || named(|name| name.starts_with("fastmap") && name.trim_end() != "fastmap-pread");
    let others = || named(|name| !name.starts_with("fastmap") && !name.starts_with("iou-"));
    let at_first = others();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let file = open(path);
    let kept = Cache::new(8 << 20).unwrap();
    let walks = |map: &Map, round: usize| {
        std::thread::scope(|scope| {
            for step in [1isize, -1, 9] {
                scope.spawn(move || {
                    let at = |index: usize| 10_000usize.checked_add_signed(index as isize * step).unwrap();
                    (0..10 + round % 200).for_each(|index| check(map, at(index)));
                });
            }
        });
    };
    walks(&map(&kept, &file), 0);
    // A thread that has just been made has its maker's name.
    until("threads with names of their own", || others() == at_first);
    let before = (threads(), descriptors());
    for round in 0..quick_or_full(80, 200) {
        let sizes = [2 << 20, 8 << 20, 64 << 20];
        let own = Cache::new(sizes[round % 3]).unwrap();
        let cache = if round % 2 == 0 { &kept } else { &own };
        let map = map(cache, &file);
        walks(&map, round);
        if round % 5 == 0 {
            map.prefetch(&[0..5 << 20, 60 << 20..70 << 20]).unwrap();
        }
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0, "round {round}: {:?}", cache.stats());
    }
    until("the end of the readers", || (threads(), descriptors()) == before && preads() <= 64);
}
