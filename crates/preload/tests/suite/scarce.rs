//! Each system call of a kind that takes something fails in turn, and then also all that come after it: strace(1) injects the errors. Nothing that was
//! stored is lost, the program does not end, and does not hang. Of each kind every 17th call fails, or every fourth.

use crate::common;
use crate::effort::{quick_or_full, skip};
use std::path::Path;
use std::process::Command;

/// A call, its error, and that all later calls fail as well.
const LACKS: [(&str, &str, bool); 11] = [
    ("mmap", "ENOMEM", false),
    ("mmap", "ENOMEM", true),
    ("mprotect", "ENOMEM", false),
    ("mprotect", "ENOMEM", true),
    ("madvise", "ENOMEM", false),
    ("munmap", "ENOMEM", false),
    ("openat", "EMFILE", true),
    ("clone3", "EAGAIN", true),
    ("userfaultfd", "EMFILE", false),
    ("fcntl", "ENOLCK", false),
    ("io_setup", "EAGAIN", true),
];

/// Runs the program. Returns what it said, and the calls of its first thread.
fn run(folder: &Path, exe: &Path, call: &str, inject: Option<String>) -> (Option<i32>, String, Vec<String>) {
    let (file, calls) = (folder.join("data"), folder.join("calls"));
    std::fs::write(&file, vec![0; 8 << 20]).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "strace", "-f", "-qq", "-e", &format!("trace={call},write"), "-o"]).arg(&calls);
    command.args(inject.map(|what| format!("--inject={what}")));
    command.args(["-E", &format!("LD_PRELOAD={}", common::library().display())]).arg(exe).arg("scarce").arg(&file);
    command.env("FASTMAP_CACHE", "2MiB").env("FASTMAP_OWN", "*").env("FASTMAP_RISK_STORES", "1");
    let output = command.output().expect("timeout");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let calls = std::fs::read_to_string(&calls).unwrap_or_default();
    let first = calls.split(' ').next().unwrap_or_default().to_owned();
    let calls = calls.lines().filter(|line| line.split(' ').next() == Some(&first) && !line.contains(" resumed>"));
    (output.status.code(), said, calls.map(str::to_owned).collect())
}

#[test]
fn each_lack_in_turn() {
    if !common::ready() {
        return;
    }
    if !Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("no strace(1)");
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "scarce.c", &[]);
    for (call, error, goes_on) in LACKS {
        let (status, said, calls) = run(folder.path(), &exe, call, None);
        assert!(status == Some(0) && said.contains("end\n"), "{call}: {status:?}: {said}");
        let is_it = |line: &&String| line.contains(&format!(" {call}("));
        let begin = calls.iter().position(|line| line.contains("begin")).expect("its beginning");
        let (before, all) = (calls[..begin].iter().filter(is_it).count(), calls.iter().filter(is_it).count());
        assert!(all > before, "{call} is not called");
        for number in (before + 1..=all).step_by(quick_or_full(17, 4)) {
            let what = format!("{call}:error={error}:when={number}{}", if goes_on { "+" } else { "" });
            let (status, said, _) = run(folder.path(), &exe, call, Some(what.clone()));
            assert!(status == Some(0) && said.contains("end\n"), "{what}: {status:?}: {said}");
        }
    }
}
