//! The local copy of one object: which units are there, whether their bytes are right, and how more are put there.

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

/// How often units are evicted because the disk is full, to write one unit.
const ATTEMPTS: usize = 4;

/// The local copy of one version of an object: a sparse file of the object's length, and the states of its units.
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
    /// The units that threads fetch or fill through this copy. The lock of a unit's byte belongs to the open file, so all these threads share
    /// it.
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

/// Counts of a local copy since it was opened, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalStats {
    /// Bytes read from the local copy and found right, by this process.
    pub hit: u64,
    /// Bytes put into it by this process.
    pub put: u64,
    /// Bytes evicted without having been read, by any process: whole pages.
    pub wasted: u64,
    /// Units, not bytes, in which this process found other bytes than were put there.
    pub wrong: u64,
}

/// The right to fetch a unit, which one thread of all processes has ([`Local::claim`]). It is given back when dropped, or when the process ends
/// in any way.
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
        // A thread that waits for the unit may fetch it now.
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

    /// The version of the object that it is a copy of.
    pub fn version(&self) -> &Version {
        &self.object.version
    }

    /// The folder it is in.
    pub fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// The data file, of the object's length: to be mapped or read, never written. Parts that are not [there](Self::has) are holes, and read as
    /// zeros.
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

    /// Whether all of a range of the object's bytes is there, as far as the object goes. Costs one atomic load a unit. For fault handlers.
    pub fn has(&self, range: Range<u64>) -> bool {
        let units = self.units_of(&range);
        let all = &self.object.all()[units.start as usize..units.end as usize];
        // Acquire pairs with the release of `put`.
        all.iter().all(|words| state(words.word.load(Ordering::Acquire)) == PRESENT)
    }

    /// Whether bytes that were read from the file are the object's. They begin at a page's start and are whole pages, except for the object's
    /// last. Right pages count as read. A unit with wrong bytes is fetched anew, and counted, unless it was evicted meanwhile. For fault
    /// handlers.
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
                // The unit was never there, or its words were freed: it has no checksums to look at.
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
            // It was evicted meanwhile. A store could allocate a block for its words again.
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

    /// Makes a unit Stale in which a page was found wrong, so that it is fetched anew. If the file has the right bytes now, the unit was evicted
    /// and filled since the read, and does not count as wrong.
    fn doubt(&self, words: &Unit, unit: u64, page: u64) {
        let word = words.word.load(Ordering::Acquire);
        if state(word) == PRESENT {
            let was_wrong = !self.object.is_page_right(unit, page);
            if words.change(word, STALE) && was_wrong {
                self.counted.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many bytes have been read, since they were put there, of the units that a range lies in. Counts whole pages.
    pub fn touched(&self, range: Range<u64>) -> u64 {
        let touched = |unit| self.words(unit).map_or(0, |words| words.touched.load(Ordering::Relaxed).count_ones());
        self.units_of(&range).map(|unit| u64::from(touched(unit)) * PAGE).sum()
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<u64, Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to fetch a unit. `None`: another thread has it, or fills the unit. Its new holder must still look whether the unit
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

    /// Sleeps until a unit is there, its lock is given back, or the timeout is over; it may wake early. Returns whether the unit is there.
    pub fn wait(&self, unit: u64, timeout: Duration) -> bool {
        let Some(words) = self.words(unit) else { return false };
        let word = words.word.load(Ordering::Acquire);
        if state(word) != PRESENT {
            sys::wait(&words.word, word, timeout);
        }
        state(words.word.load(Ordering::Acquire)) == PRESENT
    }

    /// Makes room for a whole unit and puts it there. The object's last unit may be short. If this process has [claimed](Self::claim) the unit,
    /// only the claim's holder may call this. Otherwise the call waits for others that fill the unit. A unit that is there already stays.
    ///
    /// # Errors
    /// `ENOSPC`: the disk is full, or others are filling all the room there is. `InvalidInput`: not a unit of this object.
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
                    // Another thread is evicting it, or was killed while it did.
                    let _lock = self.tier.lock()?;
                    if state(words.word.load(Ordering::Acquire)) == EVICTING {
                        room::finish_eviction(&self.object, unit);
                    }
                }
                // A unit that a killed writer left in Filling may be counted already. It is counted twice until the next recount.
                ABSENT | FILLING if !reserved => {
                    self.tier.reserve()?;
                    reserved = true;
                }
                _ => {
                    // On each turn of the loop, since the page of an absent unit's words may have been freed.
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
        // No other thread changes Filling while the lock is held.
        words.change(words.word.load(Ordering::Relaxed), if written.is_ok() { PRESENT } else { STALE });
        sys::wake(&words.word, i32::MAX);
        if written.is_ok() {
            let fetched_bytes = bytes.len() as u64;
            self.counted.put.fetch_add(fetched_bytes, Ordering::Relaxed);
            live::count_objects(Objects { fetched_bytes, ..Objects::default() });
        }
        written
    }

    /// Writes something. If the disk is full, evicts units and tries again.
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

    /// Its counts since it was opened.
    pub fn stats(&self) -> LocalStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let wasted = get(&self.object.head().wasted).saturating_sub(get(&self.counted.wasted_before));
        let Counters { hit, put, wrong, .. } = &self.counted;
        LocalStats { hit: get(hit), put: get(put), wasted, wrong: get(wrong) }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A child made by fork(2) shares the locks with its parent, and must not give them back.
        if !self.tier.is_our_process() {
            return;
        }
        self.note_time();
        if self.object.head().superseded.load(Ordering::Relaxed) != 0 {
            // If nobody else has the copy open, it is removed.
            let _ = self.tier.close_superseded(&self.object);
        } else {
            let _ = sys::flock(&self.object.data, libc::LOCK_UN);
        }
    }
}

const _: () = assert!(PAGES == 64, "a bit for each page");
