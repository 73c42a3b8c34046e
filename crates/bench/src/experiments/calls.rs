//! `fastmap bench calls`: the cost of the system and library calls that `fastmap run` intercepts.

use std::ffi::OsString;

use clap::Args as ClapArgs;
use fastmap_cli::failure::Failure;
use serde_json::json;
use tempfile::TempDir;

use crate::driver::{Ctx, own_directory};
use crate::experiment::{
    Arm, Claim, Column, Experiment, Flags, Group, Launch, Nothing, Over, Part, Plan, Plot, Stage, TEMPORARY, Trial, Turn,
};
use crate::results::Kind;
use crate::runner::Limit;
use crate::substrates::calls::{self, CallsSpec, Mapped, PAGES};
use crate::substrates::{self, Engine, Meter, PAGE};

/// The engine's budget. With a budget, mappings are the engine's from the first touch.
const CACHE: &str = "64MiB";

/// Measure what calls cost that `fastmap run` stands before: on files that are mapped, and on those that are not
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Ways:
  as it is             without FastMap; also in a process of two threads, one of which sleeps, since FastMap has threads
  nothing mapped       under `fastmap run`, and no mapping is the engine's
  another file         a file is mapped, and the calls are on another: to be read, or it was stored to (and saved) as well
  this file            the calls are on the mapped file

Everything is in the page cache. What is read is checked.

Examples:
  fastmap bench calls
  fastmap bench calls --seconds 1 --repeat 9 --json calls.json")]
pub struct Args {}

/// The experiment.
pub struct Calls;

impl Experiment for Calls {
    const NAME: &'static str = "calls";
    type Args = Args;
    type Case = CallsSpec;
    type Outcome = Nothing;
    const PART: &'static str = "call";
    const FLAGS: Flags = Flags {
        repeat: "5",
        seconds: Some(("0.1", "Seconds of each kind of call")),
        memory: None,
        dir: Some(TEMPORARY),
    };
    const COLUMNS: &'static [Column<Nothing>] = &[
        Column::new("ns", "ns a call", "nanoseconds a call, all threads together", |t: &Trial<Nothing>| {
            Some(t.reading.seconds * 1e9 / t.reading.ops as f64)
        })
        .less()
        .range(),
        Column::new("system_ns", "of it system", "of it system time of all processors", |t: &Trial<Nothing>| {
            Some(t.reading.system_s * 1e9 / t.reading.ops as f64)
        })
        .less(),
    ];
    const PLOTS: &'static [Plot<Nothing>] = &[
        Plot::new("Calls", &["ns"], Kind::Bars, Over::Parts).log(),
        Plot::new("System time of calls", &["system_ns"], Kind::Bars, Over::Parts),
    ];
    const VERIFIED: &'static str = "The first byte of each page read was checked, on a file that is stored to for what was stored.";

    fn plan(_: &Args, ctx: &mut Ctx) -> Result<Plan<Calls>, Failure> {
        let bytes = 2 * (PAGES * PAGE) as u64;
        let dir = ctx.dir_for(bytes)?;
        let place = own_directory(&dir, bytes)?;
        let arm = |name: &str, engine, mapped| Arm {
            engine,
            name: name.to_owned(),
            labels: vec![("way", json!(name))],
            case: CallsSpec { mapped, dir: place.path().to_owned(), seconds: ctx.seconds },
        };
        let arms = vec![
            arm("as it is", Engine::Mmap, Mapped::Nothing),
            arm("as it is, a thread sleeps", Engine::Mmap, Mapped::NothingThreaded),
            arm("nothing mapped", Engine::Fastmap, Mapped::Nothing),
            arm("another file, read", Engine::Fastmap, Mapped::Other),
            arm("another file, stored to", Engine::Fastmap, Mapped::OtherStored),
            arm("this file, read", Engine::Fastmap, Mapped::Same),
            arm("this file, stored to", Engine::Fastmap, Mapped::SameStored),
        ];
        Ok(Plan {
            about: "all in the page cache".to_owned(),
            file: format!("two files in {}", dir.display()),
            place: dir,
            bytes,
            limit: Limit::none(),
            groups: vec![Group::new("calls", vec![], arms)],
            until_steady: None,
            stage: Box::new(Place(place)),
        })
    }

    fn run(case: &CallsSpec, meter: &Meter) -> substrates::Result<Vec<Part<Nothing>>> {
        let done = calls::run(case, meter)?;
        let part = |(name, reading): (&str, _)| Part { name: name.to_owned(), reading, outcome: Nothing {} };
        Ok(done.into_iter().map(part).collect())
    }

    fn claims() -> Vec<Claim<Nothing>> {
        vec![Claim::new("ns").of(|row| row.text("way") == "another file, read")]
    }
}

/// The directory of the files. The files are made anew for each run.
struct Place(TempDir);

impl Stage<Calls> for Place {
    fn before(&mut self, turn: &Turn<'_, Calls>, _: &mut CallsSpec) -> Result<Launch, Failure> {
        calls::make(self.0.path())
            .map_err(|e| Failure::new(self.0.path().display(), e, "name another place with --dir"))?;
        let under = || ["--risk-stores", "--own", "*", "--cache", CACHE].map(OsString::from).to_vec();
        Ok(Launch { under: (turn.engine == Engine::Fastmap).then(under), ..Launch::default() })
    }
}
