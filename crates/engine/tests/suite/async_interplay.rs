//! Stores to absent pages that do not wait, beside all else that happens to a file: system calls on it, cuts, children, protections,
//! and maps that become the kernel's, while threads store. Each in a process of its own: a child's touch makes all maps of a process
//! the kernel's.

use crate::common::{PAGE, Random, Stop, folder, open, quick_or_full, seed, stamp, stamped};
use fastmap::by_address::{self, Request};
use fastmap::{Cache, Fallback, coherence};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

const LINE: usize = 64;
const LINES: usize = PAGE / LINE;
/// No word of it is ever stored by these tests, nor in a stamped file.
const INITIAL: [u8; LINE] = *b"A line that no test here stores, nor any eight of its bytes 4711";
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Pages of the file that threads use; the main thread has those behind.
const SHARED: usize = 192;
const PAGES: usize = 256;
const LEN: usize = PAGES * PAGE;
const THREADS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Initial,
    Kept,
}

const BOTH: [Way; 2] = [Way::Initial, Way::Kept];

fn request(way: Way) -> Request {
    Request {
        addr: 0,
        len: LEN,
        prot: RW,
        flags: libc::MAP_SHARED,
        offset: 0,
        one_writer: true,
        own: true,
        fallback: Fallback::Refuse,
        async_stores: way == Way::Kept,
        layers: true,
    }
}

/// A stamped file, mapped.
struct Mapped {
    way: Way,
    file: File,
    at: usize,
    cache: Cache,
}

impl Mapped {
    fn new(way: Way, path: &Path, capacity: usize) -> Self {
        drop(stamped(path, PAGES));
        let (file, cache) = (open(path), Cache::new(capacity * PAGE).unwrap());
        // SAFETY: nobody else changes the file.
        let at = unsafe { by_address::map(file.as_fd(), &cache, &request(way)) }.unwrap().expect("through the cache")
            as usize;
        if way == Way::Initial {
            // SAFETY: lines are stored whole, none of them this one, and looked at by their values.
            let ask = |len, line| unsafe { by_address::async_read(at, len, line) };
            assert_eq!(ask(LEN, INITIAL), Ok(()));
            assert_eq!(by_address::initial_line(at + LEN - 1), Some(INITIAL));
            assert_eq!(ask(PAGE, INITIAL), Ok(()), "the same once more");
            assert_eq!(ask(PAGE, [1; LINE]), Err(libc::EINVAL), "another");
        }
        Mapped { way, file, at, cache }
    }

    fn store(&self, offset: usize, line: &[u8; LINE]) {
        // SAFETY: mapped; who else stores stores elsewhere.
        unsafe { ptr::write_volatile((self.at + offset) as *mut [u8; LINE], *line) };
    }

    /// Loads a line, again if it holds the initial value.
    fn load(&self, offset: usize) -> [u8; LINE] {
        loop {
            // SAFETY: mapped.
            let line = unsafe { ptr::read_volatile((self.at + offset) as *const [u8; LINE]) };
            let is_initial = line.chunks(8).zip(INITIAL.chunks(8)).any(|(word, initial)| word == initial);
            if self.way == Way::Kept || !is_initial {
                return line;
            }
            assert_eq!(by_address::synchronise(self.at + offset, LINE), Ok(()));
        }
    }

    /// pread(2), as a program's that has the file mapped.
    fn read(&self, offset: usize) -> [u8; LINE] {
        let mut line = [0; LINE];
        if let Some(mapped) = coherence::file(self.file.as_raw_fd()) {
            mapped.before_read(offset as u64..(offset + LINE) as u64).unwrap();
        }
        self.file.read_exact_at(&mut line, offset as u64).unwrap();
        line
    }

    /// pwrite(2), likewise.
    fn write(&self, offset: usize, line: &[u8; LINE]) {
        let mapped = coherence::file(self.file.as_raw_fd());
        let writing = mapped.as_ref().map(|mapped| mapped.writing(offset as u64..(offset + LINE) as u64).unwrap());
        self.file.write_all_at(line, offset as u64).unwrap();
        if let Some(writing) = writing {
            // SAFETY: nobody has a reference into the map.
            unsafe { writing.done() };
        }
    }

    /// ftruncate(2), likewise.
    fn cut(&self, len: usize) {
        let mapped = coherence::file(self.file.as_raw_fd()).expect("it is mapped");
        let resizing = mapped.resizing(len as u64).unwrap();
        self.file.set_len(len as u64).unwrap();
        // SAFETY: nobody has a reference into the map.
        unsafe { resizing.done() };
    }

    /// What a thread does until it is to stop, with lines of its own; what these hold in the end.
    fn work(&self, thread: usize, seed: u64, stop: &AtomicBool) -> Vec<u8> {
        let mut random = Random::new(seed + thread as u64);
        let mut shadow: Vec<u8> = (0..SHARED).flat_map(|page| stamp(page).to_vec()).collect();
        while !stop.load(Ordering::Relaxed) {
            let offset = (random.below(SHARED * LINES / THREADS) * THREADS + thread) * LINE;
            let own: &mut [u8; LINE] = (&mut shadow[offset..offset + LINE]).try_into().unwrap();
            let value = random.next().to_le_bytes();
            let line = std::array::from_fn(|at| value[at % 8].wrapping_add(at as u8));
            match (thread, random.below(10)) {
                // The last thread goes past the mapping.
                (3, 0..4) => {
                    *own = line;
                    self.write(offset, own);
                }
                (3, _) => assert_eq!(self.read(offset), *own, "the file at {offset}, {:?}", self.way),
                (_, 0..7) => {
                    *own = line;
                    self.store(offset, own);
                }
                _ => assert_eq!(self.load(offset), *own, "memory at {offset}, {:?}", self.way),
            }
        }
        shadow
    }

    /// With threads at work.
    fn beside(&self, seed: u64, then: impl FnOnce()) -> Vec<Vec<u8>> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || self.work(thread, seed, stop))).collect();
            {
                let _stop = Stop(stop);
                then();
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn check(&self, shadows: &[Vec<u8>], file: &[u8]) {
        for line in 0..SHARED * LINES {
            let at = line * LINE..(line + 1) * LINE;
            assert!(file[at.clone()] == shadows[line % THREADS][at], "{:?}: line {line} of the file", self.way);
        }
    }
}

/// Lines of the main thread, in some page behind the shared ones.
fn own_lines(random: &mut Random) -> Vec<(usize, [u8; LINE])> {
    let page = SHARED + random.below(PAGES - SHARED);
    (0..3).map(|nth| (page * PAGE + (nth * 20 + random.below(20)) * LINE, [random.next() as u8; LINE])).collect()
}

#[test]
fn system_calls_cuts_and_children() {
    alone!();
    let folder = folder();
    let seed = seed(31);
    for (way, capacity) in BOTH.into_iter().flat_map(|way| [(way, 32), (way, 2 * PAGES)]) {
        // A file that a child has had stays the kernel's.
        let path = folder.path().join(format!("{way:?} {capacity}"));
        let mapped = Mapped::new(way, &path, capacity);
        let mut tail: Vec<u8> = (SHARED..PAGES).flat_map(|page| stamp(page).to_vec()).collect();
        let shadows = mapped.beside(seed, || {
            let mut random = Random::new(seed + 99);
            for round in 0..48 {
                for (offset, line) in own_lines(&mut random) {
                    mapped.store(offset, &line);
                    tail[offset - SHARED * PAGE..][..LINE].copy_from_slice(&line);
                }
                if round % 4 == 0 {
                    let end = SHARED * PAGE + random.below(LEN - SHARED * PAGE);
                    mapped.cut(end);
                    mapped.cut(LEN);
                    tail[end - SHARED * PAGE..].fill(0);
                }
                if round % 8 == 1 {
                    let offset = SHARED * PAGE + random.below((PAGES - SHARED) * LINES) * LINE;
                    let expected = &tail[offset - SHARED * PAGE..][..LINE];
                    assert!(mapped.read(offset) == expected && mapped.load(offset) == expected, "{way:?}");
                }
            }
            // In the middle of it the file becomes the kernel's, for the child and here.
            let (offset, line) = own_lines(&mut random)[0];
            mapped.store(offset, &line);
            tail[offset - SHARED * PAGE..][..LINE].copy_from_slice(&line);
            in_a_child(|| {
                // SAFETY: the child has the kernel's map there.
                unsafe { ptr::read_volatile((mapped.at + offset) as *const [u8; LINE]) == line }
            });
            assert!(!by_address::holds(mapped.at, LEN) && mapped.load(offset) == line, "{way:?}");
        });
        assert_eq!(by_address::sync(mapped.at, LEN, libc::MS_SYNC), Ok(()));
        let file = std::fs::read(&path).unwrap();
        mapped.check(&shadows, &file);
        assert!(file[SHARED * PAGE..] == tail[..], "{way:?}: what the main thread stored");
        let stats = mapped.cache.stats();
        println!("{way:?}, {capacity} pages: {} of {} misses", stats.async_loads, stats.misses);
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { by_address::unmap(mapped.at, LEN) }, Ok(()));
        assert_eq!(mapped.cache.stats().resident_pages, 0);
    }
}

/// Makes a child, which answers and ends.
fn in_a_child(is_right: impl FnOnce() -> bool) {
    // SAFETY: the child touches its maps and ends.
    unsafe {
        by_address::before_fork();
        let child = libc::fork();
        if child == 0 {
            by_address::in_child();
            libc::_exit(i32::from(!is_right()));
        }
        by_address::in_parent();
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "the child sees what its parent stored before");
    }
}

#[test]
fn maps_become_the_kernels() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    let seed = seed(32);
    for round in 0..quick_or_full(2, 6) {
        let way = BOTH[round % 2];
        let mapped = Mapped::new(way, &path, 64);
        let shadows = mapped.beside(seed + 10 * round as u64, || {
            std::thread::sleep(std::time::Duration::from_millis(20 * round as u64));
            for page in SHARED..PAGES {
                mapped.store(page * PAGE, &[page as u8; LINE]);
            }
            // SAFETY: a place of our own, which is replaced.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let other = libc::mmap(ptr::null_mut(), LEN, libc::PROT_NONE, flags, -1, 0);
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                let wanted = Request { addr: other as usize, flags, ..request(way) };
                assert!(
                    by_address::map(mapped.file.as_fd(), &mapped.cache, &wanted).unwrap().is_none(),
                    "the kernel's"
                );
                assert_eq!(libc::munmap(other, LEN), 0);
            }
            assert!(!by_address::holds(mapped.at, LEN));
            for page in SHARED..PAGES {
                assert_eq!(mapped.load(page * PAGE), [page as u8; LINE], "{way:?}");
                assert!(mapped.load(page * PAGE + LINE) == stamp(page)[LINE..2 * LINE], "{way:?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
        mapped.check(&shadows, &std::fs::read(&path).unwrap());
        assert_eq!(mapped.cache.stats().resident_pages, 0);
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { by_address::unmap(mapped.at, LEN) }, Ok(()));
    }
}

/// What may not be loaded any more, or is not mapped any more, has been saved, with what lies beside it.
/// From the store on, whichever stage the page's read has come to.
#[test]
fn a_page_that_was_stored_to_is_resident() {
    alone!();
    for way in BOTH {
        let folder = folder();
        for _ in 0..quick_or_full(4, 20) {
            let mapped = Mapped::new(way, &folder.path().join("file"), 2 * PAGES);
            for page in 0..PAGES {
                mapped.store(page * PAGE, &[7; LINE]);
                for look in 0..300 {
                    let mut there = 0;
                    // SAFETY: a page's byte.
                    let asked = unsafe { by_address::residency(mapped.at + page * PAGE, PAGE, &mut there) };
                    assert_eq!(asked, Ok(()));
                    assert_eq!(there & 1, 1, "{way:?}, page {page}, look {look}");
                }
            }
            // SAFETY: the test's own.
            assert_eq!(unsafe { by_address::unmap(mapped.at, LEN) }, Ok(()));
        }
    }
}

#[test]
fn protections_and_parts() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    for way in BOTH {
        let mapped = Mapped::new(way, &path, 2 * PAGES);
        let store_all = |value: u8| (0..PAGES).for_each(|page| mapped.store(page * PAGE + LINE, &[value; LINE]));
        let check = |pages: std::ops::Range<usize>, value: u8| {
            let file = std::fs::read(&path).unwrap();
            for page in pages {
                let of_page = &file[page * PAGE..(page + 1) * PAGE];
                assert!(of_page[LINE..2 * LINE] == [value; LINE], "{way:?}: page {page}");
                assert!(of_page[..LINE] == stamp(page)[..LINE] && of_page[2 * LINE..] == stamp(page)[2 * LINE..]);
            }
        };
        // SAFETY: the test's own map.
        unsafe {
            store_all(1);
            assert_eq!(by_address::protect(mapped.at, LEN / 2, libc::PROT_NONE), Ok(()));
            check(0..PAGES / 2, 1);
            assert_eq!(by_address::protect(mapped.at, LEN / 2, RW), Ok(()));
            store_all(2);
            assert_eq!(by_address::protect(mapped.at, LEN / 2, libc::PROT_READ), Ok(()));
            assert_eq!(mapped.load(LINE), [2; LINE]);
            assert_eq!(by_address::protect(mapped.at, LEN / 2, RW), Ok(()));
            store_all(3);
            assert_eq!(by_address::unmap(mapped.at + LEN / 2, LEN / 2), Ok(()));
            check(PAGES / 2..PAGES, 3);
            assert_eq!(by_address::unmap(mapped.at, LEN / 2), Ok(()));
            check(0..PAGES / 2, 3);
        }
        assert_eq!(mapped.cache.stats().resident_pages, 0);
    }
}
