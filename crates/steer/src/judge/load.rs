//! Which pages to bring of a file that a program reads from slow storage: all of them while memory is free, else those that a walk
//! forward comes to next.

use super::{Run, WINDOW};
use crate::PAGE;
use std::ops::Range;
use std::time::Duration;

/// Follows the load of one mapping. Readers beside the program bring its pages before the program touches them.
#[derive(Debug)]
pub struct Load {
    /// The mapping's length in pages.
    pages: u64,
    /// The page to bring next.
    next: u64,
    what: What,
    moved: Duration,
}

/// The pages that are brought.
#[derive(Debug)]
enum What {
    /// All pages of a mapping that fits into memory; after the last comes the first. `left`: not asked for yet. `brought`: asked for.
    /// `touched`: touched by the program meanwhile.
    Whole { left: u64, brought: u64, touched: u64 },
    /// The pages ahead of a walk forward, `window` pages ahead of its `front` at most.
    Walk { front: u64, window: u64 },
}

/// Pages that a reader brings at a time: 256 KiB.
pub const PIECE: u64 = 64;
/// Storage is slow for a program that waits longer than this for each window.
const SLOW: Duration = Duration::from_micros(130);
/// A load that has not gone on for so long has ended.
const PATIENCE: Duration = Duration::from_secs(5);
/// A walk that has not gone on for so long has ended.
const WALKS: Duration = Duration::from_millis(500);
/// A walk may leave out so many pages. A look may not show them either: they are gone again.
const NEAR: u64 = 4 * PIECE;
/// Pages that are enough to tell whether touches are dense.
const ENOUGH: u64 = 256;
/// A row of dense touches has so many pages at least: 192 KiB.
const ROW: u64 = 48;

impl Load {
    /// A load that goes on after page `front` of a mapping of `pages`.
    pub fn new(front: u64, pages: u64, now: Duration) -> Load {
        let what = What::Whole { left: pages, brought: 0, touched: 0 };
        Load { pages, next: front.min(pages), what, moved: now }
    }

    /// A walk forward that has come to page `front` of a mapping of `pages`. At most `window` pages are brought ahead of it.
    pub fn of_walk(front: u64, pages: u64, window: u64, now: Duration) -> Load {
        Load { pages, next: front.min(pages), what: What::Walk { front, window: window.max(PIECE) }, moved: now }
    }

    /// Pages of memory that it needs.
    pub fn needs(&self) -> u64 {
        match self.what {
            What::Whole { .. } => self.pages,
            What::Walk { window, .. } => window,
        }
    }

    /// Where to look for the next touches.
    pub fn ahead(&self) -> Range<u64> {
        match self.what {
            What::Whole { .. } => 0..self.pages,
            // It may begin anew.
            What::Walk { front, window } if front + WINDOW >= self.pages => 0..(4 * window).min(self.pages),
            What::Walk { front, window } => front..(front + 4 * window).min(self.pages),
        }
    }

    /// Notes what the program has touched, in order. `false` once all is asked for, or if the load does not go on.
    pub fn follow(&mut self, new: &[Run], now: Duration) -> bool {
        let next = self.next;
        match &mut self.what {
            What::Whole { touched, .. } => {
                if let Some(last) = new.last() {
                    self.moved = now;
                    *touched += new.iter().map(|run| run.len).sum::<u64>();
                    // The program has passed the readers.
                    let is_near = |run: &&Run| run.at <= next + PIECE && next < run.end();
                    if let Some(run) = new.iter().find(is_near).filter(|run| run.end() <= last.end()) {
                        self.skip(run.end() - next);
                    }
                }
                !self.is_all_asked() && now.saturating_sub(self.moved) < PATIENCE
            }
            What::Walk { front, .. } => {
                if *front + WINDOW >= self.pages
                    && let Some(first) = new.first().filter(|run| run.len >= WINDOW)
                {
                    (*front, self.next) = (first.at, first.end());
                }
                for run in new.iter().filter(|run| run.len > 1) {
                    if run.at <= *front + NEAR && *front < run.end() {
                        *front = run.end();
                        self.moved = now;
                    }
                }
                self.next = self.next.max(*front);
                now.saturating_sub(self.moved) < WALKS
            }
        }
    }

    fn is_all_asked(&self) -> bool {
        matches!(self.what, What::Whole { left: 0, .. })
    }

    fn skip(&mut self, pages: u64) {
        let What::Whole { left, .. } = &mut self.what else {
            self.next += pages;
            return;
        };
        let pages = pages.min(*left);
        *left -= pages;
        self.next = if self.next + pages >= self.pages { 0 } else { self.next + pages };
    }

    /// Pages that may be asked for now, from the next one on. At most `room` pages of a load may be asked for and not touched yet.
    fn may_ask(&mut self, room: u64) -> u64 {
        match self.what {
            What::Whole { left, brought, touched } => {
                if self.next >= self.pages {
                    self.next = 0;
                }
                if brought < touched + room { left.min(self.pages - self.next) } else { 0 }
            }
            What::Walk { front, window } if self.next < front + window => self.pages.saturating_sub(self.next),
            What::Walk { .. } => 0,
        }
    }

    /// Pieces to bring now, at most `count`. At most `room` pages of a load may be asked for and not touched yet.
    pub fn ask(&mut self, room: u64, count: usize) -> Vec<Run> {
        let mut ask = Vec::new();
        while ask.len() < count {
            let len = PIECE.min(self.may_ask(room));
            if len == 0 {
                break;
            }
            ask.push(Run { at: self.next, len });
            if let What::Whole { brought, .. } = &mut self.what {
                *brought += len;
            }
            self.skip(len);
        }
        ask
    }
}

/// Pages, or bytes, that may be brought before they are touched: seven eighths of the `room` that files can have.
pub fn may_load(room: u64) -> u64 {
    room - room / 8
}

/// Pages that may be brought ahead of a walk: an eighth of the `room` that files can have, and 32 MiB at most, which keep the fastest
/// of slow storage busy.
pub fn window(room: u64) -> u64 {
    (room / 8).min(8192)
}

/// Whether storage is slow for a program whose threads slept so long in `faults` faults, which touched so many windows and read so many
/// bytes. By windows, not by faults: a program that copies what it loads also faults on new memory, which waits for nothing, and a fault on a
/// large folio maps two. No look has shown what was touched and is gone again, but it was read. At most two windows for each fault count so,
/// since read(2) reads, too.
pub fn is_slow(slept: Duration, faults: u64, touched: u64, read: u64) -> bool {
    let windows = touched.max((read / (WINDOW * PAGE)).min(2 * faults));
    slept > SLOW * u32::try_from(windows).unwrap_or(u32::MAX).max(1)
}

/// Whether touches are dense: at least seven tenths of the pages lie in rows of 48 or more, longer than what the kernel maps for one
/// touch. `None` if there are too few.
pub fn is_dense(runs: &[Run]) -> Option<bool> {
    let (mut all, mut in_rows) = (0, 0);
    let mut row = Run { at: 0, len: 0 };
    for run in runs.iter().chain([&Run { at: u64::MAX / 2, len: 0 }]) {
        all += run.len;
        // One page may be missing: the one that the kernel has marked for readahead.
        if run.at <= row.end() + 1 {
            row.len = run.end() - row.at;
            continue;
        }
        if row.len >= ROW {
            in_rows += row.len;
        }
        row = *run;
    }
    (all >= ENOUGH).then_some(in_rows * 10 >= all * 7)
}

/// Requests of readers at a time: as many as pay.
#[derive(Debug)]
pub struct Depth {
    now: usize,
    /// When the last trial began, and the bytes brought until then.
    since: (Duration, u64),
    /// Bytes a second in the trial before.
    before: f64,
}

const LEAST: usize = 8;
const MOST: usize = 64;
/// How long each depth is tried.
const TRIAL: Duration = Duration::from_millis(60);

impl Depth {
    /// Begins with the least number of requests.
    pub fn new(now: Duration) -> Depth {
        Depth { now: LEAST, since: (now, 0), before: 0.0 }
    }

    /// Requests that there may be, now that `brought` bytes are read in all.
    pub fn judge(&mut self, brought: u64, now: Duration) -> usize {
        let lasted = now.saturating_sub(self.since.0);
        if lasted >= TRIAL {
            let rate = (brought - self.since.1) as f64 / lasted.as_secs_f64();
            if rate > self.before * 1.15 {
                self.now = (self.now * 2).min(MOST);
            } else if rate < self.before * 0.7 {
                self.now = (self.now / 2).max(LEAST);
            }
            self.before = rate;
            self.since = (now, brought);
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn all_of_a_file_is_brought_once_from_where_the_program_is() {
        let mut load = Load::new(300, 1000, at(0));
        let asked = load.ask(10_000, 100);
        assert_eq!(asked[0], Run { at: 300, len: 64 });
        assert_eq!(asked.iter().map(|run| run.len).sum::<u64>(), 1000);
        let mut pages: Vec<u64> = asked.iter().flat_map(|run| run.at..run.end()).collect();
        pages.sort_unstable();
        assert!(pages.into_iter().eq(0..1000));
        assert!(!load.follow(&[], at(1)));
    }

    #[test]
    fn no_more_is_ahead_than_there_is_room_and_readers_that_are_passed_go_on_ahead() {
        let mut load = Load::new(0, 100_000, at(0));
        assert_eq!(load.ask(640, 100).len(), 10);
        assert!(load.ask(640, 100).is_empty());
        assert!(load.follow(&[Run { at: 0, len: 128 }], at(1)));
        assert_eq!(load.ask(640, 100), [Run { at: 640, len: 64 }, Run { at: 704, len: 64 }]);
        assert!(load.follow(&[Run { at: 700, len: 5000 }], at(2)));
        assert_eq!(load.ask(6400, 1), [Run { at: 5700, len: 64 }]);
        assert!(load.follow(&[], at(4000)) && !load.follow(&[], at(6000)));
    }

    #[test]
    fn a_walk_has_what_it_comes_to_next_and_no_more_and_is_found_again_at_the_beginning() {
        let mut load = Load::of_walk(1000, 2000, 256, at(0));
        let next = |load: &mut Load| -> Vec<u64> { load.ask(0, 100).iter().map(|run| run.at).collect() };
        assert_eq!(next(&mut load), [1000, 1064, 1128, 1192]);
        assert!(next(&mut load).is_empty());
        assert_eq!(load.ahead(), 1000..2000);
        assert!(load.follow(&[Run { at: 1000, len: 100 }], at(1)));
        assert_eq!(next(&mut load), [1256, 1320]);
        // It is faster than the readers; what others touch elsewhere is no part of it.
        assert!(load.follow(&[Run { at: 1090, len: 510 }, Run { at: 1950, len: 20 }], at(2)));
        assert_eq!(load.ask(0, 1), [Run { at: 1600, len: 64 }]);
        assert!(load.follow(&[Run { at: 1600, len: 399 }], at(3)));
        assert_eq!(next(&mut load), [1999]);
        assert_eq!(load.ahead(), 0..1024);
        assert!(load.follow(&[Run { at: 0, len: 40 }], at(4)));
        assert_eq!(next(&mut load)[0], 40);
        assert!(load.follow(&[], at(400)) && !load.follow(&[], at(600)));
    }

    #[test]
    fn storage_is_slow_by_what_a_window_waits_for_it() {
        let after = |slept: u64, faults, touched, read: u64| is_slow(at(slept), faults, touched, read << 20);
        // FUSE, half a millisecond a request: a fault maps a window, and no bytes are counted.
        assert!(after(82, 552, 552, 0));
        // The same, copied into new memory.
        assert!(after(82, 5520, 552, 0));
        // A disk: a fault maps two windows. Most of what was touched between long looks is gone again.
        assert!(!after(80, 1028, 2052, 128) && !after(437, 2356, 2526, 294) && !after(697, 3732, 1066, 466));
        // 2 ms a request, and read(2) of another file beside it.
        assert!(after(552, 552, 552, 1000));
        assert!(!after(0, 0, 0, 0));
    }

    #[test]
    fn rows_are_dense_and_single_places_with_what_is_mapped_around_them_are_not() {
        let rows: Vec<Run> = (0..20).map(|index| Run { at: index * 1000, len: 64 }).collect();
        assert_eq!(is_dense(&rows), Some(true));
        assert_eq!(is_dense(&rows[..3]), None);
        let around: Vec<Run> = (0..40).map(|index| Run { at: index * 1000, len: 16 }).collect();
        assert_eq!(is_dense(&around), Some(false));
        // The kernel's markers lie between.
        let marked: Vec<Run> = (0..40).map(|index| Run { at: index * 32, len: 31 }).collect();
        assert_eq!(is_dense(&marked), Some(true));
    }

    #[test]
    fn requests_become_more_while_that_pays() {
        let storage = |most: usize| {
            let (mut depth, mut brought, mut now) = (Depth::new(at(0)), 0, 0);
            let mut count = 8;
            for _ in 0..100 {
                now += 20;
                brought += count.min(most) as u64 * 1000;
                count = depth.judge(brought, at(now));
            }
            count
        };
        assert_eq!((storage(64), storage(8)), (64, 16));
    }
}
