//! The keeper (`files/keeper.rs`) gives up its rights before it waits for the program's end: its capabilities (capset(2)), and all system
//! calls that are not on an allow-list (seccomp(2)).

use super::errno;

/// Gives up rights of this process for good: all capabilities, and every system call that is not in the list below. The process can still
/// read and write files that are open.
///
/// The reason is that the program shares this process's memory. The program may drop its own rights later. An attacker who then takes the
/// program over could write code into memory that this process executes, and so use the rights that this process still has.
///
/// The process keeps its user id. With another user id, either that user could trace it (ptrace(2)) and so reach the program's memory, or the
/// kernel would mark the memory as not to be dumped (`PR_SET_DUMPABLE`), which holds for the program as well. The user id gives little
/// without capabilities: of the allowed calls only process_vm_readv(2) and prlimit64(2), which here may only read limits, check it.
///
/// `program` is a process id. This process may still ask two things about that process: whether it has ended (pidfd_open(2), poll(2)),
/// and whether it still has this memory (process_vm_readv(2)).
pub fn confine(program: u32) -> Result<(), i32> {
    /// For capset(2): `_LINUX_CAPABILITY_VERSION_3`, and process id 0, which means this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    /// The effective, permitted and inheritable sets: first of capabilities 0 to 31, then of 32 to 63.
    const NONE: [u32; 6] = [0; 6];
    const POISON: u32 = 0xC020_AA08;
    const BLKGETSIZE64: u32 = 0x8008_1272;
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() } as u32;
    let any = |call| (call, None);
    // System calls. `Some` restricts one argument: it holds the argument's place, and the two values that it may have.
    let allowed = [
        any(libc::SYS_futex),
        any(libc::SYS_pread64),
        any(libc::SYS_pwrite64),
        any(libc::SYS_fstat),
        any(libc::SYS_close_range),
        // Memory that can be read and written, never executed: `file::write_by_mapping` writes what lies past RLIMIT_FSIZE.
        (libc::SYS_mmap, Some((2, [(libc::PROT_READ | libc::PROT_WRITE) as u32; 2]))),
        any(libc::SYS_munmap),
        (libc::SYS_prlimit64, Some((2, [0; 2]))),
        any(libc::SYS_rt_sigtimedwait),
        (libc::SYS_process_vm_writev, Some((0, [own; 2]))),
        any(libc::SYS_nanosleep),
        any(libc::SYS_restart_syscall),
        any(libc::SYS_sched_yield),
        any(libc::SYS_getpid),
        any(libc::SYS_exit),
        any(libc::SYS_exit_group),
        (libc::SYS_write, Some((0, [libc::STDERR_FILENO as u32; 2]))),
        (libc::SYS_unshare, Some((0, [libc::CLONE_VM as u32, libc::CLONE_FILES as u32]))),
        (libc::SYS_ioctl, Some((1, [POISON, BLKGETSIZE64]))),
        (libc::SYS_fcntl, Some((1, [libc::F_OFD_SETLK as u32, libc::F_SETLEASE as u32]))),
        // Between descriptors that the keeper has.
        any(libc::SYS_dup2),
        // For this process's own memory and for the program's. The two may be the same memory.
        (libc::SYS_process_vm_readv, Some((0, [own, program]))),
        (libc::SYS_pidfd_open, Some((0, [program; 2]))),
        any(libc::SYS_poll),
    ];
    let mut filter = Filter::new();
    allowed.iter().for_each(|(call, argument)| filter.allow(*call as u32, *argument));
    filter.end();
    // SAFETY: numbers, and structures of this function, which the kernel copies.
    unsafe {
        let check = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(errno()) };
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_capset, &HEADER, &NONE))?;
        let program = libc::sock_fprog { len: filter.len as u16, filter: filter.code.as_mut_ptr() };
        check(libc::syscall(libc::SYS_prctl, libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0))
    }
}

/// A BPF program that allows or refuses a system call by its number and one of its arguments (seccomp(2)). It is built on the stack, since
/// the keeper allocates nothing.
struct Filter {
    code: [libc::sock_filter; 192],
    len: usize,
}

impl Filter {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Offsets in `seccomp_data`: of the number, of the architecture, and of the six arguments, eight bytes each.
    const NUMBER: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    const ARGUMENTS: u32 = 16;
    const X86_64: u32 = 0xC000_003E;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    fn new() -> Self {
        let mut filter = Filter { code: [libc::sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; 192], len: 0 };
        filter.push(Self::LOAD, Self::ARCHITECTURE, 0, 0);
        filter.push(Self::EQUAL, Self::X86_64, 1, 0);
        filter.end();
        filter
    }

    fn push(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.code[self.len] = libc::sock_filter { code, jt, jf, k };
        self.len += 1;
    }

    /// Allows a call. If `argument` is given (its place, and two values), the call is allowed only with one of these values there. All 64
    /// bits of the argument are compared.
    fn allow(&mut self, call: u32, argument: Option<(u32, [u32; 2])>) {
        self.push(Self::LOAD, Self::NUMBER, 0, 0);
        let Some((place, [one, other])) = argument else {
            self.push(Self::EQUAL, call, 0, 1);
            return self.push(Self::RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
        };
        let low = Self::ARGUMENTS + 8 * place;
        self.push(Self::EQUAL, call, 0, 6);
        self.push(Self::LOAD, low + 4, 0, 0);
        self.push(Self::EQUAL, 0, 0, 4);
        self.push(Self::LOAD, low, 0, 0);
        self.push(Self::EQUAL, one, 1, 0);
        self.push(Self::EQUAL, other, 0, 1);
        self.push(Self::RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
    }

    fn end(&mut self) {
        self.push(Self::RETURN, Self::REFUSE, 0, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::process::spawn_sharing;
    use super::*;
    use std::os::fd::AsRawFd;
    use std::ptr;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

    /// For each call that the confined process tries: its error number, or zero if it succeeds.
    static CAME_TO: [AtomicI32; 32] = [const { AtomicI32::new(i32::MIN) }; 32];
    static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
    static ENDED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn attempt(_: *mut libc::c_void) -> libc::c_int {
        let confined = confine(std::process::id());
        let fd = DESCRIPTOR.load(Ordering::Relaxed);
        let mut byte = *b"x";
        let (path, at) = (c"/etc/passwd".as_ptr(), byte.as_mut_ptr());
        let iov = libc::iovec { iov_base: at.cast(), iov_len: 1 };
        // SAFETY: calls that must fail, or that do what they are told to bytes of this function.
        let tried = unsafe {
            let said = |result: libc::c_long| if result < 0 { errno() } else { 0 };
            [
                confined.err().unwrap_or(0),
                // Calls that the keeper needs.
                said(libc::syscall(libc::SYS_pwrite64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_pread64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &iov, 1usize, &iov, 1usize, 0usize)),
                // From here on, all calls must fail.
                said(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY)),
                said(libc::syscall(libc::SYS_open, path, libc::O_RDONLY)),
                said(libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
                said(libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), ptr::null::<u8>(), ptr::null::<u8>())),
                said(libc::syscall(libc::SYS_kill, libc::getpid(), 0)),
                said(libc::syscall(libc::SYS_ptrace, libc::PTRACE_ATTACH, 1, 0, 0)),
                said(libc::syscall(libc::SYS_process_vm_readv, 1, &iov, 1usize, &iov, 1usize, 0usize)),
                said(libc::syscall(libc::SYS_setuid, 0)),
                said(libc::syscall(libc::SYS_io_uring_setup, 1, ptr::null::<u8>())),
                said(libc::syscall(libc::SYS_io_uring_enter, fd, 1, 0, 0, 0, 0)),
                said(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
                said(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)),
                said(libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL)),
                said(libc::syscall(libc::SYS_ioctl, fd, libc::FIONREAD, at)),
                said(libc::syscall(libc::SYS_write, fd, at, 1)),
                said(libc::syscall(libc::SYS_mmap, 0, 4096, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)),
            ]
        };
        CAME_TO.iter().zip(tried).for_each(|(word, result)| word.store(result, Ordering::Relaxed));
        ENDED.store(1, Ordering::Release);
        0
    }

    #[test]
    fn a_confined_process_can_write_what_is_open_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        DESCRIPTOR.store(file.as_raw_fd(), Ordering::Relaxed);
        // The process uses this thread's thread-local storage, with errno. So the thread waits until the process has tried all calls.
        std::thread::spawn(|| {
            spawn_sharing(attempt).unwrap();
            while ENDED.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        let came_to: Vec<i32> = CAME_TO.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let tried = came_to.iter().take_while(|result| **result != i32::MIN).count();
        assert!(tried == 20 && came_to[..4] == [0; 4], "{came_to:?}");
        assert!(came_to[4..tried].iter().all(|result| *result == libc::EPERM), "{came_to:?}");
        let mut written = String::new();
        std::io::Read::read_to_string(&mut &file, &mut written).unwrap();
        assert_eq!(written, "x");
    }
}
