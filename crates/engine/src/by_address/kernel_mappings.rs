//! Kernel mappings of files that have no maps in the cache, by where they begin, and how many each file has. There may
//! be very many.

use super::table::{intersection, rest};
use crate::sys::file::Identity;
use std::collections::BTreeMap;
use std::ops::Range;

/// The mappings.
#[derive(Debug, Default)]
pub struct KernelMappings {
    /// End and file, by start; no two overlap.
    pieces: BTreeMap<usize, (usize, Identity)>,
    files: BTreeMap<Identity, usize>,
    /// Ranges that the program has mapped once more: the maps that were converted had the same addresses.
    layers: Vec<(Range<usize>, Identity)>,
}

impl KernelMappings {
    pub const fn new() -> Self {
        KernelMappings { pieces: BTreeMap::new(), files: BTreeMap::new(), layers: Vec::new() }
    }

    /// Whether a file has one outside `replaced`.
    pub fn has(&self, identity: Identity, replaced: &Range<usize>) -> bool {
        let stays = |(start, (end, file)): (&usize, &(usize, Identity))| {
            *file == identity && rest(&(*start..*end), replaced).next().is_some()
        };
        self.files.contains_key(&identity) && (replaced.is_empty() || self.pieces.iter().any(stays))
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

    /// Notes one where the same bytes may be mapped already; such a part is to be unmapped once more.
    pub fn add_layer(&mut self, at: Range<usize>, identity: Identity) {
        let mut bare = vec![at.clone()];
        while let Some(part) = bare.pop() {
            match self.last(&part) {
                Some((below, _)) => {
                    self.layers.push((part.start.max(below.start)..part.end.min(below.end), identity));
                    bare.extend(rest(&part, &below));
                }
                None => self.insert(part, identity),
            }
        }
    }

    /// Whether any part of a range is mapped more than once.
    pub fn is_layered(&self, range: &Range<usize>) -> bool {
        self.layers.iter().any(|(at, _)| intersection(at, range).is_some())
    }

    /// Takes one layer of a range away, and returns the parts of it that others still map.
    pub fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut wanted = vec![range.clone()];
        let mut still = Vec::new();
        for place in (0..self.layers.len()).rev() {
            let (at, identity) = self.layers[place].clone();
            let cut: Vec<_> = wanted.iter().filter_map(|part| intersection(&at, part)).collect();
            if cut.is_empty() {
                continue;
            }
            let without = |parts: Vec<Range<usize>>| {
                cut.iter().fold(parts, |left, part| left.iter().flat_map(|from| rest(from, part)).collect())
            };
            wanted = without(wanted);
            let left = without(vec![at]).into_iter().map(|at| (at, identity));
            self.layers.splice(place..place + 1, left);
            still.extend(cut);
        }
        wanted.iter().for_each(|part| self.forget_lowest(part));
        still
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

    /// Forgets what is in a range, all layers of it.
    pub fn forget(&mut self, range: &Range<usize>) {
        let cut: Vec<_> = self.layers.extract_if(.., |(at, _)| intersection(at, range).is_some()).collect();
        self.layers.extend(cut.into_iter().flat_map(|(at, file)| rest(&at, range).map(move |part| (part, file))));
        self.forget_lowest(range);
    }

    fn forget_lowest(&mut self, range: &Range<usize>) {
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

    /// Notes that one was moved or has another length, or (`from` is empty, or it `stays`) is there once more.
    pub fn moved(&mut self, from: &Range<usize>, to: Range<usize>, stays: bool) {
        if let Some((_, identity)) = self.last(&(from.start..from.end.max(from.start + 1))) {
            if !stays {
                self.forget(from);
            }
            self.add(to, identity);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn layers_go_one_by_one() {
        let (file, other) = (Identity::from_numbers([1, 1]), Identity::from_numbers([1, 2]));
        let mut kernels = KernelMappings::new();
        kernels.add_layer(0x1000..0x5000, file);
        kernels.add_layer(0x3000..0x7000, file);
        assert!(kernels.is_layered(&(0x4000..0x5000)) && !kernels.is_layered(&(0x5000..0x7000)));
        assert!(kernels.has(file, &(0..0)) && kernels.has(file, &(0x1000..0x5000)) && !kernels.has(file, &(0..0x8000)));
        assert!(kernels.remove(&(0x1000..0x5000)).into_iter().eq(std::iter::once(0x3000..0x5000)));
        assert!(!kernels.is_layered(&(0..0x8000)) && kernels.has(file, &(0..0)));
        assert!(kernels.remove(&(0x3000..0x7000)).is_empty() && !kernels.has(file, &(0..0)));
        // A new mapping takes the place of all layers.
        kernels.add_layer(0x1000..0x3000, file);
        kernels.add_layer(0x1000..0x3000, file);
        kernels.add(0x1000..0x2000, other);
        assert!(kernels.is_layered(&(0x2000..0x3000)) && !kernels.is_layered(&(0x1000..0x2000)));
        kernels.moved(&(0x1000..0x2000), 0x9000..0xa000, false);
        assert!(!kernels.has(other, &(0x9000..0xa000)) && kernels.has(other, &(0x1000..0x2000)));
        kernels.forget(&(0..usize::MAX));
        assert!(!kernels.has(file, &(0..0)) && !kernels.has(other, &(0..0)) && !kernels.is_layered(&(0..0xffff)));
    }
}
