//! One pass over a file, or over many small ones, by pread(2), through kernel mmap or through FastMap: what "Linux Memory
//! Mapped System Call Performance" (Najafi, Kohler, VanDeBogart) times a hundred times over.
//!
//! Every byte of every page touched is checked against its stamp ([`crate::substrates::stamp::check_fresh`]).

mod engine;
mod small;

use std::path::PathBuf;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

pub use self::small::{make_cold, make_small};

use crate::substrates::{Engine, Meter, Reading, Result};
use fastmap_bench::names;

/// The engines that pass over files.
pub const ENGINES: &[Engine] =
    &[Engine::Pread, Engine::Mmap, Engine::MmapAdvised, Engine::Fastmap, Engine::FastmapAdvised];

/// Whether there is advice for an engine that gives some.
pub fn does(engine: Engine, work: Work) -> bool {
    match engine {
        Engine::MmapAdvised => work.advice().is_some(),
        Engine::FastmapAdvised => work.fastmap_advice().is_some(),
        _ => true,
    }
}

/// What is read, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The whole file, from its first page to its last.
    Forward,
    /// The whole file, from its last page to its first.
    Backward,
    /// Some pages of the file, drawn at random.
    Random,
    /// Every small file, each forward, in the order of their names.
    SmallForward,
    /// Every small file, each backward, in the opposite order.
    SmallBackward,
    /// Every small file, in random order, the pages of each shuffled.
    SmallRandom,
}

names!(Work, "work", {
    Forward => "forward", Backward => "backward", Random => "random", SmallForward => "small-forward",
    SmallBackward => "small-backward", SmallRandom => "small-random",
});

impl Work {
    /// Whether it reads the small files.
    pub fn is_small(self) -> bool {
        matches!(self, Work::SmallForward | Work::SmallBackward | Work::SmallRandom)
    }

    /// What kernel mmap is best told, of all that madvise(2) knows. None where it is best told nothing: backward,
    /// `MADV_SEQUENTIAL` and `MADV_RANDOM` make it read page by page, which takes ten times as long; a small file is read whole at
    /// its first fault, and `MADV_WILLNEED` only adds a call.
    pub fn advice(self) -> Option<memmap2::Advice> {
        match self {
            Work::Forward => Some(memmap2::Advice::Sequential),
            Work::Random => Some(memmap2::Advice::Random),
            Work::Backward | Work::SmallForward | Work::SmallBackward | Work::SmallRandom => None,
        }
    }

    /// What FastMap is best told. None for a scan, which it sees after a few pages, whatever its direction.
    pub fn fastmap_advice(self) -> Option<fastmap::Advice> {
        match self {
            Work::Forward | Work::Backward => None,
            Work::Random => Some(fastmap::Advice::Random),
            Work::SmallForward | Work::SmallBackward | Work::SmallRandom => Some(fastmap::Advice::WillNeed),
        }
    }

    /// The order of a file's pages; `touches` counts those that [`Work::Random`] draws.
    fn pages(self, pages: u64, touches: u64, random: &mut Pcg64Mcg) -> Vec<u64> {
        match self {
            Work::Forward | Work::SmallForward => (0..pages).collect(),
            Work::Backward | Work::SmallBackward => (0..pages).rev().collect(),
            Work::Random => (0..touches).map(|_| random.random_range(0..pages)).collect(),
            Work::SmallRandom => {
                let mut order: Vec<u64> = (0..pages).collect();
                order.shuffle(random);
                order
            }
        }
    }
}

/// One pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Through what.
    pub engine: Engine,
    /// Over what.
    pub work: Work,
    /// The file; of works over small files, their directory.
    pub path: PathBuf,
    /// How messages call it.
    pub label: String,
    /// Pages of the file, or of all small files together.
    pub pages: u64,
    /// Pages that [`Work::Random`] touches.
    pub touches: u64,
    /// Which random order.
    pub seed: u64,
    /// Bytes the whole process may use; FastMap's cache is what [`crate::substrates::capacity_for`] leaves of it. None: unlimited, and
    /// the cache is a quarter of the pages.
    pub memory: Option<u64>,
}

/// Makes one pass in this process. `peak` is asked for the peak of memory once, at the end.
///
/// # Errors
///
/// Whatever kept a file from being read, and the first wrong byte.
pub fn run(order: &Order, meter: &Meter) -> Result<Reading> {
    let mut random = Pcg64Mcg::seed_from_u64(order.seed);
    // The order is drawn before the clock starts: it is the same work for all engines, and none of theirs.
    let mut files = match order.work.is_small() {
        true => small::files(&order.path, order.pages),
        false => vec![small::Piece { path: order.path.clone(), first: 0, pages: order.pages }],
    };
    match order.work {
        Work::SmallBackward => files.reverse(),
        Work::SmallRandom => files.shuffle(&mut random),
        _ => {}
    }
    let pieces: Vec<(small::Piece, Vec<u64>)> = files
        .into_iter()
        .map(|file| {
            let pages = order.work.pages(file.pages, order.touches, &mut random);
            (file, pages)
        })
        .collect();
    let open = meter.start(&order.path);
    let start = open.at;
    engine::pass(order, &pieces)?;
    let window = start.elapsed();
    let touched = pieces.iter().map(|(_, pages)| pages.len() as u64).sum();
    Ok(open.end().counting(touched, window, None))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::substrates::{Error, PAGE, prepare};

    const PAGES: u64 = 500;

    fn orders(check: impl Fn(&Order, &str)) {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let big = dir.path().join("big");
        prepare::fill(&File::create_new(&big).unwrap(), "big", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
        let small = dir.path().join("small");
        std::fs::create_dir(&small).unwrap();
        make_small(&small, "small files", PAGES, || true).unwrap();
        for &engine in ENGINES {
            for work in Work::NAMES {
                let work = work.parse::<Work>().unwrap();
                let path = if work.is_small() { &small } else { &big }.clone();
                let (label, memory) = ("data".to_owned(), None);
                let order = Order { engine, work, path, label, pages: PAGES, touches: 77, seed: 3, memory };
                check(&order, &format!("{engine} {work}"));
            }
        }
    }

    #[test]
    fn every_engine_passes_over_everything() {
        orders(|order, what| {
            let outcome = run(order, &Meter::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(outcome.ops, if order.work == Work::Random { 77 } else { PAGES }, "{what}");
            assert!(outcome.seconds > 0.0);
        });
    }

    #[test]
    fn one_wrong_byte_fails_every_pass_that_meets_it() {
        orders(|order, what| {
            if order.work == Work::Random {
                return;
            }
            // The last page: of the file, or of the last small file.
            let (path, offset) = match order.work.is_small() {
                true => {
                    let last = small::files(&order.path, PAGES).pop().unwrap();
                    (last.path, last.pages * PAGE as u64 - 1000)
                }
                false => (order.path.clone(), PAGES * PAGE as u64 - 1000),
            };
            let file = File::options().read(true).write(true).open(path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
            file.sync_all().unwrap();
            let found = run(order, &Meter::default());
            assert!(matches!(found, Err(Error::Stamp { page, .. }) if page == PAGES - 1), "{what}: {found:?}");
            file.write_all_at(&byte, offset).unwrap();
            file.sync_all().unwrap();
        });
    }

    #[test]
    fn a_pass_is_in_the_order_it_says() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        assert_eq!(Work::Forward.pages(3, 9, &mut random), [0, 1, 2]);
        assert_eq!(Work::SmallBackward.pages(3, 9, &mut random), [2, 1, 0]);
        assert_eq!(Work::Random.pages(1000, 9, &mut random).len(), 9);
        let mut shuffled = Work::SmallRandom.pages(100, 9, &mut random);
        assert!(!shuffled.is_sorted());
        shuffled.sort();
        assert_eq!(shuffled, (0..100).collect::<Vec<_>>());
    }
}
