//! The local copy of one object: what is there, whether it is right, putting more there.

use crate::object::{ABSENT, EVICTING, FILLING, Object, PAGES, PRESENT, PROTECTED, STALE, Unit, state};
use crate::room;
use crate::sys::{self, PAGE};
use crate::tier::Tier;
use crate::{UNIT, Version};
use fastmap::live::{self, Objects};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How often units are evicted to make room on a full disk, for one unit.
const ATTEMPTS: usize = 4;

/// The local copy of one version of an object: a sparse file of the object's length, and what is known of its units.
///
/// ```
/// # use fastmap_tier::{Tier, UNIT, Version};
/// # use std::os::unix::fs::FileExt;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let tier = Tier::open(Some(folder.path()), Some(1 << 30))?;
/// # let object = Version { url: "s3://b/k".into(), etag: None, version: Some("7".into()), modified: None, len: 1 << 30 };
/// let local = tier.local(&object)?;
/// if let Some(lock) = local.claim(2) {                        // nobody else fetches it
///     local.put(2, &[1; UNIT as usize])?;
///     drop(lock);
/// }
/// assert!(local.has(2 * UNIT..3 * UNIT) && !local.has(2 * UNIT..3 * UNIT + 1));
/// let mut page = [0; 4096];
/// local.file().read_exact_at(&mut page, 2 * UNIT)?;
/// assert!(local.is_right(2 * UNIT, &page));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Local {
    tier: Arc<Tier>,
    object: Object,
    /// Units that this process fetches or fills: the lock of a byte is all its threads'.
    busy: Mutex<HashMap<u64, Busy>>,
    freed: Condvar,
    counted: Counters,
}

#[derive(Debug, Default, Clone, Copy)]
struct Busy {
    claimed: bool,
    filled: bool,
}

#[derive(Debug, Default)]
struct Counters {
    hit: AtomicU64,
    put: AtomicU64,
    wrong: AtomicU64,
    wasted_before: AtomicU64,
}

/// What was done with a local copy since it was opened, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalStats {
    /// Read from the local copy and found right, by this process.
    pub hit: u64,
    /// Put into it, by this process.
    pub put: u64,
    /// Evicted without having been read, by whichever process: whole pages.
    pub wasted: u64,
    /// Units, not bytes, in which this process found other bytes than were put there.
    pub wrong: u64,
}

/// The right to fetch a unit, this one's alone among all threads and processes ([`Local::claim`]). Given back when dropped, or when the process ends, however.
#[derive(Debug)]
pub struct UnitLock {
    local: Arc<Local>,
    unit: u64,
}

impl UnitLock {
    /// The unit.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// The local copy it is of.
    pub fn local(&self) -> &Arc<Local> {
        &self.local
    }
}

impl Drop for UnitLock {
    fn drop(&mut self) {
        self.local.let_go(self.unit, |busy| busy.claimed = false);
        // Whoever waits for it may fetch it now.
        self.local.words(self.unit).inspect(|words| sys::wake(&words.word, i32::MAX));
    }
}

impl Local {
    pub(crate) fn new(tier: Arc<Tier>, object: Object) -> Arc<Self> {
        let counted = Counters::default();
        counted.wasted_before.store(object.head().wasted.load(Ordering::Relaxed), Ordering::Relaxed);
        let local = Local { tier, object, busy: Mutex::default(), freed: Condvar::new(), counted };
        local.note_time();
        Arc::new(local)
    }

    fn note_time(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.object.head().last_used.store(now.as_secs(), Ordering::Relaxed);
    }

    /// What it is a copy of.
    pub fn version(&self) -> &Version {
        &self.object.version
    }

    /// The folder it is in.
    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// The data file, of the object's length, to be mapped or read, and never written. What is not [there](Self::has) is a hole, which reads as zeros.
    pub fn file(&self) -> &File {
        &self.object.data
    }

    /// How many units the object has.
    pub fn units(&self) -> u64 {
        self.object.units()
    }

    fn words(&self, unit: u64) -> Option<&Unit> {
        self.object.unit(unit)
    }

    /// The units that a range of bytes lies in.
    fn units_of(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.object.version.len);
        if range.start < end { range.start / UNIT..end.div_ceil(UNIT) } else { 0..0 }
    }

    /// Whether all of a range, bytes of the object, is there, as far as the object goes. An atomic load a unit. For fault handlers.
    pub fn has(&self, range: Range<u64>) -> bool {
        let units = self.units_of(&range);
        let all = &self.object.all()[units.start as usize..units.end as usize];
        // Acquire pairs with the release of `put`.
        all.iter().all(|words| state(words.word.load(Ordering::Acquire)) == PRESENT)
    }

    /// Whether bytes that were read from the file, from a page's start on, are the object's: whole pages, but for the object's last. Those that are
    /// count as read. A unit with others in it is fetched anew, and counted, unless it was evicted meanwhile. For fault handlers.
    pub fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        if !offset.is_multiple_of(PAGE) || !(end.is_multiple_of(PAGE) || end == self.object.version.len) {
            return false;
        }
        let (mut at, mut rest, mut is_right) = (offset, bytes, true);
        while !rest.is_empty() {
            let (unit, first) = (at / UNIT, at % UNIT / PAGE);
            let Some(words) = self.words(unit) else { return false };
            let (part, more) = rest.split_at(rest.len().min((UNIT - at % UNIT) as usize));
            if words.word.load(Ordering::Acquire) == 0 {
                // It was never there, or is long gone: it has no checksums to look at.
                return false;
            }
            let mut mask = 0;
            for ((page, bytes), crc) in
                (first..).zip(part.chunks(PAGE as usize)).zip(&self.object.crcs(unit)[first as usize..])
            {
                if crc32c::crc32c(bytes) == crc.load(Ordering::Relaxed) {
                    mask |= 1 << page;
                } else {
                    is_right = false;
                    self.doubt(words, unit, page);
                }
            }
            self.touch(words, mask);
            (at, rest) = (at + part.len() as u64, more);
        }
        if is_right {
            let hit_bytes = bytes.len() as u64;
            self.counted.hit.fetch_add(hit_bytes, Ordering::Relaxed);
            live::count_objects(Objects { hit_bytes, ..Objects::default() });
        }
        is_right
    }

    /// Notes that pages of a unit were read.
    fn touch(&self, words: &Unit, mask: u64) {
        if state(words.word.load(Ordering::Relaxed)) != PRESENT {
            // It was evicted meanwhile: no block may be left behind its words.
            return;
        }
        let seen = words.touched.load(Ordering::Relaxed);
        if seen & mask != mask {
            words.touched.fetch_or(mask, Ordering::Relaxed);
        }
        let again = if seen & mask != 0 { PROTECTED } else { 0 };
        let before = words.used.load(Ordering::Relaxed);
        let used = before & PROTECTED | again | self.tier.clock();
        if used != before {
            words.used.store(used, Ordering::Relaxed);
        }
    }

    /// Has a unit fetched anew from which a page was read with other bytes than belong there. If the file has the right ones now, it was evicted
    /// and filled since: then nothing was wrong.
    fn doubt(&self, words: &Unit, unit: u64, page: u64) {
        let word = words.word.load(Ordering::Acquire);
        if state(word) == PRESENT {
            let was_wrong = !self.object.is_page_right(unit, page);
            if words.change(word, STALE) && was_wrong {
                self.counted.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many bytes of a range have been read since they were put there: whole pages, of the units that the range lies in.
    pub fn touched(&self, range: Range<u64>) -> u64 {
        let touched = |unit| self.words(unit).map_or(0, |words| words.touched.load(Ordering::Relaxed).count_ones());
        self.units_of(&range).map(|unit| u64::from(touched(unit)) * PAGE).sum()
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<u64, Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to fetch a unit; `None` while somebody else has it, or fills it. Whoever has it still looks whether the unit
    /// [is there](Self::has) by now.
    pub fn claim(self: &Arc<Self>, unit: u64) -> Option<UnitLock> {
        let mut busy = self.busy();
        if unit >= self.units() || busy.contains_key(&unit) || !sys::lock_byte(&self.object.index, unit).ok()? {
            return None;
        }
        busy.insert(unit, Busy { claimed: true, filled: false });
        Some(UnitLock { local: self.clone(), unit })
    }

    fn let_go(&self, unit: u64, change: impl FnOnce(&mut Busy)) {
        let mut all = self.busy();
        if let Some(busy) = all.get_mut(&unit) {
            change(busy);
            if !busy.claimed && !busy.filled {
                sys::unlock_byte(&self.object.index, unit);
                all.remove(&unit);
            }
        }
        self.freed.notify_all();
    }

    /// Sleeps until a unit is there or its lock is given back, or for this long, or less. Whether it is there.
    pub fn wait(&self, unit: u64, timeout: Duration) -> bool {
        let Some(words) = self.words(unit) else { return false };
        let word = words.word.load(Ordering::Acquire);
        if state(word) != PRESENT {
            sys::wait(&words.word, word, timeout);
        }
        state(words.word.load(Ordering::Acquire)) == PRESENT
    }

    /// Puts a whole unit there, the last as short as it is, when room has been made for it. If the unit is [claimed](Self::claim), its holder does
    /// this; else it waits for others who fill it. What is there already stays.
    ///
    /// # Errors
    /// `ENOSPC`: the disk is full, or others fill all the room there is. `InvalidInput`: no unit of this object.
    pub fn put(&self, unit: u64, bytes: &[u8]) -> io::Result<()> {
        if unit >= self.units() || bytes.len() as u64 != self.object.bytes_of(unit) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut busy = self.busy();
        while busy.get(&unit).is_some_and(|busy| busy.filled) {
            busy = self.freed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        let claimed = busy.contains_key(&unit);
        busy.entry(unit).or_default().filled = true;
        drop(busy);
        let locked = if claimed { Ok(()) } else { sys::lock_byte_later(&self.object.index, unit) };
        let put = locked.and_then(|()| self.fill(unit, bytes));
        self.let_go(unit, |busy| busy.filled = false);
        put
    }

    /// Fills a unit whose lock is held.
    fn fill(&self, unit: u64, bytes: &[u8]) -> io::Result<()> {
        let words = &self.object.all()[unit as usize];
        let mut reserved = false;
        loop {
            let word = words.word.load(Ordering::Acquire);
            match state(word) {
                PRESENT if !reserved => return Ok(()),
                EVICTING => {
                    // By somebody who is at it, or who was killed.
                    let _lock = self.tier.lock()?;
                    if state(words.word.load(Ordering::Acquire)) == EVICTING {
                        room::finish_eviction(&self.object, unit);
                    }
                }
                // What was left in Filling may be counted or not: it is counted again, until the next recount.
                ABSENT | FILLING if !reserved => {
                    self.tier.reserve()?;
                    reserved = true;
                }
                _ => {
                    // Each time: the page of an absent unit's words may have gone.
                    if let Err(error) = self.on_disk(|| self.object.prepare(unit)) {
                        if reserved {
                            self.tier.give_back()?;
                        }
                        return Err(error);
                    }
                    if words.change(word, FILLING) {
                        break;
                    }
                }
            }
        }
        if reserved {
            self.tier.settle();
        }
        let written = self.on_disk(|| self.object.write(unit, bytes));
        let clock = self.tier.usage().clock.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & !PROTECTED;
        words.used.store(clock, Ordering::Relaxed);
        words.touched.store(0, Ordering::Relaxed);
        // Nobody else changes Filling while the lock is held.
        words.change(words.word.load(Ordering::Relaxed), if written.is_ok() { PRESENT } else { STALE });
        sys::wake(&words.word, i32::MAX);
        if written.is_ok() {
            let fetched_bytes = bytes.len() as u64;
            self.counted.put.fetch_add(fetched_bytes, Ordering::Relaxed);
            live::count_objects(Objects { fetched_bytes, ..Objects::default() });
        }
        written
    }

    /// Writes something; when the disk is full, after units have gone.
    fn on_disk(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        for _ in 0..ATTEMPTS {
            match write() {
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    if !self.tier.make_room_on_disk()? {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
        write()
    }

    /// What was done with it since it was opened.
    pub fn stats(&self) -> LocalStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let wasted = get(&self.object.head().wasted).saturating_sub(get(&self.counted.wasted_before));
        let Counters { hit, put, wrong, .. } = &self.counted;
        LocalStats { hit: get(hit), put: get(put), wasted, wrong: get(wrong) }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A child by fork(2) has the same locks, and is not the one to give them back.
        if !self.tier.is_our_process() {
            return;
        }
        self.note_time();
        if self.object.head().superseded.load(Ordering::Relaxed) != 0 {
            // If it is the last, it is of no more use.
            let _ = self.tier.close_superseded(&self.object);
        } else {
            let _ = sys::flock(&self.object.data, libc::LOCK_UN);
        }
    }
}

const _: () = assert!(PAGES == 64, "a bit for each page");
