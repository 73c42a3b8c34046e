//! Failed calls of the C library as exceptions.

use fastmap_capi::fm_last_error;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::ffi::CStr;
use std::io;

/// Why a call has just failed in this thread.
#[derive(Debug)]
pub struct Failure {
    pub errno: i32,
    pub text: String,
}

impl Failure {
    /// The failure of a system call.
    pub fn of_kernel(call: &str) -> Self {
        let error = io::Error::last_os_error();
        Failure { errno: error.raw_os_error().unwrap_or(libc::EIO), text: format!("{call}: {error}") }
    }

    /// The failure of the last function of the C library.
    pub fn last() -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // SAFETY: a C string that stays until this thread's next failure.
        let text = unsafe { CStr::from_ptr(fm_last_error()) }.to_string_lossy();
        // The name of the C function is left out: the caller is Python code.
        let text = text.split_once(": ").filter(|(name, _)| name.starts_with("fm_")).map_or(&*text, |(_, rest)| rest);
        Failure { errno, text: text.into() }
    }
}

/// The result of a call, which is a failure if it is less than zero.
pub fn check<T: Default + PartialOrd>(result: T) -> Result<T, Failure> {
    if result < T::default() { Err(Failure::last()) } else { Ok(result) }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure.errno {
            libc::EINVAL => PyValueError::new_err(failure.text),
            errno => PyOSError::new_err((errno, failure.text)),
        }
    }
}
