//! `fastmap bench storage`: storage far away, to try programs on. Each read takes its time, and many reads are served at once.
//!
//! It is a FUSE file system. It is not an experiment; the experiment `loads` starts it, too.

mod beside;
mod files;
mod mount;
mod slow;
mod wire;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::{Args as _, FromArgMatches};
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::Size;

use self::files::Shown;
use self::mount::{DEVICE, Mount};
use self::slow::{Slow, Speed};
use crate::args::{rate, time};

pub use self::beside::Beside;

/// Its name on the command line.
pub const NAME: &str = "storage";
/// The name of the made-up file.
pub const DATA: &str = "data";

/// How often the command checks whether a signal has come.
const POLL: Duration = Duration::from_millis(50);

/// Mount storage that is far away: each read takes its time, many are served at once
#[derive(Debug, clap::Args)]
#[command(long_about = "\
Mount storage that is far away, as network file systems and mounts of object stores are: a FUSE file system in which each request takes \
a time, and many are served at once.

It holds one made-up file, `data`, or the files of a folder, to be read and mapped by any program; the page cache keeps what was read, as of other \
files. The kernel asks for 128 KiB at most in one read. It is there until Ctrl-C, a signal (TERM, HUP), or umount(8); then it says how \
many reads there were, and how many at the same time at most.

It takes /dev/fuse, and to be root, or fusermount3.")]
#[command(after_help = "\
The made-up file holds what the experiments' files hold, so that every byte of it can be checked.

Examples:
  fastmap bench storage --latency 2ms --bandwidth 1GB/s /mnt/slow
  fastmap bench storage --latency 20ms --bandwidth 200MB/s --source models /mnt/slow")]
pub struct Args {
    /// Time of each read
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = time)]
    latency: Duration,
    /// Bytes a second of all reads together
    #[arg(long, value_name = "RATE", default_value = "1GB/s", value_parser = rate)]
    bandwidth: f64,
    /// Size of the made-up file
    #[arg(long, default_value = "1GiB", conflicts_with = "source")]
    size: Size,
    /// Hold the files of this folder instead, without its subfolders
    #[arg(long, value_name = "FOLDER")]
    source: Option<PathBuf>,
    /// Let files be written to, within their lengths; the folder's files are then changed
    #[arg(long, requires = "source")]
    writable: bool,
    /// The empty folder to mount it at
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// The command line of `fastmap bench storage`.
pub fn command() -> clap::Command {
    Args::augment_args(clap::Command::new(NAME))
}

/// Mounts the storage, and unmounts it when a signal comes.
///
/// # Errors
///
/// The folder is not empty or not there, or the storage cannot be mounted.
pub fn run(matches: &clap::ArgMatches) -> Result<(), Failure> {
    let args = Args::from_arg_matches(matches).map_err(|e| Failure::told(e.to_string()))?;
    interrupt::watch();
    let files = match &args.source {
        Some(folder) => Shown::of_folder(folder, args.writable)?,
        None => vec![Shown::made_up(DATA, args.size.0)],
    };
    let dir = empty_folder(&args.dir)?;
    let bytes = files.iter().map(|file| file.bytes).sum();
    let count = if files.len() == 1 { "1 file".to_owned() } else { format!("{} files", files.len()) };
    let (mounted, device) = mount(&dir, args.writable)?;
    let slow = Arc::new(Slow::new(files, Speed { latency: args.latency, bandwidth: args.bandwidth }, device));
    let threads = slow.serve().map_err(|e| Failure::new("threads", e, "check `ulimit -u` and free memory"))?;
    fastmap_cli::print(&format!(
        "{}: {count}, {}; each read takes {:?}, all together {} MB/s at most; until Ctrl-C\n",
        args.dir.display(),
        Size(bytes),
        args.latency,
        args.bandwidth / 1e6
    ));
    while !interrupt::requested() && !threads.iter().all(JoinHandle::is_finished) {
        thread::sleep(POLL);
    }
    drop(mounted);
    fastmap_cli::print(&format!("{}\n", slow.seen()));
    Ok(())
}

/// The absolute path of a folder, which must be empty.
fn empty_folder(dir: &Path) -> Result<PathBuf, Failure> {
    let refused = |what: String| Failure::new(dir.display(), what, "name an empty folder to mount it at");
    let entries = fs::read_dir(dir).map_err(|error| refused(format!("cannot be looked into: {error}")))?;
    if entries.count() > 0 {
        return Err(refused("is not empty".to_owned()));
    }
    dir.canonicalize().map_err(|error| refused(error.to_string()))
}

fn mount(dir: &Path, writable: bool) -> Result<(Mount, File), Failure> {
    if !Path::new(DEVICE).exists() {
        return Err(Failure::new(DEVICE, "is not there", "`modprobe fuse`; in a container, have it given the device"));
    }
    Mount::at(dir, writable).map_err(|error| {
        let remedy = match rustix::process::geteuid().is_root() {
            true => "mounting takes CAP_SYS_ADMIN, which containers seldom have",
            false => "run it as root, or install fusermount3 (package fuse3)",
        };
        Failure::new(dir.display(), format!("cannot be mounted: {error}"), remedy)
    })
}
