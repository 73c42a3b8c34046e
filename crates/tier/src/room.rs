//! Room: how much of the limit is taken, and what goes when there is none left.
//!
//! `used` in the file `usage`, which all processes map, is never less than what is on disk. So room is **reserved** before anything is written, and
//! given back after blocks are gone, by the holder of the folder's lock. A process may be killed in between: then the number is too high,
//! until the next **recount**, which comes before every eviction. A recount reads `used` and `pending`, then looks at all units, and adds what is
//! missing. It cannot count too little: a reservation is first in `pending`, then in `used`, then in a unit's state, and only then no longer in `pending`.
//!
//! **Evicted** are first units that are no use, then those that were read once, then those that were read again, oldest first. So what was
//! used twice outlives a scan. What was read again takes at most three quarters of the limit; the oldest of it beyond that is taken for read once.

use crate::object::{self, ABSENT, EVICTING, FILLING, Object, PRESENT, PROTECTED, STALE, next, state};
use crate::sys::{self, PAGE, Shared};
use crate::tier::{FolderLock, Tier};
use crate::{UNIT, Version};
use fastmap::live::{self, Objects};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a unit takes: its bytes, and what the file system needs to find them, were each of its pages elsewhere.
const TAKES: i64 = UNIT as i64 + 4096;
/// What it may take while it is filled: a page of states and one of checksums, and what the file system needs for these.
const FILLS: i64 = TAKES + 3 * 4096;
/// What a local copy takes that is empty.
pub const EMPTY: i64 = 4 * 4096;
/// What the folder's own files take.
const OWN: i64 = 8 * 4096;
/// The most that is evicted at a time where a 32nd of the limit is more, bytes. Many wait for it, and a unit takes ext4 a
/// tenth of a millisecond; some on a busy device that is told of each (mount option `discard`).
const BATCH: i64 = 16 << 20;
/// How long to wait for room that others are filling.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most processes that can have a folder open, each as often as it likes to count as one.
pub const PLACES: u64 = 960;

/// What all processes share: the file `usage`, two pages.
#[repr(C)]
#[derive(Debug)]
pub struct Usage {
    pub magic: AtomicU64,
    /// Bytes reserved.
    pub used: AtomicI64,
    /// Of these, bytes that no unit's state says yet.
    pub pending: AtomicI64,
    /// The limit that holds.
    pub limit: AtomicI64,
    /// The limit that somebody gave last, or 0.
    pub given: AtomicI64,
    /// Advances with each unit filled; 31 bits.
    pub clock: AtomicU32,
    _unused: [AtomicU32; 117],
    /// The limits of those who have the folder open: a byte of this file is locked by each.
    pub limits: [AtomicI64; PLACES as usize],
}

// SAFETY: atomics.
unsafe impl Shared for Usage {}

/// A unit that may go.
struct Candidate {
    /// Lowest goes first: what it is, and how long ago it was used.
    rank: u32,
    object: u32,
    unit: u64,
}

const READ_ONCE: u32 = 1 << 30;
const READ_AGAIN: u32 = 2 << 30;

/// What is in the folder.
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

    /// Reserves room for so many bytes, which goes into `pending`, too, until [`settle`](Self::settle).
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
                // All there is, is being filled.
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

    /// Reserves room for a unit that is to be filled; [`settle`](Self::settle) when its state says so.
    pub(crate) fn reserve(&self) -> io::Result<()> {
        self.reserve_bytes(FILLS)
    }

    pub(crate) fn settle(&self) {
        self.settle_bytes(FILLS);
    }

    /// Gives back room that was reserved for a unit whose state never said so.
    pub(crate) fn give_back(&self) -> io::Result<()> {
        let _lock = self.lock()?;
        self.usage().used.fetch_sub(FILLS, Ordering::SeqCst);
        self.settle();
        Ok(())
    }

    /// Reserves room for an empty copy, which something makes under the folder's lock.
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

    /// Makes room for so many bytes. Whether there may be room now.
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

    /// Lets units go because the disk is full, whatever the limit. Whether any went.
    pub(crate) fn make_room_on_disk(&self) -> io::Result<bool> {
        let lock = self.lock()?;
        let count = self.count(&lock)?;
        let batch = BATCH.min(self.usage().limit.load(Ordering::SeqCst) / 32);
        Ok(self.evict(&lock, count, batch)? > 0)
    }

    /// Has `used` say what is there. Copies that are no use, and that nobody has open, are removed.
    pub(crate) fn recount(&self, lock: &FolderLock) -> io::Result<()> {
        self.count(lock).map(drop)
    }

    /// Recounts, and lists what may go.
    fn count(&self, lock: &FolderLock) -> io::Result<Count> {
        let usage = self.usage();
        let before = usage.used.load(Ordering::SeqCst);
        let mut count = Count { bytes: OWN + usage.pending.load(Ordering::SeqCst), ..Count::default() };
        for name in self.names()? {
            let object = match Object::open(self.dir(), &name) {
                Ok(object) => object,
                // Somebody has put something else there: it is left alone.
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
                // After its units, whose pages of the index were there before they said so.
                count.bytes += bytes + object.index_bytes()? as i64;
                count.names.push(name);
            } else {
                count.candidates.retain(|one| one.object as usize != count.names.len());
            }
        }
        usage.used.fetch_add(count.bytes - before, Ordering::SeqCst);
        Ok(count)
    }

    /// Lists a copy's units. What was left by a process that was killed is tidied up. Gives the bytes that they take.
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
            // Half of the clock's steps: 256 TiB that were put there since are as old as any.
            let by_age = READ_ONCE - 1 - age.min(READ_ONCE - 1);
            let rank = match state(word) {
                PRESENT if used & PROTECTED != 0 => READ_AGAIN + by_age,
                PRESENT => READ_ONCE + by_age,
                // This description of the index holds no lock, whoever in this process does.
                FILLING if sys::locked_byte(&object.index, unit..unit + 1).is_ok_and(|by| by.is_some()) => return,
                _ => 0,
            };
            count.candidates.push(Candidate { rank, object: number, unit });
        });
        interrupted.into_iter().for_each(|unit| finish_eviction(object, unit));
        bytes
    }

    /// Lets the least useful units go, until so many bytes are free. Gives how many are.
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

    /// What was read again long ago, and stays for now, is as good as read once.
    fn demote(&self, names: &[String], staying: &[Candidate]) {
        for some in staying.chunk_by(|one, other| one.object == other.object) {
            let Ok(object) = Object::open(self.dir(), &names[some[0].object as usize]) else { continue };
            for one in some.iter().filter(|one| (READ_ONCE..READ_AGAIN).contains(&one.rank)) {
                let Some(words) = object.unit(one.unit) else { continue };
                words.used.fetch_and(!PROTECTED, Ordering::Relaxed);
            }
        }
    }

    /// Lets go of some units of a copy, in ascending order, under the folder's lock. Gives the bytes that are free now.
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
        // In memory it stays: who looks at it would get it back at once.
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

    /// Tidies up what a power failure may have left: nobody else has the folder open. `used` says what is there, after.
    pub(crate) fn tidy(&self, lock: &FolderLock) -> io::Result<()> {
        self.usage().pending.store(0, Ordering::SeqCst);
        self.usage().used.store(0, Ordering::SeqCst);
        for name in self.names()? {
            let Ok(object) = Object::open(self.dir(), &name) else { continue };
            let mut taken = 0;
            object.each(|_, words| taken += i64::from(state(words.word.load(Ordering::Relaxed)) != ABSENT));
            // Blocks whose states did not reach the disk.
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

/// Puts a copy's unit out of the state Evicting.
fn leave(object: &Object, unit: u64, to: u32) {
    let Some(words) = object.unit(unit) else { return };
    // Nobody else changes a word that says Evicting: they want the folder's lock first.
    words.word.store(next(words.word.load(Ordering::Relaxed), to), Ordering::Release);
}

/// Finishes what a process began that was killed. The room was given back already, or a recount will do it.
pub fn finish_eviction(object: &Object, unit: u64) {
    let is_free = object.punch(unit..unit + 1).is_ok();
    leave(object, unit, if is_free { ABSENT } else { STALE });
}

/// Lets go of the checksums of some units, or of their states, too, if none of them is there: whole pages of the index. Else a copy would keep
/// them, in time, for all of an object that is far larger than the limit. Whether they are gone.
fn forget(object: &Object, units: Range<u64>, with_states: bool) -> bool {
    let taken = units.clone().take_while(|unit| {
        let words = object.unit(*unit).expect("a unit of the object");
        let word = words.word.load(Ordering::Acquire);
        state(word) == ABSENT && words.change(word, EVICTING)
    });
    let taken = units.start..units.start + taken.count() as u64;
    // Who locks a unit from now on finds it Evicting, or has blocks put behind its state after this; who did before may have done so.
    let is_locked = || sys::locked_byte(&object.index, units.clone()).map_or(true, |by| by.is_some());
    let may_go = taken == units && !(with_states && is_locked());
    // Absent is zero, as a hole is.
    let are_gone = may_go && object.punch_crcs(&units) && (!with_states || object.punch_states(&units));
    if !(are_gone && with_states) {
        taken.for_each(|unit| leave(object, unit, ABSENT));
    }
    are_gone
}

/// Those of which something is true first. Gives how many they are.
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

/// Removes a copy's files, the data first: of an index without data the next recount knows what to do.
pub fn unlink(dir: &std::path::Path, name: &str) {
    for path in object::paths(dir, name) {
        let _ = std::fs::remove_file(path);
    }
}
