//! Tells whether a thread has the engine's descriptor table, which is the table of the threads that read and write for the engine.
//!
//! A thread may have a table of its own (unshare(2), close_range(2) with `CLOSE_RANGE_UNSHARE`, vfork(2)). A descriptor that is opened there
//! is not open for the engine's threads, and its number may stand for another file there.
//!
//! A record lock (fcntl(2) `F_SETLK`) belongs to a table, and the engine's table has locked a memfd. A thread that has another table finds
//! that lock in its way, or does not find the memfd. The test works in signal handlers. It also works in containers, most of which refuse
//! kcmp(2).

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

/// The memfd that the engine's table has locked. `None` if that failed: then every table counts as the engine's.
static ANCHOR: OnceLock<Option<Anchor>> = OnceLock::new();

/// Makes this thread's table the engine's for good. Later calls change nothing.
pub fn claim() {
    ANCHOR.get_or_init(|| {
        let memory = memfd::create(c"fastmap-table", 1).ok()?;
        let number = EngineFd::new(File::from(memory)).leak();
        let file = identity(number)?;
        (ask(number, libc::F_SETLK)? == libc::F_WRLCK).then_some(Anchor { number, file })
    });
}

/// Whether this thread's table is the engine's. True if the engine has none yet.
pub fn is_engines() -> bool {
    let Some(Some(anchor)) = ANCHOR.get() else { return true };
    ask(anchor.number, libc::F_GETLK) == Some(libc::F_UNLCK) && identity(anchor.number) == Some(anchor.file)
}

/// The number of the memfd, which is one byte long.
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

/// Takes (`F_SETLK`) or tests (`F_GETLK`) a write lock on a whole file. Returns the type of lock that the kernel answers: a test that finds no
/// other lock in the way answers `F_UNLCK`. `None`: the call failed.
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
        // SAFETY: only this thread's table changes: it is the thread's own from here on.
        assert!(run(|| unsafe { libc::unshare(libc::CLONE_FILES) == 0 } && !is_engines()), "a copy is another");
        let close = || {
            // SAFETY: the call first gives the thread a table of its own. The descriptors that it closes there stay open in the engine's table.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
            closed == 0 && !is_engines()
        };
        assert!(run(close), "one without the engine's descriptors is another");
        assert!(is_engines());
    }
}
