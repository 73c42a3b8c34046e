//! Other processes that write a file which is mapped here. As with mmap(2), what they write must show here, and what is stored here must show
//! there.
//!
//! The engine's pages are copies, and nobody tells it when a file changes. So a file is watched for as long as it has a region.
//!
//! A file that is **only read** here ([`watch`]) becomes the kernel's before others change it, or as soon as they have:
//!
//! * By a **lease** (fcntl(2) `F_SETLEASE`), where this process may have one (its user owns the file, or it has CAP_LEASE) and nobody, this
//!   process included, has the file open to write. A process that opens it to write, or truncates it, waits in the kernel until the lease is
//!   given back: until the maps are the kernel's. Nothing is ever stale.
//! * Else by **fanotify(7)** (Linux 5.13 without privileges), which tells this process's own writes from others'. The event of a write(2) comes
//!   at once, but after the write. A store to a mapping has no event, so the opening that it needs counts. Processes that have the file open to
//!   write already are looked up in proc(5).
//! * A file that can be watched by neither stays out of the engine. So does one of which there is no lease although no process that can be
//!   looked at writes it: another one does.
//!
//! A file that is **stored to** here ([`watch_written`]) is watched by fanotify(7) alone: there is no lease of a file that is open to be
//! written.
//!
//! * If another process has it open to write, or mapped, when it is to be mapped here, the file stays out of the engine.
//! * When another process opens it later, fanotify(7) tells only that, and which process it is if this one has privileges. proc(5) says how that
//!   process uses the file.
//! * If the process only reads, it finds what was stored until then: dirty pages are written to the page cache.
//! * If the process writes, the file becomes the kernel's. That is done a millisecond after its open(2), and half a millisecond later for each
//!   MiB that is dirty here. Until then the process sees the file without what is dirty, and what it stores to those pages is lost: nobody is
//!   made to wait for this process. So a process that has this library waits by itself before it maps a file (`store/one_writer.rs`), and misses
//!   nothing.

use crate::store::one_writer;
use crate::sys::engine_fd::EngineFd;
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{engine_fd, file, maps, proc_files, process, threads};
use std::cell::OnceCell;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The signal that says that a lease is to be given back: one of the C library's own (for pthread_cancel(3)), which
/// programs neither send nor wait for. It is sent to one thread, which blocks it and is never cancelled.
const SIGNAL: i32 = 32;

/// The interval at which leases and events are looked at, since the kernel may be unable to queue a signal (RLIMIT_SIGPENDING).
const LOOK: Duration = Duration::from_secs(1);

/// The pause before the process that opened a file is looked for once more: the event comes before the process has its descriptor.
const AGAIN: Duration = Duration::from_millis(10);

/// Pauses between looks at who uses a file that is to be mapped.
const BEFORE_EXEC: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(16), Duration::from_millis(64)];

/// The pause after each event. Most are of this process's own doing: it writes its files as fast as it can.
const PAUSE: Duration = Duration::from_micros(500);

/// Called with a file that others use. If they write it, its maps are the kernel's on return. False: nobody that writes it was found.
pub type GiveBack = fn(Identity, Change) -> bool;

/// A change that another process made to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Opened it, perhaps only to read it. The process that did so, if known.
    Opened(Option<u32>),
    /// Written it, or closed it after it may have; or waits for the lease, to open it to write.
    Written,
}

struct Watched {
    identity: Identity,
    /// How lists of mappings name it.
    mapped: Option<(u32, u32, u64)>,
    /// It may be stored to here.
    is_written: bool,
    /// Others have opened it since the watch began.
    is_opened: AtomicBool,
    /// The open file that has the lease, or that names the file for the mark.
    file: EngineFd<File>,
    by: By,
}

impl Watched {
    fn new(identity: Identity, mapped: Option<(u32, u32, u64)>, file: EngineFd<File>, by: By) -> Self {
        Watched { identity, mapped, is_written: false, is_opened: AtomicBool::new(false), file, by }
    }

    /// The change that events of another process stand for, if any. A process that closes the file without having opened it has a copy of a
    /// descriptor, as a child has that is about to execute a program.
    fn change(&self, events: u64, pid: u32) -> Option<Change> {
        self.is_opened.fetch_or(events & libc::FAN_OPEN != 0, Ordering::Relaxed);
        match events {
            libc::FAN_OPEN => Some(Change::Opened((pid != 0).then_some(pid))),
            libc::FAN_CLOSE_WRITE if !self.is_opened.load(Ordering::Relaxed) => None,
            _ => Some(Change::Written),
        }
    }
}

#[derive(PartialEq)]
enum By {
    Lease,
    /// How the kernel names the file in its events; `None`: it does not, and any event may be about it.
    Fanotify(Option<Handle>),
}

/// A file_handle, its type and bytes (open_by_handle_at(2)).
#[derive(PartialEq)]
struct Handle(i32, Vec<u8>);

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Events that were read when the watch of another file began, for the thread to handle. Locked with [`WATCHED`] held.
static NOTICED: Mutex<Vec<(Identity, Change)>> = Mutex::new(Vec::new());

fn noticed() -> MutexGuard<'static, Vec<(Identity, Change)>> {
    NOTICED.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// The thread that gives back files, when a lease is broken or an event has come.
///
/// It waits for a signal (sigtimedwait(2)), and another thread sends it one when there are events. A thread that waits for both by
/// descriptors has a signalfd(2), and that wakes at every SIGBUS of any thread: at every miss.
struct Watcher {
    thread: i32,
    /// The group of fanotify(7), or the error number for which there is none.
    fanotify: Result<RawFd, i32>,
    /// An eventfd(2) that ends the thread that waits for events.
    end: RawFd,
}

/// Watches a file that is about to be read through the engine, until [`forget`]. `Err`: the file cannot be watched, or others have it open to
/// write; the text says which.
pub fn watch(from: &File, identity: Identity, give_back: GiveBack) -> Result<(), String> {
    if watched().iter().any(|one| one.identity == identity) {
        return Ok(());
    }
    let watcher = watcher(give_back).map_err(|error| format!("no thread watches for other writers: {error}"))?;
    let own = file::reopen(from, false, false).map_err(|error| format!("it cannot be opened again: {error}"))?;
    let refused = match lease(&own, watcher.thread) {
        Ok(()) => {
            watched().push(Watched::new(identity, None, own, By::Lease));
            wake(watcher.thread);
            return Ok(());
        }
        Err(error) => error,
    };
    let mapped = by_fanotify(watcher, own, identity).map_err(|error| {
        let error = io::Error::from_raw_os_error(error);
        format!("others may write it: there is no lease of it (fcntl), and no fanotify ({error})")
    })?;
    let writes = |_, used: Use<'_>| match used {
        Use::Mapped(_, one) => one.is_shared && one.prot & libc::PROT_WRITE != 0,
        Use::Open(_, mode) => mode != libc::O_RDONLY,
    };
    nobody(identity, mapped, writes).map_err(|writer| format!("process {writer} has it open or mapped to write"))?;
    if refused != libc::EAGAIN || is_written_here(identity, mapped) {
        return Ok(());
    }
    // The kernel gives no lease while somebody has the file open or mapped to write. It may have been a child before exec(2), or one that has
    // ended.
    for pause in BEFORE_EXEC {
        let own = file::reopen(from, false, false).map_err(|error| format!("it cannot be opened again: {error}"))?;
        if lease(&own, watcher.thread).is_ok() {
            forget(identity);
            watched().push(Watched::new(identity, None, own, By::Lease));
            wake(watcher.thread);
            return Ok(());
        }
        std::thread::sleep(pause);
    }
    forget(identity);
    Err("a process that this one may not look at has it open or mapped to write, or its file system gives no lease"
        .to_owned())
}

/// Whether this process has a file open or mapped to write.
fn is_written_here(identity: Identity, mapped: Option<(u32, u32, u64)>) -> bool {
    let own = Path::new("/proc/self");
    let writes =
        |one: &maps::FileMapping| one.is_shared && (one.prot & libc::PROT_WRITE != 0 || maps::may_write(own, one));
    open_here(identity).into_iter().any(|one| open_mode(own, one) != libc::O_RDONLY)
        || mapped.is_some_and(|file| maps::of_process(own, file).iter().any(writes))
}

/// How a process has a descriptor open (`O_ACCMODE`), by its folder of proc(5).
fn open_mode(process: &Path, descriptor: u32) -> i32 {
    let info = proc_files::text(process.join(format!("fdinfo/{descriptor}")));
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0) & libc::O_ACCMODE
}

/// Why a file that is stored to cannot be watched.
#[derive(Debug)]
pub enum Unwatched {
    /// Another process has it open to write, or mapped.
    Used,
    /// There is no way to learn of others.
    Unknown(io::Error),
}

/// Watches a file that is about to be stored to through the engine, as [`watch`] does.
pub fn watch_written(from: &File, identity: Identity, give_back: GiveBack) -> Result<(), Unwatched> {
    let before = watched().iter_mut().find(|one| one.identity == identity && one.by != By::Lease).map(|one| {
        let was_written = std::mem::replace(&mut one.is_written, true);
        (one.mapped, was_written)
    });
    let mapped = match before {
        Some((_, true)) => return Ok(()),
        Some((mapped, false)) => mapped,
        None => {
            let watcher = watcher(give_back).map_err(Unwatched::Unknown)?;
            let own = file::reopen(from, false, false).map_err(Unwatched::Unknown)?;
            // A lease from before goes: this process, which writes the file, would break it itself.
            forget(identity);
            let unknown = |error| Unwatched::Unknown(io::Error::from_raw_os_error(error));
            let mapped = by_fanotify(watcher, own, identity).map_err(unknown)?;
            watched().iter_mut().filter(|one| one.identity == identity).for_each(|one| one.is_written = true);
            mapped
        }
    };
    let opens = opens_to_write(identity);
    let uses = |pid, used: Use<'_>| match used {
        Use::Mapped(_, one) => one.is_shared && is_another(pid),
        Use::Open(descriptor, mode) => opens(pid, descriptor, mode),
    };
    nobody(identity, mapped, uses).map_err(|_| Unwatched::Used)
}

/// Watches a file by fanotify(7), opened by `own`; returns how lists of mappings name it.
fn by_fanotify(watcher: &Watcher, own: EngineFd<File>, identity: Identity) -> Result<Option<(u32, u32, u64)>, i32> {
    let group = watcher.fanotify?;
    let mapped = maps::name_of(&own);
    let mut watched = watched();
    // Events until now are of other files, or of this one when it was watched before.
    let told = drain(group, &watched);
    mark(group, &own, true)?;
    let by = By::Fanotify(handle_of(&own));
    watched.push(Watched::new(identity, mapped, own, by));
    if !told.is_empty() {
        noticed().extend(told);
        wake(watcher.thread);
    }
    Ok(mapped)
}

/// Checks that no other process uses a file. The file is watched already, so that none comes unnoticed. `Err`: a process that uses it; the file
/// is not watched any more.
fn nobody(
    identity: Identity,
    mapped: Option<(u32, u32, u64)>,
    counts: impl Fn(u32, Use<'_>) -> bool,
) -> Result<(), u32> {
    let look = || elsewhere(identity, mapped, None, &counts);
    let mut user = look();
    // A process between fork(2) and exec(2) has copies of its parent's descriptors, most of which exec closes.
    for pause in BEFORE_EXEC {
        if user.is_none() {
            return Ok(());
        }
        std::thread::sleep(pause);
        user = look();
    }
    user.map_or(Ok(()), |user| {
        forget(identity);
        Err(user)
    })
}

/// Whether another process has a watched file open or mapped so that it may write it, as far as this process may see. `by`: only that one is
/// looked at.
pub fn is_written_elsewhere(identity: Identity, by: Option<u32>) -> bool {
    let mapped = watched().iter().find(|one| one.identity == identity).and_then(|one| one.mapped);
    let opens = opens_to_write(identity);
    let writes = |pid, used: Use<'_>| match used {
        Use::Mapped(folder, one) => {
            one.is_shared && (one.prot & libc::PROT_WRITE != 0 || maps::may_write(folder, one)) && is_another(pid)
        }
        Use::Open(descriptor, mode) => opens(pid, descriptor, mode),
    };
    elsewhere(identity, mapped, by, writes).is_some()
}

/// Whether another process has opened a file to write by a descriptor of its own. Copies of this process's descriptors, which a child is born
/// with, do not count: writes by those have an event (`FAN_MODIFY`), and a child that has this library says so before it maps the file
/// (`one_writer::await_others`).
fn opens_to_write(identity: Identity) -> impl Fn(u32, u32, i32) -> bool {
    let own = OnceCell::new();
    move |pid, descriptor, mode| {
        let own: &Vec<_> = own.get_or_init(|| open_here(identity));
        mode != libc::O_RDONLY
            && is_another(pid)
            && !own.iter().any(|one| process::have_same_file(*one, pid, descriptor))
            // A process that has ended meanwhile has nothing to be compared.
            && file::identity_of(Path::new(&format!("/proc/{pid}/fd/{descriptor}"))) == Some(identity)
    }
}

/// Whether a process has other memory than this one. A child of vfork(2) has the same until it executes a program.
fn is_another(pid: u32) -> bool {
    !process::shares_memory(pid)
}

/// This process's descriptors of a file.
fn open_here(identity: Identity) -> Vec<u32> {
    let is_its = |one: &u32| file::identity_of(&Path::new("/proc/self/fd").join(one.to_string())) == Some(identity);
    proc_files::numbers("/proc/self/fd").into_iter().filter(is_its).collect()
}

/// Ends the watch of a file, which has no region any more.
pub fn forget(identity: Identity) {
    let mut watched = watched();
    noticed().retain(|(one, _)| *one != identity);
    let gone: Vec<_> = watched.extract_if(.., |one| one.identity == identity).collect();
    for one in gone {
        match one.by {
            // Explicitly: children made by fork(2) have the open file, too, so that to close it would not end the lease.
            // SAFETY: numbers only.
            By::Lease => unsafe {
                libc::fcntl(one.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
            },
            By::Fanotify(_) => {
                if let Some(Ok(Watcher { fanotify: Ok(group), .. })) = WATCHER.get() {
                    let _ = mark(*group, &one.file, false);
                }
            }
        }
    }
}

fn lease(file: &File, thread: i32) -> Result<(), i32> {
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: i32,
    }
    const F_SETSIG: i32 = 10;
    const F_SETOWN_EX: i32 = 15;
    const F_OWNER_TID: i32 = 0;
    let fd = file.as_raw_fd();
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    let check = |result: i32| if result == 0 { Ok(()) } else { Err(crate::sys::errno()) };
    // SAFETY: a descriptor of our own, numbers, and a structure that is read.
    unsafe {
        check(libc::fcntl(fd, F_SETSIG, SIGNAL))?;
        check(libc::fcntl(fd, F_SETOWN_EX, &owner))?;
        check(libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK))
    }
}

/// Whether a lease is to be given back, or has been taken away.
fn is_broken(file: &File) -> bool {
    // SAFETY: no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) != libc::F_RDLCK }
}

fn mark(group: RawFd, file: &File, add: bool) -> Result<(), i32> {
    let flags = if add { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    // SAFETY: descriptors, numbers, and no path: the second descriptor's file itself.
    let done = unsafe {
        let events = libc::FAN_OPEN | libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE;
        libc::fanotify_mark(group, flags, events, file.as_raw_fd(), std::ptr::null())
    };
    if done == 0 { Ok(()) } else { Err(crate::sys::errno()) }
}

fn handle_of(file: &File) -> Option<Handle> {
    #[repr(C)]
    struct Raw {
        bytes: u32,
        kind: i32,
        handle: [u8; 128],
    }
    let mut raw = Raw { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    // SAFETY: an empty path, and structures that the kernel fills, with their room.
    let found = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    (found == 0).then(|| Handle(raw.kind, raw.handle[..(raw.bytes as usize).min(128)].to_vec()))
}

/// How another process uses a file.
enum Use<'a> {
    /// A mapping; with the process's folder of proc(5).
    Mapped(&'a Path, &'a maps::FileMapping),
    /// A descriptor, and what it may do (`O_ACCMODE`).
    Open(u32, i32),
}

/// Finds another process that uses a file in a way that counts, as far as this one may see. `only`: the one process that is looked at. `mapped`:
/// how lists of mappings name the file.
fn elsewhere(
    identity: Identity,
    mapped: Option<(u32, u32, u64)>,
    only: Option<u32>,
    counts: impl Fn(u32, Use<'_>) -> bool,
) -> Option<u32> {
    let own = std::process::id();
    let others = only.map_or_else(|| proc_files::numbers("/proc"), |pid| vec![pid]);
    let mut name = String::new();
    for pid in others.into_iter().filter(|pid| *pid != own) {
        let path = Path::new("/proc").join(pid.to_string());
        // One of the kernel's own, or one that this process may not look at.
        if path.join("exe").read_link().is_err() {
            continue;
        }
        let maps_it = |file| maps::of_process(&path, file).iter().any(|one| counts(pid, Use::Mapped(&path, one)));
        // Twice: a child of vfork(2) may execute a program between the look at its mappings and that at its memory.
        if let Some(file) = mapped
            && maps_it(file)
            && maps_it(file)
            && !is_keeper(&path)
        {
            return Some(pid);
        }
        for descriptor in proc_files::numbers(path.join("fd")) {
            // There may be very many.
            name.clear();
            let _ = write!(name, "/proc/{pid}/fd/{descriptor}");
            if file::identity_of(Path::new(&name)) != Some(identity) {
                continue;
            }
            if counts(pid, Use::Open(descriptor, open_mode(&path, descriptor))) && !is_keeper(&path) {
                return Some(pid);
            }
        }
    }
    None
}

/// Whether a process is a keeper, which has the mappings and descriptors that its program had.
fn is_keeper(path: &Path) -> bool {
    one_writer::is_keeper(proc_files::text(path.join("comm")).trim_end())
}

static WATCHER: OnceLock<Result<Watcher, i32>> = OnceLock::new();

fn watcher(give_back: GiveBack) -> io::Result<&'static Watcher> {
    let started =
        WATCHER.get_or_init(|| start(give_back).map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN)));
    started.as_ref().map_err(|error| io::Error::from_raw_os_error(*error))
}

/// Closes the watched files in a child made by fork(2): a lease lasts as long as any process has its open file.
pub fn in_child() {
    // If another thread held the lock when the child was made, the leases last as long as this child.
    if let Ok(watched) = WATCHED.try_lock() {
        for one in watched.iter() {
            // SAFETY: a descriptor of the engine's, which nobody uses in a child.
            unsafe { engine_fd::close(one.file.as_raw_fd()) };
        }
    }
    if let Some(Ok(Watcher { fanotify, end, .. })) = WATCHER.get() {
        for fd in fanotify.iter().chain([end]) {
            // SAFETY: a descriptor of the parent's threads, which are not in this child.
            unsafe { engine_fd::close(*fd) };
        }
    }
}

fn start(give_back: GiveBack) -> io::Result<Watcher> {
    let own = |fd: RawFd| {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made just now.
        Ok(EngineFd::new(File::from(unsafe { OwnedFd::from_raw_fd(fd) })).leak())
    };
    // SAFETY: numbers.
    let (end, fanotify) = unsafe {
        let kind = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        (own(libc::eventfd(0, libc::EFD_CLOEXEC))?, own(libc::fanotify_init(kind, libc::O_RDONLY as u32)))
    };
    let fanotify = fanotify.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOSYS));
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    // The thread inherits the mask: no signal of the program's comes to it.
    let _blocked = Blocked::all();
    // With the program's rights: the thread looks at other processes.
    let body = threads::named_with_rights(move || {
        ignore_where_default();
        // SAFETY: no memory.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        let _ = tell.send(thread as i32);
        wait(fanotify.unwrap_or(-1), give_back)
    });
    std::thread::Builder::new().name("fastmap-others".into()).stack_size(256 << 10).spawn(body)?;
    let thread = told.recv().map_err(io::Error::other)?;
    let tells = |group| {
        let body = threads::named(move || tell_of_events(group, end, thread));
        let started = std::thread::Builder::new().name("fastmap-events".into()).stack_size(64 << 10).spawn(body);
        // Without that thread nobody would read the events: leases are left.
        started.map(|_| group).map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))
    };
    Ok(Watcher { thread, fanotify: fanotify.and_then(tells), end })
}

/// The signal as a set. The system calls are made directly: the C library leaves its own signals out of every set.
const SET: u64 = 1 << (SIGNAL - 1);

/// Ignores the signal where it would end the process: the C library unblocks it whenever a library sets a mask in this thread. While it is blocked it
/// is kept all the same (signal(7)). The C library sets a handler of its own when it needs the signal (pthread_cancel(3)).
fn ignore_where_default() {
    /// As the kernel has it: handler, flags, restorer, mask.
    type Action = [usize; 4];
    let (mut now, ignored): (Action, Action) = ([0; 4], [libc::SIG_IGN, 0, 0, 0]);
    // SAFETY: actions of the kernel's size, of which it reads one and writes the other.
    unsafe {
        let none = std::ptr::null::<Action>();
        let known = libc::syscall(libc::SYS_rt_sigaction, SIGNAL, none, &raw mut now, size_of_val(&SET));
        if known == 0 && now[0] == libc::SIG_DFL {
            libc::syscall(libc::SYS_rt_sigaction, SIGNAL, &raw const ignored, 0, size_of_val(&SET));
        }
    }
}

/// Waits for the signal, and takes all that have come.
fn await_signal(timeout: Option<Duration>) {
    // Each time anew: it may have been unblocked meanwhile.
    // SAFETY: a set that the kernel reads.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &SET, 0, size_of_val(&SET)) };
    let time =
        |timeout: Duration| libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let take = |timeout: Option<Duration>| {
        let time = timeout.map(time);
        let at = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a set and a time that the kernel reads; it writes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &SET, std::ptr::null_mut::<u8>(), at, size_of_val(&SET)) }
    };
    let mut wait = timeout;
    while take(wait) > 0 {
        wait = Some(Duration::ZERO);
    }
}

/// Sends a thread the signal while there are events to read, until `end` can be read.
fn tell_of_events(group: RawFd, end: RawFd, thread: i32) {
    loop {
        let mut ready = [group, end].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: an array of its length.
        unsafe { libc::poll(ready.as_mut_ptr(), 2, -1) };
        if DISMISSED.load(Ordering::Acquire) {
            return;
        }
        // One signal at a time: the kernel keeps each, and the user may have so many only (RLIMIT_SIGPENDING).
        if !TOLD.swap(true, Ordering::AcqRel) && !wake(thread) {
            TOLD.store(false, Ordering::Release);
        }
        // It reads the events meanwhile.
        std::thread::sleep(PAUSE);
    }
}

/// The thread has been told of events, and has not begun to read them.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Makes the thread look, and look again from time to time if anything is watched. False: the kernel keeps no further signal, and the thread looks
/// when its time has come.
fn wake(thread: i32) -> bool {
    // SAFETY: a thread of this process, which waits for this signal.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) == 0 }
}

/// Ends the thread: nothing more is watched.
pub fn dismiss() {
    if let Some(Ok(Watcher { thread, end, .. })) = WATCHER.get() {
        DISMISSED.store(true, Ordering::Release);
        wake(*thread);
        // SAFETY: eight bytes that the kernel reads. Not glibc's wrapper: that is a cancellation point.
        unsafe { libc::syscall(libc::SYS_write, *end, &raw const ONE, size_of_val(&ONE)) };
    }
}

static DISMISSED: AtomicBool = AtomicBool::new(false);

/// The number that ends the thread by its eventfd.
static ONE: u64 = 1;

/// The thread's life.
fn wait(fanotify: RawFd, give_back: GiveBack) {
    let mut again: Vec<(Instant, Identity, Change)> = Vec::new();
    loop {
        let timeout = match again.first() {
            Some((at, ..)) => Some(at.saturating_duration_since(Instant::now())),
            None => (!watched().is_empty()).then_some(LOOK),
        };
        await_signal(timeout);
        TOLD.store(false, Ordering::Release);
        if DISMISSED.load(Ordering::Acquire) {
            return;
        }
        let mut found = {
            let watched = watched();
            let mut told = drain(fanotify, &watched);
            told.append(&mut noticed());
            told
        };
        found.extend(broken().into_iter().map(|identity| (identity, Change::Written)));
        for (identity, change) in found.into_iter().filter(is_news) {
            if !give_back(identity, change) {
                again.push((Instant::now() + AGAIN, identity, change));
            }
        }
        let now = Instant::now();
        let due: Vec<_> =
            again.extract_if(.., |(at, ..)| *at <= now).map(|(_, identity, change)| (identity, change)).collect();
        for (identity, change) in due.into_iter().filter(is_news) {
            give_back(identity, change);
        }
    }
}

/// Whether a change concerns the file as it is watched now: the file may have been unmapped since, and mapped again in another way.
fn is_news((identity, change): &(Identity, Change)) -> bool {
    let is_opened = |one: &Watched| one.identity == *identity && one.is_opened.load(Ordering::Relaxed);
    *change == Change::Written || watched().iter().any(is_opened)
}

/// Reads the events since the last time. Returns the changes of watched files.
fn drain(fanotify: RawFd, watched: &[Watched]) -> Vec<(Identity, Change)> {
    let mut buffer = [0u64; 512];
    let mut found = Vec::new();
    loop {
        // SAFETY: the descriptor stays open as long as the thread, and the buffer has this size.
        let got = unsafe { libc::read(fanotify, buffer.as_mut_ptr().cast(), size_of_val(&buffer)) };
        let Ok(got @ 1..) = usize::try_from(got) else { return found };
        for one in named(bytemuck::cast_slice(&buffer[..got.div_ceil(8)]), got, watched) {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
}

/// The files of leases that are to be given back.
fn broken() -> Vec<Identity> {
    watched().iter().filter(|one| one.by == By::Lease && is_broken(&one.file)).map(|one| one.identity).collect()
}

/// Files that other processes have opened or written, by the events in a buffer (fanotify(7)).
fn named(bytes: &[u8], len: usize, watched: &[Watched]) -> Vec<(Identity, Change)> {
    /// Of `fanotify_event_metadata`: its length (4), version, reserved, its own length (2 at 6), mask (8 at 8), fd, pid
    /// (4 at 20).
    const METADATA: usize = 24;
    /// Of `fanotify_event_info_fid`: type, pad, length (2), fsid (8), then handle_bytes (4), handle_type (4) and the
    /// handle.
    const HANDLE: usize = 12;
    let word =
        |at: usize| bytes.get(at..at + 4).map_or(0, |four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
    let mut found = Vec::new();
    let mut at = 0;
    while at + METADATA <= len && word(at) as usize >= METADATA {
        let end = (at + word(at) as usize).min(len);
        // Zero: another's, and this one has not the privilege to know whose.
        let pid = word(at + 20);
        let events = u64::from(word(at + 8));
        let info = at + METADATA;
        let count = word(info + HANDLE) as usize;
        let name = bytes.get(info + HANDLE + 8..info + HANDLE + 8 + count).filter(|_| info + HANDLE + 8 + count <= end);
        let handle = name.map(|name| Handle(word(info + HANDLE + 4) as i32, name.to_vec()));
        let overflow = events & libc::FAN_Q_OVERFLOW != 0;
        if pid != std::process::id() || overflow {
            let is_it = |one: &&Watched| match (&one.by, &handle) {
                (By::Lease, _) => false,
                (By::Fanotify(Some(own)), Some(named)) => own == named,
                // Where the event does not name the file, it may be any.
                (By::Fanotify(_), _) => true,
            };
            let change = |one: &Watched| Some((one.identity, one.change(events, pid)?));
            found.extend(watched.iter().filter(is_it).filter_map(change));
        }
        at = end;
    }
    found
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_finds_the_thread_unblocked_ends_nothing() {
        ignore_where_default();
        // SAFETY: a set that the kernel reads; the signal is sent to this thread.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &SET, 0, size_of_val(&SET));
            assert!(wake(libc::syscall(libc::SYS_gettid) as i32));
        }
    }
}
