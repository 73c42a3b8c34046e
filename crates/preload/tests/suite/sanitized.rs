//! Programs that are built with a sanitizer run as without the library; what is wrong in them is found, and nothing else.

use crate::common;
use crate::effort::skip;
use std::process::{Command, Output};

/// Whether the compiler has the runtime of a sanitizer; where tests must not be left out it has.
fn has(sanitizer: &str) -> bool {
    let folder = common::folder();
    let source = folder.path().join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let built = Command::new("cc")
        .arg(format!("-fsanitize={sanitizer}"))
        .arg("-o")
        .arg(folder.path().join("empty"))
        .arg(source)
        .output();
    let built = built.expect("a compiler for C");
    if built.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "-fsanitize={sanitizer}: {why}");
    skip(format!("the compiler builds nothing with -fsanitize={sanitizer}: {why}"));
    false
}

fn run(sanitizer: &str, case: &str) -> Output {
    let folder = common::folder();
    let exe = common::compile(folder.path(), "sanitized.c", &[&format!("-fsanitize={sanitizer}"), "-g"]);
    let mut command = common::command(&exe, Some(common::library()), &[]);
    command.env_remove("ASAN_OPTIONS").env_remove("LSAN_OPTIONS").env_remove("TSAN_OPTIONS");
    command.arg(case).arg(folder.path().join("data")).output().expect("timeout")
}

/// It ends well, and nothing is said; and each error of the program's own is found, alone.
fn finds(sanitizer: &str, errors: &[(&str, &str)]) {
    if !common::ready() || !has(sanitizer) {
        return;
    }
    let output = run(sanitizer, "works");
    common::expect_success(sanitizer, &output);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!((text(&output.stdout), common::said(&output)), ("sum right\n".into(), Vec::new()), "{sanitizer}");
    for (case, report) in errors {
        let output = run(sanitizer, case);
        let said = text(&output.stderr);
        let summaries = said.lines().filter(|line| line.starts_with("SUMMARY: ")).collect::<Vec<_>>();
        assert!(!output.status.success() && text(&output.stdout) == "sum right\n", "{sanitizer} {case}: {said}");
        assert!(
            !summaries.is_empty() && summaries.iter().all(|line| line.contains(report)),
            "{sanitizer} {case}: {said}"
        );
    }
}

#[test]
fn address() {
    finds("address", &[("leaks", "12345 byte(s) leaked in 1 allocation(s)"), ("overflows", "heap-buffer-overflow")]);
}

#[test]
fn leak() {
    finds("leak", &[("leaks", "12345 byte(s) leaked in 1 allocation(s)")]);
}

#[test]
fn thread() {
    finds("thread", &[("races", "data race")]);
}

#[test]
fn undefined() {
    finds("undefined", &[]);
}
