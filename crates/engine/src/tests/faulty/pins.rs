//! Pins and copies on a disk that cannot be read, or not be written.

use super::{Bench, FILE, stamp};
use crate::store::faulty::Plan;
use crate::sys::PAGE;
use crate::{Advice, Cache, Error};

#[test]
fn a_page_that_cannot_be_read_is_an_error_and_no_signal() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    bench.disk.set(Plan { unreadable: Some(12), ..Plan::default() });
    let mut buffer = vec![0; 4 * PAGE];
    let results = [
        map.pin(10 * PAGE, 5 * PAGE).map(drop),
        map.pin_mut(10 * PAGE, 5 * PAGE).map(drop),
        map.read_at(&mut buffer, 10 * PAGE),
        map.gather(&[(30 * PAGE, 2 * PAGE), (12 * PAGE + 9, 1), (11 * PAGE, 2 * PAGE - 1)], &mut vec![0; 4 * PAGE]),
        map.write_at(&buffer, 10 * PAGE),
        map.get_at::<u32>(12 * PAGE + 8).map(drop),
    ];
    for result in results {
        let error = result.unwrap_err();
        let text = error.to_string();
        let Error::Load { path, offset, source, .. } = error else { panic!("{text}") };
        assert_eq!((path, offset, source.raw_os_error()), (bench.path.clone(), 12 * PAGE as u64, Some(libc::EIO)));
        assert!(text.contains("offset 49152") && text.contains("Input/output error"), "{text}");
    }
    assert_eq!(cache.stats().pinned_pages, 0, "what was pinned before it came to that is not any more");
    // Everything else works.
    assert_eq!(map.get_at::<u64>(11 * PAGE).unwrap(), stamp(11 * PAGE / 8, 0));
    drop(map.pin(13 * PAGE, 40 * PAGE).unwrap());
    bench.disk.set(Plan::default());
    assert_eq!(map.get_at::<u64>(12 * PAGE).unwrap(), stamp(12 * PAGE / 8, 0));
    drop(map.pin(10 * PAGE, 5 * PAGE).unwrap());
}

/// A flush of pages pinned for writing fails, and works once the disk does.
#[test]
fn pinned_pages_that_cannot_be_written_stay_dirty() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let (mut map, other) = (bench.map(&cache), bench.map(&cache));
    let mut pinned = map.pin_mut(10 * PAGE, 5 * PAGE).unwrap();
    pinned.fill(1);
    for (error, torn) in [(libc::ENOSPC, true), (libc::EIO, false)] {
        bench.disk.set(Plan { failing: 100, error, torn, ..Plan::default() });
        for _ in 0..2 {
            let failure = other.flush().unwrap_err();
            assert_eq!(bench.check_error(&failure, &[error], &(10..15)), 10..15);
            assert_eq!(cache.stats().dirty_pages, 5);
        }
    }
    bench.disk.set(Plan::default());
    pinned[0] = 2;
    other.flush().unwrap();
    let words = &bench.disk.stable()[10 * PAGE / 8..15 * PAGE / 8];
    assert_eq!(words[0], 0x0101_0101_0101_0102);
    assert!(words[1..].iter().all(|word| *word == 0x0101_0101_0101_0101));
    assert_eq!(cache.stats().dirty_pages, 5, "pinned for writing is dirty");
    drop(pinned);
    other.flush().unwrap();
    assert_eq!(cache.stats().dirty_pages, 0);
    other.advise(Advice::DontNeed).unwrap();
    assert_eq!(cache.stats().resident_pages, 0);
}

/// A cache full of pages that cannot be written has no room for a pin: an error in the end, no hang.
#[test]
fn a_pin_finds_no_room_among_pages_that_cannot_be_written() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(16 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    bench.disk.set(Plan { failing: 100, error: libc::ENOSPC, ..Plan::default() });
    map[..16 * PAGE].fill(3);
    let error = map.pin(100 * PAGE, PAGE).unwrap_err();
    assert!(error.to_string().contains("writing back dirty pages to make room"), "{error}");
    let Error::Load { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.raw_os_error(), Some(libc::ENOSPC));
    drop(map.pin(3 * PAGE, PAGE).unwrap());
    bench.disk.set(Plan::default());
    drop(map.pin(100 * PAGE, PAGE).unwrap());
    let mut last = [0; 8];
    map.read_at(&mut last, FILE - 8).unwrap();
    assert_eq!(u64::from_ne_bytes(last), stamp(FILE / 8 - 1, 0));
}

/// A page that cannot be read does no harm to the one before it, with which it is read.
#[test]
fn a_row_with_a_page_that_cannot_be_read() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(128 * PAGE).unwrap();
    let map = bench.map(&cache);
    let word = |page: usize| {
        // SAFETY: inside the map.
        unsafe { map.as_ptr().add(page * PAGE).cast::<u64>().read_volatile() }
    };
    let read = |page: usize| assert_eq!(word(page), stamp(page * PAGE / 8, 0), "page {page}");
    for round in 0..200 {
        map.advise(Advice::DontNeed).unwrap();
        let first = round * round % 37 * 5;
        read(first);
        read(first + 1);
    }
    let before = cache.stats().run_pages;
    assert!(before > 50, "{:?}", cache.stats());
    bench.disk.set(Plan { unreadable: Some(13), ..Plan::default() });
    for _ in 0..10 {
        map.advise(Advice::DontNeed).unwrap();
        read(12);
        assert!(map.pin(13 * PAGE, PAGE).is_err());
        read(10);
        read(11);
    }
    bench.disk.set(Plan::default());
    read(13);
}
