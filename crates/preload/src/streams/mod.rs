//! Streams. The C library reads and writes for them by itself, past every wrapper: straight from and to the program's
//! memory where much is asked for, else through a buffer of its own. So what lies in a mapping is copied, a stream's
//! buffer is never in one, and a stream of a file in the engine is kept coherent by the calls that are wrapped here:
//! not by putc(3), getc(3), printf(3) and scanf(3). (dprintf(3), which has no stream, is wrapped.)
//!
//! Calls `own`, `next`, `copy`, `objects` and `files`.

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

/// A stream's lock, so that other threads see a call in pieces as one.
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

/// The stream's descriptor; -1: it has none. errno stays as it is.
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

/// The beginning of a `FILE`, which the C library cannot change, since macros in programs use it.
#[repr(C)]
struct Head {
    _flags: c_int,
    _read: [*mut c_char; 3],
    _write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
}

/// A call that may make the stream write what it has and `more` bytes. It needs no bracket where they fit into the part
/// of the buffer that the stream is writing to (none while it reads, or writes line by line). The stream's lock is
/// taken before the position's, as in every thread that writes to it.
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

/// Before a stream reads: writes what was stored in the file's maps from its position on.
unsafe fn before_read(stream: *mut FILE, len: usize) {
    // SAFETY: the caller's stream is open.
    unsafe {
        if let Some(fd) = engine_fd(stream) {
            coherence::reading_here(fd, len.saturating_add(__fbufsize(stream).max(1 << 16)).min(isize::MAX as usize));
        }
    }
}

/// Before a stream that reads changes its position, where the C library fills its buffer at once.
unsafe fn before_seek(stream: *mut FILE) {
    // SAFETY: the caller's stream is open.
    unsafe {
        if let Some(fd) = engine_fd(stream).filter(|_| __freading(stream) != 0) {
            coherence::reading(fd, coherence::Span::from(0));
        }
    }
}
