//! `fastmap run --own` ends only when the keepers of programs that have ended have saved what was stored. The keeper here is the test program's own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::prompt::dir;
use crate::terminal::{c_library, gcc};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let dir = dir();
        c_library(&dir.path().join("own.so"), "");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/keepers.c");
        gcc(&["-O1", "-o", dir.path().join("program").to_str().unwrap(), source]);
        Place(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("file")
    }

    /// `fastmap run` of a command, once the program has said that it has stored, and the program.
    fn run(&self, words: &[&str]) -> (Child, u32) {
        let _ = fs::remove_file(self.file());
        let mut command = Command::new(FASTMAP);
        command.args(["run", "--cache", "1MiB", "--own", "*", "--"]).args(words);
        command.current_dir(&self.0).env("FASTMAP_PRELOAD", "own.so").env_remove("LD_PRELOAD");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (child, line.strip_prefix("stored ").and_then(|pid| pid.trim_end().parse().ok()).expect("its number"))
    }
}

fn is_saved(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text == "saved")
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(process: u32, signal: i32) {
    // SAFETY: numbers only: a process that this test has started.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

#[test]
fn it_ends_when_all_is_saved() {
    let place = Place::new();
    let status = place.run(&["./program", "file", "300", "end"]).0.wait().unwrap();
    assert!(status.code() == Some(3) && is_saved(&place.file()), "{status}");
    // By a signal that is passed on.
    let (mut child, _) = place.run(&["./program", "file", "300", "wait"]);
    send(child.id(), libc::SIGINT);
    let status = child.wait().unwrap();
    assert!(status.signal() == Some(libc::SIGINT) && is_saved(&place.file()), "{status}");
    // A shell's child, which the shell has waited for.
    let status = place.run(&["sh", "-c", "./program file 300 end; exit 5"]).0.wait().unwrap();
    assert!(status.code() == Some(5) && is_saved(&place.file()), "{status}");
}

/// It cannot wait then. Its parent learns of its end when all is saved.
#[test]
fn killed_it_seems_to_end_when_all_is_saved() {
    let place = Place::new();
    for before in [libc::SIGCONT, libc::SIGSTOP] {
        let (mut child, _) = place.run(&["./program", "file", "300", "wait"]);
        // The process that traces it is there a moment later.
        let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        until("it is traced", || !status().contains("TracerPid:\t0\n"));
        send(child.id(), before);
        send(child.id(), libc::SIGKILL);
        let status = child.wait().unwrap();
        assert!(status.signal() == Some(libc::SIGKILL) && is_saved(&place.file()), "{status}");
    }
}

#[test]
fn who_still_runs_is_not_waited_for() {
    let place = Place::new();
    let (mut child, program) = place.run(&["sh", "-c", "./program file 0 wait & read line; exit 5"]);
    drop(child.stdin.take());
    let status = child.wait().unwrap();
    assert!(status.code() == Some(5) && !place.file().exists(), "{status}");
    send(program, libc::SIGKILL);
    until("saved", || is_saved(&place.file()));
}
