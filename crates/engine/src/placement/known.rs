//! What is known of the mappings that are looked after: which files the program has mapped, and what it asked for them.

use crate::by_address;
use crate::sys::file::{self, Identity};
use crate::sys::lock::Guarded;
use crate::sys::maps::FileMapping;
use std::ops::Range;

/// Files and pieces of advice that are remembered; what is more stays as it is.
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

/// What the program itself asked for a range: advice, or something that only the kernel can do.
#[derive(Debug, Clone)]
struct Asked {
    at: Range<usize>,
    advice: Option<i32>,
    at_note: u64,
}

struct Known {
    files: Vec<Noted>,
    asked: Vec<Asked>,
    /// Counts what is noted.
    notes: u64,
}

impl Known {
    /// The first that is wanted of what the program asked for in a file's mappings.
    fn find_asked<T>(&self, of: &[FileMapping], wanted: impl Fn(&Asked) -> Option<T>) -> Option<T> {
        let is_in = |asked: &&Asked| of.iter().any(|part| overlap(&part.at, &asked.at));
        self.asked.iter().filter(is_in).find_map(wanted)
    }
}

static KNOWN: Guarded<Known> = Guarded::new(Known { files: Vec::new(), asked: Vec::new(), notes: 0 });

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

/// Notes that the program gave advice on a range (madvise(2)): that wins. Or (`None`) that it asked for something there that only the
/// kernel does: locked memory, memory that children do not get.
pub(super) fn note_asked(at: Range<usize>, advice: Option<i32>) {
    KNOWN.with(|known| {
        known.asked.retain(|one| one.at != at);
        if known.asked.len() < MOST {
            known.notes += 1;
            known.asked.push(Asked { at, advice, at_note: known.notes });
        }
    });
}

/// The program takes back the advice that it gave on a range; whether there was any.
pub(super) fn take_back(at: &Range<usize>) -> bool {
    let is_within = |asked: &Asked| asked.advice.is_some() && at.start <= asked.at.start && asked.at.end <= at.end;
    KNOWN.with(|known| {
        let before = known.asked.len();
        known.asked.retain(|asked| !is_within(asked));
        known.asked.len() < before
    })
}

/// Forgets what was asked of what lay in a range before.
pub(super) fn forget_asked(at: &Range<usize>) {
    KNOWN.with(|known| known.asked.retain(|asked| !overlap(&asked.at, at)));
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
        let is_new = |at_note| at_note > notes;
        // What the engine has may go back, and what was asked holds then.
        let is_there =
            |at: &Range<usize>| all.iter().any(|map| overlap(&map.at, at)) || by_address::holds(at.start, at.len());
        known.asked.retain(|one| is_new(one.at_note) || is_there(&one.at));
        known.files.retain(|file| {
            is_new(file.at_note)
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

/// What the program advised itself for a file's mappings, if it did.
pub(super) fn own_advice(of: &[FileMapping]) -> Option<i32> {
    KNOWN.with(|known| known.find_asked(of, |asked| asked.advice))
}

/// Runs `then` unless the program gave advice for a file's mappings. What it gives meanwhile, or from then on, comes after that.
pub(super) fn unless_advised(of: &[FileMapping], then: impl FnOnce()) {
    KNOWN.with(|known| {
        if known.find_asked(of, |asked| asked.advice).is_none() {
            then();
        }
    });
}

/// Whether the program asked for something there that only the kernel does.
pub(super) fn is_kernels(of: &[FileMapping]) -> bool {
    KNOWN.with(|known| known.find_asked(of, |asked| asked.advice.is_none().then_some(()))).is_some()
}

/// The first mapping of a file. Inodes of two file systems may have the same number, and the list names devices in its own way.
pub(super) fn first_of(all: &[FileMapping], identity: Identity) -> Option<&FileMapping> {
    let is_it = |one: &&FileMapping| {
        one.file.2 == identity.numbers()[1] && one.path.as_deref().and_then(file::identity_of) == Some(identity)
    };
    all.iter().find(is_it)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
