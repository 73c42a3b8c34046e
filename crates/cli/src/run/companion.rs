//! The process that steers a program from outside: static ones, Go's, those of other C libraries, all that the program starts, and loads
//! from slow storage of each.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use fastmap_steer::Settings;
use fastmap_steer::attach::Party;
use fastmap_steer::observe::{Mappings, Process, with_children};

/// Bytes of mapped files from which on a process is looked at.
const LEAST: u64 = 32 << 20;
/// How often it is looked who is there: at first, and later.
const OFTEN: Duration = Duration::from_millis(30);
const SELDOM: Duration = Duration::from_secs(1);
const AT_FIRST: Duration = Duration::from_secs(3);

/// Starts it beside this process, and what this becomes. Where there can be none, the program runs as it is.
pub fn start(overrides: bool) {
    // SAFETY: no preconditions.
    let (own, is_terminal) = unsafe { (libc::getpid(), libc::isatty(libc::STDERR_FILENO) == 1) };
    // The first process of a namespace is the parent of whoever has none, and may wait for all.
    if own == 1 {
        return;
    }
    let log = std::env::var_os("FASTMAP_LOG").unwrap_or_default();
    let tells = is_terminal || log.as_encoded_bytes().split(|byte| *byte == b',').any(|word| word == b"steer");
    let settings = Settings { overrides, ..Settings::default() };
    let reader = super::beside::start(c"fastmap-beside", tells, |mut answer, program| {
        // SAFETY: no preconditions.
        let pid = unsafe { libc::getpid() };
        if answer.write_all(&pid.to_ne_bytes()).is_ok() {
            drop(answer);
            accompany(own as u32, settings, &program, tells);
        }
        std::process::exit(0);
    });
    let mut pid = [0; 4];
    if reader.and_then(|mut reader| reader.read_exact(&mut pid)).is_err() {
        return;
    }
    // SAFETY: numbers only. Yama lets the named process trace this one, and what it becomes; without Yama the call is refused.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(u32::from_ne_bytes(pid)), 0, 0, 0) };
}

fn accompany(program: u32, settings: Settings, end: &OwnedFd, tells: bool) {
    let Some(root) = Process::of(program) else { return };
    let (mut family, mut party) = (BTreeSet::from([root]), Party::new(settings));
    let (mut refused, mut lines) = (BTreeSet::new(), BTreeMap::new());
    let began = Instant::now();
    loop {
        wait(end, if began.elapsed() < AT_FIRST { OFTEN } else { SELDOM });
        with_children(&mut family);
        let large = family.iter().copied().filter(|process| maps_enough(*process)).collect();
        for (process, refusal) in party.watch(&large) {
            if tells && refused.insert(process) {
                eprintln!("fastmap: {}: {refusal}", process.name());
            }
        }
        lines.extend(party.reports());
        lines.retain(|process, line| {
            let has_ended = !family.contains(process);
            if has_ended && tells {
                eprintln!("fastmap: {line}");
            }
            !has_ended
        });
        if family.is_empty() {
            return;
        }
    }
}

fn maps_enough(process: Process) -> bool {
    let mappings = Mappings::of(&process.pid.to_string()).look();
    mappings.iter().map(|mapping| mapping.pages).sum::<u64>() * 4096 >= LEAST
}

/// Sleeps; wakes when the program ends.
fn wait(end: &OwnedFd, time: Duration) {
    let mut end = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of this function's.
    let has_ended = unsafe { libc::poll(&mut end, 1, time.as_millis() as i32) } == 1;
    if has_ended {
        // Others of its family may go on.
        std::thread::sleep(Duration::from_millis(20));
    }
}
