//! `fastmap bench loads`: the time in which a program loads a file that it maps.

use std::fs::File;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::json;
use tempfile::TempDir;

use crate::driver::{Ctx, own_directory};
use crate::experiment::columns::cpu;
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Of, Over, Part, Plan, Plot, Row, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind;
use crate::runner::Limit;
use crate::storage::{self, Beside};
use crate::storages::{BANDWIDTH, Kind as Storage, LATENCY};
use crate::substrates::loads::{self, LoadSpec, Order, THREADS};
use crate::substrates::{self, Engine, Meter};
use crate::target::{Target, length_for, make_cold};

/// Measure how long a program takes to load a file that it maps: as it is, under `fastmap run`, beside many threads that read
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure how long a program takes to load a file that it maps, as servers of models do when they start: every page once, nothing of the file \
in memory before, memory for all of it.

Forward; by pieces of 256 KiB in a shuffled order; and a thousand rows of a page, whose list is known before.

With --storage slow it is a file system in which each read takes 2 ms and many go on at once, as `fastmap bench storage` mounts: it takes \
/dev/fuse, and to be root, or fusermount3.")]
#[command(after_help = "\
Ways:
  mmap         as it is
  mmap-willneed, mmap-populate   told beforehand: MADV_WILLNEED of the rows, or of the whole map; MADV_POPULATE_READ of the whole map
  fastmap run  under `fastmap run`, which steers from outside, and brings pages by many reads at once
  fastmap      mapped by the engine, with a cache for all of it; rows by its `gather`
  pread        32 threads that read 256 KiB each at a time, and map nothing: what the storage can do

Every byte is checked by whoever loads it.

Examples:
  fastmap bench loads
  fastmap bench loads --storage slow --size 2GiB --repeat 5 --json loads.json")]
pub struct Args {
    /// Size of the file, a multiple of 4096
    #[arg(long, default_value = "512MiB")]
    pub size: Size,
}

/// The experiment.
pub struct Loads;

impl Experiment for Loads {
    const NAME: &'static str = "loads";
    type Args = Args;
    type Case = LoadSpec;
    type Outcome = Nothing;
    const FLAGS: Flags = Flags { repeat: "3", seconds: None, memory: None, dir: Some(TEMPORARY) };
    const COLUMNS: &'static [Column<Nothing>] = &[
        Column::new("seconds", "s", "seconds to load all", |t: &Trial<Nothing>| Some(t.reading.seconds)).less().range(),
        Column::from("times_best_mmap", "x mmap", "times as fast as kernel mmap", Of::TimesMmap("seconds")),
        Column::new("bytes_per_s", "MB/s", "MB a second", |t: &Trial<Nothing>| {
            Some(t.reading.ops_per_s * substrates::PAGE as f64)
        })
        .per(1e6),
        Column::new("major_faults", "faults that read", "faults that waited for a read of their own", |t: &Trial<Nothing>| {
            Some(t.reading.major_faults as f64)
        })
        .less(),
        cpu(),
    ];
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Time to load a file", &["seconds"], Kind::Bars, Over::Groups).log(),
        Plot::new("Faults that waited for a read", &["major_faults"], Kind::Bars, Over::Groups),
    ];
    const VERIFIED: &'static str = "Every byte was compared with what belongs there when it was loaded.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Loads>, Failure> {
        let bytes = length_for(None, Some(args.size), 0)?;
        let folder = ctx.folder_for(bytes);
        let failed = |why| Failure::new("--storage slow", why, "give another --storage");
        // Slow storage is a file system of its own here, as network file systems and mounts of object stores are. It holds one made-up
        // file.
        let (dir, place, path, beside) = if ctx.storage == Storage::Slow {
            ctx.is_itself = true;
            let place = own_directory(&folder, 0)?;
            let beside = Beside::start(LATENCY, BANDWIDTH, bytes, place.path()).map_err(failed)?;
            let path = place.path().join(storage::DATA);
            (place.path().to_owned(), place, path, Some(beside))
        } else {
            let dir = ctx.dir_for(bytes)?;
            let place = own_directory(&dir, bytes)?;
            let path = place.path().join(storage::DATA);
            Target::named(&path, Some(args.size), false)?;
            (dir, place, path, None)
        };
        let pages = bytes / substrates::PAGE as u64;
        let group = |order: Order| {
            let spec = |engine| LoadSpec { engine, order, path: path.clone(), pages };
            let named = |name: &str, engine| Arm { name: name.to_owned(), ..Arm::of(engine, spec(engine)) };
            let plain = |engine| Arm::of(engine, spec(engine));
            let mut arms = vec![plain(Engine::Mmap), plain(Engine::MmapWillneed)];
            if order != Order::Gather {
                arms.extend([plain(Engine::MmapPopulate), named("fastmap run", Engine::Steered)]);
            }
            arms.extend([plain(Engine::Fastmap), named(&format!("pread, {THREADS} threads"), Engine::Pread)]);
            let what = match order {
                Order::Forward => "cold load, forward",
                Order::Pieces => "cold load, 256 KiB shuffled",
                Order::Gather => "gather of 1000 rows",
            };
            Group::new(what, vec![("order", json!(order))], arms)
        };
        let groups = [Order::Forward, Order::Pieces, Order::Gather].map(group).into();
        Ok(Plan {
            about: "loads".to_owned(),
            file: format!("file in {}", folder.display()),
            place: dir,
            bytes,
            limit: Limit::none(),
            groups,
            until_steady: Some(2 * ctx.repeat),
            stage: Box::new(Files { _beside: beside, _place: place }),
        })
    }

    fn run(case: &LoadSpec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        loads::run(case, meter).map(|reading| Part::whole(reading, Nothing {}))
    }

    fn work(row: &Row<Nothing>) -> Option<String> {
        Some(row.what.clone())
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("seconds").between(&[Engine::Steered, Engine::Fastmap], MMAP)]
    }
}

/// The files that are loaded. The fields are dropped in this order, so the file system is unmounted before its folder is removed.
struct Files {
    _beside: Option<Beside>,
    _place: TempDir,
}

impl Stage<Loads> for Files {
    fn before(&mut self, _: &Turn<'_, Loads>, case: &mut LoadSpec) -> Result<Launch, Failure> {
        let label = case.path.display().to_string();
        let file = File::open(&case.path).map_err(|error| Failure::new(&label, error, "run it again"))?;
        make_cold(&file, &label, case.pages * substrates::PAGE as u64)?;
        Ok(Launch { under: (case.engine == Engine::Steered).then(Vec::new), ..Launch::default() })
    }
}
