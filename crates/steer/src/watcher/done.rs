//! The report: what was done, in words.

use super::Watcher;
use crate::PAGE;
use crate::act::Hand;
use crate::sampler::Samples;
use std::fmt::Write;
use std::time::Duration;

/// The facts of the report.
#[derive(Debug, Default)]
pub struct Done {
    pub random: Option<Advised>,
    /// Pages a second, before and after.
    pub backward: Option<(f64, f64)>,
    pub strided: u64,
    /// Things that would be done, in a dry run. Also advice that could not be taken back.
    pub would: Vec<String>,
    pub kept: Option<(f64, f64)>,
    /// Pages that readers brought, and the most requests at a time.
    pub loaded: (u64, usize),
}

#[derive(Debug)]
pub struct Advised {
    pub at: Duration,
    pub mappings: u32,
    pub before: f64,
    pub after: f64,
}

impl<S: Samples, H: Hand> Watcher<S, H> {
    /// Renews the report.
    pub(super) fn tell(&mut self) {
        if let Some(done) = &mut self.done.random {
            for (before, after) in self.held.iter().filter(|one| one.case.is_random()).map(|one| one.case.progress()) {
                // Nothing is known yet of advice just given.
                (done.before, done.after) = (before, if after > 0.0 { after } else { done.after });
            }
        }
        let mut line = String::new();
        if let Some(Advised { at, mappings, before, after }) = &self.done.random {
            let _ = write!(
                line,
                "random at {:.1} s in {mappings} mapping{}: {:.1}",
                at.as_secs_f64(),
                if *mappings == 1 { "" } else { "s" },
                before / 1e3
            );
            if *after > 0.0 {
                let _ = write!(line, " -> {:.1}", after / 1e3);
            }
            line.push_str(" thousand touches a second; ");
        }
        let at = self.samples.now();
        let backward = self.held.iter().find_map(|one| one.backward.as_ref()).map(|walk| walk.progress(at));
        self.done.backward = backward.or(self.done.backward);
        if let Some((before, after)) = self.done.backward {
            let (before, after) = (before / 1e3, after / 1e3);
            let _ = write!(line, "a walk backward, read ahead: {before:.0} -> {after:.0} thousand pages a second; ");
        }
        let streams = self.held.iter().flat_map(|one| &one.streams);
        let strided = self.done.strided + streams.map(|stream| stream.account().0).sum::<u64>();
        if strided > 0 {
            let _ = write!(line, "strides, read ahead: {strided} touches; ");
        }
        if let Some((before, after)) = self.done.kept {
            let _ = write!(
                line,
                "a loop, a part of it kept: {:.0} -> {:.0} thousand pages a second; ",
                before / 1e3,
                after / 1e3
            );
        }
        for would in &self.done.would {
            let _ = write!(line, "{would}; ");
        }
        if let (pages @ 1.., most) = self.done.loaded {
            let _ = write!(
                line,
                "a load from slow storage: {} MiB brought, {most} requests at a time; ",
                (pages * PAGE) >> 20
            );
        }
        if self.done.kept.is_some() || self.done.backward.is_some() || strided > 0 {
            // The engine serves such walks at the device's speed.
            let mapped: u64 = self.held.iter().map(|one| one.mapping.bytes()).sum();
            let room = (self.room * PAGE * 3 / 4).min(mapped) >> 20;
            let _ = write!(line, "--cache {room}MiB may serve it faster; ");
        }
        if !line.is_empty() {
            self.report.set(line.trim_end_matches("; "));
        }
    }
}
