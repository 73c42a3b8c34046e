//! What a machine or a program can confront a map with: missing features, signals, processes.
//!
//! What ends a process or changes it for good happens in a child: this program run again with a role ([`role`]).

use crate::common::*;
use fastmap::{Advice, Cache, Engine, Error, Fallback, Map, MapOptions, Mode};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

// --- what is missing --------------------------------------------------------------------------------------------------

#[test]
fn tmpfs_is_mapped_by_the_callers_choice() {
    if !ready() {
        return;
    }
    if !Path::new("/dev/shm").is_dir() {
        return skip("no /dev/shm");
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("file");
    let mut bytes = pattern(40 * PAGE + 100);
    let file = create(&path, &bytes);
    let cache = small();
    // SAFETY: the file is this test's own.
    unsafe {
        let mut kernel =
            options(&cache).mode(Mode::Cached).fallback(Fallback::Kernel).offset(100).map_mut(&file).unwrap();
        assert_eq!((kernel.engine(), kernel.len()), (Engine::Kernel, bytes.len() - 100));
        kernel[0] = 3;
        bytes[100] = 3;
        kernel.flush().unwrap();
        kernel.flush_range(5, 7000).unwrap();
        kernel.advise_range(Advice::WillNeed, 100, 9000).unwrap();
        kernel.advise(Advice::DontNeed).unwrap();
        assert!(kernel[..] == bytes[100..]);
        drop(kernel);

        let refused = options(&cache).mode(Mode::Cached).map(&file);
        assert!(matches!(refused, Err(Error::Missing { missing: "O_DIRECT", .. })), "{refused:?}");
        assert!(refusal(&path, refused).contains("memory already"));

        let mut options = MapOptions::new();
        options.mode(Mode::Cached).cache(&cache).fallback(Fallback::Buffered);
        let mut buffered = options.map_mut(&file).unwrap();
        assert_eq!(buffered.engine(), Engine::Cached);
        assert!(buffered[..] == bytes[..]);
        let last = bytes.len() - 1;
        for at in (0..bytes.len()).step_by(3000).chain([last]) {
            buffered[at] = 201;
            bytes[at] = 201;
        }
        buffered.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes && buffered[..] == bytes[..]);
        assert!(resident(addresses(&buffered)) <= cache.capacity());
    }
}

#[test]
fn without_userfaultfd_the_kernel_maps_where_that_was_asked_for() {
    assert_role("without-userfaultfd", 0);
}

#[test]
fn without_process_madvise_the_budget_holds() {
    if ready() {
        assert_role("without-process-madvise", 0);
    }
}

#[test]
fn without_io_uring_more_threads_write() {
    if ready() {
        assert_role("without-io_uring", 0);
    }
}

#[test]
fn an_old_kernel_is_named() {
    assert_role("old-kernel", 0);
}

/// Write-back by threads with one write each under way.
fn without_io_uring() {
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(2000 * PAGE));
    let cache = Cache::builder().capacity(4 << 20).high_water(30).build().unwrap();
    let mut map = map_mut(&cache, &file);
    let mut bytes = pattern(2000 * PAGE);
    let mut random = Random::new(seed(1));
    for step in 0..20_000 {
        let at = random.below(bytes.len());
        map[at] = step as u8;
        bytes[at] = step as u8;
        if step % 5000 == 0 {
            map.flush().unwrap();
        }
    }
    map.flush_async().wait().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    let comms = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
    assert_eq!(comms.filter(|comm| comm.starts_with("fastmap-write")).count(), 16);
    let found = fastmap::requirements::of_machine().into_iter().find(|one| one.name == "io_uring").unwrap();
    assert!(found.optional && found.found.is_err(), "{:?}", found.found);
}

/// Maps where the engine lacks something: an error that names it, and by the kernel where that was asked for.
fn expect_missing(missing: &str, found: &str) {
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(3 * PAGE));
    let cache = small();
    // SAFETY: the file is this test's own.
    unsafe {
        let kernel = MapOptions::new().cache(&cache).fallback(Fallback::Kernel).map(&file).unwrap();
        assert_eq!(kernel.engine(), Engine::Kernel);
        assert!(kernel[..] == pattern(3 * PAGE));
        let cached = || MapOptions::new().cache(&cache).clone();
        for refused in [
            MapOptions::new().mode(Mode::Cached).map(&file),
            cached().map(&file),
            cached().fallback(Fallback::Refuse).map(&file),
            cached().fallback(Fallback::Buffered).map(&file),
        ] {
            assert!(matches!(&refused, Err(Error::Missing { missing: what, .. }) if *what == missing), "{refused:?}");
            assert!(refusal(&path, refused).contains(found));
        }
        assert!(matches!(cached().map_mut(&file), Err(Error::Missing { .. })));
        assert_eq!(Map::map(&file).unwrap().engine(), Engine::Kernel, "no cache is asked for");
    }
}

// --- signals ----------------------------------------------------------------------------------------------------------

#[test]
fn a_load_past_the_end_kills_and_says_where() {
    if !ready() {
        return;
    }
    let output = assert_role("past-end", libc::SIGBUS);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("past-end-file") && said.contains("offset 8192") && said.contains("5000 bytes"), "{said}");
}

#[test]
fn a_load_of_what_was_truncated_kills_and_says_where() {
    if !ready() {
        return;
    }
    let output = assert_role("truncated", libc::SIGBUS);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("truncated-file") && said.contains("offset 8192"), "{said}");
}

/// In memory when the file is cut, and gone when a flush has noticed.
#[test]
fn a_load_of_what_a_flush_found_cut_off_kills_and_says_where() {
    if !ready() {
        return;
    }
    let output = assert_role("noticed", libc::SIGBUS);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("noticed-file") && said.contains("offset 8192") && said.contains("5000 bytes"), "{said}");
}

#[test]
fn a_fault_that_finds_only_pages_a_full_disk_refuses_kills_and_says_why() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("sparse");
    create(&path, &[]).set_len(1 << 20).unwrap();
    let output = assert_role_with("full-of-dirty", libc::SIGBUS, &path);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("sparse") && said.contains("writing back"), "{said}");
}

#[test]
fn a_foreign_handler_gets_a_foreign_sigbus() {
    if ready() {
        assert_role("foreign-handler", 0);
    }
}

#[test]
fn a_foreign_handler_without_siginfo_and_with_nodefer() {
    if ready() {
        assert_role("foreign-nodefer", 0);
    }
}

#[test]
fn a_foreign_handler_for_one_signal_runs_once() {
    if ready() {
        let output = assert_role("foreign-resethand", libc::SIGBUS);
        assert!(String::from_utf8_lossy(&output.stdout).contains("handled once"));
    }
}

#[test]
fn a_sigbus_that_was_sent_kills_as_it_would_have() {
    if ready() {
        assert_role("raise", libc::SIGBUS);
        assert_role("kill", libc::SIGBUS);
        assert_role("foreign-fault", libc::SIGBUS);
        assert_role("ignored", 0);
    }
}

#[test]
fn errno_survives_a_fault() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(100 * PAGE));
    let cache = small();
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr();
    // SAFETY: errno is this thread's; the accesses are inside the map.
    unsafe {
        let errno = libc::__errno_location();
        for page in 0..100 {
            errno.write_volatile(1000 + page as i32);
            base.add(page * PAGE).read_volatile();
            assert_eq!(errno.read_volatile(), 1000 + page as i32);
            base.add(page * PAGE).write_volatile(1);
            assert_eq!(errno.read_volatile(), 1000 + page as i32);
        }
    }
}

#[test]
fn registers_survive_a_fault() {
    if !ready() {
        return;
    }
    let folder = folder();
    let bytes: Vec<u8> = (0..100 * PAGE / 8).flat_map(|word| (word as f64 + 0.5).to_le_bytes()).collect();
    let map = map(&small(), &create(&folder.path().join("file"), &bytes));
    // Sums in vector registers and in many integers across misses; the same work on a copy in memory.
    let work = |bytes: &[u8]| {
        let mut sums = [0f64; 8];
        let mut numbers = [1u64; 12];
        for (at, chunk) in bytes.chunks_exact(1000).enumerate() {
            for (lane, word) in chunk.chunks_exact(8).enumerate() {
                let word: [u8; 8] = word.try_into().unwrap();
                sums[lane % 8] = sums[lane % 8] * 0.999 + f64::from_le_bytes(word);
                numbers[(lane + at) % 12] = numbers[(lane + at) % 12].rotate_left(7) ^ u64::from_le_bytes(word);
            }
        }
        (sums.map(f64::to_bits), numbers)
    };
    for _ in 0..3 {
        assert_eq!(work(&map), work(&bytes));
    }
}

/// Every path through the handler, a write-back by a starving thread included, on SIGSTKSZ bytes with a guard below.
#[test]
fn faults_on_a_small_alternate_stack() {
    if ready() {
        work_on_a_small_alternate_stack(&mut options(&small()));
    }
}

/// Stores that are decoded, too.
#[test]
fn stores_are_kept_on_a_small_alternate_stack() {
    if ready() {
        let cache = small();
        work_on_a_small_alternate_stack(options(&cache).async_stores(true));
        println!("{} stores kept", cache.stats().kept_stores);
        let by_service = std::env::var("FASTMAP_FAULTS").is_ok_and(|by| by == "service");
        assert!(cache.stats().kept_stores > 0 || by_service);
        let initial = options(&cache).async_read([0xEE; 64]).clone();
        work_on_a_small_alternate_stack(&mut initial.clone());
    }
}

fn work_on_a_small_alternate_stack(options: &mut MapOptions) {
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(200 * PAGE));
    // SAFETY: nobody else changes the file.
    let mut map = unsafe { options.map_mut(&file) }.unwrap();
    let thread = std::thread::scope(|scope| {
        let map = &mut map;
        scope
            .spawn(move || {
                // SAFETY: a stack of this thread's own over a page without access; taken down before it is unmapped.
                unsafe {
                    let stack = libc::mmap(
                        std::ptr::null_mut(),
                        PAGE + libc::SIGSTKSZ,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    );
                    assert_eq!(libc::mprotect(stack, PAGE, libc::PROT_NONE), 0);
                    let mut before = std::mem::zeroed();
                    let small = libc::stack_t { ss_sp: stack.byte_add(PAGE), ss_flags: 0, ss_size: libc::SIGSTKSZ };
                    assert_eq!(libc::sigaltstack(&small, &mut before), 0);
                    for round in 0..2 {
                        for page in 0..200 {
                            if page % 2 == 0 {
                                assert_eq!(map[page * PAGE + 100], pattern(200 * PAGE)[page * PAGE + 100]);
                            }
                            // Whole lines, of every byte.
                            map[page * PAGE..page * PAGE + 64].fill(page as u8 ^ round);
                        }
                    }
                    libc::sigaltstack(&before, std::ptr::null_mut());
                    // Untouched words at the bottom show how much was used.
                    let words = std::slice::from_raw_parts(stack.byte_add(PAGE).cast::<u64>(), libc::SIGSTKSZ / 8);
                    let unused = words.iter().position(|word| *word != 0).unwrap_or(words.len()) * 8;
                    println!("the deepest fault used {} of {} bytes", libc::SIGSTKSZ - unused, libc::SIGSTKSZ);
                    libc::munmap(stack, PAGE + libc::SIGSTKSZ);
                }
            })
            .join()
    });
    thread.unwrap();
    assert!((0..200).all(|page| map[page * PAGE] == page as u8 ^ 1));
}

/// Threads without an alternate stack: the frame lies on the ordinary one.
#[test]
fn faults_without_an_alternate_stack() {
    if !ready() {
        return;
    }
    let folder = folder();
    let map = map(&small(), &create(&folder.path().join("file"), &pattern(100 * PAGE)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: this thread lives without one from here on.
            unsafe {
                let mut before: libc::stack_t = std::mem::zeroed();
                let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                assert_eq!(libc::sigaltstack(&none, &mut before), 0);
                assert!(map[..] == pattern(100 * PAGE));
                libc::sigaltstack(&before, std::ptr::null_mut());
            }
        });
    });
}

#[test]
fn faults_amid_allocations() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = small();
    let bytes = pattern(200 * PAGE);
    let map = map(&cache, &create(&folder.path().join("file"), &bytes));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (map, bytes) = (&map, &bytes);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut kept: Vec<Vec<u8>> = Vec::new();
                for _ in 0..3000 {
                    let at = random.below(bytes.len() - 9000);
                    // Copies straight out of the map into fresh memory, small and beyond the mmap threshold.
                    let len = if random.below(50) == 0 { 9000 } else { 1 + random.below(300) };
                    let copy = map[at..at + len].to_vec();
                    assert!(copy == bytes[at..at + len]);
                    let mut grown: Vec<u8> = Vec::new();
                    map[at..at + len.min(100)].iter().for_each(|byte| grown.push(*byte));
                    assert!(grown == bytes[at..at + len.min(100)]);
                    kept.push(copy);
                    if kept.len() > 40 {
                        kept.swap_remove(random.below(40));
                    }
                }
            });
        }
    });
}

#[test]
fn a_programs_own_handler_touches_the_map() {
    if ready() {
        let output = assert_role("alarm", 0);
        println!("{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Threads that come, fault once and go.
#[test]
fn threads_that_end_after_a_fault() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = small();
    let mut map = map_mut(&cache, &create(&folder.path().join("file"), &vec![0; 64 * PAGE]));
    let base = map.as_mut_ptr() as usize;
    for round in 0..40 {
        std::thread::scope(|scope| {
            for thread in 0..16 {
                scope.spawn(move || {
                    let at = base + ((round * 16 + thread) * 37 % 64) * PAGE + 8 * thread;
                    // SAFETY: inside the map.
                    unsafe { &*(at as *const AtomicU64) }.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
    }
    let total: u64 = map.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).sum();
    assert_eq!(total, 640);
}

// --- processes --------------------------------------------------------------------------------------------------------

#[test]
fn children_of_fork_end_well_and_save_nothing() {
    if ready() {
        assert_role("fork", 0);
    }
}

#[test]
fn programs_are_started_while_files_are_mapped() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut map = map_mut(&small(), &create(&path, &pattern(40 * PAGE)));
    for page in 0..40 {
        map[page * PAGE] = 1;
        let output = Command::new("echo").arg(page.to_string()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), page.to_string());
    }
    drop(map);
    assert!(std::fs::read(&path).unwrap().iter().step_by(PAGE).all(|byte| *byte == 1));
}

#[test]
fn stores_are_saved_at_exit() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(40 * PAGE));
    assert_role_with("exit", 0, &path);
    let bytes = std::fs::read(&path).unwrap();
    (0..40).for_each(|page| assert_eq!(bytes[page * PAGE], 200 - page as u8, "page {page}"));
}

#[test]
fn nothing_is_left_behind() {
    if ready() {
        assert_role("come-and-go", 0);
    }
}

#[test]
fn a_locked_address_space() {
    if ready() {
        assert_role("mlockall", 0);
    }
}

#[test]
fn signals_rain_on_threads_that_fault() {
    if ready() {
        assert_role("rain", 0);
    }
}

#[test]
fn no_descriptors_left() {
    if ready() {
        assert_role("no-descriptors", 0);
    }
}

// --- roles of children ------------------------------------------------------------------------------------------------

fn assert_role(role: &str, signal: i32) -> Output {
    assert_role_with(role, signal, Path::new(""))
}

/// Runs a child in a role and expects it to end by a signal, or well.
fn assert_role_with(role: &str, signal: i32, argument: &Path) -> Output {
    let output = child(role, argument).output().unwrap();
    let as_expected = if signal == 0 { output.status.success() } else { output.status.signal() == Some(signal) };
    assert!(as_expected, "{role}: {}, not signal {signal}\n{}", output.status, said(&output));
    output
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Ok(role) = std::env::var("FASTMAP_TEST_ROLE") else { return };
    let argument = PathBuf::from(std::env::var_os("FASTMAP_TEST_ARGUMENT").unwrap_or_default());
    // SAFETY: no preconditions. A role that hangs ends; one that crashes leaves no core file.
    unsafe {
        libc::alarm(40);
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    }
    match role.as_str() {
        "without-userfaultfd" => {
            refuse_call(libc::SYS_userfaultfd);
            expect_missing("userfaultfd", "seccomp");
        }
        "without-io_uring" => {
            refuse_call(libc::SYS_io_uring_setup);
            without_io_uring();
        }
        "old-kernel" => {
            const UNAME26: libc::c_ulong = 0x0020000;
            // SAFETY: changes what uname says in this thread.
            assert!(unsafe { libc::personality(UNAME26) } >= 0);
            expect_missing("Linux 6.8", "this is Linux 2.6");
        }
        "without-process-madvise" => without_process_madvise(),
        "past-end" => {
            let folder = folder();
            let file = create(&folder.path().join("past-end-file"), &pattern(5000));
            // SAFETY: past the end on purpose.
            let map = unsafe { options(&small()).len(4 * PAGE).map(&file) }.unwrap();
            assert_eq!(map[2 * PAGE - 1], 0);
            std::hint::black_box(map[2 * PAGE + 5]);
        }
        "truncated" => {
            let folder = folder();
            let file = create(&folder.path().join("truncated-file"), &pattern(5 * PAGE));
            let map = map(&small(), &file);
            file.set_len(5000).unwrap();
            std::hint::black_box(map[2 * PAGE + 5]);
        }
        "noticed" => {
            let folder = folder();
            let file = create(&folder.path().join("noticed-file"), &pattern(5 * PAGE));
            let mut map = map_mut(&small(), &file);
            map[2 * PAGE + 5] = 1;
            file.set_len(5000).unwrap();
            assert_eq!(map[2 * PAGE + 5], 1);
            map.flush().unwrap();
            std::hint::black_box(map[2 * PAGE + 5]);
        }
        "full-of-dirty" => {
            let mut map = map_mut(&small(), &open(&argument));
            (0..200).for_each(|page| map[page * PAGE] = 1);
            rob_file(&open(&argument), argument.parent().unwrap());
            (0..200).for_each(|page| map[page * PAGE] = 2);
        }
        "foreign-handler" => foreign_handler(libc::SA_SIGINFO | libc::SA_ONSTACK),
        "foreign-nodefer" => foreign_handler(libc::SA_NODEFER),
        "foreign-resethand" => foreign_handler(libc::SA_SIGINFO | libc::SA_RESETHAND),
        "raise" | "kill" | "foreign-fault" | "ignored" => sent(&role),
        "alarm" => alarm(),
        "come-and-go" => come_and_go(),
        "mlockall" => locked(),
        "rain" => rain(),
        "no-descriptors" => no_descriptors(),
        "fork" => fork(),
        "exit" => {
            let mut map = map_mut(&Cache::new(64 * PAGE).unwrap(), &open(&argument));
            (0..40).for_each(|page| map[page * PAGE] = 200 - page as u8);
            std::process::exit(0);
        }
        other => panic!("no role {other}"),
    }
}

fn without_process_madvise() {
    refuse_call(libc::SYS_process_madvise);
    let batching = fastmap::requirements::of_machine().into_iter().find(|one| one.name == "process_madvise").unwrap();
    assert!(batching.optional && batching.found.is_err());
    let folder = folder();
    let mut bytes = pattern(200 * PAGE);
    let path = folder.path().join("file");
    let cache = Cache::builder().capacity(64 * PAGE).evict_batch(16).build().unwrap();
    {
        let mut map = map_mut(&cache, &create(&path, &bytes));
        for page in 0..200 {
            assert!(map[page * PAGE..][..PAGE] == bytes[page * PAGE..][..PAGE]);
            map[page * PAGE] = 3;
            bytes[page * PAGE] = 3;
            assert!(resident(addresses(&map)) <= cache.capacity());
        }
        assert!(map[..] == bytes[..]);
        assert!(cache.stats().evicted_pages >= 136);
    }
    assert!(std::fs::read(&path).unwrap() == bytes);
    assert_eq!(cache.stats().resident_pages, 0);
}

static FOREIGN_CALLS: AtomicUsize = AtomicUsize::new(0);
static FOREIGN_ADDRESS: AtomicUsize = AtomicUsize::new(0);
static FOREIGN_CODE: AtomicI32 = AtomicI32::new(0);
static FOREIGN_MASK: AtomicUsize = AtomicUsize::new(0);
static FOREIGN_STACK: AtomicUsize = AtomicUsize::new(0);
static FOREIGN_PAGE: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Repairs the page that was truncated away, so that the program goes on.
fn repair() {
    let here = 0u8;
    FOREIGN_STACK.store(&raw const here as usize, Ordering::SeqCst);
    FOREIGN_CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: reads the mask; maps over a page of the test's own.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        let blocked = |signal| usize::from(libc::sigismember(&mask, signal) == 1) << signal;
        FOREIGN_MASK.store(blocked(libc::SIGBUS) | blocked(libc::SIGUSR1) | blocked(libc::SIGUSR2), Ordering::SeqCst);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(FOREIGN_PAGE.load(Ordering::SeqCst), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    }
}

extern "C" fn foreign_with_info(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: what the kernel gave.
    unsafe {
        FOREIGN_ADDRESS.store((*info).si_addr() as usize, Ordering::SeqCst);
        FOREIGN_CODE.store((*info).si_code, Ordering::SeqCst);
    }
    repair();
}

extern "C" fn foreign_plain(signal: i32) {
    FOREIGN_CODE.store(signal, Ordering::SeqCst);
    repair();
}

/// A kernel mapping of a file truncated to nothing: touching it is a SIGBUS of the kernel's own.
fn truncated_mapping(folder: &Path) -> *mut u8 {
    let file = create(&folder.join("kernel"), &pattern(PAGE));
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    FOREIGN_PAGE.store(at, Ordering::SeqCst);
    at.cast()
}

fn foreign_handler(flags: i32) {
    let folder = folder();
    let with_info = flags & libc::SA_SIGINFO != 0;
    // SAFETY: handlers of the right kind for the flags; the touched page is repaired by them.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction =
            if with_info { foreign_with_info as *const () as usize } else { foreign_plain as *const () as usize };
        action.sa_flags = flags;
        libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
        let bytes = pattern(100 * PAGE);
        let map = map(&small(), &create(&folder.path().join("file"), &bytes));
        assert!(map[..] == bytes[..]);
        assert_eq!(FOREIGN_CALLS.load(Ordering::SeqCst), 0, "our faults are not its");

        let page = truncated_mapping(folder.path());
        assert_eq!(page.add(77).read_volatile(), 0);
        assert_eq!(FOREIGN_CALLS.load(Ordering::SeqCst), 1);
        if with_info {
            assert_eq!(FOREIGN_ADDRESS.load(Ordering::SeqCst), page as usize + 77);
            assert_eq!(FOREIGN_CODE.load(Ordering::SeqCst), libc::BUS_ADRERR);
        } else {
            assert_eq!(FOREIGN_CODE.load(Ordering::SeqCst), libc::SIGBUS);
        }
        let own = if flags & libc::SA_NODEFER == 0 { 1 << libc::SIGBUS } else { 0 };
        assert_eq!(FOREIGN_MASK.load(Ordering::SeqCst), own | 1 << libc::SIGUSR1, "the mask it asked for");
        if flags & libc::SA_ONSTACK != 0 {
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut stack);
            let start = stack.ss_sp as usize;
            assert!((start..start + stack.ss_size).contains(&FOREIGN_STACK.load(Ordering::SeqCst)));
        }
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        assert_eq!(
            libc::sigismember(&mask, libc::SIGUSR1) | libc::sigismember(&mask, libc::SIGBUS),
            0,
            "and it is gone"
        );
        assert!(map[..] == bytes[..], "our faults go on");
        println!("handled once");
        let page = truncated_mapping(folder.path());
        page.read_volatile(); // kills with SA_RESETHAND
        assert_eq!(FOREIGN_CALLS.load(Ordering::SeqCst), 2);
        assert!(map[..] == bytes[..]);
    }
}

/// Default action, or none, for a SIGBUS that is not a map's.
fn sent(role: &str) {
    let folder = folder();
    // SAFETY: plain calls; touches what is not there on purpose.
    unsafe {
        libc::signal(libc::SIGBUS, if role == "ignored" { libc::SIG_IGN } else { libc::SIG_DFL });
        let bytes = pattern(100 * PAGE);
        let map = map(&small(), &create(&folder.path().join("file"), &bytes));
        assert!(map[..] == bytes[..]);
        match role {
            "raise" => drop(libc::raise(libc::SIGBUS)),
            "foreign-fault" => drop(truncated_mapping(folder.path()).read_volatile()),
            _ => drop(libc::kill(libc::getpid(), libc::SIGBUS)),
        }
        // What was sent may come to another thread of this process, a moment later.
        if role != "ignored" {
            loop {
                std::thread::park();
            }
        }
        assert!(map[..] == bytes[..], "still served");
    }
}

static ALARM_MAP: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static ALARMS: AtomicU64 = AtomicU64::new(0);
static ALARMS_OVER: AtomicU64 = AtomicU64::new(0);
static ALARM_WRONG: AtomicBool = AtomicBool::new(false);
const ALARM_PAGES: usize = 100;

/// Loads a stamp and counts in a word of the map.
extern "C" fn on_alarm(_: i32) {
    let base = ALARM_MAP.load(Ordering::SeqCst);
    let count = ALARMS.fetch_add(1, Ordering::SeqCst);
    let page = (count.wrapping_mul(2_654_435_761) >> 8) as usize % ALARM_PAGES;
    // SAFETY: inside the map; the words are only reached as atomics.
    unsafe {
        let words = base.add(page * PAGE).cast::<AtomicU64>();
        if (*words).load(Ordering::Relaxed) != page as u64 {
            ALARM_WRONG.store(true, Ordering::SeqCst);
        }
        (*words.add(1)).fetch_add(1, Ordering::Relaxed);
    }
    ALARMS_OVER.fetch_add(1, Ordering::SeqCst);
}

fn alarm() {
    let folder = folder();
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..ALARM_PAGES)
        .flat_map(|page| {
            let mut bytes = vec![0; PAGE];
            bytes[..8].copy_from_slice(&(page as u64).to_le_bytes());
            bytes
        })
        .collect();
    let cache = small();
    let mut map = map_mut(&cache, &create(&path, &bytes));
    let base = map.as_mut_ptr() as usize;
    ALARM_MAP.store(map.as_mut_ptr(), Ordering::SeqCst);
    let every = |micros| {
        let interval = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: a valid timer.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
    };
    // SAFETY: a handler that touches atomics only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
    }
    every(1000);
    let added = AtomicU64::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (added, map) = (&added, &map);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                while begin.elapsed() < under_load() {
                    let page = random.below(ALARM_PAGES);
                    // SAFETY: inside the map; the words are only reached as atomics.
                    let word = |word: usize| unsafe { &*((base + page * PAGE + word * 8) as *const AtomicU64) };
                    assert_eq!(word(0).load(Ordering::Relaxed), page as u64);
                    word(2).fetch_add(1, Ordering::Relaxed);
                    added.fetch_add(1, Ordering::Relaxed);
                    if random.below(500) == 0 {
                        map.flush_range(page * PAGE, 10).unwrap();
                        map.advise_range(Advice::DontNeed, page * PAGE, 10 * PAGE.min(map.len() - page * PAGE)).ok();
                    }
                }
            });
        }
    });
    every(0);
    // One may still be at work in another thread.
    std::thread::sleep(Duration::from_millis(20));
    while ALARMS_OVER.load(Ordering::SeqCst) != ALARMS.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    let sum = |word: usize| -> u64 {
        bytes.chunks(PAGE).map(|page| u64::from_le_bytes(page[word * 8..][..8].try_into().unwrap())).sum()
    };
    assert!(!ALARM_WRONG.load(Ordering::SeqCst), "the handler loaded something else");
    assert_eq!((sum(1), sum(2)), (ALARMS.load(Ordering::SeqCst), added.load(Ordering::SeqCst)));
    println!("{} alarms, {} adds", sum(1), sum(2));
    assert!(sum(1) > 100);
}

/// Threads, descriptors and kernel mappings of this process.
fn belongings() -> [usize; 3] {
    let count = |folder| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [count("/proc/self/task"), count("/proc/self/fd"), maps.lines().count()]
}

/// Caches and maps by the hundred, with and without errors on the way.
fn come_and_go() {
    let folder = folder();
    let file = create(&folder.path().join("file"), &pattern(30 * PAGE));
    let read_only = File::open(folder.path().join("file")).unwrap();
    let round = |number: usize| {
        let cache = small();
        let mut map = map_mut(&cache, &file);
        map[number % 30 * PAGE] = number as u8;
        map.flush_async();
        // SAFETY: the file is this test's own.
        assert!(unsafe { options(&cache).map_mut(&read_only) }.is_err());
        if number.is_multiple_of(2) {
            drop(cache);
        }
        drop(map);
    };
    /// The main thread, the one that runs this, the one that the keeper watches, and the one that tells live counters.
    const OWN_THREADS: usize = 4;
    // Background writers end by themselves after their caches: what counts is that they do, not when.
    let settled = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while belongings()[0] > OWN_THREADS && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        belongings()
    };
    (0..20).for_each(round);
    let before = settled();
    (0..300).for_each(round);
    let after = settled();
    println!("threads, descriptors, mappings: {before:?}, {after:?}");
    assert_eq!(before[..2], after[..2], "threads and descriptors");
    // The C library keeps the stacks of up to 20 threads that have ended, two mappings each; and those of the 64 that read where a disk
    // had much to do for others.
    assert!(after[2] <= before[2] + 200, "mappings: {before:?} {after:?}");
}

/// mlockall(2) brings no page into a map and keeps none there.
fn locked() {
    // SAFETY: locks this process, which ends soon.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        return skip(format!("mlockall: {}", std::io::Error::last_os_error()));
    }
    let folder = folder();
    let path = folder.path().join("file");
    let mut bytes = pattern(200 * PAGE);
    let cache = small();
    {
        let mut map = map_mut(&cache, &create(&path, &bytes));
        assert_eq!(resident(addresses(&map)), 0);
        for page in 0..200 {
            assert!(map[page * PAGE..][..PAGE] == bytes[page * PAGE..][..PAGE]);
            map[page * PAGE] = 3;
            bytes[page * PAGE] = 3;
            assert!(resident(addresses(&map)) <= cache.capacity());
        }
        assert!(map[..] == bytes[..]);
    }
    assert!(std::fs::read(&path).unwrap() == bytes);
}

extern "C" fn drop_of_rain(_: i32) {
    // Vector registers of its own, as any handler's code may use.
    let numbers = std::hint::black_box([1.5f64; 16]);
    ALARMS.fetch_add(numbers.iter().map(|number| number * 2.0).sum::<f64>() as u64 / 48, Ordering::Relaxed);
}

/// Signals as fast as they can be sent, with an alternate stack and without, to threads that compute over a map: neither
/// registers nor data may suffer when one comes at any point of a fault.
fn rain() {
    let folder = folder();
    let bytes = pattern(60 * PAGE);
    let map = map(&small(), &create(&folder.path().join("file"), &bytes));
    // SAFETY: a handler that touches an atomic only.
    let install = |signal, flags| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = drop_of_rain as *const () as usize;
        action.sa_flags = flags | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    };
    install(libc::SIGUSR1, 0);
    install(libc::SIGUSR2, libc::SA_ONSTACK);
    let work = |bytes: &[u8]| {
        let mut sums = [0f64; 8];
        let mut numbers = [1u64; 10];
        for (at, word) in bytes.chunks_exact(8).enumerate().step_by(61) {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            sums[at % 8] = sums[at % 8] * 0.999 + word as f64;
            numbers[at % 10] = numbers[at % 10].rotate_left(7) ^ word;
        }
        (sums.map(f64::to_bits), numbers)
    };
    let want = work(&bytes);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let targets: Vec<_> = (0..4)
            .map(|_| {
                let (map, work, want, stop) = (&map, &work, &want, &stop);
                let (tell, told) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    // SAFETY: no preconditions.
                    tell.send(unsafe { libc::pthread_self() }).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(work(map), *want);
                    }
                });
                told.recv().unwrap()
            })
            .collect();
        let begin = Instant::now();
        while begin.elapsed() < under_load() {
            for target in &targets {
                // SAFETY: the threads live until they are told to stop.
                unsafe {
                    libc::pthread_kill(*target, libc::SIGUSR1);
                    libc::pthread_kill(*target, libc::SIGUSR2);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} signals", ALARMS.load(Ordering::Relaxed));
}

/// A process at its limit of open files: an error that says so, and no harm to what is mapped.
fn no_descriptors() {
    let folder = folder();
    let cache = small();
    let bytes = pattern(40 * PAGE);
    let map = map(&cache, &create(&folder.path().join("one"), &bytes));
    let file = create(&folder.path().join("two"), &bytes);
    let mut kept = Vec::new();
    // SAFETY: lowers this process's own limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 64, rlim_max: 64 }) };
    while let Ok(one) = File::open("/dev/null") {
        kept.push(one);
    }
    for free in 0..6 {
        // SAFETY: the file is this test's own.
        match unsafe { options(&cache).map_mut(&file) } {
            Ok(map) => assert!(map[..] == bytes[..]),
            Err(error) => println!("{free} descriptors free: {error}"),
        }
        assert!(map[..] == bytes[..]);
        kept.pop();
    }
    // SAFETY: likewise.
    assert!(unsafe { options(&cache).map_mut(&file) }.unwrap()[..] == bytes[..]);
}

fn fork() {
    let folder = folder();
    let path = folder.path().join("file");
    let cache = small();
    let mut map = map_mut(&cache, &create(&path, &pattern(40 * PAGE)));
    map[0] = 11;
    for ending in ["_exit", "exit", "drop", "map", "same", "flush", "resize", "touch"] {
        // SAFETY: the child calls little; the other thread is the test runner's, asleep.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends this process.
            unsafe {
                match ending {
                    "_exit" => libc::_exit(0),
                    "exit" => libc::exit(0),
                    "drop" => {
                        drop(map);
                        libc::_exit(0)
                    }
                    "map" => {
                        // The engine does not run here; the kernel serves unless that is forbidden.
                        let file = create(&folder.path().join("other"), &pattern(PAGE));
                        let refused = matches!(options(&small()).map(&file), Err(Error::Missing { .. }));
                        let kernel = MapOptions::new()
                            .fallback(Fallback::Kernel)
                            .map(&file)
                            .is_ok_and(|map| map.engine() == Engine::Kernel && map[7] == pattern(8)[7]);
                        libc::_exit(i32::from(!(refused && kernel)))
                    }
                    "same" => {
                        // The file that the parent has mapped: never the parent's region.
                        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                        let refused = matches!(options(&small()).map(&file), Err(Error::Missing { .. }));
                        let kernel = MapOptions::new()
                            .fallback(Fallback::Kernel)
                            .map(&file)
                            .is_ok_and(|map| map.engine() == Engine::Kernel && map[7] == pattern(8)[7]);
                        libc::_exit(i32::from(!(refused && kernel)))
                    }
                    "flush" => {
                        let flushed = matches!(map.flush(), Err(Error::Missing { .. }));
                        let advised = matches!(map.advise(Advice::DontNeed), Err(Error::Missing { .. }));
                        let pinned = matches!(map.pin(0, 1), Err(Error::Missing { .. }));
                        let read = matches!(map.get_at::<u8>(0), Err(Error::Missing { .. }));
                        libc::_exit(i32::from(!(flushed && advised && pinned && read)))
                    }
                    "resize" => {
                        // Evicting by address would reach into the parent.
                        let refused = matches!(cache.resize(Cache::MIN_CAPACITY), Err(Error::Missing { .. }));
                        libc::_exit(i32::from(!refused))
                    }
                    _ => {
                        std::hint::black_box(map[0]);
                        libc::_exit(0)
                    }
                }
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        if ending == "touch" {
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{ending}: {status:#x}");
        } else {
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{ending}: {status:#x}");
        }
        assert_eq!(map[0], 11);
        map[PAGE] = map[PAGE].wrapping_add(1);
    }
    let last = map[PAGE];
    drop(map);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[0], bytes[PAGE]), (11, last));
}
