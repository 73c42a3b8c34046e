//! The system calls in which a thread may be stopped.
//!
//! A stop wakes a thread that sleeps in a system call, and the call begins again afterwards. Programs do not notice that of some calls
//! (signal(7), "Interruption of system calls and library functions by stop signals"). Other calls fail with EINTR, or return what was
//! done so far, as a write(2) to a full pipe does, or do what a device's driver makes of it. So a thread is chosen by its call, from a
//! list of calls that were tried. It is looked at again once it has stopped, since it may have gone on meanwhile.

/// Where a thread is, as seen from outside. The best place to be stopped comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    /// A page fault of its own code, after which it stops before anything else.
    Fault,
    /// A system call that does nothing but sleep.
    Asleep,
    /// A system call that waits for something, and begins again unnoticed.
    Waiting,
    /// Its own code, or any system call: nobody can tell which.
    Running,
}

const READ: i64 = 0;
const POLL: i64 = 7;
const READV: i64 = 19;
const SELECT: i64 = 23;
const NANOSLEEP: i64 = 35;
const ACCEPT: i64 = 43;
const RECVFROM: i64 = 45;
const RECVMSG: i64 = 47;
const EXECVE: i64 = 59;
const WAIT4: i64 = 61;
const SEMOP: i64 = 65;
const RT_SIGTIMEDWAIT: i64 = 128;
const FUTEX: i64 = 202;
const IO_GETEVENTS: i64 = 208;
const RESTART_SYSCALL: i64 = 219;
const SEMTIMEDOP: i64 = 220;
const CLOCK_NANOSLEEP: i64 = 230;
const EPOLL_WAIT: i64 = 232;
const WAITID: i64 = 247;
const PSELECT6: i64 = 270;
const PPOLL: i64 = 271;
const EPOLL_PWAIT: i64 = 281;
const ACCEPT4: i64 = 288;
const EXECVEAT: i64 = 322;
const IO_URING_ENTER: i64 = 426;
const EPOLL_PWAIT2: i64 = 441;
const FUTEX_WAITV: i64 = 449;
const FUTEX_WAIT: i64 = 455;

/// Calls that return EINTR after a stop, having done nothing: they can begin again.
const DID_NOTHING: [i64; 14] = [
    READ,
    READV,
    ACCEPT,
    ACCEPT4,
    RECVFROM,
    RECVMSG,
    SEMOP,
    SEMTIMEDOP,
    RT_SIGTIMEDWAIT,
    IO_GETEVENTS,
    EPOLL_WAIT,
    EPOLL_PWAIT,
    EPOLL_PWAIT2,
    IO_URING_ENTER,
];

/// The place of a thread in a call that begins again unnoticed. `None` for other calls. `arguments` are the call's first two. A read(2)
/// begins again unnoticed where `reads_pipe`.
fn begins_again(number: i64, arguments: [u64; 2], reads_pipe: impl Fn(u64) -> bool) -> Option<At> {
    /// FUTEX_WAIT_REQUEUE_PI fails, and a program may not expect it to.
    const REQUEUE_PI: u64 = 11;
    match number {
        // One of these calls, or poll(2), that has begun again before.
        RESTART_SYSCALL => Some(At::Asleep),
        NANOSLEEP | CLOCK_NANOSLEEP | FUTEX_WAIT | FUTEX_WAITV => Some(At::Asleep),
        FUTEX => (arguments[1] & 0x7f != REQUEUE_PI).then_some(At::Asleep),
        POLL | PPOLL | SELECT | PSELECT6 | WAIT4 | WAITID => Some(At::Waiting),
        READ | READV => reads_pipe(arguments[0]).then_some(At::Waiting),
        _ => None,
    }
}

/// Where a thread is, by the text of /proc/PID/task/TID/syscall. `None` where the thread must be left alone.
pub(super) fn at(text: &str, reads_pipe: impl Fn(u64) -> bool) -> Option<At> {
    let mut words = text.split_ascii_whitespace();
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    match words.next()? {
        "running" => Some(At::Running),
        // A kernel thread that works for the process (io_uring) is nowhere in the program: its address is 0.
        "-1" => (hex(words.nth(1)?)? != 0).then_some(At::Fault),
        number => begins_again(number.parse().ok()?, [hex(words.next()?)?, hex(words.next()?)?], reads_pipe),
    }
}

/// Whether a stopped thread can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fitness {
    /// A call may be put in.
    Fit,
    /// Nothing may be done. The kernel lets the thread go on as it would.
    Unfit,
    /// Nothing may be put in. The thread's call failed because of the stop, and must begin again.
    Interrupted,
}

/// Judges a stopped thread by the call that it is in (`-1`: none), and by what that would return.
pub(super) fn fitness(number: i64, arguments: [u64; 2], result: i64, reads_pipe: impl Fn(u64) -> bool) -> Fitness {
    const EINTR: i64 = -4;
    match number {
        -1 => Fitness::Fit,
        // The thread has just executed another program.
        EXECVE | EXECVEAT => Fitness::Unfit,
        _ if is_to_begin_again(result) => match begins_again(number, arguments, reads_pipe) {
            Some(_) => Fitness::Fit,
            None => Fitness::Unfit,
        },
        _ if result == EINTR && DID_NOTHING.contains(&number) => Fitness::Interrupted,
        _ if result == EINTR => Fitness::Unfit,
        // The call is over.
        0.. => Fitness::Fit,
        _ => Fitness::Unfit,
    }
}

/// ERESTARTNOHAND: the call begins again, or fails with EINTR if a handler runs first.
pub(super) const AGAIN_WITHOUT_HANDLER: i64 = -514;

/// Whether the kernel will begin the call again: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
pub(super) fn is_to_begin_again(result: i64) -> bool {
    matches!(result, -514..=-512 | -516)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_judged_by_its_call() {
        let pipe = |descriptor| descriptor == 3;
        assert_eq!(at("running\n", pipe), Some(At::Running));
        assert_eq!(at("-1 0x7ffd 0x55d0\n", pipe), Some(At::Fault));
        assert_eq!(at("-1 0x0 0x0\n", pipe), None);
        assert_eq!(at("202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), Some(At::Asleep));
        assert_eq!(at("202 0x7f 0x8b 0x0 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), None);
        assert_eq!(at("0 0x3 0x80 0x1 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), Some(At::Waiting));
        assert_eq!(at("0 0x4 0x80 0x1 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), None);
        assert_eq!(at("1 0x3 0x80 0x1 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), None);
        assert_eq!(at("232 0x3 0x80 0x1 0x0 0x0 0x0 0x7ffd 0x55d0\n", pipe), None);
        assert_eq!(at("", pipe), None);
        assert!(At::Fault < At::Asleep && At::Asleep < At::Waiting && At::Waiting < At::Running);
    }

    #[test]
    fn once_it_has_stopped_its_call_tells_what_may_be_done() {
        let fitness = |number, result| fitness(number, [0, 0], result, |_| false);
        assert_eq!(fitness(-1, -14), Fitness::Fit);
        assert_eq!(fitness(FUTEX, -512), Fitness::Fit);
        assert_eq!(fitness(NANOSLEEP, -516), Fitness::Fit);
        assert_eq!(fitness(READ, -512), Fitness::Unfit);
        assert_eq!(fitness(READ, 100), Fitness::Fit);
        assert_eq!(fitness(READ, -4), Fitness::Interrupted);
        assert_eq!(fitness(EPOLL_WAIT, -4), Fitness::Interrupted);
        assert_eq!(fitness(70, -514), Fitness::Unfit);
        assert_eq!(fitness(42, -4), Fitness::Unfit);
        assert_eq!(fitness(EXECVE, 0), Fitness::Unfit);
        assert_eq!(fitness(0x4000_0000, 0), Fitness::Fit);
    }
}
