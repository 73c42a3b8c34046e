//! Engines without a map: they call `pread` and `pwrite`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::Access;
use crate::substrates::measure::Shadow;
use crate::substrates::{Engine, Error, Op, PAGE, Pattern, Result, Spec, stamp};

/// Pages of a call in [`Pattern::Fill`], 1 MiB. That is so many that neither calls nor the device's requests dominate the cost.
const FILL_PAGES: usize = 256;

/// Pages of a call in a direct scan, 2 MiB: the size that a program which scans past the page cache would use. Readahead is measured
/// against it. Larger calls are no faster.
const SCAN_PAGES: usize = 512;

/// `pread` and `pwrite`, buffered or direct. Each thread has one page-aligned buffer. A store reads and writes the whole page, since the
/// other bytes of the page must survive, and the stamp is checked, as through a map.
pub struct Calls<'a> {
    file: &'a File,
    label: String,
    /// Pages of the file.
    pages: u64,
    /// Whether a read fetches [`SCAN_PAGES`] pages. The operations that follow then find their pages in the buffer.
    scans: bool,
}

impl<'a> Calls<'a> {
    /// Calls on the spec's file, which is open with the flags that the engine needs.
    pub fn new(spec: &Spec, file: &'a File) -> Calls<'a> {
        let scans = spec.engine == Engine::Direct
            && spec.op == Op::Read
            && matches!(spec.pattern, Pattern::Forward | Pattern::Backward);
        Calls { file, label: spec.label.clone(), pages: spec.pages, scans }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        let remedy = "check the file and its device, or leave this engine out of --engines";
        Error::Io { thing: self.label.clone(), what, source, remedy }
    }

    fn load(&self, bytes: &mut [u8], page: u64) -> Result<()> {
        self.file.read_exact_at(bytes, page * PAGE as u64).map_err(|e| self.failed("pread failed", e))
    }

    /// The offset of `page` in the buffer. If the page is not there, the aligned [`SCAN_PAGES`] pages around it are read first.
    fn scan(&self, local: &mut Buffer, page: u64) -> Result<usize> {
        if !local.held.contains(&page) {
            let first = page - page % SCAN_PAGES as u64;
            let held = first..self.pages.min(first + SCAN_PAGES as u64);
            self.load(&mut local.memory[..(held.end - first) as usize * PAGE], first)?;
            local.held = held;
        }
        Ok((page - local.held.start) as usize * PAGE)
    }

    fn store(&self, bytes: &[u8], page: u64) -> Result<()> {
        self.file.write_all_at(bytes, page * PAGE as u64).map_err(|e| self.failed("pwrite failed", e))
    }
}

impl Access for Calls<'_> {
    type Local = Buffer;

    fn local(&self) -> Result<Self::Local> {
        let memory = memmap2::MmapMut::map_anon(FILL_PAGES.max(SCAN_PAGES) * PAGE);
        Ok(Buffer { memory: memory.map_err(|e| self.failed("no memory for a buffer", e))?, filled: 0, held: 0..0 })
    }

    fn read(&self, local: &mut Self::Local, page: u64) -> Result<()> {
        if self.scans {
            let at = self.scan(local, page)?;
            return stamp::check_stamp_in(page, &local.memory[at..at + PAGE]);
        }
        let bytes = &mut local.memory[..PAGE];
        self.load(bytes, page)?;
        stamp::check_stamp_in(page, bytes)
    }

    fn write(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        self.read(local, page)?;
        let bytes = &mut local.memory[..PAGE];
        stamp::set_generation(bytes, shadow.next(page));
        self.store(bytes, page)
    }

    fn rmw(&self, local: &mut Self::Local, page: u64, shadow: &Shadow) -> Result<()> {
        let bytes = &mut local.memory[..PAGE];
        self.load(bytes, page)?;
        shadow.check(page, stamp::generation(bytes))?;
        stamp::set_generation(bytes, shadow.next(page));
        self.store(bytes, page)
    }

    fn fill(&self, local: &mut Self::Local, page: u64, last: bool, shadow: &Shadow) -> Result<()> {
        let from = local.filled * PAGE;
        stamp::fill(&mut local.memory[from..from + PAGE], page, shadow.next(page));
        local.filled += 1;
        // Calls end at the file's whole megabytes, wherever the thread's part began.
        if last || (page + 1).is_multiple_of(FILL_PAGES as u64) {
            let count = std::mem::take(&mut local.filled);
            self.store(&local.memory[..count * PAGE], page + 1 - count as u64)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failed("fdatasync failed", e))
    }
}

/// A thread's memory for [`Calls`].
pub struct Buffer {
    /// Anonymous memory: it is page-aligned, as direct I/O needs, and takes no memory where it is not touched.
    memory: memmap2::MmapMut,
    /// The number of pages at its start that are filled and not yet written.
    filled: usize,
    /// The pages of the file that a scan has read to its start.
    held: Range<u64>,
}
