//! The functions that this library intercepts, as the C library has them.
//!
//! Each table in `next/` lists intercepted functions by name and signature; `build.rs` reads them too. For each,
//! `next::NAME(…)` calls the next definition after this library's (dlsym(3), `RTLD_NEXT`), and so do, through the linker's
//! `--wrap`, all calls of the engine and the standard library inside this library. Rule: nothing in this crate calls
//! `libc::NAME` for an intercepted name: in one object file with the wrapper the linker would not see it.
//!
//! The C library's own are called as functions that unwind: pthread_cancel(3) ends a thread inside of one, and what the
//! wrappers hold then is let go.
//!
//! Variadic functions are declared with the arguments they can have: on x86-64 both are passed alike, in registers.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An intercepted function, looked up at its first call. No lock, no allocation: it may be needed inside `malloc`, in a
/// signal handler, before any constructor has run.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<libc::c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// Its address; `None`: this C library has no such function.
    #[inline]
    pub fn find(&self) -> Option<*mut libc::c_void> {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { Some(found) }
    }

    #[cold]
    fn look_up(&self) -> Option<*mut libc::c_void> {
        let name = self.name.as_ptr();
        // Condition variables exist twice, and dlsym(3) may find those of the last century. No other is asked for by version: a
        // look-up that fails allocates.
        let twice = self.name.to_bytes().starts_with(b"pthread_cond_");
        // SAFETY: C strings; the answer is null or a function's address.
        let found = unsafe {
            let modern = if twice { libc::dlvsym(libc::RTLD_NEXT, name, c"GLIBC_2.3.2".as_ptr()) } else { null_mut() };
            if modern.is_null() { libc::dlsym(libc::RTLD_NEXT, name) } else { modern }
        };
        self.found.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }
}

/// What a function that the C library lacks returns: -1 or `MAP_FAILED`, with ENOSYS.
///
/// # Safety
/// `R` is an integer or a pointer, no longer than a register.
#[cold]
pub unsafe fn lacking<R>() -> R {
    const { assert!(size_of::<R>() <= size_of::<isize>()) };
    // SAFETY: the contract; errno is this thread's.
    unsafe {
        *libc::__errno_location() = libc::ENOSYS;
        std::mem::transmute_copy(&-1isize)
    }
}

/// Declares intercepted functions: `next::NAME` and `__wrap_NAME` for each.
macro_rules! table {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => { $(
        #[allow(clippy::too_many_arguments, dead_code)]
        #[inline]
        pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
            static NEXT: $crate::next::Next = $crate::next::Next::new(
                // SAFETY: one NUL, at the end.
                unsafe { ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            );
            match NEXT.find() {
                // SAFETY: the C library's function of this name has this signature.
                Some(found) => unsafe {
                    ::std::mem::transmute::<*mut ::libc::c_void, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(found)($($argument),*)
                },
                // SAFETY: functions return integers or pointers.
                None => unsafe { $crate::next::lacking() },
            }
        }
    )*
        // What the linker makes of the calls inside this library.
        const _: () = { $(
            #[allow(clippy::too_many_arguments)]
            // SAFETY: the linker's name for calls of this function, which nothing else defines.
            #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's contract, handed on.
                unsafe { self::$name($($argument),*) }
            }
        )* };
    };
}

mod files;
#[cfg(feature = "heap")]
mod heap;
mod memory;
mod paths;
#[allow(non_snake_case, reason = "the C library's names")]
mod process;
mod sockets;
mod stdio;
mod sync;
// Nothing in this crate calls these.
mod system;

pub use files::*;
#[cfg(feature = "heap")]
pub use heap::*;
pub use memory::*;
pub use paths::*;
pub use process::*;
pub use sockets::*;
pub use stdio::*;
pub use sync::*;
