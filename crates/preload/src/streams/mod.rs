//! Streams (stdio(3)). The C library reads and writes for them by itself, past every wrapper. Large amounts go straight
//! from and to the program's memory, small ones through a buffer of the C library's. So the calls that are wrapped here
//! do three things:
//!
//! * They copy bytes that lie in a mapping.
//! * They never let a stream have its buffer in a mapping.
//! * They keep a stream coherent with its file's maps in the engine. (Not wrapped: putc(3), getc(3), printf(3) and
//!   scanf(3). dprintf(3), which has no stream, is wrapped.)
//!
//! This room calls `own`, `next`, `copy`, `objects` and `files`.

mod flush;
pub(crate) mod objects;
mod open;
mod print;
mod transfer;

use crate::copy::mapped;
use crate::files::coherence;
use crate::own::{errno, set_errno};
use libc::{FILE, c_char, c_int, size_t};

unsafe extern "C" {
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fbufsize(stream: *mut FILE) -> size_t;
    fn __freading(stream: *mut FILE) -> c_int;
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn fileno_unlocked(stream: *mut FILE) -> c_int;
}

/// A stream's lock. While it is held, other threads see several calls as one.
struct Locked(*mut FILE);

impl Locked {
    unsafe fn new(stream: *mut FILE) -> Locked {
        // SAFETY: the caller's stream is open.
        unsafe { flockfile(stream) };
        Locked(stream)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked by `new`.
        unsafe { funlockfile(self.0) };
    }
}

/// The stream's descriptor; -1 if it has none. errno stays as it is.
unsafe fn descriptor(stream: *mut FILE) -> c_int {
    let before = errno();
    // SAFETY: the caller's stream is open.
    let fd = unsafe { fileno_unlocked(stream) };
    set_errno(before);
    fd
}

/// The stream's descriptor if its file is in the engine.
unsafe fn engine_fd(stream: *mut FILE) -> Option<c_int> {
    if !mapped() || stream.is_null() {
        return None;
    }
    // SAFETY: the caller's stream is open.
    let fd = unsafe { descriptor(stream) };
    (fd >= 0 && coherence::file(fd).is_some()).then_some(fd)
}

/// The beginning of a `FILE`. The C library cannot change it, since macros in programs use it.
#[repr(C)]
struct Head {
    _flags: c_int,
    _read: [*mut c_char; 3],
    _write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
}

/// Makes a call that may have the stream write its buffered bytes and `more` bytes. The call is bracketed as a write to
/// the file. It needs no bracket if it does not flush, and the bytes fit into the part of the buffer that the stream is
/// writing to. (There is no such part while the stream reads, or writes line by line.)
///
/// The stream's lock is taken before the position's, as in every thread that writes to the stream.
unsafe fn writing<R: coherence::Failure>(stream: *mut FILE, more: usize, flush: bool, call: impl FnOnce() -> R) -> R {
    // SAFETY: the caller's stream is open.
    unsafe {
        let Some(fd) = engine_fd(stream) else { return call() };
        let _locked = Locked::new(stream);
        let head = &*stream.cast::<Head>();
        let left = head.write_end.addr().saturating_sub(head.write_ptr.addr());
        let len = __fpending(stream).saturating_add(more);
        if len == 0 || !flush && more < left {
            return call();
        }
        coherence::writing_here(fd, __fbufsize(stream), len, call)
    }
}

/// Called before a stream reads. Writes back stores in the file's maps, from the descriptor's position on.
unsafe fn before_read(stream: *mut FILE, len: usize) {
    // SAFETY: the caller's stream is open.
    unsafe {
        if let Some(fd) = engine_fd(stream) {
            coherence::reading_here(fd, len.saturating_add(__fbufsize(stream).max(1 << 16)).min(isize::MAX as usize));
        }
    }
}

/// Called before a stream that reads changes its position: the C library may fill its buffer at once. Writes back all
/// stores in the file's maps.
unsafe fn before_seek(stream: *mut FILE) {
    // SAFETY: the caller's stream is open.
    unsafe {
        if let Some(fd) = engine_fd(stream).filter(|_| __freading(stream) != 0) {
            coherence::reading(fd, coherence::Span::from(0));
        }
    }
}
