//! Maps in children made by fork(2): parent and child see one file, and most children never look.
//!
//! A child has nothing of the engine: neither its memory (`MADV_DONTFORK`) nor its threads. At the addresses of its parent's maps it finds
//! memory that raises SIGBUS (pages behind the end of a file). At its first load or store there, or its first call that asks about such an
//! address or file ([`resolve`]), it asks the parent. The parent converts all of its maps to kernel mappings, in place (`by_address/fork.rs`);
//! then the child maps the same, and repeats its access. A child that executes a program or ends before that has cost the parent nothing. (Maps
//! of objects are served in the child: `fault/child.rs`.)
//!
//! Parent and child talk through a page that they share ([`Link`]). The record lock that marks the engine's descriptor table
//! (`sys/descriptor_table.rs`) also tells the child whether its parent lives: a child does not inherit such a lock, which goes with the parent,
//! whatever namespace the child is in. Once the parent is gone its keeper has saved what was stored, or has yet to say so.
//!
//! From the first touch on nothing is allocated and no lock is taken: the touch may come anywhere.

use crate::fault::{child, late};
use crate::files::leases;
use crate::region::region::Region;
use crate::region::{registry, report, seats};
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, descriptor_table, engine_fd, errno, futex, trap_stack};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The page that parent and children share.
pub struct Link {
    /// Raised by children that want the parent's maps to be the kernel's; a futex(2) word.
    wanted: AtomicU32,
    /// The value of `wanted` that the parent has answered last; a futex(2) word.
    answered: AtomicU32,
    /// Why the parent could not convert its maps: an error number, or zero.
    failure: AtomicI32,
    /// Not zero: there is a keeper, which will set `saved`.
    has_keeper: AtomicU32,
    /// Not zero: the parent has ended, or has left the engine, and its stores are in the files.
    saved: AtomicU32,
}

static LINK: AtomicPtr<Link> = AtomicPtr::new(ptr::null_mut());

/// A part of a map, as a child will map it.
#[derive(Debug)]
pub struct InheritedPart {
    pub at: Range<usize>,
    pub prot: i32,
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    pub kind: i32,
    /// A descriptor of the engine's, inherited.
    pub fd: RawFd,
    pub offset: i64,
    pub identity: Identity,
    /// For messages. A child never drops its copy of it.
    pub region: &'static Region,
}

/// The parts that the next child is to find, set before fork(2). In a child, its own.
static PARTS: AtomicPtr<Vec<InheritedPart>> = AtomicPtr::new(ptr::null_mut());

/// How far a child is with its [`PARTS`].
static STATE: AtomicU32 = AtomicU32::new(NOTHING);
/// This is no child, or a child that has kernel mappings only.
const NOTHING: u32 = 0;
const PENDING: u32 = 1;
const RESOLVING: u32 = 2;

/// How long a child waits, its parent gone, for a keeper that does not say that it is done.
const PATIENCE: Duration = Duration::from_secs(60);

fn link() -> Option<&'static Link> {
    // SAFETY: null, or a page that stays.
    unsafe { LINK.load(Ordering::Acquire).as_ref() }
}

/// Called before fork(2), with all that the child is to find. Nobody else forks at the same time.
pub fn before_fork(parts: Vec<InheritedPart>, has_keeper: bool) {
    if let Some(link) = link() {
        link.has_keeper.store(has_keeper.into(), Ordering::Relaxed);
        after_fork();
        PARTS.store(Box::into_raw(Box::new(parts)), Ordering::Release);
    }
}

/// Called after fork(2), in the parent.
pub fn after_fork() {
    let parts = PARTS.swap(ptr::null_mut(), Ordering::AcqRel);
    if !parts.is_null() {
        // SAFETY: from `before_fork`; only children, which have copies, look at it.
        drop(unsafe { Box::from_raw(parts) });
    }
}

/// Makes the page that parent and children share, once, with the first map. One caller at a time.
pub fn make_link() -> io::Result<()> {
    if link().is_some() {
        return Ok(());
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping, of zeros.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    LINK.store(page.cast(), Ordering::Release);
    Ok(())
}

/// The work of the parent's thread `fastmap-fork`, until [`note_saved`]: calls `answer` when children ask, and passes them its error number.
pub fn serve(mut answer: impl FnMut() -> Result<(), i32>) {
    let Some(link) = link() else { return };
    while link.saved.load(Ordering::SeqCst) == 0 {
        let wanted = link.wanted.load(Ordering::SeqCst);
        if wanted != link.answered.load(Ordering::SeqCst) {
            link.failure.store(answer().err().unwrap_or(0), Ordering::SeqCst);
            link.answered.store(wanted, Ordering::SeqCst);
            futex::wake_all_shared(&link.answered);
        }
        futex::wait_shared(&link.wanted, wanted, None);
    }
}

/// Notes that the program has ended, or the engine has left it, and that its stores are in the files. The keeper calls this, too.
pub fn note_saved() {
    if let Some(link) = link() {
        link.saved.store(1, Ordering::SeqCst);
        // Children sleep on the answer, the parent's thread on questions.
        link.wanted.fetch_add(1, Ordering::SeqCst);
        futex::wake_all_shared(&link.answered);
        futex::wake_all_shared(&link.wanted);
    }
}

/// In the child: puts memory that raises SIGBUS where the parent's maps are. The registry keeps only the regions of these maps.
pub fn in_child() {
    trap_stack::take_back_all();
    seats::free_all();
    leases::in_child();
    child::in_child();
    engine_fd::keep_in_child(child::has_maps());
    // SAFETY: null or what `before_fork` made, a copy of which is this process's.
    let (Some(parts), Some(anchor)) = (unsafe { PARTS.load(Ordering::Acquire).as_ref() }, descriptor_table::anchor())
    else {
        return registry::retain(|_| false);
    };
    for part in parts {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: nothing is there: regions are not inherited. All of it lies behind the file's end.
        let at = unsafe { libc::mmap(part.at.start as *mut _, part.at.len(), part.prot, flags, anchor, PAGE as i64) };
        if at == libc::MAP_FAILED {
            say(part, "has no place in a child: mmap", errno());
        }
    }
    registry::retain(|region| parts.iter().any(|part| ptr::eq(part.region, region)));
    if !parts.is_empty() {
        engine_fd::keep_in_child(true);
        STATE.store(PENDING, Ordering::Release);
    }
}

/// In a child of a child: a thread of the parent's that was resolving is not in this process.
pub fn in_grandchild() {
    trap_stack::take_back_all();
    seats::free_all();
    child::free_lock();
    let _ = STATE.compare_exchange(RESOLVING, PENDING, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether this is a child that has its parent's maps still to ask for.
#[inline]
pub fn is_pending() -> bool {
    STATE.load(Ordering::Relaxed) != NOTHING
}

/// Whether a file is among the maps that this child has still to ask for.
pub fn has(identity: Identity) -> bool {
    // SAFETY: null or what `before_fork` made; a child never drops its copy.
    is_pending()
        && unsafe { PARTS.load(Ordering::Acquire).as_ref() }
            .is_some_and(|parts| parts.iter().any(|part| part.identity == identity))
}

/// In a child: makes its maps kernel mappings. Threads that come meanwhile wait. Async-signal-safe.
#[cold]
pub fn resolve() {
    let _blocked = Blocked::all();
    loop {
        match STATE.compare_exchange(PENDING, RESOLVING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(NOTHING) => return,
            Err(state) => futex_wait(state),
        }
    }
    // SAFETY: null or what `before_fork` made; a child never drops its copy.
    if let (Some(parts), Some(link)) = (unsafe { PARTS.load(Ordering::Acquire).as_ref() }, link()) {
        match ask(link) {
            Ok(()) => parts.iter().for_each(map),
            Err(error) => parts.iter().for_each(|part| say(part, "is not to be had in a child: the parent", error)),
        }
    }
    late::expect_late();
    registry::retain(|_| false);
    engine_fd::keep_in_child(child::has_maps());
    STATE.store(NOTHING, Ordering::Release);
    // SAFETY: the address of a word.
    unsafe {
        libc::syscall(libc::SYS_futex, ptr::from_ref(&STATE), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
    };
}

fn futex_wait(state: u32) {
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address of a word, and no timeout.
    unsafe { libc::syscall(libc::SYS_futex, ptr::from_ref(&STATE), wait, state, ptr::null::<u8>()) };
}

/// Asks the parent to convert its maps to kernel mappings, or finds out that it is gone and all is saved.
fn ask(link: &Link) -> Result<(), i32> {
    const LOOK: Duration = Duration::from_millis(50);
    let number = link.wanted.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    futex::wake_all_shared(&link.wanted);
    let start = Instant::now();
    loop {
        let answered = link.answered.load(Ordering::SeqCst);
        if answered.wrapping_sub(number) as i32 >= 0 {
            return match link.failure.load(Ordering::SeqCst) {
                0 => Ok(()),
                error => Err(error),
            };
        }
        let nobody = link.has_keeper.load(Ordering::Relaxed) == 0 && !parent_lives();
        if link.saved.load(Ordering::SeqCst) != 0 || nobody {
            return Ok(());
        }
        if start.elapsed() > PATIENCE && !parent_lives() {
            // The keeper must be gone with the program: nobody will write more to the files. (A parent that is merely stopped is waited for.)
            return Ok(());
        }
        futex::wait_shared(&link.answered, answered, Some(LOOK));
    }
}

/// Whether the process that has the engine, an ancestor of this one, lives. A child that has closed all its descriptors cannot tell: then the
/// answer is yes.
fn parent_lives() -> bool {
    !descriptor_table::is_engines()
}

fn map(part: &InheritedPart) {
    let is_it = |fd: RawFd| Identity::of_descriptor(fd) == Some(part.identity);
    let flags = part.kind | libc::MAP_FIXED;
    let map = |fd| {
        // SAFETY: this child's own, and what raises SIGBUS is there.
        let at = unsafe { libc::mmap(part.at.start as *mut _, part.at.len(), part.prot, flags, fd, part.offset) };
        if at == libc::MAP_FAILED {
            say(part, "is not mapped in a child: mmap", errno());
        }
    };
    if is_it(part.fd) {
        return map(part.fd);
    }
    // The descriptor was closed by a system call that is not intercepted: daemons close whatever they find.
    let mut path = [0u8; libc::PATH_MAX as usize];
    let name = part.region.store().path().as_os_str().as_bytes();
    let len = name.len().min(path.len() - 1);
    path[..len].copy_from_slice(&name[..len]);
    let mode = if part.prot & libc::PROT_WRITE != 0 { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: a C string, and a descriptor of this function's.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), mode | libc::O_CLOEXEC) as RawFd;
        if fd >= 0 && is_it(fd) {
            map(fd);
        } else {
            say(part, "is not mapped in a child, which has closed its descriptor: opening it anew", errno());
        }
        libc::syscall(libc::SYS_close, fd);
    }
}

fn say(part: &InheritedPart, what: &str, error: i32) {
    report::say(part.region, part.offset as usize / PAGE, format_args!("{what} failed with error {error}"));
}
