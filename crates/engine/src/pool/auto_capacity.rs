//! The capacity of a cache that has no budget of its own: the memory that the process's group (cgroups(7)) leaves. Arithmetic alone;
//! `evict/follow.rs` looks and acts.
//!
//! The capacity shrinks at once: others need the memory now, and where none can be had the kernel kills a process. It grows in steps, only
//! while pages come back that a larger cache would have kept, and never into the last of the room. So caches that share a group come to rest,
//! and there is room for what is touched between two looks. A program touches 2 GB/s: 20 MiB in 10 ms.

use crate::pool::pool::MIN_CAPACITY;
use crate::sys::PAGE;
use crate::sys::memory_look::MemoryLook;
use std::time::Duration;

/// How long the signs that a larger cache would help are gathered.
const WINDOW: Duration = Duration::from_millis(250);
/// Pages that have to come back within a window for the capacity to grow: fewer cost less than a hundredth of the time.
const WORTH: u64 = 16;
/// How long the capacity does not grow after it had to shrink: a program that took memory and gave it back may take it again.
const REST: Duration = Duration::from_secs(1);
/// Time in which what was mapped and not touched is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// Memory is short below this headroom, or below an eighth of the limit if that is more.
const SHORT: u64 = 256 << 20;

/// Bytes that are left alone: room for what is allocated between two looks, and for the kernel.
fn reserve(limit: u64) -> u64 {
    if limit < 256 << 20 { limit / 4 } else { (limit / 16).max(64 << 20) }
}

/// Bytes that a cache may hold. `resident`: those that it has in memory now; everything else that is used and cannot be reclaimed is others'.
/// `growing`: bytes that will be used soon.
pub fn target(look: &MemoryLook, resident: u64, growing: u64) -> u64 {
    let others = look.used.saturating_sub(resident + look.file);
    let taken = others + reserve(look.limit) + growing.min(look.limit / 2);
    look.limit.saturating_sub(taken).max((MIN_CAPACITY * PAGE) as u64)
}

/// Whether looks should follow one another closely.
pub fn is_short(look: &MemoryLook) -> bool {
    look.headroom() < SHORT.max(look.limit / 8)
}

/// A cache at a moment, bytes.
#[derive(Debug, Clone, Copy)]
pub struct CacheNow {
    pub capacity: u64,
    pub resident: u64,
    /// Pages so far that came back so soon that a larger cache would have kept them.
    pub ghost_hits: u64,
}

/// Decides by looks at memory, one after another.
#[derive(Debug, Default)]
pub struct AutoCapacity {
    window: Duration,
    ghost_hits: u64,
    grows_from: Duration,
}

impl AutoCapacity {
    /// Another capacity, if it is time for one. `now` counts from any moment, always the same.
    pub fn step(&mut self, now: Duration, look: &MemoryLook, cache: CacheNow, growing: u64) -> Option<u64> {
        let target = target(look, cache.resident, growing);
        // So small an excess is left alone: the reserve is at least twice as large.
        if cache.capacity > target + target / 32 {
            self.grows_from = now + REST;
            return Some(target);
        }
        if now < self.window + WINDOW {
            return None;
        }
        let came_back = cache.ghost_hits.saturating_sub(self.ghost_hits);
        (self.window, self.ghost_hits) = (now, cache.ghost_hits);
        let room = target.saturating_sub(cache.capacity);
        let band = (look.limit / 32).min(target / 8);
        if came_back < WORTH || now < self.grows_from || room <= band {
            return None;
        }
        // Other caches that see the same room may grow as well: four of them fit.
        Some(cache.capacity + (room / 8).max(band / 4))
    }
}

/// Memory that the process has mapped lately and not touched yet. It will be used, and that at once.
#[derive(Debug, Default)]
pub struct Growing {
    at: Duration,
    mapped: Option<u64>,
    private: u64,
    pending: u64,
}

impl Growing {
    /// Bytes of such memory. `mapped`: the private writable memory that the process has mapped now; `None`: it has changed by more than the
    /// program's doing. `private`: its private memory that has been touched.
    pub fn note(&mut self, now: Duration, mapped: Option<u64>, private: u64) -> u64 {
        let forgotten = (now - self.at).div_duration_f64(FORGOTTEN).min(1.0) * self.pending as f64;
        let touched = private.saturating_sub(self.private);
        let grown = mapped.zip(self.mapped).map_or(0, |(now, before)| now.saturating_sub(before));
        self.pending = (self.pending - forgotten as u64 + grown).saturating_sub(touched);
        (self.at, self.mapped, self.private) = (now, mapped, private);
        self.pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// A cache in the model: pages come in while a program wants more of them than there are.
    struct Modelled {
        auto: AutoCapacity,
        now: CacheNow,
        /// Bytes that its program would use of a cache.
        wanted: u64,
        /// When it looks next.
        next: Duration,
        /// How often its capacity changed its direction.
        turns: usize,
        grew: Option<bool>,
        /// Capacity that it has still to give up.
        to: u64,
    }

    /// A group with a limit, caches, and a program beside them.
    struct Group {
        limit: u64,
        others: u64,
        growing: u64,
        now: Duration,
        caches: Vec<Modelled>,
        most_used: u64,
    }

    impl Group {
        fn new(limit: u64, others: u64, wanted: &[u64]) -> Self {
            let cache = |(number, wanted): (usize, &u64)| Modelled {
                auto: AutoCapacity::default(),
                now: CacheNow { capacity: 64 << 10, resident: 0, ghost_hits: 0 },
                wanted: *wanted,
                next: 7 * MS * number as u32,
                turns: 0,
                grew: None,
                to: 64 << 10,
            };
            let caches = wanted.iter().enumerate().map(cache).collect();
            let mut group = Group { limit, others, growing: 0, now: Duration::ZERO, caches, most_used: 0 };
            // Each begins with what it finds.
            for at in 0..group.caches.len() {
                let capacity = target(&group.look(), 0, 0);
                (group.caches[at].now.capacity, group.caches[at].to) = (capacity, capacity);
            }
            group
        }

        fn look(&self) -> MemoryLook {
            let used = self.others + self.caches.iter().map(|cache| cache.now.resident).sum::<u64>();
            MemoryLook { limit: self.limit, used, ..MemoryLook::default() }
        }

        /// A millisecond: misses bring in 1 GB/s a cache, pages leave at 4 GB/s, caches look when it is time.
        fn tick(&mut self) {
            for at in 0..self.caches.len() {
                let look = self.look();
                let cache = &mut self.caches[at];
                let full = cache.now.resident + MIB >= cache.now.capacity;
                cache.now.resident = (cache.now.resident + MIB).min(cache.now.capacity).min(cache.wanted);
                cache.now.ghost_hits += u64::from(full && cache.wanted > cache.now.capacity);
                if cache.now.capacity > cache.to {
                    cache.now.capacity = cache.to.max(cache.now.capacity.saturating_sub(4 * MIB));
                    cache.now.resident = cache.now.resident.min(cache.now.capacity);
                } else if self.now >= cache.next {
                    if let Some(capacity) = cache.auto.step(self.now, &look, cache.now, self.growing) {
                        let grew = capacity > cache.now.capacity;
                        cache.turns += usize::from(cache.grew.is_some_and(|before| before != grew));
                        cache.grew = Some(grew);
                        cache.to = capacity;
                        // Capacity that is not filled is given up at once.
                        cache.now.capacity = capacity.max(cache.now.resident);
                    }
                    cache.next = self.now + if is_short(&look) { 10 * MS } else { 50 * MS };
                }
            }
            self.now += MS;
            self.most_used = self.most_used.max(self.look().used);
        }

        fn run(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                self.tick();
            }
        }

        fn capacities(&self) -> Vec<u64> {
            self.caches.iter().map(|cache| cache.now.capacity).collect()
        }

        fn turns(&mut self) -> usize {
            self.caches.iter_mut().map(|cache| std::mem::take(&mut cache.turns)).sum()
        }
    }

    #[test]
    fn the_target_is_what_others_leave() {
        let look = |limit, used, file| MemoryLook { limit, used, file, ..MemoryLook::default() };
        let gib = 1024 * MIB;
        assert_eq!(target(&look(gib, 0, 0), 0, 0), 960 * MIB);
        assert_eq!(target(&look(16 * gib, 0, 0), 0, 0), 15 * gib, "a sixteenth");
        assert_eq!(target(&look(128 * MIB, 0, 0), 0, 0), 96 * MIB, "a quarter of a small one");
        // Its own pages and page cache are not others'.
        assert_eq!(target(&look(gib, 500 * MIB, 100 * MIB), 300 * MIB, 0), 860 * MIB);
        assert_eq!(target(&look(gib, 500 * MIB, 100 * MIB), 300 * MIB, 60 * MIB), 800 * MIB);
        assert_eq!(target(&look(gib, 0, 0), 0, u64::MAX), 448 * MIB, "half of it can be announced");
        assert_eq!(target(&look(gib, 2 * gib, 0), 0, 0), 16 * 4096);
        assert_eq!(target(&look(gib, 0, gib), 2 * gib, 0), 960 * MIB);
        assert!(is_short(&look(gib, 800 * MIB, 0)) && !is_short(&look(gib, 800 * MIB, 100 * MIB)));
        assert!(is_short(&look(16 * gib, 15 * gib, 0)) && !is_short(&look(16 * gib, 13 * gib, 0)));
    }

    #[test]
    fn caches_in_one_group_come_to_rest() {
        for limit in [128 * MIB, 512 * MIB, 4096 * MIB, 65536 * MIB] {
            for count in 1..=4 {
                let mut group = Group::new(limit, limit / 8, &vec![2 * limit; count]);
                group.run(Duration::from_secs(180));
                group.turns();
                let (before, wasted) = (group.capacities(), group.limit - group.look().used);
                group.run(Duration::from_secs(60));
                assert!(group.turns() == 0, "{limit} {count}: they fight: {before:?} {:?}", group.capacities());
                assert!(group.most_used <= limit, "{limit} {count}");
                assert!(
                    wasted <= reserve(limit) + limit / 32 && wasted + limit / 32 >= reserve(limit),
                    "{limit} {count}: {wasted} left"
                );
            }
        }
    }

    /// One that wants little is left what it has, and the other gets the rest.
    #[test]
    fn what_one_does_not_want_another_gets() {
        let limit = 2048 * MIB;
        let mut group = Group::new(limit, 100 * MIB, &[200 * MIB, 2 * limit]);
        group.run(Duration::from_secs(30));
        assert!(group.caches[0].now.resident >= 150 * MIB, "{:?}", group.capacities());
        assert!(group.caches[1].now.resident >= limit - (300 + 128 + 64) * MIB, "{:?}", group.capacities());
        // The first wants more now, and takes nothing away by force: a cache's pages are not page cache.
        group.caches[0].wanted = limit;
        group.run(Duration::from_secs(30));
        assert!(group.most_used <= limit);
    }

    #[test]
    fn follows_a_limit_down_and_up() {
        let mut group = Group::new(4096 * MIB, 200 * MIB, &[8192 * MIB]);
        group.run(Duration::from_secs(10));
        assert_eq!(group.caches[0].now.resident, (4096 - 256 - 200) * MIB);
        group.limit = 1024 * MIB;
        group.run(Duration::from_secs(2));
        assert!(group.caches[0].now.capacity == (1024 - 64 - 200) * MIB && group.look().used < group.limit);
        group.turns();
        group.limit = 2048 * MIB;
        group.run(Duration::from_secs(10));
        let left = (2048 - 200) * MIB - group.caches[0].now.resident;
        assert!((128 * MIB..=(128 + 64) * MIB).contains(&left) && group.turns() == 1, "{left}");
        // Nothing came back: nothing grows.
        group.caches[0].wanted = 100 * MIB;
        group.run(Duration::from_secs(1));
        group.limit = 4096 * MIB;
        let before = group.capacities();
        group.run(Duration::from_secs(5));
        assert_eq!(group.capacities(), before);
    }

    #[test]
    fn a_program_that_allocates_is_met_in_time() {
        for limit in [1280, 2048, 3072, 4096, 8192, 16384] {
            // With room left at first, and with a cache that has taken it all.
            for filled in [10, 10_000] {
                let mut group = Group::new(limit * MIB, 50 * MIB, &[2 * limit * MIB]);
                group.run(filled * MS);
                for _ in 0..512 {
                    group.others += 2 * MIB;
                    group.tick();
                    assert!(group.look().used <= group.limit, "{limit} MiB, {filled} ms");
                }
                // It stays away for as long as the memory is used, and comes back after that.
                group.run(Duration::from_secs(5));
                let gone = group.capacities()[0];
                group.others -= 1024 * MIB;
                group.run(Duration::from_secs(20));
                let room = target(&group.look(), group.caches[0].now.resident, 0);
                let now = group.capacities()[0];
                assert!(now > gone && now + limit * MIB / 32 >= room, "{limit} {filled}: {now} of {room}");
            }
        }
    }

    /// Memory that comes and goes within less than the band, every tenth of a second.
    #[test]
    fn small_changes_move_nothing() {
        let mut group = Group::new(1024 * MIB, 100 * MIB, &[2048 * MIB]);
        group.run(Duration::from_secs(10));
        let before = group.capacities();
        for round in 0..100 {
            group.others = if round % 2 == 0 { 115 } else { 85 } * MIB;
            group.run(100 * MS);
        }
        assert_eq!(group.capacities(), before);
    }

    #[test]
    fn what_is_mapped_is_awaited_until_it_is_touched_or_forgotten() {
        let mut growing = Growing::default();
        let mut note = |ms: u32, mapped: Option<u64>, private| {
            growing.note(ms * MS, mapped.map(|mib| mib * MIB), private * MIB) / MIB
        };
        assert_eq!(note(0, Some(500), 100), 0, "what was there before");
        assert_eq!(note(10, Some(800), 100), 300);
        assert_eq!(note(20, Some(800), 200), 197, "a hundred touched, a hundredth forgotten");
        assert_eq!(note(520, Some(800), 200), 98);
        assert_eq!(note(530, Some(600), 200), 97, "unmapped");
        assert_eq!(note(540, Some(600), 500), 0);
        assert_eq!(note(550, None, 500), 0);
        assert_eq!(note(560, Some(9000), 500), 0, "not the program's doing");
        assert_eq!((note(570, Some(9050), 500), note(5000, Some(9050), 500)), (50, 0));
    }
}
