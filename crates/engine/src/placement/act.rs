//! What the thread that looks does: it advises, has files taken over, and gives them back.

use super::asked::{What, overlap};
use super::known;
use super::look::Way;
use super::watch::{Candidate, DIVIDED, Watch, is_looked_after};
use crate::by_address::{self, Refusal};
use crate::map::cache::Cache;
use crate::sys::engine_fd::{self, EngineFd};
use crate::sys::file::{self, Identity};
use crate::sys::maps::{self, FileMapping};
use crate::sys::survival;
use std::fs::OpenOptions;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// So often a file that is in use otherwise is asked for.
const PATIENCE: u32 = 20;

impl Watch {
    /// Has the mappings served in this way, those that were made meanwhile too.
    pub(super) fn act(&mut self, way: Way) {
        if way != self.way {
            self.way = way;
            self.unadvise();
            self.switches += 1;
            self.candidates.iter_mut().for_each(|one| one.noted.busy = 0);
            self.is_fresh = true;
        }
        if way != Way::Engine && !self.taken.is_empty() {
            self.give_back();
        }
        if !std::mem::take(&mut self.is_fresh) {
            return;
        }
        match way {
            Way::Kernel => {}
            Way::Advised => self.advise(),
            Way::Engine => self.take(),
        }
    }

    fn advise(&mut self) {
        let begun = Instant::now();
        for part in self.candidates.iter().flat_map(|one| &one.parts).filter(|part| is_looked_after(part)) {
            known::learn(&part.at, |at| tell_kernel(at, libc::MADV_RANDOM));
        }
        self.listing += begun.elapsed();
    }

    /// Undoes that, where it is not the present way: the engine leaves some files to the kernel, and those keep it.
    fn unadvise(&mut self) {
        if self.way == Way::Advised {
            return;
        }
        let is_engines = |at: &Range<usize>| {
            let fit = self.candidates.iter().filter(|one| one.is_fit(self.face));
            fit.flat_map(|one| &one.parts).any(|part| overlap(&part.at, at))
        };
        known::unlearn(|at| self.way == Way::Kernel || is_engines(at), |at| tell_kernel(at, libc::MADV_NORMAL));
    }

    fn take(&mut self) {
        if DIVIDED.load(Ordering::SeqCst) {
            return self.controller.refused(Way::Engine);
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        let (mut any, mut tried) = (!self.taken.is_empty(), false);
        let face = self.face;
        for one in candidates.iter_mut() {
            if !one.is_fit(face) || one.parts.is_empty() || self.taken.contains(&one.noted.identity) {
                continue;
            }
            tried = true;
            let mut taken = Err(Refusal::Unfit("the engine is not to be had".into()));
            if known::is_kernels(&one.parts) {
                taken = Err(Refusal::Unfit("only the kernel does what it asked for".into()));
            } else if let (false, true, Some(peril)) = (face.risks_stores, is_stored_to(one), survival::peril()) {
                taken = Err(Refusal::Unfit(format!("{peril}, and stores could be lost")));
            } else {
                (face.with_cache)(&mut |cache| taken = take_one(one, cache, face.only_noted));
            }
            match taken {
                Ok(identity) => {
                    any = true;
                    self.taken.push(identity);
                    self.tell(format_args!("the engine has {}", path_of(one).display()));
                    let advice = one.parts.iter().flat_map(|part| known::advice_in(&part.at));
                    advice.for_each(|(at, what)| tell_engine(&at, what));
                }
                Err(Refusal::Busy(why)) if one.noted.busy < PATIENCE || face.turns.is_some() => {
                    if one.noted.busy == 0 {
                        self.tell(format_args!("not now: {why}"));
                    }
                    one.noted.busy += 1;
                    any = true;
                }
                Err(refusal) => {
                    one.noted.unfit = true;
                    let identity = one.noted.identity;
                    known::mark_unfit(identity);
                    self.tell(format_args!("{} stays the kernel's: {refusal}", path_of(one).display()));
                }
            }
        }
        self.candidates = candidates;
        if tried && !any {
            self.controller.refused(Way::Engine);
        }
        self.listed = self.listed.filter(|_| !tried);
    }

    fn give_back(&mut self) {
        self.taken.retain(|identity| !known::is_kept(*identity));
        for identity in self.taken.clone() {
            let is_wanted = || !known::is_kept(identity);
            if let Err(error) = by_address::return_to_kernel(identity, self.face.only_noted, is_wanted) {
                self.tell(format_args!("a file stays the engine's until it can be given back: {error}"));
            }
        }
        self.list();
    }
}

/// Gives advice on memory that the kernel has.
fn tell_kernel(at: &Range<usize>, advice: i32) {
    // SAFETY: advice loses nothing. What was mapped there instead meanwhile is served a little worse.
    unsafe { libc::syscall(libc::SYS_madvise, at.start, at.len(), advice) };
}

/// The program's own advice, on memory that the engine has now.
fn tell_engine(at: &Range<usize>, what: What) {
    let _ = match what {
        // SAFETY: advice on how it will be used only.
        What::Advice(advice) => unsafe { by_address::advise(at.start, at.len(), advice) },
        What::Backward => by_address::expect_backward(at.start, at.len()),
        What::Kernels => Ok(()),
    };
}

/// The program's own advice, on memory that the kernel has again.
pub(super) fn advise_again(parts: &[FileMapping]) {
    for part in parts {
        known::again(&part.at, |at, what| {
            if let What::Advice(advice) = what {
                tell_kernel(at, advice);
            }
        });
    }
}

/// Makes the engine's what is mapped of a file that is looked after, now. True: it is in use, and another try may do.
pub(super) fn take_now(identity: Identity, cache: &Cache) -> bool {
    let noted = known::find(identity);
    let (Some(noted), Ok(all)) = (noted, maps::own()) else { return false };
    let Some(of_file) = known::first_of(&all, identity).map(|one| one.file) else { return false };
    let parts: Vec<_> = all.into_iter().filter(|one| one.file == of_file).collect();
    let one = Candidate { noted, parts, bytes: 0, around: 0 };
    if DIVIDED.load(Ordering::SeqCst) || known::is_kernels(&one.parts) {
        return false;
    }
    matches!(take_one(&one, cache, true), Err(Refusal::Busy(_)))
}

fn is_stored_to(one: &Candidate) -> bool {
    one.parts.iter().any(|part| part.is_shared && part.prot & libc::PROT_WRITE != 0)
}

fn path_of(one: &Candidate) -> &Path {
    one.parts.first().and_then(|part| part.path.as_deref()).unwrap_or(Path::new(""))
}

fn take_one(one: &Candidate, cache: &Cache, only_noted: bool) -> Result<Identity, Refusal> {
    let Some(path) = one.parts.first().and_then(|part| part.path.as_deref()) else {
        return Err(Refusal::Unfit("it has no name any more".into()));
    };
    // Looked at before: to close another file's descriptor would end record locks that the program has on it.
    let is_it = || file::identity_of(path) == Some(one.noted.identity);
    let is_shared = one.parts.iter().any(|part| part.is_shared);
    let writes = is_shared && (one.noted.may_write || one.parts.iter().any(|part| part.prot & libc::PROT_WRITE != 0));
    let _low = engine_fd::low();
    let open = || OpenOptions::new().read(true).write(writes).open(path).map(EngineFd::opened);
    match is_it().then(open) {
        Some(Ok(from)) => {
            if !is_it() {
                return Err(Refusal::Unfit("its name is another file's".into()));
            }
            let identity = one.noted.identity;
            let are_noted = || by_address::are_looked_after(identity, one.parts.iter().map(|part| part.at.clone()));
            let is_wanted = || !DIVIDED.load(Ordering::SeqCst) && (!only_noted || are_noted());
            by_address::take_over(&from, &one.parts, one.noted.may_write, cache, is_wanted)
        }
        Some(Err(error)) => Err(Refusal::Unfit(format!("it cannot be opened again: {error}"))),
        None => Err(Refusal::Unfit("its name is another file's".into())),
    }
}
