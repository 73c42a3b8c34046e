//! Brings ranges of pages into memory, with many reads at a time, and waits for them.

use crate::error::{Error, Result};
use crate::page::word::State;
use crate::pin::pin::{self, Hold};
use crate::readahead::prefetch::{MOST_QUEUED, offer};
use crate::region::region::Region;
use std::ops::Range;

/// Times that `fetch` asks again for pages that have left memory meanwhile, at most.
const MOST_ROUNDS: usize = 8;

/// Brings all pages of ranges in. Returns when each page has been in memory, and, if they fit into the cache, when all are there together.
pub fn fetch(region: &Region, ranges: &[Range<usize>]) -> Result<()> {
    ranges.iter().for_each(|range| region.store().ask(range.start, range.len()));
    fetch_once(region, ranges)?;
    if ranges.iter().map(Range::len).sum::<usize>() > region.pool().capacity() {
        return Ok(());
    }
    // Some may be gone again. Pages that were in memory before are old, and may have made room for the others. Or all went through a
    // short queue that has only a sixteenth of memory. Pages that come back soon stay.
    for _ in 0..MOST_ROUNDS {
        let is_gone = |page: &usize| !matches!(region.word(*page).look().state(), State::Clean | State::Dirty);
        let gone: Vec<_> = ranges.iter().cloned().flatten().filter(is_gone).map(|page| page..page + 1).collect();
        if gone.is_empty() {
            return Ok(());
        }
        fetch_once(region, &gone)?;
    }
    // Pages may push each other out for ever, in the queues of one core, while another core's queues hold pages that nobody wants. Pins end
    // that.
    match ranges.iter().map(|range| Hold::new(region, range.clone(), false)).collect::<Result<Vec<_>>>() {
        // The pages are more than may be pinned, or others have pinned too many.
        Ok(_) | Err(Error::PinBudget { .. } | Error::TooManyPins { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn fetch_once(region: &Region, ranges: &[Range<usize>]) -> Result<()> {
    /// Ranges drawn at a time.
    const DRAWN: usize = 1024;
    // The parts are short enough for the queue to take one whole.
    let most = MOST_QUEUED.min(region.pool().capacity() / 8).max(1);
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
        if let Some(ahead) = region.pool().ahead() {
            ahead.await_prefetched(region.pool());
        }
        // At least one, to make progress: other threads may fill the queue, or there may be no readers any more.
        let offered: Vec<_> = coming.drain(..taken.max(1)).collect();
        // Pages that the readers had no room for, that are staged, or whose read has failed.
        for page in offered.into_iter().flatten() {
            if !matches!(region.word(page).look().state(), State::Clean | State::Dirty) {
                pin::bring(region, page)?;
            }
        }
    }
}
