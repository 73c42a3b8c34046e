//! Kernel mappings of files that could be the engine's: a conversion made them, or the caller noted them. A program may have very many.
//!
//! The kernel's page cache and the engine's would be two copies of such a file. So while one of these mappings lives, new mappings of its file
//! are the kernel's as well.

use super::table::{intersection, rest};
use crate::sys::file::Identity;
use std::collections::BTreeMap;
use std::ops::Range;

/// The arguments of mmap(2) by which a program made a kernel mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The descriptor. The program may have closed it since.
    pub fd: i32,
    /// Offset in the file, bytes.
    pub offset: i64,
    /// `PROT_READ` and so on.
    pub prot: i32,
    /// `MAP_SHARED` and so on.
    pub flags: i32,
}

/// A mapping, or a part that is left of one.
#[derive(Debug, Clone, Copy)]
struct Noted {
    end: usize,
    file: Identity,
    /// How it was made, while it is whole and unchanged.
    made: Option<Made>,
}

/// The mappings.
#[derive(Debug, Default)]
pub struct KernelMappings {
    /// By start; no two overlap.
    pieces: BTreeMap<usize, Noted>,
    /// How many pieces each file has.
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
        let stays = |(start, one): (&usize, &Noted)| {
            one.file == identity && rest(&(*start..one.end), replaced).next().is_some()
        };
        self.files.contains_key(&identity) && (replaced.is_empty() || self.pieces.iter().any(stays))
    }

    /// The files that have any.
    pub fn files(&self) -> impl Iterator<Item = Identity> {
        self.files.keys().copied()
    }

    /// From the start of the first to the end of the last. Empty if there are none.
    pub fn bounds(&self) -> Range<usize> {
        let end = self.pieces.last_key_value().map_or(0, |(_, one)| one.end);
        self.pieces.first_key_value().map_or(usize::MAX, |(start, _)| *start)..end
    }

    /// Notes one, in the place of what was there.
    pub fn add(&mut self, at: Range<usize>, identity: Identity, made: Option<Made>) {
        self.forget(&at);
        self.insert(at, identity, made);
    }

    /// Whether any part of a range is in one.
    pub fn meets(&self, range: &Range<usize>) -> bool {
        self.last(range).is_some()
    }

    /// Notes that a range is protected otherwise than its mappings were made.
    pub fn protected(&mut self, range: &Range<usize>) {
        let start = self.last(&(range.start..range.start + 1)).map_or(range.start, |(at, _)| at.start);
        self.pieces.range_mut(start..range.end.max(start)).for_each(|(_, one)| one.made = None);
    }

    /// The file of the mapping of exactly this range and how it was made, if it is whole and its file's only one.
    pub fn alone(&self, range: &Range<usize>) -> Option<(Identity, Made)> {
        let one = self.pieces.get(&range.start).filter(|one| one.end == range.end)?;
        one.made.filter(|_| self.files.get(&one.file) == Some(&1)).map(|made| (one.file, made))
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
                None => self.insert(part, identity, None),
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

    fn insert(&mut self, at: Range<usize>, file: Identity, made: Option<Made>) {
        *self.files.entry(file).or_default() += 1;
        self.pieces.insert(at.start, Noted { end: at.end, file, made });
    }

    /// The last one that meets a range.
    fn last(&self, range: &Range<usize>) -> Option<(Range<usize>, Noted)> {
        let (&start, &one) = self.pieces.range(..range.end).next_back()?;
        (one.end > range.start).then_some((start..one.end, one))
    }

    /// Forgets what is in a range, all layers of it.
    pub fn forget(&mut self, range: &Range<usize>) {
        let cut: Vec<_> = self.layers.extract_if(.., |(at, _)| intersection(at, range).is_some()).collect();
        self.layers.extend(cut.into_iter().flat_map(|(at, file)| rest(&at, range).map(move |part| (part, file))));
        self.forget_lowest(range);
    }

    fn forget_lowest(&mut self, range: &Range<usize>) {
        while let Some((at, one)) = self.last(range) {
            self.pieces.remove(&at.start);
            if let Some(count) = self.files.get_mut(&one.file) {
                *count -= 1;
                if *count == 0 {
                    self.files.remove(&one.file);
                }
            }
            rest(&at, range).for_each(|part| self.insert(part, one.file, None));
        }
    }

    /// Notes that one was moved or has another length, or (`from` is empty, or it `stays`) is there once more.
    pub fn moved(&mut self, from: &Range<usize>, to: Range<usize>, stays: bool) {
        if let Some((at, one)) = self.last(&(from.start..from.end.max(from.start + 1))) {
            if !stays {
                self.forget(from);
            }
            self.add(to, one.file, one.made.filter(|_| at == *from));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGES: usize = 24;

    /// The files that are mapped at a page, the lowest layer first.
    type Layers = Vec<Identity>;

    /// A shadow: the layers of each page, and the mappings that are whole and unchanged.
    struct Shadow {
        pages: Vec<Layers>,
        made: Vec<(Range<usize>, Identity, Made)>,
    }

    impl Shadow {
        fn forget(&mut self, range: &Range<usize>) {
            self.pages[range.clone()].iter_mut().for_each(Vec::clear);
            self.made.retain(|(at, ..)| intersection(at, range).is_none());
        }

        fn has(&self, file: Identity, replaced: &Range<usize>) -> bool {
            (0..PAGES).any(|page| !replaced.contains(&page) && self.pages[page].first() == Some(&file))
        }
    }

    fn below(state: &mut u64, end: usize) -> usize {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) as usize % end
    }

    /// A whole mapping is a note: neighbours of one file are two, which the shadow counts, too.
    #[test]
    fn the_table_agrees_with_a_list_of_layers_for_each_page() {
        let files: Vec<_> = (0..3).map(|inode| Identity::from_numbers([1, inode])).collect();
        let mut random = 7;
        for _ in 0..300 {
            let mut table = KernelMappings::new();
            let mut shadow = Shadow { pages: vec![Vec::new(); PAGES], made: Vec::new() };
            for step in 0..60 {
                let start = below(&mut random, PAGES);
                let range = start..start + 1 + below(&mut random, PAGES - start);
                let file = files[below(&mut random, files.len())];
                match below(&mut random, 6) {
                    0 => {
                        let made = Made { fd: step, offset: 0, prot: 1, flags: 1 };
                        table.add(range.clone(), file, Some(made));
                        shadow.forget(&range);
                        shadow.pages[range.clone()].iter_mut().for_each(|layers| layers.push(file));
                        shadow.made.push((range, file, made));
                    }
                    1 => {
                        // All layers of a page are of one file.
                        shadow.forget(&range);
                        table.forget(&range);
                        for part in [range.clone(), range.start..range.end.min(range.start + 2)] {
                            table.add_layer(part.clone(), file);
                            shadow.pages[part].iter_mut().for_each(|layers| layers.push(file));
                        }
                    }
                    2 => {
                        let still = table.remove(&range);
                        shadow.made.retain(|(at, ..)| intersection(at, &range).is_none());
                        for page in range {
                            shadow.pages[page].pop();
                            let is_mapped = !shadow.pages[page].is_empty();
                            assert_eq!(
                                still.iter().any(|part| part.contains(&page)),
                                is_mapped,
                                "step {step}, page {page}"
                            );
                        }
                    }
                    3 => {
                        table.forget(&range);
                        shadow.forget(&range);
                    }
                    4 => {
                        table.protected(&range);
                        shadow.made.retain(|(at, ..)| intersection(at, &range).is_none());
                    }
                    _ if !shadow.made.is_empty() => {
                        let (from, file, made) = shadow.made[below(&mut random, shadow.made.len())].clone();
                        let stays = below(&mut random, 2) == 0;
                        if intersection(&from, &range).is_some() {
                            continue;
                        }
                        table.moved(&from, range.clone(), stays);
                        shadow.forget(&range);
                        if !stays {
                            shadow.forget(&from);
                        }
                        shadow.pages[range.clone()].iter_mut().for_each(|layers| layers.push(file));
                        shadow.made.push((range, file, made));
                    }
                    _ => {}
                }
                for file in &files {
                    assert_eq!(table.has(*file, &(0..0)), shadow.has(*file, &(0..0)), "step {step}");
                    assert_eq!(table.has(*file, &(3..9)), shadow.has(*file, &(3..9)), "step {step}");
                }
                for page in 0..PAGES {
                    let layers = &shadow.pages[page];
                    assert_eq!(table.is_layered(&(page..page + 1)), layers.len() > 1, "step {step}, page {page}");
                    assert!(layers.is_empty() || table.bounds().contains(&page));
                }
                for (at, file, made) in &shadow.made {
                    let others = |page: &usize| !at.contains(page) && shadow.pages[*page].first() == Some(file);
                    let found = table.alone(at);
                    assert!(found.is_none() || found == Some((*file, *made)));
                    assert_eq!(found.is_some(), !(0..PAGES).any(|page| others(&page)), "step {step}");
                }
            }
            table.forget(&(0..PAGES));
            assert!(table.bounds().is_empty() && files.iter().all(|file| !table.has(*file, &(0..0))));
        }
    }

    #[test]
    fn as_many_as_there_are_are_found() {
        let (one, other) = (Identity::from_numbers([1, 1]), Identity::from_numbers([1, 2]));
        let made = Made { fd: 3, offset: 0, prot: 1, flags: 1 };
        let mut table = KernelMappings::new();
        for page in 1..100_000 {
            table.add(page..page + 1, if page % 2 == 0 { one } else { other }, Some(made));
        }
        (4..100_000).for_each(|page| table.forget(&(page..page + 1)));
        assert!(table.alone(&(2..3)).is_some_and(|(file, _)| file == one));
        assert!(table.alone(&(1..2)).is_none() && table.has(other, &(1..2)), "there are two");
    }
}
