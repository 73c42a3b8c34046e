//! What `scale` and `breakdown` share: the files whose pages are faulted in, and one run on them.

use std::path::Path;

use fastmap_workloads::faults::{Order, Outcome, Room, memory_for_all};
use fastmap_workloads::{Advice, Engine, Op, Pattern, Spec, prepare};
use serde::Serialize;

use super::runner::Limit;
use super::session::make_cold;
use super::target::Target;
use super::worker::Job;
use crate::failure::Failure;
use crate::interrupt;
use crate::machine::FileSystem;
use crate::size::Size;

/// What is behind the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behind {
    /// A device as fast as memory.
    Fast,
    /// Nothing: the file is a hole.
    NoDevice,
    /// Whatever `--dir` is on.
    Disk,
}

impl Behind {
    /// The name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Behind::Fast => "fast",
            Behind::NoDevice => "no-device",
            Behind::Disk => "disk",
        }
    }
}

/// A file to be faulted in.
pub struct Place {
    pub behind: Behind,
    pub target: Target,
    /// File system and device, for people.
    pub name: String,
}

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    pub engine: Engine,
    pub op: Op,
    pub room: Room,
    pub threads: u32,
    pub seconds: f64,
}

impl Place {
    /// A stamped file in `dir`.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being made; a fast one that is on no device at all.
    pub fn stamped(behind: Behind, dir: &Path, size: Size) -> Result<Place, Failure> {
        let FileSystem { kind, device } = FileSystem::of(dir);
        if behind == Behind::Fast && FileSystem::of(dir).is_memory() {
            return Err(Failure::usage(
                format!("--fast-dir: {}", dir.display()),
                format!("is a {kind}, whose files are in memory already, so that there is nothing to cache"),
                "name a directory on ext4 on zram (`scripts/fast-device up`), or on another fast block device",
            ));
        }
        let target = Target::temporary(dir, size, prepare::stamp_page)?;
        if behind == Behind::Fast && !target.takes_direct_io() {
            return Err(Failure::usage(
                format!("--fast-dir: {}", dir.display()),
                format!("its file system ({kind}) refuses O_DIRECT"),
                "name a directory on another file system",
            ));
        }
        let what = if behind == Behind::Fast { "fast device" } else { "disk" };
        Ok(Place { behind, target, name: format!("{what} ({kind} on {device})") })
    }

    /// A file in `dir` that is one hole.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from being made.
    pub fn hole(dir: &Path, size: Size) -> Result<Place, Failure> {
        let target = Target::hole(dir, size)?;
        Ok(Place { behind: Behind::NoDevice, target, name: "no device (a hole)".to_owned() })
    }

    /// What can be done there: stores need blocks.
    pub fn ops(&self) -> &'static [Op] {
        if self.behind == Behind::NoDevice { &[Op::Read] } else { &[Op::Read, Op::Write] }
    }

    /// Runs `load` once, with `memory` bytes where the data do not fit.
    ///
    /// # Errors
    ///
    /// Whatever the worker failed with, an unusable cgroup, or an interruption. Nothing is left behind.
    pub fn fault(&self, load: Load, limit: &Limit, memory: u64) -> Result<Outcome, Failure> {
        interrupt::check()?;
        let Target { file, path, label, pages, .. } = &self.target;
        let Load { engine, op, room, threads, seconds } = load;
        let epoch = if op.writes() { prepare::next_epoch(file, label)? } else { 0 };
        let memory = match room {
            Room::InMemory => memory_for_all(*pages),
            Room::OutOfMemory => memory,
        };
        let spec = Spec {
            engine,
            pattern: Pattern::Random,
            op,
            threads,
            advice: Advice::Random,
            path: path.clone(),
            label: label.clone(),
            pages: *pages,
            memory: Some(memory),
            seconds,
            epoch,
        };
        make_cold(&self.target.file, &self.target.label, self.target.bytes())?;
        let hole = self.behind == Behind::NoDevice;
        limit.obey(engine.name(), Job::Fault(Order { spec, room, hole }), Some(memory), None)
    }
}
