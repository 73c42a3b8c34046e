//! mmap(2) by address.

use super::convert::convert;
use super::fork as fork_of;
use super::lookup::range_of;
use super::own::{Owner, look, own};
use super::protect::apply_all;
use super::table::{Piece, Removed, Share, Table};
use super::unmap::{clear_way, retire};
use super::why::{self, Why};
use crate::deferred::protocol::DeferredMode;
use crate::error::Error;
use crate::fault::child::{self, ChildMap};
use crate::files::facts::facts_of;
use crate::files::leases::Refused;
use crate::files::table::AttachOptions;
use crate::files::{closing, leases, length, table as files};
use crate::map::cache::Cache;
use crate::modes::Fallback;
use crate::region::address::Place;
use crate::region::region::Region;
use crate::store::origin::OriginStore;
use crate::store::{self, Origin};
use crate::sys::{PAGE, descriptor_table, file, fork, memory};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::Arc;

/// Address space for a file that may grow, bytes. Untouched addresses cost nothing.
const ROOM: usize = 64 << 30;

/// The arguments of mmap(2), and wishes.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Where, if `flags` say so; else of no meaning.
    pub addr: usize,
    /// Bytes; not zero.
    pub len: usize,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_NONE`.
    pub prot: i32,
    /// `MAP_SHARED`, or `MAP_PRIVATE` where `prot` is `PROT_READ`; and `MAP_FIXED` or `MAP_FIXED_NOREPLACE`. Other flags have no meaning here.
    pub flags: i32,
    /// Offset in the file, bytes: a multiple of pages.
    pub offset: u64,
    /// As [`MapOptions::one_writer`](crate::MapOptions::one_writer).
    pub one_writer: bool,
    /// Only this program uses the file: a map to be read needs no lease of it (fcntl(2)). One that is writable says so by itself.
    pub own: bool,
    /// As [`MapOptions::fallback`](crate::MapOptions::fallback).
    pub fallback: Fallback,
    /// As [`MapOptions::async_stores`](crate::MapOptions::async_stores).
    pub async_stores: bool,
    /// The map may get the same addresses as another map of the same bytes, if both are shared and may be used alike. Without this wish the
    /// kernel maps such bytes, at addresses of their own.
    pub layers: bool,
}

impl Request {
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    fn kind(&self) -> i32 {
        if self.flags & libc::MAP_TYPE == libc::MAP_PRIVATE { libc::MAP_PRIVATE } else { libc::MAP_SHARED }
    }

    fn is_fixed(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
    }
}

/// mmap(2) through the cache: `MAP_SHARED`, or `MAP_PRIVATE` to be read. A private map becomes a kernel mapping before it may be stored to.
///
/// `None`: the caller maps the file through the kernel, with the same arguments, and the kernel refuses what it must. The file's maps may have
/// been converted to kernel mappings just now, and a place (`MAP_FIXED`) cleared of cached maps.
///
/// # Safety
/// As for [`MapOptions::map`](crate::MapOptions::map) and `map_mut`; anything at a fixed place goes.
///
/// # Errors
/// As for those; [`Error::Locked`] while another process has the file in a cache to write it.
///
/// ```
/// use std::os::fd::AsFd;
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 20)?;
/// let cache = fastmap::Cache::new(1 << 20)?;
/// let request = fastmap::by_address::Request {
///     addr: 0,
///     len: 1 << 20,
///     prot: libc::PROT_READ | libc::PROT_WRITE,
///     flags: libc::MAP_SHARED,
///     offset: 0,
///     one_writer: true,
///     own: false,
///     fallback: fastmap::Fallback::Kernel,
///     async_stores: false,
///     layers: true,
/// };
/// // SAFETY: nobody else changes the file; the address is the map's until it is unmapped.
/// unsafe {
///     if let Some(at) = fastmap::by_address::map(file.as_fd(), &cache, &request)? {
///         at.write(7);
///         assert!(fastmap::by_address::holds(at as usize, 1));
///         assert_eq!(fastmap::by_address::sync(at as usize, 1, libc::MS_SYNC), Ok(()));
///         assert_eq!(fastmap::by_address::unmap(at as usize, 1 << 20), Ok(()));
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub unsafe fn map(fd: BorrowedFd<'_>, cache: &Cache, request: &Request) -> crate::error::Result<Option<*mut u8>> {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    // SAFETY: the caller's contract.
    unsafe { map_as(&from, facts_of(&from)?, cache, request, &store::open) }
}

/// Maps a file that is filled while it is read (the local copy of an object), as [`map`] does. `MAP_PRIVATE` is as good as `MAP_SHARED`, since
/// the map can only be read. The map is never converted: a call that needs a kernel mapping (mprotect(2) of a part, or to execute it) fails with
/// EOPNOTSUPP. Memory that is mapped over a part (`MAP_FIXED`) leaves the rest as it is. Each map has pages of its own.
///
/// # Safety
/// Anything at a fixed place goes.
///
/// # Errors
/// As for [`MapOptions::map_origin`](crate::MapOptions::map_origin); [`Error::Io`] with EACCES for another protection than `PROT_READ`, EINVAL
/// for a length of 0 or an offset that is not a multiple of pages, EEXIST for a place that is taken, ENOMEM.
pub unsafe fn map_origin(
    fd: BorrowedFd<'_>,
    origin: Arc<dyn Origin>,
    cache: &Cache,
    request: &Request,
) -> crate::error::Result<*mut u8> {
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    let name = origin.name().to_owned();
    let refuse =
        |error| Error::Io { path: name.clone(), operation: "map it", source: std::io::Error::from_raw_os_error(error) };
    if request.prot != libc::PROT_READ {
        return Err(refuse(libc::EACCES));
    }
    if !request.offset.is_multiple_of(PAGE as u64) || request.len == 0 {
        return Err(refuse(libc::EINVAL));
    }
    let facts = facts_of(&from)?;
    let is_taken = || !is_free(&(request.addr..request.addr.saturating_add(request.len.next_multiple_of(PAGE))));
    if request.flags & libc::MAP_FIXED_NOREPLACE != 0 && is_taken() {
        return Err(refuse(libc::EEXIST));
    }
    if fork::is_child() {
        // The engine does not run in a child. One copy of the descriptor stays open for all maps of an object.
        let fd = match child::descriptor_of(&origin) {
            Some(fd) => fd,
            None => {
                let copy =
                    file::another(&from).map_err(|error| refuse(error.raw_os_error().unwrap_or(libc::EMFILE)))?;
                ManuallyDrop::new(copy).as_raw_fd()
            }
        };
        let make = |at| ChildMap::new(at, request.offset, facts.size, origin, fd, cache.capacity());
        let at = child::map(make, request.len.next_multiple_of(PAGE), request.is_fixed().then_some(request.addr));
        return at.map(|at| at as *mut u8).map_err(|error| refuse(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }
    let (facts, open) = OriginStore::opener(facts, origin);
    let flags = request.flags & !libc::MAP_TYPE | libc::MAP_SHARED;
    let request = Request { flags, one_writer: false, fallback: Fallback::Buffered, async_stores: false, ..*request };
    // SAFETY: the caller's contract.
    unsafe { map_as(&from, facts, cache, &request, &open) }?.ok_or_else(|| refuse(libc::ENOMEM))
}

/// A call that the cache may serve.
struct Call<'a> {
    from: &'a File,
    facts: file::Facts,
    cache: &'a Cache,
    request: &'a Request,
    open: store::Open<'a>,
    /// The part of the file, in whole pages.
    in_file: Range<usize>,
    /// The addresses, if the caller chooses them.
    place: Option<Range<usize>>,
    writable: bool,
    /// mprotect(2) may make it writable.
    may_write: bool,
}

impl<'a> Call<'a> {
    /// `None`: the kernel refuses the call, or serves it without looking at the file's other maps.
    fn new(
        from: &'a File,
        facts: file::Facts,
        cache: &'a Cache,
        request: &'a Request,
        open: store::Open<'a>,
    ) -> Option<Self> {
        let writable = request.prot & libc::PROT_WRITE != 0;
        let mode = file::access_mode(from);
        let refused = mode == libc::O_WRONLY || writable && mode != libc::O_RDWR;
        let odd = !request.offset.is_multiple_of(PAGE as u64) || request.len == 0;
        let start = request.offset as usize;
        let in_file = start..start.checked_add(request.len)?.checked_next_multiple_of(PAGE)?;
        let is_private = request.kind() == libc::MAP_PRIVATE;
        // Stores to a private mapping are not the file's.
        if refused || odd || is_private && request.prot != libc::PROT_READ {
            return None;
        }
        let place =
            if request.is_fixed() { Some(range_of(request.addr, in_file.len(), libc::ENOMEM).ok()?) } else { None };
        let may_write = mode == libc::O_RDWR && !facts.identity.is_unique() && !is_private;
        Some(Call { from, facts, cache, request, open, in_file, place, writable, may_write })
    }

    fn identity(&self) -> file::Identity {
        self.facts.identity
    }

    /// The kernel serves the call: all maps of the file must agree.
    fn leave(&self, owner: &Owner, why: Why) -> crate::error::Result<Option<*mut u8>> {
        convert(owner, self.identity(), why)?;
        why::tell_of(self.from, self.identity(), why);
        Ok(None)
    }

    /// Clears the place of what is mapped there. The maps of the file that the new one replaces are kept until it is there: one may be the file's
    /// last.
    ///
    /// # Safety
    /// The caller wants what is there gone.
    unsafe fn clear(&self, owner: &Owner, place: &Range<usize>) -> crate::error::Result<Removed> {
        // A place whose address follows from those of the file's other maps is in the file's region, or joins it.
        let base = place.start - self.in_file.start;
        let is_in_place = |piece: &&Piece| {
            let address = piece.share.region.address();
            piece.share.identity == self.identity()
                && address.start() as usize == base
                && address.may_have(&self.in_file)
        };
        let region = look(|table| table.pieces().iter().find(is_in_place).map(|piece| piece.share.region.clone()));
        let others = match &region {
            Some(region) => region.address().foreign_in(&self.in_file),
            None => vec![self.in_file.clone()],
        };
        for part in others {
            let part = base + part.start..base + part.end;
            // SAFETY: the contract.
            let cleared =
                unsafe { clear_way(owner, &part) }.map_err(std::io::Error::from_raw_os_error).and_then(|()| {
                    // Reserved at once: otherwise memory that is allocated for the map could come to lie there.
                    // SAFETY: the same; or it was free just now.
                    unsafe { memory::reserve_at(part.start as *mut u8, part.len()) }
                });
            cleared.map_err(|source| Error::Io { path: file::path_of(self.from), operation: CLEARING, source })?;
        }
        Ok(region.map(|_| owner.change(|table| table.remove(place, true))).unwrap_or_default())
    }

    /// Maps the file, when the place is clear. `Ok(Err(_))`: the kernel has to map all of the file.
    fn map(&self, owner: &Owner) -> crate::error::Result<Result<*mut u8, Why>> {
        let is_kernels = |table: &mut Table| {
            table.meet(self.from, self.identity());
            let is_stored_to = self.writable || self.request.own;
            table.is_kernels(self.identity(), self.place.as_ref().unwrap_or(&(0..0)))
                || is_stored_to && table.is_inherited(self.identity())
        };
        if owner.change(is_kernels) {
            return Ok(Err(Why::Before));
        }
        let region = match self.attach() {
            Ok(Some(region)) => region,
            Ok(None) => return Ok(Err(Why::Missing)),
            Err(Error::Outgrown { .. }) => return Ok(Err(Why::Twice)),
            Err(error) => return Err(error),
        };
        let writer = (!self.writable && self.may_write).then(|| file::another(self.from).ok()).flatten();
        let share = Arc::new(Share {
            region: region.clone(),
            identity: self.identity(),
            writer,
            may_write: self.may_write,
            one_writer: self.request.one_writer,
            kind: self.request.kind(),
        });
        // Now that the share keeps the region: where these fail it goes with it, and the end of a region gives the lease back.
        let failed = |source| region.io_error("start the thread that answers its children", source);
        fork_of::expect_children().map_err(failed)?;
        if let Some(why) = self.lease(&region) {
            return Ok(Err(why));
        }
        let mapped = owner.change(|table| self.enter(table, &share));
        if let Ok(Ok(_)) = mapped {
            why::tell(&region, None);
        }
        mapped.map_err(|error| region.io_error("protect its map (mprotect)", std::io::Error::from_raw_os_error(error)))
    }

    /// The file's region, which is made if there is none.
    fn attach(&self) -> crate::error::Result<Option<Arc<Region>>> {
        // Of a file that the program writes, further parts will be mapped once it has grown.
        let is_written = self.request.own || file::access_mode(self.from) != libc::O_RDONLY;
        let may_grow = is_written && !self.identity().is_unique() && !files::is_cached(self.identity());
        let room = if self.writable || may_grow { ROOM } else { 0 };
        let with = |room| {
            let place = match &self.place {
                Some(place) => Place::Fixed { address: place.start, offset: self.in_file.start, room },
                None => Place::Room(room),
            };
            let options = AttachOptions {
                pool: Some(&self.cache.pool),
                writable: self.writable,
                one_writer: self.request.one_writer,
                fallback: self.request.fallback,
                place,
                scratch: false,
                by_address: true,
                deferred: DeferredMode { initial: None, keep: self.request.async_stores },
            };
            files::attach(self.from, &self.facts, self.in_file.end, options, self.open)
        };
        match with(room) {
            // Address space may be limited (setrlimit(2)).
            Err(Error::Io { source, .. }) if room > 0 && source.raw_os_error() == Some(libc::ENOMEM) => with(0),
            attached => attached,
        }
    }

    /// Why the kernel has to map the file after all: it may be written by others. One that is stored to is its caller's word.
    fn lease(&self, region: &Region) -> Option<Why> {
        if self.request.own || !self.request.one_writer || region.is_writable() {
            return None;
        }
        match leases::take(self.from, self.identity(), fork_of::give_back) {
            // It may have been cut between the look at its length and the lease.
            Ok(()) => length::follow(region).err().map(|_| Why::Written),
            Err(Refused::Written) => Some(Why::Written),
            Err(Refused::Never(error)) => {
                tracing::debug!(file = %file::path_of(self.from).display(), %error, "no lease");
                Some(Why::NoLease)
            }
        }
    }

    /// Enters the map into the table, and protects its addresses. The caller keeps the share: the end of the last one needs the table.
    fn enter(&self, table: &mut Table, share: &Arc<Share>) -> Result<Result<*mut u8, Why>, i32> {
        let region = &share.region;
        let start = region.address().start().wrapping_add(self.in_file.start) as usize;
        let at = start..start + self.in_file.len();
        let differs = |(one, _): (&Piece, Range<usize>)| {
            let is_shared = share.kind == libc::MAP_SHARED && one.share.kind == share.kind;
            !self.request.layers
                || !is_shared
                || one.prot != self.request.prot
                || one.share.may_write != share.may_write
        };
        let is_misplaced = self.place.as_ref().is_some_and(|place| place.start != start);
        // The region is the kernel's by now or not at the place that was asked for, or another map there is used otherwise.
        let is_elsewhere = region.is_converted() || is_misplaced || table.meeting(&at).any(differs);
        // SAFETY: a fixed place, which the caller wants cleared.
        let is_taken = is_elsewhere || self.place.is_some() && !unsafe { region.make_own(&self.in_file) };
        if is_taken || region.address().has_foreign(&self.in_file) {
            return Ok(Err(if is_misplaced { Why::Place } else { Why::Twice }));
        }
        table.kernel_mappings.forget(&at);
        table.add(Piece { at, prot: self.request.prot, not_in_children: false, share: share.clone() });
        // With too many mappings it fails (vm.max_map_count).
        apply_all(table, region).inspect_err(|_| table.take_back())?;
        Ok(Ok(start as *mut u8))
    }
}

/// [`map`], by a store of the caller's choice.
///
/// # Safety
/// As for [`map`].
pub(crate) unsafe fn map_as(
    from: &File,
    facts: file::Facts,
    cache: &Cache,
    request: &Request,
    open: store::Open<'_>,
) -> crate::error::Result<Option<*mut u8>> {
    let Some(call) = Call::new(from, facts, cache, request, open) else { return Ok(None) };
    if fork::is_child() {
        // What the parent has stored to the file has to show.
        fork_of::resolve_in_child();
        why::tell_of(from, call.identity(), Why::Child);
        return Ok(None);
    }
    // Before the table is owned: other threads need not wait for the close, too.
    closing::await_close(call.identity());
    let owner = own();
    if !SERVED.contains(&request.prot) {
        return call.leave(&owner, Why::Protection);
    }
    // `MAP_FIXED_NOREPLACE` wins over `MAP_FIXED`.
    let replaces = request.flags & libc::MAP_FIXED_NOREPLACE == 0;
    if let Some(place) = &call.place {
        if place.start < call.in_file.start {
            why::tell_of(from, call.identity(), Why::Place);
            return Ok(None);
        }
        if !replaces && !is_free(place) {
            return Ok(None);
        }
    }
    if !descriptor_table::is_engines() {
        // All maps of the file must agree, and a caller that is refused this one may map the file through the kernel.
        convert(&owner, call.identity(), Why::Descriptors)?;
    }
    let before = match &call.place {
        // SAFETY: the caller wants what is there gone.
        Some(place) => unsafe { call.clear(&owner, place)? },
        None => Removed::default(),
    };
    let mapped = call.map(&owner);
    // Parts that the new map covers again stay as they are.
    drop(retire(&owner, before));
    if let (Some(place), false, false) = (&call.place, replaces, matches!(mapped, Ok(Ok(_)))) {
        // Free again, for the kernel to map.
        // SAFETY: it was free, and nothing was mapped there but what holds it.
        unsafe { libc::munmap(place.start as *mut _, place.len()) };
    }
    match mapped? {
        Ok(at) => Ok(Some(at)),
        Err(why) => call.leave(&owner, why),
    }
}

/// Waits, before the kernel maps a file by a descriptor, while the engine is writing what was stored to its last map of the file.
///
/// ```
/// use std::os::fd::AsFd;
/// fastmap::by_address::await_closing(std::io::stdin().as_fd()); // nothing of it is in the engine
/// ```
pub fn await_closing(fd: BorrowedFd<'_>) {
    if !crate::coherence::any() || fork::is_child() {
        return;
    }
    // SAFETY: borrowed for as long as it is used here; never closed.
    let from = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) });
    if let Ok(facts) = file::facts(&from) {
        closing::await_close(facts.identity);
    }
}

/// The operation that an error names when a place could not be cleared.
pub(super) const CLEARING: &str = "clear its place of what is mapped there (MAP_FIXED)";

/// The protections that maps of the cache can have.
pub(super) const SERVED: [i32; 2] = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE];

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
