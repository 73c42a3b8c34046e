//! The description of a run and its measurements. Both are sent as JSON between the bench and its workers.

use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::substrates::{PAGE, Pattern};

/// A name that is not one of the known names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is not {kind}: choose from {known}")]
pub struct Unknown {
    /// The name that was given.
    pub name: String,
    /// `an engine`, `a pattern` or `an op`, for example.
    pub kind: &'static str,
    /// All known names, separated by commas.
    pub known: String,
}

/// Gives an enum its names on the command line and in JSON: `NAMES`, `name`, `Display`, `FromStr`.
#[macro_export]
macro_rules! names {
    ($type:ty, $kind:literal, { $($variant:ident => $name:literal),* $(,)? }) => {
        impl $type {
            /// Every name, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The name on the command line and in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::substrates::Unknown;

            fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
                match name {
                    $($name => Ok(Self::$variant),)*
                    _ => Err($crate::substrates::Unknown {
                        name: name.to_owned(),
                        kind: $kind,
                        known: Self::NAMES.join(", "),
                    }),
                }
            }
        }
    };
}
pub use crate::names;

/// The ways to reach data, in all experiments. An experiment takes those that can do its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Kernel mmap without advice.
    Mmap,
    /// Kernel mmap with `MADV_RANDOM`.
    MmapRandom,
    /// Kernel mmap with `MADV_SEQUENTIAL`.
    MmapSequential,
    /// Kernel mmap that is told its next pages: `MADV_WILLNEED`, with a call of process_madvise(2) for each batch.
    MmapWillneed,
    /// Kernel mmap that is told its next pages: posix_fadvise(2) on the file, with a call for each run of neighbours.
    MmapFadvise,
    /// As with `MADV_WILLNEED`. In addition the pages that are touched next are mapped in advance: `MADV_POPULATE_READ`, or for stores
    /// `MADV_POPULATE_WRITE`. A file that fits into memory is populated whole before it is touched.
    MmapPopulate,
    /// Kernel mmap with the advice that suits the work.
    MmapAdvised,
    /// Kernel mmap, flushed by msync(2).
    Msync,
    /// Kernel mmap, flushed by a bare loop over its cache lines.
    Persist,
    /// The engine of this project, through plain loads and stores.
    Fastmap,
    /// The engine of this project. Every page is pinned while it is worked on.
    FastmapPin,
    /// The engine of this project, through plain loads and stores. Pages are prefetched before.
    FastmapPrefetch,
    /// The engine of this project, with the advice that suits the work.
    FastmapAdvised,
    /// The engine of this project. Stores to absent pages do not wait for the read, by AR-MMAP's protocol ([`fastmap::MapOptions::async_read`]).
    FastmapAr,
    /// The engine of this project. It keeps stores to absent pages until the pages are there.
    FastmapStores,
    /// The engine of this project. It maps files without a copy, and flushes by cache lines wherever the file is.
    FastmapPersist,
    /// Kernel mmap without advice, steered ([`fastmap_steer`]).
    Steered,
    /// Buffered `pread` and `pwrite` of one page a call; `fill` writes 1 MiB a call.
    Pread,
    /// `pread` and `pwrite` of one page a call, past the page cache (`O_DIRECT`). `fill` writes 1 MiB a call. Reads forward or backward
    /// fetch 2 MiB a call.
    Direct,
    /// A cache of pages (crate `quick_cache`) over direct calls.
    QuickCache,
    /// An embedded database (crate `redb`).
    Redb,
}

names!(Engine, "an engine", {
    Mmap => "mmap", MmapRandom => "mmap-random", MmapSequential => "mmap-sequential",
    MmapWillneed => "mmap-willneed", MmapFadvise => "mmap-fadvise", MmapPopulate => "mmap-populate",
    MmapAdvised => "mmap-advised",
    Msync => "msync", Persist => "persist",
    Fastmap => "fastmap", FastmapPin => "fastmap-pin", FastmapPrefetch => "fastmap-prefetch",
    FastmapAdvised => "fastmap-advised", FastmapAr => "fastmap-ar", FastmapStores => "fastmap-stores",
    FastmapPersist => "fastmap-persist", Steered => "steered",
    Pread => "pread", Direct => "direct", QuickCache => "quick-cache", Redb => "redb",
});

impl Engine {
    /// The engines that reach a file page by page ([`crate::substrates::engine`]).
    pub const PAGED: &'static [Engine] = &[
        Engine::Mmap,
        Engine::MmapRandom,
        Engine::MmapSequential,
        Engine::MmapWillneed,
        Engine::MmapFadvise,
        Engine::MmapPopulate,
        Engine::Fastmap,
        Engine::FastmapPin,
        Engine::FastmapPrefetch,
        Engine::Steered,
        Engine::Pread,
        Engine::Direct,
    ];

    /// The engines of [`Engine::PAGED`] that are not told their next pages, without [`Engine::Steered`].
    pub const PLAIN: &'static [Engine] = &[
        Engine::Mmap,
        Engine::MmapRandom,
        Engine::MmapSequential,
        Engine::Fastmap,
        Engine::FastmapPin,
        Engine::Pread,
        Engine::Direct,
    ];

    /// The engines that can serve a heap, or a program that is unchanged.
    pub const PROGRAMS: &'static [Engine] = &[Engine::Mmap, Engine::MmapRandom, Engine::Fastmap];

    /// Whether this is kernel mmap by itself, with or without advice from the bench. [`Engine::Steered`] is not.
    pub fn is_mmap(self) -> bool {
        self <= Engine::Persist
    }

    /// Whether the engine is told its next pages before they are touched.
    pub fn is_told_ahead(self) -> bool {
        matches!(self, Engine::MmapWillneed | Engine::MmapFadvise | Engine::MmapPopulate | Engine::FastmapPrefetch)
    }

    /// Whether this is the engine of this project, however its pages are reached.
    pub fn is_fastmap(self) -> bool {
        (Engine::Fastmap..=Engine::FastmapPersist).contains(&self)
    }
}

/// The operation on each page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Load the stamp and check it.
    Read,
    /// Store a new generation, then load the stamp and check it.
    Write,
    /// Load the generation, check it, and store the next one.
    Rmw,
}

names!(Op, "an op", { Read => "read", Write => "write", Rmw => "rmw" });

impl Op {
    /// Whether the operation changes the file.
    pub fn writes(self) -> bool {
        self != Op::Read
    }
}

/// Advice to the fastmap engines about the order of pages. The names of kernel mmap's engines carry their advice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Advice {
    /// No advice: the engine finds out by itself.
    #[default]
    Normal,
    /// No order.
    Random,
    /// Upwards.
    Sequential,
    /// Downwards.
    Backward,
}

names!(Advice, "an advice", {
    Normal => "normal", Random => "random", Sequential => "sequential", Backward => "backward",
});

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The way to the file's pages.
    pub engine: Engine,
    /// The order of pages.
    pub pattern: Pattern,
    /// The operation on each page.
    pub op: Op,
    /// Threads, all on one map.
    pub threads: u32,
    /// Advice to the map of a fastmap engine.
    pub advice: Advice,
    /// The path at which the file can be opened.
    pub path: PathBuf,
    /// The name of the file in messages.
    pub label: String,
    /// Length of the file in pages of 4096 bytes.
    pub pages: u64,
    /// Bytes that the whole process may use. The fastmap engine's cache gets the part that [`crate::substrates::capacity_for`] says. None:
    /// memory is not limited, and the cache is a quarter of the file.
    pub memory: Option<u64>,
    /// Length of the measurement, seconds. The warm-up takes four times as long at most, or 2 s if that is longer. `fill` ignores it.
    pub seconds: f64,
    /// How many runs have written to the file, this one included, as page 0 holds it (see [`crate::substrates::stamp`]). Unused in a run that
    /// only reads.
    pub epoch: u32,
    /// Whether the run is measured from its start, without a warm-up.
    pub cold: bool,
}

impl Spec {
    /// Bytes of the file that memory keeps, approximately: the limit. If memory is not limited, a quarter of the file, which is the cache.
    pub fn kept(&self) -> u64 {
        self.memory.unwrap_or(self.pages * PAGE as u64 / 4)
    }

    /// Bytes that the warm-up reads.
    ///
    /// * In general twice the memory: it is full then, and everything in it has been replaced once. The rates are then steady.
    /// * For a loop not much larger than memory, four times the memory. The pages that are kept show only after some rounds.
    /// * For a file that fits into memory, nearly all of it, since random pages never reach all of it.
    /// * Nothing for `fill` and for cold runs, which are measured from their start, and for the engine `direct`, which keeps no page.
    pub fn warmup_bytes(&self) -> u64 {
        let bytes = self.pages * PAGE as u64;
        match self.pattern {
            Pattern::Fill => 0,
            _ if self.cold => 0,
            _ if self.engine == Engine::Direct => 0,
            _ if bytes <= self.kept() => bytes / 20 * 19,
            Pattern::Random | Pattern::Zipf => 2 * self.kept(),
            _ if bytes <= 2 * self.kept() => 4 * self.kept(),
            _ => 2 * self.kept(),
        }
    }
}

/// How often the operations of a fastmap engine found their page in memory, in the measured window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Hits {
    /// Operations that read their page themselves.
    pub misses: u64,
    /// The share of operations that found their page mapped: 1 - (misses + traps that mapped pages read ahead) / operations. It does not
    /// say how many operations waited for a read: a page that was read ahead in time also traps, if it is the first page of its chunk.
    pub hit_ratio: f64,
}

impl Hits {
    /// The hits of `ops` operations between two readings of a cache's counters.
    pub fn between(before: &fastmap::Stats, after: &fastmap::Stats, ops: u64) -> Hits {
        let misses = after.misses - before.misses;
        let trapped = misses + after.ahead_chunks - before.ahead_chunks;
        // A page may be dropped before its trap returns. One operation misses it twice then.
        Hits { misses, hit_ratio: (1.0 - trapped as f64 / ops.max(1) as f64).max(0.0) }
    }
}

/// Pages that a fastmap engine read before they were touched, in the measured window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Readahead {
    /// Pages read ahead by streams.
    pub pages: u64,
    /// Pages read ahead that a touch mapped.
    pub used: u64,
    /// Pages read ahead that were dropped untouched.
    pub wasted: u64,
    /// Traps that mapped a chunk of pages read ahead.
    pub chunks: u64,
    /// Streams that were recognised.
    pub streams: u64,
    /// Pages that the program asked for with `prefetch`.
    pub prefetched: u64,
}

impl Readahead {
    /// The readahead between two readings of a cache's counters.
    pub fn between(before: &fastmap::Stats, after: &fastmap::Stats) -> Readahead {
        Readahead {
            pages: after.ahead_pages - before.ahead_pages,
            used: after.ahead_used - before.ahead_used,
            wasted: after.ahead_wasted - before.ahead_wasted,
            chunks: after.ahead_chunks - before.ahead_chunks,
            streams: after.streams - before.streams,
            prefetched: after.prefetched_pages - before.prefetched_pages,
        }
    }
}

/// The fastmap engine's write-back in the measured window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Writeback {
    /// Runs of neighbouring pages. Each is one write.
    pub runs: u64,
    /// Pages in these runs.
    pub pages: u64,
    /// Bytes in these runs.
    pub bytes: u64,
    /// Pages per run. 0: nothing was written.
    pub merge_ratio: f64,
    /// Runs that the kernel has and that are not finished, averaged over the moments at which a run was added.
    pub queue_depth: f64,
}

impl Writeback {
    /// The write-back between two readings of a cache's counters.
    pub fn between(before: &fastmap::Stats, after: &fastmap::Stats) -> Writeback {
        let runs = after.writeback_runs - before.writeback_runs;
        let pages = after.writeback_pages - before.writeback_pages;
        let depth = after.writeback_depth - before.writeback_depth;
        let a_run = |sum: u64| sum as f64 / runs.max(1) as f64;
        Writeback { runs, pages, bytes: pages * PAGE as u64, merge_ratio: a_run(pages), queue_depth: a_run(depth) }
    }
}

/// The work of the block device under the file in the measured window. It counts the requests of all processes, and the write-back by
/// kernel threads. `/sys/dev/block/MAJOR:MINOR/stat`, see the kernel's Documentation/block/stat.rst.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes per write. 0: there was none.
    pub average_write_bytes: f64,
    /// Reads and writes queued or in flight, averaged over the window.
    pub average_queue_depth: f64,
}

/// Latency percentiles in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyUs {
    /// The average.
    pub mean: f64,
    /// Half of the operations took no longer.
    pub p50: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl LatencyUs {
    /// The percentiles of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u32>) -> LatencyUs {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        let mean = if histogram.is_empty() { 0.0 } else { histogram.mean() / 1e3 };
        LatencyUs { mean, p50: at(0.5), p99: at(0.99), p999: at(0.999), max: us(histogram.max()) }
    }
}

/// The set-up of the fastmap engine, and its counters from the map's creation to the end of the measured window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FastmapReport {
    /// Capacity of its cache, bytes.
    pub capacity_bytes: u64,
    /// Whether the file was read past the page cache. If not, the file system refused `O_DIRECT`.
    pub direct_io: bool,
    /// Its counters.
    pub counters: Counters,
}

/// [`fastmap::Stats`] as JSON.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // each field is documented where it is counted, at `fastmap::Stats`
pub struct Counters {
    pub misses: u64,
    pub ghost_hits: u64,
    pub upgrades: u64,
    pub evicted_pages: u64,
    pub eviction_batches: u64,
    pub writeback_pages: u64,
    pub writeback_runs: u64,
    pub resident_pages: u64,
    pub dirty_pages: u64,
    pub waits: u64,
    pub ahead_pages: u64,
    pub ahead_used: u64,
    pub ahead_wasted: u64,
    pub ahead_chunks: u64,
    pub streams: u64,
    pub prefetched_pages: u64,
    pub pinned_pages: u64,
    pub async_loads: u64,
    pub kept_stores: u64,
    pub partial_lines: u64,
}

impl From<fastmap::Stats> for Counters {
    fn from(s: fastmap::Stats) -> Counters {
        Counters {
            misses: s.misses,
            ghost_hits: s.ghost_hits,
            upgrades: s.upgrades,
            evicted_pages: s.evicted_pages,
            eviction_batches: s.eviction_batches,
            writeback_pages: s.writeback_pages,
            writeback_runs: s.writeback_runs,
            resident_pages: s.resident_pages,
            dirty_pages: s.dirty_pages,
            waits: s.waits,
            ahead_pages: s.ahead_pages,
            ahead_used: s.ahead_used,
            ahead_wasted: s.ahead_wasted,
            ahead_chunks: s.ahead_chunks,
            streams: s.streams,
            prefetched_pages: s.prefetched_pages,
            pinned_pages: s.pinned_pages,
            async_loads: s.async_loads,
            kept_stores: s.kept_stores,
            partial_lines: s.partial_lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_unknown_ones_list_the_known() {
        for name in Engine::NAMES {
            let engine: Engine = name.parse().unwrap();
            assert_eq!(engine.name(), *name);
            assert_eq!(serde_json::to_string(&engine).unwrap(), format!("\"{name}\""));
        }
        let unknown = "mmapp".parse::<Engine>().unwrap_err().to_string();
        assert_eq!(unknown, format!("\"mmapp\" is not an engine: choose from {}", Engine::NAMES.join(", ")));
        assert!("sideways".parse::<Pattern>().is_err());
        assert_eq!("fill".parse::<Pattern>().unwrap(), Pattern::Fill);
        assert_eq!("rmw".parse::<Op>().unwrap(), Op::Rmw);
        assert_eq!("backward".parse::<Advice>().unwrap(), Advice::Backward);
        assert!("will-need".parse::<Advice>().is_err(), "no order of pages");
    }

    #[test]
    fn hits_are_the_operations_that_met_their_page() {
        let before = fastmap::Cache::new(1 << 20).unwrap().stats();
        let mut after = before;
        (after.misses, after.ahead_chunks, after.ahead_pages, after.ahead_used) = (20, 5, 300, 280);
        let hits = Hits::between(&before, &after, 100);
        assert_eq!((hits.misses, hits.hit_ratio), (20, 0.75));
        assert_eq!(Hits::between(&before, &after, 10).hit_ratio, 0.0);
        assert_eq!(Hits::between(&after, &after, 0).hit_ratio, 1.0);
        let ahead = Readahead::between(&before, &after);
        assert_eq!((ahead.pages, ahead.used, ahead.chunks, ahead.wasted), (300, 280, 5, 0));
    }
}
