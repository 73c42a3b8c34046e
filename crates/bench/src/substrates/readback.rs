//! The read-back after a run that stored to the file: reads every byte of the file from the device, and checks it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::substrates::measure::Shadow;
use crate::substrates::{Error, PAGE, Result, Spec, cold, stamp};

/// Pages of one read.
const CHUNK_PAGES: u64 = 256;

/// Reads the spec's file back and checks each page: its last store has arrived, and every other byte is unchanged.
///
/// # Errors
///
/// [`Error::Stamp`] or [`Error::Generation`] for the first wrong page that a thread meets, [`Error::Io`].
pub fn read_back(spec: &Spec, shadow: &Shadow) -> Result<()> {
    stamped(&spec.path, &spec.label, spec.pages, shadow)
}

/// Like [`read_back`], for a file of `pages` pages that messages call `label`.
///
/// # Errors
///
/// As [`read_back`].
pub fn stamped(path: &Path, label: &str, pages: u64, shadow: &Shadow) -> Result<()> {
    each_page(path, label, pages, &|page, bytes| shadow.check(page, stamp::check_page(page, bytes)?))
}

/// Reads `pages` pages through a fresh descriptor, after the file was dropped from the page cache. Calls `check` for each page.
///
/// # Errors
///
/// The first error that `check` returns in a thread, or [`Error::Io`].
pub fn each_page(
    path: &Path,
    label: &str,
    pages: u64,
    check: &(dyn Fn(u64, &[u8]) -> Result<()> + Sync),
) -> Result<()> {
    let failed = |source: io::Error| Error::Io {
        thing: label.to_owned(),
        what: "cannot be read back",
        source,
        remedy: "check the file and its device",
    };
    let file = File::open(path).map_err(failed)?;
    cold::make_cold(&file, pages * PAGE as u64).map_err(failed)?;
    let next = AtomicU64::new(0);
    let check_chunks = || -> Result<()> {
        let mut chunk = vec![0; CHUNK_PAGES as usize * PAGE];
        loop {
            let first = next.fetch_add(CHUNK_PAGES, Relaxed);
            if first >= pages {
                return Ok(());
            }
            let count = CHUNK_PAGES.min(pages - first);
            let bytes = &mut chunk[..count as usize * PAGE];
            file.read_exact_at(bytes, first * PAGE as u64).map_err(failed)?;
            for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
                check(page, bytes)?;
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(8));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(check_chunks)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
