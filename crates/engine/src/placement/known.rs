//! What is known of the mappings that are looked after: which files the program has mapped, and what it asked for them.

use super::asked::{Asked, What, overlap};
use crate::by_address;
use crate::sys::file::{self, Identity};
use crate::sys::lock::Guarded;
use crate::sys::maps::FileMapping;
use std::ops::Range;

/// Files that are remembered; what is more stays as it is.
const MOST: usize = 4096;

/// A file that the program mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noted {
    pub(super) identity: Identity,
    /// The program's descriptor may write.
    pub(super) may_write: bool,
    /// When: it may be in no older list of mappings.
    pub(super) at_note: u64,
    /// What the engine said to it.
    pub(super) unfit: bool,
    /// Asked for by name: what the engine has of it stays.
    pub(super) kept: bool,
    pub(super) busy: u32,
}

struct Known {
    files: Vec<Noted>,
    asked: Asked,
    /// Counts what is noted.
    notes: u64,
    /// Calls that move mappings now, and the count when the last ended.
    moving: usize,
    moved_at: u64,
}

static KNOWN: Guarded<Known> =
    Guarded::new(Known { files: Vec::new(), asked: Asked::new(), notes: 0, moving: 0, moved_at: 0 });

/// Notes that a file is mapped, anew or again.
pub(super) fn note(identity: Identity, may_write: bool) {
    KNOWN.with(|known| {
        known.notes += 1;
        let at_note = known.notes;
        if let Some(one) = known.files.iter_mut().find(|one| one.identity == identity) {
            one.may_write |= may_write;
            one.at_note = at_note;
        } else if known.files.len() < MOST {
            known.files.push(Noted { identity, may_write, at_note, unfit: false, kept: false, busy: 0 });
        }
    });
}

/// Notes what the program asks for a range. Before it does: ours comes before that, or not at all.
pub(super) fn note_asked(at: Range<usize>, what: What) {
    KNOWN.with(|known| {
        known.notes += 1;
        known.asked.ask(at, what, known.notes);
    });
}

/// Notes that the program takes its advice on a range back; whether anything is to be learnt there now.
pub(super) fn take_back(at: &Range<usize>) -> bool {
    KNOWN.with(|known| known.asked.take_back(at))
}

/// Forgets what was asked of what lay in a range before.
pub(super) fn forget_asked(at: &Range<usize>) {
    KNOWN.with(|known| known.asked.forget(at));
}

/// What lies in one range is about to lie in another, and until the end of that no list says where.
pub(super) fn begin_move() {
    KNOWN.with(|known| known.moving += 1);
}

/// It does now, or could not be moved.
pub(super) fn end_move(moved: Option<(&Range<usize>, &Range<usize>)>) {
    KNOWN.with(|known| {
        known.moving -= 1;
        known.notes += 1;
        known.moved_at = known.notes;
        if let Some((from, to)) = moved {
            known.asked.moved(from, to);
        }
    });
}

/// Has `advise` called with what of a range has no advice.
pub(super) fn learn(at: &Range<usize>, advise: impl Fn(&Range<usize>)) {
    KNOWN.with(|known| known.asked.learn(at).iter().for_each(advise));
}

/// Has `advise` called with what has our advice, of what is `chosen`, and is to have it no more.
pub(super) fn unlearn(chosen: impl Fn(&Range<usize>) -> bool, advise: impl Fn(&Range<usize>)) {
    KNOWN.with(|known| known.asked.unlearn(chosen).iter().for_each(advise));
}

/// Has `advise` called with the program's own advice on a range, which it gives nothing else on meanwhile.
pub(super) fn again(at: &Range<usize>, advise: impl Fn(&Range<usize>, What)) {
    KNOWN.with(|known| known.asked.advice_in(at).iter().for_each(|(at, what)| advise(at, *what)));
}

/// The program's own advice on a range.
pub(super) fn advice_in(at: &Range<usize>) -> Vec<(Range<usize>, What)> {
    KNOWN.with(|known| known.asked.advice_in(at))
}

/// Whether there is a part without advice of the program's.
pub(super) fn may_learn(parts: &[FileMapping]) -> bool {
    KNOWN.with(|known| parts.iter().any(|part| !known.asked.unadvised(&part.at).is_empty()))
}

/// Forgets what came of a file's former mappings.
pub(super) fn begin_anew(identity: Identity) {
    change(identity, |file| (file.unfit, file.kept, file.busy) = (false, false, 0));
}

/// Leaves to the engine for good what it has, or is about to have, of a file, if that is looked after.
pub(super) fn keep(identity: Identity) {
    change(identity, |file| file.kept = true);
}

/// How much has been noted so far.
pub(super) fn notes() -> u64 {
    KNOWN.with(|known| known.notes)
}

/// Forgets what is mapped no more, as a list of the mappings says that was read when so much had been noted; all files that are left.
pub(super) fn retain(notes: u64, all: &[FileMapping], taken: &[Identity]) -> Vec<Noted> {
    KNOWN.with(|known| {
        // What the engine has may go back, and what was asked holds then.
        let is_there =
            |at: &Range<usize>| all.iter().any(|map| overlap(&map.at, at)) || by_address::holds(at.start, at.len());
        // A list that was read before something moved does not say what is there.
        if known.moving == 0 && known.moved_at <= notes {
            known.asked.retain(notes, is_there);
        }
        known.files.retain(|file| {
            file.at_note > notes
                || all.iter().any(|one| one.file.2 == file.identity.numbers()[1])
                || taken.contains(&file.identity)
        });
        known.files.clone()
    })
}

/// Leaves a file to the kernel for good.
pub(super) fn mark_unfit(identity: Identity) {
    change(identity, |file| file.unfit = true);
}

/// Changes what is known of a file, if it is known.
fn change(identity: Identity, how: impl Fn(&mut Noted)) {
    KNOWN.with(|known| known.files.iter_mut().filter(|file| file.identity == identity).for_each(how));
}

/// Whether a file was asked for by name, and stays the engine's.
pub(super) fn is_kept(identity: Identity) -> bool {
    find(identity).is_some_and(|file| file.kept)
}

/// What is known of a file.
pub(super) fn find(identity: Identity) -> Option<Noted> {
    KNOWN.with(|known| known.files.iter().find(|file| file.identity == identity).copied())
}

/// Whether the program asked for something there that only the kernel does.
pub(super) fn is_kernels(of: &[FileMapping]) -> bool {
    KNOWN.with(|known| of.iter().any(|part| known.asked.is_kernels(&part.at)))
}

/// The first mapping of a file. Inodes of two file systems may have the same number, and the list names devices in its own way.
pub(super) fn first_of(all: &[FileMapping], identity: Identity) -> Option<&FileMapping> {
    let is_it = |one: &&FileMapping| {
        one.file.2 == identity.numbers()[1] && one.path.as_deref().and_then(file::identity_of) == Some(identity)
    };
    all.iter().find(is_it)
}
