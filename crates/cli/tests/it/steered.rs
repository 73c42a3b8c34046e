//! What `fastmap run` does for a program where memory is short: `steered.c` in a memory group, on a disk in memory.

#[path = "../../../engine/tests/suite/effort.rs"]
mod effort;
#[path = "../../../engine/tests/suite/loops.rs"]
mod loops;

use self::loops::{Ext4, run as run_command};
use std::ffi::OsStr;
use std::io::Write;
use std::process::Command;

use crate::FASTMAP;
use crate::group;
use crate::prompt::{make_program, run_in};
use crate::terminal::gcc;

const PAGE: usize = 4096;
/// Of the memory group; a file has five times as much.
const MEMORY: usize = 32 << 20;

/// A disk in memory: how busy this machine's disk is changes nothing here. It has a readahead of 128 KiB. It is mounted for the calling thread
/// and its children alone, so it goes with them, whatever ends the test.
fn disk() -> Result<Ext4, String> {
    // SAFETY: the calling thread gets mounts of its own.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("unshare: {}", std::io::Error::last_os_error()));
    }
    run_command("mount", &["--make-rprivate", "/"].map(OsStr::new))?;
    let folder = |within: &str| tempfile::tempdir_in(within).map_err(|error| format!("{within}: {error}"));
    let disk = Ext4::new(folder("/dev/shm")?, folder("/var/tmp")?, 8 * MEMORY as u64, &[])?;
    let device = disk.device.file_name().unwrap().to_string_lossy();
    let readahead = format!("/sys/block/{device}/queue/read_ahead_kb");
    std::fs::write(&readahead, "128").map_err(|error| format!("{readahead}: {error}"))?;
    Ok(disk)
}

/// Runs a case under `fastmap run OPTIONS`, expects that it passes, and returns what was said. `None` where no group or disk can be made.
fn run(case: &str, memory: usize, options: &[&str]) -> Option<String> {
    run_as(&[], case, memory, options)
}

/// Likewise; `before` are words before the command, which lies beside `yama.so`.
fn run_as(before: &[&str], case: &str, memory: usize, options: &[&str]) -> Option<String> {
    let group = group::Group::new(memory).map_err(effort::skip).ok()?;
    let disk = disk().map_err(effort::skip).ok()?;
    let file = |name: &str| disk.path(name).to_str().unwrap().to_owned();
    let source = |name: &str| format!("{}/tests/it/{name}", env!("CARGO_MANIFEST_DIR"));
    gcc(&["-O1", "-Wall", "-Werror", "-o", &file("steered"), &source("steered.c")]);
    let fastmap = if before.is_empty() { FASTMAP } else { &file("fastmap") };
    if !before.is_empty() {
        gcc(&["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", &file("yama.so"), &source("yama.c")]);
        // The user that it becomes may have no access to the folder of the build.
        make_program(fastmap.as_ref(), &std::fs::read(FASTMAP).unwrap());
    }
    let mut bytes = vec![0; 5 * MEMORY];
    for (number, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        page[..8].copy_from_slice(&number.to_ne_bytes());
    }
    let mut written = std::fs::File::create_new(file("file")).unwrap();
    written.write_all(&bytes).unwrap();
    written.sync_all().unwrap();
    // What is in memory already belongs to another group.
    // SAFETY: no memory is handed over.
    unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&written), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "600", "sh", "-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]);
    command.arg(&group.0).args(before).args([fastmap, "run"]).args(options).args([
        "--",
        &file("steered"),
        case,
        &file("file"),
    ]);
    let ran = run_in("/".as_ref(), command.env("FASTMAP_LOG", "steer"));
    assert_eq!(ran.status, Some(0), "{case}: {}", ran.stderr);
    Some(ran.stderr)
}

#[test]
fn touches_at_random_are_advised_and_a_walk_ends_that() {
    let Some(said) = run("random", MEMORY, &[]) else { return };
    assert!(said.contains("random at "), "{said}");
}

#[test]
fn a_private_mapping_that_may_be_stored_to_is_advised_too() {
    run("private", MEMORY, &[]);
}

#[test]
fn a_child_made_by_fork_is_steered_too() {
    run("child", MEMORY, &[]);
}

#[test]
fn a_walk_forward_is_never_advised_random() {
    run("walk", MEMORY, &[]);
}

#[test]
fn a_walk_backward_is_read_ahead_of() {
    let Some(said) = run("backward", MEMORY, &[]) else { return };
    assert!(said.contains("backward"), "{said}");
}

#[test]
fn a_part_of_a_loop_is_kept() {
    run("loop", 3 * MEMORY, &[]);
}

#[test]
fn wrong_advice_of_the_programs_is_undone_where_that_is_allowed() {
    run("overridden", MEMORY, &["--override"]);
}

#[test]
fn the_programs_own_advice_wins() {
    let Some(said) = run("own_advice", MEMORY, &[]) else { return };
    assert!(!said.contains("random at "), "{said}");
}

#[test]
fn advice_of_the_programs_that_comes_later_wins_too() {
    run("later_advice", MEMORY, &[]);
}

#[test]
fn advice_is_found_again_in_children_and_where_a_mapping_has_moved() {
    run("inherited", MEMORY, &[]);
    run("moved", MEMORY, &[]);
}

#[test]
fn parts_of_a_file_that_may_become_one_are_left_alone() {
    run("grown", MEMORY, &[]);
}

/// Yama is not in every kernel: a stand-in refuses what it would.
#[test]
fn where_only_ancestors_may_trace_the_program_and_its_children_are_steered() {
    let yama = "mount -t tmpfs none /proc/sys/kernel && cd /proc/sys/kernel && mkdir yama && echo 1 >yama/ptrace_scope && cd / &&
        exec setpriv --reuid=65533 --regid=65533 --clear-groups -- env LD_PRELOAD=${1%/*}/yama.so \"$@\"";
    let before = ["unshare", "-m", "sh", "-c", yama, "yama"];
    for case in ["random", "child"] {
        run_as(&before, case, MEMORY, &[]);
    }
    let Some(said) = run_as(&before, "left", MEMORY, &[]) else { return };
    // Where its parent has ended, a process has no ancestor that could do it.
    assert!(said.contains("taken back") || said.contains("left behind") && said.contains("stays on"), "{said}");
}
