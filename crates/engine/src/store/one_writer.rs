//! One process at a time writes a file through a cache: an advisory lock, and finding its holder.
//!
//! The lock is an open-file-description lock (fcntl(2), `F_OFD_SETLK`) on one byte far behind any data, so that it does not meet locks of the
//! program on ranges of the file (SQLite's, for one). It belongs to the store's own descriptor, and goes with the region or with the process.
//! The keeper, which shares the descriptor, holds the lock until it has saved.

use crate::error::{Error, Result};
use crate::sys::file::{self, ByteLock, Identity};
use crate::sys::proc_files;
use std::ffi::CStr;
use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The keeper's name in ps(1). The keeper holds a program's locks after its end.
pub const KEEPER: &CStr = c"fastmap-keeper";
/// The name of the thread that makes the keeper. The keeper has it until it gives itself its own.
pub const KEEPERS_THREAD: &str = "fastmap-watch";

/// The byte: the last but one that a lock can name.
pub const BYTE: i64 = i64::MAX - 1;

/// Pause between two looks at a lock's holder.
const POLL: Duration = Duration::from_millis(10);

/// How long a holder that cannot be found is waited for. A dead process may hold the lock for a moment: writes in flight in its rings keep
/// the descriptor open until the kernel has ended them.
const PATIENCE_WITH_NOBODY: Duration = Duration::from_secs(2);

/// Locks the file behind a descriptor of our own for writing. False where that is not possible, which is logged: the file system has no such
/// locks, or somebody has locked the byte as no cache does. That is a lock on the whole file, or one for reading, which every process can
/// take that may read the file.
pub fn lock(own: &File, path: &Path) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE_WITH_NOBODY;
    let mut holder = None;
    while holder.is_none() {
        match file::lock_byte(own, BYTE) {
            ByteLock::Taken => return Ok(true),
            ByteLock::Held => holder = find_holder(own),
            ByteLock::Covered => {
                tracing::warn!(file = %path.display(), "a program has locked it where caches do: other writers are not refused");
                return Ok(false);
            }
            ByteLock::Failed(error) => {
                let error = std::io::Error::from_raw_os_error(error);
                tracing::warn!(file = %path.display(), %error, "cannot be locked: other writers are not refused");
                return Ok(false);
            }
        }
        if Instant::now() >= deadline {
            break;
        }
        sleep(POLL);
    }
    Err(Error::Locked { path: path.to_owned(), pid: holder.as_ref().map(|one| one.pid), holder: Holder::name(holder) })
}

/// Gives the lock back. Otherwise processes that inherited the descriptor by fork(2) would keep it. Called by the keeper, too.
pub fn unlock(own: &File) {
    file::unlock_byte(own, BYTE);
}

/// Waits while only the keeper of a program that has ended holds the file: it may have pages yet to write. For half a minute at most.
pub fn wait_for_keeper(from: &File) {
    const PATIENCE: Duration = Duration::from_secs(30);
    let start = Instant::now();
    while file::byte_is_locked(from, BYTE) {
        // A keeper that is taking its descriptors over cannot be found, nor can writes of a dead program in flight.
        let patience = match find_holder(from) {
            Some(holder) if holder.is_keeper() => PATIENCE,
            Some(_) => return,
            None => PATIENCE_WITH_NOBODY,
        };
        if start.elapsed() >= patience {
            return;
        }
        sleep(POLL);
    }
}

/// A process that holds the lock.
#[derive(Debug)]
struct Holder {
    pid: u32,
    command: String,
}

impl Holder {
    /// A keeper has the name of the thread that made it until it gives itself its own.
    fn is_keeper(&self) -> bool {
        [KEEPER.to_bytes(), KEEPERS_THREAD.as_bytes()].contains(&self.command.as_bytes())
    }

    fn name(holder: Option<Holder>) -> String {
        holder.map_or("another process".into(), |Holder { pid, command }| format!("process {pid} ({command})"))
    }
}

/// The holder of the lock of the file behind a descriptor, as far as this process may see (proc(5)); the kernel itself
/// names no owner of such a lock. A program comes before its keeper.
fn find_holder(from: &File) -> Option<Holder> {
    let identity = file::facts(from).ok()?.identity;
    let mut found = None;
    for pid in proc_files::numbers("/proc") {
        let process = Path::new("/proc").join(pid.to_string());
        if !holds(&process, identity) {
            continue;
        }
        let command = proc_files::text(process.join("comm")).trim_end().to_owned();
        let holder = Holder { pid, command };
        if !holder.is_keeper() {
            return Some(holder);
        }
        found = Some(holder);
    }
    found
}

/// Whether a process, given by its folder in /proc, has a descriptor that the lock of a file belongs to.
fn holds(process: &Path, identity: Identity) -> bool {
    proc_files::numbers(process.join("fdinfo")).into_iter().any(|descriptor| {
        let ours = format!(" {BYTE} {BYTE}");
        let locks = proc_files::text(process.join(format!("fdinfo/{descriptor}")));
        // The line names a device by a number that some file systems (btrfs) do not tell elsewhere, so the file is compared.
        locks.lines().any(|line| {
            line.starts_with("lock:") && line.contains(" OFDLCK ") && line.contains(" WRITE ") && line.ends_with(&ours)
        }) && file::identity_of(&process.join(format!("fd/{descriptor}"))) == Some(identity)
    })
}
