//! Locks, condition variables and semaphores in cached memory: in the heap, or in a mapped file.
//!
//! A thread that has to wait sleeps on a word of the object (futex(2)), which the kernel reads. If the word's page is
//! not in memory, the call fails, and the C library ends the process. So:
//!
//! * A page of the heap is pinned while the C library may wait there.
//! * A mapped file is converted to kernel mappings at the first wait, since other processes that map it must be able to
//!   wake the thread.
//!
//! An object that can be had without waiting needs neither. An exception are words that the kernel looks at when a thread ends, which waits for
//! nothing ([`of_kernel`]): robust mutexes among them.
//!
//! If no pin is free, a thread does not sleep on the word. It sleeps for a moment and tries again. Waking needs no
//! page, except for objects that processes share and for mutexes that inherit priorities. Such objects belong into
//! memory of their own.

use crate::copy::{held, mapped};
use crate::own::{PAGE, errno, kernel, set_errno};
use crate::{heap, mappings, next};
use fastmap::by_address::{self, PinnedRange, Why};
use libc::{CLOCK_REALTIME, c_int, c_long, c_void, clockid_t, timespec};
use std::time::Duration;

/// The time between two tries where no pin is free.
const NAP: Duration = Duration::from_millis(1);
/// What C11's `mtx_` functions return instead of EBUSY and ETIMEDOUT.
const THRD_BUSY: c_int = 1;
const THRD_TIMEDOUT: c_int = 4;

/// Sizes of glibc's objects, on x86-64.
const MUTEX: usize = 40;
const COND: usize = 48;
const RWLOCK: usize = 56;
const BARRIER: usize = 32;
const SEMAPHORE: usize = 32;
const ONCE: usize = 4;

/// A time to wait until, by a clock.
type Until = Option<(clockid_t, *const timespec)>;

/// Pins an object of the heap. If the object is in a file, converts the file to kernel mappings. `None`: the file was
/// converted, or no pin is free.
pub(crate) fn pin(object: *mut c_void, len: usize) -> Option<PinnedRange> {
    if heap::part_of_heap(object as usize, len).is_none() {
        // If it fails, the caller tries again: an obstacle lasts no longer than a call.
        let within = object as usize % PAGE;
        let _ = mappings::leave_to_kernel(object.wrapping_byte_sub(within), within + len, Why::Waited);
        return None;
    }
    // SAFETY: the thread that waits for an object keeps it mapped.
    unsafe { by_address::pin(object as usize, len) }
}

/// Called before the kernel is told of memory that it reads or changes when a thread ends: a page that is absent then stays as it is, and whoever waits
/// for that waits for ever. A file is converted to kernel mappings, a page of the heap pinned for good.
pub(crate) fn of_kernel(object: *mut c_void, len: usize) {
    if mapped() && held(object, len) {
        std::mem::forget(pin(object, len));
    }
}

/// Called before clone(2) with these flags: the kernel may clear the child's number at its end.
pub(crate) fn before_clone(flags: c_long, child: *mut c_void) {
    if flags & c_long::from(libc::CLONE_CHILD_CLEARTID) != 0 {
        of_kernel(child, size_of::<c_int>());
    }
}

/// Called before a mutex in a file is taken: one that is robust (pthread_mutexattr_setrobust(3)) is for [`of_kernel`] as long as it has an owner.
///
/// # Safety
/// There is a mutex, in a file or in the heap.
unsafe fn before_robust(mutex: *mut c_void) {
    /// In glibc's `kind`, its fifth int: `PTHREAD_MUTEX_ROBUST_NORMAL_NP`.
    const ROBUST: c_int = 0x10;
    // SAFETY: the caller's contract.
    let is_robust = unsafe { mutex.cast::<c_int>().add(4).read() } & ROBUST != 0;
    // One in the heap is pinned since it was made.
    if is_robust && heap::part_of_heap(mutex as usize, MUTEX).is_none() {
        of_kernel(mutex, MUTEX);
    }
}

/// pthread_mutex_init(3). `attributes` may be null.
///
/// # Safety
/// The caller keeps the contract of pthread_mutex_init(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int {
    let mut robust = 0;
    // SAFETY: the caller's contract.
    unsafe {
        if !attributes.is_null() && mapped() && held(mutex, MUTEX) {
            libc::pthread_mutexattr_getrobust(attributes.cast(), &mut robust);
        }
        if robust == libc::PTHREAD_MUTEX_ROBUST {
            of_kernel(mutex, MUTEX);
        }
        next::pthread_mutex_init(mutex, attributes)
    }
}

/// pthread_mutex_trylock(3).
///
/// # Safety
/// The caller keeps the contract of pthread_mutex_trylock(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_trylock(mutex: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if mapped() && held(mutex, MUTEX) {
            before_robust(mutex);
        }
        next::pthread_mutex_trylock(mutex)
    }
}

/// Sleeps for a moment. True: the time `until` has come.
///
/// # Safety
/// `until` points to a time.
unsafe fn nap(until: Until) -> bool {
    std::thread::sleep(NAP);
    until.is_some_and(|(clock, until)| {
        // SAFETY: clock_gettime(2) fills the local time. A bad clock of the caller's leaves it zero.
        unsafe {
            let mut now: timespec = std::mem::zeroed();
            let _ = kernel::call(libc::SYS_clock_gettime, [clock as usize, (&raw mut now).expose_provenance()]);
            (now.tv_sec, now.tv_nsec) >= ((*until).tv_sec, (*until).tv_nsec)
        }
    })
}

/// How an object is taken: its length, the time limit, and the results that mean busy and timed out.
struct Taking {
    len: usize,
    until: Until,
    busy: c_int,
    timed_out: c_int,
}

/// Takes an object: by `attempt` if that succeeds, else by `wait` under a pin.
///
/// # Safety
/// The object is one that `attempt` and `wait` take.
#[inline(always)]
unsafe fn take(
    object: *mut c_void,
    Taking { len, until, busy, timed_out }: Taking,
    attempt: impl Fn() -> c_int,
    wait: impl FnOnce() -> c_int,
) -> c_int {
    loop {
        // The object's file may have been converted meanwhile.
        if !held(object, len) {
            return wait();
        }
        match attempt() {
            taken if taken != busy => return taken,
            _ => {}
        }
        if let Some(_held) = pin(object, len) {
            return wait();
        }
        // SAFETY: the caller's contract.
        if unsafe { nap(until) } {
            return timed_out;
        }
    }
}

/// Waits for a condition with both objects pinned. If no pins are free, it wakes spuriously, which POSIX allows.
///
/// # Safety
/// The caller keeps the contract of pthread_cond_wait(3).
#[inline(always)]
unsafe fn wait([cond, mutex]: [*mut c_void; 2], until: Until, timed_out: c_int, wait: impl FnOnce() -> c_int) -> c_int {
    if !mapped() {
        return wait();
    }
    let objects = [(cond, COND), (mutex, MUTEX)];
    if !objects.iter().any(|(object, len)| held(*object, *len)) {
        return wait();
    }
    let pins = objects.map(|(object, len)| if held(object, len) { pin(object, len) } else { None });
    if pins.iter().zip(objects).all(|(pin, (object, len))| pin.is_some() || !held(object, len)) {
        return wait();
    }
    drop(pins);
    // SAFETY: the caller holds the mutex, and holds it again afterwards.
    unsafe {
        match next::pthread_mutex_unlock(mutex) {
            0 => {}
            error => return error,
        }
        let over = nap(until);
        match pthread_mutex_lock(mutex) {
            0 if over => timed_out,
            other => other,
        }
    }
}

/// Makes a call that may wait on an object, and that has no form that only tries. Waits until a pin is free.
#[inline(always)]
fn with_pin<R>(object: *mut c_void, len: usize, call: impl FnOnce() -> R) -> R {
    if !mapped() {
        return call();
    }
    loop {
        // The object's file may have been converted meanwhile.
        if !held(object, len) {
            return call();
        }
        if let Some(_held) = pin(object, len) {
            return call();
        }
        std::thread::sleep(NAP);
    }
}

fn posix(len: usize, until: Until) -> Taking {
    Taking { len, until, busy: libc::EBUSY, timed_out: libc::ETIMEDOUT }
}

fn c11(until: Until) -> Taking {
    Taking { len: MUTEX, until, busy: THRD_BUSY, timed_out: THRD_TIMEDOUT }
}

/// Wrappers that take an object.
macro_rules! takes {
    ($($name:ident($object:ident $(, $argument:ident: $type:ty)*) of $len:ident: $how:expr, $attempt:ident;)*) => { $(
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($object: *mut c_void $(, $argument: $type)*) -> c_int {
            #[cold]
            unsafe fn taken($object: *mut c_void $(, $argument: $type)*) -> c_int {
                // SAFETY: the caller's contract.
                unsafe {
                    if $len == MUTEX {
                        before_robust($object);
                    }
                    take($object, $how, || next::$attempt($object), || next::$name($object $(, $argument)*))
                }
            }
            // SAFETY: the caller's contract. Most locks cost no more than this: one load or three, and a jump.
            unsafe {
                if mapped() && held($object, $len) {
                    return taken($object $(, $argument)*);
                }
                next::$name($object $(, $argument)*)
            }
        }
    )* };
}

takes! {
    pthread_mutex_lock(mutex) of MUTEX: posix(MUTEX, None), pthread_mutex_trylock;
    pthread_mutex_timedlock(mutex, until: *const timespec) of MUTEX:
        posix(MUTEX, Some((CLOCK_REALTIME, until))), pthread_mutex_trylock;
    pthread_mutex_clocklock(mutex, clock: clockid_t, until: *const timespec) of MUTEX:
        posix(MUTEX, Some((clock, until))), pthread_mutex_trylock;
    pthread_rwlock_rdlock(lock) of RWLOCK: posix(RWLOCK, None), pthread_rwlock_tryrdlock;
    pthread_rwlock_timedrdlock(lock, until: *const timespec) of RWLOCK:
        posix(RWLOCK, Some((CLOCK_REALTIME, until))), pthread_rwlock_tryrdlock;
    pthread_rwlock_clockrdlock(lock, clock: clockid_t, until: *const timespec) of RWLOCK:
        posix(RWLOCK, Some((clock, until))), pthread_rwlock_tryrdlock;
    pthread_rwlock_wrlock(lock) of RWLOCK: posix(RWLOCK, None), pthread_rwlock_trywrlock;
    pthread_rwlock_timedwrlock(lock, until: *const timespec) of RWLOCK:
        posix(RWLOCK, Some((CLOCK_REALTIME, until))), pthread_rwlock_trywrlock;
    pthread_rwlock_clockwrlock(lock, clock: clockid_t, until: *const timespec) of RWLOCK:
        posix(RWLOCK, Some((clock, until))), pthread_rwlock_trywrlock;
    mtx_lock(mutex) of MUTEX: c11(None), mtx_trylock;
    mtx_timedlock(mutex, until: *const timespec) of MUTEX: c11(Some((CLOCK_REALTIME, until))), mtx_trylock;
}

/// Wrappers that wait for a condition.
macro_rules! waits {
    ($($name:ident($cond:ident, $mutex:ident $(, $argument:ident: $type:ty)*): $until:expr, $timed_out:expr;)*) => { $(
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// The caller keeps the contract of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($cond: *mut c_void, $mutex: *mut c_void $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { wait([$cond, $mutex], $until, $timed_out, || next::$name($cond, $mutex $(, $argument)*)) }
        }
    )* };
}

waits! {
    pthread_cond_wait(cond, mutex): None, libc::ETIMEDOUT;
    pthread_cond_timedwait(cond, mutex, until: *const timespec): Some((CLOCK_REALTIME, until)), libc::ETIMEDOUT;
    pthread_cond_clockwait(cond, mutex, clock: clockid_t, until: *const timespec):
        Some((clock, until)), libc::ETIMEDOUT;
    cnd_wait(cond, mutex): None, THRD_TIMEDOUT;
    cnd_timedwait(cond, mutex, until: *const timespec): Some((CLOCK_REALTIME, until)), THRD_TIMEDOUT;
}

/// sem_trywait(3), with its error as a number.
unsafe fn try_semaphore(sem: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { if next::sem_trywait(sem) == 0 { 0 } else { errno() } }
}

/// Waits for a semaphore. Errors are numbers in errno. EAGAIN is the error of sem_trywait(3) for a semaphore that is
/// taken.
unsafe fn wait_semaphore(sem: *mut c_void, until: Until, wait: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if !mapped() || !held(sem, SEMAPHORE) {
            return wait();
        }
        let before = errno();
        let how = Taking { len: SEMAPHORE, until, busy: libc::EAGAIN, timed_out: libc::ETIMEDOUT };
        let error = take(
            sem,
            how,
            || try_semaphore(sem),
            || {
                if wait() == 0 { 0 } else { errno() }
            },
        );
        set_errno(if error == 0 { before } else { error });
        if error == 0 { 0 } else { -1 }
    }
}

/// sem_wait(3).
///
/// # Safety
/// The caller keeps the contract of sem_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_wait(sem: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { wait_semaphore(sem, None, || next::sem_wait(sem)) }
}

/// sem_timedwait(3).
///
/// # Safety
/// The caller keeps the contract of sem_timedwait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_timedwait(sem: *mut c_void, until: *const timespec) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { wait_semaphore(sem, Some((CLOCK_REALTIME, until)), || next::sem_timedwait(sem, until)) }
}

/// sem_clockwait(3).
///
/// # Safety
/// The caller keeps the contract of sem_clockwait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_clockwait(sem: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { wait_semaphore(sem, Some((clock, until)), || next::sem_clockwait(sem, clock, until)) }
}

/// pthread_barrier_wait(3).
///
/// # Safety
/// The caller keeps the contract of pthread_barrier_wait(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_barrier_wait(barrier: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    with_pin(barrier, BARRIER, || unsafe { next::pthread_barrier_wait(barrier) })
}

/// pthread_barrier_destroy(3), which waits for threads that are leaving the barrier.
///
/// # Safety
/// The caller keeps the contract of pthread_barrier_destroy(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_barrier_destroy(barrier: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    with_pin(barrier, BARRIER, || unsafe { next::pthread_barrier_destroy(barrier) })
}

/// pthread_cond_destroy(3), which waits for threads that are leaving the condition.
///
/// # Safety
/// The caller keeps the contract of pthread_cond_destroy(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_destroy(cond: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    with_pin(cond, COND, || unsafe { next::pthread_cond_destroy(cond) })
}

/// pthread_once(3).
///
/// # Safety
/// The caller keeps the contract of pthread_once(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_once(once: *mut c_void, run: extern "C" fn()) -> c_int {
    // SAFETY: the caller's contract.
    with_pin(once, ONCE, || unsafe { next::pthread_once(once, run) })
}

/// call_once(3).
///
/// # Safety
/// The caller keeps the contract of call_once(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn call_once(once: *mut c_void, run: extern "C" fn()) {
    // SAFETY: the caller's contract.
    with_pin(once, ONCE, || unsafe { next::call_once(once, run) })
}
