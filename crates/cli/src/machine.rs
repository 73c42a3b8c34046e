//! Describes this machine for the JSON: processors, kernel, memory, and the file system of a file, with its disk.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use fastmap_steer::observe::readahead;
use serde::{Deserialize, Serialize};

use crate::size::Size;

/// The machine on which a result was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The number of processors that this process may use.
    pub cpus: usize,
    /// The processor's model name.
    pub model: String,
    /// The kernel's release.
    pub kernel: String,
    /// Physical memory.
    pub memory_bytes: u64,
    /// The type of the file system that holds the file, or `block device` if the file is a block device.
    pub file_system: String,
    /// The source of that mount, or the block device.
    pub device: String,
    /// The kernel's readahead for that device, KiB. Kernel mmap's results depend mostly on it.
    #[serde(default)]
    pub read_ahead_kb: Option<u64>,
    /// The disk's I/O scheduler.
    #[serde(default)]
    pub scheduler: Option<String>,
    /// Whether the disk says that it is rotational.
    #[serde(default)]
    pub rotational: Option<bool>,
}

impl Machine {
    /// This machine, and the file system that holds `place`, which is a file, a directory or a block device.
    pub fn of(place: &Path) -> Machine {
        let FileSystem { kind, device } = FileSystem::of(place);
        let numbers = numbers_of(place);
        let of_queue = |name| numbers.and_then(|numbers| queue(numbers, name));
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            model: model(&read("/proc/cpuinfo")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: meminfo("MemTotal"),
            file_system: kind,
            device,
            read_ahead_kb: numbers.and_then(readahead).map(|pages| pages * PAGE_KIB),
            scheduler: of_queue("scheduler").map(|all| chosen(&all).to_owned()),
            rotational: of_queue("rotational").map(|text| text == "1"),
        }
    }

    /// The readahead in words, for the first line of a table.
    pub fn readahead(&self) -> String {
        self.read_ahead_kb
            .map_or_else(|| "readahead unknown".to_owned(), |kib| format!("readahead {}", Size(kib << 10)))
    }
}

/// KiB of a page.
const PAGE_KIB: u64 = 4;

/// The major and minor numbers of a block device, or of the device that holds a file or directory.
fn numbers_of(place: &Path) -> Option<(u64, u64)> {
    let facts = place.metadata().ok()?;
    let number = if facts.file_type().is_block_device() { facts.rdev() } else { facts.dev() };
    Some((u64::from(libc::major(number)), u64::from(libc::minor(number))))
}

/// An attribute of a disk's request queue, from sysfs. A partition has no queue of its own, so its disk's is read.
fn queue((major, minor): (u64, u64), name: &str) -> Option<String> {
    let folder = format!("/sys/dev/block/{major}:{minor}");
    let places = [format!("{folder}/queue/{name}"), format!("{folder}/../queue/{name}")];
    places.iter().find_map(|place| Some(fs::read_to_string(place).ok()?.trim().to_owned()))
}

/// The word in brackets, or the whole text if no word is in brackets.
fn chosen(all: &str) -> &str {
    all.split(['[', ']']).nth(1).unwrap_or(all)
}

/// The file system that holds a path.
pub struct FileSystem {
    /// The type, such as `ext4`, or `block device`.
    pub kind: String,
    /// The source of the mount, or the block device.
    pub device: String,
}

impl FileSystem {
    /// Read from the thread's mountinfo, proc_pid_mountinfo(5): the mount with the longest mount point that contains the path. Of several
    /// such mounts, it is the last.
    pub fn of(place: &Path) -> FileSystem {
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        if place.metadata().is_ok_and(|m| m.file_type().is_block_device()) {
            return FileSystem { kind: "block device".to_owned(), device: place.display().to_string() };
        }
        find_mount(&read("/proc/thread-self/mountinfo"), &place)
            .unwrap_or_else(|| FileSystem { kind: "unknown".to_owned(), device: "unknown".to_owned() })
    }

    /// Whether files of this file system are in memory only.
    pub fn is_memory(&self) -> bool {
        FileSystem::is_memory_kind(&self.kind)
    }

    /// Whether files of file systems of this type are in memory only.
    pub fn is_memory_kind(kind: &str) -> bool {
        ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"].contains(&kind)
    }
}

fn find_mount(mountinfo: &str, place: &Path) -> Option<FileSystem> {
    let mut best = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let point = unescape(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        if place.starts_with(&point) && best.as_ref().is_none_or(|(len, _)| point.len() >= *len) {
            let file_system = FileSystem { kind: right.next()?.to_owned(), device: unescape(right.next()?) };
            best = Some((point.len(), file_system));
        }
    }
    best.map(|(_, file_system)| file_system)
}

/// A field of /proc/meminfo, in bytes. 0 if there is no such field.
pub fn meminfo(field: &str) -> u64 {
    let kib = read("/proc/meminfo").lines().find_map(|line| {
        line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) * 1024
}

/// Undoes the octal escapes of paths in /proc/self/mountinfo (`\040` is a space).
pub fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let mut bytes = field.as_bytes();
    while let [first, rest @ ..] = bytes {
        let escaped = (*first == b'\\').then(|| rest.get(..3)).flatten();
        let code = escaped.and_then(|o| u8::from_str_radix(std::str::from_utf8(o).ok()?, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                bytes = &rest[3..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name") || l.starts_with("CPU part"));
    line.and_then(|l| l.split_once(':')).map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let mounts = "\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:5 / /mnt rw - tmpfs tmpfs rw
22 21 253:0 / /mnt/fast\\040disk rw shared:3 - ext4 /dev/zram0 rw
23 21 253:1 / /mnt/fast\\040disk rw - xfs /dev/zram1 rw";
        let at = |path: &str| find_mount(mounts, Path::new(path)).map(|f| (f.kind, f.device)).unwrap();
        assert_eq!(at("/home/me"), ("ext4".into(), "/dev/vda".into()));
        assert_eq!(at("/mnt/fast disk/file"), ("xfs".into(), "/dev/zram1".into()));
        assert_eq!(at("/mnt/faster"), ("tmpfs".into(), "tmpfs".into()));
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::of(Path::new("."));
        assert!(machine.cpus > 0 && machine.memory_bytes > 1 << 20);
        assert!(!machine.kernel.is_empty() && machine.file_system != "unknown");
        assert_eq!((chosen("none [mq-deadline] kyber"), chosen("none")), ("mq-deadline", "none"));
        if machine.device.starts_with("/dev/") {
            assert!(machine.read_ahead_kb.is_some() && machine.readahead().starts_with("readahead "), "{machine:?}");
        }
    }
}
