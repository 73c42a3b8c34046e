//! Shared kernel mappings of files that could have been the engine's: they were too small, executable, or of a kind
//! that it does not serve.
//!
//! The kernel's page cache and the engine's would be two copies of such a file. So while one of these mappings lives,
//! new mappings of its file are the kernel's as well. The exception is a program that maps a small file and lets the
//! mapping grow with it (mremap(2), as SQLite does): the only mapping of its file becomes the engine's when it becomes
//! large.

use crate::own::guard::Guarded;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file's identity: device and inode, or a block device's number.
pub type Identity = (u64, u64);

/// The arguments of a mapping that matter later.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub fd: i32,
    pub offset: i64,
    pub prot: i32,
    pub flags: i32,
}

/// A mapping, or what is left of one.
#[derive(Clone, Copy)]
struct Noted {
    end: usize,
    /// All zeros: the mapping was converted, and the engine knows the file.
    file: Identity,
    /// The arguments it was made with, while it is whole and unchanged.
    made: Option<Made>,
}

/// The mappings by first address, without overlap, and how many there are of each file.
pub struct Table {
    noted: BTreeMap<usize, Noted>,
    files: BTreeMap<Identity, usize>,
}

pub static TABLE: Guarded<Table> = Guarded::new(Table { noted: BTreeMap::new(), files: BTreeMap::new() });

/// How many mappings are noted, the lowest address ever noted, and the one past the highest.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOW: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGH: AtomicUsize = AtomicUsize::new(0);

impl Table {
    fn add(&mut self, range: Range<usize>, file: Identity, made: Option<Made>) {
        LOW.fetch_min(range.start, Ordering::Relaxed);
        HIGH.fetch_max(range.end, Ordering::Relaxed);
        *self.files.entry(file).or_default() += 1;
        self.noted.insert(range.start, Noted { end: range.end, file, made });
        COUNT.store(self.noted.len(), Ordering::Relaxed);
    }

    fn remove(&mut self, start: usize) {
        let Some(one) = self.noted.remove(&start) else { return };
        if let Some(count) = self.files.get_mut(&one.file) {
            *count -= 1;
            if *count == 0 {
                self.files.remove(&one.file);
            }
        }
        COUNT.store(self.noted.len(), Ordering::Relaxed);
    }

    /// The last one that meets a range.
    fn last(&self, range: &Range<usize>) -> Option<(Range<usize>, Noted)> {
        let (&start, &one) = self.noted.range(..range.end).next_back()?;
        (one.end > range.start).then_some((start..one.end, one))
    }

    /// Removes a range; parts of mappings outside of it stay.
    fn cut(&mut self, range: &Range<usize>) {
        while let Some((at, one)) = self.last(range) {
            self.remove(at.start);
            if at.end > range.end {
                self.add(range.end..at.end, one.file, None);
            }
            if at.start < range.start {
                return self.add(at.start..range.start, one.file, None);
            }
        }
    }
}

/// Whether a range may meet a noted mapping: three loads, which is all that most calls need.
#[inline]
pub fn may_meet(range: &Range<usize>) -> bool {
    COUNT.load(Ordering::Relaxed) != 0
        && range.start < HIGH.load(Ordering::Relaxed)
        && LOW.load(Ordering::Relaxed) < range.end
}

/// Notes a new mapping.
pub fn note(range: Range<usize>, file: Identity, made: Made) {
    TABLE.with(|table| {
        table.cut(&range);
        table.add(range, file, Some(made));
    });
}

/// Notes a mapping that the engine has converted to a kernel mapping, where it is not noted yet. The engine knows its
/// file.
pub fn note_converted(range: Range<usize>) {
    TABLE.with(|table| {
        let mut end = range.end;
        while range.start < end {
            let last = table.last(&(range.start..end)).map_or(range.start..range.start, |(at, _)| at);
            if last.end < end {
                table.add(last.end..end, (0, 0), None);
            }
            end = last.start;
        }
    });
}

/// Forgets a range that was unmapped, or mapped otherwise.
#[inline]
pub fn forget(range: Range<usize>) {
    if may_meet(&range) {
        TABLE.with(|table| table.cut(&range));
    }
}

/// Notes that a range is protected otherwise than its mappings were made.
#[inline]
pub fn note_changed(range: Range<usize>) {
    if may_meet(&range) {
        TABLE.with(|table| {
            let start = table.last(&(range.start..range.start + 1)).map_or(range.start, |(at, _)| at.start);
            table.noted.range_mut(start..range.end.max(start)).for_each(|(_, one)| one.made = None);
        });
    }
}

/// Whether the kernel has a shared mapping of a file.
pub fn any(file: Identity) -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && TABLE.with(|table| table.files.contains_key(&file))
}

/// The mapping of exactly this range, if it is its file's only one.
pub fn alone(range: Range<usize>) -> Option<(Identity, Made)> {
    if !may_meet(&range) {
        return None;
    }
    TABLE.with(|table| {
        let one = table.noted.get(&range.start).filter(|one| one.end == range.end)?;
        one.made.filter(|_| table.files.get(&one.file) == Some(&1)).map(|made| (one.file, made))
    })
}

/// Notes that a mapping has moved, has another length, or (`old` is empty) has been mapped a second time.
pub fn moved(old: Range<usize>, new: Range<usize>, flags: i32) {
    let first = old.start..old.start + 1;
    if !may_meet(&(old.start..old.end.max(first.end))) && !may_meet(&new) {
        return;
    }
    TABLE.with(|table| {
        let found = table.last(&first);
        if flags & libc::MREMAP_DONTUNMAP == 0 {
            table.cut(&old);
        }
        table.cut(&new);
        if let Some((at, one)) = found {
            table.add(new, one.file, one.made.filter(|_| at == old));
        }
    });
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
        // A converted range is noted around what is known.
        note_converted(0x8000..0xc000);
        assert!(any((0, 0)) && TABLE.with(|table| table.noted.len()) == 5);
        forget(0x8000..0x9000);
        forget(0xa000..0xd000);
        assert!(!any((0, 0)) && alone(0x9000..0xa000).is_some());
        forget(0x1000..0x2000);
        assert!(any(one));
        forget(0x3000..0x4000);
        assert!(any(one));
        forget(0x4000..0x5000);
        assert!(!any(one) && any(other));
        forget(0..usize::MAX);
        assert!(!any(other) && COUNT.load(Ordering::Relaxed) == 0);
        // As many as there are, and each is found.
        for page in 1..100_000 {
            note(page * 4096..(page + 1) * 4096, if page % 2 == 0 { one } else { other }, made);
        }
        moved(2 * 4096..3 * 4096, 2 * 4096..4 * 4096, 0);
        (4..100_000).for_each(|page| forget(page * 4096..(page + 1) * 4096));
        assert_eq!(alone(2 * 4096..4 * 4096).map(|(file, _)| file), Some(one));
        assert!(alone(4096..2 * 4096).is_some_and(|(file, _)| file == other) && any(one));
        moved(4096..2 * 4096, 7 * 4096..9 * 4096, 0);
        assert!(alone(7 * 4096..9 * 4096).is_some_and(|(file, _)| file == other));
        forget(0..usize::MAX);
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
    }
}
