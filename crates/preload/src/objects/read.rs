//! Reads of objects. The bytes are brought into the local copy, read from there, and checked before the program uses them.

use super::Object;
use crate::copy::{Buffer, CHUNK, MOST, held};
use crate::next;
use crate::own::{PAGE, errno, set_errno};
use fastmap::Origin;
use libc::{c_int, iovec, off_t, ssize_t};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The most bytes that are brought and checked in one piece.
const PIECE: u64 = 1 << 20;
/// How far ahead of a program that reads forward its object is asked for, bytes: at first, and at most.
const WINDOW: Range<u64> = 1 << 20..16 << 20;

/// How a call reads.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    /// `None`: at the descriptor's position.
    pub offset: Option<off_t>,
    /// False: the call fails with EAGAIN rather than wait (RWF_NOWAIT).
    pub waits: bool,
}

/// read(2) and its kin on the descriptor of an object.
///
/// # Safety
/// There are `count` valid entries, as for readv(2).
pub(crate) unsafe fn read(object: &Object, fd: c_int, entries: *const iovec, count: usize, how: Read) -> ssize_t {
    let before = errno();
    // SAFETY: the contract.
    match unsafe { moved(object, fd, entries, count, how) } {
        Ok(done) => {
            set_errno(before);
            done as ssize_t
        }
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

unsafe fn moved(object: &Object, fd: c_int, entries: *const iovec, count: usize, how: Read) -> Result<usize, c_int> {
    // SAFETY: the contract. The array itself may lie in a mapping: a plain load of it traps and is served.
    let entry = |index: usize| unsafe { entries.add(index).read() };
    let all = (0..count).fold(0, |sum: usize, index| sum.saturating_add(entry(index).iov_len));
    let len = (all.min(MOST) as u64).min(object.len);
    let place = match how.offset {
        Some(offset) => u64::try_from(offset).map_err(|_| libc::EINVAL)?,
        // The position moves before the read. So several readers, in other processes too, each get bytes of their own.
        None => move_position(fd, len as off_t)? - len,
    };
    let end = (place + len).min(object.len).max(place);
    let mut done = 0;
    let result = if !how.waits && !object.origin.has(place..end) {
        Err(libc::EAGAIN)
    } else {
        object.expect(place..end);
        let mut parts = (0..count).map(entry);
        loop {
            let Some(part) = parts.next().filter(|_| place + done < end) else { break Ok(()) };
            let take = (end - place - done).min(part.iov_len as u64);
            // SAFETY: the contract.
            match unsafe { fill(object, fd, place + done, part.iov_base.cast(), take) } {
                Ok(()) => done += take,
                Err(error) => break Err(error),
            }
        }
    };
    if how.offset.is_none() && done < len {
        let _ = move_position(fd, -((len - done) as off_t));
    }
    if done > 0 { Ok(done as usize) } else { result.map(|()| 0) }
}

fn move_position(fd: c_int, by: off_t) -> Result<u64, c_int> {
    // SAFETY: lseek takes no memory.
    let position = unsafe { next::lseek(fd, by, libc::SEEK_CUR) };
    u64::try_from(position).map_err(|_| errno())
}

/// Reads all of a range of an object, by a descriptor of its local copy. Whole pages go straight into the caller's memory. Parts of pages, and
/// everything for memory in a mapping, go through a buffer.
///
/// # Safety
/// There are `len` bytes at `to`; the range is within the object.
pub(crate) unsafe fn fill(object: &Object, fd: c_int, offset: u64, to: *mut u8, len: u64) -> Result<(), c_int> {
    let page_of = |offset: u64| offset & !(PAGE as u64 - 1);
    let end = offset + len;
    let whole_end = if end == object.len { end } else { page_of(end) };
    let mut buffer = None;
    let mut at = offset;
    while at < end {
        let into = to.wrapping_add((at - offset) as usize);
        let page = page_of(at);
        let is_held = held(into, (end - at) as usize);
        if page == at && at < whole_end && !is_held {
            let piece = (whole_end - at).min(PIECE);
            // SAFETY: the contract.
            match unsafe { object.pages(fd, at, into, piece) } {
                // The caller's memory has become the engine's meanwhile.
                Err(libc::EFAULT) if held(into, (end - at) as usize) => {}
                done => {
                    done?;
                    at += piece;
                }
            }
            continue;
        }
        let buffer = match &buffer {
            Some(buffer) => buffer,
            None => buffer.insert(Buffer::new(CHUNK).ok_or(libc::ENOMEM)?),
        };
        let most = if is_held { CHUNK as u64 } else { PAGE as u64 };
        let stop = end.min(page + most);
        let span = stop.next_multiple_of(PAGE as u64).min(object.len) - page;
        // SAFETY: the buffer has a chunk; the contract.
        unsafe {
            object.pages(fd, page, buffer.start(), span)?;
            buffer.start().add((at - page) as usize).copy_to_nonoverlapping(into, (stop - at) as usize);
        }
        at = stop;
    }
    Ok(())
}

/// Asks for a range of an object, and does not wait (posix_fadvise(2), readahead(2)). Without a length the range ends with the object.
pub(crate) fn ask(object: &Object, offset: off_t, len: off_t) {
    let start = (offset.max(0) as u64).min(object.len);
    let end = if len <= 0 { object.len } else { start.saturating_add(len as u64).min(object.len) };
    if start < end {
        object.origin.ask(start..end);
    }
}

impl Object {
    /// Reads from a page's start to a page's end, or to the object's, and checks the bytes.
    ///
    /// # Safety
    /// There are `len` bytes at `to`.
    unsafe fn pages(&self, fd: c_int, offset: u64, to: *mut u8, len: u64) -> Result<(), c_int> {
        // SAFETY: the contract. The slice has only the bytes that the call has filled.
        self.origin.read(offset..offset + len, &mut || unsafe {
            let got = next::pread64(fd, to.cast(), len as usize, offset as off_t);
            let filled = usize::try_from(got).map_err(|_| errno())?;
            Ok(std::slice::from_raw_parts(to, filled))
        })
    }

    /// Called before a read. If the read goes on where the last one ended, the bytes behind it are asked for, further ahead each time.
    fn expect(&self, range: Range<u64>) {
        if self.ends.swap(range.end, Ordering::Relaxed) != range.start {
            self.window.store(0, Ordering::Relaxed);
            return self.asked.store(range.end, Ordering::Relaxed);
        }
        let window = self.window.load(Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Relaxed).max(range.end);
        // Not for each read: only when no more than half of the window is left ahead.
        if range.end + window / 2 < asked || asked >= self.len {
            return;
        }
        let window = (window * 2).clamp(WINDOW.start, WINDOW.end);
        let wanted = (range.end + window).min(self.len);
        self.window.store(window, Ordering::Relaxed);
        self.asked.store(wanted, Ordering::Relaxed);
        self.origin.ask(asked..wanted);
    }
}
