//! What the program itself asked for ranges of its memory, and what was learnt to advise beside that. `known.rs` guards it.

use std::ops::Range;

/// Notes that are remembered; what is more stays as it is.
const MOST: usize = 4096;

/// What was asked for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Advice on how it will be used (madvise(2)).
    Advice(i32),
    /// To be walked through from its end, which is no advice to the kernel.
    Backward,
    /// Something that only the kernel does: locked memory, memory that children do not get.
    Kernels,
}

#[derive(Debug, Clone)]
struct Note {
    at: Range<usize>,
    what: What,
    at_note: u64,
}

impl Note {
    fn is_advice(&self) -> bool {
        self.what != What::Kernels
    }
}

/// In the order in which it was asked.
#[derive(Debug)]
pub(super) struct Asked {
    notes: Vec<Note>,
    /// What has our advice; nothing that has the program's.
    learnt: Vec<Range<usize>>,
}

impl Asked {
    pub const fn new() -> Self {
        Asked { notes: Vec::new(), learnt: Vec::new() }
    }

    /// The program asks. Its advice comes in place of ours, and of what it gave before.
    pub fn ask(&mut self, at: Range<usize>, what: What, at_note: u64) {
        let note = Note { at, what, at_note };
        self.cut(&note.at, |one| one.is_advice() == note.is_advice());
        if note.is_advice() {
            cut(&mut self.learnt, &note.at);
        }
        if self.notes.len() < MOST {
            self.notes.push(note);
        }
    }

    /// The program takes its advice back, and what the kernel had of ours with it; whether there was any.
    pub fn take_back(&mut self, at: &Range<usize>) -> bool {
        let had_ours = cut(&mut self.learnt, at);
        self.cut(at, Note::is_advice) || had_ours
    }

    /// Something else lies there.
    pub fn forget(&mut self, at: &Range<usize>) {
        self.cut(at, |_| true);
        cut(&mut self.learnt, at);
    }

    /// What lay in a range lies in another (mremap(2)), with what was asked of it, or has become longer or shorter there.
    pub fn moved(&mut self, from: &Range<usize>, to: &Range<usize>) {
        let there = |at: &Range<usize>| {
            if !overlap(at, from) {
                return None;
            }
            // What has grown is served as its end was.
            let end = if at.end >= from.end { to.end } else { to.end.min(to.start + (at.end - from.start)) };
            let start = to.start + at.start.max(from.start) - from.start;
            (start < end).then_some(start..end)
        };
        let of_note = |note: &Note| there(&note.at).map(|at| Note { at, ..note.clone() });
        let notes: Vec<_> = self.notes.iter().filter_map(of_note).collect();
        let learnt: Vec<_> = self.learnt.iter().filter_map(there).collect();
        self.forget(from);
        self.forget(to);
        self.notes.extend(notes);
        self.learnt.extend(learnt);
    }

    /// Forgets what `is_there` no more, but for what was noted later than that says.
    pub fn retain(&mut self, notes: u64, is_there: impl Fn(&Range<usize>) -> bool) {
        self.notes.retain(|one| one.at_note > notes || is_there(&one.at));
        self.learnt.retain(is_there);
    }

    /// What of a range has no advice of the program's.
    pub fn unadvised(&self, at: &Range<usize>) -> Vec<Range<usize>> {
        let mut left = vec![at.clone()];
        for note in self.notes.iter().filter(|one| one.is_advice()) {
            cut(&mut left, &note.at);
        }
        left
    }

    /// What of a range has no advice at all. It is to get ours.
    pub fn learn(&mut self, at: &Range<usize>) -> Vec<Range<usize>> {
        let mut left = self.unadvised(at);
        self.learnt.iter().for_each(|learnt| _ = cut(&mut left, learnt));
        self.learnt.extend_from_slice(&left);
        left
    }

    /// What has our advice and is to have it no more, of what is `chosen`.
    pub fn unlearn(&mut self, chosen: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
        let (chosen, kept) = std::mem::take(&mut self.learnt).into_iter().partition(chosen);
        self.learnt = kept;
        chosen
    }

    /// The program's advice within a range, in the order in which it came.
    pub fn advice_in(&self, at: &Range<usize>) -> Vec<(Range<usize>, What)> {
        let within = |one: &Note| (one.at.start.max(at.start)..one.at.end.min(at.end), one.what);
        self.notes.iter().filter(|one| one.is_advice() && overlap(&one.at, at)).map(within).collect()
    }

    /// Whether the program asked for something in a range that only the kernel does.
    pub fn is_kernels(&self, at: &Range<usize>) -> bool {
        self.notes.iter().any(|one| !one.is_advice() && overlap(&one.at, at))
    }

    /// Cuts a range out of notes; whether there was anything.
    fn cut(&mut self, at: &Range<usize>, which: impl Fn(&Note) -> bool) -> bool {
        let is_cut = |one: &Note| which(one) && overlap(&one.at, at);
        if !self.notes.iter().any(is_cut) {
            return false;
        }
        for note in std::mem::take(&mut self.notes) {
            let left = if which(&note) { without(&note.at, at) } else { vec![note.at.clone()] };
            self.notes.extend(left.into_iter().map(|at| Note { at, ..note.clone() }));
        }
        true
    }
}

/// Cuts a range out of others; whether there was anything.
fn cut(ranges: &mut Vec<Range<usize>>, at: &Range<usize>) -> bool {
    let meets = ranges.iter().any(|one| overlap(one, at));
    if meets {
        *ranges = ranges.iter().flat_map(|one| without(one, at)).collect();
    }
    meets
}

/// A range without another.
fn without(one: &Range<usize>, at: &Range<usize>) -> Vec<Range<usize>> {
    let parts = [one.start..one.end.min(at.start), one.start.max(at.end)..one.end];
    match overlap(one, at) {
        true => parts.into_iter().filter(|part| !part.is_empty()).collect(),
        false => vec![one.clone()],
    }
}

pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RANDOM: What = What::Advice(libc::MADV_RANDOM);
    const SEQUENTIAL: What = What::Advice(libc::MADV_SEQUENTIAL);

    fn ranges(ranges: &[(usize, usize)]) -> Vec<Range<usize>> {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn the_programs_advice_wins_where_it_gave_it() {
        let mut asked = Asked::new();
        assert_eq!(asked.learn(&(0..100)), ranges(&[(0, 100)]));
        asked.ask(20..40, SEQUENTIAL, 1);
        assert_eq!(asked.learn(&(0..100)), [], "the rest has ours already");
        assert_eq!(asked.unadvised(&(0..100)), [0..20, 40..100]);
        asked.ask(30..50, RANDOM, 2);
        assert_eq!(asked.advice_in(&(0..45)), [(20..30, SEQUENTIAL), (30..45, RANDOM)]);
        assert_eq!(asked.unlearn(|_| true), [0..20, 50..100], "what is the program's is left alone");
        assert_eq!(asked.learn(&(0..100)), [0..20, 50..100]);
    }

    #[test]
    fn what_is_taken_back_is_to_be_learnt() {
        let mut asked = Asked::new();
        asked.ask(0..100, RANDOM, 1);
        asked.ask(0..100, What::Kernels, 2);
        assert!(asked.take_back(&(50..60)) && !asked.take_back(&(50..60)));
        assert_eq!(asked.learn(&(0..100)), ranges(&[(50, 60)]));
        assert!(asked.take_back(&(55..200)), "with ours");
        assert_eq!(asked.learn(&(0..100)), ranges(&[(55, 100)]));
        assert_eq!(asked.advice_in(&(0..100)), [(0..50, RANDOM)]);
        assert!(asked.is_kernels(&(99..100)), "that is no advice");
        asked.ask(0..100, What::Backward, 3);
        assert!(asked.unadvised(&(0..100)).is_empty() && asked.is_kernels(&(0..1)));
    }

    #[test]
    fn what_moves_takes_along_what_was_asked_of_it() {
        let mut asked = Asked::new();
        asked.ask(0..100, RANDOM, 1);
        asked.ask(40..60, SEQUENTIAL, 2);
        asked.learn(&(100..120));
        asked.ask(500..600, RANDOM, 3);
        asked.moved(&(50..110), &(500..570));
        let mut moved = asked.advice_in(&(0..1000));
        moved.sort_by_key(|(at, _)| at.start);
        assert_eq!(
            moved,
            [(0..40, RANDOM), (40..50, SEQUENTIAL), (500..510, SEQUENTIAL), (510..550, RANDOM), (570..600, RANDOM)]
        );
        assert_eq!(asked.unlearn(|_| true), [110..120, 550..570]);
        asked.moved(&(0..50), &(0..45));
        assert_eq!(asked.advice_in(&(0..200)), [(0..40, RANDOM), (40..45, SEQUENTIAL)]);
        asked.moved(&(0..45), &(0..400));
        assert_eq!(asked.unadvised(&(0..400)), []);
    }

    #[test]
    fn what_lies_elsewhere_is_forgotten() {
        let mut asked = Asked::new();
        asked.ask(0..100, RANDOM, 1);
        asked.ask(200..300, RANDOM, 2);
        asked.learn(&(100..200));
        asked.forget(&(50..150));
        assert_eq!(asked.advice_in(&(0..300)), [(0..50, RANDOM), (200..300, RANDOM)]);
        asked.retain(1, |at| at.end > 120);
        assert_eq!(asked.advice_in(&(0..300)), [(200..300, RANDOM)]);
        asked.ask(0..10, RANDOM, 3);
        asked.retain(2, |_| false);
        assert_eq!(asked.advice_in(&(0..300)), [(0..10, RANDOM)], "noted since the list was read");
        assert_eq!(asked.learn(&(100..200)), ranges(&[(100, 200)]));
    }
}
