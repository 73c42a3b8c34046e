//! Prefetching: the program says which pages it will need, and readers bring them in, many at a time.

use crate::ahead::Ahead;
use crate::error::Result;
use crate::page::State;
use crate::pinning;
use crate::readers::Order;
use crate::region::{Region, SlotIndex};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::signal::Blocked;
use crate::sys::{cpu, futex};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Pages of one request to the device, at most.
pub const PIECE_PAGES: usize = 4;
/// Pages that are taken in advance of the device, at most: four times its queue, of the largest requests.
pub const MOST_QUEUED: usize = 2048;

/// Times that `fetch` asks again for what has left memory meanwhile.
const MOST_ROUNDS: usize = 8;

/// Neighbouring pages that a reader is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    pub region: SlotIndex,
    pub first: usize,
    pub count: usize,
}

/// How far a cache's readers are with what they were asked for, pages.
#[derive(Debug, Default)]
pub struct Prefetches {
    asked: AtomicU64,
    done: AtomicU64,
    /// Raised with `done` while somebody waits.
    progress: AtomicU32,
    waiting: AtomicU32,
}

impl Prefetches {
    /// Pages asked for and not done.
    fn queued(&self) -> usize {
        let done = self.done.load(Ordering::Acquire);
        self.asked.load(Ordering::Acquire).saturating_sub(done) as usize
    }

    /// Notes pages that are in memory, or that nobody will bring there.
    pub fn note_done(&self, pages: usize) {
        if pages > 0 {
            self.done.fetch_add(pages as u64, Ordering::SeqCst);
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.progress.fetch_add(1, Ordering::SeqCst);
                futex::wake_all(&self.progress);
            }
        }
    }

    /// Waits until as many pages are done as were asked for at the call; not for a reader that has died, or a device that has
    /// given nothing for seconds: whoever touches the pages meets it.
    fn wait(&self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let asked = self.asked.load(Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let before = self.progress.load(Ordering::SeqCst);
            let done = self.done.load(Ordering::SeqCst);
            if done >= asked {
                break;
            }
            let start = Instant::now();
            futex::wait(&self.progress, before, Some(PATIENCE));
            if start.elapsed() >= PATIENCE && self.done.load(Ordering::SeqCst) == done {
                break;
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Asks for the absent pages of ranges, in order, as far as the queue takes them; how many ranges it took. Of a range that
/// is longer than the queue, it takes the first part if the queue is empty, and that counts as taken.
pub fn offer(region: &Region, ranges: &[Range<usize>]) -> usize {
    match region.cache().ahead() {
        Some(ahead) => offer_to(ahead, region, ranges),
        // Nobody reads ahead here: as good as taken, and forgotten.
        None => ranges.len(),
    }
}

fn offer_to(ahead: &Ahead, region: &Region, ranges: &[Range<usize>]) -> usize {
    let prefetches = &ahead.prefetches;
    let most = MOST_QUEUED.min(region.cache().capacity() / 8).max(1);
    let desk = &ahead.desks[cpu::current() % ahead.desks.len()];
    let mut orders = Vec::new();
    let mut queued = prefetches.queued();
    let mut taken = 0;
    // Most ranges are of one map: to ask for each would be most of what this costs.
    let mut bounds = 0..0;
    for range in ranges {
        if !bounds.contains(&range.start) {
            bounds = region.ahead_of(range.start);
        }
        let range = range.start..bounds.end.min(range.end).max(range.start);
        let absent = |page: usize| region.word(page).look().state() == State::Absent;
        // A look at each page is dear over a long range, and says little about its end by the time it is its turn.
        let range = if range.len() > most { range.start..range.start + most } else { range };
        let before = orders.len();
        let mut pages = 0;
        let mut at = range.start;
        while let Some(first) = (at..range.end).find(|page| absent(*page)) {
            at = (first..range.end).find(|page| !absent(*page)).unwrap_or(range.end);
            orders.push(Pages { region: region.slot(), first, count: at - first });
            pages += at - first;
        }
        if queued > 0 && queued + pages > most {
            orders.truncate(before);
            break;
        }
        queued += pages;
        taken += 1;
    }
    if !orders.is_empty() {
        let pages: usize = orders.iter().map(|order| order.count).sum();
        prefetches.asked.fetch_add(pages as u64, Ordering::AcqRel);
        let _blocked = Blocked::all();
        desk.lock_orders().extend(orders.into_iter().map(Order::Pages));
        desk.wake();
    }
    taken
}

/// Brings all pages of ranges in, and returns when each was in memory once, and all together if they fit.
pub fn fetch(region: &Region, ranges: &[Range<usize>]) -> Result<()> {
    fetch_once(region, ranges)?;
    if ranges.iter().map(Range::len).sum::<usize>() > region.cache().capacity() {
        return Ok(());
    }
    // Those that were there already are old, and may have made room for the others; or all of them were passed through a short
    // queue that has but a sixteenth of memory. Pages that come back soon stay.
    for _ in 0..MOST_ROUNDS {
        let is_gone = |page: &usize| !matches!(region.word(*page).look().state(), State::Clean | State::Dirty);
        let gone: Vec<_> = ranges.iter().cloned().flatten().filter(is_gone).map(|page| page..page + 1).collect();
        if gone.is_empty() {
            break;
        }
        fetch_once(region, &gone)?;
    }
    Ok(())
}

fn fetch_once(region: &Region, ranges: &[Range<usize>]) -> Result<()> {
    /// Ranges drawn at a time.
    const DRAWN: usize = 1024;
    // Short enough to be taken whole.
    let most = MOST_QUEUED.min(region.cache().capacity() / 8).max(1);
    let parts = |range: &Range<usize>| {
        let end = range.end;
        range.clone().step_by(most).map(move |start| start..end.min(start + most))
    };
    let mut parts = ranges.iter().flat_map(parts);
    // Drawn and not yet taken.
    let mut coming = Vec::new();
    loop {
        coming.extend(parts.by_ref().take(DRAWN - coming.len()));
        if coming.is_empty() {
            return Ok(());
        }
        let taken = offer(region, &coming);
        if let Some(ahead) = region.cache().ahead() {
            ahead.prefetches.wait();
        }
        // At least one: whoever fills the queue may be quicker than this thread, or the readers gone.
        let offered: Vec<_> = coming.drain(..taken.max(1)).collect();
        // What the readers had no room for, what is staged, and what fails.
        for page in offered.into_iter().flatten() {
            if !matches!(region.word(page).look().state(), State::Clean | State::Dirty) {
                pinning::bring(region, page)?;
            }
        }
    }
}
