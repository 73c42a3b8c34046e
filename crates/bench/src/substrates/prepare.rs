//! The benchmark file: checks that a file is one, and stamps the pages that it lacks.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub use crate::substrates::sys::free_bytes;

use crate::substrates::{Error, PAGE, Result, stamp, sys};

/// Pages that are checked to tell whether a file is a benchmark's.
const SAMPLE: u64 = 64;

/// Pages written by one call.
const CHUNK_PAGES: usize = 1024;

/// Bytes after which the file is written back and dropped from the page cache. So preparing a file larger than memory neither fills memory
/// with dirty pages nor pushes out the pages of other programs.
const WRITE_BACK_BYTES: u64 = 256 << 20;

/// Checks that the first `pages` pages are a benchmark's. It looks at the first page, the last page, and a sample between them.
///
/// # Errors
///
/// [`Error::Foreign`] if none of these pages is stamped, [`Error::Stamp`] if only some are, [`Error::Io`].
pub fn survey(file: &File, label: &str, pages: u64) -> Result<()> {
    let mut bytes = [0; PAGE];
    let mut wrong = None;
    let mut right = 0;
    for page in (0..SAMPLE.min(pages)).map(|i| i * (pages - 1) / (SAMPLE.min(pages) - 1).max(1)) {
        file.read_exact_at(&mut bytes, page * PAGE as u64).map_err(|e| read_failed(label, e))?;
        match stamp::check_page(page, &bytes) {
            Ok(_) => right += 1,
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    match wrong {
        Some(_) if right == 0 => Err(Error::Foreign { thing: label.to_owned() }),
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Makes a page that no run has written yet.
pub fn stamp_page(bytes: &mut [u8], page: u64) {
    stamp::fill(bytes, page, stamp::FIRST_GENERATION);
}

/// Fills the pages `from..to`, which the file need not have yet, and makes them durable. `contents` puts the page with a number into
/// memory; most benchmarks use [`stamp_page`].
///
/// `progress` gets the number of pages done so far, and returns false to stop. After an error the file stays as long as it has become. The
/// caller has to undo that, since only the caller knows whether the file was there before.
///
/// # Errors
///
/// [`Error::NoSpace`], [`Error::Interrupted`] if `progress` returns false, [`Error::Io`].
pub fn fill(
    file: &File,
    label: &str,
    from: u64,
    to: u64,
    contents: fn(&mut [u8], u64),
    mut progress: impl FnMut(u64) -> bool,
) -> Result<()> {
    let needed = (to - from) * PAGE as u64;
    let free = sys::free_bytes(file).unwrap_or(u64::MAX);
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::NoSpace { thing: label.to_owned(), needed, free },
        _ => Error::Io {
            thing: label.to_owned(),
            what: "cannot write the benchmark's pages",
            source,
            remedy: "name another place with --file or --dir",
        },
    };
    match sys::reserve(file, to * PAGE as u64) {
        Err(e) if !matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
            return Err(failed(e));
        }
        _ => {}
    }
    let mut chunk = vec![0; CHUNK_PAGES * PAGE];
    let mut page = from;
    while page < to {
        let count = (to - page).min(CHUNK_PAGES as u64);
        let bytes = &mut chunk[..count as usize * PAGE];
        for (number, bytes) in (page..).zip(bytes.chunks_exact_mut(PAGE)) {
            contents(bytes, number);
        }
        file.write_all_at(bytes, page * PAGE as u64).map_err(failed)?;
        page += count;
        if (page * PAGE as u64).is_multiple_of(WRITE_BACK_BYTES) {
            file.sync_data().map_err(failed)?;
            sys::drop_cached(file).map_err(failed)?;
        }
        if !progress(page - from) {
            return Err(Error::Interrupted);
        }
    }
    file.sync_all().map_err(failed)
}

/// Makes the file one hole of `pages` pages. A program meets such a file when it is about to write a new file whose size it knows.
///
/// # Errors
///
/// [`Error::Io`].
pub fn make_sparse(file: &File, label: &str, pages: u64) -> Result<()> {
    file.set_len(0).and_then(|()| file.set_len(pages * PAGE as u64)).map_err(|source| Error::Io {
        thing: label.to_owned(),
        what: "cannot be emptied for the pattern fill",
        source,
        remedy: "make the file writable, or name another with --file",
    })
}

/// Counts one more write run in page 0, and returns its number, the epoch. The generations of that run are above all generations in the
/// file.
///
/// # Errors
///
/// [`Error::Stamp`] if page 0 is not a benchmark's, [`Error::Io`].
pub fn next_epoch(file: &File, label: &str) -> Result<u32> {
    let mut bytes = [0; PAGE];
    file.read_exact_at(&mut bytes, 0).map_err(|e| read_failed(label, e))?;
    stamp::check_page(0, &bytes)?;
    let epoch = stamp::epoch(&bytes) as u32 + 1;
    file.write_all_at(&u64::from(epoch).to_le_bytes(), stamp::EPOCH_OFFSET as u64)
        .and_then(|()| file.sync_data())
        .map_err(|source| Error::Io {
            thing: label.to_owned(),
            what: "cannot count the write run in page 0",
            source,
            remedy: "make the file writable, or use --op read",
        })?;
    Ok(epoch)
}

fn read_failed(label: &str, source: io::Error) -> Error {
    Error::Io {
        thing: label.to_owned(),
        what: "cannot read",
        source,
        remedy: "name a file that can be read, or one that does not exist yet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(pages: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        fill(&file, "file", 0, pages, stamp_page, |_| true).unwrap();
        file
    }

    #[test]
    fn a_filled_file_is_ours_also_after_growing() {
        let file = stamped(100);
        survey(&file, "file", 100).unwrap();
        fill(&file, "file", 100, 3000, stamp_page, |_| true).unwrap();
        survey(&file, "file", 3000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3000 * 4096);
    }

    #[test]
    fn other_files_are_foreign_and_damaged_ones_damaged() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100 * 4096).unwrap();
        assert!(matches!(survey(&file, "file", 100), Err(Error::Foreign { .. })));
        let file = stamped(100);
        file.write_all_at(&[1], 99 * 4096 + 100).unwrap();
        assert!(matches!(survey(&file, "file", 100), Err(Error::Stamp { page: 99, .. })));
    }

    #[test]
    fn epochs_rise_and_keep_the_file_ours() {
        let file = stamped(16);
        assert_eq!([next_epoch(&file, "file").unwrap(), next_epoch(&file, "file").unwrap()], [1, 2]);
        survey(&file, "file", 16).unwrap();
    }

    #[test]
    fn a_sparse_file_has_its_length_and_takes_no_room() {
        use std::os::unix::fs::MetadataExt;
        let file = stamped(100);
        make_sparse(&file, "file", 50).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 50 * 4096);
        assert!(metadata.blocks() * 512 <= 4096, "{} sectors", metadata.blocks());
    }

    #[test]
    fn filling_stops_when_told() {
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(fill(&file, "file", 0, 4096, stamp_page, |done| done < 2000), Err(Error::Interrupted)));
    }
}
