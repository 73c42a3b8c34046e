//! The hand from outside: another process's threads make the calls, by ptrace(2).
//!
//! It needs no more rights than a debugger: the same user, and what Yama allows. [`Traced::of`] tells what is missing. Only x86-64 is
//! served.
//!
//! A process that steers its own child must not wait for it by wait(2) alone, which reports the child's stops, too. It waits for a
//! pidfd to become readable, then takes the status. The calling process gets SIGCHLD at each stop.

#[cfg(target_arch = "x86_64")]
mod attachment;
#[cfg(target_arch = "x86_64")]
mod calls;
mod code;
mod filters;
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
use crate::clock::now;
use crate::judge::{Advice, Run};
use crate::observe::{Mapping, at_address};
use filters::Filters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::time::Duration;

/// Acts on the address space of another process.
#[derive(Debug)]
pub struct Traced {
    pid: u32,
    process: OwnedFd,
    /// Where a `syscall` instruction lies in it.
    code: u64,
    /// Filters of system calls that let madvise(2) pass.
    known: Vec<Filters>,
    /// Whether the caller may drop pages of it, as far as that was tried.
    may_drop: bool,
    budget: Budget,
    stops: u64,
    longest: Duration,
}

/// Stops of the last second.
#[derive(Debug, Default)]
struct Budget(Vec<Duration>);

/// A program that is just being executed may have no code mapped yet: it is looked at again after so long.
const MOMENT: Duration = Duration::from_millis(5);
/// It is looked at again so many times at most.
const MOMENTS: u32 = 40;
/// Stops in a second at most.
const STOPS: usize = 4;

impl Budget {
    /// Takes one stop, if there is one left.
    fn take(&mut self, at: Duration) -> bool {
        self.0.retain(|before| at.saturating_sub(*before) < Duration::from_secs(1));
        let is_left = self.0.len() < STOPS;
        if is_left {
            self.0.push(at);
        }
        is_left
    }
}

impl Traced {
    /// Of process `pid`. This only looks at the process.
    pub fn of(pid: u32) -> Result<Traced, Refusal> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Refusal::Machine);
        }
        refusal::at_first_sight(pid)?;
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
            refusal::at_first_sight(pid)?;
            return Err(Refusal::NoInstruction(pid));
        };
        Ok(Traced {
            pid,
            process,
            code,
            known: Filters::known(pid),
            may_drop: true,
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

    /// Whether the mapping is still where it was.
    fn has(&self, mapping: &Mapping) -> bool {
        let at = |address| at_address(&self.pid.to_string(), address) == Some((mapping.device, mapping.inode));
        self.lives() && at(mapping.at.start) && at(mapping.at.end - 1)
    }
}

#[cfg(target_arch = "x86_64")]
impl Traced {
    /// Makes the calls in one thread of the process. `false` if no thread can be stopped now, or a call fails.
    fn make(&mut self, mut calls: &[attachment::Call]) -> bool {
        /// Threads that are tried.
        const TRIES: usize = 3;
        for thread in threads::fit(self.pid).take(TRIES) {
            if !threads::is_free(self.pid, thread, &self.known) {
                continue;
            }
            if !self.budget.take(now()) {
                return false;
            }
            let outcome = self.attach(thread, calls);
            calls = &calls[outcome.made..];
            match outcome.end {
                attachment::End::Done => return true,
                attachment::End::Failed(_) => return false,
                _ => {}
            }
        }
        false
    }

    fn attach(&mut self, thread: u32, calls: &[attachment::Call]) -> attachment::Outcome {
        let outcome = attachment::attach(thread, self.code, calls, &threads::Process(self.pid));
        self.stops += u64::from(!outcome.stood.is_zero());
        self.longest = self.longest.max(outcome.stood);
        outcome
    }
}

impl Traced {
    /// Advises a mapping, as [`super::Hand`] says: at most a few times a second, and only while a thread is where it can be stopped
    /// unnoticed. Otherwise nothing happens now, and it may be tried again.
    #[cfg(target_arch = "x86_64")]
    pub fn advise(&mut self, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool {
        let (address, length) = (mapping.at.start, mapping.at.end - mapping.at.start);
        let call = |advice| attachment::Call { address, length, advice: advice as i32 };
        let calls: Vec<attachment::Call> = super::calls(advice, was_blocks).map(call).collect();
        self.has(mapping) && self.make(&calls)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn advise(&mut self, _: &Mapping, _: Advice, _: bool) -> bool {
        false
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
