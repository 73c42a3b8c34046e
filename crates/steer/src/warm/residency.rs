//! Which pages of a file are in memory: mincore(2), or cachestat(2) where that does not say. Also which pages a program has mapped.

use super::PageSet;
use super::page_set::MOST;
use crate::PAGE;
use crate::observe::{Mappings, Pages, Seen, cached};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Pages that mincore(2) is asked about at a time: 1 GiB.
const PART: u64 = 1 << 18;

/// The pages of the first `length` bytes that are in memory. `None` where the kernel does not say: for a file that the caller neither
/// owns nor may write, except by cachestat(2) of Linux 6.5 to 6.12.
pub(super) fn in_memory(file: &File, length: u64) -> io::Result<Option<PageSet>> {
    let pages = length.div_ceil(PAGE).min(MOST);
    if pages == 0 {
        return Ok(Some(PageSet::default()));
    }
    // Where mincore(2) does not say, it reports every page as in memory: even the one after the end, which cannot be.
    let mut after = [0];
    mincore(file, length.div_ceil(PAGE), &mut after)?;
    if after[0] & 1 == 0 { by_mincore(file, pages).map(Some) } else { Ok(by_cachestat(file, pages)) }
}

fn by_mincore(file: &File, pages: u64) -> io::Result<PageSet> {
    let mut found = PageSet::default();
    let mut said = vec![0; PART.min(pages) as usize];
    for at in (0..pages).step_by(PART as usize) {
        let said = &mut said[..PART.min(pages - at) as usize];
        mincore(file, at, said)?;
        let present = said.iter().zip(at..).filter(|(byte, _)| **byte & 1 != 0);
        present.for_each(|(_, page)| found.add(page..page + 1));
    }
    Ok(found)
}

/// Asks about the pages from `at` on, by a mapping that nobody touches.
fn mincore(file: &File, at: u64, said: &mut [u8]) -> io::Result<()> {
    let length = said.len() * PAGE as usize;
    // SAFETY: a fresh mapping, that nobody touches; the kernel writes a byte a page.
    unsafe {
        let here = mmap(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::SHARED, file, at * PAGE)?;
        let done = libc::mincore(here, length, said.as_mut_ptr());
        let error = io::Error::last_os_error();
        munmap(here, length)?;
        if done == 0 { Ok(()) } else { Err(error) }
    }
}

/// Counts the pages of ranges. Halves a range of which a part is in memory.
fn by_cachestat(file: &File, pages: u64) -> Option<PageSet> {
    let mut found = PageSet::default();
    let mut open = Vec::from_iter(std::iter::once(0..pages));
    while let Some(Range { start, end }) = open.pop() {
        match cached(file, start..end).ok()?.pages {
            0 => {}
            count if count >= end - start => found.add(start..end),
            _ => {
                let middle = start + (end - start) / 2;
                open.extend([start..middle, middle..end]);
            }
        }
    }
    Some(found)
}

/// Adds the pages of each file that process `pid` has mapped now, by the file's path. Adds nothing where its page tables may not be
/// read.
pub fn add_mapped(pid: u32, into: &mut BTreeMap<String, PageSet>) {
    let process = pid.to_string();
    let Some(mut pages) = Pages::of(&process) else { return };
    for mapping in Mappings::of(&process).look() {
        let mut seen = Seen::nothing(mapping.at.start, mapping.pages);
        pages.look(&mut seen, 0..mapping.pages);
        let first = mapping.offset / PAGE;
        let set = into.entry(mapping.path.clone()).or_default();
        let mapped = (0..mapping.pages).filter(|page| seen.has(*page));
        mapped.for_each(|page| set.add(first + page..first + page + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(pages: u64) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; (pages * PAGE) as usize]).unwrap();
        file.as_file().sync_all().unwrap();
        file
    }

    #[test]
    fn what_is_dropped_is_not_in_memory_and_what_is_read_is() {
        let file = file(300);
        let file = file.as_file();
        let all = in_memory(file, 300 * PAGE - 5).unwrap().unwrap();
        assert!(all.count() <= 300 && in_memory(file, 0).unwrap().unwrap().count() == 0);
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random).unwrap();
        let dropped = |left: u64| {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            in_memory(file, 300 * PAGE).unwrap().unwrap().count() <= left
        };
        assert!((0..100).any(|_| dropped(0)));
        std::os::unix::fs::FileExt::read_exact_at(file, &mut [0; 5], 70 * PAGE).unwrap();
        assert!(in_memory(file, 300 * PAGE).unwrap().unwrap().has(70));
        if let Some(counted) = by_cachestat(file, 300) {
            assert_eq!(Some(counted), in_memory(file, 300 * PAGE).unwrap());
        }
    }

    #[test]
    fn the_pages_that_a_program_has_mapped_are_found_by_their_place_in_the_file() {
        let file = file(2048);
        // SAFETY: a fresh mapping of a file that nobody cuts.
        let map = unsafe { memmap2::MmapOptions::new().offset(64 * PAGE).map(file.as_file()).unwrap() };
        map.advise(memmap2::Advice::Random).unwrap();
        std::hint::black_box(map[1000 * PAGE as usize]);
        let mut found = BTreeMap::new();
        add_mapped(std::process::id(), &mut found);
        assert!(found[file.path().to_str().unwrap()].has(1064), "{found:?}");
    }
}
