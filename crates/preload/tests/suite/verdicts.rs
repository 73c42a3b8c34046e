//! One program, on the kernel and with the library: what calls say, what they do, and which signals come, line by line the same; and
//! every group of these lines is about a mapping that the engine served.

use crate::common;

use std::path::Path;

/// What the program prints; of groups that did not end well it says so.
fn lines(exe: &Path, file: &Path, library: Option<&Path>, variables: &[(&str, &str)]) -> String {
    let output = common::command(exe, library, variables).arg(file).output().expect("timeout");
    common::expect_success("verdicts.c", &output);
    String::from_utf8(output.stdout).expect("text")
}

/// Compares the two, with these of the library's variables.
fn compare(variables: &[(&str, &str)]) {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "verdicts.c", &[]);
    let (file, stats) = (folder.path().join("data"), folder.path().join("stats"));
    let stats = ("FASTMAP_STATS", stats.to_str().expect("a plain path"));
    let kernel = lines(&exe, &file, None, &[]);
    let engine = lines(&exe, &file, Some(common::library()), &[variables, &[stats]].concat());
    assert!(!kernel.contains("ended with status"), "{kernel}");
    assert!(kernel.lines().count() > 700, "{kernel}");
    let differing: Vec<_> = kernel.lines().zip(engine.lines()).filter(|(kernel, engine)| kernel != engine).collect();
    assert!(differing.is_empty() && kernel == engine, "{differing:#?}\n{engine}");
    let texts: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("/stats."))
        .map(|path| std::fs::read_to_string(path).expect("statistics"))
        .collect();
    for group in kernel.lines().filter_map(|line| line.strip_prefix("== ")) {
        let path = format!("\"path\":\"{}.{group}\"", file.display());
        assert!(texts.iter().any(|text| text.contains(&path)), "{group} was not served: {texts:#?}");
    }
}

#[test]
fn in_an_eighth_of_the_file() {
    compare(&[]);
}

#[test]
fn with_room_for_all_of_it() {
    compare(&[("FASTMAP_CACHE", "64MiB")]);
}

#[test]
fn with_stores_that_do_not_wait() {
    compare(&[("FASTMAP_ASYNC_STORES", "1")]);
}
