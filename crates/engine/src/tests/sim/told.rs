//! What a program tells the test of its files, in memory that both share and that outlives the program.

use crate::store::faulty::SECTOR;
use crate::sys::PAGE;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages of a file at most.
pub const PAGES: usize = 160;
pub const IN_PAGE: usize = PAGE / SECTOR;
pub const SECTORS: usize = PAGES * IN_PAGE;
const WORDS: usize = SECTOR / 8;

/// All of it; zeros are the beginning.
#[repr(C)]
pub struct Told {
    pub files: [Shadow; 2],
    /// Counts what the other program is asked for, and has done: to write some sectors of the second file.
    pub asked: AtomicU32,
    pub answered: AtomicU32,
    pub to_write: [AtomicU32; 2],
    /// The program has ended.
    pub over: AtomicU32,
    /// The last generation of any sector.
    pub generation: AtomicU32,
    /// A number made of all that the steps so far have done.
    pub trace: AtomicU64,
    pub steps: AtomicU32,
    /// Steps at which both files were the engine's.
    pub served: AtomicU32,
}

impl Told {
    /// The memory behind a file, which is made if it is not there. It is mapped for good.
    pub fn open(path: &Path) -> &'static Told {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(size_of::<Told>() as u64).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file as long as the structure, which consists of atomics and may be zero.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), size_of::<Told>(), prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            &*at.cast()
        }
    }

    /// A generation for one more change.
    pub fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 2
    }

    pub fn close(&self) {
        // SAFETY: the mapping of `open`; its caller looks at it no more.
        unsafe { libc::munmap((&raw const *self).cast_mut().cast(), size_of::<Told>()) };
    }
}

/// Generations of a file's sectors. Each change of any sector has a generation of its own, and each word says in which it was stored; but a
/// change that cuts sectors off leaves zeros.
#[repr(C)]
pub struct Shadow {
    number: AtomicU32,
    /// Sectors that the file has: as a call under way will leave it, and as it was left.
    len: [AtomicU32; 2],
    /// The last change that began.
    begun: [AtomicU32; SECTORS],
    /// The last that is done.
    done: [AtomicU32; SECTORS],
    /// The file has at least this.
    written: [AtomicU32; SECTORS],
    /// Stable storage has at least this.
    stable: [AtomicU32; SECTORS],
    /// The last change that cut it off.
    cut: [AtomicU32; SECTORS],
}

/// What a sector must have at least.
#[derive(Debug, Clone, Copy)]
pub enum Least {
    Done,
    Written,
    Stable,
}

impl Shadow {
    /// A new file of so many sectors in generation 1. Returns its words.
    pub fn begin(&self, number: u32, sectors: usize) -> Vec<u8> {
        self.number.store(number, Ordering::Relaxed);
        self.len.iter().for_each(|len| len.store(sectors as u32, Ordering::Relaxed));
        for all in [&self.begun, &self.done, &self.written, &self.stable] {
            all.iter().for_each(|one| one.store(1, Ordering::Relaxed));
        }
        self.cut[sectors..].iter().for_each(|one| one.store(1, Ordering::Relaxed));
        self.bytes(0..sectors, 1)
    }

    fn word(&self, at: usize, generation: u32) -> u64 {
        u64::from(self.number.load(Ordering::Relaxed) << 24 | at as u32) << 32 | u64::from(generation)
    }

    /// Sectors of a generation.
    pub fn bytes(&self, sectors: Range<usize>, generation: u32) -> Vec<u8> {
        let words = sectors.start * WORDS..sectors.end * WORDS;
        words.flat_map(|at| self.word(at, generation).to_ne_bytes()).collect()
    }

    /// Sectors that the file has for certain.
    pub fn len(&self) -> usize {
        self.len.iter().map(|len| len.load(Ordering::SeqCst)).min().unwrap() as usize
    }

    pub fn begin_change(&self, sectors: Range<usize>, generation: u32) {
        self.begun[sectors].iter().for_each(|one| one.store(generation, Ordering::SeqCst));
    }

    pub fn end_change(&self, sectors: Range<usize>, generation: u32) {
        self.done[sectors].iter().for_each(|one| one.store(generation, Ordering::SeqCst));
    }

    /// Stores to sectors of a map, word by word.
    pub fn store(&self, map: *mut u8, sectors: Range<usize>, generation: u32) {
        for sector in sectors {
            self.begin_change(sector..sector + 1, generation);
            for at in sector * WORDS..(sector + 1) * WORDS {
                // SAFETY: inside the caller's map.
                unsafe { map.cast::<u64>().add(at).write_volatile(self.word(at, generation)) };
            }
            self.end_change(sector..sector + 1, generation);
        }
    }

    /// A write(2) to sectors, which may begin at the file's end.
    pub fn begin_write(&self, sectors: &Range<usize>, generation: u32) {
        self.begin_change(sectors.clone(), generation);
        self.len[0].fetch_max(sectors.end as u32, Ordering::SeqCst);
    }

    pub fn end_write(&self, sectors: &Range<usize>, generation: u32) {
        self.end_change(sectors.clone(), generation);
        self.note_written(sectors.clone());
        self.len[1].fetch_max(sectors.end as u32, Ordering::SeqCst);
    }

    pub fn begin_resize(&self, sectors: usize, generation: u32) {
        let cut = sectors.min(self.len())..self.len();
        self.cut[cut.clone()].iter().for_each(|one| one.store(generation, Ordering::SeqCst));
        self.begin_change(cut, generation);
        self.len[0].store(sectors as u32, Ordering::SeqCst);
    }

    pub fn end_resize(&self, generation: u32) {
        let (now, before) = (self.len[0].load(Ordering::SeqCst), self.len[1].load(Ordering::SeqCst));
        let cut = now.min(before) as usize..before as usize;
        self.end_change(cut.clone(), generation);
        self.note_written(cut);
        self.len[1].store(now, Ordering::SeqCst);
    }

    /// The file has what is in these sectors.
    pub fn note_written(&self, sectors: Range<usize>) {
        for at in sectors {
            self.written[at].store(self.done[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// A sync that began after the writes covers all that was written before.
    pub fn note_stable(&self) {
        for (stable, written) in self.stable.iter().zip(&self.written) {
            stable.store(written.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The file may lack what was stored to some sector of a page.
    pub fn is_unsaved(&self, page: usize) -> bool {
        (page * IN_PAGE..(page + 1) * IN_PAGE)
            .any(|at| self.written[at].load(Ordering::Relaxed) < self.done[at].load(Ordering::Relaxed))
    }

    /// Pages of which that is so.
    pub fn unsaved(&self) -> usize {
        (0..PAGES).filter(|page| self.is_unsaved(*page)).count()
    }

    /// What is wrong with a word.
    pub fn wrong(&self, at: usize, found: u64, least: Least) -> Option<String> {
        let sector = at / WORDS;
        let of = |all: &[AtomicU32]| all[sector].load(Ordering::SeqCst);
        let least = of(match least {
            Least::Done => &self.done,
            Least::Written => &self.written,
            Least::Stable => &self.stable,
        });
        let (begun, cut) = (of(&self.begun), of(&self.cut));
        let right = match found {
            0 => cut >= least,
            _ => (least..=begun).contains(&(found as u32)) && found == self.word(at, found as u32),
        };
        (!right).then(|| {
            let number = self.number.load(Ordering::Relaxed);
            let page = sector / IN_PAGE;
            format!("file {number}, page {page}, sector {sector}, word {at}: {found:#x}, not of {least} to {begun} (cut: {cut})")
        })
    }

    /// What is wrong with sectors of a map.
    pub fn wrong_in(&self, map: *const u8, sectors: Range<usize>) -> Option<String> {
        (sectors.start * WORDS..sectors.end * WORDS).find_map(|at| {
            // SAFETY: inside the caller's map.
            let found = unsafe { map.cast::<u64>().add(at).read_volatile() };
            self.wrong(at, found, Least::Done)
        })
    }

    /// What is wrong with the words of a file.
    pub fn wrong_file(&self, words: &[u64], least: Least) -> Option<String> {
        let lens = self.len.each_ref().map(|len| len.load(Ordering::SeqCst) as usize * WORDS);
        if matches!(least, Least::Done) && !lens.contains(&words.len()) {
            return Some(format!("the file has {} words, not {lens:?}", words.len()));
        }
        // What lies behind the end is as good as zeros.
        (0..SECTORS * WORDS).find_map(|at| self.wrong(at, words.get(at).copied().unwrap_or(0), least))
    }
}
