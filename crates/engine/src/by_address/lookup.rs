//! The table of maps by address, and questions to it.

use super::fork as fork_of;
use super::own::look;
use super::table::{Share, Table, intersection};
use crate::region::registry;
use crate::sys::lock::Guarded;
use crate::sys::{PAGE, errno, fork};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All maps made by address. Frozen across fork(2). A thread that holds its lock may do I/O, but takes no lock whose
/// holder wants the table.
pub(super) static MAPS: Guarded<Table> = Guarded::new(Table::new());

/// All kernel mappings in the table lie between these two.
static KERNELS: [AtomicUsize; 2] = [AtomicUsize::new(usize::MAX), AtomicUsize::new(0)];

/// Called when the table has changed, before its lock is free.
pub(super) fn publish(table: &Table) {
    let bounds = table.kernel_mappings.bounds();
    let [start, end] = &KERNELS;
    start.store(bounds.start, Ordering::Relaxed);
    end.store(bounds.end, Ordering::Relaxed);
}

/// Called before a region's addresses become kernel mappings: calls on them come to this module all the while. [`publish`] ends it.
pub(super) fn widen(to: (usize, usize)) {
    let [start, end] = &KERNELS;
    start.fetch_min(to.0, Ordering::SeqCst);
    end.fetch_max(to.1, Ordering::SeqCst);
}

/// Whether the table may have anything in a range: maps of the cache, kernel mappings that were noted, or direct mappings. Calls that change
/// what lies there need not come to this module otherwise. A few nanoseconds, no lock; may be asked in signal handlers.
///
/// ```
/// assert!(!fastmap::by_address::concerns(&0 as *const i32 as usize, 4));
/// ```
#[inline]
pub fn concerns(addr: usize, len: usize) -> bool {
    // A thread that knows of a mapping has it from a thread that noted it, so it sees bounds at least as wide.
    let [start, end] = &KERNELS;
    let is_between =
        addr < end.load(Ordering::Relaxed) && start.load(Ordering::Relaxed) < addr.saturating_add(len.max(1));
    is_between || holds(addr, len) || super::holds_direct(addr, len)
}

/// The pages of a range. EINVAL if it begins in the middle of one; `overflow` if it reaches past the last address of user space.
pub(super) fn range_of(addr: usize, len: usize, overflow: i32) -> Result<Range<usize>, i32> {
    if !addr.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len));
    // User space has no more (x86-64, four levels of tables).
    end.filter(|end| *end <= 1 << 47).map(|end| addr..end).ok_or(overflow)
}

/// Kinds of memory in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Maps of the cache.
    Cached,
    /// Addresses of a region that no map covers: to the program nothing is mapped there.
    Unmapped,
    /// The kernel's.
    Other,
}

/// The parts of a range by kind, in order.
pub(super) fn kinds_in(range: &Range<usize>) -> Vec<(Range<usize>, Kind)> {
    if range.is_empty() {
        return vec![];
    }
    if !holds(range.start, range.len()) {
        return vec![(range.clone(), Kind::Other)];
    }
    let parts = look(|table| table.parts(range));
    let mut spare: Vec<Range<usize>> = Vec::new();
    if parts.iter().any(|(_, covered)| !covered) {
        for region in registry::all().filter(|region| region.is_by_address()) {
            spare.extend(region.address().own_addresses().into_iter().filter_map(|part| intersection(&part, range)));
        }
        spare.sort_by_key(|part| part.start);
    }
    let mut kinds = Vec::new();
    for (part, covered) in parts {
        if covered {
            kinds.push((part, Kind::Cached));
            continue;
        }
        let mut at = part.start;
        for spare in spare.iter().filter_map(|spare| intersection(spare, &part)) {
            kinds.push((at..spare.start, Kind::Other));
            at = spare.end;
            kinds.push((spare, Kind::Unmapped));
        }
        kinds.push((at..part.end, Kind::Other));
    }
    kinds.retain(|(part, _)| !part.is_empty());
    kinds
}

/// Whether any byte of the range lies in a cached map's addresses. A few nanoseconds; may be asked in signal handlers. In a child made by
/// fork(2) no map is cached: if the range meets a map of its parent, the parent's maps become kernel mappings, in both.
///
/// ```
/// assert!(!fastmap::by_address::holds(&0 as *const i32 as usize, 4));
/// ```
#[inline]
pub fn holds(addr: usize, len: usize) -> bool {
    registry::meets(addr..addr.saturating_add(len.max(1))) && !is_childs()
}

/// In a child made by fork(2) maps are the kernel's as soon as anybody asks about them.
#[cold]
fn is_childs() -> bool {
    let is_child = fork::is_child();
    if is_child {
        fork_of::resolve_in_child();
    }
    is_child
}

pub(super) fn check(result: libc::c_int) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// A length in whole pages, rounded as the kernel does: the very largest come to 0.
pub(super) fn rounded(len: usize) -> usize {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// One share of each region with cached maps in a range, and the addresses from the first of these maps to the last. The share keeps the region,
/// and its file open, should another thread unmap or convert it meanwhile.
pub(super) fn shares_in(range: &Range<usize>) -> Vec<(Arc<Share>, Range<usize>)> {
    look(|table| {
        let mut found: Vec<(Arc<Share>, Range<usize>)> = Vec::new();
        for (piece, part) in table.meeting(range) {
            match found.iter_mut().find(|(share, _)| Arc::ptr_eq(&share.region, &piece.share.region)) {
                Some((_, all)) => *all = all.start.min(part.start)..all.end.max(part.end),
                None => found.push((piece.share.clone(), part)),
            }
        }
        found
    })
}
