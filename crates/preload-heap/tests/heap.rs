//! A program's heap in a file: the same answers as in memory, whatever the program does with it.

#[path = "../../preload/tests/suite/common.rs"]
mod common;
#[path = "../../engine/tests/suite/effort.rs"]
mod effort;

use common::{command, compile, expect_success, folder, library, ready};
use effort::skip;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a program with its heap in a file of this folder.
fn on_heap(program: &Path, heap: &Path, cache: &str, arguments: &[&str]) -> Output {
    let heap = heap.to_str().expect("a plain path");
    let stats = format!("{heap}.stats");
    let variables = [("FASTMAP_CACHE", cache), ("FASTMAP_HEAP", heap), ("FASTMAP_STATS", &stats)];
    command(program, Some(library()), &variables).args(arguments).output().expect("timeout")
}

fn in_memory(program: &Path, arguments: &[&str]) -> Output {
    command(program, None, &[]).args(arguments).output().expect("timeout")
}

/// Whether maps work here, and this program can be compiled; otherwise says why a test is skipped.
fn ready_for(program: &str) -> bool {
    if program.ends_with(".cc") && Command::new("c++").arg("--version").output().is_err() {
        skip("no c++");
        return false;
    }
    ready()
}

/// Runs a program in memory and on heaps behind these caches, and compares.
fn compare(name: &str, caches: &[&str]) {
    if !ready_for(name) {
        return;
    }
    let folder = folder();
    let program = compile(folder.path(), name, &[]);
    let right = in_memory(&program, &[]);
    expect_success(&format!("{name} in memory"), &right);
    for cache in caches {
        let heap = folder.path().join("heap");
        let found = on_heap(&program, &heap, cache, &[]);
        expect_success(&format!("{name}, {cache} of cache"), &found);
        assert_eq!(String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&right.stdout), "{name}, {cache}");
        assert!(!heap.exists());
        assert!(counter(folder.path(), "misses") > 0, "{name}: nothing came from the heap");
        remove_stats(folder.path());
    }
}

fn stats_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.to_string_lossy().contains(".stats")).collect()
}

fn remove_stats(folder: &Path) {
    stats_files(folder).into_iter().for_each(|path| fs::remove_file(path).expect("statistics"));
}

/// The largest value of a counter in the statistics that processes left in a folder.
fn counter(folder: &Path, name: &str) -> u64 {
    let of_file = |path| {
        let text = fs::read_to_string(path).expect("statistics");
        let value = text.split_once(&format!("\"{name}\":")).map_or("0", |(_, rest)| rest);
        let digits = value.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(value.len());
        value[..digits].parse::<u64>().expect("a number")
    };
    stats_files(folder).into_iter().map(of_file).max().unwrap_or(0)
}

#[test]
fn every_function_of_the_family() {
    compare("heap_calls.c", &["2MiB"]);
}

#[test]
fn threads_and_what_they_wait_at() {
    compare("heap_threads.c", &["4MiB", "1MiB"]);
}

#[test]
fn coroutines_threads_and_signals_on_stacks_of_the_heap() {
    compare("heap_coroutines.c", &["4MiB", "1MiB"]);
}

#[test]
fn children_have_the_heap_as_it_was() {
    compare("heap_children.c", &["1MiB"]);
}

/// `--direct always`: what FastMap is compared with.
#[test]
fn the_kernel_can_have_the_heap() {
    if !ready() {
        return;
    }
    let folder = folder();
    for name in ["heap_calls.c", "heap_threads.c", "heap_children.c"] {
        let program = compile(folder.path(), name, &[]);
        let right = in_memory(&program, &[]);
        expect_success(&format!("{name} in memory"), &right);
        let heap = folder.path().join("heap");
        let variables =
            [("FASTMAP_CACHE", "1MiB"), ("FASTMAP_HEAP", heap.to_str().unwrap()), ("FASTMAP_DIRECT", "always")];
        let found = command(&program, Some(library()), &variables).output().expect("timeout");
        expect_success(&format!("{name}, the heap mapped by the kernel"), &found);
        assert_eq!(String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&right.stdout), "{name}");
    }
}

#[test]
fn large_private_mappings() {
    compare("heap_mappings.c", &["2MiB"]);
}

#[test]
fn trees_and_tables_in_a_tenth_of_their_memory() {
    compare("heap_tables.cc", &["1MiB"]);
}

#[test]
fn nothing_is_written_while_there_is_room() {
    if !ready_for("heap_tables.cc") {
        return;
    }
    let folder = folder();
    let program = compile(folder.path(), "heap_tables.cc", &[]);
    let output = on_heap(&program, &folder.path().join("heap"), "128MiB", &["20000"]);
    expect_success("tables", &output);
    assert!(counter(folder.path(), "born_zero") > 0);
    assert_eq!(counter(folder.path(), "writeback_pages"), 0, "the heap was saved at exit");
}

#[test]
fn a_heap_that_is_full_says_so() {
    if !ready() {
        return;
    }
    let folder = folder();
    let program = compile(folder.path(), "heap_full.c", &[]);
    let heap = folder.path().join("heap:16MiB");
    expect_success("full", &on_heap(&program, &heap, "2MiB", &[]));
}

#[test]
fn programs_of_the_system() {
    if !ready() {
        return;
    }
    let folder = folder();
    let text = folder.path().join("text");
    let lines = (0..100_000u64).map(|line| format!("{:x} {line}\n", line.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    fs::write(&text, lines.collect::<String>()).expect("a small file");
    let heap = folder.path().join("heap");
    let text = text.to_str().expect("a plain path");
    // A shell, which makes children, and sort, which has threads and reads into what it allocates.
    for (program, arguments) in
        [("/bin/sh", ["-c", "echo a; (echo b; ls -A / | wc -l) | cat", ""]), ("/usr/bin/sort", ["-S", "16M", text])]
    {
        let program = Path::new(program);
        let found = on_heap(program, &heap, "2MiB", &arguments);
        expect_success(&program.display().to_string(), &found);
        assert!(found.stdout == in_memory(program, &arguments).stdout, "{}", program.display());
    }
}

#[test]
fn the_file_has_no_name() {
    if !ready() {
        return;
    }
    let folder = folder();
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).expect("a folder");
    let heap = inside.join("heap").display().to_string();
    let variables = [("FASTMAP_HEAP", heap.as_str())];
    let mut list = command(Path::new("/bin/ls"), Some(library()), &variables);
    let output = list.arg("-A").arg(&inside).output().expect("timeout");
    expect_success("ls", &output);
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn bad_heaps_are_refused() {
    if !ready() {
        return;
    }
    let folder = folder();
    let (kept, memory) = (folder.path().join("kept"), Path::new("/dev/shm"));
    fs::write(&kept, "somebody's").expect("a small file");
    let at = |path: &Path| path.display().to_string();
    let mut cases = vec![
        (at(&kept), "exists, with 10 bytes"),
        (at(folder.path()), "is a folder"),
        (at(&folder.path().join("no/heap")), "No such file"),
        (at(&folder.path().join("heap:1000TiB")), "does not fit"),
        (at(&folder.path().join("heap:4096")), "too small"),
    ];
    if memory.is_dir() {
        cases.push((at(&memory.join("fastmap-test-heap")), "disk"));
    }
    for (heap, expected) in cases {
        let variables = [("FASTMAP_HEAP", heap.as_str())];
        let output = command(Path::new("/bin/true"), Some(library()), &variables).output().expect("timeout");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{heap}: {said}");
        assert!(
            said.starts_with("fastmap: ") && said.contains(expected) && said.lines().count() == 1,
            "{heap}: {said}"
        );
    }
    assert_eq!(fs::read(&kept).expect("still there"), b"somebody's");
}

#[test]
fn a_file_system_that_others_fill_loses_nothing() {
    if !ready() {
        return;
    }
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root mounts a small disk");
    }
    let folder = folder();
    let (image, disk) = (folder.path().join("image"), folder.path().join("disk"));
    fs::create_dir(&disk).expect("a folder");
    fs::File::create(&image).expect("a file").set_len(40 << 20).expect("a sparse file");
    let run =
        |program: &str, arguments: &[&str]| Command::new(program).args(arguments).status().is_ok_and(|it| it.success());
    let (image, disk_path) = (image.to_str().expect("a plain path"), disk.to_str().expect("a plain path"));
    if !run("mkfs.ext4", &["-qF", image]) || !run("mount", &["-o", "loop", image, disk_path]) {
        return skip("no mkfs.ext4, or no loop device");
    }
    let program = compile(folder.path(), "heap_full.c", &[]);
    let alone = on_heap(&program, &disk.join("heap"), "2MiB", &[]);
    remove_stats(&disk);
    fs::write(disk.join("others"), vec![1; 20 << 20]).expect("room for others");
    let beside = on_heap(&program, &disk.join("heap"), "2MiB", &[]);
    // The keeper lets go of what its program had open a moment after that has ended, and the kernel of a ring.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !run("umount", &[disk_path]) {
        assert!(std::time::Instant::now() < deadline, "the disk is in use");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    expect_success("alone", &alone);
    expect_success("beside others", &beside);
}

/// The kernel could lose what it reads into a page that leaves meanwhile: programs fall back to read(2) and write(2).
#[test]
fn asynchronous_io_is_refused() {
    if !ready() {
        return;
    }
    let folder = folder();
    let program = compile(folder.path(), "heap_async_io.c", &["-ldl"]);
    let found = on_heap(&program, &folder.path().join("heap"), "2MiB", &[]);
    expect_success("heap_async_io.c", &found);
    let said = String::from_utf8_lossy(&found.stderr);
    assert_eq!(said.matches("io_uring and Linux AIO are refused").count(), 1, "{said}");
    assert_eq!(found.stdout, b"refused\n");
}
