//! Large private memory from mmap(2) in the heap, and what mprotect(2), madvise(2) and mlock(2) mean on any of it.
//!
//! A mapping is a piece of pages like jemalloc's, zero at first, that can be given back in parts. Pages that are not to be
//! read and written by everybody (`PROT_NONE`, `PROT_READ`, `PROT_EXEC`) or that are locked stay in memory, pinned, for as
//! long as that holds: the kernel could not read them to write them back.

use super::{clear, fork, give_back, is_up, map, take};
use crate::next;
use fastmap::calls::{self, Held};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard};

/// Mappings from this size on are the heap's, bytes.
const LARGE: usize = 1 << 20;
const PAGE: usize = 4096;
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Pages that stay in memory.
struct Kept {
    end: usize,
    prot: c_int,
    _held: Held,
}

#[derive(Default)]
pub(super) struct Mappings {
    /// First address and one past the last.
    pieces: BTreeMap<usize, usize>,
    kept: BTreeMap<usize, Kept>,
    /// What the kernel has mapped over, for good.
    lent: Vec<Range<usize>>,
}

static MAPPINGS: Mutex<Mappings> =
    Mutex::new(Mappings { pieces: BTreeMap::new(), kept: BTreeMap::new(), lent: Vec::new() });

pub(super) fn lock_mappings() -> MutexGuard<'static, Mappings> {
    MAPPINGS.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Mappings {
    /// Takes what lies in a range out of the pieces.
    fn cut(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let met: Vec<_> = self.pieces.range(..range.end).rev().map(|(start, end)| *start..*end).collect();
        let mut parts = Vec::new();
        for piece in met.into_iter().take_while(|piece| piece.end > range.start) {
            self.pieces.remove(&piece.start);
            let part = piece.start.max(range.start)..piece.end.min(range.end);
            if piece.start < part.start {
                self.pieces.insert(piece.start, part.start);
            }
            if part.end < piece.end {
                self.pieces.insert(part.end, piece.end);
            }
            parts.push(part);
        }
        parts
    }

    /// Lets kept pages in a range go, and be read and written again.
    fn release(&mut self, range: &Range<usize>, which: impl Fn(&Kept) -> bool) {
        let met = self.kept.range(..range.end).filter(|(_, kept)| kept.end > range.start && which(kept));
        for start in met.map(|(start, _)| *start).collect::<Vec<_>>() {
            if let Some(kept) = self.kept.remove(&start)
                && kept.prot != ACCESS
            {
                protect_by_kernel(&(start..kept.end), ACCESS);
            }
        }
    }

    /// Lets the engine read all of the heap; `protect_again` comes next.
    pub fn open(&self) {
        for (start, kept) in self.kept.iter().filter(|(_, kept)| kept.prot & libc::PROT_READ == 0) {
            protect_by_kernel(&(*start..kept.end), libc::PROT_READ);
        }
    }

    /// Protects kept pages as the program wants them, in this process or in a child.
    pub fn protect_again(&self) {
        for (start, kept) in self.kept.iter().filter(|(_, kept)| kept.prot != ACCESS) {
            protect_by_kernel(&(*start..kept.end), kept.prot);
        }
    }

    /// Keeps the pages of a range with a protection; false: there is no room for so many.
    fn keep(&mut self, range: &Range<usize>, prot: c_int) -> bool {
        // A page at a time: they may be let go one by one. All or nothing.
        let pages: Vec<_> = range.clone().step_by(PAGE).collect();
        let mut held = Vec::with_capacity(pages.len());
        for page in &pages {
            if self.kept.get(page).is_some_and(|kept| kept.prot != ACCESS) {
                protect_by_kernel(&(*page..page + PAGE), ACCESS);
            }
            // SAFETY: the heap is never unmapped.
            match unsafe { calls::pin(*page, PAGE) } {
                Some(one) => held.push(one),
                None => return false,
            }
        }
        for (page, held) in pages.into_iter().zip(held) {
            self.kept.insert(page, Kept { end: page + PAGE, prot, _held: held });
        }
        protect_by_kernel(range, prot)
    }
}

fn protect_by_kernel(range: &Range<usize>, prot: c_int) -> bool {
    // SAFETY: the heap's own memory, as the program wants it.
    unsafe { next::mprotect(without_provenance_mut(range.start), range.len(), prot) == 0 }
}

/// The part of a range that is the heap's, in whole pages; nothing where there is none, where the kernel has mapped over it, or
/// in a child, where the heap is ordinary memory.
#[inline]
pub(crate) fn part_of_heap(addr: usize, len: usize) -> Option<Range<usize>> {
    if !is_up() || fork::is_child() || len == 0 {
        return None;
    }
    let (start, end) = super::addresses();
    let part = start.max(addr)..end.min(addr.saturating_add(len).next_multiple_of(PAGE));
    let is_lent =
        |part: &Range<usize>| lock_mappings().lent.iter().any(|lent| lent.start < part.end && part.start < lent.end);
    (part.start < part.end && !is_lent(&part)).then_some(part)
}

/// mmap(2) of private anonymous memory; `None`: it is for the kernel. What has other flags (stacks, huge pages, address space
/// that is only reserved) or wants a certain place is.
pub(crate) fn map_anonymous(addr: *mut c_void, len: usize, prot: c_int, flags: c_int) -> Option<*mut c_void> {
    if !is_up() || len < LARGE || prot != ACCESS || !addr.is_null() || fork::is_child() {
        return None;
    }
    if flags != libc::MAP_PRIVATE | libc::MAP_ANONYMOUS {
        return None;
    }
    let len = len.checked_next_multiple_of(PAGE)?;
    let (start, _) = take(None, len, PAGE, true)?;
    lock_mappings().pieces.insert(start, start + len);
    Some(without_provenance_mut(start))
}

/// munmap(2), the heap's part: mappings in the range go. What else of the heap is there is not the caller's to unmap.
pub(crate) fn unmap(range: &Range<usize>) {
    let parts = {
        let mut mappings = lock_mappings();
        let parts = mappings.cut(range);
        parts.iter().for_each(|part| mappings.release(part, |_| true));
        parts
    };
    parts.into_iter().for_each(|part| give_back(part.start, part.len()));
}

/// Lets the pages that are kept in a range go, before the kernel is given it.
pub(crate) fn release(range: &Range<usize>) {
    lock_mappings().release(range, |_| true);
}

/// Notes that the kernel has been given a range for good (`MAP_FIXED`).
pub(crate) fn forget(range: &Range<usize>) {
    let mut mappings = lock_mappings();
    mappings.cut(range);
    mappings.lent.push(range.clone());
}

/// mremap(2) of a mapping of the heap: a copy, unless it shrinks or what follows is free.
///
/// # Safety
/// As there.
pub(crate) unsafe fn remap(old: Range<usize>, new_len: usize, flags: c_int, new: *mut c_void) -> Result<usize, c_int> {
    let new_len = new_len.checked_next_multiple_of(PAGE).filter(|len| *len > 0).ok_or(libc::EINVAL)?;
    let is_whole = lock_mappings().pieces.range(..=old.start).next_back().is_some_and(|(_, end)| *end >= old.end);
    if !is_whole || old.is_empty() {
        return Err(libc::EFAULT);
    }
    if flags & !libc::MREMAP_MAYMOVE == 0 {
        if new_len <= old.len() {
            unmap(&(old.start + new_len..old.end));
            return Ok(old.start);
        }
        let more = new_len - old.len();
        if take(Some(old.end), more, PAGE, true).is_some() {
            let mut mappings = lock_mappings();
            mappings.cut(&old);
            mappings.pieces.insert(old.start, old.start + new_len);
            return Ok(old.start);
        }
        if flags == 0 {
            return Err(libc::ENOMEM);
        }
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let at = match map_anonymous(std::ptr::null_mut(), new_len, ACCESS, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) {
        Some(at) if !fixed => at,
        other => {
            if let Some(unused) = other {
                unmap(&(unused as usize..unused as usize + new_len));
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if fixed { libc::MAP_FIXED } else { 0 };
            // SAFETY: the caller's contract: what is at a fixed place goes.
            unsafe { next::mmap(new, new_len, ACCESS, flags, -1, 0) }
        }
    };
    if at == libc::MAP_FAILED {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the old mapping and the new one.
    unsafe {
        without_provenance_mut::<u8>(old.start).copy_to_nonoverlapping(at.cast(), old.len().min(new_len));
    }
    if flags & libc::MREMAP_DONTUNMAP != 0 {
        clear(old.start, old.len())
    } else {
        unmap(&old)
    }
    Ok(at as usize)
}

/// mprotect(2) on memory of the heap.
pub(crate) fn protect(range: &Range<usize>, prot: c_int) -> Result<(), c_int> {
    if !range.start.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let mut mappings = lock_mappings();
    if prot == ACCESS {
        mappings.release(range, |kept| kept.prot != ACCESS);
        return Ok(());
    }
    if mappings.keep(range, prot) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// madvise(2) on memory of the heap. The rest of the advice changes nothing.
pub(crate) fn advise(range: &Range<usize>, advice: c_int) -> Result<(), c_int> {
    if !range.start.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    match advice {
        libc::MADV_DONTNEED => clear(range.start, range.len()),
        libc::MADV_FREE => {
            let map = map();
            // SAFETY: the program's own memory, of which it says that it may be lost.
            let _ = unsafe { map.abandon(range.start - map.as_ptr() as usize, range.len()) };
        }
        libc::MADV_REMOVE => return Err(libc::EINVAL),
        _ => {}
    }
    Ok(())
}

/// mlock(2) on memory of the heap.
pub(crate) fn lock(range: &Range<usize>) -> Result<(), c_int> {
    let range = range.start / PAGE * PAGE..range.end;
    let mut mappings = lock_mappings();
    let fresh = range.clone().step_by(PAGE).filter(|page| !mappings.kept.contains_key(page)).collect::<Vec<_>>();
    if fresh.into_iter().all(|page| mappings.keep(&(page..page + PAGE), ACCESS)) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// munlock(2) on memory of the heap.
pub(crate) fn unlock(range: &Range<usize>) {
    lock_mappings().release(&(range.start / PAGE * PAGE..range.end), |kept| kept.prot == ACCESS);
}
