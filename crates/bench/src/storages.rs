//! The storage that an experiment's files are on: `--storage`.
//!
//! A storage that is made here is mounted in a mount namespace of this process. Other processes do not see it, and it ends with this
//! process and its workers. Then the loop device clears itself, and the file under it is gone, since it has no name. If the bench is
//! killed, an empty folder is left behind.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fastmap_cli::failure::Failure;
use fastmap_cli::machine;
use rustix::fs::CWD;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_change, move_mount, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::driver::own_directory;
use crate::fast::FastDevice;
use crate::storage::Beside;
use crate::substrates::spec::names;
use crate::volume::{self, FileSystem, Image, LoopDevice};

/// The latency of each request to slow storage.
pub const LATENCY: &str = "2ms";
/// The bandwidth of all requests to slow storage together.
pub const BANDWIDTH: &str = "1GB/s";

/// The readahead that Linux gives to a disk that asks for no other, KiB.
const USUAL_READAHEAD_KIB: &str = "128";

/// The room for a file system beside its files: so many bytes, and one part in so many of the files' length.
const OF_FILE_SYSTEM: u64 = 64 << 20;
const PART_OF_FILE_SYSTEM: u64 = 16;

/// The name of the file under the loop device of slow storage.
const IMAGE: &str = "image";

/// A kind of storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A disk with the usual readahead.
    #[default]
    Disk,
    /// A disk on which each request takes a time.
    Slow,
    /// Compressed memory behind the block layer.
    Fast,
    /// The folder as it is, with the readahead that its disk has.
    Here,
}

names!(Kind, "a storage", { Disk => "disk", Slow => "slow", Fast => "fast", Here => "here" });

/// A place for files while this value lives.
pub struct Storage {
    /// Its kind.
    pub kind: Kind,
    /// The folder for the files.
    pub root: PathBuf,
    /// The device under it, in words, if a loop device was made.
    pub under: Option<String>,
    // The fields are dropped in this order: the mount first, then what is under it.
    _mount: Option<Mounted>,
    _device: Option<LoopDevice>,
    _beside: Option<(Beside, TempDir)>,
    _zram: Option<FastDevice>,
}

impl Storage {
    /// Makes storage for files of `bytes`. Fast storage is in memory; all other storage is on the disk of the folder `dir`. If no device
    /// can be made for `disk`, the storage is the folder itself, and the second value gives the reason.
    ///
    /// # Errors
    ///
    /// Slow or fast storage cannot be made, or the disk has too little room.
    pub fn make(kind: Kind, dir: &Path, bytes: u64) -> Result<(Storage, Option<String>), Failure> {
        let bytes = (bytes + bytes / PART_OF_FILE_SYSTEM + OF_FILE_SYSTEM).next_multiple_of(1 << 20);
        let failed = |why: String| {
            let remedy = "see what it needs in `fastmap bench --help`, or give another --storage";
            Failure::new(format!("--storage {kind}"), format!("cannot be made: {why}"), remedy)
        };
        match kind {
            Kind::Here => Ok((Storage::plain(dir), None)),
            Kind::Disk if machine::FileSystem::of(dir).is_memory() => Ok((Storage::plain(dir), None)),
            Kind::Disk => match volume::missing(FileSystem::Ext4) {
                Some(why) => Ok((Storage { kind, ..Storage::plain(dir) }, Some(why))),
                None => Ok(match Storage::disk(&Image::new(dir, bytes)?, dir) {
                    Ok(made) => (made, None),
                    // A container may have no loop devices.
                    Err(failure) => (Storage { kind, ..Storage::plain(dir) }, Some(failure.to_string())),
                }),
            },
            Kind::Slow => match volume::missing(FileSystem::Ext4) {
                Some(why) => Err(failed(why)),
                None => Storage::slow(dir, bytes).map(|made| (made, None)),
            },
            Kind::Fast => Storage::fast(dir, bytes).map(|made| (made, None)).map_err(failed),
        }
    }

    fn plain(dir: &Path) -> Storage {
        Storage {
            kind: Kind::Here,
            root: dir.to_owned(),
            under: None,
            _mount: None,
            _device: None,
            _beside: None,
            _zram: None,
        }
    }

    fn disk(image: &Image, dir: &Path) -> Result<Storage, Failure> {
        let under = machine::FileSystem::of(dir).device;
        Storage::over(Kind::Disk, image.file(), dir, format!("a loop device with direct I/O on {under}"))
    }

    fn slow(dir: &Path, bytes: u64) -> Result<Storage, Failure> {
        own_namespace()?;
        let source = own_directory(dir, bytes)?;
        let broken = |e: std::io::Error| Failure::new(dir.display(), e, "name another place with --dir");
        let image = File::create(source.path().join(IMAGE)).map_err(broken)?;
        image.set_len(bytes).map_err(broken)?;
        let place = own_directory(dir, 0)?;
        let beside = Beside::of_folder(LATENCY, BANDWIDTH, source.path(), place.path())
            .map_err(|why| Failure::new("--storage slow", why, "give another --storage"))?;
        let image = OpenOptions::new().read(true).write(true).open(place.path().join(IMAGE)).map_err(broken)?;
        // The last process of a namespace unmounts everything in it as it ends. If that were the process of slow storage, the file system above
        // would wait for it, and it for the file system, for ever. So it keeps the namespace that has no such file system.
        new_namespace()?;
        // The image stays open.
        unmount(place.path(), UnmountFlags::DETACH).map_err(|e| broken(e.into()))?;
        // The process of slow storage has the files open, so their folder can go.
        drop(source);
        let words = format!("a loop device with direct I/O on FUSE, {LATENCY} a request, {BANDWIDTH}");
        let made = Storage::over(Kind::Slow, &image, dir, words)?;
        Ok(Storage { _beside: Some((beside, place)), ..made })
    }

    fn fast(dir: &Path, bytes: u64) -> Result<Storage, String> {
        let zram = FastDevice::make(bytes)?;
        let mount = volume::fresh(FileSystem::Ext4, zram.device())?;
        let mounted = Mounted::new(mount, dir).map_err(|failure| failure.to_string())?;
        let root = mounted.root();
        Ok(Storage { kind: Kind::Fast, root, _mount: Some(mounted), _zram: Some(zram), ..Storage::plain(dir) })
    }

    /// Makes a file system on a loop device over a file, with the usual readahead.
    fn over(kind: Kind, image: &File, dir: &Path, under: String) -> Result<Storage, Failure> {
        let failed = |what: String| Failure::new("loop device", what, "give --storage here");
        let device = LoopDevice::over(image).map_err(|error| failed(format!("cannot be attached: {error}")))?;
        let mount = volume::fresh(FileSystem::Ext4, &device.path).map_err(failed)?;
        let mounted = Mounted::new(mount, dir)?;
        let queue = device.path.file_name().map(|name| Path::new("/sys/block").join(name).join("queue/read_ahead_kb"));
        if let Some(Err(error)) = queue.map(|queue| fs::write(queue, USUAL_READAHEAD_KIB)) {
            return Err(failed(format!("its readahead cannot be set: {error}")));
        }
        let root = mounted.root();
        Ok(Storage {
            kind,
            root,
            under: Some(under),
            _mount: Some(mounted),
            _device: Some(device),
            ..Storage::plain(dir)
        })
    }
}

/// A mount at a folder that was made for it.
struct Mounted {
    folder: TempDir,
    _mount: OwnedFd,
}

impl Mounted {
    fn new(mount: OwnedFd, dir: &Path) -> Result<Mounted, Failure> {
        own_namespace()?;
        let folder = own_directory(dir, 0)?;
        let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&mount, "", CWD, folder.path(), empty)
            .map_err(|error| Failure::new(folder.path().display(), error, "give --storage here"))?;
        Ok(Mounted { folder, _mount: mount })
    }

    fn root(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // If this fails, the mount goes with the namespace.
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

/// Gives this thread a mount namespace of its own. The processes that it starts share it. mount_namespaces(7)
fn own_namespace() -> Result<(), Failure> {
    thread_local! {
        static OWN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if OWN.get() {
        return Ok(());
    }
    new_namespace()?;
    OWN.set(true);
    Ok(())
}

/// Gives this thread a mount namespace that no other process has.
fn new_namespace() -> Result<(), Failure> {
    let failed = |error| Failure::new("mount namespace", error, "give --storage here");
    // SAFETY: mounts, and the record of the root and working directory, become this thread's own. Descriptors and memory stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_comes_and_goes() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (made, why) = Storage::make(Kind::Disk, dir.path(), 16 << 20).unwrap();
        if let Some(why) = why {
            return eprintln!("not here: {why}");
        }
        fs::write(made.root.join("file"), "there").unwrap();
        assert_eq!(fs::read_to_string(made.root.join("file")).unwrap(), "there");
        let machine = machine::Machine::of(&made.root);
        assert_eq!((machine.file_system.as_str(), machine.read_ahead_kb), ("ext4", Some(128)));
        assert_ne!(made.root, dir.path());
        drop(made);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let why = Storage::make(Kind::Fast, dir.path(), 1 << 60).map(drop).unwrap_err().to_string();
        assert!(why.starts_with("--storage fast: cannot be made: "), "{why}");
        let (here, why) = Storage::make(Kind::Here, dir.path(), 1).unwrap();
        assert_eq!((here.root.as_path(), why), (dir.path(), None));
    }
}
