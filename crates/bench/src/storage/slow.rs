//! The file system. Reads and writes are answered when they are due, and all other requests at once.
//!
//! A read has two conditions: the latency is over, and its bytes and those of all reads before it have passed at the bandwidth. It is due
//! when both are met. Each thread takes a request from the kernel, sleeps until the request is due, and answers it. So there are as many
//! threads as there may be reads at the same time.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use bytemuck::Zeroable;

use super::files::Shown;
use super::wire::{self, Attributes, put, split};

/// Most reads and writes at the same time.
const AT_ONCE: u16 = 64;
/// The longest write, bytes. The longest read is as long.
const WRITE: u32 = 128 << 10;
/// The longest request, bytes: a write.
const REQUEST: usize = (WRITE as usize) + (4 << 10);
/// The seconds for which the kernel may keep names and attributes. They never change.
const FOREVER: u64 = 1 << 30;
/// The node number of the folder, and that of the first file.
const FOLDER: u64 = 1;
const FIRST: u64 = 2;

/// The speed of the storage.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// The latency of each read.
    pub latency: Duration,
    /// Bytes a second of all reads together.
    pub bandwidth: f64,
}

/// The file system.
#[derive(Debug)]
pub struct Slow {
    files: Vec<Shown>,
    speed: Speed,
    device: File,
    road: Mutex<Road>,
}

/// State that all reads and writes share.
#[derive(Debug)]
struct Road {
    /// The time at which the bytes of all reads so far have passed.
    passed: Instant,
    /// The number of reads that are not answered yet.
    open: usize,
    seen: Seen,
}

/// Counts of the reads and writes so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    reads: u64,
    bytes: u64,
    most: usize,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { reads, bytes, most } = self;
        write!(f, "{reads} reads, {} MiB, {most} at a time at most", bytes >> 20)
    }
}

/// The reason why a request is refused: an error number of errno(3).
type Refused = i32;

impl Slow {
    /// A file system that answers the requests of `device`.
    pub fn new(files: Vec<Shown>, speed: Speed, device: File) -> Slow {
        let road = Road { passed: Instant::now(), open: 0, seen: Seen::default() };
        Slow { files, speed, device, road: Mutex::new(road) }
    }

    /// Starts the threads that answer requests until the file system is unmounted.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn serve(self: &Arc<Slow>) -> io::Result<Vec<JoinHandle<()>>> {
        let one = |_| {
            let slow = Arc::clone(self);
            thread::Builder::new().stack_size(128 << 10).spawn(move || slow.answer())
        };
        (0..AT_ONCE).map(one).collect()
    }

    /// Counts of the reads and writes so far.
    pub fn seen(&self) -> Seen {
        self.road().seen
    }

    fn road(&self) -> MutexGuard<'_, Road> {
        self.road.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests, one after the other.
    fn answer(&self) {
        let (mut request, mut answer) = (vec![0; REQUEST], Vec::new());
        loop {
            let len = match (&self.device).read(&mut request) {
                Ok(len) => len,
                // The kernel has taken back the request, or a signal has come.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => {
                    continue;
                }
                // The file system is unmounted (ENODEV).
                Err(_) => return,
            };
            let Some((head, asked)) = split::<wire::Head>(&request[..len]) else { return };
            if [wire::FORGET, wire::BATCH_FORGET, wire::INTERRUPT].contains(&head.operation) {
                continue;
            }
            answer.clear();
            let error = self.obey(&head, asked, &mut answer).err().unwrap_or(0);
            if error != 0 {
                answer.clear();
            }
            let len = (size_of::<wire::AnswerHead>() + answer.len()) as u32;
            let head = wire::AnswerHead { len, error: -error, unique: head.unique };
            // The program may not wait for the answer any more, so errors are ignored.
            let _ = (&self.device).write_vectored(&[IoSlice::new(bytemuck::bytes_of(&head)), IoSlice::new(&answer)]);
        }
    }

    fn obey(&self, head: &wire::Head, asked: &[u8], answer: &mut Vec<u8>) -> Result<(), Refused> {
        match head.operation {
            wire::INIT => put(&begin(split(asked).ok_or(libc::EPROTO)?.0), answer),
            wire::LOOKUP => put(&self.look_up(asked)?, answer),
            wire::GETATTR => {
                let attributes = self.attributes(head.node)?;
                put(&wire::AttributesAnswer { valid: FOREVER, valid_nanoseconds: [0; 2], attributes }, answer);
            }
            wire::OPEN => put(&wire::Open { handle: 0, flags: wire::KEEP_CACHE, rest: 0 }, answer),
            wire::OPENDIR => put(&wire::Open::zeroed(), answer),
            wire::READ => self.read(head.node, split(asked).ok_or(libc::EPROTO)?.0, answer)?,
            wire::WRITE => self.write(head.node, asked, answer)?,
            wire::READDIR => self.list(split(asked).ok_or(libc::EPROTO)?.0, answer),
            wire::STATFS => {
                let space =
                    wire::Space { block_size: 4096, fragment_size: 4096, name_length: 255, ..Zeroable::zeroed() };
                put(&space, answer);
            }
            wire::RELEASE | wire::RELEASEDIR => {}
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }

    fn look_up(&self, asked: &[u8]) -> Result<wire::Entry, Refused> {
        let name = asked.strip_suffix(&[0]).unwrap_or(asked);
        let number = self.files.iter().position(|file| file.name.as_bytes() == name).ok_or(libc::ENOENT)?;
        let attributes = self.attributes(number as u64 + FIRST)?;
        let node = attributes.node;
        Ok(wire::Entry { node, entry_valid: FOREVER, attributes_valid: FOREVER, attributes, ..Zeroable::zeroed() })
    }

    fn file(&self, node: u64) -> Result<&Shown, Refused> {
        let number = node.checked_sub(FIRST).and_then(|number| usize::try_from(number).ok());
        number.and_then(|number| self.files.get(number)).ok_or(libc::ENOENT)
    }

    fn attributes(&self, node: u64) -> Result<Attributes, Refused> {
        let of_all = Attributes {
            node,
            mode: libc::S_IFDIR | 0o555,
            links: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            block_size: 4096,
            ..Zeroable::zeroed()
        };
        if node == FOLDER {
            return Ok(of_all);
        }
        let file = self.file(node)?;
        let modified = file.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Attributes {
            size: file.bytes,
            blocks: file.bytes.div_ceil(512),
            times: [modified.as_secs(); 3],
            nanoseconds: [modified.subsec_nanos(); 3],
            mode: libc::S_IFREG | if file.writable { 0o644 } else { 0o444 },
            ..of_all
        })
    }

    fn read(&self, node: u64, asked: wire::Read, answer: &mut Vec<u8>) -> Result<(), Refused> {
        let file = self.file(node)?;
        let len = file.bytes.saturating_sub(asked.offset).min(u64::from(asked.size)) as usize;
        let due = self.road().begin(len, &self.speed, Instant::now());
        answer.resize(len, 0);
        let read = file.read(asked.offset, answer);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        self.road().open -= 1;
        read.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Writes within the file's length, which stays as it is.
    fn write(&self, node: u64, asked: &[u8], answer: &mut Vec<u8>) -> Result<(), Refused> {
        let (asked, bytes) = split::<wire::Read>(asked).ok_or(libc::EPROTO)?;
        let file = self.file(node)?;
        let bytes = bytes.get(..asked.size as usize).ok_or(libc::EPROTO)?;
        if asked.offset.saturating_add(bytes.len() as u64) > file.bytes {
            return Err(libc::ENOSPC);
        }
        let due = self.road().begin(bytes.len(), &self.speed, Instant::now());
        let written = file.write(asked.offset, bytes);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        self.road().open -= 1;
        put(&wire::Written { size: asked.size, rest: 0 }, answer);
        written.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn list(&self, asked: wire::Read, answer: &mut Vec<u8>) {
        let folders = [".", ".."].map(|name| (FOLDER, libc::DT_DIR, name.as_bytes()));
        let files = (FIRST..).zip(&self.files).map(|(node, file)| (node, libc::DT_REG, file.name.as_bytes()));
        let all = (1..).zip(folders.into_iter().chain(files));
        for (next, (node, kind, name)) in all.skip(asked.offset as usize) {
            let before = answer.len();
            put(&wire::FolderEntry { node, next, name_length: name.len() as u32, kind: kind.into() }, answer);
            answer.extend_from_slice(name);
            answer.resize(answer.len().next_multiple_of(8), 0);
            if answer.len() > asked.size as usize {
                return answer.truncate(before);
            }
        }
    }
}

impl Road {
    /// Counts a read or write of `len` bytes that has come now. Returns the time at which it is due.
    fn begin(&mut self, len: usize, speed: &Speed, now: Instant) -> Instant {
        let Seen { reads, bytes, most } = self.seen;
        self.open += 1;
        self.seen = Seen { reads: reads + 1, bytes: bytes + len as u64, most: most.max(self.open) };
        self.passed = self.passed.max(now) + Duration::from_secs_f64(len as f64 / speed.bandwidth);
        self.passed.max(now + speed.latency)
    }
}

/// The answer to INIT. Since FUSE_MAX_PAGES is not set, a read has at most 128 KiB, as on most FUSE file systems.
fn begin(asked: wire::Init) -> wire::InitAnswer {
    wire::InitAnswer {
        major: wire::MAJOR,
        minor: wire::MINOR,
        max_readahead: asked.max_readahead,
        flags: asked.flags & (wire::ASYNC_READ | wire::PARALLEL_DIROPS | wire::ASYNC_DIO),
        max_background: AT_ONCE,
        congestion_threshold: AT_ONCE,
        max_write: WRITE,
        time_granularity: 1,
        rest: [0; 9],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(files: Vec<Shown>) -> Slow {
        Slow::new(files, Speed { latency: Duration::ZERO, bandwidth: 1e9 }, tempfile::tempfile().unwrap())
    }

    #[test]
    fn reads_take_the_latency_until_the_bandwidth_is_used_up() {
        let speed = Speed { latency: Duration::from_millis(2), bandwidth: 1e8 };
        let now = Instant::now();
        let mut road = Road { passed: now, open: 0, seen: Seen::default() };
        // The bytes of each read take a millisecond to pass.
        let due: Vec<_> = (0..4).map(|_| (road.begin(100_000, &speed, now) - now).as_micros()).collect();
        assert_eq!(due, [2000, 2000, 3000, 4000]);
        let later = now + Duration::from_millis(10);
        assert_eq!(road.begin(100_000, &speed, later) - later, speed.latency);
        assert_eq!(road.seen.to_string(), "5 reads, 0 MiB, 5 at a time at most");
    }

    #[test]
    fn a_long_folder_is_listed_by_parts() {
        let names: Vec<String> = (0..100).map(|number| format!("file-{number}")).collect();
        let slow = slow(names.iter().map(|name| Shown::made_up(name, 1)).collect());
        let (mut found, mut offset) = (Vec::new(), 0);
        loop {
            let mut part = Vec::new();
            slow.list(wire::Read { offset, size: 500, ..Zeroable::zeroed() }, &mut part);
            let mut rest = &part[..];
            while let Some((entry, after)) = split::<wire::FolderEntry>(rest) {
                let len = entry.name_length as usize;
                found.push(String::from_utf8(after[..len].to_vec()).unwrap());
                (offset, rest) = (entry.next, &after[len.next_multiple_of(8)..]);
            }
            if part.is_empty() {
                break;
            }
            assert!(part.len() <= 500);
        }
        assert_eq!(found[..2], [".", ".."]);
        assert_eq!(found[2..], names);
    }

    #[test]
    fn what_is_not_there_is_refused_and_a_read_ends_with_the_file() {
        let slow = slow(vec![Shown::made_up("data", 5000)]);
        assert_eq!(slow.look_up(b"data\0").unwrap().attributes.size, 5000);
        assert_eq!(slow.look_up(b"dat\0").unwrap_err(), libc::ENOENT);
        assert!([0, FIRST + 1, u64::MAX].iter().all(|node| slow.attributes(*node).is_err()));
        let read = |offset, size| {
            let mut answer = Vec::new();
            slow.read(FIRST, wire::Read { offset, size, ..Zeroable::zeroed() }, &mut answer).map(|()| answer.len())
        };
        assert_eq!(
            [read(0, 4096), read(4096, 4096), read(5000, 1), read(u64::MAX, 1)],
            [Ok(4096), Ok(904), Ok(0), Ok(0)]
        );
        let mut answer = Vec::new();
        let head = wire::Head { operation: 22, node: FIRST, ..Zeroable::zeroed() };
        assert_eq!(slow.obey(&head, &[], &mut answer), Err(libc::ENOSYS));
    }
}
