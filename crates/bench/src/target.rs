//! The file that is measured. The user names it, or it is temporary. Pages that have no stamp get one.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::machine::FileSystem;
use fastmap_cli::size::Size;

use crate::driver::progress_bar;
use crate::experiment::{Launch, Undo};
use crate::substrates::{Advice, Engine, Error, Op, PAGE, Pattern, STRIDE_PAGES, Spec, cold, prepare};

/// Size of the file if neither the user nor an existing file says another.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// A file whose pages are all stamped.
#[derive(Debug)]
pub struct Target {
    /// Open for reading. Also open for writing, unless the user may only read it and no run writes.
    pub file: File,
    /// The path at which a worker can open it.
    pub path: PathBuf,
    /// The name of the file in messages.
    pub label: String,
    /// The length that is used, pages.
    pub pages: u64,
    /// The directory of the file, or the device itself. Its file system is reported.
    pub place: PathBuf,
}

impl Target {
    /// Opens the file that the user names. A missing file is made, and a short one is extended. A file that is something else is refused.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or stamped, or it is no benchmark's file. A file that was made or extended here is then as it was before.
    pub fn named(path: &Path, size: Option<Size>, writes: bool) -> Result<Target, Failure> {
        let label = path.display().to_string();
        let cannot_open = |e: io::Error| Failure::new(&label, format!("cannot open: {e}"), remedy_of_open(&e));
        let (mut file, made) = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => (file, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(0o644);
                (options.open(path).map_err(cannot_open)?, true)
            }
            Err(e) if is_read_only(&e) && !writes => (File::open(path).map_err(cannot_open)?, false),
            Err(e) => return Err(cannot_open(e)),
        };
        let kind = file.metadata().map_err(cannot_open)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::new(&label, "is not a file", "name a regular file, a block device, or a new file"));
        }
        let length = file.seek(SeekFrom::End(0)).map_err(cannot_open)?;
        let present = length / PAGE as u64;
        let pages = match size {
            Some(size) => size.0 / PAGE as u64,
            None if present > 0 => present,
            None => DEFAULT_BYTES / PAGE as u64,
        };
        let place = if kind.is_file() { directory_of(path) } else { path.to_owned() };
        let target = Target { file, path: path.to_owned(), label, pages, place };
        if present > 0 {
            prepare::survey(&target.file, &target.label, present.min(pages)).map_err(|e| match e {
                Error::Foreign { thing } if kind.is_block_device() => Failure::new(
                    thing,
                    "holds something other than a benchmark's pages, and devices are never overwritten",
                    "copy a file that `fastmap bench` made onto it, and give that file's --size",
                ),
                other => other.into(),
            })?;
        } else if length > 0 {
            return Err(Error::Foreign { thing: target.label }.into());
        }
        if present < pages {
            if kind.is_block_device() {
                let what = format!("has {length} bytes, {} are asked for", pages * PAGE as u64);
                return Err(Failure::new(&target.label, what, "give a smaller --size"));
            }
            if let Err(failure) = target.stamp(present, prepare::stamp_page) {
                let undone = if made { fs::remove_file(path) } else { target.file.set_len(length) };
                return match undone {
                    Ok(()) => Err(failure),
                    Err(e) => Err(Failure::new(failure, format!("and cannot undo: {e}"), "remove it yourself")),
                };
            }
        }
        Ok(target)
    }

    /// Makes a file without a name in `dir`. It is gone when this process ends, however it ends. `contents` is as for [`prepare::fill`].
    ///
    /// # Errors
    ///
    /// The file cannot be made or stamped.
    pub fn temporary(dir: &Path, size: Size, contents: fn(&mut [u8], u64)) -> Result<Target, Failure> {
        let target = Target::unnamed(dir, size)?;
        target.stamp(0, contents)?;
        Ok(target)
    }

    /// Makes a file without a name in `dir` that is one hole. It is gone when this process ends.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn hole(dir: &Path, size: Size) -> Result<Target, Failure> {
        let target = Target::unnamed(dir, size)?;
        prepare::make_sparse(&target.file, &target.label, target.pages)?;
        Ok(target)
    }

    fn unnamed(dir: &Path, size: Size) -> Result<Target, Failure> {
        let label = format!("temporary file in {}", dir.display());
        let file = tempfile::tempfile_in(dir).map_err(|e| {
            Failure::new(&label, format!("cannot make it: {e}"), "name a writable place with --file or --dir")
        })?;
        // The file has no name, so workers open it through this process's descriptor.
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        Ok(Target { file, path, label, pages: size.0 / PAGE as u64, place: dir.to_owned() })
    }

    /// A run over the file. Its advice is normal, its epoch is 0, and it has a warm-up. The caller may change these.
    pub fn spec(
        &self,
        engine: Engine,
        pattern: Pattern,
        op: Op,
        threads: u32,
        memory: Option<u64>,
        seconds: f64,
    ) -> Spec {
        let (path, label, pages) = (self.path.clone(), self.label.clone(), self.pages);
        let (advice, epoch, cold) = (Advice::Normal, 0, false);
        Spec { engine, pattern, op, threads, advice, path, label, pages, memory, seconds, epoch, cold }
    }

    /// Makes the file ready for a run. A run that writes gets a new epoch, a fill gets an empty file, and the file is dropped from the page
    /// cache.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn ready(&self, spec: &mut Spec) -> Result<Launch, Failure> {
        if spec.op.writes() {
            spec.epoch = prepare::next_epoch(&self.file, &self.label)?;
        }
        let mut launch = Launch::default();
        if spec.pattern == Pattern::Fill {
            prepare::make_sparse(&self.file, &self.label, self.pages)?;
            // If the run fails, the file is emptied. Otherwise the holes among its pages would look like damage at its next use. If
            // emptying fails, the file stays, and is refused with a message that says so.
            let file = self.file.try_clone().map_err(|e| Failure::new(&self.label, e, "check `ulimit -n`"))?;
            launch.undo = Some(Undo::by(move || drop(file.set_len(0))));
        }
        make_cold(&self.file, &self.label, self.bytes())?;
        Ok(launch)
    }

    /// The length that is used, bytes.
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }

    /// Whether it is a regular file, which can be emptied, and not a device.
    pub fn is_regular(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.is_file())
    }

    /// Whether the file can be opened with O_DIRECT.
    pub fn takes_direct_io(&self) -> bool {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path).is_ok()
    }

    fn stamp(&self, from: u64, contents: fn(&mut [u8], u64)) -> Result<(), Failure> {
        let bar = progress_bar(
            (self.pages - from) * PAGE as u64,
            "preparing the file {bar:40} {bytes}/{total_bytes} {bytes_per_sec}",
        );
        let result = prepare::fill(&self.file, &self.label, from, self.pages, contents, |done| {
            bar.set_position(done * PAGE as u64);
            !interrupt::requested()
        });
        bar.finish_and_clear();
        interrupt::check()?;
        Ok(result?)
    }
}

/// The length that a benchmark's file will have, bytes: the size that the user gives, else the length of the existing file, else `default`.
///
/// # Errors
///
/// `--size` is zero, or no multiple of a page.
pub fn length_for(file: Option<&Path>, size: Option<Size>, default: u64) -> Result<u64, Failure> {
    let existing = file.map_or(0, existing_bytes);
    match size {
        Some(size) if !size.0.is_multiple_of(PAGE as u64) || size.0 == 0 => {
            let up = Size(size.0.max(1).next_multiple_of(PAGE as u64));
            Err(Failure::usage("--size", format!("{size} is not a multiple of 4096"), format!("give {up}")))
        }
        Some(size) => Ok(size.0),
        None if existing > 0 => Ok(existing),
        None => Ok(default),
    }
}

/// The length of the regular file or block device at `path`, rounded down to whole pages, bytes. 0: there is no such file that can be
/// opened.
pub fn existing_bytes(path: &Path) -> u64 {
    let is_data = path.metadata().is_ok_and(|m| m.is_file() || m.file_type().is_block_device());
    let length = is_data.then(|| File::open(path)?.seek(SeekFrom::End(0)));
    length.and_then(io::Result::ok).unwrap_or(0) / PAGE as u64 * PAGE as u64
}

/// Checks that a file of `bytes` is large enough for the greatest of these numbers of threads.
///
/// # Errors
///
/// The file is too small. The message gives the least size.
pub fn enough_for(bytes: u64, threads: &[u32]) -> Result<(), Failure> {
    let most = threads.iter().copied().max().unwrap_or(1);
    let least = u64::from(most) * STRIDE_PAGES * PAGE as u64;
    match bytes < least {
        true => {
            let what = format!("{} is too small for {}", Size(bytes), count_threads(most));
            Err(Failure::usage("--size", what, format!("give at least {}, or fewer --threads", Size(least))))
        }
        false => Ok(()),
    }
}

/// A number of threads, in words.
pub fn count_threads(count: u32) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

/// Drops the first `bytes` of a file from the page cache. Warns the first time that some pages stay there.
///
/// # Errors
///
/// The system's error.
pub fn make_cold(file: &File, label: &str, bytes: u64) -> Result<(), Failure> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let left = cold::make_cold(file, bytes).map_err(|e| {
        Failure::new(label, format!("cannot be dropped from the page cache: {e}"), "check the file and its device")
    })?;
    if left > 0 && !WARNED.swap(true, Ordering::Relaxed) {
        eprintln!(
            "fastmap: {label}: {left} of its pages stay in the page cache and favour mmap and pread: \
             close other users of the file, and do not put it on a memory file system"
        );
    }
    Ok(())
}

/// A folder for a temporary file of `bytes`. It is the first of the current directory, /var/tmp and the home directory that can be written
/// to, is not in memory, and has room. If there is none, it is the current directory. A warning is printed if that is in memory.
pub fn directory_for(bytes: u64) -> PathBuf {
    let home = env::var_os("HOME").map(PathBuf::from);
    let candidates = [Some(PathBuf::from(".")), Some(PathBuf::from("/var/tmp")), home];
    let suits = |dir: &PathBuf| {
        !FileSystem::of(dir).is_memory()
            && tempfile::tempfile_in(dir).is_ok()
            && File::open(dir).and_then(|d| prepare::free_bytes(&d)).is_ok_and(|free| free > bytes + bytes / 20)
    };
    candidates.into_iter().flatten().find(suits).unwrap_or_else(|| {
        let here = PathBuf::from(".");
        if FileSystem::of(&here).is_memory() {
            eprintln!(
                "fastmap: current directory: is a memory file system: name a place on a disk with --file or --dir"
            );
        }
        here
    })
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn remedy_of_open(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::IsADirectory => "name a file in it",
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "make its directory first",
        io::ErrorKind::PermissionDenied => "make it readable and writable, or name another file",
        io::ErrorKind::ReadOnlyFilesystem => "name a file on a writable file system, or use --op read",
        _ => "name another file",
    }
}
