//! Starts processes beside the program that `fastmap run` becomes. They are not the program's children, so it does not find them when it waits for
//! its children. They have a session (setsid(2)) of their own, so the terminal's signals do not reach them.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Starts a process called `name` that runs `body`. `body` gets a pipe to this process, and a pidfd of this process. All other descriptors are closed
/// in the new process; standard error stays open if it `tells`. Returns the reading end of the pipe.
pub fn start(name: &CStr, tells: bool, body: impl FnOnce(PipeWriter, OwnedFd)) -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: the call takes numbers only, and nothing else owns the new descriptor.
    let program = unsafe {
        match libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32 {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    // SAFETY: no other thread of this process does anything, so the child can go on using all of its memory.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: no other thread exists, see above. The process that ends by _exit(2) has nothing to clean up.
            unsafe {
                libc::setsid();
                if libc::fork() != 0 {
                    libc::_exit(0);
                }
            }
            drop(reader);
            // Neither a panic nor a return may lead the new process into the caller's code.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if detach(name, tells, &[writer.as_raw_fd(), program.as_raw_fd()]).is_ok() {
                    body(writer, program);
                }
            }));
            std::process::exit(1)
        }
        child => {
            drop(writer);
            // SAFETY: waitpid(2) gets a null pointer, so it writes no memory.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    Ok(reader)
}

/// Closes the descriptors of the caller and leaves its current directory, so that a process that waits for their end does not wait for this one.
fn detach(name: &CStr, tells: bool, kept: &[RawFd]) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: the calls take numbers and a C string. This process has one thread and uses only the descriptors in `kept`, so nothing in it uses a
    // descriptor that is closed.
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
