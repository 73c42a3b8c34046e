//! The capabilities(7) of the engine's threads: capget(2) and capset(2).
//!
//! A thread begins with the capabilities of the thread that starts it. It keeps them when that thread gives them up, since capset(2) changes the
//! calling thread only. So each of the engine's threads gives up the capabilities it does not need when it starts ([`KEPT`] lists the others, and
//! why). It gives up more when the program does ([`follow`]).

use super::{errno, proc_files};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The capabilities that a thread of the engine keeps, if it has them:
///
/// * CAP_SETGID (6), CAP_SETUID (7): when the program calls setuid(2), the C library has every thread do it. It aborts if one thread is refused what
///   another is granted.
/// * CAP_FSETID (4): when the thread writes to a set-user-id file, the mode stays as it does after a store through mmap(2).
/// * CAP_IPC_LOCK (14): in a locked address space (mlockall(2)) the thread maps files over regions.
/// * CAP_LEASE (28): the thread gives leases back (fcntl(2)).
const KEPT: u64 = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 14 | 1 << 28;

/// The ids of the engine's threads. Zero is a free place. [`follow`] does not reach a thread that finds no free place.
static THREADS: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];

/// The capabilities that any of the program's threads has: permitted, effective.
static PROGRAMS: [AtomicU64; 2] = [const { AtomicU64::new(u64::MAX) }; 2];

/// How many threads have done what [`follow`] asked for.
static FOLLOWED: AtomicU32 = AtomicU32::new(0);

/// The C library's handler of [`SIGNAL`]. Zero until ours is before it.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The signal by which the C library (nptl) has all threads do setuid(2). The C library lets no thread block it, and lets no program handle it.
const SIGNAL: i32 = 33;
/// The version of the kernel's structures: 3, with 64 capabilities.
const VERSION: u32 = 0x2008_0522;

/// A thread's capabilities, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rights {
    permitted: u64,
    effective: u64,
}

impl Rights {
    /// The capabilities of a thread; 0 is the calling one.
    fn of(thread: i32) -> Result<Self, i32> {
        let header = [VERSION, thread as u32];
        // First the lower halves of effective, permitted and inheritable, then the upper halves.
        let mut words = [0u32; 6];
        // SAFETY: structures of this function.
        if unsafe { libc::syscall(libc::SYS_capget, &header, &mut words) } != 0 {
            return Err(errno());
        }
        let whole = |at: usize| u64::from(words[at]) | u64::from(words[at + 3]) << 32;
        Ok(Rights { permitted: whole(1), effective: whole(0) })
    }

    /// Makes these the capabilities of the calling thread. None is inheritable, so a program that it executes inherits none. The kernel then takes
    /// its ambient capabilities away as well.
    fn apply(self) {
        let half = |upper: u32| [self.effective, self.permitted, 0].map(|set| (set >> upper) as u32);
        let words = [half(0), half(32)];
        let header = [VERSION, 0];
        // Only a filter (seccomp(2)) refuses this call. Then the thread keeps what it has.
        // SAFETY: structures of this function.
        unsafe { libc::syscall(libc::SYS_capset, &header, &words) };
    }

    /// The part of these capabilities that is also in `most`.
    fn within(self, most: Rights) -> Self {
        let permitted = self.permitted & most.permitted;
        Rights { permitted, effective: permitted & most.effective }
    }
}

/// Registers a thread of the engine for as long as it lives.
#[derive(Debug)]
pub struct Own(Option<usize>);

impl Own {
    /// Registers the calling thread as one of the engine's. The thread then keeps only what [`KEPT`] lists. With `all` it acts in place of the
    /// program's threads, and keeps all that it has.
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

    /// Gives up the capabilities that the thread does not need. Called by the registered thread itself.
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

/// Makes the engine's threads give up each capability that no thread of the program has any more. Called after the calling thread has given up
/// capabilities. Waits until the engine's threads have done so, but only for a second: a thread that does not answer by then may still have them.
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
        // The program's threads only. The kernel's threads for io_uring(7) run nothing of the program's, and no signal reaches them.
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

/// Sends a thread the signal in a way that nobody else uses. It is not sent by tgkill(2), or the C library would take it for its own.
fn tell(thread: i32) -> bool {
    // SAFETY: a zeroed siginfo_t is a value; the kernel reads it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = SIGNAL;
        info.si_code = libc::SI_QUEUE;
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread, SIGNAL, &info) == 0
    }
}

/// Puts our handler before the C library's, once. False: the C library has no handler.
fn is_handled() -> bool {
    /// The kernel's form of an action: handler, flags, return address, mask.
    type Action = [usize; 4];
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut action: Action = [0; 4];
        // SAFETY: structures of this function. The flags, the mask and the return address stay those of the C library's handler, which ours calls.
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
    // SAFETY: the kernel gave these pointers. The C library's handler takes three arguments (SA_SIGINFO).
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
        // This thread cuts its own rights, and makes a thread of the engine's.
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
            // The test's other threads still have their rights. So the engine's thread keeps all.
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
