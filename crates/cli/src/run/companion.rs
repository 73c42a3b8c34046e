//! The process `fastmap-beside`. It steers from outside the program and all that the program starts: also static programs, Go programs and programs
//! of other C libraries. For programs that steer themselves, it only reads ahead of loads from slow storage. With `--warm`, it remembers which pages
//! of the program's files are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fastmap_steer::Settings;
use fastmap_steer::attach::Party;
use fastmap_steer::observe::{Mappings, Process, are_worth, with_children};

use super::warm::Warmth;
use crate::interrupt;

/// The time between two looks at which processes there are: at first, and later.
const OFTEN: Duration = Duration::from_millis(30);
const SELDOM: Duration = Duration::from_secs(1);
const AT_FIRST: Duration = Duration::from_secs(3);

/// Starts the process beside this one, which then becomes the program. Where no such process can be, the program runs without it. `warm`: the key of
/// the command for `--warm`.
pub fn start(overrides: bool, warm: Option<String>) {
    // SAFETY: the calls have no preconditions.
    let (own, is_terminal) = unsafe { (libc::getpid(), libc::isatty(libc::STDERR_FILENO) == 1) };
    // The first process of a PID namespace becomes the parent of orphans, and so does a child subreaper. Then the process beside the program would be
    // the program's child, and the program might wait for it.
    let mut reaps = 0;
    // SAFETY: the kernel writes one number, to `reaps`.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut reaps) };
    if own == 1 || reaps != 0 {
        if warm.is_some() {
            tell_cold(
                "the program is the first process of its PID namespace, or the parent of orphans (PR_SET_CHILD_SUBREAPER), which has no process beside it",
            );
        }
        return;
    }
    let log = std::env::var_os("FASTMAP_LOG").unwrap_or_default();
    let logs = log.as_encoded_bytes().split(|byte| *byte == b',').any(|word| word == b"steer");
    let (tells, is_warm) = (is_terminal || logs, warm.is_some());
    let settings = Settings { overrides, ..Settings::default() };
    let reader = super::beside::start(c"fastmap-beside", tells, |mut answer, program| {
        // SAFETY: the call has no preconditions.
        let pid = unsafe { libc::getpid() };
        // The reader may be closed already. That is no failure.
        let _ = answer.write_all(&pid.to_ne_bytes());
        drop(answer);
        let warm = warm.and_then(|command| Warmth::begin(command, own as u32, logs, tells));
        accompany(own as u32, settings, &program, tells, warm);
        std::process::exit(0);
    });
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(error) if is_warm => return tell_cold(&format!("no process could be started beside the program: {error}")),
        Err(_) => return,
    };
    // Under Yama, this lets the new process trace this one, also after exec. Without Yama there is no need to wait for the number.
    let mut pid = [0; 4];
    if Path::new("/proc/sys/kernel/yama").exists() && reader.read_exact(&mut pid).is_ok() {
        // SAFETY: the call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(u32::from_ne_bytes(pid)), 0, 0, 0) };
    }
}

/// Reports that `--warm` does nothing, and why.
fn tell_cold(why: &str) {
    eprintln!(
        "fastmap: --warm: does nothing here: {why}: run `fastmap warm load FILE` before it, and `fastmap warm save FILE` after"
    );
}

fn accompany(program: u32, settings: Settings, end: &OwnedFd, mut tells: bool, mut warm: Option<Warmth>) {
    let Some(root) = Process::of(program) else { return };
    let (mut family, mut party) = (BTreeSet::from([root]), Party::new(settings));
    let (mut refused, mut lines) = (BTreeSet::new(), BTreeMap::new());
    let began = Instant::now();
    // SIGTERM comes to all processes when a service is stopped, or the machine shuts down. The loop then ends in order: no injected call is left half
    // done, and the pages that are in memory are remembered.
    interrupt::watch();
    let (mut has_ended, mut cost) = (false, Duration::ZERO);
    loop {
        let pause = if began.elapsed() < AT_FIRST { OFTEN } else { SELDOM };
        let pause = pause.max(cost * 100).min(SELDOM * 10);
        if has_ended {
            std::thread::sleep(pause);
        } else if wait(end, pause) {
            has_ended = true;
            std::thread::sleep(Duration::from_millis(20));
        }
        let looked = Instant::now();
        with_children(&mut family);
        let mut large = BTreeSet::new();
        for process in &family {
            let mappings = Mappings::of(&process.pid.to_string()).look();
            if are_worth(&mappings) {
                large.insert(*process);
            }
            if let Some(warm) = &mut warm {
                warm.note(&mappings);
            }
        }
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
        if family.is_empty() || interrupt::requested() {
            break;
        }
        if has_ended && tells {
            // A process that reads the program's standard error to its end must not wait for this process.
            tells = !let_go_of_standard_error();
        }
        if let Some(warm) = &mut warm {
            warm.remember_now_and_then(&family);
        }
        cost = looked.elapsed();
    }
    // Dropping this takes the advice back, before the records are written.
    drop(party);
    if let Some(warm) = warm {
        warm.remember_at_the_end();
    }
}

fn let_go_of_standard_error() -> bool {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return false };
    // SAFETY: the call takes numbers only.
    unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) != -1 }
}

/// Sleeps for `time`, or until the program ends. Returns whether it has ended. Processes that it started may live on.
fn wait(end: &OwnedFd, time: Duration) -> bool {
    let mut end = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel gets one structure, a local variable of this function.
    unsafe { libc::poll(&mut end, 1, time.as_millis() as i32) == 1 }
}
