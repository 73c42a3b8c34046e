//! Gives the bookkeeping for absent pages back to the kernel, in regions that are far larger than their cache.
//!
//! A page word is four bytes, and a page's place in the page tables is eight. That is little beside a page in memory, and much beside a file
//! of which one page in a thousand ever is in memory. It is given back in regions whose words would take more than a sixteenth of the cache
//! (`is_sparse`), by *groups*: a group is the pages whose words fill a page of memory. Once no page of a group is in memory, the words' page
//! and the group's page tables are given back. (Advice on a whole 2 MiB frees page tables: Linux 6.14.) The ghosts in the words are lost.
//!
//! Why it is safe:
//!
//! * All words of the group are claimed first, as for loads, so nobody changes one.
//! * Nobody sleeps on a claim of this kind, so no wake is missed ([`PageWord::begin_return`](crate::page::word::PageWord::begin_return)).
//! * A thread that takes addresses away from a region holds their pages meanwhile, and has noted it when it lets them go. So only the
//!   region's own memory is dropped.

use crate::page::word::PageWord;
use crate::region::region::{Region, is_sparse};
use crate::sys::{PAGE, madvise};

/// Pages of a group.
const GROUP: usize = PAGE / size_of::<PageWord>();

/// Gives back the bookkeeping of the groups of some pages, where no page is left in memory. The pages have just left memory, and come in
/// ascending order.
pub fn give_back(region: &Region, pages: impl Iterator<Item = usize>) {
    if !is_sparse(region.store().size(), region.pool().capacity()) {
        return;
    }
    let mut last = None;
    for group in pages.map(|page| page / GROUP) {
        if last.replace(group) != Some(group) {
            give_back_group(region, group * GROUP);
        }
    }
}

/// Gives back the bookkeeping of the group that begins with `first`, if no page of it is in memory. Signals are blocked.
fn give_back_group(region: &Region, first: usize) {
    let pages = first..first + GROUP;
    // Pages behind the reach are held by its gate and not by their words.
    let is_its = || region.owns(&pages) && pages.end <= region.reach().end();
    if !is_its() || pages.clone().any(|page| !region.word(page).may_return()) {
        return;
    }
    let claimed = pages.clone().take_while(|page| region.word(*page).begin_return()).count();
    // Asked again, now that all of them are claimed.
    if claimed == GROUP && is_its() {
        let range = libc::iovec { iov_base: region.address_of(first).cast(), iov_len: GROUP * PAGE };
        // SAFETY: addresses of this region, whose pages are absent, and stay so while their words are claimed. If the kernel refuses, the page
        // tables stay.
        unsafe { madvise::drop_pages(&[range]) };
        // SAFETY: the words are this thread's.
        if unsafe { region.drop_words(&pages) } {
            return;
        }
    }
    pages.take(claimed).for_each(|page| region.word(page).abort_return());
}
