//! The usual alternatives to FastMap. Kernel mmap, FastMap, plain calls, a cache of pages over such calls, and an embedded database with a
//! bounded buffer pool do the same work on the same pages, with the same memory.
//!
//! All of them run in the same loop (`measure`), which checks the stamp of each page that it touches. After a work that updates, every page
//! is read back and every byte is checked.

mod database;
mod pool;

use serde::{Deserialize, Serialize};

pub use self::database::make_database;

use self::database::Database;
use self::pool::Pool;
use crate::substrates::measure::{self, Shadow};
use crate::substrates::spec::names;
use crate::substrates::{Engine, Meter, Op, Pattern, Reading, Result, Spec, capacity_for, engine, readback};

/// The engines that are compared.
pub const ENGINES: &[Engine] = &[
    Engine::Mmap,
    Engine::MmapRandom,
    Engine::MmapWillneed,
    Engine::MmapFadvise,
    Engine::MmapPopulate,
    Engine::Fastmap,
    Engine::FastmapPin,
    Engine::FastmapPrefetch,
    Engine::Pread,
    Engine::Direct,
    Engine::QuickCache,
    Engine::Redb,
];

/// The work that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Reads, uniformly over all pages.
    RandomRead,
    /// Reads, Zipf with exponent 0.99.
    ZipfRead,
    /// Reads, Zipf with exponent 0.99. Each is followed by a store to the same page.
    ZipfUpdate,
}

names!(Work, "a work", { RandomRead => "random-read", ZipfRead => "zipf-read", ZipfUpdate => "zipf-update" });

impl Work {
    /// The order of pages.
    pub fn pattern(self) -> Pattern {
        if self == Work::RandomRead { Pattern::Random } else { Pattern::Zipf }
    }

    /// The operation on each page.
    pub fn op(self) -> Op {
        if self == Work::ZipfUpdate { Op::Rmw } else { Op::Read }
    }
}

/// Runs a load in this process, on the engine that it names.
///
/// # Errors
///
/// The engine cannot run, or an operation or the read-back finds a wrong byte.
pub fn run(spec: &Spec, meter: &Meter) -> Result<Reading> {
    let shadow = || Shadow::new(spec.epoch, if spec.op.writes() { spec.pages } else { 0 });
    match spec.engine {
        Engine::Redb => {
            let (capacity, shadow) = (capacity(spec)?, shadow());
            let reading = measure::measure(spec, &Database::open(spec, capacity)?, &shadow, None, meter)?;
            meter.let_go();
            if spec.op.writes() {
                database::read_back(spec, capacity, &shadow)?;
            }
            Ok(reading)
        }
        Engine::QuickCache => {
            let shadow = shadow();
            let reading = measure::measure(spec, &Pool::open(spec, capacity(spec)?)?, &shadow, None, meter)?;
            meter.let_go();
            if spec.op.writes() {
                readback::read_back(spec, &shadow)?;
            }
            Ok(reading)
        }
        _ => crate::substrates::run(spec, meter),
    }
}

/// Bytes that an alternative may keep in memory: as many as FastMap's cache would have.
fn capacity(spec: &Spec) -> Result<usize> {
    match spec.memory {
        Some(memory) => capacity_for(memory, spec.pages, spec.op.writes()),
        None => Ok(engine::unlimited_capacity(spec.pages)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::substrates::{Advice, Error, PAGE, prepare};

    const PAGES: u64 = 1500;

    struct Data {
        dir: tempfile::TempDir,
    }

    impl Data {
        fn new() -> Data {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let file = std::fs::File::create_new(dir.path().join("pages")).unwrap();
            prepare::fill(&file, "pages", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
            make_database(&dir.path().join("redb"), "database", PAGES, || true).unwrap();
            Data { dir }
        }

        fn path(&self, peer: Engine) -> PathBuf {
            self.dir.path().join(if peer == Engine::Redb { "redb" } else { "pages" })
        }

        fn order(&self, peer: Engine, work: Work, epoch: u32) -> Spec {
            let (pattern, op, path, label) = (work.pattern(), work.op(), self.path(peer), "data".to_owned());
            let (engine, advice, memory) = (peer, Advice::Random, None);
            Spec {
                engine,
                pattern,
                op,
                threads: 2,
                advice,
                path,
                label,
                pages: PAGES,
                memory,
                seconds: 0.1,
                epoch,
                cold: false,
            }
        }
    }

    #[test]
    fn every_peer_does_every_work_on_what_the_one_before_left() {
        let data = Data::new();
        let mut epoch = 0;
        for work in Work::NAMES {
            for &peer in ENGINES {
                epoch += 1;
                let order = data.order(peer, work.parse().unwrap(), epoch);
                let outcome = run(&order, &Meter::default()).unwrap_or_else(|e| panic!("{peer} {work}: {e}"));
                assert!(outcome.ops > 0 && outcome.latency_us.is_some_and(|l| l.p50 <= l.max), "{peer} {work}");
            }
        }
    }

    #[test]
    fn a_wrong_record_fails_the_run() {
        let data = Data::new();
        let damage = |path: &Path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            for page in 0..PAGES {
                file.write_all_at(&[0xee; 8], page * PAGE as u64 + 4088).unwrap();
            }
            file.sync_all().unwrap();
        };
        damage(&data.path(Engine::QuickCache));
        let found = run(&data.order(Engine::QuickCache, Work::RandomRead, 0), &Meter::default());
        assert!(matches!(found, Err(Error::Stamp { .. })), "{found:?}");
        database::damage(&data.path(Engine::Redb), 77);
        // A run on a busy machine reads few pages.
        let read = || run(&data.order(Engine::Redb, Work::RandomRead, 0), &Meter::default());
        let found = (0..100).map(|_| read()).find(Result::is_err);
        assert!(matches!(found, Some(Err(Error::Stamp { page: 77, .. }))), "{found:?}");
        let found = run(&data.order(Engine::Redb, Work::ZipfUpdate, 1), &Meter::default());
        assert!(matches!(found, Err(Error::Stamp { page: 77, .. })), "the read back finds it: {found:?}");
    }
}
