//! Workloads by which the model is held against kernels, in counts.

use crate::SECOND;
use crate::device::DISK;
use crate::kernel::{Advice, Counts, LINUX_6_1, LINUX_6_12, LINUX_6_18, Rules};
use crate::policy::{Case, Machine};
use crate::workload::{Pattern, Phase, Plan, Step};
use std::fmt::Write;
use std::path::Path;

/// One of them: its phases are a pattern, accesses, and one store in so many.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Pages of memory for each 16 pages of the file.
    pub memory: u64,
    phases: Vec<(Pattern, u64, u64)>,
}

const FEW: u64 = 40_000;
const MANY: u64 = 150_000;

/// All of them.
pub fn workloads() -> Vec<Workload> {
    let places = |skew| Pattern::Scattered { skew, least: 1, most: 1, are_aligned: false };
    let pieces = |least, most, are_aligned| Pattern::Scattered { skew: 0.0, least, most, are_aligned };
    let walk = |step, some, all| Pattern::Walk { step, of: (some, all) };
    let tiles = |are_random| Pattern::Tiles { row: 16, rows: 64, wide: 1, are_random };
    let tree = |leaf, skew| Pattern::Descent { fan: 100, leaf, skew };
    let one = |name, memory, pattern, touches| Workload { name, memory, phases: vec![(pattern, touches, 0)] };
    vec![
        one("places", 4, places(0.0), FEW),
        one("places-half", 8, places(0.0), FEW),
        one("places-eighth", 2, places(0.0), FEW),
        one("places-fit", 20, places(0.0), FEW),
        one("zipf-0.8", 4, places(0.8), FEW),
        one("zipf-0.99", 4, places(0.99), FEW),
        one("zipf-1.3", 4, places(1.3), FEW),
        one("pieces-2", 4, pieces(2, 2, false), FEW),
        one("pieces-4", 4, pieces(4, 4, true), FEW),
        one("pieces-8", 4, pieces(8, 8, false), FEW),
        one("pieces-16", 4, pieces(16, 16, true), MANY),
        one("pieces-64", 4, pieces(64, 64, false), MANY),
        one("pieces-512", 4, pieces(512, 512, true), MANY),
        one("pieces-to-32", 4, pieces(1, 32, false), MANY),
        one("walk", 4, walk(1, 1, 1), MANY),
        one("walk-half", 8, walk(1, 1, 1), MANY),
        one("walk-fit", 20, walk(1, 1, 1), MANY),
        one("backward", 4, walk(-1, 1, 1), MANY),
        one("backward-2", 4, walk(-2, 1, 1), MANY),
        one("every-2", 4, walk(2, 1, 1), MANY),
        one("every-8", 4, walk(8, 1, 1), FEW),
        one("every-16", 4, walk(16, 1, 1), FEW),
        one("every-24", 4, walk(24, 1, 1), FEW),
        one("every-64", 4, walk(64, 1, 1), FEW),
        one("3-of-8", 4, walk(1, 3, 8), MANY),
        one("7-of-10", 4, walk(1, 7, 10), MANY),
        one("tiles", 4, tiles(true), FEW),
        one("tiles-in-order", 4, tiles(false), FEW),
        one("tree", 4, tree(1, 0.0), FEW),
        one("tree-0.99", 4, tree(2, 0.99), FEW),
        Workload { name: "places-walk", memory: 4, phases: vec![(places(0.0), 20_000, 0), (walk(1, 1, 1), 60_000, 0)] },
        Workload { name: "stores", memory: 4, phases: vec![(places(0.0), FEW, 4)] },
    ]
}

/// Kernels, by their names.
pub const KERNELS: [(&str, Rules); 4] = [
    ("6.18", LINUX_6_18),
    ("6.12-mglru", LINUX_6_12),
    ("6.12", Rules { generations: false, ..LINUX_6_12 }),
    ("6.1", LINUX_6_1),
];

/// Writes the accesses of each workload to a file of its name, and returns what the model counts, a line for each workload and advice.
///
/// # Errors
///
/// A file cannot be written.
pub fn table(folder: &Path, rules: Rules, file: u64, readahead: u64) -> std::io::Result<String> {
    let mut text = String::new();
    for one in workloads() {
        let bytes: Vec<u8> = one.touches(file).iter().flat_map(|page| page.to_le_bytes()).collect();
        std::fs::write(folder.join(one.name), bytes)?;
        let memory = file * one.memory / 16;
        for (name, advice) in ADVICE {
            let Counts { touches, read, major, minor, .. } = one.counts(rules, file, readahead, advice);
            let counts = format!("touches {touches} read_pages {read} major {major} minor {minor}");
            let _ = writeln!(text, "{} {memory} {name} {counts}", one.name);
        }
    }
    Ok(text)
}

const ADVICE: [(&str, Advice); 3] =
    [("normal", Advice::Normal), ("random", Advice::Random), ("hugepage", Advice::Huge)];

impl Workload {
    /// On a machine with this kernel.
    pub fn case(&self, rules: Rules, file: u64, readahead: u64) -> Case {
        let phase = |(pattern, touches, stores): &(Pattern, u64, u64)| Phase {
            area: 0,
            part: (0, file),
            pattern: *pattern,
            touches: *touches,
            work: 500,
            stores: *stores,
            bursts: (0, 0),
            remaps: 0,
        };
        let is_writable = self.phases.iter().any(|(.., stores)| *stores > 0);
        let machine = Machine { rules, kernel: "", memory: file * self.memory / 16, readahead, device: DISK };
        let plans = vec![Plan::new(self.phases.iter().map(phase).collect(), 7)];
        let mapped = vec![(0, 0, file, is_writable)];
        Case { name: self.name.into(), machine, files: vec![file], mapped, plans, length: SECOND }
    }

    /// Accesses.
    fn count(&self) -> u64 {
        self.phases.iter().map(|(_, touches, _)| touches).sum()
    }

    /// The accesses: the page, and the highest bit where it is stored to.
    pub fn touches(&self, file: u64) -> Vec<u32> {
        let mut plan = self.case(crate::kernel::LINUX_6_18, file, 32).plans.remove(0);
        let page = |step| match step {
            Step::Touch { page, is_store, .. } => page as u32 | u32::from(is_store) << 31,
            Step::Sleep(_) | Step::Remap(_) => 0,
        };
        (0..self.count()).map(|_| page(plan.step())).collect()
    }

    /// What the model counts.
    pub fn counts(&self, rules: Rules, file: u64, readahead: u64, advice: Advice) -> Counts {
        let case = self.case(rules, file, readahead);
        case.advised(advice, &[self.count()], u64::MAX).map_or_else(Counts::default, |run| run.counts)
    }
}
