//! Streams: accesses with a constant stride (one page up or down the file, or any step up to 4 MiB), recognised from
//! the pages that are missed.
//!
//! Each core remembers its last misses in a small *miss history*. A miss that continues an entry with the same stride as the two misses
//! before makes a *stream*, of which a reader (`pool/reader.rs`) keeps a window of pages read ahead. From then on the stream is followed by
//! the chunks that are touched, by whichever thread, and the miss history has no part in it. Nothing here is locked. Entries of a miss
//! history are hints, which a thread of another core may overwrite. Threads that trap tell a stream things through atomics, and one reader
//! acts on them.

use crate::page::entry::RegionId;
use crate::sys::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize};

/// Streams of a cache at a time.
pub const STREAMS: usize = 64;
/// Longest step, pages: 4 MiB.
const MOST_STEP: u64 = 1024;
/// Entries of a miss history: streams that threads of one core can begin at the same time.
const ENTRIES: usize = 8;
/// When so many chunks have been read ahead since a miss, one near it is not of the same walk: a walk over every 16th page comes by again a
/// page further on.
const OLD: usize = 64;
/// Equal steps in a row that make a stream.
pub const ENOUGH: u32 = 2;
/// The same in a file whose streams were mostly wasted of late.
pub const ENOUGH_AFTER_WASTE: u32 = 8;
/// Equal steps after which misses that still go on begin the stream again: it may have been given up.
pub const AGAIN: u32 = 8;

/// First window of a stream, pages: 128 KiB.
pub const FIRST_WINDOW: usize = 32;
/// Largest window, pages: 8 MiB. Also that of a file whose user has not said otherwise.
pub const MOST_WINDOW: usize = 2048;

/// The last miss of a sequence on one core, and the step that led there.
#[derive(Debug, Default)]
struct LastMiss {
    /// An [`Entry`], so that places in two files are far apart.
    last: AtomicU64,
    step: AtomicI32,
    /// Equal steps in a row.
    steps: AtomicU32,
    /// Chunks read ahead before it.
    at: AtomicUsize,
    /// It went on since an entry to overwrite was last looked for.
    went_on: AtomicBool,
}

/// Where one core last missed.
#[derive(Debug, Default)]
pub struct MissHistory {
    entries: [LastMiss; ENTRIES],
    /// The next to be overwritten.
    oldest: AtomicU32,
}

/// A miss that continues others, with the same stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stride {
    pub step: isize,
    pub steps: u32,
}

impl MissHistory {
    /// Notes a miss; the stride that it continues, if it does. `now`: chunks read ahead so far.
    #[inline]
    pub fn note(&self, here: u64, now: usize) -> Option<Stride> {
        let (mut nearest, mut gone_on) = (0i64, None);
        for entry in &self.entries {
            let step = here.wrapping_sub(entry.last.load(Ordering::Relaxed)) as i64;
            if step.unsigned_abs() > MOST_STEP
                || step == 0
                || now.wrapping_sub(entry.at.load(Ordering::Relaxed)) > OLD
                || nearest != 0 && step.unsigned_abs() >= nearest.unsigned_abs()
            {
                continue;
            }
            // The nearest entry counts: one further off may be an old one of the same sequence, or another's.
            nearest = step;
            gone_on = (step as i32 == entry.step.load(Ordering::Relaxed)).then_some(entry);
        }
        if let Some(entry) = gone_on {
            entry.last.store(here, Ordering::Relaxed);
            entry.at.store(now, Ordering::Relaxed);
            let steps = entry.steps.load(Ordering::Relaxed).wrapping_add(1);
            entry.steps.store(steps, Ordering::Relaxed);
            entry.went_on.store(true, Ordering::Relaxed);
            return Some(Stride { step: nearest as isize, steps });
        }
        // An entry of its own, with the step from the nearest: the nearest may belong to another sequence, side by side with this one.
        let entry = self.oldest();
        entry.last.store(here, Ordering::Relaxed);
        entry.at.store(now, Ordering::Relaxed);
        entry.step.store(nearest as i32, Ordering::Relaxed);
        entry.steps.store(u32::from(nearest != 0), Ordering::Relaxed);
        None
    }

    /// Whether a miss is within so many pages of an earlier one that may belong to the same sequence. `now`: as for `note`.
    pub fn has_near(&self, here: u64, now: usize, pages: usize) -> bool {
        self.entries.iter().any(|entry| {
            here.abs_diff(entry.last.load(Ordering::Relaxed)) <= pages as u64
                && now.wrapping_sub(entry.at.load(Ordering::Relaxed)) <= OLD
        })
    }

    /// The entry to overwrite: the next in turn that has not gone on since it was passed over.
    #[inline]
    fn oldest(&self) -> &LastMiss {
        let mut oldest = self.oldest.load(Ordering::Relaxed) as usize;
        for _ in 0..ENTRIES {
            oldest = oldest.wrapping_add(1);
            if !self.entries[oldest % ENTRIES].went_on.load(Ordering::Relaxed) {
                break;
            }
            self.entries[oldest % ENTRIES].went_on.store(false, Ordering::Relaxed);
        }
        self.oldest.store(oldest as u32, Ordering::Relaxed);
        &self.entries[oldest % ENTRIES]
    }
}

/// Free, or given up.
const IDLE: u32 = 0;
/// A thread is writing its values.
const STARTING: u32 = 1;
/// Waits for its reader.
const NEW: u32 = 2;
/// Its reader has begun.
const RUNNING: u32 = 3;

/// One stream, as told by the threads that trap.
#[derive(Debug, Default)]
pub struct Stream {
    state: AtomicU32,
    /// Counts its uses: chunks of an earlier use do not concern it.
    generation: AtomicU32,
    region: AtomicU32,
    /// The page to go on with.
    next: AtomicUsize,
    step: AtomicIsize,
    window: AtomicUsize,
    /// A page that was missed where it should have been read ahead, plus one.
    missed: AtomicUsize,
    /// Pages mapped, and dropped unused, since its reader last looked.
    used: AtomicUsize,
    wasted: AtomicUsize,
    /// Its chunks are touched by stores.
    stores: AtomicBool,
    /// Touched since a stream to give up was last looked for.
    touched: AtomicBool,
    /// The last chunk read was a frame.
    in_frames: AtomicBool,
}

/// A stream as its reader is to begin it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub region: RegionId,
    pub next: usize,
    pub step: isize,
    pub window: usize,
    /// The tag of its chunks.
    pub tag: u64,
}

/// The tag of a stream's chunks, as long as the stream has the same use.
fn tag_of(number: usize, generation: u32) -> u64 {
    (number as u64) << 32 | u64::from(generation)
}

/// The streams of a cache.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; STREAMS],
    cursor: AtomicUsize,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { streams: std::array::from_fn(|_| Stream::default()), cursor: AtomicUsize::new(0) }
    }
}

/// The user's advice on a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Expect {
    /// Nothing: streams are recognised.
    Normal = 0,
    /// Nothing is read ahead.
    Random = 1,
    /// It will be read forward.
    Forward = 2,
    /// It will be read backward.
    Backward = 3,
}

impl Expect {
    /// The one with a number.
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Expect::Random,
            2 => Expect::Forward,
            3 => Expect::Backward,
            _ => Expect::Normal,
        }
    }
}

impl Streams {
    /// The stream that is about to read from a page on, in frames.
    #[cold]
    pub fn about_to_read(&self, region: RegionId, page: usize) -> Option<usize> {
        self.streams.iter().position(|stream| {
            stream.state.load(Ordering::Acquire) == RUNNING
                && stream.next.load(Ordering::Relaxed) == page
                && stream.region.load(Ordering::Relaxed) == region.0
                && stream.in_frames.load(Ordering::Relaxed)
        })
    }

    /// Begins a stream behind a page that was missed, or tells one that should have read it; its number.
    #[cold]
    pub fn start(&self, region: RegionId, page: usize, step: isize, window: usize, stores: bool) -> Option<usize> {
        let next = page.checked_add_signed(step)?;
        for (number, stream) in self.streams.iter().enumerate() {
            let is_live = matches!(stream.state.load(Ordering::Acquire), NEW | RUNNING);
            if is_live
                && stream.region.load(Ordering::Relaxed) == region.0
                && stream.step.load(Ordering::Relaxed) == step
                && stream.next.load(Ordering::Relaxed).abs_diff(page) / step.unsigned_abs()
                    <= 2 * stream.window.load(Ordering::Relaxed)
            {
                stream.missed.store(next + 1, Ordering::Relaxed);
                stream.touched.store(true, Ordering::Relaxed);
                return Some(number);
            }
        }
        // Second chance: twice round finds one that was not touched meanwhile.
        for _ in 0..2 * STREAMS {
            let number = self.cursor.fetch_add(1, Ordering::Relaxed) % STREAMS;
            let stream = &self.streams[number];
            let state = stream.state.load(Ordering::Relaxed);
            let is_free = state == IDLE || state == RUNNING && !stream.touched.swap(false, Ordering::Relaxed);
            // Acquire: the last user's values are there to be overwritten.
            if is_free && stream.state.compare_exchange(state, STARTING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                stream.generation.fetch_add(1, Ordering::Relaxed);
                stream.region.store(region.0, Ordering::Relaxed);
                stream.next.store(next, Ordering::Relaxed);
                stream.step.store(step, Ordering::Relaxed);
                stream.window.store(window, Ordering::Relaxed);
                stream.missed.store(0, Ordering::Relaxed);
                stream.used.store(0, Ordering::Relaxed);
                stream.wasted.store(0, Ordering::Relaxed);
                stream.stores.store(stores, Ordering::Relaxed);
                stream.in_frames.store(false, Ordering::Relaxed);
                stream.touched.store(true, Ordering::Relaxed);
                // Release: pairs with the reader's load in `begin`.
                stream.state.store(NEW, Ordering::Release);
                return Some(number);
            }
        }
        None
    }

    fn of_tag(&self, tag: u64) -> Option<(usize, &Stream)> {
        let number = (tag >> 32) as usize;
        let stream = self.streams.get(number)?;
        (stream.generation.load(Ordering::Relaxed) == tag as u32).then_some((number, stream))
    }

    /// Notes that a chunk was touched; the stream whose reader is to be woken, if the tag is still that stream's.
    pub fn note_used(&self, tag: u64, pages: usize, is_store: bool) -> Option<usize> {
        let (number, stream) = self.of_tag(tag)?;
        stream.used.fetch_add(pages, Ordering::Relaxed);
        stream.stores.store(is_store, Ordering::Relaxed);
        if !stream.touched.load(Ordering::Relaxed) {
            stream.touched.store(true, Ordering::Relaxed);
        }
        Some(number)
    }

    /// Notes that a chunk was dropped untouched.
    pub fn note_wasted(&self, tag: u64, pages: usize) {
        if let Some((_, stream)) = self.of_tag(tag) {
            stream.wasted.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Whether a stream's chunks are touched by stores.
    pub fn stores(&self, tag: u64) -> bool {
        self.of_tag(tag).is_some_and(|(_, stream)| stream.stores.load(Ordering::Relaxed))
    }

    /// Begins a stream that is new, once; for its reader.
    pub fn begin(&self, number: usize) -> Option<Start> {
        let stream = &self.streams[number];
        if stream.state.load(Ordering::Acquire) != NEW {
            return None;
        }
        let start = Start {
            region: RegionId(stream.region.load(Ordering::Relaxed)),
            next: stream.next.load(Ordering::Relaxed),
            step: stream.step.load(Ordering::Relaxed),
            window: stream.window.load(Ordering::Relaxed),
            tag: tag_of(number, stream.generation.load(Ordering::Relaxed)),
        };
        stream.state.compare_exchange(NEW, RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(start)
    }

    /// Takes the feedback on a running stream since its reader last asked.
    pub fn feedback(&self, number: usize) -> Feedback {
        let stream = &self.streams[number];
        Feedback {
            used: stream.used.swap(0, Ordering::Relaxed),
            wasted: stream.wasted.swap(0, Ordering::Relaxed),
            missed: stream.missed.swap(0, Ordering::Relaxed).checked_sub(1),
        }
    }

    /// Notes where a running stream has come to, how far it reads ahead, and whether in frames; false: it has been
    /// begun anew for something else.
    pub fn go_on(&self, number: usize, tag: u64, next: usize, window: usize, in_frames: bool) -> bool {
        match self.of_tag(tag) {
            Some((_, stream)) if stream.state.load(Ordering::Relaxed) == RUNNING => {
                self.streams[number].next.store(next, Ordering::Relaxed);
                self.streams[number].window.store(window, Ordering::Relaxed);
                self.streams[number].in_frames.store(in_frames, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Gives a stream a new tag, so that the chunks read so far do not concern it any more; the tag. If the stream has been begun anew, the
    /// old tag, which is no stream's any more.
    pub fn leave_behind(&self, tag: u64) -> u64 {
        let (number, old) = ((tag >> 32) as usize, tag as u32);
        let new = old.wrapping_add(1);
        let generation = &self.streams[number].generation;
        let is_left = generation.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_left { tag_of(number, new) } else { tag }
    }

    /// Whether a tag is still that of its stream.
    pub fn is_current(&self, tag: u64) -> bool {
        self.of_tag(tag).is_some()
    }

    /// Ends a running stream, unless it has been begun anew.
    pub fn end(&self, number: usize) {
        let state = &self.streams[number].state;
        let _ = state.compare_exchange(RUNNING, IDLE, Ordering::Release, Ordering::Relaxed);
    }
}

/// How a stream fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// Pages mapped.
    pub used: usize,
    /// Pages dropped unused.
    pub wasted: usize,
    /// Where to go on, when the program was found ahead.
    pub missed: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strides that a sequence of misses shows.
    fn strides(history: &MissHistory, misses: impl IntoIterator<Item = u64>) -> Vec<Option<Stride>> {
        misses.into_iter().map(|page| history.note((1 << 40) + page, 0)).collect()
    }

    #[test]
    fn equal_steps_make_a_stride() {
        for step in [1i64, -1, 16, -16, 1024, -1024, 7] {
            let history = MissHistory::default();
            let seen = strides(&history, (0..5).map(|i| (1_000_000 + i * step) as u64));
            let stride = |steps| Some(Stride { step: step as isize, steps });
            assert_eq!(seen, [None, None, stride(2), stride(3), stride(4)], "{step}");
        }
        let seen = strides(&MissHistory::default(), (0..5).map(|i| 1_000_000 + i * 1025));
        assert_eq!(seen, [None; 5], "too far apart");
    }

    /// Misses of a walk's next round, a page further on each time, are no walk of their own.
    #[test]
    fn rounds_of_a_walk_are_no_stride() {
        let history = MissHistory::default();
        for round in 0..16 {
            // Three misses, and then the stream serves.
            for step in 0..3 {
                let stride = history.note((1 << 40) + round + 16 * step, round as usize * (OLD + 1));
                let expected = (step == 2).then_some(Stride { step: 16, steps: 2 });
                assert_eq!(stride, expected, "round {round}, step {step}");
            }
        }
    }

    #[test]
    fn several_strides_at_a_time_and_noise_among_them() {
        let history = MissHistory::default();
        let mut found = [0; 4];
        for i in 0..20u64 {
            let at = [100_000 + i, 300_000 - i, 500_000 + 16 * i, 700_000 - 700 * i];
            for (number, page) in at.into_iter().enumerate() {
                found[number] += usize::from(history.note(page, 0).is_some_and(|stride| stride.steps >= ENOUGH));
            }
            history.note(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30, 0);
        }
        assert!(found.iter().all(|count| *count >= 16), "{found:?}");
    }

    #[test]
    fn strides_side_by_side() {
        for apart in [10, 300, 900] {
            let history = MissHistory::default();
            let mut found = [false; 4];
            for i in 0..12u64 {
                // Those that have a stream miss no more.
                for (number, found) in found.iter_mut().enumerate().filter(|(_, found)| !**found) {
                    let page = 100_000 + number as u64 * apart + i;
                    *found = history.note(page, 0).is_some_and(|stride| stride.step == 1 && stride.steps >= ENOUGH);
                }
            }
            assert_eq!(found, [true; 4], "{apart}");
        }
    }

    #[test]
    fn random_misses_are_no_stride() {
        let history = MissHistory::default();
        let mut random = 1u64;
        let mut found = 0;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // 4 GiB.
            found += usize::from(history.note(random >> 44, 0).is_some_and(|stride| stride.steps >= ENOUGH));
        }
        assert!(found < 20, "{found} of 100000");
    }
}
