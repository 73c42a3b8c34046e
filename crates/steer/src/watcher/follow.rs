//! Walks that are followed: strides are read ahead, and a part of each loop is kept.

use super::Watcher;
use super::held::{Held, add};
use crate::PAGE;
use crate::act::{Hand, Opened};
use crate::judge::{self, Backward, Front, Look, Round, Run, Stream, WIDE};
use crate::sampler::Samples;
use std::time::Duration;

/// Touches to read ahead of a walk, at least and at most.
const WINDOW: u64 = 64;
pub const WIDEST: u64 = 4096;
/// Streams of one mapping at a time.
const STREAMS: usize = 16;
/// Pages that are read ahead of a loop by one call at least: 128 KiB.
const LEAST_PIECE: u64 = 32;
/// Touches that make sure of a stride.
const SURE: u64 = 16;
/// After so many streams in a row with fewer touches than [`SURE`], strides are taken for chance.
const CHANCES: u32 = 4;
/// For how long at first. It doubles each time, up to 16 times this.
pub const NO_STRIDES: Duration = Duration::from_secs(4);

/// Looks miss pages that came and went between them: a walk is at most so many times as long as what they show of it.
const MISSED: u64 = 8;

/// Readers ahead of a walk backward: while one block is read the next is asked for.
const READERS: usize = 4;

impl<S: Samples, H: Hand> Watcher<S, H> {
    /// Begins to follow walks that the kernel does not serve well.
    pub(super) fn find_walks(&mut self, index: usize, look: &Look, at: Duration) {
        let (shape, waits) = (look.shape, look.waits());
        self.find_backward(index, look, at);
        if self.held[index].rests_until > at || shape.fronts.is_empty() {
            return;
        }
        let pages = self.held[index].mapping.pages;
        let is_new = |one: &Held, front: &Front| {
            let near = |stream: &Stream| stream.front().abs_diff(front.at) < 4096 + front.span;
            !one.streams.iter().any(near)
        };
        for front in &shape.fronts {
            let one = &self.held[index];
            if front.stride == 1 {
                let is_fit = pages > self.room && Round::is_worth(pages, may_keep(self.room, one.readahead));
                let may_come_round = !one.mapping.is_writable && is_fit && one.round.is_none();
                // A walk that waits may be something else: single touches are looked at first, and after that the case rests.
                let is_walk = !waits || one.case.is_resting() && shape.is_one_walk();
                let is_loop = may_come_round && is_walk && !one.case.is_on();
                if is_loop && shape.fronts.len() == 1 && self.may_act(index) && !self.settings.is_dry {
                    self.held[index].round = Some(Round::new(front.at, front.span, at));
                }
            } else if front.stride.abs() >= WIDE
                && one.streams.len() < STREAMS
                && is_new(one, front)
                && self.may_act(index)
                && !self.only_notes(index, "strides, which would be read ahead")
            {
                let most = (self.room / 8).max(WINDOW) / (self.held[index].streams.len() as u64 + 1);
                let most = most.min(self.held[index].window);
                self.held[index].streams.push(Stream::new(front, pages, most, at));
            }
        }
    }

    /// Begins to follow a walk backward that two turns in a row showed, the second one a little farther back: threads that take turns at
    /// pieces of a walk forward may seem to go backward, but not twice so.
    fn find_backward(&mut self, index: usize, look: &Look, at: Duration) {
        let front = look.shape.fronts.first().filter(|_| look.shape.is_backward() && !look.is_followed);
        let now = front.map(|front| front.at);
        let one = &mut self.held[index];
        let then = std::mem::replace(&mut one.backward_from, now);
        let goes_on = |(now, then): (u64, u64)| now < then && then - now <= look.windows * judge::WINDOW * MISSED;
        let Some((front, _)) = now.zip(then).filter(|both| goes_on(*both)) else { return };
        if one.backward.is_some()
            || one.rests_until > at
            || self.only_notes(index, "a walk backward, which would be read ahead")
        {
            return;
        }
        let one = &mut self.held[index];
        let before = (look.windows * judge::WINDOW) as f64 / look.lasted.as_secs_f64().max(1e-3);
        one.backward = Some(Backward::new(front, one.mapping.pages, before, self.room / 8, at));
    }

    /// Follows streams and loops by a step. Returns whether a stream has ended.
    pub(super) fn follow(&mut self) -> bool {
        let (mut ended, at) = (false, self.samples.now());
        for one in &mut self.held {
            let Some(seen) = &mut one.seen else { continue };
            one.streams.retain_mut(|stream| {
                let look = stream.ahead();
                let new = self.samples.pages(seen, look.at..look.end());
                let goes_on = stream.follow(&new, |page| seen.has(page), at);
                add(&mut one.pending, new);
                if !stream.ask().iter().all(|run| self.hand.read_ahead(&one.mapping, run)) {
                    one.rests_until = at + Duration::from_secs(10);
                    return false;
                }
                if !goes_on {
                    ended = true;
                    let (steps, in_vain) = stream.account();
                    one.in_vain = if steps < SURE { one.in_vain + 1 } else { 0 };
                    // Reading in vain makes the next walk's window smaller.
                    one.window =
                        if in_vain > steps { (one.window / 2).max(WINDOW) } else { (one.window * 2).min(WIDEST) };
                    self.done.strided += steps;
                }
                goes_on
            });
            if one.in_vain >= CHANCES {
                one.streams.clear();
                one.in_vain = 0;
                one.no_strides_until = at + one.no_strides_for;
                one.no_strides_for = (one.no_strides_for * 2).min(NO_STRIDES * 16);
            }
            if let Some(walk) = &mut one.backward {
                let mut new = Vec::new();
                for part in walk.ahead().into_iter().filter(|part| part.len > 0) {
                    new.extend(self.samples.pages(seen, part.at..part.end()));
                }
                let goes_on = walk.follow(&new, at);
                let offset = one.mapping.offset / PAGE;
                let asked = self.hand.readers().is_some_and(|readers| {
                    let opened = readers.open(&one.mapping);
                    if opened == Opened::Yes {
                        walk.ask(offset).iter().for_each(|run| readers.bring(&one.mapping, run, true));
                        readers.allow(READERS);
                    }
                    opened != Opened::No
                });
                if !goes_on || !asked {
                    let (before, now) = walk.progress(at);
                    let rest = if asked && now > before { 0 } else { 10 };
                    one.rests_until = at + Duration::from_secs(rest);
                    self.done.backward = Some((before, now));
                    one.backward = None;
                }
                add(&mut one.pending, new);
            }
            let Some(round) = one.round.as_mut().filter(|round| round.is_loop()) else { continue };
            let mut new = Vec::new();
            for part in round.ahead() {
                new.extend(self.samples.pages(seen, part));
            }
            let keep = may_keep(self.room, one.readahead);
            let goes_on = round.follow(&new, keep, at) && Round::is_worth(round.pages(), keep);
            add(&mut one.pending, new);
            if !goes_on {
                one.give_up_round(at);
                continue;
            }
            let (drop, ask) = (round.drop(), round.ask(spare(self.room, one.readahead) / 2));
            if let Some(run) = drop {
                self.done.kept = round.progress(at).or(self.done.kept);
                if !self.hand.drop(&one.mapping, &run) {
                    one.give_up_round(at);
                    continue;
                }
                seen.forget(run.at..run.end());
            }
            if let Some(Run { at: from, len }) = ask {
                // The kernel reads no more than so much for one call.
                let piece = one.readahead.max(LEAST_PIECE);
                let mut pieces = (from..from + len).step_by(piece as usize);
                // Where nothing can be read ahead, a part is kept all the same.
                pieces.all(|at| self.hand.read_ahead(&one.mapping, &Run { at, len: piece.min(from + len - at) }));
            }
        }
        ended
    }
}

/// Pages of a loop that may be kept.
fn may_keep(room: u64, readahead: u64) -> u64 {
    room.saturating_sub(spare(room, readahead))
}

/// The rest of the room. A half is for pages that are read ahead of the walk, the other for pages that are dropped late and for everything
/// else in memory. The kernel reads ahead, too: four of its windows fit.
fn spare(room: u64, readahead: u64) -> u64 {
    (room / 8).max((16 << 20) / PAGE).max(4 * readahead)
}
