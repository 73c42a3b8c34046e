//! Processes, threads, signals and descriptors.

use libc::{c_char, c_int, c_uint, c_ulong, c_void, pid_t, sigaction as Action, sighandler_t, sigset_t};

/// A handler that the C library calls around fork(2).
pub type AtFork = Option<extern "C" fn()>;

table! {
    fn __register_atfork(before: AtFork, in_parent: AtFork, in_child: AtFork, library: *mut c_void) -> c_int;
    fn _Fork() -> pid_t;
    fn clone(run: extern "C" fn(*mut c_void) -> c_int, stack: *mut c_void, flags: c_int, arg: *mut c_void, parent: *mut c_void, tls: *mut c_void, child: *mut c_void) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execveat(fd: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attr: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attr: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void;
    fn capset(header: *mut c_void, rights: *const c_void) -> c_int;
    fn _exit(status: c_int);
    fn _Exit(status: c_int);
    fn quick_exit(status: c_int);
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int;
    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    fn sigset(signal: c_int, disposition: sighandler_t) -> sighandler_t;
    fn sigignore(signal: c_int) -> c_int;
    fn siginterrupt(signal: c_int, flag: c_int) -> c_int;
    fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    fn sigblock(mask: c_int) -> c_int;
    fn sigsetmask(mask: c_int) -> c_int;
    fn sighold(signal: c_int) -> c_int;
    fn sigrelse(signal: c_int) -> c_int;
    fn sigsuspend(mask: *const sigset_t) -> c_int;
    fn __sigsuspend(mask: *const sigset_t) -> c_int;
    fn pthread_attr_setsigmask_np(attr: *mut c_void, mask: *const sigset_t) -> c_int;
    fn pthread_create(thread: *mut c_ulong, attr: *const c_void, run: extern "C-unwind" fn(*mut c_void) -> *mut c_void, arg: *mut c_void) -> c_int;
    fn thrd_create(thread: *mut c_ulong, run: extern "C-unwind" fn(*mut c_void) -> c_int, arg: *mut c_void) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn __close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int);
    fn dup(old: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn __dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn eventfd(value: c_uint, flags: c_int) -> c_int;
    fn open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn pidfd_getfd(process: c_int, target: c_int, flags: c_uint) -> c_int;
    fn closedir(folder: *mut libc::DIR) -> c_int;
}
