//! Processes beside a program that `fastmap run` becomes: children of nobody, in a session (setsid(2)) of their own, so that neither the
//! program's waits nor the terminal's signals reach them.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Makes one called `name`, which does `body` with a pipe to this process and a pidfd of it, and nothing else of this process's open but,
/// where it `tells`, standard error.
pub fn start(name: &CStr, tells: bool, body: impl FnOnce(PipeWriter, OwnedFd)) -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: numbers only; a descriptor that is nobody else's.
    let program = unsafe {
        match libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32 {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    // SAFETY: no other thread of this process does anything.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above; this process has nothing to be tidied up.
            unsafe {
                libc::setsid();
                if libc::fork() != 0 {
                    libc::_exit(0);
                }
            }
            drop(reader);
            // Whatever happens, nothing of the caller's is done here.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if detach(name, tells, &[writer.as_raw_fd(), program.as_raw_fd()]).is_ok() {
                    body(writer, program);
                }
            }));
            std::process::exit(1)
        }
        child => {
            drop(writer);
            // SAFETY: takes no memory.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    Ok(reader)
}

/// Lets go of everything that the caller has open, or is in: whoever waits for its end is not to wait for this process.
fn detach(name: &CStr, tells: bool, kept: &[RawFd]) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: numbers and a C string. What is closed is nobody's in this process, which has one thread and uses only what is kept.
    unsafe {
        for fd in 0..if tells { 2 } else { 3 } {
            libc::dup2(null.as_raw_fd(), fd);
        }
        drop(null);
        let mut kept: Vec<u32> = kept.iter().map(|fd| *fd as u32).collect();
        kept.sort_unstable();
        let mut from = 3;
        for fd in kept {
            if from < fd {
                libc::syscall(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, from, u32::MAX, 0);
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
    }
    std::env::set_current_dir("/")
}
