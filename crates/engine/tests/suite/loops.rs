//! File systems on loop devices, for all crates.

#![allow(dead_code)] // each crate uses its own part

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, which goes when dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn over(backing: &Path) -> Result<Self, String> {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err("a loop device needs root".into());
        }
        let device = run("losetup", &["--find".as_ref(), "--show".as_ref(), backing.as_os_str()])?;
        Ok(Loop(device.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// An ext4 on a loop device, unmounted when dropped.
pub struct Ext4 {
    at: tempfile::TempDir,
    pub device: PathBuf,
}

impl Ext4 {
    /// Of so many bytes, which are in a file in `image`, mounted `at`. `options`: of mkfs.ext4(8).
    pub fn new(image: tempfile::TempDir, at: tempfile::TempDir, bytes: u64, options: &[&str]) -> Result<Self, String> {
        let image = image.path().join("image");
        let made = std::fs::File::create(&image).and_then(|file| file.set_len(bytes));
        made.map_err(|error| format!("{}: {error}", image.display()))?;
        // It goes, and the file with it, when nothing is mounted from it any more.
        let device = Loop::over(&image)?;
        let options = ["-q", "-m0"].iter().chain(options).map(OsStr::new);
        run("mkfs.ext4", &options.chain([device.0.as_os_str()]).collect::<Vec<_>>())?;
        run("mount", &[device.0.as_os_str(), at.path().as_os_str()])?;
        Ok(Ext4 { at, device: device.0.clone() })
    }

    /// A path on it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.at.path()).status();
    }
}

/// Runs a command, and returns what it printed.
pub fn run(program: &str, args: &[&OsStr]) -> Result<String, String> {
    let done = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if done.status.success() { Ok(said(&done.stdout)) } else { Err(format!("{program}: {}", said(&done.stderr))) }
}
