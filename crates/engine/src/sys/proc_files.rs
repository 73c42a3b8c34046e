//! Small files that are read whole, as those of /proc and /sys are: each has a descriptor of the engine's at a low number only for as long
//! as that takes, and never while the program closes or replaces one (`engine_fd::low`).

use super::engine_fd;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// All of a file.
pub fn bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let _low = engine_fd::low();
    fs::read(path)
}

/// All of a file that is text; nothing if it cannot be read. The names of threads need not be UTF-8.
pub fn text(path: impl AsRef<Path>) -> String {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The names in a folder that are numbers: processes, threads, descriptors; none if it cannot be read. Numbers, since a program may have
/// many thousands, and what is large comes from mmap(2): into a hole, perhaps, of a mapping that the program is about to unmap whole. By
/// getdents64(2): opendir(3) asks the program's malloc(3), whose lock the calling thread may have.
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
        // Inode and position, 8 bytes each; the entry's length, 2; its type, 1; its name, up to a zero.
        while let Some(length) = left.get(16..18).map(|length| usize::from(u16::from_ne_bytes([length[0], length[1]])))
        {
            let name = left[19..length].split(|byte| *byte == 0).next().unwrap_or_default();
            numbers.extend(std::str::from_utf8(name).ok().and_then(|name| name.parse::<u32>().ok()));
            left = &left[length..];
        }
    }
}
