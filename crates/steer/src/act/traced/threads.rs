//! Chooses the thread of a process that is stopped: one that can be, and that loses least.

use super::calls::{At, at};
use super::filters::{Filters, Proof};
use super::status::Status;
use crate::clock::now;
use crate::observe::Descriptor;
use crate::observe::text::{number, number_after, read};
use rustix::io::pread;
use std::sync::OnceLock;
use std::time::Duration;

/// Threads that are looked at, at most.
const MOST: usize = 512;
/// The best of these: others are not stopped.
const BEST: usize = 16;
/// For how long a thread that runs is looked at: some ticks of the clock by which its time is counted.
const QUIET: Duration = Duration::from_millis(30);
/// How long ago the last look at a thread may be when it is asked to stop. A thread that is woken, enters a call and sleeps in it takes
/// longer.
const PROMPT: Duration = Duration::from_micros(3);
/// How fast a look has to be on this machine: where its fastest look at all takes longer than [`PROMPT`], it is so slow (emulated, say)
/// that waking, entering a call and sleeping take as many times longer.
fn prompt() -> Duration {
    static MEASURED: OnceLock<Duration> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let own = Descriptor::open("/proc/thread-self/syscall");
        let look = |file: &Descriptor| {
            let began = now();
            again(file, &mut [0; 256]).map(|_| now() - began)
        };
        let fastest = own.and_then(|file| (0..2 * LOOKS).filter_map(|_| look(&file)).min());
        prompt_where(fastest.unwrap_or_default())
    })
}

fn prompt_where(fastest: Duration) -> Duration {
    if fastest < PROMPT { PROMPT } else { 4 * fastest }
}

/// So often a thread is looked at until it is at a fit place, and the look was fast.
const LOOKS: u32 = 20;

/// A thread's sleeps, in its status.
const SLEPT: &str = "voluntary_ctxt_switches:";

/// Which threads may be stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct May {
    /// Those in calls that only sleep.
    pub(super) sleep: bool,
    /// Those that run.
    pub(super) run: bool,
}

/// What the filters of threads at fit places were like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// Some forbid the call, or could.
    pub(super) filtered: bool,
    /// Some let it pass for certain.
    pub(super) free: bool,
}

/// A thread, by files that stay open.
#[derive(Debug)]
pub(super) struct Watched {
    syscall: Descriptor,
    stat: Descriptor,
    status: Descriptor,
    /// Not every kernel tells (CONFIG_PROC_CHILDREN).
    children: Option<Descriptor>,
    may: May,
}

/// The text of a file of a thread that is there.
fn again<'a>(file: &Descriptor, into: &'a mut [u8]) -> Option<&'a [u8]> {
    let length = pread(file, &mut *into, 0).ok()?;
    (length > 0).then(|| &into[..length])
}

/// The text after the thread's name, which may hold anything: it begins with the state.
fn after_name(stat: &[u8]) -> Option<&[u8]> {
    stat.get(stat.iter().rposition(|byte| *byte == b')')? + 2..)
}

impl Watched {
    /// `None` if the thread is gone.
    pub(super) fn open(pid: u32, thread: u32, may: May) -> Option<Watched> {
        let open = |name| Descriptor::open(&format!("/proc/{pid}/task/{thread}/{name}"));
        let (syscall, stat, status) = (open("syscall")?, open("stat")?, open("status")?);
        Some(Watched { syscall, stat, status, children: open("children"), may })
    }

    /// Whether it sleeps where no signal wakes it (`D`). A thread that waits for a file system in user space, or for userfaultfd(2),
    /// does not at first: these would notice the stop, and could fail the fault.
    fn is_deep(&self) -> bool {
        let mut text = [0; 512];
        again(&self.stat, &mut text).and_then(after_name).is_some_and(|text| text.starts_with(b"D"))
    }

    /// Page faults, minor and major, and ticks, in its own code and in the kernel (proc_pid_stat(5)).
    fn counts(&self) -> Option<[u64; 4]> {
        let mut text = [0; 512];
        let words: Vec<&[u8]> = after_name(again(&self.stat, &mut text)?)?.split(|byte| *byte == b' ').collect();
        let count = |index: usize| words.get(index).and_then(|word| number(word));
        Some([count(7)?, count(9)?, count(11)?, count(12)?])
    }

    /// Whether it sleeps elsewhere than in major faults, too: it might soon be in a call.
    fn is_mixed(&self, status: &Status) -> bool {
        let (slept, major) = (status.number(SLEPT).unwrap_or(0), self.counts().map_or(0, |[_, major, ..]| major));
        // Threads also wait for pages that others read: these are minor faults.
        slept > 2 * major + 16
    }

    /// Whether it has children, and other threads beside it. When a child ends, the kernel tells the thread that made it, by a signal
    /// that most programs ignore. If that thread stands, another one of the process gets the signal, and its call ends for it.
    fn is_parent_beside_others(&self) -> bool {
        let is_parent = self.children.as_ref().is_some_and(|file| again(file, &mut [0; 16]).is_some());
        is_parent && self.status().and_then(|status| status.number("Threads:")) != Some(1)
    }

    /// Its status, if it lives, is not held, and has filters that may let the call pass: each thread may have its own.
    fn free(&self, proof: &Proof, met: &mut Met) -> Option<Status> {
        let status = self.status()?;
        let is_held = status.number("TracerPid:") != Some(0) || matches!(status.state(), b'T' | b't' | b'Z' | b'X');
        let filters = Filters::of(&status);
        let may_pass = proof.may_pass(filters);
        met.filtered |= !may_pass;
        met.free |= may_pass && !proof.must_read(filters);
        (!is_held && may_pass && !self.is_parent_beside_others()).then_some(status)
    }

    fn place(&self) -> Option<At> {
        let place = at(again(&self.syscall, &mut [0; 256])?)?;
        (place != At::Fault || self.is_deep()).then_some(place)
    }

    /// Looks until the thread is where it may be stopped, and was there a moment ago. It must be asked to stop at once after this.
    pub(super) fn is_there(&self) -> bool {
        if self.is_parent_beside_others() {
            return false;
        }
        for _ in 0..LOOKS {
            let (mut first, mut last) = ([0; 256], [0; 256]);
            let Some(seen) = again(&self.syscall, &mut first) else { return false };
            let is_fit = match at(seen) {
                Some(At::Fault) => self.is_deep(),
                Some(At::Asleep) => self.may.sleep,
                Some(At::Running) => self.may.run,
                None => false,
            };
            if !is_fit {
                continue;
            }
            let began = now();
            // The same text: it was nowhere else meanwhile, or is back at the same instruction.
            if again(&self.syscall, &mut last) == Some(seen) && now() - began < prompt() {
                return true;
            }
        }
        false
    }

    pub(super) fn status(&self) -> Option<Status> {
        Status::again(&self.status)
    }
}

/// The numbers of a process's threads.
fn all(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().take(MOST).filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// The threads of `pid` that wait where they may be stopped, the best first.
pub(super) fn waiting(pid: u32, may: May, proof: &Proof, met: &mut Met) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in all(pid) {
        let Some(watched) = Watched::open(pid, thread, may) else { continue };
        let place = watched.place().filter(|at| *at == At::Fault || *at == At::Asleep && may.sleep);
        let Some((place, status)) = place.and_then(|place| Some((place, watched.free(proof, met)?))) else {
            continue;
        };
        // Signals that a process ignores are sent to its first thread, as they are to a parent.
        found.push((place, thread == pid, watched.is_mixed(&status), thread));
    }
    found.sort_unstable();
    found.into_iter().take(BEST).map(|(.., thread)| thread).collect()
}

/// The threads of `pid` that run in their own code, as far as can be told. This takes [`QUIET`].
pub(super) fn running(pid: u32, may: May, proof: &Proof, met: &mut Met) -> Vec<u32> {
    let runs = |watched: &Watched| watched.place() == Some(At::Running);
    let looked = all(pid).filter_map(|thread| {
        let watched = Watched::open(pid, thread, may).filter(runs)?;
        Some((thread, Effort::of(pid, thread, &watched)?, watched))
    });
    let before: Vec<_> = looked.take(BEST).collect();
    if before.is_empty() {
        return Vec::new();
    }
    std::thread::sleep(QUIET);
    let stayed = before.into_iter().filter(|(thread, before, watched)| {
        let is_quiet = Effort::of(pid, *thread, watched).is_some_and(|now| now.was_in_own_code_since(before));
        runs(watched) && is_quiet && watched.free(proof, met).is_some()
    });
    stayed.map(|(thread, ..)| thread).collect()
}

/// What a thread has done so far.
#[derive(Debug)]
struct Effort {
    /// How often it has slept, read and written. Not every kernel counts the latter two.
    calls: [u64; 3],
    faults: u64,
    /// Ticks in its own code, and in the kernel.
    own: u64,
    kernels: u64,
}

impl Effort {
    fn of(pid: u32, thread: u32, watched: &Watched) -> Option<Effort> {
        let slept = watched.status()?.number(SLEPT)?;
        let mut io = Vec::new();
        let is_told = read(&format!("/proc/{pid}/task/{thread}/io"), &mut io);
        let count = |name| if is_told { number_after(&io, name).unwrap_or(0) } else { 0 };
        let [minor, major, own, kernels] = watched.counts()?;
        Some(Effort { calls: [slept, count("syscr:"), count("syscw:")], faults: minor + major, own, kernels })
    }

    /// Whether it has slept in no system call since, has read and written nothing, and was in the kernel for page faults only. Another
    /// thread might be in a long call, or about to sleep in one, that a stop ends early.
    fn was_in_own_code_since(&self, before: &Effort) -> bool {
        /// A page fault takes at most so much of a tick (10 ms).
        const A_TICK: u64 = 1000;
        let faults = self.faults - before.faults;
        self.calls == before.calls && self.own > before.own && faults >= (self.kernels - before.kernels) * A_TICK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_no_look_is_fast_may_one_take_longer() {
        let micros = Duration::from_micros;
        assert_eq!((prompt_where(micros(0)), prompt_where(micros(2))), (PROMPT, PROMPT));
        assert_eq!((prompt_where(micros(3)), prompt_where(micros(10))), (micros(12), micros(40)));
        assert!(prompt() >= PROMPT);
    }
}
