//! Zero-fill-around: pages in a hole of the file that a program fills from front to back.

use crate::page::claims::Loading;
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::State;
use crate::pool::pool::MOST_AHEAD;
use crate::region::install::unclaim;
use crate::region::page_ref::PageRef;
use crate::region::write_state::EXPIRED_TICKS;
use std::sync::atomic::Ordering;

/// A program that fills a hole from front to back: the pages behind the one it just stored to are installed writable, as
/// many as lie filled before it, so twice as many each time. They need no read, and one trap serves them all. Should the
/// program stop, at most as many pages of zeros as it wrote pages are written to the file in place of a hole.
pub fn fill_ahead(page: PageRef<'_>, end: usize, core: usize) {
    let (region, page) = (page.region(), page.number());
    let pool = region.pool();
    let is_resident = |page: &usize| matches!(region.word(*page).look().state(), State::Clean | State::Dirty);
    let filled = (page.saturating_sub(MOST_AHEAD)..page).rev().take_while(is_resident).count();
    let (block, within) = (page / BLOCK_PAGES, page % BLOCK_PAGES);
    if block > 0 && within < filled && region.scratch().is_none() {
        // The block before is full, and a program that fills a file does not come back soon: writing it goes along with filling on.
        region.writes().ages()[block - 1].store(EXPIRED_TICKS, Ordering::Relaxed);
        pool.wake_writers();
    }
    let start = page + 1;
    let end = end.min(region.address().stripe_end(page)).min(start + filled.min(pool.most_ahead()));
    let mut claimed = start;
    while claimed < end && pool.free_frames.take(core) {
        let next = region.page(claimed);
        let Some(claim) = Loading::begin(next, next.look()) else {
            pool.give_free_frames(core, 1);
            break;
        };
        if !region.take_hole(claimed) {
            pool.give_free_frames(core, 1);
            claim.abort();
            break;
        }
        if region.take_space(claimed).is_err() {
            // A store there finds out. Of a hole that has been taken nothing is known any more, so the page is read.
            pool.give_free_frames(core, 1);
            claim.abort();
            break;
        }
        claim.announce_writable();
        claim.keep();
        claimed += 1;
    }
    if claimed == start {
        return;
    }
    // SAFETY: absent pages of one stripe that the state Loading gives to this thread; as many zeros are there.
    let installed =
        unsafe { region.userfaultfd(start).copy_pages(region.address_of(start), pool.zeros(), claimed - start, false) };
    (start..start + installed).for_each(|page| Loading::adopt(region.page(page)).finish(true, false, false, core));
    for page in start + installed..claimed {
        pool.give_free_frames(core, 1);
        unclaim(region, page);
    }
    pool.counters_at(core).born_zero.add(installed);
    region.counters_at(core).brought.add(installed);
}
