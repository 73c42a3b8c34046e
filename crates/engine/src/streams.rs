//! Streams: walks through a file with a constant step, recognised from the pages that are missed.
//!
//! Each core remembers where it last missed, in a few traces. A miss that is a step away from a trace, the same step as the
//! last two, makes a *stream*, of which a reader (`readers.rs`) keeps a window of pages read ahead. From then on the stream
//! shows by the chunks that are touched, whoever touches them, and the traces are out of it. Nothing here is locked:
//! traces are hints that a thread of another core may overwrite, streams are told things through atomics by threads that
//! trap, and acted upon by one reader each.

use crate::cache::Inner;
use crate::region::{Entry, Region, SlotIndex};
use crate::staging::FRAME_PAGES;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize};
use std::time::{Duration, Instant};

/// Streams of a cache at a time.
pub const STREAMS: usize = 64;
/// Longest step, pages: 4 MiB.
const MOST_STEP: u64 = 1024;
/// Traces of a core: walks that threads of one core can begin at the same time.
const TRACES: usize = 8;
/// Equal steps in a row that make a stream, and the pages that one of them must save for the others that did not.
const ENOUGH: u32 = 2;
/// The same in a file whose streams were mostly wasted of late.
const ENOUGH_AFTER_WASTE: u32 = 8;
/// Equal steps after which a walk that still misses is told of again: its stream may have been given up.
const AGAIN: u32 = 8;

/// First window of a stream, pages: 128 KiB.
pub const FIRST_WINDOW: usize = 32;
/// Largest window, pages: 8 MiB. Also that of a file whose user has not said otherwise.
pub const MOST_WINDOW: usize = 2048;
/// First window after advice that says what will come, pages: 512 KiB.
const ADVISED_WINDOW: usize = 128;

/// Where misses of one core were: a place and the step that led there.
#[derive(Debug, Default)]
struct Trace {
    /// An [`Entry`], so that places in two files are far apart.
    last: AtomicU64,
    step: AtomicI32,
    /// Equal steps in a row.
    steps: AtomicU32,
    /// It went on since somebody looked for one to overwrite.
    went_on: AtomicBool,
}

/// The traces of one core.
#[derive(Debug, Default)]
pub struct Traces {
    traces: [Trace; TRACES],
    /// The next to be overwritten.
    oldest: AtomicU32,
}

/// What a miss may mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Walk {
    step: isize,
    steps: u32,
}

impl Traces {
    /// Notes a miss; the walk that it goes on with, if it does.
    #[inline]
    fn note(&self, here: u64) -> Option<Walk> {
        let (mut nearest, mut gone_on) = (0i64, None);
        for trace in &self.traces {
            let step = here.wrapping_sub(trace.last.load(Ordering::Relaxed)) as i64;
            if step.unsigned_abs() > MOST_STEP
                || step == 0
                || nearest != 0 && step.unsigned_abs() >= nearest.unsigned_abs()
            {
                continue;
            }
            // The nearest trace counts: one further off may be an old one of the same walk, or another walk's.
            nearest = step;
            gone_on = (step as i32 == trace.step.load(Ordering::Relaxed)).then_some(trace);
        }
        if let Some(trace) = gone_on {
            trace.last.store(here, Ordering::Relaxed);
            let steps = trace.steps.load(Ordering::Relaxed).wrapping_add(1);
            trace.steps.store(steps, Ordering::Relaxed);
            trace.went_on.store(true, Ordering::Relaxed);
            return Some(Walk { step: nearest as isize, steps });
        }
        // A trace of its own, with the step from the nearest: that one may be another walk's, side by side with this.
        let trace = self.oldest();
        trace.last.store(here, Ordering::Relaxed);
        trace.step.store(nearest as i32, Ordering::Relaxed);
        trace.steps.store(u32::from(nearest != 0), Ordering::Relaxed);
        None
    }
}

impl Traces {
    /// The trace to overwrite: the next in turn that has not gone on since it was passed over.
    #[inline]
    fn oldest(&self) -> &Trace {
        let mut oldest = self.oldest.load(Ordering::Relaxed) as usize;
        for _ in 0..TRACES {
            oldest = oldest.wrapping_add(1);
            if !self.traces[oldest % TRACES].went_on.load(Ordering::Relaxed) {
                break;
            }
            self.traces[oldest % TRACES].went_on.store(false, Ordering::Relaxed);
        }
        self.oldest.store(oldest as u32, Ordering::Relaxed);
        &self.traces[oldest % TRACES]
    }
}

/// Free, or given up.
const IDLE: u32 = 0;
/// A thread is writing down what it has to be.
const STARTING: u32 = 1;
/// Waits for its reader.
const NEW: u32 = 2;
/// Its reader has begun.
const RUNNING: u32 = 3;

/// One stream, as told by the threads that trap.
#[derive(Debug, Default)]
pub struct Stream {
    state: AtomicU32,
    /// Counts what it was used for: chunks of an earlier use are nothing to it.
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
    /// What touches it are stores.
    stores: AtomicBool,
    /// Touched since somebody last looked for a stream to give up.
    touched: AtomicBool,
    /// What was read last was a frame.
    in_frames: AtomicBool,
}

/// What a reader is to do for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub region: SlotIndex,
    pub next: usize,
    pub step: isize,
    pub window: usize,
    /// What its chunks are tagged with.
    pub tag: u64,
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

/// What the user has said of a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Expect {
    /// Nothing: streams are recognised.
    Normal = 0,
    /// Nothing is read ahead.
    Random = 1,
    /// It will be walked forward.
    Forward = 2,
    /// It will be walked backward.
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

/// Notes that a page was missed, before it is read. Called by fault handlers.
#[inline]
pub fn note_miss(cache: &Inner, core: usize, region: &Region, page: usize, is_store: bool) {
    let Some(ahead) = cache.ahead() else { return };
    let expect = region.expect_at(page);
    if expect == Expect::Random || region.readahead() == 0 {
        return;
    }
    let walk = cache.cores[core].0.traces.note(Entry::new(region.slot(), page).into());
    let enough = if region.wastes_streams() { ENOUGH_AFTER_WASTE } else { ENOUGH };
    let (step, window) = match (walk, expect) {
        (Some(Walk { step, steps }), _) if steps >= enough && (steps - enough).is_multiple_of(AGAIN) => {
            (step, FIRST_WINDOW)
        }
        (None, Expect::Forward) => (1, ADVISED_WINDOW),
        (None, Expect::Backward) => (-1, ADVISED_WINDOW),
        _ => return,
    };
    if let Some(stream) = ahead.streams.start(region, page, step, window, is_store) {
        ahead.call(stream);
    }
}

/// Whether a frame that begins or ends with a page is about to be read for a stream, which a thread that misses had better
/// wait for: it would load 512 pages one by one, and the reader could not use a frame any more. `since`: when this thread
/// began to wait. Called by fault handlers.
#[inline]
pub fn is_coming(region: &Region, page: usize, since: &mut Option<Instant>) -> bool {
    /// About as long as a few frames take on a fast device, and a reader that has to wake up first.
    const PATIENCE: Duration = Duration::from_millis(1);
    let within = page % FRAME_PAGES;
    if within != 0 && within != FRAME_PAGES - 1 {
        return false;
    }
    let Some(ahead) = region.cache().ahead() else { return false };
    let Some(stream) = ahead.streams.about_to_read(region.slot(), page) else { return false };
    match since {
        Some(since) => since.elapsed() < PATIENCE,
        None => {
            *since = Some(Instant::now());
            ahead.call(stream);
            true
        }
    }
}

impl Streams {
    /// The stream that goes on with a page, in frames.
    #[cold]
    fn about_to_read(&self, region: SlotIndex, page: usize) -> Option<usize> {
        self.streams.iter().position(|stream| {
            stream.state.load(Ordering::Acquire) == RUNNING
                && stream.next.load(Ordering::Relaxed) == page
                && stream.region.load(Ordering::Relaxed) == region.0
                && stream.in_frames.load(Ordering::Relaxed)
        })
    }

    /// Begins a stream behind a page that was missed, or tells one that should have read it; its number.
    #[cold]
    fn start(&self, region: &Region, page: usize, step: isize, window: usize, stores: bool) -> Option<usize> {
        let next = page.checked_add_signed(step)?;
        for (number, stream) in self.streams.iter().enumerate() {
            let is_live = matches!(stream.state.load(Ordering::Acquire), NEW | RUNNING);
            if is_live
                && stream.region.load(Ordering::Relaxed) == region.slot().0
                && stream.step.load(Ordering::Relaxed) == step
                && stream.next.load(Ordering::Relaxed).abs_diff(page) / step.unsigned_abs()
                    <= 2 * stream.window.load(Ordering::Relaxed)
            {
                stream.missed.store(next + 1, Ordering::Relaxed);
                stream.touched.store(true, Ordering::Relaxed);
                return Some(number);
            }
        }
        // Second chance: twice round finds one that nobody touched meanwhile.
        for _ in 0..2 * STREAMS {
            let number = self.cursor.fetch_add(1, Ordering::Relaxed) % STREAMS;
            let stream = &self.streams[number];
            let state = stream.state.load(Ordering::Relaxed);
            let is_free = state == IDLE || state == RUNNING && !stream.touched.swap(false, Ordering::Relaxed);
            // Acquire: the last user's values are there to be overwritten.
            if is_free && stream.state.compare_exchange(state, STARTING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                stream.generation.fetch_add(1, Ordering::Relaxed);
                stream.region.store(region.slot().0, Ordering::Relaxed);
                stream.next.store(next, Ordering::Relaxed);
                stream.step.store(step, Ordering::Relaxed);
                stream.window.store(window, Ordering::Relaxed);
                stream.missed.store(0, Ordering::Relaxed);
                stream.used.store(0, Ordering::Relaxed);
                stream.wasted.store(0, Ordering::Relaxed);
                stream.stores.store(stores, Ordering::Relaxed);
                stream.in_frames.store(false, Ordering::Relaxed);
                stream.touched.store(true, Ordering::Relaxed);
                // Release: pairs with the reader's look.
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

    /// Notes that a chunk was touched; the stream to call for, if it is still that.
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

    /// Whether what touches a stream's chunks are stores.
    pub fn stores(&self, tag: u64) -> bool {
        self.of_tag(tag).is_some_and(|(_, stream)| stream.stores.load(Ordering::Relaxed))
    }

    /// A stream as it is to be begun, once; for its reader.
    pub fn begin(&self, number: usize) -> Option<Start> {
        let stream = &self.streams[number];
        if stream.state.load(Ordering::Acquire) != NEW {
            return None;
        }
        let start = Start {
            region: SlotIndex(stream.region.load(Ordering::Relaxed)),
            next: stream.next.load(Ordering::Relaxed),
            step: stream.step.load(Ordering::Relaxed),
            window: stream.window.load(Ordering::Relaxed),
            tag: (number as u64) << 32 | u64::from(stream.generation.load(Ordering::Relaxed)),
        };
        stream.state.compare_exchange(NEW, RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(start)
    }

    /// What happened to a running stream since its reader last asked.
    pub fn news(&self, number: usize) -> News {
        let stream = &self.streams[number];
        News {
            used: stream.used.swap(0, Ordering::Relaxed),
            wasted: stream.wasted.swap(0, Ordering::Relaxed),
            missed: stream.missed.swap(0, Ordering::Relaxed).checked_sub(1),
        }
    }

    /// Notes where a running stream has come to, how far it reads ahead, and whether in frames; false: it has been begun anew for something else.
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

    /// Ends a running stream, unless it has been begun anew.
    pub fn end(&self, number: usize) {
        let state = &self.streams[number].state;
        let _ = state.compare_exchange(RUNNING, IDLE, Ordering::Release, Ordering::Relaxed);
    }
}

/// What happened to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
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

    /// The walks that a sequence of misses shows.
    fn walks(traces: &Traces, misses: impl IntoIterator<Item = u64>) -> Vec<Option<Walk>> {
        misses.into_iter().map(|page| traces.note((1 << 40) + page)).collect()
    }

    #[test]
    fn equal_steps_make_a_walk() {
        for step in [1i64, -1, 16, -16, 1024, -1024, 7] {
            let traces = Traces::default();
            let seen = walks(&traces, (0..5).map(|i| (1_000_000 + i * step) as u64));
            let walk = |steps| Some(Walk { step: step as isize, steps });
            assert_eq!(seen, [None, None, walk(2), walk(3), walk(4)], "{step}");
        }
        let seen = walks(&Traces::default(), (0..5).map(|i| 1_000_000 + i * 1025));
        assert_eq!(seen, [None; 5], "too far apart");
    }

    #[test]
    fn several_walks_at_a_time_and_noise_among_them() {
        let traces = Traces::default();
        let mut found = [0; 4];
        for i in 0..20u64 {
            let at = [100_000 + i, 300_000 - i, 500_000 + 16 * i, 700_000 - 700 * i];
            for (walk, page) in at.into_iter().enumerate() {
                found[walk] += usize::from(traces.note(page).is_some_and(|walk| walk.steps >= ENOUGH));
            }
            traces.note(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30);
        }
        assert!(found.iter().all(|count| *count >= 16), "{found:?}");
    }

    #[test]
    fn walks_side_by_side() {
        for apart in [10, 300, 900] {
            let traces = Traces::default();
            let mut found = [false; 4];
            for i in 0..12u64 {
                // Those that have a stream miss no more.
                for (walk, found) in found.iter_mut().enumerate().filter(|(_, found)| !**found) {
                    let page = 100_000 + walk as u64 * apart + i;
                    *found = traces.note(page).is_some_and(|walk| walk.step == 1 && walk.steps >= ENOUGH);
                }
            }
            assert_eq!(found, [true; 4], "{apart}");
        }
    }

    #[test]
    fn random_misses_are_no_walk() {
        let traces = Traces::default();
        let mut random = 1u64;
        let mut found = 0;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // 4 GiB.
            found += usize::from(traces.note(random >> 44).is_some_and(|walk| walk.steps >= ENOUGH));
        }
        assert!(found < 20, "{found} of 100000");
    }
}
