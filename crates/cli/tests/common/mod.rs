//! Running the command as a user would, and looking at what it leaves behind.

#![allow(dead_code)] // each test file uses its own part

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub const FASTMAP: &str = env!("CARGO_BIN_EXE_fastmap");

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

/// `fastmap LINE` in `dir`; LINE is split at spaces.
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

/// Whether this machine lets the tests make memory cgroups: then what is limited is tested with limits.
pub fn memory_flag(limit: &'static str) -> &'static str {
    let dir = dir();
    let probe = fastmap(dir.path(), "bench micro --engines pread --size 1MiB --memory 64MiB --seconds 0.01 --repeat 1");
    if probe.status == Some(0) { limit } else { "none" }
}

/// Runs the command as the user nobody, who may read and write `dir`. None, with the reason printed, if it cannot.
pub fn as_nobody(dir: &Path, line: &str) -> Option<Ran> {
    if !is_root() {
        println!("skipped: only root can become nobody");
        return None;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: setpriv(1) is not installed");
        return None;
    }
    // The build may lie where nobody may not look.
    let open = tempfile::tempdir_in("/tmp").unwrap();
    let program = open.path().join("fastmap");
    fs::copy(FASTMAP, &program).unwrap();
    open_to_all(open.path());
    open_to_all(dir);
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    Some(run_in(dir, Command::new("setpriv").args(args).arg(program).args(line.split_whitespace())))
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Builds with the C compiler.
pub fn gcc(args: &[&str]) {
    let output = Command::new("gcc").args(args).output().expect("gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a shared library that runs `code` when it is loaded.
pub fn c_library(path: &Path, code: &str) {
    let source = path.with_extension("c");
    let text = "#include <stdio.h>\n#include <string.h>\n__attribute__((constructor)) static void begin(void) {";
    fs::write(&source, format!("{text} {code} }}\n")).unwrap();
    gcc(&["-shared", "-fPIC", "-o", path.to_str().unwrap(), source.to_str().unwrap()]);
}

fn cells(count: u16) -> std::num::NonZero<u16> {
    std::num::NonZero::new(count).expect("a terminal with room")
}

/// A program in a terminal of its own (openpty(3)).
pub struct Terminal {
    child: Child,
    ours: fs::File,
    /// What it shows.
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts a program there; the terminal is its controlling one.
    pub fn start(program: &mut Command, rows: u16, columns: u16) -> Terminal {
        use std::os::fd::{AsRawFd, FromRawFd};
        use std::os::unix::process::CommandExt;
        let (mut ours, mut theirs) = (-1, -1);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: room for two descriptors, which are this value's own then; the child calls what may be called after fork.
        let (ours, theirs) = unsafe {
            let opened = libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size);
            assert_eq!(opened, 0, "openpty: {}", std::io::Error::last_os_error());
            libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(theirs, libc::F_SETFD, libc::FD_CLOEXEC);
            let terminal = theirs;
            program.pre_exec(move || {
                libc::setsid();
                match libc::ioctl(terminal, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
            (fs::File::from_raw_fd(ours), fs::File::from_raw_fd(theirs))
        };
        let stream = || Stdio::from(theirs.try_clone().unwrap());
        let child = program.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
        // SAFETY: a descriptor of our own.
        unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Terminal { child, ours, screen: vt100::Parser::new(cells(rows), cells(columns), 1000) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads what there is.
    pub fn read(&mut self) {
        use std::io::Read;
        let mut bytes = [0; 65536];
        // Nothing there, or everybody else gone: no difference here.
        while let Ok(count @ 1..) = self.ours.read(&mut bytes) {
            self.screen.process(&bytes[..count]);
        }
    }

    /// What it shows now.
    pub fn contents(&self) -> String {
        self.screen.screen().contents()
    }

    /// Whether a full-screen program has it.
    pub fn is_full_screen(&self) -> bool {
        self.screen.screen().alternate_screen()
    }

    /// Waits until it shows `part`, half a minute at most.
    #[track_caller]
    pub fn until(&mut self, part: &str) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            self.read();
            if self.contents().contains(part) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "no {part:?} in:\n{}", self.contents());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    pub fn type_in(&mut self, keys: &str) {
        use std::io::Write;
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes its size, as dragging a window's corner does.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        use std::os::fd::AsRawFd;
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
        self.screen.screen_mut().set_size(cells(rows), cells(columns));
    }

    /// Whether what is typed is shown and handed over by lines, as before a full-screen program.
    pub fn is_as_before(&self) -> bool {
        use std::os::fd::AsRawFd;
        // SAFETY: all-zero bytes are a valid termios, which the call fills.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.ours.as_raw_fd(), &mut modes), 0);
            modes.c_lflag
        };
        modes & libc::ICANON != 0 && modes & libc::ECHO != 0
    }

    /// Waits for the program's end, half a minute at most.
    #[track_caller]
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read();
                return status;
            }
            assert!(std::time::Instant::now() < deadline, "it goes on:\n{}", self.contents());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What every experiment tells beside its rows: how it was checked, headlines and figures that `fastmap report` can show, and where
/// and when it was.
#[track_caller]
pub fn check_told(report: &serde_json::Value) {
    let list = |of: &serde_json::Value, name: &str| of[name].as_array().unwrap().clone();
    assert!(!report["verified"].as_str().unwrap().is_empty());
    assert!(report["began_unix_s"].as_f64().unwrap() > 1.7e9 && report["took_s"].as_f64().unwrap() > 0.0);
    assert!(report["command"].as_str().unwrap().starts_with("fastmap bench"));
    for headline in list(report, "headlines") {
        let ratio = |which: &str| headline["ratio"][which].as_f64().unwrap();
        assert!(
            0.0 < ratio("low") && ratio("low") <= ratio("median") && ratio("median") <= ratio("high"),
            "{headline}"
        );
        assert!(!headline["what"].as_str().unwrap().is_empty());
    }
    assert!(list(report, "figures").len() >= 2);
    for figure in list(report, "figures") {
        let series = list(&figure, "series");
        assert!((1..=8).contains(&series.len()), "{figure}");
        for point in series.iter().flat_map(|s| list(s, "points")) {
            let y = point["y"].as_f64().unwrap();
            let range = |n: usize| point["range"][n].as_f64().unwrap_or(y);
            assert!(range(0) <= y && y <= range(1), "{point}");
        }
    }
}
