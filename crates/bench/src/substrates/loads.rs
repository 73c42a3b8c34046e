//! A file that is loaded.
//!
//! Either every page is read once, as a program does at its start that maps a model's weights or an index. Or some rows are read, all of
//! which are known in advance.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::substrates::pattern::Scatter;
use crate::substrates::{Engine, Error, Meter, PAGE, Reading, Result, engine, stamp};

/// Pages of a piece: 256 KiB.
const PIECE: u64 = 64;
/// Threads that read if nothing is mapped.
pub const THREADS: usize = 32;
/// Most pages that are gathered.
const ROWS: u64 = 1000;

/// The order in which the pieces of the file are loaded. The pages of a piece are loaded upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// From the beginning to the end.
    Forward,
    /// Shuffled, as the tensors of a model are asked for.
    Pieces,
    /// A thousand random pages, each once, whose list is known in advance. The neighbours of a vector are read so.
    Gather,
}

/// One load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The engine. [`Engine::Pread`] reads with [`THREADS`] threads. All others map the file, and one thread touches it or calls the
    /// engine's gather.
    pub engine: Engine,
    /// The order.
    pub order: Order,
    /// A stamped file.
    pub path: PathBuf,
    /// The length of the file, pages.
    pub pages: u64,
}

impl LoadSpec {
    /// Pages of each piece. The last piece of the file may have fewer.
    fn each(&self) -> u64 {
        if self.order == Order::Gather { 1 } else { PIECE }
    }

    /// The number of pieces in the file.
    fn all_pieces(&self) -> u64 {
        self.pages.div_ceil(self.each())
    }

    /// The number of pieces that are loaded.
    fn pieces(&self) -> u64 {
        if self.order == Order::Gather { self.pages.min(ROWS) } else { self.all_pieces() }
    }

    /// The number of pages that are loaded.
    pub fn touched(&self) -> u64 {
        if self.order == Order::Gather { self.pieces() } else { self.pages }
    }

    /// The pages of the piece at a place in the order.
    fn piece(&self, place: u64, scatter: &Scatter) -> std::ops::Range<u64> {
        let piece = if self.order == Order::Forward { place } else { scatter.page_of(place) };
        piece * self.each()..((piece + 1) * self.each()).min(self.pages)
    }

    fn failed(&self, source: io::Error) -> Error {
        let thing = self.path.display().to_string();
        Error::Io { thing, what: "cannot be loaded", source, remedy: "check the file and its device" }
    }
}

/// Loads the file, and checks every byte.
///
/// # Errors
///
/// A byte is wrong, or the system refuses a call.
pub fn run(spec: &LoadSpec, meter: &Meter) -> Result<Reading> {
    let file = File::open(&spec.path).map_err(|error| spec.failed(error))?;
    let scatter = Scatter::over(spec.all_pieces());
    let window = meter.start(&spec.path);
    match spec.engine {
        Engine::Pread => read(spec, &file, &scatter)?,
        Engine::Fastmap => map_by_engine(spec, &file, &scatter)?,
        _ => map(spec, &file, &scatter)?,
    }
    let took = window.at.elapsed();
    Ok(window.end().counting(spec.touched(), took, None))
}

/// The pages in the order in which they are loaded.
fn order<'a>(spec: &'a LoadSpec, scatter: &'a Scatter) -> impl Iterator<Item = u64> + 'a {
    (0..spec.pieces()).flat_map(|place| spec.piece(place, scatter))
}

fn map_by_engine(spec: &LoadSpec, file: &File, scatter: &Scatter) -> Result<()> {
    // The cache has room for the whole file, as the other engines have.
    let capacity = (spec.pages + spec.pages / 8) as usize * PAGE;
    let cache = fastmap::Cache::new(capacity.max(fastmap::Cache::MIN_CAPACITY))?;
    // SAFETY: the file is the bench's own, and nobody cuts it short.
    let map = unsafe { engine::options(file, &cache, spec.pages).0.map(file) }?;
    if spec.order == Order::Gather {
        let rows: Vec<_> = order(spec, scatter).map(|page| (page as usize * PAGE, PAGE)).collect();
        let mut bytes = vec![0; rows.len() * PAGE];
        map.gather(&rows, &mut bytes)?;
        return order(spec, scatter)
            .zip(bytes.chunks_exact(PAGE))
            .try_for_each(|(page, bytes)| stamp::check_fresh(page, bytes));
    }
    order(spec, scatter).try_for_each(|page| stamp::check_fresh(page, &map[page as usize * PAGE..][..PAGE]))
}

fn map(spec: &LoadSpec, file: &File, scatter: &Scatter) -> Result<()> {
    // SAFETY: the file is the bench's own, and nobody cuts it short.
    let map = unsafe { memmap2::Mmap::map(file) }.map_err(|error| spec.failed(error))?;
    let told = match spec.engine {
        Engine::MmapWillneed if spec.order == Order::Gather => order(spec, scatter)
            .try_for_each(|page| map.advise_range(memmap2::Advice::WillNeed, page as usize * PAGE, PAGE)),
        Engine::MmapWillneed => map.advise(memmap2::Advice::WillNeed),
        Engine::MmapPopulate => map.advise(memmap2::Advice::PopulateRead),
        _ => Ok(()),
    };
    told.map_err(|error| spec.failed(error))?;
    for page in order(spec, scatter) {
        stamp::check_fresh(page, &map[page as usize * PAGE..][..PAGE])?;
    }
    Ok(())
}

fn read(spec: &LoadSpec, file: &File, scatter: &Scatter) -> Result<()> {
    let next = AtomicU64::new(0);
    let one = || {
        let mut buffer = vec![0; spec.each() as usize * PAGE];
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= spec.pieces() {
                return Ok(());
            }
            let pages = spec.piece(place, scatter);
            let bytes = &mut buffer[..(pages.end - pages.start) as usize * PAGE];
            file.read_exact_at(bytes, pages.start * PAGE as u64).map_err(|error| spec.failed(error))?;
            pages.zip(bytes.chunks_exact(PAGE)).try_for_each(|(page, bytes)| stamp::check_fresh(page, bytes))?;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(one)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).fold(Ok(()), Result::and)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substrates::prepare;

    fn spec(engine: Engine, order: Order, path: PathBuf) -> LoadSpec {
        LoadSpec { engine, order, path, pages: 1000 }
    }

    #[test]
    fn all_pages_are_loaded_once_and_a_wrong_byte_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        prepare::fill(file.as_file(), "file", 0, 1000, prepare::stamp_page, |_| true).unwrap();
        let all = || {
            [Order::Forward, Order::Pieces]
                .into_iter()
                .flat_map(|order| [(Engine::Mmap, order), (Engine::Pread, order), (Engine::Fastmap, order)])
        };
        for (engine, order) in all() {
            let spec = spec(engine, order, file.path().to_owned());
            let scatter = Scatter::over(spec.pieces());
            let mut pages: Vec<u64> = (0..spec.pieces()).flat_map(|place| spec.piece(place, &scatter)).collect();
            assert_eq!(pages.is_sorted(), order == Order::Forward);
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..1000));
            assert_eq!(run(&spec, &Meter::default()).unwrap().ops, 1000);
        }
        file.as_file().write_all_at(&[1], 999 * PAGE as u64 + 77).unwrap();
        for (engine, order) in all() {
            let why = run(&spec(engine, order, file.path().to_owned()), &Meter::default()).unwrap_err();
            assert!(matches!(why, Error::Stamp { page: 999, .. }), "{why}");
        }
    }
}
