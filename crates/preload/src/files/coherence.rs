//! The steps that `fastmap::coherence` asks for before and after a system call on a file that is in the engine.
//!
//! Nothing in this file touches a mapping. While a call changes a file, its thread has signals blocked, and keeps the
//! pages that the call changes from all threads. If that thread itself touched one of them, it would wait for itself. So
//! buffers in mappings are copied before and after (`copy/vectors.rs`).

use super::At;
use crate::copy::{Unit, Way, exchange, mapped};
use crate::own::kernel;
use crate::own::remembered::Seen;
use crate::own::{errno, set_errno, undisturbed};
use crate::{config, mappings, next};
use fastmap::by_address;
use fastmap::coherence::{self, MappedFile, Position};
use libc::{c_char, c_int, iovec, off_t, ssize_t};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The result of a call that may fail.
pub trait Failure {
    const FAILED: Self;
    fn has_failed(&self) -> bool;
}

impl Failure for c_int {
    const FAILED: Self = -1;
    fn has_failed(&self) -> bool {
        // posix_fallocate(3) returns an error number.
        *self != 0
    }
}

impl Failure for ssize_t {
    const FAILED: Self = -1;
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

/// The result of a call that returns something on success: a descriptor, a stream or a count.
pub struct Opened<R>(pub R);

impl Failure for Opened<c_int> {
    const FAILED: Self = Opened(-1);
    fn has_failed(&self) -> bool {
        self.0 < 0
    }
}

/// The count that fwrite(3) returns.
impl Failure for Opened<usize> {
    const FAILED: Self = Opened(0);
    fn has_failed(&self) -> bool {
        self.0 == 0
    }
}

impl<T> Failure for Opened<*mut T> {
    const FAILED: Self = Opened(std::ptr::null_mut());
    fn has_failed(&self) -> bool {
        self.0.is_null()
    }
}

/// The file behind a descriptor, if it is in the engine. errno stays as it is.
#[inline]
pub fn file(fd: c_int) -> Option<Mapped> {
    if !mapped() {
        return None;
    }
    let seen = Seen::of(fd);
    if seen.is_foreign() { None } else { ask(fd, seen) }
}

fn ask(fd: c_int, seen: Seen) -> Option<Mapped> {
    let before = errno();
    let found = kernel::facts_of(fd).and_then(|stat| {
        if !coherence::may_know(&stat) {
            seen.note_foreign();
            return None;
        }
        coherence::by_stat(&stat)
    });
    set_errno(before);
    found.map(|file| Mapped { file, seen })
}

/// A range of a file, as calls give it. Bytes.
#[derive(Clone, Copy)]
pub struct Span {
    offset: off_t,
    len: off_t,
}

impl Span {
    pub fn of(offset: off_t, len: off_t) -> Span {
        Span { offset, len }
    }

    /// From an offset to the file's end.
    pub fn from(offset: off_t) -> Span {
        Span { offset, len: off_t::MAX }
    }

    /// The range of bytes. It is empty for a negative offset, which the kernel will refuse.
    pub fn range(self) -> Range<u64> {
        let start = self.offset.max(0) as u64;
        if self.offset < 0 { 0..0 } else { start..start.saturating_add(self.len.max(0) as u64) }
    }
}

/// A descriptor's position; 0 if it has none.
pub(super) fn position_of(fd: c_int) -> off_t {
    // SAFETY: lseek(2) takes no memory.
    unsafe { next::lseek(fd, 0, libc::SEEK_CUR) }.max(0)
}

/// The length of a descriptor's file, bytes; 0 if it is not known.
pub(super) fn length_of(fd: c_int) -> off_t {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat(2) fills the structure, or leaves its zeros.
    unsafe {
        next::fstat(fd, stat.as_mut_ptr());
        stat.assume_init().st_size
    }
}

pub(super) fn appends(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no memory.
    unsafe { next::fcntl(fd, libc::F_GETFL, 0) & libc::O_APPEND != 0 }
}

fn total(window: &[iovec]) -> off_t {
    window.iter().map(|entry| entry.iov_len as off_t).sum()
}

/// The result of a failed call, with the engine's error in errno.
pub(super) fn refused<R: Failure>(error: i32) -> R {
    set_errno(error);
    R::FAILED
}

/// A file in the engine, and what was remembered of the descriptor that led to it.
pub struct Mapped {
    pub(super) file: MappedFile,
    seen: Seen,
}

impl Mapped {
    /// Whether the engine maps the file writable. If so, it also holds a lock on one byte of the file, where the file
    /// system has such locks (`store/one_writer.rs`).
    pub fn may_be_stored_to(&self) -> bool {
        self.file.may_be_stored_to()
    }

    /// Keeps other threads from moving the descriptor's position until the guard is dropped.
    fn position(&self) -> Position<'_> {
        match self.seen.description() {
            Some(description) => self.file.position_of(description),
            None => self.file.position(),
        }
    }

    /// Whether a read needs no preparation: there are no stores to write first, and no write can use this descriptor's
    /// position, which the read may move.
    fn may_read_anywhere(&self) -> bool {
        self.seen.reads_only() && !self.file.may_be_stored_to()
    }
}

/// A read, of any form, of a file that was in the engine a moment ago.
///
/// The file is looked up for each piece, and released before the piece is copied to the caller's memory. So a handler
/// that leaves the copy by longjmp(3) holds nothing, and munmap(2) of the file does not wait for the copy's page faults.
///
/// # Safety
/// The entries are valid, as for `exchange`.
pub unsafe fn read(
    fd: c_int,
    entries: *const iovec,
    count: usize,
    at: At,
    call: &mut dyn FnMut(&[iovec], off_t) -> isize,
) -> isize {
    let mut piece = |window: &[iovec], done: usize| {
        let Some(mapped) = file(fd) else { return call(window, at.after(done)) };
        if mapped.may_read_anywhere() {
            return call(window, at.after(done));
        }
        let before = errno();
        let _position = matches!(at, At::Position).then(|| mapped.position());
        let offset = match at {
            At::Position => position_of(fd),
            At::Offset(_) => at.after(done),
        };
        if let Err(error) = mapped.file.before_read(Span::of(offset, total(window)).range()) {
            return refused(error);
        }
        set_errno(before);
        call(window, at.after(done))
    };
    // SAFETY: the contract.
    unsafe { exchange(Way::In, Unit::Piece, entries, count, &mut piece) }
}

/// A write, of any form, to such a file. The file is looked up and released for each piece, as in `read`.
///
/// # Safety
/// The entries are valid, as for `exchange`.
pub unsafe fn write(
    fd: c_int,
    entries: *const iovec,
    count: usize,
    at: At,
    append: bool,
    call: &mut dyn FnMut(&[iovec], off_t) -> isize,
) -> isize {
    let append = append || appends(fd);
    let mut piece = |window: &[iovec], done: usize| {
        let Some(mapped) = file(fd) else { return call(window, at.after(done)) };
        let before = errno();
        let _position = match at {
            _ if append => Some(mapped.file.position()),
            At::Position => Some(mapped.position()),
            At::Offset(_) => None,
        };
        let offset = match at {
            // Linux appends, even if pwrite(2) gives an offset.
            _ if append => length_of(fd),
            At::Position => position_of(fd),
            At::Offset(_) => at.after(done),
        };
        let writing = match mapped.file.writing(Span::of(offset, total(window)).range()) {
            Ok(writing) => writing,
            Err(error) => return refused(error),
        };
        set_errno(before);
        let written = call(window, at.after(done));
        let after = errno();
        if written > 0 {
            // SAFETY: the window's entries are ordinary memory, which the call has read.
            unsafe { writing.written(offset as u64, window, written as usize) };
        } else {
            // SAFETY: the program's own call may have changed the file, even if it failed half-way. The bytes of kernel
            // mappings would have changed in the same way, so the program expects it.
            unsafe { writing.done() };
        }
        set_errno(after);
        written
    };
    // SAFETY: the contract.
    unsafe { exchange(Way::Out, Unit::Piece, entries, count, &mut piece) }
}

/// Called before the kernel reads a range of a file in any way. Stores to this range are written to the file. An error
/// shows at the next sync.
pub fn reading(fd: c_int, span: Span) {
    if let Some(Mapped { file, .. }) = file(fd) {
        let before = errno();
        let _ = file.before_read(span.range());
        set_errno(before);
    }
}

/// Called before a stream reads at most `len` bytes from its descriptor's position.
pub fn reading_here(fd: c_int, len: usize) {
    let before = errno();
    let start = position_of(fd);
    set_errno(before);
    reading(fd, Span::of(start, len as off_t));
}

/// A stream's write of up to `len` bytes. The stream may move its position back first, by up to `back` bytes.
pub fn writing_here<R: Failure>(fd: c_int, back: usize, len: usize, call: impl FnOnce() -> R) -> R {
    let Some(mapped) = file(fd) else { return call() };
    let before = errno();
    let appends = appends(fd);
    let _position = if appends { mapped.file.position() } else { mapped.position() };
    let here = if appends { length_of(fd) } else { position_of(fd) };
    set_errno(before);
    let start = here.saturating_sub_unsigned(back as u64).max(0);
    changing_file(&mapped.file, Span::of(start, here - start + len as off_t), call)
}

/// Makes a call that changes a range of a file in a way that only the kernel knows.
pub(super) fn changing<R: Failure>(fd: c_int, span: Span, call: impl FnOnce() -> R) -> R {
    let Some(Mapped { file, .. }) = file(fd) else { return call() };
    changing_file(&file, span, call)
}

pub(super) fn changing_file<R: Failure>(file: &MappedFile, span: Span, call: impl FnOnce() -> R) -> R {
    let before = errno();
    let writing = match file.writing(span.range()) {
        Ok(writing) => writing,
        Err(error) => return refused(error),
    };
    set_errno(before);
    let result = call();
    let after = errno();
    // SAFETY: the program's own call changed the file. The bytes of kernel mappings would have changed in the same way, so
    // the program expects it.
    unsafe { writing.done() };
    set_errno(after);
    result
}

fn resizing_file<R: Failure>(file: &MappedFile, len: off_t, call: impl FnOnce() -> R) -> R {
    let before = errno();
    let resizing = match file.resizing(len as u64) {
        Ok(resizing) => resizing,
        Err(error) => return refused(error),
    };
    set_errno(before);
    let result = call();
    let after = errno();
    if result.has_failed() {
        drop(resizing)
    } else {
        // SAFETY: the program's own call has succeeded, and set the length.
        unsafe { resizing.done() }
    }
    set_errno(after);
    result
}

/// ftruncate(2).
pub fn resizing(fd: c_int, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    match file(fd) {
        Some(Mapped { file, .. }) if len >= 0 => resizing_file(&file, len, call),
        _ => call(),
    }
}

/// The file at `path`, whose length a call is about to set, if the engine maps it. A file that is leased is converted to kernel mappings here
/// instead (`by_address::to_be_written`).
///
/// # Safety
/// `path` is a string in ordinary memory, or null.
unsafe fn named(folder: c_int, path: *const c_char) -> Option<MappedFile> {
    let before = errno();
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the contract. The structure is filled if the call returns 0.
    let found = unsafe {
        (next::fstatat(folder, path, stat.as_mut_ptr(), 0) == 0)
            .then(|| coherence::by_stat(stat.assume_init_ref()))
            .flatten()
    };
    let found = found.and_then(|file| undisturbed(None, || by_address::to_be_written(file)));
    set_errno(before);
    found
}

/// truncate(2).
///
/// # Safety
/// The path is a string in ordinary memory, or null.
pub unsafe fn resizing_path(path: *const c_char, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the contract.
    match mapped().then(|| unsafe { named(libc::AT_FDCWD, path) }).flatten() {
        Some(file) if len >= 0 => resizing_file(&file, len, call),
        _ => call(),
    }
}

/// Makes a call that opens a file. If the call empties the file, `emptied` is the file's folder and path.
///
/// # Safety
/// The path is a string in ordinary memory, or null.
pub unsafe fn emptying<R>(emptied: Option<(c_int, *const c_char)>, call: impl FnOnce() -> Opened<R>) -> R
where
    Opened<R>: Failure,
{
    let emptied = emptied.filter(|_| mapped());
    // SAFETY: the contract.
    match emptied.and_then(|(folder, path)| unsafe { named(folder, path) }) {
        Some(file) => resizing_file(&file, 0, call).0,
        None => call().0,
    }
}

/// fallocate(2).
pub fn allocating(fd: c_int, mode: c_int, offset: off_t, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    let Some(Mapped { file, .. }) = file(fd) else { return call() };
    if mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0 {
        // All bytes behind the offset move. If the file becomes shorter, the engine notices when a page past its end is
        // touched.
        return changing_file(&file, Span::from(offset), call);
    }
    let end = offset.saturating_add(len);
    if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
        // No byte that can be read changes, but the length may.
        return if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > length_of(fd) {
            resizing_file(&file, end, call)
        } else {
            call()
        };
    }
    changing_file(&file, Span::of(offset, len), call)
}

/// fsync(2) and fdatasync(2). The dirty pages of the file's maps are written first.
pub fn syncing(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if let Some(Mapped { file, .. }) = file(fd) {
        let before = errno();
        if let Err(error) = file.sync() {
            return refused(error);
        }
        set_errno(before);
    }
    call()
}

/// Called after a file was opened or locked. Waits, if only this program uses the file (`--own`), until the keeper of a process of it that has
/// ended has written what that stored.
#[inline]
pub fn await_keeper(fd: c_int) {
    if fd >= 0 && config().owns_files() {
        undisturbed((), || {
            if mappings::is_own(fd) && coherence::file(fd).is_none() {
                // SAFETY: the program's descriptor, open during its call.
                by_address::await_stores(unsafe { BorrowedFd::borrow_raw(fd) });
            }
        });
    }
}

/// Called before sync(2) and syncfs(2): writes the dirty pages of all maps.
pub fn save_all() {
    if mapped() {
        let before = errno();
        fastmap::by_address::save_all();
        set_errno(before);
    }
}
