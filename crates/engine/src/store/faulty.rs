//! A store that fails as disks do, for tests: over a real file, it refuses writes, tears them, delays them, lets later
//! ones overtake them, and refuses to sync.
//!
//! It also keeps what a power failure would leave: the file as it was when the last sync that succeeded began.
//!
//! Its locks are std's, also in the fault handler: no test touches a map while it holds one. Once the process has ended the disk has no faults:
//! the keeper takes no lock.

use super::group_sync::GroupSync;
use super::{FileStore, ReadEnd, Store};
use crate::counters::stats::Counter;
use crate::error::Result;
use crate::sys::memory::Zeroed;
use crate::sys::{PAGE, crash, file};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;
/// The longest that a write waits to be overtaken: often nothing else is being written.
const PATIENCE: Duration = Duration::from_millis(3);
/// A write of the keeper's takes at least this long: who does not wait for it is found out.
const DAWDLE: Duration = Duration::from_micros(300);

/// How the disk behaves. Shares are of a hundred reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan {
    /// Writes that fail.
    pub failing: usize,
    /// A page that cannot be written, with everything that is written together with it.
    pub bad_page: Option<usize>,
    /// The error number of writes that fail.
    pub error: i32,
    /// Some part of a failing write reaches the file, perhaps all of it.
    pub torn: bool,
    /// Reads and writes that take longer.
    pub slow: usize,
    /// Writes that wait until a later one has ended.
    pub overtaken: usize,
    /// Writes whose bytes are copied from memory when they begin. Those of the others are copied when they end.
    pub early: usize,
    /// The error number of syncs, if they fail.
    pub sync_error: Option<i32>,
    /// A page that cannot be read (EIO).
    pub unreadable: Option<usize>,
    /// Reads of pages from here on wait for another plan.
    pub held_from: Option<usize>,
}

/// A disk's behaviour, changed by a test while the store is in use.
#[derive(Debug)]
pub struct Disk {
    state: Mutex<State>,
    write_ended: Condvar,
    direct: File,
    stable: Mutex<Vec<u64>>,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    /// Plans so far.
    plans: u64,
    random: Random,
    writes: u64,
    /// The latest write that has ended.
    latest_ended: u64,
}

/// The fate of one write.
struct Fate {
    number: u64,
    error: Option<i32>,
    /// Of a failing write: the first page that reaches the file and how many sectors do.
    part: (usize, usize),
    sleep: Duration,
    overtaken: bool,
    early: bool,
}

/// xorshift64*: the same numbers for the same seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    /// True for so many of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

impl Disk {
    /// A disk without faults under a file that exists.
    pub fn new(path: &Path, seed: u64) -> io::Result<Arc<Self>> {
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let state = State { plan: Plan::default(), plans: 0, random: Random::new(seed), writes: 0, latest_ended: 0 };
        let disk =
            Disk { state: Mutex::new(state), write_ended: Condvar::new(), direct, stable: Mutex::new(Vec::new()) };
        *disk.stable.lock().unwrap() = disk.contents();
        Ok(Arc::new(disk))
    }

    /// Opens the store of a file on this disk.
    pub fn open(self: &Arc<Self>, from: &File, facts: &file::Facts, direct: bool) -> Result<Box<dyn Store>> {
        let file = FileStore::open(from, facts, direct)?;
        Ok(Box::new(FaultyStore { file, disk: self.clone(), syncs: GroupSync::default() }))
    }

    /// Behaves differently from the next read, write or sync on.
    pub fn set(&self, plan: Plan) {
        let mut state = self.state.lock().unwrap();
        state.plan = plan;
        state.plans += 1;
    }

    /// The number of the plan that holds now, and the plan.
    pub fn plan(&self) -> (u64, Plan) {
        let state = self.state.lock().unwrap();
        (state.plans, state.plan)
    }

    /// The words in the file, read past the page cache.
    pub fn contents(&self) -> Vec<u64> {
        let len = self.direct.metadata().unwrap().len() as usize;
        let buffer = Zeroed::<[u8; PAGE]>::new(len.div_ceil(PAGE)).unwrap();
        // SAFETY: the buffer has room for all pages of the file.
        let read = unsafe { file::read_at(&self.direct, buffer.as_mut_ptr().cast(), len.next_multiple_of(PAGE), 0) };
        assert_eq!(read, Ok(len), "reading the file");
        buffer.as_flattened()[..len].chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    /// The words that a power failure at this moment could not take away.
    pub fn stable(&self) -> Vec<u64> {
        self.stable.lock().unwrap().clone()
    }

    fn fate(&self, run: Range<usize>) -> Fate {
        let mut state = self.state.lock().unwrap();
        state.writes += 1;
        let State { plan, random, writes, .. } = &mut *state;
        let fails = random.chance(plan.failing) || plan.bad_page.is_some_and(|page| run.contains(&page));
        let first = random.below(run.len());
        let sectors = if plan.torn { random.below((run.len() - first) * (PAGE / SECTOR) + 1) } else { 0 };
        Fate {
            number: *writes,
            error: fails.then_some(plan.error),
            part: (first, sectors),
            sleep: Duration::from_micros(if random.chance(plan.slow) { random.below(1000) as u64 } else { 0 }),
            overtaken: random.chance(plan.overtaken),
            early: random.chance(plan.early),
        }
    }

    fn wait_to_be_overtaken(&self, number: u64) {
        let state = self.state.lock().unwrap();
        drop(self.write_ended.wait_timeout_while(state, PATIENCE, |state| state.latest_ended <= number).unwrap());
    }

    fn note_end(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        state.latest_ended = state.latest_ended.max(number);
        self.write_ended.notify_all();
    }
}

/// A file on a [`Disk`].
#[derive(Debug)]
struct FaultyStore {
    file: FileStore,
    disk: Arc<Disk>,
    syncs: GroupSync,
}

/// Pages as they are now, while threads may be storing to them.
///
/// # Safety
/// `from` is the start of so many resident pages.
unsafe fn copy_of(from: *const u8, pages: usize) -> Zeroed<[u8; PAGE]> {
    let copy = Zeroed::<[u8; PAGE]>::new(pages).unwrap();
    for word in 0..pages * PAGE / 8 {
        // SAFETY: inside the caller's pages and the copy.
        unsafe {
            let value = from.cast::<AtomicU64>().add(word).as_ref().unwrap().load(Ordering::Relaxed);
            copy.as_mut_ptr().cast::<u64>().add(word).write(value);
        }
    }
    copy
}

impl FaultyStore {
    /// Lets some reads take longer, and holds some; true: the read fails.
    fn dawdle(&self, pages: Range<usize>) -> bool {
        if crash::is_over() {
            return false;
        }
        crash::pass();
        let (slow, unreadable) = loop {
            let mut state = self.disk.state.lock().unwrap();
            let Plan { slow, unreadable, held_from, .. } = state.plan;
            if held_from.is_none_or(|from| pages.end <= from) {
                break (state.random.chance(slow), unreadable.is_some_and(|page| pages.contains(&page)));
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        };
        if slow && !unreadable {
            std::thread::sleep(Duration::from_micros(50));
        }
        unreadable
    }
}

impl Store for FaultyStore {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn allow_writing(&self, from: &File) -> Result<()> {
        self.file.allow_writing(from)
    }

    fn lock(&self) -> Result<()> {
        self.file.lock()
    }

    fn is_locked(&self) -> bool {
        self.file.is_locked()
    }

    fn unlock(&self) {
        self.file.unlock();
    }

    unsafe fn close(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.file.close() };
    }

    fn identity(&self) -> file::Identity {
        self.file.identity()
    }

    fn reader(&self) -> &File {
        self.file.reader()
    }

    fn descriptors(&self) -> [Option<RawFd>; 4] {
        self.file.descriptors()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn refresh_size(&self) -> u64 {
        self.file.refresh_size()
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn note_shorter(&self, size: u64) {
        self.file.note_shorter(size);
    }

    fn writer(&self) -> Option<&File> {
        self.file.writer()
    }

    fn note_mapped(&self, end: usize) {
        self.file.note_mapped(end);
    }

    unsafe fn read_page(&self, page: usize, buffer: *mut u8, cached: &Counter) -> ReadEnd {
        if self.dawdle(page..page + 1) {
            return ReadEnd::Failed(libc::EIO);
        }
        // SAFETY: the caller's buffer.
        let end = unsafe { self.file.read_page(page, buffer, cached) };
        crash::pass();
        end
    }

    unsafe fn read_pages(
        &self,
        page: usize,
        pages: usize,
        buffer: *mut u8,
        cached: &Counter,
    ) -> std::result::Result<usize, i32> {
        if self.dawdle(page..page + pages) {
            return Err(libc::EIO);
        }
        // SAFETY: the caller's buffer.
        unsafe { self.file.read_pages(page, pages, buffer, cached) }
    }

    unsafe fn read_cached(&self, _: usize, _: usize, _: *mut u8, _: &Counter) -> Option<usize> {
        None // no read gets past the faults
    }

    fn expect_cached(&self) {
        self.file.expect_cached();
    }

    fn direct_reads(&self) -> Option<&File> {
        None
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.file.next_data(offset)
    }

    fn next_hole(&self, offset: u64) -> u64 {
        self.file.next_hole(offset)
    }

    fn write_end(&self) -> std::result::Result<u64, i32> {
        self.file.write_end()
    }

    fn direct_writes(&self) -> Option<&File> {
        None // no write gets past the faults
    }

    fn write_to_page_cache(&self, does: bool) {
        self.file.write_to_page_cache(does);
    }

    unsafe fn write_pages(&self, page: usize, from: *const u8, pages: usize, end: u64) -> std::result::Result<(), i32> {
        if crash::is_over() {
            let begin = Instant::now();
            while begin.elapsed() < DAWDLE {} // the keeper may not sleep
            // SAFETY: the caller's memory.
            return unsafe { self.file.write_pages(page, from, pages, end) };
        }
        crash::pass();
        let mut fate = self.disk.fate(page..page + pages);
        if crash::is_next() {
            // The end comes in the middle of this write.
            fate.error = Some(libc::EIO);
        }
        // SAFETY: pages that are being written are resident.
        let copy = fate.early.then(|| unsafe { copy_of(from, pages) });
        let from = copy.as_ref().map_or(from, |copy| copy.as_mut_ptr().cast());
        std::thread::sleep(fate.sleep);
        if fate.overtaken {
            self.disk.wait_to_be_overtaken(fate.number);
        }
        let result = match fate.error {
            // SAFETY: the caller's memory, or its copy.
            None => unsafe { self.file.write_pages(page, from, pages, end) },
            Some(error) => {
                let (first, sectors) = fate.part;
                let torn = (((page + first) * PAGE + sectors * SECTOR) as u64).min(end);
                // SAFETY: part of the same.
                let written =
                    unsafe { self.file.write_pages(page + first, from.add(first * PAGE), pages - first, torn) };
                written.and(Err(error))
            }
        };
        self.disk.note_end(fate.number);
        crash::pass();
        result
    }

    fn sync(&self, syncs: &Counter) -> io::Result<()> {
        self.syncs.run(|| {
            crash::pass();
            let contents = self.disk.contents();
            if let Some(error) = self.disk.plan().1.sync_error {
                return Err(io::Error::from_raw_os_error(error));
            }
            self.file.sync(syncs)?;
            crash::pass();
            *self.disk.stable.lock().unwrap() = contents;
            Ok(())
        })
    }
}
