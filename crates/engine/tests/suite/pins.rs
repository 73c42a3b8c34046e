//! Pins: what stays, what system calls may do with it, what it costs others, and what is an error.

use crate::common;
use crate::common::{DirectReader, PAGE, create, folder, map, map_mut, open, options, pattern, ready, sparse};
use fastmap::{Advice, Cache, Engine, Error, Fallback, Map, MapMut, MapOptions, Mode, Pinned, PinnedMut};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

fn cache(pages: usize) -> Cache {
    Cache::builder().capacity(pages * PAGE).evict_batch(4).build().unwrap()
}

/// Loads a byte of every page.
fn sweep(bytes: &[u8]) {
    bytes.iter().step_by(PAGE).for_each(|byte| _ = std::hint::black_box(*byte));
}

/// pread(2) of bytes of a file into memory that need not be a slice of this program's.
fn read_into(file: &File, to: &mut [u8], offset: usize) -> io::Result<usize> {
    // SAFETY: the kernel writes at most so many bytes to the slice.
    let got = unsafe { libc::pread(file.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), offset as i64) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

#[test]
fn guards_go_from_thread_to_thread() {
    fn check<T: Send + Sync>() {}
    check::<Pinned<'_>>();
    check::<PinnedMut<'_>>();
}

#[test]
fn pinned_bytes_stay_while_everything_else_goes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(400 * PAGE);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = cache(64);
    let map = map(&cache, &file);
    let other = create(&folder.path().join("other"), &[0; 11 * PAGE]);
    let (at, len) = (7 * PAGE + 100, 10 * PAGE);
    let pinned = map.pin(at, len).unwrap();
    assert_eq!(pinned.as_ptr(), map[at..].as_ptr());
    assert_eq!(cache.stats().pinned_pages, 11);
    let read = || cache.stats().misses + cache.stats().run_pages;
    let misses = read();
    for _ in 0..3 {
        sweep(&map);
        map.advise(Advice::DontNeed).unwrap();
        assert!(cache.stats().resident_pages <= 64);
        let before = cache.stats().misses;
        assert!(*pinned == bytes[at..at + len]);
        assert_eq!(cache.stats().misses, before, "a pinned page was gone");
        // A system call finds all of it.
        other.write_all_at(&pinned, 5).unwrap();
    }
    assert!(read() >= misses + 3 * (400 - 11));
    let mut copy = vec![0; len];
    other.read_exact_at(&mut copy, 5).unwrap();
    assert!(copy == bytes[at..at + len]);
    drop(pinned);
    assert_eq!(cache.stats().pinned_pages, 0);
    // Evictors find them again.
    map.advise(Advice::DontNeed).unwrap();
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn system_calls_read_into_pages_pinned_for_writing() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(40 * PAGE);
    let path = folder.path().join("source");
    let source = create(&path, &bytes);
    let target = sparse(&folder.path().join("target"), 40 * PAGE as u64);
    let cache = cache(64);
    let mut map = map_mut(&cache, &target);
    // Pages read before, clean and write-protected, pages that are absent, and direct I/O, which asks for alignment.
    sweep(&map[..10 * PAGE]);
    for (file, at, len) in [(&source, 100, 20 * PAGE), (&direct(&path), 24 * PAGE, 16 * PAGE)] {
        let mut pinned = map.pin_mut(at, len).unwrap();
        assert_eq!(read_into(file, &mut pinned, at).unwrap(), len);
        drop(pinned);
        assert!(map[at..at + len] == bytes[at..at + len]);
    }
    map.flush().unwrap();
    let mut found = vec![0; 40 * PAGE];
    target.read_exact_at(&mut found, 0).unwrap();
    assert!(found[100..100 + 20 * PAGE] == bytes[100..100 + 20 * PAGE] && found[24 * PAGE..] == bytes[24 * PAGE..]);
    map.advise(Advice::DontNeed).unwrap();
    assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
}

#[test]
fn more_pins_than_the_budget_are_an_error_and_room_comes_back() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(200 * PAGE));
    let cache = cache(64);
    let map = map(&cache, &file);
    let most = map.pin(0, 48 * PAGE).unwrap();
    for (at, len) in [(100, 1), (46, 3), (0, 49), (100, 100)] {
        let error = map.pin(at * PAGE, len * PAGE).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()) && text.contains("allows 196608 at a time"), "{text}");
        let Error::PinBudget { offset, len: asked, most, pinned, .. } = error else { panic!("{text}") };
        assert_eq!((offset, asked, most), ((at * PAGE) as u64, (len * PAGE) as u64, 48 * PAGE as u64));
        assert!(pinned <= most);
        assert_eq!(cache.stats().pinned_pages, 48);
    }
    // Pinned once already, they cost nothing more; and copies need no room.
    let again = map.pin(10 * PAGE, 38 * PAGE).unwrap();
    assert_eq!(cache.stats().pinned_pages, 48);
    let mut buffer = vec![0; 100 * PAGE];
    map.read_at(&mut buffer, 100 * PAGE).unwrap();
    assert!(buffer == pattern(200 * PAGE)[100 * PAGE..]);
    assert_eq!(map.get_at::<u8>(150 * PAGE).unwrap(), buffer[50 * PAGE]);
    // Nor do loads of everything else.
    sweep(&map);
    drop(most);
    assert_eq!(cache.stats().pinned_pages, 38);
    assert!(map.pin(100 * PAGE, 11 * PAGE).is_err());
    drop(map.pin(100 * PAGE, 10 * PAGE).unwrap());
    drop(again);
    drop(map.pin(100 * PAGE, 48 * PAGE).unwrap());
    assert_eq!(cache.stats().pinned_pages, 0);
    map.advise(Advice::DontNeed).unwrap();
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn the_smallest_cache_has_room_for_some() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(100 * PAGE));
    let cache = common::small();
    let mut map = map_mut(&cache, &file);
    {
        let pinned = map.pin(50 * PAGE, 4 * PAGE).unwrap();
        sweep(&map);
        assert!(map.pin(0, 1).is_err());
        assert!(*pinned == pattern(100 * PAGE)[50 * PAGE..54 * PAGE]);
    }
    let mut pinned = map.pin_mut(50 * PAGE, 4 * PAGE).unwrap();
    pinned.fill(1);
    drop(pinned);
    assert!(map[50 * PAGE..54 * PAGE].iter().all(|byte| *byte == 1));
}

#[test]
fn pins_of_one_page_nest_and_may_be_dropped_elsewhere() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes = pattern(200 * PAGE);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = cache(32);
    let map = map(&cache, &file);
    let pins: Vec<_> = (0..100).map(|at| map.pin(at, 3 * PAGE).unwrap()).collect();
    assert_eq!(cache.stats().pinned_pages, 4);
    std::thread::scope(|scope| {
        for (number, pinned) in pins.into_iter().enumerate() {
            if number % 25 == 0 {
                sweep(&map);
            }
            let bytes = &bytes;
            scope.spawn(move || {
                assert!(*pinned == bytes[number..number + 3 * PAGE]);
                drop(pinned);
            });
        }
    });
    assert_eq!(cache.stats().pinned_pages, 0);
    map.advise(Advice::DontNeed).unwrap();
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn a_page_counts_so_many_pins_and_no_more() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(PAGE));
    let cache = cache(32);
    let (one, mut two) = (map(&cache, &file), map_mut(&cache, &file));
    let pins: Vec<_> = (0..2047).map(|_| one.pin(0, 1).unwrap()).collect();
    let error = one.pin(0, 1).unwrap_err();
    assert!(matches!(error, Error::TooManyPins { most: 2047, offset: 0, .. }), "{error}");
    assert!(one.get_at::<u8>(0).is_err() && two.pin_mut(0, 1).is_err());
    assert_eq!(cache.stats().pinned_pages, 1);
    drop(pins);
    assert_eq!(cache.stats().pinned_pages, 0);
    two.pin_mut(0, 1).unwrap().fill(9);
    assert_eq!(one[0], 9);
}

#[test]
fn a_map_pinned_for_writing_is_flushed_as_it_is_again_and_again() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 60 * PAGE]);
    let cache = cache(64);
    let (mut one, mut two) = (map_mut(&cache, &file), map_mut(&cache, &file));
    let mut reader = DirectReader::open(&path);
    // Its neighbours are dirty too, and not pinned.
    two[..30 * PAGE].fill(1);
    let mut pinned = one.pin_mut(10 * PAGE, 10 * PAGE).unwrap();
    for round in 2..20 {
        pinned.fill(round);
        two[9 * PAGE] = round;
        two[20 * PAGE] = round;
        let before = cache.stats();
        if round % 2 == 0 {
            two.flush().unwrap()
        } else {
            two.flush_async().wait().unwrap()
        }
        for (page, expected) in [(9, round), (10, round), (15, round), (19, round), (20, round), (8, 1), (21, 1)] {
            assert_eq!(reader.page(page)[0].to_ne_bytes()[0], expected, "page {page} after flush {round}");
        }
        let after = cache.stats();
        assert_eq!(after.dirty_pages, 10, "what is pinned stays dirty, all else is clean");
        assert!(after.writeback_pages >= before.writeback_pages + 12);
        pinned.fill(round + 100);
        assert_eq!((cache.stats().upgrades, cache.stats().misses), (after.upgrades, after.misses), "a store trapped");
    }
    drop(pinned);
    two.flush().unwrap();
    assert_eq!((reader.page(10)[0].to_ne_bytes()[0], cache.stats().dirty_pages), (119, 0));
    // Now a store traps like any.
    let upgrades = cache.stats().upgrades;
    two[10 * PAGE] = 1;
    assert_eq!(cache.stats().upgrades, upgrades + 1);
}

#[test]
fn stores_elsewhere_go_on_while_most_of_the_cache_is_pinned_for_writing() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![0; 300 * PAGE]);
    for pages in [64, 16] {
        let cache = cache(pages);
        let (mut one, mut two) = (map_mut(&cache, &file), map_mut(&cache, &file));
        let most = if pages == 64 { 48 } else { 4 };
        let mut pinned = one.pin_mut(0, most * PAGE).unwrap();
        pinned.fill(pages as u8);
        for round in 0..3 {
            for page in most..300 {
                two[page * PAGE + round] = pages as u8;
            }
        }
        // Passed over by whoever needs room, and not written over and over: a page is written once for each time it became dirty.
        let stats = cache.stats();
        let became_dirty = stats.misses + stats.upgrades + stats.guessed_stores;
        assert!(stats.writeback_pages <= became_dirty, "{stats:?}");
        assert!(pinned.iter().all(|byte| *byte == pages as u8));
        drop(pinned);
        drop((one, two));
        assert_eq!((cache.stats().resident_pages, cache.stats().dirty_pages), (0, 0));
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[..most * PAGE].iter().all(|byte| *byte == pages as u8));
        assert!((most..300).all(|page| bytes[page * PAGE..page * PAGE + 3] == [pages as u8; 3]));
    }
}

#[test]
fn a_program_that_dies_with_a_pin_leaves_its_bytes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &vec![0; 60 * PAGE]);
    let mut child = common::Waiting::start("pinned", &path);
    child.kill();
    common::until("saving", || common::keeper_of(&path).is_none());
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[PAGE..21 * PAGE].iter().all(|byte| *byte == 7));
}

#[test]
fn role() {
    let Some((role, path)) = common::role_of_child() else { return };
    assert_eq!(role, "pinned");
    let cache = cache(64);
    let mut map = map_mut(&cache, &open(&path));
    let other = map_mut(&cache, &open(&path));
    let mut pinned = map.pin_mut(PAGE, 20 * PAGE).unwrap();
    pinned.fill(1);
    other.flush().unwrap();
    pinned.fill(7);
    common::wait_for_parent();
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_signal() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(10 * PAGE + 100));
    let cache = cache(64);
    // SAFETY: a file of this test's own.
    let mut map = unsafe { options(&cache).len(20 * PAGE).map_mut(&file) }.unwrap();
    assert_eq!(map.get_at::<[u8; 2]>(10 * PAGE + 99).unwrap(), [pattern(10 * PAGE + 100)[10 * PAGE + 99], 0]);
    let mut buffer = vec![0; 3 * PAGE];
    let results = [
        map.pin(10 * PAGE, 2 * PAGE).map(drop),
        map.pin_mut(8 * PAGE, 12 * PAGE).map(drop),
        map.read_at(&mut buffer, 9 * PAGE),
        map.write_at(&buffer, 9 * PAGE),
        map.get_at::<u64>(11 * PAGE).map(drop),
        map.get_at::<u64>(11 * PAGE - 4).map(drop),
    ];
    for result in results {
        let error = result.unwrap_err();
        let Error::PastEnd { offset, size, .. } = &error else { panic!("{error}") };
        assert_eq!((*offset, *size), (11 * PAGE as u64, 10 * PAGE as u64 + 100));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(cache.stats().pinned_pages, 0);
    for (at, len) in [(20 * PAGE, 1), (0, 20 * PAGE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        assert!(matches!(map.pin(at, len), Err(Error::RangeOutside { .. })), "{at} {len}");
        assert!(matches!(map.pin_mut(at, len), Err(Error::RangeOutside { .. })), "{at} {len}");
    }
    assert!(matches!(map.read_at(&mut buffer, 18 * PAGE), Err(Error::RangeOutside { .. })));
    assert!(matches!(map.write_at(&buffer, 18 * PAGE), Err(Error::RangeOutside { .. })));
    assert!(matches!(map.get_at::<u64>(20 * PAGE - 7), Err(Error::RangeOutside { .. })));
    assert!(matches!(map.get_at::<u64>(usize::MAX - 3), Err(Error::RangeOutside { .. })));
    // Nothing is nowhere past the end.
    assert!(map.pin(15 * PAGE, 0).unwrap().is_empty() && map.pin_mut(20 * PAGE, 0).unwrap().is_empty());
    map.read_at(&mut [], 15 * PAGE).unwrap();
    map.get_at::<()>(20 * PAGE).unwrap();
    // Once the file is longer, all is well.
    file.set_len(20 * PAGE as u64).unwrap();
    map.write_at(&buffer, 9 * PAGE).unwrap();
    drop(map.pin(0, 20 * PAGE).unwrap());
}

/// Of a file that is cut, pinned pages stay as they are; once they are unpinned, they go.
#[test]
fn a_file_is_cut_under_a_pin() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let bytes = pattern(20 * PAGE);
    for write in [false, true] {
        let file = create(&path, &bytes);
        let cache = cache(64);
        let (mut one, two) = (map_mut(&cache, &file), map_mut(&cache, &file));
        let pinned: Box<dyn Deref<Target = [u8]>> = if write {
            let mut pinned = one.pin_mut(8 * PAGE, 6 * PAGE).unwrap();
            pinned[0] ^= 1;
            Box::new(pinned)
        } else {
            Box::new(one.pin(8 * PAGE, 6 * PAGE).unwrap())
        };
        let mut expected = bytes[8 * PAGE..14 * PAGE].to_vec();
        expected[0] ^= u8::from(write);
        file.set_len(10 * PAGE as u64 + 100).unwrap();
        for _ in 0..3 {
            two.flush().unwrap();
            two.advise(Advice::DontNeed).unwrap();
            assert!(**pinned == expected);
            assert_eq!(file.metadata().unwrap().len(), 10 * PAGE as u64 + 100, "written past the end");
        }
        assert_eq!(cache.stats().pinned_pages, 6);
        assert!(two.get_at::<u8>(16 * PAGE).is_err());
        // Longer again behind our back, before the pin goes.
        file.set_len(20 * PAGE as u64).unwrap();
        if !write {
            two.flush().unwrap();
            assert!(**pinned == expected);
        }
        drop(pinned);
        two.flush().unwrap();
        two.advise(Advice::DontNeed).unwrap();
        assert_eq!((cache.stats().resident_pages, cache.stats().pinned_pages), (0, 0));
        assert!(two[..8 * PAGE] == bytes[..8 * PAGE]);
        assert_eq!(two[8 * PAGE], expected[0]);
        if !write {
            // What was cut off is gone.
            assert!(two[10 * PAGE + 100..].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_file_grows_while_the_page_of_its_end_is_pinned() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(2 * PAGE + 100));
    let cache = cache(64);
    let (one, mut two) = (map_mut(&cache, &file), map_mut(&cache, &file));
    // SAFETY: inside the region, past the file's end, where nobody else looks.
    unsafe { two.as_mut_ptr().add(2 * PAGE + 200).write(9) };
    let pinned = one.pin(2 * PAGE, 100).unwrap();
    two.grow(6 * PAGE).unwrap();
    assert!(two[..2 * PAGE + 100] == pattern(2 * PAGE + 100));
    assert!(two[2 * PAGE + 100..].iter().all(|byte| *byte == 0), "new bytes are zeros");
    two[2 * PAGE + 300] = 5;
    two.flush().unwrap();
    assert!(*pinned == pattern(2 * PAGE + 100)[2 * PAGE..]);
    drop(pinned);
    drop((one, two));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[2 * PAGE + 200], bytes[2 * PAGE + 300]), (6 * PAGE, 0, 5));
}

#[test]
fn a_cache_shrinks_as_far_as_its_pins_allow() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(300 * PAGE));
    let cache = cache(128);
    let mut map = map_mut(&cache, &file);
    let mut pinned = map.pin_mut(0, 60 * PAGE).unwrap();
    pinned.fill(3);
    // 64 pages leave 48 to pins, 76 leave 60.
    for pages in [64, 75] {
        let error = cache.resize(pages * PAGE).unwrap_err();
        assert!(
            matches!(error, Error::PinsHold { .. }) && error.to_string().contains("245760 bytes are pinned"),
            "{error}"
        );
        assert_eq!(cache.capacity(), 128 * PAGE);
    }
    cache.resize(76 * PAGE).unwrap();
    assert_eq!((cache.capacity(), cache.stats().pinned_pages), (76 * PAGE, 60));
    assert!(cache.stats().resident_pages <= 76);
    assert!(pinned.iter().all(|byte| *byte == 3));
    drop(pinned);
    cache.resize(64 * PAGE).unwrap();
    assert!(map.pin(0, 49 * PAGE).is_err());
    drop(map.pin(0, 48 * PAGE).unwrap());
    cache.resize(Cache::MIN_CAPACITY).unwrap();
    assert!(map.pin(0, 5 * PAGE).is_err());
    drop(map.pin(0, 4 * PAGE).unwrap());
    cache.resize(256 * PAGE).unwrap();
    drop(map.pin(0, 240 * PAGE).unwrap());
    assert!(map.pin(0, 241 * PAGE).is_err());
    assert_eq!(cache.stats().pinned_pages, 0);
}

/// The fall-back, and maps of nothing.
#[test]
fn other_maps_have_the_same_methods() {
    // In memory already: mapped through the kernel.
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all_at(&pattern(3 * PAGE), 0).unwrap();
    // SAFETY: a file of this test's own.
    let mut map =
        unsafe { MapOptions::new().mode(Mode::Cached).fallback(Fallback::Kernel).len(10 * PAGE).map_mut(&file) }
            .unwrap();
    assert_eq!(map.engine(), Engine::Kernel);
    assert!(*map.pin(100, 2 * PAGE).unwrap() == pattern(3 * PAGE)[100..100 + 2 * PAGE]);
    map.pin_mut(PAGE, PAGE).unwrap().fill(1);
    map.write_at(&[2; 10], PAGE + 10).unwrap();
    assert_eq!(map.get_at::<[u8; 3]>(PAGE + 9).unwrap(), [1, 2, 2]);
    for result in [map.pin(4 * PAGE, 1).map(drop), map.read_at(&mut [0; 9], 4 * PAGE), map.write_at(&[1], 9 * PAGE)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("past the file's end"), "{error}");
    }
    assert!(matches!(map.pin(10 * PAGE, 1), Err(Error::RangeOutside { .. })));

    let file = tempfile::tempfile().unwrap();
    // SAFETY: as above.
    let (empty, mut empty_mut) = unsafe { (Map::map(&file).unwrap(), MapMut::map_mut(&file).unwrap()) };
    assert!(empty.pin(0, 0).unwrap().is_empty() && empty_mut.pin_mut(0, 0).unwrap().is_empty());
    assert!(empty.pin(0, 1).is_err() && empty_mut.pin_mut(1, 0).is_err());
    empty.read_at(&mut [], 0).unwrap();
    empty_mut.write_at(&[], 0).unwrap();
    empty.get_at::<[u8; 0]>(0).unwrap();
    assert!(empty.get_at::<u8>(0).is_err());
}
