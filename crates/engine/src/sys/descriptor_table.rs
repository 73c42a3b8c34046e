//! Which descriptor table is the engine's: that of the threads that write and read for it.
//!
//! A thread may have a table of its own (unshare(2), close_range(2) with `CLOSE_RANGE_UNSHARE`, vfork(2)): what is
//! opened there is not open for the engine's threads, and the same number may be another file's. A record lock
//! (fcntl(2) `F_SETLK`) belongs to a table: the engine's has locked a memfd. A thread that is told of that lock as
//! another's, or does not find the memfd, has another table. The kernel answers that everywhere (kcmp(2) is refused in
//! most containers), in handlers too.

use super::engine_fd::EngineFd;
use super::file::Identity;
use super::memfd;
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::OnceLock;

struct Anchor {
    number: RawFd,
    file: Identity,
}

/// None where it cannot be had: every table counts as the engine's then.
static ANCHOR: OnceLock<Option<Anchor>> = OnceLock::new();

/// Makes this thread's table the engine's, once and for all, unless there is one.
pub fn claim() {
    ANCHOR.get_or_init(|| {
        let memory = memfd::create(c"fastmap-table", 1).ok()?;
        let number = EngineFd::new(File::from(memory)).leak();
        let file = identity(number)?;
        (ask(number, libc::F_SETLK)? == libc::F_WRLCK).then_some(Anchor { number, file })
    });
}

/// Whether this thread's table is the engine's, or there is none yet.
pub fn is_engines() -> bool {
    let Some(Some(anchor)) = ANCHOR.get() else { return true };
    ask(anchor.number, libc::F_GETLK) == Some(libc::F_UNLCK) && identity(anchor.number) == Some(anchor.file)
}

/// The memfd, of one byte.
pub fn anchor() -> Option<RawFd> {
    ANCHOR.get()?.as_ref().map(|anchor| anchor.number)
}

fn identity(number: RawFd) -> Option<Identity> {
    // SAFETY: fstat fills the zeroed structure.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(number, &mut stat) == 0 { Identity::of(&stat) } else { None }
    }
}

/// What becomes of a write lock on all of a file.
fn ask(number: RawFd, command: libc::c_int) -> Option<libc::c_int> {
    // SAFETY: a zeroed flock is a valid one, which the kernel reads and writes.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
        (libc::syscall(libc::SYS_fcntl, number, command, &mut lock) == 0).then_some(lock.l_type.into())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_table_of_its_own_is_told_apart() {
        claim();
        assert!(is_engines());
        let run = |body: fn() -> bool| std::thread::spawn(body).join().unwrap();
        assert!(run(is_engines), "threads share it");
        // SAFETY: the thread's own table, from here on.
        assert!(run(|| unsafe { libc::unshare(libc::CLONE_FILES) == 0 } && !is_engines()), "a copy is another");
        let close = || {
            // SAFETY: the call gives the thread a table of its own first; what it closes there is open in the engine's.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
            closed == 0 && !is_engines()
        };
        assert!(run(close), "one without the engine's descriptors is another");
        assert!(is_engines());
    }
}
