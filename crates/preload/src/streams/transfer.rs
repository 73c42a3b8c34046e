//! Reading and writing through a stream: fread(3), fwrite(3), and their kin for lines and strings.

use super::{Locked, before_read, engine_fd, writing};
use crate::copy::{Buffer, CHUNK, held, mapped};
use crate::files::coherence::Opened;
use crate::next;
use crate::own::{PAGE, errno, set_errno};
use libc::{FILE, c_char, c_int, c_void, size_t};

unsafe extern "C" {
    static mut stdout: *mut FILE;
    fn ferror_unlocked(stream: *mut FILE) -> c_int;
    fn clearerr_unlocked(stream: *mut FILE);
}

/// Wrappers of fread(3), locked or not. The fortified functions are told the buffer's `room`.
macro_rules! freads {
    ($($name:ident($($room:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(buf: *mut c_void, $($room: size_t,)? size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let Some(len) = size.checked_mul(count).filter(|len| *len > 0) else {
                    return next::$name(buf, $($room,)? size, count, stream);
                };
                $(if $room < len {
                    // The C library ends the program over a buffer that is too small.
                    return next::$name(buf, $room, size, count, stream);
                })?
                let _locked = locked(stream, len);
                let mut done = 0;
                if !held(buf, len) {
                    before_read(stream, len);
                    let failed = ferror_unlocked(stream);
                    done = next::$name(buf, $($room,)? 1, len, stream);
                    if done == len || !is_taken(stream, failed) {
                        return if done == len { count } else { done / size };
                    }
                }
                let _locked = Locked::new(stream);
                before_read(stream, len - done);
                let Some(buffer) = Buffer::new((len - done).min(CHUNK)) else {
                    set_errno(libc::ENOMEM);
                    return done / size;
                };
                while done < len {
                    let piece = (len - done).min(CHUNK);
                    let got = next::fread_unlocked(buffer.start().cast(), 1, piece, stream);
                    buffer.start().copy_to_nonoverlapping(buf.cast::<u8>().add(done), got);
                    done += got;
                    if got < piece {
                        break;
                    }
                }
                done / size
            }
        }
    )* };
}
freads! {
    fread();
    fread_unlocked();
    __fread_chk(room);
    __fread_unlocked_chk(room);
}

/// Wrappers of fwrite(3).
macro_rules! fwrites {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(buf: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let Some(len) = size.checked_mul(count).filter(|len| *len > 0) else {
                    return next::$name(buf, size, count, stream);
                };
                let _locked = locked(stream, len);
                let mut written = 0;
                if !held(buf, len) && engine_fd(stream).is_none() {
                    let failed = ferror_unlocked(stream);
                    written = next::$name(buf, 1, len, stream);
                    if written == len || !is_taken(stream, failed) {
                        return if written == len { count } else { written / size };
                    }
                }
                written += put(buf.cast::<u8>().add(written), len - written, stream);
                if written == len { count } else { written / size }
            }
        }
    )* };
}
fwrites!(fwrite fwrite_unlocked);

/// The stream's lock, for a call that the C library may carry out past the stream's buffer, in the program's memory. A
/// call of so many bytes may have to be done in two parts.
unsafe fn locked(stream: *mut FILE, len: usize) -> Option<Locked> {
    // SAFETY: the caller's stream is open.
    (len >= PAGE).then(|| unsafe { Locked::new(stream) })
}

/// Whether the C library's call stopped because the memory for its bytes became the engine's meanwhile. If so, the
/// stream's error is as before the call. `failed` is the result of ferror(3) before the call.
#[cold]
unsafe fn is_taken(stream: *mut FILE, failed: c_int) -> bool {
    // SAFETY: the caller's stream is open.
    unsafe {
        let is_taken = ferror_unlocked(stream) != 0 && errno() == libc::EFAULT && mapped();
        if is_taken && failed == 0 {
            clearerr_unlocked(stream);
        }
        is_taken
    }
}

/// fwrite(3) in pieces. Bytes in a mapping are copied. Returns the number of bytes written.
unsafe fn put(from: *const u8, len: usize, stream: *mut FILE) -> usize {
    let mut buffer = if held(from, len) { Buffer::new(len.min(CHUNK)) } else { None };
    // SAFETY: the caller's `len` bytes, and its open stream.
    unsafe {
        let _locked = Locked::new(stream);
        let failed = ferror_unlocked(stream);
        let mut done = 0;
        while done < len {
            let size = (len - done).min(CHUNK);
            let mut piece = from.add(done);
            if let Some(buffer) = &buffer {
                buffer.start().copy_from_nonoverlapping(piece, size);
                piece = buffer.start();
            }
            let put = writing(stream, size, false, || Opened(next::fwrite_unlocked(piece.cast(), 1, size, stream))).0;
            done += put;
            if put < size {
                if buffer.is_some() || !is_taken(stream, failed) {
                    break;
                }
                buffer = Buffer::new(len.min(CHUNK));
            }
        }
        done
    }
}

/// Wrappers of fputs(3).
macro_rules! fputss {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(text: *const c_char, stream: *mut FILE) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !mapped() {
                    return next::$name(text, stream);
                }
                let len = libc::strlen(text);
                if len == 0 || (!held(text, len) && engine_fd(stream).is_none()) {
                    return next::$name(text, stream);
                }
                if put(text.cast(), len, stream) == len { 1 } else { libc::EOF }
            }
        }
    )* };
}
fputss!(fputs fputs_unlocked);

/// puts(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn puts(text: *const c_char) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if !mapped() {
            return next::puts(text);
        }
        let len = libc::strlen(text);
        if !held(text, len + 1) && engine_fd(stdout).is_none() {
            return next::puts(text);
        }
        let _locked = Locked::new(stdout);
        let all = (len == 0 || put(text.cast(), len, stdout) == len) && put(c"\n".as_ptr().cast(), 1, stdout) == 1;
        if all { len as c_int + 1 } else { libc::EOF }
    }
}

/// Wrappers of calls that read a line. The C library copies the line from the stream's buffer, which is ordinary
/// memory.
macro_rules! lines {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type,)* stream: *mut FILE) -> $result {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                before_read(stream, 0);
                next::$name($($argument,)* stream)
            }
        }
    )* };
}
lines! {
    fgets(buf: *mut c_char, len: c_int) -> *mut c_char;
    fgets_unlocked(buf: *mut c_char, len: c_int) -> *mut c_char;
    __fgets_chk(buf: *mut c_char, room: size_t, len: c_int) -> *mut c_char;
    __fgets_unlocked_chk(buf: *mut c_char, room: size_t, len: c_int) -> *mut c_char;
    getline(line: *mut *mut c_char, len: *mut size_t) -> isize;
    getdelim(line: *mut *mut c_char, len: *mut size_t, end: c_int) -> isize;
    __getdelim(line: *mut *mut c_char, len: *mut size_t, end: c_int) -> isize;
}
