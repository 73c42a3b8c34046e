//! What a program stored is in the file, whatever ended the program: two hundred moments for each way to end, or twenty.
//!
//! Children are this program run again with a role. Four threads of a child store whole pages, stamped with page number and
//! generation in every word, and tell in memory shared with the parent what they began and what they have done; the parent
//! waits for the end, then for the keeper, and reads the file past every cache. Every other round is over a file in memory:
//! pages come and go many times faster there, so that evictions and write-back are under way when the end comes.

use crate::common::{self, *};
use fastmap::{Cache, Fallback, MapMut, Mode};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PAGES: usize = 4096;
const CAPACITY: usize = 8 << 20;
const THREADS: usize = 4;
/// The end comes within this long of the first stores, microseconds.
const LONGEST: usize = 12_000;
/// Stores of a thread in a round, at most.
const MOST_STORES: u64 = 1 << 18;

#[test]
fn killed_by_sigkill() {
    end_and_check("sigkill", true, |_, status| status.signal() == Some(libc::SIGKILL));
}

#[test]
fn ended_by_a_crash_with_a_core_dump() {
    end_and_check("crash", true, |folder, status| {
        // Where core dumps go to a program and not to a file, there is none to remove.
        let _ = std::fs::remove_file(folder.join("core"));
        status.signal() == Some(libc::SIGSEGV) && status.core_dumped()
    });
}

#[test]
fn ended_by_abort() {
    end_and_check("abort", true, |_, status| status.signal() == Some(libc::SIGABRT));
}

#[test]
fn ended_by_underscore_exit() {
    end_and_check("_exit", true, |_, status| status.code() == Some(7));
}

#[test]
fn ended_by_a_panic() {
    end_and_check("panic", true, |_, status| status.code() == Some(101));
}

#[test]
fn ended_by_returning_from_main() {
    end_and_check("return", true, |_, status| status.success());
}

#[test]
fn ended_by_exec() {
    end_and_check("exec", true, |_, status| status.code() == Some(5));
}

#[test]
fn what_was_flushed_needs_no_keeper() {
    end_and_check("sigkill", false, |_, status| status.signal() == Some(libc::SIGKILL));
}

// --- the parent -------------------------------------------------------------------------------------------------------

/// Ends children in one way, at random moments, and checks the file after each.
fn end_and_check(way: &str, keeper: bool, as_expected: impl Fn(&Path, std::process::ExitStatus) -> bool) {
    if !ready() {
        return;
    }
    let mut random = Random::new(seed(11));
    let mut places = vec![Place::new(folder()).unwrap()];
    match tempfile::tempdir_in("/dev/shm").and_then(Place::new) {
        Ok(place) => places.push(place),
        Err(why) => println!("no rounds in memory: /dev/shm: {why}"),
    }
    let own = Cache::builder().capacity(Cache::MIN_CAPACITY).keeper(false).build().unwrap();
    let (mut stores, mut in_flight) = (0, 0);
    let moments = quick_or_full(20, 200);
    for round in 1..=moments {
        let place = round as usize % places.len();
        let Place { folder, told, reader } = &mut places[place];
        let folder = folder.path();
        let after = Duration::from_micros(random.below(LONGEST) as u64);
        let mut child = common::child(way, Path::new(""))
            .env("FASTMAP_TEST_KEEPER", keeper.to_string())
            .env("FASTMAP_TEST_ROUND", round.to_string())
            .env("FASTMAP_TEST_AFTER", after.as_micros().to_string())
            .env("RUST_BACKTRACE", "0")
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("said")).unwrap())
            .spawn()
            .unwrap();
        if way == "sigkill" {
            while told.started().load(Ordering::Acquire) < round && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(after);
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        let said = || std::fs::read_to_string(folder.join("said")).unwrap();
        assert!(as_expected(folder, status), "{way}, round {round}: {status}: {}", said());
        // A mutable map waits until the keeper has saved.
        drop(map_buffered(&own, folder));
        let (stored, flying) = check(reader, told, round);
        assert!(stored > 0 && (!keeper || flying <= THREADS), "{stored} pages stored to, {flying} of them at the end");
        assert!(!said().contains("fastmap:"), "{}", said());
        (stores, in_flight) = (stores + stored, in_flight + flying);
    }
    println!("{way}: {stores} pages in {moments} rounds, {in_flight} of them being stored to at the end");
}

/// Maps the file of a folder, on a disk past the page cache and in memory above it.
fn map_buffered(cache: &Cache, folder: &Path) -> MapMut {
    let mut options = options(cache);
    // SAFETY: the file is this test's own.
    unsafe { options.mode(Mode::Cached).fallback(Fallback::Buffered).map_mut(&open(&folder.join("file"))) }.unwrap()
}

/// A file to store to, and what was told of it.
struct Place {
    folder: tempfile::TempDir,
    told: Told,
    reader: Reader,
}

impl Place {
    fn new(folder: tempfile::TempDir) -> std::io::Result<Self> {
        std::fs::write(folder.path().join("file"), vec![0; PAGES * PAGE])?;
        std::fs::write(folder.path().join("told"), vec![0; Told::WORDS * 8])?;
        open(&folder.path().join("file")).sync_all()?;
        let (told, reader) = (Told::open(folder.path()), Reader::open(&folder.path().join("file")));
        Ok(Place { folder, told, reader })
    }
}

/// Checks every page of the file: each word is of a store that began, and not older than what must be there. Returns how
/// many pages were stored to in this round, and of how many the last store must not be there.
fn check(reader: &mut Reader, told: &Told, round: u64) -> (usize, usize) {
    let (mut stored, mut in_flight) = (0, 0);
    reader.pages(|page, words| {
        let (low, high) = (told.kept(page).load(Ordering::Acquire), told.begun(page).load(Ordering::Acquire));
        assert!(low <= high);
        if high / MOST_STORES == round {
            stored += 1;
            in_flight += usize::from(low < high);
        }
        for (place, word) in words.iter().enumerate() {
            let generation = word >> 32;
            assert!(
                (low..=high).contains(&generation) && *word == stamp(page, generation, place),
                "round {round}, page {page}, word {place}: {word:#x} is of generation {generation}, not {low} to {high}"
            );
        }
    });
    (stored, in_flight)
}

/// Reads a file past the page cache, in large pieces.
struct Reader {
    file: File,
    buffer: *mut u8,
}

impl Reader {
    const PIECE: usize = 1 << 20;

    fn open(path: &Path) -> Self {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let file = direct.unwrap_or_else(|_| open(path));
        // SAFETY: an aligned allocation, kept for good.
        Reader { file, buffer: unsafe { libc::aligned_alloc(PAGE, Self::PIECE) }.cast() }
    }

    fn pages(&mut self, mut visit: impl FnMut(usize, &[u64])) {
        for at in (0..PAGES * PAGE).step_by(Self::PIECE) {
            // SAFETY: the buffer is a piece long.
            let bytes = unsafe {
                let got = libc::pread(self.file.as_raw_fd(), self.buffer.cast(), Self::PIECE, at as i64);
                assert_eq!(got, Self::PIECE as isize, "{}", std::io::Error::last_os_error());
                std::slice::from_raw_parts(self.buffer.cast::<u64>(), Self::PIECE / 8)
            };
            bytes.chunks(PAGE / 8).enumerate().for_each(|(page, words)| visit(at / PAGE + page, words));
        }
    }
}

// --- what is stored, and what is told of it ---------------------------------------------------------------------------

/// A word of a page: 32 bits of generation, 20 of page number, 12 of its place; all zero before the first store.
fn stamp(page: usize, generation: u64, place: usize) -> u64 {
    if generation == 0 { 0 } else { generation << 32 | (page as u64) << 12 | place as u64 }
}

/// What children tell, in a file mapped by the kernel: it outlives them. For each page the generation begun last, and the
/// one that must be in the file.
#[derive(Clone, Copy)]
struct Told(*const AtomicU64);

// SAFETY: shared memory of atomics.
unsafe impl Send for Told {}
// SAFETY: likewise.
unsafe impl Sync for Told {}

impl Told {
    const WORDS: usize = 2 * PAGES + 1;

    fn open(folder: &Path) -> Self {
        let file = open(&folder.join("told"));
        // SAFETY: a fresh mapping, never unmapped.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED;
            let at = libc::mmap(std::ptr::null_mut(), Self::WORDS * 8, protection, flags, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            Told(at.cast())
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < Self::WORDS);
        // SAFETY: inside the mapping.
        unsafe { &*self.0.add(at) }
    }

    fn begun(&self, page: usize) -> &AtomicU64 {
        self.word(page)
    }

    fn kept(&self, page: usize) -> &AtomicU64 {
        self.word(PAGES + page)
    }

    /// The last round in which there were stores.
    fn started(&self) -> &AtomicU64 {
        self.word(2 * PAGES)
    }
}

// --- the children -----------------------------------------------------------------------------------------------------

/// Not a test: what a child does.
#[test]
fn role() {
    let Ok(way) = std::env::var("FASTMAP_TEST_ROLE") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (round, after) = (number("FASTMAP_TEST_ROUND"), Duration::from_micros(number("FASTMAP_TEST_AFTER")));
    let keeper = std::env::var("FASTMAP_TEST_KEEPER").unwrap() == "true";
    // SAFETY: no preconditions. A child that hangs ends.
    unsafe {
        libc::alarm(60);
        let core = if way == "crash" { libc::RLIM_INFINITY } else { 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: core, rlim_max: core });
    }
    // Low, so that the background writer is at work most of the time.
    let cache = Cache::builder().capacity(CAPACITY).high_water(10).keeper(keeper).build().unwrap();
    // Never unmapped.
    let map = Box::leak(Box::new(map_buffered(&cache, Path::new("."))));
    let told = Told::open(Path::new("."));
    let done: &[AtomicU64] = Box::leak((0..PAGES).map(|_| AtomicU64::new(0)).collect());
    let base = map.as_mut_ptr() as usize;
    for thread in 0..THREADS {
        std::thread::spawn(move || store(base, thread, round, told, done, keeper));
    }
    while told.started().load(Ordering::Acquire) < round {
        std::thread::yield_now();
    }
    if !keeper {
        loop {
            let before: Vec<_> = done.iter().map(|done| done.load(Ordering::Acquire)).collect();
            map.flush().unwrap();
            let stored = before.iter().enumerate().filter(|(_, generation)| **generation > 0);
            stored.for_each(|(page, generation)| told.kept(page).store(*generation, Ordering::Release));
        }
    }
    if way == "sigkill" {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    std::thread::sleep(after);
    let exec = || {
        let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 5".as_ptr(), std::ptr::null()];
        // SAFETY: C strings and a null.
        unsafe { libc::execv(c"/bin/sh".as_ptr(), arguments.as_ptr()) };
        panic!("{}", std::io::Error::last_os_error());
    };
    match way.as_str() {
        // SAFETY: a store to nowhere, on purpose.
        "crash" => unsafe { std::ptr::null_mut::<u8>().wrapping_add(16).write_volatile(1) },
        "abort" => std::process::abort(),
        // SAFETY: ends this process.
        "_exit" => unsafe { libc::_exit(7) },
        "panic" => panic!("on purpose"),
        "return" => {}
        // From the main thread and from another, in each place.
        "exec" if round % 4 < 2 => exec(),
        "exec" => std::thread::spawn(exec).join().unwrap(),
        other => panic!("no way {other}"),
    }
}

/// Stores to the pages that are this thread's, at random, for as long as there is a process.
fn store(base: usize, thread: usize, round: u64, told: Told, done: &[AtomicU64], keeper: bool) {
    let mut random = Random::new(round * THREADS as u64 + thread as u64);
    for count in 1..MOST_STORES {
        // Half of the stores go to a part that fits the cache.
        let among = if random.below(2) == 0 { 1024 } else { PAGES };
        let page = random.below(among / THREADS) * THREADS + thread;
        let generation = round * MOST_STORES + count;
        told.begun(page).store(generation, Ordering::Release);
        let words = (base + page * PAGE) as *mut u64;
        for place in 0..PAGE / 8 {
            // SAFETY: inside the map, and of no other thread.
            unsafe { words.add(place).write_volatile(stamp(page, generation, place)) };
        }
        done[page].store(generation, Ordering::Release);
        if keeper {
            told.kept(page).store(generation, Ordering::Release);
        }
        told.started().store(round, Ordering::Release);
    }
}
