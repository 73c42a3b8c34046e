//! The files on slow storage: a made-up one, or the files of a folder.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use fastmap_cli::failure::Failure;

use crate::substrates::{PAGE, prepare};

/// A file on slow storage.
#[derive(Debug)]
pub struct Shown {
    /// Its name. The file system has only one folder.
    pub name: OsString,
    /// Its length, bytes.
    pub bytes: u64,
    /// The time of its last change.
    pub modified: SystemTime,
    /// Whether it can be written to, within its length.
    pub writable: bool,
    /// The file with its contents. None: they are made up.
    content: Option<File>,
}

impl Shown {
    /// A made-up file. It holds the same bytes as the experiments' files.
    pub fn made_up(name: &str, bytes: u64) -> Shown {
        Shown { name: name.into(), bytes, modified: SystemTime::now(), writable: false, content: None }
    }

    /// The files of a folder, sorted by name.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the folder has no files.
    pub fn of_folder(folder: &Path, writable: bool) -> Result<Vec<Shown>, Failure> {
        let failed = |path: &Path, error: io::Error| {
            Failure::new(path.display(), format!("cannot be read: {error}"), "name a folder of files that you may read")
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))? {
            let entry = entry.map_err(|error| failed(folder, error))?;
            let path = entry.path();
            // Links count as the files that they lead to.
            let data = path.metadata().map_err(|error| failed(&path, error))?;
            if data.is_file() {
                let opened = OpenOptions::new().read(true).write(writable).open(&path);
                let content = Some(opened.map_err(|error| failed(&path, error))?);
                let modified = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Shown { name: entry.file_name(), bytes: data.len(), modified, writable, content });
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        match found.is_empty() {
            true => Err(Failure::new(folder.display(), "has no files", "name a folder that has some")),
            false => Ok(found),
        }
    }

    /// Writes bytes at the offset `at`.
    ///
    /// # Errors
    ///
    /// The system's error, or EACCES if the file can only be read.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.content {
            Some(file) if self.writable => file.write_all_at(bytes, at),
            _ => Err(io::Error::from_raw_os_error(libc::EACCES)),
        }
    }

    /// Reads bytes at the offset `at`. The file must be long enough.
    ///
    /// # Errors
    ///
    /// The system's error, or an end of file if the file has become shorter.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Some(file) => file.read_exact_at(bytes, at),
            None => {
                make_up(at, bytes);
                Ok(())
            }
        }
    }
}

fn make_up(mut at: u64, mut bytes: &mut [u8]) {
    let mut page = [0; PAGE];
    while !bytes.is_empty() {
        let (number, skipped) = (at / PAGE as u64, at as usize % PAGE);
        let count = (PAGE - skipped).min(bytes.len());
        let (part, rest) = bytes.split_at_mut(count);
        if count == PAGE {
            prepare::stamp_page(part, number);
        } else {
            prepare::stamp_page(&mut page, number);
            part.copy_from_slice(&page[skipped..skipped + count]);
        }
        (at, bytes) = (at + count as u64, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_bytes_are_the_same_wherever_a_read_begins() {
        let file = Shown::made_up("data", 10 * PAGE as u64);
        let mut all = vec![0; 10 * PAGE];
        file.read(0, &mut all).unwrap();
        for (at, len) in [(0, 1), (4095, 2), (4096, 4096), (100, 12_000), (40_959, 1), (8191, 8194)] {
            let mut part = vec![0; len];
            file.read(at as u64, &mut part).unwrap();
            assert_eq!(part, all[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn a_folder_has_its_files_and_no_subfolder() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Shown::of_folder(folder.path(), false).unwrap_err().to_string().contains("has no files"));
        fs::write(folder.path().join("b"), "second").unwrap();
        fs::write(folder.path().join("a"), "first").unwrap();
        fs::create_dir(folder.path().join("c")).unwrap();
        let files = Shown::of_folder(folder.path(), false).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.to_str().unwrap(), file.bytes)).collect();
        assert_eq!(names, [("a", 5), ("b", 6)]);
        let mut bytes = [0; 3];
        files[1].read(2, &mut bytes).unwrap();
        assert_eq!(&bytes, b"con");
        assert!(files[1].read(4, &mut bytes).is_err(), "it is shorter");
    }
}
