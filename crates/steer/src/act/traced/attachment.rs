//! One attachment: a thread is held and stopped, makes our calls, and goes on as if nothing had been.
//!
//! ```text
//! seize, interrupt ──► stopped ──► unfit, a signal, a group's stop ──────────────────► let go
//!                         │
//!                         ▼ registers set for a call
//!                      beginning ──► a signal or a group's stop came first: registers back, let go with the signal
//!                         │
//!                         ▼
//!                        end ──► (the next call: as above) ──► registers back ──► let go
//! ```
//!
//! *Signals.* A signal may come before the call, to a thread that has the call's registers. The thread's own are put back first, and it
//! is let go with the signal: the kernel delivers it with its siginfo, as it would have. No signal is held back, so it does not matter
//! how many come. PTRACE_SINGLESTEP would do with fewer stops, but its SIGTRAP resets the action and the mask of a program that blocks
//! or ignores that signal.
//!
//! *Calls that begin again.* The kernel decides whether a call begins again on the way out of the stop that was asked for. The end of
//! the call that was put in is not on that way, so the thread is asked to stop once more there.
//!
//! *Filters.* The kernel asks a thread's filters of system calls after the stop at the beginning of a call, and threads can be given
//! filters by others at any time. So they are looked at before the call is put in, and once more at its beginning.
//!
//! *Our own death.* If this process dies, the kernel lets go of the thread, which never stays stopped. But for some tens of
//! microseconds of each attachment the thread has a call's registers: a death then crashes the program. So the thread that attaches
//! blocks all signals. In a process that attaches, other threads should take the signals that would end it, and wait for the
//! attachment. SIGKILL remains: of 729 processes that did nothing but attach and were killed at random, 71 took the program along. At
//! the few stops that there are it becomes one in some thousands.

use super::calls::{AGAIN_WITHOUT_HANDLER, Fitness, fitness};
use super::filters::{Data, Filters, Proof, passes};
use super::maps::{Maps, Piece};
use super::threads::{May, Watched};
use super::tracee::{Stop, Tracee};
use crate::clock::now;
use crate::observe::Mapping;
use libc::user_regs_struct as Registers;
use std::ops::Range;
use std::time::Duration;

/// A process that can be attached to.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Where a `syscall` instruction lies in its vdso.
    pub(super) code: u64,
    pub(super) proof: Proof,
}

/// Advice to be given.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) mapping: &'a Mapping,
    /// MADV_NORMAL or MADV_RANDOM.
    pub(super) advice: i32,
    /// Which parts of the mapping have it now. Several attachments may add to it: the parts may overlap.
    pub(super) given: Vec<Range<u64>>,
}

/// How an attachment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All that lies there of the mapping was advised.
    Done,
    /// A call failed, with this error.
    Failed(i32),
    /// The thread's filters do not let the call pass, or that is not certain.
    Filtered,
    /// The thread was not seen where it may be stopped, and was not.
    NotSeen,
    /// It stopped in this system call.
    InCall(i64),
    /// It stopped where it must not be used otherwise.
    Unfit,
    /// A signal, or a stop of the process, came first.
    Signalled,
    /// The thread did not stop in time.
    Late,
    /// The thread has ended, or is held by somebody else.
    Gone,
}

/// The result of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) end: End,
    /// How long the thread stood, at most. Nothing if it did not.
    pub(super) stood: Duration,
}

/// How long a thread may take to stop: one that waits for a device stops when the device has answered.
const BOUND: Duration = Duration::from_millis(50);
const MADVISE: u64 = 28;
/// Bytes of a `syscall` instruction.
const INSTRUCTION: u64 = 2;

/// Does a job in a thread of a process. Before it asks the thread to stop, it wants to hear from `is_there` that it may.
pub(super) fn attach(
    thread: u32,
    of: &Process,
    may: May,
    job: &mut Job,
    is_there: impl Fn(&Watched) -> bool + Sync,
) -> Outcome {
    let mut outcome = Outcome { end: End::Gone, stood: Duration::ZERO };
    // A thread of its own attaches: when it ends the kernel lets go of all that it still holds.
    std::thread::scope(|scope| {
        let body = || {
            be_prompt();
            (outcome.end, outcome.stood) = hold(thread, of, may, job, &is_there);
        };
        // Without the thread nothing is done.
        let _ =
            std::thread::Builder::new().name("fastmap-attach".into()).stack_size(256 << 10).spawn_scoped(scope, body);
    });
    outcome
}

/// Keeps signal handlers, and sleep beyond the time asked for, from the calling thread: they would make the stop longer.
fn be_prompt() {
    // SAFETY: the set is filled before it is used; the mask and the timer slack are the calling thread's own.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}

fn hold(thread: u32, of: &Process, may: May, job: &mut Job, is_there: &dyn Fn(&Watched) -> bool) -> (End, Duration) {
    // What takes time is done before the look at the thread, or after it has stopped.
    let (Some(watched), Some(maps)) = (Watched::open(of.pid, thread, may), Maps::open(of.pid)) else {
        return (End::Gone, Duration::ZERO);
    };
    // Signals that a process ignores are kept for a thread that is held, and other threads' calls end for them: it is held for a moment only.
    if !is_there(&watched) {
        return (End::NotSeen, Duration::ZERO);
    }
    let Some(tracee) = Tracee::seize(thread) else { return (End::Gone, Duration::ZERO) };
    if !is_there(&watched) {
        return (End::NotSeen, Duration::ZERO);
    }
    if !tracee.interrupt() {
        return (End::Gone, Duration::ZERO);
    }
    let (stop, since) = tracee.wait(BOUND);
    let (end, signal) = match stop {
        Stop::Asked => Visit { tracee: &tracee, watched: &watched, maps: &maps, of }.make(may, job),
        Stop::Group | Stop::Call => (End::Signalled, 0),
        Stop::Signal(signal, _) => (End::Signalled, signal),
        Stop::Late => return (End::Late, Duration::ZERO),
        Stop::Gone => return (End::Gone, Duration::ZERO),
    };
    tracee.let_go(signal);
    (end, now() - since)
}

/// A thread that has stopped as it was asked to.
pub(super) struct Visit<'a> {
    pub(super) tracee: &'a Tracee,
    pub(super) watched: &'a Watched,
    pub(super) maps: &'a Maps,
    pub(super) of: &'a Process,
}

/// Why a call was not made, and the signal to let the thread go with.
pub(super) type Broken = (End, i32);

impl Visit<'_> {
    /// Does the job, if the thread is fit. Returns how that ended, and the signal to let the thread go with.
    fn make(&self, may: May, job: &mut Job) -> (End, i32) {
        let Some(saved) = self.tracee.registers() else { return (End::Unfit, 0) };
        let (number, result) = (saved.orig_rax as i64, saved.rax as i64);
        match fitness(number, saved.rsi, result, may.sleep) {
            Fitness::Unfit => return (End::InCall(number), 0),
            Fitness::Interrupted => {
                self.tracee.set(&Registers { rax: AGAIN_WITHOUT_HANDLER as u64, ..saved });
                return (End::InCall(number), 0);
            }
            Fitness::Fit => {}
        }
        let Some(filters) = self.filters() else { return (End::Unfit, 0) };
        if !self.of.proof.may_pass(filters) {
            return (End::Filtered, 0);
        }
        // The process may have executed another program since the instruction was found.
        let has_instruction = self.maps.is_vdso(self.of.code) && self.tracee.has_instruction(self.of.code);
        if !has_instruction || self.tracee.has_raised() || self.tracee.is_in_sequence(&saved) {
            return (End::Unfit, 0);
        }
        let Some(pieces) = self.maps.within(&job.mapping.at) else { return (End::Unfit, 0) };
        let parts = parts(&pieces, &job.mapping.at, |piece| piece.is_of(job.mapping));
        if parts.is_empty() && job.given.is_empty() {
            return (End::Done, 0);
        }
        let stopped = self.advise(&saved, filters, &parts, job);
        if matches!(stopped, Err((End::Gone, _))) || !self.tracee.set(&saved) {
            return (End::Gone, 0);
        }
        match stopped {
            // The thread stands at the end of a call, or where it was.
            Ok(end) | Err((end @ (End::Filtered | End::Unfit), _)) if number != -1 => (end, self.stop_once_more()),
            Ok(end) => (end, 0),
            Err(broken) => broken,
        }
    }

    fn filters(&self) -> Option<Filters> {
        self.watched.status().map(|status| Filters::of(&status))
    }

    /// Advises `parts`, and takes the advice back from what else lies there by then. Afterwards the thread stands at the end of a call.
    fn advise(&self, saved: &Registers, filters: Filters, parts: &[Range<u64>], job: &mut Job) -> Result<End, Broken> {
        let mut end = End::Done;
        for part in parts {
            match self.call(saved, filters, part, job.advice)? {
                // All but a hole has the advice.
                0 | libc::ENOMEM => job.given.push(part.clone()),
                error => {
                    // The kernel advises piece by piece, and may have done some.
                    end = End::Failed(error);
                    self.call(saved, filters, part, libc::MADV_NORMAL)?;
                    break;
                }
            }
        }
        if job.advice == libc::MADV_NORMAL {
            return Ok(end);
        }
        // Other threads run. What they have put there between the look and the call has the advice, too.
        let Some(pieces) = self.maps.within(&job.mapping.at) else { return Ok(end) };
        for given in &job.given {
            for foreign in self::parts(&pieces, given, |piece| !piece.is_of(job.mapping)) {
                self.call(saved, filters, &foreign, libc::MADV_NORMAL)?;
            }
        }
        let own = |given: &Range<u64>| self::parts(&pieces, given, |piece| piece.is_of(job.mapping));
        job.given = job.given.iter().flat_map(own).collect();
        Ok(end)
    }

    /// Makes one madvise(2). Returns its error, or 0: the thread then stands at the end of the call.
    pub(super) fn call(
        &self,
        saved: &Registers,
        filters: Filters,
        at: &Range<u64>,
        advice: i32,
    ) -> Result<i32, Broken> {
        let registers = Registers {
            rip: self.of.code,
            rax: MADVISE,
            // No call must begin again with these registers.
            orig_rax: u64::MAX,
            rdi: at.start,
            rsi: at.end - at.start,
            rdx: advice as u64,
            ..*saved
        };
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
        let data = Data { number: MADVISE as u32, at: self.of.code + INSTRUCTION, arguments };
        if self.of.proof.must_read(filters) && !self.tracee.filters_are(|program| passes(program, &data)) {
            return Err((End::Filtered, 0));
        }
        if !self.tracee.set(&registers) || !self.tracee.go_to_call() {
            return Err((End::Gone, 0));
        }
        self.reach_call()?;
        // Another thread may have given this one more filters (SECCOMP_FILTER_FLAG_TSYNC). The kernel asks them after this stop.
        let is_still = self.filters() == Some(filters);
        if !is_still {
            // The call can only be replaced: by read(2) of no file, which does nothing and passes nearly every filter.
            let nothing = Registers { orig_rax: 0, rdi: u64::MAX, rsi: 0, rdx: 0, ..self.registers()? };
            if !self.tracee.set(&nothing) {
                return Err((End::Gone, 0));
            }
        }
        if !self.tracee.go_to_call() {
            return Err((End::Gone, 0));
        }
        // The thread may wait for the lock on the process's memory; it cannot be left now.
        self.reach_call()?;
        let after = self.registers()?;
        if !is_still {
            return Err((End::Filtered, 0));
        }
        if (after.orig_rax, after.rip) != (MADVISE, self.of.code + INSTRUCTION) {
            return Err((End::Unfit, 0));
        }
        Ok(-(after.rax as i32))
    }

    fn registers(&self) -> Result<Registers, Broken> {
        self.tracee.registers().ok_or((End::Gone, 0))
    }

    /// Waits for the beginning or the end of the call.
    fn reach_call(&self) -> Result<(), Broken> {
        loop {
            match self.tracee.wait(BOUND).0 {
                Stop::Call => return Ok(()),
                // The instruction that was put in is at fault: the program must not see the signal.
                Stop::Signal(_, true) => return Err((End::Failed(libc::EFAULT), 0)),
                Stop::Signal(signal, false) => return Err((End::Signalled, signal)),
                Stop::Asked | Stop::Group => return Err((End::Signalled, 0)),
                Stop::Gone => return Err((End::Gone, 0)),
                // A frozen thread does not get to the call. One that is asked to stop stops before it.
                Stop::Late => {
                    // It may have executed another program meanwhile, as another thread's heir: it is not held then.
                    if !self.tracee.interrupt() {
                        return Err((End::Gone, 0));
                    }
                }
            }
        }
    }

    /// Lets a thread, whose registers are its own again, go from the end of our call to where the kernel begins its call again. Returns
    /// the signal that came first, or 0.
    fn stop_once_more(&self) -> i32 {
        if !self.tracee.interrupt() || !self.tracee.go_on() {
            return 0;
        }
        loop {
            match self.tracee.wait(BOUND).0 {
                Stop::Signal(signal, _) => return signal,
                Stop::Late if self.tracee.interrupt() => {}
                _ => return 0,
            }
        }
    }
}

/// The parts of `range` in which such pieces lie. Pieces side by side are one part.
fn parts(pieces: &[Piece], range: &Range<u64>, is_such: impl Fn(&Piece) -> bool) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for piece in pieces.iter().filter(|piece| is_such(piece)) {
        let (start, end) = (piece.at.start.max(range.start), piece.at.end.min(range.end));
        match found.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ if start < end => found.push(start..end),
            _ => {}
        }
    }
    found
}
