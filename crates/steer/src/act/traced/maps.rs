//! What lies at addresses of a process, at this moment: by the ioctl PROCMAP_QUERY (Linux 6.11), or the text of /proc/PID/maps.

use crate::observe::text::{hex, number};
use crate::observe::{Descriptor, Mapping};
use rustix::fd::AsRawFd;
use rustix::io::{Errno, pread};
use std::ops::Range;

/// A process's mappings. They are those of the address space that it had when this was opened: after execve(2) there are none.
#[derive(Debug)]
pub(super) struct Maps {
    file: Descriptor,
    by_text: bool,
}

/// What lies at some addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: Range<u64>,
    offset: u64,
    device: (u64, u64),
    inode: u64,
}

impl Piece {
    /// Whether it is a piece of the mapping: the same bytes of the same file at the same addresses.
    pub(super) fn is_of(&self, mapping: &Mapping) -> bool {
        let base = |offset: u64, at: &Range<u64>| at.start.wrapping_sub(offset);
        (self.device, self.inode) == (mapping.device, mapping.inode)
            && base(self.offset, &self.at) == base(mapping.offset, &mapping.at)
    }
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const QUERY: u64 = 0xc068_6611;
const _: () = assert!(size_of::<Query>() == 0x68);
const COVERING_OR_NEXT: u64 = 0x10;
const VDSO: &[u8] = b"[vdso]";

impl Maps {
    pub(super) fn open(pid: u32) -> Option<Maps> {
        let file = Descriptor::open(&format!("/proc/{pid}/maps"))?;
        let mut maps = Maps { file, by_text: false };
        maps.by_text =
            matches!(maps.ask(&mut Query { flags: COVERING_OR_NEXT, ..Query::default() }), Err(Errno::NOTTY));
        Some(maps)
    }

    #[cfg(test)]
    pub(super) fn by_text(self) -> Maps {
        Maps { by_text: true, ..self }
    }

    fn ask(&self, query: &mut Query) -> Result<(), Errno> {
        query.size = size_of::<Query>() as u64;
        // SAFETY: the kernel reads and writes a query of the size that it tells, and the name that it points to.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), QUERY as _, &raw mut *query) };
        if done == 0 {
            Ok(())
        } else {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        }
    }

    /// What lies in a range, in the order of addresses. `None` where the kernel does not tell.
    pub(super) fn within(&self, range: &Range<u64>) -> Option<Vec<Piece>> {
        if self.by_text {
            let text = self.text()?;
            let pieces = text.split(|byte| *byte == b'\n').filter_map(line).map(|(piece, _)| piece);
            return Some(pieces.filter(|piece| piece.at.start < range.end && range.start < piece.at.end).collect());
        }
        let (mut found, mut address) = (Vec::new(), range.start);
        while address < range.end {
            let mut query = Query { flags: COVERING_OR_NEXT, address, ..Query::default() };
            match self.ask(&mut query) {
                Ok(()) if query.start >= range.end => break,
                Ok(()) => {}
                // Nothing lies beyond, or the address space is gone.
                Err(Errno::NOENT | Errno::SRCH) => break,
                Err(_) => return None,
            }
            let device = (query.major.into(), query.minor.into());
            found.push(Piece { at: query.start..query.end, offset: query.offset, device, inode: query.inode });
            address = query.end;
        }
        Some(found)
    }

    /// Whether the vdso lies there.
    pub(super) fn is_vdso(&self, address: u64) -> bool {
        if self.by_text {
            return self.text().and_then(|text| vdso(&text)).is_some_and(|at| at.contains(&address));
        }
        let mut name = [0u8; VDSO.len() + 1];
        let pointer = (&raw mut name).expose_provenance() as u64;
        let mut query = Query { address, name: pointer, name_size: name.len() as u32, ..Query::default() };
        // Longer names are an error.
        self.ask(&mut query).is_ok() && name.starts_with(VDSO)
    }

    fn text(&self) -> Option<Vec<u8>> {
        let (mut text, mut filled) = (Vec::new(), 0);
        loop {
            text.resize(filled + (64 << 10), 0);
            match pread(&self.file, &mut text[filled..], filled as u64) {
                Ok(0) => {
                    text.truncate(filled);
                    return Some(text);
                }
                Ok(more) => filled += more,
                Err(Errno::SRCH) => return Some(Vec::new()),
                Err(_) => return None,
            }
        }
    }
}

/// Where the vdso lies, by the text of /proc/PID/maps.
pub(super) fn vdso(text: &[u8]) -> Option<Range<u64>> {
    let mut lines = text.split(|byte| *byte == b'\n').filter_map(line);
    lines.find(|(_, name)| *name == VDSO).map(|(piece, _)| piece.at)
}

/// One line of proc_pid_maps(5): what lies there, and its name.
fn line(line: &[u8]) -> Option<(Piece, &[u8])> {
    let (start, rest) = hex(line)?;
    let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
    let (offset, rest) = hex(rest.strip_prefix(b" ")?.get(5..)?)?;
    let (major, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (minor, rest) = hex(rest.strip_prefix(b":")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let name = rest.iter().position(|byte| *byte == b' ').map_or(&b""[..], |at| rest[at..].trim_ascii());
    Some((Piece { at: start..end, offset, device: (major, minor), inode: number(rest)? }, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Mappings;

    #[test]
    fn both_ways_tell_the_same() {
        let open = || Maps::open(std::process::id()).unwrap();
        let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let (device, inode) = crate::observe::identity(&program).unwrap();
        let own = Mappings::of("self").of_file(device, inode);
        assert!(own.len() > 1);
        let vdso = vdso(&open().text().unwrap());
        for maps in [open(), open().by_text()] {
            for mapping in &own {
                let found = maps.within(&(mapping.at.start + 1..mapping.at.end)).unwrap();
                assert!(found.len() == 1 && found[0].at == mapping.at);
                assert!(found[0].is_of(mapping));
                assert!(!found[0].is_of(&Mapping { offset: mapping.offset + 4096, ..mapping.clone() }));
                assert!(!found[0].is_of(&Mapping { inode: mapping.inode + 1, ..mapping.clone() }));
            }
            assert_eq!(maps.within(&(0x1000..0x2000)), Some(Vec::new()));
            assert!(!maps.is_vdso(own[0].at.start));
            if let Some(vdso) = &vdso {
                assert!(maps.is_vdso(vdso.start) && maps.is_vdso(vdso.end - 1) && !maps.is_vdso(vdso.end));
            }
        }
    }

    #[test]
    fn the_vdso_is_found_by_its_name() {
        let maps = b"\
55d0c0000000-55d0c0001000 r-xp 00000000 fd:00 11 /data/program
55d0c0001000-55d0c0002000 rw-p 00001000 fd:00 11 /data/a [vdso]
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0                  [vsyscall]
";
        assert_eq!(vdso(maps), Some(0x7ffe_0000_0000..0x7ffe_0000_1000));
        assert_eq!(vdso(&maps[..64]), None);
        let piece = line(b"55d0c0001000-55d0c0002000 rw-p 00001000 fd:0a 11 /data/a file").unwrap();
        assert_eq!(piece.1, b"/data/a file");
        assert_eq!((piece.0.offset, piece.0.device, piece.0.inode), (0x1000, (0xfd, 10), 11));
    }
}
