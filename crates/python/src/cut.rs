//! Files that are truncated (*cut*) while they are mapped, and objects that cannot be fetched. A load of a missing page raises SIGBUS, which
//! would end the interpreter.
//!
//! The handler here replaces the missing page by one of zeros, as the Java VM does, and asks the interpreter for a call in the main thread. The
//! interpreter makes such calls after a call or a jump back. The call raises OSError, and has the replaced pages trap again. So every later
//! access to them raises it, too, as does every call of one of the mapping's methods.
//!
//! In a cache all mappings of a file share its memory. A page that has been replaced stays until the last of these mappings is gone. So all of
//! them raise OSError, and the file cannot be mapped anew before.
//!
//! The handler is installed at the import. The engine's handler is installed with the first cached mapping, so it comes first, and passes on the
//! signals that are not its own.

use crate::failure::Failure;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

const PAGE: usize = 4096;
/// From `siginfo.h`: nothing is behind the address.
const BUS_ADRERR: c_int = 2;

struct Watched {
    start: AtomicUsize,
    end: AtomicUsize,
    was_cut: AtomicBool,
    is_object: AtomicBool,
}

impl Watched {
    const fn new() -> Self {
        Watched {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            was_cut: AtomicBool::new(false),
            is_object: AtomicBool::new(false),
        }
    }

    /// The mapping's addresses, if there is one.
    fn at(&self) -> Range<usize> {
        let (start, end) = (self.start.load(Ordering::Acquire), self.end.load(Ordering::Acquire));
        // `start` is looked at again, since the entry may be another mapping's by now.
        if start != 0 && self.start.load(Ordering::Acquire) == start { start..end } else { 0..0 }
    }
}

/// The mappings that are watched. One that finds no free entry is not: there SIGBUS ends the interpreter.
static RANGES: [Watched; 1024] = [const { Watched::new() }; 1024];
/// Addresses of pages that were replaced by zeros, until the exception is raised; zero where there is none. Those beyond this number stay zeros.
static REPLACED: [AtomicUsize; 1 << 16] = [const { AtomicUsize::new(0) }; 1 << 16];
/// Where the next one is put.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The places of [`REPLACED`] that were ever used, from the first on.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The process that makes pages trap again, or ends a mapping; other memory may lie there afterwards. Zero: none.
static HOLDER: AtomicU32 = AtomicU32::new(0);
/// A file of no length, once there was a cut: every access to a page of it traps.
static EMPTY: OnceLock<c_int> = OnceLock::new();

/// A lock that a child made by fork(2) takes from its parent's threads, none of which is in it.
struct Held;

impl Held {
    fn take() -> Held {
        let own = std::process::id();
        loop {
            match HOLDER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Held,
                Err(other) if other != own => {
                    if HOLDER.compare_exchange(other, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        return Held;
                    }
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Release);
    }
}

/// The places of pages that were replaced.
fn replaced() -> &'static [AtomicUsize] {
    &REPLACED[..USED.load(Ordering::Acquire)]
}

/// Notes a page that was replaced. Called in the signal handler.
fn note_replaced(page: usize) {
    const TRIES: usize = 64;
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    for at in (first..first.wrapping_add(TRIES)).map(|at| at % REPLACED.len()) {
        if REPLACED[at].compare_exchange(0, page, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            USED.fetch_max(at + 1, Ordering::AcqRel);
            return;
        }
    }
}
/// Whether the main thread has been asked to raise the exception, and has not yet done so.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
/// The program's signal action, to which the handler passes other signals on.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Notes a mapping. False: a page of it has been replaced already, by way of another mapping of the same memory.
pub fn watch(at: Range<usize>, is_object: bool) -> bool {
    let is_cut = |one: &Watched| {
        let other = one.at();
        other.start < at.end && at.start < other.end && one.was_cut.load(Ordering::Relaxed)
    };
    if RANGES.iter().any(is_cut) {
        return false;
    }
    for one in &RANGES {
        if one.end.compare_exchange(0, at.end, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            one.was_cut.store(false, Ordering::Relaxed);
            one.is_object.store(is_object, Ordering::Relaxed);
            one.start.store(at.start, Ordering::Release);
            break;
        }
    }
    true
}

/// Forgets a mapping, before it is unmapped.
pub fn forget(at: Range<usize>) {
    let _held = Held::take();
    // It may be the entry of another mapping at the same addresses, which serves as well.
    let is_it = |one: &&Watched| {
        one.at() == at && one.start.compare_exchange(at.start, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(one) = RANGES.iter().find(is_it) {
        one.end.store(0, Ordering::Release);
    }
    // The next mapping there is another one.
    for place in replaced() {
        let page = place.load(Ordering::Acquire);
        if at.contains(&page) && holding(page).next().is_none() {
            let _ = place.compare_exchange(page, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Whether a page of a mapping has been replaced.
pub fn was_cut(at: usize) -> bool {
    holding(at).any(|one| one.was_cut.load(Ordering::Relaxed))
}

fn holding(at: usize) -> impl Iterator<Item = &'static Watched> {
    RANGES.iter().filter(move |one| one.at().contains(&at))
}

/// The failure that becomes the exception.
pub fn failure(is_object: bool) -> Failure {
    if is_object {
        let why = "part of an object could not be fetched, as standard error says: what lies there was found to be zeros; close its mapping and \
                   open it anew";
        return Failure { errno: libc::EIO, text: why.into() };
    }
    let why = "a file was cut while it was mapped, or has no room on its disk for what was stored: what lies there was found to be zeros; close its \
               mappings and map it anew";
    Failure { errno: libc::ENXIO, text: why.into() }
}

/// Raises the exception, in the main thread.
extern "C" fn tell(of_object: *mut c_void) -> c_int {
    IS_ASKED.store(false, Ordering::Release);
    trap_again();
    Python::attach(|py| PyErr::from(failure(!of_object.is_null())).restore(py));
    -1
}

/// Makes the replaced pages trap again: they become pages of a file of no length.
fn trap_again() {
    // SAFETY: a C string.
    let empty = *EMPTY.get_or_init(|| unsafe { libc::memfd_create(c"fastmap-cut".as_ptr(), libc::MFD_CLOEXEC) });
    let _held = Held::take();
    for place in replaced() {
        let page = place.swap(0, Ordering::AcqRel);
        if empty >= 0 && page != 0 && holding(page).next().is_some() {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
            // Offsets follow addresses, so that the kernel has one mapping for neighbours: their number is limited.
            // SAFETY: a page that the handler put there, in a mapping that does not end meanwhile.
            unsafe { libc::mmap(page as *mut c_void, PAGE, prot, flags, empty, page as i64) };
        }
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's.
    let (at, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    if code == BUS_ADRERR && holding(at).next().is_some() {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: this page of a mapping holds nothing of the file.
        let new = unsafe { libc::mmap((at & !(PAGE - 1)) as *mut c_void, PAGE, prot, flags, -1, 0) };
        if new != libc::MAP_FAILED {
            holding(at).for_each(|one| one.was_cut.store(true, Ordering::Relaxed));
            note_replaced(at & !(PAGE - 1));
            if !IS_ASKED.swap(true, Ordering::AcqRel) {
                let of_object = holding(at).any(|one| one.is_object.load(Ordering::Relaxed));
                let of_object = ptr::without_provenance_mut(usize::from(of_object));
                // SAFETY: of the interpreter's locks it takes only the one of pending calls.
                let is_full = unsafe { ffi::Py_AddPendingCall(Some(tell), of_object) } != 0;
                // If the queue is full, a later page asks again.
                if is_full {
                    IS_ASKED.store(false, Ordering::Release);
                }
            }
            return;
        }
    }
    // SAFETY: the earlier handler is called as the kernel would call it. Without one, the signal ends the process when the access is repeated.
    unsafe {
        match BEFORE.load(Ordering::Acquire).as_ref() {
            Some(before) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(before.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(before.sa_sigaction);
                    handler(signal);
                }
            }
            _ => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(libc::SIGBUS, &raw const default, ptr::null_mut());
            }
        }
    }
}

/// Installs the handler.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a handler that allocates nothing and takes no lock but the interpreter's for pending calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            exchange(&action);
        }
    });
}

/// Installs an action. The action that it replaces is the program's from then on.
///
/// # Safety
/// As for sigaction(2).
unsafe fn exchange(action: &libc::sigaction) {
    // SAFETY: the caller's contract. The former action is leaked, since running handlers may read it; it is small.
    unsafe {
        let before = Box::leak(Box::new(std::mem::zeroed()));
        libc::sigaction(libc::SIGBUS, action, before);
        BEFORE.store(before, Ordering::Release);
    }
}

/// Makes a call that changes the program's action of SIGBUS, as if this handler and the engine's were not there. Afterwards they come first
/// again. During the call, the program's action handles the traps of other threads.
pub fn beneath<T>(call: impl FnOnce() -> T) -> T {
    let module = |address: usize| {
        // SAFETY: it fills in the structure, or says that it has not.
        unsafe {
            let mut module: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(address as *const c_void, &raw mut module) != 0).then_some(module.dli_fbase)
        }
    };
    // SAFETY: an action that was in force, and those that were before and after it.
    unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut ours);
        // The action in force is not ours or the engine's: another library has installed one since.
        if module(ours.sa_sigaction) != module(on_sigbus as *const () as usize) {
            return call();
        }
        libc::sigaction(libc::SIGBUS, BEFORE.load(Ordering::Acquire), ptr::null_mut());
        let result = call();
        exchange(&ours);
        result
    }
}
