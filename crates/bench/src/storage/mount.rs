//! Mounting: by mount(2), or by fusermount3, which may where users may not.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::substrates::sys;

/// The device through which the kernel and a file system of this kind talk. fuse(4)
pub const DEVICE: &str = "/dev/fuse";
/// How it is called in /proc/mounts.
const NAME: &str = "fastmap-storage";
/// Mounts for users.
const HELPER: &str = "fusermount3";

/// A mount; dropped, it is gone. Programs that have files of it open meet errors from then on.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    by_helper: bool,
}

impl Mount {
    /// At a folder; with the device that answers for it.
    ///
    /// # Errors
    ///
    /// The words of the system, or of fusermount3.
    pub fn at(dir: &Path, writable: bool) -> io::Result<(Mount, File)> {
        let (by_helper, device) = match mount(dir, writable) {
            Ok(device) => (false, device),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => (true, mount_by_helper(dir, writable)?),
            Err(error) => return Err(error),
        };
        Ok((Mount { dir: dir.to_owned(), by_helper }, device))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Somebody else may have unmounted it.
        if !self.by_helper {
            let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        } else {
            let mut helper = Command::new(HELPER);
            let _ = helper.args(["-u", "-z", "-q", "--"]).arg(&self.dir).stderr(Stdio::null()).status();
        }
    }
}

fn mount(dir: &Path, writable: bool) -> io::Result<File> {
    let device = File::options().read(true).write(true).open(DEVICE)?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (fd, mode) = (device.as_raw_fd(), libc::S_IFDIR);
    // Others' programs, too.
    let options = format!(
        "fd={fd},rootmode={mode:o},user_id={},group_id={},allow_other,default_permissions",
        uid.as_raw(),
        gid.as_raw()
    );
    let options = CString::new(options)?;
    let read_only = if writable { MountFlags::empty() } else { MountFlags::RDONLY };
    let flags = read_only | MountFlags::NODEV | MountFlags::NOSUID;
    rustix::mount::mount(NAME, dir, "fuse", flags, options.as_c_str())?;
    Ok(device)
}

/// It hands over the device through a socket, the number of which it finds in its environment.
fn mount_by_helper(dir: &Path, writable: bool) -> io::Result<File> {
    let (ours, its) = UnixStream::pair()?;
    let mut command = Command::new(HELPER);
    command
        .args(["-o", &format!("{},fsname={NAME}", if writable { "rw" } else { "ro" }), "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", its.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    sys::keeps_open(&mut command, &its);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{HELPER}: {error}"));
    let mut helper = command.spawn().map_err(failed)?;
    drop(its);
    let device = sys::receive_file(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut helper.stderr {
        // Its words are read where it failed.
        let _ = stderr.read_to_string(&mut said);
    }
    helper.wait()?;
    device.map_err(|error| if said.is_empty() { failed(error) } else { io::Error::other(said.trim().to_owned()) })
}
