//! `fastmap bench programs`, small and real: the programs in C on kernel mmap, and under `fastmap run` where that is built.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

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
    let line = "programs --programs search,files --memory all,half --size 4MiB --seconds 0.02 --warm-up 0.05 --repeat 2 --dir . --json out.json";
    let ran = fastmap(dir.path(), &format!("{line} --ways {}", ways.join(",")));
    ran.succeeded();
    assert_eq!(files_in(dir.path()), ["out.json"], "the data are gone");
    let told: Value = serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    check_told(&told);
    let limited = told["memory_limit"] != "none";
    let shares: &[&str] = if limited { &["all", "half"] } else { &["all"] };
    let mut rows = told["results"].as_array().unwrap().iter();
    for program in ["search", "files"] {
        for share in shares {
            let settings = ["cold", "warm"].map(|temperature| format!("{share}, {temperature}"));
            for (setting, way) in settings.iter().flat_map(|setting| ways.iter().map(move |way| (setting, way))) {
                let row = rows.next().unwrap();
                assert_eq!((&row["program"], &row["setting"]), (&Value::from(program), &Value::from(setting.as_str())));
                assert_eq!(row["way"], *way);
                assert_eq!(row["times_kernel"].as_f64().is_some_and(|times| times > 0.0), *way != "kernel", "{row}");
                assert_eq!(row["memory_limit_bytes"].is_u64(), *share == "half", "{row}");
                assert!(row.get("late").is_none(), "{row}");
                for (n, trial) in row["trials"].as_array().unwrap().iter().enumerate() {
                    let first = n == 0 && *way == "kernel" && *share == "all";
                    assert_eq!(
                        trial["compared"] == 0,
                        first,
                        "all but the first have one to be compared with: {trial}"
                    );
                    assert!(trial["ops"].as_u64().unwrap() > 0 && trial.get("sums").is_none(), "{trial}");
                    let warmed = trial["warm_up_seconds"].as_f64();
                    assert_eq!(warmed.is_some_and(|seconds| seconds >= 0.05), setting.ends_with("warm"), "{trial}");
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
    assert_eq!(ran.stdout.contains("all maps were the kernel's all the same, of: files"), beside, "{}", ran.stdout);
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
        let line =
            format!("programs {line} --memory all --size 1MiB --seconds 0.01 --warm-up 0.01 --ways kernel --dir .");
        run_in(dir.path(), Command::new(FASTMAP).env("PATH", &programs).args(line.split_whitespace()))
    };
    let differs = ["kernel: ripgrep: it read other data than just before: batch 0", "please report it"];
    run("--programs ripgrep --repeat 1").failed_with(1, &differs);
    run("--programs search,fio")
        .failed_with(1, &["no program is there", "search (cc: ", "install gcc", "no fio in PATH", "install fio"]);
    run("--programs sqlite,ripgrep --repeat 1").failed_with(1, &differs);
    assert_eq!(files_in(dir.path()), ["bin"]);
}

/// A program that hangs, here from the moment on when there are results of a run before, costs its own row alone: it is killed with all
/// that it has started, and what was measured is in the file by then and stays.
#[test]
fn a_program_that_hangs_is_killed_and_the_rest_is_kept() {
    let dir = dir();
    let programs = dir.path().join("bin");
    fs::create_dir(&programs).unwrap();
    let rg = programs.join("rg");
    let hangs = "#!/bin/sh\nhere=${0%/bin/rg}\n[ -s $here/out.json ] || { echo 5; exit; }\n\
                 /bin/cp $here/out.json $here/bin/partial.json\n/bin/sleep 1000 &\necho $! > $here/bin/pid\nwait\n";
    make_program(&rg, hangs.as_bytes());
    let line = "programs --programs ripgrep --memory all --size 1MiB --seconds 0.01 --warm-up 0.01 --at-most 5 --repeat 2 --ways kernel \
                --dir . --json out.json";
    let ran = run_in(dir.path(), Command::new(FASTMAP).env("PATH", &programs).args(line.split_whitespace()));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("2 figures are not there: their runs took too long and were killed"), "{}", ran.stderr);
    let note = "ripgrep --mmap, all, warm: kernel, repetition 2: took too long, killed after 5 s";
    assert!(ran.stdout.contains(note), "{}", ran.stdout);
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(dir.path().join(name)).unwrap()).unwrap();
    let (partial, whole) = (read("bin/partial.json"), read("out.json"));
    assert_eq!(partial["notes"][0], "NOT FINISHED: these are 1 of 2 runs.");
    assert!(whole["notes"].as_array().unwrap().iter().all(|note| !note.as_str().unwrap().contains("NOT FINISHED")));
    for (report, late) in [(&partial, 0), (&whole, 1)] {
        let rows = report["results"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "cold and warm: {report}");
        for row in rows {
            assert_eq!(row["trials"].as_array().unwrap().len(), 1, "{row}");
            assert_eq!(row["late"].as_array().map_or(0, Vec::len), late, "{row}");
        }
    }
    assert_eq!(whole["results"][0]["late"][0]["repetition"], 2);
    let pid = fs::read_to_string(programs.join("pid")).unwrap();
    let ended = || fs::read_to_string(format!("/proc/{}/stat", pid.trim())).map_or(true, |stat| stat.contains(") Z "));
    let killed = Instant::now();
    while !ended() {
        assert!(killed.elapsed() < Duration::from_secs(60), "what it has started lives on");
        sleep(Duration::from_millis(10));
    }
    fastmap(dir.path(), "report bin/partial.json out.json -o all.md").succeeded();
}
