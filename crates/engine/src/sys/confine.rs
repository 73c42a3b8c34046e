//! What the keeper gives up before it waits: capabilities, and, by an allow-list, system calls: capset(2), seccomp(2).

use super::errno;

/// Gives up, for good, what this process could do beyond `pwrite(2)` and its kin on descriptors that are open: all
/// capabilities, and, by an allow-list (seccomp(2)), every other system call. What a process may do is not what its
/// memory's other owner may do: that one may drop its rights, be taken over, and write code into memory that this
/// process executes.
///
/// The user stays. A process of another user that shares the program's memory would either be that user's to trace
/// (ptrace(2)), and the program with it, or make the program's memory one that is not dumped: `PR_SET_DUMPABLE` is the
/// memory's. Without capabilities, and without a call that looks at the user, it is of no use.
///
/// Of `program`, a process, it may ask whether it has ended, and whether it still has this memory.
pub fn confine(program: u32) -> Result<(), i32> {
    /// `_LINUX_CAPABILITY_VERSION_3`, and this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    /// Effective, permitted, inheritable: twice.
    const NONE: [u32; 6] = [0; 6];
    const POISON: u32 = 0xC020_AA08;
    const BLKGETSIZE64: u32 = 0x8008_1272;
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() } as u32;
    let any = |call| (call, None);
    let allowed = [
        any(libc::SYS_futex),
        any(libc::SYS_pread64),
        any(libc::SYS_pwrite64),
        any(libc::SYS_fstat),
        any(libc::SYS_close_range),
        // Memory of files that are open, never to be executed: what lies past RLIMIT_FSIZE is written so.
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
        // Which argument, and what it may be.
        (libc::SYS_write, Some((0, [libc::STDERR_FILENO as u32; 2]))),
        (libc::SYS_unshare, Some((0, [libc::CLONE_VM as u32, libc::CLONE_FILES as u32]))),
        (libc::SYS_ioctl, Some((1, [POISON, BLKGETSIZE64]))),
        (libc::SYS_fcntl, Some((1, [libc::F_OFD_SETLK as u32; 2]))),
        // Of its own memory, which may be the program's.
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

/// A program for the kernel that decides by number and one argument of a system call (seccomp(2)). It is built on the
/// stack.
struct Filter {
    code: [libc::sock_filter; 192],
    len: usize,
}

impl Filter {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// In `seccomp_data`: the number, the architecture, and six arguments of eight bytes.
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

    /// Allows a call; where an argument (its place) must have one of two values, only then. Their upper halves count as
    /// well.
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

    /// What a process like the keeper comes to when it tries, by place.
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
                // Its task.
                said(libc::syscall(libc::SYS_pwrite64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_pread64, fd, at, 1, 0)),
                said(libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &iov, 1usize, &iov, 1usize, 0usize)),
                // What must fail from here on.
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
        // It has this thread's storage, errno too, until the thread ends: that waits for it.
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
