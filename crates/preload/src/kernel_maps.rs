//! Shared mappings that the kernel got although their file could have been the engine's: too small, executable, or of a kind
//! the engine does not serve.
//!
//! The kernel's page cache and the engine's would be two copies of such a file. So while one of these mappings lives, new ones
//! of its file go to the kernel as well. The exception is a program that maps a small file and lets the mapping grow with it
//! (mremap(2), as SQLite does): the only mapping of its file becomes the engine's when it becomes large.
//!
//! Room is fixed: nothing here may allocate, since munmap(2) is called by allocators.

use crate::guard::Quiet;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What tells files apart: device and inode, or a block device's number.
pub type Identity = (u64, u64);

/// A mapping, or what is left of one.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    pub start: usize,
    pub end: usize,
    pub file: Identity,
    /// How it was made, if it is whole and as it was then.
    pub made: Option<Made>,
}

/// The arguments of a mapping that matter later.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub fd: i32,
    pub offset: i64,
    pub prot: i32,
    pub flags: i32,
}

const MOST: usize = 2048;

struct Table {
    taken: AtomicBool,
    noted: UnsafeCell<[Noted; MOST]>,
    count: AtomicUsize,
    /// No address below or from these on is noted.
    low: AtomicUsize,
    high: AtomicUsize,
    /// There were more than there is room for: any file may have one.
    full: AtomicBool,
}

// SAFETY: `noted` is only touched by who has set `taken`.
unsafe impl Sync for Table {}

const NOTHING: Noted = Noted { start: 0, end: 0, file: (0, 0), made: None };

static TABLE: Table = Table {
    taken: AtomicBool::new(false),
    noted: UnsafeCell::new([NOTHING; MOST]),
    count: AtomicUsize::new(0),
    low: AtomicUsize::new(usize::MAX),
    high: AtomicUsize::new(0),
    full: AtomicBool::new(false),
};

/// The table in one thread's hands, which is not interrupted.
struct Open(#[expect(dead_code, reason = "dropped last")] Quiet);

impl Open {
    fn wait() -> Self {
        let quiet = Quiet::begin();
        while TABLE.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Open(quiet)
    }

    fn noted(&mut self) -> &mut [Noted] {
        // SAFETY: this thread has set `taken`, and there is one `Open` for that.
        unsafe { &mut (&mut *TABLE.noted.get())[..TABLE.count.load(Ordering::Relaxed)] }
    }

    /// False: there is no room.
    fn push(&mut self, one: Noted) -> bool {
        let count = TABLE.count.load(Ordering::Relaxed);
        let fits = count < MOST;
        if fits {
            TABLE.count.store(count + 1, Ordering::Relaxed);
            self.noted()[count] = one;
            TABLE.low.fetch_min(one.start, Ordering::Relaxed);
            TABLE.high.fetch_max(one.end, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        TABLE.taken.store(false, Ordering::Release);
    }
}

/// Whether a range may meet one: what most calls need to know.
#[inline]
pub fn may_meet(range: &Range<usize>) -> bool {
    TABLE.count.load(Ordering::Relaxed) != 0
        && range.start < TABLE.high.load(Ordering::Relaxed)
        && TABLE.low.load(Ordering::Relaxed) < range.end
}

/// Notes a new mapping.
pub fn note(range: Range<usize>, file: Identity, made: Made) {
    let one = Noted { start: range.start, end: range.end, file, made: Some(made) };
    if !Open::wait().push(one) {
        TABLE.full.store(true, Ordering::Relaxed);
    }
}

/// Notes a mapping that the engine has handed over to the kernel, unless it is known. The engine knows its file.
pub fn note_handed_over(range: Range<usize>) {
    let known = |one: &Noted| one.start <= range.start && range.end <= one.end;
    let mut open = Open::wait();
    let one = Noted { start: range.start, end: range.end, file: (0, 0), made: None };
    if !open.noted().iter().any(known) && !open.push(one) {
        TABLE.full.store(true, Ordering::Relaxed);
    }
}

/// A range is mapped no more, or otherwise.
#[inline]
pub fn forget(range: Range<usize>) {
    if may_meet(&range) {
        cut(range);
    }
}

#[cold]
fn cut(range: Range<usize>) {
    let mut open = Open::wait();
    let mut at = 0;
    while let Some(one) = open.noted().get(at).copied() {
        let before = Noted { end: one.end.min(range.start), made: None, ..one };
        let after = Noted { start: one.start.max(range.end), made: None, ..one };
        at += 1;
        match (before.start < before.end, after.start < after.end) {
            _ if one.end <= range.start || range.end <= one.start => {}
            (true, false) => open.noted()[at - 1] = before,
            (false, true) => open.noted()[at - 1] = after,
            // Where there is no room for a second part the whole stays noted, which is safe.
            (true, true) => {
                if open.push(after) {
                    open.noted()[at - 1] = before;
                }
            }
            (false, false) => {
                let noted = open.noted();
                noted.swap(at - 1, noted.len() - 1);
                TABLE.count.store(noted.len() - 1, Ordering::Relaxed);
                at -= 1;
            }
        }
    }
}

/// A range is protected otherwise than its mappings were made.
#[inline]
pub fn note_changed(range: Range<usize>) {
    if may_meet(&range) {
        let mut open = Open::wait();
        let meets = |one: &&mut Noted| one.start < range.end && range.start < one.end;
        open.noted().iter_mut().filter(meets).for_each(|one| one.made = None);
    }
}

/// Whether the kernel has, or may have, a shared mapping of a file.
pub fn any(file: Identity) -> bool {
    let none = TABLE.count.load(Ordering::Relaxed) == 0;
    TABLE.full.load(Ordering::Relaxed) || !none && Open::wait().noted().iter().any(|one| one.file == file)
}

/// The mapping that is just this range, if it is its file's only one.
pub fn alone(range: Range<usize>) -> Option<(Identity, Made)> {
    if !may_meet(&range) || TABLE.full.load(Ordering::Relaxed) {
        return None;
    }
    let mut open = Open::wait();
    let noted = open.noted();
    let one = *noted.iter().find(|one| one.start == range.start && one.end == range.end)?;
    let alone = noted.iter().filter(|other| other.file == one.file).count() == 1;
    one.made.filter(|_| alone).map(|made| (one.file, made))
}

/// A mapping has moved, has another length, or (`old` is empty) has been mapped once more.
pub fn moved(old: Range<usize>, new: Range<usize>, flags: i32) {
    let holds = |one: &&Noted| one.start <= old.start && old.start < one.end;
    let whole = |one: &Noted| one.start == old.start && one.end == old.end;
    let one =
        may_meet(&(old.start..old.end.max(old.start + 1))).then(|| Open::wait().noted().iter().find(holds).copied());
    let one = one.flatten().map(|one| Noted { made: one.made.filter(|_| whole(&one)), ..one });
    if flags & libc::MREMAP_DONTUNMAP == 0 {
        forget(old);
    }
    forget(new.clone());
    if let Some(one) = one
        && !Open::wait().push(Noted { start: new.start, end: new.end, ..one })
    {
        TABLE.full.store(true, Ordering::Relaxed);
    }
}

/// The table of a child made by fork(2): the thread that may have had it open there is not here.
pub fn in_child() {
    TABLE.taken.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_cut_and_forgotten() {
        let made = Made { fd: 3, offset: 0, prot: 1, flags: 1 };
        let (one, other) = ((1, 1), (1, 2));
        note(0x1000..0x5000, one, made);
        assert!(any(one) && !any(other));
        assert!(alone(0x1000..0x5000).is_some() && alone(0x1000..0x4000).is_none());
        note(0x7000..0x8000, one, made);
        assert!(alone(0x1000..0x5000).is_none());
        forget(0x6000..0x9000);
        note_changed(0x4fff..0x5000);
        assert!(alone(0x1000..0x5000).is_none() && any(one));
        // A hole in the middle leaves two parts.
        forget(0x2000..0x3000);
        note(0x9000..0xa000, other, made);
        forget(0x1000..0x2000);
        assert!(any(one));
        forget(0x3000..0x4000);
        assert!(any(one));
        forget(0x4000..0x5000);
        assert!(!any(one) && any(other));
        forget(0..usize::MAX);
        assert!(!any(other) && TABLE.count.load(Ordering::Relaxed) == 0);
        // More than there is room for: every file may have one.
        for page in 0..MOST + 1 {
            note(page * 4096..(page + 1) * 4096, one, made);
        }
        assert!(any(other) && alone(0..4096).is_none());
    }
}
