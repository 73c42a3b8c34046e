//! Zero-fill ahead of a program that fills a hole of its file from front to back.

use crate::page::claims::Loading;
use crate::page::dirty::BLOCK_PAGES;
use crate::page::word::State;
use crate::pool::pool::MOST_AHEAD;
use crate::region::install::unclaim;
use crate::region::page_ref::PageRef;
use crate::region::registry;
use crate::region::write_state::EXPIRED_TICKS;
use std::sync::atomic::Ordering;

/// Installs pages behind the one that the program has just stored to, writable and zero: as many as lie filled before it, so twice as many
/// each time. They need no read, and one trap serves them all. If the program stops, the file gets pages of zeros in place of a hole: at
/// most as many as the program wrote itself.
pub fn fill_ahead(page: PageRef<'_>, end: usize, core: usize) {
    let (region, page) = (page.region(), page.number());
    let pool = region.pool();
    let is_resident = |page: &usize| matches!(region.word(*page).look().state(), State::Clean | State::Dirty);
    let filled = (page.saturating_sub(MOST_AHEAD)..page).rev().take_while(is_resident).count();
    let (block, within) = (page / BLOCK_PAGES, page % BLOCK_PAGES);
    if block > 0 && within < filled && region.scratch().is_none() {
        // The block before is full, and a program that fills a file does not come back soon. The writers write it meanwhile.
        region.writes().ages()[block - 1].store(EXPIRED_TICKS, Ordering::Relaxed);
        pool.wake_writers();
    }
    let start = page + 1;
    let end = end.min(region.address().stripe_end(page)).min(start + filled.min(pool.most_ahead()));
    let mut claimed = start;
    while claimed < end && pool.free_frames.take(core) {
        let Some(claim) = Loading::begin(region.page(claimed), region.word(claimed).look()) else {
            pool.give_free_frames(core, 1);
            break;
        };
        // Asked now that the page is claimed. A store to a page that gets no space reports the error. Such a page is read then: `take_hole` has
        // forgotten that it is a hole.
        let is_its = registry::has(region, claimed) && claimed < region.least_end().load(Ordering::Acquire);
        if !is_its || !region.take_hole(claimed) || region.take_space_of_claimed(claimed).is_err() {
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
    // SAFETY: absent pages of one stripe, which the state Loading gives to this thread; the pool has as many pages of zeros.
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
