//! The file behind a mapping of a program: it is found, and opened for reading only once it is known to be the one that is mapped. Paths are
//! the program's, which may have put another file, a pipe, a device or a link there.

use super::asked::{Answer, Asked, Device, OfProcess};
use super::{Mapping, identity};
use crate::clock::now;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, openat2};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A file, by its device and inode as proc_pid_maps(5) shows them.
pub type Key = (Device, u64);

/// A size is asked for again after this time.
const FRESH: Duration = Duration::from_secs(1);
/// A file that could not be found or opened is tried again after this time.
pub(crate) const AGAIN: Duration = Duration::from_secs(60);

/// A file of a process that is found, but not opened for reading.
struct Found {
    /// Opened with O_PATH: the file system of a pipe or device does not come to know of it.
    path: OwnedFd,
    size: u64,
    /// Its numbers are those of the mapping. Otherwise its file system shows other ones, and the file may be another one.
    is_sure: bool,
}

impl Mapping {
    /// The file.
    pub fn key(&self) -> Key {
        (self.device, self.inode)
    }

    /// Finds the file: by the kernel's link, which takes a capability; or by its path from the root folder of process `pid`, or from this
    /// process's. (Where the program's root folder lies inside this process's, maps shows the path from this one's.)
    fn find(&self, pid: u32) -> Option<Found> {
        let link = format!("/proc/{pid}/map_files/{:x}-{:x}", self.at.start, self.at.end);
        // The link leads to the file itself, by no path.
        let by_link = || openat(CWD, &link[..], OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let by_path = |root: &str| open_inside(root, &self.path);
        let ways: [&dyn Fn() -> Option<OwnedFd>; 3] =
            [&by_link, &|| by_path(&format!("/proc/{pid}/root")), &|| by_path("/")];
        ways.iter().filter_map(|way| Found::of(way()?, self.key())).next()
    }

    /// Opens the file to be read by process `pid`'s readers. `None` where it cannot be read, or its path leads to another file by now. This
    /// may take for ever.
    pub(crate) fn open(&self, pid: u32) -> Option<Arc<File>> {
        let file = self.find(pid)?.open(self.key())?;
        // The kernel then reads the pieces that are asked for, and nothing around them.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).ok()?;
        Some(Arc::new(file))
    }
}

impl Found {
    /// The file at `path`, opened with O_PATH. `None` where it cannot be the file `key`.
    fn of(path: OwnedFd, key: Key) -> Option<Found> {
        /// File systems of which fstat(2) shows other numbers than proc_pid_maps(5): another device, or another inode, too.
        const BTRFS: u64 = 0x9123_683e;
        const OVERLAY: u64 = 0x794c_7630;
        let stat = fstat(&path).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let device = (u64::from(libc::major(stat.st_dev)), u64::from(libc::minor(stat.st_dev)));
        let is_sure = (device, stat.st_ino) == key;
        let may_be = || match fstatfs(&path).map_or(0, |of| of.f_type as u64 & 0xffff_ffff) {
            BTRFS => stat.st_ino == key.1,
            OVERLAY => true,
            _ => false,
        };
        (is_sure || may_be()).then_some(Found { path, size: stat.st_size as u64, is_sure })
    }

    fn open(self, key: Key) -> Option<File> {
        let file = open_found(&self.path).ok()?;
        (self.is_sure || identity(&file) == Some(key)).then_some(file)
    }
}

/// Opens the file at `path`, which is absolute and without links, to be read. `None` where it cannot be read, or is not the file `key`.
pub(crate) fn open_only(path: &str, key: Key) -> Option<File> {
    Found::of(open_inside("/", path)?, key)?.open(key)
}

/// Opens `path`, an absolute one, from the folder `root`. No link on the way is followed: a path that maps shows has none.
fn open_inside(root: &str, path: &str) -> Option<OwnedFd> {
    let only = OFlags::PATH | OFlags::CLOEXEC;
    let folder = openat(CWD, root, only | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let (inside, only) = (path.strip_prefix('/')?, only | OFlags::NOFOLLOW);
    let no_links = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(&folder, inside, only, Mode::empty(), no_links) {
        // Before Linux 5.6, or a filter's answer.
        Err(Errno::NOSYS | Errno::PERM) => openat(&folder, inside, only, Mode::empty()).ok(),
        opened => opened.ok(),
    }
}

/// Opens a file to be read that was found with O_PATH, and so is known to be a regular one.
pub(crate) fn open_found(path: &OwnedFd) -> Result<File, Errno> {
    // The thread may have a table of descriptors of its own.
    let path = format!("/proc/thread-self/fd/{}", path.as_raw_fd());
    let plain = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let with = |flags| openat(CWD, &path[..], flags, Mode::empty());
    // O_NOATIME leaves the access time as it is. The kernel refuses it for another user's file.
    with(plain | OFlags::NOATIME).or_else(|_| with(plain)).map(File::from)
}

/// The sizes of mapped files, as far as they are known.
static SIZES: OfProcess<Mutex<BTreeMap<Key, Size>>> = OfProcess::new();

/// Files of which sizes are known, at most.
const MOST: usize = 4096;

#[derive(Default)]
struct Size {
    bytes: Option<u64>,
    /// When that was said.
    at: Duration,
    /// The question that is open, and the process from which the file is looked for.
    asked: Option<(u32, Asked<Option<u64>>)>,
    /// The processes from which the file could not be found, and when.
    failed: BTreeMap<u32, Duration>,
}

/// The sizes of the files of these mappings of process `pid`, as far as they are known. This does not wait for a file system that does not
/// answer.
pub(super) fn sizes(pid: u32, mappings: &[Mapping]) -> Vec<Option<u64>> {
    let mut known = SIZES.get().lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() > MOST {
        known.retain(|_, one| one.asked.is_some());
    }
    // All are asked for first, and then waited for.
    for mapping in mappings {
        known.entry(mapping.key()).or_default().ask(pid, mapping);
    }
    mappings.iter().map(|mapping| known.get_mut(&mapping.key())?.get()).collect()
}

impl Size {
    fn ask(&mut self, pid: u32, mapping: &Mapping) {
        let failed = self.failed.get(&pid).is_some_and(|at| now() - *at < AGAIN);
        if self.asked.is_none() && !failed && (self.bytes.is_none() || now() - self.at >= FRESH) {
            let (device, mapping) = (mapping.device, mapping.clone());
            self.asked = Some((pid, Asked::of(device, move || Some(mapping.find(pid)?.size))));
        }
    }

    fn get(&mut self) -> Option<u64> {
        let Some((pid, asked)) = &self.asked else { return self.bytes };
        match asked.answer() {
            Answer::NotYet => return self.bytes,
            Answer::Known(Some(bytes)) => {
                self.failed.remove(pid);
                (self.bytes, self.at) = (Some(bytes), now());
            }
            Answer::Known(None) | Answer::Lost => {
                self.failed.retain(|_, at| now() - *at < AGAIN);
                self.failed.insert(*pid, now());
            }
        }
        self.asked = None;
        self.bytes
    }
}
