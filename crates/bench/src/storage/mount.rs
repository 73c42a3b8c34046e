//! Mounts the file system: by mount(2), or by fusermount3, which may mount for users.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::substrates::sys;

/// The device through which the kernel talks to a FUSE file system. fuse(4)
pub const DEVICE: &str = "/dev/fuse";
/// The name of the file system in /proc/mounts.
const NAME: &str = "fastmap-storage";
/// The command that mounts for users.
const HELPER: &str = "fusermount3";

/// A mount. It is unmounted when the value is dropped. Programs that still have its files open get errors then.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    by_helper: bool,
}

impl Mount {
    /// Mounts at a folder. Returns the device, too, on which the kernel's requests come in.
    ///
    /// # Errors
    ///
    /// The system's error, or the message of fusermount3.
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
        // Another process may have unmounted it already, so errors are ignored.
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
    // Programs of other users may use it, too.
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

/// fusermount3 sends the device through a socket, whose number it finds in its environment.
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
        // The message matters only if no device came.
        let _ = stderr.read_to_string(&mut said);
    }
    helper.wait()?;
    device.map_err(|error| if said.is_empty() { failed(error) } else { io::Error::other(said.trim().to_owned()) })
}
