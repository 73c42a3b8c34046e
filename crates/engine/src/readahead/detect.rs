//! Where streams are recognised: every miss is noted, and one that continues earlier ones with their stride begins a
//! stream.

use crate::page::entry::{Entry, FRAME_PAGES};
use crate::pool::streams::{AGAIN, ENOUGH, ENOUGH_AFTER_WASTE, Expect, FIRST_WINDOW, Stride};
use crate::region::page_ref::PageRef;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// First window after advice that says what will come, pages: 512 KiB.
const ADVISED_WINDOW: usize = 128;

/// Notes that a page was missed, before it is read. Called by fault handlers.
#[inline]
pub fn note_miss(core: usize, page: PageRef<'_>, is_store: bool) {
    let (region, page) = (page.region(), page.number());
    let pool = region.pool();
    let Some(ahead) = pool.ahead() else { return };
    let expect = region.hints().expect_at(page);
    if expect == Expect::Random || region.hints().readahead() == 0 {
        return;
    }
    let now = ahead.clock.load(Ordering::Relaxed);
    let stride = pool.cores[core].0.misses.note(Entry::new(region.id(), page).into(), now);
    let enough = if region.hints().wastes_streams() { ENOUGH_AFTER_WASTE } else { ENOUGH };
    let (step, window) = match (stride, expect) {
        (Some(Stride { step, steps }), _) if steps >= enough && (steps - enough).is_multiple_of(AGAIN) => {
            (step, FIRST_WINDOW)
        }
        (None, Expect::Forward) => (1, ADVISED_WINDOW),
        (None, Expect::Backward) => (-1, ADVISED_WINDOW),
        _ => return,
    };
    if let Some(stream) = ahead.streams.start(region.id(), page, step, window, is_store) {
        ahead.go_on_with(pool, stream);
    }
}

/// Whether a frame that begins or ends with a page is about to be read for a stream, which a thread that misses had
/// better wait for: it would load 512 pages one by one, and the reader could not use a frame any more. `since`: when
/// this thread began to wait. Called by fault handlers.
#[inline]
pub fn is_coming(page: PageRef<'_>, since: &mut Option<Instant>) -> bool {
    /// About as long as a few frames take on a fast device, and a reader that has to wake up first.
    const PATIENCE: Duration = Duration::from_millis(1);
    let (region, page) = (page.region(), page.number());
    let within = page % FRAME_PAGES;
    if within != 0 && within != FRAME_PAGES - 1 {
        return false;
    }
    let Some(ahead) = region.pool().ahead() else { return false };
    let Some(stream) = ahead.streams.about_to_read(region.id(), page) else { return false };
    match since {
        Some(since) => since.elapsed() < PATIENCE,
        None => {
            *since = Some(Instant::now());
            ahead.go_on_with(region.pool(), stream);
            true
        }
    }
}
