//! mmap(2) and its kin by address: what `libfastmap.so` and `libfastmap_preload.so` are made of.
//!
//! The functions have the arguments and the error numbers of the calls they are named after, and do the kernel's part too:
//! a range may lie across maps of the cache and other memory. All maps of a file have the same addresses for the same bytes of the file: mapped
//! twice, it has the same address twice, and is to be unmapped twice. Protection is that of all maps of a page together.
//!
//! What the cache cannot serve where the program wants it (a file mapped at two fixed places, executable pages, a map that
//! outgrows its addresses while the file has others) makes the whole file's maps ordinary kernel mappings, in place
//! (`handover.rs`).

mod care;
mod direct;
mod kernels;
mod leave;
mod processes;
mod reach;
mod table;

pub use care::{Held, advise, async_read, initial_line, lock, pin, residency, sync, synchronise, unlock, unlock_all};
pub use direct::{flushed_bytes, holds_direct, is_in_memory, leave_to_kernel, map_direct};
pub use leave::{is_alone, is_in_child, leave};
pub use processes::{before_fork, in_child, in_parent, resolve_in_child, save_all};
pub use reach::{expect_backward, is_cached, keep, let_go, prefetch, prefetch_wait, read, set_readahead, write};

use crate::behind::Wish;
use crate::cache::Cache;
use crate::error::Error;
use crate::files::{self, Fallback, How};
use crate::handover;
use crate::lock::Guarded;
use crate::options::facts_of;
use crate::others;
use crate::region::{Place, Region};
use crate::registry;
use crate::sizes;
use crate::store;
use crate::sys::{PAGE, descriptor_table, errno, file, fork};
use crate::writers;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use table::{Piece, Removed, Share, Table, intersection, pages_at};

/// Address space for a file that is mapped to be written, and so may grow, bytes: what is not touched costs nothing.
const ROOM: usize = 64 << 30;

/// What mmap(2) is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Where, if `flags` say so; else of no meaning.
    pub addr: usize,
    /// Bytes; not zero.
    pub len: usize,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_NONE`.
    pub prot: i32,
    /// `MAP_SHARED`, and `MAP_FIXED` or `MAP_FIXED_NOREPLACE`; others say nothing here.
    pub flags: i32,
    /// Offset in the file, bytes: a multiple of pages.
    pub offset: u64,
    /// As [`MapOptions::one_writer`](crate::MapOptions::one_writer).
    pub one_writer: bool,
    /// As [`MapOptions::fallback`](crate::MapOptions::fallback).
    pub fallback: Fallback,
    /// As [`MapOptions::async_stores`](crate::MapOptions::async_stores).
    pub async_stores: bool,
}

/// All maps made by address. Frozen across fork(2).
static MAPS: Guarded<Table> = Guarded::new(Table::new());

/// Runs `then` on the table. It may do I/O, but takes no lock that a thread holds which wants the table.
fn with<R>(then: impl FnOnce(&mut Table) -> R) -> R {
    MAPS.with(then)
}

fn range_of(addr: usize, len: usize) -> Result<Range<usize>, i32> {
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len)).ok_or(libc::EINVAL)?;
    if addr.is_multiple_of(PAGE) { Ok(addr..end) } else { Err(libc::EINVAL) }
}

fn check(result: libc::c_int) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// Any byte of the range lies in a cached map's addresses. A few nanoseconds; may be asked in signal handlers. In a child made by
/// fork(2) no map is cached: those of its parent become kernel mappings, in both, when this is asked of one.
///
/// ```
/// assert!(!fastmap::calls::holds(&0 as *const i32 as usize, 4));
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
        resolve_in_child();
    }
    is_child
}

/// mmap(2), `MAP_SHARED`, through the cache. `None`: it is for the kernel to map, with the same arguments, and to refuse
/// where it must; that may be a file whose maps were handed over to it just now, and a place (`MAP_FIXED`) that was cleared of cached maps.
///
/// # Safety
/// As for [`MapOptions::map`](crate::MapOptions::map) and `map_mut`; what a fixed place holds goes.
///
/// # Errors
/// As for those; [`Error::Locked`] while another process writes the file.
///
/// ```
/// use std::os::fd::AsFd;
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 20)?;
/// let cache = fastmap::Cache::new(1 << 20)?;
/// let request = fastmap::calls::Request {
///     addr: 0,
///     len: 1 << 20,
///     prot: libc::PROT_READ | libc::PROT_WRITE,
///     flags: libc::MAP_SHARED,
///     offset: 0,
///     one_writer: true,
///     fallback: fastmap::Fallback::Kernel,
///     async_stores: false,
/// };
/// // SAFETY: nobody else changes the file; the address is the map's until it is unmapped.
/// unsafe {
///     if let Some(at) = fastmap::calls::map(file.as_fd(), &cache, &request)? {
///         at.write(7);
///         assert!(fastmap::calls::holds(at as usize, 1));
///         assert_eq!(fastmap::calls::sync(at as usize, 1, libc::MS_SYNC), Ok(()));
///         assert_eq!(fastmap::calls::unmap(at as usize, 1 << 20), Ok(()));
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub unsafe fn map(fd: BorrowedFd<'_>, cache: &Cache, request: &Request) -> crate::Result<Option<*mut u8>> {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    let writable = request.prot & libc::PROT_WRITE != 0;
    let mode = file::access_mode(&from);
    let refused = mode == libc::O_WRONLY || writable && mode != libc::O_RDWR;
    let odd = !request.offset.is_multiple_of(PAGE as u64) || request.len == 0 || request.prot & libc::PROT_EXEC != 0;
    let Some(end) =
        (request.offset as usize).checked_add(request.len).and_then(|end| end.checked_next_multiple_of(PAGE))
    else {
        return Ok(None);
    };
    if refused || odd || fork::is_child() {
        return Ok(None);
    }
    let facts = facts_of(&from)?;
    let in_file = request.offset as usize..end;
    let fixed = request.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let wanted = request.addr..request.addr.saturating_add(in_file.len());
    if fixed && (!request.addr.is_multiple_of(PAGE) || request.addr < in_file.start) {
        return Ok(None);
    }
    if fixed && request.flags & libc::MAP_FIXED == 0 && !is_free(&wanted) {
        return Ok(None);
    }
    // Kept until the new map is there: it may be the file's last.
    let _before = fixed.then(|| {
        let has_it = |piece: &&Piece| {
            let region = &piece.share.region;
            piece.share.identity == facts.identity
                && region.start().wrapping_add(in_file.start) as usize == wanted.start
                && !region.lacks(&in_file)
        };
        let in_place = with(|table| table.pieces().iter().find(has_it).is_some().then(|| table.remove(&wanted, true)));
        // SAFETY: the caller wants what is there gone.
        in_place.unwrap_or_else(|| unsafe { clear_way(&wanted) })
    });
    if with(|table| table.is_kernels(facts.identity)) {
        return Ok(None);
    }
    if !descriptor_table::is_engines() {
        // All of its maps, so that they agree: whoever is refused this one may map it through the kernel.
        hand_over(facts.identity)?;
    }
    if !writable && request.one_writer && !watch(&from, &facts, request.fallback)? {
        return Ok(None);
    }
    let place = match (fixed, writable) {
        (true, _) => Place::Fixed { address: request.addr, offset: in_file.start },
        (false, true) => Place::Room(ROOM),
        (false, false) => Place::Room(0),
    };
    let (one_writer, fallback) = (request.one_writer, request.fallback);
    let behind = Wish { initial: None, keep: request.async_stores };
    let how = |place| How { cache: Some(cache), writable, one_writer, fallback, place, scratch: false, behind };
    let attached = match files::attach(&from, &facts, end, how(place), &store::open) {
        // Address space may be limited (setrlimit(2)).
        Err(Error::Io { source, .. }) if !fixed && source.raw_os_error() == Some(libc::ENOMEM) => {
            files::attach(&from, &facts, end, how(Place::Room(0)), &store::open)
        }
        attached => attached,
    };
    if !matches!(attached, Ok(Some(_))) && !files::is_cached(facts.identity) {
        others::forget(facts.identity);
    }
    let region = match attached {
        Ok(Some(region)) => region,
        Ok(None) => return Ok(None),
        Err(Error::Outgrown { .. }) => return hand_over(facts.identity).map(|()| None),
        Err(error) => return Err(error),
    };
    let writer = (!writable && mode == libc::O_RDWR).then(|| file::another(&from).ok()).flatten();
    let share =
        Arc::new(Share { region: region.clone(), identity: facts.identity, writer, moved: AtomicBool::new(false) });
    let start = region.start().wrapping_add(in_file.start) as usize;
    if region.lacks(&in_file) || fixed && start != wanted.start {
        drop(share);
        return hand_over(facts.identity).map(|()| None);
    }
    processes::expect_children();
    let at = start..start + in_file.len();
    let mapped = with(|table| {
        if region.is_handed_over() {
            // By another thread, since it was found.
            return Ok(None);
        }
        table.add(Piece { at: at.clone(), prot: request.prot, not_in_children: false, share: share.clone() });
        // All of the region's, for it may have been made writable just now.
        let of_region: Vec<_> = table
            .pieces()
            .iter()
            .filter(|piece| Arc::ptr_eq(&piece.share.region, &region))
            .map(|one| one.at.clone())
            .collect();
        of_region.iter().try_for_each(|part| apply_protections(table, part))?;
        Ok(Some(start as *mut u8))
    });
    mapped.map_err(|error: i32| region.io_error("protect its map (mprotect)", std::io::Error::from_raw_os_error(error)))
}

/// Has a file that is to be mapped for reading watched for other processes that write it (`others.rs`). False: it is for the kernel to map.
fn watch(from: &File, facts: &file::Facts, fallback: Fallback) -> crate::Result<bool> {
    if fork::is_child() || files::is_mutable(facts.identity) {
        return Ok(true);
    }
    let Err(why) = others::watch(from, facts.identity, processes::give_back) else { return Ok(true) };
    let error = Error::Missing {
        path: file::path_of(from),
        missing: "a way to see what other processes write to it",
        remedy: format!("{why}; map it through the kernel, or see to it that nobody else writes it"),
    };
    if fallback == Fallback::Kernel {
        tracing::warn!(%error, "mapped through the kernel instead");
        return Ok(false);
    }
    Err(error)
}

/// Whether nothing is mapped at a place (`MAP_FIXED_NOREPLACE`).
fn is_free(range: &Range<usize>) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: it replaces nothing, and goes at once.
    unsafe {
        let at = libc::mmap(range.start as *mut _, range.len(), libc::PROT_NONE, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return false;
        }
        libc::munmap(at, range.len());
        at as usize == range.start
    }
}

/// Sets what the program may do to a range of pages, by all layers there.
fn apply_protections(table: &Table, range: &Range<usize>) -> Result<(), i32> {
    for (part, prot) in table.protections(range) {
        let Some((piece, _)) = table.meeting(&part).next() else { continue };
        let region = &piece.share.region;
        // A region without stores stays writable to the kernel: frames are moved in, and a store that traps is refused.
        let prot = if prot != 0 && !region.is_writable() { libc::PROT_READ | libc::PROT_WRITE } else { prot };
        if prot == 0 {
            // The kernel could not read a dirty page there.
            clear_out(region, &part)?;
        }
        // SAFETY: the program's own maps; the engine needs no more than the program.
        check(unsafe { libc::mprotect(part.start as *mut _, part.len(), prot) })?;
    }
    Ok(())
}

/// Has a range of a region out of memory, its dirty pages saved.
fn clear_out(region: &Region, range: &Range<usize>) -> Result<(), i32> {
    let _length = region.lock_length();
    sizes::leave_memory(region, pages_at(region, range)).map(drop).map_err(|error| error.errno())
}

/// Ends what nobody maps any more of regions that others still map: nothing is there then, as after munmap(2).
fn retire(removed: Removed) {
    drop(removed.locked);
    for (share, part) in &removed.bare {
        let region = &share.region;
        // The long part of it with the table free.
        if region.is_writable() && writers::flush(region, pages_at(region, part), false).is_err() {
            continue;
        }
        with(|table| {
            // Somebody may have mapped part of it again.
            for (bare, _) in table.parts(part).into_iter().filter(|(_, covered)| !covered) {
                region.holes().distrust(0);
                region.least_end().fetch_min(pages_at(region, &bare).start, Ordering::AcqRel);
                if clear_out(region, &bare).is_ok() {
                    // SAFETY: addresses of the region that no map covers.
                    unsafe { libc::mprotect(bare.start as *mut _, bare.len(), libc::PROT_NONE) };
                }
            }
        });
    }
}

/// Takes cached maps out of a range, all layers of them, for a kernel mapping that is about to replace it (`MAP_FIXED`). Nothing
/// happens where there are none.
///
/// # Safety
/// What is there goes; the caller maps the range next.
pub unsafe fn make_way(addr: usize, len: usize) {
    if let Ok(range) = range_of(addr, len) {
        // SAFETY: the caller's contract.
        drop(unsafe { clear_way(&range) });
    }
}

unsafe fn clear_way(range: &Range<usize>) -> Removed {
    direct::forget(range);
    if !holds(range.start, range.len()) {
        with(|table| table.kernels.forget(range));
        return Removed::default();
    }
    let removed = with(|table| {
        table.kernels.forget(range);
        table.remove(range, true)
    });
    // Addresses that a region has beside its maps are lent as well.
    for region in registry::all() {
        let (start, end) = region.addresses();
        if let Some(part) = intersection(&(start..end), range) {
            if region.is_writable() {
                let _ = writers::write_out(&region, pages_at(&region, &part));
            }
            let _ = clear_out(&region, &part);
            let offset = region.page_at(part.start) * PAGE;
            region.lend(offset..offset + part.len());
        }
    }
    removed
}

/// Makes every map of a file an ordinary kernel mapping; then its maps are the kernel's until the last of them goes.
fn hand_over(identity: file::Identity) -> crate::Result<()> {
    let shares: Vec<Arc<Share>> = with(|table| {
        let Some(piece) = table.pieces().iter().find(|piece| piece.share.identity == identity) else {
            return Ok(vec![]);
        };
        let region = piece.share.region.clone();
        let (start, end) = region.addresses();
        let parts: Vec<_> =
            table.protections(&(start..end)).into_iter().map(|(at, prot)| (pages_at(&region, &at), prot)).collect();
        // What mlock(2) pins would be in the way.
        table.locked.retain(|locked| locked.share.identity != identity);
        handover::to_kernel(&region, &parts).map_err(|error| {
            region.io_error("map it through the kernel instead", std::io::Error::from_raw_os_error(error))
        })?;
        Ok(table.make_kernels(identity))
    })?;
    drop(shares);
    Ok(())
}

/// Notes a kernel mapping, made because [`map`] said so: while it is there all maps of the file are the kernel's, and so
/// agree. For the functions here it ends by [`unmap`], [`remap`] and [`make_way`].
pub fn note_kernel(fd: BorrowedFd<'_>, addr: usize, len: usize) {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    if let (Ok(facts), Ok(at)) = (facts_of(&from), range_of(addr, len)) {
        with(|table| table.kernels.add(at, facts.identity));
    }
}

/// The kernel mappings of files whose maps are all the kernel's, by [`note_kernel`] or because they were handed over: `then` is
/// called with each one's addresses, and calls nothing here. Only if maps were handed over since it said `known`; returns what
/// to know the next time.
pub fn each_kernel(known: u64, then: impl FnMut(Range<usize>)) -> u64 {
    with(|table| {
        if table.handovers != known {
            table.kernels.addresses().for_each(then);
        }
        table.handovers
    })
}

/// munmap(2).
///
/// # Safety
/// As there: nobody uses the range any more.
///
/// # Errors
/// EINVAL as there. Pages that cannot be written to their file stay in memory, and the writers go on trying.
pub unsafe fn unmap(addr: usize, len: usize) -> Result<(), i32> {
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let range = range_of(addr, len)?;
    let (parts, removed) = with(|table| {
        table.kernels.forget(&range);
        (table.parts(&range), table.remove(&range, false))
    });
    retire(removed);
    for (part, _) in parts.into_iter().filter(|(_, covered)| !covered) {
        // SAFETY: the caller's contract. What a region has beside its maps is left alone.
        let unmap = |part: Range<usize>| {
            direct::forget(&part);
            // SAFETY: the caller's contract.
            check(unsafe { libc::munmap(part.start as *mut _, part.len()) })
        };
        each_foreign(&part, unmap)?;
    }
    Ok(())
}

/// Runs `then` on the parts of a range that lie in no region's own addresses.
fn each_foreign(range: &Range<usize>, mut then: impl FnMut(Range<usize>) -> Result<(), i32>) -> Result<(), i32> {
    let mut own: Vec<Range<usize>> = Vec::new();
    if holds(range.start, range.len()) {
        for region in registry::all() {
            own.extend(region.own_addresses().into_iter().filter_map(|part| intersection(&part, range)));
        }
    }
    own.sort_by_key(|part| part.start);
    let mut at = range.start;
    for part in own.into_iter().chain(std::iter::once(range.end..range.end)) {
        if part.start > at {
            then(at..part.start)?;
        }
        at = at.max(part.end);
    }
    Ok(())
}

/// Runs `ours` on every part of a range that cached maps cover, `others` on those between.
fn split(
    addr: usize,
    len: usize,
    mut ours: impl FnMut(&mut Table, Range<usize>) -> Result<(), i32>,
    mut others: impl FnMut(Range<usize>) -> Result<(), i32>,
) -> Result<(), i32> {
    let range = range_of(addr, len)?;
    if !holds(addr, range.len()) {
        return others(range);
    }
    for (part, covered) in with(|table| table.parts(&range)) {
        if covered { with(|table| ours(table, part))? } else { others(part)? }
    }
    Ok(())
}

/// mprotect(2).
///
/// # Safety
/// As there.
///
/// # Errors
/// As there: EACCES for `PROT_WRITE` through a descriptor that may not write. What cannot be written back before a range
/// becomes inaccessible is an error too, of the write.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let known = libc::PROT_READ | libc::PROT_WRITE;
    let opens = prot & libc::PROT_WRITE != 0;
    if holds(addr, len) && (prot & !known != 0 || opens && !descriptor_table::is_engines()) {
        // Executable pages, or what else there may be, are the kernel's; and what would open the file in another descriptor table.
        hand_over_range(&range_of(addr, len)?)?;
    }
    let ours = |table: &mut Table, part: Range<usize>| {
        if prot & libc::PROT_WRITE != 0 {
            for (piece, _) in table.meeting(&part) {
                let Share { region, writer, .. } = &*piece.share;
                if !region.is_writable() {
                    let from = writer.as_ref().ok_or(libc::EACCES)?;
                    files::let_write(region, from, true).map_err(|error| error.errno())?;
                }
            }
        }
        table.set_protection(&part, prot);
        apply_protections(table, &part)
    };
    split(addr, len, ours, |part| {
        direct::protecting(&part, prot);
        // SAFETY: the caller's contract.
        check(unsafe { libc::mprotect(part.start as *mut _, part.len(), prot) })
    })
}

/// Hands over every file that is mapped in a range.
fn hand_over_range(range: &Range<usize>) -> Result<(), i32> {
    let identities = with(|table| table.meeting(range).map(|(piece, _)| piece.share.identity).collect::<Vec<_>>());
    identities.into_iter().try_for_each(|identity| hand_over(identity).map_err(|error| error.errno()))
}

/// mremap(2). A cached map grows where it is as far as its file's addresses reach (64 GiB if it was mapped to be written), and
/// moves where it alone has the file.
///
/// # Safety
/// As there.
///
/// # Errors
/// As there.
pub unsafe fn remap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Result<*mut u8, i32> {
    let kernel = || {
        let from = old..old + old_len.next_multiple_of(PAGE);
        let at = direct::moving(&from, new_len, || {
            // SAFETY: the caller's contract.
            let at = unsafe { libc::mremap(old as *mut _, old_len, new_len, flags, new) };
            if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at.cast()) }
        })?;
        with(|table| table.kernels.moved(&from, at as usize..at as usize + new_len.next_multiple_of(PAGE)));
        Ok(at)
    };
    let range = range_of(old, old_len)?;
    if flags & libc::MREMAP_FIXED != 0 {
        // SAFETY: the caller wants what is there gone.
        unsafe { make_way(new, new_len) };
    }
    if !holds(old, range.len()) {
        return kernel();
    }
    let Some(piece) = with(|table| {
        let inside = |piece: &&Piece| piece.at.start <= range.start && range.end.max(range.start + 1) <= piece.at.end;
        let mut pieces = table.pieces().iter().rev();
        // Of several layers the one that is just this.
        let exact = table.pieces().iter().rev().find(|piece| piece.at == range);
        exact.or_else(|| pieces.find(inside)).cloned()
    }) else {
        return Err(libc::EFAULT);
    };
    if new_len == 0 {
        return Err(libc::EINVAL);
    }
    let new_len = new_len.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
    if flags & !libc::MREMAP_MAYMOVE != 0 {
        // At a place of the program's choice, or leaving the old one empty.
        hand_over(piece.share.identity).map_err(|error| error.errno())?;
        drop(piece);
        return kernel();
    }
    if old_len == 0 {
        // Another map of the same.
        with(|table| table.add(Piece { at: range.start..range.start + new_len, ..piece.clone() }));
        return Ok(range.start as *mut u8);
    }
    if new_len <= range.len() {
        if new_len < range.len() {
            let rest = range.start + new_len..range.end;
            retire(with(|table| table.shrink(&piece, &rest)));
        }
        return Ok(old as *mut u8);
    }
    let region = piece.share.region.clone();
    let offset = region.page_at(range.start) * PAGE;
    let in_file = offset..offset + new_len;
    let identity = piece.share.identity;
    if !region.lacks(&in_file) {
        region.store().note_mapped(in_file.end);
        with(|table| {
            let at = range.start..range.start + new_len;
            table.grow(&piece, &range, at.clone());
            apply_protections(table, &at)
        })?;
        return Ok(old as *mut u8);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(libc::ENOMEM);
    }
    let alone = with(|table| table.pieces().iter().filter(|one| Arc::ptr_eq(&one.share.region, &region)).count() == 1);
    if alone && piece.at == range && with(|table| reach::is_kept(table, &range)) {
        // As for locked memory that may not become more: what is kept stays where it is.
        return Err(libc::EAGAIN);
    }
    if alone && piece.at == range {
        // If somebody else maps the file at this moment it is handed over after all.
        if let Ok(larger) = files::replace(identity, &region, in_file.end, None) {
            piece.share.moved.store(true, Ordering::Release);
            let start = larger.start().wrapping_add(offset) as usize;
            let writer = piece.share.writer.as_ref().and_then(|file| file::another(file).ok());
            let share = Arc::new(Share { region: larger, identity, writer, moved: AtomicBool::new(false) });
            let at = start..start + new_len;
            with(|table| {
                table.remove(&piece.at, false);
                table.add(Piece { at: at.clone(), share, ..piece.clone() });
                apply_protections(table, &at)
            })?;
            return Ok(start as *mut u8);
        }
    }
    drop(piece);
    hand_over(identity).map_err(|error| error.errno())?;
    kernel()
}
