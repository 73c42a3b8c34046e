//! A program that handles SIGBUS itself, whose calls of sigaction(2) end in `signals::replace_sigbus`.

use crate::common::*;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Handlers here are of the kind that their flags say.
fn replace_sigbus(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: as said.
    unsafe { fastmap::signals::replace_sigbus(new) }
}

#[test]
fn a_handler_from_before_is_known_and_replaced() {
    if !ready() {
        return;
    }
    assert_ends("before", 0);
}

#[test]
fn a_handler_from_after_gets_what_is_not_ours() {
    if !ready() {
        return;
    }
    assert_ends("after", 0);
}

#[test]
fn the_default_action_kills_and_ignoring_ignores_what_was_sent() {
    if !ready() {
        return;
    }
    assert_ends("default", libc::SIGBUS);
    assert_ends("ignored", 0);
    assert_ends("ignored-fault", libc::SIGBUS);
}

#[test]
fn a_handler_that_calls_the_former_one_keeps_its_registers() {
    if !ready() {
        return;
    }
    assert_ends("chained", 0);
}

#[test]
fn a_handler_for_one_signal_is_gone_after_it() {
    if !ready() {
        return;
    }
    let said = assert_ends("once", libc::SIGBUS);
    assert!(said.contains("twice, once each time it was installed"), "{said}");
}

#[test]
fn a_program_extends_the_file_when_it_comes_past_the_end() {
    if !ready() {
        return;
    }
    assert_ends("past-end", 0);
}

#[test]
fn handlers_change_while_signals_rain_and_pages_are_served() {
    if !ready() {
        return;
    }
    assert_ends("changing", 0);
}

/// Runs a child in a role, which is to end by a signal, or well; what it said.
fn assert_ends(role: &str, signal: i32) -> String {
    let output = child(role, Path::new("")).output().unwrap();
    let said = said(&output);
    let ended = if signal == 0 { output.status.success() } else { output.status.signal() == Some(signal) };
    assert!(ended, "{role}: {}\n{said}", output.status);
    said
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, _)) = role_of_child() else { return };
    let folder = folder();
    let bytes = pattern(60 * PAGE);
    let file = create(&folder.path().join("file"), &bytes);
    let cache = small();
    let raise = || assert_eq!(unsafe_raise(), 0);
    assert!(replace_sigbus(None).is_none() && replace_sigbus(Some(&action(first, 0))).is_none(), "not ours yet");
    // Rust's own handler is out of the way.
    let found = if role == "before" { action(first, libc::SA_NODEFER) } else { plain(libc::SIG_DFL) };
    // SAFETY: a handler of the right kind.
    unsafe { libc::sigaction(libc::SIGBUS, &found, std::ptr::null_mut()) };
    let map = map_mut(&cache, &file);
    assert!(map[..] == bytes[..], "served");
    let served = || assert!(map[..] == bytes[..], "still served");
    match role.as_str() {
        "chained" => {
            // As crash reporters do, with sigaction(2) itself.
            let own = action(chaining, libc::SA_ONSTACK);
            // SAFETY: a handler of the right kind; what it finds is complete before a page is touched.
            unsafe {
                let mut former = plain(libc::SIG_DFL);
                libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut former);
                FORMER.store(former.sa_sigaction, Ordering::SeqCst);
                libc::sigaction(libc::SIGBUS, &own, std::ptr::null_mut());
            }
            let before = calls(&FIRST);
            served();
            assert!(calls(&FIRST) > before, "it came past the handler");
        }
        "before" => {
            let found = replace_sigbus(None).expect("ours is installed");
            assert_eq!(found.sa_sigaction, first as *const () as usize);
            assert!(found.sa_flags & (libc::SA_NODEFER | libc::SA_SIGINFO) == libc::SA_NODEFER | libc::SA_SIGINFO);
            // SAFETY: looks at sets.
            let has = |action: &libc::sigaction, signal| unsafe { libc::sigismember(&action.sa_mask, signal) == 1 };
            assert!(has(&found, libc::SIGUSR1) && !has(&found, libc::SIGUSR2));
            raise();
            assert_eq!((calls(&FIRST), calls(&SECOND)), (1, 0));
            served();
            assert_eq!(replace_sigbus(Some(&action(second, 0))).unwrap().sa_sigaction, found.sa_sigaction);
            raise();
            assert_eq!((calls(&FIRST), calls(&SECOND)), (1, 1));
            assert_eq!(replace_sigbus(Some(&found)).unwrap().sa_sigaction, second as *const () as usize);
            raise();
            assert_eq!((calls(&FIRST), calls(&SECOND)), (2, 1));
            served();
        }
        "after" => {
            let before = replace_sigbus(Some(&action(first, 0))).unwrap();
            assert_eq!(before.sa_sigaction, libc::SIG_DFL);
            raise();
            served();
            assert_eq!(calls(&FIRST), 1);
            // Of the two that no mask can hold, neither comes back.
            let mut all = action(second, 0);
            // SAFETY: a set of our own.
            unsafe { libc::sigfillset(&mut all.sa_mask) };
            replace_sigbus(Some(&all));
            let found = replace_sigbus(None).unwrap();
            // SAFETY: looks at a set.
            let has = |signal| unsafe { libc::sigismember(&found.sa_mask, signal) } == 1;
            assert!(has(libc::SIGHUP) && has(64) && !has(libc::SIGKILL) && !has(libc::SIGSTOP));
            raise();
            assert_eq!(calls(&SECOND), 1);
        }
        "default" => {
            replace_sigbus(Some(&action(first, 0)));
            replace_sigbus(Some(&plain(libc::SIG_DFL)));
            served();
            raise();
        }
        "ignored" => {
            replace_sigbus(Some(&plain(libc::SIG_IGN)));
            raise();
            served();
            assert_eq!(replace_sigbus(None).unwrap().sa_sigaction, libc::SIG_IGN);
        }
        "ignored-fault" => {
            // As with mmap(2): nobody ignores a fault.
            replace_sigbus(Some(&plain(libc::SIG_IGN)));
            std::hint::black_box(past_the_end(&cache, folder.path())[PAGE]);
        }
        "once" => {
            let once = action(first, libc::SA_RESETHAND);
            for time in 1..=2 {
                replace_sigbus(Some(&once));
                raise();
                assert_eq!(calls(&FIRST), time);
                assert_eq!(replace_sigbus(None).unwrap().sa_sigaction, libc::SIG_DFL);
                served();
            }
            println!("twice, once each time it was installed");
            raise();
        }
        "past-end" => {
            replace_sigbus(Some(&action(extend, 0)));
            let map = past_the_end(&cache, folder.path());
            for page in [1, 7, 3] {
                let at = page * PAGE + 77;
                assert_eq!(map[at], 0);
                let trapped = TRAPPED.load(Ordering::SeqCst);
                assert_eq!((calls(&FIRST), trapped), (1, if page == 3 { 0 } else { &raw const map[at] as usize }));
                // The third lies before the new end.
                TRAPPED.store(0, Ordering::SeqCst);
                FIRST.store(if page == 7 { 1 } else { 0 }, Ordering::SeqCst);
            }
            served();
        }
        "changing" => changing(&map, &bytes),
        other => panic!("no role {other}"),
    }
}

fn unsafe_raise() -> i32 {
    // SAFETY: a signal that the role expects.
    unsafe { libc::raise(libc::SIGBUS) }
}

fn calls(count: &AtomicUsize) -> usize {
    count.load(Ordering::SeqCst)
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

fn action(handler: Handler, flags: i32) -> libc::sigaction {
    let mut action = plain(handler as *const () as usize);
    action.sa_flags = flags | libc::SA_SIGINFO;
    let blocked = if handler as *const () == second as *const () { libc::SIGUSR2 } else { libc::SIGUSR1 };
    // SAFETY: a set of our own.
    unsafe { libc::sigaddset(&mut action.sa_mask, blocked) };
    action
}

fn plain(handler: usize) -> libc::sigaction {
    // SAFETY: a zeroed sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

/// A map of a file of one page that reaches eight pages further.
fn past_the_end(cache: &fastmap::Cache, folder: &Path) -> fastmap::Map {
    let file = create(&folder.join("short"), &[1; PAGE]);
    FILE.store(file.as_raw_fd(), Ordering::SeqCst);
    // SAFETY: the file is this test's own.
    let map = unsafe { options(cache).len(9 * PAGE).map(&file) }.unwrap();
    std::mem::forget(file);
    map
}

/// Calls the handler that was there before, and looks at what it has in registers that a call keeps.
extern "C" fn chaining(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let kept: [u64; 4] = [0x1212, 0x1313, 0x1414, 0x1515];
    let [mut a, mut b, mut c, mut d] = kept;
    // SAFETY: the call of a handler of three arguments.
    unsafe {
        std::arch::asm!(
            "call rax",
            in("rax") FORMER.load(Ordering::SeqCst), in("rdi") i64::from(signal), in("rsi") info, in("rdx") context,
            inout("r12") a, inout("r13") b, inout("r14") c, inout("r15") d,
            clobber_abi("C"),
        );
    }
    if [a, b, c, d] != kept {
        std::process::abort();
    }
    FIRST.fetch_add(1, Ordering::SeqCst);
}

static FORMER: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);
static TRAPPED: AtomicUsize = AtomicUsize::new(0);
/// A handler ran under another's mask.
static TORN: AtomicBool = AtomicBool::new(false);
static RAISED: AtomicU64 = AtomicU64::new(0);

fn note(count: &AtomicUsize, own: i32, others: i32) {
    count.fetch_add(1, Ordering::SeqCst);
    // SAFETY: reads this thread's mask.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        if libc::sigismember(&mask, own) != 1 || libc::sigismember(&mask, others) != 0 {
            TORN.store(true, Ordering::SeqCst);
        }
    }
}

extern "C" fn first(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note(&FIRST, libc::SIGUSR1, libc::SIGUSR2);
}

extern "C" fn second(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    note(&SECOND, libc::SIGUSR2, libc::SIGUSR1);
}

/// Makes the file longer by what was touched.
extern "C" fn extend(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FIRST.fetch_add(1, Ordering::SeqCst);
    // SAFETY: what the kernel gave, and a file of the test's own.
    unsafe {
        assert_eq!((signal, (*info).si_signo, (*info).si_code), (libc::SIGBUS, libc::SIGBUS, libc::BUS_ADRERR));
        TRAPPED.store((*info).si_addr() as usize, Ordering::SeqCst);
        let file = FILE.load(Ordering::SeqCst);
        let mut facts: libc::stat = std::mem::zeroed();
        libc::fstat(file, &mut facts);
        let end = if facts.st_size == PAGE as i64 { 2 * PAGE } else { 8 * PAGE };
        assert_eq!(libc::ftruncate(file, end as i64), 0);
    }
}

/// One thread changes the handler, the others raise SIGBUS and miss: each signal meets one of the handlers, whole.
fn changing(map: &fastmap::MapMut, bytes: &[u8]) {
    replace_sigbus(Some(&action(first, 0)));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let over = &over;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                while !over.load(Ordering::Relaxed) {
                    let at = random.below(bytes.len());
                    assert_eq!(map[at], bytes[at]);
                    assert_eq!(unsafe_raise(), 0);
                    RAISED.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = Stop(&over);
        let handlers = [first as *const () as usize, second as *const () as usize];
        let deadline = Instant::now() + Duration::from_secs(60);
        // Beside other work a handler may be changed 20,000 times before a signal meets it.
        let have_run = || calls(&FIRST) > 0 && calls(&SECOND) > 0;
        for round in (0..).take_while(|round| *round < 20_000 || !have_run()) {
            assert!(Instant::now() < deadline, "signals meet one handler only");
            let next: Handler = if round % 2 == 0 { second } else { first };
            let before = replace_sigbus(Some(&action(next, 0))).unwrap();
            assert_eq!(before.sa_sigaction, handlers[round % 2]);
        }
    });
    assert!(!TORN.load(Ordering::SeqCst), "a handler ran with another's mask");
    assert_eq!((calls(&FIRST) + calls(&SECOND)) as u64, RAISED.load(Ordering::SeqCst));
}
