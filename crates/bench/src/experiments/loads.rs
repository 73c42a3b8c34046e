//! `fastmap bench loads`: how long a program takes to load a file that it maps, from storage far away and from a disk.

use std::fs::{self, File};
use std::path::Path;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::json;
use tempfile::TempDir;

use crate::driver::{Ctx, own_directory};
use crate::experiment::columns::cpu;
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, MMAP, Nothing, Of, Over, Part, Plan, Plot, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind;
use crate::runner::Limit;
use crate::storage::{self, Beside};
use crate::substrates::loads::{self, LoadSpec, Order, THREADS};
use crate::substrates::{self, Engine, Meter};
use crate::target::{Target, length_for, make_cold};

/// Of the storage far away.
const LATENCY: &str = "2ms";
const BANDWIDTH: &str = "1GB/s";

/// Measure how long a program takes to load a file that it maps: as it is, under `fastmap run`, beside many threads that read
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure how long a program takes to load a file that it maps, as servers of models do when they start: every page once, nothing of the file \
in memory before, memory for all of it.

Forward; by pieces of 256 KiB in a shuffled order; and a thousand rows of a page, whose list is known before.

From a disk, --dir, and from storage far away, where each read takes 2 ms and many go on at once: `fastmap bench storage`, which needs \
/dev/fuse, and to be root, or fusermount3. Without them only the disk is measured, and that is said.")]
#[command(after_help = "\
Ways:
  mmap         as it is
  fastmap run  under `fastmap run`, which steers from outside, and brings pages by many reads at once
  fastmap      mapped by the engine, with a cache for all of it; rows by its `gather`
  pread        32 threads that read 256 KiB each at a time, and map nothing: what the storage can do

Every byte is checked by whoever loads it.

Examples:
  fastmap bench loads
  fastmap bench loads --size 2GiB --repeat 5 --dir /mnt/disk --json loads.json")]
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
        let dir = ctx.dir_for(bytes);
        let place = own_directory(&dir, bytes)?;
        let disk = Target::named(&place.path().join("disk"), Some(args.size), false)?;
        let far = place.path().join("far");
        let beside = match far_away(&far, bytes) {
            Ok(beside) => Some(beside),
            Err(why) => {
                ctx.notes.push(format!("Nothing was loaded from storage far away: {why}."));
                None
            }
        };
        let group = |storage: &str, path: &Path, order: Order| {
            let spec = |engine| LoadSpec { engine, order, path: path.to_owned(), pages: disk.pages };
            let named = |name: &str, engine| Arm { name: name.to_owned(), ..Arm::of(engine, spec(engine)) };
            let told = if order == Order::Gather {
                Arm::of(Engine::MmapWillneed, spec(Engine::MmapWillneed))
            } else {
                named("fastmap run", Engine::Steered)
            };
            let arms = vec![
                Arm::of(Engine::Mmap, spec(Engine::Mmap)),
                told,
                Arm::of(Engine::Fastmap, spec(Engine::Fastmap)),
                named(&format!("pread, {THREADS} threads"), Engine::Pread),
            ];
            let order_in_words = match order {
                Order::Forward => "forward",
                Order::Pieces => "256 KiB each, shuffled",
                Order::Gather => "a gather of rows",
            };
            let labels = vec![("storage", json!(storage)), ("order", json!(order))];
            Group::new(format!("{storage}, {order_in_words}"), labels, arms)
        };
        let mut storages = vec![("disk", disk.path.clone())];
        if beside.is_some() {
            storages.insert(0, ("far away", far.join(storage::DATA)));
        }
        let orders = [Order::Forward, Order::Pieces, Order::Gather];
        let groups = storages.iter().flat_map(|(name, path)| orders.map(|order| group(name, path, order))).collect();
        Ok(Plan {
            about: format!("loads; far away each read takes {LATENCY}, all together {BANDWIDTH} at most"),
            file: format!("file in {}", dir.display()),
            place: dir,
            bytes,
            limit: Limit::none(),
            groups,
            stage: Box::new(Files { _beside: beside, _place: place }),
        })
    }

    fn run(case: &LoadSpec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        loads::run(case, meter).map(|reading| Part::whole(reading, Nothing {}))
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("seconds").between(&[Engine::Steered, Engine::Fastmap], MMAP)]
    }
}

fn far_away(dir: &Path, bytes: u64) -> Result<Beside, String> {
    fs::create_dir(dir).map_err(|error| error.to_string())?;
    Beside::start(LATENCY, BANDWIDTH, bytes, dir)
}

/// The files that are loaded. They are unmounted before their folder goes.
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
