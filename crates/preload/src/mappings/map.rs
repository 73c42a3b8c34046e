//! mmap(2): through the engine, straight, or by the kernel.

use super::choice::{candidate, is_in_engine, is_own, left_for_stores, path_of};
use super::protect::lock_cached;
use super::served::{self, By};
use super::{concerns, leave_descriptor_to_kernel, make_way, note_maps, seal};
use crate::copy::held;
use crate::own::{allocator, caught, owner, set_errno, undisturbed};
use crate::{config, heap, next, report, say};
use fastmap::by_address::{self, Direct, Made, Owner, Why};
use fastmap::{Error, Fallback, Mode};
use libc::{c_int, c_void, off_t, size_t};
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The arguments of mmap(2).
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub addr: *mut c_void,
    pub len: size_t,
    pub prot: c_int,
    pub flags: c_int,
    pub fd: c_int,
    pub offset: off_t,
}

/// mmap(2).
///
/// # Safety
/// The caller keeps the contract of mmap(2).
pub(crate) unsafe fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { map(Wanted { addr, len, prot, flags, fd, offset }) }
}

/// mmap(2), by the name that programs built for large files use.
use mmap as mmap64;

#[inline]
unsafe fn map(wanted: Wanted) -> *mut c_void {
    let Wanted { len, flags, .. } = wanted;
    let kind = flags & libc::MAP_TYPE;
    if flags & libc::MAP_FIXED != 0 && seal::forbids(wanted.addr, len) {
        seal::refused();
        return libc::MAP_FAILED;
    }
    if flags & libc::MAP_ANONYMOUS == 0
        && let Some(object) = crate::objects::of(wanted.fd)
    {
        // SAFETY: the caller's contract.
        return unsafe { super::objects::map(object, wanted) };
    }
    if flags & libc::MAP_ANONYMOUS == 0 && wanted.fd >= 0 {
        let is_shared = matches!(kind, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE) && len > 0;
        if is_shared {
            // SAFETY: the caller's contract.
            return unsafe { map_shared(wanted) };
        }
    }
    // SAFETY: the caller's contract.
    unsafe {
        if flags & libc::MAP_ANONYMOUS != 0 {
            if kind == libc::MAP_PRIVATE
                && heap::is_up()
                && let Some(at) = undisturbed(None, || heap::map_anonymous(wanted.addr, len, wanted.prot, flags))
            {
                return at;
            }
        } else if kind == libc::MAP_PRIVATE {
            return map_private(wanted);
        }
        by_kernel(wanted)
    }
}

/// mmap(2) by the kernel. What the engine has at a fixed place is unmapped first, since the kernel does not know of it.
pub(super) unsafe fn by_kernel(wanted: Wanted) -> *mut c_void {
    let Wanted { addr, len, prot, flags, fd, offset } = wanted;
    let replaces = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the caller's contract.
    unsafe {
        // Nobody maps anything there between what makes way and what comes.
        let owner = (replaces && concerns(addr, len)).then(by_address::own);
        if owner.is_some() {
            if held(addr, len) && !would_map(wanted) {
                return libc::MAP_FAILED;
            }
            if let Err(error) = make_way(addr, len) {
                set_errno(error);
                return libc::MAP_FAILED;
            }
        }
        if flags & libc::MAP_ANONYMOUS == 0 && fd >= 0 && fastmap::coherence::any() {
            undisturbed((), || by_address::await_closing(BorrowedFd::borrow_raw(fd)));
        }
        next::mmap(addr, len, prot, flags, fd, offset)
    }
}

/// Whether the kernel would map it at a place of its choice: where it refuses, a fixed place must stay as it is. errno
/// says why not.
unsafe fn would_map(wanted: Wanted) -> bool {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    // SAFETY: the kernel chooses a free place, and the mapping is unmapped before anything knows of it.
    unsafe {
        let at = next::mmap(std::ptr::null_mut(), len, prot, flags & !placed, fd, offset);
        at != libc::MAP_FAILED && next::munmap(at, len) == 0
    }
}

unsafe fn map_shared(wanted: Wanted) -> *mut c_void {
    let Wanted { fd, len, prot, .. } = wanted;
    // From the choice to the note nobody else maps: a file would be the kernel's and the engine's. Nothing interrupts the owner, so that its
    // calls into the engine need only be caught.
    let owner = by_address::own();
    let is_off = config().off || owner::has_left() && !is_in_engine(fd);
    let fit = if is_off { None } else { caught(None, || candidate(wanted)) };
    // SAFETY: the caller's contract.
    let Some(fit) = fit else { return unsafe { by_kernel(wanted) } };
    let for_engine = fit.is_ok();
    // SAFETY: the caller's contract.
    let straight = caught(Straight::No, || unsafe { straight(wanted) });
    let left = match fit {
        Ok(()) if straight == Straight::No => undisturbed(Some(Why::NoCache), || left_for_stores(fd, prot)),
        fit => fit.err(),
    };
    if let Some(why) = left.filter(|_| is_in_engine(fd)) {
        // Its other maps are the kernel's from then on, and see the stores.
        if let Err(error) = leave_descriptor_to_kernel(fd, why) {
            // A kernel mapping would not agree with them.
            set_errno(if error == libc::EBUSY { libc::EAGAIN } else { error });
            return libc::MAP_FAILED;
        }
    } else if for_engine && left.is_none() && straight == Straight::No {
        // SAFETY: the caller's contract.
        match undisturbed(Ok(None), || unsafe { by_engine(wanted) }) {
            Ok(Some(at)) => {
                drop(owner);
                return populated(wanted, at);
            }
            Ok(None) => {}
            Err(error) => {
                set_errno(error);
                return libc::MAP_FAILED;
            }
        }
    }
    let at = match straight {
        Straight::At(at) => at as *mut c_void,
        // SAFETY: the caller's contract.
        Straight::ByKernel | Straight::No => unsafe { by_kernel(wanted) },
    };
    if at != libc::MAP_FAILED {
        match straight {
            Straight::At(_) => report::note_direct(),
            _ => drop(report::KERNEL.fetch_add(u64::from(for_engine), Ordering::Relaxed)),
        }
        caught((), || {
            match (straight, left) {
                (Straight::At(_), _) => served::note(fd, By::Direct),
                (Straight::ByKernel, _) => served::note_kernels(fd, len, Why::InMemory),
                (Straight::No, Some(why)) => served::note_kernels(fd, len, why),
                // Said by who decided it.
                (Straight::No, None) => {}
            }
            note_kernel(&owner, wanted, at);
        });
    }
    at
}

/// What `MAP_POPULATE` asks for, of a map of the engine's that was made just now. It may take long: others map meanwhile.
fn populated(wanted: Wanted, at: *mut c_void) -> *mut c_void {
    if wanted.flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE {
        undisturbed((), || by_address::populate(at as usize, wanted.len));
    }
    at
}

/// Notes a mapping that is the kernel's and, where it is not too small, could have been the engine's: while it is there the file's other
/// maps are the kernel's as well, and so agree with it.
fn note_kernel(owner: &Owner, wanted: Wanted, at: *mut c_void) {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    // SAFETY: the program's descriptor, open during its call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    by_address::note_kernel(owner, file, at as usize, len, Some(Made { fd, offset, prot, flags }));
}

/// A private mapping of a file is served as a shared one is as long as it may only be read; else it is the kernel's.
unsafe fn map_private(wanted: Wanted) -> *mut c_void {
    let Wanted { prot, fd, len, .. } = wanted;
    let is_to_read = prot == libc::PROT_READ && !config().off && !owner::has_left();
    // As for a shared one.
    let owner = is_to_read.then(by_address::own);
    // Those who look for symbols map programs and libraries: no budget is for them.
    let is_candidate = is_to_read && undisturbed(false, || !served::is_code(fd));
    let candidate = if is_candidate { undisturbed(None, || candidate(wanted)) } else { None };
    let for_engine = matches!(candidate, Some(Ok(())));
    if for_engine {
        // SAFETY: the caller's contract.
        let at = undisturbed(Ok(None), || unsafe { by_engine(wanted) });
        if let Ok(Some(at)) = at {
            drop(owner);
            return populated(wanted, at);
        }
    }
    if fastmap::coherence::any() {
        // It shows what the file has, so stores are written first. An error shows at the next msync(2).
        undisturbed((), || {
            let _ = fastmap::coherence::file(fd).map(|file| file.before_read(0..u64::MAX));
        });
    }
    // SAFETY: the caller's contract.
    let at = unsafe { by_kernel(wanted) };
    if at == libc::MAP_FAILED {
        return at;
    }
    let why = match (prot, candidate) {
        _ if prot & libc::PROT_EXEC != 0 => Why::Code,
        _ if prot & libc::PROT_WRITE != 0 => Why::PrivateStores,
        (_, Some(Err(why))) => why,
        _ => Why::Private,
    };
    match owner.filter(|_| for_engine) {
        // Said by who decided it.
        Some(owner) => {
            report::KERNEL.fetch_add(1, Ordering::Relaxed);
            caught((), || note_kernel(&owner, wanted, at));
        }
        None => served::note_kernels(fd, len, why),
    }
    at
}

/// The request to the engine.
pub(super) fn request(wanted: Wanted) -> by_address::Request {
    let Wanted { addr, len, prot, flags, offset, .. } = wanted;
    by_address::Request {
        addr: addr as usize,
        len,
        prot,
        flags,
        offset: offset as u64,
        one_writer: true,
        own: false,
        fallback: Fallback::Refuse,
        async_stores: config().async_stores,
        // A program under `fastmap run` expects each mapping at an address of its own.
        layers: false,
    }
}

/// How a file in memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Straight {
    /// Mapped at this address, and its msync(2) is done in user space.
    At(usize),
    /// To be mapped by the kernel alone.
    ByKernel,
    /// Not straight: the file is not in memory, or the user did not want it.
    No,
}

/// Maps a file that the user named straight, if that is wanted and it is in memory.
unsafe fn straight(wanted: Wanted) -> Straight {
    let Wanted { fd, offset, .. } = wanted;
    let mode = config().direct;
    if mode == Mode::Cached || offset < 0 || is_in_engine(fd) {
        return Straight::No;
    }
    let request = request(wanted);
    // SAFETY: the program's descriptor, open during its call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // No huge pages: a program written for disks flushes all that it maps, which would write 2 MiB for each page that
    // it stored to.
    // SAFETY: the caller's contract.
    match unsafe { by_address::map_direct(file, &request, mode, config().persist, true) } {
        Ok(Direct::At(at)) => Straight::At(at as usize),
        // Nothing lasts in such memory, so msync(2) has nothing to do, the kernel's neither.
        Ok(Direct::InMemory) => Straight::ByKernel,
        Err(error @ Error::Missing { .. }) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !owner::is_child_of_owner() && !SAID.swap(true, Ordering::Relaxed) {
                say(format_args!("{error}; it is mapped through the kernel (--direct always; said once)"));
            }
            Straight::ByKernel
        }
        // The kernel is asked, and reports its own error.
        Ok(Direct::No) | Err(_) => Straight::No,
    }
}

/// Maps a file through the engine. `None`: the kernel is to do it. `Err`: nobody may, for this error number.
pub(super) unsafe fn by_engine(wanted: Wanted) -> Result<Option<*mut c_void>, c_int> {
    let Wanted { len, fd, flags, .. } = wanted;
    let Some(cache) = crate::cache() else {
        served::note_kernels(fd, len, Why::NoCache);
        return Ok(None);
    };
    if allocator::is_short() && !is_in_engine(fd) {
        served::note_kernels(fd, len, Why::NoMemory);
        return Ok(None);
    }
    // Another thread may be about to end the engine's threads.
    let mapping = owner::Mapping::begin();
    if mapping.is_none() && !is_in_engine(fd) {
        return Ok(None);
    }
    let request = by_address::Request { own: is_own(fd), ..request(wanted) };
    if let (true, Some(register)) = (request.own, &config().keepers) {
        by_address::register_keeper_in(register);
    }
    // SAFETY: the program's descriptor, open during its call; the caller's contract.
    let mapped = unsafe { by_address::map(BorrowedFd::borrow_raw(fd), cache, &request) };
    match mapped {
        Ok(Some(at)) => {
            note_maps();
            if request.own {
                say_own(fd);
            }
            if flags & libc::MAP_LOCKED != 0 && lock_cached(at.cast(), len).is_err() {
                // The kernel maps it instead, and locks what it can or reports why not.
                by_address::leave_file_to_kernel(at as usize, len, Why::Locked)?;
                // SAFETY: mapped just now, and not yet returned to the program.
                unsafe { by_address::unmap(at as usize, len)? };
                return Ok(None);
            }
            Ok(Some(at.cast()))
        }
        Ok(None) => Ok(None),
        // Another process stores to it, or it has a map in the engine: a kernel mapping would be a second, incoherent copy.
        Err(error) if matches!(error, Error::Locked { .. }) || is_in_engine(fd) => {
            say(format_args!("{error}"));
            Err(error.errno())
        }
        Err(error) => {
            // SAFETY: as above.
            let is_in_memory = by_address::is_in_memory(unsafe { BorrowedFd::borrow_raw(fd) });
            // By default every file is tried, /dev/shm's too, which no budget is meant for.
            match is_in_memory && !config().names_files() {
                true => served::note_kernels(fd, len, Why::InMemory),
                false => served::note_refused(fd, &error),
            }
            Ok(None)
        }
    }
}

/// Says once what it means that a file is the program's own.
fn say_own(fd: c_int) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !owner::is_child_of_owner() && !SAID.swap(true, Ordering::Relaxed) {
        let mut path = [0; libc::PATH_MAX as usize];
        let path = Path::new(OsStr::from_bytes(path_of(fd, &mut path)));
        let risk = match fastmap::requirements::is_killed_as_a_whole() {
            true => "; a kill of all of its control group loses what is not yet written (--write-within)",
            false => "",
        };
        say(format_args!(
            "{} is used by this program alone (--own): other processes see of it what was flushed, and after a kill it is written for a \
             moment yet, which fastmap run waits for{risk} (said once)",
            path.display()
        ));
    }
}

exported! {
    fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
}
