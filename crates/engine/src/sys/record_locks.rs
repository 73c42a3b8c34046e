//! The program's record locks (fcntl(2) `F_SETLK`), which any close(2) of any descriptor of the file by the process takes away,
//! also one that the engine made for itself.
//!
//! While the program has locked a file so, the engine's descriptors of it are not closed but put aside, and used again when it
//! needs one. Once the program itself closes one, its locks are gone anyway, and so are they. Nobody is told of locks where
//! nobody stands in for fcntl(2) and close(2): there the list is empty.

use super::own::Own;
use crate::lock::Guarded;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Locked {
    file: (u64, u64),
    aside: Vec<Own<File>>,
}

static LOCKED: Guarded<Vec<Locked>> = Guarded::new(Vec::new());
/// Its length: most programs have none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: fstat fills the zeroed structure.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut facts) == 0).then_some((facts.st_dev, facts.st_ino))
    }
}

fn with<R>(fd: RawFd, then: impl FnOnce(&mut Vec<Locked>, (u64, u64)) -> R) -> Option<R> {
    let file = identity(fd)?;
    Some(LOCKED.with(|locked| then(locked, file)))
}

/// The program locks records of a file.
pub fn note_lock(fd: RawFd) {
    with(fd, |locked, file| {
        if !locked.iter().any(|one| one.file == file) {
            locked.push(Locked { file, aside: Vec::new() });
            COUNT.store(locked.len(), Ordering::Release);
        }
    });
}

/// The program is about to close a descriptor, or just did away with its locks otherwise.
pub fn note_close(fd: RawFd) {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let gone = with(fd, |locked, file| {
        let gone: Vec<_> = locked.extract_if(.., |one| one.file == file).collect();
        COUNT.store(locked.len(), Ordering::Release);
        gone
    });
    // Closed here, when nothing holds them back any more.
    drop(gone);
}

/// Keeps the list as it is across fork(2).
pub fn freeze() {
    LOCKED.freeze();
}

/// Ends that, in parent or child.
///
/// # Safety
/// As for [`Guarded::thaw`].
pub unsafe fn thaw() {
    // SAFETY: the caller's contract.
    unsafe { LOCKED.thaw() };
}

/// Whether closing a descriptor would take locks away.
pub fn hold(fd: RawFd) -> bool {
    COUNT.load(Ordering::Acquire) > 0
        && with(fd, |locked, file| locked.iter().any(|one| one.file == file)).unwrap_or(false)
}

/// Puts a descriptor aside for which [`hold`] says so; gives it back if it does not any more.
pub fn put_aside(file: Own<File>) -> Option<Own<File>> {
    let mut file = Some(file);
    with(file.as_ref()?.as_raw_fd(), |locked, identity| {
        if let Some(one) = locked.iter_mut().find(|one| one.file == identity) {
            one.aside.extend(file.take());
        }
    });
    file
}

/// A descriptor put aside of the file behind `like`, with these flags.
pub fn take(like: RawFd, writable: bool, direct: bool) -> Option<Own<File>> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let wanted = |one: &Own<File>| {
        // SAFETY: reads flags.
        let flags = unsafe { libc::fcntl(one.as_raw_fd(), libc::F_GETFL) };
        (flags & libc::O_ACCMODE == libc::O_RDWR) == writable && (flags & libc::O_DIRECT != 0) == direct
    };
    with(like, |locked, file| {
        let one = locked.iter_mut().find(|one| one.file == file)?;
        let at = one.aside.iter().position(wanted)?;
        Some(one.aside.swap_remove(at))
    })?
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::file::reopen;
    use std::io::Write;

    /// Whether another open file description meets a record lock.
    fn is_locked(path: &std::path::Path) -> bool {
        let other = File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: a zeroed lock of all the file; asked of a description of its own, which record locks of this process hinder too.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as i16;
            assert_eq!(libc::fcntl(other.as_raw_fd(), libc::F_OFD_GETLK, &mut lock), 0);
            // Closing it would take the lock away.
            std::mem::forget(other);
            lock.l_type != libc::F_UNLCK as i16
        }
    }

    #[test]
    fn a_lock_of_the_program_outlives_descriptors_of_the_engine() {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(b"locked").unwrap();
        // SAFETY: a lock of all the file.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as i16;
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock), 0);
        }
        note_lock(file.as_raw_fd());
        let one = reopen(file.as_file(), true, false).unwrap();
        let number = one.as_raw_fd();
        drop(one);
        assert!(is_locked(file.path()), "dropped, not closed");
        let again = reopen(file.as_file(), true, false).unwrap();
        assert_eq!(again.as_raw_fd(), number, "used again");
        drop(again);
        note_close(file.as_raw_fd());
        assert!(!is_locked(file.path()), "the program closed one: so were ours");
    }
}
