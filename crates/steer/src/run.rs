//! Runs of pages: what looks at page tables return.

/// Adjoining pages of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first, counted from the mapping's beginning.
    pub at: u64,
    /// How many.
    pub len: u64,
}

impl Run {
    /// The page after the last.
    pub fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// Pages of a *window*. For one touch the kernel maps at most this many pages, those that are in the page cache (`fault_around_bytes`, 64 KiB).
pub(crate) const WINDOW: u64 = 16;

/// Pages of a *block*, 2 MiB: what the kernel reads by one request where a mapping has MADV_HUGEPAGE.
pub(crate) const BLOCK: u64 = 512;

/// Windows in which runs lie.
pub(crate) fn windows(runs: &[Run]) -> u64 {
    let mut last = None;
    let mut count = 0;
    for run in runs {
        let (from, to) = (run.at / WINDOW, (run.end() - 1) / WINDOW);
        count += to - from + u64::from(last != Some(from));
        last = Some(to);
    }
    count
}

/// Both lists as one, in order.
pub(crate) fn merge(mut one: Vec<Run>, other: Vec<Run>) -> Vec<Run> {
    if one.is_empty() {
        return other;
    }
    one.extend(other);
    one.sort_unstable_by_key(|run| run.at);
    one
}
