//! Remembers which pages of files are in memory, and reads them back after a restart of the machine, or where memory was taken away
//! meanwhile.
//!
//! * [`Records::save`] asks the kernel which pages of a file the page cache has, and writes them down as runs.
//! * [`load`](fn@load) reads them back, *hot* pages first. A page is hot if a program had it mapped. Where that is not known, a page is
//!   hot if it was in memory at the save before, too.
//!
//! A file that has changed in length or modification time since is forgotten. The contents of pages are not kept.

mod folder;
mod load;
mod page_set;
mod record;
mod residency;

pub use load::{Loaded, load};
pub use page_set::PageSet;
pub use record::{Remembered, Version, Warm};
pub use residency::add_mapped;

use crate::observe::{Key, open_found, open_only};
use folder::Folder;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A folder of records: `HASH.pages` for each file, and `HASH.files` for each program.
#[derive(Debug, Clone)]
pub struct Records {
    folder: PathBuf,
}

/// A file's record; or the path of a record that cannot be used, and why.
pub type Found = Result<Remembered, (PathBuf, Error)>;

/// Why a file is not remembered, or not read back.
#[derive(Debug)]
pub enum Error {
    /// Neither `$XDG_CACHE_HOME` nor `$HOME` says where records are.
    NoFolder,
    /// The folder of records, or one of them, cannot be read or written.
    Folder(PathBuf, io::Error),
    /// This folder, in which records are, or one above it, is one that others may change: why.
    NotOurs(PathBuf, String),
    /// The file itself cannot be opened or read.
    File(io::Error),
    /// It is not a regular file.
    Irregular,
    /// It is on a file system in memory.
    InMemory,
    /// The kernel does not say what of it is in memory.
    Untold,
    /// There is no record of it.
    Unknown,
    /// Its length or its modification time has changed since.
    Changed,
    /// Its record is damaged: how.
    Damaged(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoFolder => f.write_str("neither XDG_CACHE_HOME nor HOME says where records are"),
            Error::Folder(folder, error) => write!(f, "{}: {error}", folder.display()),
            Error::NotOurs(folder, why) => write!(f, "{}: {why}", folder.display()),
            Error::File(error) => error.fmt(f),
            Error::Irregular => f.write_str("is not a regular file"),
            Error::InMemory => f.write_str("on a file system that is memory"),
            Error::Untold => f.write_str("the kernel does not say what of it is in memory"),
            Error::Unknown => f.write_str("nothing is remembered of it"),
            Error::Changed => f.write_str("it has changed since it was remembered"),
            Error::Damaged(why) => write!(f, "its record is damaged ({why})"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Advice to the user.
    pub fn remedy(&self) -> &'static str {
        match self {
            Error::NoFolder => "set one",
            Error::Folder(..) => "make it a folder that you may write, with room, or set XDG_CACHE_HOME to one",
            Error::NotOurs(..) if rustix::process::geteuid().is_root() => {
                "set XDG_CACHE_HOME to a folder that, with all above it, is root's"
            }
            Error::NotOurs(..) => {
                "make it a folder of your own that nobody else may write, or set XDG_CACHE_HOME to one"
            }
            Error::File(_) | Error::Irregular => "name a file that you may read",
            Error::InMemory => "it needs none of this: nothing of it is read from a disk",
            Error::Untold => "do this as the file's owner, or as a user who may write it",
            Error::Unknown | Error::Changed | Error::Damaged(_) => {
                "save it while it is in memory: fastmap warm save FILE"
            }
        }
    }
}

impl Records {
    /// Bytes of all records at most, and their number at most. The oldest go.
    pub const MOST: (u64, usize) = (64 << 20, 1024);

    /// The records of this user, in `fastmap/warm` of `$XDG_CACHE_HOME` or of `~/.cache`.
    ///
    /// # Errors
    /// Neither variable is set.
    pub fn of_user() -> Result<Records, Error> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        cache.map(|cache| Records::at(cache.join("fastmap/warm"))).ok_or(Error::NoFolder)
    }

    /// The records in this folder, which is made when it is needed.
    pub fn at(folder: PathBuf) -> Records {
        Records { folder }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Checks that the folder, if it is there, is this user's alone. (Everything else does, too.)
    ///
    /// # Errors
    /// It is another user's, a symbolic link, or one that others may write; or it cannot be read.
    pub fn check(&self) -> Result<(), Error> {
        Folder::open(&self.folder).map(drop)
    }

    /// Remembers which pages of a file are in memory. `path` is absolute and without symbolic links. `mapped` has the pages that a
    /// program has mapped, or had mapped last, where that is known. They are remembered where the kernel does not say what is in
    /// memory. With `only`, the file is opened only if it is this one.
    ///
    /// # Errors
    /// The file cannot be read, is not a regular one, or is in memory; the kernel does not say, and `mapped` is not given; or the
    /// record cannot be written.
    pub fn save(&self, path: &Path, only: Option<Key>, mapped: Option<&PageSet>) -> Result<Remembered, Error> {
        let file = open(path, only)?;
        let version = Version::of(&file.metadata().map_err(Error::File)?);
        let told = residency::in_memory(&file, version.length).map_err(Error::File)?;
        let present = told.or_else(|| mapped.cloned()).ok_or(Error::Untold)?;
        let hot = mapped.cloned().unwrap_or_else(|| {
            let before = self.find(path).ok().filter(|before| before.version == version);
            before.map(|before| before.pages()).unwrap_or_default()
        });
        let saved = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let remembered = Remembered::new(path, version, saved, &present, &hot);
        self.write(&name(path, "pages"), &remembered.encode())?;
        Ok(remembered)
    }

    /// The record of a file, whether or not the file has changed since.
    ///
    /// # Errors
    /// There is no record, or it is damaged.
    pub fn find(&self, path: &Path) -> Result<Remembered, Error> {
        let remembered = self.read_pages(&name(path, "pages"))?;
        if remembered.path == path { Ok(remembered) } else { Err(Error::Unknown) }
    }

    /// Opens a file with what is remembered of it, to be [loaded](fn@load).
    ///
    /// # Errors
    /// There is no record, or it is damaged; the file cannot be read, or has changed since.
    pub fn open(&self, path: &Path) -> Result<(Arc<File>, Remembered), Error> {
        let remembered = self.find(path)?;
        let file = open(path, None)?;
        let version = Version::of(&file.metadata().map_err(Error::File)?);
        if version != remembered.version {
            return Err(Error::Changed);
        }
        // The kernel then reads the pieces that are asked for, and nothing around them.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).map_err(|error| Error::File(error.into()))?;
        Ok((Arc::new(file), remembered))
    }

    /// All that is remembered of files. A damaged record gives its path and the error.
    ///
    /// # Errors
    /// The folder is there but cannot be read.
    pub fn all(&self) -> Result<Vec<Found>, Error> {
        let records = self.entries()?.into_iter().map(|entry| entry.name);
        let records = records.filter(|name| name.ends_with(".pages"));
        Ok(records.map(|name| self.read_pages(&name).map_err(|error| (self.folder.join(name), error))).collect())
    }

    /// Bytes that all records take.
    ///
    /// # Errors
    /// The folder is there but cannot be read.
    pub fn used(&self) -> Result<u64, Error> {
        Ok(self.entries()?.iter().map(|entry| entry.bytes).sum())
    }

    /// Remembers which files a program had mapped. [`key`] makes its `key`.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn note_files(&self, key: &str, files: &[PathBuf]) -> Result<(), Error> {
        self.write(&format!("{key}.files"), &record::encode_files(files))
    }

    /// The files that a program had mapped. None where nothing is known.
    pub fn files_of(&self, key: &str) -> Vec<PathBuf> {
        let bytes = self.read(&format!("{key}.files")).ok();
        bytes.and_then(|bytes| record::decode_files(&bytes).ok()).unwrap_or_default()
    }

    fn read_pages(&self, record: &str) -> Result<Remembered, Error> {
        Remembered::decode(&self.read(record)?).map_err(Error::Damaged)
    }

    fn read(&self, record: &str) -> Result<Vec<u8>, Error> {
        let folder = Folder::open(&self.folder)?.ok_or(Error::Unknown)?;
        let bytes = folder.read(record, record::MOST_BYTES + 1).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Unknown,
            _ => Error::Folder(self.folder.join(record), error),
        })?;
        if bytes.len() as u64 > record::MOST_BYTES { Err(Error::Damaged("it is too long")) } else { Ok(bytes) }
    }

    /// Replaces a record as a whole: another process sees the old one or the new one.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let folder = Folder::make(&self.folder)?;
        folder.replace(name, bytes).map_err(|error| Error::Folder(self.folder.clone(), error))?;
        self.drop_oldest(Self::MOST)
    }

    fn drop_oldest(&self, (bytes, count): (u64, usize)) -> Result<(), Error> {
        let Some(folder) = Folder::open(&self.folder)? else { return Ok(()) };
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.modified));
        let mut used = 0;
        for (index, entry) in entries.iter().enumerate() {
            used += entry.bytes;
            if index >= count || used > bytes {
                folder.remove(&entry.name);
            }
        }
        Ok(())
    }

    /// The records in the folder. None where there is no folder.
    fn entries(&self) -> Result<Vec<folder::Entry>, Error> {
        let Some(folder) = Folder::open(&self.folder)? else { return Ok(Vec::new()) };
        folder.entries().map_err(|error| Error::Folder(self.folder.clone(), error))
    }
}

/// A hash that tells a program's command from others. `words` are its path, its folder and its arguments.
pub fn key<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> String {
    let all: Vec<u8> = words.into_iter().flat_map(|word| word.iter().chain(&[0])).copied().collect();
    format!("{:016x}", record::hash(&all))
}

/// The name of a file's record.
fn name(path: &Path, kind: &str) -> String {
    format!("{:016x}.{kind}", record::hash(path.as_os_str().as_bytes()))
}

/// Opens a file of which pages can be remembered: no link, pipe or device. With `only`, no other file.
fn open(path: &Path, only: Option<Key>) -> Result<File, Error> {
    let failed = |error: rustix::io::Errno| Error::File(error.into());
    let file = if let Some(key) = only {
        let found = path.to_str().and_then(|path| open_only(path, key));
        found.ok_or(Error::File(io::ErrorKind::NotFound.into()))?
    } else {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        if FileType::from_raw_mode(fstat(&found).map_err(failed)?.st_mode) != FileType::RegularFile {
            return Err(Error::Irregular);
        }
        open_found(&found).map_err(failed)?
    };
    if is_memory(&file).map_err(Error::File)? { Err(Error::InMemory) } else { Ok(file) }
}

/// Whether a file is in memory only: on tmpfs, ramfs or hugetlbfs.
fn is_memory(file: &File) -> io::Result<bool> {
    const KINDS: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    // SAFETY: all-zero bytes are a valid statfs, which the call fills.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        match libc::fstatfs(file.as_raw_fd(), &mut found) {
            0 => Ok(KINDS.contains(&(found.f_type as u64 & 0xffff_ffff))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    struct Place {
        folder: tempfile::TempDir,
        _cache: tempfile::TempDir,
        records: Records,
    }

    impl Place {
        /// Files on the disk that the sources are on, and records where also root may have some.
        fn new() -> Place {
            let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let cache = tempfile::tempdir().unwrap();
            let records = Records::at(cache.path().canonicalize().unwrap().join("fastmap/warm"));
            Place { folder, _cache: cache, records }
        }

        fn file(&self, name: &str, pages: u64) -> PathBuf {
            let path = self.folder.path().canonicalize().unwrap().join(name);
            let mut file = File::create(&path).unwrap();
            file.write_all(&vec![1; (pages * PAGE) as usize]).unwrap();
            file.sync_all().unwrap();
            path
        }
    }

    #[test]
    fn what_was_saved_is_found_and_read_back() {
        let place = Place::new();
        let path = place.file("a", 600);
        assert!(matches!(place.records.find(&path), Err(Error::Unknown)));
        // Memory may be short where tests run: all of it is read again.
        std::fs::read(&path).unwrap();
        let saved = place.records.save(&path, None, None).unwrap();
        assert_eq!(place.records.find(&path).unwrap(), saved);
        assert_eq!((saved.version.length, saved.hot_bytes()), (600 * PAGE, 0));
        let again = place.records.save(&path, None, None).unwrap();
        assert!(again.hot_bytes() <= again.bytes() && again.bytes() <= 600 * PAGE);
        assert!(again.hot_bytes() > 0, "what two saves had is hot");
        let files = [place.records.open(&path).unwrap()];
        let loaded = load(&files, &mut crate::observe::Memory::of(std::process::id()), || true);
        assert_eq!(loaded.asked, loaded.wanted);
        let mode = std::fs::metadata(place.records.folder()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn what_a_program_has_mapped_is_hot() {
        let place = Place::new();
        let path = place.file("a", 600);
        let mapped = std::iter::once(100..120).collect();
        let saved = place.records.save(&path, None, Some(&mapped)).unwrap();
        assert!(saved.hot_bytes() <= 20 * PAGE);
        assert!(saved.runs.iter().all(|run| !run.is_hot || (100..120).contains(&run.pages.at)));
    }

    #[test]
    fn a_file_that_has_changed_is_forgotten() {
        let place = Place::new();
        let path = place.file("a", 20);
        place.records.save(&path, None, None).unwrap();
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(20 * PAGE + 1).unwrap();
        assert!(matches!(place.records.open(&path), Err(Error::Changed)));
        place.records.save(&path, None, None).unwrap();
        assert!(place.records.open(&path).is_ok());
        File::open(&path).unwrap().set_modified(before + Duration::from_nanos(1)).unwrap();
        assert!(matches!(place.records.open(&path), Err(Error::Changed)));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(place.records.open(&path), Err(Error::File(_))));
    }

    #[test]
    fn a_damaged_record_says_nothing_and_is_shown() {
        let place = Place::new();
        let path = place.file("a", 20);
        place.records.save(&path, None, None).unwrap();
        let record = place.records.folder().join(name(&path, "pages"));
        let mut bytes = std::fs::read(&record).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&record, bytes).unwrap();
        assert!(matches!(place.records.open(&path), Err(Error::Damaged(_))));
        let all = place.records.all().unwrap();
        assert!(matches!(&all[..], [Err((at, Error::Damaged(_)))] if *at == record), "{all:?}");
        place.records.save(&path, None, None).unwrap();
        assert!(place.records.all().unwrap()[0].is_ok());
    }

    #[test]
    fn the_oldest_records_go() {
        let place = Place::new();
        let path = place.file("a", 1);
        let of = |index: u64| key([&index.to_le_bytes()[..]]);
        for index in 0..5 {
            place.records.note_files(&of(index), std::slice::from_ref(&path)).unwrap();
            let record = File::open(place.records.folder().join(format!("{}.files", of(index)))).unwrap();
            record.set_modified(SystemTime::now() - Duration::from_secs(100 - index)).unwrap();
        }
        let left = || -> Vec<bool> { (0..5).map(|index| !place.records.files_of(&of(index)).is_empty()).collect() };
        assert_eq!(left(), [true; 5]);
        place.records.drop_oldest((1 << 20, 3)).unwrap();
        assert_eq!(left(), [false, false, true, true, true]);
        place.records.drop_oldest((place.records.used().unwrap() / 3, 3)).unwrap();
        assert_eq!(left(), [false, false, false, false, true]);
    }

    #[test]
    fn what_cannot_be_remembered_is_told() {
        let place = Place::new();
        assert!(matches!(place.records.save(place.folder.path(), None, None), Err(Error::Irregular)));
        assert!(matches!(place.records.save(Path::new("/dev/null"), None, None), Err(Error::Irregular)));
        assert!(matches!(place.records.save(Path::new("/no/such"), None, None), Err(Error::File(_))));
        if let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") {
            assert!(matches!(place.records.save(file.path(), None, None), Err(Error::InMemory)));
        }
        let path = place.file("a", 1);
        let link = place.folder.path().canonicalize().unwrap().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(place.records.save(&link, None, None), Err(Error::Irregular)));
        let records = Records::at(path.join("fastmap/warm"));
        assert!(matches!(records.save(&path, None, None), Err(Error::Folder(..))));
    }

    #[test]
    fn commands_are_told_apart() {
        let one = key([&b"a"[..], b"bc"]);
        assert_eq!(one, key([&b"a"[..], b"bc"]));
        assert!(one != key([&b"ab"[..], b"c"]) && one != key([&b"a"[..], b"bc", b""]));
    }
}
