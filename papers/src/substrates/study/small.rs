//! Many small files: how long each is, what is in it, and how all become cold.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::substrates::{Error, Result, cold, prepare, stamp};

/// Pages of the shortest small file and of the longest: 16 and 64 KiB.
const SHORTEST: u64 = 4;
const LONGEST: u64 = 16;

/// A file to read, whose pages are stamped with consecutive numbers.
pub struct Piece {
    pub path: PathBuf,
    /// The number on its first page.
    pub first: u64,
    pub pages: u64,
}

/// The small files in `dir` that have `pages` pages together; their lengths follow from that number alone.
pub fn files(dir: &Path, pages: u64) -> Vec<Piece> {
    let (mut files, mut first) = (Vec::new(), 0);
    while first < pages {
        let number = files.len() as u64;
        let length = SHORTEST + stamp::mix(number + 1) % (LONGEST - SHORTEST + 1);
        let length = length.min(pages - first);
        files.push(Piece { path: dir.join(format!("{number:05}")), first, pages: length });
        first += length;
    }
    files
}

/// Makes them, stamped, and returns how many they are. `go_on` is asked before each.
///
/// # Errors
///
/// [`Error::Io`], [`Error::NoSpace`]; [`Error::Interrupted`] when told not to go on.
pub fn make_small(dir: &Path, label: &str, pages: u64, go_on: impl Fn() -> bool) -> Result<usize> {
    let files = files(dir, pages);
    for Piece { path, first, pages } in &files {
        if !go_on() {
            return Err(Error::Interrupted);
        }
        let file = File::create_new(path).map_err(|e| failed(label, "cannot make a small file", e))?;
        let mut bytes = vec![0; *pages as usize * crate::substrates::PAGE];
        for (number, page) in (*first..).zip(bytes.chunks_exact_mut(crate::substrates::PAGE)) {
            prepare::stamp_page(page, number);
        }
        io::Write::write_all(&mut &file, &bytes).map_err(|e| failed(label, "cannot write a small file", e))?;
    }
    Ok(files.len())
}

/// [`cold::make_cold`] on all of them.
///
/// # Errors
///
/// [`Error::Io`].
pub fn make_cold(dir: &Path, label: &str, pages: u64) -> Result<u64> {
    let mut left = 0;
    for piece in files(dir, pages) {
        let dropped = File::open(&piece.path)
            .and_then(|file| cold::make_cold(&file, piece.pages * crate::substrates::PAGE as u64));
        left += dropped.map_err(|e| failed(label, "cannot be dropped from the page cache", e))?;
    }
    Ok(left)
}

fn failed(label: &str, what: &'static str, source: io::Error) -> Error {
    Error::Io { thing: label.to_owned(), what, source, remedy: "name a writable place on a disk with --dir" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_small_and_have_all_pages_between_them() {
        let files = files(Path::new("/d"), 10_000);
        let mut next = 0;
        for file in &files {
            assert_eq!(file.first, next);
            assert!((1..=LONGEST).contains(&file.pages));
            next += file.pages;
        }
        assert_eq!(next, 10_000);
        assert!((900..1100).contains(&files.len()), "{} files of 10 pages on average", files.len());
        assert_eq!(files[7].path, Path::new("/d/00007"));
    }
}
