//! Streams. The wrappers are in the room `streams`.

use libc::{FILE, c_char, c_int, c_void, size_t};

table! {
    fn fread(buf: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn fread_unlocked(buf: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn __fread_chk(buf: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn __fread_unlocked_chk(buf: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn fwrite(buf: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn fwrite_unlocked(buf: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t;
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int;
    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int;
    fn puts(text: *const c_char) -> c_int;
    fn fgets(buf: *mut c_char, len: c_int, stream: *mut FILE) -> *mut c_char;
    fn fgets_unlocked(buf: *mut c_char, len: c_int, stream: *mut FILE) -> *mut c_char;
    fn __fgets_chk(buf: *mut c_char, room: size_t, len: c_int, stream: *mut FILE) -> *mut c_char;
    fn __fgets_unlocked_chk(buf: *mut c_char, room: size_t, len: c_int, stream: *mut FILE) -> *mut c_char;
    fn getline(line: *mut *mut c_char, len: *mut size_t, stream: *mut FILE) -> isize;
    fn getdelim(line: *mut *mut c_char, len: *mut size_t, end: c_int, stream: *mut FILE) -> isize;
    fn __getdelim(line: *mut *mut c_char, len: *mut size_t, end: c_int, stream: *mut FILE) -> isize;
    fn fflush(stream: *mut FILE) -> c_int;
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    fn fclose(stream: *mut FILE) -> c_int;
    fn fseek(stream: *mut FILE, offset: libc::c_long, whence: c_int) -> c_int;
    fn fseeko(stream: *mut FILE, offset: libc::off_t, whence: c_int) -> c_int;
    fn fseeko64(stream: *mut FILE, offset: libc::off_t, whence: c_int) -> c_int;
    fn rewind(stream: *mut FILE) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn setvbuf(stream: *mut FILE, buf: *mut c_char, mode: c_int, size: size_t) -> c_int;
    fn setbuf(stream: *mut FILE, buf: *mut c_char) -> c_int;
    fn setbuffer(stream: *mut FILE, buf: *mut c_char, size: size_t) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}
