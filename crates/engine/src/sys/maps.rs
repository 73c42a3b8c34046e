//! Lists of mappings: proc_pid_maps(5).

use super::{PAGE, proc_files};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;

/// A mapping of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMapping {
    pub at: Range<usize>,
    /// Bits of `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    pub prot: i32,
    /// Whether it was made with `MAP_SHARED`.
    pub is_shared: bool,
    /// The file's name in the list: major and minor device number, and inode.
    pub file: (u32, u32, u64),
}

/// This process's mappings of files, in ascending order of address.
pub fn own() -> io::Result<Vec<FileMapping>> {
    // The whole list is read before it is parsed, so the reads follow each other closely: each read(2) shows the mappings at another moment.
    Ok(parse(&proc_files::bytes("/proc/self/maps")?))
}

/// The name by which lists of mappings know a file. The descriptor may read.
pub fn name_of(file: &File) -> Option<(u32, u32, u64)> {
    // SAFETY: the mapping is this function's. Nothing reads from it, since the file may have no page there.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        let all = own().unwrap_or_default();
        libc::munmap(at, PAGE);
        all.iter().find(|one| one.at.contains(&at.addr())).map(|one| one.file)
    }
}

/// Another process's mappings of one file. `folder` is that process's folder in /proc. Empty if this process may not read the list.
pub fn of_process(folder: &Path, file: (u32, u32, u64)) -> Vec<FileMapping> {
    let text = proc_files::bytes(folder.join("maps")).unwrap_or_default();
    of_file(&text, file)
}

fn of_file(text: &[u8], file: (u32, u32, u64)) -> Vec<FileMapping> {
    // Lists are long, and most do not have the file: search for its name before the list is parsed.
    let (major, minor, inode) = file;
    let name = format!(" {major:02x}:{minor:02x} {inode} ");
    // SAFETY: two pointers, each with the length of its memory.
    let has_it = unsafe { !libc::memmem(text.as_ptr().cast(), text.len(), name.as_ptr().cast(), name.len()).is_null() };
    let all = if has_it { parse(text) } else { Vec::new() };
    all.into_iter().filter(|one| one.file == file).collect()
}

/// Whether a mapping was made from a descriptor that may write, so that mprotect(2) may make it writable later. `folder` is the process's
/// folder in /proc.
pub fn may_write(folder: &Path, mapping: &FileMapping) -> bool {
    let link = folder.join(format!("map_files/{:x}-{:x}", mapping.at.start, mapping.at.end));
    link.symlink_metadata().is_ok_and(|link| link.mode() & 0o200 != 0)
}

fn parse(text: &[u8]) -> Vec<FileMapping> {
    text.split(|byte| *byte == b'\n').filter_map(mapping).collect()
}

fn mapping(line: &[u8]) -> Option<FileMapping> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let (permissions, _offset, (major, minor)) = (field()?, field()?, field()?.split_once(':')?);
    let inode: u64 = field()?.parse().ok()?;
    if inode == 0 {
        return None;
    }
    let flags = permissions.as_bytes();
    let bit = |at: usize, letter, bit| if flags.get(at) == Some(&letter) { bit } else { 0 };
    Some(FileMapping {
        at: hex(start)? as usize..hex(end)? as usize,
        prot: bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC),
        is_shared: flags.get(3) == Some(&b's'),
        file: (hex(major)? as u32, hex(minor)? as u32, inode),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc() {
        let text = b"55d1c000-55d1d000 r-xp 00001000 fe:00 131 /usr/bin/a b\n\
            7f00000000-7f00400000 rw-s 00200000 fe:0a 77                         /data/x y.db\n\
            7f00400000-7f00500000 r--s 00000000 fe:0a 78                         /data/gone (deleted)\n\
            7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n\n";
        let found = parse(text);
        assert_eq!(found.len(), 3);
        let wanted = FileMapping {
            at: 0x7f00000000..0x7f00400000,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            is_shared: true,
            file: (0xfe, 0xa, 77),
        };
        assert_eq!(found[1], wanted);
        assert_eq!(of_file(text, (0xfe, 0xa, 77)), [found[1].clone()]);
        assert_eq!(of_file(text, (0xfe, 0xa, 7)), []);
        assert_eq!((found[0].prot, found[0].is_shared), (libc::PROT_READ | libc::PROT_EXEC, false));
    }

    #[test]
    fn this_program_is_mapped() {
        let here = this_program_is_mapped as fn() as usize;
        assert!(own().unwrap().iter().any(|one| one.at.contains(&here) && one.prot & libc::PROT_EXEC != 0));
    }
}
