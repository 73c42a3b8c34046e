//! Why a process cannot be reached from outside, and what would help.

use super::filters::{Filters, Proof};
use super::status::Status;
use rustix::io::Errno;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// Why [`Traced::of`](super::Traced::of) refuses a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The processor is not x86-64.
    Machine,
    /// There is no such process.
    NoProcess(u32),
    /// It is the caller.
    Itself,
    /// It has ended, and its parent has not asked for its status.
    Ended(u32),
    /// It is a thread of the kernel.
    Kernels(u32),
    /// It is a 32-bit program.
    Bits32(u32),
    /// It belongs to another user.
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        theirs: u64,
        /// The caller's.
        ours: u64,
    },
    /// Another process traces it: a debugger, strace(1).
    Traced {
        /// The process.
        pid: u32,
        /// Its tracer.
        by: u64,
    },
    /// It has capabilities that the caller lacks.
    MoreRights(u32),
    /// It has asked not to be looked into (PR_SET_DUMPABLE), or its executable may not be read.
    Protected(u32),
    /// Yama's `ptrace_scope` forbids it.
    Yama {
        /// The process.
        pid: u32,
        /// `kernel.yama.ptrace_scope`: 1, 2 or 3.
        scope: u64,
    },
    /// It runs in seccomp(2)'s strict mode.
    Strict(u32),
    /// Its system calls are filtered, and nothing proves that the filters let advice pass.
    Filtered {
        /// The process.
        pid: u32,
        /// Whether it descends from the caller.
        descends: bool,
    },
    /// The caller's own filters do not let ptrace(2) pass.
    OwnFilters,
    /// No `syscall` instruction was found in it.
    NoInstruction(u32),
    /// The kernel refuses, for a reason that it does not tell.
    Denied {
        /// The process.
        pid: u32,
        /// The error's number.
        error: i32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Machine => to.write_str(
                "only programs on x86-64 can be steered from outside; let a Python program or one of your own ask for steering itself",
            ),
            Refusal::NoProcess(pid) => write!(to, "there is no process {pid} to be seen; check the number with ps"),
            Refusal::Itself => to.write_str("a process cannot be steered from outside by itself; name another process"),
            Refusal::Ended(pid) => write!(to, "process {pid} has ended; start it again"),
            Refusal::Kernels(pid) => write!(to, "process {pid} is a thread of the kernel; name a program's process"),
            Refusal::Bits32(pid) => write!(to, "process {pid} is a 32-bit program; use its 64-bit build"),
            Refusal::OtherUser { pid, theirs, ours } => write!(
                to,
                "process {pid} belongs to user {theirs}, and you are user {ours}; attach as user {theirs} or as root"
            ),
            Refusal::Traced { pid, by } => write!(
                to,
                "process {pid} is traced by process {by} (a debugger or strace), and only one can trace; end that first"
            ),
            Refusal::MoreRights(pid) => {
                write!(to, "process {pid} has capabilities that you do not have; attach as root")
            }
            Refusal::Protected(pid) => write!(
                to,
                "process {pid} does not let other processes look into it (PR_SET_DUMPABLE, or a program file that you may not read); attach as root"
            ),
            Refusal::Yama { pid, scope } => to.write_str(&yama(*pid, *scope)),
            Refusal::Strict(pid) => write!(
                to,
                "process {pid} may only read, write and exit (seccomp strict mode): the kernel would kill it for any advice; it cannot be steered"
            ),
            Refusal::Filtered { pid, descends: true } => write!(
                to,
                "process {pid} has filtered its own system calls since its start (seccomp): advice could kill it; start it without its sandbox"
            ),
            Refusal::Filtered { pid, .. } => write!(
                to,
                "process {pid} filters its system calls (seccomp): advice could kill it; start it under `fastmap run`, or attach as root from outside its container"
            ),
            Refusal::OwnFilters => to.write_str(
                "ptrace(2) is forbidden here (seccomp), and programs are steered by it; allow it: in a unit of systemd, SystemCallFilter=ptrace",
            ),
            Refusal::NoInstruction(pid) => write!(
                to,
                "process {pid} has no vdso, in which a system call instruction could be found: valgrind runs it, or the kernel was started with vdso=0; run it without"
            ),
            Refusal::Denied { pid, error } => write!(
                to,
                "the kernel does not let you trace process {pid} ({}): a security module or another user namespace forbids it; attach as root in the process's container",
                std::io::Error::from_raw_os_error(*error)
            ),
        }
    }
}

impl std::error::Error for Refusal {}

fn yama(pid: u32, scope: u64) -> String {
    let why = match scope {
        1 => "lets a process trace only what it has started",
        2 => "lets only root trace",
        _ => "forbids tracing until the next boot",
    };
    let help = match scope {
        1 => {
            "start the program under `fastmap run`, or let it call prctl(PR_SET_PTRACER), or attach as root, or set it to 0 with \
              `sysctl kernel.yama.ptrace_scope=0`"
        }
        2 => "attach as root, or set it to 0 with `sysctl kernel.yama.ptrace_scope=0`",
        _ => "boot with it set to 2 or less",
    };
    format!("process {pid} cannot be traced: kernel.yama.ptrace_scope is {scope}, which {why}; {help}")
}

/// Refuses if this process's filters do not let ptrace(2) pass. They may kill for it, so a child tries.
pub(super) fn if_ptrace_is_filtered(own: &Status) -> Result<(), Refusal> {
    static PASSES: OnceLock<bool> = OnceLock::new();
    let passes = || {
        let mut status = 0;
        // SAFETY: the child is a copy of this process with one thread, and makes system calls alone. It has no signal for its end, so that
        // it is waited for also where SIGCHLD is ignored.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) as libc::pid_t;
            if child == 0 {
                // It leaves no core.
                libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                let none = libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, 0, 0, 0);
                let is_looked_for = none == -1 && *libc::__errno_location() == libc::ESRCH;
                libc::syscall(libc::SYS_exit_group, if is_looked_for { 0 } else { 1 });
            }
            child > 0 && libc::waitpid(child, &mut status, libc::__WALL) == child && status == 0
        }
    };
    let is_free = Filters::of(own) == Filters::None || *PASSES.get_or_init(passes);
    if is_free { Ok(()) } else { Err(Refusal::OwnFilters) }
}

/// CAP_SYS_PTRACE.
const MAY_TRACE: u64 = 1 << 19;

/// Refuses a process for reasons that can be told before it is touched.
pub(super) fn at_first_sight(pid: u32, proof: &Proof) -> Result<(), Refusal> {
    let status = Status::of(pid).ok_or(Refusal::NoProcess(pid))?;
    judge(pid, std::process::id(), &status, proof)
}

fn judge(pid: u32, own: u32, status: &Status, proof: &Proof) -> Result<(), Refusal> {
    if pid == own || status.number("Tgid:") == Some(own.into()) {
        return Err(Refusal::Itself);
    }
    // The number of a thread is not a process's.
    if status.number("Tgid:") != Some(pid.into()) {
        return Err(Refusal::NoProcess(pid));
    }
    if matches!(status.state(), b'Z' | b'X') {
        return Err(Refusal::Ended(pid));
    }
    if status.has_no_memory() {
        // The kernel's threads are children of process 2.
        let is_kernels = pid == 2 || status.number("PPid:") == Some(2);
        return Err(if is_kernels { Refusal::Kernels(pid) } else { Refusal::Ended(pid) });
    }
    if let Some(by) = status.number("TracerPid:").filter(|by| *by != 0) {
        return Err(Refusal::Traced { pid, by });
    }
    match Filters::of(status) {
        Filters::Strict => Err(Refusal::Strict(pid)),
        filters if !proof.may_pass(filters) => Err(Refusal::Filtered { pid, descends: proof.descends() }),
        _ => Ok(()),
    }
}

/// The reason for `error`, with which the kernel refused to let the process's memory be read. To read it takes the same rights as to
/// trace the process.
pub(super) fn of_denial(pid: u32, error: Errno) -> Refusal {
    let (Some(theirs), Some(ours)) = (Status::of(pid), Status::own()) else { return Refusal::NoProcess(pid) };
    if matches!(error, Errno::SRCH | Errno::NOENT) {
        return Refusal::Ended(pid);
    }
    let owner = std::fs::metadata(format!("/proc/{pid}/stat")).ok().map(|file| u64::from(file.uid()));
    denial(pid, &theirs, &ours, owner, yama_scope(), error)
}

/// Yama's `ptrace_scope`: 0 where there is none.
pub(crate) fn yama_scope() -> u64 {
    let mut text = Vec::new();
    let is_there = crate::observe::text::read("/proc/sys/kernel/yama/ptrace_scope", &mut text);
    is_there.then(|| crate::observe::text::number(&text)).flatten().unwrap_or(0)
}

/// Whether this process may trace others in spite of Yama (CAP_SYS_PTRACE).
pub(crate) fn may_trace_all() -> bool {
    Status::own().is_some_and(|own| own.bits("CapEff:") & MAY_TRACE != 0)
}

fn denial(pid: u32, theirs: &Status, ours: &Status, owner: Option<u64>, scope: u64, error: Errno) -> Refusal {
    let may_trace = ours.bits("CapEff:") & MAY_TRACE != 0;
    let (users, user) = (theirs.numbers("Uid:"), ours.numbers("Uid:").get(1).copied().unwrap_or(0));
    if let Some(other) = users.iter().take(3).find(|one| **one != user && !may_trace) {
        return Refusal::OtherUser { pid, theirs: *other, ours: user };
    }
    if theirs.bits("CapPrm:") & !ours.bits("CapPrm:") != 0 && !may_trace {
        return Refusal::MoreRights(pid);
    }
    // The files in /proc/PID of a process that may not be looked into are root's.
    if owner.is_some_and(|owner| users.get(1).is_some_and(|user| *user != owner)) && !may_trace {
        return Refusal::Protected(pid);
    }
    if scope >= 3 || scope > 0 && !may_trace {
        return Refusal::Yama { pid, scope };
    }
    Refusal::Denied { pid, error: error.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: &str = "State:\tS\nTgid:\t7\nPPid:\t1\nTracerPid:\t0\nUid:\t5\t5\t5\t5\nVmSize:\t1 kB\nCapPrm:\t0\nCapEff:\t0\nSeccomp:\t0\n";

    fn with(from: &str, to: &str) -> Status {
        Status::made_up(&ORDINARY.replace(from, to))
    }

    #[test]
    fn what_a_process_is_tells_whether_it_can_be_reached() {
        let proof = Proof::of(false, &with("", ""));
        let sight = |status: &Status| judge(7, 1, status, &proof);
        assert_eq!(sight(&with("", "")), Ok(()));
        assert_eq!(judge(7, 7, &with("", ""), &proof), Err(Refusal::Itself));
        assert_eq!(sight(&with("Tgid:\t7", "Tgid:\t6")), Err(Refusal::NoProcess(7)));
        assert_eq!(sight(&with("State:\tS", "State:\tZ")), Err(Refusal::Ended(7)));
        assert_eq!(sight(&with("VmSize:\t1 kB\n", "")), Err(Refusal::Ended(7)));
        let kernels = ORDINARY.replace("VmSize:\t1 kB\n", "").replace("PPid:\t1", "PPid:\t2");
        assert_eq!(sight(&Status::made_up(&kernels)), Err(Refusal::Kernels(7)));
        assert_eq!(sight(&with("TracerPid:\t0", "TracerPid:\t9")), Err(Refusal::Traced { pid: 7, by: 9 }));
        assert_eq!(sight(&with("Seccomp:\t0", "Seccomp:\t1")), Err(Refusal::Strict(7)));
        let filtered = with("Seccomp:\t0", "Seccomp:\t2\nSeccomp_filters:\t1");
        assert_eq!(sight(&filtered), Err(Refusal::Filtered { pid: 7, descends: false }));
        let inherited = Proof::of(true, &with("", ""));
        assert_eq!(judge(7, 1, &filtered, &inherited), Err(Refusal::Filtered { pid: 7, descends: true }));
        assert_eq!(judge(7, 1, &filtered, &Proof::of(true, &filtered)), Ok(()));
    }

    #[test]
    fn a_denial_has_a_cause() {
        let ours = with("", "");
        let because = |theirs: &Status, owner, scope| denial(7, theirs, &ours, owner, scope, Errno::PERM);
        assert_eq!(
            because(&with("\t5\t5\t5\t5", "\t5\t6\t6\t6"), Some(6), 0),
            Refusal::OtherUser { pid: 7, theirs: 6, ours: 5 }
        );
        assert_eq!(because(&with("CapPrm:\t0", "CapPrm:\t1"), Some(5), 0), Refusal::MoreRights(7));
        assert_eq!(because(&ours, Some(0), 0), Refusal::Protected(7));
        assert_eq!(because(&ours, Some(5), 1), Refusal::Yama { pid: 7, scope: 1 });
        assert_eq!(because(&ours, Some(5), 0), Refusal::Denied { pid: 7, error: 1 });
        let root = with("CapEff:\t0", "CapEff:\tffffffff");
        assert_eq!(denial(7, &ours, &root, Some(5), 2, Errno::PERM), Refusal::Denied { pid: 7, error: 1 });
        assert_eq!(denial(7, &ours, &root, Some(5), 3, Errno::PERM), Refusal::Yama { pid: 7, scope: 3 });
    }

    #[test]
    fn yama_is_named_with_what_helps() {
        assert!(yama(7, 1).contains("ptrace_scope is 1") && yama(7, 1).contains("PR_SET_PTRACER"));
        assert!(yama(7, 2).contains("as root") && !yama(7, 2).contains("PR_SET_PTRACER"));
        assert!(yama(7, 3).contains("boot"));
    }

    #[test]
    fn processes_that_are_not_there_and_the_caller_are_refused() {
        let proof = Proof::of(false, &Status::own().unwrap());
        assert_eq!(at_first_sight(u32::MAX, &proof), Err(Refusal::NoProcess(u32::MAX)));
        assert_eq!(at_first_sight(std::process::id(), &proof), Err(Refusal::Itself));
    }
}
