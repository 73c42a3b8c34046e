//! Calls that write a stream's buffered bytes: fflush(3), fclose(3), fseek(3) and their kin.

use super::{__fpending, Locked, before_seek, descriptor, engine_fd, writing};
use crate::copy::mapped;
use crate::next;
use crate::own::remembered;
use libc::{FILE, c_int};

unsafe extern "C" {
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut FILE;
    fn _IO_iter_end() -> *mut FILE;
    fn _IO_iter_next(stream: *mut FILE) -> *mut FILE;
}

/// Wrappers of calls that write a stream's buffered bytes, and may then read at another position.
macro_rules! flushes {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(stream: *mut FILE $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if stream.is_null() {
                    flush_all();
                } else if engine_fd(stream).is_some() {
                    finish(stream);
                }
                next::$name(stream $(, $argument)*)
            }
        }
    )* };
}
flushes! {
    fflush();
    fflush_unlocked();
    fseek(offset: libc::c_long, whence: c_int);
    fseeko(offset: libc::off_t, whence: c_int);
    fseeko64(offset: libc::off_t, whence: c_int);
    rewind();
}

/// fclose(3).
///
/// # Safety
/// The caller keeps the contract of fclose(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if engine_fd(stream).is_some() {
            finish(stream);
        }
        if !stream.is_null() {
            remembered::closing(descriptor(stream));
        }
        next::fclose(stream)
    }
}

/// Makes the stream of a file in the engine write its buffered bytes. If the stream reads, stores in the file's maps are
/// written back for its next read.
unsafe fn finish(stream: *mut FILE) {
    // SAFETY: the caller's stream is open.
    unsafe {
        writing(stream, 0, true, || if __fpending(stream) > 0 { next::fflush_unlocked(stream) } else { 0 });
        before_seek(stream);
    }
}

/// The lock on the list of all streams.
struct List;

impl List {
    fn new() -> List {
        // SAFETY: the lock is released when this is dropped.
        unsafe { _IO_list_lock() };
        List
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: locked by `new`.
        unsafe { _IO_list_unlock() };
    }
}

/// fflush(3) of all streams. The streams of files in the engine are flushed first, each by itself. So the C library's
/// own call finds nothing in them.
unsafe fn flush_all() {
    if !mapped() {
        return;
    }
    // A stream whose flush fails keeps its bytes, so each stream is tried once.
    let mut seen = Vec::new();
    loop {
        let mut is_busy = false;
        let mut found = None;
        // SAFETY: streams stay open while the list's lock or their own is held. A thread that has a stream's lock may
        // wait for the list's lock, so a thread with the list's lock does not wait for a stream's.
        unsafe {
            let _list = List::new();
            let mut stream = _IO_iter_begin();
            while stream != _IO_iter_end() && found.is_none() {
                if !seen.contains(&stream) && engine_fd(stream).is_some() {
                    if ftrylockfile(stream) == 0 {
                        found = Some(Locked(stream)).filter(|locked| __fpending(locked.0) > 0);
                    } else {
                        is_busy = true;
                    }
                }
                stream = _IO_iter_next(stream);
            }
        }
        match found {
            Some(Locked(stream)) => {
                seen.push(stream);
                // SAFETY: the stream is locked, and so open.
                unsafe { writing(stream, 0, true, || next::fflush_unlocked(stream)) };
            }
            None if is_busy => std::thread::yield_now(),
            None => return,
        }
    }
}
