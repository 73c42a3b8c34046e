//! Scattered ranges copied in one call: every kind of list, caches of a few pages, errors before and while it copies.

use crate::common::*;
use fastmap::{Cache, Engine, Error, Map, MapOptions};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 3000;
const LEN: usize = PAGES * PAGE;

struct World {
    _folder: tempfile::TempDir,
    file: File,
    cache: Cache,
    map: Map,
}

/// A stamped file and a map of it in a cache of so many pages. Nothing is read ahead but what is asked for.
fn world(capacity: usize) -> Option<World> {
    if !ready() {
        return None;
    }
    let folder = folder();
    let file = stamped(&folder.path().join("file"), PAGES);
    let cache = Cache::new(capacity * PAGE).unwrap();
    let map = map(&cache, &file);
    map.set_readahead(0).unwrap();
    Some(World { _folder: folder, file, cache, map })
}

/// The kernel's map of such a file.
fn by_kernel(folder: &tempfile::TempDir) -> (File, Map) {
    let file = stamped(&folder.path().join("kernel"), PAGES);
    uncache(&file);
    // SAFETY: files of these tests are their own.
    let map = unsafe { MapOptions::new().map(&file).unwrap() };
    assert_eq!(map.engine(), Engine::Kernel);
    (file, map)
}

/// What the file holds there.
fn expected(rows: &[(usize, usize)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (offset, len) in rows {
        let mut at = *offset;
        while at < offset + len {
            let end = (offset + len).min((at / PAGE + 1) * PAGE);
            bytes.extend_from_slice(&stamp(at / PAGE)[at % PAGE..][..end - at]);
            at = end;
        }
    }
    bytes
}

fn check(map: &Map, rows: &[(usize, usize)]) {
    let expected = expected(rows);
    let mut found = vec![0; expected.len()];
    map.gather(rows, &mut found).unwrap();
    assert!(found == expected, "{rows:?}");
}

/// Rows of many lengths, anywhere, some of them again.
fn random_rows(random: &mut Random, count: usize) -> Vec<(usize, usize)> {
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for _ in 0..count {
        let len = [0, 1, 64, 512, 512, PAGE, 3 * PAGE + 77, 40 * PAGE][random.below(8)];
        let row = if rows.is_empty() || random.below(5) > 0 {
            (random.below(LEN - len), len)
        } else {
            rows[random.below(rows.len())]
        };
        rows.push(row);
    }
    rows
}

#[test]
fn any_rows_through_caches_of_any_size() {
    for capacity in [16, 40, 256, 1024, 4096] {
        let Some(World { cache, map, .. }) = world(capacity) else { return };
        let mut random = Random::new(seed(capacity as u64));
        for round in 0..quick_or_full(8, 40) {
            let count = 1 + random.below(600);
            let mut rows = random_rows(&mut random, count);
            if round % 3 == 0 {
                rows.sort_unstable();
            }
            check(&map, &rows);
            let stats = cache.stats();
            assert!(stats.resident_pages as usize <= capacity && stats.pinned_pages == 0, "{stats:?}");
        }
        // What is absent is asked for; the copy reads what it comes to before the readers do.
        let stats = settle(&cache);
        assert!(stats.prefetched_pages > 0, "{stats:?}");
        // All of the file, which is larger than most of these caches.
        check(&map, &[(0, LEN)]);
    }
}

/// Many rows of few pages, in any order, with memory for a tenth of the pages.
#[test]
fn each_page_is_read_once_for_all_its_rows() {
    let Some(World { cache, map, .. }) = world(PAGES / 10) else { return };
    let mut random = Random::new(seed(2));
    let rows: Vec<_> = (0..8 * PAGES).map(|_| (random.below(LEN / 512) * 512, 512)).collect();
    check(&map, &rows);
    let stats = settle(&cache);
    let read = stats.misses + stats.prefetched_pages;
    assert!(read as usize <= PAGES + PAGES / 20, "{read} pages read of {PAGES}");
}

#[test]
fn any_rows_of_a_map_that_the_kernel_has() {
    let folder = folder();
    let (_file, map) = by_kernel(&folder);
    let mut random = Random::new(seed(1));
    for _ in 0..quick_or_full(8, 40) {
        let count = 1 + random.below(600);
        check(&map, &random_rows(&mut random, count));
    }
    check(&map, &[(0, LEN), (LEN - 1, 1), (0, 1)]);
}

/// In order, several to a page and beside one another: each page is read once, and rows cost no more of them.
#[test]
fn rows_that_share_pages_read_each_once() {
    let Some(World { cache, map, .. }) = world(1024) else { return };
    let rows: Vec<_> = (0..500 * PAGE / 128).map(|row| (row * 128 + row % 7, 64 + row % 3)).collect();
    check(&map, &rows);
    let stats = settle(&cache);
    assert_eq!(stats.misses + stats.prefetched_pages, 500, "{stats:?}");
    check(&map, &rows);
    let again = settle(&cache);
    assert_eq!((again.misses, again.prefetched_pages), (stats.misses, stats.prefetched_pages), "all of it was there");
}

#[test]
fn lists_without_work_and_lists_that_are_wrong() {
    let Some(World { _folder, cache, map, .. }) = world(256) else { return };
    let (_file, kernel) = by_kernel(&_folder);
    for map in [&map, &kernel] {
        map.gather(&[], &mut []).unwrap();
        map.gather(&[(0, 0), (LEN, 0), (5, 0)], &mut []).unwrap();
        let wrong = [(LEN, 1), (LEN - 1, 2), (LEN + 1, 0), (usize::MAX, 1), (0, usize::MAX), (usize::MAX, usize::MAX)];
        for (offset, len) in wrong {
            // The range is named, wherever it is in the list, and whatever room there is.
            let result = map.gather(&[(0, PAGE), (offset, len), (LEN, 7)], &mut [0; PAGE]);
            let Err(Error::RangeOutside { offset: of, len: bytes, map_len: LEN }) = result else {
                panic!("{result:?}")
            };
            assert_eq!((of, bytes), (offset, len));
        }
        for room in [0, 1, 599, 601, 5000] {
            let result = map.gather(&[(PAGE, 100), (7, 500)], &mut vec![0; room]);
            let Err(Error::OutputLength { wanted: 600, room: had }) = result else { panic!("{result:?}") };
            assert_eq!(had, room);
        }
    }
    let stats = settle(&cache);
    assert_eq!((stats.misses, stats.prefetched_pages), (0, 0), "nothing was read: {stats:?}");
    let empty = crate::common::map(&cache, &create(&_folder.path().join("empty"), &[]));
    empty.gather(&[(0, 0)], &mut []).unwrap();
    assert!(matches!(empty.gather(&[(0, 1)], &mut [0]), Err(Error::RangeOutside { .. })));
}

#[test]
fn a_file_that_was_cut_is_an_error_and_no_signal() {
    let Some(World { _folder, file, map, .. }) = world(1024) else { return };
    let (other, kernel) = by_kernel(&_folder);
    let mut output = vec![0; 3 * PAGE];
    for (file, map) in [(&file, &map), (&other, &kernel)] {
        file.set_len((1000 * PAGE + 10) as u64).unwrap();
        for cut in [1001 * PAGE, 2000 * PAGE + 5, LEN - PAGE] {
            let result = map.gather(&[(0, PAGE), (cut, PAGE), (900 * PAGE, PAGE)], &mut output);
            match map.engine() {
                Engine::Kernel => assert!(
                    matches!(&result, Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EFAULT)),
                    "{result:?}"
                ),
                _ => assert!(matches!(result, Err(Error::PastEnd { .. })), "{result:?}"),
            }
        }
        check(map, &[(999 * PAGE, PAGE + 10), (0, 5 * PAGE)]);
    }
}

/// Cut and made longer again while it is gathered: what lies before the cut is right, the rest is there, or an error.
#[test]
fn a_file_that_is_cut_all_the_while() {
    let Some(World { _folder, file, cache, map }) = world(256) else { return };
    let (other, kernel) = by_kernel(&_folder);
    for (file, map) in [(&file, &map), (&other, &kernel)] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let stop = &stop;
            let cutter = scope.spawn(move || {
                let mut random = Random::new(seed(2));
                while !stop.load(Ordering::Relaxed) {
                    file.set_len((1000 + random.below(PAGES - 1000)) as u64 * PAGE as u64).unwrap();
                    file.set_len(LEN as u64).unwrap();
                }
            });
            let mut random = Random::new(seed(3));
            let mut failed = 0;
            let mut output = vec![0; 200 * 512];
            for _ in 0..quick_or_full(200, 2000) {
                let sound = |random: &mut Random| (random.below(1000 * PAGE - 512), 512);
                let rows: Vec<_> =
                    (0..100).flat_map(|_| [sound(&mut random), (random.below(LEN - 512), 512)]).collect();
                match map.gather(&rows, &mut output) {
                    Ok(()) => {
                        for (row, found) in rows.iter().zip(output.chunks(512)).step_by(2) {
                            assert!(found == expected(&[*row]), "{row:?}");
                        }
                    }
                    Err(Error::PastEnd { .. }) => failed += 1,
                    Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EFAULT) => failed += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            println!("{failed} failed");
            stop.store(true, Ordering::Relaxed);
            cutter.join().unwrap();
        });
    }
    assert!(cache.stats().pinned_pages == 0);
}

/// What is copied to is a map in the same cache, which has no room for both.
#[test]
fn the_output_is_another_map() {
    let Some(World { _folder, cache, map, .. }) = world(16) else { return };
    let (_file, kernel) = by_kernel(&_folder);
    let to = sparse(&_folder.path().join("to"), (64 * PAGE) as u64);
    let mut to = map_mut(&cache, &to);
    let mut random = Random::new(seed(4));
    for round in 0..quick_or_full(10, 100) {
        let from = if round % 2 == 0 { &map } else { &kernel };
        let rows: Vec<_> = (0..64).map(|_| (random.below(LEN - PAGE), PAGE)).collect();
        from.gather(&rows, &mut to).unwrap();
        assert!(to[..] == expected(&rows), "round {round}");
    }
}

/// Threads that gather, and others that store to bytes of their own beside them, in one small cache.
#[test]
fn gathers_beside_stores() {
    const ROW: usize = 256;
    let Some(World { _folder, cache, .. }) = world(64) else { return };
    // Every second row of the file is stored to: the row's own number at first, and later ones.
    let path = _folder.path().join("rows");
    let rows = quick_or_full(4000, 40_000);
    let numbers = |row: usize| (row as u64).to_ne_bytes();
    let file = create(&path, &(0..rows).flat_map(|row| numbers(row).repeat(ROW / 8)).collect::<Vec<u8>>());
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    let (map, stop) = (&map, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(stop);
        for thread in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(seed(7) + thread);
                while !stop.load(Ordering::Relaxed) {
                    let row = random.below(rows / 4) * 4 + 1 + 2 * thread as usize;
                    for word in 0..ROW / 8 {
                        // SAFETY: this thread's alone, but for gathers that do not look at it.
                        unsafe { ((base + row * ROW + word * 8) as *mut u64).write_volatile(random.next()) };
                    }
                }
            });
        }
        let gatherers: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Random::new(seed(8) + thread);
                    let mut output = vec![0; 500 * ROW];
                    for _ in 0..quick_or_full(100, 1000) {
                        let wanted: Vec<_> = (0..500).map(|_| random.below(rows / 2) * 2).collect();
                        let ranges: Vec<_> = wanted.iter().map(|row| (row * ROW, ROW)).collect();
                        map.gather(&ranges, &mut output).unwrap();
                        for (row, found) in wanted.iter().zip(output.chunks(ROW)) {
                            assert!(found.chunks(8).all(|word| word == numbers(*row)), "row {row}");
                        }
                    }
                })
            })
            .collect();
        gatherers.into_iter().for_each(|thread| thread.join().unwrap());
    });
    map.flush().unwrap();
    assert!(cache.stats().writeback_pages > 0);
}

/// Nothing of a program's lies there, and a walk to its end would not end.
#[test]
fn at_the_end_of_the_address_space_nothing_is() {
    let end = usize::MAX;
    for range in [end - 7..end - 3, end - 4..end, end - PAGE..end] {
        let mut output = vec![0; range.len()];
        let error = fastmap::by_address::gather(&[range], &mut output).expect_err("no memory of ours");
        assert_eq!(error.errno(), libc::EFAULT, "{error}");
    }
}
