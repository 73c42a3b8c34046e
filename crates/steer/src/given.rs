//! Advice of ours that lies on mappings: in a list until it is gone.

use crate::PAGE;
use crate::act::{Advice, Hand, Made};
use crate::observe::Mapping;
use crate::sampler::Samples;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

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

/// All advice of ours that lies on a program's mappings.
#[derive(Debug)]
pub struct OurAdvice {
    list: Vec<Given>,
    /// Bytes of advice that the program lets nobody take back any more.
    stays: u64,
    /// Advice that related watchers have given, and what tells this program in it.
    ledger: Ledger,
    image: Image,
    /// Whether inherited advice was looked for.
    has_inherited: bool,
}

/// For so long advice is tried to be given, until a thread can be stopped. A look at single touches is of use only at once.
const GIVING: Duration = Duration::from_millis(40);

impl OurAdvice {
    pub fn new(ledger: Ledger, image: Image) -> OurAdvice {
        OurAdvice { list: Vec::new(), stays: 0, ledger, image, has_inherited: false }
    }

    /// Whether inherited advice has still to be looked for.
    pub fn may_inherit(&self) -> bool {
        !self.has_inherited && !self.ledger.of(self.image).is_empty()
    }

    /// In how many parts it lies.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Bytes that have it, and those from which it cannot be taken back.
    pub fn bytes(&self) -> u64 {
        self.stays + self.list.iter().map(|given| given.at.end - given.at.start).sum::<u64>()
    }

    /// Whether it lies on a mapping.
    pub fn is_on(&self, mapping: &Mapping) -> bool {
        self.list.iter().any(|given| given.within(mapping).is_some())
    }

    /// Gives MADV_RANDOM. Returns whether a part of the mapping has it now.
    pub fn give(&mut self, mapping: &Mapping, samples: &mut dyn Samples, hand: &mut dyn Hand) -> bool {
        let until = samples.now() + GIVING;
        loop {
            match hand.advise(mapping, Advice::Random) {
                Made::Given(parts) => {
                    for given in parts.into_iter().map(|part| Given::of(mapping, part)) {
                        self.ledger.note(self.image, &given);
                        self.list.push(given);
                    }
                    return self.is_on(mapping);
                }
                Made::NotNow if samples.now() < until => samples.sleep(GIVING / 40),
                Made::NotNow | Made::Refused => return false,
            }
        }
    }

    /// Takes back what is not wanted any more. Returns whether none of that is left.
    pub fn take_back(
        &mut self,
        is_wanted: impl Fn(&Given) -> bool,
        samples: &mut dyn Samples,
        hand: &mut dyn Hand,
    ) -> bool {
        let (wanted, others): (Vec<Given>, Vec<Given>) =
            std::mem::take(&mut self.list).into_iter().partition(is_wanted);
        self.list = wanted;
        if others.is_empty() {
            return true;
        }
        let ranges: Vec<Range<u64>> = others.iter().map(|given| given.at.clone()).collect();
        let Some(flags) = samples.flags(&ranges) else {
            self.list.extend(others);
            return false;
        };
        // Where it is gone the program has given advice of its own, or has unmapped the file.
        let mut is_done = true;
        for (given, _) in others.into_iter().zip(flags).filter(|(_, flags)| flags.random) {
            match hand.advise(&given.mapping(), Advice::Normal) {
                Made::Given(_) => {}
                Made::NotNow => {
                    is_done = false;
                    self.list.push(given);
                }
                Made::Refused => self.stays += given.at.end - given.at.start,
            }
        }
        is_done
    }

    /// Looks where our advice lies by now. `known`: where mappings began at the last look that are gone, or were there before.
    pub fn find(&mut self, known: &[u64], samples: &mut dyn Samples) {
        if !self.has_inherited {
            self.has_inherited = true;
            self.list.extend(self.ledger.of(self.image));
        } else if self.list.is_empty() {
            return;
        }
        let mut found: Vec<Given> = Vec::new();
        for given in std::mem::take(&mut self.list) {
            let (device, inode) = given.file();
            let mapped = samples.mappings_of(device, inode);
            // All of a mapping of the kernel's has the same advice, also where it has grown meanwhile (mremap(2)).
            let stays = mapped.iter().filter(|mapping| given.within(mapping).is_some());
            let stays: Vec<Given> = stays.map(|mapping| Given::of(mapping, mapping.at.clone())).collect();
            if stays.is_empty() {
                let is_new = |mapping: &&Mapping| given.has_moved_to(mapping) && !known.contains(&mapping.at.start);
                let moved = mapped.iter().filter(is_new);
                found.extend(moved.map(|mapping| Given::of(mapping, mapping.at.clone())));
            }
            found.extend(stays);
        }
        found.sort_by_key(|given| given.at.start);
        found.dedup();
        // What has no advice (any more) is not ours.
        let ranges: Vec<Range<u64>> = found.iter().map(|given| given.at.clone()).collect();
        let flags = if found.is_empty() { Some(Vec::new()) } else { samples.flags(&ranges) };
        let Some(flags) = flags else {
            self.list = found;
            return;
        };
        self.list = found.into_iter().zip(flags).filter(|(_, flags)| flags.random).map(|(given, _)| given).collect();
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

    fn note(&self, image: Image, given: &Given) {
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
    fn of(&self, image: Image) -> Vec<Given> {
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
