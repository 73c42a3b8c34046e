//! `fastmap top --once --json`; the help says what is in it.

use fastmap::live::Objects;
use serde_json::{Map, Value, json};

use super::rows::{share, traps};
use super::watch::{Watch, Watched};

/// Numbers that are no counters: they have no rate.
const GAUGES: [&str; 5] = ["resident_pages", "dirty_pages", "pinned_pages", "writeback_depth", "read_size"];

/// All of it, with a line's end.
pub fn text(watch: &Watch) -> String {
    let programs: Vec<_> = watch.programs().into_iter().map(program).collect();
    format!("{:#}\n", json!({ "programs": programs }))
}

fn program(watched: &Watched) -> Value {
    let seconds = watched.seconds();
    let (_, since) = watched.total();
    let caches = watched.caches().map(|(cache, since)| {
        json!({
            "capacity_bytes": cache.capacity_bytes,
            "writes_in_flight": cache.writes_in_flight,
            "merged_run_pages": share(since.writeback_pages, since.writeback_runs),
            "queue_depth": share(since.writeback_depth, since.writeback_runs),
            "totals": totals(cache.stats.numbers()),
            "per_second": rates(since.numbers(), seconds),
        })
    });
    let maps = watched.maps().map(|(map, since)| {
        json!({
            "path": map.path.to_string_lossy(),
            "cache": map.cache,
            "mapped_bytes": map.mapped_bytes,
            "writable": map.writable,
            "totals": totals(map.stats.numbers()),
            "per_second": rates(since.numbers(), seconds),
        })
    });
    json!({
        "pid": watched.pid(),
        "name": watched.name(),
        "interval_s": seconds,
        "traps_per_second": seconds.map(|seconds| traps(&since) as f64 / seconds),
        "ghost_share": share(since.ghost_hits, since.misses),
        "staged_share": share(since.ahead_chunks, traps(&since)),
        "run_used_share": share(since.run_used, since.run_pages),
        "caches": caches.collect::<Vec<_>>(),
        "maps": maps.collect::<Vec<_>>(),
        "maps_left_out": watched.maps_left_out(),
        "objects": objects(watched.objects(), seconds),
        "flushed_bytes": watched.flushed_bytes().0,
        "flushed_bytes_per_second": seconds.map(|seconds| watched.flushed_bytes().1 as f64 / seconds),
    })
}

/// Null where there are none.
fn objects((all, since): (Objects, Objects), seconds: Option<f64>) -> Value {
    if all == Objects::default() {
        return Value::Null;
    }
    let rate = |bytes: u64| seconds.map(|seconds| bytes as f64 / seconds);
    json!({
        "fetched_bytes": all.fetched_bytes,
        "hit_bytes": all.hit_bytes,
        "wasted_bytes": all.wasted_bytes,
        "fetched_bytes_per_second": rate(since.fetched_bytes),
        "hit_bytes_per_second": rate(since.hit_bytes),
        "wasted_bytes_per_second": rate(since.wasted_bytes),
    })
}

fn totals(numbers: impl Iterator<Item = (&'static str, u64)>) -> Value {
    numbers.map(|(name, number)| (name.to_owned(), number.into())).collect::<Map<_, _>>().into()
}

/// Null where the program has answered once only.
fn rates(numbers: impl Iterator<Item = (&'static str, u64)>, seconds: Option<f64>) -> Value {
    let Some(seconds) = seconds else { return Value::Null };
    let counters = numbers.filter(|(name, _)| !GAUGES.contains(name));
    counters.map(|(name, number)| (name.to_owned(), (number as f64 / seconds).into())).collect::<Map<_, _>>().into()
}
