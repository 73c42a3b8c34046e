//! Chooses the thread of a process that is stopped: one that can be, and that loses least.

use super::attachment::View;
use super::calls::{At, at};
use super::filters::Filters;
use super::status::Status;
use crate::observe::text::{number_after, read};
use std::time::Duration;

/// Threads that are looked at, at most.
const MOST: usize = 512;

/// The best of these: others are not stopped.
const BEST: usize = 16;
/// For how long a thread that runs is looked at.
const QUIET: Duration = Duration::from_millis(2);

/// The threads of `pid` that may be stopped now, the best first.
pub(super) fn fit(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names =
        tasks.into_iter().flatten().flatten().take(MOST).filter_map(|task| task.file_name().to_str()?.parse().ok());
    let mut found: Vec<(At, u32)> = names.filter_map(|thread| Some((place(pid, thread)?, thread))).collect();
    found.sort_by_key(|(at, _)| *at);
    let best = found.into_iter().take(BEST);
    best.filter(move |(at, thread)| *at != At::Running || is_quiet(pid, *thread)).map(|(_, thread)| thread)
}

/// Whether a thread that runs has slept in no system call for some time, and has read and written nothing. Another might be about to
/// sleep in a call that a stop ends early: write(2) to a full pipe returns what it has written.
pub(super) fn is_quiet(pid: u32, thread: u32) -> bool {
    let before = efforts(pid, thread);
    std::thread::sleep(QUIET);
    place(pid, thread) == Some(At::Running) && before.is_some() && efforts(pid, thread) == before
}

/// How often a thread has slept, read and written. Not every kernel counts the latter two.
fn efforts(pid: u32, thread: u32) -> Option<[u64; 3]> {
    let slept = Status::of_thread(pid, thread)?.number("voluntary_ctxt_switches:")?;
    let mut text = Vec::new();
    let is_told = read(&format!("/proc/{pid}/task/{thread}/io"), &mut text);
    let count = |name| if is_told { number_after(&text, name).unwrap_or(0) } else { 0 };
    Some([slept, count("syscr:"), count("syscw:")])
}

/// A process, by its number.
pub(super) struct Process(pub(super) u32);

impl View for Process {
    fn is_fit(&self, thread: u32) -> bool {
        place(self.0, thread).is_some()
    }

    fn reads_pipe(&self, descriptor: u64) -> bool {
        reads_pipe(self.0, descriptor)
    }
}

/// Where a thread is, if it may be stopped there.
pub(super) fn place(pid: u32, thread: u32) -> Option<At> {
    let mut text = Vec::new();
    let is_there = read(&format!("/proc/{pid}/task/{thread}/syscall"), &mut text);
    let text = std::str::from_utf8(&text).ok().filter(|_| is_there)?;
    at(text, |descriptor| reads_pipe(pid, descriptor))
}

/// Whether a thread lives, is not held, and has filters that let the call pass: each thread may have its own.
pub(super) fn is_free(pid: u32, thread: u32, known: &[Filters]) -> bool {
    let Some(status) = Status::of_thread(pid, thread) else { return false };
    let is_held = status.number("TracerPid:") != Some(0) || matches!(status.state(), b'T' | b't' | b'Z' | b'X');
    !is_held && Filters::of(&status).let_pass(known)
}

/// Whether read(2) of a descriptor sleeps without having read a part, and begins again unnoticed. Other files may not: a read of a
/// socket that has a time limit fails, and devices and FUSE's files do as their drivers please.
fn reads_pipe(pid: u32, descriptor: u64) -> bool {
    let Ok(to) = std::fs::read_link(format!("/proc/{pid}/fd/{}", descriptor as u32)) else { return false };
    let to = to.to_string_lossy();
    to.starts_with("pipe:") || matches!(&*to, "anon_inode:[eventfd]" | "anon_inode:[timerfd]")
}
