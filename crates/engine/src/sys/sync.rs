//! Atomics and locks for the structures that loom models. They come from std in the library, and from loom under `--cfg loom`.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex},
};

#[cfg(not(loom))]
pub use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// std's cell with loom's interface, so that one source serves both.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for exclusive access. The caller holds the lock that makes the access exclusive.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Tells the processor (or the model) that this thread spins.
#[inline(always)]
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// Keeps the data of two cores in separate cache lines. It is 128 bytes, since x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);
