//! The output of `fastmap top --once --json`. The command's help describes the fields.

use fastmap::live::Objects;
use serde_json::{Map, Value, json};

use super::observed::{Observed, Steered};
use super::rows::{share, traps};
use super::watch::{Watch, Watched};
use crate::table;

/// Fields of `Stats` and `MapStats` that are not counters, and so have no rate.
const GAUGES: [&str; 5] = ["resident_pages", "dirty_pages", "pinned_pages", "writeback_depth", "read_size"];

/// The whole document, with a line feed at the end.
pub fn text(watch: &Watch) -> String {
    let programs: Vec<_> = watch.programs().into_iter().map(program).collect();
    let processes: Vec<_> = watch.processes().into_iter().map(process).collect();
    let all = json!({ "programs": programs, "processes": processes, "processes_left_out": watch.hidden() });
    table::json(&all)
}

/// A process that has large files mapped.
fn process(observed: &Observed) -> Value {
    let (rates, totals) = (observed.rates(), observed.totals());
    let steered = observed.steered.map(|steered| match steered {
        Steered::Thread => json!({ "by": "thread" }),
        Steered::By(pid) => json!({ "by": "process", "pid": pid }),
    });
    let files = observed.files().into_iter().map(|file| {
        json!({
            "path": file.path,
            "writable": file.is_writable,
            "mapped_bytes": file.mapped_bytes,
            "resident_bytes": file.resident_bytes,
        })
    });
    json!({
        "pid": observed.pid(),
        "name": observed.name(),
        "interval_s": rates.map(|rates| rates.seconds),
        "mapped_bytes": observed.mapped_bytes(),
        "resident_bytes": observed.resident_bytes(),
        "waited_faults": totals.spent.major_faults,
        "read_bytes": totals.spent.read_bytes,
        "waited_faults_per_second": rates.map(|rates| rates.waited_faults),
        "read_bytes_per_second": rates.map(|rates| rates.read_bytes),
        "touched_bytes_per_second": rates.map(|rates| rates.touched_bytes),
        "read_per_touched": rates.and_then(|rates| rates.read_per_touched()),
        "wait_per_fault_s": rates.and_then(|rates| rates.wait).map(|wait| wait.as_secs_f64()),
        "blocked_share": rates.map(|rates| rates.blocked),
        "group_refaults_per_second": rates.and_then(|rates| rates.refaults),
        "pattern": rates.map(|_| observed.pattern().name()),
        "steered": steered,
        "advice": observed.advice(),
        "files": files.collect::<Vec<_>>(),
    })
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

/// The bytes of objects. Null if the program has no objects.
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

/// The rates of counters. Null if the program has answered only once.
fn rates(numbers: impl Iterator<Item = (&'static str, u64)>, seconds: Option<f64>) -> Value {
    let Some(seconds) = seconds else { return Value::Null };
    let counters = numbers.filter(|(name, _)| !GAUGES.contains(name));
    counters.map(|(name, number)| (name.to_owned(), (number as f64 / seconds).into())).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::observed::tests::made_up;

    #[test]
    fn a_process_has_totals_rates_and_files() {
        let one = process(&made_up(7, "db"));
        assert_eq!((&one["pid"], &one["mapped_bytes"]), (&7.into(), &(64 << 20).into()));
        assert_eq!((&one["read_per_touched"], &one["wait_per_fault_s"]), (&16.0.into(), &0.001.into()));
        assert_eq!((&one["pattern"], &one["files"][0]["path"]), (&"scattered".into(), &"/data/db".into()));
        assert!(one["steered"].is_null() && one["advice"].is_string(), "{one}");
    }
}
