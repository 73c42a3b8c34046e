//! Locks and other objects that threads wait at, and calls that name a stack.

use libc::{c_int, c_void, clockid_t, size_t, timespec};

table! {
    fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int;
    fn pthread_mutex_lock(mutex: *mut c_void) -> c_int;
    fn pthread_mutex_trylock(mutex: *mut c_void) -> c_int;
    fn pthread_mutex_timedlock(mutex: *mut c_void, until: *const timespec) -> c_int;
    fn pthread_mutex_clocklock(mutex: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_mutex_unlock(mutex: *mut c_void) -> c_int;
    fn pthread_cond_wait(cond: *mut c_void, mutex: *mut c_void) -> c_int;
    fn pthread_cond_timedwait(cond: *mut c_void, mutex: *mut c_void, until: *const timespec) -> c_int;
    fn pthread_cond_clockwait(cond: *mut c_void, mutex: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_cond_destroy(cond: *mut c_void) -> c_int;
    fn pthread_rwlock_rdlock(lock: *mut c_void) -> c_int;
    fn pthread_rwlock_tryrdlock(lock: *mut c_void) -> c_int;
    fn pthread_rwlock_timedrdlock(lock: *mut c_void, until: *const timespec) -> c_int;
    fn pthread_rwlock_clockrdlock(lock: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_rwlock_wrlock(lock: *mut c_void) -> c_int;
    fn pthread_rwlock_trywrlock(lock: *mut c_void) -> c_int;
    fn pthread_rwlock_timedwrlock(lock: *mut c_void, until: *const timespec) -> c_int;
    fn pthread_rwlock_clockwrlock(lock: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int;
    fn pthread_barrier_wait(barrier: *mut c_void) -> c_int;
    fn pthread_barrier_destroy(barrier: *mut c_void) -> c_int;
    fn pthread_once(once: *mut c_void, run: extern "C" fn()) -> c_int;
    fn sem_wait(sem: *mut c_void) -> c_int;
    fn sem_trywait(sem: *mut c_void) -> c_int;
    fn sem_timedwait(sem: *mut c_void, until: *const timespec) -> c_int;
    fn sem_clockwait(sem: *mut c_void, clock: clockid_t, until: *const timespec) -> c_int;
    fn mtx_lock(mutex: *mut c_void) -> c_int;
    fn mtx_trylock(mutex: *mut c_void) -> c_int;
    fn mtx_timedlock(mutex: *mut c_void, until: *const timespec) -> c_int;
    fn cnd_wait(cond: *mut c_void, mutex: *mut c_void) -> c_int;
    fn cnd_timedwait(cond: *mut c_void, mutex: *mut c_void, until: *const timespec) -> c_int;
    fn call_once(once: *mut c_void, run: extern "C" fn());
    fn getcontext(to: *mut c_void) -> c_int;
    fn setcontext(from: *const c_void) -> c_int;
    fn swapcontext(to: *mut c_void, from: *const c_void) -> c_int;
    fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int;
    fn pthread_attr_setstack(attr: *mut c_void, stack: *mut c_void, len: size_t) -> c_int;
}
