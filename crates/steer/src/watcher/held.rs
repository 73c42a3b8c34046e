//! State of each mapping: the watcher's knowledge of it, and our advice on it.

use super::follow::{NO_STRIDES, WIDEST};
use super::loads::LOADS;
use crate::judge::{Backward, Case, Load, Round, Run, Stream};
use crate::observe::{Mapping, Seen};
use std::time::Duration;

/// One mapping, and what is known of it.
#[derive(Debug)]
pub struct Held {
    pub mapping: Mapping,
    pub seen: Option<Seen>,
    pub case: Case,
    /// Pages that the kernel reads ahead on the file's device.
    pub readahead: u64,
    /// Touches to read ahead of a walk at most.
    pub window: u64,
    /// New pages that a step of touches at random usually shows in a part of the mapping.
    pub usual: f64,
    /// Whether it was ever advised random for touches at random.
    pub was_random: bool,
    pub streams: Vec<Stream>,
    pub round: Option<Round>,
    pub backward: Option<Backward>,
    /// The front of the walk backward that the last turn showed, if it did.
    pub backward_from: Option<u64>,
    /// How long it rests after the next loop that does not pay.
    pub round_rest: Duration,
    pub load: Option<Load>,
    /// A load that did not go on rests until then.
    pub loads_rest_until: Duration,
    /// New pages that were found between the looks of a turn.
    pub pending: Vec<Run>,
    /// New pages of the long look, and of turns that were carried into this one.
    pub before: Vec<Run>,
    /// New pages of the first short look.
    pub first: Vec<Run>,
    /// Streams and rounds that did not pay rest until then.
    pub rests_until: Duration,
    /// Streams in a row that were no walk.
    pub in_vain: u32,
    /// Until when strides are taken for chance, and for how long the next time.
    pub no_strides_until: Duration,
    pub no_strides_for: Duration,
}

/// The first rest after a loop that did not pay. Each rest is twice as long as the one before, up to 32 of the first.
const ROUND_REST: Duration = Duration::from_secs(10);

impl Held {
    pub fn new(readahead: u64, mapping: Mapping) -> Held {
        Held {
            mapping,
            readahead,
            seen: None,
            case: Case::default(),
            window: WIDEST,
            usual: 0.0,
            was_random: false,
            streams: Vec::new(),
            round: None,
            backward: None,
            backward_from: None,
            round_rest: ROUND_REST,
            load: None,
            loads_rest_until: Duration::ZERO,
            pending: Vec::new(),
            before: Vec::new(),
            first: Vec::new(),
            rests_until: Duration::ZERO,
            in_vain: 0,
            no_strides_until: Duration::ZERO,
            no_strides_for: NO_STRIDES,
        }
    }

    /// Forgets which pages were touched.
    pub fn forget(&mut self) {
        self.seen = None;
        self.pending.clear();
        self.before.clear();
    }

    /// The new pages of a look, with those that were found before it.
    pub fn merged(&mut self, new: Vec<Run>) -> Vec<Run> {
        merge(std::mem::take(&mut self.pending), new)
    }

    /// Ends a loop that does not pay, or is none.
    pub fn give_up_round(&mut self, at: Duration) {
        let paid = self.round.take().and_then(|round| round.progress(at)).is_some_and(|(before, now)| now > before);
        self.round_rest = if paid { ROUND_REST } else { self.round_rest };
        self.rests_until = at + self.round_rest;
        self.round_rest = (self.round_rest * 2).min(ROUND_REST * 32);
    }

    pub fn may_load(&self, at: Duration) -> bool {
        self.load.is_none() && self.loads_rest_until <= at && !self.case.is_on()
    }

    /// Whether a round, a load, or a look at single touches is on: each may be over in a moment.
    pub fn is_short_lived(&self) -> bool {
        self.round.is_some() || self.load.is_some() || self.case.is_looked_at()
    }

    pub fn is_followed(&self) -> bool {
        !self.streams.is_empty() || self.round.is_some() || self.load.is_some() || self.backward.is_some()
    }

    /// How long each walk or load that is followed can be left alone.
    pub fn pauses(&self, at: Duration) -> impl Iterator<Item = Duration> {
        let loops = self.round.iter().filter(|round| round.is_loop()).map(|_| Duration::from_millis(4));
        let loads = self.load.iter().map(|_| LOADS);
        let backward = self.backward.iter().map(move |walk| walk.pause(at));
        self.streams.iter().map(move |stream| stream.pause(at)).chain(loops).chain(loads).chain(backward)
    }
}

/// Runs that are kept for the next look. Beyond this no more are added.
const PENDING: usize = 16384;

pub fn add(pending: &mut Vec<Run>, new: Vec<Run>) {
    if pending.len() < PENDING {
        pending.extend(new);
    }
}

/// Both lists as one, in order.
pub fn merge(mut one: Vec<Run>, other: Vec<Run>) -> Vec<Run> {
    if one.is_empty() {
        return other;
    }
    one.extend(other);
    one.sort_unstable_by_key(|run| run.at);
    one
}
