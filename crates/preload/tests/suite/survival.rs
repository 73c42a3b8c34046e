//! What ends the keeper together with the program: the OOM killer of a memory group, and the end of a PID namespace. As with mmap(2)
//! nothing that was stored is lost, since the kernel maps what is writable there, and that is said.

use crate::common;
use crate::effort::{quick_or_full, skip};
use crate::group::Group;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PAGE: usize = 4096;
const PAGES: usize = (8 << 20) / PAGE;

/// The program with the library and without what the tests risk elsewhere; `before`: words of a command that runs it.
fn started(before: &[&str], program: &Path, case: &str, file: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let library = format!("LD_PRELOAD={}", common::library().display());
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).args(["env", &library]).arg(program).arg(case).arg(file);
    command.env("FASTMAP_CACHE", "32MiB").env("FASTMAP_OWN", "*").env_remove("FASTMAP_RISK_STORES");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    (child, out)
}

/// Waits until the program says that it has stored.
fn await_stored(out: &mut BufReader<std::process::ChildStdout>, child: &mut Child) {
    let mut line = String::new();
    out.read_line(&mut line).expect("a pipe");
    if line != "stored\n" {
        let mut why = String::new();
        let _ = child.stderr.take().expect("a pipe").read_to_string(&mut why);
        panic!("{line}{why}");
    }
}

/// How many of the stores are not in the file.
fn lost_in(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("the file");
    (0..PAGES).filter(|page| bytes[page * PAGE + 1] != (page % 255 + 1) as u8).count()
}

/// What is in the file, and what was said, once all that had the pipes are gone.
fn check(mut child: Child, file: &Path, why: &str) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    let _ = child.wait();
    assert_eq!(lost_in(file), 0, "of {PAGES} stores: {said}");
    let lines: Vec<_> = said.lines().filter(|line| line.contains("--risk-stores")).collect();
    assert!(lines.len() == 1 && lines[0].contains(why), "{said}");
}

#[test]
fn the_oom_killer_of_a_group_loses_nothing() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "survive.c", &[]);
    for round in 0..quick_or_full(2, 20) {
        let group = match Group::new(64 << 20) {
            Ok(group) => group,
            Err(why) => return skip(why),
        };
        let file = folder.path().join(format!("data{round}"));
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
        let (mut child, mut out) = started(&["sh", "-c", &join, "sh"], &program, "takes_memory", &file);
        await_stored(&mut out, &mut child);
        check(child, &file, "has a limit of 64 MiB");
    }
}

#[test]
fn the_end_of_a_namespace_loses_nothing() {
    if !common::ready() {
        return;
    }
    if !Command::new("unshare").args(["-pf", "--mount-proc", "true"]).status().is_ok_and(|status| status.success()) {
        return skip("no PID namespace (unshare)");
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "survive.c", &[]);
    let cases = [
        ("waits", "exec \"$@\"", "the first process of a PID namespace"),
        ("waits", "\"$@\" & wait", "in a PID namespace"),
        ("opens_later", "\"$@\" & wait", "in a PID namespace"),
    ];
    for round in 0..quick_or_full(3, 21) {
        let (case, script, why) = cases[round % cases.len()];
        let file = folder.path().join(format!("data{round}"));
        let before = ["unshare", "-pf", "--mount-proc", "sh", "-c", script, "sh"];
        let (mut child, mut out) = started(&before, &program, case, &file);
        await_stored(&mut out, &mut child);
        let own = child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).expect("proc(5)");
        let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("the first process");
        // SAFETY: the first process of the namespace made here, which its parent has not waited for.
        assert_eq!(unsafe { libc::kill(first, libc::SIGKILL) }, 0);
        check(child, &file, why);
    }
}

/// Where there may be a group beside the program's, the keeper lives there: cgroup.kill does not end it.
#[test]
fn a_kill_of_the_whole_group_loses_nothing() {
    if !common::ready() {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
    let Some(root) = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4))
    else {
        return skip("no control groups of version 2");
    };
    let parent = Path::new(root).join(format!("fastmap-test-{}", std::process::id()));
    let group = parent.join("program");
    if let Err(why) = std::fs::create_dir(&parent).and_then(|()| std::fs::create_dir(&group)) {
        return skip(format!("{}: {why}", parent.display()));
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "survive.c", &[]);
    let file = folder.path().join("data");
    let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.display());
    let (mut child, mut out) = started(&["sh", "-c", &join, "sh"], &program, "waits", &file);
    await_stored(&mut out, &mut child);
    std::fs::write(group.join("cgroup.kill"), "1").expect("a kill");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    let _ = child.wait();
    let lost = lost_in(&file);
    let groups = [group, parent.join("fastmap-keepers"), parent];
    // The keeper is gone when its descriptors are, and from its group a moment later.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    for group in groups {
        while std::fs::remove_dir(&group).is_err() {
            assert!(std::time::Instant::now() < deadline, "{}: {said}", group.display());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    assert_eq!(lost, 0, "of {PAGES} stores: {said}");
    assert!(said.contains("(--own)") && !said.contains("--write-within"), "{said}");
}
