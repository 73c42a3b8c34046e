//! Messages from places where nothing may be allocated: one line on standard error.

use crate::region::region::Region;
use crate::sys::PAGE;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A message built on the stack.
struct Line {
    text: [u8; 512],
    len: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.text.len() - self.len);
        self.text[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Puts one line on standard error: the file, the offset, what is wrong with it.
pub fn say(region: &Region, page: usize, what: fmt::Arguments<'_>) {
    say_of(region.store().path(), page * PAGE, what);
}

/// The same for a file that has no region.
pub fn say_of(path: &Path, offset: usize, what: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 512], len: 0 };
    line.push(b"fastmap: ");
    let path = path.as_os_str().as_bytes();
    line.push(&path[..path.len().min(300)]);
    let _ = writeln!(line, ": page at offset {offset} {what}");
    // Others may wait for this thread: a pipe that nobody reads has the line for a second, no longer.
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: writes our own bytes; a failure has nowhere to be told.
    unsafe {
        if libc::syscall(libc::SYS_poll, &mut ready, 1, 1000) != 1 {
            return;
        }
        libc::syscall(libc::SYS_write, 2, line.text.as_ptr(), line.len);
    }
}

/// Ends the process over a broken promise of the kernel.
pub fn die(region: &Region, what: &'static str) -> ! {
    say(region, 0, format_args!("and others: {what}"));
    std::process::abort()
}
