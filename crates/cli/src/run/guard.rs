//! The guard: a small process in this process's group, which does for it what it cannot do itself.
//!
//! * If this process is killed, it kills the program, as the program would have been killed in its place.
//! * If this process is stopped by SIGSTOP, which no process can catch, it stops the program, and lets it go on later.
//! * It has all signals blocked. One that has come to it as well was sent to the whole process group, and so to the program: this process must not
//!   pass it on once more.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::signals::{send, take};

/// The guard of one program.
pub struct Guard {
    pid: libc::pid_t,
    /// A byte asks the guard to take a signal. It answers with the same byte if it had that signal, else with 0.
    line: UnixStream,
    shared: &'static Shared,
}

/// Memory of both processes.
struct Shared {
    /// The guard has stopped the program.
    has_stopped: AtomicBool,
    /// This process stops because the program has.
    follows: AtomicBool,
}

/// How often the guard looks whether this process is stopped.
const LOOK: Duration = Duration::from_millis(250);
/// How long a state must last before the program is stopped for it.
const SETTLES: Duration = Duration::from_millis(100);
/// How long an answer of the guard is waited for: it may be stopped itself.
const ANSWER: Duration = Duration::from_millis(200);

impl Guard {
    /// Starts the guard of `program`, a child of this process. The calling process has one thread, and all signals blocked.
    /// `tracer`: the process that may trace this one ([`super::keepers`]).
    pub fn start(program: libc::pid_t, tracer: Option<libc::pid_t>) -> io::Result<Guard> {
        // SAFETY: a new mapping of one page, zeros, shared with the guard. It stays mapped as long as this process lives.
        let shared: &'static Shared = unsafe {
            let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*at.cast()
        };
        let (line, other) = UnixStream::pair()?;
        line.set_read_timeout(Some(ANSWER))?;
        let ward = std::process::id() as libc::pid_t;
        // SAFETY: this process has one thread, so the child can use all of its memory.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                super::parent::close_but(&[other.as_raw_fd()]);
                // SAFETY: the call takes a C string.
                unsafe { libc::prctl(libc::PR_SET_NAME, c"fastmap-guard".as_ptr()) };
                stand(ward, tracer, program, other, shared);
                // SAFETY: ends the process, which has nothing to clean up.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Guard { pid, line, shared }),
        }
    }

    /// Whether a signal that this process has just received was sent to its whole group. The guard then forgets it. (The kernel sends it to the
    /// youngest process of a group first.) `None`: it does not answer. It is stopped, or gone.
    pub fn has_it_too(&mut self, signal: i32) -> Option<bool> {
        let mut byte = [signal as u8];
        self.line.write_all(&byte).and_then(|()| self.line.read_exact(&mut byte)).ok().map(|()| byte[0] != 0)
    }

    /// Whether it was the guard that has stopped the program.
    pub fn has_stopped(&self) -> bool {
        self.shared.has_stopped.load(Ordering::Acquire)
    }

    /// Says that this process stops because the program has, or that it goes on.
    pub fn follows(&self, does: bool) {
        self.shared.follows.store(does, Ordering::Release);
    }

    /// Its number.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// This process goes on: the program is let go on by it.
    pub fn goes_on(&self) {
        self.shared.has_stopped.store(false, Ordering::Release);
    }

    /// Ends it, and takes its status.
    pub fn end(self) {
        // SAFETY: the calls take numbers, and a null pointer that they do not follow.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

/// The life of the guard of `ward`, which `tracer` may trace.
fn stand(ward: libc::pid_t, tracer: Option<libc::pid_t>, program: libc::pid_t, mut line: UnixStream, shared: &Shared) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: the call takes numbers.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
    let open = |process| File::open(format!("/proc/{process}/stat")).ok();
    let (state, programs) = (open(ward), open(program));
    loop {
        let mut ready = libc::pollfd { fd: line.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel gets one structure, a local variable of this function.
        unsafe { libc::poll(&mut ready, 1, LOOK.as_millis() as i32) };
        if ready.revents != 0 {
            let mut byte = [0];
            if line.read_exact(&mut byte).is_err() {
                // The other end is closed: this process's ward has ended, and has not ended its guard.
                send(program, libc::SIGKILL);
                return;
            }
            byte[0] *= u8::from(take(i32::from(byte[0])));
            let _ = line.write_all(&byte);
            continue;
        }
        let (Some(state), Some(programs)) = (&state, &programs) else { continue };
        let follows = shared.follows.load(Ordering::Acquire);
        match (is_stopped(state, tracer), is_stopped(programs, None)) {
            // A program that was stopped by another signal meanwhile goes on, too: nobody could tell the two apart.
            (false, _) if shared.has_stopped.swap(false, Ordering::AcqRel) => send(program, libc::SIGCONT),
            // Somebody lets the program go on, and this process with it.
            (true, false) if follows => send(ward, libc::SIGCONT),
            // It may be on its way from one state to another: only what stays so is acted on.
            (true, false) => {
                std::thread::sleep(SETTLES);
                let follows = shared.follows.load(Ordering::Acquire);
                if is_stopped(state, tracer) && !is_stopped(programs, None) && !follows {
                    shared.has_stopped.store(true, Ordering::Release);
                    send(program, libc::SIGSTOP);
                }
            }
            _ => {}
        }
    }
}

/// Whether a process is stopped by a signal, by its file in /proc: `T`. Where `tracer` traces it, such a stop is `t`, as a debugger's are.
fn is_stopped(stat: &File, tracer: Option<libc::pid_t>) -> bool {
    let mut text = [0; 128];
    let Ok(len) = stat.read_at(&mut text, 0) else { return false };
    let name_ends = text[..len].iter().rposition(|byte| *byte == b')').unwrap_or(len);
    match text.get(name_ends + 2) {
        Some(b'T') => true,
        Some(b't') => tracer.is_some_and(|tracer| {
            let number: String = text.iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
            let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            status.contains(&format!("TracerPid:\t{tracer}\n"))
        }),
        _ => false,
    }
}
