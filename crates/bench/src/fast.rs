//! A fast device made for an experiment: zram, compressed memory behind the block layer.
//!
//! A zram device stays even if no process has it open. So a process of its own, the keeper, makes the device and removes it when the bench
//! ends. The keeper waits at the end of a pipe, into which nobody writes. The kernel closes the pipe however the bench ends. Devices that
//! were there before are left alone.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use fastmap_cli::{interrupt, machine};

/// The subcommand that is the keeper.
pub const NAME: &str = "zram-keeper";

/// A read of this file adds a zram device and returns its number. Documentation/admin-guide/blockdev/zram.rst
const HOT_ADD: &str = "/sys/class/zram-control/hot_add";
const HOT_REMOVE: &str = "/sys/class/zram-control/hot_remove";

/// The longest wait until other processes have closed a device that is to be removed. They may look at it, or write to it.
const LONGEST_REMOVAL: Duration = Duration::from_secs(20);

/// A fast block device while this value lives.
pub struct FastDevice {
    path: PathBuf,
    keeper: Child,
}

impl FastDevice {
    /// Makes a device of `bytes`.
    ///
    /// # Errors
    ///
    /// The reason why no device can be made, in words. Nothing is left behind then.
    pub fn make(bytes: u64) -> Result<FastDevice, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can make one".to_owned());
        }
        // The pages that are written there do not compress. As much memory again is left for everything else.
        let free = machine::meminfo("MemAvailable");
        if free < 2 * bytes {
            return Err(format!("{} MiB of memory are free, and zram of {} is to leave half", free >> 20, Size(bytes)));
        }
        if !Path::new(HOT_ADD).exists() {
            // modprobe(8) says itself what is missing. Only the result counts: whether there is zram now.
            let _ = Command::new("modprobe")
                .args(["zram", "num_devices=0"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
        if !Path::new(HOT_ADD).exists() {
            return Err("the kernel has no zram".to_owned());
        }
        let (path, keeper) = keep(bytes)?;
        Ok(FastDevice { path, keeper })
    }

    /// The path of the device.
    pub fn device(&self) -> &Path {
        &self.path
    }
}

impl Drop for FastDevice {
    fn drop(&mut self) {
        self.keeper.stdin = None;
        let _ = self.keeper.wait();
    }
}

/// Starts the keeper. Returns the path of its device, and its process.
fn keep(bytes: u64) -> Result<(PathBuf, Child), String> {
    let failed = |error: io::Error| format!("cannot start its keeper: {error}");
    let mut keeper = Command::new("/proc/self/exe")
        .args([NAME, &bytes.to_string()])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut answer = String::new();
    let said = keeper.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut answer));
    let device = said.ok_or("its keeper is not heard".to_owned()).and_then(|said| {
        said.map_err(failed)?;
        serde_json::from_str(&answer).map_err(|error| format!("its keeper is not understood: {error}"))?
    });
    match device {
        Ok(device) => Ok((device, keeper)),
        Err(why) => {
            keeper.stdin = None;
            let _ = keeper.wait();
            Err(why)
        }
    }
}

/// The keeper. It makes a device of `bytes`, prints its path, and removes it when standard input ends.
///
/// # Errors
///
/// The device cannot be removed.
pub fn keeper(bytes: u64) -> Result<(), Failure> {
    // Signals are for the bench, not for the keeper.
    interrupt::watch();
    let (number, made) = match fs::read_to_string(HOT_ADD) {
        Ok(number) => {
            let number = number.trim().to_owned();
            let sized = fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string());
            let made = sized.map(|()| PathBuf::from(format!("/dev/zram{number}")));
            (Some(number), made.map_err(|error| format!("zram cannot be given {}: {error}", Size(bytes))))
        }
        Err(error) => (None, Err(format!("{HOT_ADD}: {error}"))),
    };
    fastmap_cli::print(&format!("{}\n", serde_json::to_string(&made).unwrap_or_default()));
    // Waits for the end: the bench writes nothing.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    number.map_or(Ok(()), |number| remove(&number))
}

/// Removes the device that was made here.
fn remove(number: &str) -> Result<(), Failure> {
    let until = Instant::now() + LONGEST_REMOVAL;
    loop {
        match fs::write(HOT_REMOVE, number) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= until => {
                let remedy = format!("`echo {number} > {HOT_REMOVE}` when nobody uses it");
                return Err(Failure::new(format!("/dev/zram{number}"), format!("cannot be removed: {error}"), remedy));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_memory_for_it_it_says_so_or_that_it_takes_root() {
        let why = FastDevice::make(1 << 60).map(drop).unwrap_err();
        assert!(why.contains("only root") || why.contains("zram of 1048576TiB is to leave half"), "{why}");
    }
}
