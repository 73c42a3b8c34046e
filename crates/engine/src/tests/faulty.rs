//! Nothing is lost on a disk that fails, tears, delays and reorders writes ([`Plan`]): random work against a shadow copy.
//!
//! Every word of the file says which word of the file it is and in which generation it was stored. So a word found in the
//! file is known to be another's, or older than what was saved, or newer than what was stored: none of it may be.

mod behind;
mod pins;

use crate::coherence;
use crate::effort::{quick_or_full, skip};
use crate::store::faulty::{Disk, Plan, Random, SECTOR};
use crate::sys::PAGE;
use crate::{Advice, Cache, Error, Fallback, MapMut, MapOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Not a multiple of a page, nor of a sector: the last page is written through the page cache.
const FILE: usize = 200 * PAGE + 5 * SECTOR + 24;
const PAGES: usize = FILE.div_ceil(PAGE);
const SECTORS: usize = FILE.div_ceil(SECTOR);
const WORDS: usize = FILE / 8;
/// Pages that loads need when the rest is dirty and cannot be written.
const SPARE: usize = 8;

fn stamp(word: usize, generation: u32) -> u64 {
    (word as u64) << 32 | u64::from(generation)
}

/// The sectors of pages, as far as the file goes.
fn sectors(pages: &Range<usize>) -> Range<usize> {
    const IN_PAGE: usize = PAGE / SECTOR;
    (pages.start * IN_PAGE).min(SECTORS)..(pages.end * IN_PAGE).min(SECTORS)
}

/// The words of sectors.
fn words(sectors: &Range<usize>) -> Range<usize> {
    (sectors.start * (SECTOR / 8)).min(WORDS)..(sectors.end * (SECTOR / 8)).min(WORDS)
}

/// A file of generation zero on a faulty disk.
struct Bench {
    path: PathBuf,
    disk: Arc<Disk>,
    file: File,
    /// Stores to absent pages are kept.
    keeps: bool,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// On the disk of the build directory; nothing, and a reason, where maps cannot be cached.
    fn new(seed: u64) -> Option<Self> {
        if let Some(missing) = crate::requirements::missing() {
            skip(format!("{} is missing", missing.name));
            return None;
        }
        let folder = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, (0..WORDS).flat_map(|word| stamp(word, 0).to_ne_bytes()).collect::<Vec<_>>()).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        if let Some(missing) = crate::requirements::of_file(&file).into_iter().find(|one| one.found.is_err()) {
            skip(format!("{} is missing in the build directory", missing.name));
            return None;
        }
        let disk = Disk::new(&path, seed).unwrap();
        Some(Bench { path, disk, file, keeps: false, _folder: folder })
    }

    fn map(&self, cache: &Cache) -> MapMut {
        self.map_by(cache, MapOptions::new().async_stores(self.keeps))
    }

    fn map_by(&self, cache: &Cache, options: &mut MapOptions) -> MapMut {
        let open = |from: &File, facts: &_, direct| self.disk.open(from, facts, direct);
        let mapping = options.cache(cache).fallback(Fallback::Refuse).open(&self.file, true, &open).unwrap();
        MapMut { mapping }
    }

    /// Whether an error is the one that a plan makes, over pages of the flushed ones.
    fn check_error(&self, error: &Error, numbers: &[i32], flushed: &Range<usize>) -> Range<usize> {
        let Error::WriteBack { path, offset, len, source } = error else { panic!("{error}") };
        assert_eq!(path, &self.path, "{error}");
        assert!(source.raw_os_error().is_some_and(|number| numbers.contains(&number)), "{error}: not {numbers:?}");
        assert!(*offset % PAGE as u64 == 0 && *len % PAGE as u64 == 0 && *len > 0, "{error}");
        let named = *offset as usize / PAGE..(*offset + *len) as usize / PAGE;
        assert!(flushed.start <= named.start && named.end <= flushed.end, "{error}: flushed were pages {flushed:?}");
        named
    }
}

/// Some sectors of the file: those of the pages that one thread stores to.
struct Shadow {
    own: fn(usize, usize) -> bool,
    thread: usize,
    /// Generation last stored, a sector.
    stored: Vec<u32>,
    /// Generation that the file has at least.
    written: Vec<u32>,
    /// Generation that stable storage has at least.
    stable: Vec<u32>,
    generation: u32,
}

impl Shadow {
    fn new(own: fn(usize, usize) -> bool, thread: usize) -> Self {
        let zero = || vec![0; SECTORS];
        Shadow { own, thread, stored: zero(), written: zero(), stable: zero(), generation: 0 }
    }

    fn owns(&self, page: usize) -> bool {
        (self.own)(page, self.thread)
    }

    /// Pages that may be dirty.
    fn unsaved(&self) -> impl Iterator<Item = usize> {
        (0..PAGES).filter(|page| sectors(&(*page..page + 1)).any(|sector| self.written[sector] < self.stored[sector]))
    }

    fn store(&mut self, base: Base, sectors: Range<usize>) {
        self.generation += 1;
        words(&sectors).for_each(|word| base.word(word).store(stamp(word, self.generation), Ordering::Relaxed));
        self.stored[sectors].fill(self.generation);
    }

    /// Every word of a page is what was last stored.
    fn load(&self, base: Base, page: usize) {
        for word in words(&sectors(&(page..page + 1))) {
            let found = base.word(word).load(Ordering::Relaxed);
            assert_eq!(found, stamp(word, self.stored[word * 8 / SECTOR]), "in memory: word {word}, page {page}");
        }
    }

    fn note_written(&mut self, pages: &Range<usize>) {
        for sector in sectors(pages).filter(|sector| (self.own)(sector * SECTOR / PAGE, self.thread)) {
            self.written[sector] = self.stored[sector];
        }
    }

    /// A sync that began after the call's writes covers all that was written before.
    fn note_flushed(&mut self, pages: &Range<usize>) {
        self.note_written(pages);
        self.stable.copy_from_slice(&self.written);
    }

    /// No word of the file or of stable storage is older than it may be, newer than what was stored, or another's.
    fn check(&self, disk: &Disk) {
        // Stable storage first: what is read later may be newer.
        let (stable, file) = (disk.stable(), disk.contents());
        for (name, found, least) in [("stable storage", stable, &self.stable), ("the file", file, &self.written)] {
            assert_eq!(found.len(), WORDS);
            for (word, found) in found.iter().enumerate().filter(|(word, _)| self.owns(word * 8 / PAGE)) {
                let sector = word * 8 / SECTOR;
                let expected = stamp(word, least[sector])..=stamp(word, self.stored[sector]);
                assert!(expected.contains(found), "{name}: word {word} is {found:#x}, not in {expected:#x?}");
            }
        }
    }
}

/// A map's first word.
#[derive(Clone, Copy)]
struct Base(*mut u8);
// SAFETY: each thread stores only to pages that it owns, atomically.
unsafe impl Send for Base {}
// SAFETY: likewise.
unsafe impl Sync for Base {}

impl Base {
    fn word<'a>(self, word: usize) -> &'a AtomicU64 {
        // SAFETY: inside a map that outlives the access.
        unsafe { &*self.0.cast::<AtomicU64>().add(word) }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Store { sector: usize, count: usize },
    Load { page: usize },
    Flush { pages: Range<usize> },
    FlushAsync,
    DontNeed { pages: Range<usize> },
    Disk(Plan),
    MapAnew,
    Check,
}

#[derive(Debug, Clone)]
struct Case {
    keeps: bool,
    capacity: usize,
    high_water: u8,
    seed: u64,
    steps: Vec<Step>,
}

fn pages() -> impl Strategy<Value = Range<usize>> {
    prop_oneof![1 => Just(0..PAGES), 2 => (0..PAGES, 1..60usize).prop_map(|(from, len)| from..(from + len).min(PAGES))]
}

fn plan() -> impl Strategy<Value = Plan> {
    let error = prop::sample::select(vec![libc::EIO, libc::ENOSPC]);
    let failing = prop::sample::select(vec![0usize, 0, 30, 60, 100, 100]);
    let share = || prop::sample::select(vec![0usize, 20, 100]);
    let bad_page = prop_oneof![3 => Just(None), 1 => (0..PAGES).prop_map(Some)];
    (failing, bad_page, error, any::<bool>(), 0..20usize, 0..20usize, share()).prop_map(
        |(failing, bad_page, error, torn, slow, overtaken, early)| Plan {
            failing,
            bad_page,
            error,
            torn,
            slow,
            overtaken,
            early,
            sync_error: None,
            unreadable: None,
            held_from: None,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        25 => (0..SECTORS, 1..12usize).prop_map(|(sector, count)| Step::Store { sector, count }),
        // Neighbours, so that runs are long.
        10 => (0..300usize, 8..40usize).prop_map(|(sector, count)| Step::Store { sector, count }),
        20 => (0..PAGES).prop_map(|page| Step::Load { page }),
        6 => pages().prop_map(|pages| Step::Flush { pages }),
        1 => Just(Step::FlushAsync),
        4 => pages().prop_map(|pages| Step::DontNeed { pages }),
        3 => plan().prop_map(Step::Disk),
        2 => Just(Step::Disk(Plan::default())),
        2 => Just(Step::MapAnew),
        2 => Just(Step::Check),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (any::<bool>(), 16..=64usize, 1..=75u8, any::<u64>(), prop::collection::vec(step(), 1..150))
        .prop_map(|(keeps, capacity, high_water, seed, steps)| Case { keeps, capacity, high_water, seed, steps })
}

/// One thread's work on a map, and what the disk makes of it.
struct Work<'a> {
    bench: &'a Bench,
    shadow: Shadow,
    /// Pages that may be unsaved at a time: a fault that finds no other ends the process, as it must.
    quota: usize,
    /// The plan that holds, with its number, and the pages stored to since.
    plan: (u64, Plan),
    since: BTreeSet<usize>,
}

impl<'a> Work<'a> {
    fn new(bench: &'a Bench, shadow: Shadow, quota: usize) -> Self {
        Work { bench, shadow, quota, plan: bench.disk.plan(), since: BTreeSet::new() }
    }

    fn look_at_plan(&mut self) {
        let now = self.bench.disk.plan();
        if now.0 != self.plan.0 {
            self.plan = now;
            self.since.clear();
        }
    }

    /// Stores to own sectors, page by page, unless too many pages are unsaved.
    fn store(&mut self, base: Base, wanted: Range<usize>) {
        self.look_at_plan();
        for page in wanted.start * SECTOR / PAGE..(wanted.end * SECTOR).div_ceil(PAGE) {
            let of_page = sectors(&(page..page + 1));
            let unsaved = self.shadow.unsaved().filter(|other| *other != page).count();
            if self.shadow.owns(page) && unsaved < self.quota {
                self.shadow.store(base, of_page.start.max(wanted.start)..of_page.end.min(wanted.end));
                self.since.insert(page);
            }
        }
    }

    /// Flushes, or drops, own pages or all. What the call says must agree with how the disk behaved all the while.
    fn flush(&mut self, map: &MapMut, pages: Range<usize>, drop_them: bool) {
        self.look_at_plan();
        let (from, len) = (pages.start * PAGE, (pages.end * PAGE).min(FILE) - pages.start * PAGE);
        let result = if drop_them { map.advise_range(Advice::DontNeed, from, len) } else { map.flush_range(from, len) };
        let (number, plan) = self.bench.disk.plan();
        let steady = number == self.plan.0;
        match result {
            Ok(()) => {
                let mut refused = self.since.range(pages.clone());
                let refused = refused.find(|page| plan.failing == 100 || plan.bad_page == Some(**page));
                assert!(!(steady && refused.is_some()), "saved {refused:?} on {plan:?}");
                if drop_them { self.shadow.note_written(&pages) } else { self.shadow.note_flushed(&pages) }
            }
            Err(error) if steady => {
                let named = self.bench.check_error(&error, &[plan.error], &pages);
                let bad = plan.bad_page.is_some_and(|page| named.contains(&page));
                assert!(plan.failing > 0 || bad, "{error}: on {plan:?}");
            }
            Err(error) => drop(self.bench.check_error(&error, &[libc::EIO, libc::ENOSPC], &pages)),
        }
    }
}

fn base(map: &mut MapMut) -> Base {
    Base(map.as_mut_ptr())
}

fn run(case: &Case) -> bool {
    let Some(mut bench) = Bench::new(case.seed) else { return false };
    bench.keeps = case.keeps;
    let cache = Cache::builder().capacity(case.capacity * PAGE).high_water(case.high_water).build().unwrap();
    let mut work = Work::new(&bench, Shadow::new(|_, _| true, 0), case.capacity - SPARE);
    let mut map = bench.map(&cache);
    for step in &case.steps {
        match step.clone() {
            Step::Store { sector, count } => work.store(base(&mut map), sector..(sector + count).min(SECTORS)),
            Step::Load { page } => work.shadow.load(base(&mut map), page),
            Step::Flush { pages } => work.flush(&map, pages, false),
            Step::FlushAsync => drop(map.flush_async()),
            Step::DontNeed { pages } => work.flush(&map, pages, true),
            Step::Disk(plan) => bench.disk.set(plan),
            Step::MapAnew => {
                drop(map);
                let (_, plan) = bench.disk.plan();
                if plan.failing == 0 && plan.bad_page.is_none() {
                    work.shadow.note_written(&(0..PAGES));
                }
                work.shadow.check(&bench.disk);
                map = bench.map(&cache);
            }
            Step::Check => work.shadow.check(&bench.disk),
        }
    }
    bench.disk.set(Plan::default());
    (0..PAGES).for_each(|page| work.shadow.load(base(&mut map), page));
    work.flush(&map, 0..PAGES, false);
    work.shadow.check(&bench.disk);
    assert_eq!(work.shadow.unsaved().next(), None);
    drop(map);
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0));
    true
}

/// A run's seed: `FASTMAP_SEED`, else the one given. Printed, so that a failure can be run again.
fn seed(default: u64) -> u64 {
    let seed = std::env::var("FASTMAP_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("FASTMAP_SEED={seed}");
    seed
}

#[test]
fn one_thread_on_a_faulty_disk_loses_nothing() {
    let config =
        Config { cases: quick_or_full(30, 100), failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed(11).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let ready = std::cell::Cell::new(true);
    let result = runner.run(&case(), |case| {
        if ready.get() {
            ready.set(run(&case));
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Four threads own a page in four each; a fifth flushes them all and changes how the disk behaves.
fn threads(capacity: usize, high_water: u8, seed: u64, keeps: bool) {
    const THREADS: usize = 4;
    let Some(mut bench) = Bench::new(seed) else { return };
    bench.keeps = keeps;
    let cache = Cache::builder().capacity(capacity * PAGE).high_water(high_water).build().unwrap();
    let mut map = bench.map(&cache);
    let base = base(&mut map);
    let shadows = std::thread::scope(|scope| {
        let (bench, map) = (&bench, &map);
        let owner = |thread: usize| {
            move || {
                let mut random = Random::new(seed + 1 + thread as u64);
                let shadow = Shadow::new(|page, thread| page % THREADS == thread, thread);
                let mut work = Work::new(bench, shadow, (capacity - SPARE) / THREADS);
                for _ in 0..300 {
                    let page = random.below(PAGES / THREADS) * THREADS + thread;
                    let some = page..(page + 1 + random.below(30)).min(PAGES);
                    match random.below(20) {
                        0..9 => {
                            let sectors = sectors(&(page..page + 1));
                            let first = sectors.start + random.below(sectors.len());
                            work.store(base, first..first + 1 + random.below(sectors.end - first));
                        }
                        9..16 => work.shadow.load(base, page),
                        16 => work.flush(map, some, true),
                        17 | 18 => {
                            work.flush(map, some, false);
                        }
                        _ => work.shadow.check(&bench.disk),
                    }
                }
                work.shadow
            }
        };
        let owners: Vec<_> = (0..THREADS).map(|thread| scope.spawn(owner(thread))).collect();
        let mut random = Random::new(seed);
        let mut flusher = Work::new(bench, Shadow::new(|_, _| false, 0), 0);
        while !owners.iter().all(|owner| owner.is_finished()) {
            let any = |random: &mut Random, of: &[usize]| of[random.below(of.len())];
            bench.disk.set(Plan {
                failing: any(&mut random, &[0, 0, 40, 100]),
                bad_page: random.chance(20).then(|| random.below(PAGES)),
                error: any(&mut random, &[libc::EIO as usize, libc::ENOSPC as usize]) as i32,
                torn: random.chance(50),
                slow: any(&mut random, &[0, 10]),
                overtaken: any(&mut random, &[0, 20, 50]),
                early: any(&mut random, &[0, 50, 100]),
                sync_error: None,
                unreadable: None,
                held_from: None,
            });
            std::thread::sleep(Duration::from_micros(random.below(5000) as u64));
            flusher.flush(map, 0..PAGES, false);
        }
        owners.into_iter().map(|owner| owner.join().unwrap()).collect::<Vec<_>>()
    });
    bench.disk.set(Plan::default());
    map.flush().unwrap();
    for mut shadow in shadows {
        shadow.note_flushed(&(0..PAGES));
        shadow.check(&bench.disk);
        (0..PAGES).filter(|page| shadow.owns(*page)).for_each(|page| shadow.load(base, page));
    }
    drop(map);
    let stats = cache.stats();
    assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0));
}

#[test]
fn five_threads_on_a_faulty_disk_lose_nothing() {
    let seed = seed(13);
    for (round, (capacity, high_water)) in [(16, 50), (24, 10), (64, 5), (64, 75)].into_iter().enumerate() {
        for keeps in [false, true] {
            threads(capacity, high_water, seed + 100 * round as u64, keeps);
        }
    }
}

#[test]
fn a_failed_flush_names_range_and_reason_until_it_succeeds() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    map[10 * PAGE..15 * PAGE].fill(1);
    for (error, text) in [(libc::ENOSPC, "No space left on device"), (libc::EIO, "Input/output error")] {
        bench.disk.set(Plan { failing: 100, error, torn: true, ..Plan::default() });
        for _ in 0..3 {
            let failure = map.flush().unwrap_err();
            assert_eq!(bench.check_error(&failure, &[error], &(10..15)), 10..15);
            assert!(failure.to_string().contains(text), "{failure}");
            assert_eq!(cache.stats().dirty_pages, 5);
        }
        // Others are not held up.
        map.flush_range(20 * PAGE, PAGE).unwrap();
    }
    bench.disk.set(Plan { bad_page: Some(12), error: libc::EIO, ..Plan::default() });
    map.flush_range(13 * PAGE, 2 * PAGE).unwrap();
    map.flush_range(10 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(bench.check_error(&map.flush().unwrap_err(), &[libc::EIO], &(0..PAGES)), 12..13);
    bench.disk.set(Plan::default());
    map.flush().unwrap();
    assert!(bench.disk.stable()[10 * PAGE / 8..15 * PAGE / 8].iter().all(|word| *word == 0x0101_0101_0101_0101));
}

/// The kernel reports what fdatasync(2) could not write once, and forgets it.
#[test]
fn a_failed_sync_fails_every_flush_from_then_on() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    map[0] = 1;
    bench.disk.set(Plan { sync_error: Some(libc::EIO), ..Plan::default() });
    let Err(Error::Io { path, source, .. }) = map.flush() else { panic!("synced") };
    assert_eq!((path, source.raw_os_error()), (bench.path.clone(), Some(libc::EIO)));
    bench.disk.set(Plan::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let error = map.flush().unwrap_err();
                assert!(error.to_string().contains("an earlier fdatasync failed"), "{error}");
            });
        }
    });
    assert_eq!(bench.disk.stable()[0], stamp(0, 0), "nobody was told that it is stable");
}

/// A fault that finds every page unsaved waits for the disk.
#[test]
fn stores_wait_for_a_disk_that_recovers() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(16 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    bench.disk.set(Plan { failing: 100, error: libc::ENOSPC, torn: true, ..Plan::default() });
    let recovers = {
        let disk = bench.disk.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150));
            disk.set(Plan::default());
        })
    };
    let mut work = Work::new(&bench, Shadow::new(|_, _| true, 0), usize::MAX);
    work.store(base(&mut map), 0..40 * PAGE / SECTOR);
    recovers.join().unwrap();
    work.flush(&map, 0..PAGES, false);
    work.shadow.check(&bench.disk);
}

/// A system call on the file that needs stores saved first fails where they cannot be; what it is to cut off need not be saved.
#[test]
fn a_file_operation_on_a_full_disk_loses_nothing() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = bench.map(&cache);
    map[10 * PAGE..15 * PAGE].fill(1);
    bench.disk.set(Plan { failing: 100, error: libc::ENOSPC, torn: true, ..Plan::default() });
    let mapped = coherence::file(bench.file.as_raw_fd()).expect("it is mapped");
    let page = |page: usize| (page * PAGE) as u64;
    assert_eq!(mapped.before_read(page(11)..page(12)), Err(libc::ENOSPC));
    assert_eq!(mapped.writing(page(8)..page(12) + 5).map(drop), Err(libc::ENOSPC));
    assert_eq!(mapped.resizing(page(12) + 5).map(drop), Err(libc::ENOSPC));
    drop(mapped.resizing(page(9)).unwrap());
    assert!(map[10 * PAGE..15 * PAGE].iter().all(|byte| *byte == 1));
    assert_eq!(cache.stats().dirty_pages, 5);
    let resizing = mapped.resizing(page(9)).unwrap();
    bench.file.set_len(page(9)).unwrap();
    // SAFETY: nobody has a reference into the map.
    unsafe { resizing.done() };
    assert_eq!(cache.stats().dirty_pages, 0);
    bench.disk.set(Plan::default());
    bench.file.set_len(page(15)).unwrap();
    map.flush().unwrap();
    assert!(map[9 * PAGE..15 * PAGE].iter().all(|byte| *byte == 0));
    drop(mapped);
    drop(map);
    assert_eq!(cache.stats().resident_pages, 0);
}
