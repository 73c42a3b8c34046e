//! Bookkeeping of a region that is far larger than its cache goes back to the kernel with the pages that it is for.
//!
//! A page word is four bytes, and its page's place in the page tables is eight: little beside a page that is in memory, and much beside a file
//! of which one page in a thousand ever is. Where the words of a region would take more than a part of the cache (`is_sparse`), a *group* of
//! pages, those whose words are a page of memory, gives that back once none of them is in memory, and the page tables with it: advice on
//! a whole 2 MiB frees them (Linux 6.14). What the words remembered of evictions is forgotten.
//!
//! It is safe since all words of the group are claimed first, as loads are, so that nobody changes one; and since a claim of this kind is not
//! slept on, so that nobody misses the wake ([`PageWord::begin_return`](crate::page::word::PageWord::begin_return)). Who takes a region's
//! addresses away holds their pages meanwhile, and has said so when it lets them go: no memory but the region's own is dropped.

use crate::page::word::PageWord;
use crate::region::region::{Region, is_sparse};
use crate::sys::{PAGE, madvise};

/// Pages of a group.
const GROUP: usize = PAGE / size_of::<PageWord>();

/// After pages of a region have left memory, in ascending order: gives back what is kept of their groups, where that is all that is left.
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

/// Signals are blocked.
fn give_back_group(region: &Region, first: usize) {
    let pages = first..first + GROUP;
    // What lies behind the reach is held by its gate, not by words.
    let is_its = || region.owns(&pages) && pages.end <= region.reach().end();
    if !is_its() || pages.clone().any(|page| !region.word(page).may_return()) {
        return;
    }
    let claimed = pages.clone().take_while(|page| region.word(*page).begin_return()).count();
    // Looked at with all of them claimed.
    if claimed == GROUP && is_its() {
        let range = libc::iovec { iov_base: region.address_of(first).cast(), iov_len: GROUP * PAGE };
        // SAFETY: addresses of this region, whose pages are all absent, and stay so while their words are claimed. Should the kernel refuse,
        // page tables stay.
        unsafe { madvise::drop_pages(&[range]) };
        // SAFETY: the words are this thread's.
        if unsafe { region.drop_words(&pages) } {
            return;
        }
    }
    pages.take(claimed).for_each(|page| region.word(page).abort_return());
}
