//! Large private mappings (mmap(2)) in the heap, and mprotect(2), madvise(2) and mlock(2) on any memory of the heap.
//!
//! A mapping is a piece of pages, as jemalloc has them. It is zero at first, and can be given back in parts. Pages that
//! are locked, or have another protection than read and write (`PROT_NONE`, `PROT_READ`, `PROT_EXEC`), are pinned in
//! memory for that time. The kernel could not read protected pages to write them back.

use super::{clear, fork, give_back, is_up, map, take};
use crate::next;
use fastmap::by_address::{self, PinnedRange};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard};

/// Mappings of at least so many bytes are the heap's.
const LARGE: usize = 1 << 20;
const PAGE: usize = 4096;
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Pages that are pinned in memory.
struct Pinned {
    end: usize,
    prot: c_int,
    _held: PinnedRange,
}

#[derive(Default)]
pub(super) struct Mappings {
    /// The mappings: first address, and one past the last.
    pieces: BTreeMap<usize, usize>,
    pinned: BTreeMap<usize, Pinned>,
    /// Ranges over which the kernel has mapped something else. They stay foreign for good.
    foreign: Vec<Range<usize>>,
}

static MAPPINGS: Mutex<Mappings> =
    Mutex::new(Mappings { pieces: BTreeMap::new(), pinned: BTreeMap::new(), foreign: Vec::new() });

pub(super) fn lock_mappings() -> MutexGuard<'static, Mappings> {
    MAPPINGS.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Mappings {
    /// Removes a range from the pieces. Returns the parts of pieces that lay in it.
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

    /// Unpins the pages in a range that `which` accepts, and makes them readable and writable again.
    fn release(&mut self, range: &Range<usize>, which: impl Fn(&Pinned) -> bool) {
        let met = self.pinned.range(..range.end).filter(|(_, pinned)| pinned.end > range.start && which(pinned));
        for start in met.map(|(start, _)| *start).collect::<Vec<_>>() {
            if let Some(pinned) = self.pinned.remove(&start)
                && pinned.prot != ACCESS
            {
                protect_by_kernel(&(start..pinned.end), ACCESS);
            }
        }
    }

    /// Lets the engine read all of the heap, until `protect_again`.
    pub fn open(&self) {
        for (start, pinned) in self.pinned.iter().filter(|(_, pinned)| pinned.prot & libc::PROT_READ == 0) {
            protect_by_kernel(&(*start..pinned.end), libc::PROT_READ);
        }
    }

    /// Protects pinned pages as the program wants them, in this process or in a child.
    pub fn protect_again(&self) {
        for (start, pinned) in self.pinned.iter().filter(|(_, pinned)| pinned.prot != ACCESS) {
            protect_by_kernel(&(*start..pinned.end), pinned.prot);
        }
    }

    /// Pins the pages of a range and protects them. False: there is no room for so many pins.
    fn keep(&mut self, range: &Range<usize>, prot: c_int) -> bool {
        // A page at a time, since pages may be unpinned one by one. Either all are pinned, or none.
        let pages: Vec<_> = range.clone().step_by(PAGE).collect();
        let mut held = Vec::with_capacity(pages.len());
        for page in &pages {
            if self.pinned.get(page).is_some_and(|pinned| pinned.prot != ACCESS) {
                protect_by_kernel(&(*page..page + PAGE), ACCESS);
            }
            // SAFETY: the heap is never unmapped.
            let Some(one) = (unsafe { by_address::pin(*page, PAGE) }) else {
                self.protect_again();
                return false;
            };
            held.push(one);
        }
        for (page, held) in pages.into_iter().zip(held) {
            self.pinned.insert(page, Pinned { end: page + PAGE, prot, _held: held });
        }
        protect_by_kernel(range, prot)
    }
}

fn protect_by_kernel(range: &Range<usize>, prot: c_int) -> bool {
    // SAFETY: the range is the heap's, and the program asked for this protection.
    unsafe { next::mprotect(without_provenance_mut(range.start), range.len(), prot) == 0 }
}

/// The part of a range that lies in the heap, with its end rounded up to a whole page. `None`: there is no such part,
/// the kernel has mapped over some of it, or this is a child, whose heap is ordinary memory.
#[inline]
pub(crate) fn part_of_heap(addr: usize, len: usize) -> Option<Range<usize>> {
    if !is_up() || fork::is_child() || len == 0 {
        return None;
    }
    let (start, end) = super::addresses();
    let part = start.max(addr)..end.min(addr.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(end));
    let is_foreign = |part: &Range<usize>| {
        lock_mappings().foreign.iter().any(|foreign| foreign.start < part.end && part.start < foreign.end)
    };
    (part.start < part.end && !is_foreign(&part)).then_some(part)
}

/// mmap(2) of private anonymous memory. `None`: the mapping is the kernel's. The kernel gets every mapping with other
/// flags (stacks, huge pages, address space that is only reserved), and every mapping at a place that the program
/// chose.
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

/// munmap(2) on the heap's part of a range. It unmaps the mappings in the part. Other memory of the heap is not the
/// caller's to unmap.
pub(crate) fn unmap(range: &Range<usize>) {
    let parts = {
        let mut mappings = lock_mappings();
        let parts = mappings.cut(range);
        parts.iter().for_each(|part| mappings.release(part, |_| true));
        parts
    };
    parts.into_iter().for_each(|part| give_back(part.start, part.len()));
}

/// Unpins the pages of a range before the kernel maps over it.
pub(crate) fn release(range: &Range<usize>) {
    lock_mappings().release(range, |_| true);
}

/// Notes that the kernel maps over a range (`MAP_FIXED`), which is foreign for good.
pub(crate) fn forget(range: &Range<usize>) {
    let mut mappings = lock_mappings();
    mappings.cut(range);
    mappings.foreign.push(range.clone());
}

/// mremap(2) of a mapping of the heap. The mapping stays in place if it shrinks, or if the pages behind it are free.
/// Otherwise it is copied.
///
/// # Safety
/// The caller keeps the contract of mremap(2).
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
            // SAFETY: the caller's contract, by which a mapping at a fixed place is replaced.
            unsafe { next::mmap(new, new_len, ACCESS, flags, -1, 0) }
        }
    };
    if at == libc::MAP_FAILED {
        return Err(libc::ENOMEM);
    }
    // SAFETY: both mappings are at least this long, and they do not overlap.
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
        mappings.release(range, |pinned| pinned.prot != ACCESS);
        return Ok(());
    }
    if mappings.keep(range, prot) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// madvise(2) on memory of the heap. Advice that is not named here changes nothing.
pub(crate) fn advise(range: &Range<usize>, advice: c_int) -> Result<(), c_int> {
    if !range.start.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    match advice {
        libc::MADV_DONTNEED => clear(range.start, range.len()),
        libc::MADV_FREE => {
            let map = map();
            // SAFETY: the program said with MADV_FREE that the contents may be lost.
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
    let fresh = range.clone().step_by(PAGE).filter(|page| !mappings.pinned.contains_key(page)).collect::<Vec<_>>();
    if fresh.into_iter().all(|page| mappings.keep(&(page..page + PAGE), ACCESS)) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// munlock(2) on memory of the heap.
pub(crate) fn unlock(range: &Range<usize>) {
    lock_mappings().release(&(range.start / PAGE * PAGE..range.end), |pinned| pinned.prot == ACCESS);
}
