//! The background writers of a pool: threads that keep dirty pages below the high-water mark, write pages that have been
//! dirty for long, and carry out large flushes.
//!
//! Each owns a stripe of every region's blocks, so two of them never want one lock. Where io_uring works there are a few
//! writers with a deep queue each. Where it is not allowed there are more, each with one pwrite(2) under way.

use crate::pool::mailbox::{MOST_WRITERS, WriteQueue};
use crate::pool::pool::Pool;
use crate::pool::rings::Rings;
use crate::region::region::Region;
use crate::region::registry::regions_of;
use crate::region::write_state::EXPIRED_TICKS;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, cpu, record_locks, threads};
use crate::writeback::sweep::{Stripe, Swept};
use crate::writeback::{flush, sweep};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause after which writes that failed are tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// One writer.
struct Writer {
    queue: Arc<WriteQueue>,
    stripe: Stripe,
    /// Age at which a dirty page is written.
    age: Option<Duration>,
    /// Ends the regions of a pool that no map refers to any more. Called after a file has been saved that could not be before.
    close_abandoned: fn(&Pool),
}

/// Starts the threads. If that is not possible, pages are written by threads that need room and by flushes.
pub fn start(pool: Weak<Pool>, age: Option<Duration>, close_abandoned: fn(&Pool)) -> Option<Arc<WriteQueue>> {
    let cores = cpu::count().next_power_of_two();
    let rings = Rings::open((2 * cores).min(MOST_WRITERS))
        .inspect_err(|error| tracing::info!(%error, "no io_uring: more threads write, one page run each at a time"))
        .ok();
    let count = if rings.is_some() { cores.min(4) } else { MOST_WRITERS };
    let queue = Arc::new(WriteQueue::new(count, rings));
    for index in 0..count {
        let writer = Writer { queue: queue.clone(), stripe: Stripe { index, count }, age, close_abandoned };
        let pool = pool.clone();
        let body = move || writer.run(&pool);
        if let Err(error) =
            std::thread::Builder::new().name(format!("fastmap-write{index}")).spawn(threads::named(body))
        {
            tracing::warn!(%error, "no background writers: threads that need room write dirty pages themselves");
            queue.stop();
            return None;
        }
    }
    Some(queue)
}

impl Writer {
    /// The life of one writer.
    fn run(&self, pool: &Weak<Pool>) {
        let stripe = self.stripe;
        let _blocked = Blocked::all();
        let interval = self.age.map(|age| (age / u32::from(EXPIRED_TICKS)).max(Duration::from_millis(1)));
        let mut next_tick = Instant::now();
        let mut seen = 0;
        while !self.queue.is_stopped() {
            let again = match pool.upgrade() {
                Some(pool) => {
                    while let Some((request, pool)) = self.queue.next_flush(stripe.index) {
                        flush::carry_out(&pool, &request, stripe);
                    }
                    if stripe.index == 0 {
                        record_locks::look_again();
                    }
                    let mut again = stripe.index == 0 && self.close_unsaved(&pool);
                    let tick = interval.filter(|_| Instant::now() >= next_tick);
                    if let Some(interval) = tick {
                        next_tick = Instant::now() + interval;
                    }
                    again |= write_expired(&pool, stripe, tick.is_some());
                    again | self.write_down(&pool, stripe)
                }
                None => return,
            };
            let pause = interval.map(|_| next_tick.saturating_duration_since(Instant::now()));
            let pause = if again { Some(pause.map_or(AGAIN, |pause| pause.min(AGAIN))) } else { pause };
            seen = self.queue.sleep(seen, pause);
        }
    }

    /// Brings the dirty pages down to the low-water mark if they are above the high-water mark. True: some cannot be written.
    fn write_down(&self, pool: &Pool, stripe: Stripe) -> bool {
        if pool.dirty_pages() <= pool.high_water() {
            return false;
        }
        let mut failed = false;
        let mut progress = true;
        while progress && pool.dirty_pages() > pool.low_water() {
            progress = false;
            for region in regions_of(pool) {
                // A flush that is asked for meanwhile is served first: its request has woken this writer, so the next round starts at once.
                let enough = || pool.dirty_pages() <= pool.low_water() || self.queue.has_flush(stripe.index);
                match sweep::sweep(&region, stripe, usize::MAX, enough) {
                    Swept::Wrote => progress = true,
                    Swept::Failed(error) => {
                        failed = true;
                        tell(&region, &io::Error::from_raw_os_error(error));
                    }
                    Swept::Nothing => {}
                }
            }
            if self.queue.has_flush(stripe.index) {
                break;
            }
        }
        failed
    }

    /// Tries again to save files whose last save failed, or whose last map went while they could not be written. True: some still cannot be.
    fn close_unsaved(&self, pool: &Pool) -> bool {
        let (mut failed, mut saved) = (false, false);
        // The flag is cleared first: a thread that raises it afterwards has seen a failure that this try may not meet.
        for region in regions_of(pool).filter(|region| region.writes().unsaved().swap(false, Ordering::AcqRel)) {
            match flush::write_out(&region, 0..region.span() / PAGE) {
                Ok(()) => saved = true,
                Err(error) => {
                    region.writes().unsaved().store(true, Ordering::Release);
                    tell(&region, &error);
                    failed = true;
                }
            }
        }
        if saved {
            (self.close_abandoned)(pool);
        }
        failed
    }
}

/// Writes pages that have been dirty for as long as the cache allows, or are not likely to change any more. True: some cannot be written.
fn write_expired(pool: &Pool, stripe: Stripe, tick: bool) -> bool {
    let mut failed = false;
    for region in regions_of(pool) {
        if let Swept::Failed(error) = sweep::write_expired(&region, stripe, tick) {
            failed = true;
            tell(&region, &io::Error::from_raw_os_error(error));
        }
    }
    failed
}

/// Reports that background writing fails, once for each region. The next flush returns the error.
fn tell(region: &Region, error: &dyn std::fmt::Display) {
    if region.writes().complain() {
        tracing::error!(file = %region.store().path().display(), %error, "write-back fails; the pages stay in memory");
    }
}
