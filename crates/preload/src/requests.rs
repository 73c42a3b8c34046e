//! Calls whose arguments mean something else with each command: fcntl(2), ioctl(2), prctl(2), syscall(2); and those that
//! return a pointer that they were given.

use crate::bounce::{Call, held, mapped};
use crate::changes::{copy_file_range, sendfile64, splice};
use crate::coherence;
use crate::descriptors::note_record_lock;
use crate::files::{pread64, preadv64, preadv64v2, pwrite64, pwritev64, pwritev64v2, read, readv, write, writev};
use crate::next;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, off_t, size_t};

/// Bytes behind fcntl(2)'s argument.
fn fcntl_size(command: c_int) -> usize {
    const F_GETOWN_EX: c_int = 16;
    const F_SETOWN_EX: c_int = 15;
    const F_GET_RW_HINT: c_int = 1035;
    const F_SET_FILE_RW_HINT: c_int = 1038;
    match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => size_of::<libc::flock>(),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => size_of::<libc::flock>(),
        F_GETOWN_EX | F_SETOWN_EX | F_GET_RW_HINT..=F_SET_FILE_RW_HINT => 8,
        _ => 0,
    }
}

/// Wrappers of fcntl(2).
macro_rules! fcntls {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature; an argument that the caller did not give is a register of any content.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let pointer = argument as *mut c_void;
                let size = fcntl_size(command);
                if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
                    note_record_lock(fd);
                }
                if size == 0 || !held(pointer, size) {
                    return next::$name(fd, command, argument);
                }
                let arguments = Call::new();
                let result = next::$name(fd, command, arguments.changed(pointer, size) as c_long);
                arguments.finish(result as isize);
                result
            }
        }
    )* };
}
fcntls!(fcntl fcntl64 __fcntl);

/// Wrappers of lockf(3), which calls the C library's own fcntl(2).
macro_rules! lockfs {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, len: off_t) -> c_int {
            note_record_lock(fd);
            // SAFETY: the caller's contract, which is the C library's.
            unsafe { next::$name(fd, command, len) }
        }
    )* };
}
lockfs!(lockf lockf64);

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;
const FS_IOC_FIEMAP: c_ulong = 0xc020_660b;

/// Bytes behind ioctl(2)'s argument. Requests of this century carry that in their number; of the others, what terminals,
/// sockets and block devices have.
unsafe fn ioctl_size(request: c_ulong, argument: *const u8) -> usize {
    const BLKGETSIZE: c_ulong = 0x1260;
    const BLKSSZGET: c_ulong = 0x1268;
    // SAFETY: what these requests say is there.
    let count = |at: usize, bytes: usize| unsafe {
        argument.add(at).cast::<[u8; 4]>().read()[..bytes]
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    };
    match request {
        FIDEDUPERANGE => return 24 + 32 * count(16, 2),
        FS_IOC_FIEMAP => return 32 + 56 * count(24, 4),
        libc::TCGETS | libc::TCSETS | libc::TCSETSW | libc::TCSETSF => return 36,
        libc::TIOCGWINSZ | libc::TIOCSWINSZ | BLKGETSIZE => return 8,
        libc::FIONREAD
        | libc::FIONBIO
        | libc::FIOASYNC
        | libc::TIOCOUTQ
        | libc::TIOCGPGRP
        | libc::TIOCSPGRP
        | libc::TIOCGSID => return 4,
        libc::TIOCMGET | libc::TIOCMSET | libc::TIOCMBIS | libc::TIOCMBIC | BLKSSZGET => return 4,
        _ => {}
    }
    match (request >> 8 & 0xff, request >> 16 & 0x3fff) {
        (0x89, 0) => 40,
        (_, size) => size as usize,
    }
}

/// ioctl(2).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if !mapped() && !coherence::any() {
            return next::ioctl(fd, request, argument);
        }
        // The C library takes an int and a long alike.
        let request = request & 0xffff_ffff;
        let pointer = argument as *mut c_void;
        if request == FICLONE {
            return coherence::cloning(argument as c_int, fd, None, || next::ioctl(fd, request, argument));
        }
        let arguments = Call::new();
        let size = if held(pointer, 1) || matches!(request, FICLONERANGE | FIDEDUPERANGE) {
            ioctl_size(request, pointer.cast())
        } else {
            0
        };
        let copy = if size > 0 { arguments.changed(pointer, size) } else { pointer };
        let call = || next::ioctl(fd, request, copy as c_long);
        let result = match request {
            FICLONERANGE => {
                let range = copy.cast::<[i64; 4]>().read_unaligned();
                coherence::cloning(range[0] as c_int, fd, Some([range[1], range[2], range[3]]), call)
            }
            FIDEDUPERANGE => {
                // The bytes stay the same on both sides, once what is only in memory has been written.
                coherence::reading(fd, coherence::Span::from(0));
                let count = usize::from(copy.cast::<u8>().add(16).cast::<u16>().read_unaligned());
                for index in 0..count {
                    let other = copy.cast::<u8>().add(24 + 32 * index).cast::<i64>().read_unaligned();
                    coherence::reading(other as c_int, coherence::Span::from(0));
                }
                call()
            }
            _ => call(),
        };
        arguments.finish(result as isize);
        result
    }
}

/// prctl(2): names, and the few numbers that it stores.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    let size = match option {
        libc::PR_GET_NAME => 16,
        libc::PR_GET_PDEATHSIG | libc::PR_GET_CHILD_SUBREAPER | libc::PR_GET_TSC | libc::PR_GET_UNALIGN => 4,
        _ => 0,
    };
    let arguments = Call::new();
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let pointer = a as *mut c_void;
        let copy = match option {
            libc::PR_SET_NAME => arguments.text(pointer, 16),
            _ if size > 0 => arguments.changed(pointer, size),
            _ => pointer,
        };
        let result = next::prctl(option, copy as c_long, b, c, d);
        arguments.finish(result as isize);
        result
    }
}

/// syscall(2): for the calls that programs make this way because, once, the C library lacked them, and the plain ones.
///
/// # Safety
/// As there; arguments that the caller did not give are of any content.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if !mapped() && !coherence::any() {
            return next::syscall(number, a, b, c, d, e, f);
        }
        match number {
            libc::SYS_read => read(a as c_int, b as _, c as _) as c_long,
            libc::SYS_write => write(a as c_int, b as _, c as _) as c_long,
            libc::SYS_pread64 => pread64(a as c_int, b as _, c as _, d) as c_long,
            libc::SYS_pwrite64 => pwrite64(a as c_int, b as _, c as _, d) as c_long,
            libc::SYS_readv => readv(a as c_int, b as _, c as c_int) as c_long,
            libc::SYS_writev => writev(a as c_int, b as _, c as c_int) as c_long,
            libc::SYS_preadv => preadv64(a as c_int, b as _, c as c_int, d) as c_long,
            libc::SYS_pwritev => pwritev64(a as c_int, b as _, c as c_int, d) as c_long,
            libc::SYS_preadv2 => preadv64v2(a as c_int, b as _, c as c_int, d, f as c_int) as c_long,
            libc::SYS_pwritev2 => pwritev64v2(a as c_int, b as _, c as c_int, d, f as c_int) as c_long,
            libc::SYS_copy_file_range => {
                copy_file_range(a as c_int, b as _, c as c_int, d as _, e as _, f as c_uint) as c_long
            }
            libc::SYS_sendfile => sendfile64(a as c_int, b as c_int, c as _, d as _) as c_long,
            libc::SYS_splice => splice(a as c_int, b as _, c as c_int, d as _, e as _, f as c_uint) as c_long,
            libc::SYS_ftruncate => {
                c_long::from(coherence::resizing(a as c_int, b, || next::ftruncate64(a as c_int, b)))
            }
            libc::SYS_fallocate => {
                let (fd, mode) = (a as c_int, b as c_int);
                c_long::from(coherence::allocating(fd, mode, c, d, || next::fallocate64(fd, mode, c, d)))
            }
            libc::SYS_fsync => c_long::from(coherence::syncing(a as c_int, || next::fsync(a as c_int))),
            libc::SYS_fdatasync => c_long::from(coherence::syncing(a as c_int, || next::fdatasync(a as c_int))),
            libc::SYS_getrandom => {
                let arguments = Call::new();
                let result =
                    next::syscall(number, arguments.filled(a as *mut u8, b as size_t) as c_long, b, c, d, e, f);
                arguments.finish(result as isize);
                result
            }
            libc::SYS_getdents64 => {
                let arguments = Call::new();
                let result =
                    next::syscall(number, a, arguments.filled(b as *mut u8, c as size_t) as c_long, c, d, e, f);
                arguments.finish(result as isize);
                result
            }
            libc::SYS_statx => {
                let arguments = Call::new();
                let path = arguments.text(b as *const c_char, libc::PATH_MAX as usize);
                let filled = arguments.changed(e as *mut libc::statx, size_of::<libc::statx>());
                let result = next::syscall(number, a, path as c_long, c, d, filled as c_long, f);
                arguments.finish(result as isize);
                result
            }
            libc::SYS_futex => futex(a, b, c, d, e, f),
            _ => next::syscall(number, a, b, c, d, e, f),
        }
    }
}

/// futex(2): its words must be the mapping's own, so they stay in memory while the call lasts.
unsafe fn futex(
    word: c_long,
    operation: c_long,
    value: c_long,
    timeout: c_long,
    second: c_long,
    third: c_long,
) -> c_long {
    const TIMED: [c_int; 5] =
        [libc::FUTEX_WAIT, libc::FUTEX_LOCK_PI, libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAIT_REQUEUE_PI, 13];
    const PAIRED: [c_int; 5] = [
        libc::FUTEX_REQUEUE,
        libc::FUTEX_CMP_REQUEUE,
        libc::FUTEX_WAKE_OP,
        libc::FUTEX_WAIT_REQUEUE_PI,
        libc::FUTEX_CMP_REQUEUE_PI,
    ];
    let command = operation as c_int & libc::FUTEX_CMD_MASK;
    let arguments = Call::new();
    // SAFETY: a word that is unmapped while a thread waits on it is nobody's.
    let pin = |word: c_long| unsafe { fastmap::calls::pin(word as usize, 4) };
    let _word = pin(word);
    let _second = PAIRED.contains(&command).then(|| pin(second)).flatten();
    // SAFETY: the caller's contract, which is futex(2)'s.
    unsafe {
        let timeout = if TIMED.contains(&command) {
            arguments.input(timeout as *const libc::timespec, size_of::<libc::timespec>()) as c_long
        } else {
            timeout
        };
        next::syscall(libc::SYS_futex, word, operation, value, timeout, second, third)
    }
}

/// Wrappers of functions that fill and return a buffer: `NAME(buffer, length, more…)`.
macro_rules! returns {
    ($($name:ident($buf:ident, $len:expr $(, $more:ident: $type:ty)*);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($buf: *mut c_char $(, $more: $type)*) -> *mut c_char {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !mapped() || $buf.is_null() || !held($buf, $len) {
                    return next::$name($buf $(, $more)*);
                }
                let arguments = Call::new();
                let copy = arguments.changed($buf, $len);
                let result = next::$name(copy $(, $more)*);
                arguments.finish(if result.is_null() { -1 } else { 0 });
                if result == copy { $buf } else { result }
            }
        }
    )* };
}

returns! {
    getcwd(buf, len, len: size_t);
    __getcwd_chk(buf, len, len: size_t, size: size_t);
    mkdtemp(template, libc::strlen(template) + 1);
}
