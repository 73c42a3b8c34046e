//! Reads and writes of any length, through ordinary memory.
//!
//! A call is made in windows. A window is one real call, of as many of the call's bytes as a buffer takes. Bytes that
//! lie in an engine mapping are copied. Other bytes stay where they are.
//!
//! * Sometimes the length of a call means something: on datagrams, packets and terminals, and in reads of pipes. Then
//!   the window is the whole call.
//! * Calls on files, and writes to pipes and stream sockets, are split into windows of a buffer of the set. The windows go on
//!   until a real call is short. The kernel would have done the same bytes in one call.

use super::{Buffer, CHUNK, held};
use crate::next;
use crate::own::{PAGE, errno, set_errno};
use fastmap::coherence::PIECE;
use libc::{c_int, c_void, iovec};
use std::mem::MaybeUninit;

/// The most bytes that Linux reads or writes in a call.
pub const MOST: usize = 0x7fff_f000;
/// Copies of fewer bytes need no alignment, since direct I/O is never that short.
const SECTOR: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The call fills memory.
    In,
    /// The call reads memory.
    Out,
}

/// The number of bytes in one window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// As many as a buffer takes, if a call on this descriptor may be split; otherwise the whole call.
    Descriptor(c_int),
    /// As many as a buffer takes, but no more than `PIECE`, since their pages may be out of reach meanwhile
    /// (`files/coherence.rs`).
    Piece,
    /// The whole call.
    Call,
    /// The whole call, in memory that the kernel may go on reading afterwards.
    KeptCall,
}

/// One entry of a window's real call. `memory` is `user` if nothing is copied.
#[derive(Clone, Copy)]
struct Copied {
    user: *mut u8,
    memory: *mut u8,
    len: usize,
}

/// Room for a number of `T`: on the stack for up to 16, else in a buffer.
struct List<T> {
    few: [MaybeUninit<T>; 16],
    many: Option<Buffer>,
    used: usize,
    most: usize,
}

impl<T: Copy> List<T> {
    fn new(count: usize) -> Option<List<T>> {
        let few = [const { MaybeUninit::uninit() }; 16];
        if count <= few.len() {
            return Some(List { most: few.len(), few, many: None, used: 0 });
        }
        Some(List { few, many: Some(Buffer::new(count * size_of::<T>())?), used: 0, most: count })
    }

    fn start(&self) -> *const T {
        self.many.as_ref().map_or(self.few.as_ptr().cast(), |buffer| buffer.start().cast_const().cast())
    }

    fn push(&mut self, item: T) {
        let start: *mut T = self.many.as_ref().map_or(self.few.as_mut_ptr().cast(), |buffer| buffer.start().cast());
        assert!(self.used < self.most);
        // SAFETY: `used` is below `most`, so the item is inside the room.
        unsafe { start.add(self.used).write(item) };
        self.used += 1;
    }

    fn items(&self) -> &[T] {
        // SAFETY: the first `used` items have been written.
        unsafe { std::slice::from_raw_parts(self.start(), self.used) }
    }
}

/// Whether any byte of the entries' buffers, or of the array of entries, is in memory of the engine.
///
/// # Safety
/// There are `count` valid entries, as for readv(2).
pub unsafe fn any_held(entries: *const iovec, count: usize) -> bool {
    if held(entries, count.saturating_mul(size_of::<iovec>())) {
        return true;
    }
    // SAFETY: the contract.
    (0..count).any(|index| unsafe {
        let entry = entries.add(index).read();
        held(entry.iov_base, entry.iov_len)
    })
}

/// Makes `call` once for each window, with ordinary memory in place of engine mappings. `call` gets the window's entries
/// and the number of bytes in the windows before. It returns what readv(2) returns, and this function returns the same.
/// Without memory for the copies it returns -1, with ENOMEM in errno.
///
/// # Safety
/// There are `count` valid entries, 1024 at most, as for readv(2) or writev(2).
pub unsafe fn exchange(
    way: Way,
    unit: Unit,
    entries: *const iovec,
    count: usize,
    call: &mut dyn FnMut(&[iovec], usize) -> isize,
) -> isize {
    let before = errno();
    let mut few: MaybeUninit<[u64; 128]> = MaybeUninit::uninit();
    // SAFETY: the contract.
    let Some(mut windows) = (unsafe { Windows::new(way, unit, entries, count, &mut few) }) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let mut done = 0;
    loop {
        // SAFETY: the contract.
        let bytes = unsafe { windows.fill(done) };
        let moved = call(windows.entries.items(), done);
        let after = errno();
        if moved < 0 {
            set_errno(if done > 0 { before } else { after });
            return if done > 0 { done as isize } else { moved };
        }
        // SAFETY: the contract.
        unsafe { windows.hand_back((moved as usize).min(bytes)) };
        set_errno(after);
        done += moved as usize;
        if (moved as usize) < bytes || windows.is_at_end() || done >= MOST {
            return done as isize;
        }
    }
}

/// A call that is made in windows.
struct Windows {
    way: Way,
    /// The program's entries.
    given: *const iovec,
    count: usize,
    /// The first byte that no window has had: an entry, and an offset in it.
    index: usize,
    within: usize,
    /// The most bytes in a window.
    most: usize,
    /// Ordinary memory for copies, and its length.
    memory: *mut u8,
    room: usize,
    /// Keeps `memory`, unless that is the caller's.
    _buffer: Option<Buffer>,
    /// The window: the entries of its real call, and where their bytes belong.
    entries: List<iovec>,
    copies: List<Copied>,
}

impl Windows {
    /// Copies lie in `few`, if they fit and the kernel does not keep them. `None`: there is no memory.
    ///
    /// # Safety
    /// As for [`exchange`]; `few` outlives the windows.
    unsafe fn new(
        way: Way,
        unit: Unit,
        given: *const iovec,
        count: usize,
        few: &mut MaybeUninit<[u64; 128]>,
    ) -> Option<Windows> {
        let needed = (0..count)
            // SAFETY: the contract. The array itself may lie in an engine mapping: a plain load of it traps and is served.
            .map(|index| unsafe { given.add(index).read() })
            .filter(|entry| held(entry.iov_base, entry.iov_len))
            .fold(0, |sum: usize, entry| {
                let len = entry.iov_len.min(MOST);
                sum.saturating_add(if len < SECTOR { len } else { len + PAGE })
            });
        let whole = match unit {
            Unit::Descriptor(fd) => needed <= CHUNK + PAGE || !may_split(fd, way),
            Unit::Piece => needed <= CHUNK + PAGE,
            Unit::Call | Unit::KeptCall => true,
        };
        let room = if whole { needed } else { CHUNK + PAGE };
        let buffer = match unit {
            Unit::KeptCall => Some(Buffer::unshared(room)?),
            _ if needed <= size_of_val(few) => None,
            _ => Some(Buffer::new(room)?),
        };
        Some(Windows {
            way,
            given,
            count,
            index: 0,
            within: 0,
            most: if unit == Unit::Piece { PIECE } else { MOST },
            memory: buffer.as_ref().map_or(few.as_mut_ptr().cast(), Buffer::start),
            room,
            _buffer: buffer,
            entries: List::new(count)?,
            copies: List::new(count)?,
        })
    }

    /// Makes the next window, behind `done` bytes. Returns its length in bytes.
    ///
    /// # Safety
    /// As for [`exchange`].
    unsafe fn fill(&mut self, done: usize) -> usize {
        (self.entries.used, self.copies.used) = (0, 0);
        let (mut used, mut bytes) = (0usize, 0);
        while !self.is_at_end() && done + bytes < MOST && bytes < self.most {
            // SAFETY: the contract.
            let entry = unsafe { self.given.add(self.index).read() };
            let user = entry.iov_base.cast::<u8>().wrapping_add(self.within);
            let left = (entry.iov_len - self.within).min(MOST - done - bytes).min(self.most - bytes);
            let mut take = left;
            let mut place = user;
            if held(user, left) {
                // The copy has the same offset in its page as the original: direct I/O needs the alignment that the
                // program gave it.
                let start = if left < SECTOR { used } else { used.next_multiple_of(PAGE) + user.addr() % PAGE };
                take = left.min(self.room.saturating_sub(start));
                if take == 0 && left > 0 {
                    break;
                }
                place = self.memory.wrapping_add(start);
                used = start + take;
                if self.way == Way::Out {
                    // SAFETY: the contract; the place is inside the buffer.
                    unsafe { user.copy_to_nonoverlapping(place, take) };
                }
            }
            self.entries.push(iovec { iov_base: place.cast(), iov_len: take });
            self.copies.push(Copied { user, memory: place, len: take });
            bytes += take;
            self.within += take;
            if self.within == entry.iov_len {
                (self.index, self.within) = (self.index + 1, 0);
            } else if take < left {
                break;
            }
        }
        bytes
    }

    /// Copies what the real call read, `moved` bytes, to where the program wants it.
    ///
    /// # Safety
    /// As for [`exchange`].
    unsafe fn hand_back(&self, moved: usize) {
        let mut left = moved;
        for copied in self.copies.items() {
            let len = copied.len.min(left);
            if self.way == Way::In && copied.memory != copied.user {
                // SAFETY: the contract.
                unsafe { copied.memory.copy_to_nonoverlapping(copied.user, len) };
            }
            left -= len;
        }
    }

    fn is_at_end(&self) -> bool {
        self.index == self.count
    }
}

/// Whether a call on this descriptor may be split into several: a call on a file or block device, or a write to a pipe or
/// stream socket.
fn may_split(fd: c_int, way: Way) -> bool {
    let before = errno();
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat(2) fills the structure that it is given.
    if unsafe { next::fstat(fd, stat.as_mut_ptr()) } != 0 {
        set_errno(before);
        return false;
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let answer = match unsafe { stat.assume_init() }.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => true,
        // SAFETY: F_GETFL takes no memory.
        libc::S_IFIFO => way == Way::Out && unsafe { next::fcntl(fd, libc::F_GETFL, 0) } & libc::O_DIRECT == 0,
        libc::S_IFSOCK => way == Way::Out && is_stream(fd),
        _ => false,
    };
    set_errno(before);
    answer
}

fn is_stream(fd: c_int) -> bool {
    let mut kind: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let kind_at = std::ptr::from_mut(&mut kind).cast::<c_void>();
    // SAFETY: both places are local, and `len` is the length of the first.
    let result = unsafe { next::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, kind_at, &mut len) };
    result == 0 && kind == libc::SOCK_STREAM
}
