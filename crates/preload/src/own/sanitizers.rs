//! Settings for programs that are built with sanitizers (AddressSanitizer, LeakSanitizer, ThreadSanitizer).
//!
//! A sanitizer's runtime calls these functions when it starts. If the program defines such a function itself, the
//! runtime calls that one. Then the program's environment must have the same setting (docs/intercepted.md).

use libc::c_char;

/// AddressSanitizer demands to be the first library, but `LD_PRELOAD` puts this library first. It may come later, since
/// this library has no function that AddressSanitizer must have for itself alone (but for the heap's).
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// ThreadSanitizer sees this library's calls of the C library. It does not see the atomic operations that order this
/// library's threads. So without this suppression it would report such calls as races.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    concat!("called_from_lib:lib", env!("CARGO_CRATE_NAME"), ".so\n\0").as_ptr().cast()
}
