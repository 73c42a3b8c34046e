//! mmap(2) and its kin: which mappings are the engine's, and the calls on them.
//!
//! The engine's are shared mappings of more than 1 MiB, not executable, of regular files and block devices that the user
//! named (all, unless told otherwise), smaller ones of files that were named if they are only read, and every mapping of a
//! file that it has already. Files in memory are mapped straight: then only msync(2) is ours, where it can do better than the
//! kernel. The rest is the kernel's, untouched.
//! `fastmap::calls` has the semantics; here is the choice, and what a mapping that stays the kernel's must know of it.

use crate::guard::caught;
use crate::kernel_maps::{self, Identity, Made};
use crate::{alone, config, heap, holds, next, process, report, say, set_errno, undisturbed};
use fastmap::{Error, Fallback, Mode, calls};
use libc::{c_int, c_uchar, c_uint, c_void, off_t, size_t};
use std::ffi::OsStr;
use std::io::Write;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const PAGE: usize = 4096;

/// Mappings up to this size are the kernel's, above all writable ones: locks, indices and headers that processes share.
const SMALL: usize = 1 << 20;

/// The arguments of mmap(2).
#[derive(Clone, Copy)]
struct Wanted {
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

/// mmap(2).
///
/// # Safety
/// As there.
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
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
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

#[inline]
unsafe fn map(wanted: Wanted) -> *mut c_void {
    let Wanted { len, flags, fd, .. } = wanted;
    let kind = flags & libc::MAP_TYPE;
    // SAFETY: the caller's contract.
    unsafe {
        if flags & libc::MAP_ANONYMOUS != 0 {
            if kind == libc::MAP_PRIVATE
                && heap::is_up()
                && let Some(at) = undisturbed(None, || heap::map_anonymous(wanted.addr, len, wanted.prot, flags))
            {
                return at;
            }
        } else if matches!(kind, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE) && len > 0 {
            return map_shared(wanted);
        } else if kind == libc::MAP_PRIVATE && fastmap::coherent::any() {
            // It shows what the file has. An error comes with the next msync(2).
            undisturbed((), || {
                let _ = fastmap::coherent::file(fd).map(|file| file.before_read(0..u64::MAX));
            });
        }
        by_kernel(wanted)
    }
}

/// A call on memory of a heap that lies in a file; `None`: it is not that.
#[inline]
fn on_heap(addr: *const c_void, len: size_t, call: impl FnOnce(&Range<usize>) -> Result<(), c_int>) -> Option<c_int> {
    let part = heap::part_of_heap(addr as usize, len)?;
    Some(result(undisturbed(Err(libc::EIO), || call(&part))))
}

/// mmap(2) by the kernel, which knows nothing of what the engine has at a fixed place.
unsafe fn by_kernel(wanted: Wanted) -> *mut c_void {
    let Wanted { addr, len, prot, flags, fd, offset } = wanted;
    let replaces = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the caller's contract.
    unsafe {
        if replaces && concerns(addr, len) {
            if holds(addr, len) && !would_map(wanted) {
                return libc::MAP_FAILED;
            }
            if let Err(error) = make_way(addr, len) {
                set_errno(error);
                return libc::MAP_FAILED;
            }
        }
        next::mmap(addr, len, prot, flags, fd, offset)
    }
}

/// Whether the kernel would map it, anywhere: what it refuses leaves a fixed place as it is. Else errno says why not.
unsafe fn would_map(wanted: Wanted) -> bool {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    // SAFETY: at a place where nothing is; it goes at once.
    unsafe {
        let at = next::mmap(std::ptr::null_mut(), len, prot, flags & !placed, fd, offset);
        at != libc::MAP_FAILED && next::munmap(at, len) == 0
    }
}

/// Takes what the engine and the table of kernel mappings have out of a range that is about to be replaced. On failure nothing may
/// be mapped there.
unsafe fn make_way(addr: *mut c_void, len: size_t) -> Result<(), c_int> {
    if concerns(addr, len) {
        let part = heap::part_of_heap(addr as usize, len);
        if let Some(part) = &part {
            heap::release(part);
        }
        // SAFETY: the caller's contract.
        undisturbed(Err(libc::EIO), || unsafe { calls::make_way(addr as usize, len) })?;
        if let Some(part) = part {
            heap::forget(&part);
        }
        kernel_maps::forget(whole_pages(addr, len));
        undisturbed((), learn_kernels);
    }
    Ok(())
}

/// Whether a range may hold what the engine knows of: its own, direct ones, or kernel mappings of files it could have.
#[inline]
fn concerns(addr: *const c_void, len: size_t) -> bool {
    kernel_maps::may_meet(&whole_pages(addr, len)) || holds(addr, len) || holds_direct(addr, len)
}

/// Whether a range may hold direct mappings whose msync(2) is ours.
#[inline]
fn holds_direct(addr: *const c_void, len: size_t) -> bool {
    calls::holds_direct(addr as usize, len)
}

#[inline]
fn whole_pages(addr: *const c_void, len: size_t) -> Range<usize> {
    let end = (addr as usize).saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
    addr as usize..end
}

unsafe fn map_shared(wanted: Wanted) -> *mut c_void {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let is_off = config().off || alone::has_left() && !is_in_engine(fd);
    let file = if is_off { None } else { undisturbed(None, || candidate(wanted)) };
    // SAFETY: the caller's contract.
    let Some((file, for_engine)) = file else { return unsafe { by_kernel(wanted) } };
    // SAFETY: the caller's contract.
    let straight = undisturbed(Straight::No, || unsafe { straight(wanted) });
    if for_engine && straight == Straight::No {
        // SAFETY: the caller's contract.
        match undisturbed(Ok(None), || unsafe { by_engine(wanted) }) {
            Ok(Some(at)) => return at,
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
        undisturbed((), || {
            // What is small the engine is not asked for, and need not know of.
            if for_engine && process::owns_maps() {
                // SAFETY: the program's descriptor, open during its call.
                calls::note_kernel(unsafe { BorrowedFd::borrow_raw(fd) }, at as usize, len);
            }
            kernel_maps::note(whole_pages(at, len), file, Made { fd, offset, prot, flags });
            learn_kernels();
        });
    }
    at
}

/// What the engine is asked for.
fn request(wanted: Wanted) -> calls::Request {
    let Wanted { addr, len, prot, flags, offset, .. } = wanted;
    calls::Request {
        addr: addr as usize,
        len,
        prot,
        flags,
        offset: offset as u64,
        one_writer: true,
        fallback: Fallback::Refuse,
        async_stores: config().async_stores,
        // To the program its mappings have addresses of their own.
        layers: false,
    }
}

/// How a file in memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Straight {
    /// Here, and its msync(2) is done in user space.
    At(usize),
    /// As the kernel has it.
    ByKernel,
    /// Its file is not in memory, or it is not to be.
    No,
}

/// Maps a file that the user named straight, if that is wanted and it is in memory.
unsafe fn straight(wanted: Wanted) -> Straight {
    let Wanted { len, fd, offset, .. } = wanted;
    let mode = config().direct;
    if mode == Mode::Cached || offset < 0 || is_in_engine(fd) {
        return Straight::No;
    }
    let request = request(wanted);
    // SAFETY: the program's descriptor, open during its call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    // Programs that were written for disks flush all that they map: of huge pages that would be 2 MiB for each page they stored to.
    // SAFETY: the caller's contract.
    match unsafe { calls::map_direct(file, &request, mode, config().persist, true) } {
        Ok(Some(at)) => {
            kernel_maps::forget(whole_pages(at.cast(), len));
            Straight::At(at as usize)
        }
        // Nothing lasts there, so the kernel's msync(2) has nothing to do either.
        Ok(None) if mode == Mode::Direct || calls::is_in_memory(file) => Straight::ByKernel,
        Err(error @ Error::Missing { .. }) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !process::is_child_of_owner() && !SAID.swap(true, Ordering::Relaxed) {
                say(format_args!("{error}; it is mapped through the kernel (--direct always; said once)"));
            }
            Straight::ByKernel
        }
        // What is wrong with it the kernel says.
        Ok(None) | Err(_) => Straight::No,
    }
}

/// Has the files that are mapped in a range be the kernel's: what comes next only the kernel can do.
pub(crate) fn leave_to_kernel(addr: *const c_void, len: size_t) -> Result<(), c_int> {
    undisturbed(Err(libc::EIO), || {
        let done = calls::leave_file_to_kernel(addr as usize, len);
        learn_kernels();
        done
    })
}

/// Notes what the engine has handed over to the kernel.
fn learn_kernels() {
    /// What is known.
    static LEARNT: AtomicU64 = AtomicU64::new(0);
    if process::owns_maps() {
        let known = calls::each_kernel(LEARNT.load(Ordering::Relaxed), kernel_maps::note_handed_over);
        LEARNT.fetch_max(known, Ordering::Relaxed);
    }
}

/// Whether a file could be the engine's, and whether this mapping of it is to be. `None`: it concerns nobody but the kernel.
fn candidate(wanted: Wanted) -> Option<(Identity, bool)> {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    let file = identity(fd)?;
    if is_in_engine(fd) {
        return Some((file, true));
    }
    let odd = libc::MAP_HUGETLB | libc::MAP_SYNC | libc::MAP_32BIT | libc::MAP_GROWSDOWN;
    // A file that the user named may begin small (SQLite's do) and have several mappings by the time it has grown.
    let large = len > SMALL || config().names_files() && prot & libc::PROT_WRITE == 0;
    let eligible = large && prot & libc::PROT_EXEC == 0 && flags & odd == 0;
    let matches = is_named(fd, eligible);
    (matches && offset >= 0).then(|| (file, eligible && !kernel_maps::any(file)))
}

/// Maps a file through the engine. `None`: the kernel is to do it.
unsafe fn by_engine(wanted: Wanted) -> Result<Option<*mut c_void>, c_int> {
    let Wanted { len, fd, flags, .. } = wanted;
    let Some(cache) = crate::cache() else { return Ok(None) };
    // Another thread may be about to end the engine's.
    let mapping = alone::Mapping::begin();
    if mapping.is_none() && !is_in_engine(fd) {
        return Ok(None);
    }
    let request = request(wanted);
    // SAFETY: the program's descriptor, open during its call; the caller's contract.
    let mapped = unsafe { calls::map(BorrowedFd::borrow_raw(fd), cache, &request) };
    match mapped {
        Ok(Some(at)) => {
            process::note_maps();
            kernel_maps::forget(whole_pages(at.cast(), len));
            if flags & libc::MAP_LOCKED != 0 && lock_cached(at.cast(), len).is_err() {
                // The kernel says why not, or locks what it can.
                calls::leave_file_to_kernel(at as usize, len)?;
                // SAFETY: mapped just now, and known to nobody.
                unsafe { calls::unmap(at as usize, len)? };
                return Ok(None);
            }
            Ok(Some(at.cast()))
        }
        Ok(None) => Ok(None),
        Err(error @ Error::Locked { .. }) => {
            say(format_args!("{error}"));
            Err(error.errno())
        }
        // Two copies of the file would not agree: there is a map of it already.
        Err(error) if is_in_engine(fd) => {
            say(format_args!("{error}"));
            Err(error.errno())
        }
        Err(error) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            // By default everything is asked for, files in memory (/dev/shm) too: then only what holds for all is said.
            let worth_saying = config().names_files() || !fastmap::requirements::of_machine().iter().all(is_met);
            if worth_saying && !process::is_child_of_owner() && !SAID.swap(true, Ordering::Relaxed) {
                say(format_args!("{error}; it is mapped through the kernel (said once)"));
            }
            Ok(None)
        }
    }
}

/// Whether a file is in the engine.
fn is_in_engine(fd: c_int) -> bool {
    fastmap::coherent::file(fd).is_some()
}

fn is_met(requirement: &fastmap::requirements::Requirement) -> bool {
    requirement.optional || requirement.found.is_ok()
}

/// Which file a descriptor leads to, if it is of a kind that the engine has: regular, or a block device.
fn identity(fd: c_int) -> Option<Identity> {
    // SAFETY: fstat(2) fills the zeroed structure; a raw call, since the C library's is for the program.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &mut stat) == 0).then_some(stat)?
    };
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Some((stat.st_dev, stat.st_ino)),
        libc::S_IFBLK => Some((u64::MAX, stat.st_rdev)),
        _ => None,
    }
}

/// Whether the user named the file behind a descriptor; `counts`: if not, that is worth a word at the end.
fn is_named(fd: c_int, counts: bool) -> bool {
    let mut path = [0u8; libc::PATH_MAX as usize];
    let path = if config().names_files() { path_of(fd, &mut path) } else { &[] };
    let matches = config().matches(path);
    if counts {
        report::note_candidate(Path::new(OsStr::from_bytes(path)), matches);
    }
    matches
}

/// The path that a descriptor was opened by, as far as the kernel knows it now.
fn path_of(fd: c_int, path: &mut [u8]) -> &[u8] {
    let mut link = [0u8; 32];
    let _ = write!(&mut link[..], "/proc/thread-self/fd/{fd}");
    // SAFETY: a C string, and a buffer of this length.
    let len = unsafe { libc::syscall(libc::SYS_readlink, link.as_ptr(), path.as_mut_ptr(), path.len()) };
    let path = &path[..usize::try_from(len).unwrap_or(0)];
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}

/// What a call of the engine came to, as a system call's result.
fn result(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// munmap(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's contract.
    if !concerns(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::munmap(addr, len) };
    }
    if (addr as usize).is_multiple_of(PAGE) && len > 0 {
        kernel_maps::forget(whole_pages(addr, len));
        if let Some(part) = heap::part_of_heap(addr as usize, len) {
            undisturbed((), || heap::unmap(&part));
        }
    }
    // SAFETY: the caller's contract.
    result(undisturbed(Err(libc::EIO), || unsafe { calls::unmap(addr as usize, len) }))
}

/// mremap(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let new = if flags & libc::MREMAP_FIXED != 0 { new } else { std::ptr::null_mut() };
    let replaces = !new.is_null() && concerns(new, new_len);
    // SAFETY: the caller's contract.
    if !replaces && !concerns(old, old_len) {
        // SAFETY: the caller's contract.
        return unsafe { next::mremap(old, old_len, new_len, flags, new) };
    }
    if let Some(old) = heap::part_of_heap(old as usize, old_len) {
        // SAFETY: the caller's contract.
        let way = if replaces { unsafe { make_way(new, new_len) } } else { Ok(()) };
        // SAFETY: the caller's contract.
        let moved = way.and_then(|()| undisturbed(Err(libc::EIO), || unsafe { heap::remap(old, new_len, flags, new) }));
        return moved.map_or_else(
            |error| {
                set_errno(error);
                libc::MAP_FAILED
            },
            |at| at as *mut c_void,
        );
    }
    // SAFETY: the caller's contract.
    if let Some(at) = unsafe { outgrow(old, old_len, new_len, flags) } {
        return at;
    }
    let moved =
        // SAFETY: the caller's contract.
        undisturbed(Err(libc::EIO), || unsafe { calls::remap(old as usize, old_len, new_len, flags, new as usize) });
    match moved {
        Ok(at) => {
            kernel_maps::moved(whole_pages(old, old_len), whole_pages(at.cast(), new_len), flags);
            undisturbed((), learn_kernels);
            at.cast()
        }
        Err(error) => {
            set_errno(error);
            libc::MAP_FAILED
        }
    }
}

/// The only mapping of a file, small so far and therefore the kernel's, becomes the engine's when it becomes large.
unsafe fn outgrow(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int) -> Option<*mut c_void> {
    if new_len <= SMALL || flags != libc::MREMAP_MAYMOVE || config().off {
        return None;
    }
    let (file, made) = kernel_maps::alone(whole_pages(old, old_len))?;
    let wanted = Wanted {
        addr: std::ptr::null_mut(),
        len: new_len,
        prot: made.prot,
        flags: made.flags & libc::MAP_TYPE,
        fd: made.fd,
        offset: made.offset,
    };
    // The program may have closed the descriptor, and have another file there.
    if old_len > SMALL || made.prot & libc::PROT_EXEC != 0 || identity(made.fd) != Some(file) {
        return None;
    }
    // SAFETY: the program's descriptor, of that file.
    let is_in_memory = || calls::is_in_memory(unsafe { BorrowedFd::borrow_raw(made.fd) });
    if config().direct != Mode::Cached && undisturbed(false, is_in_memory) {
        return None;
    }
    // SAFETY: the caller's contract: the old mapping is exchanged for the new one.
    undisturbed(None, || unsafe {
        // Its note says that the file is the kernel's.
        calls::make_way(old as usize, old_len).ok()?;
        match by_engine(wanted) {
            Ok(Some(at)) => {
                kernel_maps::forget(whole_pages(old, old_len));
                next::munmap(old, old_len);
                Some(at)
            }
            _ => None,
        }
    })
}

/// remap_file_pages(2), of which the kernel itself only keeps an emulation: a mapping of other bytes over a part.
///
/// # Safety
/// As there.
pub(crate) unsafe fn remap_file_pages(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    page: size_t,
    flags: c_int,
) -> c_int {
    if holds(addr, len)
        && let Err(error) = leave_to_kernel(addr, len)
    {
        // It has no other word for a hole.
        return result(Err(if error == libc::ENOMEM { libc::EINVAL } else { error }));
    }
    // SAFETY: the caller's contract.
    unsafe { next::remap_file_pages(addr, len, prot, page, flags) }
}

/// msync(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    if holds(addr, len) {
        if let Some(done) = on_heap(addr, len, |_| Ok(())) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || calls::sync(addr as usize, len, flags)));
    }
    if holds_direct(addr, len) {
        // Undisturbed would cost two system calls; where it matters `calls::sync` sees to it.
        return result(caught(Err(libc::EIO), || calls::sync(addr as usize, len, flags)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::msync(addr, len, flags) }
}

/// madvise(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if holds_direct(addr, len) && !holds(addr, len) {
        // SAFETY: the caller's contract.
        return result(undisturbed(Err(libc::EIO), || unsafe { calls::advise(addr as usize, len, advice) }));
    }
    // SAFETY: the caller's contract.
    if !holds(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::madvise(addr, len, advice) };
    }
    // The kernel knows which advice there is, and gives none on nothing.
    // SAFETY: the caller's contract.
    if unsafe { next::madvise(addr, 0, advice) } != 0 {
        return -1;
    }
    if let Some(done) = on_heap(addr, len, |part| heap::advise(part, advice)) {
        return done;
    }
    result(undisturbed(Err(libc::EIO), || {
        // SAFETY: the caller's contract.
        let done = unsafe { calls::advise(addr as usize, len, advice) };
        // Much of it is the kernel's.
        learn_kernels();
        done
    }))
}

/// posix_madvise(3), which returns the error's number.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // SAFETY: the caller's contract.
    if !holds(addr, len) {
        // SAFETY: the caller's contract.
        return unsafe { next::posix_madvise(addr, len, advice) };
    }
    // As the C library does with memory that would be lost.
    if heap::part_of_heap(addr as usize, len).is_some() {
        return 0;
    }
    // The numbers are madvise(2)'s; not wanting a range loses nothing here either.
    if !(libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED).contains(&advice) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract.
    undisturbed(Err(libc::EIO), || unsafe { calls::advise(addr as usize, len, advice) }).err().unwrap_or(0)
}

/// mprotect(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { protect(addr, len, prot) }
}

unsafe fn protect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's contract.
    if holds(addr, len) {
        if let Some(done) = on_heap(addr, len, |part| heap::protect(part, prot)) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || {
            // SAFETY: the caller's contract.
            let done = unsafe { calls::protect(addr as usize, len, prot) };
            // Parts of maps are the kernel's, and what is executable.
            learn_kernels();
            done
        }));
    }
    kernel_maps::note_changed(whole_pages(addr, len));
    if holds_direct(addr, len) {
        // SAFETY: the caller's contract.
        return result(undisturbed(Err(libc::EIO), || unsafe { calls::protect(addr as usize, len, prot) }));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mprotect(addr, len, prot) }
}

/// pkey_mprotect(2): without a key, mprotect(2). The engine's pages have no keys: the kernel's do.
///
/// # Safety
/// As there.
pub(crate) unsafe fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        match key {
            -1 => protect(addr, len, prot),
            _ if heap::part_of_heap(addr as usize, len).is_some() => result(Err(libc::EINVAL)),
            _ => {
                if holds(addr, len) {
                    let done = leave_to_kernel(addr, len);
                    if done.is_err() {
                        return result(done);
                    }
                }
                calls::leave_to_kernel(addr as usize, len);
                next::pkey_mprotect(addr, len, prot, key)
            }
        }
    }
}

/// mincore(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int {
    // SAFETY: the caller's contract.
    if holds(addr, len) {
        // It may be anywhere, and nobody asks.
        let all = |part: &Range<usize>| {
            // SAFETY: the caller's contract.
            unsafe { vec.write_bytes(1, part.len().div_ceil(PAGE)) };
            Ok(())
        };
        if let Some(done) = on_heap(addr, len, all) {
            return done;
        }
        // SAFETY: the caller's contract.
        return result(undisturbed(Err(libc::EIO), || unsafe { calls::residency(addr as usize, len, vec) }));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mincore(addr, len, vec) }
}

/// Pins the engine's pages, as far as its budget for pins allows; the kernel locks what is more.
fn lock_cached(addr: *const c_void, len: size_t) -> Result<(), c_int> {
    let done = calls::lock(addr as usize, len, true);
    learn_kernels();
    done
}

/// mlock(2), of the engine's pages too.
///
/// # Safety
/// As there.
pub(crate) unsafe fn mlock(addr: *const c_void, len: size_t) -> c_int {
    if holds(addr, len) {
        if let Some(done) = on_heap(addr, len, heap::lock) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || lock_cached(addr, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mlock(addr, len) }
}

/// mlock2(2). The engine's pages are brought in at once, `MLOCK_ONFAULT` or not.
///
/// # Safety
/// As there.
pub(crate) unsafe fn mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int {
    if flags & !(libc::MLOCK_ONFAULT as c_uint) == 0 && holds(addr, len) {
        if let Some(done) = on_heap(addr, len, heap::lock) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || lock_cached(addr, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::mlock2(addr, len, flags) }
}

/// munlock(2).
///
/// # Safety
/// As there.
pub(crate) unsafe fn munlock(addr: *const c_void, len: size_t) -> c_int {
    if holds(addr, len) {
        if let Some(done) = on_heap(addr, len, |part| {
            heap::unlock(part);
            Ok(())
        }) {
            return done;
        }
        return result(undisturbed(Err(libc::EIO), || calls::unlock(addr as usize, len)));
    }
    // SAFETY: the caller's contract.
    unsafe { next::munlock(addr, len) }
}

/// munlockall(2). (mlockall(2) needs nothing: it brings no page into a cached map, and keeps none there.)
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn munlockall() -> c_int {
    if process::owns_maps() {
        undisturbed((), calls::unlock_all);
    }
    // SAFETY: it lets memory go.
    unsafe { next::munlockall() }
}

exported! {
    fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    fn munmap(addr: *mut c_void, len: size_t) -> c_int;
    fn mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void;
    fn remap_file_pages(addr: *mut c_void, len: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int;
    fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int;
    fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int;
    fn mlock(addr: *const c_void, len: size_t) -> c_int;
    fn mlock2(addr: *const c_void, len: size_t, flags: c_uint) -> c_int;
    fn munlock(addr: *const c_void, len: size_t) -> c_int;
    fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int;
    fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int;
    fn munlockall() -> c_int;
}
