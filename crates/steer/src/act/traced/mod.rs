//! The hand from outside: another process's threads make the calls, by ptrace(2).
//!
//! It needs no more rights than a debugger: the same user, and what Yama allows. [`Traced::of`] tells what is missing. Only x86-64 is
//! served.
//!
//! A call is put into a thread only where the program cannot notice (`calls.rs`): no call of the program's ends early by it. What lies at
//! the addresses is looked up while the thread is stopped (`maps.rs`), and the thread's filters of system calls are, too (`filters.rs`).
//! Nothing here reads the program's files, its code included: a file system that does not answer would hold this process up, with the
//! thread stopped.
//!
//! A process that steers its own child must not wait for it by wait(2) alone, which reports the child's stops, too. It waits for a
//! pidfd to become readable, then takes the status. The calling process gets SIGCHLD at each stop.

#[cfg(target_arch = "x86_64")]
mod attachment;
#[cfg(target_arch = "x86_64")]
mod calls;
mod code;
mod filters;
mod maps;
mod refusal;
mod status;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod threads;
#[cfg(target_arch = "x86_64")]
mod tracee;

pub use refusal::Refusal;
pub(crate) use refusal::{may_trace_all, yama_scope};

use crate::PAGE;
use crate::act::Advice;
#[cfg(target_arch = "x86_64")]
use crate::clock::now;
use crate::observe::Mapping;
use crate::run::Run;
use filters::Proof;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use status::Status;
use std::ops::Range;
use std::time::Duration;

/// What became of advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// These parts of the mapping have the advice now. Empty: nothing of the file lies there any more.
    Given(Vec<Range<u64>>),
    /// No thread could be stopped now, and nothing was done: it may be tried again in a moment.
    NotNow,
    /// The kernel or a filter refuses, for good.
    Refused,
}

/// Acts on the address space of another process.
#[derive(Debug)]
pub struct Traced {
    process: OwnedFd,
    #[cfg(target_arch = "x86_64")]
    of: attachment::Process,
    /// Whether the caller may drop pages of it, as far as that was tried.
    may_drop: bool,
    #[cfg(target_arch = "x86_64")]
    budget: Budget,
    stops: u64,
    longest: Duration,
}

/// Stops of the last second.
#[derive(Debug, Default)]
#[cfg(target_arch = "x86_64")]
struct Budget(Vec<Duration>);

/// A program that is just being executed may have no code mapped yet: it is looked at again after so long.
const MOMENT: Duration = Duration::from_millis(5);
/// It is looked at again so many times at most.
const MOMENTS: u32 = 40;
/// Stops in a second at most.
#[cfg(target_arch = "x86_64")]
const STOPS: usize = 8;

#[cfg(target_arch = "x86_64")]
impl Budget {
    /// Whether there is a stop left.
    fn has(&mut self, at: Duration) -> bool {
        self.0.retain(|before| at.saturating_sub(*before) < Duration::from_secs(1));
        self.0.len() < STOPS
    }

    /// Takes one stop.
    fn take(&mut self, at: Duration) {
        self.0.push(at);
    }
}

impl Traced {
    /// Of process `pid`. This only looks at the process. `descends`: the process descends from the caller, for which the caller answers.
    pub fn of(pid: u32, descends: bool) -> Result<Traced, Refusal> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Refusal::Machine);
        }
        let own = Status::own().ok_or(Refusal::NoProcess(pid))?;
        let proof = Proof::of(descends, &own);
        refusal::at_first_sight(pid, &proof)?;
        refusal::if_ptrace_is_filtered(&own)?;
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Refusal::NoProcess(pid))?;
        let process = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| refusal::of_denial(pid, error))?;
        let mut code = code::find(pid).map_err(|error| refusal::of_denial(pid, error))?;
        // One that is just executing a program has nothing mapped for a moment.
        for _ in 0..MOMENTS {
            if code.is_some() {
                break;
            }
            std::thread::sleep(MOMENT);
            code = code::find(pid).map_err(|error| refusal::of_denial(pid, error))?;
        }
        if code::is_32_bit(pid) {
            return Err(Refusal::Bits32(pid));
        }
        let Some(code) = code else {
            // One that ends has no memory any more.
            refusal::at_first_sight(pid, &proof)?;
            return Err(Refusal::NoInstruction(pid));
        };
        Ok(Traced {
            process,
            #[cfg(target_arch = "x86_64")]
            of: attachment::Process { pid, code, proof },
            may_drop: true,
            #[cfg(target_arch = "x86_64")]
            budget: Budget::default(),
            stops: 0,
            longest: Duration::ZERO,
        })
    }

    /// How often a thread was stopped, and for how long at most.
    pub fn stops(&self) -> (u64, Duration) {
        (self.stops, self.longest)
    }

    /// Whether the process lives. The number does not tell: it may be another's by now.
    fn lives(&self) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }
}

#[cfg(target_arch = "x86_64")]
impl Traced {
    /// Does the job in one thread of the process.
    fn make(&mut self, job: &mut attachment::Job) -> Made {
        /// How often the threads are looked at: those that wait at first, those that run at last.
        const LOOKS: u32 = 10;
        const PAUSE: Duration = Duration::from_millis(1);
        /// Threads that are tried at each look.
        const TRIES: usize = 3;
        let mut met = threads::Met::default();
        for look in 0..=LOOKS {
            let may = threads::May { sleep: job.advice == libc::MADV_NORMAL, run: look == LOOKS };
            if look > 0 {
                std::thread::sleep(PAUSE);
            }
            let find = if may.run { threads::running } else { threads::waiting };
            for thread in find(self.of.pid, may, &self.of.proof, &mut met).into_iter().take(TRIES) {
                if !self.budget.has(now()) {
                    return made(job).unwrap_or(Made::NotNow);
                }
                match self.attach(thread, may, job).end {
                    attachment::End::Done => return made(job).unwrap_or(Made::Given(Vec::new())),
                    attachment::End::Failed(_) => return made(job).unwrap_or(Made::Refused),
                    attachment::End::Filtered if !met.free => return made(job).unwrap_or(Made::Refused),
                    _ => {}
                }
            }
        }
        let is_refused = met.filtered && !met.free;
        made(job).unwrap_or(if is_refused { Made::Refused } else { Made::NotNow })
    }

    fn attach(&mut self, thread: u32, may: threads::May, job: &mut attachment::Job) -> attachment::Outcome {
        let outcome = attachment::attach(thread, &self.of, may, job, threads::Watched::is_there);
        if !outcome.stood.is_zero() {
            self.stops += 1;
            self.budget.take(now());
        }
        self.longest = self.longest.max(outcome.stood);
        outcome
    }
}

/// What has the advice, if anything has.
#[cfg(target_arch = "x86_64")]
fn made(job: &mut attachment::Job) -> Option<Made> {
    let mut parts = std::mem::take(&mut job.given);
    parts.sort_by_key(|part| part.start);
    parts.dedup_by(|next, last| {
        let is_one = next.start <= last.end;
        if is_one {
            last.end = last.end.max(next.end);
        }
        is_one
    });
    (!parts.is_empty()).then_some(Made::Given(parts))
}

impl Traced {
    /// Advises what lies of a mapping where it was: at most a few times a second, and only while a thread is where it can be stopped
    /// unnoticed. This takes some tens of milliseconds where none is.
    #[cfg(target_arch = "x86_64")]
    pub fn advise(&mut self, mapping: &Mapping, advice: Advice) -> Made {
        if !self.lives() {
            return Made::Given(Vec::new());
        }
        let advice = if advice == Advice::Normal { libc::MADV_NORMAL } else { libc::MADV_RANDOM };
        self.make(&mut attachment::Job { mapping, advice, given: Vec::new() })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn advise(&mut self, _: &Mapping, _: Advice) -> Made {
        Made::Refused
    }

    /// Drops pages by process_madvise(2), which takes CAP_SYS_NICE (Linux 5.10).
    pub fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        if !self.may_drop {
            return false;
        }
        let length = (pages.len * PAGE) as usize;
        let start = (mapping.at.start + pages.at * PAGE) as usize;
        let part = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: length };
        // SAFETY: MADV_PAGEOUT leaves what the memory holds as it is, whatever lies there.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.process.as_raw_fd(),
                &raw const part,
                1,
                libc::MADV_PAGEOUT,
                0,
            )
        };
        if done == -1 && matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
            self.may_drop = false;
        }
        done == length as libc::c_long
    }
}
