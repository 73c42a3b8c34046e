//! Files whose length changes while they are mapped: grown by their maps, made longer and shorter by others, and with
//! disk space reserved.

use crate::common::*;
use crate::loops::Loop;
use fastmap::{Advice, Cache, Engine, Error, Fallback, MapMut, MapOptions, Mode};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of address range that a small file gets: one stripe.
const SPAN: usize = 64 << 20;

fn length(file: &File) -> usize {
    file.metadata().unwrap().len() as usize
}

// --- growing ----------------------------------------------------------------------------------------------------------

#[test]
fn a_map_grows_in_place() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut bytes = pattern(5000);
    let file = create(&path, &bytes);
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let start = map.as_ptr();
    map[4999] = 9;
    bytes[4999] = 9;
    for len in [5000, 5001, 8192, 8193, 100 * PAGE, 100 * PAGE + 17, SPAN] {
        map.grow(len).unwrap();
        assert_eq!((map.len(), length(&file), map.as_ptr()), (len, len, start));
        bytes.resize(len.min(200 * PAGE), 0);
        assert!(map[..bytes.len()] == bytes[..], "{len}");
        for at in [len.min(bytes.len()) - 1, len.min(bytes.len()) / 2] {
            map[at] = len as u8 | 1;
            bytes[at] = len as u8 | 1;
        }
        map.flush().unwrap();
    }
    map[SPAN - 1] = 3;
    drop(map);
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
    let mut last = [0];
    file.read_exact_at(&mut last, SPAN as u64 - 1).unwrap();
    assert_eq!((last, length(&file)), ([3], SPAN));
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn a_file_longer_than_its_map_keeps_its_length() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(10 * PAGE + 5);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = small();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).offset(100).len(10).map_mut(&file) }.unwrap();
    for len in [10, 11, 5000, 9 * PAGE, bytes.len() - 100] {
        map.grow(len).unwrap();
        assert_eq!(length(&file), bytes.len());
        assert!(map[..] == bytes[100..100 + len]);
    }
    map.grow(bytes.len() - 99).unwrap();
    assert_eq!((length(&file), map[bytes.len() - 100]), (bytes.len() + 1, 0));
}

#[test]
fn beyond_its_address_range_a_map_moves_and_keeps_every_byte() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut bytes = pattern(300 * PAGE + 123);
    let file = create(&path, &bytes);
    let cache = Cache::new(100 * PAGE).unwrap();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).offset(7).map_mut(&file) }.unwrap();
    for (round, len) in [SPAN + 1, 5 * SPAN, 11 * SPAN].into_iter().enumerate() {
        for page in (0..300).step_by(2) {
            map[page * PAGE] = (page + round) as u8;
            bytes[page * PAGE + 7] = (page + round) as u8;
        }
        map.flush_async().wait().unwrap();
        let before = map.as_ptr();
        map.grow(len).unwrap();
        assert_eq!((map.len(), length(&file), map.engine()), (len, len + 7, Engine::Cached));
        assert!(round == 0 || map.as_ptr() != before, "a place of its own");
        assert!(map[..bytes.len() - 7] == bytes[7..]);
        assert!(map[bytes.len() - 7..].iter().step_by(1 << 20).all(|byte| *byte == 0));
        map[len - 1] = 77;
        assert!(cache.stats().resident_pages <= 100);
        map.flush().unwrap();
        let mut last = [0];
        file.read_exact_at(&mut last, len as u64 + 6).unwrap();
        assert_eq!(last, [77]);
        map[len - 1] = 0;
    }
    // It is the file's map in every respect.
    let other = self::map(&cache, &file);
    assert_eq!(other[7], map[0]);
    drop((map, other));
    let mut found = vec![0; bytes.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes);
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

#[test]
fn beside_other_maps_it_stays_within_its_address_range() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(5000));
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let other = self::map(&cache, &file);
    map[1] = 50;
    let refused = map.grow(SPAN + 1);
    assert!(matches!(&refused, Err(Error::Outgrown { span, .. }) if *span == SPAN as u64), "{refused:?}");
    refusal(&path, refused);
    assert_eq!((map.len(), length(&file), map[1], other[1]), (5000, 5000, 50, 50));
    map.grow(SPAN).unwrap();
    assert_eq!((map.len(), other.len(), length(&file)), (SPAN, 5000, SPAN));
    drop(other);
    map.grow(SPAN + 1).unwrap();
    assert_eq!((map[1], map[SPAN]), (50, 0));
}

#[test]
fn an_empty_map_grows() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let cache = small();
    let mut map = map_mut(&cache, &create(&path, &[])); // the descriptor is closed
    map.grow(0).unwrap();
    assert_eq!((map.len(), std::fs::metadata(&path).unwrap().len()), (0, 0));
    map.grow(3 * PAGE + 1).unwrap();
    assert_eq!((map.len(), map.engine()), (3 * PAGE + 1, Engine::Cached));
    map[3 * PAGE] = 4;
    map.grow(4 * PAGE).unwrap();
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[3 * PAGE], cache.stats().misses), (4 * PAGE, 4, 1));
    // At the end of a file that has bytes.
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).offset(4 * PAGE as u64).map_mut(&open(&path)) }.unwrap();
    map.grow(10).unwrap();
    map[9] = 9;
    drop(map);
    assert_eq!(std::fs::read(&path).unwrap()[3 * PAGE..], [&[4], &[0; 4095][..], &[0; 9], &[9]].concat());
}

#[test]
fn a_kernel_map_grows() {
    if !Path::new("/dev/shm").is_dir() {
        return skip("no /dev/shm");
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("file");
    for (size, offset) in [(5000, 0), (5000, 100), (0, 0), (5000, 5000)] {
        let mut bytes = pattern(size);
        let file = create(&path, &bytes);
        // SAFETY: the file is this test's own.
        let mut map = unsafe {
            MapOptions::new().mode(Mode::Cached).fallback(Fallback::Kernel).offset(offset as u64).map_mut(&file)
        }
        .unwrap();
        for len in [6000, 20 * PAGE, 5000 * PAGE + 1] {
            map.grow(len).unwrap();
            bytes.resize(offset + len, 0);
            assert_eq!((map.len(), map.engine(), length(&file)), (len, Engine::Kernel, offset + len));
            map[len - 1] = 8;
            bytes[offset + len - 1] = 8;
            assert!(map[..] == bytes[offset..]);
            map.flush().unwrap();
        }
        assert!(matches!(map.grow(5999), Err(Error::Shrinking { .. })));
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

/// What a program stored behind the end, on the page that holds it, was never part of the file.
#[test]
fn bytes_stored_past_the_old_end_are_not_in_the_grown_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for flushed in [false, true] {
        let file = create(&path, &pattern(1000));
        let cache = small();
        // SAFETY: the file is this test's own.
        let mut map = unsafe { options(&cache).len(PAGE).map_mut(&file) }.unwrap();
        let mut short = map_mut(&cache, &file);
        map[999] = 7;
        map[1000] = 8;
        map[4000] = 8;
        if flushed {
            map.flush().unwrap();
        }
        short.grow(1001).unwrap();
        assert_eq!((map[999], map[1000], map[4000], short[1000]), (7, 0, 0, 0));
        map[1000] = 5;
        map[4000] = 9;
        map.grow(3 * PAGE).unwrap();
        assert_eq!((map[1000], map[4000], map[PAGE]), (5, 0, 0));
        drop((map, short));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[999], bytes[1000], bytes[4000]), (3 * PAGE, 7, 5, 0));
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(5000));
    let cache = small();
    let mut map = map_mut(&cache, &file);
    assert!(matches!(map.grow(4999), Err(Error::Shrinking { len: 5000, new_len: 4999 })));
    for len in [(1 << 46) + 1, usize::MAX] {
        assert!(matches!(map.grow(len), Err(Error::LengthOverflow { .. })), "{len}");
    }
    assert_eq!((map.len(), length(&file)), (5000, 5000));
    assert!(map[..] == pattern(5000));
}

/// The file system's limit on a file's length, or the address space's, or this process's own.
#[test]
fn a_map_whose_growth_fails_is_as_it_was() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(5000));
    let cache = small();
    let mut map = map_mut(&cache, &file);
    map[4000] = 1;
    let (before, start) = (length(&file), map.as_ptr());
    match map.grow((1 << 46) - PAGE) {
        Ok(()) => return skip("this file system has files of 64 TiB"),
        Err(error) => println!("{error}"),
    }
    assert_eq!((map.len(), map.as_ptr(), map[4000], length(&file)), (5000, start, 1, before));
    map.grow(6000).unwrap();
    map[5999] = 2;
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[4000], bytes[5999], bytes.len()), (1, 2, 6000));
}

#[test]
fn a_map_that_a_full_disk_keeps_from_moving_is_as_it_was() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    (0..100).for_each(|page| map[page * PAGE] = page as u8 + 1);
    disk.rob(&file);
    let start = map.as_ptr();
    for _ in 0..2 {
        let refused = map.grow(SPAN + 1);
        assert!(matches!(&refused, Err(Error::WriteBack { .. })), "{refused:?}");
        assert_eq!((map.len(), map.as_ptr(), length(&file)), (1 << 20, start, 1 << 20));
        (0..100).for_each(|page| assert_eq!(map[page * PAGE], page as u8 + 1));
    }
    // Within its range there is nothing to write.
    map.grow(2 << 20).unwrap();
    disk.make_room();
    map.grow(SPAN + 1).unwrap();
    (0..100).for_each(|page| assert_eq!(map[page * PAGE], page as u8 + 1));
    map.flush().unwrap();
    let mut found = vec![0; 100 * PAGE];
    file.read_exact_at(&mut found, 0).unwrap();
    (0..100).for_each(|page| assert_eq!(found[page * PAGE], page as u8 + 1));
}

#[test]
fn a_block_device_has_the_size_it_has() {
    if !ready() {
        return;
    }
    let folder = folder();
    let backing = folder.path().join("backing");
    let bytes = pattern(1 << 20);
    create(&backing, &bytes);
    let device = match Loop::over(&backing) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let file = open(&device.0);
    let cache = small();
    // SAFETY: the device is this test's own.
    let mut map = unsafe { options(&cache).len(5000).reserve(true).map_mut(&file) }.unwrap();
    map.grow(1 << 20).unwrap();
    assert!(map[..] == bytes[..]);
    let refused = map.grow((1 << 20) + 1);
    assert!(matches!(&refused, Err(Error::FixedSize { size: 1_048_576, .. })), "{refused:?}");
    refusal(&device.0, refused);
    assert_eq!(map.len(), 1 << 20);
}

/// Several threads grow maps of one file, each its own, store to what they got, and never make the file shorter.
#[test]
fn threads_grow_maps_of_one_file() {
    if !ready() {
        return;
    }
    let seed = seed(5);
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(100));
    let cache = small();
    const THREADS: usize = 4;
    let stored: Vec<Vec<(usize, u64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, cache) = (&file, &cache);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 10 + thread as u64);
                    let mut map = map_mut(cache, file);
                    let mut stored = Vec::new();
                    let mut longest = 0;
                    for _ in 0..150 {
                        let before = map.len();
                        let len = before + random.below(3 * PAGE);
                        map.grow(len).unwrap();
                        let now = length(file);
                        assert!(now >= len && now >= longest, "{now} after {longest}, grown to {len}");
                        longest = now;
                        // Words that are this thread's alone.
                        for word in (before.max(100).div_ceil(8)..len / 8).filter(|word| word % THREADS == thread) {
                            if random.below(20) == 0 {
                                let value = random.next();
                                map[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
                                stored.push((word, value));
                            }
                        }
                        if random.below(10) == 0 {
                            map.flush_range(before, len - before).unwrap();
                        }
                        if !stored.is_empty() {
                            let (word, value) = stored[random.below(stored.len())];
                            assert_eq!(map[word * 8..word * 8 + 8], value.to_le_bytes());
                        }
                    }
                    stored
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let bytes = std::fs::read(&path).unwrap();
    let mut want = pattern(100);
    want.resize(bytes.len(), 0);
    for (word, value) in stored.into_iter().flatten() {
        want[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    assert!(bytes == want);
    assert_eq!(cache.stats().resident_pages, 0);
}

/// The page of the old end, never still: every store before the growth, during it and after it is there in the end.
#[test]
fn a_map_grows_while_threads_store_to_its_last_page() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 5000]);
    let cache = small();
    let mut storing = map_mut(&cache, &file);
    let mut map = map_mut(&cache, &file);
    let base = storing.as_mut_ptr() as usize;
    let stop = AtomicBool::new(false);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let stop = &stop;
                scope.spawn(move || {
                    // SAFETY: inside the map, aligned; each thread has a word of its own.
                    let word = unsafe { &*((base + PAGE + thread * 8) as *const AtomicU64) };
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(word.load(Ordering::Relaxed), count);
                        count += 1;
                        word.store(count, Ordering::Relaxed);
                    }
                    count
                })
            })
            .collect();
        let stopping = Stop(&stop);
        for len in 5001..5151 {
            map.grow(len).unwrap();
            map[len - 1] = 7;
        }
        drop(stopping);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop((map, storing));
    let bytes = std::fs::read(&path).unwrap();
    let word = |thread: usize| u64::from_le_bytes(bytes[PAGE + thread * 8..][..8].try_into().unwrap());
    assert_eq!((0..3).map(word).collect::<Vec<_>>(), counts);
    assert!(bytes[5000..5150].iter().all(|byte| *byte == 7) && bytes.len() == 5150);
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

// --- cut and extended by others ---------------------------------------------------------------------------------------

type Notice = fn(&mut MapMut, &File, &Cache);

/// Everything that takes notice of a length that others changed.
const NOTICING: [(&str, Notice); 6] = [
    ("flush", |map, _, _| map.flush().unwrap()),
    ("flush_range", |map, _, _| map.flush_range(0, 1).unwrap()),
    ("grow", |map, _, _| map.grow(map.len()).unwrap()),
    ("DontNeed", |map, _, _| map.advise_range(Advice::DontNeed, 0, 1).unwrap()),
    ("WillNeed", |map, _, _| map.advise(Advice::WillNeed).unwrap()),
    // SAFETY: files of these tests are their own.
    ("a new map", |_, file, cache| drop(unsafe { options(cache).len(1).map(file) }.unwrap())),
];

#[test]
fn what_was_cut_off_is_neither_written_nor_seen_again() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for (name, notice) in NOTICING {
        for cut in [0, 1, PAGE, 5000, 3 * PAGE + 4095, 10 * PAGE - 1] {
            let mut bytes = pattern(10 * PAGE);
            let file = create(&path, &bytes);
            let cache = Cache::new(64 * PAGE).unwrap();
            let mut map = map_mut(&cache, &file);
            // Some clean, some dirty, some not in memory.
            (0..10).filter(|page| page % 3 != 2).for_each(|page| assert_eq!(map[page * PAGE], bytes[page * PAGE]));
            for page in (0..10).step_by(3) {
                map[page * PAGE + 4000] = 201;
                bytes[page * PAGE + 4000] = 201;
            }
            file.set_len(cut as u64).unwrap();
            if name != "flush" {
                // In memory they have their bytes still.
                assert_eq!((map[9 * PAGE + 4000], map[PAGE]), (201, bytes[PAGE]));
            }
            notice(&mut map, &file, &cache);
            let grown = if name == "grow" { 10 * PAGE } else { cut };
            assert_eq!(length(&file), grown, "{name} after a cut to {cut}");
            let left = cut.div_ceil(PAGE) as u64;
            assert!(name == "grow" || cache.stats().resident_pages <= left, "{name}: {:?}", cache.stats());
            file.set_len(10 * PAGE as u64).unwrap();
            bytes[cut..].fill(0);
            assert!(map[..] == bytes[..], "{name} after a cut to {cut}: the map");
            map.flush().unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{name} after a cut to {cut}: the file");
        }
    }
}

/// A cut that nobody noticed before the last map goes: nothing past the end is written.
#[test]
fn a_cut_that_is_not_noticed_stays_a_cut() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let cache = Cache::new(64 * PAGE).unwrap();
    let file = create(&path, &pattern(10 * PAGE));
    let mut map = map_mut(&cache, &file);
    (0..10).for_each(|page| map[page * PAGE + 1] = 55);
    file.set_len(5000).unwrap();
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[1], bytes[PAGE + 1]), (5000, 55, 55));
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

#[test]
fn a_map_longer_than_its_file_sees_what_others_append() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for (name, notice) in NOTICING {
        let mut bytes = pattern(1000);
        let file = create(&path, &bytes);
        let cache = small();
        // SAFETY: the file is this test's own; nothing past its end is touched before it is there.
        let mut map = unsafe { options(&cache).len(6 * PAGE).map_mut(&file) }.unwrap();
        assert_eq!((map[999], map[1000]), (bytes[999], 0));
        bytes = pattern(6 * PAGE);
        file.write_all_at(&bytes[1000..], 1000).unwrap();
        assert_eq!(map[5 * PAGE + 1], bytes[5 * PAGE + 1], "pages past the old end are there at once");
        notice(&mut map, &file, &cache);
        assert!(map[..] == bytes[..], "{name}");
        map[1500] = 3;
        bytes[1500] = 3;
        drop(map);
        assert!(std::fs::read(&path).unwrap() == bytes, "{name}");
    }
}

/// A file that grows beyond what its region can hold, again and again, is refused each time.
#[test]
fn a_file_extended_beyond_the_address_range_is_refused_and_its_maps_stay() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(5000));
    let cache = small();
    let map = map_mut(&cache, &file);
    for size in [SPAN + 5, 2 * SPAN + 5, 3 * SPAN + 7] {
        file.set_len(size as u64).unwrap();
        // SAFETY: the file is this test's own.
        let refused = unsafe { options(&cache).map(&file) };
        assert!(matches!(&refused, Err(Error::Outgrown { .. })), "{refused:?}");
        map.flush().unwrap();
        assert!(map[..] == pattern(5000));
    }
    file.set_len(100).unwrap();
    assert!(self::map(&cache, &file)[..] == pattern(100));
}

/// Stores, flushes, cuts and extensions at random against a model: bytes past every end are zero once it is noticed.
#[test]
fn random_changes_of_length_agree_with_a_model() {
    if !ready() {
        return;
    }
    let mut random = Random::new(seed(21));
    let folder = folder();
    let path = folder.path().join("file");
    for case in 0..quick_or_full(12, 30) {
        let mut model = pattern(1 + random.below(20 * PAGE));
        let file = create(&path, &model);
        // A write-back that begins at the moment of a cut may undo it. So either nobody writes but this thread, or there is
        // nothing to write when the file is cut.
        let roomy = case % 2 == 0;
        let capacity = if roomy { 1000 } else { 16 + random.below(20) } * PAGE;
        let cache = Cache::builder().capacity(capacity).high_water(99).build().unwrap();
        let mut map = map_mut(&cache, &file);
        let mut log = Vec::new();
        for step in 0..60 {
            let what = random.below(8);
            log.push((what, model.len()));
            match what {
                0 | 1 => {
                    let new_len = map.len() + random.below(6 * PAGE);
                    map.grow(new_len).unwrap();
                    model.resize(model.len().max(new_len), 0);
                }
                2 => {
                    if !roomy {
                        map.flush().unwrap();
                    }
                    // Noticed before it can be extended again.
                    model.truncate(random.below(model.len() + 1));
                    file.set_len(model.len() as u64).unwrap();
                    let how = random.below(NOTICING.len());
                    NOTICING[how].1(&mut map, &file, &cache);
                    log.push((10 + how, model.len()));
                    model.resize(length(&file), 0);
                }
                3 => {
                    model.resize(model.len() + random.below(5 * PAGE), 0);
                    file.set_len(model.len() as u64).unwrap();
                }
                4 => map.flush().unwrap(),
                _ => {
                    let end = map.len().min(model.len());
                    for _ in 0..20 {
                        if end > 0 {
                            let (at, value) = (random.below(end), random.next() as u8);
                            map[at] = value;
                            model[at] = value;
                        }
                    }
                }
            }
            let end = map.len().min(model.len());
            let differs = (0..end).find(|at| map[*at] != model[*at]);
            assert_eq!(differs, None, "case {case}, step {step}: {log:?}, {} mapped", map.len());
            assert_eq!(length(&file), model.len(), "case {case}, step {step}: {log:?}");
        }
        drop(map);
        assert!(std::fs::read(&path).unwrap() == model, "case {case}: the file");
        assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
    }
}

/// One thread cuts and extends the file's second half and takes notice, others load and store in the first.
#[test]
fn cut_and_extended_under_threads_at_work() {
    if !ready() {
        return;
    }
    let seed = seed(31);
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 200 * PAGE]);
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    let stop = AtomicBool::new(false);
    let shadows: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread: usize| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut random = Random::new(seed * 10 + thread as u64);
                    let mut shadow = vec![0; 100 * PAGE / 3];
                    while !stop.load(Ordering::Relaxed) {
                        let own = random.below(shadow.len());
                        let at = (base + own * 3 + thread) as *mut u8;
                        // SAFETY: inside the map; only this thread touches the byte.
                        unsafe {
                            assert_eq!(at.read_volatile(), shadow[own], "byte {own} of thread {thread}");
                            shadow[own] = random.next() as u8;
                            at.write_volatile(shadow[own]);
                        }
                    }
                    shadow
                })
            })
            .collect();
        let stopping = Stop(&stop);
        let mut random = Random::new(seed);
        for _ in 0..150 {
            let cut = 100 * PAGE + random.below(100 * PAGE);
            // Nothing past the cut is on its way to the file when it comes.
            map.flush_range(100 * PAGE, 100 * PAGE).unwrap();
            file.set_len(cut as u64).unwrap();
            NOTICING[random.below(2)].1(&mut map, &file, &cache);
            file.set_len(200 * PAGE as u64).unwrap();
            let places: Vec<_> = (0..20).map(|_| cut + random.below(200 * PAGE - cut)).collect();
            places.iter().for_each(|at| assert_eq!(map[*at], 0, "{at} after a cut to {cut}"));
            places.iter().for_each(|at| map[*at] = 1);
            if threads.iter().any(|thread| thread.is_finished()) {
                break;
            }
        }
        drop(stopping);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 200 * PAGE);
    for (at, byte) in bytes[..100 * PAGE / 3 * 3].iter().enumerate() {
        assert_eq!(*byte, shadows[at % 3][at / 3], "byte {at} of the file");
    }
}

// --- reserved disk space ----------------------------------------------------------------------------------------------

/// Bytes of disk space a file has.
fn allocated(file: &File) -> usize {
    std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) as usize * 512
}

fn reserved(cache: &Cache, file: &File, len: usize) -> fastmap::Result<MapMut> {
    // SAFETY: files of these tests are their own.
    unsafe { options(cache).len(len).reserve(true).map_mut(file) }
}

#[test]
fn a_map_reserves_what_it_covers_and_no_more() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &[]);
    file.set_len(10 << 20).unwrap();
    let cache = small();
    // SAFETY: the file is this test's own.
    let map = unsafe { options(&cache).offset(1 << 20).len(2 << 20).reserve(true).map_mut(&file) }.unwrap();
    let most = (2 << 20) + (64 << 10);
    assert!((2 << 20..most).contains(&allocated(&file)), "{}", allocated(&file));
    assert!(map.iter().step_by(100).all(|byte| *byte == 0));
    drop(map);
    assert_eq!(length(&file), 10 << 20);
    // A map that only reads reserves nothing, past the end least of all.
    // SAFETY: as above.
    drop(unsafe { options(&cache).len(20 << 20).reserve(true).map(&file) }.unwrap());
    assert!(allocated(&file) < most && length(&file) == 10 << 20);
    // Past the end of the file, and grown.
    let file = create(&path, &pattern(1000));
    let mut map = reserved(&cache, &file, 1 << 20).unwrap();
    assert_eq!((length(&file), map[999], map[1000], map[(1 << 20) - 1]), (1 << 20, pattern(1000)[999], 0, 0));
    assert!(allocated(&file) >= 1 << 20);
    for len in [3 << 20, SPAN + 5] {
        map.grow(len).unwrap();
        assert!(allocated(&file) >= len && length(&file) == len);
    }
    // An empty map has nothing to reserve until it grows.
    let file = create(&folder.path().join("empty"), &[]);
    let mut map = reserved(&cache, &file, 0).unwrap();
    assert_eq!((length(&file), allocated(&file)), (0, 0));
    map.grow(1 << 20).unwrap();
    assert!(allocated(&file) >= 1 << 20 && length(&file) == 1 << 20);
}

#[test]
fn without_room_nothing_is_reserved_and_the_error_says_so() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    let file = create(&path, &pattern(1000));
    let cache = small();
    let Err(error) = reserved(&cache, &file, 100 << 20) else { panic!("100 MiB on a disk of 24") };
    assert!(matches!(&error, Error::Reserve { path: named, .. } if *named == path), "{error}");
    assert!(error.to_string().contains("make room") && !error.to_string().contains('\n'), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
    assert_eq!((length(&file), cache.stats().resident_pages), (1000, 0));
    assert!(allocated(&file) < 1 << 20, "a reservation that fails takes nothing");
    let mut map = reserved(&cache, &file, 1 << 20).unwrap();
    map[5000] = 1;
    for len in [50 << 20, 100 << 20] {
        // In place, and where it would have to move.
        assert!(matches!(map.grow(len), Err(Error::Reserve { .. })));
        assert_eq!((map.len(), length(&file), map[5000], map[999]), (1 << 20, 1 << 20, 1, pattern(1000)[999]));
    }
    disk.fill();
    assert!(matches!(map.grow(2 << 20), Err(Error::Reserve { .. })));
    disk.make_room();
    map.grow(2 << 20).unwrap();
}

#[test]
fn what_is_reserved_can_be_stored_to_on_a_full_disk() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    let file = create(&path, &[]);
    let cache = small();
    let mut map = reserved(&cache, &file, 4 << 20).unwrap();
    map.grow(8 << 20).unwrap();
    disk.fill();
    // Scattered first, so that what is reserved is written piece by piece.
    for (round, step) in [7, 1].into_iter().enumerate() {
        for page in (0..2048).step_by(step) {
            map[page * PAGE + 9] = (page + round) as u8;
        }
        map.flush().unwrap();
    }
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 8 << 20);
    (0..2048).for_each(|page| assert_eq!(bytes[page * PAGE + 9], (page + 1) as u8, "page {page}"));
    assert_eq!(cache.stats().writeback_errors, 0);
}

#[test]
fn a_file_that_cannot_be_allocated_ahead_is_named() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    let file = create(&path, &pattern(5000));
    // Files of ext4 without extents cannot.
    match Command::new("chattr").arg("-e").arg(&path).output() {
        Ok(done) if done.status.success() => {}
        other => return skip(format!("chattr: {other:?}")),
    }
    let cache = small();
    let Err(error) = reserved(&cache, &file, 1 << 20) else { panic!("reserved") };
    assert!(error.to_string().contains("cannot allocate ahead"), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::Unsupported);
    assert_eq!(length(&file), 5000);
    assert!(map_mut(&cache, &file)[..] == pattern(5000));
}

#[test]
fn a_kernel_map_reserves() {
    if !Path::new("/dev/shm").is_dir() {
        return skip("no /dev/shm");
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = create(&folder.path().join("file"), &pattern(100));
    // SAFETY: the file is this test's own.
    let mut map = unsafe {
        MapOptions::new().mode(Mode::Cached).fallback(Fallback::Kernel).len(1 << 20).reserve(true).map_mut(&file)
    }
    .unwrap();
    assert_eq!((map.engine(), length(&file)), (Engine::Kernel, 1 << 20));
    assert!(allocated(&file) >= 1 << 20);
    map.grow(2 << 20).unwrap();
    assert!(allocated(&file) >= 2 << 20 && length(&file) == 2 << 20);
    assert!(map[..100] == pattern(100) && map[100..].iter().all(|byte| *byte == 0));
    // SAFETY: as above. The cache above a file in memory, by choice.
    let mut options = MapOptions::new();
    options.mode(Mode::Cached).cache(&small()).fallback(Fallback::Buffered).len(3 << 20).reserve(true);
    if ready() {
        drop(map);
        // SAFETY: as above.
        let map = unsafe { options.map_mut(&file) }.unwrap();
        assert!(map.engine() == Engine::Cached && allocated(&file) >= 3 << 20 && length(&file) == 3 << 20);
        assert!(map[..100] == pattern(100));
    }
}
