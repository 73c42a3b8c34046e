//! `fastmap run` stays the program's parent, as strace(1) does. The program is its child, with everything that this process was given: signals
//! that are blocked, ignored and pending, timers, descriptors, terminal. Then this process gives all of that up, passes signals on, and in the end
//! ends as the program has ended.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::guard::Guard;
use super::keepers::Keepers;
use super::signals::{ALL_SIGNALS, pass_on, pending, send, set_mask, take, wait_for};
use super::{Variables, voice};

/// The program, as its parent has it.
pub struct Child {
    pub pid: u32,
    /// None where there could be none: the program is steered all the same.
    guard: Option<Guard>,
    /// The processes that write what the program stored and did not flush.
    keepers: Option<Keepers>,
}

/// Programs that end sooner are not looked at: most of what scripts start.
const SHORT: Duration = Duration::from_millis(8);

/// How the program has ended: waitpid(2).
#[derive(Debug, Clone, Copy)]
pub enum End {
    Exited(i32),
    Killed { signal: i32, has_dumped: bool },
}

/// What Rust's runtime has changed before `main`: bit 0 is set if SIGPIPE was ignored, bits 1 to 3 if descriptors 0 to 2 were closed.
static CHANGED: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = {
    extern "C" fn remember() {
        let mut changed = u32::from(is_ignored(libc::SIGPIPE));
        for fd in 0..3 {
            // SAFETY: the call takes numbers.
            let is_closed = unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
            changed |= u32::from(is_closed) << (fd + 1);
        }
        CHANGED.store(changed, Ordering::Relaxed);
    }
    remember
};

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid sigaction, and the call fills it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

const TIMERS: [libc::c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

/// Starts the program. `variables` are added to its environment; without them that is this process's own, as it is. `before` runs in the new
/// process. `logs`: lines are asked for.
///
/// # Errors
///
/// The program cannot be executed.
pub fn start(
    program: &Path,
    arguments: &[OsString],
    variables: Option<Variables>,
    logs: bool,
    mut keepers: Option<Keepers>,
    mut before: impl FnMut(),
) -> io::Result<Child> {
    let mask = set_mask(ALL_SIGNALS);
    let is_kept = voice::choose(logs);
    let ignores_children = is_ignored(libc::SIGCHLD);
    let mut handed_on = Vec::new();
    while pending() != 0
        && let Some(info) = wait_for(Duration::ZERO)
    {
        handed_on.push(info);
    }
    // SAFETY: the calls take numbers and fill structures of this function's.
    let timers = unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let none: libc::itimerval = std::mem::zeroed();
        TIMERS.map(|timer| {
            let mut left = none;
            // (The C library's function takes no numbers of this type on all systems.)
            libc::syscall(libc::SYS_setitimer, timer, &raw const none, &raw mut left);
            left
        })
    };
    let take_over = |before: &mut dyn FnMut()| {
        // SAFETY: the calls take numbers and structures of this function's. This process has one thread.
        unsafe {
            for info in &handed_on {
                libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), info.si_signo, &raw const *info);
            }
            if ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            let changed = CHANGED.load(Ordering::Relaxed);
            if changed & 1 == 0 {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            }
            for (timer, left) in TIMERS.into_iter().zip(&timers) {
                libc::syscall(libc::SYS_setitimer, timer, &raw const *left, std::ptr::null_mut::<libc::itimerval>());
            }
            before();
            for fd in (0..3).filter(|fd| changed >> (fd + 1) & 1 != 0) {
                libc::close(fd);
            }
        }
        execute(program, arguments, variables.clone(), mask)
    };
    let pipes = io::pipe().and_then(|one| Ok((one, io::pipe()?)));
    // SAFETY: no other thread of this process does anything, so the child can go on using all of its memory.
    let (pid, pipes) = match pipes.map(|pipes| (unsafe { libc::fork() }, pipes)) {
        // Where there can be no other process, this one becomes the program, which nobody steers.
        Err(_) | Ok((-1, _)) => return Err(take_over(&mut before)),
        Ok((pid, pipes)) => (pid, pipes),
    };
    let ((mut reader, writer), (mut waits, mut goes)) = pipes;
    if pid == 0 {
        // The guard must be there before the program is.
        drop(goes);
        if waits.read(&mut [0]).is_ok_and(|count| count == 1) {
            let error = take_over(&mut before);
            set_mask(ALL_SIGNALS);
            let _ = (&writer).write_all(&error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes());
        }
        // SAFETY: ends the process, which has nothing to clean up.
        unsafe { libc::_exit(127) }
    }
    let mut kept = vec![reader.as_raw_fd(), goes.as_raw_fd()];
    kept.extend(keepers.as_ref().map(Keepers::descriptor));
    close_but(&kept);
    // (Its descriptor is closed.)
    std::mem::forget((writer, waits));
    leave_limit_of_processes();
    if let Some(keepers) = &mut keepers {
        keepers.stand_in(pid);
    }
    let guard = Guard::start(pid, keepers.as_ref().and_then(Keepers::waiting)).ok();
    let _ = goes.write_all(&[1]);
    drop(goes);
    if let Some(error) = failed(&mut reader) {
        // SAFETY: the call takes numbers, and a null pointer that it does not follow.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        if let Some(guard) = guard {
            guard.end();
        }
        if let Some(keepers) = keepers {
            keepers.end();
        }
        set_mask(mask);
        return Err(error);
    }
    drop(reader);
    give_up_streams(is_kept);
    outlast_faults(pid, guard.as_ref());
    Ok(Child { pid: pid as u32, guard, keepers })
}

/// The program, and the guard or 0: for [`wait_only`].
static PROGRAM: AtomicI32 = AtomicI32::new(0);
static GUARD: AtomicI32 = AtomicI32::new(0);

/// Sees to it that a fault of this process, an allocation that fails among them, does not end the program: the thread that is at fault stands
/// still; if that is the first one, it does nothing but wait for the program from then on. Limits on memory are the program's.
fn outlast_faults(program: libc::pid_t, guard: Option<&Guard>) {
    PROGRAM.store(program, Ordering::Relaxed);
    GUARD.store(guard.map_or(0, Guard::pid), Ordering::Relaxed);
    // SAFETY: all-zero bytes are a valid sigaction; the kernel reads and fills structures of this function's.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = wait_only as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_SIGINFO | libc::SA_RESTART;
        let mut mask = ALL_SIGNALS;
        for signal in FAULTS {
            libc::sigaction(signal, &action, std::ptr::null_mut());
            mask &= !(1 << (signal - 1));
        }
        // The kernel does not ask a handler about a fault whose signal is blocked.
        set_mask(mask);
        for kind in [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_CPU] {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(kind, &mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(kind, &limit);
        }
    }
}

/// Signals of faults.
const FAULTS: [i32; 5] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The process that outlives the program has faults of its own.
pub(super) fn forget_program() {
    PROGRAM.store(0, Ordering::Relaxed);
    GUARD.store(0, Ordering::Relaxed);
    for signal in FAULTS {
        // SAFETY: the call takes numbers.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// The handler of faults: bare system calls only.
extern "C" fn wait_only(_: i32, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the calls take numbers, and the kernel has filled, or fills, the structures.
    unsafe {
        // One that somebody has sent is the program's.
        if (*info).si_code <= 0 && (*info).si_pid() != libc::getpid() {
            return pass_on(PROGRAM.load(Ordering::Relaxed), &*info);
        }
        if libc::syscall(libc::SYS_gettid) != libc::syscall(libc::SYS_getpid) {
            loop {
                libc::syscall(libc::SYS_pause);
            }
        }
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let which = libc::WEXITED | libc::__WALL | libc::__WNOTHREAD;
            let program = PROGRAM.load(Ordering::Relaxed) as libc::id_t;
            let failed = libc::syscall(libc::SYS_waitid, libc::P_PID, program, &raw mut info, which, 0) != 0;
            if failed && *libc::__errno_location() == libc::EINTR {
                continue;
            }
            if let guard @ 1.. = GUARD.load(Ordering::Relaxed) {
                libc::kill(guard, libc::SIGKILL);
            }
            match info.si_code {
                libc::CLD_EXITED => libc::_exit(info.si_status()),
                libc::CLD_KILLED | libc::CLD_DUMPED => end_by(info.si_status()),
                _ if failed => libc::_exit(1),
                _ => {}
            }
        }
    }
}

/// Ends this process by a signal.
fn end_by(signal: i32) -> ! {
    // SAFETY: the calls take numbers.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        set_mask(ALL_SIGNALS & !(1 << (signal - 1)));
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal);
        // The first process of a container cannot kill itself.
        libc::_exit(128 + signal)
    }
}

/// The error for which the program was not executed.
fn failed(reader: &mut PipeReader) -> Option<io::Error> {
    let mut number = [0; 4];
    reader.read_exact(&mut number).ok().map(|()| io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// Calls execve(2) in the child. Returns if that fails.
fn execute(program: &Path, arguments: &[OsString], variables: Option<Variables>, mask: u64) -> io::Error {
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let list = |texts: &[OsString]| texts.iter().map(|one| text(one)).collect::<Result<Vec<_>, _>>();
    let entries = variables.map(|mut variables| {
        // The engine tells the program by it from what the program starts.
        variables.push(("FASTMAP_RUN_PID", std::process::id().to_string().into()));
        let kept = std::env::vars_os().filter(|(name, _)| !variables.iter().any(|(ours, _)| name == ours));
        let ours = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        let entries = kept.chain(ours).map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            entry
        });
        list(&entries.collect::<Vec<_>>())
    });
    let (Ok(path), Ok(arguments), Ok(entries)) = (text(program.as_os_str()), list(arguments), entries.transpose())
    else {
        return io::ErrorKind::InvalidInput.into();
    };
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let arguments = pointers(&arguments);
    // SAFETY: the C library's list is null-terminated, and nobody changes it.
    let mut entries = entries.as_deref().map(pointers).unwrap_or_else(|| unsafe { own_environment() });
    let renamed = name_program(&mut entries);
    set_mask(mask);
    // SAFETY: the lists are null-terminated, and their C strings outlive the call. (`path` has a slash, so execvpe(3) does not search PATH. It has
    // the shell run a text file without `#!`, as elsewhere.) The environment is the C library's own, which nobody changes.
    unsafe {
        libc::execvpe(path.as_ptr(), arguments.as_ptr(), entries.as_ptr());
    }
    let error = io::Error::last_os_error();
    drop(renamed);
    error
}

/// The environment of this process, as it is.
unsafe fn own_environment() -> Vec<*const libc::c_char> {
    // SAFETY: the caller's promise.
    unsafe {
        let count = (0..).take_while(|index| !environ.is_null() && !(*environ.add(*index)).is_null()).count();
        (0..count).map(|index| *environ.add(index)).chain([std::ptr::null()]).collect()
    }
}

/// Puts the program's number in the place of its parent's where systemd says by it whom sockets and the watchdog are for. Returns the new entries.
fn name_program(entries: &mut [*const libc::c_char]) -> Vec<CString> {
    let mut made = Vec::new();
    // SAFETY: the call has no preconditions; the entries are C strings or null.
    unsafe {
        let parent = libc::getppid();
        for name in ["LISTEN_PID", "WATCHDOG_PID"] {
            let theirs = format!("{name}={parent}");
            for entry in entries.iter_mut().filter(|entry| !entry.is_null()) {
                if std::ffi::CStr::from_ptr(*entry).to_bytes() == theirs.as_bytes() {
                    let ours = CString::new(format!("{name}={}", libc::getpid())).unwrap_or_default();
                    *entry = ours.as_ptr();
                    made.push(ours);
                }
            }
        }
    }
    made
}

/// Gives up the program's standard streams, and the current folder.
pub(super) fn give_up_streams(keeps_error: bool) {
    // SAFETY: the calls take numbers and a C string.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null != -1 {
            for fd in 0..if keeps_error { 2 } else { 3 } {
                libc::dup2(null, fd);
            }
            libc::close(null);
        }
    }
    let _ = std::env::set_current_dir("/");
}

/// Closes all descriptors but the standard streams and `kept`: what the program has, too, such as locks, pipes and ports, is the program's alone.
pub(super) fn close_but(kept: &[RawFd]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept.iter().copied().chain([RawFd::MAX]) {
        // SAFETY: the call takes numbers, and nothing in this process uses such a descriptor.
        if from < fd && unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) } != 0 {
            // Before Linux 5.9, or behind a filter that does not know the call. Collected first: the list is read by a descriptor, too.
            let list = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
            let open: Vec<RawFd> = list.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
            for fd in open.into_iter().filter(|fd| *fd >= 3 && !kept.contains(fd)) {
                // SAFETY: as above.
                unsafe { libc::close(fd) };
            }
            return;
        }
        from = fd.saturating_add(1);
    }
}

/// Leaves a group that limits the number of processes (pids, version 1 of cgroups), if that is allowed: the limit is meant for the program.
fn leave_limit_of_processes() {
    const ROOT: &str = "/sys/fs/cgroup/pids";
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.split_once(":pids:").map(|(_, path)| path.to_owned()));
    let Some(path) = path.filter(|path| path.len() > 1) else { return };
    let limit = std::fs::read_to_string(format!("{ROOT}{path}/pids.max")).unwrap_or_default();
    if limit.trim().parse::<u64>().is_ok()
        && let Some((above, _)) = path.rsplit_once('/')
    {
        let _ = std::fs::write(format!("{ROOT}{above}/cgroup.procs"), std::process::id().to_string());
    }
}

impl Child {
    /// Passes signals on until the program has ended. `look` is called when it has run for [`SHORT`], and again after the time that it returns.
    pub fn wait(&mut self, mut look: impl FnMut() -> Duration) -> End {
        let mut next = Instant::now() + SHORT;
        loop {
            let now = Instant::now();
            if now >= next {
                next = Instant::now() + look();
            }
            match wait_for(next.saturating_duration_since(now)) {
                Some(info) => {
                    // A child's end or stop is not for the program.
                    if info.si_signo != libc::SIGCHLD || info.si_code <= 0 {
                        self.receive(&info);
                    }
                    if info.si_signo == libc::SIGCHLD
                        && let Some(end) = self.take_children()
                    {
                        return end;
                    }
                }
                // The kernel does not tell of a stop that comes while a thread is traced.
                None => {
                    if let Some(end) = self.take_children() {
                        return end;
                    }
                }
            }
        }
    }

    fn receive(&mut self, info: &libc::siginfo_t) {
        // This process's own: of a pipe that nobody reads, or of its limit of processor time.
        // SAFETY: the kernel fills this field of signals that are sent.
        let is_own = info.si_code <= 0 && unsafe { info.si_pid() } == std::process::id() as libc::pid_t;
        if is_own || info.si_code == libc::SI_KERNEL && info.si_signo == libc::SIGXCPU {
            return;
        }
        if info.si_signo == libc::SIGCONT
            && let Some(guard) = &self.guard
            && guard.has_stopped()
        {
            guard.goes_on();
        }
        if !self.has_come_to_all(info.si_signo) {
            pass_on(self.pid as libc::pid_t, info);
        }
    }

    /// Whether a signal has come to all of the process group.
    fn has_come_to_all(&mut self, signal: i32) -> bool {
        let Some(guard) = &mut self.guard else { return false };
        let has = guard.has_it_too(signal);
        if has.is_none()
            && let Some(guard) = self.guard.take()
        {
            // A guard that was stopped alone would be in the way.
            GUARD.store(0, Ordering::Relaxed);
            guard.end();
        }
        has.unwrap_or(false)
    }

    /// Stops this process by the signal that has stopped the program, until it is let go on.
    fn stop(&mut self, signal: i32) {
        if self.guard.as_ref().is_some_and(Guard::has_stopped) {
            return;
        }
        // If it was sent to the group, this process has it, too.
        self.has_come_to_all(signal);
        take(signal);
        if let Some(guard) = &self.guard {
            guard.follows(true);
        }
        stop_by(signal);
        if let Some(guard) = &self.guard {
            guard.follows(false);
        }
    }

    /// Takes the status of children that have ended, which this process was given (as the first process of a container it is given all orphans).
    /// If the program has stopped, stops. Returns how the program has ended; its status is not taken yet, so that its counts can be read.
    fn take_children(&mut self) -> Option<End> {
        const WHICH: i32 = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: the kernel fills one structure. Threads that trace the program wait for it in their own way.
        let wait = |kind, id: libc::pid_t, more| unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let done = libc::waitid(kind, id as libc::id_t, &mut info, WHICH | more) == 0 && info.si_pid() != 0;
            done.then_some(info)
        };
        loop {
            let info = wait(libc::P_ALL, 0, libc::WNOWAIT)?;
            // SAFETY: waitid(2) fills these fields.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            let is_program = pid == self.pid as libc::pid_t;
            match info.si_code {
                libc::CLD_EXITED if is_program => return Some(End::Exited(status)),
                libc::CLD_KILLED if is_program => return Some(End::Killed { signal: status, has_dumped: false }),
                libc::CLD_DUMPED if is_program => return Some(End::Killed { signal: status, has_dumped: true }),
                code => {
                    wait(libc::P_PID, pid, 0);
                    let has_ended = matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
                    if has_ended && self.guard.as_ref().is_some_and(|guard| guard.pid() == pid) {
                        GUARD.store(0, Ordering::Relaxed);
                        self.guard = None;
                    }
                    if let Some(keepers) = self.keepers.as_mut().filter(|_| has_ended) {
                        keepers.forget(pid);
                    }
                    if code == libc::CLD_STOPPED && is_program {
                        self.stop(status);
                    }
                }
            }
        }
    }

    /// Ends this process as the program has ended, once what that stored is in its files.
    pub fn end_likewise(self, end: End) -> ! {
        if let Some(keepers) = self.keepers {
            keepers.wait(self.pid as libc::pid_t);
            keepers.end();
        }
        // SAFETY: the call takes numbers, and a null pointer that it does not follow.
        unsafe { libc::waitpid(self.pid as libc::pid_t, std::ptr::null_mut(), libc::__WALL) };
        if let Some(guard) = self.guard {
            guard.end();
        }
        crate::interrupt::leave_fuse();
        let End::Killed { signal, has_dumped } = end else {
            let End::Exited(status) = end else { unreachable!() };
            // SAFETY: ends the process. Threads that wait for a file system that does not answer are not waited for.
            unsafe { libc::_exit(status) }
        };
        dump_like(has_dumped);
        end_by(signal)
    }
}

fn stop_by(signal: i32) {
    if signal == libc::SIGSTOP {
        send(std::process::id() as libc::pid_t, signal);
        return;
    }
    // SAFETY: the call takes numbers.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let mask = set_mask(ALL_SIGNALS & !(1 << (signal - 1)));
    // SAFETY: the call takes numbers.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal) };
    set_mask(mask);
}

/// Sees to it that this process's death dumps core if the program's did, for the flag in its status: a core of some kilobytes, without memory,
/// where it overwrites nobody's.
fn dump_like(has_dumped: bool) {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    // A pattern that names a folder or a program would show this process's core to somebody.
    let dumps = has_dumped && !pattern.starts_with(['/', '|']) && enter_folder_for_cores().is_some();
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
    if !dumps {
        // A program that takes cores takes them whatever the limit is.
        // SAFETY: the call takes numbers.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    }
    // SAFETY: the kernel fills and reads one structure.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_CORE, &mut limit);
        limit.rlim_cur = if dumps { limit.rlim_max } else { 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
    }
}

/// A folder of this user's own, which holds the last such core.
fn enter_folder_for_cores() -> Option<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    // SAFETY: the call has no preconditions.
    let user = unsafe { libc::geteuid() };
    let folder = std::env::temp_dir().join(format!("fastmap-cores-{user}"));
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    let facts = std::fs::symlink_metadata(&folder).ok()?;
    if !facts.is_dir() || facts.uid() != user || facts.mode() & 0o077 != 0 {
        return None;
    }
    std::env::set_current_dir(&folder).ok()?;
    let cores = std::fs::read_dir(".").into_iter().flatten().flatten();
    cores.for_each(|core| drop(std::fs::remove_file(core.file_name())));
    Some(())
}
