//! Small files that are read whole, as those of /proc and /sys are: each has a descriptor of the engine's at a low number only for as long
//! as that takes, and never while the program closes or replaces one (`engine_fd::low`).

use super::engine_fd;
use std::fs;
use std::io;
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
/// many thousands, and what is large comes from mmap(2): into a hole, perhaps, of a mapping that the program is about to unmap whole.
pub fn numbers(path: impl AsRef<Path>) -> Vec<u32> {
    let _low = engine_fd::low();
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
