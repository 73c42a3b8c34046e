//! One thread of another process, held by ptrace(2): each request, and what each stop means.
//!
//! No status is taken by wait(2): another thread of this process may wait for it. PTRACE_GETSIGINFO tells whether the thread has
//! stopped, and why. All requests come from the thread that seized. When that thread ends, the kernel lets go of all that it holds, be
//! it stopped, running or a zombie.

use super::filters::Instruction;
use crate::PAGE;
use crate::clock::now;
use crate::observe::Descriptor;
use libc::{c_long, c_void, user_regs_struct as Registers};
use rustix::io::pread;
use std::mem::size_of;
use std::time::Duration;

/// A thread that is held. Dropping this does not let go: [`Tracee::let_go`] and the end of the calling thread do.
#[derive(Debug)]
pub(super) struct Tracee {
    thread: libc::pid_t,
    /// Which pages of its memory are there: of the address space that it had when it was seized.
    pages: Descriptor,
}

/// Why a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It was asked to.
    Asked,
    /// Its whole process stops or has stopped, by a signal.
    Group,
    /// It is at the beginning or the end of a system call.
    Call,
    /// It is about to get a signal: its number, and whether an instruction of the thread's has raised it.
    Signal(i32, bool),
    /// It has not stopped in time.
    Late,
    /// It has ended.
    Gone,
}

/// `PTRACE_EVENT_STOP` in `si_code`.
const EVENT_STOP: i32 = 128;
/// `si_code` of a stop at a system call: SIGTRAP, with the bit of PTRACE_O_TRACESYSGOOD.
const CALL: i32 = libc::SIGTRAP | 0x80;
/// So many looks have no sleep between them: a thread that runs on another processor stops within a few.
const LOOKS: u32 = 10;
const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// Signals that an instruction raises.
const RAISED: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

fn is_raised(info: &libc::siginfo_t) -> bool {
    // Such signals also tell of memory that went bad elsewhere (BUS_MCEERR_AO), and of a counter that ran over (TRAP_PERF).
    let comes_from_elsewhere = matches!((info.si_signo, info.si_code), (libc::SIGBUS, 5) | (libc::SIGTRAP, 6));
    info.si_code > 0 && RAISED.contains(&info.si_signo) && !comes_from_elsewhere
}

/// Sleep before a look: short at first, so that the thread stands no longer than it must. (sched_yield(2) would let all others run
/// first: on a busy processor threads stood four times as long.)
fn nap(looks: u32) -> Duration {
    let looks = u64::from(looks.min(200));
    Duration::from_micros(5 + looks * looks / 20).min(Duration::from_millis(1))
}

impl Tracee {
    /// Holds a thread without stopping it (PTRACE_SEIZE). `None` where another process holds it, or it is gone.
    pub(super) fn seize(thread: u32) -> Option<Tracee> {
        let pages = Descriptor::open(&format!("/proc/{thread}/pagemap"))?;
        let tracee = Tracee { thread: thread as libc::pid_t, pages };
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        tracee.request(libc::PTRACE_SEIZE, 0, options as *mut c_void).ok().map(|_| tracee)
    }

    fn request(&self, request: u32, address: usize, data: *mut c_void) -> Result<c_long, i32> {
        // SAFETY: the requests of this file read and write what `data` points to, if they take a pointer, and it is as large
        // as they take it for.
        let done = unsafe { libc::ptrace(request as _, self.thread, address as *mut c_void, data) };
        if done == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(done) }
    }

    /// Asks it to stop (PTRACE_INTERRUPT). If it has stopped already, it stops once more as soon as it goes on.
    pub(super) fn interrupt(&self) -> bool {
        self.request(libc::PTRACE_INTERRUPT, 0, std::ptr::null_mut()).is_ok()
    }

    /// Lets it go on until the next beginning or end of a system call.
    pub(super) fn go_to_call(&self) -> bool {
        self.request(libc::PTRACE_SYSCALL, 0, std::ptr::null_mut()).is_ok()
    }

    /// Lets it go on.
    pub(super) fn go_on(&self) -> bool {
        self.request(libc::PTRACE_CONT, 0, std::ptr::null_mut()).is_ok()
    }

    /// Lets go of it, with the signal that it was about to get, or 0.
    pub(super) fn let_go(&self, signal: i32) {
        // It fails for a thread that was killed, which needs nothing more.
        let _ = self.request(libc::PTRACE_DETACH, 0, signal as usize as *mut c_void);
    }

    /// Waits for it to stop. Returns why it has, and when it was last seen running.
    pub(super) fn wait(&self, bound: Duration) -> (Stop, Duration) {
        let began = now();
        let mut ran = began;
        for look in 0u32.. {
            if let Some(stop) = self.look() {
                return (stop, ran);
            }
            ran = now();
            if look >= LOOKS {
                std::thread::sleep(nap(look - LOOKS));
                if self.has_ended() {
                    return (Stop::Gone, ran);
                }
            }
            if ran - began > bound {
                break;
            }
        }
        (Stop::Late, ran)
    }

    /// Why it has stopped. `None` while it runs, or once it has ended.
    fn look(&self) -> Option<Stop> {
        // SAFETY: any bytes are a siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETSIGINFO, 0, (&raw mut info).cast()).ok()?;
        Some(match (info.si_code >> 8, info.si_code) {
            (EVENT_STOP, _) if info.si_signo == libc::SIGTRAP => Stop::Asked,
            (EVENT_STOP, _) => Stop::Group,
            (_, CALL) => Stop::Call,
            _ => Stop::Signal(info.si_signo, is_raised(&info)),
        })
    }

    /// Whether it has ended, or is no longer held. Its status is not taken (WNOWAIT).
    fn has_ended(&self) -> bool {
        // SAFETY: as above.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let which = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG | libc::__WALL;
        // SAFETY: `info` is there to be written.
        let done = unsafe { libc::waitid(libc::P_PID, self.thread as libc::id_t, &mut info, which) };
        done != 0 || matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
    }

    /// Its registers, if they are those of 64-bit code.
    pub(super) fn registers(&self) -> Option<Registers> {
        /// The selector of 64-bit code.
        const CODE: u64 = 0x33;
        // SAFETY: any bytes are registers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        let mut part = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
        self.request(libc::PTRACE_GETREGSET, libc::NT_PRSTATUS as usize, (&raw mut part).cast()).ok()?;
        (part.iov_len == size_of::<Registers>() && registers.cs == CODE).then_some(registers)
    }

    /// Sets its registers.
    pub(super) fn set(&self, registers: &Registers) -> bool {
        let mut registers = *registers;
        let mut part = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
        self.request(libc::PTRACE_SETREGSET, libc::NT_PRSTATUS as usize, (&raw mut part).cast()).is_ok()
    }

    /// Eight bytes of its memory, if that is there. A read of what is not there would wait for a device, with the thread stopped.
    fn memory(&self, address: u64) -> Option<u64> {
        const PRESENT: u64 = 1 << 63;
        let is_there = |address: u64| {
            let mut page = [0; 8];
            pread(&self.pages, &mut page, address / PAGE * 8) == Ok(8) && u64::from_ne_bytes(page) & PRESENT != 0
        };
        let mut word = [0; 8];
        (is_there(address) && is_there(address + 7) && self.read(address, &mut word)).then(|| u64::from_ne_bytes(word))
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let there = libc::iovec { iov_base: address as usize as *mut c_void, iov_len: into.len() };
        // SAFETY: `into` is there to be written.
        let read = unsafe { libc::process_vm_readv(self.thread, &part, 1, &there, 1, 0) };
        read == into.len() as isize
    }

    /// Whether a `syscall` instruction lies there. The address must be the vdso's.
    pub(super) fn has_instruction(&self, address: u64) -> bool {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes) && bytes == [0x0f, 0x05]
    }

    /// Whether all its filters of system calls are what `is_fine` wants. `false` where they cannot be read, as without CAP_SYS_ADMIN.
    pub(super) fn filters_are(&self, is_fine: impl Fn(&[Instruction]) -> bool) -> bool {
        /// The most instructions that a filter may have (BPF_MAXINSNS).
        const LONGEST: usize = 4096;
        let mut program = vec![Instruction::default(); LONGEST];
        for index in 0.. {
            match self.request(PTRACE_SECCOMP_GET_FILTER, index, program.as_mut_ptr().cast()) {
                Ok(length) if (0..=LONGEST as c_long).contains(&length) && is_fine(&program[..length as usize]) => {}
                Err(libc::ENOENT) => return index > 0,
                _ => return false,
            }
        }
        false
    }

    /// Whether a signal waits for it that one of its own instructions has raised: by a fault for which the device failed, say.
    pub(super) fn has_raised(&self) -> bool {
        const MOST: usize = 64;
        // SAFETY: any bytes are a siginfo_t.
        let mut infos: [libc::siginfo_t; MOST] = unsafe { std::mem::zeroed() };
        let mut which = libc::ptrace_peeksiginfo_args { off: 0, flags: 0, nr: MOST as i32 };
        let asked =
            self.request(libc::PTRACE_PEEKSIGINFO, (&raw mut which).expose_provenance(), infos.as_mut_ptr().cast());
        let Ok(count) = asked else { return true };
        infos[..(count as usize).min(MOST)].iter().any(is_raised) || count as usize >= MOST
    }

    /// Whether it is inside a restartable sequence (rseq(2)), which the kernel would abort. Where the kernel does not tell
    /// (before 5.13), only a thread in a system call is surely in none.
    pub(super) fn is_in_sequence(&self, registers: &Registers) -> bool {
        /// `struct ptrace_rseq_configuration`.
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            at: u64,
            size: u32,
            signature: u32,
            flags: u32,
            pad: u32,
        }
        let mut of = Configuration::default();
        let data = (&raw mut of).cast();
        if self.request(PTRACE_GET_RSEQ_CONFIGURATION, size_of::<Configuration>(), data).is_err() {
            return registers.orig_rax as i64 == -1;
        }
        if of.at == 0 {
            return false;
        }
        // `rseq_cs` in `struct rseq` points to `version`, `flags`, `start_ip`, `post_commit_offset`.
        let Some(sequence) = self.memory(of.at + 8) else { return true };
        if sequence == 0 {
            return false;
        }
        let (Some(start), Some(length)) = (self.memory(sequence + 8), self.memory(sequence + 16)) else { return true };
        // Programs leave the pointer set after a sequence; the kernel clears it when it next looks.
        registers.rip.wrapping_sub(start) < length
    }
}
