//! `fastmap bench sync`: stores that are flushed at once, beside msync(2) and beside a bare loop over cache lines.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use serde_json::json;

use crate::args::{once_each, one_of};
use crate::driver::Ctx;
use crate::experiment::columns::{cpu, longest, p50, p99, p999, peak};
use crate::experiment::{Arm, Claim, Column, Experiment, Flags, Group, Launch, Over, Paper, Part, Plan, Plot, Row, Stage, Trial, Turn};
use crate::results::Kind;
use crate::runner::Limit;
use crate::substrates::sync::{self, ENGINES, Medium, SyncSpec, SyncWork, Synced, is_for_memory};
use crate::substrates::{self, Engine, Meter, prepare};
use crate::target::{Target, enough_for, length_for};

/// Size of the file where neither the user nor an existing file says another: that of the paper "msync under huge pages".
const DEFAULT_BYTES: u64 = 100 << 20;

/// 4 KiB stored and flushed on persistent memory, thousands a second, as the paper has it: msync(2) where the kernel maps huge pages,
/// where it may not, and cache lines written back in user space.
const MSYNC_HUGE: f64 = 1.1;
const MSYNC_SMALL: f64 = 174.0;
const PERSIST: f64 = 192.0;

/// Measure stores that are flushed at once: 4 KiB, or a whole file with little or all of it dirty
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Measure stores that are flushed at once.

The file is mapped and every page stored to and flushed; then one thread stores and flushes in turn for --seconds. Every run \
is a fresh process, engines take turns within each repetition. A page carries a stamp; before the map goes the whole file is \
read back through another descriptor and every byte checked. Rates are of store and flush together, latencies of the flush \
alone; figures are medians over the repetitions.

By default the file is a tmpfs's, /dev/shm. It stands in for persistent memory: fastmap-persist and persist write cache lines \
back as if they had to, fastmap and msync do what a tmpfs needs, which is nothing. On a file system mounted with -o dax all of \
it is real; on a disk, where cache lines make nothing durable, msync and fastmap alone can run.")]
#[command(after_help = "\
Works:
  page   store to a random page (4 KiB), flush that page
  one    store to a random page, flush the whole file
  all    store to every page, flush the whole file

Engines:
  msync             kernel mmap and msync(2)
  fastmap           this project, with the kind of map that it chooses itself
  fastmap-persist   the same, mapped without a copy, flushed by cache lines wherever the file is
  persist           kernel mmap and a bare loop over the range: CLWB (CLFLUSHOPT, CLFLUSH), then a fence

Bytes a flush: as FastMap counts them; what persist went over; of msync what the device under the file wrote meanwhile, for \
whomever, on a tmpfs 0; - where nobody tells (msync with DAX).

Examples:
  fastmap bench sync
  fastmap bench sync --works page --file /mnt/pmem/bench --seconds 5 --repeat 5 --json out.json
  fastmap bench sync --engines msync,fastmap --dir /var/tmp")]
pub struct Args {
    /// Engines to compare, separated by commas [default: all; on a disk msync and fastmap]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(ENGINES))]
    pub engines: Vec<Engine>,
    /// What to store and flush, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "page,one,all")]
    pub works: Vec<SyncWork>,
    /// The file: made if missing, extended if shorter than --size, used again if `fastmap bench` made it, refused
    /// otherwise [default: a temporary file in --dir]
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub file: Option<PathBuf>,
    /// Size of the file, a multiple of 4096 [default: that of --file if it exists, else 100MiB]
    #[arg(long)]
    pub size: Option<Size>,
}

/// The experiment.
pub struct Sync;

impl Experiment for Sync {
    const NAME: &'static str = "sync";
    type Args = Args;
    type Case = SyncSpec;
    type Outcome = Synced;
    const FLAGS: Flags = Flags {
        repeat: "5",
        seconds: Some(("2", "Seconds to measure each run")),
        memory: None,
        dir: Some("Where to put a temporary file [default: /dev/shm]"),
    };
    const COLUMNS: &'static [Column<Synced>] = &[
        Column::new("ops_per_s", "ops/s", "stores with their flush a second", |t| Some(t.reading.ops_per_s)).range(),
        Column::new("flush_bytes", "bytes a flush", "bytes that a flush goes over", |t: &Trial<Synced>| t.outcome.flush_bytes).less(),
        p50(),
        p99(),
        p999(),
        longest(),
        cpu(),
        peak(),
    ];
    const PLOTS: &'static [Plot<Synced>] = &[
        Plot::new("Stores with their flush", &["ops_per_s"], Kind::Bars, Over::Groups).log().after(
            "Persistent memory and msync under huge pages (abstract): 1.1 thousand a second with msync(2), 174 thousand without huge pages, \
             192 thousand with pmem_persist",
        ),
        Plot::new("Latency of the flush", &["latency_us.p50", "latency_us.p99"], Kind::Bars, Over::Groups).log(),
        Plot::new("Bytes that a flush goes over", &["flush_bytes"], Kind::Bars, Over::Groups).log(),
    ];
    const VERIFIED: &'static str =
        "Before a map went, the whole file was read back through another descriptor and every byte checked.";

    fn plan(args: &Args, ctx: &mut Ctx) -> Result<Plan<Sync>, Failure> {
        let bytes = length_for(args.file.as_deref(), args.size, DEFAULT_BYTES)?;
        enough_for(bytes, &[1])?;
        let target = match &args.file {
            Some(path) => Target::named(path, Some(Size(bytes)), true)?,
            None => {
                let dir = ctx.dir.clone().unwrap_or_else(|| PathBuf::from("/dev/shm"));
                Target::temporary(&dir, Size(bytes), prepare::stamp_page)?
            }
        };
        let medium = Medium::of(&target.file);
        let fits = |engine: &Engine| medium != Medium::Disk || !is_for_memory(*engine);
        if let Some(engine) = args.engines.iter().find(|engine| !fits(engine)) {
            let what = format!("{engine} makes nothing durable in {}, which is on a disk", target.label);
            return Err(Failure::usage("--engines", what, "leave it out, or name a file on a tmpfs or with DAX"));
        }
        ctx.notes.extend(match medium {
            Medium::Tmpfs => Some(
                "There is no persistent memory here. A tmpfs stands in for it: msync(2) and FastMap's own choice need to do nothing there, \
                 so they are not compared, and FastMap that writes cache lines back is compared with a bare loop that does."
                    .to_owned(),
            ),
            Medium::Disk => {
                Some("The file is on a disk: what the paper says of persistent memory cannot be compared.".to_owned())
            }
            Medium::Dax => None,
        });
        let engines = if args.engines.is_empty() { ENGINES.to_vec() } else { once_each(&args.engines) };
        let group = |work: SyncWork| {
            let (path, label, pages, seconds) = (&target.path, &target.label, target.pages, ctx.seconds);
            let arm = |engine| {
                let (path, label) = (path.clone(), label.clone());
                Arm::of(engine, SyncSpec { engine, work, path, label, pages, seconds, epoch: 0 })
            };
            let what = match work {
                SyncWork::Page => "store 4 KiB, flush these 4 KiB",
                SyncWork::One => "store 4 KiB, flush the whole file",
                SyncWork::All => "store to the whole file, flush it",
            };
            let labels = vec![("work", json!(work)), ("medium", json!(format!("{medium:?}").to_lowercase()))];
            Group::new(what, labels, engines.iter().copied().filter(fits).map(arm).collect())
        };
        Ok(Plan {
            about: "latencies of the flush alone, 1 thread".to_owned(),
            place: target.place.clone(),
            file: target.label.clone(),
            bytes,
            limit: Limit::none(),
            groups: once_each(&args.works).into_iter().map(group).collect(),
            until_steady: None,
            stage: Box::new(Flushes { target }),
        })
    }

    fn run(case: &SyncSpec, meter: &Meter) -> substrates::Result<Vec<Part<Synced>>> {
        sync::sync(case, meter).map(|(reading, synced)| Part::whole(reading, synced))
    }

    fn claims() -> Vec<Claim<Synced>> {
        let rate = || Claim::new("ops_per_s");
        vec![
            rate().between(&[Engine::FastmapPersist], &[Engine::Persist]).of(|row| row.text("medium") == "tmpfs").paper(|row| {
                of_page(row, MSYNC_SMALL / PERSIST, "msync with 4 KiB pages to pmem_persist, 100 MiB on ext4 with DAX, Optane, Linux 5.4")
            }),
            rate().between(&[Engine::Fastmap], &[Engine::Msync]).of(|row| row.text("medium") != "tmpfs").paper(|row| {
                let setting = "msync with 4 KiB pages to msync with huge pages, 100 MiB on ext4 with DAX, Optane, Linux 5.4";
                if row.text("medium") == "dax" { of_page(row, MSYNC_SMALL / MSYNC_HUGE, setting) } else { None }
            }),
        ]
    }
}

fn of_page(row: &Row<Synced>, ratio: f64, setting: &'static str) -> Option<Paper> {
    let source = "Persistent memory and msync under huge pages, abstract";
    if row.text("work") == "page" { Paper::says(ratio, source, setting) } else { None }
}

/// The file is not made cold: all of it is stored to before the measurement.
struct Flushes {
    target: Target,
}

impl Stage<Sync> for Flushes {
    fn before(&mut self, _: &Turn<'_, Sync>, case: &mut SyncSpec) -> Result<Launch, Failure> {
        case.epoch = prepare::next_epoch(&self.target.file, &self.target.label)?;
        Ok(Launch::default())
    }
}
