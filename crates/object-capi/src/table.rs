//! The functions that `libfastmap_object.so` gives to `libfastmap.so`. This file is built into both; they are installed together.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;

/// Both libraries have the same version, or do not work together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// UTF-8, the other library's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Text {
    at: *const u8,
    len: usize,
}

// SAFETY: bytes that nobody changes.
unsafe impl Sync for Text {}

impl Text {
    pub const EMPTY: Text = Text::new("");

    pub const fn new(text: &str) -> Text {
        Text { at: text.as_ptr(), len: text.len() }
    }

    /// # Safety
    /// Its owner keeps it for as long.
    pub unsafe fn get<'a>(self) -> &'a str {
        // SAFETY: made of a text by `new`; the caller's contract.
        unsafe { std::str::from_utf8_unchecked(std::slice::from_raw_parts(self.at, self.len)) }
    }
}

/// Nanoseconds; [`FOR_EVER`] without a limit.
pub type Limit = u64;
pub const FOR_EVER: Limit = u64::MAX;

/// How an object is opened.
#[repr(C)]
pub struct Asked {
    pub url: Text,
    /// Folder of local copies; NULL: the user's.
    pub tier: *const c_char,
    /// Bytes; 0: as the folder has it.
    pub tier_limit: u64,
    /// For what is waited for.
    pub deadline: Limit,
}

/// An object that is open, or why it is not.
#[repr(C)]
pub struct Opened {
    /// For the other functions; NULL: it is not open.
    pub object: *mut c_void,
    /// The local copy's file, open as long as the object is.
    pub fd: c_int,
    /// Where it is not open, errno.
    pub errno: c_int,
    /// Bytes.
    pub len: u64,
    /// Its URL, for people, as long as the object is open. Where it is not open, what to say, until this thread opens another.
    pub text: Text,
    /// What tells this version of the object from others.
    pub version: Text,
}

/// Counts since an object was opened, as `fm_object_stats` has them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub fetched: u64,
    pub hit: u64,
    pub wasted: u64,
    pub requests: u64,
    pub retries: u64,
    pub hedges: u64,
    pub wrong: u64,
}

/// What the library can do. `has` to `explain` are [`Origin`](fastmap::Origin)'s functions, ranges in two numbers.
#[repr(C)]
pub struct Table {
    pub version: Text,
    /// The bytes of all objects, for `fastmap top`: what `fastmap::live::counted` says in that library.
    pub counted: &'static [AtomicU64; 3],
    pub open: unsafe extern "C" fn(&Asked, &mut Opened),
    pub close: unsafe extern "C" fn(*mut c_void),
    pub has: unsafe extern "C" fn(*const c_void, u64, u64) -> bool,
    pub bring: unsafe extern "C" fn(*const c_void, u64, u64, Limit) -> c_int,
    pub ask: unsafe extern "C" fn(*const c_void, u64, u64),
    pub is_right: unsafe extern "C" fn(*const c_void, u64, *const u8, usize) -> bool,
    /// Empty: it says nothing.
    pub explain: unsafe extern "C" fn(*const c_void, c_int) -> Text,
    pub counts: unsafe extern "C" fn(*const c_void) -> Counts,
    /// Before fork(2), and after it in both: no thread of the parent's holds the library's locks in the child.
    pub lock: extern "C" fn(),
    pub unlock: extern "C" fn(),
}
