//! The thread that adapts a cache's capacity to the memory that the process's group leaves (`pool/auto_capacity.rs` decides).
//!
//! It looks 20 times a second, or 100 times when memory is short. Most looks are only at how much memory is used; a whole look follows if that
//! has changed, or after a while. While the cache has no map the thread sleeps. When the cache's owner resizes it, the thread ends. Shrinking
//! takes idle frames first, then evicts clean pages, and writes dirty ones only when no clean one is left (`room.rs`).

use crate::error::Error;
use crate::pool::auto_capacity::{self, AutoCapacity, CacheNow, Growing};
use crate::pool::mailbox::Follower;
use crate::pool::pool::{MIN_CAPACITY, Pool};
use crate::region::registry;
use crate::sys::memory_look::{MemoryLook, MemoryWatch, OwnMemory};
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, threads};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);
const SHORT_PAUSE: Duration = Duration::from_millis(10);
/// How old a whole look may be while all that others allocate shows in the memory used. (It does not where the group is full of page
/// cache: that makes room for the allocations, and the memory used stays the same.)
const WHOLE: Duration = Duration::from_millis(200);

/// Starts the thread. If that is not possible the capacity stays as it is.
pub fn start(pool: Weak<Pool>) -> Option<Arc<Follower>> {
    let follower = Arc::new(Follower::default());
    let body = {
        let follower = follower.clone();
        threads::named(move || follow(&pool, &follower))
    };
    let started = std::thread::Builder::new().name("fastmap-memory".into()).stack_size(256 << 10).spawn(body);
    let failed = |error: &std::io::Error| tracing::warn!(%error, "a cache's capacity does not follow memory");
    started.inspect_err(failed).ok().map(|_| follower)
}

/// The thread's life.
fn follow(pool: &Weak<Pool>, follower: &Follower) {
    let _blocked = Blocked::all();
    let mut looks = Looks::new();
    while !follower.is_stopped() {
        let seen = follower.wakes();
        let Some(pool) = pool.upgrade() else { return };
        let pause = if registry::regions_of(&pool).next().is_some() {
            Some(looks.follow(&pool))
        } else {
            looks.begins = true;
            None
        };
        drop(pool);
        follower.sleep(seen, pause);
    }
}

/// The state that the thread keeps from one look to the next.
struct Looks {
    memory: MemoryWatch,
    own: OwnMemory,
    start: Instant,
    auto: AutoCapacity,
    growing: Growing,
    /// The registry's version at the last look.
    version: usize,
    /// Nothing has been mapped until now.
    begins: bool,
    stalled: Option<Duration>,
    /// The time of the last whole look, that look, and the private memory of this process that had been touched then.
    last: Option<(Duration, MemoryLook, u64)>,
}

impl Looks {
    fn new() -> Self {
        Looks {
            memory: MemoryWatch::new(),
            own: OwnMemory::new(),
            start: Instant::now(),
            auto: AutoCapacity::default(),
            growing: Growing::default(),
            version: 0,
            begins: true,
            stalled: None,
            last: None,
        }
    }

    /// Looks, and changes the capacity if need be. Returns how long to wait until the next look.
    fn follow(&mut self, pool: &Pool) -> Duration {
        let now = self.start.elapsed();
        let (mapped, private) = self.own.look();
        let look = self.look(now, private);
        let resident = (pool.resident_pages() * PAGE) as u64;
        let cache = CacheNow {
            capacity: (pool.capacity() * PAGE) as u64,
            resident,
            ghost_hits: pool.cores.iter().map(|core| core.0.counters.ghost_hits.get()).sum(),
        };
        let growing = self.growing(now, mapped, private.saturating_sub(resident));
        let wanted = match std::mem::take(&mut self.begins) {
            // The cache is still empty: it costs nothing to be as large as it may be.
            true => Some(auto_capacity::target(&look, cache.resident, growing)),
            false => self.auto.step(now, &look, cache, growing),
        };
        if let Some(capacity) = wanted.map(|bytes| bytes as usize / PAGE).filter(|pages| *pages != pool.capacity()) {
            change(pool, capacity.min(pool.most()), &look, growing);
        }
        let waited = look.stalled > std::mem::replace(&mut self.stalled, look.stalled);
        if waited || auto_capacity::is_short(&look) { SHORT_PAUSE } else { PAUSE }
    }

    /// Looks. A look at the memory used is enough if that, and this process's part of it, are about the same as before; otherwise it is a whole
    /// look. A whole look takes 50 us and more on a processor that does other things in between, the other one 5.
    fn look(&mut self, now: Duration, private: u64) -> MemoryLook {
        if let Some((at, last, private_then)) = self.last {
            let used = self.memory.used();
            let shows = last.limit.saturating_sub(used) > last.limit / 64;
            let is_same = |now: u64, then: u64| now.abs_diff(then) < last.limit / 256;
            if now < at + if shows { WHOLE } else { PAUSE }
                && is_same(used, last.used)
                && is_same(private, private_then)
            {
                return MemoryLook { used, ..last };
            }
        }
        let look = self.memory.look();
        self.last = Some((now, look, private));
        look
    }

    /// The memory that the program has mapped and not touched. Regions are private memory as well, and do not count: if one has
    /// come or changed since the last look, the growth is not known.
    fn growing(&mut self, now: Duration, mapped: u64, private: u64) -> u64 {
        let before = std::mem::replace(&mut self.version, registry::version());
        let mapped = (before == self.version).then_some(mapped);
        self.growing.note(now, mapped, private)
    }
}

fn change(pool: &Pool, capacity: usize, look: &MemoryLook, growing: u64) {
    let (before, start) = (pool.capacity(), Instant::now());
    let result = match pool.resize_to_follow(capacity) {
        // As far as the pins allow: all but a sixteenth may be pinned (`Pool::most_pins`).
        Err(Error::PinsHold { pinned, .. }) => {
            let least = pinned / PAGE + pinned / PAGE / 15 + MIN_CAPACITY + 1;
            pool.resize_to_follow(least.clamp(capacity, before.max(capacity)))
        }
        other => other,
    };
    let MemoryLook { limit, used, file, refaults, stalled } = *look;
    let (took, now) = (start.elapsed(), pool.capacity());
    tracing::debug!(before, now, ?took, limit, used, file, refaults, ?stalled, growing, ?result, "another capacity");
}
