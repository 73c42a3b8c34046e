//! Maps by address: what mmap(2), munmap(2), mremap(2), mprotect(2) and their kin do, here over the cache. Each test in a process of its own:
//! they look at addresses that another's maps might get.

use crate::common::{PAGE, create, folder};
use fastmap::by_address::{self, Request};
use fastmap::{Cache, Fallback};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn request(len: usize, prot: i32, offset: usize) -> Request {
    let fallback = Fallback::Kernel;
    let (flags, offset) = (libc::MAP_SHARED, offset as u64);
    Request {
        addr: 0,
        len,
        prot,
        flags,
        offset,
        one_writer: true,
        own: true,
        fallback,
        async_stores: false,
        layers: true,
    }
}

fn map(file: &File, cache: &Cache, len: usize, prot: i32, offset: usize) -> usize {
    // SAFETY: files of the test's own.
    let at = unsafe { by_address::map(file.as_fd(), cache, &request(len, prot, offset)) }.unwrap();
    at.expect("served by the cache") as usize
}

/// A file whose pages hold their number, in memory as well.
fn numbered(path: &std::path::Path, pages: usize) -> (File, Vec<u8>) {
    let bytes: Vec<u8> = (0..pages).flat_map(|page| [page as u8; PAGE]).collect();
    (create(path, &bytes), bytes)
}

fn load(at: usize) -> u8 {
    // SAFETY: mapped, in these tests.
    unsafe { ptr::read_volatile(at as *const u8) }
}

fn store(at: usize, byte: u8) {
    // SAFETY: mapped, in these tests.
    unsafe { ptr::write_volatile(at as *mut u8, byte) }
}

/// What the kernel lets the program do at an address (proc(5), maps): "rw", "r-" or "--"; nothing mapped is "--" too.
fn access(at: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |hex: &str| usize::from_str_radix(hex, 16).unwrap();
    let here = maps.lines().find(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (number(start)..number(end)).contains(&at)
    });
    here.map_or("--".into(), |line| line.split(' ').nth(1).unwrap()[..2].into())
}

/// A private map is the cache's as long as it may only be read, beside shared ones of other bytes. What is stored to it later is not the
/// file's, and no other map has its addresses.
#[test]
fn private_maps_to_read() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    let (file, bytes) = numbered(&path, 64);
    let cache = Cache::new(32 * PAGE).unwrap();
    let private = |len, prot, offset| Request { flags: libc::MAP_PRIVATE, ..request(len, prot, offset) };
    // SAFETY: maps of the test's own; nobody uses what is unmapped.
    unsafe {
        let refuse = |wanted: Request| assert!(by_address::map(file.as_fd(), &cache, &wanted).unwrap().is_none());
        let at = map(&file, &cache, 16 * PAGE, RW, 0);
        refuse(private(16 * PAGE, RW, 32 * PAGE));
        let own = by_address::map(file.as_fd(), &cache, &private(16 * PAGE, libc::PROT_READ, 32 * PAGE)).unwrap();
        let own = own.expect("served by the cache") as usize;
        assert!(by_address::is_cached(at, 16 * PAGE) && by_address::is_cached(own, 16 * PAGE));
        assert_eq!((load(own + PAGE), access(own), own - at), (33, "r-".into(), 32 * PAGE));
        assert_eq!(by_address::sync(own, 16 * PAGE, libc::MS_SYNC), Ok(()));
        store(at + PAGE, 70);
        assert_eq!(by_address::protect(own, PAGE, RW), Ok(()));
        store(own, 71);
        store(at + 2 * PAGE, 72);
        assert_eq!([load(own), load(own + PAGE), load(at + PAGE)], [71, 33, 70]);
        assert_eq!(by_address::unmap(own, 16 * PAGE), Ok(()));
        assert_eq!(by_address::unmap(at, 16 * PAGE), Ok(()));
        let mut wanted = bytes.clone();
        (wanted[PAGE], wanted[2 * PAGE]) = (70, 72);
        assert!(std::fs::read(&path).unwrap() == wanted);
        // The same bytes twice: two places, or a store would be both maps'.
        for second in [private(PAGE, libc::PROT_READ, 0), request(PAGE, libc::PROT_READ, 0)] {
            let first = by_address::map(file.as_fd(), &cache, &private(16 * PAGE, libc::PROT_READ, 0)).unwrap();
            let first = first.expect("served by the cache") as usize;
            refuse(second);
            assert!(!by_address::holds(first, PAGE));
            assert_eq!(by_address::unmap(first, 16 * PAGE), Ok(()));
        }
    }
}

#[test]
fn a_map_with_holes_goes_as_one() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(32 * PAGE).unwrap();
    let one = map(&file, &cache, 64 * PAGE, RW, 0);
    assert_eq!(map(&file, &cache, 64 * PAGE, RW, 0), one);
    // SAFETY: nobody uses what is unmapped.
    unsafe {
        // Of the second map, two holes, and then all of it.
        assert_eq!(by_address::unmap(one + 8 * PAGE, 4 * PAGE), Ok(()));
        assert_eq!(by_address::unmap(one + 30 * PAGE, PAGE), Ok(()));
        assert_eq!(by_address::unmap(one, 64 * PAGE), Ok(()));
    }
    // The first is whole.
    (0..64).for_each(|page| assert_eq!(load(one + page * PAGE), page as u8));
    // SAFETY: as above.
    assert_eq!(unsafe { by_address::unmap(one, 64 * PAGE) }, Ok(()));
    assert!(!by_address::holds(one, 64 * PAGE));
}

#[test]
fn two_maps_of_a_file_have_one_address_and_two_layers() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(32 * PAGE).unwrap();
    let one = map(&file, &cache, 64 * PAGE, RW, 0);
    let two = map(&file, &cache, 8 * PAGE, RW, 4 * PAGE);
    assert_eq!(two, one + 4 * PAGE);
    store(two, 99);
    assert_eq!(load(one + 4 * PAGE), 99);
    // SAFETY: nobody uses them afterwards.
    unsafe {
        assert_eq!(by_address::unmap(one, 64 * PAGE), Ok(()));
        // The second one is there.
        assert_eq!((load(two), load(two + 7 * PAGE)), (99, 11));
        assert_eq!(access(one), "--");
        assert_eq!(by_address::unmap(two, 8 * PAGE), Ok(()));
    }
    assert!(!by_address::holds(one, 64 * PAGE));
    let mut byte = [0];
    file.read_at(&mut byte, 4 * PAGE as u64).unwrap();
    assert_eq!(byte[0], 99);
}

#[test]
fn a_part_is_unmapped_and_mapped_again() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(16 * PAGE).unwrap();
    let at = map(&file, &cache, 64 * PAGE, RW, 0);
    for page in 0..64 {
        store(at + page * PAGE + 1, 200);
    }
    // SAFETY: nobody uses that part until it is mapped again.
    unsafe { assert_eq!(by_address::unmap(at + 10 * PAGE, 5 * PAGE), Ok(())) };
    assert_eq!(access(at + 12 * PAGE), "--");
    let mut bytes = [0; 2];
    file.read_at(&mut bytes, 12 * PAGE as u64).unwrap();
    assert_eq!(bytes, [12, 200], "written when it was unmapped");
    assert_eq!((load(at + 9 * PAGE), load(at + 15 * PAGE + 1)), (9, 200));
    assert_eq!(map(&file, &cache, PAGE, RW, 12 * PAGE), at + 12 * PAGE);
    assert_eq!((load(at + 12 * PAGE), load(at + 12 * PAGE + 1)), (12, 200));
    assert_eq!(access(at + 11 * PAGE), "--");
    // SAFETY: the end of the test.
    unsafe { assert_eq!(by_address::unmap(at, 64 * PAGE), Ok(())) };
    assert!(!by_address::holds(at, 64 * PAGE));
}

#[test]
fn a_range_across_a_map_and_other_memory_is_unmapped() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 16);
    let cache = Cache::new(16 * PAGE).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: memory of the test's own, replaced in the middle.
    unsafe {
        let around = libc::mmap(ptr::null_mut(), 32 * PAGE, RW, flags, -1, 0) as usize;
        let fixed = Request {
            addr: around + 8 * PAGE,
            flags: libc::MAP_SHARED | libc::MAP_FIXED,
            ..request(8 * PAGE, RW, 4 * PAGE)
        };
        let at = by_address::map(file.as_fd(), &cache, &fixed).unwrap().expect("a first map goes anywhere") as usize;
        assert_eq!(at, around + 8 * PAGE);
        assert_eq!((load(at), load(at + 7 * PAGE)), (4, 11));
        store(at, 77);
        store(around, 1);
        store(around + 31 * PAGE, 1);
        assert_eq!(by_address::unmap(around + 4 * PAGE, 8 * PAGE), Ok(()));
        assert_eq!(access(around + 5 * PAGE), "--");
        assert_eq!(access(around + 9 * PAGE), "--");
        assert_eq!((load(around), load(around + 12 * PAGE), load(around + 31 * PAGE)), (1, 8, 1));
        let mut byte = [0];
        file.read_at(&mut byte, 4 * PAGE as u64).unwrap();
        assert_eq!(byte[0], 77);
        // Anonymous memory over a part of the map.
        assert_eq!(by_address::make_way(around + 13 * PAGE, 2 * PAGE), Ok(()));
        let over = libc::mmap((around + 13 * PAGE) as *mut _, 2 * PAGE, RW, flags | libc::MAP_FIXED, -1, 0) as usize;
        store(over, 5);
        assert_eq!((load(around + 12 * PAGE), load(over), load(around + 15 * PAGE)), (8, 5, 11));
        assert_eq!(by_address::unmap(around + 12 * PAGE, PAGE), Ok(()));
        assert_eq!(by_address::unmap(around + 15 * PAGE, PAGE), Ok(()));
        // The region is gone; what was mapped over it is not.
        assert_eq!(load(over), 5);
        assert_eq!(by_address::unmap(around, 32 * PAGE), Ok(()));
        assert_eq!(access(over), "--");
    }
}

#[test]
fn a_map_grows_and_shrinks() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    let (file, _) = numbered(&path, 8);
    let cache = Cache::new(16 * PAGE).unwrap();
    let at = map(&file, &cache, 8 * PAGE, RW, 0);
    file.set_len(1 << 30).unwrap();
    // SAFETY: maps of the test's own.
    unsafe {
        assert_eq!(
            by_address::remap(at, 8 * PAGE, 1 << 30, libc::MREMAP_MAYMOVE, 0),
            Ok(at as *mut u8),
            "there is room"
        );
        store(at + (1 << 30) - 1, 3);
        assert_eq!(by_address::remap(at, 1 << 30, 2 * PAGE, 0, 0), Ok(at as *mut u8));
        assert_eq!(access(at + 3 * PAGE), "--");
        let mut byte = [0];
        file.read_at(&mut byte, (1 << 30) - 1).unwrap();
        assert_eq!(byte[0], 3);
        assert_eq!(by_address::unmap(at, 2 * PAGE), Ok(()));
        // One for reading of a file that the program may write has as much.
        file.set_len(8 * PAGE as u64).unwrap();
        let at = map(&file, &cache, 8 * PAGE, libc::PROT_READ, 0);
        file.set_len(2 << 30).unwrap();
        assert_eq!(by_address::remap(at, 8 * PAGE, 2 << 30, 0, 0), Ok(at as *mut u8));
        assert_eq!(by_address::unmap(at, 2 << 30), Ok(()));
        // Another has less, and is the kernel's when it moves: other threads may use it meanwhile.
        file.set_len(8 * PAGE as u64).unwrap();
        drop(file);
        let wanted = Request { one_writer: false, own: false, ..request(8 * PAGE, libc::PROT_READ, 0) };
        let at = by_address::map(File::open(&path).unwrap().as_fd(), &cache, &wanted).unwrap().unwrap() as usize;
        File::options().write(true).open(&path).unwrap().set_len(2 << 30).unwrap();
        assert_eq!(by_address::remap(at, 8 * PAGE, 2 << 30, 0, 0), Err(libc::ENOMEM));
        let moved = by_address::remap(at, 8 * PAGE, 2 << 30, libc::MREMAP_MAYMOVE, 0).unwrap() as usize;
        assert!(!by_address::holds(moved, 2 << 30) && !by_address::holds(at, PAGE));
        assert_eq!((load(moved + 7 * PAGE), load(moved + (2 << 30) - 1)), (7, 0));
        assert_eq!(by_address::unmap(moved, 2 << 30), Ok(()));
    }
}

#[test]
fn protection_is_that_of_the_program() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 32);
    let cache = Cache::new(16 * PAGE).unwrap();
    let at = map(&file, &cache, 32 * PAGE, RW, 0);
    (0..32).for_each(|page| store(at + page * PAGE, 100 + page as u8));
    // SAFETY: maps of the test's own.
    unsafe {
        // As a whole the cache has it, whatever it is for.
        assert_eq!(by_address::protect(at, 32 * PAGE, libc::PROT_READ), Ok(()));
        assert_eq!((access(at), load(at + 8 * PAGE)), ("r-".into(), 108));
        assert_eq!(by_address::protect(at, 32 * PAGE, RW), Ok(()));
        assert!(by_address::is_cached(at, 32 * PAGE));
        (0..32).for_each(|page| store(at + page * PAGE, page as u8));
        assert!((0..32).all(|page| load(at + page * PAGE) == page as u8));
        let mut there = [0; 32];
        assert_eq!(by_address::residency(at, 32 * PAGE, there.as_mut_ptr()), Ok(()));
        let count = there.iter().map(|byte| usize::from(*byte)).sum::<usize>();
        assert!((1..=16).contains(&count), "{count}");
        assert_eq!(by_address::lock(at + 2 * PAGE, 4 * PAGE, false), Ok(()));
        assert_eq!(cache.stats().pinned_pages, 4);
        assert_eq!(by_address::lock(at, 32 * PAGE, false), Err(libc::ENOMEM));
        assert_eq!(by_address::unlock(at + 3 * PAGE, PAGE), Ok(()));
        assert_eq!(cache.stats().pinned_pages, 3, "the rest of the lock stays");
        assert_eq!(by_address::unlock(at, 32 * PAGE), Ok(()));
        assert_eq!(cache.stats().pinned_pages, 0);
        // More than the cache may lock is the kernel's to lock, if that is wished.
        assert_eq!(by_address::lock(at, 32 * PAGE, true), Ok(()));
        assert!(!by_address::holds(at, 32 * PAGE));
        assert_eq!(libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED), -1, "locked");
        assert_eq!(by_address::unmap(at, 32 * PAGE), Ok(()));
        // Parts are the kernel's.
        let at = map(&file, &cache, 32 * PAGE, RW, 0);
        (0..32).for_each(|page| store(at + page * PAGE, 100 + page as u8));
        assert_eq!(by_address::protect(at + 4 * PAGE, 4 * PAGE, libc::PROT_NONE), Ok(()));
        assert_eq!(by_address::protect(at + 8 * PAGE, 4 * PAGE, libc::PROT_READ), Ok(()));
        assert!(!by_address::holds(at, 32 * PAGE));
        assert_eq!([access(at), access(at + 4 * PAGE), access(at + 8 * PAGE)], ["rw", "--", "r-"]);
        assert_eq!(load(at + 8 * PAGE), 108);
        let mut bytes = [0; 32 * PAGE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!((0..32).all(|page| bytes[page * PAGE] == 100 + page as u8));
        assert_eq!(by_address::unmap(at, 32 * PAGE), Ok(()));
        // For reading first, for writing later, by the descriptor's mode: all of it, and a part.
        for part in [32 * PAGE, PAGE] {
            let at = map(&file, &cache, 32 * PAGE, libc::PROT_READ, 0);
            assert_eq!(by_address::protect(at, part, RW), Ok(()));
            store(at, 9);
            assert_eq!((load(at), access(at + PAGE)), (9, if part == PAGE { "r-".into() } else { "rw".to_owned() }));
            assert_eq!(by_address::unmap(at, 32 * PAGE), Ok(()));
            let reader = File::open(folder.path().join("file")).unwrap();
            let at = map(&reader, &cache, 32 * PAGE, libc::PROT_READ, 0);
            assert_eq!(by_address::protect(at, part, RW), Err(libc::EACCES));
            assert_eq!(by_address::unmap(at, 32 * PAGE), Ok(()));
        }
    }
}

/// A map of other bytes of the file that is for writing opens nothing but itself: what is for reading only, what was unmapped, and
/// what lies behind all maps stay closed.
#[test]
fn a_map_for_writing_opens_nothing_else() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(32 * PAGE).unwrap();
    let at = map(&file, &cache, 16 * PAGE, libc::PROT_READ, 0);
    assert_eq!([access(at + 16 * PAGE), access(at + 63 * PAGE)], ["--", "--"]);
    // SAFETY: maps of the test's own.
    unsafe {
        assert_eq!(by_address::unmap(at + 4 * PAGE, 4 * PAGE), Ok(()));
        let other = map(&file, &cache, 16 * PAGE, RW, 32 * PAGE);
        assert_eq!(other, at + 32 * PAGE, "in the same addresses");
        store(other, 1);
        let found = [0, 4, 8, 16, 32, 47, 48].map(|page| access(at + page * PAGE));
        assert_eq!(found, ["r-", "--", "r-", "--", "rw", "rw", "--"]);
        // The first of them as a whole.
        assert_eq!(by_address::unmap(at, 8 * PAGE), Ok(()));
        assert_eq!(by_address::protect(at + 8 * PAGE, 8 * PAGE, RW), Ok(()));
        store(at + 8 * PAGE, 2);
        let found = [0, 4, 8, 16, 32, 48].map(|page| access(at + page * PAGE));
        assert_eq!(found, ["--", "--", "rw", "--", "rw", "--"]);
        assert!(by_address::is_cached(at + 8 * PAGE, 8 * PAGE) && by_address::is_cached(other, 16 * PAGE));
        // Holes are no memory, also not to a call.
        assert_eq!(by_address::sync(at, 16 * PAGE, libc::MS_SYNC), Err(libc::ENOMEM));
        assert_eq!(by_address::advise(at + 16 * PAGE, PAGE, libc::MADV_NORMAL), Err(libc::ENOMEM));
        assert_eq!(by_address::protect(at + 15 * PAGE, 2 * PAGE, libc::PROT_READ), Err(libc::ENOMEM));
        assert_eq!([access(at + 14 * PAGE), access(at + 15 * PAGE)], ["rw", "r-"], "up to the hole");
        assert_eq!(by_address::unmap(at, 64 * PAGE), Ok(()));
    }
}

/// Maps that can be told from one another have addresses of their own; those that cannot, and lay in layers when their file was handed
/// over, are unmapped one by one.
#[test]
fn layers_are_alike_and_go_one_by_one() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    let (file, _) = numbered(&path, 64);
    let cache = Cache::new(32 * PAGE).unwrap();
    let reader = File::open(&path).unwrap();
    let refuse = |file: &File, wanted: Request| {
        // SAFETY: maps of the test's own.
        let mapped = unsafe { by_address::map(file.as_fd(), &cache, &wanted) };
        assert!(mapped.unwrap().is_none(), "{wanted:?} is the kernel's");
    };
    for (file_of_second, wanted) in [
        (&file, request(64 * PAGE, libc::PROT_READ, 0)),
        (&reader, request(PAGE, libc::PROT_READ, 0)),
        (&file, Request { layers: false, ..request(PAGE, RW, 63 * PAGE) }),
        (&file, request(PAGE, libc::PROT_NONE, 0)),
        (&file, request(PAGE, libc::PROT_READ | libc::PROT_EXEC, 0)),
    ] {
        let at = map(&file, &cache, 64 * PAGE, RW, 0);
        store(at + PAGE, 70);
        refuse(file_of_second, wanted);
        assert!(!by_address::holds(at, PAGE));
        assert_eq!((load(at + PAGE), access(at)), (70, "rw".into()));
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { by_address::unmap(at, 64 * PAGE) }, Ok(()));
    }
    // Three layers, of which one reaches over a part.
    let at = map(&file, &cache, 64 * PAGE, RW, 0);
    assert_eq!(map(&file, &cache, 64 * PAGE, RW, 0), at);
    assert_eq!(map(&file, &cache, 8 * PAGE, RW, 4 * PAGE), at + 4 * PAGE);
    store(at + 5 * PAGE, 71);
    refuse(&file, request(PAGE, libc::PROT_NONE, 0));
    let open = |pages: [usize; 4]| pages.map(|page| access(at + page * PAGE));
    // SAFETY: nobody uses what is unmapped.
    unsafe {
        assert_eq!(by_address::unmap(at, 64 * PAGE), Ok(()));
        assert_eq!(open([0, 4, 12, 63]), ["rw", "rw", "rw", "rw"]);
        assert_eq!(by_address::unmap(at, 64 * PAGE), Ok(()));
        assert_eq!(open([0, 4, 11, 12]), ["--", "rw", "rw", "--"]);
        assert_eq!(load(at + 5 * PAGE), 71);
        assert_eq!(by_address::unmap(at + 4 * PAGE, 8 * PAGE), Ok(()));
        assert_eq!(open([0, 4, 11, 12]), ["--", "--", "--", "--"]);
    }
    assert_eq!(map_and_load(&file, &cache, 5), 71);
}

/// With the last kernel mapping gone the cache has the file again.
fn map_and_load(file: &File, cache: &Cache, page: usize) -> u8 {
    let at = map(file, cache, 64 * PAGE, RW, 0);
    let byte = load(at + page * PAGE);
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { by_address::unmap(at, 64 * PAGE) }, Ok(()));
    byte
}

#[test]
fn a_child_has_kernel_mappings_at_the_same_places() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 32);
    let cache = Cache::new(16 * PAGE).unwrap();
    let at = map(&file, &cache, 32 * PAGE, RW, 0);
    store(at, 50);
    // SAFETY: the child touches its maps and ends.
    unsafe {
        by_address::before_fork();
        let child = libc::fork();
        if child == 0 {
            by_address::in_child();
            let right = load(at) == 50 && load(at + 31 * PAGE) == 31 && !by_address::holds(at, PAGE);
            store(at + 20 * PAGE, 60);
            libc::_exit(i32::from(!right));
        }
        by_address::in_parent();
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
        assert_eq!(load(at + 20 * PAGE), 60, "not loaded before: as the child left it");
        assert_eq!(by_address::unmap(at, 32 * PAGE), Ok(()));
    }
}

#[test]
fn what_the_cache_cannot_place_is_handed_to_the_kernel() {
    alone!();
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(16 * PAGE).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    for how in ["fixed", "executable", "moved"] {
        let at = map(&file, &cache, 64 * PAGE, RW, 0);
        (0..64).for_each(|page| store(at + page * PAGE, 100 + page as u8));
        // SAFETY: maps and memory of the test's own.
        unsafe {
            let there = libc::mmap(ptr::null_mut(), 64 * PAGE, RW, flags, -1, 0) as usize;
            let other = match how {
                "fixed" => {
                    let fixed =
                        Request { addr: there, flags: libc::MAP_SHARED | libc::MAP_FIXED, ..request(64 * PAGE, RW, 0) };
                    assert!(by_address::map(file.as_fd(), &cache, &fixed).unwrap().is_none(), "a second place");
                    let at = libc::mmap(
                        there as *mut _,
                        64 * PAGE,
                        RW,
                        fixed.flags,
                        std::os::fd::AsRawFd::as_raw_fd(&file),
                        0,
                    );
                    by_address::note_kernel(&by_address::own(), file.as_fd(), at as usize, 64 * PAGE, None);
                    at as usize
                }
                "executable" => {
                    assert_eq!(by_address::protect(at, PAGE, libc::PROT_READ | libc::PROT_EXEC), Ok(()));
                    assert_eq!(by_address::protect(at, PAGE, RW), Ok(()));
                    at
                }
                _ => {
                    let both = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    assert_eq!(by_address::remap(at, 64 * PAGE, 64 * PAGE, both, there), Ok(there as *mut u8));
                    there
                }
            };
            assert!(!by_address::holds(at, 64 * PAGE), "{how}");
            store(other + 5 * PAGE, 55);
            assert!((0..64).all(|page| load(other + page * PAGE) == if page == 5 { 55 } else { 100 + page as u8 }));
            if how != "moved" {
                assert_eq!(load(at + 5 * PAGE), 55, "{how}: one file");
            }
            // As long as one is the kernel's, all are.
            assert!(by_address::map(file.as_fd(), &cache, &request(PAGE, RW, 0)).unwrap().is_none());
            assert_eq!(by_address::unmap(other, 64 * PAGE), Ok(()));
            if how == "fixed" {
                assert_eq!(by_address::unmap(at, 64 * PAGE), Ok(()));
            }
            let again = map(&file, &cache, 64 * PAGE, RW, 0);
            assert_eq!((load(again + 5 * PAGE), load(again)), (55, 100), "{how}");
            assert_eq!(by_address::unmap(again, 64 * PAGE), Ok(()));
            libc::munmap(there as *mut _, 64 * PAGE);
        }
    }
}

#[test]
fn a_small_file_with_room_to_grow_takes_no_huge_pages() {
    alone!();
    let folder = folder();
    let cache = Cache::new(64 * PAGE).unwrap();
    // Of the whole process, bytes: smaps_rollup (proc(5)).
    let anonymous = || -> usize {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let one = |name: &str| {
        let (file, _) = numbered(&folder.path().join(name), 1);
        let at = map(&file, &cache, PAGE, RW, 0);
        store(at, 1);
        at
    };
    let mut maps = vec![one("first")];
    let before = anonymous();
    maps.extend((0..16).map(|n| one(&format!("file{n}"))));
    let each = anonymous().saturating_sub(before) / 16;
    assert!(each < 256 << 10, "{each} bytes of bookkeeping for each file of a page");
    // SAFETY: nobody uses them afterwards.
    maps.into_iter().for_each(|at| unsafe { assert_eq!(by_address::unmap(at, PAGE), Ok(())) });
}

/// What is mapped behind the end of a file was never touched, and costs nothing when the file changes hands.
#[test]
fn far_more_is_mapped_than_the_file_has() {
    alone!();
    const MAPPED: usize = 64 << 30;
    let memory = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let folder = folder();
    let (file, _) = numbered(&folder.path().join("file"), 64);
    let cache = Cache::new(1 << 20).unwrap();
    let all = Request { len: MAPPED, ..request(MAPPED, RW, 0) };
    // SAFETY: a map of the test's own.
    let at = unsafe { by_address::map(file.as_fd(), &cache, &all) }.unwrap().expect("served by the cache") as usize;
    store(at + 5 * PAGE, 55);
    let before = memory();
    // A thread that comes behind the end of the file, and finds something there when it has grown.
    file.set_len(100 * PAGE as u64).unwrap();
    assert_eq!(load(at + 99 * PAGE), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { by_address::protect(at, PAGE, libc::PROT_READ | libc::PROT_EXEC) }, Ok(()));
    assert!(!by_address::holds(at, MAPPED));
    assert_eq!((load(at + 5 * PAGE), load(at + 99 * PAGE), load(at + 7 * PAGE)), (55, 0, 7));
    // A word for each page would be 64 MiB.
    assert!(memory() < before + (16 << 20), "{} MiB more", (memory() - before) >> 20);
    // SAFETY: as above.
    assert_eq!(unsafe { by_address::unmap(at, MAPPED) }, Ok(()));
}
