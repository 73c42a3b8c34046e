//! Which files a program has mapped, and with which advice: /proc/PID/maps and /proc/PID/smaps.

use super::mapped_file::sizes;
use super::text::{hex, number, read};
use crate::PAGE;
use crate::run::Run;
use std::ops::Range;

/// One mapping of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapping {
    /// Its addresses.
    pub at: Range<u64>,
    /// Its first byte in the file.
    pub offset: u64,
    /// The device: its two numbers.
    pub device: (u64, u64),
    /// The file: its inode.
    pub inode: u64,
    /// Whether stores reach the file.
    pub is_shared: bool,
    /// Whether the program may store to it.
    pub is_writable: bool,
    /// The file's name.
    pub path: String,
    /// Pages of it that the file has: a database may map more, to grow.
    pub pages: u64,
    /// Whether the file goes on behind it, and so do reserved addresses: the program may map the next part there, and take both for one
    /// (mremap(2)).
    pub may_grow: bool,
}

impl Mapping {
    /// Bytes of it that the file has.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// The addresses of `pages` of it.
    pub fn addresses(&self, pages: &Run) -> Range<u64> {
        self.at.start + pages.at * PAGE..self.at.start + pages.end() * PAGE
    }
}

/// The advice that a mapping has (`VmFlags` of proc_pid_smaps(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Flags {
    /// MADV_RANDOM.
    pub random: bool,
    /// MADV_SEQUENTIAL.
    pub sequential: bool,
    /// mlock(2).
    pub locked: bool,
}

/// Reads the mappings of one program.
#[derive(Debug)]
pub struct Mappings {
    maps: String,
    smaps: String,
    /// The process's number, from whose root folder the files are looked for.
    pid: u32,
    text: Vec<u8>,
}

/// A folder of which so many libraries are loaded is a runtime's.
const LIBRARIES: u32 = 3;

/// Mappings smaller than this are left alone.
const LEAST: u64 = 4 << 20;

/// Bytes of mapped files from which on a process is worth a look now and then.
pub const WORTH: u64 = 32 << 20;

/// Whether a process with these mappings is worth a look.
pub fn are_worth(mappings: &[Mapping]) -> bool {
    mappings.iter().map(Mapping::bytes).sum::<u64>() >= WORTH
}

impl Mappings {
    /// Of `process`: a number, or `self`.
    pub fn of(process: &str) -> Mappings {
        Mappings {
            maps: format!("/proc/{process}/maps"),
            smaps: format!("/proc/{process}/smaps"),
            pid: process.parse().unwrap_or_else(|_| std::process::id()),
            text: Vec::new(),
        }
    }

    /// The mappings that may be steered: large ones of data files. Code and the files of runtimes are left out. Where the size of a file is
    /// not known (yet), all of its mapping counts: this does not wait for a file system that does not answer.
    pub fn look(&mut self) -> Vec<Mapping> {
        if !read(&self.maps, &mut self.text) {
            return Vec::new();
        }
        let mut found = candidates(&self.text);
        let sizes = sizes(self.pid, &found);
        for (one, size) in found.iter_mut().zip(sizes) {
            let pages = size.unwrap_or(u64::MAX).saturating_sub(one.offset).div_ceil(PAGE);
            one.may_grow &= size.is_none() || pages > (one.at.end - one.at.start) / PAGE;
            one.pages = pages.min((one.at.end - one.at.start) / PAGE);
        }
        found.retain(|one| one.bytes() >= LEAST);
        found
    }

    /// The mappings of one file, of any size, by its device and inode as [`identity`](super::identity) tells them.
    pub fn of_file(&mut self, device: (u64, u64), inode: u64) -> Vec<Mapping> {
        if !read(&self.maps, &mut self.text) {
            return Vec::new();
        }
        let all = self.text.split(|byte| *byte == b'\n').filter_map(mapping);
        all.map(|(one, _)| one).filter(|one| (one.device, one.inode) == (device, inode)).collect()
    }

    /// The advice of what is mapped at each of `at`, in their order. A mapping that is gone has none. `None` if it cannot be read.
    pub fn flags(&mut self, at: &[Range<u64>]) -> Option<Vec<Flags>> {
        let mut found = vec![Flags::default(); at.len()];
        if !read(&self.smaps, &mut self.text) {
            return None;
        }
        let mut inside: Option<Range<u64>> = None;
        for line in self.text.split(|byte| *byte == b'\n') {
            if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                let Some(inside) = inside.take() else { continue };
                let has = |flag: &[u8]| flags.split(|byte| *byte == b' ').any(|one| one == flag);
                let overlaps = |one: &Range<u64>, inside: &Range<u64>| one.start < inside.end && inside.start < one.end;
                for (one, _) in found.iter_mut().zip(at).filter(|(_, at)| overlaps(at, &inside)) {
                    // A mapping here may be in pieces, because of the advice.
                    *one = Flags {
                        random: one.random || has(b"rr"),
                        sequential: one.sequential || has(b"sr"),
                        locked: one.locked || has(b"lo"),
                    };
                }
            } else if let Some((range, _)) = range(line) {
                inside = Some(range);
            }
        }
        Some(found)
    }
}

fn range(line: &[u8]) -> Option<(Range<u64>, &[u8])> {
    let (start, rest) = hex(line)?;
    let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
    Some((start..end, rest.strip_prefix(b" ")?))
}

/// One line of proc_pid_maps(5): the mapping, and whether it may be executed. `None` where no file is mapped.
fn mapping(line: &[u8]) -> Option<(Mapping, bool)> {
    let (at, rest) = range(line)?;
    let (access, rest) = rest.split_at_checked(4)?;
    let (offset, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (major, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (minor, rest) = hex(rest.strip_prefix(b":")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let inode = number(rest)?;
    let path = &rest[rest.iter().position(|byte| *byte == b'/')?..];
    let mapping = Mapping {
        pages: (at.end - at.start) / PAGE,
        at,
        offset,
        device: (major, minor),
        inode,
        is_shared: access[3] == b's',
        is_writable: access[1] == b'w',
        path: String::from_utf8_lossy(path).into_owned(),
        may_grow: false,
    };
    Some((mapping, access[2] == b'x'))
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn candidates(text: &[u8]) -> Vec<Mapping> {
    let lines = || text.split(|byte| *byte == b'\n').filter_map(mapping);
    // A runtime's own files lie in the folder of its libraries (the JDK's `modules`).
    let mut libraries: Vec<(String, u32)> = Vec::new();
    for (one, _) in lines().filter(|(one, is_code)| *is_code && one.path.contains(".so")) {
        match libraries.iter_mut().find(|(known, _)| known == folder(&one.path)) {
            Some((_, count)) => *count += 1,
            None => libraries.push((folder(&one.path).to_owned(), 1)),
        }
    }
    libraries.retain(|(_, count)| *count >= LIBRARIES);
    let mut found: Vec<Mapping> = Vec::new();
    for (one, is_code) in lines() {
        // Memory that has a name is no file on a disk.
        let is_memory = ["/dev/", "/memfd:", "/SYSV", "/anon_hugepage"].iter().any(|kind| one.path.starts_with(kind));
        if is_code || is_memory || libraries.iter().any(|(known, _)| known == folder(&one.path)) {
            continue;
        }
        // madvise(2) and mprotect(2) cut a mapping in pieces.
        if let Some(last) = found.last_mut() {
            let goes_on = last.at.end == one.at.start && last.offset + (last.at.end - last.at.start) == one.offset;
            if goes_on && (last.device, last.inode) == (one.device, one.inode) && last.is_shared == one.is_shared {
                last.at.end = one.at.end;
                last.pages += one.pages;
                last.is_writable |= one.is_writable;
                continue;
            }
        }
        found.push(one);
    }
    found.retain(|one| one.at.end - one.at.start >= LEAST);
    let is_reserved = |(at, rest): (Range<u64>, &[u8])| rest.starts_with(b"---p 00000000 00:00 0").then_some(at.start);
    let reserved: Vec<u64> = text.split(|byte| *byte == b'\n').filter_map(|line| is_reserved(range(line)?)).collect();
    for one in &mut found {
        one.may_grow = reserved.binary_search(&one.at.end).is_ok();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
55d0c0000000-55d0c0001000 r-xp 00000000 fd:00 11 /data/program
7f0000000000-7f0010000000 r--s 00001000 fd:00 12 /data/a file
7f0010000000-7f0020000000 rw-s 10001000 fd:00 12 /data/a file
7f0020000000-7f0020001000 ---p 00000000 00:00 0 
7f0020001000-7f0020002000 r--s 00000000 fd:00 13 /data/small
7f0030000000-7f0040000000 rw-p 00000000 00:00 0 
7f0040000000-7f0050000000 r--s 00000000 fd:00 14 /usr/lib/jvm/lib/modules
7f0050000000-7f0050100000 r-xp 00000000 fd:00 15 /usr/lib/jvm/lib/libjava.so
7f0050100000-7f0050200000 r-xp 00000000 fd:00 17 /usr/lib/jvm/lib/libzip.so
7f0050200000-7f0050300000 r-xp 00000000 fd:00 18 /usr/lib/jvm/lib/libnet.so
7f0050300000-7f0050400000 r-xp 00000000 fd:00 19 /data/libone.so
7f0060000000-7f0070000000 rw-s 00000000 00:01 16 /dev/shm/x
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn a_mapping_in_pieces_is_one_and_code_memory_and_runtimes_are_none() {
        let found = candidates(MAPS);
        assert_eq!(found.len(), 1, "{found:?}");
        let one = &found[0];
        assert_eq!(one.at, 0x7f0000000000..0x7f0020000000);
        assert_eq!(
            (one.offset, one.path.as_str(), one.is_shared, one.is_writable),
            (0x1000, "/data/a file", true, true)
        );
        assert!(one.may_grow, "reserved addresses lie behind it");
    }

    #[test]
    fn a_line_that_is_no_mapping_is_none() {
        for line in [&b""[..], b"Size: 4 kB", b"zz-ff r--p", b"1-2 r-"] {
            assert_eq!(mapping(line), None);
        }
    }
}
