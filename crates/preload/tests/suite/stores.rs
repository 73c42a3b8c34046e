//! Stores that do not wait (`FASTMAP_ASYNC_STORES`): an unchanged program leaves the same bytes in its file, and loads the same on
//! the way, as on the kernel's maps. `programs/stores.c` has the stores.

use crate::common;

/// Runs one case on the kernel's map, and on the engine's with a cache of 64 pages, with stores that are kept and without.
fn same_bytes(case: &str) {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "stores.c", &["-msse4.2"]);
    let run = |name: &str, variables: Option<&[(&str, &str)]>| {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).expect("a folder");
        let stats = place.join("stats");
        let given = [variables.unwrap_or(&[]), &[("FASTMAP_STATS", stats.to_str().expect("a plain path"))]].concat();
        let mut command = common::command(&program, variables.map(|_| common::library()), &given);
        command.arg(case).arg(place.join("data"));
        common::expect_success(&format!("{case}, {name}"), &command.output().expect("timeout"));
        let bytes = |file: &str| std::fs::read(place.join(file)).expect("what the program left");
        let statistics: String = std::fs::read_dir(&place)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.to_string_lossy().contains("/stats."))
            .map(|path| std::fs::read_to_string(path).expect("statistics"))
            .collect();
        (bytes("data"), bytes("data.loaded"), statistics)
    };
    let (expected, loaded, _) = run("kernel", None);
    const SMALL: (&str, &str) = ("FASTMAP_CACHE", "256KiB");
    let (file, seen, statistics) = run("kept", Some(&[SMALL, ("FASTMAP_ASYNC_STORES", "1")]));
    assert!(file == expected && seen == loaded, "{case}: not what the kernel makes of it");
    let kept: Vec<u64> = statistics
        .split("\"kept_stores\":")
        .skip(1)
        .filter_map(|rest| rest.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok())
        .collect();
    assert!(kept.iter().sum::<u64>() > 0, "{case}: no store was kept: {statistics}");
    let (file, seen, statistics) = run("waiting", Some(&[SMALL]));
    assert!(file == expected && seen == loaded, "{case}: not what the kernel makes of it");
    assert!(statistics.contains("\"kept_stores\":0"), "{statistics}");
}

#[test]
fn one_thread() {
    same_bytes("one_thread");
}

#[test]
fn four_threads() {
    same_bytes("four_threads");
}

#[test]
fn children_and_calls() {
    same_bytes("children_and_calls");
}
