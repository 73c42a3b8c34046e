//! Reads small files whole, such as those of /proc and /sys.
//!
//! The kernel gives each new descriptor a low number, where the program may be about to close one or to put a file of its own. So each function holds
//! `engine_fd::low` until its descriptor is closed: the program's calls that close or replace descriptors wait for that.

use super::engine_fd;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Reads all bytes of a file.
pub fn bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let _low = engine_fd::low();
    fs::read(path)
}

/// Reads a text file. Returns an empty text if the file cannot be read. Replaces what is not UTF-8, since the names of threads need not be UTF-8.
pub fn text(path: impl AsRef<Path>) -> String {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the names in a folder that are numbers: processes, threads, descriptors. Returns none if the folder cannot be read.
///
/// * Numbers take little memory. A program may have many thousands of threads, and a large allocation comes from mmap(2). It may land in a hole of a
///   mapping that the program is about to unmap whole.
/// * The folder is read by getdents64(2). opendir(3) would call the program's malloc(3), whose lock the calling thread may hold.
pub fn numbers(path: impl AsRef<Path>) -> Vec<u32> {
    #[repr(align(8))]
    struct Entries([u8; 4096]);
    let _low = engine_fd::low();
    let mut numbers = Vec::new();
    let Ok(folder) = fs::File::open(path) else { return numbers };
    let mut entries = Entries([0; 4096]);
    loop {
        let room = entries.0.as_mut_ptr();
        // SAFETY: a buffer with its length.
        let filled = unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), room, entries.0.len()) };
        if filled <= 0 {
            return numbers;
        }
        let mut left = &entries.0[..filled as usize];
        // An entry is: inode and position, 8 bytes each; the entry's length, 2 bytes; its type, 1 byte; its name, up to a zero byte.
        while let Some(length) = left.get(16..18).map(|length| usize::from(u16::from_ne_bytes([length[0], length[1]])))
        {
            let name = left[19..length].split(|byte| *byte == 0).next().unwrap_or_default();
            numbers.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()));
            left = &left[length..];
        }
    }
}
