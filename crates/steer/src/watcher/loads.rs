//! Loads from slow storage: finds them, and keeps the readers busy.

use super::Watcher;
use super::held::{Held, add, merge};
use crate::PAGE;
use crate::act::{Hand, Opened};
use crate::judge::{Load, PIECE, Run, is_dense, is_slow, may_load, shape, window, windows};
use crate::observe::{Flags, Spent, Waited};
use crate::sampler::Samples;
use std::time::Duration;

/// How often loads are looked at.
pub const LOADS: Duration = Duration::from_millis(10);

impl<S: Samples, H: Hand> Watcher<S, H> {
    /// Begins a load where the program reads densely from slow storage. Ends one where it does not read densely.
    pub(super) fn find_loads(&mut self, second: &[Vec<Run>], cost: &Spent, at: Duration) {
        if self.hand.readers().is_none() {
            return;
        }
        let looks = self.held.iter().zip(second).flat_map(|(one, second)| [&one.before, &one.first, second]);
        let touched: u64 = looks.map(|runs| windows(runs)).sum();
        let Waited { faults, slept, .. } = self.samples.waited();
        let is_slow = is_slow(slept, faults, touched, cost.read_bytes);
        let loaded = |one: &Held| one.load.as_ref().map_or(0, Load::needs);
        for (index, second) in second.iter().enumerate() {
            let free = may_load(self.room).saturating_sub(self.held.iter().map(loaded).sum());
            let one = &mut self.held[index];
            if !is_slow && one.load.is_none() {
                continue;
            }
            let begun = merge(one.before.clone(), one.first.clone());
            let runs = merge(begun.clone(), second.clone());
            let pages = one.mapping.pages;
            // After a load from this device its next file is likely to be loaded, too: touches that are too few to tell count as dense.
            let goes_on = self.loaded_from == Some(one.mapping.device) && !runs.is_empty();
            match is_dense(&runs).or(goes_on.then_some(true)) {
                Some(false) if one.load.take().is_some() => {
                    one.loads_rest_until = at + Duration::from_secs(10);
                    if let Some(readers) = self.hand.readers() {
                        readers.clear();
                    }
                }
                Some(true) if is_slow && one.may_load(at) => {
                    // Any storage is slow for a walk by single pages: where that advice may be replaced it is not helped, but ended (`Case`).
                    let whole = std::slice::from_ref(&one.mapping.at);
                    let is_single = |flags: Vec<Flags>| flags.iter().any(|flags| flags.random);
                    if self.settings.overrides && self.samples.flags(whole).is_none_or(is_single) {
                        continue;
                    }
                    let front = second.last().or(runs.last()).map_or(0, Run::end);
                    let load = if pages <= free {
                        Some(Load::new(front, pages, at))
                    } else {
                        // A walk that waits may be one in strides, for which whole pieces are in vain: `Case` looks at single touches first, and
                        // rests after that.
                        let is_known =
                            cost.major_faults * 10 < touched || one.case.is_resting() || one.rests_until > at;
                        let walk = shape(&begun, second).walk_forward();
                        let walk = walk.filter(|_| is_known || self.settings.only_loads);
                        walk.map(|front| Load::of_walk(front, pages, window(free), at))
                    };
                    if load.is_some()
                        && !self.only_notes(index, "a load from slow storage, for which readers would be ahead")
                    {
                        self.loaded_from = Some(self.held[index].mapping.device);
                        self.held[index].load = load;
                    }
                }
                _ => {}
            }
        }
    }

    /// Keeps the readers busy.
    pub(super) fn load(&mut self) {
        let at = self.samples.now();
        if at < self.loads_next {
            return;
        }
        let room = may_load(self.room);
        let Some(readers) = self.hand.readers() else { return };
        if self.held.iter().all(|one| one.load.is_none()) {
            if self.held.iter().all(|one| one.backward.is_none()) {
                readers.rest();
            }
            return;
        }
        let (mut waiting, brought) = readers.state();
        // Memory that is being read into cannot be reclaimed: at most a sixteenth of the room may be.
        let most = self.depth.judge(brought, at).min((room / 16 / PIECE) as usize).max(1);
        readers.allow(most);
        self.done.loaded = (brought / PAGE, self.done.loaded.1.max(most));
        for one in &mut self.held {
            let (Some(load), Some(seen)) = (&mut one.load, &mut one.seen) else {
                continue;
            };
            let new = self.samples.pages(seen, load.ahead());
            // A look at a long mapping takes long: looks take a twentieth of the time at most.
            self.loads_next = at + LOADS.max((self.samples.now() - at) * 20);
            let goes_on = load.follow(&new, at);
            add(&mut one.pending, new);
            match readers.open(&one.mapping) {
                Opened::Yes => {}
                Opened::NotYet => continue,
                Opened::No => {
                    one.load = None;
                    continue;
                }
            }
            for run in load.ask(room, (4 * most).saturating_sub(waiting)) {
                readers.bring(&one.mapping, &run, false);
                waiting += 1;
            }
            if !goes_on {
                one.load = None;
                one.loads_rest_until = at + Duration::from_secs(1);
            }
        }
        self.tell();
    }
}
