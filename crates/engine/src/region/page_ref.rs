//! A page of a region, as a fault hands it down: the region, and the page's number, word and address, each looked up once.

use crate::page::claims::PageAccess;
use crate::page::word::{After, PageWord, Seen};
use crate::region::prediction::StorePrediction;
use crate::region::region::Region;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, futex};

/// A page of a mapped file.
#[derive(Debug, Clone, Copy)]
pub struct PageRef<'a> {
    region: &'a Region,
    number: usize,
    word: &'a PageWord,
    address: *mut u8,
}

impl<'a> PageRef<'a> {
    /// The page with a number.
    #[inline]
    pub fn new(region: &'a Region, number: usize) -> Self {
        PageRef { region, number, word: region.word(number), address: region.address_of(number) }
    }

    /// Its region.
    #[inline]
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// Its number in the file.
    #[inline]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Where it lies in memory.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The userfaultfd that serves it.
    #[inline]
    pub fn userfaultfd(&self) -> &'static Userfaultfd {
        self.region.userfaultfd(self.number)
    }

    /// Its word's value.
    #[inline]
    pub fn look(&self) -> Seen {
        self.word.look()
    }

    /// Wakes the threads that sleep on it: the only wake.
    #[inline]
    pub fn wake(&self) {
        futex::wake_all(self.word.futex());
    }
}

impl PageAccess for PageRef<'_> {
    #[inline]
    fn word(&self) -> &PageWord {
        #[cfg(all(test, not(loom)))]
        crate::sys::crash::pass();
        self.word
    }

    #[inline]
    fn mark_dirty(&self) {
        self.region.dirty().set(self.number);
    }

    #[inline]
    unsafe fn copy(&self, from: *const u8, protected: bool) -> Result<(), i32> {
        // SAFETY: an absent page of this region that its claim gives to this thread; `from` is a page (the caller's contract).
        unsafe { self.userfaultfd().copy_page(self.address, from, protected) }
    }

    #[inline]
    fn protect(&self, on: bool) -> Result<(), i32> {
        // SAFETY: a resident page of this region; its claim lets no one drop it.
        unsafe { self.userfaultfd().write_protect(self.address, PAGE, on) }
    }

    #[inline]
    fn settle(&self, after: After, core: usize) {
        let pool = self.region.pool();
        if after.newly_dirty {
            pool.count_dirty(core);
        }
        if after.dirty_again {
            pool.recount_dirty(core);
        }
        if after.enqueue {
            pool.enqueue(core, self.region.id(), self.number, after.returns);
        }
        if after.wake {
            self.wake();
        }
        if after.sample_stored {
            self.region.predictions().samples_at(self.number).for_each(StorePrediction::note_store);
        }
    }

    #[inline]
    fn is_admitted(&self) -> bool {
        self.region.reach().admits(self.number)
    }

    fn sleep(&self, expected: u32) {
        futex::wait(self.word.futex(), expected, None);
    }
}
