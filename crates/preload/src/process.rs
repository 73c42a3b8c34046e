//! Other processes: what comes after this program, or beside it, reads files, not the cache.
//!
//! Before the process ends, executes another program or makes a process, dirty pages are written. A child made by fork(2) gets
//! kernel mappings at the same places (`fastmap::calls::in_child`): by pthread_atfork(3), which covers fork(3) and all that the
//! C library calls it for (daemon(3), forkpty(3)), and by wrapping `_Fork` and clone(2) without `CLONE_VM`, which it does not
//! cover. A child that shares the memory (vfork(2), posix_spawn(3)) has the maps too: nothing is to be done for it, and it
//! must not save anything itself, being another process until it executes a program.
//!
//! vfork(2) cannot be wrapped, since it returns twice to the same stack frame; but a function in front of it can jump to it.

use crate::guard::caught;
use crate::{allocator, heap, holds, kernel_maps, next, report, set_errno, signals, undisturbed};
use fastmap::calls;
use libc::{c_char, c_int, c_void, pid_t};
use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// The process that maps files through the engine; zero: none yet.
static OWNER: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// This thread is between the two halves of making a child that concerns the engine.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

fn pid() -> pid_t {
    // SAFETY: no preconditions. glibc asks the kernel each time.
    unsafe { libc::getpid() }
}

/// The process whose memory this is: set at the start and in children that have a copy of it; zero before that.
static SELF: AtomicI32 = AtomicI32::new(0);

/// This process's number, if it shares the memory of the one whose it is (vfork(2)), and so all that is kept here.
pub(crate) fn guest() -> Option<pid_t> {
    let (owner, pid) = (SELF.load(Ordering::Relaxed), pid());
    (owner != 0 && owner != pid).then_some(pid)
}

/// Notes that this process maps files through the engine.
pub(crate) fn note_maps() {
    OWNER.store(pid(), Ordering::Release);
}

/// Whether this process maps files through the engine: not a child of the one that does, even if it shares its memory.
pub(crate) fn owns_maps() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner == pid()
}

/// Whether this process, or one that it was made by, does: as good an answer as there is without a system call.
pub(crate) fn may_own_maps() -> bool {
    OWNER.load(Ordering::Acquire) != 0
}

/// Notes that this process does not map files through the engine any more.
pub(crate) fn forget_maps() {
    OWNER.store(0, Ordering::Release);
}

/// Whether it was an ancestor of this process that mapped files through the engine.
pub(crate) fn is_child_of_owner() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner != 0 && owner != pid()
}

/// Registers what is done around fork(2), once, before anybody registers anything else: so a child's maps are there when
/// handlers of the program run in it, and still there when the last of them has run before the fork.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        SELF.store(pid(), Ordering::Relaxed);
        // SAFETY: functions of this library, which is never unloaded: no handle of it is named.
        unsafe { next::__register_atfork(Some(before_fork), Some(in_parent), Some(in_child), ptr::null_mut()) };
    });
}

/// What pthread_atfork(3), a part of each library that calls it, calls: their constructors may run before this library's.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __register_atfork(
    before: next::AtFork,
    in_parent: next::AtFork,
    in_child: next::AtFork,
    library: *mut c_void,
) -> c_int {
    start();
    // SAFETY: the caller's contract.
    unsafe { next::__register_atfork(before, in_parent, in_child, library) }
}

extern "C" fn before_fork() {
    if owns_maps() {
        FORKING.set(true);
        // The long part of it. The other leaves signals blocked until the fork is over.
        undisturbed((), calls::save_all);
        undisturbed((), heap::before_fork);
        caught((), calls::before_fork);
    }
    kernel_maps::TABLE.before_fork();
    allocator::HEAP.before_fork();
}

extern "C" fn in_parent() {
    allocator::HEAP.after_fork();
    kernel_maps::TABLE.after_fork();
    report::note_child();
    if FORKING.replace(false) {
        // SAFETY: `before_fork` came before, in this thread.
        caught((), || unsafe { calls::in_parent() });
        caught((), heap::in_parent);
    }
}

extern "C" fn in_child() {
    SELF.store(pid(), Ordering::Relaxed);
    allocator::HEAP.after_fork();
    kernel_maps::TABLE.after_fork();
    report::in_child();
    let was_owner = FORKING.replace(false);
    // Of a child's children, too.
    // SAFETY: likewise, in the thread that this child is made of; or nothing came before.
    caught((), || unsafe { calls::in_child() });
    if was_owner {
        caught((), heap::in_child);
    }
}

/// Writes what others are about to read: another program comes.
pub(crate) fn save() {
    report::note_child();
    save_files();
}

fn save_files() {
    if owns_maps() {
        undisturbed((), calls::save_all);
    }
}

/// `_Fork(3)`: fork(2) without pthread_atfork(3).
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: no preconditions.
    unsafe { forking(|| next::_Fork()) }
}

/// A call that makes a child with a copy of the memory, past the C library.
///
/// # Safety
/// It returns zero in the child.
pub(crate) unsafe fn forking<P: PartialEq + From<u8>>(call: impl FnOnce() -> P) -> P {
    before_fork();
    let child = call();
    // SAFETY: this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if child == P::from(0) {
        in_child()
    } else {
        in_parent()
    }
    set_errno(errno);
    child
}

/// clone(2) as the C library has it. Without `CLONE_VM` it is a fork(2) in which a function is called.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    run: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent: *mut c_void,
    tls: *mut c_void,
    child: *mut c_void,
) -> c_int {
    struct Run(extern "C" fn(*mut c_void) -> c_int, *mut c_void);
    extern "C" fn begin(own: *mut c_void) -> c_int {
        in_child();
        // SAFETY: on the parent's stack, which this child has a copy of.
        let Run(run, arg) = unsafe { own.cast::<Run>().read() };
        run(arg)
    }
    // SAFETY: the caller's contract.
    unsafe {
        if flags & libc::CLONE_VM != 0 {
            return next::clone(run, stack, flags, arg, parent, tls, child);
        }
        before_fork();
        let mut own = Run(run, arg);
        let made = next::clone(begin, stack, flags, ptr::from_mut(&mut own).cast(), parent, tls, child);
        let errno = *libc::__errno_location();
        in_parent();
        set_errno(errno);
        made
    }
}

/// vfork(2): the child shares the memory, and is about to execute a program that reads files.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn vfork() -> pid_t {
    // The C library's own finds the stack as its caller left it.
    naked_asm!("sub rsp, 8", "call {before}", "add rsp, 8", "jmp rax", before = sym before_vfork)
}

/// vfork(2), by its other name.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn __vfork() -> pid_t {
    naked_asm!("jmp {vfork}", vfork = sym vfork)
}

extern "C" fn before_vfork() -> *mut c_void {
    static NEXT: next::Next = next::Next::new(c"vfork");
    save();
    signals::before_vfork();
    // Every C library has it.
    NEXT.find().unwrap_or(libc::fork as *mut c_void)
}

pub(crate) type Strings = *const *const c_char;

/// The arguments of an exec, as the kernel can read them: none in the engine's memory, where it finds only pages that are
/// there. Never taken apart where exec succeeds, and in a child of vfork(2) left to its parent.
struct Readable {
    path: *const c_char,
    argv: Strings,
    envp: Strings,
    copied: *mut c_void,
    len: usize,
}

impl Readable {
    /// # Safety
    /// C strings, and arrays of them that end with null; or null.
    unsafe fn new(path: *const c_char, argv: Strings, envp: Strings) -> Option<Self> {
        // SAFETY: the caller's contract; what is copied fits the mapping, which was measured with the same code.
        unsafe {
            let mut own = Readable { path, argv, envp, copied: ptr::null_mut(), len: 0 };
            let mut inside = in_engine(path);
            let mut len = text_len(path);
            for array in [argv, envp] {
                let count = count(array);
                inside |= !array.is_null() && holds(array, (count + 1) * size_of::<*const c_char>());
                len += (count + 1) * size_of::<*const c_char>();
                for at in 0..count {
                    inside |= in_engine(*array.add(at));
                    len += text_len(*array.add(at));
                }
            }
            if !inside {
                return Some(own);
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = next::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            (own.copied, own.len) = (at, len);
            let words = at.cast::<*const c_char>();
            let (own_argv, own_envp) = (words, words.add(count(argv) + 1));
            let mut to = own_envp.add(count(envp) + 1).cast::<c_char>();
            let mut copy = |text: *const c_char| {
                if text.is_null() {
                    return text;
                }
                let (start, len) = (to, text_len(text));
                ptr::copy_nonoverlapping(text, start, len);
                to = to.add(len);
                start.cast_const()
            };
            own.path = copy(path);
            for (from, own) in [(argv, own_argv), (envp, own_envp)] {
                (0..count(from)).for_each(|at| *own.add(at) = copy(*from.add(at)));
            }
            own.argv = if argv.is_null() { argv } else { own_argv };
            own.envp = if envp.is_null() { envp } else { own_envp };
            Some(own)
        }
    }
}

impl Drop for Readable {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: its own mapping; errno is the call's.
            unsafe {
                let errno = *libc::__errno_location();
                next::munmap(self.copied, self.len);
                set_errno(errno);
            }
        }
    }
}

/// With the zero at its end.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: a C string or null.
    if text.is_null() { 0 } else { unsafe { CStr::from_ptr(text) }.count_bytes() + 1 }
}

unsafe fn in_engine(text: *const c_char) -> bool {
    // SAFETY: a C string or null.
    !text.is_null() && (holds(text, 1) || holds(text, unsafe { text_len(text) }))
}

unsafe fn count(array: Strings) -> usize {
    // SAFETY: an array that ends with null, or null.
    unsafe { if array.is_null() { 0 } else { (0..).take_while(|at| !(*array.add(*at)).is_null()).count() } }
}

unsafe extern "C" {
    static environ: Strings;
}

/// What every exec begins with: the files are as the program left them, and SIGBUS is blocked if it believes so. Returns if
/// the call did, that is, failed.
unsafe fn exec(path: *const c_char, argv: Strings, envp: Strings, call: impl FnOnce(&Readable) -> c_int) -> c_int {
    save();
    // SAFETY: the caller's contract.
    let Some(readable) = (unsafe { Readable::new(path, argv, envp) }) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    let _signals = signals::AsTold::instead();
    call(&readable)
}

pub(crate) unsafe fn exec_path(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(path, argv, envp, |own| next::execve(own.path, own.argv, own.envp)) }
}

unsafe fn exec_file(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(file, argv, envp, |own| next::execvpe(own.path, own.argv, own.envp)) }
}

pub(crate) unsafe fn exec_at(fd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { exec(path, argv, envp, |own| next::execveat(fd, own.path, own.argv, own.envp, flags)) }
}

/// Declares the calls of the exec family. (What calls one from here calls the function behind it: the exported name would be
/// the C library's.)
macro_rules! execs {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = $call:expr;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { $call }
        }
    )* };
}

execs! {
    /// execve(2).
    fn execve(path: *const c_char, argv: Strings, envp: Strings) = exec_path(path, argv, envp);
    /// execv(3).
    fn execv(path: *const c_char, argv: Strings) = exec_path(path, argv, environ);
    /// execvp(3).
    fn execvp(file: *const c_char, argv: Strings) = exec_file(file, argv, environ);
    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) = exec_file(file, argv, envp);
    /// fexecve(3).
    fn fexecve(fd: c_int, argv: Strings, envp: Strings) =
        exec(ptr::null(), argv, envp, |own| next::fexecve(fd, own.argv, own.envp));
    /// execveat(2).
    fn execveat(fd: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) =
        exec_at(fd, path, argv, envp, flags);
}

/// The variadic calls: hands a collector the first argument, the place of those that came in registers, and that of the rest,
/// behind the return address.
macro_rules! variadic {
    ($($(#[$doc:meta])* $name:ident: $collect:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As there.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {collect}",
                "add rsp, 40",
                "ret",
                collect = sym $collect
            )
        }
    )* };
}

variadic! {
    /// execl(3).
    execl: collect_execl;
    /// execlp(3).
    execlp: collect_execlp;
    /// execle(3).
    execle: collect_execle;
}

unsafe extern "C" fn collect_execl(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { with_list(registers, stack, |argv, _| exec_path(path, argv, environ)) }
}

unsafe extern "C" fn collect_execlp(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { with_list(registers, stack, |argv, _| exec_file(file, argv, environ)) }
}

unsafe extern "C" fn collect_execle(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: the caller's contract: the environment follows the null.
    unsafe { with_list(registers, stack, |argv, after| exec_path(path, argv, after.cast())) }
}

/// Makes an array of a list of arguments, which ends with null, and hands it on with what follows the null. Nothing is
/// allocated: this may be a child made by vfork(2).
unsafe fn with_list(registers: Strings, stack: Strings, then: impl FnOnce(Strings, *const c_char) -> c_int) -> c_int {
    const IN_REGISTERS: usize = 5;
    const FEW: usize = 512;
    // SAFETY: the caller's contract; the array has room for the null.
    unsafe {
        let argument = |at: usize| {
            if at < IN_REGISTERS { *registers.add(at) } else { *stack.add(at - IN_REGISTERS) }
        };
        let count = (0..).take_while(|at| !argument(*at).is_null()).count();
        let after = argument(count + 1);
        if count < FEW {
            let mut array = [ptr::null(); FEW];
            (0..count).for_each(|at| array[at] = argument(at));
            return then(array.as_ptr(), after);
        }
        let len = (count + 1) * size_of::<*const c_char>();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let array = next::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if array == libc::MAP_FAILED {
            return -1;
        }
        let array = array.cast::<*const c_char>();
        (0..count).for_each(|at| *array.add(at) = argument(at));
        let result = then(array, after);
        let errno = *libc::__errno_location();
        next::munmap(array.cast(), len);
        set_errno(errno);
        result
    }
}

type Spawn = unsafe fn(*mut pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

unsafe fn spawn(
    call: Spawn,
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attr: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    save();
    // SAFETY: the caller's contract.
    unsafe {
        let Some(own) = Readable::new(path, argv, envp) else { return libc::ENOMEM };
        let _signals = signals::AsTold::beside();
        call(pid, own.path, actions, attr, own.argv, own.envp)
    }
}

/// posix_spawn(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attr: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { spawn(next::posix_spawn, pid, path, actions, attr, argv, envp) }
}

/// posix_spawnp(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attr: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { spawn(next::posix_spawnp, pid, file, actions, attr, argv, envp) }
}

/// system(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    save();
    // SAFETY: the caller's contract.
    unsafe {
        let Some(own) = Readable::new(command, ptr::null(), ptr::null()) else { return -1 };
        next::system(own.path)
    }
}

/// popen(3).
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    save();
    // SAFETY: the caller's contract.
    unsafe {
        let Some(own) = Readable::new(command, ptr::null(), ptr::null()) else { return ptr::null_mut() };
        next::popen(own.path, kind)
    }
}

/// What every way out but exit(3) begins with. (There the engine's handler and this library's destructor do it.)
pub(crate) fn leave() {
    save_files();
    report::write();
}

/// _exit(2).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _exit(status: c_int) {
    leave();
    // SAFETY: it does not return.
    unsafe { next::_exit(status) };
}

/// _Exit(3).
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C library's name")]
pub extern "C-unwind" fn _Exit(status: c_int) {
    leave();
    // SAFETY: it does not return.
    unsafe { next::_Exit(status) };
}

/// quick_exit(3).
#[unsafe(no_mangle)]
pub extern "C-unwind" fn quick_exit(status: c_int) {
    leave();
    // SAFETY: it does not return.
    unsafe { next::quick_exit(status) };
}
