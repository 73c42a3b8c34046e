//! Where a thread may be stopped.
//!
//! A stop wakes a thread that sleeps in a system call. Some calls then fail with EINTR, or return what was done so far, as a write(2) to
//! a full pipe does, or do what a device's driver makes of it. So advice is given by a thread that is in no call: it waits in a page
//! fault of its own code, or runs. To take advice back, a thread may also sleep in a call that does nothing but sleep, which begins
//! again unnoticed. The thread is looked at again once it has stopped, since it may have gone on meanwhile.

/// Where a thread is, as seen from outside. The best place to be stopped comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    /// A page fault of its own code, after which it stops before anything else.
    Fault,
    /// A system call that does nothing but sleep.
    Asleep,
    /// Its own code, or any system call: nobody can tell which.
    Running,
}

const READ: i64 = 0;
const READV: i64 = 19;
const NANOSLEEP: i64 = 35;
const ACCEPT: i64 = 43;
const RECVFROM: i64 = 45;
const RECVMSG: i64 = 47;
const SEMOP: i64 = 65;
const RT_SIGTIMEDWAIT: i64 = 128;
const FUTEX: i64 = 202;
const IO_GETEVENTS: i64 = 208;
const RESTART_SYSCALL: i64 = 219;
const SEMTIMEDOP: i64 = 220;
const CLOCK_NANOSLEEP: i64 = 230;
const EPOLL_WAIT: i64 = 232;
const EPOLL_PWAIT: i64 = 281;
const ACCEPT4: i64 = 288;
const IO_URING_ENTER: i64 = 426;
const EPOLL_PWAIT2: i64 = 441;
const FUTEX_WAITV: i64 = 449;
const FUTEX_WAIT: i64 = 455;

/// Calls that return EINTR after a stop, having done nothing: they can begin again.
const DID_NOTHING: [i64; 15] = [
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
    // By `int 0x80` this number is lgetxattr(2), which a file system in user space may answer with EINTR.
    CLOCK_NANOSLEEP,
];

/// Whether a call does nothing but sleep, and begins again unnoticed. `operation` is its second argument.
///
/// A thread may have made the call by `int 0x80`, where the numbers mean ftime(2), getegid(2), madvise(2), lgetxattr(2) and the same two
/// waits for futexes. The first four never begin again, so `fitness` lets a thread go that was stopped in one of them.
fn only_sleeps(number: i64, operation: u64) -> bool {
    /// FUTEX_WAIT_REQUEUE_PI fails, and a program may not expect it to.
    const REQUEUE_PI: u64 = 11;
    match number {
        // RESTART_SYSCALL: one of these calls, or poll(2), that has begun again before.
        NANOSLEEP | CLOCK_NANOSLEEP | FUTEX_WAIT | FUTEX_WAITV | RESTART_SYSCALL => true,
        FUTEX => operation & 0x7f != REQUEUE_PI,
        _ => false,
    }
}

/// Where a thread is, by the text of /proc/PID/task/TID/syscall. `None` where the thread must be left alone.
pub(super) fn at(text: &[u8]) -> Option<At> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    match words.next()? {
        "running" => Some(At::Running),
        // A kernel thread that works for the process (io_uring) is nowhere in the program: its address is 0.
        "-1" => (hex(words.nth(1)?)? != 0).then_some(At::Fault),
        number => only_sleeps(number.parse().ok()?, hex(words.nth(1)?)?).then_some(At::Asleep),
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

/// Judges a stopped thread by the call that it is in (`-1`: none), and by what that would return. `may_sleep`: whether it may be in a
/// call that only sleeps.
pub(super) fn fitness(number: i64, operation: u64, result: i64, may_sleep: bool) -> Fitness {
    const EINTR: i64 = -4;
    match number {
        -1 => Fitness::Fit,
        _ if may_sleep && is_to_begin_again(result) && only_sleeps(number, operation) => Fitness::Fit,
        _ if result == EINTR && DID_NOTHING.contains(&number) => Fitness::Interrupted,
        _ => Fitness::Unfit,
    }
}

/// ERESTARTNOHAND: the call begins again, or fails with EINTR if a handler runs first.
pub(super) const AGAIN_WITHOUT_HANDLER: i64 = -514;

/// Whether the kernel will begin the call again: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
fn is_to_begin_again(result: i64) -> bool {
    matches!(result, -514..=-512 | -516)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_judged_by_its_call() {
        assert_eq!(at(b"running\n"), Some(At::Running));
        assert_eq!(at(b"-1 0x7ffd 0x55d0\n"), Some(At::Fault));
        assert_eq!(at(b"-1 0x0 0x0\n"), None);
        let call = |number: i64, operation: &str| {
            at(format!("{number} 0x7f {operation} 0x0 0x0 0x0 0x0 0x7ffd 0x55d0\n").as_bytes())
        };
        assert_eq!(call(FUTEX, "0x80"), Some(At::Asleep));
        assert_eq!(call(FUTEX, "0x8b"), None);
        for number in [NANOSLEEP, CLOCK_NANOSLEEP, FUTEX_WAIT, FUTEX_WAITV, RESTART_SYSCALL] {
            assert_eq!(call(number, "0x0"), Some(At::Asleep));
        }
        // read, write, poll, connect, wait4, epoll_wait.
        for number in [0, 1, 7, 42, 61, 232] {
            assert_eq!(call(number, "0x0"), None);
        }
        assert_eq!(at(b""), None);
        assert!(At::Fault < At::Asleep && At::Asleep < At::Running);
    }

    #[test]
    fn once_it_has_stopped_its_call_tells_what_may_be_done() {
        for may_sleep in [false, true] {
            let fitness = |number, result| fitness(number, 0, result, may_sleep);
            let asleep = if may_sleep { Fitness::Fit } else { Fitness::Unfit };
            assert_eq!(fitness(-1, -14), Fitness::Fit);
            assert_eq!(fitness(FUTEX, -512), asleep);
            assert_eq!(fitness(NANOSLEEP, -516), asleep);
            assert_eq!(fitness(FUTEX, 0), Fitness::Unfit);
            assert_eq!(fitness(READ, -512), Fitness::Unfit);
            assert_eq!(fitness(READ, 100), Fitness::Unfit);
            assert_eq!(fitness(READ, -4), Fitness::Interrupted);
            assert_eq!(fitness(EPOLL_WAIT, -4), Fitness::Interrupted);
            assert_eq!(fitness(70, -514), Fitness::Unfit);
            assert_eq!(fitness(42, -4), Fitness::Unfit);
            assert_eq!(fitness(59, 0), Fitness::Unfit);
        }
        assert_eq!(fitness(FUTEX, 11, -512, true), Fitness::Unfit);
    }
}
