//! Drops a file from the page cache, so that a run starts cold.
//!
//! This is not only about speed. Pages in the page cache are charged to the memory cgroup that touched them first. So pages that an earlier
//! process left would serve kernel mmap for free, outside its limit, and make it look a hundred times faster.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::substrates::{Error, PAGE, Result, sys};

/// How often it is tried. Pages under write-back, or in another core's LRU batch, are dropped at a later try.
const TRIES: u32 = 8;

/// Writes the file back and drops it from the page cache. Returns how many pages of its first `len` bytes are still there. That is zero
/// unless another process maps or locks them.
///
/// # Errors
///
/// The system's error of fsync, posix_fadvise, cachestat or mincore.
pub fn make_cold(file: &File, len: u64) -> io::Result<u64> {
    let mut left = 0;
    for attempt in 0..TRIES {
        file.sync_all()?;
        sys::drop_cached(file)?;
        left = cached_pages(file, len)?;
        if left == 0 {
            break;
        }
        sleep(Duration::from_millis(10 << attempt.min(4)));
    }
    Ok(left)
}

/// Drops files from the page cache, and returns how many of their pages stay there. Few of the files should be dirty: a clean file takes
/// one attempt and one check, and only the others are written back.
///
/// # Errors
///
/// As [`make_cold`].
pub fn drop_all(paths: &[PathBuf]) -> io::Result<u64> {
    let mut left = 0;
    for path in paths {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        sys::drop_cached(&file)?;
        if cached_pages(&file, len)? > 0 {
            left += make_cold(&file, len)?;
        }
    }
    Ok(left)
}

/// All files below a directory.
///
/// # Errors
///
/// The directory cannot be listed.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => walk(&entry.path(), found)?,
                false => found.push(entry.path()),
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(directory, &mut found).map_err(|source| Error::Io {
        thing: directory.display().to_string(),
        what: "cannot list the data",
        source,
        remedy: "name another place with --dir",
    })?;
    Ok(found)
}

/// Writes back everything on the file's file system. For many new files that is faster than one file after the other.
///
/// # Errors
///
/// The system's error of syncfs(2).
pub fn write_back_all(file: &File) -> io::Result<()> {
    sys::sync_file_system(file)
}

/// How many pages of the file's first `len` bytes are in the page cache.
///
/// # Errors
///
/// The system's error of cachestat(2). Before Linux 6.5, which brings that call: of mmap and mincore.
pub fn cached_pages(file: &File, len: u64) -> io::Result<u64> {
    // A file in DAX mode has no pages there, so it is not asked about. cachestat(2) would take its entries for evicted pages, and crash the
    // kernel (6.12: filemap_cachestat, workingset_test_recent).
    if sys::is_dax(file) {
        return Ok(0);
    }
    match sys::cached_pages(file, len) {
        Err(error)
            if [Some(libc::ENOSYS), Some(libc::EPERM), Some(libc::EOPNOTSUPP)].contains(&error.raw_os_error()) =>
        {
            let len = len.next_multiple_of(PAGE as u64) as usize;
            // SAFETY: the mapping is never read; mincore looks only at the kernel's tables.
            let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file.as_fd())? };
            sys::resident_pages(&map)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_file_just_written_and_read_becomes_cold() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.rewind().unwrap();
        file.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(cached_pages(&file, 1 << 20).unwrap(), 256);
        assert_eq!(make_cold(&file, 1 << 20).unwrap(), 0);
    }
}
