//! Faults by service threads: in system calls, in threads that block signals, past the end, at a sudden death, and under stress.
//! A process chooses once who serves its faults, hence each test in one of its own.

use crate::common::*;
use fastmap::faults::{self, Faults};
use fastmap::{Cache, Error, Fallback, Map, by_address};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

// --- system calls -----------------------------------------------------------------------------------------------------

/// More pages than the cache has, so that all but a few are absent when a call comes to them.
const PAGES: usize = 200;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn files_are_read_into_maps_and_written_from_them() {
    by_service!();
    let folder = folder();
    let bytes = pattern(PAGES * PAGE);
    let cache = small();
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &vec![0; PAGES * PAGE]));
    let (from, to) = (create(&folder.path().join("from"), &bytes), create(&folder.path().join("to"), &[]));
    let len = map.len();
    // SAFETY: the map's own bytes; the descriptors are the test's.
    unsafe {
        assert_eq!(libc::read(from.as_raw_fd(), map.as_mut_ptr().cast(), len), len as isize, "{}", errno());
        assert!(map[..] == bytes[..]);
        assert_eq!(libc::pwrite(to.as_raw_fd(), map.as_ptr().cast(), len, 0), len as isize, "{}", errno());
        // Into pages that are there and write-protected.
        assert_eq!(map[5 * PAGE], bytes[5 * PAGE]);
        assert_eq!(libc::pread(from.as_raw_fd(), map.as_mut_ptr().add(5 * PAGE).cast(), PAGE, 0), PAGE as isize);
        assert!(map[5 * PAGE..6 * PAGE] == bytes[..PAGE]);
    }
    assert!(std::fs::read(folder.path().join("to")).unwrap() == bytes);
    drop(map);
    let mut expected = bytes.clone();
    expected.copy_within(..PAGE, 5 * PAGE);
    assert!(std::fs::read(folder.path().join("file")).unwrap() == expected);
}

#[test]
fn random_numbers_sockets_and_vectors() {
    by_service!();
    let folder = folder();
    let cache = small();
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &vec![0; PAGES * PAGE]));
    let at = map.as_mut_ptr();
    // SAFETY: inside the map.
    unsafe {
        assert_eq!(libc::getrandom(at.add(7).cast(), 20 * PAGE, 0), 20 * PAGE as isize, "{}", errno());
    }
    assert!((1..20).all(|page| map[page * PAGE..][..64].iter().any(|byte| *byte != 0)));
    let (mut one, two) = std::os::unix::net::UnixStream::pair().unwrap();
    let sent = pattern(100 * PAGE);
    std::thread::scope(|scope| {
        let sent = &sent;
        scope.spawn(move || one.write_all(sent).unwrap());
        let mut got = 0;
        while got < sent.len() {
            // Two parts, the second behind the first and further on in the map.
            let half = (sent.len() - got) / 2;
            let part = |at: *mut u8, len| libc::iovec { iov_base: at.cast(), iov_len: len };
            // SAFETY: inside the map.
            unsafe {
                let parts = [
                    part(at.add(50 * PAGE + got), half),
                    part(at.add(50 * PAGE + got + half), sent.len() - got - half),
                ];
                let read = libc::readv(two.as_raw_fd(), parts.as_ptr(), 2);
                assert!(read > 0, "{}", errno());
                got += read as usize;
            }
        }
    });
    assert!(map[50 * PAGE..150 * PAGE] == sent[..]);
}

/// Whether a thread of this process is in futex(2).
fn sleeps_on_a_word(thread: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
    call.split(' ').next() == Some(&libc::SYS_futex.to_string())
}

#[test]
fn threads_sleep_on_words_of_absent_pages() {
    by_service!();
    let folder = folder();
    let cache = small();
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &vec![0; PAGES * PAGE]));
    let base = map.as_mut_ptr() as usize;
    // SAFETY: a word of the map, reached as an atomic only.
    let word = |page: usize| unsafe { &*((base + page * PAGE + 8) as *const AtomicU32) };
    // Both kinds are known by their addresses, in anonymous memory; one needs the page for that.
    for (round, private) in [libc::FUTEX_PRIVATE_FLAG, 0].into_iter().enumerate() {
        let futex = |operation: i32, word: &AtomicU32, value: u32| {
            let none = std::ptr::null::<libc::timespec>();
            // SAFETY: a word that outlives the call.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation | private, value, none) }
        };
        let awake = AtomicUsize::new(0);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for page in [3, 3, 90] {
                let (awake, futex, word, tell) = (&awake, &futex, &word, tell.clone());
                scope.spawn(move || {
                    // SAFETY: no preconditions.
                    tell.send(unsafe { libc::gettid() }).unwrap();
                    while word(page).load(Ordering::SeqCst) == round as u32 {
                        let slept = futex(libc::FUTEX_WAIT, word(page), round as u32);
                        assert!(slept == 0 || errno() == libc::EAGAIN, "{}", errno());
                    }
                    awake.fetch_add(1, Ordering::SeqCst);
                });
            }
            let threads: Vec<i32> = told.iter().take(3).collect();
            until("sleep", || threads.iter().all(|thread| sleeps_on_a_word(*thread)));
            // Other pages push the words' out of memory, while their threads sleep.
            assert!((10..80).all(|page| word(page).load(Ordering::Relaxed) == 0));
            assert_eq!(awake.load(Ordering::SeqCst), 0);
            for page in [3, 90] {
                word(page).store(round as u32 + 1, Ordering::SeqCst);
                (10..80).for_each(|page| assert_eq!(word(page).load(Ordering::Relaxed), 0));
                assert!(futex(libc::FUTEX_WAKE, word(page), 10) >= 0, "{}", errno());
            }
        });
        assert_eq!(awake.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn many_system_calls_and_touches_at_a_time() {
    by_service!();
    let folder = folder();
    let cache = Cache::new(32 * PAGE).unwrap();
    let bytes = pattern(PAGES * PAGE);
    let map = map(&cache, &create(&folder.path().join("file"), &bytes));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let (map, bytes) = (&map, &bytes);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let (from, to) = std::os::unix::net::UnixStream::pair().unwrap();
                let mut copy = vec![0; 3 * PAGE];
                while begin.elapsed() < under_load() {
                    let at = random.below(bytes.len() - copy.len());
                    if thread % 3 == 0 {
                        assert!(map[at..at + 100] == bytes[at..at + 100]);
                        assert_eq!(map.get_at::<u8>(at).unwrap(), bytes[at]);
                        continue;
                    }
                    // SAFETY: inside the map and the buffer.
                    unsafe {
                        let sent = libc::write(from.as_raw_fd(), map.as_ptr().add(at).cast(), copy.len());
                        assert_eq!(sent, copy.len() as isize, "{}", errno());
                        let got = libc::recv(to.as_raw_fd(), copy.as_mut_ptr().cast(), copy.len(), libc::MSG_WAITALL);
                        assert_eq!(got, sent, "{}", errno());
                    }
                    assert!(copy[..] == bytes[at..at + copy.len()]);
                }
            });
        }
    });
}

// --- signals ----------------------------------------------------------------------------------------------------------

#[test]
fn threads_that_block_all_signals() {
    by_service!();
    let folder = folder();
    let cache = small();
    let bytes = pattern(PAGES * PAGE);
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &bytes));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: this thread's own mask.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            assert!(map[..] == bytes[..]);
            (0..PAGES).for_each(|page| map[page * PAGE] = 9);
            assert!((0..PAGES).all(|page| map[page * PAGE] == 9));
        });
    });
}

/// A map of a file of one page and a bit that reaches to eight pages.
fn past_the_end(path: &Path) -> (Map, File) {
    let file = create(path, &[1; 5000]);
    // SAFETY: the file is this test's own.
    (unsafe { options(&small()).len(8 * PAGE).map(&file) }.unwrap(), file)
}

#[test]
fn past_the_end_a_system_call_fails_and_later_does_not() {
    by_service!();
    let folder = folder();
    let (map, file) = past_the_end(&folder.path().join("file"));
    let out = create(&folder.path().join("out"), &[]);
    // SAFETY: inside the map.
    let write = |page: usize| unsafe { libc::pwrite(out.as_raw_fd(), map.as_ptr().add(page * PAGE).cast(), PAGE, 0) };
    for page in [2, 2, 7, 3] {
        assert_eq!((write(page), errno()), (-1, libc::EFAULT));
    }
    assert_eq!(write(1), PAGE as isize);
    // The engine learns of the new length: at once.
    file.set_len(4 * PAGE as u64).unwrap();
    map.advise(fastmap::Advice::Normal).unwrap();
    assert_eq!((write(2), write(3)), (PAGE as isize, PAGE as isize));
    assert_eq!((write(7), errno()), (-1, libc::EFAULT));
    // It does not: a moment later. A touch is served at once in any case.
    file.set_len(8 * PAGE as u64).unwrap();
    assert_eq!((map[7 * PAGE], write(7)), (0, PAGE as isize));
    file.set_len(4 * PAGE as u64).unwrap();
    map.advise(fastmap::Advice::Normal).unwrap();
    assert_eq!((write(6), errno()), (-1, libc::EFAULT));
    file.set_len(8 * PAGE as u64).unwrap();
    until("the poison is lifted", || write(6) == PAGE as isize);
}

/// The program maps other memory where pages past the end were poisoned.
#[test]
fn memory_in_the_place_of_poisoned_pages_is_left_alone() {
    by_service!();
    let folder = folder();
    let (file, out) = (create(&folder.path().join("file"), &[1; 5000]), create(&folder.path().join("out"), &[]));
    let request = by_address::Request {
        addr: 0,
        len: 8 * PAGE,
        prot: libc::PROT_READ,
        flags: libc::MAP_SHARED,
        offset: 0,
        one_writer: true,
        own: true,
        fallback: Fallback::Refuse,
        async_stores: false,
        layers: true,
    };
    let cache = small();
    // SAFETY: a map of the test's own; nobody uses what is unmapped.
    unsafe {
        let at = by_address::map(file.as_fd(), &cache, &request).unwrap().expect("served by the cache") as usize;
        let page = |page: usize| (at + page * PAGE) as *mut u8;
        for poisoned in [5, 6] {
            assert_eq!((libc::pwrite(out.as_raw_fd(), page(poisoned).cast(), PAGE, 0), errno()), (-1, libc::EFAULT));
        }
        by_address::unmap(page(4) as usize, 4 * PAGE).unwrap();
        by_address::make_way(page(5) as usize, 2 * PAGE).unwrap();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let own = libc::mmap(page(5).cast(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(own, page(5).cast());
        [5, 6].into_iter().for_each(|stored| page(stored).write_volatile(7));
        // Several times as long as poison lasts.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            assert_eq!((page(5).read_volatile(), page(6).read_volatile()), (7, 7));
        }
        assert_eq!(page(0).read_volatile(), 1);
        by_address::unmap(at, 4 * PAGE).unwrap();
        libc::munmap(own, 2 * PAGE);
    }
}

/// As many calls past the end at a time as the list of poisoned pages does not hold.
#[test]
fn many_calls_past_the_end_all_fail() {
    by_service!();
    let folder = folder();
    let file = create(&folder.path().join("file"), &[1; PAGE]);
    // SAFETY: the file is this test's own.
    let map = unsafe { options(&small()).len(400 * PAGE).map(&file) }.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let map = &map;
            scope.spawn(move || {
                let (from, _to) = std::os::unix::net::UnixStream::pair().unwrap();
                for page in (1..400).filter(|page| page % 8 == thread) {
                    // SAFETY: inside the map.
                    let sent = unsafe { libc::write(from.as_raw_fd(), map.as_ptr().add(page * PAGE).cast(), 10) };
                    assert_eq!((sent, errno()), (-1, libc::EFAULT), "page {page}");
                }
            });
        }
    });
    assert_eq!(map[77], 1);
}

#[test]
fn past_the_end_a_touch_kills_and_says_where() {
    by_service!();
    for role in ["past-end", "past-end-blocked"] {
        let said = assert_ends(role, libc::SIGBUS);
        // A thread that blocks SIGBUS is killed before anybody can speak, as with mmap(2).
        let told = said.contains("past-end-file") && said.contains("offset 8192") && said.contains("5000 bytes");
        assert!(told || role == "past-end-blocked", "{said}");
    }
}

#[test]
fn past_the_end_a_programs_handler_gets_the_address() {
    by_service!();
    assert_ends("past-end-handled", 0);
}

#[test]
fn stores_to_what_is_read_only() {
    by_service!();
    assert_ends("read-only", libc::SIGSEGV);
    let folder = folder();
    let map = map(&small(), &create(&folder.path().join("file"), &pattern(9 * PAGE)));
    for page in [3, 3] {
        // SAFETY: the kernel refuses to write there.
        let got = unsafe { libc::getrandom(map.as_ptr().add(page * PAGE).cast_mut().cast(), 10, 0) };
        assert_eq!((got, errno()), (-1, libc::EFAULT));
        assert_eq!(map[page * PAGE], pattern(9 * PAGE)[page * PAGE]);
    }
}

// --- processes --------------------------------------------------------------------------------------------------------

#[test]
fn what_was_stored_is_saved_when_the_program_is_killed() {
    by_service!();
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &vec![0; PAGES * PAGE]);
    let mut child = Waiting::start("store-and-wait", &path);
    child.kill();
    until("the keeper's end", || keeper_of(&path).is_none());
    let bytes = std::fs::read(&path).unwrap();
    (0..PAGES).for_each(|page| assert_eq!(bytes[page * PAGE], page as u8 + 1, "page {page}"));
}

/// Killed amid faults, with pages claimed and not there: the keeper does not wait for them, and nothing goes backward.
#[test]
fn killed_at_any_moment() {
    by_service!();
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &vec![0; PAGES * PAGE]);
    let mut random = Random::new(seed(5));
    let mut before = vec![0; PAGES];
    for _ in 0..quick_or_full(4, 12) {
        let mut child = Waiting::start("store-for-ever", &path);
        std::thread::sleep(Duration::from_millis(20 + random.below(60) as u64));
        child.kill();
        until("the keeper's end", || keeper_of(&path).is_none());
        let bytes = std::fs::read(&path).unwrap();
        let counts: Vec<u64> =
            (0..PAGES).map(|page| u64::from_le_bytes(bytes[page * PAGE..][..8].try_into().unwrap())).collect();
        assert!((0..PAGES).all(|page| counts[page] >= before[page]), "counts only rise");
        assert!(counts.iter().sum::<u64>() > before.iter().sum());
        before = counts;
    }
}

/// All of `stress.rs`.
#[test]
fn many_threads_on_a_tiny_cache() {
    if ready() {
        run_tests(&["stress::"], &[("FASTMAP_FAULTS", "service")]);
    }
}

#[test]
fn it_is_chosen_once() {
    by_service!();
    faults::choose(Faults::Service).unwrap();
    let refused = faults::choose(Faults::Signal);
    assert!(matches!(refused, Err(Error::FaultsChosen { chosen: Faults::Service })), "{refused:?}");
    assert_ends("too-late", 0);
}

#[test]
fn without_the_privilege_it_says_how_to_get_it() {
    by_service!();
    assert_ends("unprivileged", 0);
}

/// Runs a child in a role, which is to end by a signal, or well; what it said.
fn assert_ends(role: &str, signal: i32) -> String {
    let output = child(role, Path::new("")).output().unwrap();
    let said = said(&output);
    let ended = if signal == 0 { output.status.success() } else { output.status.signal() == Some(signal) };
    assert!(ended, "{role}: {}\n{said}", output.status);
    said
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);

/// Makes the file as long as its map.
extern "C" fn extend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: what the kernel gave, and a file of the test's own.
    unsafe {
        HANDLED.store((*info).si_addr() as usize, Ordering::SeqCst);
        CODE.store((*info).si_code, Ordering::SeqCst);
        libc::ftruncate(FILE.load(Ordering::SeqCst), 8 * PAGE as i64);
    }
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, argument)) = role_of_child() else { return };
    let folder = folder();
    if role != "too-late" && role != "unprivileged" {
        assert!(ready());
    }
    match role.as_str() {
        "past-end" => {
            let (map, _file) = past_the_end(&folder.path().join("past-end-file"));
            assert_eq!(map[2 * PAGE - 1], 0);
            std::hint::black_box(map[2 * PAGE + 5]);
        }
        "past-end-blocked" => {
            let (map, _file) = past_the_end(&folder.path().join("past-end-file"));
            // SAFETY: this thread's own mask.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            }
            std::hint::black_box(map[2 * PAGE + 5]);
        }
        "past-end-handled" => {
            let (map, file) = past_the_end(&folder.path().join("file"));
            FILE.store(file.as_raw_fd(), Ordering::SeqCst);
            // SAFETY: a handler of the right kind.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = extend as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            // SAFETY: likewise.
            unsafe { fastmap::signals::replace_sigbus(Some(&action)) }.expect("the engine's handler is there");
            assert_eq!(map[6 * PAGE + 5], 0);
            assert_eq!(HANDLED.load(Ordering::SeqCst), &raw const map[6 * PAGE + 5] as usize);
            assert_eq!(CODE.load(Ordering::SeqCst), libc::BUS_ADRERR);
        }
        "read-only" => {
            let map = map(&small(), &create(&folder.path().join("file"), &pattern(PAGE)));
            // SAFETY: ends this process.
            unsafe { map.as_ptr().cast_mut().write_volatile(1) };
        }
        "store-and-wait" => {
            let mut map = map_mut(&small(), &open(&argument));
            (0..PAGES).for_each(|page| map[page * PAGE] = page as u8 + 1);
            wait_for_parent();
        }
        "store-for-ever" => {
            let mut map = map_mut(&small(), &open(&argument));
            let base = map.as_mut_ptr() as usize;
            for thread in 0..6 {
                std::thread::spawn(move || {
                    let mut random = Random::new(thread);
                    loop {
                        // SAFETY: inside the map; the words are only reached as atomics.
                        let word =
                            unsafe { &*((base + random.below(PAGES) * PAGE) as *const std::sync::atomic::AtomicU64) };
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // SAFETY: as above.
            let word = |page: usize| unsafe { &*((base + page * PAGE) as *const std::sync::atomic::AtomicU64) };
            let sum = || (0..PAGES).map(|page| word(page).load(Ordering::Relaxed)).sum::<u64>();
            let before = sum();
            until("stores", || sum() > before);
            wait_for_parent();
        }
        "too-late" => {
            let map = map(&small(), &create(&folder.path().join("file"), &pattern(PAGE)));
            let refused = faults::choose(Faults::Service);
            assert!(matches!(refused, Err(Error::FaultsChosen { chosen: Faults::Signal })), "{refused:?}");
            faults::choose(Faults::Signal).unwrap();
            assert_eq!(map[0], pattern(1)[0]);
        }
        "unprivileged" => {
            if std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1") {
                return skip("everybody has it (vm.unprivileged_userfaultfd)");
            }
            // SAFETY: this process's own identity.
            if unsafe { libc::geteuid() } == 0 && unsafe { libc::setresuid(65534, 65534, 65534) } != 0 {
                return skip("cannot become nobody");
            }
            let refused = faults::choose(Faults::Service);
            assert!(matches!(refused, Err(Error::Missing { .. })), "{refused:?}");
            let said = refused.unwrap_err().to_string();
            for remedy in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd", "/dev/userfaultfd"] {
                assert!(said.contains(remedy), "{said}");
            }
            let found =
                fastmap::requirements::of_machine().into_iter().find(|one| one.name == "kernel faults").unwrap();
            assert!(found.optional && found.found.is_err() && found.remedy.contains("CAP_SYS_PTRACE"));
            faults::choose(Faults::Signal).unwrap();
        }
        other => panic!("no role {other}"),
    }
}

/// Whose thread is not there to be told what it has stored: such stores wait as any.
#[test]
fn stores_to_absent_pages_wait() {
    by_service!();
    let folder = folder();
    let path = folder.path().join("file");
    for keeps in [true, false] {
        let bytes = pattern(PAGES * PAGE);
        drop(create(&path, &bytes));
        let cache = small();
        let mut wanted = options(&cache);
        if keeps {
            wanted.async_stores(true)
        } else {
            wanted.async_read([0xEE; 64])
        };
        // SAFETY: nobody else changes the file.
        let mut map = unsafe { wanted.map_mut(&open(&path)) }.unwrap();
        let mut expected = bytes;
        for page in (0..PAGES).step_by(2) {
            map[page * PAGE + 64..page * PAGE + 128].fill(7);
            expected[page * PAGE + 64..page * PAGE + 128].fill(7);
            // By the kernel, for the thread, to a page that is absent.
            let eights = create(&folder.path().join("eights"), &[8; 64]);
            let at = (page + 1) % PAGES * PAGE + 192;
            // SAFETY: within the map.
            let read = unsafe { libc::pread(eights.as_raw_fd(), map.as_mut_ptr().add(at).cast(), 64, 0) };
            assert_eq!(read, 64, "{}", errno());
            expected[at..at + 64].fill(8);
        }
        assert!(map[..] == expected[..] && !map.is_initial(&map[..64]));
        map.synchronise(0, PAGES * PAGE).unwrap();
        map.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected);
        let stats = cache.stats();
        assert_eq!((stats.async_loads, stats.kept_stores, stats.partial_lines), (0, 0, 0));
    }
}
