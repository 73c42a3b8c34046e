//! Slow storage for an experiment: the command in a process of its own, which unmounts it however the bench ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::NAME;
use crate::substrates::sys;

/// Slow storage, while this value lives.
#[derive(Debug)]
pub struct Beside(Child);

impl Beside {
    /// With a made-up file of `bytes`, to be read, mounted at an empty folder.
    ///
    /// # Errors
    ///
    /// Why there can be none here, in words.
    pub fn start(latency: &str, bandwidth: &str, bytes: u64, dir: &Path) -> Result<Beside, String> {
        Beside::with(latency, bandwidth, ["--size".as_ref(), bytes.to_string().as_ref()], dir)
    }

    /// With the files of a folder, which can be written to.
    ///
    /// # Errors
    ///
    /// As [`Beside::start`].
    pub fn of_folder(latency: &str, bandwidth: &str, source: &Path, dir: &Path) -> Result<Beside, String> {
        Beside::with(latency, bandwidth, ["--writable".as_ref(), "--source".as_ref(), source.as_os_str()], dir)
    }

    fn with<const N: usize>(
        latency: &str,
        bandwidth: &str,
        holding: [&OsStr; N],
        dir: &Path,
    ) -> Result<Beside, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args([NAME, "--latency", latency, "--bandwidth", bandwidth]).args(holding).arg(dir);
        // The terminal's signals are the bench's.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::ends_with_parent(&mut command, libc::SIGTERM);
        let mut beside = Beside(command.spawn().map_err(|error| error.to_string())?);
        let mut ready = String::new();
        if let Some(stdout) = &mut beside.0.stdout {
            // Without an answer there is a reason.
            let _ = BufReader::new(stdout).read_line(&mut ready);
        }
        if !ready.is_empty() {
            return Ok(beside);
        }
        let mut why = String::new();
        if let Some(stderr) = &mut beside.0.stderr {
            let _ = stderr.read_to_string(&mut why);
        }
        Err(why.trim().trim_start_matches("fastmap: ").to_owned())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: no memory is handed over; the child is not waited for yet, so that its number is nobody else's.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}
