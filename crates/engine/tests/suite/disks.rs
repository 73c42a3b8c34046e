//! Block devices, disks that are full, and disks that go away.

use crate::common::*;
use crate::loops::Loop;
use fastmap::{Advice, Cache, Engine, Error, MapMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

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
        Err(why) => return skip(why),
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
    let places: Vec<usize> = (0..1000).map(|page| page * 16 * PAGE + 5).collect();
    places.iter().for_each(|at| map[*at] = *at as u8 | 1);
    disk.rob(&file);
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

/// As with mmap(2): the store to a hole has the signal, and what was accepted is in the file, whoever writes it.
#[test]
fn a_store_that_a_full_disk_has_no_room_for_is_refused_and_all_others_last() {
    let Some(disk) = small_disk() else { return };
    for (round, role) in ["stores", "stores-after-loads"].into_iter().enumerate() {
        let path = disk.path("sparse");
        create(&path, &[]).set_len(64 << 20).unwrap();
        let output = child(role, &path).output().unwrap();
        let said = format!("{role}: {}", said(&output));
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGBUS), "{said}");
        assert!(said.contains("sparse") && said.contains("fallocate") && !said.contains("cannot be saved"), "{said}");
        let accepted: usize = std::fs::read_to_string(disk.path("progress")).unwrap().trim().parse().unwrap();
        // The keeper has written it: a map waits for it.
        let map = map(&small(), &open(&path));
        assert_eq!(map.len(), 64 << 20);
        assert!(accepted > 2000, "{accepted} of the 6000 blocks that the disk has");
        (0..accepted).for_each(|page| assert_eq!(map[page * PAGE], 7, "round {round}: page {page}"));
        drop(map);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(disk.path("progress")).unwrap();
    }
}

/// By name a store is a call, and it fails. What has blocks can be stored to.
#[test]
fn calls_that_store_fail_on_a_full_disk() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[1; PAGE]);
    file.set_len(8 << 20).unwrap();
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    map[100 * PAGE] = 1;
    disk.fill();
    // Never seen, and read before.
    assert_eq!(map[900 * PAGE], 0);
    for page in [700, 900] {
        let error = map.write_at(b"x", page * PAGE + 7).unwrap_err();
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
        let error = map.pin_mut(page * PAGE, 1).unwrap_err();
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
    }
    map[5] = 2;
    map[100 * PAGE] = 2;
    map.flush().unwrap();
    disk.make_room();
    map.write_at(b"x", 700 * PAGE + 7).unwrap();
    map[900 * PAGE] = 3;
    map.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!([bytes[5], bytes[100 * PAGE], bytes[700 * PAGE + 7], bytes[900 * PAGE]], [2, 2, b'x', 3]);
    assert_eq!((bytes.len(), cache.stats().writeback_errors), (8 << 20, 0));
}

/// Where fallocate(2) is not to be had: zeros are written.
#[test]
fn a_file_system_that_cannot_allocate_refuses_stores_as_well() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("old");
    let file = create(&path, &[]);
    match Command::new("chattr").arg("-e").arg(&path).output() {
        Ok(done) if done.status.success() => {}
        other => return skip(format!("chattr: {other:?}")),
    }
    file.set_len(8 << 20).unwrap();
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    map[100 * PAGE] = 1;
    disk.fill();
    assert!(map.write_at(b"x", 700 * PAGE).is_err());
    map[100 * PAGE] = 2;
    map.flush().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[100 * PAGE], 2);
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, path)) = role_of_child() else { return };
    let cache = Cache::new(64 << 20).unwrap();
    let map = Box::leak(Box::new(map_mut(&cache, &open(&path))));
    let progress = create(&path.with_file_name("progress"), &[b' '; 16]);
    if role == "stores-after-loads" {
        assert_eq!((0..map.len()).step_by(PAGE).map(|at| usize::from(map[at])).sum::<usize>(), 0);
    }
    for page in 0..map.len() / PAGE {
        map[page * PAGE] = 7;
        progress.write_all_at(format!("{:<16}", page + 1).as_bytes(), 0).unwrap();
    }
}

#[test]
fn a_map_dropped_on_a_full_disk_keeps_its_bytes() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    let mut first = map_mut(&cache, &file);
    (0..100).for_each(|page| first[page * PAGE] = page as u8 + 1);
    disk.rob(&file);
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
    let mut map = map_mut(&cache, &file);
    map[12_345] = 67;
    disk.rob(&file);
    drop(map);
    disk.make_room();
    until("another try", || std::fs::read(&path).unwrap()[12_345] == 67);
    // Saved, it goes as it would have: its memory, its descriptors.
    until("the end of its memory", || cache.stats().resident_pages == 0);
}

#[test]
fn flush_async_is_tried_again_when_there_is_room() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(1 << 20).unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    map[12_345] = 67;
    disk.rob(&file);
    let error = map.flush_async().wait().unwrap_err();
    assert!(
        matches!(&error, Error::WriteBack { source, .. } if source.kind() == std::io::ErrorKind::StorageFull),
        "{error}"
    );
    let errors = cache.stats().writeback_errors;
    until("a try in vain", || cache.stats().writeback_errors > errors);
    disk.make_room();
    until("another try", || std::fs::read(&path).unwrap()[12_345] == 67);
}

// --- disks that go away -----------------------------------------------------------------------------------------------

/// A flush must fail with this number, naming the file and a place in `bytes`.
fn assert_refused(map: &MapMut, path: &Path, number: i32, bytes: Range<u64>) {
    let Err(error) = map.flush() else { panic!("flushed to a disk that is gone") };
    let Error::WriteBack { path: named, offset, source, .. } = &error else { panic!("{error}") };
    assert_eq!((named.as_path(), source.raw_os_error()), (path, Some(number)), "{error}");
    assert!(bytes.contains(offset), "{error}");
}

/// As when its disk is pulled: every read and write fails from then on.
/// What is read ahead makes no difference to what is in memory, where there is room for both.
#[test]
fn a_file_system_that_goes_down_under_a_map() {
    goes_down_under_a_map(1 << 20, 0);
    goes_down_under_a_map(2 << 20, 8 << 20);
}

fn goes_down_under_a_map(capacity: usize, readahead: usize) {
    const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587D;
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    let mut bytes = pattern(1 << 20);
    let file = create(&path, &bytes);
    let cache = Cache::new(capacity).unwrap();
    let mut map = map_mut(&cache, &file);
    map.set_readahead(readahead).unwrap();
    assert!(map[..] == bytes[..]);
    let stored = 10 * PAGE..20 * PAGE;
    map[stored.clone()].fill(7);
    bytes[stored.clone()].fill(7);
    let without_its_log = 2u32;
    // SAFETY: the request reads one u32.
    if unsafe { libc::ioctl(file.as_raw_fd(), EXT4_IOC_SHUTDOWN, &without_its_log) } != 0 {
        return skip(format!("ext4 cannot be shut down: {}", std::io::Error::last_os_error()));
    }
    for _ in 0..2 {
        assert_refused(&map, &path, libc::EIO, stored.start as u64..stored.end as u64);
        assert!(map.advise(Advice::DontNeed).is_err());
        assert!(map[..] == bytes[..], "what is in memory");
    }
    // In vain, and said on standard error; so it is again at exit. Neither may hang.
    drop(map);
    // Not while the writers try them again.
    until("all that was stored is dirty", || cache.stats().dirty_pages == 10);
}

/// A device does not get shorter as a file does that is truncated: what lay behind its new end is not to be forgotten.
#[test]
fn a_device_that_loses_its_medium_under_a_map() {
    if !ready() {
        return;
    }
    let folder = folder();
    let backing = folder.path().join("backing");
    let mut bytes = pattern(1 << 20);
    let medium = create(&backing, &bytes);
    let device = match Loop::over(&backing) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let resize = |len: usize| {
        medium.set_len(len as u64).unwrap();
        let done = Command::new("losetup").arg("--set-capacity").arg(&device.0).status().unwrap();
        assert!(done.success(), "losetup: {done}");
    };
    let cache = Cache::new(1 << 20).unwrap();
    let mut map = map_mut(&cache, &open(&device.0));
    // Fellows of pages stored to would be taken for stored to, and written to the new medium.
    map.set_readahead(0).unwrap();
    let stored = 10 * PAGE..20 * PAGE;
    map[stored.clone()].fill(7);
    resize(0);
    for _ in 0..2 {
        assert_refused(&map, &device.0, libc::ENOSPC, stored.start as u64..stored.end as u64);
        assert!(map[stored.clone()].iter().all(|byte| *byte == 7), "what is in memory");
    }
    resize(bytes.len());
    map.flush().unwrap();
    bytes.fill(0);
    bytes[stored].fill(7);
    assert!(std::fs::read(&backing).unwrap() == bytes);
}

#[test]
fn unmap_hands_the_map_back_or_waits_until_there_is_room() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    let file = create(&path, &[]);
    file.set_len(4 << 20).unwrap();
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &file);
    // More than the calling thread writes by itself: the writers' errors come back too.
    for page in (0..600).step_by(2) {
        map[page * PAGE] = page as u8 | 1;
    }
    disk.rob(&file);
    let unsaved = map.unmap().unwrap_err();
    let text = unsaved.to_string();
    assert!(text.contains(&path.display().to_string()) && text.contains("make room"), "{text}");
    let Error::WriteBack { source, .. } = &unsaved.error else { panic!("{text}") };
    assert_eq!(source.raw_os_error(), Some(libc::ENOSPC));
    // Intact, and usable.
    let mut map = unsaved.map;
    assert!((0..600).step_by(2).all(|page| map[page * PAGE] == page as u8 | 1));
    map[601 * PAGE] = 9;
    std::thread::scope(|scope| {
        let errors = cache.stats().writeback_errors;
        let waiting = scope.spawn(move || map.unmap_blocking());
        until("tries in vain", || waiting.is_finished() || cache.stats().writeback_errors > errors + 2);
        assert!(!waiting.is_finished());
        disk.make_room();
        waiting.join().unwrap();
    });
    let bytes = std::fs::read(&path).unwrap();
    assert!((0..600).step_by(2).all(|page| bytes[page * PAGE] == page as u8 | 1));
    assert_eq!(bytes[601 * PAGE], 9);
}
