//! Running the command as a user would, and looking at what it leaves behind.

#![allow(dead_code)] // each of the two test programs uses its own part

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::FASTMAP;

/// A fresh directory on the disk that holds the build, where O_DIRECT usually works.
pub fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What one call of the command did.
pub struct Ran {
    pub pid: u32,
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Starts `program` in `dir` and waits for it.
pub fn run_in(dir: &Path, program: &mut Command) -> Ran {
    finish(start_in(dir, program))
}

pub fn start_in(dir: &Path, program: &mut Command) -> Child {
    program.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn finish(child: Child) -> Ran {
    let pid = child.id();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { pid, status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The command with LINE in `dir`; LINE is split at spaces.
pub fn fastmap(dir: &Path, line: &str) -> Ran {
    run_in(dir, Command::new(FASTMAP).args(line.split_whitespace()))
}

impl Ran {
    /// It failed with `status` and one line on standard error that has all of `parts`, in this order.
    #[track_caller]
    pub fn failed_with(&self, status: i32, parts: &[&str]) {
        let stderr = &self.stderr;
        assert_eq!(self.status, Some(status), "{stderr}");
        assert_eq!(self.stdout, "", "a failure prints nothing on standard output");
        assert_eq!(stderr.trim_end().lines().count(), 1, "one line, not:\n{stderr}");
        assert!(stderr.starts_with("fastmap: "), "{stderr}");
        let mut rest = stderr.as_str();
        for part in parts {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => panic!("no \"{part}\" (in its place) in: {stderr}"),
            }
        }
        self.left_no_cgroup();
    }

    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self.left_no_cgroup();
    }

    #[track_caller]
    pub fn left_no_cgroup(&self) {
        assert_eq!(cgroups_of(self.pid), Vec::<PathBuf>::new());
    }
}

/// The memory cgroups that the bench with this process id has made and not removed.
pub fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    let prefix = format!("fastmap-bench-{pid}-");
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    found.push(entry.path());
                }
                dirs.push(entry.path());
            }
        }
    }
    found
}

/// Names of the files in a directory.
pub fn files_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout == b"0\n")
}

/// Runs the command as the user nobody, who may read and write `dir`. None, with the reason printed, if it cannot.
pub fn as_nobody(dir: &Path, line: &str) -> Option<Ran> {
    if !is_root() {
        skipped("only root can become nobody");
        return None;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        skipped("setpriv(1) is not installed");
        return None;
    }
    // The build may lie where nobody may not look.
    let open = tempfile::tempdir_in("/tmp").unwrap();
    let program = open.path().join("fastmap");
    make_program(&program, &fs::read(FASTMAP).unwrap());
    open_to_all(open.path());
    open_to_all(dir);
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    Some(run_in(dir, Command::new("setpriv").args(args).arg(&program).args(line.split_whitespace())))
}

/// Makes a file that can be executed. Another process writes it: what this one has open to write, a program that another test starts
/// at that moment has open, too, and nobody can execute it then (ETXTBSY).
pub fn make_program(path: &Path, bytes: &[u8]) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).env("PATH", "/usr/bin:/bin").stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(shell.wait().unwrap().success(), "{}", path.display());
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A test cannot run here: told, and where CI runs a failure.
#[track_caller]
pub fn skipped(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot run in CI: {why}");
    println!("skipped: {why}");
}

/// Whether everything is to be tested (`FASTMAP_EFFORT=full`); otherwise says what is left out.
pub fn full(what: &str) -> bool {
    let full = std::env::var("FASTMAP_EFFORT").as_deref() == Ok("full");
    if !full {
        println!("left to FASTMAP_EFFORT=full: {what}");
    }
    full
}
