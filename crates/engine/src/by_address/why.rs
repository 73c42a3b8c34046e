//! The reasons why maps of a file are the kernel's. One is printed once a file ([`say_kernels`]), and told to the program ([`listen`]).

use crate::region::region::Region;
use crate::requirements;
use crate::sys::file::{self, Identity};
use std::fmt::{self, Display, Write};
use std::fs::File;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Why maps of a file are the kernel's. As text it is the reason and, after a semicolon, the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It is mapped `MAP_PRIVATE`, and cannot be stored to.
    Private,
    /// It is mapped `MAP_PRIVATE`, and may be stored to.
    PrivateStores,
    /// It is mapped to be executed.
    Executable,
    /// A program or library, mapped `MAP_PRIVATE`, to be executed perhaps.
    Code,
    /// It is mapped with a flag of mmap(2) that the engine does not know.
    Flag,
    /// Not more than 1 MiB of it is mapped.
    Small,
    /// The kernel has mapped it before, and its maps have to agree.
    Before,
    /// A fixed place, where the file's other maps do not have these bytes.
    Place,
    /// Bytes that are mapped already, otherwise or at another place.
    Twice,
    /// Another protection than reading, or reading and writing; or that of a part.
    Protection,
    /// Advice that changes what memory is: its number.
    Advice(i32),
    /// mremap(2), of what cannot move as it is.
    Moved,
    /// mlock(2) of more than may be pinned.
    Locked,
    /// A protection key, or another call that only the kernel can do.
    Call,
    /// Its memory was handed to the kernel for good: a guest's (KVM), a device's (VFIO, vhost, RDMA), buffers of io_uring(7).
    Handed,
    /// The program has set up io_uring(7) or Linux AIO, whose requests the engine does not see.
    Ring,
    /// A thread waits for a lock that lies in it.
    Waited,
    /// The program takes a lock on all of the file, or gives it away.
    Descriptor,
    /// Something else was mapped over a part of it.
    Replaced,
    /// Somebody has it open to write, this process perhaps.
    Written,
    /// The kernel does not vouch that nobody writes it: there is no lease.
    NoLease,
    /// It is mapped to be stored to, and nobody has said that only this program uses it.
    NotOwn,
    /// This is a child made by fork(2).
    Child,
    /// A child made by fork(2) uses it.
    Forked,
    /// It may be stored to, and what ends this process may end its keeper as well (`sys/survival.rs`).
    AtRisk,
    /// It may be stored to, and a store takes a block more, for which a full disk has no room.
    CopiedOnWrite,
    /// The engine has left the process: it entered a sandbox, or must have one thread.
    Left,
    /// The thread has a table of descriptors of its own.
    Descriptors,
    /// The machine or the file lacks something that the engine needs.
    Missing,
    /// There is no cache.
    NoCache,
    /// There was no memory for the engine.
    NoMemory,
    /// It is in memory already.
    InMemory,
}

impl Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHARED: &str = "have the program map it shared";
        const WHOLE: &str = "have it map the file once, as a whole";
        let (reason, remedy) = match self {
            Why::AtRisk => {
                let peril = requirements::risk_to_stores();
                return write!(
                    f,
                    "{}, and stores that are not flushed could be lost with it; `fastmap run --risk-stores` has it cached",
                    peril.as_deref().unwrap_or("what ends this process may end its keeper, too")
                );
            }
            Why::CopiedOnWrite => (
                "it may be stored to, and its blocks are copied when they are written (btrfs, ZFS, a reflink), so a full disk would lose stores",
                "use a copy without shared blocks (cp --reflink=never), on btrfs in a folder with chattr +C",
            ),
            Why::Private => ("it is mapped private (MAP_PRIVATE)", SHARED),
            Why::PrivateStores => ("it is mapped private, to be stored to (MAP_PRIVATE, PROT_WRITE)", SHARED),
            Why::Executable => ("it is mapped to be executed (PROT_EXEC)", "name other files (--map)"),
            Why::Code => ("it is code, and mapped private", "nothing is to be done"),
            Why::Flag => (
                "it is mapped with a flag that only the kernel serves (MAP_32BIT, MAP_SYNC, MAP_HUGETLB, MAP_GROWSDOWN)",
                "have the program leave the flag out",
            ),
            Why::Small => ("not more than 1 MiB of it is mapped", "name it (--map), if it is only read"),
            Why::Before => (
                "the kernel has a mapping of it from before, a small or executable one perhaps, and all of them must agree",
                WHOLE,
            ),
            Why::Place => ("a part of it is laid at a fixed address (MAP_FIXED)", WHOLE),
            Why::Twice => ("a part of it is mapped a second time", WHOLE),
            Why::Protection => (
                "a part of it, or all, was protected otherwise (mprotect)",
                "have the program protect whole maps, as read or as read and write",
            ),
            Why::Advice(advice) => {
                let name = name_of(*advice);
                return write!(
                    f,
                    "the program gave advice that only the kernel follows (madvise, {name}); have it leave that out"
                );
            }
            Why::Moved => ("a part of it was moved or made longer (mremap)", WHOLE),
            Why::Locked => {
                ("more of it was locked than the cache may pin (mlock)", "give a larger cache, or have it lock less")
            }
            Why::Call => (
                "a call was made on it that only the kernel can do (pkey_mprotect, remap_file_pages, mseal)",
                "have the program do without",
            ),
            Why::Handed => (
                "its memory was handed to a guest, a device or a ring (ioctl, io_uring_register)",
                "nothing is to be done, unless other memory will do for that",
            ),
            Why::Waited => (
                "a lock lies in it that a thread waits for, or that the kernel looks at when a thread ends",
                "have the program keep locks in other memory",
            ),
            Why::Descriptor => (
                "the program locks all of the file (fcntl, lockf)",
                "have it lock only the bytes that it means, or lock before it maps",
            ),
            Why::Ring => (
                "the program uses io_uring or Linux AIO, whose requests FastMap does not see",
                "have it do without (many do if they are told to, or where seccomp forbids it)",
            ),
            Why::Replaced => ("something else was mapped over a part of it (MAP_FIXED)", WHOLE),
            Why::Written => (
                "somebody has it open to write, this program perhaps",
                "end the writer first; or say that only this program uses it (fastmap run --own)",
            ),
            Why::NoLease => (
                "nobody vouches that it is not written: its file system or its owner keeps leases from this user (fcntl, F_SETLEASE)",
                "say that only this program uses it (fastmap run --own)",
            ),
            Why::NotOwn => (
                "it is mapped to be stored to, and other programs may use it",
                "say that only this program does (fastmap run --own)",
            ),
            Why::Child => (
                "this process was made by fork(2), and the engine is its parent's",
                "have it start a program (exec), or map in the parent",
            ),
            Why::Forked => ("a child made by fork(2) uses it", "have the child start a program (exec), or use threads"),
            Why::Left => (
                "the engine has left the process, which entered a sandbox or must have one thread",
                "run the program without its sandbox",
            ),
            Why::Descriptors => (
                "the thread that maps it has a table of descriptors of its own (unshare, CLONE_FILES)",
                "have another thread map it",
            ),
            Why::Missing => {
                ("something that the engine needs is missing", "`fastmap doctor FILE` says what, and what to do")
            }
            Why::NoCache => ("there is no cache", "see the line before"),
            Why::NoMemory => {
                ("the engine got no memory", "raise the limit on memory (ulimit -v, -d), or leave out the cache")
            }
            Why::InMemory => ("it is in memory already", "nothing is to be done"),
        };
        write!(f, "{reason}; {remedy}")
    }
}

fn name_of(advice: i32) -> &'static str {
    match advice {
        libc::MADV_REMOVE => "MADV_REMOVE",
        libc::MADV_FREE => "MADV_FREE",
        libc::MADV_MERGEABLE => "MADV_MERGEABLE",
        libc::MADV_UNMERGEABLE => "MADV_UNMERGEABLE",
        libc::MADV_WIPEONFORK => "MADV_WIPEONFORK",
        libc::MADV_KEEPONFORK => "MADV_KEEPONFORK",
        libc::MADV_HWPOISON => "MADV_HWPOISON",
        25 => "MADV_COLLAPSE",
        _ => "an advice of another kind",
    }
}

/// The news of who serves a file's maps from now on: the engine or the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Served<'a> {
    /// As it was opened.
    pub path: &'a Path,
    /// Device and inode; a block device has its number, and no device.
    pub file: (u64, u64),
    /// `None`: the engine.
    pub by_kernel: Option<Why>,
    /// The file's maps were the engine's, or are now. False: [`map`](super::map()) leaves a new map to its caller, who may not make it either.
    pub is_done: bool,
}

static LISTENER: OnceLock<fn(&Served<'_>)> = OnceLock::new();

/// Sets the function that hears of each change of who serves a file's maps by address, for the whole process; later calls change nothing. The
/// function must not map anything.
///
/// ```
/// fastmap::by_address::listen(|served| println!("{}: {:?}", served.path.display(), served.by_kernel));
/// ```
pub fn listen(hear: fn(&Served<'_>)) {
    let _ = LISTENER.set(hear);
    // Made now, so that children share it.
    said();
}

/// Tells who serves the file of a region.
pub(super) fn tell(region: &Region, by_kernel: Option<Why>) {
    if let Some(hear) = LISTENER.get() {
        let (path, file) = (region.store().path(), region.store().identity().numbers().into());
        hear(&Served { path, file, by_kernel, is_done: true });
    }
}

/// Tells that a new map of a file is left to the kernel.
pub(super) fn tell_of(from: &File, file: Identity, why: Why) {
    if let Some(hear) = LISTENER.get() {
        let (path, file) = (&file::path_of(from), file.numbers().into());
        hear(&Served { path, file, by_kernel: Some(why), is_done: false });
    }
}

/// Says on standard error that the kernel has a file's maps though a cache was asked for: once a file, in this process and the children that it
/// forks. It does so for the first 32 files only: a program that maps thousands has messages of its own to show. Returns whether it named the
/// file. `why` reads as [`Why`] does. Nothing is allocated.
///
/// ```
/// use fastmap::by_address::{Why, say_kernels};
///
/// assert!(say_kernels(b"/data/one", (1, 2), &Why::Private));
/// assert!(!say_kernels(b"/data/one", (1, 2), &Why::Twice)); // that is known
/// ```
pub fn say_kernels(path: &[u8], file: (u64, u64), why: &dyn Display) -> bool {
    let Some(said) = said() else { return false };
    match said.note(file) {
        Noted::New => {
            let mut line = Line { text: [0; 1024], len: 0 };
            line.push(b"fastmap: ");
            line.push(&path[..path.len().min(400)]);
            let _ = write!(line, " is the kernel's, outside the cache: {why}");
            line.end();
            true
        }
        Noted::OneTooMany => {
            let mut line = Line { text: [0; 1024], len: 0 };
            line.push(b"fastmap: more files are the kernel's, outside the cache: FASTMAP_LOG=mappings lists them under fastmap run");
            line.end();
            false
        }
        Noted::Known => false,
    }
}

/// Says on standard error that the engine cannot run here, so that the kernel has the maps of all files: once, in this process and the children
/// that it forks.
pub fn say_no_engine(why: &dyn Display) {
    // No file has this number.
    const NONE: (u64, u64) = (u64::MAX, 0);
    if said().is_some_and(|said| matches!(said.note(NONE), Noted::New)) {
        let mut line = Line { text: [0; 1024], len: 0 };
        let _ =
            write!(line, "fastmap: the engine cannot run here, so mapped files are the kernel's, and steered: {why}");
        line.end();
    }
}

/// Files of which it has been said, in memory that children share.
struct Said {
    count: AtomicUsize,
    files: [AtomicU64; MOST],
}

const MOST: usize = 32;

enum Noted {
    New,
    OneTooMany,
    Known,
}

impl Said {
    fn note(&self, (device, inode): (u64, u64)) -> Noted {
        // Never zero, which stands for none.
        let mark = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for place in &self.files {
            match place.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Noted::New,
                Err(there) if there == mark => return Noted::Known,
                Err(_) => {}
            }
        }
        if self.count.swap(1, Ordering::AcqRel) == 0 { Noted::OneTooMany } else { Noted::Known }
    }
}

fn said() -> Option<&'static Said> {
    static SAID: AtomicPtr<Said> = AtomicPtr::new(ptr::null_mut());
    let there = SAID.load(Ordering::Acquire);
    // SAFETY: set below, and never unmapped.
    if let Some(said) = unsafe { there.as_ref() } {
        return Some(said);
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, all zeros, which are a `Said`.
    let new = unsafe { libc::syscall(libc::SYS_mmap, 0, size_of::<Said>(), prot, flags, -1, 0) };
    if new < 0 {
        return None;
    }
    let new = ptr::with_exposed_provenance_mut::<Said>(new as usize);
    match SAID.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => unsafe { new.as_ref() },
        Err(there) => {
            // SAFETY: mapped just now, and nobody else's.
            unsafe { libc::syscall(libc::SYS_munmap, new, size_of::<Said>()) };
            // SAFETY: as above.
            unsafe { there.as_ref() }
        }
    }
}

/// A message built on the stack.
struct Line {
    text: [u8; 1024],
    len: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        // Room for the line's end.
        let count = bytes.len().min(self.text.len() - 1 - self.len);
        self.text[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
    }

    fn end(&mut self) {
        self.text[self.len] = b'\n';
        // SAFETY: the line's own bytes; a failure has nowhere to be told.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, self.text.as_ptr(), self.len + 1) };
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_said_once_and_no_more_than_32() {
        let said = Said { count: AtomicUsize::new(0), files: [const { AtomicU64::new(0) }; MOST] };
        for inode in 0..MOST as u64 {
            assert!(matches!(said.note((7, inode)), Noted::New));
            assert!(matches!(said.note((7, inode)), Noted::Known));
        }
        assert!(matches!(said.note((8, 0)), Noted::OneTooMany));
        assert!(matches!(said.note((9, 0)), Noted::Known));
        assert!(matches!(said.note((7, 3)), Noted::Known));
    }

    #[test]
    fn a_reason_has_a_remedy() {
        for why in [Why::Private, Why::Place, Why::Advice(libc::MADV_REMOVE), Why::Forked, Why::Missing] {
            assert_eq!(why.to_string().matches("; ").count(), 1, "{why}");
        }
        assert!(Why::Advice(libc::MADV_MERGEABLE).to_string().contains("MADV_MERGEABLE"));
    }
}
