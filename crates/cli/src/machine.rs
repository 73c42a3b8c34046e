//! This machine, for the JSON: processors, kernel, memory, and the file system under the file, with its disk.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use fastmap_steer::observe::readahead;
use serde::{Deserialize, Serialize};

use crate::size::Size;

/// The machine a result was measured on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Processors this process may use.
    pub cpus: usize,
    /// The processor's model name.
    pub model: String,
    /// The kernel's release.
    pub kernel: String,
    /// Physical memory.
    pub memory_bytes: u64,
    /// Type of the file system that holds the file, or `block device` where the file is one itself.
    pub file_system: String,
    /// What that file system is mounted from, or the block device.
    pub device: String,
    /// How much the kernel reads ahead there, KiB: most of what kernel mmap does hangs on it.
    #[serde(default)]
    pub read_ahead_kb: Option<u64>,
    /// The disk's scheduler of requests.
    #[serde(default)]
    pub scheduler: Option<String>,
    /// Whether the disk says that it turns.
    #[serde(default)]
    pub rotational: Option<bool>,
}

impl Machine {
    /// This machine, with the file system that `place` (a file's directory, or a block device) is on.
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

/// Of a page.
const PAGE_KIB: u64 = 4;

/// The device under a place: its major and minor numbers.
fn numbers_of(place: &Path) -> Option<(u64, u64)> {
    let facts = place.metadata().ok()?;
    let number = if facts.file_type().is_block_device() { facts.rdev() } else { facts.dev() };
    Some((u64::from(libc::major(number)), u64::from(libc::minor(number))))
}

/// An attribute of a disk's queue, by sysfs. A partition has none of its own.
fn queue((major, minor): (u64, u64), name: &str) -> Option<String> {
    let folder = format!("/sys/dev/block/{major}:{minor}");
    let places = [format!("{folder}/queue/{name}"), format!("{folder}/../queue/{name}")];
    places.iter().find_map(|place| Some(fs::read_to_string(place).ok()?.trim().to_owned()))
}

/// Of several words the one in brackets.
fn chosen(all: &str) -> &str {
    all.split(['[', ']']).nth(1).unwrap_or(all)
}

/// The file system a path is on.
pub struct FileSystem {
    /// Its type, as mount(8) knows it.
    pub kind: String,
    /// What it is mounted from.
    pub device: String,
}

impl FileSystem {
    /// From the thread's mountinfo, proc_pid_mountinfo(5): the last mount whose point is the longest beginning of the path.
    pub fn of(place: &Path) -> FileSystem {
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        if place.metadata().is_ok_and(|m| m.file_type().is_block_device()) {
            return FileSystem { kind: "block device".to_owned(), device: place.display().to_string() };
        }
        find_mount(&read("/proc/thread-self/mountinfo"), &place)
            .unwrap_or_else(|| FileSystem { kind: "unknown".to_owned(), device: "unknown".to_owned() })
    }

    /// Whether files there live in memory only.
    pub fn is_memory(&self) -> bool {
        FileSystem::is_memory_kind(&self.kind)
    }

    /// Whether files on file systems of a type do.
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

/// A field of /proc/meminfo in bytes; 0 if it is not there.
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
