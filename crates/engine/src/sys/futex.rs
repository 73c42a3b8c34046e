//! Sleeping on a 32-bit word: futex(2). The calls are process-private, except the two for words in shared memory.

use crate::sys::sync::AtomicU32;
use std::ptr;
use std::time::Duration;

/// Sleeps until another thread wakes it, for at most `timeout`. Returns at once if `word` does not hold `expected`. May also return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    sleep(ptr::from_ref(word).cast(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, timeout);
}

/// The same as [`wait`], on a word that other processes have mapped too.
pub fn wait_shared(word: &std::sync::atomic::AtomicU32, expected: u32, timeout: Option<Duration>) {
    sleep(ptr::from_ref(word).cast(), libc::FUTEX_WAIT, expected, timeout);
}

/// Wakes every sleeper on a word that other processes have mapped too.
pub fn wake_all_shared(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: only the word's address is used.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), libc::FUTEX_WAKE, i32::MAX) };
}

fn sleep(word: *const u32, operation: libc::c_int, expected: u32, timeout: Option<Duration>) {
    let spec = timeout.map(|t| libc::timespec { tv_sec: t.as_secs() as _, tv_nsec: t.subsec_nanos() as _ });
    let spec = spec.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's word outlives the call, and the kernel only reads it.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, expected, spec) };
}

/// Wakes up to `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the word's address is used.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(word), operation, count) };
}

/// Wakes every sleeper on `word`.
pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX);
}
