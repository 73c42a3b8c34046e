//! syscall(2): calls that programs make by number. They do so because the C library once lacked the function, or to make
//! the bare call.
//!
//! A call by number does the same as the function with the call's name. For calls that map, unmap, open, close, make
//! processes or change signals this holds always. For calls that read or write it holds while the engine maps a file or
//! there are objects. All other calls go to the kernel.

use super::requests::{self, fcntl, ioctl};
use super::rings;
use crate::copy::{Call, held, mapped};
use crate::files::{
    coherence, copy_file_range, descriptors, opening, pread64, preadv64, preadv64v2, process_vm_readv,
    process_vm_writev, pwrite64, pwritev64, pwritev64v2, read, readv, seeking_object, sendfile64, splice, vmsplice,
    write, writev,
};
use crate::own::{remembered, set_errno};
use crate::processes::{exec, exit, fork, rights, sandbox};
use crate::threads::waiting;
use crate::{mappings, next, objects, signals};
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, size_t};

type Arguments = [c_long; 6];

/// syscall(2).
///
/// # Safety
/// The caller keeps the contract of syscall(2). Arguments that the caller did not give have any content.
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
    let arguments = [a, b, c, d, e, f];
    if let Some(result) = sandbox::by_number(number, arguments) {
        return result;
    }
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if let Some(result) = always(number, arguments) {
            return result;
        }
        if !mapped() && !objects::any() {
            return next::syscall(number, a, b, c, d, e, f);
        }
        while_mapped(number, arguments)
    }
}

/// Makes the calls that always do the same as the function with their name. `None`: the call is not one of these.
unsafe fn always(number: c_long, arguments: Arguments) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    let (address, len) = (a as *mut c_void, b as size_t);
    // SAFETY: the caller's contract.
    Some(unsafe {
        match number {
            libc::SYS_mmap => mappings::mmap(address, len, c as c_int, d as c_int, e as c_int, f) as c_long,
            libc::SYS_munmap => mappings::munmap(address, len).into(),
            libc::SYS_mremap => mappings::mremap(address, len, c as size_t, d as c_int, e as *mut c_void) as c_long,
            libc::SYS_mprotect => mappings::mprotect(address, len, c as c_int).into(),
            libc::SYS_pkey_mprotect => mappings::pkey_mprotect(address, len, c as c_int, d as c_int).into(),
            libc::SYS_remap_file_pages => {
                mappings::remap_file_pages(address, len, c as c_int, d as size_t, e as c_int).into()
            }
            libc::SYS_msync => mappings::msync(address, len, c as c_int).into(),
            libc::SYS_madvise => mappings::madvise(address, len, c as c_int).into(),
            libc::SYS_mincore => mappings::mincore(address, len, c as _).into(),
            libc::SYS_mlock => mappings::mlock(address, len).into(),
            libc::SYS_mlock2 => mappings::mlock2(address, len, c as c_uint).into(),
            libc::SYS_munlock => mappings::munlock(address, len).into(),
            libc::SYS_munlockall => mappings::munlockall().into(),
            libc::SYS_close => descriptors::close_one(a as c_int).into(),
            libc::SYS_close_range => descriptors::close_many(a as c_uint, b as c_uint, c as c_int).into(),
            libc::SYS_dup2 | libc::SYS_dup3 => {
                descriptors::copy(a as c_int, b as c_int, || by_number(number, arguments) as c_int).into()
            }
            libc::SYS_open | libc::SYS_creat => {
                let creat = libc::O_WRONLY | libc::O_TRUNC;
                let flags = if number == libc::SYS_creat { creat } else { b as c_int };
                let call = |path| by_number(number, [path as c_long, b, c, d, e, f]) as c_int;
                opening(libc::AT_FDCWD, a as *const c_char, flags, call).into()
            }
            libc::SYS_openat => {
                let call = |path| by_number(number, [a, path as c_long, c, d, e, f]) as c_int;
                opening(a as c_int, b as *const c_char, c as c_int, call).into()
            }
            libc::SYS_openat2
            | libc::SYS_open_by_handle_at
            | libc::SYS_pidfd_getfd
            | libc::SYS_dup
            | libc::SYS_memfd_create
            | libc::SYS_socket => {
                let made = by_number(number, arguments);
                remembered::received(made as c_int);
                made
            }
            mappings::SYS_MSEAL => mappings::mseal(a as _, b as size_t, c as c_ulong).into(),
            libc::SYS_io_uring_register => {
                requests::before_buffers(b as c_uint, c as *const c_void, d as c_uint);
                by_number(number, arguments)
            }
            libc::SYS_fcntl => fcntl(a as c_int, b as c_int, c).into(),
            libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => child(number, arguments),
            libc::SYS_execve => exec::exec_path(a as _, b as _, c as _).into(),
            libc::SYS_execveat => exec::exec_at(a as c_int, b as _, c as _, d as _, e as c_int).into(),
            libc::SYS_exit_group => {
                exit::leave();
                by_number(number, arguments)
            }
            libc::SYS_capset | libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                let result = by_number(number, arguments);
                rights::after_syscall(number, result);
                result
            }
            libc::SYS_rt_sigaction => signals::by_number::action(a as c_int, b as _, c as _, d as size_t),
            libc::SYS_rt_sigprocmask => signals::by_number::mask(a as c_int, b as _, c as _, d as size_t),
            libc::SYS_rt_sigsuspend => signals::by_number::suspend(a as _, b as size_t),
            libc::SYS_io_setup | libc::SYS_io_uring_setup => rings::set_up(|| by_number(number, arguments))
                .unwrap_or_else(|| {
                    set_errno(libc::ENOSYS);
                    -1
                }),
            _ => return None,
        }
    })
}

unsafe fn by_number(number: c_long, [a, b, c, d, e, f]: Arguments) -> c_long {
    // SAFETY: the caller's contract.
    unsafe { next::syscall(number, a, b, c, d, e, f) }
}

const SIGCHLD: c_long = libc::SIGCHLD as c_long;

/// fork(2), vfork(2), clone(2) and clone3(2).
///
/// A thread, or a child with a stack of its own, does not return from this function, so the kernel makes it. A child of
/// vfork(2) shares its parent's memory *and* this stack. It would return from this function, and overwrite the frames to
/// which its parent will return. So such a child gets a copy of the memory instead. Its parent still waits for it.
unsafe fn child(number: c_long, arguments: Arguments) -> c_long {
    const SHARED: c_long = (libc::CLONE_VM | libc::CLONE_VFORK) as c_long;
    const OTHERS: c_long = (libc::CLONE_THREAD | libc::CLONE_SIGHAND) as c_long;
    let plain = |flags: c_long| match flags & SHARED {
        SHARED if flags & OTHERS == 0 => Some(flags & !c_long::from(libc::CLONE_VM)),
        shared if shared & c_long::from(libc::CLONE_VM) == 0 => Some(flags),
        _ => None,
    };
    // SAFETY: the caller's contract; the structure of clone3(2) has as many bytes as the second argument says.
    unsafe {
        match number {
            libc::SYS_fork => fork::forking(|| by_number(number, arguments)),
            libc::SYS_vfork => {
                fork::forking(|| by_number(libc::SYS_clone, [c_long::from(libc::CLONE_VFORK) | SIGCHLD, 0, 0, 0, 0, 0]))
            }
            libc::SYS_clone if arguments[1] == 0 => match plain(arguments[0]) {
                Some(flags) => {
                    let mut arguments = arguments;
                    arguments[0] = flags;
                    fork::forking(|| by_number(number, arguments))
                }
                None => {
                    fork::note_shared(arguments[0]);
                    by_number(number, arguments)
                }
            },
            libc::SYS_clone => {
                fork::note_shared(arguments[0]);
                waiting::before_clone(arguments[0], arguments[3] as *mut c_void);
                by_number(number, arguments)
            }
            libc::SYS_clone3 => {
                const WORDS: usize = 32;
                const CHILDS_ID: usize = 2;
                const STACK: usize = 5;
                let (given, size) = (arguments[0] as *const c_long, arguments[1] as usize);
                let mut own = [0; WORDS];
                if given.is_null() || size / size_of::<c_long>() <= STACK || size > size_of_val(&own) {
                    return by_number(number, arguments);
                }
                given.cast::<u8>().copy_to_nonoverlapping(own.as_mut_ptr().cast(), size);
                match plain(own[0]).filter(|_| own[STACK] == 0) {
                    Some(flags) => {
                        own[0] = flags;
                        let own = [own.as_ptr() as c_long, arguments[1], 0, 0, 0, 0];
                        fork::forking(|| by_number(number, own))
                    }
                    None => {
                        fork::note_shared(own[0]);
                        waiting::before_clone(own[0], own[CHILDS_ID] as *mut c_void);
                        by_number(number, arguments)
                    }
                }
            }
            _ => by_number(number, arguments),
        }
    }
}

/// Makes the calls that do the same as the function with their name while the engine maps a file or there are objects. All
/// other calls go to the kernel.
unsafe fn while_mapped(number: c_long, arguments: Arguments) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's contract.
    unsafe {
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
            libc::SYS_vmsplice => vmsplice(a as c_int, b as _, c as size_t, d as c_uint) as c_long,
            libc::SYS_process_vm_readv => {
                process_vm_readv(a as c_int, b as _, c as c_ulong, d as _, e as c_ulong, f as c_ulong) as c_long
            }
            libc::SYS_process_vm_writev => {
                process_vm_writev(a as c_int, b as _, c as c_ulong, d as _, e as c_ulong, f as c_ulong) as c_long
            }
            libc::SYS_truncate => {
                let arguments = Call::new();
                let path = arguments.text(a as *const c_char, libc::PATH_MAX as usize);
                if objects::is_kept(libc::AT_FDCWD, path) {
                    return -1;
                }
                coherence::resizing_path(path, b, || next::truncate64(path, b)).into()
            }
            libc::SYS_lseek => {
                if let Some(done) = seeking_object(a as c_int, b, c as c_int) {
                    return done;
                }
                if matches!(c as c_int, libc::SEEK_HOLE | libc::SEEK_DATA) {
                    coherence::reading(a as c_int, coherence::Span::from(b));
                }
                next::lseek64(a as c_int, b, c as c_int)
            }
            libc::SYS_sync_file_range => {
                coherence::reading(a as c_int, coherence::Span::of(b, if c == 0 { c_long::MAX } else { c }));
                next::sync_file_range(a as c_int, b, c, d as c_uint).into()
            }
            libc::SYS_sync | libc::SYS_syncfs => {
                coherence::save_all();
                by_number(number, arguments)
            }
            libc::SYS_ioctl => ioctl(a as c_int, b as c_ulong, c).into(),
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
                let path = arguments.text(objects::shown(a as c_int, b as *const c_char), libc::PATH_MAX as usize);
                let filled = arguments.changed(e as *mut libc::statx, size_of::<libc::statx>());
                let result = next::syscall(number, a, path as c_long, c, d, filled as c_long, f);
                if result == 0 {
                    objects::tell(filled);
                }
                arguments.finish(result as isize);
                result
            }
            libc::SYS_futex => futex(a, b, c, d, e, f),
            libc::SYS_set_robust_list | libc::SYS_rseq => {
                waiting::of_kernel(a as *mut c_void, b as size_t);
                by_number(number, arguments)
            }
            libc::SYS_set_tid_address => {
                waiting::of_kernel(a as *mut c_void, size_of::<c_int>());
                by_number(number, arguments)
            }
            _ => by_number(number, arguments),
        }
    }
}

/// futex(2). The kernel must find the futex words in the mapping itself, so they are pinned while the call lasts.
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
    let pin = |word: c_long| {
        let word = word as *mut c_void;
        if held(word, 4) { waiting::pin(word, 4) } else { None }
    };
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
