//! Other processes that write a file which is mapped here to be read: what they write must show, as with mmap(2).
//!
//! The engine's pages are copies, and nobody tells it when a file changes. So a file that is read is watched for as
//! long as it has a region, and becomes the kernel's to map before others change it, or as soon as they have:
//!
//! * By a **lease** (fcntl(2) `F_SETLEASE`), where this process may have one (its user owns the file, or it has
//!   CAP_LEASE), and nobody has the file open to write, this process neither. A process that opens it to write, or
//!   truncates it, waits in the kernel until the lease is given back: until the maps are the kernel's. Nothing is ever
//!   stale.
//! * Else by **fanotify(7)** (Linux 5.13 without privileges), which tells this process's own writes from others' and
//!   comes at once, but after the write; or before it, with the opening, since a store to a mapping, which may follow
//!   it, is not told of. Processes that have the file open to write already are looked up in proc(5).
//! * A file that neither can watch is not the engine's.

use crate::sys::engine_fd::EngineFd;
use crate::sys::file::Identity;
use crate::sys::signal::Blocked;
use crate::sys::{engine_fd, file, maps, proc_files, threads};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The signal that says that a lease is to be given back: one of the C library's own (for pthread_cancel(3)), which
/// programs neither send nor wait for. It is sent to one thread, which blocks it and is never cancelled.
const SIGNAL: i32 = 32;

/// How often leases are looked at in case a signal was not to be had (RLIMIT_SIGPENDING); milliseconds.
const LOOK: i32 = 1000;

/// What becomes of a file that others write: its maps are to be the kernel's when this returns.
pub type GiveBack = fn(Identity);

struct Watched {
    identity: Identity,
    /// With the lease, or for the mark.
    file: EngineFd<File>,
    by: By,
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

/// The thread that waits, and what for.
struct Watcher {
    thread: i32,
    /// Where there is no fanotify(7) why.
    fanotify: Result<RawFd, i32>,
}

/// Watches a file that is about to be read through the engine, until [`forget`]. `Err`: it cannot be, or others have it
/// open to write, which the text says.
pub fn watch(from: &File, identity: Identity, give_back: GiveBack) -> Result<(), String> {
    if watched().iter().any(|one| one.identity == identity) {
        return Ok(());
    }
    let watcher = watcher(give_back).map_err(|error| format!("no thread watches for other writers: {error}"))?;
    let own = file::reopen(from, false, false).map_err(|error| format!("it cannot be opened again: {error}"))?;
    let by = match lease(&own, watcher.thread) {
        Ok(()) => By::Lease,
        Err(_) => {
            let fanotify = watcher.fanotify.and_then(|group| mark(group, &own, true).map(|()| handle_of(&own)));
            let handle = fanotify.map_err(|error| {
                let error = io::Error::from_raw_os_error(error);
                format!("others may write it: there is no lease of it (fcntl), and no fanotify ({error})")
            })?;
            // Looked at when it is watched already: nobody comes in between.
            let mapped = maps::name_of(&own);
            if let Some(writer) = elsewhere(identity, mapped) {
                if let Ok(group) = watcher.fanotify {
                    let _ = mark(group, &own, false);
                }
                return Err(format!("process {writer} has it open or mapped to write"));
            }
            By::Fanotify(handle)
        }
    };
    watched().push(Watched { identity, file: own, by });
    wake(watcher.thread);
    Ok(())
}

/// Ends that: the file has no region any more.
pub fn forget(identity: Identity) {
    let gone: Vec<_> = watched().extract_if(.., |one| one.identity == identity).collect();
    for one in gone {
        match one.by {
            // By hand: children made by fork(2) have the open file, too.
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
        libc::fanotify_mark(group, flags, libc::FAN_MODIFY | libc::FAN_OPEN, file.as_raw_fd(), std::ptr::null())
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

/// Another process that has a file open or mapped to write. `mapped`: how lists of mappings name it.
fn elsewhere(identity: Identity, mapped: Option<(u32, u32, u64)>) -> Option<u32> {
    let writes = |one: &maps::FileMapping| one.is_shared && one.prot & libc::PROT_WRITE != 0;
    let own = std::process::id();
    for pid in proc_files::numbers("/proc").into_iter().filter(|pid| *pid != own) {
        let path = Path::new("/proc").join(pid.to_string());
        // A keeper has what its program had.
        let is_keeper = || proc_files::text(path.join("comm")).trim_end() == "fastmap-keeper";
        if let Some(file) = mapped
            && maps::of_process(&path).iter().any(|one| one.file == file && writes(one))
            && !is_keeper()
        {
            return Some(pid);
        }
        for descriptor in proc_files::numbers(path.join("fd")) {
            if file::identity_of(&path.join(format!("fd/{descriptor}"))) != Some(identity) {
                continue;
            }
            let info = proc_files::text(path.join(format!("fdinfo/{descriptor}")));
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let mode = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0) & libc::O_ACCMODE;
            if mode != libc::O_RDONLY && !is_keeper() {
                return Some(pid);
            }
        }
    }
    None
}

static WATCHER: OnceLock<Result<Watcher, i32>> = OnceLock::new();

fn watcher(give_back: GiveBack) -> io::Result<&'static Watcher> {
    let started =
        WATCHER.get_or_init(|| start(give_back).map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN)));
    started.as_ref().map_err(|error| io::Error::from_raw_os_error(*error))
}

/// In a child made by fork(2): a lease lasts as long as any process has its open file.
pub fn in_child() {
    // In another thread's hands when the child was made: then it lasts as long as this child.
    if let Ok(watched) = WATCHED.try_lock() {
        for one in watched.iter() {
            // SAFETY: a descriptor of the engine's, which nobody uses in a child.
            unsafe { engine_fd::close(one.file.as_raw_fd()) };
        }
    }
    if let Some(Ok(Watcher { fanotify: Ok(group), .. })) = WATCHER.get() {
        // SAFETY: the group of the parent's watcher, whose thread is not in this child.
        unsafe { engine_fd::close(*group) };
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
    // By the kernel's own calls: the C library's leave its signals out of every set.
    const SET: u64 = 1 << (SIGNAL - 1);
    // SAFETY: numbers, and a set that the kernel reads.
    let (signals, fanotify) = unsafe {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let signals = own(libc::syscall(libc::SYS_signalfd4, -1, &SET, size_of_val(&SET), flags) as RawFd)?;
        let kind = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        (signals, own(libc::fanotify_init(kind, libc::O_RDONLY as u32)))
    };
    let fanotify = fanotify.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOSYS));
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    // The thread inherits the mask: no signal of the program's comes to it, and its own waits to be read.
    let _blocked = Blocked::all();
    let body = threads::named(move || {
        // SAFETY: a set that the kernel reads.
        let thread = unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &SET, 0, size_of_val(&SET));
            libc::syscall(libc::SYS_gettid)
        };
        let _ = tell.send(thread as i32);
        wait(signals, fanotify.unwrap_or(-1), give_back)
    });
    std::thread::Builder::new().name("fastmap-others".into()).stack_size(256 << 10).spawn(body)?;
    let thread = told.recv().map_err(io::Error::other)?;
    Ok(Watcher { thread, fanotify })
}

/// Makes the thread look, and look again from time to time if there are leases.
fn wake(thread: i32) {
    // SAFETY: a thread of this process, which waits for this signal.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
}

/// Ends the thread: nothing more is watched.
pub fn dismiss() {
    if let Some(Ok(Watcher { thread, .. })) = WATCHER.get() {
        DISMISSED.store(true, Ordering::Release);
        wake(*thread);
    }
}

static DISMISSED: AtomicBool = AtomicBool::new(false);

/// The thread's life.
fn wait(signals: RawFd, fanotify: RawFd, give_back: GiveBack) {
    let mut buffer = [0u64; 512];
    let room = size_of_val(&buffer);
    loop {
        let mut ready = [signals, fanotify].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: an array of its length; descriptors that stay; a buffer of its size.
        unsafe {
            let timeout = if watched().iter().any(|one| one.by == By::Lease) { LOOK } else { -1 };
            libc::poll(ready.as_mut_ptr(), 2, timeout);
            while libc::read(signals, buffer.as_mut_ptr().cast(), room) > 0 {}
        }
        if DISMISSED.load(Ordering::Acquire) {
            return;
        }
        let mut written = broken();
        loop {
            // SAFETY: the descriptor stays open as long as this thread, and the buffer has `room` bytes.
            let got = unsafe { libc::read(fanotify, buffer.as_mut_ptr().cast(), room) };
            let Ok(got @ 1..) = usize::try_from(got) else { break };
            written.extend(named(bytemuck::cast_slice(&buffer[..got.div_ceil(8)]), got));
        }
        written.into_iter().for_each(give_back);
    }
}

/// The files of leases that are to be given back.
fn broken() -> Vec<Identity> {
    watched().iter().filter(|one| one.by == By::Lease && is_broken(&one.file)).map(|one| one.identity).collect()
}

/// Files that other processes have opened or written, by the events in a buffer (fanotify(7)).
fn named(bytes: &[u8], len: usize) -> Vec<Identity> {
    /// Of `fanotify_event_metadata`: its length (4), version, reserved, its own length (2 at 6), mask (8 at 8), fd, pid
    /// (4 at 20).
    const METADATA: usize = 24;
    /// Of `fanotify_event_info_fid`: type, pad, length (2), fsid (8), then handle_bytes (4), handle_type (4) and the
    /// handle.
    const HANDLE: usize = 12;
    let word =
        |at: usize| bytes.get(at..at + 4).map_or(0, |four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
    let watched = watched();
    let mut found = Vec::new();
    let mut at = 0;
    while at + METADATA <= len && word(at) as usize >= METADATA {
        let end = (at + word(at) as usize).min(len);
        let by_others = word(at + 20) != std::process::id();
        let overflow = u64::from(word(at + 8)) & libc::FAN_Q_OVERFLOW != 0;
        let info = at + METADATA;
        let count = word(info + HANDLE) as usize;
        let name = bytes.get(info + HANDLE + 8..info + HANDLE + 8 + count).filter(|_| info + HANDLE + 8 + count <= end);
        let handle = name.map(|name| Handle(word(info + HANDLE + 4) as i32, name.to_vec()));
        if by_others || overflow {
            let is_it = |one: &&Watched| match (&one.by, &handle) {
                (By::Lease, _) => false,
                (By::Fanotify(Some(own)), Some(named)) => own == named,
                // Where it cannot be told it may be any.
                (By::Fanotify(_), _) => true,
            };
            found.extend(watched.iter().filter(is_it).map(|one| one.identity));
        }
        at = end;
    }
    found
}
