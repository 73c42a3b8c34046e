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
//! *Our own death.* If this process dies, the kernel lets go of the thread, which never stays stopped. But for some tens of
//! microseconds of each attachment the thread has a call's registers: a death then crashes the program. So the thread that attaches
//! blocks all signals. In a process that attaches, other threads should take the signals that would end it, and wait for the
//! attachment. SIGKILL remains: of 729 processes that did nothing but attach and were killed at random, 71 took the program along. At
//! four stops a second that becomes one in some thousands.

use super::calls::{AGAIN_WITHOUT_HANDLER, Fitness, fitness, is_to_begin_again};
use super::tracee::{Stop, Tracee};
use crate::clock::now;
use libc::user_regs_struct as Registers;
use std::time::Duration;

/// One madvise(2) to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) advice: i32,
}

/// How an attachment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All calls were made.
    Done,
    /// A call failed, with this error.
    Failed(i32),
    /// The thread was where it must not be used.
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
    /// Calls that were made.
    pub(super) made: usize,
    /// How long the thread stood, at most.
    pub(super) stood: Duration,
}

/// How long a thread may take to stop: one that waits for a device stops when the device has answered.
const BOUND: Duration = Duration::from_millis(50);
const MADVISE: u64 = 28;
/// Bytes of a `syscall` instruction.
const INSTRUCTION: u64 = 2;

/// A process as it is seen from outside.
pub(super) trait View: Sync {
    /// Whether a thread may be stopped where it is.
    fn is_fit(&self, thread: u32) -> bool;

    /// Whether a read(2) of a descriptor begins again unnoticed.
    fn reads_pipe(&self, descriptor: u64) -> bool;
}

/// Makes `calls` in a thread of the process that `view` shows, by the `syscall` instruction at `code`.
pub(super) fn attach(thread: u32, code: u64, calls: &[Call], view: &impl View) -> Outcome {
    let mut outcome = Outcome { end: End::Gone, made: 0, stood: Duration::ZERO };
    // A thread of its own attaches: when it ends the kernel lets go of all that it still holds.
    std::thread::scope(|scope| {
        let body = || {
            be_prompt();
            (outcome.end, outcome.stood) = hold(thread, code, calls, &mut outcome.made, view);
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

fn hold(thread: u32, code: u64, calls: &[Call], made: &mut usize, view: &dyn View) -> (End, Duration) {
    let Some(tracee) = Tracee::seize(thread) else { return (End::Gone, Duration::ZERO) };
    // To seize the thread took a while. If it enters an unfit call between this look and the stop, `visit` notices, but for a write(2)
    // to a full pipe or socket, which returns what it has written.
    if !view.is_fit(thread) {
        return (End::Unfit, Duration::ZERO);
    }
    if !tracee.interrupt() {
        return (End::Gone, Duration::ZERO);
    }
    let (stop, since) = tracee.wait(BOUND);
    let (end, signal) = match stop {
        Stop::Asked => visit(&tracee, code, calls, made, view),
        Stop::Group | Stop::Call => (End::Signalled, 0),
        Stop::Signal(signal, _) => (End::Signalled, signal),
        Stop::Late => return (End::Late, Duration::ZERO),
        Stop::Gone => return (End::Gone, Duration::ZERO),
    };
    tracee.let_go(signal);
    (end, now() - since)
}

/// Makes the calls in a thread that has stopped as it was asked to, if it is fit. Returns how that ended, and the signal to let the
/// thread go with.
fn visit(tracee: &Tracee, code: u64, calls: &[Call], made: &mut usize, view: &dyn View) -> (End, i32) {
    let Some(saved) = tracee.registers() else { return (End::Unfit, 0) };
    let (number, result) = (saved.orig_rax as i64, saved.rax as i64);
    match fitness(number, [saved.rdi, saved.rsi], result, |descriptor| view.reads_pipe(descriptor)) {
        Fitness::Unfit => return (End::Unfit, 0),
        Fitness::Interrupted => {
            tracee.set(&Registers { rax: AGAIN_WITHOUT_HANDLER as u64, ..saved });
            return (End::Unfit, 0);
        }
        Fitness::Fit => {}
    }
    // By `int 0x80` the same number is another call.
    let is_ours = number == -1 || tracee.has_instruction(saved.rip.wrapping_sub(INSTRUCTION));
    if !is_ours || !tracee.has_instruction(code) || tracee.has_raised() || tracee.is_in_sequence(&saved) {
        return (End::Unfit, 0);
    }
    let stopped = make(tracee, &saved, code, calls, made);
    if matches!(stopped, Err((End::Gone, _))) || !tracee.set(&saved) {
        return (End::Gone, 0);
    }
    match stopped {
        Err(end) => end,
        Ok(end) if number == -1 || !is_to_begin_again(result) => (end, 0),
        Ok(end) => (end, stop_once_more(tracee)),
    }
}

/// Makes the calls. After success, or a call that failed, the thread stands at the end of a call. An error says why it stands
/// elsewhere, and with which signal.
fn make(tracee: &Tracee, saved: &Registers, code: u64, calls: &[Call], made: &mut usize) -> Result<End, (End, i32)> {
    for call in calls {
        begin(tracee, saved, code, call)?;
        if !tracee.go_to_call() {
            return Err((End::Gone, 0));
        }
        // The thread may wait for the lock on the process's memory; it cannot be left now.
        reach_call(tracee)?;
        let Some(after) = tracee.registers() else { return Err((End::Gone, 0)) };
        if (after.orig_rax, after.rip) != (MADVISE, code + INSTRUCTION) {
            return Err((End::Unfit, 0));
        }
        if after.rax != 0 {
            return Ok(End::Failed(-(after.rax as i32)));
        }
        *made += 1;
    }
    Ok(End::Done)
}

/// Brings the thread to the beginning of a call.
fn begin(tracee: &Tracee, saved: &Registers, code: u64, call: &Call) -> Result<(), (End, i32)> {
    let registers = Registers {
        rip: code,
        rax: MADVISE,
        // No call must begin again with these registers.
        orig_rax: u64::MAX,
        rdi: call.address,
        rsi: call.length,
        rdx: call.advice as u64,
        ..*saved
    };
    if !tracee.set(&registers) || !tracee.go_to_call() {
        return Err((End::Gone, 0));
    }
    reach_call(tracee)
}

/// Waits for the beginning or the end of the call.
fn reach_call(tracee: &Tracee) -> Result<(), (End, i32)> {
    loop {
        match tracee.wait(BOUND).0 {
            Stop::Call => return Ok(()),
            // The instruction that was put in is at fault: the program must not see the signal.
            Stop::Signal(_, true) => return Err((End::Failed(libc::EFAULT), 0)),
            Stop::Signal(signal, false) => return Err((End::Signalled, signal)),
            Stop::Asked | Stop::Group => return Err((End::Signalled, 0)),
            Stop::Gone => return Err((End::Gone, 0)),
            // A frozen thread does not get to the call. One that is asked to stop stops before it.
            Stop::Late => {
                tracee.interrupt();
            }
        }
    }
}

/// Lets a thread, whose registers are its own again, go from the end of our call to where the kernel begins its call again. Returns the
/// signal that came first, or 0.
fn stop_once_more(tracee: &Tracee) -> i32 {
    if !tracee.interrupt() || !tracee.go_on() {
        return 0;
    }
    loop {
        match tracee.wait(BOUND).0 {
            Stop::Signal(signal, _) => return signal,
            Stop::Late => {}
            _ => return 0,
        }
    }
}
