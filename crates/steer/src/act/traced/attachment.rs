//! One attachment: a thread is held, stopped, has its calls made, and goes on as if nothing had been.
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
//! *Signals.* A signal that comes before the call is about to be delivered to a thread with other registers. These are put back
//! first, and the thread is let go with the signal: the kernel delivers it with its siginfo, as it would have. No signal is
//! held back, so it does not matter how many come. PTRACE_SINGLESTEP would do with fewer stops, but its SIGTRAP
//! resets the action and the mask of a program that blocks or ignores that signal.
//!
//! *Calls that begin again.* The kernel decides about that on the way out of the stop that was asked for. The end of the call put in
//! is not on that way, so the thread is asked to stop once more there.
//!
//! *Our own death.* The kernel lets go of the thread, which never stays stopped. But if its registers are a call's just then,
//! for some tens of microseconds of each attachment, the program crashes. So the thread that attaches blocks all signals,
//! and a process that attaches should have its other threads take those that would end it, and wait. SIGKILL is what
//! remains: of 729 processes that did nothing but attach and were killed at random, 71 took the program along; four stops a second make
//! that one in some thousands.

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

/// What an attachment did.
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

/// What is seen of a process from outside.
pub(super) trait View: Sync {
    /// Whether a thread may be stopped where it is.
    fn is_fit(&self, thread: u32) -> bool;

    /// Whether a read(2) of a descriptor begins again unnoticed.
    fn reads_pipe(&self, descriptor: u64) -> bool;
}

/// Has a thread of a process that is seen so make `calls`, by the instruction at `code`.
pub(super) fn attach(thread: u32, code: u64, calls: &[Call], view: &impl View) -> Outcome {
    let mut outcome = Outcome { end: End::Gone, made: 0, stood: Duration::ZERO };
    // The kernel lets go of what is still held when this thread ends.
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

/// Keeps the calling thread from what would make the stop longer: handlers, and sleep that is longer than asked for.
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
    // To be held has taken a while. What enters such a call between this look and the stop is told apart below, but for a write(2) to a full
    // pipe or socket, which returns what it has written.
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

/// What is done with a thread that has stopped as it was asked to; and the signal to let it go with.
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
    // By `int 0x80` another call has the number.
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

/// Makes the calls. The thread stands at the end of the last; or elsewhere, for the reason given and with a signal.
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
        // No call is to begin again with these registers.
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
            // The instruction itself was at fault: the program is not to know.
            Stop::Signal(_, true) => return Err((End::Failed(libc::EFAULT), 0)),
            Stop::Signal(signal, false) => return Err((End::Signalled, signal)),
            Stop::Asked | Stop::Group => return Err((End::Signalled, 0)),
            Stop::Gone => return Err((End::Gone, 0)),
            // A frozen thread does not get to the call; asked to stop, it does before.
            Stop::Late => {
                tracee.interrupt();
            }
        }
    }
}

/// Brings a thread with its own registers from the end of a call to where the kernel has its own call begin again; the
/// signal that came first, if one did.
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
