//! Maps of objects in children made by fork(2), where the engine does not run.
//!
//! The kernel cannot map bytes that have not been fetched. So a child's map is memory that raises SIGBUS (pages behind the end of a file), and
//! the handler fills it, a *window* of up to 256 KiB at a time: the origin fetches the window, it is read into memory elsewhere and checked,
//! and mremap(2) moves it into place, so no thread sees it half done. There are as many windows as the cache had room for. After that the
//! oldest goes for each new one, and its memory raises SIGBUS again. All this is slower than the engine, and coarser. Traps are served
//! without allocations. A lock is held while the memory of a map changes, or addresses are taken from it.

use crate::region::report;
use crate::store::Origin;
use crate::sys::lock::Lock;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, descriptor_table, errno, file};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{FromRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Bytes of a window, at most.
const WINDOW: usize = 256 << 10;
/// Windows in memory, at most: 1 GiB.
const MOST: usize = 4096;

/// A map: a range of addresses, and the part of an object that belongs there.
#[derive(Debug)]
pub struct ChildMap {
    at: Range<usize>,
    /// The offset in the object of the map's first byte.
    offset: u64,
    /// Length of the object, bytes.
    size: u64,
    origin: ManuallyDrop<Arc<dyn Origin>>,
    /// The descriptor of the object's local copy.
    fd: RawFd,
    /// Windows that the map's cache had room for.
    room: usize,
    is_mapped: AtomicBool,
    next: *mut ChildMap,
}

/// The maps of this process, a child.
static MAPS: AtomicPtr<ChildMap> = AtomicPtr::new(ptr::null_mut());
/// The maps that the next child will have.
static INHERITED: AtomicPtr<ChildMap> = AtomicPtr::new(ptr::null_mut());
/// The windows in memory, by their first addresses; the oldest is at `NEXT`.
static FILLED: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Held while a window is put into place or goes, and while a map loses addresses. Made before the first child.
static CHANGES: LazyLock<Lock> = LazyLock::new(Lock::new);

impl ChildMap {
    /// A map whose first byte is at `offset` of an object of `size` bytes. `fd` stays open; `capacity` is the cache's, bytes.
    pub fn new(at: Range<usize>, offset: u64, size: u64, origin: Arc<dyn Origin>, fd: RawFd, capacity: usize) -> Self {
        ChildMap {
            at,
            offset,
            size,
            origin: ManuallyDrop::new(origin),
            fd,
            room: (capacity / WINDOW).clamp(4, MOST),
            is_mapped: AtomicBool::new(true),
            next: ptr::null_mut(),
        }
    }

    fn put_into(self, list: &AtomicPtr<ChildMap>) {
        let node = Box::into_raw(Box::new(self));
        let mut head = list.load(Ordering::Acquire);
        loop {
            // SAFETY: made just now, and nobody else's until it is in the list.
            unsafe { (*node).next = head };
            match list.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The window that holds an address. Windows are aligned in the object, and clipped to the map.
    fn window(&self, address: usize) -> Range<usize> {
        let skip = self.offset as usize % WINDOW;
        let start = self.at.start.wrapping_sub(skip);
        let begin = start + (address - start) / WINDOW * WINDOW;
        begin.max(self.at.start)..(begin + WINDOW).min(self.at.end)
    }

    /// Puts memory that raises SIGBUS over a range of the map.
    fn clear(&self, range: &Range<usize>) -> io::Result<()> {
        let anchor = descriptor_table::anchor().ok_or(io::Error::from_raw_os_error(libc::EBADF))?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the map's own addresses. The mapping lies behind the end of the anchor's file.
        let at = unsafe {
            libc::mmap(range.start as *mut _, range.len(), libc::PROT_READ, flags, anchor, PAGE as libc::off_t)
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Fills the window that holds an address.
    fn fill(&self, address: usize) -> Result<(), i32> {
        let window = self.window(address);
        let offset = self.offset + (window.start - self.at.start) as u64;
        let len = (self.size.saturating_sub(offset) as usize).min(window.len());
        if len <= (address - window.start) / PAGE * PAGE {
            return Err(libc::ENXIO);
        }
        // Shared, so that the program's advice does what it does to a mapping of a file: MADV_DONTNEED loses nothing, and MADV_FREE and
        // MADV_WIPEONFORK fail.
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // Pages behind the object's last one still raise SIGBUS.
        let whole = len.next_multiple_of(PAGE);
        // SAFETY: fresh memory, which is this function's until it is moved to the map's own addresses.
        unsafe {
            let aside = libc::mmap(ptr::null_mut(), whole, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if aside == libc::MAP_FAILED {
                return Err(errno());
            }
            let filled = self
                .read(aside.cast(), len, offset)
                .and_then(|()| if libc::mprotect(aside, whole, libc::PROT_READ) == 0 { Ok(()) } else { Err(errno()) });
            let done = filled.and_then(|()| self.put_into_place(aside, whole, &window));
            if done != Ok(true) {
                libc::munmap(aside, whole);
            }
            done.map(drop)
        }
    }

    /// Moves memory to a window, and drops the oldest window if there are enough. False: the window is the map's no more, and whoever trapped
    /// there repeats the access.
    ///
    /// # Safety
    /// The memory is the caller's, and nobody else's.
    unsafe fn put_into_place(&self, aside: *mut libc::c_void, len: usize, window: &Range<usize>) -> Result<bool, i32> {
        let _blocked = Blocked::all();
        let _held = CHANGES.lock();
        if !self.is_mapped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the caller's memory, and addresses of the map, which keeps them while the lock is held.
        if unsafe { libc::mremap(aside, len, len, moves, window.start as *mut libc::c_void) } == libc::MAP_FAILED {
            return Err(errno());
        }
        let oldest = FILLED[NEXT.fetch_add(1, Ordering::AcqRel) % self.room].swap(window.start, Ordering::AcqRel);
        if oldest != 0
            && oldest != window.start
            && let Some(map) = find(oldest)
        {
            // If that fails the window stays, with the right bytes.
            let _ = map.clear(&map.window(oldest));
        }
        Ok(true)
    }

    /// Reads bytes of the object.
    ///
    /// # Safety
    /// `to` is whole pages, `len` bytes or more.
    unsafe fn read(&self, to: *mut u8, len: usize, offset: u64) -> Result<(), i32> {
        // SAFETY: the descriptor is open, and is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd) });
        // SAFETY: the caller's memory, whose first `filled` bytes have been read.
        self.origin.read(offset..offset + len as u64, &mut || unsafe {
            let filled = file::read_at(&file, to, len, offset)?;
            Ok(std::slice::from_raw_parts(to, filled))
        })
    }
}

/// Before fork(2): sets the maps that the child will have.
pub fn before_fork(maps: Vec<ChildMap>) {
    LazyLock::force(&CHANGES);
    after_fork();
    maps.into_iter().for_each(|map| map.put_into(&INHERITED));
}

/// After fork(2), in the parent: drops the child's maps.
pub fn after_fork() {
    let mut node = INHERITED.swap(ptr::null_mut(), Ordering::AcqRel);
    while !node.is_null() {
        // SAFETY: from `before_fork`; only children, which have copies, look at it.
        let mut map = unsafe { Box::from_raw(node) };
        node = map.next;
        // SAFETY: dropped once.
        unsafe { ManuallyDrop::drop(&mut map.origin) };
    }
}

/// After fork(2), in the child: takes over its maps.
pub fn in_child() {
    free_lock();
    MAPS.store(INHERITED.swap(ptr::null_mut(), Ordering::AcqRel), Ordering::Release);
    for map in maps() {
        if map.clear(&map.at).is_err() {
            map.is_mapped.store(false, Ordering::Release);
        }
    }
}

/// Frees the lock in a child, or a child of a child, where the thread that may hold it is not.
pub fn free_lock() {
    if CHANGES.try_lock().is_none() {
        // SAFETY: this process has one thread, which does not hold it.
        unsafe { CHANGES.release() };
    }
}

/// All maps, those that were unmapped included.
fn all() -> impl Iterator<Item = &'static ChildMap> {
    // SAFETY: null, or a node that stays.
    let node = |at: *mut ChildMap| unsafe { at.as_ref() };
    let first = node(MAPS.load(Ordering::Acquire));
    std::iter::successors(first, move |map| node(map.next))
}

fn maps() -> impl Iterator<Item = &'static ChildMap> {
    all().filter(|map| map.is_mapped.load(Ordering::Acquire))
}

fn find(address: usize) -> Option<&'static ChildMap> {
    maps().find(|map| map.at.contains(&address))
}

/// Whether this child has any map.
pub fn has_maps() -> bool {
    maps().next().is_some()
}

/// Whether any map lies in part of a range.
pub fn meets(range: &Range<usize>) -> bool {
    meeting(range).next().is_some()
}

fn meeting(range: &Range<usize>) -> impl Iterator<Item = &'static ChildMap> {
    maps().filter(|map| map.at.start < range.end && range.start < map.at.end)
}

/// The descriptor of an object's local copy, which stays open, if this child has or had a map of the object.
pub fn descriptor_of(origin: &Arc<dyn Origin>) -> Option<RawFd> {
    all().find(|map| Arc::ptr_eq(&map.origin, origin)).map(|map| map.fd)
}

/// Maps an object in a child. Returns the address.
pub fn map(make: impl FnOnce(Range<usize>) -> ChildMap, len: usize, fixed: Option<usize>) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (place, flags) = fixed.map_or((0, flags), |place| (place, flags | libc::MAP_FIXED));
    // SAFETY: a fresh mapping, or one at the place that the caller wants.
    let at = unsafe { libc::mmap(place as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let at = at as usize;
    forget(&(at..at + len));
    let map = make(at..at + len);
    map.clear(&map.at)?;
    map.put_into(&MAPS);
    Ok(at)
}

/// Forgets a range of addresses of a child, before it is unmapped or mapped anew.
pub fn forget(range: &Range<usize>) {
    for map in meeting(range) {
        // First, so that another thread finds a map at each address that stays.
        for at in [map.at.start..range.start, range.end..map.at.end].into_iter().filter(|at| !at.is_empty()) {
            let offset = map.offset + (at.start - map.at.start) as u64;
            let rest = ChildMap { at, offset, origin: map.origin.clone(), is_mapped: AtomicBool::new(true), ..*map };
            rest.put_into(&MAPS);
        }
        let _blocked = Blocked::all();
        let _held = CHANGES.lock();
        map.is_mapped.store(false, Ordering::Release);
        for filled in FILLED.iter().filter(|filled| range.contains(&filled.load(Ordering::Acquire))) {
            filled.store(0, Ordering::Release);
        }
    }
}

/// Serves a trap in a child; false: it fails, and standard error says why. `None`: the address is in none of these maps.
pub fn serve(address: usize) -> Option<bool> {
    let map = find(address)?;
    let Err(error) = map.fill(address) else { return Some(true) };
    let offset = map.offset as usize + (address - map.at.start) / PAGE * PAGE;
    let why = map.origin.explain(error).unwrap_or("in a child made by fork");
    let what = format_args!("cannot be served: fetching it failed with error {error}: {why}");
    report::say_of(map.origin.name(), offset, what);
    Some(false)
}

/// Copies bytes of maps in a child, and returns errors where a trap would raise SIGBUS. `None`: not all of the bytes are in these maps.
pub fn read(at: usize, output: &mut [u8]) -> Option<Result<(), i32>> {
    let mut done = 0;
    while done < output.len() {
        let map = find(at + done)?;
        let window = map.window(at + done);
        let len = (window.end - (at + done)).min(output.len() - done);
        let is_there = FILLED.iter().any(|filled| filled.load(Ordering::Acquire) == window.start);
        if !is_there && let Err(error) = map.fill(at + done) {
            return Some(Err(error));
        }
        // SAFETY: the map's memory. If the window has gone again meanwhile, the handler brings it back.
        unsafe { ptr::copy((at + done) as *const u8, output[done..].as_mut_ptr(), len) };
        done += len;
    }
    Some(Ok(()))
}
