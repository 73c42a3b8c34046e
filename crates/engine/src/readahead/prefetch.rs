//! Prefetching: the program says which pages it will need, and readers bring them in, many at a time.

use crate::page::word::State;
use crate::pool::ahead::Ahead;
use crate::pool::reader::{Pages, ReadRequest, Reader};
use crate::region::region::Region;
use crate::sys::cpu;
use crate::sys::signal::Blocked;
use std::ops::Range;

/// Pages that the queue takes, at most: four times as many as the largest requests under way have.
pub const MOST_QUEUED: usize = 2048;

/// Asks for the absent pages of ranges, in order, as far as the queue takes them. Returns how many ranges it took. A range
/// that is longer than the queue counts as taken when its first part is, which needs an empty queue.
pub fn offer(region: &Region, ranges: &[Range<usize>]) -> usize {
    match region.pool().ahead() {
        Some(ahead) => offer_to(ahead, region, ranges),
        // There are no readers: nothing is read, and all ranges count as taken.
        None => ranges.len(),
    }
}

/// Asks for pages behind one that was missed, before all other requests. False: no reader took them. Called by fault handlers.
pub fn ask(region: &Region, pages: Range<usize>) -> bool {
    let Some(ahead) = region.pool().ahead() else { return false };
    let request = Pages { region: region.id(), first: pages.start, count: pages.len() };
    hand_over(ahead, region, here(ahead), std::iter::once(request), pages.len(), true)
}

/// The reader that a processor asks first.
pub fn here(ahead: &Ahead) -> &Reader {
    &ahead.readers[cpu::current() % ahead.readers.len()]
}

/// Asks a reader for some requests, of so many pages together, and begins with them. False: its queue has no room. Signals are blocked.
fn hand_over(
    ahead: &Ahead,
    region: &Region,
    reader: &Reader,
    requests: impl ExactSizeIterator<Item = Pages>,
    pages: usize,
    first: bool,
) -> bool {
    ahead.prefetches.note_asked(pages);
    let is_asked = reader.ask(&mut requests.map(ReadRequest::Pages), first);
    if is_asked {
        ahead.go_on(region.pool(), reader);
    } else {
        ahead.prefetches.note_done(pages);
    }
    is_asked
}

fn offer_to(ahead: &Ahead, region: &Region, ranges: &[Range<usize>]) -> usize {
    let prefetches = &ahead.prefetches;
    let most = MOST_QUEUED.min(region.pool().capacity() / 8).max(1);
    let reader = here(ahead);
    let mut requests = Vec::new();
    // Pages in the requests.
    let mut asked = 0;
    let fits = |asked: usize, pages: usize| {
        let queued = prefetches.queued() + asked;
        queued == 0 || queued + pages <= most
    };
    let (mut taken, mut has_looked) = (0, false);
    // The bounds of the last range's map. Most ranges are of one map, and to look it up for each would be most of the cost.
    let mut bounds = 0..0;
    for range in ranges {
        region.store().ask(range.start, range.len());
        if !bounds.contains(&range.start) {
            bounds = region.ahead_of(range.start);
        }
        let range = range.start..bounds.end.min(range.end).max(range.start);
        let absent = |page: usize| region.word(page).look().state() == State::Absent;
        // A long range is cut: it costs much to look at each page, and the end will have changed by the time it is read.
        let range = if range.len() > most { range.start..range.start + most } else { range };
        let before = requests.len();
        let mut pages = 0;
        let mut at = range.start;
        while let Some(first) = (at..range.end).find(|page| absent(*page)) {
            at = (first..range.end).find(|page| !absent(*page)).unwrap_or(range.end);
            requests.push(Pages { region: region.id(), first, count: at - first });
            pages += at - first;
        }
        if !fits(asked, pages) && !std::mem::replace(&mut has_looked, true) {
            // Pages that have arrived make room for more. Not earlier: the device should first begin with what is asked for here.
            let _blocked = Blocked::all();
            ahead
                .readers
                .iter()
                .filter(|reader| reader.is_at_work())
                .for_each(|reader| ahead.go_on(region.pool(), reader));
        }
        if !fits(asked, pages) {
            requests.truncate(before);
            break;
        }
        asked += pages;
        taken += 1;
    }
    if !requests.is_empty() {
        let _blocked = Blocked::all();
        if !hand_over(ahead, region, reader, requests.into_iter(), asked, false) {
            return 0;
        }
    }
    taken
}
