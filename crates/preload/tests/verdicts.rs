//! One program, on the kernel and with the library: what calls say, what they do, and which signals come, line by line the same; and
//! every group of these lines is about a mapping that the engine served.

mod common;

use std::path::Path;

/// What the program prints, and what it says of groups that did not end well.
fn lines(exe: &Path, file: &Path, library: Option<&Path>, stats: &Path) -> String {
    let stats = stats.to_str().expect("a plain path");
    let mut command = common::command(exe, library, &[("FASTMAP_STATS", stats)]);
    let output = command.arg(file).output().expect("timeout");
    common::expect_success("verdicts.c", &output);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_same_on_the_kernel_and_with_the_library() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "verdicts.c", &[]);
    let (file, stats) = (folder.path().join("data"), folder.path().join("stats"));
    let kernel = lines(&exe, &file, None, &stats);
    let engine = lines(&exe, &file, Some(common::library()), &stats);
    assert!(!kernel.contains("ended with status"), "{kernel}");
    assert!(kernel.lines().count() > 600, "{kernel}");
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
        assert!(texts.iter().any(|text| text.contains(&path)), "{group} was served: {texts:#?}");
    }
}
