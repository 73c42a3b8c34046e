//! File systems that are made for a bench: each on a loop device over a file without a name, and mounted nowhere.
//!
//! Nothing is left behind, however this process ends, since every part lives only as long as a descriptor of this process:
//!
//! * The mount (fsmount(2)) is attached to no directory. It is reached through `/proc/PID/fd`.
//! * The loop device clears itself when no process has it open.
//! * The file has no name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use serde::Serialize;

use crate::driver::check_room;
use crate::substrates::prepare;

/// The file system that a bench's files are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// Made for the bench.
    Ext4,
    /// Made for the bench.
    Xfs,
    /// Made for the bench.
    Btrfs,
    /// The file system of the directory, which is there already.
    Here,
}

impl FileSystem {
    /// The kinds that can be made.
    pub const MADE: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// Its name, as `from_str` reads it.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::Here => "here",
        }
    }
}

impl std::fmt::Display for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for FileSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<FileSystem, String> {
        let mut all = FileSystem::MADE.into_iter().chain([FileSystem::Here]);
        let known = all.find(|one| one.name() == text);
        known.ok_or_else(|| format!("\"{text}\" is not a file system: choose from ext4, xfs, btrfs, here"))
    }
}

/// Bytes written at a time.
const CHUNK: usize = 4 << 20;

/// Longest wait for a file system to free the space of deleted files.
const LONGEST_SETTLING: Duration = Duration::from_secs(20);

/// A file in which file systems are made, one after the other. All of its blocks are written at the start. Otherwise the first write to a
/// block would also wait until the file system beneath has allocated the block.
pub struct Image {
    file: File,
    dir: PathBuf,
}

impl Image {
    /// Makes an image of so many bytes in a directory.
    ///
    /// # Errors
    ///
    /// The directory has too little room, the file cannot be written, or the user has interrupted the bench.
    pub fn new(dir: &Path, bytes: u64) -> Result<Image, Failure> {
        let failed = |error: io::Error| {
            let what = format!("cannot write a file of {}: {error}", Size(bytes));
            Failure::new(dir.display(), what, "name a place with more room with --dir, or ask for less")
        };
        let free = File::open(dir).and_then(|dir| prepare::free_bytes(&dir)).map_err(failed)?;
        check_room(dir, free, bytes)?;
        let mut file = tempfile::tempfile_in(dir).map_err(failed)?;
        let zeros = vec![0; CHUNK];
        for _ in 0..bytes.div_ceil(CHUNK as u64) {
            file.write_all(&zeros).map_err(failed)?;
            interrupt::check()?;
        }
        file.sync_all().map_err(failed)?;
        Ok(Image { file, dir: dir.to_owned() })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// A directory for a bench's files.
pub struct Volume {
    /// Its file system.
    pub kind: FileSystem,
    /// The path of its root. Any process of this user can open it while this value lives.
    pub root: PathBuf,
    /// The device whose requests are counted; for [`Volume::here`], the directory.
    pub device: PathBuf,
    // Dropped in this order. The loop device clears itself when neither the mount nor the field below has it open.
    mount: Option<OwnedFd>,
    _loop_device: Option<LoopDevice>,
}

impl Volume {
    /// The directory as it is, on its own file system.
    pub fn here(dir: &Path) -> Volume {
        let root = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        Volume { kind: FileSystem::Here, device: root.clone(), root, mount: None, _loop_device: None }
    }

    /// Makes a fresh file system in the image.
    ///
    /// # Errors
    ///
    /// The step that failed. Nothing is left behind then.
    pub fn make(kind: FileSystem, image: &Image) -> Result<Volume, Failure> {
        let failed = |what: String| {
            let thing = format!("{kind} in {}", image.dir.display());
            Failure::new(thing, what, "read in `fastmap bench oltp --help` what it needs, or give --file-systems here")
        };
        let device =
            LoopDevice::over(&image.file).map_err(|error| failed(format!("cannot attach a loop device: {error}")))?;
        let mount = fresh(kind, &device.path).map_err(failed)?;
        let root = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd()));
        Ok(Volume { kind, root, device: device.path.clone(), mount: Some(mount), _loop_device: Some(device) })
    }

    /// Writes back what the last run left, and waits until the file system has `room` free bytes for the next run, `LONGEST_SETTLING` at
    /// most. File systems free deleted files in the background. Does nothing for [`Volume::here`].
    pub fn settle(&self, room: u64) {
        let Some(mount) = &self.mount else { return };
        let until = Instant::now() + LONGEST_SETTLING;
        loop {
            // An error is not reported here: the next run meets it and reports it.
            let _ = rustix::fs::syncfs(mount);
            let free = rustix::fs::fstatvfs(mount).map_or(u64::MAX, |stat| stat.f_bavail * stat.f_frsize);
            if free >= room || Instant::now() >= until {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A fresh file system on a device, mounted nowhere.
///
/// # Errors
///
/// The step that failed, in words.
pub fn fresh(kind: FileSystem, device: &Path) -> Result<OwnedFd, String> {
    let mut command = Command::new(format!("mkfs.{kind}"));
    // Discarding is off, since it would free the image's blocks. ext4 initialises its tables now, and not later in the background.
    match kind {
        FileSystem::Ext4 => {
            command.args(["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"])
        }
        FileSystem::Xfs | FileSystem::Btrfs | FileSystem::Here => command.args(["-q", "-f", "-K"]),
    };
    let made = command.arg(device).stdin(Stdio::null()).output();
    let made = made.map_err(|error| format!("cannot run mkfs.{kind}: {error}"))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        return Err(format!("mkfs.{kind} failed: {}", said.lines().next().unwrap_or_default()));
    }
    mount(kind, device).map_err(|error| format!("cannot mount it: {error}"))
}

/// The reason why a kind of file system cannot be made here. None: there is no known reason, but only an attempt can tell for certain.
pub fn missing(kind: FileSystem) -> Option<String> {
    let is_there = |path: &str| Path::new(path).exists();
    if !rustix::process::geteuid().is_root() {
        return Some("only root can mount it".to_owned());
    }
    if !is_there("/dev/loop-control") {
        return Some("there are no loop devices (/dev/loop-control)".to_owned());
    }
    let name = kind.name();
    let mkfs = Command::new(format!("mkfs.{name}")).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if mkfs.is_err() {
        return Some(format!("mkfs.{name} is not installed"));
    }
    // fsopen(2) also finds a file system whose module is not loaded yet: it loads the module.
    match fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_) => None,
        Err(error) => Some(format!("the kernel cannot mount it ({error})")),
    }
}

fn mount(kind: FileSystem, device: &Path) -> io::Result<OwnedFd> {
    let context = fsopen(kind.name(), FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", device)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOATIME)?)
}

/// The argument of LOOP_CONFIGURE: `struct loop_config` of linux/loop.h, Linux 5.8.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// Device, inode, real device, offset, size limit.
    places: [u64; 5],
    /// Number, type of encryption, length of the key, flags.
    numbers: [u32; 4],
    /// Two names, the key, two words, and reserved words.
    rest: [u64; 4 + 16 + 2 + 8],
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// A loop device (loop(4)) over a file. It reads and writes the file with direct I/O: the file's page cache would serve reads from memory
/// that no limit on a run covers. The device clears itself when neither this value nor a mount has it open.
pub struct LoopDevice {
    /// Its path.
    pub path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a free loop device to a file.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn over(file: &File) -> io::Result<LoopDevice> {
        attach(file).map(|(open, path)| LoopDevice { path, _open: open })
    }
}

fn attach(file: &File) -> io::Result<(File, PathBuf)> {
    /// Attempts, at most: another process may take the free device first.
    const TRIES: u32 = 64;
    let control = File::open("/dev/loop-control")?;
    let mut tries = 0;
    loop {
        // SAFETY: the call takes no memory and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let config = LoopConfig {
            fd: file.as_raw_fd() as u32,
            block_size: 4096,
            places: [0; 5],
            numbers: [0, 0, 0, LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO],
            rest: [0; 30],
        };
        // SAFETY: the kernel reads the structure, which lives until the call returns.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            // If the file does not support direct I/O, the kernel does without it. Only this file in sysfs tells.
            let direct = std::fs::read_to_string(format!("/sys/block/loop{number}/loop/dio")).unwrap_or_default();
            if direct.trim() != "1" {
                return Err(io::Error::other("its file takes no direct I/O"));
            }
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        tries += 1;
        if error.raw_os_error() != Some(libc::EBUSY) || tries == TRIES {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_structure_is_the_kernels() {
        assert_eq!(size_of::<LoopConfig>(), 8 + 232 + 64);
        assert_eq!(std::mem::offset_of!(LoopConfig, numbers) + 12, 8 + 52, "lo_flags");
    }

    #[test]
    fn file_systems_come_and_go() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut image = None;
        for kind in FileSystem::MADE {
            if let Some(why) = missing(kind) {
                eprintln!("not here: {kind}: {why}");
                continue;
            }
            // xfs wants 300 MiB.
            let image = image.get_or_insert_with(|| Image::new(dir.path(), 320 << 20).unwrap());
            let volume = Volume::make(kind, image).unwrap_or_else(|failure| panic!("{failure}"));
            fs::write(volume.root.join("file"), "there").unwrap();
            volume.settle(0);
            assert_eq!(fs::read_to_string(volume.root.join("file")).unwrap(), "there");
            let name = volume.device.file_name().unwrap().to_owned();
            let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
            let (of_dir, is_ours) = (dir.path().display().to_string(), || fs::read_to_string(&backing));
            assert!(is_ours().unwrap().starts_with(&of_dir));
            drop(volume);
            let begun = std::time::Instant::now();
            while is_ours().is_ok_and(|file| file.starts_with(&of_dir)) {
                assert!(begun.elapsed().as_secs() < 10, "the loop device stays");
                std::thread::yield_now();
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
