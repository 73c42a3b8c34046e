//! Paths that name objects. Calls see an object as a file of a read-only file system.

use super::{Object, any, by_identity, of, session};
use crate::copy::Pointer;
use crate::next;
use crate::own::{errno, set_errno};
use libc::{c_char, c_int, size_t};
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The object that a path names, seen from a folder's descriptor. errno stays as it is.
///
/// # Safety
/// `path` is a string or null.
#[inline]
unsafe fn named(folder: c_int, path: *const c_char) -> Option<&'static Object> {
    // SAFETY: the contract.
    if any() && !path.is_null() { find(folder, unsafe { CStr::from_ptr(path) }.to_bytes()) } else { None }
}

/// The object that a path names, as [`named`] finds it, or by the name of a descriptor, as /proc/self/fd/3.
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn reached(folder: c_int, path: *const c_char) -> Option<&'static Object> {
    if !any() || path.is_null() {
        return None;
    }
    // SAFETY: the contract.
    let name = unsafe { CStr::from_ptr(path) };
    find(folder, name.to_bytes()).or_else(|| find_open(name))
}

fn find_open(name: &CStr) -> Option<&'static Object> {
    if ![b"/proc/".as_slice(), b"/dev/"].iter().any(|start| name.to_bytes().starts_with(start)) {
        return None;
    }
    let before = errno();
    let identity = identity(libc::AT_FDCWD, name.as_ptr());
    set_errno(before);
    by_identity(identity?)
}

/// Device and inode of the file that a path leads to.
fn identity(folder: c_int, path: *const c_char) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a C string; the kernel fills the structure where the call returns 0.
    unsafe {
        (next::fstatat(folder, path, stat.as_mut_ptr(), 0) == 0)
            .then(|| (stat.assume_init_ref().st_dev, stat.assume_init_ref().st_ino))
    }
}

fn find(folder: c_int, path: &[u8]) -> Option<&'static Object> {
    session::objects().iter().find(|object| {
        let Some(before) = path.strip_suffix(&object.name[..]) else { return false };
        // The path as the user gave it, even if its folder does not exist. Or any other path to the same folder.
        before == object.folder.to_bytes()
            || (before.is_empty() || before.ends_with(b"/")) && is_same_folder(folder, before, &object.folder)
    })
}

fn is_same_folder(from: c_int, way: &[u8], of_object: &CStr) -> bool {
    let mut path = [0u8; libc::PATH_MAX as usize];
    if way.len() >= path.len() {
        return false;
    }
    path[..way.len()].copy_from_slice(way);
    if way.is_empty() {
        path[0] = b'.';
    }
    let before = errno();
    let wanted = identity(libc::AT_FDCWD, of_object.as_ptr());
    let is_same = match wanted {
        Some(_) => identity(from, path.as_ptr().cast()) == wanted,
        None => from == libc::AT_FDCWD && is_below_here(way, of_object.to_bytes()),
    };
    set_errno(before);
    is_same
}

impl Object {
    /// The path of its local copy, which takes the place of the object's own.
    pub(crate) fn path(&self) -> *const c_char {
        self.copy.as_ptr()
    }

    /// open(2) of its local copy, with the flags of a call that opens the object.
    pub(crate) fn open(&self, flags: c_int) -> c_int {
        let creates = libc::O_CREAT | libc::O_EXCL;
        let error = match () {
            () if flags & creates == creates => libc::EEXIST,
            () if flags & libc::O_DIRECTORY != 0 => libc::ENOTDIR,
            () if flags & libc::O_PATH != 0 => 0,
            () if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 => libc::EROFS,
            () => 0,
        };
        if error != 0 {
            set_errno(error);
            return -1;
        }
        // Without O_DIRECT: reads go straight into the program's memory in whole pages, and need not have direct I/O's alignment.
        let flags = flags & !(libc::O_CREAT | libc::O_DIRECT);
        // SAFETY: a C string.
        unsafe { next::open64(self.path(), flags, 0) }
    }
}

/// Whether `way`, from the current folder, leads to `folder`, judged by the names alone. Used where that folder does not exist.
fn is_below_here(way: &[u8], folder: &[u8]) -> bool {
    let mut here = [0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as the call is told.
    if unsafe { next::getcwd(here.as_mut_ptr().cast(), here.len()) }.is_null() {
        return false;
    }
    let here = &here[..here.iter().position(|byte| *byte == 0).unwrap_or(0)];
    let way = way.strip_prefix(b"./").unwrap_or(way);
    folder.strip_prefix(here).and_then(|rest| rest.strip_prefix(b"/")) == Some(way)
}

/// The path that the C library gets: for an object its local copy's, for anything else `path` itself.
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn shown(folder: c_int, path: *const c_char) -> *const c_char {
    // SAFETY: the contract.
    unsafe { named(folder, path) }.map_or(path, Object::path)
}

fn refused(error: c_int) -> bool {
    set_errno(error);
    true
}

/// Whether a call would change an object. If so, errno says that this is refused (EROFS). The object is the one that the path names; a null or
/// empty path stands for the folder's descriptor.
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn is_kept(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the contract.
    any()
        && unsafe {
            let is_object =
                if path.is_null() || *path == 0 { of(folder).is_some() } else { reached(folder, path).is_some() };
            is_object && refused(libc::EROFS)
        }
}

/// Whether a path names an object, so that nothing can be made there. If so, errno says so (EEXIST).
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn is_there(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: the contract.
    unsafe { named(folder, path) }.is_some() && refused(libc::EEXIST)
}

/// Whether a descriptor is an object's, so that nothing may be changed through it. If so, errno says so (EROFS).
#[inline]
pub(crate) fn is_fixed(fd: c_int) -> bool {
    of(fd).is_some() && refused(libc::EROFS)
}

/// Whether access(2) asks to write to an object, which is read-only. If so, errno says so (EROFS).
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn is_denied((folder, mode): (c_int, c_int), path: *const c_char) -> bool {
    // SAFETY: the contract. The mode of the local copy refuses `X_OK`.
    mode & libc::W_OK != 0 && unsafe { named(folder, path) }.is_some() && refused(libc::EROFS)
}

/// Wrappers of realpath(3). The C library would find no file at an object's path.
macro_rules! real_paths {
    ($($name:ident($($resolved:ident)? $(, $size:ident)?);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char $(, $resolved: *mut c_char)? $(, $size: size_t)?) -> *mut c_char {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                match named(libc::AT_FDCWD, path) {
                    Some(object) => object.real_path(real_paths!(room $($resolved)?)),
                    None => next::$name(path $(, $resolved)? $(, $size)?),
                }
            }
        }
    )* };
    (room) => { std::ptr::null_mut() };
    (room $resolved:ident) => { $resolved };
}
real_paths! {
    realpath(resolved);
    __realpath_chk(resolved, size);
    canonicalize_file_name();
}

impl Object {
    /// The folder's real path, or the folder as it was given if there is no such folder, and the name in it. Goes to `resolved`, or to memory
    /// from malloc(3) if that is null.
    unsafe fn real_path(&self, resolved: *mut c_char) -> *mut c_char {
        let mut path = [0u8; libc::PATH_MAX as usize];
        let before = errno();
        // SAFETY: the buffer is as long as realpath(3) needs.
        if unsafe { next::realpath(self.folder.as_ptr(), path.as_mut_ptr().cast()) }.is_null() {
            set_errno(before);
            path[..self.folder.count_bytes()].copy_from_slice(self.folder.to_bytes());
        }
        let folder = path.iter().position(|byte| *byte == 0).unwrap_or(0);
        let slash = usize::from(path[..folder].last() != Some(&b'/'));
        let len = folder + slash + self.name.len();
        if len >= path.len() {
            set_errno(libc::ENAMETOOLONG);
            return std::ptr::null_mut();
        }
        path[folder] = b'/';
        path[folder + slash..len].copy_from_slice(&self.name);
        path[len] = 0;
        // SAFETY: the caller's buffer is as long as realpath(3) needs; without one the memory is new, and the program may free it.
        unsafe {
            if resolved.is_null() {
                return libc::strdup(path.as_ptr().cast());
            }
            resolved.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), len + 1);
            resolved
        }
    }
}

/// The structures that stat(2) and statx(2) fill.
pub(crate) trait Facts {
    fn identity(&self) -> (u64, u64);
    fn correct(&mut self, len: u64, modified: i64);
}

/// The mode that is told of an object. Blocks and times are replaced, too: those of the local copy change while it is filled.
const MODE: u32 = libc::S_IFREG | 0o444;

macro_rules! facts_of_stat {
    ($($stat:ty),*) => { $(
        impl Facts for $stat {
            fn identity(&self) -> (u64, u64) {
                (self.st_dev, self.st_ino)
            }

            fn correct(&mut self, len: u64, modified: i64) {
                (self.st_mode, self.st_size, self.st_blocks) = (MODE, len as i64, len.div_ceil(512) as i64);
                (self.st_atime, self.st_mtime, self.st_ctime) = (modified, modified, modified);
                (self.st_atime_nsec, self.st_mtime_nsec, self.st_ctime_nsec) = (0, 0, 0);
            }
        }
    )* };
}
facts_of_stat!(libc::stat, libc::stat64);

impl Facts for libc::statx {
    fn identity(&self) -> (u64, u64) {
        (libc::makedev(self.stx_dev_major, self.stx_dev_minor), self.stx_ino)
    }

    fn correct(&mut self, len: u64, modified: i64) {
        (self.stx_mode, self.stx_size, self.stx_blocks) = (MODE as u16, len, len.div_ceil(512));
        for time in [&mut self.stx_atime, &mut self.stx_mtime, &mut self.stx_ctime, &mut self.stx_btime] {
            (time.tv_sec, time.tv_nsec) = (modified, 0);
        }
    }
}

/// Replaces the facts of an object's local copy, which a call has told, by those of the object.
///
/// # Safety
/// The call has filled `facts`.
#[inline]
pub(crate) unsafe fn tell<F: Facts>(facts: *mut F)
where
    *mut F: Pointer,
{
    if any() {
        // SAFETY: the contract.
        let facts = unsafe { &mut *facts };
        if let Some(object) = by_identity(facts.identity()) {
            facts.correct(object.len, object.modified);
        }
    }
}
