//! The heap's file: where it is, how large it may be, and that it held nothing before.
//!
//! The file has no name. It is made without a name in the folder that the user named (open(2), `O_TMPFILE`). Where the
//! file system cannot do that, it is made under a name of its own, which is removed at once. So the file goes with the
//! process, however the process ends.
//!
//! With `--direct always` the kernel maps the file, as libvmmalloc's heap is mapped. That is for comparison.

use crate::{config, next};
use fastmap::{Cache, Engine, Error, Fallback, MapMut, MapOptions, Mode};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// The smallest heap.
const LEAST: u64 = 1 << 20;
/// Bytes handed out between two looks at the file system's free space.
const LOOK: u64 = 16 << 20;

static FILE: OnceLock<File> = OnceLock::new();
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Makes a file of `size` bytes in the folder of `path`, and maps it. Without a size it takes 95 % of the free space.
pub fn map(path: &Path, size: Option<u64>, cache: &Cache) -> Result<MapMut, String> {
    let say = |what: &str| format!("{}: {what}", path.display());
    check(path).map_err(|what| say(&what))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let fail = |what: &'static str| move |error: io::Error| say(&format!("cannot {what}: {error}"));
    let file = make(folder).map_err(fail("make a file for the heap in its folder"))?;
    let free = free_space(&file).map_err(fail("ask for the space that is free (fstatvfs)"))?;
    let size = size.unwrap_or(free / 20 * 19) / PAGE * PAGE;
    if size > free {
        return Err(say(&format!(
            "a heap of {size} bytes does not fit there: {free} bytes are free; give a smaller SIZE"
        )));
    }
    if size < LEAST {
        return Err(say(&format!(
            "a heap of {size} bytes is too small: {free} bytes are free there; {LEAST} is the least"
        )));
    }
    file.set_len(size).map_err(fail("give the heap its length (ftruncate)"))?;
    // SAFETY: the file has no name, so no other process changes it.
    let map = unsafe {
        let mut options = MapOptions::new();
        match config().direct {
            Mode::Direct => options.mode(Mode::Direct).fallback(Fallback::Kernel),
            _ => options.cache(cache).scratch(true).fallback(Fallback::Refuse),
        };
        options.map_mut(&file)
    };
    let map = map.map_err(|error| match error {
        Error::Missing { missing, remedy, .. } => {
            say(&format!("no heap there without {missing}: {remedy}; or name a file on a disk's file system"))
        }
        other => say(&format!("cannot map the heap: {other}")),
    })?;
    if map.engine() != Engine::Cached {
        // A child that gets no copy must have no heap, instead of its parent's. (It does not inherit a region of the
        // engine either.)
        // SAFETY: the map's own memory, whose contents the advice leaves alone.
        if unsafe { next::madvise(map.as_ptr().cast_mut().cast(), map.len(), libc::MADV_DONTFORK) } != 0 {
            return Err(say(&format!("cannot keep it from children (madvise): {}", io::Error::last_os_error())));
        }
    }
    let _ = FILE.set(file);
    // The program may change its working directory.
    let _ = FOLDER.set(folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
    Ok(map)
}

/// Refuses a path with something there already.
fn check(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err("is a folder: name a file in it".into()),
        Ok(found) if !found.is_file() => Err("is not a file: name one that does not exist".into()),
        Ok(found) if found.len() > 0 => {
            Err(format!("exists, with {} bytes: the heap takes only a new file; name another", found.len()))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("cannot be looked at: {error}")),
    }
}

/// Makes another file like the heap's, of the same length.
pub fn make_another() -> io::Result<File> {
    let (Some(folder), Some(file)) = (FOLDER.get(), FILE.get()) else { return Err(io::ErrorKind::NotFound.into()) };
    let another = make(folder)?;
    another.set_len(file.metadata()?.len())?;
    Ok(another)
}

/// Copies the data of the heap's file to the same places of another file of the same length. This is for a heap that
/// the kernel maps: its file has every store (mmap(2), `MAP_SHARED`). lseek(2) with `SEEK_DATA` finds the data.
/// copy_file_range(2) shares blocks where the file system can.
pub fn copy(to: &File) -> io::Result<()> {
    let Some(from) = FILE.get() else { return Err(io::ErrorKind::NotFound.into()) };
    // SAFETY: a descriptor and an offset; nothing depends on the file's position.
    let seek = |at: i64, what| match unsafe { next::lseek(from.as_raw_fd(), at, what) } {
        -1 => Err(io::Error::last_os_error()),
        at => Ok(at),
    };
    let mut at = 0;
    loop {
        at = match seek(at, libc::SEEK_DATA) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
            found => found?,
        };
        let hole = seek(at, libc::SEEK_HOLE)?;
        while at < hole {
            at += copy_part(from, to, at, (hole - at) as usize)?;
        }
    }
}

/// Copies the beginning of a part of a file to the same place of another. Returns the number of bytes copied.
fn copy_part(from: &File, to: &File, at: i64, len: usize) -> io::Result<i64> {
    let (mut source, mut target) = (at, at);
    // SAFETY: the offsets are local.
    match unsafe { next::copy_file_range(from.as_raw_fd(), &mut source, to.as_raw_fd(), &mut target, len, 0) } {
        copied @ 1.. => return Ok(copied as i64),
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        _ => {}
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error if matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EOPNOTSUPP | libc::EINVAL)) => {
            let mut buffer = [0; 16 << 10];
            let part = len.min(buffer.len());
            from.read_exact_at(&mut buffer[..part], at as u64)?;
            to.write_all_at(&buffer[..part], at as u64)?;
            Ok(part as i64)
        }
        error => Err(error),
    }
}

/// Makes a file without a name.
fn make(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {}
        other => return other,
    }
    let name = |try_: u32| -> PathBuf { folder.join(format!(".fastmap-heap-{}-{try_}", std::process::id())) };
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for path in (0..100).map(name) {
        match options.clone().create_new(true).open(&path) {
            Ok(file) => return fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn free_space(file: &File) -> io::Result<u64> {
    // SAFETY: fstatvfs fills the zeroed structure.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        match libc::fstatvfs(file.as_raw_fd(), &mut stat) {
            0 => Ok(stat.f_bavail * stat.f_frsize),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Bytes of the heap that are handed out.
static HANDED_OUT: AtomicU64 = AtomicU64::new(0);

/// Whether `len` more bytes may be handed out. If so, notes them. All bytes that are handed out must fit into the space
/// that the file system has free and the file has taken. The file system is asked again when 16 MiB more are handed out
/// than when it last had room.
pub fn has_room_for(len: usize) -> bool {
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    let out = HANDED_OUT.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
    if out < LOOKED_AT.load(Ordering::Relaxed) + LOOK {
        return true;
    }
    let Some(file) = FILE.get() else { return true };
    let (Ok(free), Ok(facts)) = (free_space(file), file.metadata()) else { return true };
    let fits = out <= free + facts.blocks() * 512;
    if fits {
        LOOKED_AT.store(out, Ordering::Relaxed);
    } else {
        note_back(len);
    }
    fits
}

/// Notes that `len` bytes have come back.
pub fn note_back(len: usize) {
    HANDED_OUT.fetch_sub(len as u64, Ordering::Relaxed);
}
