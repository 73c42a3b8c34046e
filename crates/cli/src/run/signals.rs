//! Signals as numbers, for the process that waits for them with all of them blocked.

use std::time::Duration;

/// All of them, as a set.
pub const ALL_SIGNALS: u64 = !0;
/// Sets the calling thread's mask of blocked signals. Returns the mask from before. (The C library would leave two signals of its own out.)
pub fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: the kernel reads one set and writes the other.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8);
    }
    before
}

/// The signals that are pending for this process.
pub fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: the kernel writes one set.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, 8) };
    set
}

/// Takes the next signal. `None` if none comes in time.
pub fn wait_for(time: Duration) -> Option<libc::siginfo_t> {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: the kernel reads a set and a time, and fills one structure. The set has the C library's own signals, too, of which this process
    // gets none: it cancels no thread.
    unsafe {
        let (all, mut info): (u64, libc::siginfo_t) = (ALL_SIGNALS, std::mem::zeroed());
        let taken = libc::syscall(libc::SYS_rt_sigtimedwait, &raw const all, &raw mut info, &raw const time, 8);
        (taken > 0).then_some(info)
    }
}

/// Takes one signal, if it is pending. Returns whether it was.
pub fn take(signal: i32) -> bool {
    let (set, none) = (1u64 << (signal - 1), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let no_info = std::ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: the kernel reads a set and a time.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, no_info, &raw const none, 8) > 0 }
}

/// Sends a signal.
pub fn send(process: libc::pid_t, signal: i32) {
    // SAFETY: the call takes numbers.
    unsafe { libc::kill(process, signal) };
}

/// Passes a signal on, with its value if it has one.
pub fn pass_on(process: libc::pid_t, info: &libc::siginfo_t) {
    // Of others the kernel lets nobody name another sender.
    let has_value = info.si_code < 0 && info.si_code != libc::SI_TKILL;
    // SAFETY: the kernel reads one structure.
    let passed =
        has_value && unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, process, info.si_signo, &raw const *info) } == 0;
    if !passed {
        send(process, info.si_signo);
    }
}
