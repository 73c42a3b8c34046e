//! Finds a free frame: an idle one, else by evicting, else by writing dirty pages back (direct reclaim), else by waiting.

use crate::error::{Error, Result};
use crate::evict::batch;
use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, fork};
use crate::writeback::sweep::Swept;
use crate::writeback::{flush, sweep};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Pages that a faulting thread writes before it looks for a clean page again: with more, the thread waits for writes that it does not need.
const WRITES_OF_A_FAULT: usize = 32;
/// The most pages that a smaller capacity writes before it looks again: each time it waits for the last of them.
const WRITES_OF_A_RESIZE: usize = 512;

/// The room found for pages that are to be read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// None. Only writing dirty pages back would make some.
    None,
    /// Free frames.
    FreeFrames,
    /// Free frames, and a frame's memory in the slot.
    Frame,
}

impl Pool {
    /// Changes the capacity, pages, for the cache's owner ([`Cache::resize`](crate::Cache::resize)). From then on it no longer follows memory.
    pub fn resize(&self, capacity: usize) -> Result<()> {
        if fork::is_child() {
            // Dropping pages by address would reach into the parent.
            return Err(Error::in_a_child(Path::new("cache")));
        }
        let _resizing = self.resizing.lock().unwrap_or_else(|poison| poison.into_inner());
        self.change_to(capacity)?;
        if self.follows.swap(false, Ordering::AcqRel) {
            self.end_following();
        }
        Ok(())
    }

    /// Changes the capacity, pages, if it still follows memory.
    pub fn resize_to_follow(&self, capacity: usize) -> Result<()> {
        let _resizing = self.resizing.lock().unwrap_or_else(|poison| poison.into_inner());
        if self.follows.load(Ordering::Acquire) { self.change_to(capacity) } else { Ok(()) }
    }

    /// The caller holds `resizing`.
    fn change_to(&self, capacity: usize) -> Result<()> {
        if capacity > self.most() {
            return Err(Error::CapacityTooLarge { capacity: capacity * PAGE, maximum: self.most() * PAGE });
        }
        let before = self.capacity();
        if capacity > before {
            self.clean.make_room(capacity).map_err(Error::no_bookkeeping)?;
            // Before the free frames are issued: pages in memory never seem to be more than the capacity.
            self.change_capacity((capacity - before) as isize);
            self.free_frames.issue(capacity - before);
            self.waiting().wake_waiters();
        }
        // Before any page leaves: those that stay pinned must fit.
        self.fit_pins(capacity)
            .map_err(|pinned| Error::PinsHold { capacity: capacity * PAGE, pinned: pinned * PAGE })?;
        while self.capacity() > capacity {
            let excess = self.capacity() - capacity;
            match self.collect_free_frames(excess) {
                Ok(collected) => self.change_capacity(-(collected as isize)),
                // A flush tells which file cannot be written, or saves it after all.
                Err(_) => flush::write_out_all(self).inspect_err(|_| {
                    // The pins that fit the capacity that was reached. They are more than fitted the one that was wanted.
                    let _ = self.fit_pins(self.capacity());
                })?,
            }
        }
        // The writers' marks have moved.
        self.wake_writers();
        Ok(())
    }

    /// Takes 1 to `most` free frames, which will be destroyed, as `find_free_frame` takes one: idle ones, else by evicting a
    /// batch, else by writing dirty pages back.
    fn collect_free_frames(&self, most: usize) -> std::result::Result<usize, i32> {
        let _blocked = Blocked::all();
        let core = self.here();
        self.make_room(most.min(WRITES_OF_A_RESIZE), |_| {
            let idle = self.free_frames.withdraw(most);
            if idle > 0 { Some(idle) } else { self.free(core, most, || batch::evict_batch(self, core, &mut None)) }
        })
    }

    /// Takes a free frame: from this core's share, else another's, else by evicting, else by writing dirty pages back,
    /// else by waiting for the threads that hold them all. Fails with an error number when memory is full of pages that cannot
    /// be written.
    #[inline]
    pub fn take_free_frame(&self, core: usize) -> std::result::Result<(), i32> {
        if self.free_frames.take(core) { Ok(()) } else { self.find_free_frame(core) }
    }

    #[cold]
    fn find_free_frame(&self, core: usize) -> std::result::Result<(), i32> {
        self.make_room(WRITES_OF_A_FAULT, |failures| {
            if self.free_frames.take(core) || self.free_frames.steal(core, core + failures + 1) {
                return Some(());
            }
            self.free(core, 1, || self.free_some(core, &mut None)).map(drop)
        })
    }

    /// Finds 1 to `most` free frames by `first`, else by giving up staging memory; they are the caller's. Those beyond go into the core's share.
    fn free(&self, core: usize, most: usize, first: impl Fn() -> usize) -> Option<usize> {
        let free = || match first() {
            0 => self.reclaim_staging(),
            freed => freed,
        };
        let freed = match free() {
            0 if self.something_arrives(false) => free(),
            freed => freed,
        };
        if freed > most {
            self.give_free_frames(core, freed - most);
        }
        (freed > 0).then_some(freed.min(most))
    }

    /// Evicts a batch; while nothing is read ahead, staging memory goes first. Returns the free frames that this gives, which are the caller's.
    fn free_some(&self, core: usize, spare: &mut batch::Spare<'_>) -> usize {
        let is_quiet = self.ahead().is_some_and(Ahead::is_quiet);
        let freed = if is_quiet { self.reclaim_staging() } else { 0 };
        if freed > 0 { freed } else { batch::evict_batch(self, core, spare) }
    }

    /// Takes notice of reads ahead that have ended: their pages can be evicted or dropped now. Returns whether any has ended. With `waits`,
    /// waits for one if none has.
    fn something_arrives(&self, waits: bool) -> bool {
        self.ahead().is_some_and(|ahead| ahead.take_notice(self, |_| waits))
    }

    /// Gives up staging memory for free frames, which are the caller's.
    fn reclaim_staging(&self) -> usize {
        self.ahead().map_or(0, Ahead::reclaim)
    }

    /// Takes free frames for reading ahead, without waiting: idle ones, else by evicting. `frame` is an empty slot, if any: it gets the
    /// memory of the first frame that is evicted, and with it that frame's free frames.
    pub fn take_ahead(&self, core: usize, free_frames: usize, frame: batch::Spare<'_>) -> Room {
        let mut spare = frame;
        let mut have = self.free_frames.withdraw(free_frames);
        while have < free_frames {
            let freed = self.free_some(core, &mut spare);
            if freed == 0 {
                break;
            }
            have += freed;
        }
        let room = match (have >= free_frames, frame.is_some() && spare.is_none()) {
            (true, true) => Room::Frame,
            (true, false) => Room::FreeFrames,
            (false, false) => Room::None,
            // At least the evicted frame's free frames are there.
            (false, true) => unreachable!("an evicted frame is as many free frames as a frame needs"),
        };
        let left = if room == Room::None { have } else { have - free_frames };
        if left > 0 {
            self.give_free_frames(core, left);
        }
        room
    }

    /// Repeats `attempt` until it finds room, and writes `writes` dirty pages back in between. `attempt` is told how many writes have failed
    /// in a row. Signals are blocked.
    fn make_room<T>(&self, writes: usize, attempt: impl Fn(usize) -> Option<T>) -> std::result::Result<T, i32> {
        /// Failed writes in a row, after which it gives up. There is a pause after every second one, so this takes a second.
        const PATIENCE: usize = 40;
        let mut failures = 0;
        self.waiting().wait_for_room(|| {
            loop {
                if let Some(found) = attempt(failures) {
                    return Some(Ok(found));
                }
                match sweep::direct_reclaim(self, self.here(), writes) {
                    Swept::Wrote => failures = 0,
                    Swept::Nothing if self.something_arrives(true) => {}
                    Swept::Nothing => return None,
                    Swept::Failed(error) if failures == PATIENCE => return Some(Err(error)),
                    Swept::Failed(_) => {
                        failures += 1;
                        return None;
                    }
                }
            }
        })
    }
}
