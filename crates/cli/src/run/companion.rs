//! The process that steers a program from outside: static ones, Go's, those of other C libraries, all that the program starts, and loads
//! from slow storage of each. With `--warm` it remembers what of its files is in memory.

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

/// How often it is looked who is there: at first, and later.
const OFTEN: Duration = Duration::from_millis(30);
const SELDOM: Duration = Duration::from_secs(1);
const AT_FIRST: Duration = Duration::from_secs(3);

/// Starts it beside this process, and what this becomes. Where there can be none, the program runs as it is. `warm`: the command whose files
/// are to be warm.
pub fn start(overrides: bool, warm: Option<String>) {
    // SAFETY: no preconditions.
    let (own, is_terminal) = unsafe { (libc::getpid(), libc::isatty(libc::STDERR_FILENO) == 1) };
    // The first process of a namespace is the parent of whoever has none, and may wait for all; so is one that has asked for that.
    let mut reaps = 0;
    // SAFETY: the kernel writes one number.
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
        // SAFETY: no preconditions.
        let pid = unsafe { libc::getpid() };
        // Nobody may listen.
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
    // Yama lets the named process trace this one, and what it becomes. Where there is no Yama nobody waits.
    let mut pid = [0; 4];
    if Path::new("/proc/sys/kernel/yama").exists() && reader.read_exact(&mut pid).is_ok() {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(u32::from_ne_bytes(pid)), 0, 0, 0) };
    }
}

/// Says that `--warm` does nothing.
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
    // A service that is stopped, and a machine that is shut down, send SIGTERM to all: no call is left half put in, and what is in memory now
    // is remembered.
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
            // Whoever waits for the end of standard error waits for the program, not for this process.
            tells = !let_go_of_standard_error();
        }
        if let Some(warm) = &mut warm {
            warm.remember_now_and_then(&family);
        }
        cost = looked.elapsed();
    }
    // Advice is taken back first.
    drop(party);
    if let Some(warm) = warm {
        warm.remember_at_the_end();
    }
}

fn let_go_of_standard_error() -> bool {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return false };
    // SAFETY: numbers only.
    unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) != -1 }
}

/// Sleeps; wakes when the program ends, and tells that it has. Others of its family may go on.
fn wait(end: &OwnedFd, time: Duration) -> bool {
    let mut end = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of this function's.
    unsafe { libc::poll(&mut end, 1, time.as_millis() as i32) == 1 }
}
