//! Loom models of the page word, the free frames and the dirty bitmap: every interleaving, up to a bound on
//! preemptions.
//!
//! The word, the claims (`page/claims.rs`), the free frames and the bitmap are the library's own. What the kernel does is a `Frame`:
//! the page-table entry and the page behind it in one atomic, since an access either finds the entry as it is or traps; a model
//! implements `PageAccess` by it. What comes between a claim's begin and end (the read, the write, the drop) follows `fault/load.rs`,
//! `writeback/flight.rs`, `evict/batch.rs` and `evict/invalidate.rs`; futex(2) is a lock and a condition. Values are sets of bits, one bit a store, so a lost store is a missing bit.
//!
//! The models bite: each step they guard can be left out ([`Omit`]), and then they fail (the tests that should panic).
//!
//! Run with `make loom`. Those of pins are in `models/pins.rs`, of what is read ahead in `models/staging.rs`, of pages taken out
//! of reach for file operations in `models/invalidate.rs`, of stores that do not wait for reads in `models/deferred.rs`, of pages that
//! become writable together in `models/groups.rs`, of words that go back to the kernel in `models/returning.rs`, of who has a reader's turn in
//! `models/turns.rs`.

mod deferred;
mod groups;
mod invalidate;
mod pins;
mod returning;
mod staging;
mod turns;

use crate::effort::quick_or_full;
use crate::page::claims::{Evicting, Loading, PageAccess, Step, Upgrading, Writing};
use crate::page::dirty::{self, DirtyBitmap};
use crate::page::word::{After, Claim, PageWord, State};
use crate::pool::free_frames::FreeFrames;
use crate::store::GroupSync;
use crate::sys::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell};
use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::io;

/// Explores a model. Two preemptions find nearly every bug of this kind; three where the model is small enough.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    explore_some(preemptions, None, model);
}

/// Explores a model of a hundred thousand interleavings or more: some of them, and more when effort is full. A model from which a step is left out
/// is explored until it fails.
fn explore_large(preemptions: usize, omit: Omit, model: impl Fn() + Sync + Send + 'static) {
    let most = quick_or_full(10_000, 200_000);
    explore_some(preemptions, (omit == Omit::Nothing).then_some(most), model);
}

fn explore_some(preemptions: usize, most: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_permutations = most;
    builder.check(model);
}

/// A step of the protocol to leave out, to see a model fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Omit {
    Nothing,
    /// `begin_writable_install` in the first store's miss.
    WritableInstall,
    /// Taking the dirty bit before the page is written: it is taken after.
    BitBeforeWrite,
    /// Protecting before writing: it is protected after.
    ProtectBeforeWrite,
    /// Setting the dirty bit in an upgrade before the page is writable: it is set after.
    BitBeforeUnprotect,
    /// Setting the dirty bit again when a write has failed.
    BitAfterFailure,
    /// Claiming the page to evict it.
    BeginEvict,
    /// Claiming a page whose word goes back to the kernel.
    BeginReturn,
    /// Queueing a page again when its last pin goes.
    Requeue,
    /// Taking the block's lock for a page's first write pin.
    LockOfWritePin,
    /// Leaving a page that is pinned for writing unprotected.
    KeepWritable,
    /// Setting the dirty bit again of a page that was written under a write pin.
    BitAfterKeeping,
    /// Looking at the word again under the slot's lock before a store is kept.
    LookUnderLock,
    /// Announcing a page that is stored to before it is read.
    Announce,
    /// Setting the dirty bit of such a page before it is done: it is set after.
    BitBeforeDone,
    /// Claiming an Unread page to lift its protection.
    BeginLift,
    /// Shutting the gate before asking how far pages were claimed: it is shut after.
    ShutBeforeEnd,
    /// Waking who waits for a read that fails.
    WakeOfFailure,
}

/// A page-table entry with the page behind it: bit 0 resident, bit 1 write-protected, above them what was stored. The
/// kernel changes it under the page table's lock, hence acquire and release.
struct Frame(AtomicU32);

impl Frame {
    const RESIDENT: u32 = 1;
    const PROTECTED: u32 = 2;

    /// A program's store; false: it traps.
    fn store(&self, bits: u32) -> bool {
        let writable = |entry: u32| (entry & 3 == Self::RESIDENT).then_some(entry | bits << 2);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, writable).is_ok()
    }

    /// A program's load; `None`: it traps. Like every access here an update, to see the last entry, as processors do.
    fn load(&self) -> Option<u32> {
        let entry = self.0.fetch_or(0, Ordering::AcqRel);
        (entry & Self::RESIDENT != 0).then_some(entry >> 2)
    }

    /// `UFFDIO_COPY`.
    fn install(&self, bits: u32, protected: bool) {
        let flags = Self::RESIDENT | if protected { Self::PROTECTED } else { 0 };
        assert_eq!(self.0.swap(flags | bits << 2, Ordering::AcqRel), 0, "a page installed over another");
    }

    /// `UFFDIO_WRITEPROTECT`.
    fn protect(&self, on: bool) {
        if on {
            self.0.fetch_or(Self::PROTECTED, Ordering::AcqRel)
        } else {
            self.0.fetch_and(!Self::PROTECTED, Ordering::AcqRel)
        };
    }

    /// `MADV_DONTNEED`; what was there.
    fn drop_memory(&self) -> u32 {
        self.0.swap(0, Ordering::AcqRel) >> 2
    }
}

/// One page of one file.
struct World {
    word: PageWord,
    frame: Frame,
    file: AtomicU32,
    /// The page is the first of its region.
    dirty: Bitmap,
    /// The block's lock.
    writing: Mutex<()>,
    /// Where sleepers on the word wait: one who is never woken is a deadlock, which loom reports.
    bucket: Mutex<()>,
    woken: Condvar,
    /// Held by an evictor from the pop of an entry to the claim of its page.
    evicting: Mutex<()>,
    /// Entries in clean queues.
    entries: AtomicUsize,
    /// Touched by whoever owns the page alone, in Loading or Evicting: loom sees two owners, and orderings too weak to
    /// hand the page over.
    owned: UnsafeCell<()>,
    loads: AtomicUsize,
    /// What the loader has read. Touched in Loading only.
    read: std::sync::atomic::AtomicU32,
    /// A store trapped that must not. Not loom's, and told at the end: a thread that panics in the middle takes loom down.
    trapped: std::sync::atomic::AtomicBool,
    omit: Omit,
}

impl PageAccess for &World {
    fn word(&self) -> &PageWord {
        &self.word
    }

    fn mark_dirty(&self) {
        self.dirty.set(0);
    }

    unsafe fn copy(&self, _: *const u8, protected: bool) -> Result<(), i32> {
        self.frame.install(self.read.load(Ordering::Relaxed), protected);
        Ok(())
    }

    fn protect(&self, on: bool) -> Result<(), i32> {
        self.frame.protect(on);
        Ok(())
    }

    fn settle(&self, after: After, _: usize) {
        if after.enqueue {
            assert_eq!(self.entries.fetch_add(1, Ordering::AcqRel), 0, "two entries for one page");
        }
        if after.wake {
            let _bucket = self.bucket.lock().unwrap();
            self.woken.notify_all();
        }
    }

    /// futex(2): the kernel compares and sleeps under a lock that a thread which wakes takes too.
    fn sleep(&self, expected: u32) {
        let bucket = self.bucket.lock().unwrap();
        if self.word.futex().fetch_or(0, Ordering::AcqRel) == expected {
            drop(self.woken.wait(bucket).unwrap());
        }
    }

    fn omits(&self, step: Step) -> bool {
        match step {
            Step::AnnounceWritable => self.omit == Omit::WritableInstall,
            Step::MarkBeforeUnprotect => self.omit == Omit::BitBeforeUnprotect,
            Step::MarkAfterFailure => self.omit == Omit::BitAfterFailure,
            Step::MarkAfterKeeping => self.omit == Omit::BitAfterKeeping,
        }
    }
}

impl World {
    fn absent(omit: Omit) -> Arc<Self> {
        Arc::new(World {
            word: PageWord::new(),
            frame: Frame(AtomicU32::new(0)),
            file: AtomicU32::new(0),
            dirty: bitmap(),
            writing: Mutex::new(()),
            bucket: Mutex::new(()),
            woken: Condvar::new(),
            evicting: Mutex::new(()),
            entries: AtomicUsize::new(0),
            owned: UnsafeCell::new(()),
            loads: AtomicUsize::new(0),
            read: Default::default(),
            trapped: Default::default(),
            omit,
        })
    }

    /// Resident, clean, protected, in a queue.
    fn clean(omit: Omit) -> Arc<Self> {
        let world = Self::absent(omit);
        world.trap(false);
        world
    }

    /// `fault/serve.rs`.
    fn trap(&self, is_store: bool) {
        loop {
            let seen = self.word.look();
            match seen.state() {
                State::Absent => {
                    if let Some(claim) = Loading::begin(self, seen) {
                        return self.load_page(claim, is_store);
                    }
                }
                State::Clean | State::Dirty if !is_store => return,
                State::Clean | State::Dirty if !seen.is_upgrading() => {
                    if let Some(claim) = Upgrading::begin(self, seen) {
                        let _ = claim.upgrade(0);
                        return;
                    }
                }
                // Of pages read ahead: `models/staging.rs`.
                State::Staged => unreachable!("no slot names the page"),
                // Of deferred stores: `models/deferred.rs`.
                State::Unfilled | State::Buffered => unreachable!("no store is deferred"),
                State::Loading | State::Evicting | State::Clean | State::Dirty => self.wait(seen),
            }
        }
    }

    /// `fault/load.rs`: what is read is in `read` until it is installed.
    fn load_page(&self, claim: Loading<&World>, is_store: bool) {
        self.owned.with_mut(|_| {
            self.loads.fetch_add(1, Ordering::Relaxed);
            self.read.store(self.file.fetch_or(0, Ordering::Relaxed), Ordering::Relaxed);
            // SAFETY: the model's copy reads nothing.
            let _ = unsafe { claim.install(std::ptr::null(), is_store) };
        });
        claim.finish(is_store, false, false, 0);
    }

    /// `writeback/flight.rs`, of a file that takes the page or not.
    fn flush(&self, saved: bool) {
        let _held = self.writing.lock().unwrap();
        if self.omit == Omit::BitBeforeWrite {
            if let Some((claim, how)) = Writing::begin(self) {
                self.write(saved, claim, how);
                self.take_bit();
            }
        } else if self.take_bit()
            && let Some((claim, how)) = Writing::begin(self)
        {
            self.write(saved, claim, how);
        }
    }

    /// A write of the claimed page.
    fn write(&self, saved: bool, claim: Writing<&World>, how: Claim) {
        let protect = how == Claim::Protect || self.omit == Omit::KeepWritable;
        if protect && self.omit != Omit::ProtectBeforeWrite {
            self.frame.protect(true);
        }
        let bits = self.frame.load().expect("a page that is being written is resident");
        if saved {
            self.file.swap(bits, Ordering::Relaxed);
        }
        if protect && self.omit == Omit::ProtectBeforeWrite {
            self.frame.protect(true);
        }
        claim.finish(saved, how, 0);
    }

    /// `evict/batch.rs`, of a batch of one.
    fn evict(&self) {
        let _evicting = self.evicting.lock().unwrap();
        if self.entries.fetch_update(Ordering::AcqRel, Ordering::Acquire, |entries| entries.checked_sub(1)).is_err() {
            return;
        }
        if self.omit == Omit::BeginEvict {
            self.frame.drop_memory();
        } else if let Some(claim) = Evicting::begin(self) {
            self.drop_memory();
            claim.finish(Some(7));
        }
    }

    fn drop_memory(&self) {
        self.owned.with_mut(|_| {
            let bits = self.frame.drop_memory();
            assert_eq!(bits, self.file.fetch_or(0, Ordering::Relaxed), "a page dropped that the file has not");
        });
    }

    /// `evict/invalidate.rs::invalidate_run`, of one page and a file that takes it or not. The queue's entry is left alone.
    fn invalidate_page(&self, saved: bool) -> Option<Loading<&World>> {
        let _held = self.writing.lock().unwrap();
        let (claim, was_dirty, _) = Evicting::begin_invalidate(self)?;
        if was_dirty {
            self.take_bit();
            if self.omit != Omit::ProtectBeforeWrite {
                self.frame.protect(true);
            }
            let bits = self.frame.load().expect("a page that is being written is resident");
            if !saved {
                claim.abort(0);
                return None;
            }
            self.file.swap(bits, Ordering::Relaxed);
        }
        self.drop_memory();
        Some(claim.hold())
    }

    /// `evict/invalidate.rs::drop_page`.
    fn drop_page(&self, saved: bool) {
        if let Some(claim) = self.invalidate_page(saved) {
            claim.abort();
        }
    }

    /// A program's store, until it succeeds.
    fn store(&self, bits: u32) {
        while !self.frame.store(bits) {
            self.trap(true);
        }
    }

    /// A program's load.
    fn load(&self) -> u32 {
        loop {
            match self.frame.load() {
                Some(bits) => return bits,
                None => self.trap(false),
            }
        }
    }

    /// Whether the page's dirty bit was set; it is not any more. The caller holds the block's lock.
    fn take_bit(&self) -> bool {
        let mut was_set = false;
        self.dirty.take(0, 0..1, usize::MAX, |_| was_set = true);
        was_set
    }

    /// With all threads gone: every store is in memory or, if the page is not there, in the file; a clean page is the same
    /// in both, protected and in a queue, a dirty one has its bit; and one more flush puts all in the file.
    fn check(&self, stored: u32) {
        let (seen, file) = (self.word.look(), self.file.load(Ordering::Relaxed));
        let entry = self.frame.0.load(Ordering::Relaxed);
        assert!(!seen.is_upgrading());
        match seen.state() {
            State::Absent => assert_eq!((entry, file), (0, stored), "absent: the file has all stores"),
            State::Clean => {
                assert_eq!((entry >> 2, file), (stored, stored), "clean: both have all stores");
                assert_eq!(entry & 3, Frame::RESIDENT | Frame::PROTECTED, "clean: the next store traps");
                assert_eq!(self.entries.load(Ordering::Relaxed), 1, "clean: an evictor can find it");
            }
            State::Dirty => {
                assert_eq!(entry >> 2, stored, "dirty: memory has all stores");
                assert!(self.take_bit(), "dirty: a writer can find it");
                self.dirty.set(0);
            }
            state => panic!("{state:?} with nobody at work"),
        }
        self.flush(true);
        assert_eq!(self.file.load(Ordering::Relaxed), stored, "flushed: the file has all stores");
    }
}

fn spawn<W: 'static>(world: &Arc<W>, body: impl Fn(&W) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || body(&world))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Two threads miss at once: one of them reads.
#[test]
fn two_faults_make_one_load() {
    explore(3, || {
        let world = World::absent(Omit::Nothing);
        let other = spawn(&world, |world| assert_eq!(world.load(), 0));
        assert_eq!(world.load(), 0);
        join([other]);
        assert_eq!(world.loads.load(Ordering::Relaxed), 1);
        world.check(0);
    });
}

/// A load and a store miss while the page is evicted as soon as it is clean.
fn faults_and_evictor(omit: Omit) {
    explore(3, move || {
        let world = World::absent(omit);
        let threads = [spawn(&world, |world| assert!(world.load() < 2)), spawn(&world, |world| world.evict())];
        world.store(1);
        assert_eq!(world.load(), 1);
        join(threads);
        world.check(1);
    });
}

#[test]
fn faults_against_an_evictor() {
    faults_and_evictor(Omit::Nothing);
}

/// The evictor asks nobody.
#[test]
#[should_panic(expected = "has all stores")]
fn faults_against_an_evictor_bite() {
    faults_and_evictor(Omit::BeginEvict);
}

/// One thread stores twice, one writes back, one evicts what is clean.
fn store_write_evict(omit: Omit) {
    explore(2, move || {
        let world = World::clean(omit);
        let threads = [
            spawn(&world, |world| {
                world.flush(true);
                world.evict();
            }),
            spawn(&world, |world| world.evict()),
        ];
        world.store(1);
        world.store(2);
        assert_eq!(world.load(), 3);
        join(threads);
        world.check(3);
    });
}

#[test]
fn a_store_against_write_back_and_eviction() {
    store_write_evict(Omit::Nothing);
}

#[test]
#[should_panic(expected = "a page dropped that the file has not")]
fn a_store_against_write_back_bites_without_protection() {
    store_write_evict(Omit::ProtectBeforeWrite);
}

#[test]
#[should_panic(expected = "a writer can find it")]
fn a_store_against_write_back_bites_with_a_late_bit() {
    store_write_evict(Omit::BitBeforeWrite);
}

/// One thread stores twice to a page that another drop_pages, whether the file takes it or not, while a third evicts.
fn store_drop_page_evict(omit: Omit, saved: bool) {
    explore(2, move || {
        let world = World::clean(omit);
        let threads = [spawn(&world, move |world| world.drop_page(saved)), spawn(&world, |world| world.evict())];
        world.store(1);
        world.store(2);
        assert_eq!(world.load(), 3);
        join(threads);
        world.check(3);
    });
}

#[test]
fn a_store_against_an_expulsion_and_an_evictor() {
    store_drop_page_evict(Omit::Nothing, true);
    store_drop_page_evict(Omit::Nothing, false);
}

#[test]
#[should_panic(expected = "a page dropped that the file has not")]
fn a_store_against_an_expulsion_bites_without_protection() {
    store_drop_page_evict(Omit::ProtectBeforeWrite, true);
}

/// A store, a write that fails, then one that works.
#[test]
fn a_failed_write_keeps_the_page_dirty() {
    explore(2, || {
        let world = World::clean(Omit::Nothing);
        let other = spawn(&world, |world| {
            world.flush(false);
            world.evict();
            world.flush(true);
            world.evict();
        });
        world.store(1);
        world.store(2);
        join([other]);
        world.check(3);
    });
}

/// A dirty page: one thread's write of it fails, after which it evicts what is clean; one flushes it; one stores to it.
fn failed_write_and_flush(omit: Omit) {
    explore(2, move || {
        let world = World::clean(omit);
        world.store(1);
        let threads = [
            spawn(&world, |world| {
                world.flush(false);
                world.evict();
            }),
            spawn(&world, |world| {
                world.flush(true);
                assert_eq!(world.file.fetch_or(0, Ordering::Relaxed) & 1, 1, "flushed and not in the file");
            }),
        ];
        world.store(2);
        join(threads);
        world.check(3);
    });
}

#[test]
fn a_flush_saves_what_another_could_not_write() {
    failed_write_and_flush(Omit::Nothing);
}

#[test]
#[should_panic(expected = "flushed and not in the file")]
fn a_flush_bites_when_a_failed_write_forgets_the_bit() {
    failed_write_and_flush(Omit::BitAfterFailure);
}

/// Two stores trap on a clean page, a third trap is late (its page was made writable meanwhile), and a writer comes by.
#[test]
fn upgrades_and_a_spurious_trap_against_a_writer() {
    explore_large(2, Omit::Nothing, || {
        let world = World::clean(Omit::Nothing);
        let threads = [
            spawn(&world, |world| {
                world.store(1);
                world.trap(true);
            }),
            spawn(&world, |world| {
                world.flush(true);
                world.evict();
            }),
        ];
        world.store(2);
        join(threads);
        world.check(3);
    });
}

/// A flush saves what was stored before it, also by a thread whose page another thread's store brought in or made
/// writable and has not finished with.
fn flush_saves(world: fn(Omit) -> Arc<World>, omit: Omit) {
    explore_large(2, omit, move || {
        let world = world(omit);
        let threads = [
            spawn(&world, |world| world.store(1)),
            spawn(&world, |world| {
                world.store(2);
                world.flush(true);
                assert_eq!(world.file.fetch_or(0, Ordering::Relaxed) & 2, 2, "flushed and not in the file");
            }),
        ];
        world.evict();
        join(threads);
        world.check(3);
    });
}

#[test]
fn a_flush_saves_stores_to_a_page_that_another_thread_loads() {
    flush_saves(World::absent, Omit::Nothing);
}

#[test]
#[should_panic(expected = "flushed and not in the file")]
fn a_flush_bites_without_the_announced_install() {
    flush_saves(World::absent, Omit::WritableInstall);
}

#[test]
fn a_flush_saves_stores_to_a_page_that_another_thread_upgrades() {
    flush_saves(World::clean, Omit::Nothing);
}

#[test]
#[should_panic(expected = "flushed and not in the file")]
fn a_flush_bites_when_the_bit_comes_after_the_upgrade() {
    flush_saves(World::clean, Omit::BitBeforeUnprotect);
}

/// Three threads on two free frames in two shares: never three at work, and all free frames back in the end.
#[test]
fn free_frames_are_conserved() {
    explore(3, || {
        let free_frames = Arc::new(FreeFrames::new(2, 2));
        let held = Arc::new(AtomicUsize::new(0));
        let work = |core: usize| {
            let (free_frames, held) = (free_frames.clone(), held.clone());
            move || {
                if free_frames.take(core) || free_frames.steal(core, core + 1) {
                    assert!(held.fetch_add(1, Ordering::Relaxed) < 2, "more pages than free frames");
                    held.fetch_sub(1, Ordering::Relaxed);
                    free_frames.give(core, 1);
                }
            }
        };
        let threads = [thread::spawn(work(0)), thread::spawn(work(0))];
        work(1)();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(free_frames.idle(), 2);
    });
}

/// A resize destroys a free frame while others take and steal: it is gone from wherever it was, and no other is.
#[test]
fn destroyed_free_frames_are_gone() {
    explore(3, || {
        let free_frames = Arc::new(FreeFrames::new(3, 2));
        let other = {
            let free_frames = free_frames.clone();
            thread::spawn(move || {
                if free_frames.take(1) || free_frames.steal(1, 0) {
                    free_frames.give(1, 1);
                }
            })
        };
        let destroyed = free_frames.withdraw(2);
        other.join().unwrap();
        assert!(destroyed <= 2);
        assert_eq!(free_frames.idle(), 3 - destroyed);
        free_frames.issue(2);
        assert_eq!(free_frames.idle(), 5 - destroyed);
    });
}

/// Half of a share moves when one free frame is stolen; a thief can be robbed.
#[test]
fn stolen_free_frames_are_conserved() {
    explore(3, || {
        let free_frames = Arc::new(FreeFrames::new(0, 3));
        free_frames.give(0, 4);
        let thief = |core: usize| {
            let free_frames = free_frames.clone();
            move || {
                if free_frames.steal(core, 0) {
                    free_frames.give(core, 1);
                }
            }
        };
        let threads = [thread::spawn(thief(1)), thread::spawn(thief(2))];
        let took = free_frames.take(0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(free_frames.idle(), 4 - usize::from(took));
    });
}

type Bitmap = DirtyBitmap<Box<[AtomicU64]>>;

fn bitmap() -> Bitmap {
    let [leaves, summary, top] = dirty::words_for(128).map(|count| (0..count).map(|_| AtomicU64::new(0)).collect());
    DirtyBitmap::new(leaves, summary, top)
}

/// What a flush finds; the caller holds the block's lock.
fn taken(bitmap: &Bitmap, limit: usize) -> Vec<usize> {
    let mut pages = Vec::new();
    if bitmap.next_block(0).is_some() {
        bitmap.take(0, 0..128, limit, |page| pages.push(page));
    }
    pages
}

/// Pages set while others are taken: each is taken once, then or later.
#[test]
fn no_dirty_bit_is_lost() {
    explore(2, || {
        let bitmap = Arc::new(bitmap());
        bitmap.set(1);
        let setters = [2, 70].map(|page| {
            let bitmap = bitmap.clone();
            thread::spawn(move || bitmap.set(page))
        });
        let mut pages = taken(&bitmap, 1);
        pages.extend(taken(&bitmap, 128));
        setters.into_iter().for_each(|setter| setter.join().unwrap());
        pages.extend(taken(&bitmap, 128));
        pages.sort_unstable();
        assert_eq!(pages, [1, 2, 70]);
        assert_eq!(bitmap.next_block(0), None);
    });
}

/// A thread that has set its page finds it, whatever another thread is about in the same word or the same block.
#[test]
fn a_dirty_page_is_found_once_it_is_set() {
    for other in [0, 70] {
        explore(3, move || {
            let bitmap = Arc::new(bitmap());
            let lock = Arc::new(Mutex::new(()));
            let setter = {
                let bitmap = bitmap.clone();
                thread::spawn(move || bitmap.set(other))
            };
            bitmap.set(1);
            {
                let _held = lock.lock().unwrap();
                assert!(taken(&bitmap, 128).contains(&1), "set and not found");
            }
            setter.join().unwrap();
        });
    }
}

/// The same while a third thread takes pages of the block and leaves some behind.
#[test]
fn a_dirty_page_is_found_or_taken() {
    explore(2, || {
        let bitmap = Arc::new(bitmap());
        bitmap.set(70);
        let lock = Arc::new(Mutex::new(Vec::new()));
        let threads = {
            let (setter, taker, lock) = (bitmap.clone(), bitmap.clone(), lock.clone());
            [
                thread::spawn(move || setter.set(0)),
                thread::spawn(move || {
                    let mut pages = lock.lock().unwrap();
                    taker.take(0, 64..128, 128, |page| pages.push(page));
                }),
            ]
        };
        bitmap.set(1);
        {
            let mut pages = lock.lock().unwrap();
            let found = taken(&bitmap, 128);
            pages.extend(found);
            assert!(pages.contains(&1), "set and not found");
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Threads that write, then sync. `failing` is the number of the sync that fails.
struct Device {
    written: AtomicU32,
    stable: AtomicU32,
    syncs: AtomicUsize,
    failing: Option<usize>,
    group: GroupSync,
    /// Touched by the sync that runs: there is one at a time.
    running: UnsafeCell<()>,
}

impl Device {
    /// Whether the write is on stable storage; if so, it is looked for there.
    fn write_and_sync(&self, bit: u32) -> bool {
        self.written.fetch_or(bit, Ordering::AcqRel);
        let synced = self.group.run(|| self.running.with_mut(|_| self.fdatasync())).is_ok();
        assert!(!synced || self.stable.fetch_or(0, Ordering::AcqRel) & bit != 0, "synced and not on stable storage");
        synced
    }

    fn fdatasync(&self) -> io::Result<()> {
        let covered = self.written.fetch_or(0, Ordering::AcqRel);
        if self.failing == Some(self.syncs.fetch_add(1, Ordering::AcqRel)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.stable.fetch_or(covered, Ordering::AcqRel);
        Ok(())
    }
}

/// Three threads share syncs: whoever is told of success has its write on stable storage.
fn shared_syncs(failing: Option<usize>) {
    explore(3, move || {
        let device = Arc::new(Device {
            written: AtomicU32::new(0),
            stable: AtomicU32::new(0),
            syncs: AtomicUsize::new(0),
            failing,
            group: GroupSync::default(),
            running: UnsafeCell::new(()),
        });
        let others = [2, 4].map(|bit| {
            let device = device.clone();
            thread::spawn(move || device.write_and_sync(bit))
        });
        let mut synced = usize::from(device.write_and_sync(1));
        synced += others.into_iter().map(|other| usize::from(other.join().unwrap())).sum::<usize>();
        let syncs = device.syncs.load(Ordering::Relaxed);
        match failing.filter(|failing| *failing < syncs) {
            None => assert_eq!(synced, 3, "no sync failed"),
            Some(failing) => {
                assert!(synced <= failing, "a failure that somebody was not told of");
                assert_eq!(syncs, failing + 1, "none after the one that failed");
                assert!(!device.write_and_sync(8), "a failure that is forgotten");
            }
        }
    });
}

#[test]
fn a_shared_sync_covers_what_was_written_before_it() {
    shared_syncs(None);
}

#[test]
fn a_sync_that_fails_is_told_to_all_it_covered_and_for_good() {
    shared_syncs(Some(0));
    shared_syncs(Some(1));
}
