//! The program: one thread takes steps on two mapped files until the end comes.

use super::Plan;
use super::told::{IN_PAGE, Least, PAGES, SECTORS, Shadow, Told};
use crate::by_address::{self, Request};
use crate::coherence;
use crate::files::facts::facts_of;
use crate::mechanism::Mechanism;
use crate::region::registry;
use crate::store::faulty::{self, Disk, Random, SECTOR};
use crate::sys::file::ByteLock;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, crash, file};
use crate::writeback::sweep::{self, Stripe};
use crate::{Cache, Fallback};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Pages that loads need when the rest is dirty and cannot be written.
const SPARE: usize = 8;
/// The file that is stored to, and the one that is only read here, by a lease.
const STORED: usize = 0;
const LEASED: usize = 1;
const PROT: [i32; 2] = [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ];
/// Children that look when the program has ended.
const MOST_LATE: usize = 4;
/// A child lives so many seconds at most.
const CHILD: u32 = 60;

/// What is drawn for each step, whatever it is.
#[derive(Debug)]
struct Drawn {
    file: usize,
    /// Of this file, where it is mapped.
    pages: Range<usize>,
    /// Of the stored file, as far as it goes where it is mapped.
    sectors: Range<usize>,
    number: usize,
}

/// Steps: their share of a hundred, what they are, and how they are taken.
type Steps = [(usize, &'static str, fn(&mut Program, Drawn)); 18];
const STEPS: Steps = [
    (28, "store", |program, drawn| program.store(drawn.sectors)),
    (2, "store under pins", Program::store_pinned),
    (17, "load", |program, drawn| program.load(drawn.file, &drawn.pages)),
    (3, "msync all", |program, _| _ = program.flush(0..PAGES)),
    (5, "msync", |program, drawn| _ = program.flush(drawn.pages)),
    (5, "madvise", Program::advise),
    (2, "prefetch", Program::prefetch),
    (6, "write", Program::write),
    (3, "read", Program::read),
    (3, "ftruncate", Program::resize),
    (8, "work of a writer", Program::write_back),
    (1, "another capacity", Program::set_capacity),
    (4, "map anew", |program, drawn| program.map_anew(drawn.file)),
    (2, "mremap", Program::remap),
    (1, "mprotect", Program::protect),
    (4, "another disk", Program::set_any_disk),
    (2, "another program writes", Program::ask_other),
    (2, "fork", Program::fork),
];

struct Mapped {
    file: File,
    disk: Arc<Disk>,
    at: *mut u8,
    pages: usize,
    shadow: &'static Shadow,
}

impl Mapped {
    /// Sectors that can be touched.
    fn sectors(&self) -> usize {
        self.shadow.len().min(self.pages * IN_PAGE)
    }

    fn clip(&self, pages: &Range<usize>) -> Range<usize> {
        (pages.start * IN_PAGE).min(self.sectors())..(pages.end * IN_PAGE).min(self.sectors())
    }

    fn is_engines(&self) -> bool {
        by_address::is_cached(self.at as usize, PAGE)
    }

    fn check(&self) {
        // Stable storage first: what is read later may be newer.
        let (stable, now) = (self.disk.stable(), self.disk.contents());
        for (name, words, least) in [("stable storage", stable, Least::Stable), ("in the file", now, Least::Written)] {
            assert_eq!(self.shadow.wrong_file(&words, least), None, "{name}");
        }
    }
}

pub struct Program {
    told: &'static Told,
    random: Random,
    cache: Cache,
    capacity: usize,
    keeps: bool,
    predicts: bool,
    files: [Mapped; 2],
    /// The disk's behaviour, and the pages stored to since it began.
    disk: faulty::Plan,
    since: BTreeSet<usize>,
    /// Children that look when this process has ended.
    late: usize,
    /// Locked for as long as this process or a child of it has it open.
    _lives: File,
}

impl Program {
    pub fn new(folder: &Path, seed: u64, plan: &Plan) -> Self {
        let told = Told::open(&folder.join("told"));
        let cache = Cache::builder().capacity(plan.capacity * PAGE).high_water(plan.high_water).keeper(plan.keeper);
        let cache = cache.evict_batch(plan.batch).without(Mechanism::PerCore);
        let cache = if plan.predicts { cache } else { cache.without(Mechanism::StorePrediction) };
        let cache = cache.build().unwrap();
        if !plan.threads {
            // The pool's threads count as started.
            cache.pool.start_writes(|| None);
            cache.pool.start_reads(|| None);
        }
        let files = [STORED, LEASED].map(|number| {
            let path = folder.join(format!("file{number}"));
            let file = OpenOptions::new().read(true).write(number == STORED).open(&path).unwrap();
            let disk = Disk::new(&path, seed).unwrap();
            Mapped { file, disk, at: std::ptr::null_mut(), pages: PAGES, shadow: &told.files[number] }
        });
        let lives = OpenOptions::new().write(true).open(folder.join("told")).unwrap();
        assert!(matches!(file::lock_byte(&lives, 0), ByteLock::Taken));
        let random = Random::new(!seed);
        let (disk, since) = (faulty::Plan::default(), BTreeSet::new());
        let &Plan { capacity, keeps, predicts, .. } = plan;
        let mut program =
            Program { told, random, cache, capacity, keeps, predicts, files, disk, since, late: 0, _lives: lives };
        (STORED..=LEASED).for_each(|file| program.map(file));
        program
    }

    fn map(&mut self, number: usize) {
        let Mapped { file, disk, at, pages, .. } = &mut self.files[number];
        let prot = PROT[number];
        let request = Request {
            addr: 0,
            len: *pages * PAGE,
            prot,
            flags: libc::MAP_SHARED,
            offset: 0,
            one_writer: true,
            own: number == STORED,
            fallback: Fallback::Refuse,
            async_stores: self.keeps,
            layers: false,
        };
        let open = |from: &File, facts: &file::Facts, direct| disk.open(from, facts, direct);
        // SAFETY: the files are this test's own, and mapped until they are unmapped here.
        *at = match unsafe { by_address::map_as(file, facts_of(file).unwrap(), &self.cache, &request, &open) }.unwrap()
        {
            Some(at) => at,
            None => {
                // SAFETY: a new mapping.
                let at = unsafe {
                    libc::mmap(std::ptr::null_mut(), request.len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0)
                };
                assert_ne!(at, libc::MAP_FAILED);
                by_address::note_kernel(&by_address::own(), file.as_fd(), at as usize, request.len, None);
                at.cast()
            }
        };
    }

    fn unmap(&mut self, number: usize) {
        let Mapped { at, pages, .. } = &self.files[number];
        // SAFETY: nobody has a reference into it.
        assert_eq!(unsafe { by_address::unmap(*at as usize, pages * PAGE) }, Ok(()));
    }

    fn draw(&mut self) -> Drawn {
        let file = self.random.below(3) / 2;
        let part = |random: &mut Random, end: usize| {
            let (start, most) = (random.below(end), [3, 12, 60, end][random.below(4)]);
            start..(start + 1 + random.below(most)).min(end)
        };
        let pages = part(&mut self.random, self.files[file].pages);
        let sectors = part(&mut self.random, self.files[STORED].sectors());
        Drawn { file, pages, sectors, number: self.random.below(1 << 20) }
    }

    fn fails(&self) -> bool {
        self.disk.failing > 0 || self.disk.bad_page.is_some()
    }

    /// A call may fail as the disk does.
    fn allow(&self, result: Result<(), i32>) -> bool {
        if let Err(error) = result {
            assert!(self.fails() && error == self.disk.error, "error {error} on {:?}", self.disk);
        }
        result.is_ok()
    }

    /// What a call returns, unless it has failed as the disk does.
    fn allowed<T>(&self, result: Result<T, i32>) -> Option<T> {
        result.map_err(|error| self.allow(Err(error))).ok()
    }

    fn set_disk(&mut self, plan: faulty::Plan) {
        self.files.iter().for_each(|one| one.disk.set(plan));
        self.disk = plan;
        self.since.clear();
    }

    /// Stores to sectors, but not to more pages than can wait for a disk that fails.
    fn store(&mut self, sectors: Range<usize>) {
        let Mapped { shadow, at, .. } = self.files[STORED];
        for page in sectors.start / IN_PAGE..sectors.end.div_ceil(IN_PAGE) {
            if !self.fails() || shadow.unsaved() < self.capacity.saturating_sub(SPARE) {
                let part = sectors.start.max(page * IN_PAGE)..sectors.end.min((page + 1) * IN_PAGE);
                shadow.store(at, part.clone(), self.told.next_generation());
                match self.files[STORED].is_engines() {
                    true => drop(self.since.insert(page)),
                    false => shadow.note_written(part),
                }
            }
        }
    }

    fn load(&self, number: usize, pages: &Range<usize>) {
        let one = &self.files[number];
        assert_eq!(one.shadow.wrong_in(one.at, one.clip(pages)), None, "in memory");
    }

    /// msync(2). What it says must agree with how the disk has behaved.
    fn flush(&mut self, pages: Range<usize>) -> bool {
        let one = &self.files[STORED];
        let pages = pages.start.min(one.pages)..pages.end.min(one.pages);
        if pages.is_empty() {
            return true;
        }
        let was_engines = one.is_engines();
        let at = one.at as usize + pages.start * PAGE;
        let done = self.allow(by_address::sync(at, pages.len() * PAGE, libc::MS_SYNC));
        if done {
            let mut refused = self.since.range(pages.clone());
            let refused = refused.find(|page| self.disk.failing == 100 || self.disk.bad_page == Some(**page));
            // Only of pages that nobody has cut off or written otherwise since.
            let refused = refused.filter(|page| was_engines && one.shadow.is_unsaved(**page));
            assert!(refused.is_none(), "saved page {refused:?} on {:?}", self.disk);
            one.shadow.note_written(one.clip(&pages));
            if was_engines && one.is_engines() {
                one.shadow.note_stable();
            }
        }
        done
    }

    fn store_pinned(&mut self, drawn: Drawn) {
        let sectors = drawn.sectors.start..drawn.sectors.end.min(drawn.sectors.start + 12);
        let (at, len) = (self.files[STORED].at as usize + sectors.start * SECTOR, sectors.len() * SECTOR);
        if self.allow(by_address::keep(at, len, true).map_err(|error| error.errno())) {
            self.store(sectors.clone());
            self.flush(sectors.start / IN_PAGE..sectors.end.div_ceil(IN_PAGE));
            self.store(sectors);
            assert_eq!(by_address::let_go(at, len, true), Ok(()));
        }
    }

    fn advise(&mut self, Drawn { file, pages, number, .. }: Drawn) {
        use libc::{MADV_DONTNEED, MADV_PAGEOUT, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED};
        let advice = [MADV_DONTNEED, MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_PAGEOUT][number % 5];
        let at = self.files[file].at as usize + pages.start * PAGE;
        // SAFETY: this advice destroys nothing that is stored in a shared map.
        self.allow(unsafe { by_address::advise(at, pages.len() * PAGE, advice) });
    }

    fn prefetch(&mut self, Drawn { file, pages, .. }: Drawn) {
        let (at, sectors) = (self.files[file].at as usize, self.files[file].clip(&pages));
        let range = at + sectors.start * SECTOR..at + sectors.end.min(sectors.start + IN_PAGE * 12) * SECTOR;
        self.allow(by_address::prefetch_wait(&[range]).map_err(|error| error.errno()));
    }

    /// write(2), as the preload library makes it; it may begin at the file's end.
    fn write(&mut self, Drawn { number, .. }: Drawn) {
        let Mapped { shadow, file, .. } = &self.files[STORED];
        let start = (number % (shadow.len() + 1)).min(SECTORS - 1);
        let sectors = start..(start + 1 + number / 2048 % 40).min(SECTORS);
        let (at, generation) = ((start * SECTOR) as u64, self.told.next_generation());
        let data = shadow.bytes(sectors.clone(), generation);
        let mapped = coherence::file(file.as_raw_fd());
        let writing = mapped.as_ref().map(|mapped| mapped.writing(at..at + data.len() as u64)).transpose();
        if let Some(writing) = self.allowed(writing) {
            shadow.begin_write(&sectors, generation);
            file.write_all_at(&data, at).unwrap();
            let part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
            // SAFETY: the file has these bytes there.
            writing.into_iter().for_each(|writing| unsafe { writing.written(at, &[part], data.len()) });
            shadow.end_write(&sectors, generation);
        }
    }

    /// read(2), likewise.
    fn read(&mut self, Drawn { sectors, .. }: Drawn) {
        let Mapped { shadow, file, .. } = &self.files[STORED];
        let mut data = vec![0; sectors.len() * SECTOR];
        let at = (sectors.start * SECTOR) as u64;
        let mapped = coherence::file(file.as_raw_fd());
        if self.allow(mapped.map_or(Ok(()), |mapped| mapped.before_read(at..at + data.len() as u64))) {
            file.read_exact_at(&mut data, at).unwrap();
            shadow.note_written(sectors.clone());
            let wrong = shadow.wrong_in(data.as_ptr().wrapping_sub(at as usize), sectors);
            assert_eq!(wrong, None, "read(2)");
        }
    }

    /// ftruncate(2), likewise.
    fn resize(&mut self, Drawn { number, .. }: Drawn) {
        let Mapped { shadow, file, .. } = &self.files[STORED];
        let (sectors, generation) = (IN_PAGE + number % (SECTORS - IN_PAGE), self.told.next_generation());
        let mapped = coherence::file(file.as_raw_fd());
        let resizing = mapped.as_ref().map(|mapped| mapped.resizing((sectors * SECTOR) as u64)).transpose();
        if let Some(resizing) = self.allowed(resizing) {
            shadow.begin_resize(sectors, generation);
            file.set_len((sectors * SECTOR) as u64).unwrap();
            // SAFETY: nobody has a reference into the map.
            resizing.into_iter().for_each(|resizing| unsafe { resizing.done() });
            shadow.end_resize(generation);
        }
    }

    /// What a writer does above the high-water mark, or at its ticks.
    fn write_back(&mut self, Drawn { number, .. }: Drawn) {
        let _blocked = Blocked::all();
        // SAFETY: it is mapped.
        let Some(region) = (unsafe { registry::find(self.files[STORED].at as usize) }) else { return };
        match number % 6 {
            0 => (0..5).for_each(|_| _ = sweep::write_expired(region, Stripe::ALL, true)),
            _ => _ = sweep::sweep(region, Stripe::ALL, 1 + number % 40, || false),
        }
    }

    fn set_capacity(&mut self, Drawn { number, .. }: Drawn) {
        if !self.fails() {
            self.capacity = 16 + number % 30;
            self.cache.resize(self.capacity * PAGE).unwrap();
        }
    }

    fn map_anew(&mut self, file: usize) {
        self.unmap(file);
        self.map(file);
    }

    fn remap(&mut self, Drawn { file, number, .. }: Drawn) {
        let Mapped { at, pages, .. } = &mut self.files[file];
        let wanted = 20 + number % (PAGES - 20);
        // SAFETY: nobody has a reference into the map.
        let moved = unsafe { by_address::remap(*at as usize, *pages * PAGE, wanted * PAGE, libc::MREMAP_MAYMOVE, 0) };
        let moved = moved.map(|moved| (*at, *pages) = (moved, wanted));
        // The kernel moves or extends none of which a part is advised otherwise than the rest.
        if moved != Err(libc::EFAULT) || self.files[file].is_engines() {
            self.allow(moved);
        }
    }

    /// A part has a protection of its own for a moment: the file becomes the kernel's.
    fn protect(&mut self, Drawn { file, pages, .. }: Drawn) {
        let at = self.files[file].at as usize + pages.start * PAGE;
        for prot in [libc::PROT_NONE, PROT[file]] {
            // SAFETY: nobody has a reference into the map.
            self.allow(unsafe { by_address::protect(at, pages.len() * PAGE, prot) });
        }
    }

    /// A disk begins to fail when all is saved: else there may be no room for loads.
    fn set_any_disk(&mut self, Drawn { number, .. }: Drawn) {
        if !self.flush(0..PAGES) || self.files[STORED].shadow.unsaved() > 0 {
            return;
        }
        let (predicts, random) = (self.predicts, &mut Random::new(number as u64));
        self.set_disk(match number % 4 {
            0 => faulty::Plan::default(),
            _ => faulty::Plan {
                failing: [0, 30, 60, if predicts { 80 } else { 100 }][random.below(4)],
                bad_page: (!predicts && random.chance(30)).then(|| random.below(PAGES)),
                error: [libc::EIO, libc::ENOSPC, libc::EDQUOT][random.below(3)],
                torn: random.chance(50),
                slow: random.below(20),
                overtaken: random.below(10),
                early: [0, 20, 50, 100][random.below(4)],
                ..faulty::Plan::default()
            },
        });
        eprintln!("{:?}", self.disk);
    }

    /// Another program opens the leased file to write, and writes. Neighbouring pages are in memory before.
    fn ask_other(&mut self, Drawn { number, .. }: Drawn) {
        let told = self.told;
        let start = number % self.files[LEASED].sectors();
        let end = (start + 1 + number / 2048 % 40).min(self.files[LEASED].sectors());
        let pages = start / IN_PAGE..end.div_ceil(IN_PAGE);
        self.load(LEASED, &pages);
        told.to_write[0].store(start as u32, SeqCst);
        told.to_write[1].store(end as u32, SeqCst);
        let asked = told.asked.fetch_add(1, SeqCst) + 1;
        until(|| told.answered.load(SeqCst) == asked);
        self.load(LEASED, &pages);
    }

    /// fork(2), as the preload library makes it. The child looks at both files, at once or when its parent has ended. At once it also stores.
    fn fork(&mut self, Drawn { sectors, number, .. }: Drawn) {
        let told = self.told;
        let (is_late, generation) = (number % 2 == 0 && self.late < MOST_LATE, told.next_generation());
        self.late += usize::from(is_late);
        self.set_disk(faulty::Plan::default());
        by_address::before_fork();
        // SAFETY: the child makes the calls below only.
        let child = unsafe { libc::fork() };
        if child != 0 {
            // SAFETY: `before_fork` came before.
            unsafe { by_address::in_parent() };
            let mut status = 0;
            // SAFETY: a child of this process's.
            until(|| is_late || unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != 0);
            assert_eq!(status, 0, "a child's status");
            return;
        }
        // SAFETY: likewise.
        unsafe {
            by_address::in_child();
            // Whatever it waits for.
            libc::alarm(CHILD);
        }
        // A program that it may execute finds the files so.
        let of_file = |one: &Mapped| one.shadow.wrong_file(&one.disk.contents(), Least::Done);
        let wrong = if is_late { None } else { self.files.iter().find_map(of_file) };
        until(|| !is_late || told.over.load(SeqCst) != 0);
        let in_memory = |one: &Mapped| one.shadow.wrong_in(one.at, 0..one.sectors());
        let wrong = wrong.or_else(|| self.files.iter().find_map(in_memory));
        if let Some(wrong) = &wrong {
            eprintln!("wrong in a child: {wrong}");
        } else if !is_late {
            self.files[STORED].shadow.store(self.files[STORED].at, sectors, generation);
        }
        // SAFETY: no memory.
        unsafe { libc::_exit(wrong.is_some().into()) };
    }

    fn step(&mut self) {
        let drawn = self.draw();
        if !self.files[drawn.file].is_engines() && self.random.chance(30) {
            eprintln!("map anew {}", drawn.file);
            return self.map_anew(drawn.file);
        }
        let mut choice = self.random.below(100);
        let is_chosen = |(share, ..): &&(usize, _, _)| {
            let is_it = choice < *share;
            choice = choice.saturating_sub(*share);
            is_it
        };
        match STEPS.iter().find(is_chosen) {
            Some((_, name, take)) => {
                eprintln!("{name}: {drawn:?}");
                take(self, drawn);
            }
            None => self.files.iter().for_each(Mapped::check),
        }
    }

    /// Takes all steps, unless the end comes before.
    pub fn run(mut self, plan: &Plan) {
        for number in 0..plan.steps {
            if number == plan.end_at {
                eprintln!("the end: {:?}, moment {}", plan.end, plan.moment);
                plan.end();
            }
            self.step();
            let (stats, told) = (self.cache.stats(), self.told);
            let counts = [crash::passed(), stats.misses, stats.evicted_pages, stats.writeback_pages, stats.upgrades];
            let add = |trace: u64, count: u64| (trace ^ count).wrapping_mul(0x100_0000_01B3);
            told.trace.store(counts.into_iter().fold(told.trace.load(SeqCst), add), SeqCst);
            told.steps.fetch_add(1, SeqCst);
            told.served.fetch_add(self.files.iter().all(Mapped::is_engines).into(), SeqCst);
        }
        self.set_disk(faulty::Plan::default());
        (STORED..=LEASED).for_each(|file| self.load(file, &(0..PAGES)));
        assert!(self.flush(0..PAGES));
        self.files.iter().for_each(Mapped::check);
        (STORED..=LEASED).for_each(|file| self.unmap(file));
        let stats = self.cache.stats();
        assert_eq!((stats.resident_pages, stats.dirty_pages), (0, 0));
        crash::begin_end();
        std::process::exit(0);
    }
}

/// Waits, but not for ever: the program is killed at its deadline, a child by its alarm.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_micros(100));
    }
}
