//! What people use instead: the same pages, the same work and the same memory through kernel mmap, FastMap, plain calls, a cache of
//! pages over them, and an embedded database with a bounded buffer pool of its own.
//!
//! Everything goes through the same loop (`measure`), which checks the stamp of each page it touches; after a work that updates,
//! every page is read back and every byte checked.

mod database;
mod pool;

use serde::{Deserialize, Serialize};

pub use self::database::make_database;

use self::database::Database;
use self::pool::Pool;
use crate::engine::Access;
use crate::measure::{self, Measured, Shadow};
use crate::spec::names;
use crate::{Engine, Op, Outcome, Pattern, Result, Spec, capacity_for, engine, readback};

/// Through what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Kernel mmap (the crate memmap2) without advice.
    Mmap,
    /// The same with `MADV_RANDOM`.
    MmapRandom,
    /// FastMap, plain loads and stores.
    Fastmap,
    /// FastMap, each page pinned while it is worked on.
    FastmapPin,
    /// FastMap, plain loads and stores of pages prefetched before.
    FastmapPrefetch,
    /// Buffered `pread` and `pwrite`, a page a call.
    Pread,
    /// The same past the page cache (`O_DIRECT`).
    Direct,
    /// A cache of pages (the crate quick_cache, S3-FIFO's kin) over `pread` and `pwrite` with `O_DIRECT`; it writes through.
    QuickCache,
    /// An embedded database (the crate redb), its cache limited; a record of 4032 bytes for each page.
    Redb,
}

names!(Peer, "engine", {
    Mmap => "mmap", MmapRandom => "mmap-random", Fastmap => "fastmap", FastmapPin => "fastmap-pin",
    FastmapPrefetch => "fastmap-prefetch", Pread => "pread", Direct => "direct", QuickCache => "quick-cache",
    Redb => "redb",
});

impl Peer {
    /// The one of `bench micro` that it is, if it is one.
    pub fn engine(self) -> Option<Engine> {
        match self {
            Peer::Mmap => Some(Engine::Mmap),
            Peer::MmapRandom => Some(Engine::MmapRandom),
            Peer::Fastmap => Some(Engine::Fastmap),
            Peer::FastmapPin => Some(Engine::FastmapPin),
            Peer::FastmapPrefetch => Some(Engine::FastmapPrefetch),
            Peer::Pread => Some(Engine::Pread),
            Peer::Direct => Some(Engine::Direct),
            Peer::QuickCache | Peer::Redb => None,
        }
    }

    /// Whether this is the engine of this project.
    pub fn is_fastmap(self) -> bool {
        self.engine().is_some_and(Engine::is_fastmap)
    }
}

/// Doing what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Reads, uniformly over all pages.
    RandomRead,
    /// Reads, Zipf with exponent 0.99.
    ZipfRead,
    /// Reads each followed by a store to the same page, Zipf with exponent 0.99.
    ZipfUpdate,
}

names!(Work, "work", { RandomRead => "random-read", ZipfRead => "zipf-read", ZipfUpdate => "zipf-update" });

impl Work {
    /// The order of pages.
    pub fn pattern(self) -> Pattern {
        if self == Work::RandomRead { Pattern::Random } else { Pattern::Zipf }
    }

    /// What is done to each.
    pub fn op(self) -> Op {
        if self == Work::ZipfUpdate { Op::Rmw } else { Op::Read }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Through what.
    pub peer: Peer,
    /// Everything else; its engine counts only where the peer is one. For redb the path is the database's.
    pub spec: Spec,
}

/// Runs `order` in this process. `peak` is asked for the peak of memory once, after everything is let go.
///
/// # Errors
///
/// As [`crate::run`].
pub fn run(order: &Order, peak: impl FnOnce() -> u64) -> Result<Outcome> {
    let spec = &order.spec;
    if let Some(engine) = order.peer.engine() {
        return crate::run(&Spec { engine, ..spec.clone() }, peak);
    }
    let shadow = Shadow::new(spec.epoch, if spec.op.writes() { spec.pages } else { 0 });
    if order.peer == Peer::Redb {
        let capacity = capacity(spec)?;
        let database = Database::open(spec, capacity)?;
        let measured = measured(spec, &database, &shadow)?;
        drop(database);
        let peak = peak();
        if spec.op.writes() {
            database::read_back(spec, capacity, &shadow)?;
        }
        return Ok(crate::run::outcome(spec, measured, None, peak));
    }
    let pool = Pool::open(spec, capacity(spec)?)?;
    let measured = measured(spec, &pool, &shadow)?;
    drop(pool);
    let peak = peak();
    if spec.op.writes() {
        readback::read_back(spec, &shadow)?;
    }
    Ok(crate::run::outcome(spec, measured, None, peak))
}

/// Bytes that a peer may keep in memory: as much as FastMap's cache would have.
fn capacity(spec: &Spec) -> Result<usize> {
    match spec.memory {
        Some(memory) => capacity_for(memory, spec.pages, spec.op.writes()),
        None => Ok(engine::unlimited_capacity(spec.pages)),
    }
}

fn measured<A: Access>(spec: &Spec, access: &A, shadow: &Shadow) -> Result<Measured> {
    let measured = measure::measure(spec, access, shadow, None)?;
    if spec.op.writes() {
        access.flush()?;
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::{Advice, Error, PAGE, prepare};

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

        fn path(&self, peer: Peer) -> PathBuf {
            self.dir.path().join(if peer == Peer::Redb { "redb" } else { "pages" })
        }

        fn order(&self, peer: Peer, work: Work, epoch: u32) -> Order {
            let (pattern, op, path, label) = (work.pattern(), work.op(), self.path(peer), "data".to_owned());
            let (engine, advice, memory) = (Engine::Pread, Advice::Random, None);
            let spec = Spec {
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
            };
            Order { peer, spec }
        }
    }

    #[test]
    fn every_peer_does_every_work_on_what_the_one_before_left() {
        let data = Data::new();
        let mut epoch = 0;
        for work in Work::NAMES {
            for peer in Peer::NAMES {
                epoch += 1;
                let order = data.order(peer.parse().unwrap(), work.parse().unwrap(), epoch);
                let outcome = run(&order, || 1).unwrap_or_else(|e| panic!("{peer} {work}: {e}"));
                assert!(outcome.ops > 0 && outcome.latency_us.p50 <= outcome.latency_us.max, "{peer} {work}");
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
        damage(&data.path(Peer::QuickCache));
        let found = run(&data.order(Peer::QuickCache, Work::RandomRead, 0), || 1);
        assert!(matches!(found, Err(Error::Stamp { .. })), "{found:?}");
        database::damage(&data.path(Peer::Redb), 77);
        let found = run(&data.order(Peer::Redb, Work::RandomRead, 0), || 1);
        assert!(matches!(found, Err(Error::Stamp { page: 77, .. })), "{found:?}");
        let found = run(&data.order(Peer::Redb, Work::ZipfUpdate, 1), || 1);
        assert!(matches!(found, Err(Error::Stamp { page: 77, .. })), "the read back finds it: {found:?}");
    }
}
