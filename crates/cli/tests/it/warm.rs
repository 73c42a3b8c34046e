//! `fastmap warm` and `fastmap run --warm`: what was in memory is remembered, and is there again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::prompt::{Ran, dir, files_in, finish, is_root, run_in, skipped};
use crate::terminal::{c_library, gcc};
use serde_json::Value;

const PAGES: usize = 4096;
const PAGE: usize = 4096;

/// A folder with a file of 16 MiB, and one for records: where tests run as root, the first may be in another user's.
struct Place {
    dir: tempfile::TempDir,
    cache: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    /// `None`, with the reason printed, where tests lie in memory.
    fn new() -> Option<Place> {
        let dir = dir();
        let path = dir.path().canonicalize().unwrap().join("data");
        let mut file = File::create(&path).unwrap();
        file.write_all(&(0..PAGES * PAGE).map(|at| (at / PAGE * 7 + at) as u8).collect::<Vec<_>>()).unwrap();
        file.sync_all().unwrap();
        let place = Place { dir, cache: tempfile::tempdir().unwrap(), path };
        let ran = place.warm("save data");
        if ran.stderr.contains("memory") {
            skipped("the build lies in memory");
            return None;
        }
        Some(place)
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FASTMAP);
        for variable in ["CACHE", "MAP", "HEAP", "FAULTS", "STATS", "LOG"] {
            command.env_remove(format!("FASTMAP_{variable}"));
        }
        command.args(words).env_remove("LD_PRELOAD").env("XDG_CACHE_HOME", self.cache());
        command
    }

    /// `fastmap warm LINE`.
    fn warm(&self, line: &str) -> Ran {
        run_in(self.path(), self.command(&["warm"]).args(line.split_whitespace()))
    }

    fn shown(&self) -> Value {
        let ran = self.warm("show --json");
        ran.succeeded();
        serde_json::from_str(&ran.stdout).unwrap()
    }

    fn records(&self) -> PathBuf {
        self.cache().join("fastmap/warm")
    }

    fn cache(&self) -> PathBuf {
        self.cache.path().canonicalize().unwrap().join("cache")
    }

    /// Pages of the file that are in memory.
    fn present(&self) -> usize {
        let file = File::open(&self.path).unwrap();
        let mut said = vec![0u8; PAGES];
        // SAFETY: a fresh mapping that nobody touches; the kernel writes a byte a page.
        unsafe {
            let length = PAGES * PAGE;
            let here = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(here, libc::MAP_FAILED);
            assert_eq!(libc::mincore(here, length, said.as_mut_ptr()), 0);
            libc::munmap(here, length);
        }
        said.iter().filter(|byte| **byte & 1 != 0).count()
    }

    /// Has nothing of the file in memory.
    fn drop_pages(&self) {
        let file = File::open(&self.path).unwrap();
        until("the pages go", || {
            // SAFETY: numbers only.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            self.present() == 0
        });
    }

    /// A program that maps the file, and reads all of it for each line that it is given.
    fn program(&self) -> PathBuf {
        let (source, program) = (self.path().join("program.c"), self.path().join("program"));
        let text = r#"
            #include <fcntl.h>
            #include <stdio.h>
            #include <sys/mman.h>
            int main(int count, char **words) {
                const unsigned char *map = mmap(0, 16 << 20, PROT_READ, MAP_SHARED, open(words[1], O_RDONLY), 0);
                char line[16];
                while (fgets(line, sizeof line, stdin)) {
                    unsigned long sum = 0;
                    for (long at = 0; at < 16 << 20; at += 4096) sum = sum * 31 + map[at];
                    printf("%lu\n", sum);
                    fflush(stdout);
                }
                return 0;
            }"#;
        fs::write(&source, text).unwrap();
        gcc(&["-o", program.to_str().unwrap(), source.to_str().unwrap()]);
        c_library(&self.path().join("libtest.so"), "");
        program
    }

    /// Starts that program under `fastmap run --warm`. Where it `logs`, the process beside it keeps standard error open until it ends.
    fn start(&self, logs: bool) -> Child {
        let mut command = self.command(&["run", "--warm", "--", "./program", "data"]);
        command.env("FASTMAP_PRELOAD", self.path().join("libtest.so")).current_dir(self.path());
        if logs {
            command.env("FASTMAP_LOG", "steer");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Has the program read the file; what it says.
fn read(child: &mut Child) -> String {
    child.stdin.as_mut().unwrap().write_all(b"read\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// Has the program end.
fn end(mut child: Child) -> Ran {
    drop(child.stdin.take());
    finish(child)
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within 90 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_was_in_memory_is_there_again() {
    let Some(place) = Place::new() else { return };
    fs::read(&place.path).unwrap();
    let ran = place.warm("save data");
    ran.succeeded();
    assert_eq!(ran.stdout, "data: 16.0M of 16.0M in memory\n");
    let shown = place.shown();
    let file = &shown["files"][0];
    assert_eq!((&file["path"], &file["state"]), (&place.path.to_str().unwrap().into(), &"ok".into()));
    assert_eq!((&file["length_bytes"], &file["remembered_bytes"]), (&(16 << 20).into(), &(16 << 20).into()));
    assert!(shown["used_bytes"].as_u64().unwrap() > 0 && file["runs"].as_u64().unwrap() >= 1, "{shown}");
    place.drop_pages();
    let ran = place.warm("load data");
    ran.succeeded();
    assert!(ran.stdout.starts_with("1 file: 16.0M read back in "), "{}", ran.stdout);
    // Others may take the memory meanwhile.
    until("all is in memory", || {
        place.present() == PAGES || {
            place.warm("load data").succeeded();
            false
        }
    });
    let ran = place.warm("show data");
    let words: Vec<_> = ran.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(words[0], ["FILE", "LENGTH", "REMEMBERED", "HOT", "RUNS", "SAVED", "STATE"]);
    assert_eq!((words[1][1], words[1][2], words[1].last()), ("16.0M", "16.0M", Some(&"ok")));
    assert!(ran.stdout.lines().last().unwrap().contains(" of at most 64.0M in "), "{}", ran.stdout);
}

#[test]
fn what_is_of_no_use_is_ignored_and_shown() {
    let Some(place) = Place::new() else { return };
    File::options().append(true).open(&place.path).unwrap().write_all(b"more").unwrap();
    place.warm("load data").failed_with(1, &["data: it has changed", "fastmap warm save"]);
    assert_eq!(place.shown()["files"][0]["state"], "changed");
    let record = place.records().join(&files_in(&place.records())[0]);
    fs::write(&record, "no record").unwrap();
    place.warm("load data").failed_with(1, &["data: its record is damaged", "fastmap warm save"]);
    let shown = place.shown();
    assert_eq!((&shown["files"], shown["damaged"].as_array().unwrap().len()), (&Value::Array(vec![]), 1));
    assert!(shown["damaged"][0]["path"].as_str().unwrap().ends_with(".pages"), "{shown}");
    let ran = place.warm("show data");
    ran.succeeded();
    assert!(ran.stdout.lines().nth(1).unwrap().ends_with("damaged"), "{}", ran.stdout);
    place.warm("save data").succeeded();
    fs::remove_file(&place.path).unwrap();
    assert_eq!(place.shown()["files"][0]["state"], "gone");
    place.warm("load data").failed_with(1, &["data: No such file"]);
}

#[test]
fn what_cannot_be_is_told() {
    let Some(place) = Place::new() else { return };
    place.warm("save none").failed_with(1, &["none: No such file", "name a file"]);
    place.warm("save .").failed_with(1, &[".: is not a regular file", "name a file"]);
    fs::write(place.path().join("other"), "x").unwrap();
    place.warm("load other").failed_with(1, &["other: nothing is remembered", "fastmap warm save"]);
    assert_eq!(place.warm("show other").status, Some(1));
    // The others are done all the same.
    let ran = place.warm("save none data");
    assert_eq!((ran.status, ran.stdout.starts_with("data: ")), (Some(1), true), "{}", ran.stderr);
    for line in ["save", "load", "keep data"] {
        assert_eq!(place.warm(line).status, Some(2), "{line}");
    }
    fs::remove_dir_all(place.cache()).unwrap();
    fs::write(place.cache(), "no folder").unwrap();
    place.warm("save data").failed_with(1, &["data: ", "Not a directory", "set XDG_CACHE_HOME"]);
    for flag in [["--cache", "8MiB"], ["--heap", "heap"]] {
        let words = [&["run", "--warm"], &flag[..], &["--", "true"]].concat();
        run_in(place.path(), &mut place.command(&words)).failed_with(2, &["--warm: ", "with a cache", "leave out"]);
    }
    for line in ["--help", "save --help", "load --help", "show --help"] {
        let ran = place.warm(line);
        ran.succeeded();
        assert!(ran.stderr.is_empty() && ran.stdout.contains("Exit status: "), "{line}: {}", ran.stdout);
    }
}

#[test]
fn nobody_elses_files_are_touched() {
    let Some(place) = Place::new() else { return };
    let victim = place.cache().join("victim");
    fs::create_dir(&victim).unwrap();
    for number in 0..1100 {
        fs::write(victim.join(format!("doc{number}.txt")), "x").unwrap();
    }
    let all = || files_in(&victim).len();
    // A file of others in the folder of records.
    fs::write(place.records().join("doc.txt"), "x").unwrap();
    place.warm("save data").succeeded();
    assert!(place.records().join("doc.txt").exists());
    fs::remove_dir_all(place.records()).unwrap();
    std::os::unix::fs::symlink(&victim, place.records()).unwrap();
    for line in ["save data", "load data", "show"] {
        place.warm(line).failed_with(1, &["records: ", "/fastmap/warm: is a symbolic link", "set XDG_CACHE_HOME"]);
        assert_eq!(all(), 1100, "{line}");
    }
    fs::remove_file(place.records()).unwrap();
    if is_root() {
        // A HOME that is a user's.
        std::os::unix::fs::chown(place.cache(), Some(65534), None).unwrap();
        let of = place.cache().display().to_string();
        place
            .warm("save data")
            .failed_with(1, &["records: ", &of, "belongs to user 65534", "XDG_CACHE_HOME", "root's"]);
        assert!(!place.records().exists());
    }
}

#[test]
fn a_program_finds_what_it_had_the_last_time() {
    let Some(place) = Place::new() else { return };
    place.program();
    fs::remove_dir_all(place.records()).unwrap();
    let mut first = String::new();
    let is_remembered = || {
        let mut program = place.start(true);
        first = read(&mut program);
        // As long as it is seen that it has the file mapped.
        std::thread::sleep(Duration::from_millis(500));
        let ran = end(program);
        ran.succeeded();
        let file = &place.shown()["files"][0];
        file["remembered_bytes"].as_u64().is_some_and(|bytes| bytes == 16 << 20)
    };
    until("the file is remembered", is_remembered);
    place.drop_pages();
    let mut program = place.start(true);
    // It has asked for nothing.
    until("what it had is in memory", || place.present() == PAGES);
    assert_eq!(read(&mut program), first);
    let ran = end(program);
    ran.succeeded();
    assert!(ran.stderr.contains("fastmap: warm: ") && ran.stderr.contains(" read back"), "{}", ran.stderr);
    assert_eq!(place.shown()["files"][0]["state"], "ok");
}

#[test]
fn a_program_runs_where_nothing_can_be_remembered() {
    let Some(place) = Place::new() else { return };
    place.program();
    fs::remove_dir_all(place.cache()).unwrap();
    fs::write(place.cache(), "no folder").unwrap();
    let mut silent = place.start(false);
    let sum = read(&mut silent);
    let ran = end(silent);
    ran.succeeded();
    assert_eq!(ran.stderr, "");
    until("it is said once", || {
        let mut program = place.start(true);
        assert_eq!(read(&mut program), sum);
        std::thread::sleep(Duration::from_millis(500));
        let ran = end(program);
        ran.succeeded();
        let lines: Vec<_> = ran.stderr.lines().filter(|line| line.contains("--warm")).collect();
        assert!(lines.len() <= 1, "{lines:?}");
        lines.iter().any(|line| line.contains("Not a directory") && line.contains("set XDG_CACHE_HOME"))
    });
}

#[test]
fn the_first_process_of_a_namespace_is_nothing_special() {
    let Some(place) = Place::new() else { return };
    place.program();
    let namespace = ["--pid", "--fork"];
    let can = || Command::new("unshare").args(namespace).arg("true").output().is_ok_and(|ran| ran.status.success());
    if !is_root() || !can() {
        skipped("takes root and unshare(1)");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(namespace).args([FASTMAP, "run", "--warm", "--", "echo", "hello"]).env_remove("LD_PRELOAD");
    command
        .env_remove("FASTMAP_CACHE")
        .env_remove("FASTMAP_HEAP")
        .env("FASTMAP_PRELOAD", place.path().join("libtest.so"));
    let ran = run_in(place.path(), &mut command);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "hello\n"), "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
}
