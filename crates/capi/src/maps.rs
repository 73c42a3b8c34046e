//! mmap(2) and its kin.

use crate::boundary::{Failure, call};
use crate::caches::{self, fm_cache};
use crate::processes;
use fastmap::calls::{self, Request};
use fastmap::{Error, Fallback, Mode, Persist};
use libc::off_t;
use std::ffi::{c_int, c_uchar, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

/// For fm_mmap: in the cache or not at all. Without it, a file in memory already (on tmpfs, hugetlbfs,
/// DAX) is mapped straight, and what else cannot be cached (the machine lacks something, which
/// `fastmap doctor` explains) is an ordinary kernel mapping.
pub const FM_MAP_CACHED: c_int = 1 << 24;

/// For fm_mmap: other processes may map the file for writing too. Without it, they are refused if
/// they use FastMap, and so is this one while they do (EAGAIN). With it, who stores to one page last
/// wins all of that page.
pub const FM_MAP_MANY_WRITERS: c_int = 1 << 25;

/// For fm_mmap: a store to a page that is not in memory does not wait for it to be read. It is kept,
/// and made when the page is there; loads of the page wait. For scattered small stores to a slow
/// device: moves of 1 to 64 bytes, eight a page; all else waits. Holds for all maps of the file.
pub const FM_MAP_ASYNC_STORES: c_int = 1 << 21;

/// For fm_mmap: straight or not at all, that is, only a file in memory. Without it, that is chosen by
/// the file. On DAX, where the kernel can (MAP_SYNC), fm_msync() of up to 64 KiB is then a matter of
/// user space, without a system call.
pub const FM_MAP_DIRECT: c_int = 1 << 22;

/// For fm_mmap, of a file on tmpfs or hugetlbfs: fm_msync() writes what was stored to memory, by cache
/// line, since the memory is persistent, or stands in for such. Without it, there is nothing to do.
pub const FM_MAP_CACHE_LINES: c_int = 1 << 23;

/// For fm_madvise: the range will be walked backward, and is read ahead of in that direction.
/// madvise(2) has no such advice.
pub const FM_MADV_BACKWARD: c_int = 1000;

/// Flags of mmap(2) that a cached map has a use for, or that mean nothing for files.
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

/// A call of mmap(2).
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
        // SAFETY: the caller of `fm_mmap` says so.
        match unsafe { libc::mmap(addr, length, prot, flags, fd, offset) } {
            libc::MAP_FAILED => Err(self.failure(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))),
            at => Ok(at),
        }
    }

    /// Whether the kernel would map it, anywhere.
    fn try_elsewhere(&self) -> Result<(), Failure> {
        let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
        let elsewhere = Wanted { addr: ptr::null_mut(), flags: self.flags & !placed, ..*self };
        let at = elsewhere.by_kernel()?;
        // SAFETY: mapped just now.
        unsafe { libc::munmap(at, self.length) };
        Ok(())
    }

    /// A kernel mapping, with what is cached at its place out of the way: not before it is known that
    /// there will be one, and not at all where that stays.
    fn through_kernel(&self) -> Result<*mut c_void, Failure> {
        if self.flags & libc::MAP_FIXED != 0 && calls::holds(self.addr.addr(), self.length) {
            if !self.addr.addr().is_multiple_of(4096) {
                return Err(self.failure(libc::EINVAL));
            }
            self.try_elsewhere()?;
            // SAFETY: the caller wants what is there gone.
            unsafe { calls::make_way(self.addr.addr(), self.length) }.map_err(|errno| self.failure(errno))?;
        }
        let at = self.by_kernel()?;
        if self.is_shared() && self.fd >= 0 && self.flags & libc::MAP_ANONYMOUS == 0 && !processes::is_child() {
            // SAFETY: the kernel has just taken it for a descriptor.
            calls::note_kernel(unsafe { BorrowedFd::borrow_raw(self.fd) }, at.addr(), self.length);
        }
        Ok(at)
    }

    fn map(&self, cache: *const fm_cache) -> Result<*mut c_void, Failure> {
        let own = FM_MAP_CACHED | FM_MAP_MANY_WRITERS | FM_MAP_DIRECT | FM_MAP_CACHE_LINES | FM_MAP_ASYNC_STORES;
        let asked = self.flags;
        let wanted = Wanted { flags: asked & !own, ..*self };
        if asked & FM_MAP_CACHED != 0 && asked & FM_MAP_DIRECT != 0 {
            return Err(Failure::new(libc::EINVAL, "FM_MAP_CACHED or FM_MAP_DIRECT: a map cannot be both"));
        }
        if let Some(at) = wanted.straight(asked)? {
            return Ok(at);
        }
        let mapped = if wanted.is_for_the_cache() { wanted.through_cache(cache, asked)? } else { None };
        if let Some(at) = mapped {
            return Ok(at);
        }
        if asked & FM_MAP_CACHED != 0 {
            wanted.try_elsewhere()?;
            let why = "this cannot be cached (private, anonymous or executable, mapped elsewhere already, or in a child made by \
                       fork(2)): map it without FM_MAP_CACHED";
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
        wanted.through_kernel()
    }

    /// A direct mapping that has something over mmap(2).
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
        // SAFETY: the caller of `fm_mmap` says so.
        let mapped = match unsafe { calls::map_direct(fd, &self.request(asked), mode, persist, false) } {
            Ok(mapped) => mapped,
            // Refused as the kernel refuses it.
            Err(Error::NotMappable { .. } | Error::Io { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(at) = mapped {
            calls::note_kernel(fd, at.addr(), self.length);
            return Ok(Some(at.cast()));
        }
        // What needs nothing is as the kernel maps it.
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
            fallback: if asked & FM_MAP_CACHED != 0 { Fallback::Refuse } else { Fallback::Kernel },
            async_stores: asked & FM_MAP_ASYNC_STORES != 0,
            layers: true,
        }
    }

    fn through_cache(&self, cache: *const fm_cache, asked: c_int) -> Result<Option<*mut c_void>, Failure> {
        processes::prepare();
        let cache = caches::find(cache)?;
        // SAFETY: open for this call, if at all.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // SAFETY: the caller of `fm_mmap` says so.
        let at = match unsafe { calls::map(fd, &cache, &self.request(asked)) } {
            Ok(Some(at)) => at,
            // The kernel maps some that are neither files nor block devices, and has the errors of the others.
            Ok(None) | Err(Error::NotMappable { .. } | Error::LengthOverflow { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if self.flags & libc::MAP_LOCKED != 0
            && let Err(errno) = calls::lock(at.addr(), self.length, false)
        {
            // SAFETY: mapped just now, and known to nobody.
            let _ = unsafe { calls::unmap(at.addr(), self.length) };
            return Err(self.failure(if errno == libc::ENOMEM { libc::EAGAIN } else { errno }));
        }
        if self.flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE {
            // As with mmap(2), a map that cannot be populated is a map.
            // SAFETY: advice that destroys nothing.
            let _ = unsafe { calls::advise(at.addr(), self.length, libc::MADV_POPULATE_READ) };
        }
        Ok(Some(at.cast()))
    }
}

/// Maps a file as mmap(2) does, in the process's own cache, which holds a quarter of memory (of the
/// cgroup's, if that is less) unless fm_cache_resize() says otherwise.
///
/// What is MAP_SHARED of a regular file or block device, and not executable, is cached, unless the file
/// is in memory already: then it is mapped straight, on DAX with MAP_SYNC if it can be. Anything else
/// goes to mmap(2) with the same arguments. Length and offset are bytes. Cached maps of one file have
/// the same addresses for the same bytes: mapped twice for the same use, a file has the same address
/// twice, and is to be unmapped twice. What the cache cannot do with a map (memory mapped over a part,
/// another protection for a part or for a second map of the same bytes, a second place) makes all maps
/// of its file kernel mappings, in place. Use fm_munmap() and the other functions here for all maps made here, and
/// mmap(2)'s for none of them.
///
/// A system call that is handed memory of a cached map can fail with EFAULT: fm_pin() it meanwhile.
/// The library has SIGBUS; a load that cannot be served raises it, as with mmap(2). A child made by fork(2) and its
/// parent see one file: when the child first touches a map, that of its parent, and its own, become kernel mappings in
/// place, and so are all of that file from then on. A child that executes a program costs nothing.
///
/// Returns the address, or MAP_FAILED and sets errno as mmap(2); and EAGAIN while another process
/// maps the file for writing, EBUSY where pins outside of a range that is mapped over (MAP_FIXED) keep
/// its file in the cache, and the error of writing where it cannot be saved (then nothing is mapped
/// over), ENOSYS and EOPNOTSUPP where FM_MAP_CACHED asks for what cannot be.
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

/// fm_mmap() in a cache of the program's own; NULL: the process's. All maps of a file are in the
/// cache of its first.
///
/// Returns as fm_mmap(); EINVAL also where `cache` is none.
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
            // Whoever ends up mapping it, a wrong handle is a mistake.
            caches::find(cache)?;
        }
        Wanted { addr, length, prot, flags, fd, offset }.map(cache)
    })
}

/// What a call on a range returns.
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

/// munmap(2): of a whole map, part of one, or several, cached or not. Dirty pages are written to the
/// file, not waited for on stable storage. Pins of what nobody maps any more end.
///
/// Returns 0, or -1 and sets errno: EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_munmap(addr: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller is done with the range.
    over_range("fm_munmap", addr, length, |at| unsafe { calls::unmap(at, length) })
}

/// mremap(2), with `new_address` (for MREMAP_FIXED) always there; NULL if unused. The file is not
/// extended: see ftruncate(2), which may come before or after.
///
/// Returns the address, or MAP_FAILED and sets errno as mremap(2); EAGAIN also where pins keep a map
/// in its place.
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
        // SAFETY: the caller's.
        let at = unsafe { calls::remap(old_address.addr(), old_size, new_size, flags, new) };
        at.map(|at| at.cast()).map_err(failure)
    })
}

/// msync(2). With MS_SYNC it returns when every byte of the range that was stored before is on stable
/// storage, or in persistent memory. What cannot be written is kept in memory, dirty, and reported again by each later call
/// until it is saved.
///
/// Returns 0, or -1 and sets errno: EINVAL; ENOMEM part of it is not mapped; ENOSPC, EIO and what
/// else write(2) and fdatasync(2) have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_msync(addr: *mut c_void, length: usize, flags: c_int) -> c_int {
    over_range("fm_msync", addr, length, |at| calls::sync(at, length, flags))
}

/// madvise(2), and FM_MADV_BACKWARD. Of cached maps MADV_NORMAL, RANDOM, SEQUENTIAL say how to read
/// ahead (in units of 2 MiB); WILLNEED, POPULATE_READ and POPULATE_WRITE bring in; DONTNEED, COLD and
/// PAGEOUT save and drop; DONTFORK and DOFORK say what children get; HUGEPAGE, NOHUGEPAGE, DONTDUMP and
/// DODUMP change nothing. With other advice, such as REMOVE, all maps of the file become kernel mappings.
///
/// Returns 0, or -1 and sets errno as madvise(2); EBUSY where pins keep a file in the cache, and the
/// error of writing where it cannot be saved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_madvise(addr: *mut c_void, length: usize, advice: c_int) -> c_int {
    over_range("fm_madvise", addr, length, |at| match advice {
        FM_MADV_BACKWARD => calls::expect_backward(at, length),
        // SAFETY: the caller's.
        advice => unsafe { calls::advise(at, length, advice) },
    })
}

/// mprotect(2). Of cached maps those that are meant as a whole, for reading, or for reading and writing,
/// stay cached; else all maps of the file become kernel mappings.
///
/// Returns 0, or -1 and sets errno as mprotect(2): EACCES for PROT_WRITE if the file was not opened
/// for that; EBUSY where pins keep it in the cache, and the error of writing where it cannot be saved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mprotect(addr: *mut c_void, length: usize, prot: c_int) -> c_int {
    // SAFETY: the caller's.
    over_range("fm_mprotect", addr, length, |at| unsafe { calls::protect(at, length, prot) })
}

/// mincore(2): the lowest bit of each byte of `vec`, one for each page of 4096, says whether the page
/// is in memory.
///
/// Returns 0, or -1 and sets errno: EINVAL; ENOMEM part of it is not mapped; EFAULT `vec` is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mincore(addr: *mut c_void, length: usize, vec: *mut c_uchar) -> c_int {
    // SAFETY: the caller's.
    over_range("fm_mincore", addr, length, |at| unsafe { calls::residency(at, length, vec) })
}

/// mlock(2): the range stays in memory until fm_munlock() or fm_munmap(). Locks and pins together
/// leave a 16th of a cache free.
///
/// Returns 0, or -1 and sets errno as mlock(2): ENOMEM also where that is too much for the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_mlock(addr: *const c_void, length: usize) -> c_int {
    over_range("fm_mlock", addr, length, |at| calls::lock(at, length, false))
}

/// munlock(2).
///
/// Returns 0, or -1 and sets errno as munlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_munlock(addr: *const c_void, length: usize) -> c_int {
    over_range("fm_munlock", addr, length, |at| calls::unlock(at, length))
}

/// Bytes that fm_msync() has written to memory by cache line in this process: on DAX, and of maps made
/// with FM_MAP_CACHE_LINES.
#[unsafe(no_mangle)]
pub extern "C" fn fm_flushed_bytes() -> u64 {
    calls::flushed_bytes()
}

/// Whether all bytes of a range are in cached maps: 1, or 0 (kernel mappings, other memory, nothing).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_is_cached(addr: *const c_void, length: usize) -> c_int {
    call("fm_is_cached", || Ok(c_int::from(calls::is_cached(addr.addr(), length))))
}
