//! Keeps the program's record locks (fcntl(2) `F_SETLK`, lockf(3)). When a process closes a descriptor of a file, it loses all its record locks on
//! that file. A descriptor that the engine opened for itself is no exception.
//!
//! So before the engine closes a descriptor it asks whether the file is locked (`F_OFD_GETLK`, Linux 3.15). An open file description asks, so it is
//! told of locks of its own process, too. The owner of the lock makes no difference: the kernel names one lock, and others may be behind it.
//!
//! If the file is locked, the engine puts the descriptor aside. The descriptor stays open. It is used again when the engine opens the file anew. It
//! is closed when a later look finds the file without locks. (If another thread of the program takes a lock between the look and the close(2), the
//! engine does not see that lock.)
//!
//! A descriptor is put aside, too, if the thread that drops it has another descriptor table than the engine's (`descriptor_table.rs`). It is closed
//! later, in the table where it was opened.
//!
//! A bitmap tells which descriptors are aside. Children made by fork(2) find the bitmap empty: their descriptors are not the engine's any more.
//! Nothing here allocates or locks.

use super::PAGE;
use super::descriptor_table;
use super::engine_fd::{self, EngineFd, Numbers};
use super::fork;
use std::fs::File;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The most descriptors that one look asks about.
const LOOK: usize = 64;

#[derive(Debug)]
struct Aside {
    numbers: Numbers,
    /// How many descriptors are aside. Mostly none, since most programs lock nothing.
    count: AtomicUsize,
    /// The number at which the next look begins.
    next: AtomicUsize,
}

/// Null until something is put aside.
static ASIDE: AtomicPtr<Aside> = AtomicPtr::new(ptr::null_mut());

fn aside() -> Option<&'static Aside> {
    // SAFETY: the pointer is null, or what `make` put there for good. The zeros that a child finds are a valid value.
    unsafe { ASIDE.load(Ordering::Acquire).as_ref() }.filter(|aside| aside.count.load(Ordering::Acquire) > 0)
}

fn make() -> Option<&'static Aside> {
    if ASIDE.load(Ordering::Acquire).is_null() {
        let len = size_of::<Aside>().next_multiple_of(PAGE);
        let at = fork::wiped_in_children(len).ok()?;
        if ASIDE.compare_exchange(ptr::null_mut(), at.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: this thread made it just now. Another thread was first, so nobody uses this memory.
            unsafe { super::memory::release(at, len) };
        }
    }
    // SAFETY: as in `aside`.
    unsafe { ASIDE.load(Ordering::Acquire).as_ref() }
}

impl Aside {
    fn put(&self, number: RawFd) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.numbers.insert(number);
    }

    /// Takes a descriptor out. True: it belongs to this thread now.
    fn claim(&self, number: RawFd) -> bool {
        let claimed = self.numbers.remove(number);
        if claimed {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        claimed
    }
}

fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: fstat fills the zeroed structure.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut facts) == 0).then_some((facts.st_dev, facts.st_ino))
    }
}

/// Whether closing a descriptor might take the program's locks away. The last two bytes that a lock can name are left out. The engine itself locks
/// one of them (`store/one_writer.rs`), perhaps through another open file description.
pub fn hold(fd: RawFd) -> bool {
    // SAFETY: a zeroed flock is a valid one, which the kernel reads and writes.
    // A file system that fails the call knows of no locks, so there are none.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence, lock.l_len) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16, i64::MAX - 1);
        libc::syscall(libc::SYS_fcntl, fd, libc::F_OFD_GETLK, &mut lock) == 0 && lock.l_type != libc::F_UNLCK as i16
    }
}

/// Puts a descriptor aside. Its owner must forget it. If there is no room to note the descriptor, it stays open for good.
pub fn put_aside(number: RawFd) {
    if let Some(aside) = make().filter(|_| Numbers::has_room_for(number)) {
        aside.put(number);
    }
}

/// Takes a descriptor that was put aside, of the file behind `like` and with these flags. Its open file description is the engine's own, never the
/// program's.
pub fn take(like: RawFd, writable: bool, direct: bool) -> Option<EngineFd<File>> {
    let aside = aside().filter(|_| descriptor_table::is_engines())?;
    let file = identity(like)?;
    let is_wanted = |number: RawFd| {
        // SAFETY: reads flags.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        (flags & libc::O_ACCMODE == libc::O_RDWR) == writable
            && (flags & libc::O_DIRECT != 0) == direct
            && identity(number) == Some(file)
    };
    let mut from = 0;
    while let Some(number) = aside.numbers.next(from) {
        from = number + 1;
        if engine_fd::is_opened_anew(number) && aside.claim(number) {
            if is_wanted(number) {
                // SAFETY: its owner put it aside and has forgotten it. It is this thread's now.
                return Some(unsafe { engine_fd::opened_anew(number) });
            }
            aside.put(number);
        }
    }
    None
}

/// Closes the descriptors put aside whose files nobody locks any more. One call looks at `LOOK` descriptors at most.
pub fn look_again() {
    let Some(aside) = aside().filter(|_| descriptor_table::is_engines()) else { return };
    let mut from = aside.next.load(Ordering::Relaxed) as RawFd;
    for _ in 0..LOOK {
        let Some(number) = aside.numbers.next(from) else {
            from = 0;
            break;
        };
        from = number + 1;
        if aside.claim(number) {
            if hold(number) {
                aside.put(number);
            } else {
                // SAFETY: as in `take`.
                unsafe { engine_fd::close(number) };
            }
        }
    }
    aside.next.store(from as usize, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::file::reopen;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn lock(file: &File, kind: i32) {
        // SAFETY: a lock of all the file.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = kind as i16;
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock), 0);
        }
    }

    fn locked_file() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(b"locked").unwrap();
        lock(file.as_file(), libc::F_WRLCK);
        assert!(hold(file.as_raw_fd()), "this process's own lock is seen");
        file
    }

    #[test]
    fn a_lock_of_the_program_outlives_descriptors_of_the_engine() {
        let file = locked_file();
        let one = reopen(file.as_file(), true, false).unwrap();
        let number = one.as_raw_fd();
        drop(one);
        assert!(hold(file.as_raw_fd()), "dropped, not closed");
        // Not at once, if another test's thread looks at it just then.
        let used_again = || reopen(file.as_file(), true, false).unwrap().as_raw_fd() == number;
        assert!((0..1000).any(|_| used_again()), "never used again");
        // A copy of the program's own descriptor goes aside as well, but is never used again.
        let copy = EngineFd::new(file.as_file().try_clone().unwrap());
        let shared = copy.as_raw_fd();
        drop(copy);
        assert!(hold(file.as_raw_fd()) && identity(shared).is_some());
        let [first, second] = [(); 2].map(|()| reopen(file.as_file(), true, false).unwrap());
        assert!(first.as_raw_fd() != shared && second.as_raw_fd() != shared && shared != number);
        drop([first, second]);
        assert!(hold(file.as_raw_fd()));
        lock(file.as_file(), libc::F_UNLCK);
        // Any descriptor of the engine's that comes or goes makes it look again. Other tests' descriptors may be aside, too.
        let ours = identity(file.as_raw_fd());
        while identity(number) == ours || identity(shared) == ours {
            drop(EngineFd::new(File::open("/dev/null").unwrap()));
        }
    }

    #[test]
    fn a_child_has_nothing_aside() {
        let file = locked_file();
        drop(reopen(file.as_file(), false, false).unwrap());
        assert!(aside().is_some());
        // SAFETY: the child looks at a few words and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(aside().is_some()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        }
    }
}
