//! Slow storage for an experiment. A process of its own runs `fastmap bench storage`, and unmounts the storage however the bench ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::NAME;
use crate::substrates::sys;

/// Slow storage. It is mounted while this value lives.
#[derive(Debug)]
pub struct Beside(Child);

impl Beside {
    /// Mounts storage with a made-up file of `bytes`, which can only be read, at an empty folder.
    ///
    /// # Errors
    ///
    /// The reason why the storage cannot be mounted, in words.
    pub fn start(latency: &str, bandwidth: &str, bytes: u64, dir: &Path) -> Result<Beside, String> {
        Beside::with(latency, bandwidth, ["--size".as_ref(), bytes.to_string().as_ref()], dir)
    }

    /// Mounts storage with the files of the folder `source`, which can be written to.
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
        // The terminal's signals are for the bench, so the process has a group of its own.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::ends_with_parent(&mut command, libc::SIGTERM);
        let mut beside = Beside(command.spawn().map_err(|error| error.to_string())?);
        let mut ready = String::new();
        if let Some(stdout) = &mut beside.0.stdout {
            // If no line comes, the process gives the reason on standard error.
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
        // SAFETY: no memory is handed over. The child is not waited for yet, so no other process can have its number.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}
