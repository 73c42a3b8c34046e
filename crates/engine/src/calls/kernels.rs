//! Kernel mappings of files whose maps are all the kernel's, by where they begin, and how many each file has. There may be very
//! many.

use super::table::rest;
use crate::sys::file::Identity;
use std::collections::BTreeMap;
use std::ops::Range;

/// The mappings, none over another.
#[derive(Debug, Default)]
pub struct Kernels {
    /// End and file, by start.
    pieces: BTreeMap<usize, (usize, Identity)>,
    files: BTreeMap<Identity, usize>,
}

impl Kernels {
    pub const fn new() -> Self {
        Kernels { pieces: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Whether a file has one.
    pub fn has(&self, identity: Identity) -> bool {
        self.files.contains_key(&identity)
    }

    /// Their addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Range<usize>> {
        self.pieces.iter().map(|(start, (end, _))| *start..*end)
    }

    /// Notes one, in the place of what was there.
    pub fn add(&mut self, at: Range<usize>, identity: Identity) {
        self.forget(&at);
        self.insert(at, identity);
    }

    fn insert(&mut self, at: Range<usize>, identity: Identity) {
        *self.files.entry(identity).or_default() += 1;
        self.pieces.insert(at.start, (at.end, identity));
    }

    /// The last one that meets a range.
    fn last(&self, range: &Range<usize>) -> Option<(Range<usize>, Identity)> {
        let (start, (end, identity)) = self.pieces.range(..range.end).next_back()?;
        (*end > range.start).then_some((*start..*end, *identity))
    }

    /// Forgets what is in a range.
    pub fn forget(&mut self, range: &Range<usize>) {
        while let Some((at, identity)) = self.last(range) {
            self.pieces.remove(&at.start);
            if let Some(count) = self.files.get_mut(&identity) {
                *count -= 1;
                if *count == 0 {
                    self.files.remove(&identity);
                }
            }
            rest(&at, range).for_each(|part| self.insert(part, identity));
        }
    }

    /// Notes that one was moved or has another length.
    pub fn moved(&mut self, from: &Range<usize>, to: Range<usize>) {
        if let Some((_, identity)) = self.last(from) {
            self.forget(from);
            self.add(to, identity);
        }
    }
}
