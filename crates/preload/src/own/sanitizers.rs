//! Sanitizers (AddressSanitizer, LeakSanitizer, ThreadSanitizer), in programs that are built with them: what their runtimes ask for when
//! they start. A program that has one of these functions itself is asked instead, and needs the same in its environment
//! (docs/intercepted.md).

use libc::c_char;

/// AddressSanitizer wants to be the first of all libraries, where `LD_PRELOAD` puts this one. Nothing here has a name that it intercepts
/// for itself alone, so it may come later.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// ThreadSanitizer sees the C library's calls of this library, and not the atomic operations by which its threads agree: each would be
/// a race.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    concat!("called_from_lib:lib", env!("CARGO_CRATE_NAME"), ".so\n\0").as_ptr().cast()
}
