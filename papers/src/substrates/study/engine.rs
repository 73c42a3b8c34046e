//! A pass through each engine: open, map where there is a map, read and check, let go.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::small::Piece;
use super::{Order, Work};
use crate::substrates::{Engine, Error, PAGE, Result, capacity_for, engine, stamp};

/// Pages a call of `pread` in a scan, 128 KiB: what cat(1) and cp(1) use.
const CALL_PAGES: u64 = 32;

/// Reads the pages of each piece in the order given with it.
pub fn pass(order: &Order, pieces: &[(Piece, Vec<u64>)]) -> Result<()> {
    match order.engine {
        Engine::Pread => by_calls(order, pieces),
        Engine::Mmap => mapped(order, pieces, memmap2::Advice::Normal),
        Engine::MmapAdvised => mapped(order, pieces, order.work.advice().unwrap_or(memmap2::Advice::Normal)),
        Engine::FastmapAdvised => cached(order, pieces, order.work.fastmap_advice().unwrap_or(fastmap::Advice::Normal)),
        _ => cached(order, pieces, fastmap::Advice::Normal),
    }
}

fn by_calls(order: &Order, pieces: &[(Piece, Vec<u64>)]) -> Result<()> {
    let scattered = matches!(order.work, Work::Random | Work::SmallRandom);
    let mut bytes = vec![0; CALL_PAGES as usize * PAGE];
    for (piece, pages) in pieces {
        let file = open(order, piece)?;
        let mut held = 0..0;
        for &page in pages {
            if !held.contains(&page) {
                held = match scattered {
                    true => page..page + 1,
                    false => page - page % CALL_PAGES..(page - page % CALL_PAGES + CALL_PAGES).min(piece.pages),
                };
                let into = &mut bytes[..(held.end - held.start) as usize * PAGE];
                file.read_exact_at(into, held.start * PAGE as u64).map_err(failed(order, "pread failed"))?;
            }
            let at = (page - held.start) as usize * PAGE;
            stamp::check_fresh(piece.first + page, &bytes[at..at + PAGE])?;
        }
    }
    Ok(())
}

fn mapped(order: &Order, pieces: &[(Piece, Vec<u64>)], advice: memmap2::Advice) -> Result<()> {
    for (piece, pages) in pieces {
        let file = open(order, piece)?;
        let len = piece.pages as usize * PAGE;
        // SAFETY: the file is the benchmark's own and nobody changes it meanwhile.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }.map_err(failed(order, "mmap"))?;
        map.advise(advice).map_err(failed(order, "madvise"))?;
        check(piece, pages, &map)?;
    }
    Ok(())
}

fn cached(order: &Order, pieces: &[(Piece, Vec<u64>)], advice: fastmap::Advice) -> Result<()> {
    let capacity = match order.memory {
        Some(memory) => capacity_for(memory, order.pages, false)?,
        None => engine::unlimited_capacity(order.pages),
    };
    let cache = fastmap::Cache::new(capacity)?;
    // Whether a file can be read directly is looked up once: all are on one file system.
    let mut options = None;
    for (piece, pages) in pieces {
        let file = open(order, piece)?;
        let options = options.get_or_insert_with(|| engine::options(&file, &cache, piece.pages).0);
        // SAFETY: the file is the benchmark's own and nobody changes it meanwhile.
        let map = unsafe { options.len(piece.pages as usize * PAGE).map(&file) }?;
        map.advise(advice)?;
        check(piece, pages, &map)?;
    }
    Ok(())
}

fn check(piece: &Piece, pages: &[u64], bytes: &[u8]) -> Result<()> {
    for &page in pages {
        let at = page as usize * PAGE;
        stamp::check_fresh(piece.first + page, &bytes[at..at + PAGE])?;
    }
    Ok(())
}

fn open(order: &Order, piece: &Piece) -> Result<File> {
    File::open(&piece.path).map_err(failed(order, "cannot open"))
}

fn failed(order: &Order, what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { thing: order.label.clone(), what, source, remedy: "check the file and its device" }
}
