//! How far into its file a region's pages were ever claimed. All pages behind that are absent, and one gate can hold them instead of a
//! claim of each: a program may map a terabyte of a file that has a gigabyte.

use crate::sys::sync::{AtomicUsize, Ordering, fence, spin};

/// Pages by which it grows at a time.
const STEP: usize = 1024;

/// The pages of a region that may have been claimed, and the gate before those behind them.
#[derive(Debug, Default)]
pub struct Reach {
    end: AtomicUsize,
    /// Threads that keep the gate shut.
    shut: AtomicUsize,
    /// Threads that are passing it.
    passing: AtomicUsize,
}

/// The gate kept shut: no page behind [`Reach::end`] is claimed until this is dropped.
#[derive(Debug)]
pub struct Shut<'a>(&'a Reach);

impl Reach {
    /// One page past the last that may ever have been claimed; it stays so while the gate is shut.
    pub fn end(&self) -> usize {
        self.end.load(Ordering::Acquire)
    }

    /// Asked before a page is claimed. False: somebody keeps the gate shut; the page may be claimed later. No lock, and nothing is
    /// waited for.
    #[inline]
    pub fn admits(&self, page: usize) -> bool {
        page < self.end.load(Ordering::Relaxed) || self.extend(page)
    }

    #[cold]
    fn extend(&self, page: usize) -> bool {
        // Either this thread sees that the gate is shut, or the thread that shuts it sees this one, and waits until it has passed.
        self.passing.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_open = self.shut.load(Ordering::Acquire) == 0;
        if is_open {
            self.end.fetch_max((page + 1).next_multiple_of(STEP), Ordering::Relaxed);
        }
        self.passing.fetch_sub(1, Ordering::Release);
        is_open
    }

    /// Shuts the gate. The caller has signals blocked meanwhile: a handler would wait for the thread that it interrupted.
    pub fn shut(&self) -> Shut<'_> {
        self.shut.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.passing.load(Ordering::Acquire) > 0 {
            spin();
        }
        Shut(self)
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.shut.fetch_sub(1, Ordering::Release);
    }
}
