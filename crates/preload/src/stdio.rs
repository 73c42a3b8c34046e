//! Streams. The C library reads and writes for them by itself, past every wrapper: straight from and to the program's memory
//! where much is asked for, else through a buffer of its own. So what lies in a mapping is copied, a stream's buffer is
//! never in one, and a stream of a file in the engine is accompanied as far as the calls here go; putc(3), getc(3), and printf(3) and
//! scanf(3) are none of them. (dprintf(3) is, which has no stream.)

use crate::bounce::{Call, errno, held, mapped, set_errno};
use crate::buffers::{Buffer, CHUNK};
use crate::coherence::{self, Opened};
use crate::{files, next};
use libc::{FILE, c_char, c_int, c_void, size_t};
use std::arch::naked_asm;

unsafe extern "C" {
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fbufsize(stream: *mut FILE) -> size_t;
    fn __freading(stream: *mut FILE) -> c_int;
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn fileno_unlocked(stream: *mut FILE) -> c_int;
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut FILE;
    fn _IO_iter_end() -> *mut FILE;
    fn _IO_iter_next(stream: *mut FILE) -> *mut FILE;
    fn vsnprintf(text: *mut c_char, len: size_t, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vsnprintf_chk(
        text: *mut c_char,
        len: size_t,
        flag: c_int,
        room: size_t,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
    static mut stdout: *mut FILE;
}

/// A stream's lock, so that a call in pieces is one to other threads.
struct Locked(*mut FILE);

impl Locked {
    unsafe fn new(stream: *mut FILE) -> Locked {
        // SAFETY: an open stream.
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

/// The stream's descriptor if its file is in the engine.
unsafe fn engine_fd(stream: *mut FILE) -> Option<c_int> {
    if !coherence::any() || stream.is_null() {
        return None;
    }
    let before = errno();
    // SAFETY: an open stream; one without a descriptor gives -1.
    let fd = unsafe { fileno_unlocked(stream) };
    set_errno(before);
    (fd >= 0 && coherence::file(fd).is_some()).then_some(fd)
}

/// Before a stream reads: what is stored in its file, from where it stands on, is in the file.
unsafe fn before_read(stream: *mut FILE, len: usize) {
    // SAFETY: an open stream.
    unsafe {
        if let Some(fd) = engine_fd(stream) {
            coherence::reading_here(fd, len.saturating_add(__fbufsize(stream).max(1 << 16)).min(isize::MAX as usize));
        }
    }
}

/// The beginning of a `FILE`, which the C library cannot change: programs have it in their macros.
#[repr(C)]
struct Head {
    _flags: c_int,
    _read: [*mut c_char; 3],
    _write_base: *mut c_char,
    write_ptr: *mut c_char,
    write_end: *mut c_char,
}

/// A call that may make the stream write what it has and `more` bytes; nothing is done about it where they fit into the
/// part of its buffer that it is writing to (none while it reads, or writes line by line). The stream's lock comes before the
/// position's, as in any other thread that writes to it.
unsafe fn writing<R: coherence::Failure>(stream: *mut FILE, more: usize, flush: bool, call: impl FnOnce() -> R) -> R {
    // SAFETY: an open stream.
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

/// Wrappers of fread(3): `NAME(room?)`, locked or not.
macro_rules! freads {
    ($($name:ident($($room:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(buf: *mut c_void, $($room: size_t,)? size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let len = size.saturating_mul(count);
                let copied = len > 0 && held(buf, len);
                if !copied && !coherence::any() {
                    return next::$name(buf, $($room,)? size, count, stream);
                }
                $(if $room < len {
                    // The C library ends the program for that.
                    return next::$name(buf, $room, size, count, stream);
                })?
                before_read(stream, len);
                if !copied {
                    return next::$name(buf, $($room,)? size, count, stream);
                }
                let Some(buffer) = Buffer::new(len.min(CHUNK)) else {
                    set_errno(libc::ENOMEM);
                    return 0;
                };
                let _locked = Locked::new(stream);
                let mut done = 0;
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
                let len = size.saturating_mul(count);
                if len == 0 || (!held(buf, len) && engine_fd(stream).is_none()) {
                    return next::$name(buf, size, count, stream);
                }
                let written = put(buf.cast(), len, stream);
                if written == len { count } else { written / size }
            }
        }
    )* };
}
fwrites!(fwrite fwrite_unlocked);

/// fwrite(3) in pieces, what lies in a mapping copied: how many bytes went.
unsafe fn put(from: *const u8, len: usize, stream: *mut FILE) -> usize {
    let buffer = if held(from, len) { Buffer::new(len.min(CHUNK)) } else { None };
    // SAFETY: the caller's bytes and stream.
    unsafe {
        let _locked = Locked::new(stream);
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
                break;
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

/// Wrappers of calls that read a line: the C library copies it from the stream's buffer, which is ordinary memory.
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

/// Wrappers of calls that write what a stream still has, and may read where it is then.
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
                    writing(stream, 0, true, || if __fpending(stream) > 0 { next::fflush_unlocked(stream) } else { 0 });
                    before_seek(stream);
                }
                next::$name(stream $(, $argument)*)
            }
        }
    )* };
}
flushes! {
    fflush();
    fflush_unlocked();
    fclose();
    fseek(offset: libc::c_long, whence: c_int);
    fseeko(offset: libc::off_t, whence: c_int);
    fseeko64(offset: libc::off_t, whence: c_int);
    rewind();
}

/// All streams, locked so that none comes or goes.
struct List;

impl List {
    fn new() -> List {
        // SAFETY: undone when dropped.
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

/// fflush(3) of all streams: what those of files in the engine have is written first, as by itself. The C library's own finds
/// nothing in them.
unsafe fn flush_all() {
    if !coherence::any() {
        return;
    }
    // One that fails still has what it had.
    let mut seen = Vec::new();
    loop {
        let mut is_busy = false;
        let mut found = None;
        // SAFETY: streams stay open while the list or their own lock is held. Whoever has a stream's lock may wait for the list,
        // so the list does not wait for it.
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
                // SAFETY: locked, and so open.
                unsafe { writing(stream, 0, true, || next::fflush_unlocked(stream)) };
            }
            None if is_busy => std::thread::yield_now(),
            None => return,
        }
    }
}

/// Before a stream that reads goes elsewhere: the C library fills its buffer there at once.
unsafe fn before_seek(stream: *mut FILE) {
    // SAFETY: an open stream.
    unsafe {
        if let Some(fd) = engine_fd(stream).filter(|_| __freading(stream) != 0) {
            coherence::reading(fd, coherence::Span::from(0));
        }
    }
}

/// Wrappers of fopen(3) and freopen(3).
macro_rules! fopens {
    ($($name:ident($($stream:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char $(, $stream: *mut FILE)?) -> *mut FILE {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !mapped() {
                    return next::$name(path, mode $(, $stream)?);
                }
                let arguments = Call::new();
                let path = arguments.text(path, libc::PATH_MAX as usize);
                let emptied = !path.is_null() && mode.cast::<u8>().read() == b'w';
                coherence::emptying(emptied.then_some((libc::AT_FDCWD, path)), || Opened(next::$name(path, mode $(, $stream)?)))
            }
        }
    )* };
}
fopens! {
    fopen();
    fopen64();
    freopen(stream);
    freopen64(stream);
}

/// setvbuf(3): a buffer in a mapping is not used; the C library takes one of its own.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setvbuf(stream: *mut FILE, buf: *mut c_char, mode: c_int, size: size_t) -> c_int {
    let buf = if held(buf, size) { std::ptr::null_mut() } else { buf };
    // SAFETY: the caller's contract, which is the C library's.
    unsafe { next::setvbuf(stream, buf, mode, size) }
}

/// setbuf(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuf(stream: *mut FILE, buf: *mut c_char) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if held(buf, libc::BUFSIZ as usize) {
            return next::setvbuf(stream, std::ptr::null_mut(), libc::_IOFBF, libc::BUFSIZ as usize);
        }
        next::setbuf(stream, buf)
    }
}

/// setbuffer(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuffer(stream: *mut FILE, buf: *mut c_char, size: size_t) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if held(buf, size) {
            return next::setvbuf(stream, std::ptr::null_mut(), libc::_IOFBF, size);
        }
        next::setbuffer(stream, buf, size)
    }
}

/// dprintf(3): the C library writes the text past every wrapper, and what `%s` names without copying it. While anything is mapped
/// the text is made here, and written as by write(2). Without a flag (`_chk`) nothing is checked.
unsafe fn print(fd: c_int, flag: Option<c_int>, format: *const c_char, arguments: *mut c_void) -> c_int {
    const SHORT: usize = 1024;
    // SAFETY: the caller's contract, which is the C library's. A list of arguments (24 bytes) is used up by each reading.
    unsafe {
        if !mapped() {
            return match flag {
                Some(flag) => next::__vdprintf_chk(fd, flag, format, arguments),
                None => next::vdprintf(fd, format, arguments),
            };
        }
        let list = arguments.cast::<[u64; 3]>().read();
        let before = errno();
        let make = |text: *mut u8, room: usize| {
            let mut list = list;
            let list = (&raw mut list).cast();
            // It may be asked for (`%m`).
            set_errno(before);
            match flag {
                Some(flag) => __vsnprintf_chk(text.cast(), room, flag, room, format, list),
                None => vsnprintf(text.cast(), room, format, list),
            }
        };
        let mut short = [0u8; SHORT];
        let len = make(short.as_mut_ptr(), SHORT);
        let Ok(size) = usize::try_from(len) else { return -1 };
        let long = if size < SHORT { None } else { Buffer::new(size + 1) };
        let text = match &long {
            Some(buffer) if make(buffer.start(), size + 1) == len => buffer.start(),
            _ if size < SHORT => short.as_mut_ptr(),
            _ => {
                set_errno(libc::ENOMEM);
                return -1;
            }
        };
        let mut done = 0;
        while done < size {
            match files::write(fd, text.add(done).cast(), size - done) {
                written @ 1.. => done += written as usize,
                _ => return -1,
            }
        }
        set_errno(before);
        len
    }
}

/// vdprintf(3).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { print(fd, None, format, arguments) }
}

/// vdprintf(3), fortified.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { print(fd, Some(flag), format, arguments) }
}

unsafe extern "C-unwind" fn print_list(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { print(fd, None, format, arguments) }
}

unsafe extern "C-unwind" fn print_list_checked(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { print(fd, Some(flag), format, arguments) }
}

/// Variadic functions: what came in registers goes where a list of arguments (`va_list`, System V ABI for x86-64, 3.5.7) expects
/// it, and a function with that list takes over. A thread may be cancelled in it: the frame is described to the unwinder.
macro_rules! variadic {
    ($(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*), $named:literal, $list:literal, $to:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                // Vector registers, if there is anything in them.
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $named, " * 8"),
                "mov dword ptr [rsp + 4], 48",
                // The rest, behind the return address.
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $list, ", rsp"),
                "call {to}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                to = sym $to
            )
        }
    };
}

variadic!(/** dprintf(3). */ dprintf(fd: c_int, format: *const c_char), "2", "rdx", print_list);
variadic!(
    /** dprintf(3), fortified. */ __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char),
    "3", "rcx", print_list_checked
);
