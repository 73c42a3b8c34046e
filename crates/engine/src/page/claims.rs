//! Claims. A claim is a token of the thread that has begun a transition of a page and has to end it.
//!
//! Each `begin` of `word.rs` that gives a page to one thread returns a token here, and the token's `finish` or `abort` ends the
//! transition: it wakes sleepers, queues the page and counts it ([`PageAccess::settle`]). A token that is dropped otherwise is a
//! bug, which the debug build reports. The steps whose order keeps stores from being lost are here and nowhere else, and the loom
//! models run this code: they implement [`PageAccess`] by a model of the page-table entry.
//!
//! A batch notes its claims in another form (a range, a set of bits, a slot): [`Loading::keep`] turns a token into its page, and `adopt`
//! makes a token of the page again. The other tokens have the same two functions.

use crate::page::word::{After, Claim, PageWord, Seen, State};
use crate::sys::sync::spin;

/// A page, as claims need it.
pub trait PageAccess: Copy {
    /// The page's word.
    fn word(&self) -> &PageWord;

    /// Sets the page's dirty bit.
    fn mark_dirty(&self);

    /// Makes the page resident with the bytes at `from` (UFFDIO_COPY); fails with an error number.
    ///
    /// # Safety
    /// `from` is a page.
    unsafe fn copy(&self, from: *const u8, protected: bool) -> Result<(), i32>;

    /// Write-protects the resident page, or lifts that (UFFDIO_WRITEPROTECT); fails with an error number.
    fn protect(&self, on: bool) -> Result<(), i32>;

    /// Does the work that is left after a transition. `core` says whose queue and counters are used.
    fn settle(&self, after: After, core: usize);

    /// Sleeps while the word is `expected`; may return at any time.
    fn sleep(&self, expected: u32);

    /// Whether the page may be claimed for loading at this moment.
    #[inline(always)]
    fn is_admitted(&self) -> bool {
        true
    }

    /// A model that leaves a step out says so here. The engine leaves none out.
    #[inline(always)]
    fn omits(&self, _step: Step) -> bool {
        false
    }

    /// Waits for another thread to end the transition that `seen` shows; may return at any time.
    #[inline]
    fn wait(&self, seen: Seen) {
        if let Some(expected) = self.word().announce_waiter(seen) {
            self.sleep(expected);
        } else if seen.is_returning() {
            spin();
        }
    }
}

/// Steps whose order matters, for the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Announcing that a page is installed writable, before it is.
    AnnounceWritable,
    /// Setting the dirty bit before a page becomes writable: a model that leaves this out sets it after.
    MarkBeforeUnprotect,
    /// Setting again the dirty bit of a page that could not be written.
    MarkAfterFailure,
    /// Setting again the dirty bit of a page that is written and stays writable.
    MarkAfterKeeping,
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[must_use = "the transition has to be ended"]
        #[derive(Debug)]
        pub struct $name<P: PageAccess>(P);

        impl<P: PageAccess> $name<P> {
            /// Turns the token into its page, for a batch that notes its claims elsewhere and ends each by [`Self::adopt`].
            #[inline]
            pub fn keep(self) -> P {
                let page = self.0;
                std::mem::forget(self);
                page
            }

            /// Makes the token of a claim that this thread has kept, or that was handed to it with a slot.
            #[inline]
            pub fn adopt(page: P) -> Self {
                $name(page)
            }
        }

        impl<P: PageAccess> Drop for $name<P> {
            fn drop(&mut self) {
                debug_assert!(std::thread::panicking(), concat!("a page is left in ", stringify!($name)));
            }
        }
    };
}

token!(
    /// A page in Loading, or Staged in a slot that this thread has claimed. It is absent, and only this thread may install it.
    Loading
);
token!(
    /// A page in Evicting. It is resident, and only this thread may save and drop it.
    Evicting
);
token!(
    /// A resident page with UPGRADING: this thread makes it writable.
    Upgrading
);
token!(
    /// A page with WRITING: this thread writes it to the file.
    Writing
);

impl<P: PageAccess> Loading<P> {
    /// The page.
    #[inline]
    pub fn page(&self) -> P {
        self.0
    }

    /// Claims a page that was seen Absent ([`PageWord::begin_load`]), if it is admitted.
    #[inline]
    pub fn begin(page: P, seen: Seen) -> Option<Self> {
        (page.is_admitted() && page.word().begin_load(seen)).then(|| Loading(page))
    }

    /// Claims a page that was seen Absent for a reader ([`PageWord::begin_read`]), if it is admitted.
    pub fn begin_read(page: P, seen: Seen, reader: usize) -> Option<Self> {
        (page.is_admitted() && page.word().begin_read(seen, reader)).then(|| Loading(page))
    }

    /// Announces that the page is going to be installed writable, and sets its dirty bit. Both come before the page is there: another
    /// thread may store to it and flush before this one goes on.
    #[inline]
    pub fn announce_writable(&self) {
        if !self.0.omits(Step::AnnounceWritable) {
            self.0.word().begin_writable_install();
        }
        self.0.mark_dirty();
    }

    /// Makes the page resident with the bytes at `from`; [`Loading::finish`] publishes it.
    ///
    /// # Safety
    /// `from` is a page.
    #[inline]
    pub unsafe fn install(&self, from: *const u8, writable: bool) -> Result<(), i32> {
        if writable {
            self.announce_writable();
        }
        // SAFETY: the caller's contract.
        unsafe { self.0.copy(from, !writable) }
    }

    /// Publishes the installed page ([`PageWord::finish_load`]).
    #[inline]
    pub fn finish(self, writable: bool, sample: bool, protected: bool, core: usize) {
        let page = self.keep();
        page.settle(page.word().finish_load(writable, sample, protected), core);
    }

    /// Gives up the claim; the page stays absent. Threads that wait for the page try to load it themselves.
    pub fn abort(self) {
        let page = self.keep();
        page.settle(page.word().abort_load(), 0);
    }
}

impl<P: PageAccess> Upgrading<P> {
    /// The page.
    #[inline]
    pub fn page(&self) -> P {
        self.0
    }

    /// Claims a resident page that was seen without UPGRADING ([`PageWord::begin_upgrade`]).
    #[inline]
    pub fn begin(page: P, seen: Seen) -> Option<Self> {
        page.word().begin_upgrade(seen).then(|| Upgrading(page))
    }

    /// Claims a page that stays resident. If another thread has claimed it, waits for that thread, which itself waits for nothing.
    pub fn await_turn(page: P) -> Self {
        loop {
            let seen = page.word().look();
            if seen.is_upgrading() {
                page.wait(seen);
            } else if let Some(claim) = Upgrading::begin(page, seen) {
                return claim;
            }
        }
    }

    /// Sets the dirty bit, before the page's protection is lifted.
    #[inline]
    pub fn mark_dirty(&self) {
        if !self.0.omits(Step::MarkBeforeUnprotect) {
            self.0.mark_dirty();
        }
    }

    /// Makes the page writable and Dirty. On failure it counts as dirty too, which is safe: it is written once too often.
    #[inline]
    pub fn upgrade(self, core: usize) -> Result<(), i32> {
        self.mark_dirty();
        let lifted = self.0.protect(false);
        self.finish(core);
        lifted
    }

    /// Gives up the claim; the page stays protected ([`PageWord::abort_upgrade`]).
    #[cold]
    pub fn abort(self, core: usize) {
        let page = self.keep();
        page.settle(page.word().abort_upgrade(), core);
    }

    /// Says that the page is writable ([`PageWord::finish_upgrade`]).
    #[inline]
    pub fn finish(self, core: usize) {
        let page = self.keep();
        page.settle(page.word().finish_upgrade(), core);
        if page.omits(Step::MarkBeforeUnprotect) {
            page.mark_dirty();
        }
    }
}

impl<P: PageAccess> Writing<P> {
    /// Claims a dirty page for a write ([`PageWord::begin_write`]); the caller holds the block's lock. Returns the claim and how to write
    /// the page. A page that another thread is making writable may hold stores already, so this waits for that thread, which itself waits
    /// for nothing. `None`: the page is not dirty.
    pub fn begin(page: P) -> Option<(Self, Claim)> {
        loop {
            if let Some(claim) = page.word().begin_write() {
                return Some((Writing(page), claim));
            }
            let seen = page.word().look();
            if seen.is_upgrading() {
                page.wait(seen);
            } else if seen.state() != State::Dirty {
                return None;
            }
        }
    }

    /// Ends the write ([`PageWord::finish_write`]), saved or not. A page that stays dirty gets its bit again, before the block's
    /// lock is released: a thread that flushes next finds it.
    pub fn finish(self, saved: bool, claim: Claim, core: usize) {
        let page = self.keep();
        page.settle(page.word().finish_write(saved), core);
        let keep = claim == Claim::Keep && !page.omits(Step::MarkAfterKeeping);
        if keep || !saved && !page.omits(Step::MarkAfterFailure) {
            page.mark_dirty();
        }
    }
}

impl<P: PageAccess> Evicting<P> {
    /// Claims a clean page whose queue entry this thread has popped ([`PageWord::begin_evict`]).
    #[inline]
    pub fn begin(page: P) -> Option<Self> {
        page.word().begin_evict().then(|| Evicting(page))
    }

    /// Claims a page of a huge frame whose queue entry this thread has ([`PageWord::begin_evict_huge`]).
    pub fn begin_huge(page: P) -> Option<Self> {
        page.word().begin_evict_huge().then(|| Evicting(page))
    }

    /// Takes [`Evicting::begin_huge`] back.
    pub fn abort_huge(self) {
        let page = self.keep();
        page.settle(page.word().abort_evict_huge(), 0);
    }

    /// Claims a resident page, clean or dirty, that has to leave memory ([`PageWord::begin_invalidate`]). Also returns whether it was
    /// dirty, and whether it has a queue entry.
    pub fn begin_invalidate(page: P) -> Option<(Self, bool, bool)> {
        page.word().begin_invalidate().map(|(was_dirty, was_queued)| (Evicting(page), was_dirty, was_queued))
    }

    /// Says that the memory is gone ([`PageWord::finish_evict`]).
    #[inline]
    pub fn finish(self, stamp: Option<u32>) {
        let page = self.keep();
        page.settle(page.word().finish_evict(stamp), 0);
    }

    /// Says that the memory is gone, and keeps the page from being loaded ([`PageWord::hold`]).
    pub fn hold(self) -> Loading<P> {
        let page = self.keep();
        page.word().hold();
        Loading(page)
    }

    /// Gives the page back, Dirty: it could not be saved, or need not go ([`PageWord::abort_invalidate`]).
    pub fn abort(self, core: usize) {
        let page = self.keep();
        page.mark_dirty();
        page.settle(page.word().abort_invalidate(), core);
        // A writer may have taken the mark before the page was dirty again, and have passed over it.
        page.mark_dirty();
    }
}
