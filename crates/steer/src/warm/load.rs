//! Reads back what was remembered: hot pages first, by as many requests at a time as pay, within the memory that files can have.

use super::Remembered;
use crate::PAGE;
use crate::act::PIECE;
use crate::act::Readers;
use crate::clock::now;
use crate::observe::Memory;
use crate::observe::may_load;
use crate::run::Run;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that were read back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes that were remembered, and those between them that are read along.
    pub wanted: u64,
    /// Of these, those for which there was memory.
    pub asked: u64,
    /// Of these, those that were not in memory yet, and were read.
    pub brought: u64,
}

/// Runs at most so many pages apart are read together: another request costs as much as the pages between them.
const GAP: u64 = 8;
/// How often the readers are given work.
const PAUSE: Duration = Duration::from_millis(2);
/// How often the free memory is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The queue is filled to at least this many pieces. Small pieces are read fast, and a short queue of them would be empty before the readers
/// are given more.
const QUEUE: usize = 64;

/// Reads all of these while `goes_on` returns `true`, in at most seven eighths of the memory that files can have.
pub fn load(files: &[(Arc<File>, Remembered)], memory: &mut Memory, goes_on: impl Fn() -> bool) -> Loaded {
    let pieces = pieces(files);
    let wanted = pieces.iter().map(|(_, piece)| piece.len * PAGE).sum();
    let (mut pieces, mut loaded) = (pieces.into_iter().peekable(), Loaded { wanted, ..Loaded::default() });
    let (mut readers, mut depth) = (Readers::default(), Depth::new(now()));
    let (mut room, mut looked) = (0, None::<Duration>);
    while goes_on() {
        let at = now();
        if looked.is_none_or(|looked| at - looked >= LOOK) {
            (room, looked) = (may_load(memory.for_files()), Some(at));
        }
        let (mut waiting, brought) = readers.state();
        let most = depth.judge(brought, at).min((room / 16 / (PIECE * PAGE)) as usize).max(1);
        readers.allow(most);
        let fits = |asked: u64, piece: &Run| asked + piece.len * PAGE <= room;
        while let Some((file, piece)) =
            pieces.next_if(|(_, piece)| waiting < (8 * most).max(QUEUE) && fits(loaded.asked, piece))
        {
            readers.bring(&files[file].0, piece.at * PAGE, (piece.len * PAGE) as usize, false);
            loaded.asked += piece.len * PAGE;
            waiting += 1;
        }
        // All is asked for and read, or no memory is left.
        if waiting == 0 {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    loaded.brought = readers.state().1;
    loaded
}

/// Requests at a time: as many as pay and no more, since the program's own reads wait behind them.
///
/// They begin at 2. A local disk is busy with 2 of 256 KiB; with 8 a program that reads at random went 10 times slower meanwhile, and
/// nothing was read back sooner. (Those of `patterns/load.rs` begin at 8: there the program reads the same pages.)
#[derive(Debug)]
struct Depth {
    now: usize,
    /// When the last trial began, and the bytes brought until then.
    since: (Duration, u64),
    /// Bytes a second with half as many requests. `None`: it is not being tried whether `now` pays.
    at_half: Option<f64>,
    rests_until: Duration,
}

const LEAST: usize = 2;
const MOST: usize = 64;
/// How long each depth is tried.
const TRIAL: Duration = Duration::from_millis(60);
/// A doubled number of requests pays if it multiplies the bytes a second by more than this.
const PAYS: f64 = 1.25;
/// How long a depth that was found to pay is kept.
const REST: Duration = Duration::from_secs(2);

impl Depth {
    fn new(now: Duration) -> Depth {
        Depth { now: LEAST, since: (now, 0), at_half: None, rests_until: now }
    }

    /// Requests that there may be, now that `brought` bytes are read in all.
    fn judge(&mut self, brought: u64, now: Duration) -> usize {
        let lasted = now.saturating_sub(self.since.0);
        if lasted < TRIAL {
            return self.now;
        }
        let rate = (brought - self.since.1) as f64 / lasted.as_secs_f64();
        self.since = (now, brought);
        if now < self.rests_until {
            return self.now;
        }
        let has_paid = self.at_half.take().is_none_or(|at_half| rate > at_half * PAYS);
        if has_paid && self.now < MOST {
            self.now *= 2;
            self.at_half = Some(rate);
            return self.now;
        }
        if !has_paid {
            self.now = (self.now / 2).max(LEAST);
        }
        self.rests_until = now + REST;
        self.now
    }
}

/// Pieces to read, each with its file's index: all hot ones, then the rest.
fn pieces(files: &[(Arc<File>, Remembered)]) -> Vec<(usize, Run)> {
    let of_heat = |is_hot: bool| {
        let of_file = move |(index, (_, remembered)): (usize, &(Arc<File>, Remembered))| {
            merged(remembered, is_hot).into_iter().flat_map(cut).map(move |piece| (index, piece)).collect::<Vec<_>>()
        };
        files.iter().enumerate().flat_map(of_file)
    };
    of_heat(true).chain(of_heat(false)).collect()
}

/// The runs that are hot, or those that are not. Those near one another are one.
fn merged(remembered: &Remembered, is_hot: bool) -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    for run in remembered.runs.iter().filter(|run| run.is_hot == is_hot).map(|run| run.pages) {
        match found.last_mut().filter(|last| run.at - last.end() <= GAP) {
            Some(last) => last.len = run.end() - last.at,
            None => found.push(run),
        }
    }
    found
}

fn cut(run: Run) -> impl Iterator<Item = Run> {
    let starts = (run.at..run.end()).step_by(PIECE as usize);
    starts.map(move |at| Run { at, len: PIECE.min(run.end() - at) })
}

#[cfg(test)]
// Sets of one run are meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::super::{PageSet, Version};
    use super::*;
    use std::path::Path;

    fn remembered(present: &[std::ops::Range<u64>], hot: &[std::ops::Range<u64>]) -> (Arc<File>, Remembered) {
        let set = |runs: &[std::ops::Range<u64>]| runs.iter().cloned().collect::<PageSet>();
        let version = Version { length: 1000 * PAGE, modified: (0, 0) };
        let one = Remembered::new(Path::new("/a"), version, 0, &set(present), &set(hot));
        (Arc::new(File::open("/dev/null").unwrap()), one)
    }

    #[test]
    fn what_is_hot_comes_first_of_all_files_and_what_is_near_is_read_together() {
        let files = [remembered(&[0..10, 15..20, 100..250], &[15..20]), remembered(&[0..3], &[0..3])];
        let run = |file, at, len| (file, Run { at, len });
        let expected = [run(0, 15, 5), run(1, 0, 3), run(0, 0, 10), run(0, 100, 64), run(0, 164, 64), run(0, 228, 22)];
        assert_eq!(pieces(&files), expected);
        assert_eq!(pieces(&[remembered(&[0..1, 9..10, 19..20], &[])]), [run(0, 0, 10), run(0, 19, 1)]);
    }

    #[test]
    fn there_are_as_many_requests_as_pay_and_no_more() {
        // Storage that so many requests keep busy. Counts how often each number of requests was chosen.
        let storage = |busy: usize| {
            let (mut depth, mut brought, mut count) = (Depth::new(Duration::ZERO), 0, LEAST);
            let mut seen = [0; MOST + 1];
            for step in 1..500 {
                brought += count.min(busy) as u64 * 1000;
                count = depth.judge(brought, Duration::from_millis(20 * step));
                seen[count] += 1;
            }
            seen
        };
        assert!(storage(2)[2] > 450 && storage(2)[8..].iter().all(|count| *count == 0));
        assert!(storage(16)[16] > 400 && storage(64)[64] > 450);
    }

    #[test]
    fn it_ends_when_it_is_told_to_and_when_there_is_nothing() {
        let mut memory = Memory::of(std::process::id());
        let files = [remembered(&[0..1000], &[])];
        assert_eq!(load(&files, &mut memory, || false), Loaded { wanted: 1000 * PAGE, ..Loaded::default() });
        assert_eq!(load(&[], &mut memory, || true), Loaded::default());
        // /dev/null has none of it.
        let loaded = load(&files, &mut memory, || true);
        assert_eq!((loaded.wanted, loaded.brought), (1000 * PAGE, 0));
    }
}
