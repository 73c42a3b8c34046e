//! The functions that `libfastmap_object.so` gives to `libfastmap.so`. This file is built into both libraries, which are installed together.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;

/// Only libraries of the same version work together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A text in UTF-8. It belongs to the library that made it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Text {
    at: *const u8,
    len: usize,
}

// SAFETY: nobody changes the bytes.
unsafe impl Sync for Text {}

impl Text {
    pub const EMPTY: Text = Text::new("");

    pub const fn new(text: &str) -> Text {
        Text { at: text.as_ptr(), len: text.len() }
    }

    /// # Safety
    /// The text's owner keeps it for `'a`.
    pub unsafe fn get<'a>(self) -> &'a str {
        // SAFETY: `new` made this of a text; the caller's contract.
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
    /// Folder of local copies; NULL: the user's default.
    pub tier: *const c_char,
    /// Most bytes that the folder's copies may take; 0: the folder's own limit.
    pub tier_limit: u64,
    /// How long a map waits for the store.
    pub deadline: Limit,
}

/// An object that is open, or why it is not.
#[repr(C)]
pub struct Opened {
    /// The object, for the other functions; NULL: it is not open.
    pub object: *mut c_void,
    /// The local copy's file, open as long as the object is.
    pub fd: c_int,
    /// Why it is not open; 0 if it is.
    pub errno: c_int,
    /// Bytes.
    pub len: u64,
    /// Its URL, for people; the text stays as long as the object is open. If the object is not open, the reason; this text stays until the thread
    /// fails to open another object.
    pub text: Text,
    /// A text that differs between versions of the object.
    pub version: Text,
}

/// Counts of a mapped object since it was opened.
///
/// Later versions of the library may have more members at the end: pass fm_object_stats() the size that you
/// know.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fm_object_stats {
    /// Bytes that came from the store.
    pub fetched: u64,
    /// Bytes that were read from the local copy, and were right.
    pub hit: u64,
    /// Bytes evicted from the local copy without having been read.
    pub wasted: u64,
    /// Requests sent to the store.
    pub requests: u64,
    /// Of `requests`, those sent again because the one before had failed.
    pub retries: u64,
    /// Of `requests`, second ones, sent because the first was late.
    pub hedges: u64,
    /// Units of 256 KiB whose local copy had changed since it was fetched. They were fetched again.
    pub wrong: u64,
}

/// The library's functions. `has` to `explain` are methods of [`Origin`](fastmap::Origin), with a range as two numbers.
#[repr(C)]
pub struct Table {
    pub version: Text,
    /// The byte counters of all objects, for `fastmap top`: `fastmap::live::counted` of `libfastmap_object.so`.
    pub counted: &'static [AtomicU64; 3],
    pub open: unsafe extern "C" fn(&Asked, &mut Opened),
    pub close: unsafe extern "C" fn(*mut c_void),
    pub has: unsafe extern "C" fn(*const c_void, u64, u64) -> bool,
    pub bring: unsafe extern "C" fn(*const c_void, u64, u64, Limit) -> c_int,
    pub ask: unsafe extern "C" fn(*const c_void, u64, u64),
    pub is_right: unsafe extern "C" fn(*const c_void, u64, *const u8, usize) -> bool,
    /// Returns an empty text if there is no explanation.
    pub explain: unsafe extern "C" fn(*const c_void, c_int) -> Text,
    pub counts: unsafe extern "C" fn(*const c_void) -> fm_object_stats,
    /// Called before fork(2). `unlock` is called after it, in parent and child. So no other thread holds the library's locks when a child is
    /// made.
    pub lock: extern "C" fn(),
    pub unlock: extern "C" fn(),
}
