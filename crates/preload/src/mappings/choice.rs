//! Whether a mapping is to be the engine's: by its file, its size and its kind.

use super::HAS_RINGS;
use super::map::Wanted;
use crate::own::kernel;
use crate::{config, next, report};
use fastmap::by_address::{self, Why};
use libc::c_int;
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

/// Mappings up to this size are the kernel's, above all writable ones: locks, indices and headers that processes share.
pub(super) const SMALL: usize = 1 << 20;

/// The flags that `MAP_SHARED_VALIDATE` knows of those that the engine does. The kernel refuses the others.
const VALID: c_int = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK;

/// Whether a mapping of a file that could be the engine's is to be, or why not. `None`: the file is the kernel's alone.
pub(super) fn candidate(wanted: Wanted) -> Option<Result<(), Why>> {
    let Wanted { len, prot, flags, fd, offset, .. } = wanted;
    identity(fd)?;
    let is_odd = flags & (libc::MAP_HUGETLB | libc::MAP_SYNC | libc::MAP_32BIT | libc::MAP_GROWSDOWN) != 0
        || flags & libc::MAP_TYPE == libc::MAP_SHARED_VALIDATE && flags & !VALID != 0;
    // What the kernel maps privately shows the file as it was when it was mapped, or newer.
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE && is_in_engine(fd) {
        return Some(if is_odd { Err(Why::Flag) } else { Ok(()) });
    }
    // A file that the user named may begin small (SQLite's do) and have several mappings by the time it has grown.
    let large = len > SMALL || config().names_files() && prot & libc::PROT_WRITE == 0;
    let fit = match () {
        () if prot & libc::PROT_EXEC != 0 => Err(Why::Executable),
        () if is_odd => Err(Why::Flag),
        () if !large => Err(Why::Small),
        () if HAS_RINGS.load(Ordering::SeqCst) => Err(Why::Ring),
        () => Ok(()),
    };
    let matches = is_named(fd, fit.is_ok());
    // SAFETY: the program's descriptor, open during its call.
    let is_kernels = || by_address::is_kernels(unsafe { BorrowedFd::borrow_raw(fd) });
    // The exception is a program that maps a small file, its only mapping, and lets it grow (mremap(2), as SQLite does): `remap.rs`.
    (matches && offset >= 0).then(|| fit.and_then(|()| if is_kernels() { Err(Why::Before) } else { Ok(()) }))
}

/// Why a mapping that could be the engine's is to be the kernel's, because it may be stored to.
pub(super) fn left_for_stores(fd: c_int, prot: c_int) -> Option<Why> {
    match () {
        () if prot & libc::PROT_WRITE != 0 && !is_own(fd) => Some(Why::NotOwn),
        () if risks_stores(prot) => Some(Why::AtRisk),
        () if may_write(fd) && !is_in_engine(fd) && is_copied_on_write(fd) => Some(Why::CopiedOnWrite),
        () => None,
    }
}

/// Whether a shared mapping of a descriptor may be stored to, at once or later (mprotect(2)).
fn may_write(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no memory.
    unsafe { next::fcntl(fd, libc::F_GETFL, 0) & libc::O_ACCMODE == libc::O_RDWR }
}

fn is_copied_on_write(fd: c_int) -> bool {
    // SAFETY: the program's descriptor, open during its call.
    by_address::is_copied_on_write(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Whether the user says that only this program uses the file behind a descriptor.
pub(crate) fn is_own(fd: c_int) -> bool {
    config().owns_files() && config().owns(path_of(fd, &mut [0; libc::PATH_MAX as usize]))
}

/// Whether a mapping that may be stored to is to be the kernel's, since the end of this process may be the keeper's, too ([`Why::AtRisk`]).
/// Asked once a process: what it is moved to later is not seen.
pub(super) fn risks_stores(prot: c_int) -> bool {
    static ASKED: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
    let [safe, at_risk] = &ASKED;
    if prot & libc::PROT_WRITE == 0 || config().risk_stores {
        return false;
    }
    let own = std::process::id() as i32;
    if safe.load(Ordering::Relaxed) == own {
        return false;
    }
    if at_risk.load(Ordering::Relaxed) == own {
        return true;
    }
    let is_at_risk = fastmap::requirements::risk_to_stores().is_some();
    (if is_at_risk { at_risk } else { safe }).store(own, Ordering::Relaxed);
    is_at_risk
}

/// Whether a descriptor's file is in the engine.
pub(super) fn is_in_engine(fd: c_int) -> bool {
    fastmap::coherence::file(fd).is_some()
}

/// A file's device and inode, or a block device's number.
pub(super) type Identity = (u64, u64);

/// The file behind a descriptor, if it is of a kind that the engine caches: regular, or a block device.
pub(super) fn identity(fd: c_int) -> Option<Identity> {
    let stat = kernel::facts_of(fd)?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Some((stat.st_dev, stat.st_ino)),
        libc::S_IFBLK => Some((u64::MAX, stat.st_rdev)),
        _ => None,
    }
}

/// Whether the user named the file behind a descriptor; `counts`: it goes into the report at the end.
pub(super) fn is_named(fd: c_int, counts: bool) -> bool {
    match config().names_files() {
        true => is_named_so(path_of(fd, &mut [0; libc::PATH_MAX as usize]), counts),
        false => is_named_so(&[], counts),
    }
}

fn is_named_so(path: &[u8], counts: bool) -> bool {
    let matches = config().matches(path);
    let path = Path::new(OsStr::from_bytes(path));
    match counts {
        true => report::note_candidate(path, matches),
        false if !matches => report::note_unnamed(path),
        false => {}
    }
    matches
}

/// The path that a descriptor was opened by, as far as the kernel knows it now.
pub(super) fn path_of(fd: c_int, path: &mut [u8]) -> &[u8] {
    let mut link = [0u8; 32];
    let _ = write!(&mut link[..], "/proc/thread-self/fd/{fd}");
    let path = kernel::read_link(&link, path);
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}
