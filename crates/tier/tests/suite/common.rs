//! What the tests share: objects and their bytes, folders, children.

pub use crate::effort::{quick_or_full, skip, under_load};
pub use crate::random::Random;
use fastmap_tier::{Local, Tier, UNIT, Version};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PAGE: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// A folder on the disk of the build directory, which is no tmpfs.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build directory")
}

pub fn tier(folder: &Path, limit: u64) -> Arc<Tier> {
    Tier::open(Some(folder), Some(limit)).expect("a folder of our own")
}

/// An object by number and version.
pub fn object(number: u64, etag: u64, len: u64) -> Version {
    let url = format!("s3://bucket/{number}");
    Version { url, etag: Some(format!("\"{etag}\"")), version: None, modified: None, len }
}

/// The bytes of a unit of an object, which are no other's.
pub fn bytes_of(object: &Version, unit: u64) -> Vec<u8> {
    let len = UNIT.min(object.len - unit * UNIT) as usize;
    let seed = crc32c::crc32c(format!("{object:?} {unit}").as_bytes());
    let mut random = Random::new(u64::from(seed));
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len).collect()
}

pub fn put(local: &Local, unit: u64) -> io::Result<()> {
    local.put(unit, &bytes_of(local.version(), unit))
}

/// Reads whole pages of a unit as the engine does: `None` where they are not there or not right. They must never be wrong.
pub fn read(local: &Local, unit: u64, pages: Range<u64>) -> Option<Vec<u8>> {
    let start = unit * UNIT + pages.start * PAGE;
    let end = (unit * UNIT + pages.end * PAGE).min(local.version().len);
    if !local.has(start..end) {
        return None;
    }
    let mut bytes = vec![0; (end - start) as usize];
    local.file().read_exact_at(&mut bytes, start).unwrap();
    local.is_right(start, &bytes).then(|| {
        let right = &bytes_of(local.version(), unit)[(pages.start * PAGE) as usize..];
        assert!(bytes == right[..bytes.len()], "wrong bytes of unit {unit} were found right");
        bytes
    })
}

pub fn read_unit(local: &Local, unit: u64) -> bool {
    read(local, unit, 0..UNIT / PAGE).is_some()
}

/// The units that are there.
pub fn there(local: &Local) -> Vec<u64> {
    (0..local.units()).filter(|unit| local.has(unit * UNIT..unit * UNIT + 1)).collect()
}

/// What the folder's files take of the disk.
pub fn on_disk(folder: &Path) -> u64 {
    let size = |entry: io::Result<std::fs::DirEntry>| {
        entry.and_then(|entry| entry.metadata()).map_or(0, |of| of.blocks() * 512)
    };
    std::fs::read_dir(folder).map_or(0, |entries| entries.map(size).sum())
}

/// The same while others fill: nothing is evicted meanwhile, so no file is looked at before it lost what another has got.
pub fn on_disk_meanwhile(folder: &Path) -> u64 {
    let lock = std::fs::File::open(folder.join("lock")).unwrap();
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&lock), libc::LOCK_EX) }, 0);
    on_disk(folder)
}

/// The files of a folder whose names end so.
pub fn files(folder: &Path, kind: &str) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == kind)).collect()
}

/// Everything that is said to be there is, and the count of what is there is right, once nobody has the folder open.
pub fn check(folder: &Path, limit: u64) {
    let tier = tier(folder, limit);
    let found = tier.verify().unwrap();
    assert_eq!(found.wrong, 0, "{found:?}");
    let (used, disk) = (tier.used(), on_disk(folder));
    // A unit is counted with a page for what the file system needs, and one that was left half-filled with three more. Four processes at most
    // are killed at a time, each with a unit that was counted and not there yet.
    let units = disk / UNIT + 1;
    assert!(used >= disk && used <= disk + (units + 64) * 4 * PAGE + 4 * UNIT, "{used} counted, {disk} on disk");
    assert!(used <= limit);
}

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// This program again, as a test's child with a role, which is told what to work on. It ends with its parent's thread.
pub fn child(test: &str, role: &str, on: &Path) -> Running {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("FASTMAP_TIER_ROLE", role)
        .env("FASTMAP_TIER_ON", on);
    command.stdout(Stdio::null());
    // SAFETY: a system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    Running(command.spawn().unwrap())
}

/// The role of this process, and what it works on, if it is a test's child.
pub fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var("FASTMAP_TIER_ROLE").ok()?, std::env::var_os("FASTMAP_TIER_ON")?.into()))
}

/// A child, which does not outlive the test.
pub struct Running(pub Child);

impl Running {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn succeeds(&mut self) {
        let ended = self.0.wait().unwrap();
        assert!(ended.success(), "a child: {ended}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, and a number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this thread has allocated or freed memory.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
