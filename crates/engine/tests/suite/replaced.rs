//! Other memory over a part of a map (`MAP_FIXED`): it is the program's alone, whatever of the map was locked, pinned or dirty, and
//! whoever evicts, writes back, or saves what a killed program stored. Or there is none, and all is as before. Each
//! test in a process of its own: one has a limit for the whole process, and memory is put where maps were.

use crate::common;
use crate::common::{PAGE, Random, Waiting, create, folder, role_of_child, small_disk, until, wait_for_parent};
use fastmap::by_address::{self, Request};
use fastmap::{Cache, Fallback};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 256;
const LEN: usize = PAGES * PAGE;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// What is replaced.
const AT: usize = 100;
const COUNT: usize = 16;

/// A map of a file that holds 'o' in all its bytes.
fn map(path: &Path, cache: &Cache) -> (File, usize) {
    let file = create(path, &vec![b'o'; LEN]);
    let (flags, fallback) = (libc::MAP_SHARED, Fallback::Refuse);
    let request = Request {
        addr: 0,
        len: LEN,
        prot: RW,
        flags,
        offset: 0,
        one_writer: true,
        own: true,
        fallback,
        async_stores: false,
        layers: true,
    };
    // SAFETY: nobody else changes the file.
    let at = unsafe { by_address::map(file.as_fd(), cache, &request) }.unwrap().expect("through the cache");
    (file, at as usize)
}

fn load(at: usize) -> u8 {
    // SAFETY: mapped, in these tests.
    unsafe { (at as *const u8).read_volatile() }
}

fn store(at: usize, byte: u8) {
    // SAFETY: mapped, in these tests.
    unsafe { (at as *mut u8).write_volatile(byte) }
}

/// mmap(2) as a program's, with its own bytes in the new memory.
fn replace(at: usize) -> Result<(), i32> {
    let (start, len) = (at + AT * PAGE, COUNT * PAGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the test's own map.
    unsafe {
        by_address::make_way(start, len)?;
        assert_eq!(libc::mmap(start as *mut _, len, RW, flags, -1, 0), start as *mut _);
        (start as *mut u8).write_bytes(b'S', len);
    }
    Ok(())
}

/// Looks at all that is not replaced, several times, through a cache that is smaller; and what was replaced is as it was left.
fn expect_own(at: usize, path: &Path) {
    let outside = |page: &usize| !(AT..AT + COUNT).contains(page);
    for _ in 0..3 {
        assert!((0..PAGES).filter(outside).all(|page| load(at + page * PAGE) == b'o'));
    }
    assert_eq!(by_address::sync(at, LEN, libc::MS_SYNC), Ok(()));
    assert!((AT * PAGE..(AT + COUNT) * PAGE).all(|byte| load(at + byte) == b'S'), "the program's own memory");
    expect_file(path, b'o');
}

fn expect_file(path: &Path, byte: u8) {
    let bytes = std::fs::read(path).unwrap();
    let strange = bytes.iter().position(|found| *found != byte);
    assert_eq!(strange, None, "{:?}", strange.map(|at| bytes[at]));
}

fn unmap(at: usize) {
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { by_address::unmap(at, LEN) }, Ok(()));
}

/// Kilobytes of a mapping that are locked (proc(5), smaps).
fn locked(at: usize) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in text.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
            here = (start..end).contains(&at);
        } else if let (true, Some(size)) = (here, line.strip_prefix("Locked:")) {
            return size.trim().trim_end_matches(" kB").parse().unwrap();
        }
    }
    panic!("nothing is mapped at {at:x}");
}

#[test]
fn what_is_locked_makes_way_and_stays_locked_beside_it() {
    alone!();
    let folder = folder();
    let path = folder.path().join("data");
    let cache = Cache::new(64 * PAGE).unwrap();
    let (_file, at) = map(&path, &cache);
    // From two pages before what is replaced to two pages after it.
    by_address::lock(at + (AT - 2) * PAGE, (COUNT + 4) * PAGE, false).unwrap();
    replace(at).unwrap();
    assert!(!by_address::holds(at, LEN));
    expect_own(at, &path);
    assert_eq!([locked(at + (AT - 2) * PAGE), locked(at + AT * PAGE)], [8, 0]);
    assert_eq!([locked(at + (AT + COUNT) * PAGE), locked(at)], [8, 0]);
    unmap(at);
    assert_eq!((cache.stats().pinned_pages, cache.stats().resident_pages), (0, 0));
}

#[test]
fn what_is_pinned_by_address_makes_way() {
    alone!();
    let folder = folder();
    let path = folder.path().join("data");
    for writing in [false, true] {
        let cache = Cache::new(64 * PAGE).unwrap();
        let (_file, at) = map(&path, &cache);
        let (start, len) = (at + (AT + 3) * PAGE + 7, 4 * PAGE);
        by_address::keep(start, len, writing).unwrap();
        store(at + (AT + 4) * PAGE, b'o');
        replace(at).unwrap();
        expect_own(at, &path);
        // What is there now was never pinned.
        assert_eq!(
            (by_address::let_go(start, len, writing), by_address::let_go(start, len, writing)),
            (Ok(()), Err(libc::EINVAL))
        );
        unmap(at);
        assert_eq!((cache.stats().pinned_pages, cache.stats().resident_pages), (0, 0));
    }
}

/// A pin elsewhere in the file keeps it in the cache: a system call may be at work there. It is waited for, but not for ever.
#[test]
fn a_pin_elsewhere_is_waited_for() {
    alone!();
    let folder = folder();
    let path = folder.path().join("data");
    let cache = Cache::new(64 * PAGE).unwrap();
    let (_file, at) = map(&path, &cache);
    by_address::lock(at + AT * PAGE, 4 * PAGE, false).unwrap();
    by_address::keep(at + (AT + 1) * PAGE, 2 * PAGE, true).unwrap();
    by_address::keep(at, PAGE, true).unwrap();
    store(at + AT * PAGE, b'n');
    assert_eq!(replace(at), Err(libc::EBUSY));
    // As before: cached, locked, pinned, with all bytes.
    assert!(by_address::is_cached(at, LEN));
    assert_eq!((cache.stats().pinned_pages, load(at + AT * PAGE)), (5, b'n'));
    store(at + AT * PAGE, b'o');
    let tried = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("an attempt", || tried.load(Ordering::Relaxed) && cache.stats().pinned_pages == 1);
            assert_eq!(by_address::let_go(at, PAGE, true), Ok(()));
        });
        tried.store(true, Ordering::Relaxed);
        assert_eq!(replace(at), Ok(()));
    });
    expect_own(at, &path);
    unmap(at);
}

/// A file that cannot be saved keeps its map, dirty, locked, and in the cache.
#[test]
fn what_cannot_be_saved_stays() {
    alone!();
    let Some(disk) = small_disk() else { return };
    let path = disk.path("data");
    let cache = Cache::new(64 * PAGE).unwrap();
    let (file, at) = map(&path, &cache);
    store(at + (AT + 2) * PAGE, b'n');
    store(at + 7 * PAGE, b'n');
    by_address::lock(at + AT * PAGE, 4 * PAGE, false).unwrap();
    {
        // What they have on the disk goes to another file, behind the engine's back.
        for page in [AT + 2, 7] {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: an open descriptor, and numbers.
            let punched = unsafe { libc::fallocate(file.as_raw_fd(), mode, (page * PAGE) as i64, PAGE as i64) };
            assert_eq!(punched, 0);
        }
        file.sync_all().unwrap();
        disk.fill();
        assert_eq!(replace(at), Err(libc::ENOSPC));
        // SAFETY: the test's own map.
        unsafe {
            let part = (at, PAGE);
            assert_eq!(by_address::protect(part.0, part.1, libc::PROT_NONE), Err(libc::ENOSPC));
            assert_eq!(by_address::advise(part.0, part.1, libc::MADV_REMOVE), Err(libc::ENOSPC));
            let both = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let other = libc::mmap(ptr::null_mut(), PAGE, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) as usize;
            assert_eq!(by_address::remap(other, PAGE, PAGE, both, at + AT * PAGE), Err(libc::ENOSPC));
            assert_eq!(load(other), 0, "it has not moved");
            libc::munmap(other as *mut _, PAGE);
        }
        assert!(by_address::is_cached(at, LEN));
        assert_eq!((load(at + (AT + 2) * PAGE), load(at + 7 * PAGE), cache.stats().pinned_pages), (b'n', b'n', 4));
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[(AT + 2) * PAGE], bytes[7 * PAGE], bytes[8 * PAGE]), (0, 0, b'o'));
    disk.make_room();
    assert_eq!(by_address::sync(at, LEN, libc::MS_SYNC), Ok(()));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[(AT + 2) * PAGE], bytes[7 * PAGE]), (b'n', b'n'));
    [AT + 2, 7].into_iter().for_each(|page| store(at + page * PAGE, b'o'));
    replace(at).unwrap();
    expect_own(at, &path);
    unmap(at);
}

/// Addresses that a file's maps have beside them are as much the program's: behind the last one, and where a part was unmapped.
#[test]
fn addresses_beside_the_maps_are_lent() {
    alone!();
    let folder = folder();
    let path = folder.path().join("data");
    let cache = Cache::new(64 * PAGE).unwrap();
    let (_file, at) = map(&path, &cache);
    // SAFETY: the test's own maps.
    unsafe {
        assert_eq!(by_address::unmap(at + AT * PAGE, COUNT * PAGE), Ok(()));
        replace(at).unwrap();
        assert!(by_address::is_cached(at, AT * PAGE) && by_address::is_cached(at + (AT + COUNT) * PAGE, PAGE));
        assert!(!by_address::holds(at + AT * PAGE, COUNT * PAGE), "nobody takes it for the cache's");
        assert!(by_address::pin(at + AT * PAGE, 8).is_none());
        let behind = at + LEN + 5 * PAGE;
        assert_eq!(by_address::make_way(behind, PAGE), Ok(()));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        assert_eq!(libc::mmap(behind as *mut _, PAGE, RW, flags, -1, 0), behind as *mut _);
        store(behind, 1);
        let around = [AT - 1, AT + COUNT].map(|page| load(at + page * PAGE));
        assert_eq!(around, [b'o'; 2]);
        for _ in 0..3 {
            let outside = (0..PAGES).filter(|page| !(AT..AT + COUNT).contains(page));
            outside.for_each(|page| assert_eq!(load(at + page * PAGE), b'o'));
        }
        assert!((AT * PAGE..(AT + COUNT) * PAGE).all(|byte| load(at + byte) == b'S'));
        assert_eq!((by_address::unmap(at, LEN), load(behind)), (Ok(()), 1));
        assert_eq!(libc::munmap(behind as *mut _, PAGE), 0);
    }
    expect_file(&path, b'o');
}

/// While other threads load and store around it, memory comes and stays: each of them finds what it left.
#[test]
fn threads_beside_it_go_on() {
    alone!();
    let folder = folder();
    for round in 0..8 {
        let path = folder.path().join("data");
        let cache = Cache::new(64 * PAGE).unwrap();
        let (_file, at) = map(&path, &cache);
        by_address::lock(at + (AT - 2) * PAGE, (COUNT + 4) * PAGE, false).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut random = Random::new(round * 3 + thread);
                    while !stop.load(Ordering::Relaxed) {
                        let page = random.below(PAGES);
                        if !(AT..AT + COUNT).contains(&page) {
                            store(at + page * PAGE + thread as usize, b'o');
                            assert_eq!(load(at + page * PAGE), b'o');
                        }
                    }
                });
            }
            // By calls, which pin, and find the kernel's mappings afterwards.
            scope.spawn(move || {
                let mut random = Random::new(round);
                while !stop.load(Ordering::Relaxed) {
                    let place = at + random.below(AT - 1) * PAGE + 3;
                    let mut byte = 0;
                    by_address::keep(place, PAGE, true).unwrap();
                    // SAFETY: our own byte, and the map's.
                    unsafe {
                        by_address::write(place, &b'o', 1).unwrap();
                        by_address::read(place, &mut byte, 1).unwrap();
                    }
                    by_address::let_go(place, PAGE, true).unwrap();
                    assert_eq!(byte, b'o');
                }
            });
            until("evictions", || cache.stats().evicted_pages > 500);
            let replaced = replace(at);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(replaced, Ok(()));
        });
        expect_own(at, &path);
        unmap(at);
    }
}

#[test]
fn the_keeper_saves_no_memory_but_the_maps() {
    alone!();
    let folder = folder();
    for role in ["locked", "pinned"] {
        let path = folder.path().join(role);
        let mut child = Waiting::start(role, &path);
        child.kill();
        // A map for writing waits until the keeper has saved.
        let cache = Cache::new(64 * PAGE).unwrap();
        drop(common::map_mut(&cache, &common::open(&path)));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[50 * PAGE], b'n', "what was stored to the map");
        let strange =
            bytes.iter().enumerate().position(|(at, byte)| *byte != if at == 50 * PAGE { b'n' } else { b'o' });
        assert_eq!(strange, None, "{role}: {:?}", strange.map(|at| (at / PAGE, bytes[at])));
    }
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, path)) = role_of_child() else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let (_file, at) = map(&path, &cache);
    match role.as_str() {
        "locked" => by_address::lock(at + AT * PAGE, COUNT * PAGE, false).unwrap(),
        _ => by_address::keep(at + AT * PAGE, COUNT * PAGE, true).unwrap(),
    }
    store(at + AT * PAGE, b'o');
    replace(at).unwrap();
    store(at + 50 * PAGE, b'n');
    wait_for_parent();
}
