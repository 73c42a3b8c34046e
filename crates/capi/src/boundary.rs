//! The boundary between Rust and C: results become return values, errno and a text, and panics become errors.

use fastmap::Error;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::{self, Display};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed: a number for errno, and a text for people.
#[derive(Debug)]
pub struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    /// A failure with a text of its own: what failed, and what to do.
    pub fn new(errno: c_int, text: impl Display) -> Self {
        Failure { errno, text: text.to_string() }
    }

    /// A failure whose number says everything. `what` is what the call was about.
    pub fn of(errno: c_int, what: fmt::Arguments<'_>) -> Self {
        let why = io::Error::from_raw_os_error(errno);
        Failure::new(errno, format_args!("{what}: {why}: {}", remedy(errno)))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(error.errno(), error)
    }
}

fn remedy(errno: c_int) -> &'static str {
    match errno {
        libc::EINVAL => {
            "addresses and offsets are multiples of 4096, lengths are not zero, flags are the manual page's"
        }
        libc::ENOMEM => "map all of the range, or less; enlarge the cache, or raise the process's limits",
        libc::EFAULT => "part of the range is not mapped, or not for that",
        libc::EACCES => "open the file for reading, and for writing too if it is to be written",
        libc::EBADF => "the descriptor is not open",
        libc::ENODEV => "only regular files and block devices can be mapped",
        libc::EAGAIN => "end the locks and pins of the range first",
        libc::ENOSPC | libc::EDQUOT => "nothing is lost: make room on the disk and call it again",
        libc::EIO => "nothing is lost: repair the device, or copy the bytes elsewhere",
        _ => "see the manual page of the call it is named after",
    }
}

thread_local! {
    /// The text of the thread's last failure.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The type of what a function returns.
pub trait Failed {
    /// The value that a function returns when it fails.
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for *mut c_void {
    const FAILED: Self = libc::MAP_FAILED;
}

impl Failed for *mut crate::caches::fm_cache {
    const FAILED: Self = std::ptr::null_mut();
}

/// Runs a function's body. Sets errno if the body fails, and otherwise leaves it as it was.
pub fn call<T: Failed>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> T {
    // SAFETY: this thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno's address is always valid, and this thread's alone.
    let before = unsafe { *errno };
    // A body that panics leaves shared state only behind locks that ignore poison.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => {
            // SAFETY: errno's address is always valid, and this thread's alone.
            unsafe { *errno = before };
            return value;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let failure = Failure::new(
                libc::EIO,
                format_args!("a defect of fastmap ({}): please report it", text_of(panic.as_ref())),
            );
            // Its drop may panic.
            std::mem::forget(panic);
            failure
        }
    };
    let text = CString::new(format!("{name}: {}", failure.text).replace('\0', "?")).unwrap_or_default();
    // At the thread's end there is nobody to read it.
    let _ = LAST.try_with(|last| last.replace(text));
    // SAFETY: errno's address is always valid, and this thread's alone.
    unsafe { *errno = failure.errno };
    T::FAILED
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic")
}

/// The message of the last function of this library that failed in this thread, or "" if none has failed. It
/// names the file and the place in it, and says what to do. errno has the number.
///
/// The text belongs to the library, and stays until the next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn fm_last_error() -> *const c_char {
    const NOTHING: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NOTHING.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: a C string that stays while nothing fails.
        unsafe { CStr::from_ptr(fm_last_error()) }.to_string_lossy().into_owned()
    }

    fn errno() -> c_int {
        io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let result: c_int = call("fm_example", || panic!("page {} lost", 7));
        assert_eq!((result, errno()), (-1, libc::EIO));
        assert!(last().starts_with("fm_example: a defect of fastmap (page 7 lost)"), "{}", last());
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let result: *mut c_void = call("fm_example", || std::panic::panic_any(Bomb));
        assert_eq!(result, libc::MAP_FAILED);
        assert!(last().contains("a panic"), "{}", last());
    }

    #[test]
    fn errno_is_left_alone_unless_a_call_fails() {
        // SAFETY: this thread's.
        unsafe { *libc::__errno_location() = libc::ENOTTY };
        let fine: c_int = call("fm_example", || {
            // SAFETY: a descriptor that is none.
            unsafe { libc::close(-1) };
            Ok(0)
        });
        assert_eq!((fine, errno()), (0, libc::ENOTTY));
        let failed: isize = call("fm_example", || Err(Failure::of(libc::ENOSPC, format_args!("1 byte at 0x1000"))));
        assert_eq!((failed, errno()), (-1, libc::ENOSPC));
        assert!(last().contains("1 byte at 0x1000") && last().contains("make room"), "{}", last());
    }

    #[test]
    fn texts_are_each_threads_own() {
        let _: c_int = call("fm_example", || Err(Failure::new(libc::EINVAL, "mine")));
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(last(), "fm_example: mine");
    }
}
