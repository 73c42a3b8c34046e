//! The table of maps by address: which addresses are mapped to which parts of which files.
//!
//! All maps of a file have the same addresses for the same pages, so entries of one file may overlap: they lie in
//! layers, as many as there are maps, and each unmapping takes one layer away.

use super::keep::{Locked, PinKey, Pins};
use super::kernel_mappings::KernelMappings;
use crate::files::closing;
use crate::map::mapping::pages;
use crate::region::region::Region;
use crate::sys::engine_fd::EngineFd;
use crate::sys::file::{self, Birth, Identity};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A map's share in a file's region, given back when dropped: outside the table's lock, since that may write pages.
#[derive(Debug)]
pub struct Share {
    pub region: Arc<Region>,
    pub identity: Identity,
    /// A descriptor of the file, if the program's may write and the map was made to be read: mprotect(2) may ask for stores later.
    pub writer: Option<EngineFd<File>>,
    /// The program's descriptor may write, and what is stored to the map is the file's.
    pub may_write: bool,
    /// No other process may store to the file through a cache meanwhile, once this map may be stored to.
    pub one_writer: bool,
    /// `MAP_SHARED` or `MAP_PRIVATE`. A private map is only read, and has its addresses to itself; before it may be stored to, the file is
    /// converted.
    pub kind: i32,
}

impl Share {
    /// The descriptor by which the kernel maps the file in place of the engine. It is the engine's own, and may write if the program's may.
    pub fn descriptor(&self) -> Option<RawFd> {
        let [reading, writing, ..] = self.region.store().descriptors();
        let writing = || writing.or(self.writer.as_ref().map(|file| file.as_raw_fd()));
        self.may_write.then(writing).flatten().or(reading)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        closing::detach(self.identity, self.region.clone(), true);
    }
}

/// A contiguous part of a map.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Its addresses.
    pub at: Range<usize>,
    /// As mmap(2) has it: `PROT_READ`, perhaps with `PROT_WRITE`.
    pub prot: i32,
    /// Left out of children (`MADV_DONTFORK`).
    pub not_in_children: bool,
    pub share: Arc<Share>,
}

impl Piece {
    /// Whether it is of an object, which the kernel cannot map.
    pub fn is_objects(&self) -> bool {
        self.share.region.store().origin().is_some()
    }

    /// The pages of the file that it covers.
    pub fn pages(&self) -> Range<usize> {
        let region = &self.share.region;
        region.address().page_at(self.at.start)..region.address().page_at(self.at.end - 1) + 1
    }
}

/// The table says which addresses are of which files. It has the maps made by address, and the kernel mappings that have to agree with them. Kernel
/// mappings lie in layers where the maps did that were converted. Direct mappings are kernel mappings here; their flushes find them in
/// `direct/table.rs`.
#[derive(Debug, Default)]
pub struct Table {
    pieces: Vec<Piece>,
    pub locked: Vec<Locked>,
    pub pins: BTreeMap<PinKey, Pins>,
    pub kernel_mappings: KernelMappings,
    /// Files that are the kernel's for good, with the time each was made: children have them mapped, they are locked as a whole, or are stored to where that is not to be cached.
    left: BTreeMap<Identity, Birth>,
    /// Files that children have as kernel mappings, which were there at a fork(2). Of one that is gone a later file may have the number: it is
    /// left to the kernel for nothing.
    inherited: BTreeSet<Identity>,
}

/// The result of taking a layer away.
#[derive(Debug, Default)]
pub struct Removed {
    /// The pieces taken away.
    pub pieces: Vec<Piece>,
    /// Parts of them that no other piece covers, with the region.
    pub bare: Vec<(Arc<Share>, Range<usize>)>,
    /// Locks that went with them.
    pub locked: Vec<Locked>,
}

pub fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// `from` without `without`.
pub fn rest(from: &Range<usize>, without: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let parts =
        [from.start..without.start.clamp(from.start, from.end), without.end.clamp(from.start, from.end)..from.end];
    parts.into_iter().filter(|part| !part.is_empty())
}

impl Table {
    pub const fn new() -> Self {
        Table {
            pieces: Vec::new(),
            locked: Vec::new(),
            pins: BTreeMap::new(),
            kernel_mappings: KernelMappings::new(),
            left: BTreeMap::new(),
            inherited: BTreeSet::new(),
        }
    }

    pub fn add(&mut self, piece: Piece) {
        piece.share.region.extents().add(piece.pages());
        self.pieces.push(piece);
    }

    /// Takes back the piece that was added last, which could not be protected.
    pub fn take_back(&mut self) {
        if let Some(piece) = self.pieces.pop() {
            piece.share.region.extents().remove(&piece.pages());
        }
    }

    /// Every piece that meets a range, with what it has of it; the newest first.
    pub fn meeting<'a>(&'a self, range: &'a Range<usize>) -> impl Iterator<Item = (&'a Piece, Range<usize>)> + 'a {
        self.pieces.iter().rev().filter_map(|piece| Some((piece, intersection(&piece.at, range)?)))
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Takes `rest` away from a piece, in this layer only.
    pub fn shrink(&mut self, piece: &Piece, rest: &Range<usize>) -> Removed {
        let kept = piece.at.start..rest.start;
        let after = rest.end..piece.at.end;
        self.replace(piece, [kept, after]);
        let mut removed = Removed::default();
        removed.pieces.push(Piece { at: rest.clone(), ..piece.clone() });
        self.find_bare(&mut removed);
        removed
    }

    /// Makes the part `from` of a piece reach over `to` instead, which begins where it does.
    pub fn grow(&mut self, piece: &Piece, from: &Range<usize>, to: Range<usize>) {
        let (before, after) = (piece.at.start..from.start, from.end..piece.at.end);
        self.replace(piece, [before, to, after]);
    }

    /// Puts pieces in the place of one; empty ones are left out.
    fn replace(&mut self, piece: &Piece, parts: impl IntoIterator<Item = Range<usize>>) {
        let same = |one: &Piece| one.at == piece.at && Arc::ptr_eq(&one.share, &piece.share);
        if let Some(place) = self.pieces.iter().rposition(same) {
            let extents = piece.share.region.extents();
            extents.remove(&piece.pages());
            let parts = parts.into_iter().filter(|at| !at.is_empty()).map(|at| Piece { at, ..piece.clone() });
            let parts: Vec<_> = parts.inspect(|part| extents.add(part.pages())).collect();
            self.pieces.splice(place..place + 1, parts);
        }
    }

    /// Applies `change` to the parts of pieces that lie in a range.
    fn change(&mut self, range: &Range<usize>, change: impl Fn(&mut Piece)) {
        for piece in self.meeting(range).map(|(piece, _)| piece.clone()).collect::<Vec<_>>() {
            let part = intersection(&piece.at, range).unwrap_or_default();
            self.replace(&piece, [part.clone(), piece.at.start..part.start, part.end..piece.at.end]);
            let here = |one: &&mut Piece| one.at == part && Arc::ptr_eq(&one.share, &piece.share);
            self.pieces.iter_mut().filter(here).for_each(&change);
        }
        self.join();
    }

    /// Joins pieces of one map that adjoin and are alike, as the kernel does: mremap(2) takes one at a time.
    fn join(&mut self) {
        let mut at = 0;
        while let Some(piece) = self.pieces.get(at).cloned() {
            let follows = |one: &Piece| {
                one.at.start == piece.at.end
                    && one.prot == piece.prot
                    && one.not_in_children == piece.not_in_children
                    && Arc::ptr_eq(&one.share, &piece.share)
            };
            let Some(next) = self.pieces.iter().position(follows) else {
                at += 1;
                continue;
            };
            let extents = piece.share.region.extents();
            extents.remove(&self.pieces[next].pages());
            extents.remove(&piece.pages());
            self.pieces[at].at.end = self.pieces[next].at.end;
            extents.add(self.pieces[at].pages());
            self.pieces.remove(next);
            at -= usize::from(next < at);
        }
    }

    /// Sets the protection of a range, in all layers, since their addresses are the same.
    pub fn set_protection(&mut self, range: &Range<usize>, prot: i32) {
        self.change(range, |piece| piece.prot = prot);
    }

    /// Sets whether children get a range.
    pub fn set_in_children(&mut self, range: &Range<usize>, in_children: bool) {
        self.change(range, |piece| piece.not_in_children = !in_children);
    }

    /// Whether a file is the kernel's: left to it for good, or with a kernel mapping outside `replaced`.
    pub fn is_kernels(&self, identity: Identity, replaced: &Range<usize>) -> bool {
        self.left.contains_key(&identity) || self.kernel_mappings.has(identity, replaced)
    }

    /// Called before fork(2): the child has the kernel mappings that are there now, also once they are gone here.
    pub fn note_inherited(&mut self) {
        self.inherited.extend(self.kernel_mappings.files());
    }

    /// Whether a child may have a kernel mapping of a file, which would not show what is stored to the engine's pages, nor they what it stores.
    pub fn is_inherited(&self, identity: Identity) -> bool {
        self.inherited.contains(&identity)
    }

    /// Whether any part of a range is mapped so: `MAP_SHARED` or `MAP_PRIVATE`.
    pub fn has_kind(&self, range: &Range<usize>, kind: i32) -> bool {
        self.meeting(range).any(|(piece, _)| piece.share.kind == kind)
    }

    /// Leaves all maps of a file that are yet to come to the kernel.
    pub fn leave_to_kernel(&mut self, identity: Identity) {
        let of_file = |piece: &&Piece| piece.share.identity == identity;
        let birth = self.pieces.iter().find(of_file).map(|piece| file::birth(piece.share.region.store().reader()));
        if let Some(birth) = birth {
            self.left.insert(identity, birth);
        }
    }

    /// Called before a file is mapped. A file of the same number that was left to the kernel earlier is not there any more, and is forgotten.
    pub fn meet(&mut self, from: &File, identity: Identity) {
        if self.left.get(&identity).is_some_and(|birth| *birth != file::birth(from)) {
            self.left.remove(&identity);
        }
    }

    /// Notes that a file's maps have become the kernel's; their shares are the caller's to drop.
    pub fn make_kernels(&mut self, identity: Identity) -> Vec<Arc<Share>> {
        let mut shares = Vec::new();
        for piece in self.pieces.extract_if(.., |piece| piece.share.identity == identity) {
            self.kernel_mappings.add_layer(piece.at, identity);
            shares.push(piece.share);
        }
        shares
    }

    /// The parts of a range that pieces cover (true), and those between them, in order and without overlap.
    pub fn parts(&self, range: &Range<usize>) -> Vec<(Range<usize>, bool)> {
        let mut covered: Vec<_> = self.meeting(range).map(|(_, part)| part).collect();
        covered.sort_by_key(|part| part.start);
        let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
        let mut at = range.start;
        for part in covered {
            if part.end <= at {
                continue;
            }
            if part.start > at {
                parts.push((at..part.start, false));
                at = part.start;
            }
            match parts.last_mut() {
                Some((last, true)) if last.end == at => last.end = part.end,
                _ => parts.push((at..part.end, true)),
            }
            at = part.end;
        }
        if at < range.end {
            parts.push((at..range.end, false));
        }
        parts
    }

    /// The newest map that reaches from the start of a range to its end, and of which parts in between have been unmapped. It goes before a
    /// whole map: nobody can tell which of several the program means, and a whole map serves all of them.
    fn with_holes(&self, range: &Range<usize>) -> Option<Arc<Share>> {
        let parts_of = |share| self.pieces.iter().filter(move |piece: &&Piece| Arc::ptr_eq(&piece.share, share));
        let reaches_over = |share| {
            let start = parts_of(share).map(|piece| piece.at.start).min();
            let end = parts_of(share).map(|piece| piece.at.end).max();
            (start, end) == (Some(range.start), Some(range.end)) && parts_of(share).nth(1).is_some()
        };
        self.pieces.iter().rev().map(|piece| &piece.share).find(|share| reaches_over(share)).cloned()
    }

    /// Takes one layer of a range away, or all of them. Of several layers a map of just this range goes first (one with holes before one
    /// without), then the newest.
    pub fn remove(&mut self, range: &Range<usize>, all_layers: bool) -> Removed {
        let mut removed = Removed::default();
        let exact = self.pieces.iter().rposition(|piece| piece.at == *range);
        if let (Some(_), Some(share), false) = (exact, self.with_holes(range), all_layers) {
            removed.pieces = self.pieces.extract_if(.., |piece| Arc::ptr_eq(&piece.share, &share)).collect();
            removed.pieces.iter().for_each(|piece| share.region.extents().remove(&piece.pages()));
        } else if let (Some(place), false) = (exact, all_layers) {
            let piece = self.pieces.remove(place);
            piece.share.region.extents().remove(&piece.pages());
            removed.pieces.push(piece);
        } else {
            let mut wanted = vec![range.clone()];
            for place in (0..self.pieces.len()).rev() {
                let piece = self.pieces[place].clone();
                let cut: Vec<_> = wanted.iter().filter_map(|part| intersection(&piece.at, part)).collect();
                if cut.is_empty() {
                    continue;
                }
                let mut left = vec![piece.at.clone()];
                for part in &cut {
                    left = left.iter().flat_map(|from| rest(from, part)).collect();
                    if !all_layers {
                        wanted = wanted.iter().flat_map(|from| rest(from, part)).collect();
                    }
                    removed.pieces.push(Piece { at: part.clone(), ..piece.clone() });
                }
                let extents = piece.share.region.extents();
                extents.remove(&piece.pages());
                let left: Vec<_> = left.into_iter().map(|at| Piece { at, ..piece.clone() }).collect();
                left.iter().for_each(|piece| extents.add(piece.pages()));
                self.pieces.splice(place..place + 1, left);
            }
        }
        self.find_bare(&mut removed);
        removed
    }

    /// Adds to `removed` the parts that are left bare, and the locks and pins there.
    fn find_bare(&mut self, removed: &mut Removed) {
        for piece in &removed.pieces {
            let bare = self.parts(&piece.at).into_iter().filter(|(_, covered)| !covered);
            removed.bare.extend(bare.map(|(part, _)| (piece.share.clone(), part)));
        }
        for (_, bare) in &removed.bare {
            removed.locked.extend(self.unlock(bare));
            for pins in self.pins.values_mut() {
                removed.locked.extend(pins.holds.extract_if(.., |one| intersection(&one.at, bare).is_some()));
            }
        }
    }

    /// Whether part of a range may not be stored to.
    pub fn forbids_stores(&self, range: &Range<usize>) -> bool {
        self.meeting(range).any(|(piece, _)| piece.prot & libc::PROT_WRITE == 0)
    }

    /// The protection of each part of a range: the union of what its layers allow.
    pub fn protections(&self, range: &Range<usize>) -> Vec<(Range<usize>, i32)> {
        let mut cuts: Vec<_> = self.meeting(range).flat_map(|(_, part)| [part.start, part.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let runs = cuts.windows(2).map(|ends| ends[0]..ends[1]);
        let allowed = |run: Range<usize>| {
            let mut here = self.meeting(&run).map(|(piece, _)| piece.prot).peekable();
            here.peek()?;
            let all = here.fold(0, |all, prot| all | prot);
            Some((run.clone(), all))
        };
        runs.filter_map(allowed).collect()
    }
}

/// The pages that a range of addresses of a region touches.
pub fn pages_at(region: &Region, range: &Range<usize>) -> Range<usize> {
    pages(range.start - region.address().start() as usize, range.len())
}
