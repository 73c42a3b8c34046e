//! What the engine's threads may do: capabilities(7) of a thread, by capget(2) and capset(2).
//!
//! A thread begins with the capabilities of the one that starts it, and keeps them when that one gives them up: capset(2) is the calling
//! thread's. So each of the engine's threads gives up what it has no use for when it starts ([`KEPT`] says what stays, and why), and gives up
//! more when the program does ([`follow`]).

use super::{errno, proc_files};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a thread of the engine keeps, if it has it:
///
/// * CAP_SETGID (6), CAP_SETUID (7): the C library has setuid(2) of the program done by every thread, and aborts where one is refused what
///   another is granted;
/// * CAP_FSETID (4): what it writes of a set-user-id file leaves the mode as a store by mmap(2) does;
/// * CAP_IPC_LOCK (14): in a locked address space (mlockall(2)) it maps files over regions;
/// * CAP_LEASE (28): it gives leases back (fcntl(2)).
const KEPT: u64 = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 14 | 1 << 28;

/// The engine's threads by their ids; zero: room for one. A thread that finds none is one that [`follow`] does not reach.
static THREADS: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];

/// The capabilities of the program's threads, all of them together: permitted, effective.
static PROGRAMS: [AtomicU64; 2] = [const { AtomicU64::new(u64::MAX) }; 2];

/// Threads that have done what [`follow`] asked for.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);

/// The C library's handler of [`SIGNAL`].
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The C library's own signal for setuid(2) in all threads (nptl): no thread can block it, and no program can have a handler for it.
const SIGNAL: i32 = 33;
/// What the kernel needs to take a thread's capabilities for those of version 3, 64 of them.
const VERSION: u32 = 0x2008_0522;

/// A thread's capabilities, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rights {
    permitted: u64,
    effective: u64,
}

impl Rights {
    /// Of a thread; 0 is the calling one.
    fn of(thread: i32) -> Result<Self, i32> {
        let header = [VERSION, thread as u32];
        // Effective, permitted, inheritable; the lower halves, then the upper.
        let mut words = [0u32; 6];
        // SAFETY: structures of this function.
        if unsafe { libc::syscall(libc::SYS_capget, &header, &mut words) } != 0 {
            return Err(errno());
        }
        let whole = |at: usize| u64::from(words[at]) | u64::from(words[at + 3]) << 32;
        Ok(Rights { permitted: whole(1), effective: whole(0) })
    }

    /// Makes them the calling thread's. It inherits none to a program that it might execute; without those its ambient ones go.
    fn apply(self) {
        let half = |upper: u32| [self.effective, self.permitted, 0].map(|set| (set >> upper) as u32);
        let words = [half(0), half(32)];
        let header = [VERSION, 0];
        // Refused it is by a filter only (seccomp(2)): then the thread stays as it is.
        // SAFETY: structures of this function.
        unsafe { libc::syscall(libc::SYS_capset, &header, &words) };
    }

    /// What is left of a thread's when it may have no more than `most`.
    fn within(self, most: Rights) -> Self {
        let permitted = self.permitted & most.permitted;
        Rights { permitted, effective: permitted & most.effective }
    }
}

/// A thread of the engine, as long as it runs.
#[derive(Debug)]
pub struct Own(Option<usize>);

impl Own {
    /// Notes the calling thread as one of the engine's, which then has what [`KEPT`] says. `all`: it acts in place of the program's, and keeps
    /// what they have.
    pub fn begin(all: bool) -> Self {
        // SAFETY: no memory.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let take = |word: &AtomicI32| word.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let own = Own(THREADS.iter().position(take));
        if !all {
            own.give_up();
        }
        own
    }

    /// Gives up what the calling thread, which is this one, does not need.
    pub fn give_up(&self) {
        if let Ok(now) = Rights::of(0) {
            now.within(Rights { permitted: KEPT, effective: KEPT }).apply();
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.iter().for_each(|place| THREADS[*place].store(0, Ordering::Release));
    }
}

fn is_own(thread: i32) -> bool {
    THREADS.iter().any(|one| one.load(Ordering::Acquire) == thread)
}

/// After the calling thread has given up capabilities: the engine's threads give up what none of the program's has any more. When this
/// returns they have; one that does not answer within a second has not.
pub fn follow() {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let own = || THREADS.iter().map(|thread| thread.load(Ordering::Acquire)).filter(|thread| *thread != 0);
    if own().next().is_none() {
        return;
    }
    let _one = ONE.lock();
    if !is_handled() {
        return;
    }
    let mut programs = Rights::of(0).unwrap_or(Rights { permitted: 0, effective: 0 });
    for thread in proc_files::numbers("/proc/self/task").into_iter().map(|thread| thread as i32) {
        // Not those that the kernel keeps for io_uring(7), which run nothing of the program's: no signal comes to them.
        let name = || proc_files::text(format!("/proc/self/task/{thread}/comm"));
        if !is_own(thread)
            && !name().starts_with("iou-")
            && let Ok(rights) = Rights::of(thread)
        {
            programs.permitted |= rights.permitted;
            programs.effective |= rights.effective;
        }
    }
    PROGRAMS[0].store(programs.permitted, Ordering::Release);
    PROGRAMS[1].store(programs.effective, Ordering::Release);
    FOLLOWED.store(0, Ordering::Release);
    let told = own().filter(|thread| tell(*thread)).count() as u32;
    let start = Instant::now();
    while FOLLOWED.load(Ordering::Acquire) < told && start.elapsed() < Duration::from_secs(1) {
        super::process::pause();
    }
}

/// Sends a thread the signal, as nobody else does: not by tgkill(2), so that the C library does not take it for its own.
fn tell(thread: i32) -> bool {
    // SAFETY: a zeroed siginfo_t is a value; the kernel reads it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = SIGNAL;
        info.si_code = libc::SI_QUEUE;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, SIGNAL, &info) == 0
    }
}

/// Puts our handler before the C library's, once; false: that has none.
fn is_handled() -> bool {
    /// A handler, flags, where it returns to, a mask, as the kernel has them.
    type Action = [usize; 4];
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut action: Action = [0; 4];
        // SAFETY: structures of this function; the flags, mask and return of the C library's handler, which ours calls.
        unsafe {
            let none = std::ptr::null_mut::<Action>();
            if libc::syscall(libc::SYS_rt_sigaction, SIGNAL, none, &mut action, 8) == 0
                && !matches!(action[0], libc::SIG_DFL | libc::SIG_IGN)
            {
                NEXT.store(action[0], Ordering::Release);
                action[0] = on_signal as *const () as usize;
                if libc::syscall(libc::SYS_rt_sigaction, SIGNAL, &action, none, 8) != 0 {
                    NEXT.store(0, Ordering::Release);
                }
            }
        }
    });
    NEXT.load(Ordering::Acquire) != 0
}

extern "C" fn on_signal(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: what the kernel gave; the C library's handler is one of three arguments (SA_SIGINFO).
    unsafe {
        if (*info).si_code == libc::SI_QUEUE && is_own(libc::syscall(libc::SYS_gettid) as i32) {
            let location = libc::__errno_location();
            let saved = *location;
            if let Ok(now) = Rights::of(0) {
                let [permitted, effective] = [&PROGRAMS[0], &PROGRAMS[1]].map(|set| set.load(Ordering::Acquire));
                now.within(Rights { permitted, effective }).apply();
            }
            FOLLOWED.fetch_add(1, Ordering::AcqRel);
            *location = saved;
            return;
        }
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        let next = std::mem::transmute::<usize, Handler>(NEXT.load(Ordering::Acquire));
        next(number, info, context);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_of_the_engine_keeps_what_it_needs_and_no_more_than_the_program() {
        // A thread whose own rights are cut, and that makes one of the engine's.
        std::thread::spawn(|| {
            let before = Rights::of(0).unwrap();
            let (tell, told) = mpsc::channel();
            let (go_on, waits) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let own = Own::begin(false);
                tell.send(Rights::of(0).unwrap()).unwrap();
                let _ = waits.recv();
                drop(own);
                Rights::of(0).unwrap()
            });
            let kept = Rights { permitted: KEPT, effective: KEPT };
            assert_eq!(told.recv().unwrap(), before.within(kept));
            assert_eq!(Rights::of(0).unwrap(), before, "the program's are its own");
            // The test's other threads still have theirs: all stays.
            Rights { permitted: 0, effective: 0 }.apply();
            follow();
            assert!(is_handled());
            go_on.send(()).unwrap();
            assert_eq!(thread.join().unwrap(), before.within(kept));
        })
        .join()
        .unwrap();
    }
}
