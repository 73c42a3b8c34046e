//! Advice of ours that lies on mappings: in a list until it is gone.

use crate::PAGE;
use crate::observe::Mapping;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// A part of a file that has MADV_RANDOM from us at these addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub at: Range<u64>,
    offset: u64,
    device: (u64, u64),
    inode: u64,
}

impl Given {
    /// A part of a mapping.
    pub fn of(mapping: &Mapping, at: Range<u64>) -> Given {
        let offset = mapping.offset + at.start.saturating_sub(mapping.at.start);
        Given { at, offset, device: mapping.device, inode: mapping.inode }
    }

    /// As a mapping, to be advised.
    pub fn mapping(&self) -> Mapping {
        Mapping {
            at: self.at.clone(),
            offset: self.offset,
            device: self.device,
            inode: self.inode,
            is_shared: true,
            is_writable: false,
            path: String::new(),
            pages: (self.at.end - self.at.start) / PAGE,
            may_grow: false,
        }
    }

    /// The part of it that lies in a mapping now: the same bytes of the same file at the same addresses.
    pub fn within(&self, mapping: &Mapping) -> Option<Given> {
        let (start, end) = (self.at.start.max(mapping.at.start), self.at.end.min(mapping.at.end));
        let lies_there = |at: &Range<u64>, offset: u64| offset.wrapping_add(start.wrapping_sub(at.start));
        let is_same = start < end
            && self.is_of(mapping)
            && lies_there(&self.at, self.offset) == lies_there(&mapping.at, mapping.offset);
        is_same.then(|| Given::of(mapping, start..end))
    }

    /// Whether a mapping is of the same file.
    pub fn is_of(&self, mapping: &Mapping) -> bool {
        (self.device, self.inode) == (mapping.device, mapping.inode)
    }

    /// Whether a mapping elsewhere begins with the same bytes: mremap(2) takes advice along.
    pub fn has_moved_to(&self, mapping: &Mapping) -> bool {
        self.is_of(mapping) && self.offset == mapping.offset && self.at.start != mapping.at.start
    }

    /// The file: device and inode.
    pub fn file(&self) -> ((u64, u64), u64) {
        (self.device, self.inode)
    }
}

/// What tells a program from the one that its process executes next ([`Process::image`](crate::observe::Process::image)). A child of
/// fork(2) has its parent's.
pub type Image = (u64, u64);

/// All advice that watchers of related processes have given: a child of fork(2) inherits it with its parent's mappings.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<VecDeque<(Image, Given)>>>);

/// Entries that are kept: the last ones.
const ENTRIES: usize = 1024;

impl Ledger {
    /// `None` where the lock is held. In a child of fork(2) in which a library steers it may be, for good: by a thread of the parent.
    fn entries(&self) -> Option<MutexGuard<'_, VecDeque<(Image, Given)>>> {
        match self.0.try_lock() {
            Ok(entries) => Some(entries),
            Err(TryLockError::Poisoned(entries)) => Some(entries.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn note(&self, image: Image, given: &Given) {
        let Some(mut entries) = self.entries() else { return };
        if entries.iter().any(|(of, known)| *of == image && known == given) {
            return;
        }
        if entries.len() == ENTRIES {
            entries.pop_front();
        }
        entries.push_back((image, given.clone()));
    }

    /// The advice that was given to processes with this image.
    pub(super) fn of(&self, image: Image) -> Vec<Given> {
        let Some(entries) = self.entries() else { return Vec::new() };
        entries.iter().filter(|(of, _)| *of == image).map(|(_, given)| given.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(at: Range<u64>, offset: u64) -> Mapping {
        Given { at, offset, device: (8, 1), inode: 7 }.mapping()
    }

    #[test]
    fn advice_stays_where_the_same_bytes_are() {
        let given = Given::of(&mapping(0x10000..0x50000, 0x1000), 0x20000..0x40000);
        assert_eq!(given.offset, 0x11000);
        assert_eq!(given.within(&mapping(0x10000..0x50000, 0x1000)), Some(given.clone()));
        // Cut at both ends.
        let cut = given.within(&mapping(0x21000..0x30000, 0x12000)).unwrap();
        assert_eq!((cut.at.clone(), cut.offset), (0x21000..0x30000, 0x12000));
        // Other bytes of the file, another file, nothing.
        assert_eq!(given.within(&mapping(0x10000..0x50000, 0)), None);
        assert_eq!(given.within(&Mapping { inode: 8, ..mapping(0x10000..0x50000, 0x1000) }), None);
        assert_eq!(given.within(&mapping(0x40000..0x50000, 0x31000)), None);
        assert!(given.has_moved_to(&mapping(0x90000..0xa0000, 0x11000)));
    }

    #[test]
    fn a_ledger_has_the_last_entries_once_each() {
        let ledger = Ledger::default();
        for index in 0..2 * ENTRIES as u64 {
            let given = Given::of(&mapping(index << 20..(index + 1) << 20, 0), index << 20..(index + 1) << 20);
            ledger.note((1, index % 2), &given);
            ledger.note((1, index % 2), &given);
        }
        assert_eq!((ledger.of((1, 0)).len(), ledger.of((2, 0)).len()), (ENTRIES / 2, 0));
    }
}
