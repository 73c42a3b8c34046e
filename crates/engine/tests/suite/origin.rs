//! Files that are filled while they are read, from an origin that is slow, fails, loses what it brought, and brings wrong bytes.

use crate::common::*;
use fastmap::by_address::{self, Request};
use fastmap::{Advice, Cache, Error, Fallback, Map, MapOptions, Origin};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const UNIT: u64 = 64 << 10;

/// An object of random bytes, and its local copy, in units of 64 KiB. Handlers call its methods, so none allocates.
#[derive(Debug)]
struct Remote {
    bytes: Vec<u8>,
    file: File,
    there: Vec<AtomicBool>,
    /// What was asked for without waiting; a thread of the test's brings it.
    asked: Vec<AtomicBool>,
    latency: Duration,
    /// Error number of all that is brought, or zero.
    failure: AtomicI32,
    /// Units that come out wrong, so many.
    wrong: AtomicUsize,
    /// Units that are gone again as soon as they are there, so many.
    gone: AtomicUsize,
    brought: AtomicU64,
    waited_for: AtomicU64,
    found_wrong: AtomicU64,
}

impl Remote {
    fn new(folder: &Path, len: usize, latency: Duration) -> Arc<Self> {
        let mut random = Random::new(len as u64);
        let bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len).collect();
        let file = sparse(&folder.join("copy"), len as u64);
        let flags = || (0..len.div_ceil(UNIT as usize)).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Remote {
            bytes,
            file,
            there: flags(),
            asked: flags(),
            latency,
            failure: AtomicI32::new(0),
            wrong: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
            brought: AtomicU64::new(0),
            waited_for: AtomicU64::new(0),
            found_wrong: AtomicU64::new(0),
        })
    }

    fn units(range: &Range<u64>) -> Range<usize> {
        (range.start / UNIT) as usize..range.end.div_ceil(UNIT) as usize
    }

    fn fetch(&self, unit: usize) {
        if self.there[unit].load(Ordering::Acquire) {
            return;
        }
        std::thread::sleep(self.latency);
        let begin = unit * UNIT as usize;
        let end = self.bytes.len().min(begin + UNIT as usize);
        self.file.write_all_at(&self.bytes[begin..end], begin as u64).unwrap();
        let spoils = |wrong: usize| wrong.checked_sub(1);
        if self.wrong.fetch_update(Ordering::AcqRel, Ordering::Acquire, spoils).is_ok() {
            self.file.write_all_at(&[!self.bytes[begin]], begin as u64).unwrap();
        }
        self.brought.fetch_add(1, Ordering::AcqRel);
        self.there[unit].store(true, Ordering::Release);
        if self.gone.fetch_update(Ordering::AcqRel, Ordering::Acquire, spoils).is_ok() {
            self.lose(unit);
        }
    }

    /// Takes a unit away again, as an eviction does.
    fn lose(&self, unit: usize) {
        self.there[unit].store(false, Ordering::Release);
        let end = self.bytes.len().min((unit + 1) * UNIT as usize);
        let zeros = vec![0; end - unit * UNIT as usize];
        self.file.write_all_at(&zeros, unit as u64 * UNIT).unwrap();
    }

    /// Brings what was asked for, until `stop`.
    fn serve(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let mut any = false;
            for (unit, _) in self.asked.iter().enumerate().filter(|(_, asked)| asked.swap(false, Ordering::AcqRel)) {
                any = true;
                self.fetch(unit);
            }
            if !any {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

impl Origin for Remote {
    fn has(&self, range: Range<u64>) -> bool {
        self.there[Self::units(&range)].iter().all(|there| there.load(Ordering::Acquire))
    }

    fn bring(&self, range: Range<u64>, _patience: Option<Duration>) -> Result<(), i32> {
        if self.has(range.clone()) {
            return Ok(());
        }
        match self.failure.load(Ordering::Acquire) {
            0 => {
                self.waited_for.fetch_add(1, Ordering::AcqRel);
                Self::units(&range).for_each(|unit| self.fetch(unit));
                Ok(())
            }
            error => Err(error),
        }
    }

    fn ask(&self, range: Range<u64>) {
        self.asked[Self::units(&range)].iter().for_each(|asked| asked.store(true, Ordering::Release));
    }

    fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        let right = self.bytes[offset as usize..].starts_with(bytes);
        if !right {
            self.found_wrong.fetch_add(1, Ordering::AcqRel);
            Self::units(&(offset..offset + bytes.len() as u64))
                .for_each(|unit| self.there[unit].store(false, Ordering::Release));
        }
        right
    }

    fn name(&self) -> &Path {
        Path::new("test://object")
    }

    fn explain(&self, error: i32) -> Option<&str> {
        (error == libc::ETIMEDOUT).then_some("the store does not answer: look whether it runs")
    }
}

fn map_of(remote: &Arc<Remote>, cache: &Cache) -> Map {
    MapOptions::new().cache(cache).map_origin(&remote.file, remote.clone()).unwrap()
}

#[test]
fn all_of_an_object_is_there() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 3 * (1 << 20) + 1234, Duration::ZERO);
    let cache = Cache::new(64 * PAGE).unwrap();
    let map = map_of(&remote, &cache);
    assert_eq!(map.len(), remote.bytes.len());
    assert!(map[..] == remote.bytes[..]);
    // Local by now, and again.
    assert!(map[..] == remote.bytes[..] && remote.brought.load(Ordering::Acquire) == remote.there.len() as u64);
    assert!(
        MapOptions::new().offset(5000).len(10).map_origin(&remote.file, remote.clone()).unwrap()[..]
            == remote.bytes[5000..5010]
    );
}

#[test]
fn what_is_in_memory_already_goes_through_the_cache_too() {
    if !ready() {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let remote = Remote::new(folder.path(), 1 << 20, Duration::ZERO);
    let map = map_of(&remote, &Cache::new(64 * PAGE).unwrap());
    assert_eq!(map.engine(), fastmap::Engine::Cached);
    assert!(map[..] == remote.bytes[..]);
}

#[test]
fn what_goes_as_soon_as_it_is_there_is_brought_until_it_stays_and_what_is_wrong_is_an_error() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 1 << 20, Duration::ZERO);
    let map = map_of(&remote, &Cache::new(64 * PAGE).unwrap());
    let mut page = [0; PAGE];
    remote.gone.store(100, Ordering::Release);
    map.read_at(&mut page, 0).unwrap();
    assert!(page == remote.bytes[..PAGE] && remote.brought.load(Ordering::Acquire) > 100);
    remote.wrong.store(100, Ordering::Release);
    assert!(map.read_at(&mut page, 512 << 10).is_err());
}

#[test]
fn what_is_wrong_or_gone_is_brought_again() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 4 << 20, Duration::ZERO);
    let map = map_of(&remote, &Cache::new(64 * PAGE).unwrap());
    let stop = AtomicBool::new(false);
    let rounds = quick_or_full(4, 30);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| remote.serve(&stop));
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !stop.load(Ordering::Acquire) {
                remote.lose(random.below(remote.there.len()));
                remote.wrong.store(1, Ordering::Release);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                let (map, remote) = (&map, &remote);
                scope.spawn(move || {
                    let mut random = Random::new(seed + 10);
                    for round in 0..rounds {
                        for _ in 0..300 {
                            let at = random.below(remote.bytes.len() - 10_000);
                            let mut bytes = [0; 10_000];
                            // Lost faster than it can be read, for four times in a row, a page cannot be had.
                            match map.read_at(&mut bytes, at) {
                                Ok(()) => assert!(bytes[..] == remote.bytes[at..at + 10_000]),
                                Err(error) => assert_eq!(error.errno(), libc::EIO),
                            }
                        }
                        let _ = map.advise(if round % 2 == 0 { Advice::Sequential } else { Advice::Normal });
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(remote.found_wrong.load(Ordering::Acquire) > 0);
}

#[test]
fn an_origin_that_fails_is_told_of_and_forgiven() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 1 << 20, Duration::ZERO);
    let map = map_of(&remote, &Cache::new(64 * PAGE).unwrap());
    remote.failure.store(libc::ETIMEDOUT, Ordering::Release);
    let mut byte = [0];
    let error = map.read_at(&mut byte, 70_000).unwrap_err();
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    let said = error.to_string();
    assert!(matches!(error, Error::Fetch { offset: 69_632, .. }), "{error:?}");
    assert!(said.contains("test://object") && said.contains("look whether it runs"), "{said}");
    assert_eq!(map.pin(0, 1).map(drop).unwrap_err().errno(), libc::ETIMEDOUT);
    assert_eq!(map.gather(&[(5, 1), (80_000, 1)], &mut [0; 2]).unwrap_err().errno(), libc::ETIMEDOUT);
    remote.failure.store(libc::EIO, Ordering::Release);
    assert!(matches!(map.read_at(&mut byte, 0), Err(Error::Load { .. })));
    remote.failure.store(0, Ordering::Release);
    assert!(map[..] == remote.bytes[..]);
}

#[test]
fn a_load_that_cannot_be_served_says_which_object_and_where() {
    if !ready() {
        return;
    }
    let output = child("dead-origin", Path::new("")).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{said}");
    assert!(said.contains("fastmap: test://object: page at offset 131072 cannot be served"), "{said}");
    assert!(said.contains("look whether it runs"), "{said}");
}

#[test]
fn a_walk_finds_what_was_asked_for_ahead() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 8 << 20, Duration::from_millis(2));
    let cache = Cache::new(1024 * PAGE).unwrap();
    let map = map_of(&remote, &cache);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..8 {
            scope.spawn(|| remote.serve(&stop));
        }
        for (index, page) in map.chunks(PAGE).enumerate() {
            assert!(page == &remote.bytes[index * PAGE..][..page.len()]);
        }
    });
    let (ahead, all) = (cache.stats().ahead_pages, (remote.bytes.len() / PAGE) as u64);
    assert!(ahead > all / 2, "{ahead} of {all} pages were read ahead");
}

#[test]
fn random_reads_fetch_what_they_touch() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 16 << 20, Duration::ZERO);
    let map = map_of(&remote, &Cache::new(8192 * PAGE).unwrap());
    let mut random = Random::new(3);
    let mut touched = std::collections::BTreeSet::new();
    for _ in 0..200 {
        // Of every second unit only: what is read around a page must not reach the next.
        let unit = random.below(remote.there.len() / 2) * 2;
        let at = unit * UNIT as usize + random.below(UNIT as usize);
        assert_eq!(map[at], remote.bytes[at]);
        touched.insert(unit);
    }
    let there = remote.there.iter().filter(|there| there.load(Ordering::Acquire)).count();
    assert_eq!(there, touched.len());
}

#[test]
fn a_gather_asks_for_all_of_it_first() {
    if !ready() {
        return;
    }
    let folder = folder();
    let remote = Remote::new(folder.path(), 32 << 20, Duration::ZERO);
    let cache = Cache::new(2048 * PAGE).unwrap();
    let map = map_of(&remote, &cache);
    let rows: Vec<_> = (0..remote.there.len()).map(|unit| (unit * UNIT as usize + 77, 100)).collect();
    // It is told what fails when it waits for the first; by then all has been asked for.
    remote.failure.store(libc::ETIMEDOUT, Ordering::Release);
    let mut output = vec![0; rows.len() * 100];
    assert_eq!(map.gather(&rows, &mut output).unwrap_err().errno(), libc::ETIMEDOUT);
    assert!(remote.asked.iter().all(|asked| asked.load(Ordering::Acquire)));
    remote.failure.store(0, Ordering::Release);
    map.gather(&rows, &mut output).unwrap();
    assert!(rows.iter().zip(output.chunks(100)).all(|((at, len), found)| *found == remote.bytes[*at..at + len]));
}

fn request(len: usize) -> Request {
    Request {
        addr: 0,
        len,
        prot: libc::PROT_READ,
        flags: libc::MAP_PRIVATE,
        offset: 0,
        one_writer: true,
        own: true,
        fallback: Fallback::Kernel,
        async_stores: false,
        layers: true,
    }
}

fn map_by_address(remote: &Arc<Remote>, cache: &Cache) -> &'static [u8] {
    let len = remote.bytes.len();
    // SAFETY: no place is fixed.
    let at = unsafe { by_address::map_origin(remote.file.as_fd(), remote.clone(), cache, &request(len)) }.unwrap();
    // SAFETY: mapped just now.
    unsafe { std::slice::from_raw_parts(at, len) }
}

/// An object of 1 MiB, and a small cache.
fn small() -> (tempfile::TempDir, Arc<Remote>, Cache) {
    let folder = folder();
    let remote = Remote::new(folder.path(), 1 << 20, Duration::ZERO);
    (folder, remote, Cache::new(64 * PAGE).unwrap())
}

#[test]
fn each_map_by_address_has_pages_of_its_own() {
    alone!();
    let (_folder, remote, cache) = small();
    let (one, two) = (map_by_address(&remote, &cache), map_by_address(&remote, &cache));
    assert!(one.as_ptr() != two.as_ptr() && *one == remote.bytes[..] && *two == remote.bytes[..]);
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { by_address::unmap(one.as_ptr().addr(), one.len()) }, Ok(()));
    assert!(!by_address::holds(one.as_ptr().addr(), one.len()) && *two == remote.bytes[..]);
}

#[test]
fn a_protection_that_needs_a_kernel_mapping_is_refused() {
    alone!();
    let (_folder, remote, cache) = small();
    let map = map_by_address(&remote, &cache);
    let at = map.as_ptr().addr();
    let writable = Request { prot: libc::PROT_READ | libc::PROT_WRITE, ..request(PAGE) };
    // SAFETY: the map is this test's, and no place is fixed.
    unsafe {
        assert_eq!(by_address::protect(at, map.len(), writable.prot), Err(libc::EACCES));
        assert_eq!(by_address::protect(at, PAGE, libc::PROT_NONE), Err(libc::EOPNOTSUPP));
        let mapped = by_address::map_origin(remote.file.as_fd(), remote.clone(), &cache, &writable);
        assert_eq!(mapped.unwrap_err().errno(), libc::EACCES);
    }
    assert!(*map == remote.bytes[..]);
}

#[test]
fn a_map_by_address_moves_and_grows() {
    alone!();
    let (_folder, remote, cache) = small();
    let map = map_by_address(&remote, &cache);
    // SAFETY: the map is this test's, and used at its new place alone.
    unsafe {
        let moved = by_address::remap(map.as_ptr().addr(), map.len(), 2 * map.len(), libc::MREMAP_MAYMOVE, 0).unwrap();
        assert!(std::slice::from_raw_parts(moved as *const u8, map.len()) == &remote.bytes[..]);
    }
}

#[test]
fn a_map_by_address_is_unmapped_in_parts() {
    alone!();
    let (_folder, remote, cache) = small();
    let map = map_by_address(&remote, &cache);
    let at = map.as_ptr().addr();
    // SAFETY: nobody uses what is unmapped.
    let unmap = |pages: Range<usize>| unsafe { by_address::unmap(at + pages.start * PAGE, pages.len() * PAGE) };
    assert_eq!(unmap(0..4), Ok(()));
    assert!(map[4 * PAGE..] == remote.bytes[4 * PAGE..]);
    assert_eq!(unmap(4..map.len() / PAGE), Ok(()));
    assert!(!by_address::holds(at, map.len()));
}

#[test]
fn an_object_that_has_changed_is_an_error_by_address_too() {
    alone!();
    let (_folder, remote, cache) = small();
    let at = map_by_address(&remote, &cache).as_ptr() as usize;
    remote.failure.store(libc::ESTALE, Ordering::Release);
    let mut row = [0; 10];
    // SAFETY: so much room.
    let read = unsafe { by_address::read(at, row.as_mut_ptr(), row.len()) };
    assert_eq!(read.unwrap_err().errno(), libc::ESTALE);
    let ranges = [at..at + 5, at + 5..at + 10];
    assert_eq!(by_address::gather(&ranges, &mut row).unwrap_err().errno(), libc::ESTALE);
    assert_eq!(by_address::prefetch_wait(&ranges).unwrap_err().errno(), libc::ESTALE);
    assert_eq!(by_address::keep(at, 10, false).unwrap_err().errno(), libc::ESTALE);
    assert_eq!(by_address::lock(at, PAGE, false), Err(libc::ESTALE));
    // SAFETY: advice that destroys nothing.
    let populate = unsafe { by_address::advise(at, PAGE, libc::MADV_POPULATE_READ) };
    assert_eq!(populate, Err(libc::ESTALE));
}

/// Ends the process unless `is_so`, without what a child of a test must not do.
fn child_says(is_so: bool) {
    if !is_so {
        // SAFETY: ends the process.
        unsafe { libc::_exit(1) };
    }
}

fn in_a_child(work: impl FnOnce()) -> bool {
    by_address::before_fork();
    // SAFETY: the child looks at memory and ends; what must come before and after does.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            by_address::in_child();
            work();
            libc::_exit(0);
        }
        by_address::in_parent();
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn children_have_it_too() {
    alone!();
    let folder = folder();
    let remote = Remote::new(folder.path(), 6 * (1 << 20) + 99, Duration::ZERO);
    // So that what a child has of it is less than all.
    let cache = Cache::new(256 * PAGE).unwrap();
    let map = map_by_address(&remote, &cache);
    assert!(map[..100_000] == remote.bytes[..100_000]);
    assert!(in_a_child(|| {
        child_says(*map == remote.bytes[..]);
        child_says(*map == remote.bytes[..]);
        let mut row = [0; 5000];
        // SAFETY: so much room.
        child_says(unsafe { by_address::read(map.as_ptr() as usize + 3_000_000, row.as_mut_ptr(), 5000) }.is_ok());
        child_says(row[..] == remote.bytes[3_000_000..3_005_000]);
        let at = map.as_ptr() as usize;
        child_says(by_address::gather(&[at + 4_000_000..at + 4_000_010, at..at + 5], &mut row[..15]).is_ok());
        child_says(row[..10] == remote.bytes[4_000_000..4_000_010] && row[10..15] == remote.bytes[..5]);
        // A map of its own, and a child of its own.
        let own = map_by_address(&remote, &cache);
        child_says(own.as_ptr() != map.as_ptr() && *own == remote.bytes[..]);
        child_says(in_a_child(|| child_says(*map == remote.bytes[..] && *own == remote.bytes[..])));
        // SAFETY: nobody uses it until it is mapped anew.
        child_says(unsafe { by_address::unmap(own.as_ptr() as usize, own.len()) } == Ok(()));
        // What comes into its place stays.
        // SAFETY: a mapping of its own, at a free place.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at = own.as_ptr().cast_mut();
            child_says(libc::mmap(at.cast(), own.len(), prot, flags, -1, 0) == at.cast());
            at.write_bytes(7, own.len());
            (0..2).for_each(|_| child_says(*map == remote.bytes[..]));
            child_says(own.iter().all(|byte| *byte == 7));
        }
        // Threads, and what is gone meanwhile.
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (map, remote) = (&map, &remote);
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..2000 {
                        let at = random.below(map.len());
                        child_says(map[at] == remote.bytes[at]);
                    }
                });
            }
        });
    }));
    assert!(*map == remote.bytes[..]);
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, _)) = role_of_child() else { return };
    assert_eq!(role, "dead-origin");
    let folder = folder();
    let remote = Remote::new(folder.path(), 1 << 20, Duration::ZERO);
    remote.failure.store(libc::ETIMEDOUT, Ordering::Release);
    let map = map_of(&remote, &Cache::new(64 * PAGE).unwrap());
    std::process::exit(i32::from(map[131_073]));
}
