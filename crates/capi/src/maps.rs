//! mmap(2) and its kin.

use crate::boundary::{Failure, call};
use crate::caches::{self, fm_cache};
use crate::{processes, said};
use fastmap::by_address::{self, Direct, Request};
use fastmap::{Cache, Error, Fallback, Mode, Persist};
use libc::off_t;
use std::ffi::{c_int, c_uchar, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

/// For fm_mmap(): map in the cache, or fail. Without this flag, and without anything else that only the cache
/// has, the kernel serves the map. A file that is in memory already (on tmpfs, hugetlbfs or DAX) is then mapped
/// directly.
pub const FM_MAP_CACHED: c_int = 1 << 24;

/// For fm_mmap(): other processes may map the file for writing too, each through its own cache. If two
/// processes store to one page, the last one wins all of that page. Without this flag a map by a descriptor that
/// may write says that only this process uses the file. One by a descriptor that may only read is cached while
/// the kernel vouches that nobody has the file open to write, this process included (a lease, fcntl(2)); else the
/// kernel serves it.
pub const FM_MAP_MANY_WRITERS: c_int = 1 << 25;

/// For fm_mmap(): a store to a page that is not in memory does not wait for the read. It is buffered, and
/// applied when the page is there. Loads of the page wait. This is for small scattered stores to a slow device:
/// up to eight moves of 1 to 64 bytes a page are buffered, and all other stores wait. The flag holds for all
/// maps of the file.
pub const FM_MAP_ASYNC_STORES: c_int = 1 << 21;

/// For fm_mmap(): map directly, without a cache, or fail. Only a file in memory can be mapped so (on tmpfs,
/// hugetlbfs or DAX). Without this flag the file decides. On DAX, where the kernel offers MAP_SYNC, fm_msync()
/// of up to 64 KiB of a direct map makes no system call.
pub const FM_MAP_DIRECT: c_int = 1 << 22;

/// For fm_mmap() of a file on tmpfs or hugetlbfs: fm_msync() writes stored bytes from the processor's caches to
/// memory, by cache line. This is for memory that is persistent, or stands in for persistent memory. Without
/// this flag fm_msync() has nothing to do there.
pub const FM_MAP_CACHE_LINES: c_int = 1 << 23;

/// For fm_madvise(): the program will walk the range backward. It is read ahead in that direction. madvise(2)
/// has no such advice.
pub const FM_MADV_BACKWARD: c_int = 1000;

/// The flags of this library: they ask for what only the engine has, or for files in memory.
const NAMED: c_int = FM_MAP_CACHED | FM_MAP_MANY_WRITERS | FM_MAP_ASYNC_STORES | FM_MAP_DIRECT | FM_MAP_CACHE_LINES;

/// Flags of mmap(2) that a cached map honours, or that mean nothing for files.
const UNDERSTOOD: c_int = libc::MAP_SHARED_VALIDATE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_LOCKED
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | libc::MAP_STACK;

/// The arguments of a call of mmap(2).
#[derive(Clone, Copy)]
struct Wanted {
    addr: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

impl Wanted {
    fn failure(&self, errno: c_int) -> Failure {
        let Wanted { length, offset, fd, prot, flags, .. } = self;
        Failure::of(
            errno,
            format_args!("{length} bytes at offset {offset} of descriptor {fd}, prot {prot:#x}, flags {flags:#x}"),
        )
    }

    fn is_shared(&self) -> bool {
        matches!(self.flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
    }

    fn is_for_the_cache(&self) -> bool {
        self.is_shared() && self.flags & !UNDERSTOOD == 0 && self.fd >= 0 && !processes::is_child()
    }

    /// mmap(2) with these arguments.
    fn by_kernel(&self) -> Result<*mut c_void, Failure> {
        let Wanted { addr, length, prot, flags, fd, offset } = *self;
        // SAFETY: the caller of `fm_mmap` vouches for these arguments, which are mmap(2)'s.
        match unsafe { libc::mmap(addr, length, prot, flags, fd, offset) } {
            libc::MAP_FAILED => Err(self.failure(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))),
            at => Ok(at),
        }
    }

    /// Fails if the kernel would not map this at an address of its own choice. Nothing stays mapped.
    fn try_elsewhere(&self) -> Result<(), Failure> {
        let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
        let elsewhere = Wanted { addr: ptr::null_mut(), flags: self.flags & !placed, ..*self };
        let at = elsewhere.by_kernel()?;
        // SAFETY: mapped just now.
        unsafe { libc::munmap(at, self.length) };
        Ok(())
    }

    /// mmap(2). Cached maps at a fixed place are unmapped first, once it is known that the kernel will map. If
    /// they cannot be unmapped, nothing is mapped.
    fn by_kernel_in_place(&self) -> Result<*mut c_void, Failure> {
        let _owner = (self.flags & libc::MAP_FIXED != 0).then(by_address::own);
        if self.flags & libc::MAP_FIXED != 0 && by_address::holds(self.addr.addr(), self.length) {
            if !self.addr.addr().is_multiple_of(4096) {
                return Err(self.failure(libc::EINVAL));
            }
            self.try_elsewhere()?;
            // SAFETY: the caller asked with MAP_FIXED for what is there to be replaced.
            unsafe { by_address::make_way(self.addr.addr(), self.length) }.map_err(|errno| self.failure(errno))?;
        }
        self.by_kernel()
    }

    /// A mapping that the kernel serves. It is noted for the functions of `by_address`.
    fn through_kernel(&self) -> Result<*mut c_void, Failure> {
        let owner = (!processes::is_child()).then(by_address::own);
        let at = self.by_kernel_in_place()?;
        let is_file = self.is_shared() && self.fd >= 0 && self.flags & libc::MAP_ANONYMOUS == 0;
        if let (Some(owner), true) = (&owner, is_file) {
            // SAFETY: the kernel has just taken it for a descriptor.
            by_address::note_kernel(owner, unsafe { BorrowedFd::borrow_raw(self.fd) }, at.addr(), self.length, None);
        } else if owner.is_some() && self.flags & libc::MAP_FIXED != 0 {
            by_address::note_replaced(at.addr(), self.length);
        }
        Ok(at)
    }

    /// A map that the kernel serves, unless the engine has others of its file.
    fn by_default(&self) -> Result<*mut c_void, Failure> {
        processes::prepare();
        // SAFETY: open for this call, if at all.
        by_address::await_stores(unsafe { BorrowedFd::borrow_raw(self.fd) });
        // No other thread maps between the choice and the note: a file would be served by the kernel and the engine.
        let owner = by_address::own();
        if fastmap::coherence::file(self.fd).is_some()
            && let Some(at) = self.through_cache(&caches::find(ptr::null())?, 0)?
        {
            drop(owner);
            return Ok(self.populated(at));
        }
        self.through_kernel()
    }

    fn map(&self, cache: *const fm_cache) -> Result<*mut c_void, Failure> {
        let wants_kernel = cache.is_null() && self.flags & NAMED == 0 && !caches::is_named();
        let asked = self.flags;
        let wanted = Wanted { flags: asked & !NAMED, ..*self };
        if asked & FM_MAP_CACHED != 0 && asked & FM_MAP_DIRECT != 0 {
            return Err(Failure::new(libc::EINVAL, "FM_MAP_CACHED or FM_MAP_DIRECT: a map cannot be both"));
        }
        if let Some(at) = wanted.straight(asked)? {
            return Ok(at);
        }
        if wanted.is_for_the_cache() && wanted.length > 0 && wants_kernel {
            return wanted.by_default();
        }
        let mut owner = None;
        said::begin();
        if wanted.is_for_the_cache() {
            processes::prepare();
            let cache = caches::find(cache)?;
            // No other thread maps between the choice and the note: a file would be served by the kernel and the engine.
            owner = Some(by_address::own());
            if let Some(at) = wanted.through_cache(&cache, asked)? {
                drop(owner);
                return Ok(wanted.populated(at));
            }
        }
        let _owner = owner;
        let is_for_a_cache =
            !cache.is_null() || caches::is_named() || asked & (FM_MAP_MANY_WRITERS | FM_MAP_ASYNC_STORES) != 0;
        if asked & FM_MAP_CACHED != 0 {
            wanted.try_elsewhere()?;
            let why = "this cannot be cached (private, anonymous or executable, mapped elsewhere already, or in a child made by \
                       fork(2)): map it without FM_MAP_CACHED";
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
        let at = wanted.through_kernel()?;
        if is_for_a_cache {
            said::note(self.fd, self.length, self.prot, self.flags);
        }
        Ok(at)
    }

    /// A direct mapping, where it offers more than mmap(2).
    fn straight(&self, asked: c_int) -> Result<Option<*mut c_void>, Failure> {
        let mode = match asked {
            _ if asked & FM_MAP_DIRECT != 0 => Mode::Direct,
            _ if asked & FM_MAP_CACHED != 0 => return Ok(None),
            _ => Mode::Automatic,
        };
        if !self.is_shared() || self.fd < 0 || self.flags & libc::MAP_ANONYMOUS != 0 || processes::is_child() {
            return match mode {
                Mode::Direct => Err(Failure::new(libc::EOPNOTSUPP, "only MAP_SHARED of a file is mapped directly")),
                _ => Ok(None),
            };
        }
        processes::prepare();
        let persist = if asked & FM_MAP_CACHE_LINES != 0 { Persist::CacheLines } else { Persist::Automatic };
        // SAFETY: open for this call, if at all.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // SAFETY: the caller of `fm_mmap` vouches for the file and the place.
        let mapped = match unsafe { by_address::map_direct(fd, &self.request(asked), mode, persist, false) } {
            Ok(mapped) => mapped,
            // The kernel is asked next, and reports an error of its own.
            Err(Error::NotMappable { .. } | Error::Io { .. }) => Direct::No,
            Err(error) => return Err(error.into()),
        };
        if let Direct::At(at) = mapped {
            by_address::note_kernel(&by_address::own(), fd, at.addr(), self.length, None);
            return Ok(Some(at.cast()));
        }
        // Memory that needs no flush is mapped by the kernel.
        if mode == Mode::Direct { self.through_kernel().map(Some) } else { Ok(None) }
    }

    fn request(&self, asked: c_int) -> Request {
        Request {
            addr: self.addr.addr(),
            len: self.length,
            prot: self.prot,
            flags: self.flags,
            offset: self.offset as u64,
            one_writer: asked & FM_MAP_MANY_WRITERS == 0,
            // SAFETY: a descriptor, which need not be one.
            own: unsafe { libc::fcntl(self.fd, libc::F_GETFL) } & libc::O_ACCMODE == libc::O_RDWR,
            fallback: if asked & FM_MAP_CACHED != 0 { Fallback::Refuse } else { Fallback::Kernel },
            async_stores: asked & FM_MAP_ASYNC_STORES != 0,
            layers: true,
        }
    }

    fn through_cache(&self, cache: &Cache, asked: c_int) -> Result<Option<*mut c_void>, Failure> {
        // SAFETY: open for this call, if at all.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // SAFETY: the caller of `fm_mmap` vouches for the file and the place.
        let at = match unsafe { by_address::map(fd, cache, &self.request(asked)) } {
            Ok(Some(at)) => at,
            // Not a file or block device: the kernel maps some of these, and reports the errors of the others.
            Ok(None) | Err(Error::NotMappable { .. } | Error::LengthOverflow { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if self.flags & libc::MAP_LOCKED != 0
            && let Err(errno) = by_address::lock(at.addr(), self.length, false)
        {
            // SAFETY: mapped just now, and not yet returned to the caller.
            let _ = unsafe { by_address::unmap(at.addr(), self.length) };
            return Err(self.failure(if errno == libc::ENOMEM { libc::EAGAIN } else { errno }));
        }
        Ok(Some(at.cast()))
    }

    /// Does what `MAP_POPULATE` asks for, to a cached map that was made just now. This may take long: other
    /// threads can map meanwhile.
    fn populated(&self, at: *mut c_void) -> *mut c_void {
        if self.flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE {
            by_address::populate(at.addr(), self.length);
        }
        at
    }
}

/// Maps a file as mmap(2) does. By default the kernel serves the map; fm_steer() has such maps steered.
///
/// A map is in a cache, from the first touch on, if it asks for something that only a cache has: fm_mmap_in()
/// with a cache, a flag of this library (except FM_MAP_DIRECT), or a capacity given by fm_cache_resize() with
/// NULL.
///
/// All maps of a file in a process are served alike. If the kernel serves a file already, it serves a new map
/// of the file, too, or the call fails if FM_MAP_CACHED is given. A file that is cached stays cached.
///
/// The process's own cache is used where no other is given. It holds the memory that others leave, except for a
/// sixteenth. (Memory is that of the machine, or of the cgroup if that is less.) The cache shrinks at once when
/// others need memory, and grows while that helps. fm_cache_resize() gives it a fixed capacity instead.
///
/// A map can be cached if it is MAP_SHARED, of a regular file or a block device, and not executable. A file
/// that is in memory already is mapped directly instead, on DAX with MAP_SYNC if possible. Anything else goes
/// to mmap(2) with the same arguments. Length and offset are bytes.
///
/// Cached maps of one file have the same addresses for the same bytes. A file that is mapped twice for the same
/// use has the same address twice, and must be unmapped twice. Some requests are beyond the cache. They make
/// all maps of the file kernel mappings, in place:
/// - other memory is mapped over a part of a map;
/// - a part of a map, or a second map of the same bytes, gets another protection;
/// - the same bytes are mapped at a second place.
///
/// Use fm_munmap() and the other functions here for all maps made here, and never munmap(2) and its kin.
///
/// A system call that is given memory of a cached map can fail with EFAULT. Use fm_pin() for as long as it
/// runs, or copy with fm_read() and fm_write(). While a file is in a cache, read(2) and write(2) of the file
/// see and change what the file has, not what is in memory.
///
/// The library handles SIGBUS. A load that cannot be served raises it, as with mmap(2).
///
/// A child made by fork(2) and its parent see one file. When the child first touches a map, its map and the
/// parent's become kernel mappings, in place. All maps of that file are kernel mappings from then on. A child
/// that executes a program costs nothing.
///
/// Returns the address, or MAP_FAILED and sets errno as mmap(2), or to:
/// - EAGAIN: another process has the file in a cache for writing;
/// - EBUSY: MAP_FIXED replaces a part of a map, and pins outside of that range keep the file in the cache;
/// - an error of write(2): a file that has to leave the cache cannot be saved; then nothing is mapped over;
/// - ENOSYS, EOPNOTSUPP: FM_MAP_CACHED or FM_MAP_DIRECT asks for what cannot be;
/// - EINVAL: FM_MAP_CACHED and FM_MAP_DIRECT are given together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mmap(
    addr: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    call("fm_mmap", || Wanted { addr, length, prot, flags, fd, offset }.map(ptr::null()))
}

/// fm_mmap() in the given cache; with NULL the same as fm_mmap(). All maps of a file are in the cache of its
/// first map.
///
/// Returns as fm_mmap(); EINVAL also where `cache` is not a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mmap_in(
    cache: *mut fm_cache,
    addr: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    call("fm_mmap_in", || {
        if !cache.is_null() && !processes::is_child() {
            // A wrong handle is a mistake even where the kernel will map the file.
            caches::find(cache)?;
        }
        Wanted { addr, length, prot, flags, fd, offset }.map(cache)
    })
}

/// Runs a call on a range. A failure's text names the range.
fn over_range(
    name: &str,
    addr: *const c_void,
    length: usize,
    result: impl FnOnce(usize) -> Result<(), c_int>,
) -> c_int {
    call(name, || match result(addr.addr()) {
        Ok(()) => Ok(0),
        Err(errno) => Err(Failure::of(errno, format_args!("{length} bytes at {addr:p}"))),
    })
}

/// munmap(2) of a whole map, a part of one, or several, cached or not. Dirty pages are written to the file; the
/// call does not wait until they are on stable storage. Pins of what is unmapped end.
///
/// Returns 0, or -1 and sets errno: EINVAL as munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_munmap(addr: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller is done with the range.
    over_range("fm_munmap", addr, length, |at| unsafe { by_address::unmap(at, length) })
}

/// mremap(2). `new_address` is always passed: the new place with MREMAP_FIXED, otherwise NULL. The file is not
/// extended: use ftruncate(2), before or after.
///
/// Returns the address, or MAP_FAILED and sets errno as mremap(2); EAGAIN also where pins keep a map in its
/// place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mremap(
    old_address: *mut c_void,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    call("fm_mremap", || {
        let failure = |errno| {
            Failure::of(errno, format_args!("{old_size} bytes at {old_address:p} to {new_size}, flags {flags:#x}"))
        };
        let new = new_address.addr();
        // SAFETY: the caller gives up the old range, and with MREMAP_FIXED what is at the new one.
        let at = unsafe { by_address::remap(old_address.addr(), old_size, new_size, flags, new) };
        at.map(<*mut u8>::cast).map_err(failure)
    })
}

/// msync(2). With MS_SYNC it returns when every byte of the range that was stored before is on stable storage,
/// or in persistent memory. Bytes that cannot be written stay in memory, dirty. Each later call reports the
/// error again until they are saved.
///
/// Returns 0, or -1 and sets errno: EINVAL; ENOMEM (part of the range is not mapped); EBUSY (MS_INVALIDATE of
/// locked memory); ENOSPC, EIO and the other errors of write(2) and fdatasync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_msync(addr: *mut c_void, length: usize, flags: c_int) -> c_int {
    over_range("fm_msync", addr, length, |at| by_address::sync(at, length, flags))
}

/// madvise(2), and FM_MADV_BACKWARD. Advice for cached maps:
/// - MADV_NORMAL, RANDOM, SEQUENTIAL: how to read ahead (in units of 2 MiB);
/// - MADV_WILLNEED, POPULATE_READ, POPULATE_WRITE: bring pages into memory;
/// - MADV_DONTNEED, COLD, PAGEOUT: save pages and drop them;
/// - MADV_DONTFORK, DOFORK: whether children made by fork(2) get the range;
/// - MADV_HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP: no effect;
/// - any other, such as MADV_REMOVE: all maps of the file become kernel mappings.
///
/// Returns 0, or -1 and sets errno as madvise(2), or to: EBUSY (pins keep a file in the cache); an error of
/// write(2) (the file cannot be saved).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_madvise(addr: *mut c_void, length: usize, advice: c_int) -> c_int {
    over_range("fm_madvise", addr, length, |at| {
        if advice == FM_MADV_BACKWARD {
            return by_address::expect_backward(at, length);
        }
        // SAFETY: the caller knows which advice discards what is in the range.
        unsafe { by_address::advise(at, length, advice) }
    })
}

/// mprotect(2). A cached map stays cached if the range is the whole map, and the protection is PROT_READ, or
/// PROT_READ and PROT_WRITE. Otherwise all maps of the file become kernel mappings.
///
/// Returns 0, or -1 and sets errno as mprotect(2), EACCES for PROT_WRITE if the file was not opened for that;
/// or to: EBUSY (pins keep the file in the cache); an error of write(2) (the file cannot be saved).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mprotect(addr: *mut c_void, length: usize, prot: c_int) -> c_int {
    // SAFETY: the caller accesses the range as `prot` allows from then on.
    over_range("fm_mprotect", addr, length, |at| unsafe { by_address::protect(at, length, prot) })
}

/// mincore(2): the lowest bit of each byte of `vec`, one byte for each page of 4096 bytes, says whether the
/// page is in memory.
///
/// Returns 0, or -1 and sets errno: EINVAL; ENOMEM (part of the range is not mapped); EFAULT (`vec` does not
/// point to memory).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mincore(addr: *mut c_void, length: usize, vec: *mut c_uchar) -> c_int {
    // SAFETY: the caller has a byte at `vec` for each page of the range.
    over_range("fm_mincore", addr, length, |at| unsafe { by_address::residency(at, length, vec) })
}

/// mlock(2): the range stays in memory until fm_munlock() or fm_munmap(). Locks and pins together leave a
/// sixteenth of a cache free: see fm_pin().
///
/// Returns 0, or -1 and sets errno as mlock(2): ENOMEM also where the cache has no room for so many locks and
/// pins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mlock(addr: *const c_void, length: usize) -> c_int {
    over_range("fm_mlock", addr, length, |at| by_address::lock(at, length, false))
}

/// munlock(2).
///
/// Returns 0, or -1 and sets errno as munlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_munlock(addr: *const c_void, length: usize) -> c_int {
    over_range("fm_munlock", addr, length, |at| by_address::unlock(at, length))
}

/// Has this process's file mappings steered, those of the kernel: a thread of the library watches which pages are
/// touched. While memory is short, or loads are slow, it tells the kernel what to read ahead, what to keep, and
/// where reading around a page fault is wasted. It is a thread as any other: /proc/self/task and limits count it,
/// and system call filters for all threads (seccomp(2)) apply to it. No signal is delivered to it. It ends when the
/// process changes its user, capabilities or filters, or has no memory left for it. A second call does nothing; a
/// child made by fork(2) calls it anew.
#[unsafe(no_mangle)]
pub extern "C" fn fm_steer() {
    call("fm_steer", || {
        fastmap_steer::start_here();
        Ok(0)
    });
}

/// Bytes that fm_msync() has written to memory by cache line in this process, for maps on DAX and maps made
/// with FM_MAP_CACHE_LINES.
#[unsafe(no_mangle)]
pub extern "C" fn fm_flushed_bytes() -> u64 {
    by_address::flushed_bytes()
}

/// 1 if all bytes of a range lie in cached maps, otherwise 0 (kernel mappings, other memory, nothing mapped).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_is_cached(addr: *const c_void, length: usize) -> c_int {
    call("fm_is_cached", || Ok(c_int::from(by_address::is_cached(addr.addr(), length))))
}
