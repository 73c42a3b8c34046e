//! With `--own`, what a program stored and did not flush is written after its end, by its keeper (the engine's). `fastmap run` ends only then, so
//! that whoever starts after it finds all in the files, as after a program on kernel mmap.
//!
//! * Programs note their keepers in a file in memory, whose path is in their environment.
//! * This process waits for the keepers of programs that have ended. Others, in the background, are not waited for.
//! * If this process is killed, it cannot wait. So a small process traces it (ptrace(2)) that does nothing but wait for the same: the parent of
//!   a process learns of its end only when its tracer has. The program itself is not traced by it.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::signals::send;
use super::voice;

/// The name of a keeper in /proc.
const KEEPER: &str = "fastmap-keeper";
const NAME: &CStr = c"fastmap-waiting";
/// How long programs in the background may take to end with the program.
const GRACE: Duration = Duration::from_millis(50);
/// A keeper that takes longer is told of.
const SOON: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(1);

/// The keepers of what one `fastmap run` has started.
#[derive(Debug)]
pub struct Keepers {
    /// Two process ids of four bytes for each program: its own, and its keeper's.
    register: File,
    /// The process that waits if this one is killed.
    waiting: Option<libc::pid_t>,
}

impl Keepers {
    /// # Errors
    /// There can be no file in memory.
    pub fn new() -> io::Result<Keepers> {
        // SAFETY: the call takes a C string, and returns a descriptor of this process's own.
        let register = unsafe {
            match libc::memfd_create(c"fastmap-keepers".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                descriptor => File::from_raw_fd(descriptor),
            }
        };
        Ok(Keepers { register, waiting: None })
    }

    /// The path by which programs find the register.
    pub fn path(&self) -> OsString {
        format!("/proc/{}/fd/{}", std::process::id(), self.register.as_raw_fd()).into()
    }

    /// The register's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.register.as_raw_fd()
    }

    /// Starts the process that waits in this one's stead, if there may be one (Yama and filters of system calls can forbid it). `program` is a
    /// child of this process, which has one thread, and all signals blocked.
    pub fn stand_in(&mut self, program: libc::pid_t) {
        let ward = std::process::id() as libc::pid_t;
        // SAFETY: this process has one thread, so the child can use all of its memory. The calls take numbers and a C string.
        self.waiting = unsafe {
            match libc::fork() {
                -1 => None,
                0 => {
                    super::parent::close_but(&[self.descriptor()]);
                    super::parent::give_up_streams(false);
                    voice::be_silent();
                    libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
                    // A signal to the process group does not reach it.
                    libc::setsid();
                    if await_end(ward) {
                        self.wait(program);
                    }
                    libc::_exit(0)
                }
                waiting => {
                    libc::prctl(libc::PR_SET_PTRACER, waiting);
                    Some(waiting)
                }
            }
        };
    }

    /// The process that waits, which traces this one.
    pub fn waiting(&self) -> Option<libc::pid_t> {
        self.waiting
    }

    /// A child of this process has ended, and its number is free: it may have been the one that waits.
    pub fn forget(&mut self, child: libc::pid_t) {
        self.waiting = self.waiting.filter(|waiting| *waiting != child);
    }

    /// Waits until the program has ended, and all keepers of programs that have. What was stored is in the files then.
    pub fn wait(&self, program: libc::pid_t) {
        if let Some(process) = open(program) {
            await_death(&process, None);
        }
        let began = Instant::now();
        let mut is_said = false;
        for [of, keeper] in self.registered() {
            // A signal may have come to several: the others end in a moment.
            let left = GRACE.saturating_sub(began.elapsed());
            if of != program && open(of).is_some_and(|process| !await_death(&process, Some(left))) {
                continue;
            }
            // Opened first: the name is that of the same process then.
            let Some(process) = open(keeper).filter(|_| is_keeper(keeper)) else { continue };
            if !is_said && !await_death(&process, Some(SOON.saturating_sub(began.elapsed()))) {
                voice::say("the program has ended; what it stored is being written to its files yet");
                is_said = true;
            }
            await_death(&process, None);
        }
    }

    fn registered(&self) -> Vec<[libc::pid_t; 2]> {
        let mut bytes = vec![0; self.register.metadata().map_or(0, |facts| facts.len() as usize)];
        let len = self.register.read_at(&mut bytes, 0).unwrap_or(0);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | libc::pid_t::from(*byte));
        bytes[..len].chunks_exact(8).map(|both| [number(&both[..4]), number(&both[4..])]).collect()
    }

    /// Ends the process that waits, and takes its status. Afterwards this process is not traced.
    pub fn end(&self) {
        if let Some(waiting) = self.waiting {
            send(waiting, libc::SIGKILL);
            // SAFETY: the call takes numbers, and a null pointer that it does not follow.
            unsafe { libc::waitpid(waiting, std::ptr::null_mut(), libc::__WALL) };
        }
    }
}

/// The end of a process can be waited for by its descriptor.
fn open(process: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: the call takes numbers, and returns a descriptor of this process's own.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, process, 0) {
            -1 => None,
            descriptor => Some(OwnedFd::from_raw_fd(descriptor as RawFd)),
        }
    }
}

/// Waits for the end of a process; at most for `time`. Returns whether it has ended.
fn await_death(process: &OwnedFd, time: Option<Duration>) -> bool {
    let mut ready = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let time = time.map_or(-1, |time| time.as_millis() as i32);
    // SAFETY: the kernel gets one structure, a local variable of this function.
    while unsafe { libc::poll(&mut ready, 1, time) } == -1 {}
    ready.revents != 0
}

fn is_keeper(process: libc::pid_t) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim_end() == KEEPER)
}

/// Traces `ward` until it has ended, and lets it do what it would do without. Its parent learns of the end when the calling process ends. False: it
/// may not be traced.
fn await_end(ward: libc::pid_t) -> bool {
    /// It allows that a moment after this process was made.
    const TRIES: usize = 100;
    let begun = (0..TRIES).any(|_| {
        // SAFETY: the calls take numbers.
        let begun = unsafe { libc::ptrace(libc::PTRACE_SEIZE, ward, 0, 0) } == 0;
        if !begun {
            std::thread::sleep(POLL);
        }
        begun
    });
    if !begun {
        return false;
    }
    let wait = |which| {
        // SAFETY: the kernel fills one structure. All-zero bytes are a valid one.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let done = libc::waitid(libc::P_PID, ward as libc::id_t, &mut info, which | libc::__WALL) == 0;
            (done && info.si_pid() != 0).then_some((info.si_code, info.si_status()))
        }
    };
    while let Some((code, _)) = wait(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT) {
        if code != libc::CLD_TRAPPED {
            return true;
        }
        // The stop alone is taken: killed in it, the ward has ended by now, and its parent must not learn of that.
        let Some((_, status)) = wait(libc::WSTOPPED | libc::WNOHANG) else { continue };
        let (signal, is_group_stop) = (status & 0xff, status >> 8 == libc::PTRACE_EVENT_STOP);
        let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
        // SAFETY: the calls take numbers.
        unsafe {
            match is_group_stop {
                true if stops => libc::ptrace(libc::PTRACE_LISTEN, ward, 0, 0),
                true => libc::ptrace(libc::PTRACE_CONT, ward, 0, 0),
                false => libc::ptrace(libc::PTRACE_CONT, ward, 0, signal),
            };
        }
    }
    false
}
