//! The program's record locks (fcntl(2) `F_SETLK`, lockf(3)), which any close(2) of any descriptor of the file by the
//! process takes away, also of one that the engine opened for itself.
//!
//! So before the engine closes a descriptor it asks whether the file is locked: an open file description that asks
//! (`F_OFD_GETLK`, Linux 3.15) is told of the locks of its own process too. The owner of a lock makes no difference,
//! since behind the one that the kernel names there may be others. While there is one the descriptor is put aside: it
//! stays open, is used again when the file is opened anew, and is closed when a later look finds the file without
//! locks. (A lock that the program takes between the look and the close(2), by another thread, is not seen.)
//!
//! So is one that a thread drops which has another descriptor table than the engine's (`descriptor_table.rs`): it is
//! closed where it was opened.
//!
//! Which descriptors these are is a bit each, in memory that children made by fork(2) find empty: theirs are not the
//! engine's any more. Nothing here allocates or locks.

use super::PAGE;
use super::descriptor_table;
use super::engine_fd::{self, EngineFd, Numbers};
use super::fork;
use std::fs::File;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Descriptors put aside that one look asks about.
const LOOK: usize = 64;

#[derive(Debug)]
struct Aside {
    numbers: Numbers,
    /// How many: most programs lock nothing.
    count: AtomicUsize,
    /// Where the next look begins.
    next: AtomicUsize,
}

/// Null until something is put aside.
static ASIDE: AtomicPtr<Aside> = AtomicPtr::new(ptr::null_mut());

fn aside() -> Option<&'static Aside> {
    // SAFETY: null or what `make` put there for good. Zeros, which a child finds, are a value.
    unsafe { ASIDE.load(Ordering::Acquire).as_ref() }.filter(|aside| aside.count.load(Ordering::Acquire) > 0)
}

fn make() -> Option<&'static Aside> {
    if ASIDE.load(Ordering::Acquire).is_null() {
        let len = size_of::<Aside>().next_multiple_of(PAGE);
        let at = fork::wiped_in_children(len).ok()?;
        if ASIDE.compare_exchange(ptr::null_mut(), at.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made just now; another thread was first.
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

    /// Makes a descriptor this thread's.
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

/// Whether closing a descriptor might take locks away. The last two bytes that a lock can name are not asked about: one
/// of them is the engine's own to lock (`store/one_writer.rs`), for another open file description than this may be.
pub fn hold(fd: RawFd) -> bool {
    // SAFETY: a zeroed flock is a valid one, which the kernel reads and writes. Where it knows of no locks there are
    // none.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence, lock.l_len) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16, i64::MAX - 1);
        libc::syscall(libc::SYS_fcntl, fd, libc::F_OFD_GETLK, &mut lock) == 0 && lock.l_type != libc::F_UNLCK as i16
    }
}

/// Puts a descriptor aside; its owner forgets it. One for which there is no room to note it stays open for good.
pub fn put_aside(number: RawFd) {
    if let Some(aside) = make().filter(|_| Numbers::has_room_for(number)) {
        aside.put(number);
    }
}

/// A descriptor put aside of the file behind `like`, with these flags; of its own open file description, not the
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
                // SAFETY: put aside by an owner that has forgotten it, and this thread's now.
                return Some(unsafe { engine_fd::opened_anew(number) });
            }
            aside.put(number);
        }
    }
    None
}

/// Closes descriptors put aside of files that nobody locks any more.
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
        // But for the moment in which another test's thread looks at it.
        let used_again = || reopen(file.as_file(), true, false).unwrap().as_raw_fd() == number;
        assert!((0..1000).any(|_| used_again()), "never used again");
        // Nothing of the engine's is used for what the program's own description is for.
        let copy = EngineFd::new(file.as_file().try_clone().unwrap());
        let shared = copy.as_raw_fd();
        drop(copy);
        assert!(hold(file.as_raw_fd()) && identity(shared).is_some());
        let [first, second] = [(); 2].map(|()| reopen(file.as_file(), true, false).unwrap());
        assert!(first.as_raw_fd() != shared && second.as_raw_fd() != shared && shared != number);
        drop([first, second]);
        assert!(hold(file.as_raw_fd()));
        lock(file.as_file(), libc::F_UNLCK);
        // By any descriptor of the engine's that comes or goes; other tests' may be aside too.
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
