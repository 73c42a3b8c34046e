//! `fastmap bench peers`, small and real; and scripts/peers beside stand-ins for what only a user can build.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{FASTMAP, Ran, dir, fastmap, files_in, finish, memory_flag, run_in, start_in};
use serde_json::Value;

const ENGINES: [&str; 9] =
    ["mmap", "mmap-random", "fastmap", "fastmap-pin", "fastmap-prefetch", "pread", "direct", "quick-cache", "redb"];

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_work_and_engine_and_every_field_of_the_json() {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let line = format!(
        "bench peers --dir . --engines {} --threads 2 --size 16MiB --memory {memory} --seconds 0.02 --repeat 1 --json out.json",
        ENGINES.join(",")
    );
    let ran = fastmap(dir.path(), &line);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "file and database are gone");
    let out = json(&dir.path().join("out.json"));
    assert_eq!((&out["experiment"], &out["file_bytes"]), (&"peers".into(), &(16 << 20).into()));
    let results = out["results"].as_array().unwrap();
    let said: Vec<_> = results.iter().map(|r| (r["work"].as_str().unwrap(), r["engine"].as_str().unwrap())).collect();
    let works = ["random-read", "zipf-read", "zipf-update"];
    assert_eq!(said, works.iter().flat_map(|&work| ENGINES.map(|engine| (work, engine))).collect::<Vec<_>>());
    for r in results {
        let of = |field: &str| r[field].as_f64().unwrap();
        let runs: Vec<f64> = r["runs"].as_array().unwrap().iter().map(|run| run.as_f64().unwrap()).collect();
        assert_eq!((of("threads"), runs.len()), (2.0, 1), "{r}");
        assert!((of("ops_per_s") - runs[0]).abs() < 1e-3 * of("ops_per_s"), "{r}");
        assert!((of("bytes_per_s") / of("ops_per_s") - 4096.0).abs() < 1.0, "{r}");
        let latency = |p: &str| r["latency_us"][p].as_f64().unwrap();
        assert!(latency("p50") <= latency("p99") && latency("p999") <= latency("max"));
        assert!(of("cpu_us_per_op") > 0.0 && of("peak_rss_bytes") > 0.0);
        assert!(memory == "none" || of("peak_rss_bytes_max") <= f64::from(24 << 20), "{r}");
    }
    assert_eq!(out["headlines"].as_array().unwrap().len(), 4);
    assert_eq!(out["figures"].as_array().unwrap().len(), 7);
    assert!(out["notes"].to_string().contains("redb keeps its records in a tree"));
    for work in works {
        assert!(ran.stdout.contains(&format!("\n{work}, 2 threads\n")), "{}", ran.stdout);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = dir();
    let refused = |flags: &str, parts: &[&str]| {
        fastmap(dir.path(), &format!("bench peers --dir . {flags}")).failed_with(2, parts);
    };
    refused("--engines umap", &["--engines", "no engine: choose from mmap, mmap-random, fastmap"]);
    refused("--works scan", &["--works", "no work: choose from random-read, zipf-read, zipf-update"]);
    refused("--size 64KiB --threads 1,2", &["--size", "too small for 2 threads", "give at least 128KiB"]);
    refused("--memory 1MiB", &["--memory", "give at least"]);
    assert!(files_in(dir.path()).is_empty());
}

fn script(dir: &Path, args: &[&str]) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers");
    run_in(dir, Command::new(script).args(args).args(["--fastmap", FASTMAP, "--dir", "."]))
}

/// Whether the programs that the script needs are there.
fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(missing) = missing {
        eprintln!("skipped: {missing} is not installed");
    }
    missing.is_none()
}

/// The rows of an engine in what the script wrote.
fn rows(out: &Value, engine: &str) -> Vec<Value> {
    out["results"].as_array().unwrap().iter().filter(|r| r["engine"] == engine).cloned().collect()
}

/// A stand-in for UMap: its two calls, over mmap(2). Told so by the environment, it maps zeros instead.
const UMAP: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
extern "C" void *umap(void *addr, size_t length, int prot, int flags, int fd, off_t offset) {
    if (!getenv("UMAP_BUFSIZE") || !getenv("UMAP_PAGESIZE")) return MAP_FAILED;
    if (getenv("STAND_IN_IS_WRONG")) return mmap(addr, length, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mmap(addr, length, prot, flags, fd, offset);
}
extern "C" int uunmap(void *addr, size_t length) { return munmap(addr, length); }
"#;

fn umap_in(dir: &Path) -> PathBuf {
    let (prefix, source) = (dir.join("umap"), dir.join("umap.cpp"));
    fs::create_dir_all(prefix.join("lib")).unwrap();
    fs::write(&source, UMAP).unwrap();
    let built =
        Command::new("c++").args(["-shared", "-fPIC", "-o"]).arg(prefix.join("lib/libumap.so")).arg(&source).output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    prefix
}

#[test]
fn the_script_measures_a_umap_beside_fastmap() {
    if !installed(&["python3", "c++"]) {
        return;
    }
    let (dir, built) = (dir(), dir());
    let prefix = umap_in(built.path());
    let memory = memory_flag("20MiB");
    let flags = [
        "--umap",
        prefix.to_str().unwrap(),
        "--size",
        "8MiB",
        "--memory",
        memory,
        "--threads",
        "2",
        "--seconds",
        "0.05",
        "--repeat",
        "2",
        "--json",
        "out.json",
    ];
    let ran = script(dir.path(), &flags);
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"]);
    let out = json(&dir.path().join("out.json"));
    for engine in ["umap", "fastmap", "fastmap-pin", "mmap-random", "direct"] {
        let rows = rows(&out, engine);
        assert_eq!(rows.iter().map(|r| r["threads"].as_u64().unwrap()).collect::<Vec<_>>(), [2], "{engine}");
        for r in rows {
            assert_eq!((r["work"].as_str(), r["runs"].as_array().unwrap().len()), (Some("random-read"), 2));
            assert!(r["ops_per_s"].as_f64().unwrap() > 0.0 && r["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{r}");
        }
    }
    assert_eq!(out["experiment"], "peers");
    assert!(out["command"].as_str().unwrap().starts_with("scripts/peers --umap "));
    assert!(out["headlines"][0]["what"].as_str().unwrap().ends_with("FastMap to umap"));
    assert!(out["figures"][0]["series"].as_array().unwrap().iter().any(|series| series["name"] == "umap"));
    assert!(ran.stdout.contains("\numap "), "{}", ran.stdout);
}

#[test]
fn the_script_notices_wrong_pages_and_what_is_no_umap() {
    if !installed(&["python3", "c++"]) {
        return;
    }
    let (dir, built) = (dir(), dir());
    let prefix = umap_in(built.path());
    let script_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers");
    let flags = [
        "--size",
        "4MiB",
        "--memory",
        "none",
        "--threads",
        "1",
        "--seconds",
        "0.02",
        "--repeat",
        "1",
        "--json",
        "out.json",
    ];
    let mut command = Command::new(script_path);
    command.args(["--umap", prefix.to_str().unwrap(), "--fastmap", FASTMAP, "--dir", "."]).args(flags);
    let ran = run_in(dir.path(), command.env("STAND_IN_IS_WRONG", "1"));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("umap_driver: page ") && ran.stderr.contains("belongs"), "{}", ran.stderr);
    let ran = script(dir.path(), &["--umap", "."]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("no libumap in its lib or lib64"), "{}", ran.stderr);
    assert!(files_in(dir.path()).iter().all(|name| name == "out.json"));
}

#[test]
fn the_script_measures_a_vmcache_beside_fastmap() {
    if !installed(&["python3"]) {
        return;
    }
    let (dir, built) = (dir(), dir());
    let vmcache = built.path().join("vmcache");
    // A stand-in, which prints what vmcache prints, and fails if it is not told what its README asks for.
    let text = "#!/bin/sh\n\
        [ -w \"$BLOCK\" ] && [ \"$RNDREAD\" = 1 ] && [ \"$PHYSGB\" -ge 1 ] && [ \"$VIRTGB\" -ge \"$PHYSGB\" ] || exit 3\n\
        echo 'space: 1000 GB ' >&2\n\
        echo 'ts,tx,rmb,wmb,system,threads,datasize,workload,batch'\n\
        for ts in 0 1; do echo \"$ts,$((1000 + ts * 500)),10.5,0,vmcache,$THREADS,$DATASIZE,rndread,64\"; done\n";
    fs::write(&vmcache, text).unwrap();
    fs::set_permissions(&vmcache, fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["--size", "8MiB", "--threads", "2", "--seconds", "0.02", "--repeat", "2", "--json", "out.json"];
    let with = |memory: &'static str| {
        script(dir.path(), &[&["--vmcache", vmcache.to_str().unwrap(), "--memory", memory][..], &flags].concat())
    };
    let limit = memory_flag("1280MiB");
    let ran = with(if limit == "none" { "1280MiB" } else { limit });
    if limit == "none" {
        return eprintln!("skipped: no memory cgroups here: {}", ran.stderr);
    }
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"]);
    let out = json(&dir.path().join("out.json"));
    let rows = rows(&out, "vmcache");
    assert_eq!((rows.len(), rows[0]["ops_per_s"].as_f64()), (1, Some(1500.0)), "the first second is left out");
    assert!(rows[0]["latency_us"].is_null() && rows[0]["cpu_us_per_op"].is_null());
    assert!(out["notes"].to_string().contains("128-byte tuple"));
    let ran = with("256MiB");
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("vmcache's pool is whole GiB: give at least"), "{}", ran.stderr);
}

#[test]
fn interrupted_it_leaves_nothing() {
    let dir = dir();
    let line =
        "bench peers --dir . --size 8MiB --memory none --engines redb,quick-cache --repeat 10000 --json out.json";
    let child = start_in(dir.path(), Command::new(FASTMAP).args(line.split_whitespace()));
    let pid = child.id();
    let begun = Instant::now();
    let children = format!("/proc/{pid}/task/{pid}/children");
    while fs::read_to_string(&children).unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no worker appears");
        sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap().success());
    finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
    assert!(files_in(dir.path()).is_empty());
}
