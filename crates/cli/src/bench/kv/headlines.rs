//! What it comes to, beside what the paper says.

use fastmap_workloads::kv::Kind;
use fastmap_workloads::ycsb::Workload;

use super::summary::{Sequence, mean_ratio, ratio, sides};
use crate::bench::table::threads;
use crate::results::{Headline, Paper, Spread};

/// Where the paper measured Kreon.
const SETTING: &str = "Kreon, 32 threads on 32 cores, Optane SSD, 80 million records";

/// The headlines of some results; of several numbers of threads the largest counts.
pub fn of(results: &[Sequence], cpus: usize) -> Vec<Headline> {
    let groups: Vec<&[Sequence]> = results.chunk_by(|a, b| a.group() == b.group()).collect();
    let group = |store: Kind, has_room: bool| {
        let some = groups.iter().filter(|group| group[0].store == store && group[0].has_room() == has_room);
        some.copied().max_by_key(|group| (is_short(group), group[0].threads))
    };
    let mut headlines = Vec::new();
    for (store, paper) in [(Kind::Own, Some(2.48)), (Kind::Lmdb, None), (Kind::Rocksdb, None)] {
        let Some((small, (ratio, (low, high)))) = group(store, false).and_then(|g| Some((g, mean_ratio(g)?))) else {
            continue;
        };
        let what = format!(
            "{}, {}, {}: FastMap to {}, mean of all YCSB workloads ({low:.2} to {high:.2})",
            store.title(),
            threads(small[0].threads),
            room(small),
            rivals(small),
        );
        let paper = paper.filter(|_| is_short(small));
        let paper =
            paper.map(|ratio| of_paper(ratio, "figure 8 and its text", "16 GB of memory for 76 GB; 1.25 to 3.65"));
        let why = why(ratio, paper.as_ref(), || beyond_memory(store, small, cpus));
        headlines.push(Headline { what, ratio, paper, why });
    }
    let Some(large) = group(Kind::Own, true) else { return headlines };
    for (workload, of, then) in [
        (Workload::LoadA, 1.55, "all in memory, to mmap-filter (2.77 to plain mmap)"),
        (Workload::C, 1.09, "all in memory, to mmap-filter (1.28 to plain mmap)"),
    ] {
        let Some(ratio) = ratio(large, workload) else { continue };
        let threads = threads(large[0].threads);
        let what =
            format!("own B+-tree, {threads}, all in memory: FastMap to {} in {}", rivals(large), workload.title());
        let paper = Some(of_paper(of, "figure 8(a)", then));
        let why = why(ratio, paper.as_ref(), || in_memory(workload, large[0].threads, cpus));
        headlines.push(Headline { what, ratio, paper, why });
    }
    headlines
}

fn of_paper(ratio: f64, place: &str, memory: &str) -> Paper {
    Paper { ratio, source: format!("FastMap, USENIX ATC '20, {place}"), setting: format!("{SETTING}, {memory}") }
}

/// Says why only where ours is lower than the paper's, or than 1.
fn why(ratio: Spread, paper: Option<&Paper>, sentence: impl FnOnce() -> String) -> Option<String> {
    (ratio.median < paper.map_or(1.0, |paper| paper.ratio.max(1.0))).then(sentence)
}

fn beyond_memory(store: Kind, group: &[Sequence], cpus: usize) -> String {
    let mut sentence = format!("{}.", beside_the_paper(group[0].threads, cpus));
    if group[0].memory_limit_bytes.is_none() {
        sentence.push_str(" Nothing limited memory: kernel mmap could use all of it, FastMap its cache alone.");
    }
    let cache = sides(group).0.and_then(|ours| ours.capacity_bytes).unwrap_or(0);
    if store == Kind::Rocksdb {
        sentence.push_str(&format!(
            " RocksDB writes its tables through the page cache, so kernel mmap finds new ones there, and FastMap reads them from the \
             device, into the {} MiB that are left beside RocksDB's buffers.",
            cache >> 20
        ));
    }
    sentence
}

fn in_memory(workload: Workload, count: u32, cpus: usize) -> String {
    let who = beside_the_paper(count, cpus);
    match workload {
        Workload::LoadA => {
            format!("{who}. The first touch of each new page comes to user space as a signal, which likely costs more.")
        }
        _ => format!("{who}. With everything in memory there are likely few traps on either side."),
    }
}

/// What sets the runs apart from the paper's, as far as it is known.
fn beside_the_paper(count: u32, cpus: usize) -> String {
    let here = format!("Here are {} on {cpus} processors, in the paper 32 on 32", threads(count));
    match (count as usize).min(cpus) < 32 {
        true => format!("{here}, which likely contend more for the kernel's locks"),
        false => here,
    }
}

/// The kernel's engines in a group, of which the best in each workload counts.
fn rivals(group: &[Sequence]) -> String {
    let names: Vec<String> = sides(group).1.iter().map(|sequence| sequence.engine.to_string()).collect();
    if names.len() > 1 { format!("the best of {}", names.join(", ")) } else { names.concat() }
}

fn data_bytes(group: &[Sequence]) -> u64 {
    group.iter().map(|sequence| sequence.store_bytes).max().unwrap_or(0)
}

/// Whether memory was limited to less than the data.
pub fn is_short(group: &[Sequence]) -> bool {
    group[0].memory_limit_bytes.is_some_and(|limit| limit < data_bytes(group))
}

/// What memory a group had beside its data.
pub fn room(group: &[Sequence]) -> String {
    let first = &group[0];
    match (first.memory.as_str(), first.memory_limit_bytes) {
        _ if first.has_room() => "all in memory".to_owned(),
        (_, None) => "memory not limited".to_owned(),
        ("sixth", Some(_)) => "memory for a sixth of the data".to_owned(),
        (size, Some(_)) => format!("{size} of memory for {} MiB of data", data_bytes(group) >> 20),
    }
}
