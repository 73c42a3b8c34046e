//! The place of a region: its addresses, the *foreign* parts of them, where other memory lies, and the *stripes*, each of which one
//! userfaultfd serves.

use crate::region::userfaultfds::Userfaultfds;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, cpu, madvise, memory};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Size of a stripe, at least. A stripe has a userfaultfd, and so a kernel VMA and its lock, of its own.
pub const STRIPE_BYTES: usize = 64 << 20;
/// Stripes for each processor, at most: enough that two threads seldom meet in one. More would cost, because each is a VMA (of which a
/// process may have 65530) and every system call on a page looks its VMA up: 64 of them cost a miss 0.1 to 0.2 µs.
const STRIPES_PER_CORE: usize = 4;

/// Where a region goes.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Anywhere, with address space for at least this many bytes of the file.
    Room(usize),
    /// Part of the file, from `offset` on, at `address`; both are multiples of a page. Whatever is mapped there goes. Other parts of at
    /// least `room` bytes of the file may become its own later, each at the address that follows from this one ([`Address::take_back`]).
    Fixed { address: usize, offset: usize, room: usize },
}

/// A region's address range.
#[derive(Debug)]
pub struct Address {
    /// The address of the file's first page, or the address that this page would have: parts may be foreign.
    base: *mut u8,
    span: usize,
    /// Foreign ranges, bytes from `base`: parts that were mapped over since, or never were the region's own. The region does not unmap
    /// them.
    foreign: Mutex<Vec<Range<usize>>>,
    /// Some of them lie between parts of the region's own.
    parted: AtomicBool,
    stripe_bytes: usize,
    stripes: usize,
    userfaultfds: &'static [Userfaultfd],
    /// Which of them serves the first stripe: regions begin with different ones.
    first_userfaultfd: usize,
}

// SAFETY: `base` is an address range that the region owns, reached under the page words' protocol.
unsafe impl Send for Address {}
// SAFETY: the fields do not change, but for `foreign`, which has a lock.
unsafe impl Sync for Address {}

impl Address {
    /// Reserves address space for `span` bytes of a file; at a fixed place, only for the part that ends at byte `need`. If `striped`, the
    /// first `doubled` bytes (room for the file to double) are divided into stripes.
    pub fn reserve(
        place: Place,
        need: usize,
        span: usize,
        doubled: usize,
        striped: bool,
        opened: &'static Userfaultfds,
        first_userfaultfd: usize,
    ) -> io::Result<Self> {
        // The last stripe also has all bytes behind `doubled`.
        let stripes = if striped { (STRIPES_PER_CORE * cpu::count()).min(64) } else { 1 };
        let stripe_bytes = (doubled / stripes).max(STRIPE_BYTES).next_multiple_of(STRIPE_BYTES);
        let base = match place {
            Place::Room(_) => memory::reserve(span, STRIPE_BYTES)?,
            Place::Fixed { address, offset, .. } => {
                // SAFETY: the caller wants it there, whatever is there now.
                unsafe { memory::reserve_at(address as *mut u8, need - offset)? };
                (address as *mut u8).wrapping_sub(offset)
            }
        };
        let beside = match place {
            Place::Fixed { offset, .. } => vec![0..offset, need..span],
            Place::Room(_) => Vec::new(),
        };
        let (foreign, parted, userfaultfds) = (Mutex::default(), AtomicBool::new(false), &opened.regions[..]);
        let address = Address { base, span, foreign, parted, stripe_bytes, stripes, userfaultfds, first_userfaultfd };
        address.add_foreign(beside.into_iter().filter(|part| !part.is_empty()));
        Ok(address)
    }

    fn lock_foreign(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.foreign.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Notes foreign ranges, bytes from the start of the file.
    pub fn add_foreign(&self, parts: impl Iterator<Item = Range<usize>>) {
        self.change_foreign(|foreign| foreign.extend(parts));
    }

    fn change_foreign(&self, change: impl FnOnce(&mut Vec<Range<usize>>)) {
        let mut foreign = self.lock_foreign();
        change(&mut foreign);
        foreign.sort_by_key(|part| part.start);
        self.parted.store(self.parts_beside(&foreign).len() > 1, Ordering::Release);
    }

    /// Whether foreign memory lies between parts of the region's own. Takes no lock.
    #[inline]
    pub fn is_parted(&self) -> bool {
        self.parted.load(Ordering::Acquire)
    }

    /// Whether its start is a multiple of `to` bytes.
    pub fn is_aligned(&self, to: usize) -> bool {
        (self.base as usize).is_multiple_of(to)
    }

    /// The descriptors of the userfaultfds.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.userfaultfds.iter().map(|one| one.as_raw_fd())
    }

    /// Registers a part of its reserved addresses, bytes from the start of the file, with the userfaultfds of its stripes. Nobody has
    /// access to the part yet. The order matters: if access came first, a locked address space (mlockall(2)) would fill the range with
    /// zeros.
    pub fn serve_faults(&self, part: Range<usize>) -> io::Result<()> {
        // SAFETY: the range is this region's own, and nothing is there.
        unsafe {
            madvise::prepare_region(self.base.wrapping_add(part.start), part.len());
            let mut at = part.start;
            while at < part.end {
                let end = (self.stripe_end(at / PAGE) * PAGE).min(part.end);
                self.userfaultfd(at / PAGE).register(self.base.wrapping_add(at), end - at)?;
                at = end;
            }
        }
        Ok(())
    }

    /// Where a page lies in memory.
    #[inline]
    pub fn address_of(&self, page: usize) -> *mut u8 {
        debug_assert!(page < self.span / PAGE);
        self.base.wrapping_add(page * PAGE)
    }

    /// The page at one of its addresses.
    #[inline]
    pub fn page_at(&self, address: usize) -> usize {
        (address - self.base as usize) / PAGE
    }

    /// The end of the stripe that holds a page.
    pub fn stripe_end(&self, page: usize) -> usize {
        let stripe = page * PAGE / self.stripe_bytes + 1;
        if stripe >= self.stripes { self.span / PAGE } else { (stripe * self.stripe_bytes).min(self.span) / PAGE }
    }

    /// The userfaultfd that serves a page.
    #[inline]
    pub fn userfaultfd(&self, page: usize) -> &'static Userfaultfd {
        let stripe = (page * PAGE / self.stripe_bytes).min(self.stripes - 1);
        &self.userfaultfds[(stripe + self.first_userfaultfd) % self.userfaultfds.len()]
    }

    /// The addresses that are its own.
    pub fn own_addresses(&self) -> Vec<Range<usize>> {
        let base = self.base as usize;
        self.own_parts().into_iter().map(|part| base.wrapping_add(part.start)..base.wrapping_add(part.end)).collect()
    }

    /// The addresses that are its own, bytes from the start of the file.
    pub fn own_parts(&self) -> Vec<Range<usize>> {
        self.parts_beside(&self.lock_foreign())
    }

    fn parts_beside(&self, foreign: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut at = 0;
        for part in foreign.iter().chain(std::iter::once(&(self.span..self.span))) {
            if part.start > at {
                parts.push(at..part.start);
            }
            at = at.max(part.end);
        }
        parts
    }

    /// Whether a range of the file, bytes, has addresses here, or could have them in place of foreign memory.
    pub fn may_have(&self, range: &Range<usize>) -> bool {
        range.end <= self.span
    }

    /// The foreign parts of a range of the file, bytes.
    pub fn foreign_in(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let within = |part: &Range<usize>| part.start.max(range.start)..part.end.min(range.end);
        self.lock_foreign().iter().map(within).filter(|part| !part.is_empty()).collect()
    }

    /// Whether part of a range of the file, bytes, has no address here: it is foreign, or lies past the span.
    pub fn has_foreign(&self, range: &Range<usize>) -> bool {
        let foreign = self.lock_foreign();
        range.end > self.span || foreign.iter().any(|part| part.start < range.end && range.start < part.end)
    }

    /// First address that is its own, and the one past the last.
    pub fn addresses(&self) -> (usize, usize) {
        let (base, parts) = (self.base as usize, self.own_parts());
        let (start, end) = (parts.first().map_or(0, |part| part.start), parts.last().map_or(0, |part| part.end));
        (base + start, base + end)
    }

    /// The address of the file's first page, or the address that this page would have.
    pub fn start(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of address range it has.
    pub fn span(&self) -> usize {
        self.span
    }

    /// Makes a part of its addresses, bytes from the start of the file, the region's own, for the first time or again. Other memory is
    /// there until then. No page of it is in memory afterwards: a touch misses.
    ///
    /// # Safety
    /// Nobody needs what is mapped there any more.
    pub unsafe fn take_back(&self, part: Range<usize>, prot: i32) -> io::Result<()> {
        let start = self.base.wrapping_add(part.start);
        // SAFETY: the caller's contract.
        unsafe {
            memory::reserve_at(start, part.len())?;
            self.serve_faults(part.clone())?;
            if libc::mprotect(start.cast(), part.len(), prot) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        self.change_foreign(|foreign| {
            let beside = |one: &Range<usize>| {
                [one.start..one.end.min(part.start), one.start.max(part.end)..one.end]
                    .into_iter()
                    .filter(|one| !one.is_empty())
            };
            *foreign = foreign.iter().flat_map(beside).collect();
        });
        Ok(())
    }
}
