//! Room: how much of the limit is taken, and which units are evicted when none is left.
//!
//! All processes map the file `usage`. The number `used` in it is never less than what is on disk. So room is **reserved** before anything is
//! written. The holder of the folder's lock gives room back after the disk blocks are freed. If a process is killed in between, the number is
//! too high until the next **recount**, which comes before every eviction.
//!
//! A recount reads `used` and `pending`, then looks at all units, and corrects `used` by the difference. It cannot count too little. A
//! reservation is first added to `pending`, then to `used`. It leaves `pending` only after a unit's state has changed to Filling.
//!
//! **Eviction** takes Stale units first, then units that were read once, then units that were read again; of each kind the oldest first. So a
//! unit that was read twice outlives a scan. Units that were read again take at most three quarters of the limit. The oldest beyond that count
//! as read once.

use crate::object::{self, ABSENT, EVICTING, FILLING, Object, PRESENT, PROTECTED, STALE, next, state};
use crate::sys::{self, PAGE, Shared};
use crate::tier::{FolderLock, Tier};
use crate::{UNIT, Version};
use fastmap::live::{self, Objects};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that a unit takes: its own, and the file system's metadata if each of its pages lies elsewhere.
const TAKES: i64 = UNIT as i64 + 4096;
/// Bytes that a unit may take while it is filled: also a page of states, a page of checksums, and the file system's metadata for these.
const FILLS: i64 = TAKES + 3 * 4096;
/// Bytes that an empty local copy takes.
pub const EMPTY: i64 = 4 * 4096;
/// Bytes that the folder's own files take.
const OWN: i64 = 8 * 4096;
/// Bytes evicted at a time (more with many copies: a unit for each), or a 32nd of the limit if that is less. Many threads wait for an eviction:
/// a unit takes ext4 0.1 ms, and longer on a busy device that is told of each freed block (mount option `discard`).
const BATCH: i64 = 16 << 20;
/// How long a thread waits while others are filling all the room.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most that can have a folder open at a time. Each open [`Tier`] counts, also within a process.
pub const PLACES: u64 = 960;

/// The file `usage`, two pages, which all processes share.
#[repr(C)]
#[derive(Debug)]
pub struct Usage {
    pub magic: AtomicU64,
    /// Bytes reserved.
    pub used: AtomicI64,
    /// Of these, bytes that no unit's state shows yet.
    pub pending: AtomicI64,
    /// The limit that holds now, bytes.
    pub limit: AtomicI64,
    /// The limit that was given last, bytes; 0: none.
    pub given: AtomicI64,
    /// The folder's clock, of 31 bits: it advances with each unit filled.
    pub clock: AtomicU32,
    _unused: [AtomicU32; 117],
    /// The limits of those that have the folder open, by place: each has locked one byte of this file.
    pub limits: [AtomicI64; PLACES as usize],
}

// SAFETY: atomics.
unsafe impl Shared for Usage {}

/// A unit that may be evicted.
struct Candidate {
    /// The lowest is evicted first. Made of the unit's kind and of the time since its last use.
    rank: u32,
    object: u32,
    unit: u64,
}

const READ_ONCE: u32 = 1 << 30;
const READ_AGAIN: u32 = 2 << 30;

/// The result of a recount.
#[derive(Default)]
struct Count {
    bytes: i64,
    names: Vec<String>,
    candidates: Vec<Candidate>,
}

impl Tier {
    /// The folder's clock. For fault handlers.
    pub(crate) fn clock(&self) -> u32 {
        self.usage().clock.load(Ordering::Relaxed) & !PROTECTED
    }

    /// Reserves room for so many bytes. They are in `pending`, too, until [`settle_bytes`](Self::settle_bytes).
    fn reserve_bytes(&self, bytes: i64) -> io::Result<()> {
        let (usage, begun) = (self.usage(), Instant::now());
        loop {
            usage.pending.fetch_add(bytes, Ordering::SeqCst);
            let limit = usage.limit.load(Ordering::SeqCst);
            let more = |used: i64| (used + bytes <= limit).then_some(used + bytes);
            if usage.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
                return Ok(());
            }
            usage.pending.fetch_sub(bytes, Ordering::SeqCst);
            if !self.make_room(bytes)? {
                // All units are being filled.
                if begun.elapsed() > PATIENCE {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn settle_bytes(&self, bytes: i64) {
        self.usage().pending.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Reserves room for a unit that is to be filled. [`settle`](Self::settle) follows when its state is Filling.
    pub(crate) fn reserve(&self) -> io::Result<()> {
        self.reserve_bytes(FILLS)
    }

    pub(crate) fn settle(&self) {
        self.settle_bytes(FILLS);
    }

    /// Gives back room that was reserved for a unit whose state never became Filling.
    pub(crate) fn give_back(&self) -> io::Result<()> {
        let _lock = self.lock()?;
        self.usage().used.fetch_sub(FILLS, Ordering::SeqCst);
        self.settle();
        Ok(())
    }

    /// Reserves room for an empty copy, and calls `make`, which makes it, with the folder's lock held.
    pub(crate) fn with_room_for_empty<T>(
        &self,
        version: &Version,
        make: impl FnOnce(&FolderLock) -> crate::Result<T>,
    ) -> crate::Result<T> {
        let bytes = EMPTY + if self.is_in_memory() { Object::empty_bytes(version) as i64 } else { 0 };
        self.reserve_bytes(bytes).map_err(|source| self.error("make room for a local copy", source))?;
        let made = self.lock_folder().and_then(|lock| make(&lock));
        self.settle_bytes(bytes);
        made
    }

    /// Makes room for so many bytes. Returns whether there may be room now.
    pub(crate) fn make_room(&self, bytes: i64) -> io::Result<bool> {
        let lock = self.lock()?;
        let usage = self.usage();
        let limit = self.renew_limit(&lock)?;
        if usage.used.load(Ordering::SeqCst) + bytes <= limit {
            return Ok(true);
        }
        let count = self.count(&lock)?;
        let over = usage.used.load(Ordering::SeqCst) + bytes - limit;
        let batch = BATCH.max(count.names.len() as i64 * UNIT as i64).min(limit / 32);
        let freed = self.evict(&lock, count, over + batch)?;
        Ok(freed >= over)
    }

    /// Evicts units because the disk is full, whatever the limit. Returns whether it has freed anything.
    pub(crate) fn make_room_on_disk(&self) -> io::Result<bool> {
        let lock = self.lock()?;
        let count = self.count(&lock)?;
        let batch = BATCH.min(self.usage().limit.load(Ordering::SeqCst) / 32);
        Ok(self.evict(&lock, count, batch)? > 0)
    }

    /// Corrects `used` by what is there. Removes empty and superseded copies that nobody has open.
    pub(crate) fn recount(&self, lock: &FolderLock) -> io::Result<()> {
        self.count(lock).map(drop)
    }

    /// Recounts, and lists the units that may be evicted.
    fn count(&self, lock: &FolderLock) -> io::Result<Count> {
        let usage = self.usage();
        let before = usage.used.load(Ordering::SeqCst);
        let mut count = Count { bytes: OWN + usage.pending.load(Ordering::SeqCst), ..Count::default() };
        for name in self.names()? {
            let object = match Object::open(self.dir(), &name) {
                Ok(object) => object,
                // Not a regular file: somebody else has put it there, and it is left alone.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::EISDIR | libc::ENXIO)) => {
                    continue;
                }
                Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                    return Err(error);
                }
                Err(_) => {
                    self.unlink_unused(lock, &name);
                    continue;
                }
            };
            let bytes = self.count_object(&object, &mut count);
            let is_old = object.head().superseded.load(Ordering::Relaxed) != 0;
            if !((bytes == 0 || is_old) && self.unlink_unused(lock, &name)) {
                // Read after the units: a unit's pages of the index are allocated before its state changes.
                count.bytes += bytes + object.index_bytes()? as i64;
                count.names.push(name);
            } else {
                count.candidates.retain(|one| one.object as usize != count.names.len());
            }
        }
        usage.used.fetch_add(count.bytes - before, Ordering::SeqCst);
        Ok(count)
    }

    /// Lists a copy's units, and finishes evictions that were cut short by a kill. Returns the bytes that the units take.
    fn count_object(&self, object: &Object, count: &mut Count) -> i64 {
        let (clock, number) = (self.clock(), count.names.len() as u32);
        let mut bytes = 0;
        let mut interrupted = Vec::new();
        object.each(|unit, words| {
            let word = words.word.load(Ordering::Acquire);
            bytes += match state(word) {
                ABSENT => return,
                FILLING => FILLS,
                EVICTING => return interrupted.push(unit),
                _ => TAKES,
            };
            let used = words.used.load(Ordering::Relaxed);
            let age = clock.wrapping_sub(used) & !PROTECTED;
            // Ages end at half of the clock's steps, 2^30 units (256 TiB): all older ones are alike.
            let by_age = READ_ONCE - 1 - age.min(READ_ONCE - 1);
            let rank = match state(word) {
                PRESENT if used & PROTECTED != 0 => READ_AGAIN + by_age,
                PRESENT => READ_ONCE + by_age,
                // A lock that this process holds shows, too, because it belongs to another open file description.
                FILLING if sys::locked_byte(&object.index, unit..unit + 1).is_ok_and(|by| by.is_some()) => return,
                _ => 0,
            };
            count.candidates.push(Candidate { rank, object: number, unit });
        });
        interrupted.into_iter().for_each(|unit| finish_eviction(object, unit));
        bytes
    }

    /// Evicts the least useful units until so many bytes are freed. Returns how many are.
    fn evict(&self, _lock: &FolderLock, count: Count, bytes: i64) -> io::Result<i64> {
        let Count { names, mut candidates, .. } = count;
        let limit = self.usage().limit.load(Ordering::SeqCst);
        let first_again = partition(&mut candidates, |one| one.rank < READ_AGAIN);
        let too_many = (candidates.len() - first_again).saturating_sub((limit / TAKES * 3 / 4) as usize);
        if too_many > 0 {
            let again = &mut candidates[first_again..];
            if too_many < again.len() {
                again.select_nth_unstable_by_key(too_many, |one| one.rank);
            }
            again[..too_many].iter_mut().for_each(|one| one.rank = one.rank - READ_AGAIN + READ_ONCE);
        }
        let wanted = (bytes.max(0) as u64).div_ceil(TAKES as u64) as usize;
        let all = candidates.len();
        if wanted < all {
            candidates.select_nth_unstable_by_key(wanted, |one| one.rank);
        }
        let (going, staying) = candidates.split_at_mut(wanted.min(all));
        going.sort_unstable_by_key(|one| (one.object, one.unit));
        let mut freed = 0;
        for some in going.chunk_by(|one, other| one.object == other.object) {
            let object = Object::open(self.dir(), &names[some[0].object as usize])?;
            let units: Vec<u64> = some.iter().map(|one| one.unit).collect();
            freed += self.empty(&object, &units);
        }
        if too_many > 0 {
            staying.sort_unstable_by_key(|one| one.object);
            self.demote(&names, staying);
        }
        Ok(freed)
    }

    /// Makes units that were read again long ago, and stay for now, count as read once.
    fn demote(&self, names: &[String], staying: &[Candidate]) {
        for some in staying.chunk_by(|one, other| one.object == other.object) {
            let Ok(object) = Object::open(self.dir(), &names[some[0].object as usize]) else { continue };
            for one in some.iter().filter(|one| (READ_ONCE..READ_AGAIN).contains(&one.rank)) {
                let Some(words) = object.unit(one.unit) else { continue };
                words.used.fetch_and(!PROTECTED, Ordering::Relaxed);
            }
        }
    }

    /// Evicts some units of a copy, given in ascending order, under the folder's lock. Returns the bytes that it has freed.
    pub(crate) fn empty(&self, object: &Object, units: &[u64]) -> i64 {
        let mut going = Vec::new();
        for &unit in units {
            let Some(words) = object.unit(unit) else { continue };
            let word = words.word.load(Ordering::Acquire);
            let is_left = || sys::locked_byte(&object.index, unit..unit + 1).is_ok_and(|by| by.is_none());
            let may_go = match state(word) {
                PRESENT | STALE => true,
                FILLING => is_left(),
                _ => false,
            };
            if may_go && words.change(word, EVICTING) {
                going.push(unit);
                if state(word) == PRESENT {
                    let pages = object.bytes_of(unit).div_ceil(PAGE);
                    let touched = u64::from(words.touched.load(Ordering::Relaxed).count_ones()).min(pages);
                    let wasted_bytes = (pages - touched) * PAGE;
                    object.head().wasted.fetch_add(wasted_bytes, Ordering::Relaxed);
                    live::count_objects(Objects { wasted_bytes, ..Objects::default() });
                }
            }
        }
        let mut freed = 0;
        for run in going.chunk_by(|one, next| one + 1 == *next) {
            let is_free = object.punch(run[0]..run[run.len() - 1] + 1).is_ok();
            if is_free {
                freed += run.len() as i64 * TAKES;
                self.usage().used.fetch_sub(run.len() as i64 * TAKES, Ordering::SeqCst);
            }
            for &unit in run {
                leave(object, unit, if is_free { ABSENT } else { STALE });
            }
        }
        // On tmpfs the index stays whole: a load from a hole would allocate the page again.
        let going = if self.is_in_memory() { &[] } else { &going[..] };
        for some in going.chunk_by(|one, other| object.sharing_states(*one) == object.sharing_states(*other)) {
            if !forget(object, object.sharing_states(some[0]), true) {
                for group in some.chunk_by(|one, other| object.sharing_crcs(*one) == object.sharing_crcs(*other)) {
                    forget(object, object.sharing_crcs(group[0]), false);
                }
            }
        }
        freed
    }

    /// Repairs what a power failure may have left, and recounts. Nobody else has the folder open.
    pub(crate) fn tidy(&self, lock: &FolderLock) -> io::Result<()> {
        self.usage().pending.store(0, Ordering::SeqCst);
        self.usage().used.store(0, Ordering::SeqCst);
        for name in self.names()? {
            let Ok(object) = Object::open(self.dir(), &name) else { continue };
            let mut taken = 0;
            object.each(|_, words| taken += i64::from(state(words.word.load(Ordering::Relaxed)) != ABSENT));
            // There are blocks of units whose states did not reach the disk.
            if object.data_bytes()? as i64 > taken * TAKES {
                let mut at = 0;
                while let Some(from) = sys::seek(&object.data, at, libc::SEEK_DATA) {
                    let unit = from / UNIT;
                    let Some(words) = object.unit(unit) else { break };
                    if state(words.word.load(Ordering::Relaxed)) == ABSENT {
                        object.punch(unit..unit + 1)?;
                    }
                    at = (unit + 1) * UNIT;
                }
            }
        }
        self.recount(lock)
    }
}

/// Takes a unit out of the state Evicting.
fn leave(object: &Object, unit: u64, to: u32) {
    let Some(words) = object.unit(unit) else { return };
    // No other thread changes a word in Evicting without the folder's lock.
    words.word.store(next(words.word.load(Ordering::Relaxed), to), Ordering::Release);
}

/// Finishes the eviction of a unit by a process that was killed. Its room was given back already, or a recount will do it.
pub fn finish_eviction(object: &Object, unit: u64) {
    let is_free = object.punch(unit..unit + 1).is_ok();
    leave(object, unit, if is_free { ABSENT } else { STALE });
}

/// Frees the pages of the index with the checksums of some units, and with `with_states` those with their states, if all these units are Absent.
/// Otherwise the index of an object far larger than the limit would grow to its full size in time. Returns whether the pages are gone.
fn forget(object: &Object, units: Range<u64>, with_states: bool) -> bool {
    let taken = units.clone().take_while(|unit| {
        let words = object.unit(*unit).expect("a unit of the object");
        let word = words.word.load(Ordering::Acquire);
        state(word) == ABSENT && words.change(word, EVICTING)
    });
    let taken = units.start..units.start + taken.count() as u64;
    // A thread that locks a unit from now on finds it Evicting, or allocates blocks for its state after they were freed here. A thread that has
    // locked one before may have allocated them already.
    let is_locked = || sys::locked_byte(&object.index, units.clone()).map_or(true, |by| by.is_some());
    let may_go = taken == units && !(with_states && is_locked());
    // A hole reads as zero, and Absent is zero.
    let are_gone = may_go && object.punch_crcs(&units) && (!with_states || object.punch_states(&units));
    if !(are_gone && with_states) {
        taken.for_each(|unit| leave(object, unit, ABSENT));
    }
    are_gone
}

/// Moves the elements for which `is_first` holds to the front. Returns how many they are.
fn partition<T>(all: &mut [T], is_first: impl Fn(&T) -> bool) -> usize {
    let mut first = 0;
    for at in 0..all.len() {
        if is_first(&all[at]) {
            all.swap(first, at);
            first += 1;
        }
    }
    first
}

/// Removes a copy's files, the data first: the next recount removes an index without data.
pub fn unlink(dir: &std::path::Path, name: &str) {
    for path in object::paths(dir, name) {
        let _ = std::fs::remove_file(path);
    }
}
