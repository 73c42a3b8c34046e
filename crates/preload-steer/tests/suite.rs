//! `libfastmap_steer.so` in programs: what they see of it, and what it does where memory is short.

#[path = "../../engine/tests/suite/effort.rs"]
mod effort;
#[path = "../../preload/tests/suite/group.rs"]
mod group;
#[path = "../../preload/tests/suite/library.rs"]
mod library;

use effort::skip;
use fastmap_steer::Settings;
use fastmap_steer::attach::Party;
use fastmap_steer::observe::Process;
use group::Group;
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

const PAGE: usize = 4096;
/// Of the memory group; a file has five times as much.
const MEMORY: usize = 32 << 20;

fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| library::built(env!("CARGO_PKG_NAME"), "libfastmap_steer.so"))
}

/// Compiles the program, with more flags of the compiler.
fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let program = folder().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/steered.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]).args(flags).arg("-o").arg(&program).arg(source);
    assert!(compiler.status().expect("a compiler for C").success());
    program
}

/// For programs.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build directory");
    FOLDER.get_or_init(made).path()
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("steered", &[]))
}

/// A file each of whose pages begins with its number. None of it is in memory: what is would belong to another group.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file in the build directory");
    let mut out = BufWriter::new(file.as_file());
    let mut page = [0; PAGE];
    for number in 0..5 * MEMORY / PAGE {
        page[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        out.write_all(&page).expect("room on the disk");
    }
    drop(out);
    file.as_file().sync_all().expect("a disk");
    // SAFETY: no memory is handed over.
    unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file
}

/// Runs a case, in a memory group if there is one, and expects that it passes.
fn run(case: &str, group: Option<&Group>) -> Output {
    run_program(program(), case, group)
}

fn run_program(program: &Path, case: &str, group: Option<&Group>) -> Output {
    let file = file();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "600", "sh", "-c"]);
    command.arg("[ -z \"$GROUP\" ] || echo $$ >\"$GROUP/cgroup.procs\" || exit 99; export LD_PRELOAD=\"$1\"; shift; exec \"$@\"");
    command.arg("sh").arg(library()).arg(program).arg(case).arg(file.path());
    command.env("GROUP", group.map_or(Path::new(""), |group| &group.0)).env("FASTMAP_LOG", "steer");
    if case == "overridden" {
        command.env("FASTMAP_STEER_OVERRIDE", "1");
    }
    let output = command.output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {}: {said}", output.status);
    output
}

fn in_group(case: &str, memory: usize) -> Option<String> {
    match Group::new(memory) {
        Ok(group) => Some(String::from_utf8_lossy(&run(case, Some(&group)).stderr).into_owned()),
        Err(why) => {
            skip(why);
            None
        }
    }
}

#[test]
fn the_library_reads_no_folder_by_the_c_library() {
    // Which takes memory by malloc(3), whose locks are free in a program that the C library takes for one of a single thread.
    let bytes = std::fs::read(library()).expect("the library");
    for name in ["opendir", "readdir64", "closedir"] {
        let name = [b"\0", name.as_bytes(), b"\0"].concat();
        assert!(!bytes.windows(name.len()).any(|part| part == name), "{}", String::from_utf8_lossy(&name));
    }
}

#[test]
fn a_program_that_maps_nothing_has_no_thread() {
    assert!(run("small", None).stderr.is_empty());
}

#[test]
fn one_that_has_memory_for_all_that_it_maps_has_none() {
    assert!(run("small_map", None).stderr.is_empty());
}

#[test]
fn one_that_maps_a_large_file_sees_nothing_of_it_but_a_thread() {
    let Some(said) = in_group("watched", MEMORY) else { return };
    assert_eq!(said, "");
}

/// Runs a case in a memory group, in a static program that a party steers from outside.
fn from_outside(case: &str) {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("static", &["-static"]));
    let group = match Group::new(MEMORY) {
        Ok(group) => group,
        Err(why) => return skip(why),
    };
    let file = file();
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >\"$0/cgroup.procs\" || exit 99; exec \"$@\""]).arg(&group.0);
    let mut child = command.arg(program).arg(case).arg(file.path()).spawn().expect("a shell");
    let process = Process::of(child.id()).expect("a child");
    let mut party = Party::new(Settings::default());
    // Its stops are no ends: wait(2) would see them, too.
    while process.is_there() {
        let refused = party.watch(&BTreeSet::from([process]));
        assert!(refused.iter().all(|(process, _)| !process.is_there()), "{refused:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(party);
    assert!(child.wait().expect("a child").success(), "{case}");
}

#[test]
fn touches_at_random_are_advised_from_outside() {
    from_outside("random");
}

#[test]
fn a_walk_backward_is_advised_from_outside() {
    from_outside("backward");
}

#[test]
fn programs_with_a_sanitizer_run_as_they_are() {
    for kind in ["address", "thread", "undefined"] {
        let program = compile(kind, &[&format!("-fsanitize={kind}")]);
        let group = match Group::new(8 * MEMORY) {
            Ok(group) => group,
            Err(why) => return skip(why),
        };
        // ThreadSanitizer and the watcher would share what is the main thread's.
        let is_watched = kind != "thread";
        let ran = run_program(&program, if is_watched { "mapped" } else { "touched" }, Some(&group));
        let said = String::from_utf8_lossy(&ran.stderr);
        let told =
            said.matches("fastmap: no thread of its own steers it, since it is built with ThreadSanitizer\n").count();
        assert_eq!(told, usize::from(!is_watched), "{said}");
    }
}

#[test]
fn the_thread_ends_when_the_program_gives_up_rights() {
    // Who may make a group is root, and has rights to give up.
    in_group("rights", MEMORY);
}

#[test]
fn touches_at_random_are_advised_and_a_walk_ends_that() {
    let Some(said) = in_group("random", MEMORY) else { return };
    assert!(said.starts_with("fastmap: random at ") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_private_mapping_that_may_be_stored_to_is_advised_too() {
    in_group("private", MEMORY);
}

#[test]
fn a_walk_forward_is_never_advised_random() {
    in_group("walk", MEMORY);
}

#[test]
fn a_walk_backward_is_read_in_blocks() {
    let Some(said) = in_group("backward", MEMORY) else { return };
    assert!(said.contains("a walk backward, read in pieces"), "{said}");
}

#[test]
fn a_part_of_a_loop_is_kept() {
    in_group("loop", 3 * MEMORY);
}

#[test]
fn wrong_advice_of_the_programs_is_undone_where_that_is_allowed() {
    in_group("overridden", MEMORY);
}

#[test]
fn the_programs_own_advice_wins() {
    let Some(said) = in_group("own_advice", MEMORY) else { return };
    assert_eq!(said, "");
}
