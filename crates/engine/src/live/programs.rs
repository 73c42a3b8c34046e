//! Finding the programs whose page of counters this process may see, through /proc. proc_pid_fd(5)

use super::page::{LINK, Page};
use super::snapshot::Snapshot;
use crate::sys::memfd;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A program that holds files in a cache of this crate, or has held.
#[derive(Debug)]
pub struct Program {
    pid: u32,
    name: String,
    page: Page,
}

/// Every such program that this process may look at: its user's, or all for root. Those that end meanwhile are left
/// out.
///
/// ```
/// for program in fastmap::live::programs()? {
///     println!("{} {}", program.pid(), program.name());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn programs() -> io::Result<Vec<Program>> {
    let mut programs = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            && let Ok(Some(program)) = Program::open(pid)
        {
            programs.push(program);
        }
    }
    programs.sort_by_key(Program::pid);
    Ok(programs)
}

impl Program {
    /// The program with this process id. `None`: it has no page of counters, since it has not mapped a file through
    /// this crate.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] without such a process, [`io::ErrorKind::PermissionDenied`] where this process may
    /// not look at it (another user's, or one that forbids it), others where its page is of another version of FastMap.
    ///
    /// ```
    /// assert!(fastmap::live::Program::open(u32::MAX).is_err());
    /// ```
    pub fn open(pid: u32) -> io::Result<Option<Program>> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let started = start_of(&pid.to_string())?;
        let inside = inner_pid(pid)?;
        for entry in fs::read_dir(folder.join("fd"))?.flatten() {
            if !fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == LINK) {
                continue;
            }
            let memory = match open_memory(&entry.path(), &mount_of_memory()?) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                memory => memory?,
            };
            let Some(memory) = memory else { continue };
            let page = Page::open(&memory)?;
            // Not a page that was inherited, or that the keeper shares.
            let whose = (page.pid.load(Ordering::Relaxed), page.started.load(Ordering::Relaxed));
            if whose == (inside, started) {
                let name = fs::read_to_string(folder.join("comm"))?.trim_end().to_owned();
                return Ok(Some(Program { pid, name, page }));
            }
        }
        Ok(None)
    }

    /// Its process id, here.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its name, as ps(1) shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let started = self.page.started.load(Ordering::Relaxed);
        start_of(&self.pid.to_string()).is_ok_and(|at| at == started)
    }

    /// Its counters now. `None`: it does not answer within `patience`, because it is stopped or has ended.
    ///
    /// ```
    /// use fastmap::live::programs;
    /// use std::time::Duration;
    ///
    /// for program in programs()? {
    ///     if let Some(now) = program.look(Duration::from_millis(100)) {
    ///         println!("{}: {} files", program.name(), now.maps.len());
    ///     }
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn look(&self, patience: Duration) -> Option<Snapshot> {
        if self.page.ask(patience) { self.page.read() } else { None }
    }
}

/// Opens a descriptor of a program's, if it is of a memfd. A name tells little: the program may have given it to a pipe, or to a file of a
/// file system that does not answer. All memfds, and no such things, are on one mount of the kernel's.
fn open_memory(link: &Path, mount: &str) -> io::Result<Option<File>> {
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(link)?;
    if mount_of(&found)? != mount {
        return Ok(None);
    }
    let path = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    File::options().read(true).write(true).open(path).map(Some)
}

/// The line that tells the mount that a file is on. No file system is asked.
fn mount_of(file: &File) -> io::Result<String> {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
    info.lines().find(|line| line.starts_with("mnt_id:")).map(str::to_owned).ok_or(io::ErrorKind::InvalidData.into())
}

/// The mount that memfds are on.
fn mount_of_memory() -> io::Result<String> {
    mount_of(&memfd::create(c"fastmap-mount", 1)?.into())
}

/// When a process started, in clock ticks since the machine started. Fails for a zombie, of which nothing is left to see.
pub fn start_of(process: &str) -> io::Result<u64> {
    let line = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in parentheses, may hold anything.
    let mut fields = line.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace();
    if matches!(fields.next(), Some("Z" | "X") | None) {
        return Err(io::ErrorKind::NotFound.into());
    }
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The id that a process has in its own PID namespace: another one in a container.
fn inner_pid(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    Ok(ids.and_then(|ids| ids.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(pid.into()))
}
