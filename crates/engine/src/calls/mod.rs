//! mmap(2) and its kin by address: what `libfastmap.so` and `libfastmap_preload.so` are made of.
//!
//! The functions have the arguments and the error numbers of the calls they are named after, and do the kernel's part too:
//! a range may lie across maps of the cache and other memory. All maps of a file have the same addresses for the same bytes of the file: mapped
//! twice, it has the same address twice, and is to be unmapped twice. So that none can be told from the other, this is so only for
//! maps that may be used alike, and where the caller wants it ([`Request::layers`]).
//!
//! What the cache would have to imitate (a file mapped at two places, a part protected otherwise than the rest of its map, or mapped
//! over, executable pages, advice that changes what memory is, a map that outgrows its addresses while the file has others) makes
//! the whole file's maps ordinary kernel mappings, in place (`handover.rs`), and then the kernel does it.

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
pub use processes::{before_fork, in_child, in_parent, resolve_in_child, save_all, to_be_written};
pub use reach::{expect_backward, is_cached, keep, let_go, prefetch, prefetch_wait, read, set_readahead, write};

use crate::behind::Wish;
use crate::cache::Cache;
use crate::error::Error;
use crate::fault;
use crate::files::{self, Fallback, How};
use crate::handover;
use crate::lock::Guarded;
use crate::options::facts_of;
use crate::others;
use crate::pinning::Hold;
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
use table::{Locked, Piece, Removed, Share, Table, Unlocked, intersection, pages_at, rest};

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
    /// Bytes of the file that another map has, which may be used like this one, may be given the same addresses. Else the kernel maps
    /// them, at addresses of their own.
    pub layers: bool,
}

/// All maps made by address. Frozen across fork(2).
static MAPS: Guarded<Table> = Guarded::new(Table::new());

/// Runs `then` on the table. It may do I/O, but takes no lock that a thread holds which wants the table.
fn with<R>(then: impl FnOnce(&mut Table) -> R) -> R {
    MAPS.with(then)
}

/// Whole pages; EINVAL for those that begin in the middle of one, and `overflow` where addresses end before the range does.
fn range_of(addr: usize, len: usize, overflow: i32) -> Result<Range<usize>, i32> {
    if !addr.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len));
    // User space has no more (x86-64, four levels of tables).
    end.filter(|end| *end <= 1 << 47).map(|end| addr..end).ok_or(overflow)
}

/// What lies in a part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Maps of the cache.
    Cached,
    /// Addresses that a file's maps have beside them: nothing is mapped there.
    Spare,
    /// The kernel's.
    Other,
}

/// What lies where in a range, in order.
fn kinds_in(range: &Range<usize>) -> Vec<(Range<usize>, Kind)> {
    if range.is_empty() {
        return vec![];
    }
    if !holds(range.start, range.len()) {
        return vec![(range.clone(), Kind::Other)];
    }
    let parts = with(|table| table.parts(range));
    let mut spare: Vec<Range<usize>> = Vec::new();
    if parts.iter().any(|(_, covered)| !covered) {
        for region in registry::all().filter(|region| region.is_by_address()) {
            spare.extend(region.own_addresses().into_iter().filter_map(|part| intersection(&part, range)));
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
            kinds.push((spare, Kind::Spare));
        }
        kinds.push((at..part.end, Kind::Other));
    }
    kinds.retain(|(part, _)| !part.is_empty());
    kinds
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
///     layers: true,
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
    let odd = !request.offset.is_multiple_of(PAGE as u64) || request.len == 0;
    let Some(end) =
        (request.offset as usize).checked_add(request.len).and_then(|end| end.checked_next_multiple_of(PAGE))
    else {
        return Ok(None);
    };
    if refused || odd || fork::is_child() {
        return Ok(None);
    }
    let facts = facts_of(&from)?;
    if !SERVED.contains(&request.prot) {
        return hand_over(facts.identity).map(|()| None);
    }
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
    let before = if fixed {
        let has_it = |piece: &&Piece| {
            let region = &piece.share.region;
            piece.share.identity == facts.identity
                && region.start().wrapping_add(in_file.start) as usize == wanted.start
                && !region.lacks(&in_file)
        };
        let in_place = with(|table| table.pieces().iter().find(has_it).is_some().then(|| table.remove(&wanted, true)));
        if in_place.is_none() {
            // SAFETY: the caller wants what is there gone.
            unsafe { clear_way(&wanted) }.map_err(|error| Error::Io {
                path: file::path_of(&from),
                operation: CLEARING,
                source: std::io::Error::from_raw_os_error(error),
            })?;
        }
        in_place.unwrap_or_default()
    } else {
        Removed::default()
    };
    let mapped = attach(&from, &facts, cache, request, in_file, mode == libc::O_RDWR);
    // What the new map covers again stays as it is.
    retire(before);
    match mapped? {
        Some(at) => Ok(Some(at)),
        None => hand_over(facts.identity).map(|()| None),
    }
}

/// What [`map`] comes to when its place is clear. `None`: the kernel has to map it, and all of the file.
fn attach(
    from: &File,
    facts: &file::Facts,
    cache: &Cache,
    request: &Request,
    in_file: Range<usize>,
    may_write: bool,
) -> crate::Result<Option<*mut u8>> {
    let writable = request.prot & libc::PROT_WRITE != 0;
    let fixed = request.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let replaced = if fixed { request.addr..request.addr.saturating_add(in_file.len()) } else { 0..0 };
    let is_kernels = |table: &mut Table| {
        table.meet(from, facts.identity);
        table.is_kernels(facts.identity, &replaced)
    };
    if with(is_kernels) {
        return Ok(None);
    }
    if !descriptor_table::is_engines() {
        // All of its maps, so that they agree: whoever is refused this one may map it through the kernel.
        hand_over(facts.identity)?;
    }
    let place = match (fixed, writable) {
        (true, _) => Place::Fixed { address: request.addr, offset: in_file.start },
        (false, true) => Place::Room(ROOM),
        (false, false) => Place::Room(0),
    };
    let (one_writer, fallback) = (request.one_writer, request.fallback);
    let behind = Wish { initial: None, keep: request.async_stores };
    let how = |place| How {
        cache: Some(cache),
        writable,
        one_writer,
        fallback,
        place,
        scratch: false,
        by_address: true,
        behind,
    };
    let attached = match files::attach(from, facts, in_file.end, how(place), &store::open) {
        // Address space may be limited (setrlimit(2)).
        Err(Error::Io { source, .. }) if !fixed && source.raw_os_error() == Some(libc::ENOMEM) => {
            files::attach(from, facts, in_file.end, how(Place::Room(0)), &store::open)
        }
        attached => attached,
    };
    let region = match attached {
        Ok(Some(region)) => region,
        Ok(None) | Err(Error::Outgrown { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    processes::expect_children();
    let writer = (!writable && may_write).then(|| file::another(from).ok()).flatten();
    let moved = AtomicBool::new(false);
    let share = Arc::new(Share { region: region.clone(), identity: facts.identity, writer, may_write, moved });
    // Now that its region is there for as long as this share is: whoever ends it forgets the watch.
    if !writable && request.one_writer && !watch(from, facts, request.fallback)? {
        return Ok(None);
    }
    let start = region.start().wrapping_add(in_file.start) as usize;
    let at = start..start + in_file.len();
    let mapped = with(|table| {
        let differs = |(one, _): (&Piece, Range<usize>)| {
            !request.layers || one.prot != request.prot || one.share.may_write != may_write
        };
        // Handed over by another thread since it was found, in part somebody else's, at another place, or not to be told from another.
        if region.is_handed_over()
            || region.lacks(&in_file)
            || fixed && start != request.addr
            || table.meeting(&at).any(differs)
        {
            return Ok(None);
        }
        table.kernels.forget(&at);
        table.add(Piece { at: at.clone(), prot: request.prot, not_in_children: false, share: share.clone() });
        apply_all(table, &region)?;
        Ok(Some(start as *mut u8))
    });
    mapped.map_err(|error: i32| region.io_error("protect its map (mprotect)", std::io::Error::from_raw_os_error(error)))
}

/// Has a file that is to be mapped for reading watched for other processes that write it (`others.rs`). False: it is for the kernel to map.
fn watch(from: &File, facts: &file::Facts, fallback: Fallback) -> crate::Result<bool> {
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
/// What is done when it fails to make way.
const CLEARING: &str = "clear its place of what is mapped there (MAP_FIXED)";

/// What maps of the cache may be used for.
const SERVED: [i32; 2] = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE];

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

/// Sets what the program may do to all maps of a region, which may have been made writable just now.
fn apply_all(table: &Table, region: &Arc<Region>) -> Result<(), i32> {
    let of_region = table.pieces().iter().filter(|piece| Arc::ptr_eq(&piece.share.region, region));
    of_region.map(|piece| piece.at.clone()).try_for_each(|part| apply_protections(table, &part))
}

/// Sets what the program may do to a range of pages, which maps cover.
fn apply_protections(table: &Table, range: &Range<usize>) -> Result<(), i32> {
    for (part, prot) in table.protections(range) {
        let Some((piece, _)) = table.meeting(&part).next() else { continue };
        let region = &piece.share.region;
        // SAFETY: the program's own maps; the engine needs no more than the program.
        unsafe {
            if region.is_writable() {
                check(libc::mprotect(part.start as *mut _, part.len(), prot))?;
            } else {
                let opened = region.open_to_loads(part.start as *mut u8, part.len());
                opened.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
            }
        }
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
        if with(|table| table.parts(part).iter().all(|(_, covered)| *covered)) {
            continue;
        }
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

/// Takes cached maps out of a range, all layers of them, for other memory that is about to replace it (`MAP_FIXED`): a file that has
/// maps there becomes the kernel's with all of its maps. Nothing happens where there are none.
///
/// # Safety
/// What is there goes; the caller maps the range next.
///
/// # Errors
/// Then all is as before, and nothing may be mapped there: EBUSY, pages are pinned, and stay so; what else keeps their file from
/// being saved.
pub unsafe fn make_way(addr: usize, len: usize) -> Result<(), i32> {
    // Else the kernel refuses it.
    if let Ok(range) = range_of(addr, len, libc::ENOMEM) {
        // SAFETY: the caller's contract.
        unsafe { clear_way(&range)? };
        with(|table| table.kernels.forget(&range));
    }
    Ok(())
}

/// The same, with the kernel mappings that may be there now still noted.
unsafe fn clear_way(range: &Range<usize>) -> Result<(), i32> {
    if holds(range.start, range.len()) {
        let identities = with(|table| table.meeting(range).map(|(piece, _)| piece.share.identity).collect::<Vec<_>>());
        for identity in identities {
            hand_over_for(identity, range).map_err(|error| error.errno())?;
        }
        // Addresses that regions have beside their maps, and those of the heap, which is no map by address.
        for region in registry::all() {
            for part in region.own_addresses().into_iter().filter_map(|part| intersection(&part, range)) {
                // The kernel has all of the file now, or the table would have been in the way; or another thread maps it just now.
                handover::patiently(|| {
                    with(|table| match table.meeting(&part).next() {
                        Some(_) => Err(libc::EBUSY),
                        None => handover::lend(&region, pages_at(&region, &part)),
                    })
                })?;
            }
        }
    }
    direct::forget(range);
    Ok(())
}

/// Makes every map of a file an ordinary kernel mapping; then its maps are the kernel's until the last of them goes.
fn hand_over(identity: file::Identity) -> crate::Result<()> {
    hand_over_for(identity, &(0..0))
}

/// The same, for memory that is to replace a range: pins that are asked for by an address there end, as with munmap(2). What mlock(2)
/// has locked beside it the kernel keeps locked. On failure all is as before.
fn hand_over_for(identity: file::Identity, replaced: &Range<usize>) -> crate::Result<()> {
    let region_in = |table: &mut Table| {
        let piece = table.pieces().iter().find(|piece| piece.share.identity == identity)?;
        Some(piece.share.region.clone())
    };
    let Some(region) = with(region_in) else { return Ok(()) };
    // What cannot be saved stays, and locked as it is.
    writers::flush(&region, 0..region.span() / PAGE, false)?;
    let mut unlocked = Vec::new();
    let mut shares = Vec::new();
    let attempt = || {
        with(|table| {
            // Another one, if the maps have outgrown it meanwhile.
            let Some(region) = region_in(table) else { return Ok(true) };
            unlocked.extend(table.unlock_file(identity, replaced));
            shares = match to_kernel(table, &region, identity, replaced)? {
                true => table.make_kernels(identity),
                false => return Ok(false),
            };
            for part in unlocked.iter().filter(|one| one.key.is_none()).flat_map(|lock| rest(&lock.at, replaced)) {
                // SAFETY: it brings memory in.
                unsafe { libc::mlock(part.start as *const _, part.len()) };
            }
            Ok(true)
        })
    };
    region.set_leaving(true);
    let done = handover::patiently(attempt);
    if done.is_err() {
        region.set_leaving(false);
        lock_again(unlocked);
    }
    drop(shares);
    done.map_err(|error| {
        let source = std::io::Error::from_raw_os_error(error);
        region.io_error("map it through the kernel instead", source)
    })
}

/// The region's part of a hand-over.
fn to_kernel(
    table: &Table,
    region: &Arc<Region>,
    identity: file::Identity,
    replaced: &Range<usize>,
) -> Result<bool, i32> {
    let of_file = || table.pieces().iter().filter(|piece| piece.share.identity == identity);
    let (start, end) = region.addresses();
    let part = |(at, prot): (Range<usize>, i32)| {
        let fd = table.meeting(&at).next()?.0.share.descriptor()?;
        Some(handover::Part { pages: pages_at(region, &at), prot, fd })
    };
    let parts: Vec<_> = table.protections(&(start..end)).into_iter().filter_map(part).collect();
    let all = of_file().all(|piece| intersection(&piece.at, replaced).as_ref() == Some(&piece.at));
    let done = handover::to_kernel(region, &parts, all)?;
    for piece in of_file().filter(|piece| done && piece.not_in_children) {
        // SAFETY: a mapping of the file.
        unsafe { libc::madvise(piece.at.start as *mut _, piece.at.len(), libc::MADV_DONTFORK) };
    }
    Ok(done)
}

/// Locks and pins again what a hand-over that failed has let go.
fn lock_again(unlocked: Vec<Unlocked>) {
    for Unlocked { at, share, key } in unlocked {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let pages = pages_at(region, &at);
        let hold = match Hold::new(region, pages.clone(), key.is_some_and(|key| key.writing)) {
            Ok(hold) => hold,
            Err(error) => {
                fault::say(region, pages.start, format_args!("and others are not locked any more: {error}"));
                continue;
            }
        };
        let lock = Locked { at, hold, share };
        with(|table| match key {
            None => table.locked.push(lock),
            // Unless it has been let go meanwhile.
            Some(key) => {
                if let Some(pins) = table.pins.get_mut(&key) {
                    pins.holds.push(lock);
                }
            }
        });
    }
}

/// Notes a kernel mapping, made because [`map`] said so: while it is there all maps of the file are the kernel's, and so
/// agree. For the functions here it ends by [`unmap`], [`remap`] and [`make_way`].
pub fn note_kernel(fd: BorrowedFd<'_>, addr: usize, len: usize) {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    if let (Ok(facts), Ok(at)) = (facts_of(&from), range_of(addr, len, libc::EINVAL)) {
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
    let range = range_of(addr, len, libc::EINVAL)?;
    let (parts, removed, layers) =
        with(|table| (table.parts(&range), table.remove(&range, false), table.kernels.remove(&range)));
    retire(removed);
    for (part, _) in parts.into_iter().filter(|(_, covered)| !covered) {
        // SAFETY: the caller's contract. What a region has beside its maps is left alone.
        each_foreign(&part, &layers, |part| {
            direct::forget(&part);
            // SAFETY: the caller's contract.
            check(unsafe { libc::munmap(part.start as *mut _, part.len()) })
        })?;
    }
    Ok(())
}

/// Runs `then` on the parts of a range that lie in no region's own addresses, and not in `others`.
fn each_foreign(
    range: &Range<usize>,
    others: &[Range<usize>],
    mut then: impl FnMut(Range<usize>) -> Result<(), i32>,
) -> Result<(), i32> {
    let mut own: Vec<Range<usize>> = others.iter().filter_map(|part| intersection(part, range)).collect();
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

/// mprotect(2). Maps of the cache may be read, or read and written, each as a whole; a part of one, and all other protection, is the
/// kernel's.
///
/// # Safety
/// As there.
///
/// # Errors
/// As there: EACCES for `PROT_WRITE` through a descriptor that may not write; what keeps a file from being handed over.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    /// With `PROT_SEM` (asm-generic/mman-common.h); the others are for stacks.
    const KNOWN: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | 8;
    let kernel = || {
        // SAFETY: the caller's contract.
        check(unsafe { libc::mprotect(addr as *mut _, len, prot) })
    };
    if !addr.is_multiple_of(PAGE) || len == 0 {
        return kernel();
    }
    let range = range_of(addr, len, libc::ENOMEM)?;
    direct::protecting(&range, prot);
    let kinds = kinds_in(&range);
    if kinds.iter().all(|(_, kind)| *kind == Kind::Other) {
        return kernel();
    }
    match kinds[0].1 {
        Kind::Spare => return Err(libc::ENOMEM),
        Kind::Cached if prot & !KNOWN != 0 => return Err(libc::EINVAL),
        _ => {}
    }
    let is_cached = kinds.iter().all(|(_, kind)| *kind == Kind::Cached);
    if is_cached && let Some(done) = with(|table| protect_whole(table, &range, prot)) {
        return done;
    }
    hand_over_range(&range)?;
    // It stops at the first hole, and to the program there is none that the files' maps had beside them.
    let end = kinds.iter().find(|(_, kind)| *kind == Kind::Spare).map_or(range.end, |(part, _)| part.start);
    // SAFETY: the caller's contract.
    check(unsafe { libc::mprotect(addr as *mut _, end - range.start, prot) })?;
    if end == range.end { Ok(()) } else { Err(libc::ENOMEM) }
}

/// mprotect(2) of whole maps of the cache that stay such. `None`: it is not that.
fn protect_whole(table: &mut Table, range: &Range<usize>, prot: i32) -> Option<Result<(), i32>> {
    let is_whole = table.meeting(range).all(|(piece, part)| piece.at == part);
    // To open the file in another descriptor table is of no use.
    let opens = prot & libc::PROT_WRITE != 0 && !descriptor_table::is_engines();
    if !is_whole || opens || !SERVED.contains(&prot) {
        return None;
    }
    let shares: Vec<_> = table.meeting(range).map(|(piece, _)| piece.share.clone()).collect();
    if prot & libc::PROT_WRITE != 0 {
        match shares.iter().filter(|share| share.may_write).count() {
            0 => return Some(Err(libc::EACCES)),
            all if all == shares.len() => {}
            // Up to the first that may not.
            _ => return None,
        }
    }
    for share in &shares {
        let region = &share.region;
        if prot & libc::PROT_WRITE != 0
            && !region.is_writable()
            && let Err(error) = share.writer.as_ref().map_or(Ok(()), |from| files::let_write(region, from, true))
        {
            return Some(Err(error.errno()));
        }
    }
    table.set_protection(range, prot);
    Some(shares.iter().try_for_each(|share| apply_all(table, &share.region)))
}

/// Has every file that is mapped in a range be the kernel's from now on, with all of its maps: before a system call that only the
/// kernel can do, such as pkey_mprotect(2) with a key.
///
/// # Errors
/// ENOMEM: there is a hole in the range; what keeps a file from being handed over.
pub fn leave_file_to_kernel(addr: usize, len: usize) -> Result<(), i32> {
    // The call has the errors of ranges that are none.
    let Ok(range) = range_of(addr, len, libc::EINVAL) else { return Ok(()) };
    if kinds_in(&range).iter().any(|(_, kind)| *kind == Kind::Spare) {
        return Err(libc::ENOMEM);
    }
    hand_over_range(&range)
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
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let new_len = new_len.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
    let is_at_a_place = flags & libc::MREMAP_FIXED != 0;
    let moves = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0;
    let range = range_of(old, old_len, libc::EINVAL)?;
    let place = if is_at_a_place { range_of(new, new_len, libc::EINVAL)? } else { 0..0 };
    // Before anything at the new place goes.
    if flags & !known != 0
        || new_len == 0
        || moves && flags & libc::MREMAP_MAYMOVE == 0
        || flags & libc::MREMAP_DONTUNMAP != 0 && new_len != range.len()
        || intersection(&range, &place).is_some()
    {
        return Err(libc::EINVAL);
    }
    let first = range.start..range.end.max(range.start + 1);
    if kinds_in(&first).first().is_some_and(|(_, kind)| *kind == Kind::Spare) {
        return Err(libc::EFAULT);
    }
    if is_at_a_place {
        let mut there = 0;
        // SAFETY: one page, one byte.
        if unsafe { libc::mincore(old as *mut _, PAGE, &mut there) } != 0 {
            return Err(libc::EFAULT);
        }
        // SAFETY: the caller wants what is there gone.
        unsafe { clear_way(&place)? };
    }
    let by_kernel = || {
        // SAFETY: the caller's contract.
        unsafe { remap_by_kernel(&range, new_len, flags, new) }
    };
    let Some(piece) = with(|table| {
        let inside = |piece: &&Piece| piece.at.start <= range.start && first.end <= piece.at.end;
        let mut pieces = table.pieces().iter().rev();
        // Of several layers the one that is just this.
        let exact = table.pieces().iter().rev().find(|piece| piece.at == range);
        exact.or_else(|| pieces.find(inside)).cloned()
    }) else {
        hand_over_range(&range)?;
        return by_kernel();
    };
    let (region, identity) = (piece.share.region.clone(), piece.share.identity);
    let offset = region.page_at(range.start) * PAGE;
    let in_file = offset..offset + new_len;
    let to = range.start..range.start + new_len;
    let is_plain = flags & !libc::MREMAP_MAYMOVE == 0 && old_len > 0;
    if is_plain && new_len <= range.len() {
        if new_len < range.len() {
            retire(with(|table| table.shrink(&piece, &(to.end..range.end))));
        }
        return Ok(old as *mut u8);
    }
    // What grows out of locked memory is locked as well.
    let is_plain = is_plain && !with(|table| table.is_locked(&range));
    let grown = range.end..to.end;
    // What is mapped behind it is another map, though its bytes follow in the file.
    let has_room = is_plain && !region.lacks(&in_file) && with(|table| table.meeting(&grown).next().is_none());
    if has_room && range.end == piece.at.end {
        region.store().note_mapped(in_file.end);
        with(|table| {
            table.grow(&piece, &range, to.clone());
            apply_protections(table, &to)
        })?;
        return Ok(old as *mut u8);
    }
    if is_plain && flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(libc::ENOMEM);
    }
    let is_alone = |table: &mut Table| {
        table.pieces().iter().filter(|one| Arc::ptr_eq(&one.share.region, &region)).count() == 1
            && !reach::is_kept(table, &range)
    };
    if is_plain && piece.at == range && with(is_alone) {
        // If somebody else maps the file at this moment it is handed over after all.
        if let Ok(larger) = files::replace(identity, &region, in_file.end, None) {
            piece.share.moved.store(true, Ordering::Release);
            let start = larger.start().wrapping_add(offset) as usize;
            let writer = piece.share.writer.as_ref().and_then(|file| file::another(file).ok());
            let (may_write, moved) = (piece.share.may_write, AtomicBool::new(false));
            let share = Arc::new(Share { region: larger, identity, writer, may_write, moved });
            let at = start..start + new_len;
            with(|table| {
                table.remove(&piece.at, false);
                table.add(Piece { at: at.clone(), share, ..piece.clone() });
                apply_protections(table, &at)
            })?;
            return Ok(start as *mut u8);
        }
    }
    drop((piece, region));
    hand_over_range(&first).map_err(|error| if error == libc::EBUSY { libc::EAGAIN } else { error })?;
    by_kernel()
}

/// mremap(2) of memory that is not cached.
///
/// # Safety
/// As there; what is at a fixed place has made way.
unsafe fn remap_by_kernel(from: &Range<usize>, new_len: usize, flags: i32, new: usize) -> Result<*mut u8, i32> {
    let moving = |old_len| {
        direct::moving(from, new_len, || {
            // SAFETY: the caller's contract.
            let at = unsafe { libc::mremap(from.start as *mut _, old_len, new_len, flags, new) };
            if at == libc::MAP_FAILED {
                return Err(errno());
            }
            if flags & libc::MREMAP_FIXED != 0 {
                with(|table| table.kernels.forget(&(new..new + new_len)));
            }
            Ok(at.cast())
        })
    };
    if with(|table| table.kernels.is_layered(from)) && flags & libc::MREMAP_MAYMOVE != 0 {
        // Another mapping of the same, and one layer less of this one.
        let at = moving(0)?;
        with(|table| {
            table.kernels.moved(from, at as usize..at as usize + new_len, true);
            if !from.is_empty() && flags & libc::MREMAP_DONTUNMAP == 0 {
                table.kernels.remove(from);
            }
        });
        return Ok(at);
    }
    let at = moving(from.len())?;
    with(|table| table.kernels.moved(from, at as usize..at as usize + new_len, flags & libc::MREMAP_DONTUNMAP != 0));
    Ok(at)
}
