//! The folder of records, and the files in it that are records. Only these are touched: by name, owner, kind and mode, and by a descriptor
//! of a folder that nobody else can change.

use super::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::fs::{fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An open folder of records.
pub(super) struct Folder(OwnedFd);

/// A record in it.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub bytes: u64,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// What group and others may do to a folder that is another's.
const OTHERS_MAY_WRITE: u32 = 0o022;

impl Folder {
    /// Opens it. `None` where it is not there.
    pub fn open(path: &Path) -> Result<Option<Folder>, Error> {
        open(path, false)
    }

    /// Opens it, and makes it and those above it where they are not there.
    pub fn make(path: &Path) -> Result<Folder, Error> {
        open(path, true)?.ok_or_else(|| Error::Folder(path.to_owned(), io::ErrorKind::NotFound.into()))
    }

    /// Reads a record, or as much of it.
    pub fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        if !self.stat(name).is_some_and(|stat| is_record(name, &stat)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces a record as a whole.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.{}", std::process::id());
        // A process of this number may have been killed here, and left its file.
        self.remove(&temporary);
        let written = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            File::from(openat(&self.0, &temporary[..], flags, mode)?).write_all(bytes)?;
            Ok(renameat(&self.0, &temporary[..], &self.0, name)?)
        };
        written().inspect_err(|_| self.remove(&temporary))
    }

    /// Removes a record. Another process may have removed it already.
    pub fn remove(&self, name: &str) {
        let _ = unlinkat(&self.0, name, AtFlags::empty());
    }

    /// The records in it.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Some(stat) = self.stat(name).filter(|stat| is_record(name, stat)) else { continue };
            let modified = (stat.st_mtime, stat.st_mtime_nsec as i64);
            found.push(Entry { name: name.to_owned(), bytes: stat.st_size as u64, modified });
        }
        Ok(found)
    }

    fn stat(&self, name: &str) -> Option<Stat> {
        statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }
}

/// Whether a file is a record of this user's: `HASH.pages` or `HASH.files`, regular, and for nobody else.
fn is_record(name: &str, stat: &Stat) -> bool {
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    name.strip_suffix(".pages").or_else(|| name.strip_suffix(".files")).is_some_and(is_hash)
        && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == user()
        && stat.st_mode & 0o077 == 0
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Opens the folder by the one that has the one that has it (`$XDG_CACHE_HOME`). The last two are made here, and must be this user's alone.
fn open(path: &Path, is_made: bool) -> Result<Option<Folder>, Error> {
    let failed = |error: io::Error| Error::Folder(path.to_owned(), error);
    let names = path.parent().and_then(|above| Some((above.parent()?, above.file_name()?, path.file_name()?)));
    let (base, middle, last) = names.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    if user() == 0 {
        check_for_root(base)?;
    }
    let opened = || openat(CWD, base, FOLDER | OFlags::PATH, Mode::empty());
    let mut folder = match opened() {
        Err(Errno::NOENT) if is_made => {
            DirBuilder::new().recursive(true).mode(0o700).create(base).map_err(failed)?;
            opened().map_err(|error| failed(error.into()))?
        }
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(|error| failed(error.into()))?,
    };
    let mut at = base.to_owned();
    for name in [middle, last] {
        at.push(name);
        match step(&folder, name, &at, is_made)? {
            Some(next) => folder = next,
            None => return Ok(None),
        }
    }
    Ok(Some(Folder(folder)))
}

/// Opens `name` in `folder`. It is a folder of this user's that nobody else may write.
fn step(folder: &OwnedFd, name: &OsStr, at: &Path, is_made: bool) -> Result<Option<OwnedFd>, Error> {
    let failed = |error: Errno| Error::Folder(at.to_owned(), error.into());
    let refused = |why: String| Err(Error::NotOurs(at.to_owned(), why));
    if is_made {
        match mkdirat(folder, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let next = match openat(folder, name, FOLDER | OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => {
            let is_link = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
            return if is_link { refused("is a symbolic link".into()) } else { Err(failed(error)) };
        }
        Ok(next) => next,
    };
    let stat = fstat(&next).map_err(failed)?;
    match stat {
        _ if stat.st_uid != user() => refused(format!("belongs to user {}, and not to {}", stat.st_uid, user())),
        _ if stat.st_mode & OTHERS_MAY_WRITE != 0 => refused("others may write in it".into()),
        _ => Ok(Some(next)),
    }
}

/// Root's records are kept where nobody else has a say: the folder and all above it, and links on the way, are root's. Otherwise the owner of
/// one (of a HOME that is not root's) could lead root to any place.
fn check_for_root(base: &Path) -> Result<(), Error> {
    let there = base.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let real = there.canonicalize().map_err(|error| Error::Folder(there.to_owned(), error))?;
    let ways: [&Path; 2] = [base, &real];
    for path in ways.into_iter().flat_map(Path::ancestors) {
        // What is not there yet will be root's.
        let Ok(one) = path.symlink_metadata() else { continue };
        let refused = |why: String| Err(Error::NotOurs(PathBuf::from(path), why));
        if one.uid() != 0 {
            return refused(format!("belongs to user {}, and root's records do not go there", one.uid()));
        }
        // In a folder like /tmp nobody can replace what is root's.
        let is_open = one.is_dir() && one.mode() & OTHERS_MAY_WRITE != 0 && one.mode() & 0o1000 == 0;
        if is_open && (one.gid() != 0 || one.mode() & 0o002 != 0) {
            return refused("others may write in it".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const RECORD: &str = "0123456789abcdef.pages";

    /// In the folder for temporary files: where tests run as root, the sources may be another user's.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("fastmap/warm");
        (place, path)
    }

    #[test]
    fn only_records_are_seen_and_removed() {
        let (_place, path) = place();
        assert!(Folder::open(&path).unwrap().is_none());
        let folder = Folder::make(&path).unwrap();
        folder.replace(RECORD, b"bytes").unwrap();
        let others = ["document.txt", "0123456789ABCDEF.pages", "0123456789abcdef.pages.7", "abc.files", "b.pages"];
        others.iter().for_each(|name| std::fs::write(path.join(name), "x").unwrap());
        let open = "fedcba9876543210.pages";
        std::fs::write(path.join(open), "x").unwrap();
        std::fs::set_permissions(path.join(open), PermissionsExt::from_mode(0o644)).unwrap();
        symlink(path.join(others[0]), path.join("1111111111111111.files")).unwrap();
        let names: Vec<_> = folder.entries().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [RECORD]);
        assert_eq!(folder.read(RECORD, 3).unwrap(), b"byt");
        assert!(folder.read("1111111111111111.files", 3).is_err() && folder.read(open, 3).is_err());
        folder.remove(RECORD);
        assert!(folder.entries().unwrap().is_empty() && path.join(others[0]).exists());
    }

    #[test]
    fn a_link_and_a_folder_that_others_may_write_are_refused() {
        let (place, path) = place();
        let victim = place.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        symlink(&victim, &path).unwrap();
        let refused = |path: &Path| match (Folder::open(path), Folder::make(path)) {
            (Err(Error::NotOurs(one, why)), Err(Error::NotOurs(other, _))) => {
                assert_eq!(one, other);
                why
            }
            _ => panic!("{path:?}"),
        };
        assert_eq!(refused(&path), "is a symbolic link");
        // Nor is one above it.
        let link = place.path().join("link");
        symlink(path.parent().unwrap(), &link).unwrap();
        assert_eq!(refused(&link.join("warm")), "is a symbolic link");
        std::fs::remove_file(&path).unwrap();
        drop(Folder::make(&path).unwrap());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert_eq!(refused(&path), "others may write in it");
        assert!(std::fs::read_dir(&victim).unwrap().next().is_none());
    }

    #[test]
    fn another_users_folder_is_refused() {
        let (place, path) = place();
        drop(Folder::make(&path).unwrap());
        if user() != 0 {
            return assert!(Folder::open(&path).is_ok(), "only root can give folders away");
        }
        let is_refused = |of: &Path| {
            std::os::unix::fs::chown(of, Some(65534), Some(65534)).unwrap();
            let found = Folder::make(&path);
            std::os::unix::fs::chown(of, Some(0), Some(0)).unwrap();
            matches!(found, Err(Error::NotOurs(at, why)) if at == *of && why.contains("belongs to user 65534"))
        };
        // A user's HOME, for root, too.
        for of in [&path, path.parent().unwrap(), &place.path().canonicalize().unwrap()] {
            assert!(is_refused(of), "{of:?}");
        }
        assert!(Folder::make(&path).is_ok());
    }
}
