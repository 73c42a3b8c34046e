//! `fastmap bench programs`, small and real: the programs in C on kernel mmap, and under `fastmap run` where that is built.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::prompt::{dir, fastmap, files_in, make_program, run_in, skipped};
use crate::{FASTMAP, check_told};

#[test]
fn programs_are_compared_in_every_setting() {
    let beside =
        ["fastmap", "libfastmap_preload.so"].iter().all(|file| Path::new(FASTMAP).with_file_name(file).exists());
    if !beside {
        skipped(
            "programs under fastmap run: fastmap and its library are not beside fastmap-bench: `make build PROFILE=dev`",
        );
    }
    let ways: &[&str] =
        if beside { &["kernel", "advised", "fastmap", "fastmap-sized"] } else { &["kernel", "advised"] };
    let dir = dir();
    let line = "programs --programs search,files --memory all,half --size 4MiB --seconds 0.02 --repeat 2 --dir . --json out.json";
    let ran = fastmap(dir.path(), &format!("{line} --ways {}", ways.join(",")));
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the data are gone");
    let told: Value = serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    check_told(&told);
    let limited = told["memory_limit"] != "none";
    let shares: &[&str] = if limited { &["all", "half"] } else { &["all"] };
    let mut rows = told["results"].as_array().unwrap().iter();
    for program in ["search", "files"] {
        for setting in shares.iter().flat_map(|share| [format!("{share}, cold"), format!("{share}, warm")]) {
            for way in ways {
                let row = rows.next().unwrap();
                assert_eq!((&row["program"], &row["setting"]), (&Value::from(program), &Value::from(setting.as_str())));
                assert_eq!(row["way"], *way);
                assert_eq!(row["times_kernel"].as_f64().is_some_and(|times| times > 0.0), *way != "kernel", "{row}");
                assert_eq!(row["memory_limit_bytes"].is_u64(), setting.starts_with("half"), "{row}");
                for (n, trial) in row["trials"].as_array().unwrap().iter().enumerate() {
                    let first = n == 0 && *way == "kernel" && setting == "all, cold";
                    assert_eq!(
                        trial["compared"] == 0,
                        first,
                        "all but the first have one to be compared with: {trial}"
                    );
                    assert!(trial["ops"].as_u64().unwrap() > 0 && trial.get("sums").is_none(), "{trial}");
                    let misses = trial["served"]["caches"][0]["misses"].as_u64();
                    assert_eq!(
                        misses.is_some_and(|misses| misses > 0),
                        program == "search" && *way == "fastmap-sized",
                        "{trial}"
                    );
                }
            }
        }
    }
    assert!(rows.next().is_none());
    assert!(ran.stdout.contains("search  files") && ran.stdout.contains("mean  to best"), "{}", ran.stdout);
    assert_eq!(ran.stdout.contains("maps were the kernel's from beginning to end"), beside, "{}", ran.stdout);
}

/// What a program reads must be the same in every run: here is one that says something else each time.
#[test]
fn an_answer_that_differs_fails_and_what_is_not_there_is_said() {
    let dir = dir();
    let programs = dir.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let rg = programs.join("rg");
    make_program(&rg, b"#!/bin/sh\nexec /bin/date +%s%N\n");
    let run = |line: &str| {
        let line = format!("programs {line} --memory all --size 1MiB --seconds 0.01 --ways kernel --dir .");
        run_in(dir.path(), Command::new(FASTMAP).env("PATH", &programs).args(line.split_whitespace()))
    };
    let differs =
        ["ripgrep, kernel, repetition 2: it read other data than the runs before: batch 0", "please report it"];
    run("--programs ripgrep --repeat 2").failed_with(1, &differs);
    run("--programs search,fio")
        .failed_with(1, &["no program is there", "search (cc: ", "install gcc", "no fio in PATH", "install fio"]);
    let ran = run("--programs sqlite,ripgrep --repeat 1");
    ran.failed_with(1, &["ripgrep, kernel, repetition 1: it read other data"]);
    assert_eq!(files_in(dir.path()), ["bin"]);
}
