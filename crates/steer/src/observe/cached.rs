//! Counts the pages of a file that the page cache has: cachestat(2), Linux 6.5, or mincore(2).

use super::at_address;
use crate::PAGE;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// A part of a file in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cached {
    /// Pages that are in memory.
    pub pages: u64,
    /// Of these, pages that are not yet written to the file. `None` where the kernel does not tell (before Linux 6.5).
    pub dirty: Option<u64>,
}

/// Counts those of `pages` that are in memory. Fails with [`io::ErrorKind::PermissionDenied`] for a file that the caller neither owns
/// nor may write; only Linux 6.5 to 6.12 answer for such a file.
pub fn cached(file: &File, pages: Range<u64>) -> io::Result<Cached> {
    match by_cachestat(file, &pages) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => by_mincore(file, pages),
        found => found,
    }
}

fn by_cachestat(file: &File, pages: &Range<u64>) -> io::Result<Cached> {
    const SYS_CACHESTAT: libc::c_long = 451;
    if pages.is_empty() {
        return Ok(Cached::default());
    }
    let range = [pages.start * PAGE, (pages.end - pages.start) * PAGE];
    let mut found = [0u64; 5];
    // SAFETY: the kernel reads a range and writes five counts.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0 as libc::c_uint)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // Pages that are being written back are not yet in the file either.
    Ok(Cached { pages: found[0], dirty: Some(found[1] + found[2]) })
}

fn by_mincore(file: &File, pages: Range<u64>) -> io::Result<Cached> {
    /// Pages that are asked for at a time: 256 MiB.
    const STEP: u64 = 1 << 16;
    // For other files mincore(2) reports every page as in memory.
    if !may_ask(file)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut found = Cached::default();
    let mut states = vec![0u8; STEP as usize];
    let mut from = pages.start;
    while from < pages.end {
        let count = STEP.min(pages.end - from);
        let length = (count * PAGE) as usize;
        // SAFETY: a fresh mapping, that nobody touches; the kernel writes a byte a page.
        let done = unsafe {
            let at = mmap(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::SHARED, file, from * PAGE)?;
            let done = libc::mincore(at, length, states.as_mut_ptr());
            let error = io::Error::last_os_error();
            let _ = munmap(at, length);
            if done == 0 { Ok(()) } else { Err(error) }
        };
        done?;
        found.pages += states[..count as usize].iter().filter(|state| **state & 1 != 0).count() as u64;
        from += count;
    }
    Ok(found)
}

fn may_ask(file: &File) -> io::Result<bool> {
    let user = rustix::process::geteuid().as_raw();
    // The thread may have a table of descriptors of its own.
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let may_write = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    Ok(user == 0 || file.metadata()?.uid() == user || may_write)
}

/// The device and inode of a file as proc_pid_maps(5) shows them. On some file systems (btrfs, overlayfs) fstat(2) shows others, so
/// this maps a page and reads the table. `None` where the file cannot be mapped.
pub fn identity(file: &File) -> Option<((u64, u64), u64)> {
    let length = PAGE as usize;
    // SAFETY: a fresh mapping, that nobody touches.
    let here = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE, file, 0) }.ok()?;
    let found = at_address("self", here.addr() as u64);
    // SAFETY: the mapping of just now.
    let _ = unsafe { munmap(here, length) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Mappings;
    use std::io::{Read, Seek, Write};

    #[test]
    fn what_was_written_is_in_memory_by_both_calls() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 64 * PAGE as usize]).unwrap();
        file.set_len(128 * PAGE).unwrap();
        file.rewind().unwrap();
        file.read_exact(&mut vec![0; 64 * PAGE as usize]).unwrap();
        // For tests/kernels: which one the kernel has. Where it has no cachestat(2), what is dirty is not known.
        let answers = by_cachestat(&file, &(0..64)).is_ok();
        println!("cachestat(2) answers: {}", if answers { "yes" } else { "no" });
        assert_eq!(cached(&file, 0..64).unwrap().dirty.is_some(), answers);
        for ask in [cached, by_mincore] {
            assert_eq!(ask(&file, 0..64).unwrap().pages, 64);
            assert_eq!(ask(&file, 3..5).unwrap().pages, 2);
            assert_eq!(ask(&file, 112..128).unwrap().pages, 0);
            assert_eq!(ask(&file, 7..7).unwrap().pages, 0);
        }
    }

    #[test]
    fn who_maps_a_file_is_found_by_its_identity() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let (device, inode) = identity(&file).unwrap();
        let own = Mappings::of("self").of_file(device, inode);
        assert!(!own.is_empty());
        assert!(Mappings::of("self").of_file(device, inode + 1).is_empty());
    }
}
