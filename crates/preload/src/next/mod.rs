//! The C library's versions of the functions that this library intercepts. This room calls only `own`, but its tables
//! use the macros of `copy`.
//!
//! Each table beside this file lists intercepted functions by name and signature. `build.rs` reads the tables too.
//! `next::NAME(…)` calls the next definition after this library's (dlsym(3), `RTLD_NEXT`). The engine and the standard
//! library, which are linked into this library, reach the same definition through the linker's `--wrap`.
//!
//! Rule: nothing in this crate calls `libc::NAME` for an intercepted name, but `next::NAME`. If such a call lies in one object
//! file with the wrapper, the linker does not redirect it, and the wrapper runs.
//!
//! The C library's functions are declared as functions that may unwind. pthread_cancel(3) ends a thread inside such a
//! function by unwinding, and so releases everything that the wrappers hold.
//!
//! Variadic functions are declared with all the arguments that they can have. On x86-64 the arguments are passed in
//! registers either way.

use crate::own::set_errno;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An intercepted function, looked up at its first call. It takes no lock and allocates nothing: it may be needed inside
/// `malloc`, in a signal handler, or before any constructor has run.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<libc::c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; `None`: this C library has no such function.
    #[inline]
    pub fn find(&self) -> Option<*mut libc::c_void> {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { Some(found) }
    }

    #[cold]
    fn look_up(&self) -> Option<*mut libc::c_void> {
        let name = self.name.as_ptr();
        // SAFETY: the arguments are C strings. The result is null or a function's address.
        let found = unsafe {
            // A failed look-up would allocate (dlerror(3)). But every glibc since 2.31 has these versions.
            let chosen = version(self.name.to_bytes())
                .map_or(null_mut(), |version| libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()));
            if chosen.is_null() { libc::dlsym(libc::RTLD_NEXT, name) } else { chosen }
        };
        self.found.store(found, Ordering::Relaxed);
        (!found.is_null()).then_some(found)
    }
}

/// The version to ask for, if the C library has several versions of a function that do different things. Before glibc
/// 2.36 dlsym(3) with `RTLD_NEXT` finds `GLIBC_2.2.5` or the current version, depending on their order in a hash chain.
///
/// Each version here is the first that does what the function does today. The C library still has it, and every program
/// that was linked with this or a later C library gets it. All other functions are the same in all their versions.
fn version(name: &[u8]) -> Option<&'static CStr> {
    Some(match name {
        b"pthread_cond_wait" | b"pthread_cond_timedwait" | b"pthread_cond_destroy" => c"GLIBC_2.3.2",
        b"realpath" => c"GLIBC_2.3",
        b"timer_create" | b"timer_gettime" | b"timer_settime" => c"GLIBC_2.3.3",
        b"sched_getaffinity" | b"sched_setaffinity" | b"pthread_getaffinity_np" | b"pthread_setaffinity_np" => {
            c"GLIBC_2.3.4"
        }
        b"posix_spawn" | b"posix_spawnp" => c"GLIBC_2.15",
        b"quick_exit" => c"GLIBC_2.24",
        _ => return None,
    })
}

/// The result of a function that the C library lacks: -1 or `MAP_FAILED`, with ENOSYS in errno.
///
/// # Safety
/// `R` is an integer or a pointer, no longer than a register.
#[cold]
pub unsafe fn lacking<R>() -> R {
    set_errno(libc::ENOSYS);
    // SAFETY: the contract.
    unsafe { failed() }
}

/// The result of a call that failed: -1 or `MAP_FAILED`. errno stays as it is.
///
/// # Safety
/// `R` is an integer or a pointer, no longer than a register.
#[cold]
pub unsafe fn failed<R>() -> R {
    const { assert!(size_of::<R>() <= size_of::<isize>()) };
    // SAFETY: the contract: `R` is an integer or a pointer, no longer than the value that is copied.
    unsafe { std::mem::transmute_copy(&-1isize) }
}

/// The result of a call inside this library. The standard library opens files with `open64`, so only its result is lifted.
macro_rules! lifted {
    (open64 $result:ident) => {
        $crate::next::Lifting::lift($result)
    };
    ($name:ident $result:ident) => {
        $result
    };
}

/// Declares intercepted functions: `next::NAME` and `__wrap_NAME` for each.
macro_rules! table {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => { $(
        #[allow(clippy::too_many_arguments, dead_code)]
        #[inline]
        pub unsafe fn $name($($argument: $type),*) $(-> $result)? {
            static NEXT: $crate::next::Next = $crate::next::Next::new(
                // SAFETY: the bytes have one NUL, at the end.
                unsafe { ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            );
            match NEXT.find() {
                // SAFETY: the C library's function of this name has this signature.
                Some(found) => unsafe {
                    ::std::mem::transmute::<*mut ::libc::c_void, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(found)($($argument),*)
                },
                // SAFETY: the functions of the tables return integers or pointers.
                None => unsafe { $crate::next::lacking() },
            }
        }
    )*
        // The linker redirects calls inside this library to these functions.
        const _: () = { $(
            #[allow(clippy::too_many_arguments)]
            // SAFETY: the linker's name for calls of this function, which nothing else defines.
            #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's contract, handed on.
                let result = unsafe { self::$name($($argument),*) };
                lifted!($name result)
            }
        )* };
    };
}

/// While a `Lifting` exists, descriptors that are opened inside this library get high numbers, and `tell` gets each number.
/// The program's first process expects the low numbers to be free.
pub struct Lifting(());

static LIFT: AtomicPtr<libc::c_void> = AtomicPtr::new(null_mut());

impl Lifting {
    pub fn begin(tell: fn(libc::c_int)) -> Lifting {
        LIFT.store(tell as *mut libc::c_void, Ordering::Relaxed);
        Lifting(())
    }

    /// Moves a descriptor to a high number while a `Lifting` exists. Returns the number that the descriptor has afterwards.
    fn lift(fd: libc::c_int) -> libc::c_int {
        let tell = LIFT.load(Ordering::Relaxed);
        if tell.is_null() || fd < 0 {
            return fd;
        }
        // SAFETY: `begin` stored a function of this type, and the calls take only memory of this function. The number is as
        // high as those of the engine's own descriptors (`fastmap::descriptors`).
        unsafe {
            let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 0 };
            syscall(libc::SYS_getrlimit, libc::RLIMIT_NOFILE.into(), &raw mut limit as _, 0, 0, 0, 0);
            let from = (limit.rlim_cur / 4 * 3).min(3072);
            let high = fcntl(fd, libc::F_DUPFD_CLOEXEC, from as libc::c_long);
            let kept = if high < 0 { fd } else { high };
            if high >= 0 {
                close(fd);
            }
            std::mem::transmute::<*mut libc::c_void, fn(libc::c_int)>(tell)(kept);
            kept
        }
    }
}

impl Drop for Lifting {
    fn drop(&mut self) {
        LIFT.store(null_mut(), Ordering::Relaxed);
    }
}

/// Exports functions of a module by their own names. Such functions are also called inside this library
/// (`calls/by_number.rs`), where a call of the exported name would be redirected to the C library.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        const _: () = { $(
            // SAFETY: the C library's name and signature.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's contract, which is the C library's.
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
mod rings;
mod sockets;
mod stdio;
mod sync;
// This one is not exported again below, since nothing in this crate calls its functions.
mod system;

pub use files::*;
#[cfg(feature = "heap")]
pub use heap::*;
pub use memory::*;
pub use paths::*;
pub use process::*;
pub use rings::*;
pub use sockets::*;
pub use stdio::*;
pub use sync::*;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::process::Command;

    /// The versions of each function in this process's C library. The default version is the first.
    fn versions(path: &str) -> BTreeMap<String, Vec<CString>> {
        let table =
            Command::new("readelf").args(["--dyn-syms", "--wide", path]).output().expect("readelf(1), of binutils");
        let mut all: BTreeMap<String, Vec<CString>> = BTreeMap::new();
        for symbol in String::from_utf8_lossy(&table.stdout).lines().filter_map(|line| line.split_whitespace().nth(7)) {
            let Some((name, version)) = symbol.split_once('@') else { continue };
            let known = all.entry(name.into()).or_default();
            let (at, version) = version.strip_prefix('@').map_or((known.len(), version), |default| (0, default));
            known.insert(at, CString::new(version).expect("a version"));
        }
        all
    }

    /// The functions of the tables.
    fn declared() -> impl Iterator<Item = &'static str> {
        let tables = [
            include_str!("files.rs"),
            include_str!("heap.rs"),
            include_str!("memory.rs"),
            include_str!("paths.rs"),
            include_str!("process.rs"),
            include_str!("rings.rs"),
            include_str!("sockets.rs"),
            include_str!("stdio.rs"),
            include_str!("sync.rs"),
            include_str!("system.rs"),
        ];
        let lines = tables.into_iter().flat_map(|table| table.lines()).filter_map(|line| line.strip_prefix("    fn "));
        lines.filter_map(|line| line.split('(').next())
    }

    #[test]
    fn nothing_here_calls_an_intercepted_function_by_its_name() {
        let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/src"))];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                files += 1;
                let text = std::fs::read_to_string(entry.path()).expect("a source");
                let called = declared().chain(["syscall"]).find(|name| text.contains(&format!("libc::{name}(")));
                assert_eq!(called, None, "{}: call it by `next`, or `own::kernel`", entry.path().display());
            }
        }
        assert!(files > 50, "{files}");
    }

    #[test]
    fn every_function_is_the_one_that_programs_get() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel's list");
        let path =
            maps.lines().find_map(|line| line.split(' ').next_back().filter(|path| path.ends_with("/libc.so.6")));
        let path = path.expect("a C library");
        let library = CString::new(path).expect("a path");
        // SAFETY: the library is loaded already.
        let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        assert!(!library.is_null());
        let versions = versions(path);
        let mut count = 0;
        for name in declared().chain(["vfork", "getcontext", "pthread_exit"]) {
            let Some(all) = versions.get(name) else { continue };
            let name: &'static CStr = Box::leak(CString::new(name).expect("a name").into_boxed_c_str());
            // SAFETY: the arguments are C strings.
            let of = |version: &CStr| unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
            let in_force = of(&all[0]);
            assert!(!in_force.is_null());
            assert_eq!(Next::new(name).find(), Some(in_force), "{name:?}");
            // An older dlsym(3) may find another version. Either `version` names the right one, or all are the same function.
            match version(name.to_bytes()) {
                Some(version) => assert_eq!(of(version), in_force, "{name:?} {version:?}"),
                None => assert!(all.iter().all(|version| of(version) == in_force), "{name:?} has several: {all:?}"),
            }
            count += 1;
        }
        assert!(count > 300, "only {count} functions are looked at");
    }
}
