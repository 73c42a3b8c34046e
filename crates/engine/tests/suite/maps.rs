//! What a file can confront a map with: offsets and ends, refusals, sharing, sizes.

use crate::common::*;
use fastmap::{Advice, Cache, Engine, Error};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;

// --- offsets, lengths, ends -------------------------------------------------------------------------------------------

#[test]
fn offsets_and_lengths_need_not_be_page_multiples() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(5 * PAGE + 17);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = small();
    for offset in [0, 1, 8, 4095, 4096, 4097, 9999, bytes.len() - 1] {
        for len in [1, 2, 4095, 4096, 4097, 12_288, bytes.len()] {
            let len = len.min(bytes.len() - offset);
            // SAFETY: the file is this test's own.
            let map = unsafe { options(&cache).offset(offset as u64).len(len).map(&file) }.unwrap();
            assert_eq!((map.len(), map.engine()), (len, Engine::Cached));
            assert!(map[..] == bytes[offset..offset + len], "{len} bytes at {offset}");
        }
    }
}

#[test]
fn nothing_can_be_mapped() {
    let folder = folder();
    let empty = create(&folder.path().join("empty"), &[]);
    let file = create(&folder.path().join("file"), &pattern(100));
    let cache = small();
    // SAFETY: files of this test's own.
    let maps = unsafe {
        [
            options(&cache).map_mut(&empty).unwrap(),
            options(&cache).len(0).map_mut(&file).unwrap(),
            options(&cache).offset(100).map_mut(&file).unwrap(),
            options(&cache).offset(50).len(0).map_mut(&file).unwrap(),
        ]
    };
    for mut map in maps {
        assert!(map.is_empty() && map.iter().next().is_none() && map.as_mut().is_empty());
        map.flush().unwrap();
        map.flush_range(0, 0).unwrap();
        map.flush_async().wait().unwrap();
        map.advise(Advice::WillNeed).unwrap();
        map.advise(Advice::DontNeed).unwrap();
        assert!(matches!(map.flush_range(0, 1), Err(Error::RangeOutside { offset: 0, len: 1, map_len: 0 })));
    }
    assert!(std::fs::read(folder.path().join("empty")).unwrap().is_empty());
}

#[test]
fn tails_are_zero_and_no_flush_extends_the_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    for size in [1, 511, 512, 4095, 5000, 3 * PAGE + 2000] {
        let mut bytes = pattern(size);
        let file = create(&path, &bytes);
        let cache = small();
        let whole = size.next_multiple_of(PAGE);
        {
            // SAFETY: the file is this test's own; the last page holds its end.
            let mut map = unsafe { options(&cache).len(whole).map_mut(&file) }.unwrap();
            assert!(map[..size] == bytes[..] && map[size..].iter().all(|byte| *byte == 0), "{size}");
            map[size - 1] = 99;
            bytes[size - 1] = 99;
            if size < whole {
                map[whole - 1] = 55; // past the end: in memory only
            }
            map.flush().unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "{size}");
            map[0] = 98;
            bytes[0] = 98;
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{size}: after the map is gone");
        assert!(map(&cache, &file)[..] == bytes[..]);
    }
}

#[test]
fn a_file_that_grew_is_mapped_to_its_new_end() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(1000));
    let cache = small();
    let mut first = map_mut(&cache, &file);
    first[10] = 77;
    file.set_len(100_000).unwrap();
    {
        let mut second = map_mut(&cache, &file);
        assert_eq!((second.len(), second[10], second[99_999]), (100_000, 77, 0));
        second[2000] = 5;
        second[99_999] = 6;
    }
    first.flush().unwrap(); // its own page, where the other map stored too
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[10], bytes[2000]), (100_000, 77, 5));
    drop(first);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[10], bytes[2000], bytes[99_999]), (100_000, 77, 5, 6));
}

/// As with mmap(2): a program maps more than there is, extends the file, and stores to the new bytes, on the page that
/// held the old end and beyond.
#[test]
fn a_file_extended_under_its_map_gets_the_stores_to_its_new_bytes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(1000));
    let cache = small();
    // SAFETY: the file is this test's own; nothing past its end is touched before it is there.
    let mut map = unsafe { options(&cache).len(5 * PAGE).map_mut(&file) }.unwrap();
    map[10] = 1; // the page of the old end is in memory
    file.set_len(5 * PAGE as u64).unwrap();
    map[2000] = 2;
    map.flush().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[2000], 2, "on the page of the old end");
    map[3 * PAGE] = 3;
    map[3000] = 4;
    map.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[10], bytes[2000], bytes[3 * PAGE], bytes[3000]), (1, 2, 3, 4));
}

/// What was appended with write(2) is not mapped bytes: a map made before must not overwrite it, one made after shows it.
#[test]
fn appended_bytes_are_kept_and_seen() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut bytes = pattern(1000);
    let file = create(&path, &bytes);
    let cache = small();
    let mut old = map_mut(&cache, &file);
    old[10] = 1;
    bytes[10] = 1;
    file.write_all_at(&pattern(5000)[1000..], 1000).unwrap();
    bytes.extend_from_slice(&pattern(5000)[1000..]);
    old.flush().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes, "the old map's flush");
    old[11] = 2;
    bytes[11] = 2;
    {
        let mut new = map_mut(&cache, &file);
        assert!(new[..] == bytes[..], "the new map's bytes");
        new[2000] = 3;
        bytes[2000] = 3;
        new.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes, "the new map's flush");
    }
    drop(old);
    assert!(std::fs::read(&path).unwrap() == bytes, "at the end");
}

#[test]
fn ranges_outside_the_map_are_refused() {
    if !ready() {
        return;
    }
    let folder = folder();
    let map = map_mut(&small(), &create(&folder.path().join("file"), &pattern(5000)));
    for (offset, len) in [(0, 5001), (5000, 1), (usize::MAX, 2), (1, usize::MAX), (5001, 0)] {
        assert!(matches!(map.flush_range(offset, len), Err(Error::RangeOutside { .. })), "{len} at {offset}");
        assert!(matches!(map.advise_range(Advice::DontNeed, offset, len), Err(Error::RangeOutside { .. })));
    }
    map.flush_range(5000, 0).unwrap();
}

// --- what is refused --------------------------------------------------------------------------------------------------

#[test]
fn descriptors_that_may_not_read_or_write() {
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(5000));
    let cache = small();
    let read_only = File::open(&path).unwrap();
    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    // SAFETY: the file is this test's own, here and below.
    unsafe {
        if ready() {
            assert!(options(&cache).map(&read_only).unwrap()[..] == pattern(5000));
        }
        assert!(matches!(options(&cache).map_mut(&read_only), Err(Error::ReadOnlyFile { .. })));
        assert!(matches!(options(&cache).map_mut(&write_only), Err(Error::WriteOnlyFile { .. })));
        assert!(matches!(options(&cache).map(&write_only), Err(Error::WriteOnlyFile { .. })));
        assert!(refusal(&path, options(&cache).map_mut(&read_only)).contains("for reading and writing"));
        refusal(&path, options(&cache).map(&write_only));
    }
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    let name = std::ffi::CString::new(fifo.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let cache = small();
    let things = [
        (folder.path().to_owned(), "directory", File::open(folder.path()).unwrap()),
        (fifo.clone(), "pipe", open(&fifo)),
        ("/dev/null".into(), "character device", open(Path::new("/dev/null"))),
    ];
    for (path, kind, file) in things {
        // SAFETY: nothing is mapped.
        let result = unsafe { options(&cache).map(&file) };
        assert!(matches!(&result, Err(Error::NotMappable { kind: found, .. }) if *found == kind), "{result:?}");
        assert!(refusal(&path, result).contains(kind));
    }
}

#[test]
fn places_that_do_not_exist_are_refused() {
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(5000));
    let cache = small();
    let at = |offset: u64, len: usize| {
        // SAFETY: the file is this test's own.
        unsafe { options(&cache).offset(offset).len(len).map(&file) }
    };
    assert!(matches!(at(5001, 0), Err(Error::OffsetPastEnd { offset: 5001, size: 5000, .. })));
    assert!(refusal(&path, at(5001, 1)).contains("5001"));
    assert!(matches!(at(u64::MAX, 1), Err(Error::OffsetPastEnd { .. })));
    for len in [usize::MAX, usize::MAX - 1, isize::MAX as usize, 1 << 47] {
        assert!(matches!(at(1, len), Err(Error::LengthOverflow { .. })), "{len}");
        refusal(&path, at(1, len));
    }
}

#[test]
fn a_capacity_under_the_minimum_is_refused_with_both_numbers() {
    for capacity in [0, 1, PAGE, Cache::MIN_CAPACITY - 1] {
        let Err(error) = Cache::new(capacity) else { panic!("a cache of {capacity}") };
        assert!(matches!(error, Error::CapacityTooSmall { .. }));
        let text = error.to_string();
        assert!(text.contains(&capacity.to_string()) && text.contains(&Cache::MIN_CAPACITY.to_string()), "{text}");
    }
    assert_eq!(Cache::new(Cache::MIN_CAPACITY + PAGE - 1).unwrap().capacity(), Cache::MIN_CAPACITY);
}

// --- sharing and lifetimes --------------------------------------------------------------------------------------------

#[test]
fn maps_of_one_file_share_one_copy() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(8 * PAGE));
    let cache = small();
    // Descriptors and names of their own: it is the same file.
    std::fs::hard_link(&path, folder.path().join("link")).unwrap();
    let read = map(&cache, &File::open(folder.path().join("link")).unwrap());
    // SAFETY: the file is this test's own.
    let mut write = unsafe { options(&cache).offset(PAGE as u64).map_mut(&open(&path)) }.unwrap();
    let before = cache.stats().misses;
    assert_eq!(read[PAGE + 5], write[5]);
    write[5] = 200;
    let seen = || std::hint::black_box(&read)[PAGE + 5];
    assert_eq!(seen(), 200);
    write[5] = 201;
    assert_eq!(seen(), 201);
    assert_eq!(cache.stats().misses - before, 1, "one copy, read once");
    // The cache of the first map is the cache of all.
    let other = small();
    assert_eq!(map(&other, &open(&path))[PAGE + 5], 201);
    assert_eq!(other.stats().misses, 0);
    drop(read);
    assert_eq!(write[5], 201);
    drop(write);
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn a_file_may_be_closed_and_deleted_while_it_is_mapped() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let cache = small();
    let file = create(&path, &pattern(40 * PAGE));
    let mut map = map_mut(&cache, &file);
    drop(file);
    std::fs::remove_file(&path).unwrap();
    // More pages than the cache has, dirty: they leave and come back.
    for round in 0..3 {
        for page in 0..40 {
            map[page * PAGE + round] = page as u8 + round as u8;
        }
    }
    map.flush().unwrap();
    for page in 0..40 {
        assert_eq!(map[page * PAGE + 1], page as u8 + 1);
        assert_eq!(map[page * PAGE + 100], pattern(40 * PAGE)[page * PAGE + 100]);
    }
}

#[test]
fn two_caches_keep_apart() {
    if !ready() {
        return;
    }
    let folder = folder();
    let (one, two) = (small(), Cache::new(64 * PAGE).unwrap());
    let bytes = pattern(100 * PAGE);
    let maps = [
        map_mut(&one, &create(&folder.path().join("one"), &bytes)),
        map_mut(&two, &create(&folder.path().join("two"), &bytes)),
    ];
    std::thread::scope(|scope| {
        for map in &maps {
            // Anew each time, however pure a comparison is.
            let (map, bytes) = (&map[..], &bytes[..]);
            scope.spawn(move || (0..3).for_each(|_| assert!(std::hint::black_box(map) == bytes)));
        }
    });
    assert!(resident(addresses(&maps[0])) <= one.capacity() && resident(addresses(&maps[1])) <= two.capacity());
    // Each keeps what fits from one scan to the next at best.
    for cache in [&one, &two] {
        let kept = (cache.capacity() / PAGE) as u64;
        assert!((300 - 2 * kept..=300).contains(&cache.stats().misses), "{:?}", cache.stats());
    }
}

#[test]
fn thirty_two_threads_on_one_page_read_it_once() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = small();
    let bytes = pattern(200 * PAGE);
    let map = map(&cache, &create(&folder.path().join("file"), &bytes));
    let barrier = Barrier::new(32);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                for page in 0..12 {
                    barrier.wait();
                    assert_eq!(map[page * PAGE + 9], bytes[page * PAGE + 9]);
                }
            });
        }
    });
    assert_eq!(cache.stats().misses, 12, "twelve pages, and room for all");
}

#[test]
fn regions_of_several_stripes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &[]);
    file.set_len(300 << 20).unwrap();
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let words: Vec<usize> =
        (1..5).flat_map(|stripe| [-4096i64, -8, -4, -1, 0, 4096].map(|at| ((stripe << 26) + at) as usize)).collect();
    for at in &words {
        // Some of them straddle two stripes.
        // SAFETY: inside the map.
        unsafe { map.as_mut_ptr().add(*at).cast::<u32>().write_unaligned(*at as u32 | 1) };
    }
    map.flush().unwrap();
    for at in &words {
        if words.iter().any(|other| other > at && other - at < 4) {
            continue; // the next store covered part of it
        }
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, *at as u64).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), *at as u32 | 1, "in the file at {at}");
        // SAFETY: inside the map.
        assert_eq!(unsafe { map.as_ptr().add(*at).cast::<u32>().read_unaligned() }, *at as u32 | 1);
    }
    // A scan and a copy across a stripe's end.
    assert!(map[(1 << 26) + PAGE + 8..(2 << 26) - PAGE].iter().step_by(64 << 10).all(|byte| *byte == 0));
    map.copy_within((1 << 26) - 8..(1 << 26) + 64, (2 << 26) - 30);
    let (from, to) = (map[(1 << 26) - 8..][..72].to_vec(), map[(2 << 26) - 30..][..72].to_vec());
    assert_eq!(from, to);
}

#[test]
fn a_sparse_terabyte_touched_here_and_there() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &[]);
    if let Err(error) = file.set_len(1 << 40) {
        return skip(format!("no file of 1 TiB here: {error}"));
    }
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let places: Vec<usize> = (0..200).map(|n| (n * 5_497_558_139) % (1 << 40)).chain([(1 << 40) - 1]).collect();
    places.iter().for_each(|at| assert_eq!(map[*at], 0));
    places.iter().for_each(|at| map[*at] = *at as u8 | 1);
    map.flush().unwrap();
    for at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).unwrap();
        assert_eq!((byte[0], map[at]), (at as u8 | 1, at as u8 | 1));
    }
}

#[test]
fn advice_brings_pages_in_and_puts_them_out() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = map_mut(&cache, &create(&path, &pattern(20 * PAGE)));
    map.advise(Advice::WillNeed).unwrap();
    let brought = cache.stats().misses + cache.stats().prefetched_pages;
    assert_eq!((brought, resident(addresses(&map))), (20, 20 * PAGE));
    map[3 * PAGE] = 9;
    map.advise_range(Advice::DontNeed, 2 * PAGE, 4 * PAGE).unwrap();
    assert_eq!((cache.stats().resident_pages, resident(addresses(&map))), (16, 16 * PAGE));
    assert_eq!((std::fs::read(&path).unwrap()[3 * PAGE], map[3 * PAGE]), (9, 9));
}
