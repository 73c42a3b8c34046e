//! What does a system call on a file do when the file is in the engine? What `fastmap::coherent` asks for before and after.
//!
//! Nothing of it touches a mapping: between taking a file's pages out of reach and letting them go signals are blocked, and
//! the calling thread would wait for itself. Buffers in mappings are copied before and after (`vectors.rs`).

use crate::bounce::{errno, set_errno};
use crate::files::At;
use crate::vectors::{MOST, Unit, Way, exchange};
use crate::{next, undisturbed};
use fastmap::calls;
use fastmap::coherent::{self, MappedFile};
use libc::{c_char, c_int, c_uint, iovec, off_t, size_t, ssize_t};
use std::mem::MaybeUninit;
use std::ops::Range;

/// A failed call's result.
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

/// Whether any file is in the engine.
#[inline]
pub fn any() -> bool {
    coherent::any()
}

/// The file behind a descriptor, if it is in the engine; errno stays.
#[inline]
pub fn file(fd: c_int) -> Option<Mapped> {
    if !any() {
        return None;
    }
    let before = errno();
    let found = coherent::file(fd);
    set_errno(before);
    found.map(Mapped)
}

/// A range of a file, as calls give it.
#[derive(Clone, Copy)]
pub struct Span {
    offset: off_t,
    len: off_t,
}

impl Span {
    pub fn of(offset: off_t, len: off_t) -> Span {
        Span { offset, len }
    }

    /// To the end.
    pub fn from(offset: off_t) -> Span {
        Span { offset, len: off_t::MAX }
    }

    /// Bytes; empty if it is none, which the kernel will say.
    fn range(self) -> Range<u64> {
        let start = self.offset.max(0) as u64;
        if self.offset < 0 { 0..0 } else { start..start.saturating_add(self.len.max(0) as u64) }
    }
}

/// Where a descriptor stands; 0 if it has no position.
fn position_of(fd: c_int) -> off_t {
    // SAFETY: a descriptor and numbers.
    unsafe { next::lseek(fd, 0, libc::SEEK_CUR) }.max(0)
}

/// The file's length.
fn length_of(fd: c_int) -> off_t {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a valid place, of zeros.
    unsafe {
        next::fstat(fd, stat.as_mut_ptr());
        stat.assume_init().st_size
    }
}

fn appends(fd: c_int) -> bool {
    // SAFETY: no memory.
    unsafe { next::fcntl(fd, libc::F_GETFL, 0) & libc::O_APPEND != 0 }
}

fn total(window: &[iovec]) -> off_t {
    window.iter().map(|entry| entry.iov_len as off_t).sum()
}

/// `result`, with errno as a failed engine call has it.
fn refused<R: Failure>(error: i32) -> R {
    set_errno(error);
    R::FAILED
}

/// A file in the engine.
pub struct Mapped(MappedFile);

/// A read of any form of a file that was in the engine a moment ago. The file is looked up for each piece, and let go before its
/// bytes are copied to the caller's memory: a handler that leaves that copy (longjmp(3)) leaves nothing behind, and who unmaps the
/// file waits for no memory.
///
/// # Safety
/// As `exchange`.
pub unsafe fn read(
    fd: c_int,
    entries: *const iovec,
    count: usize,
    at: At,
    call: &mut dyn FnMut(&[iovec], off_t) -> isize,
) -> isize {
    let mut piece = |window: &[iovec], done: usize| {
        let Some(Mapped(file)) = file(fd) else { return call(window, at.after(done)) };
        let before = errno();
        let _position = matches!(at, At::Position).then(|| file.position());
        let offset = match at {
            At::Position => position_of(fd),
            At::Offset(_) => at.after(done),
        };
        if let Err(error) = file.before_read(Span::of(offset, total(window)).range()) {
            return refused(error);
        }
        set_errno(before);
        call(window, at.after(done))
    };
    // SAFETY: the contract.
    unsafe { exchange(Way::In, Unit::Piece, entries, count, &mut piece) }
}

/// A write of any form, likewise.
///
/// # Safety
/// As `exchange`.
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
        let Some(Mapped(file)) = file(fd) else { return call(window, at.after(done)) };
        let before = errno();
        let _position = (append || matches!(at, At::Position)).then(|| file.position());
        let offset = match at {
            // Linux appends whatever offset pwrite(2) is given.
            _ if append => length_of(fd),
            At::Position => position_of(fd),
            At::Offset(_) => at.after(done),
        };
        let writing = match file.writing(Span::of(offset, total(window)).range()) {
            Ok(writing) => writing,
            Err(error) => return refused(error),
        };
        set_errno(before);
        let written = call(window, at.after(done));
        let after = errno();
        if written > 0 {
            // SAFETY: the window's entries are ordinary memory that the call has read.
            unsafe { writing.written(offset as u64, window, written as usize) };
        } else {
            // SAFETY: the program's own call, as with the kernel's mappings; it may have failed half-way.
            unsafe { writing.done() };
        }
        set_errno(after);
        written
    };
    // SAFETY: the contract.
    unsafe { exchange(Way::Out, Unit::Piece, entries, count, &mut piece) }
}

/// Before the kernel reads a range of a file in any way: what was stored there reaches the file. An error shows at the next
/// sync.
pub fn reading(fd: c_int, span: Span) {
    if let Some(Mapped(file)) = file(fd) {
        let before = errno();
        let _ = file.before_read(span.range());
        set_errno(before);
    }
}

/// A stream's read, of at most `len` bytes from where its descriptor stands.
pub fn reading_here(fd: c_int, len: usize) {
    let before = errno();
    let start = position_of(fd);
    set_errno(before);
    reading(fd, Span::of(start, len as off_t));
}

/// A stream's write of up to `len` bytes; it may go back by a buffer's length first.
pub fn writing_here<R: Failure>(fd: c_int, back: usize, len: usize, call: impl FnOnce() -> R) -> R {
    let Some(Mapped(file)) = file(fd) else { return call() };
    let before = errno();
    let _position = file.position();
    let here = if appends(fd) { length_of(fd) } else { position_of(fd) };
    set_errno(before);
    let start = here.saturating_sub_unsigned(back as u64).max(0);
    changing_file(&file, Span::of(start, here - start + len as off_t), call)
}

/// A call that changes a range of a file in ways that only the kernel knows.
fn changing<R: Failure>(fd: c_int, span: Span, call: impl FnOnce() -> R) -> R {
    let Some(Mapped(file)) = file(fd) else { return call() };
    changing_file(&file, span, call)
}

fn changing_file<R: Failure>(file: &MappedFile, span: Span, call: impl FnOnce() -> R) -> R {
    let before = errno();
    let writing = match file.writing(span.range()) {
        Ok(writing) => writing,
        Err(error) => return refused(error),
    };
    set_errno(before);
    let result = call();
    let after = errno();
    // SAFETY: the program's own call, as with the kernel's mappings.
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
        // SAFETY: likewise, and it has succeeded.
        unsafe { resizing.done() }
    }
    set_errno(after);
    result
}

/// ftruncate(2).
pub fn resizing(fd: c_int, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    match file(fd) {
        Some(Mapped(file)) if len >= 0 => resizing_file(&file, len, call),
        _ => call(),
    }
}

/// The file that a path names, to be cut, if it is in the engine and stays there.
///
/// # Safety
/// A string in ordinary memory, or null.
unsafe fn named(folder: c_int, path: *const c_char) -> Option<MappedFile> {
    let before = errno();
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the contract, and a valid place; filled if the call says so.
    let found = unsafe {
        (next::fstatat(folder, path, stat.as_mut_ptr(), 0) == 0)
            .then(|| coherent::by_stat(stat.assume_init_ref()))
            .flatten()
    };
    let found = found.and_then(|file| undisturbed(None, || calls::to_be_written(file)));
    set_errno(before);
    found
}

/// truncate(2).
///
/// # Safety
/// See `named`.
pub unsafe fn resizing_path(path: *const c_char, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the contract.
    match any().then(|| unsafe { named(libc::AT_FDCWD, path) }).flatten() {
        Some(file) if len >= 0 => resizing_file(&file, len, call),
        _ => call(),
    }
}

/// A call that opens a file, and empties it if it says which.
///
/// # Safety
/// See `named`.
pub unsafe fn emptying<R>(emptied: Option<(c_int, *const c_char)>, call: impl FnOnce() -> Opened<R>) -> R
where
    Opened<R>: Failure,
{
    let emptied = emptied.filter(|_| any());
    // SAFETY: the contract.
    match emptied.and_then(|(folder, path)| unsafe { named(folder, path) }) {
        Some(file) => resizing_file(&file, 0, call).0,
        None => call().0,
    }
}

/// What a call returned that says success otherwise: a descriptor, a stream, a count.
pub struct Opened<R>(pub R);

impl Failure for Opened<c_int> {
    const FAILED: Self = Opened(-1);
    fn has_failed(&self) -> bool {
        self.0 < 0
    }
}

/// fwrite(3): how many.
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

/// fallocate(2).
pub fn allocating(fd: c_int, mode: c_int, offset: off_t, len: off_t, call: impl FnOnce() -> c_int) -> c_int {
    let Some(Mapped(file)) = file(fd) else { return call() };
    if mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) != 0 {
        // All that follows moves. What is cut off at the end, the engine sees when it is touched.
        return changing_file(&file, Span::from(offset), call);
    }
    let end = offset.saturating_add(len);
    if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
        // Nothing that can be read changes, but the length may.
        return if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > length_of(fd) {
            resizing_file(&file, end, call)
        } else {
            call()
        };
    }
    changing_file(&file, Span::of(offset, len), call)
}

/// fsync(2) and fdatasync(2): of the maps first.
pub fn syncing(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if let Some(Mapped(file)) = file(fd) {
        let before = errno();
        if let Err(error) = file.sync() {
            return refused(error);
        }
        set_errno(before);
    }
    call()
}

/// sync(2).
pub fn save_all() {
    if any() {
        let before = errno();
        fastmap::calls::save_all();
        set_errno(before);
    }
}

/// Where a call with an offset argument reads or writes.
unsafe fn place(fd: c_int, offset: *const off_t) -> off_t {
    // SAFETY: null or the caller's offset, in ordinary memory by now.
    unsafe { offset.as_ref() }.copied().unwrap_or_else(|| position_of(fd))
}

/// sendfile(2), copy_file_range(2): from one descriptor to another, in pieces if one of them is in the engine.
///
/// # Safety
/// Offsets null or in ordinary memory.
pub unsafe fn copying(
    from: c_int,
    from_offset: *const off_t,
    to: c_int,
    to_offset: *const off_t,
    len: size_t,
    call: &mut dyn FnMut(size_t) -> ssize_t,
) -> ssize_t {
    let target = file(to);
    if target.is_none() && file(from).is_none() {
        return call(len);
    }
    let before = errno();
    let len = len.min(MOST);
    let mut done = 0;
    loop {
        let piece = (len - done).min(coherent::PIECE);
        // SAFETY: the contract.
        let moved = unsafe { copying_piece(from, from_offset, &target, to, to_offset, piece, call) };
        if moved < 0 {
            if done > 0 {
                set_errno(before);
                return done as ssize_t;
            }
            return moved;
        }
        done += moved as usize;
        if (moved as usize) < piece || done == len {
            return done as ssize_t;
        }
    }
}

unsafe fn copying_piece(
    from: c_int,
    from_offset: *const off_t,
    target: &Option<Mapped>,
    to: c_int,
    to_offset: *const off_t,
    len: size_t,
    call: &mut dyn FnMut(size_t) -> ssize_t,
) -> ssize_t {
    let before = errno();
    // Let go before the call, which may wait for a socket or a pipe: who unmaps the file waits for whoever has it.
    if let Some(Mapped(source)) = file(from) {
        // SAFETY: the contract.
        let start = unsafe { place(from, from_offset) };
        if let Err(error) = source.before_read(Span::of(start, len as off_t).range()) {
            return refused(error);
        }
    }
    let Some(Mapped(target)) = target else {
        set_errno(before);
        return call(len);
    };
    let _position = to_offset.is_null().then(|| target.position());
    // SAFETY: the contract.
    let start = if appends(to) { length_of(to) } else { unsafe { place(to, to_offset) } };
    set_errno(before);
    changing_file(target, Span::of(start, len as off_t), || call(len))
}

/// splice(2): as `copying`; but a pipe is waited for before pages are out of everybody's reach, since it may be this
/// program that fills it.
///
/// # Safety
/// Offsets null or in ordinary memory.
pub unsafe fn splicing(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let piece = |flags: c_uint| {
        let mut splice = |len: size_t| {
            // SAFETY: the contract.
            unsafe { next::splice(from, from_offset, to, to_offset, len, flags) }
        };
        // SAFETY: the contract.
        unsafe { copying(from, from_offset, to, to_offset, len.min(coherent::PIECE), &mut splice) }
    };
    if file(to).is_none() {
        return piece(flags);
    }
    loop {
        let moved = piece(flags | libc::SPLICE_F_NONBLOCK);
        if moved >= 0 || errno() != libc::EAGAIN || flags & libc::SPLICE_F_NONBLOCK != 0 {
            return moved;
        }
        // SAFETY: no memory; and one descriptor.
        unsafe {
            if next::fcntl(from, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 {
                return moved;
            }
            let mut pipe = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
            if next::poll(&mut pipe, 1, -1) < 0 {
                return -1;
            }
        }
    }
}

/// ioctl(2) FICLONE and FICLONERANGE: offset and length in the source, and where to.
pub fn cloning(from: c_int, to: c_int, range: Option<[i64; 3]>, call: impl FnOnce() -> c_int) -> c_int {
    let [start, len, at] = range.unwrap_or([0; 3]);
    let len = if len == 0 { off_t::MAX } else { len };
    reading(from, Span::of(start, len));
    changing(to, Span::of(at, len), call)
}
