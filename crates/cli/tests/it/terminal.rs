//! A terminal of a test's own, and what else programs under `fastmap run` need.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

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
