//! `fastmap bench kv`, small and real.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, dir, fastmap, files_in, finish, start_in};
use serde_json::Value;

const WORKLOADS: [&str; 8] = ["load-a", "a", "b", "c", "f", "d", "load-e", "e"];

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Whether programs can be run under `fastmap run` here: its library may not have been built.
fn has_preload_library() -> bool {
    let there = Path::new(FASTMAP).with_file_name("libfastmap_preload.so").exists();
    if !there {
        eprintln!("skipped: libfastmap_preload.so is not beside {FASTMAP}: build it (cargo build -p fastmap-preload)");
    }
    there
}

fn has_rocksdb(dir: &Path) -> bool {
    let ran = fastmap(dir, "bench kv --dir . --stores rocksdb --records 10 --ops 10 --memory none --engines mmap");
    let missing = ran.status == Some(1) && ran.stderr.contains("librocksdb");
    if missing {
        eprintln!("skipped: {}", ran.stderr);
    }
    !missing
}

/// Checks the rows of every sequence.
fn check(out: &Value, stores: &[&str], engines: &[&str], repeat: usize) {
    let results = out["results"].as_array().unwrap();
    let said = |r: &Value| format!("{} {}", r["store"].as_str().unwrap(), r["engine"].as_str().unwrap());
    let expected = stores.iter().flat_map(|store| engines.iter().map(move |engine| format!("{store} {engine}")));
    assert_eq!(results.iter().map(said).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    for r in results {
        let rows = r["workloads"].as_array().unwrap();
        assert_eq!(rows.iter().map(|row| row["workload"].as_str().unwrap()).collect::<Vec<_>>(), WORKLOADS);
        for row in rows {
            let latency = |p: &str| row["latency_us"][p].as_f64().unwrap();
            assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && latency("p50") <= latency("p99"), "{row}");
            assert_eq!(row["runs"].as_array().unwrap().len(), repeat);
        }
        // Both stores of every repetition, with what D and E inserted.
        assert!(r["records_checked"].as_u64().unwrap() > 2 * 2000 * repeat as u64, "{r}");
        let served = r["misses"].as_array().map_or(0, |misses| misses.iter().filter(|m| m.as_u64() > Some(0)).count());
        assert_eq!(served, if r["engine"] == "fastmap" { repeat } else { 0 }, "{r}");
    }
    assert!(out["verified"].as_str().unwrap().contains("with its last version"));
}

#[test]
fn own_store_every_field_and_figure() {
    let dir = dir();
    let ran = fastmap(
        dir.path(),
        "bench kv --dir . --stores own --engines mmap,mmap-random,fastmap,mmap --records 2000 --ops 1000 --memory all,none \
         --threads 1,2 --json out.json",
    );
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the stores are gone");
    let mut out = read(&dir.path().join("out.json"));
    assert_eq!(out["experiment"], "kv");
    let rooms: Vec<_> =
        out["results"].as_array().unwrap().iter().map(|r| (r["memory"].clone(), r["threads"].clone())).collect();
    assert_eq!(rooms.len(), 12);
    assert_eq!((&rooms[0], &rooms[11]), (&("all".into(), 1.into()), &("none".into(), 2.into())));
    let titles: Vec<_> =
        out["figures"].as_array().unwrap().iter().map(|f| f["title"].as_str().unwrap().to_owned()).collect();
    assert!(titles.iter().any(|title| title == "own B+-tree: YCSB all in memory"), "{titles:?}");
    assert!(titles.iter().any(|title| title == "own B+-tree: scalability, all in memory"), "{titles:?}");
    let headlines = out["headlines"].as_array().unwrap();
    let papers: Vec<_> = headlines.iter().map(|h| h["paper"]["ratio"].as_f64()).collect();
    assert_eq!(papers, [None, Some(1.55), Some(1.09)], "nothing is beyond memory here");
    for headline in headlines {
        let ratio = &headline["ratio"];
        assert!(
            ratio["low"].as_f64() <= ratio["median"].as_f64() && ratio["median"].as_f64() <= ratio["high"].as_f64()
        );
        let is_lower = ratio["median"].as_f64() < headline["paper"]["ratio"].as_f64().or(Some(1.0));
        assert_eq!(headline.get("why").is_some(), is_lower, "{headline}");
    }
    assert_eq!(ran.stdout.matches("\nLoad A ").count(), 4, "{}", ran.stdout);
    assert_eq!(ran.stdout.matches("\nfastmap does ").count(), 4, "{}", ran.stdout);
    out["results"].as_array_mut().unwrap().truncate(3);
    check(&out, &["own"], &["mmap", "mmap-random", "fastmap"], 1);
}

#[test]
fn lmdb_unchanged_twice() {
    let dir = dir();
    let engines: &[&str] = if has_preload_library() { &["mmap-random", "fastmap"] } else { &["mmap-random"] };
    let line = format!(
        "bench kv --dir . --stores lmdb --engines {} --records 2000 --ops 500 --memory none --repeat 2 --json out.json",
        engines.join(",")
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert!(ran.stdout.contains("NO LIMIT"), "{}", ran.stdout);
    check(&read(&dir.path().join("out.json")), &["lmdb"], engines, 2);
}

#[test]
fn rocksdb_unchanged_where_it_is_installed() {
    let dir = dir();
    if !has_rocksdb(dir.path()) || !has_preload_library() {
        return;
    }
    // More than its buffers hold, so that there are tables to map.
    let line = "bench kv --dir . --stores rocksdb --engines mmap-random,fastmap --records 8000 --ops 500 --memory none \
                --json out.json";
    fastmap(dir.path(), line).succeeded();
    check(&read(&dir.path().join("out.json")), &["rocksdb"], &["mmap-random", "fastmap"], 1);
}

/// The only directory in a directory.
fn directory_in(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

#[test]
fn a_wrong_byte_in_the_store_fails_the_command() {
    const RECORDS: u64 = 5000;
    const SEGMENT: u64 = 1 << 20;
    const RECORD: u64 = 1040;
    let dir = dir();
    let line = format!(
        "bench kv --dir . --stores own --engines mmap --records {RECORDS} --ops 2000000 --seconds 30 --memory none --threads 1"
    );
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    // Behind the first segment, the tree's, one thread's records lie one after the other.
    let deadline = Instant::now() + Duration::from_secs(30);
    let store = loop {
        assert!(Instant::now() < deadline, "no store");
        sleep(Duration::from_millis(5));
        let path = directory_in(dir.path()).and_then(|place| directory_in(&place)).map(|run| run.join("a/store"));
        let Some(file) = path.and_then(|path| File::options().read(true).write(true).open(path).ok()) else { continue };
        let mut word = [0; 8];
        let last = file.read_exact_at(&mut word, SEGMENT + RECORDS * RECORD - RECORD + 500);
        if last.is_ok() && word != [0; 8] {
            break file;
        }
    };
    for record in 0..RECORDS {
        let (mut byte, at) = ([0], SEGMENT + record * RECORD + 500);
        store.read_exact_at(&mut byte, at).unwrap();
        store.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    finish(child).failed_with(1, &["mmap: own B+-tree: ", "gave a value whose word", "run it again"]);
    assert_eq!(files_in(dir.path()), [""; 0], "nothing is left behind");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let failed = |line: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench kv --dir . {line}")).failed_with(2, parts);
        assert_eq!(files_in(dir.path()), [""; 0]);
    };
    failed("--stores own,oracle", &["--stores", "\"oracle\" is no store: choose from own, lmdb, rocksdb"]);
    failed("--memory all,much", &["--memory", "\"much\"", "or all, or sixth"]);
    failed(
        "--stores own --records 1000 --memory sixth",
        &["--records", "too little memory: give at least", "--memory all"],
    );
    failed("--records 0", &["--records", "give 1 to"]);
    let ran = fastmap(dir.path(), "bench kv --dir no-such-dir --stores own --records 100 --memory none");
    ran.failed_with(1, &["no-such-dir", "name a writable place with --dir"]);
}
