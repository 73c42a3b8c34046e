//! Block devices, and disks that are full.

mod common;

use common::*;
use fastmap::{Advice, Cache, Engine, Error};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

// --- block devices, full disks ----------------------------------------------------------------------------------------

#[test]
fn a_block_device() {
    if !ready() {
        return;
    }
    let folder = folder();
    let backing = folder.path().join("backing");
    // Devices come in units of 512 bytes: the last page is not whole.
    let mut bytes = pattern((1 << 20) + 3 * 512);
    create(&backing, &bytes);
    let device = match Loop::over(&backing) {
        Ok(device) => device,
        Err(why) => return println!("skipped: {why}"),
    };
    {
        let cache = small();
        let mut map = map_mut(&cache, &open(&device.0));
        assert_eq!((map.len(), map.engine()), (bytes.len(), Engine::Cached));
        assert!(map[..] == bytes[..]);
        for at in [0, 4095, 4096, 500_000, bytes.len() - 1] {
            map[at] = 7;
            bytes[at] = 7;
        }
        map.flush().unwrap();
        assert!(std::fs::read(&backing).unwrap() == bytes);
        assert!(map[..] == bytes[..]);
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(64 << 20).unwrap(); // more than the disk has
    let cache = Cache::new(8 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    map[0] = 1;
    map.flush().unwrap();
    disk.fill();
    let places: Vec<usize> = (0..1000).map(|page| page * 16 * PAGE + 5).collect();
    places.iter().for_each(|at| map[*at] = *at as u8 | 1);
    for _ in 0..2 {
        let Err(error) = map.flush() else { panic!("flushed to a full disk") };
        let Error::WriteBack { path: named, len, source, .. } = &error else { panic!("{error}") };
        assert_eq!((named, source.kind(), *len > 0), (&path, std::io::ErrorKind::StorageFull, true), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
    }
    assert!(map.advise(Advice::DontNeed).is_err());
    places.iter().for_each(|at| assert_eq!(map[*at], *at as u8 | 1, "in memory at {at}"));
    assert!(cache.stats().writeback_errors > 0);
    disk.make_room();
    map.flush().unwrap();
    assert_eq!(cache.stats().dirty_pages, 0);
    for at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).unwrap();
        assert_eq!(byte[0], at as u8 | 1, "in the file at {at}");
    }
}

#[test]
fn a_map_dropped_on_a_full_disk_keeps_its_bytes() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    disk.fill();
    let mut first = map_mut(&cache, &file);
    (0..100).for_each(|page| first[page * PAGE] = page as u8 + 1);
    drop(first); // says so on standard error
    assert_eq!(std::fs::read(&path).unwrap()[PAGE], 0);
    let again = map(&cache, &file);
    (0..100).for_each(|page| assert_eq!(again[page * PAGE], page as u8 + 1));
    drop(again);
    disk.make_room();
    map_mut(&cache, &file).flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (0..100).for_each(|page| assert_eq!(bytes[page * PAGE], page as u8 + 1));
    assert_eq!(cache.stats().resident_pages, 0);
}

#[test]
fn what_a_dropped_map_could_not_save_is_saved_when_there_is_room() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    disk.fill();
    let mut map = map_mut(&cache, &file);
    map[12_345] = 67;
    drop(map);
    disk.make_room();
    let begin = Instant::now();
    while std::fs::read(&path).unwrap()[12_345] != 67 {
        assert!(begin.elapsed() < Duration::from_secs(5), "nobody tried again");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Saved, it goes as it would have: its memory, its descriptors.
    while cache.stats().resident_pages > 0 {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is held for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn flush_async_is_tried_again_when_there_is_room() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    disk.fill();
    let mut map = map_mut(&cache, &file);
    map[12_345] = 67;
    let error = map.flush_async().wait().unwrap_err();
    assert!(
        matches!(&error, Error::WriteBack { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
        "{error}"
    );
    std::thread::sleep(Duration::from_millis(300));
    disk.make_room();
    let begin = Instant::now();
    while std::fs::read(&path).unwrap()[12_345] != 67 {
        assert!(begin.elapsed() < Duration::from_secs(5), "nobody tried again");
        std::thread::sleep(Duration::from_millis(20));
    }
}
