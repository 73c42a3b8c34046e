//! Mapping state: what the watcher knows of one mapping. What a pattern knows of it, the pattern has.

use crate::observe::{Mapping, Seen};
use crate::run::{Run, merge};
use crate::sampler::Samples;
use crate::sampling::{Looks, Sample, Whole};
use crate::trial::Trial;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What tells a mapping from others: it lasts as long as the mapping's state.
#[derive(Debug, Default)]
pub struct Id(Arc<()>);

impl Id {
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub fn weak(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}

/// One mapping, and what is known of it.
#[derive(Debug)]
pub struct MappingState {
    /// What the patterns know it by.
    pub id: Id,
    pub mapping: Mapping,
    /// Pages that the kernel reads ahead on the file's device.
    pub readahead: u64,
    pub seen: Option<Seen>,
    /// The advice that it has of ours, and for which pattern.
    pub trial: Trial,
    /// Walks that did not pay are not followed again until then.
    pub rests_until: Duration,
    /// New pages of the looks of a sampling round.
    pub looks: Looks,
    /// New pages that were found between these looks.
    pending: Vec<Run>,
}

/// Runs that are kept for the next look. Beyond this no more are added.
const PENDING: usize = 16384;

impl MappingState {
    pub fn new(readahead: u64, mapping: Mapping) -> MappingState {
        MappingState {
            id: Id::default(),
            mapping,
            readahead,
            seen: None,
            trial: Trial::default(),
            rests_until: Duration::ZERO,
            looks: Looks::default(),
            pending: Vec::new(),
        }
    }

    /// A mapping that may be the same. Its file may have grown.
    fn renewed(mut self, mapping: &Mapping) -> MappingState {
        if self.mapping.pages != mapping.pages {
            self.mapping.pages = mapping.pages;
            self.forget();
        }
        self
    }

    fn is_of(&self, other: &Mapping) -> bool {
        let key = |of: &Mapping| (of.at.clone(), of.device, of.inode, of.offset);
        key(&self.mapping) == key(other)
    }

    /// Looks at all of it. Returns the new pages, or `None` if it is the first look.
    pub fn look(&mut self, samples: &mut dyn Samples) -> Option<Vec<Run>> {
        let (start, pages, is_first) = (self.mapping.at.start, self.mapping.pages, self.seen.is_none());
        let new = samples.pages(self.seen.get_or_insert_with(|| Seen::nothing(start, pages)), 0..pages);
        (!is_first).then_some(new)
    }

    /// Forgets which pages were touched.
    pub fn forget(&mut self) {
        self.seen = None;
        self.pending.clear();
        self.looks.before.clear();
    }

    /// Keeps what was found between two looks for the next.
    pub fn note(&mut self, new: Vec<Run>) {
        if self.pending.len() < PENDING {
            self.pending.extend(new);
        }
    }

    /// Adds the new pages of a long look, and what was found before it, to those of rounds that were carried: both, if they `count`.
    pub fn add_long(&mut self, new: Vec<Run>, count: bool) {
        let new = self.merged(new);
        if count {
            self.looks.before = merge(std::mem::take(&mut self.looks.before), new);
        }
    }

    /// The new pages of a look, with those that were found before it.
    pub fn merged(&mut self, new: Vec<Run>) -> Vec<Run> {
        merge(std::mem::take(&mut self.pending), new)
    }

    /// What a round has shown of it.
    pub fn sample(&mut self, whole: Whole) -> Sample {
        let mut looks = std::mem::take(&mut self.looks);
        let last = looks.second.clone();
        looks.second = self.merged(looks.second);
        Sample::of(looks, last, whole)
    }

    /// Whether the page was mapped when it was last looked at.
    pub fn has(&self, page: u64) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.has(page))
    }
}

/// The mappings that there are now, with what is known of those that were there before.
pub fn listed(mut before: Vec<MappingState>, samples: &mut dyn Samples) -> Vec<MappingState> {
    let found = samples.mappings().into_iter();
    let state = |mapping: Mapping| match before.iter().position(|one| one.is_of(&mapping)) {
        Some(index) => before.swap_remove(index).renewed(&mapping),
        None => MappingState::new(samples.readahead(mapping.device), mapping),
    };
    found.map(state).collect()
}
