//! The cost of calls that a preload library intercepts. The process has mapped nothing, another file, or the file of the calls.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::substrates::{Error, Meter, PAGE, Reading, Result};

/// Pages of each file. The file is large enough that the engine may serve its mapping.
pub const PAGES: usize = (8 << 20) / PAGE;

/// Calls between two readings of the clock.
const BATCH: u64 = 256;

/// The mapping that the process has during the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mapped {
    /// Nothing.
    Nothing,
    /// No mapping, but a second thread that sleeps: the C library and the kernel do more in calls then.
    NothingThreaded,
    /// A mapping of the other file, which is read.
    Other,
    /// A mapping of the other file, which is stored to.
    OtherStored,
    /// A mapping of the file of the calls, which is read.
    Same,
    /// A mapping of the file of the calls, which is stored to.
    SameStored,
}

/// One run: all kinds of calls, one after the other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CallsSpec {
    /// The mapping that the process has.
    pub mapped: Mapped,
    /// The directory of the two files.
    pub dir: PathBuf,
    /// Seconds of each kind of call.
    pub seconds: f64,
}

/// The names of the file of the calls, and of the other file.
pub const FILES: [&str; 2] = ["called", "other"];

/// Makes both files. Each page begins with its number.
///
/// # Errors
///
/// The system's error.
pub fn make(dir: &Path) -> io::Result<()> {
    let mut bytes = vec![0; PAGES * PAGE];
    bytes.iter_mut().step_by(PAGE).zip(0..).for_each(|(byte, page): (_, usize)| *byte = page as u8);
    FILES.iter().try_for_each(|name| std::fs::write(dir.join(name), &bytes))
}

/// A store changes a page's first byte by an exclusive-or with this.
const STORED: u8 = 0x55;

/// Makes all calls, and checks what they read. Returns the name and the reading of each kind of call.
///
/// # Errors
///
/// A call fails, or a byte is wrong.
pub fn run(spec: &CallsSpec, meter: &Meter) -> Result<Vec<(&'static str, Reading)>> {
    all(spec, meter).map_err(|source| Error::Io {
        thing: spec.dir.display().to_string(),
        what: "a call on a file there",
        source,
        remedy: "run it again to tell the file from the engine",
    })
}

fn all(spec: &CallsSpec, meter: &Meter) -> io::Result<Vec<(&'static str, Reading)>> {
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(spec.dir.join(name));
    let mut bench = Bench { spec, meter, mark: 0, done: Vec::new() };
    match spec.mapped {
        Mapped::Nothing => bench.calls()?,
        Mapped::NothingThreaded => thread::scope(|scope| {
            let sleeper = scope.spawn(thread::park);
            let done = bench.calls();
            sleeper.thread().unpark();
            done
        })?,
        Mapped::Other | Mapped::Same => {
            // SAFETY: the file is the benchmark's own and nobody cuts it short.
            let map = unsafe { memmap2::Mmap::map(&open(FILES[usize::from(spec.mapped == Mapped::Other)])?) }?;
            map.iter().step_by(PAGE).zip(0..).try_for_each(|(byte, page): (_, usize)| expected(*byte, page as u8))?;
            bench.calls()?;
        }
        Mapped::OtherStored | Mapped::SameStored => {
            let is_other = spec.mapped == Mapped::OtherStored;
            // SAFETY: the file is the benchmark's own and nobody cuts it short.
            let mut map = unsafe { memmap2::MmapMut::map_mut(&open(FILES[usize::from(is_other)])?) }?;
            map.iter_mut().step_by(PAGE).for_each(|byte| *byte ^= STORED);
            // The calls are measured, not the write-back of stores before them.
            map.flush()?;
            bench.mark = if is_other { 0 } else { STORED };
            bench.calls()?;
        }
    }
    Ok(bench.done)
}

fn expected(found: u8, right: u8) -> io::Result<()> {
    if found == right { Ok(()) } else { Err(io::Error::other(format!("read {found:#x} where {right:#x} belongs"))) }
}

struct Bench<'a> {
    spec: &'a CallsSpec,
    meter: &'a Meter,
    /// The first byte of each page of the called file is the page's number, with an exclusive-or with this.
    mark: u8,
    done: Vec<(&'static str, Reading)>,
}

impl Bench<'_> {
    /// Measures one kind of call. Each caller has a thread of its own.
    fn time<C: FnMut(u64) -> io::Result<()> + Send>(&mut self, name: &'static str, callers: Vec<C>) -> io::Result<()> {
        let (open, barrier) = (self.meter.start(&self.spec.dir), Barrier::new(callers.len()));
        let threads = callers.len() as u64;
        let length = Duration::from_secs_f64(self.spec.seconds);
        let work = |mut call: C| {
            barrier.wait();
            let (start, mut ops) = (Instant::now(), 0);
            while start.elapsed() < length {
                (ops..ops + BATCH).try_for_each(&mut call)?;
                ops += BATCH;
            }
            Ok((ops, start.elapsed()))
        };
        let ended: Vec<io::Result<(u64, Duration)>> = if threads == 1 {
            // A single caller runs in this thread: the C library needs no locks in a process with one thread.
            callers.into_iter().map(work).collect()
        } else {
            thread::scope(|scope| {
                let running: Vec<_> = callers.into_iter().map(|call| scope.spawn(|| work(call))).collect();
                running
                    .into_iter()
                    .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            })
        };
        let (mut ops, mut window) = (0, Duration::ZERO);
        for one in ended {
            let (count, time) = one?;
            ops += count;
            window = window.max(time);
        }
        self.done.push((name, open.end().counting(ops, window, None)));
        Ok(())
    }

    fn calls(&mut self) -> io::Result<()> {
        let (called, mark) = (self.spec.dir.join(FILES[0]), self.mark);
        let writable = || OpenOptions::new().read(true).write(true).open(&called);
        let at_offset = |file: File| {
            let mut page = [0; PAGE];
            move |op: u64| {
                let number = op as usize % PAGES;
                file.read_exact_at(&mut page, (number * PAGE) as u64)?;
                expected(page[0], number as u8 ^ mark)
            }
        };
        let at_position = |mut file: File| {
            let mut page = [0; PAGE];
            move |op: u64| {
                let number = op as usize % PAGES;
                if number == 0 {
                    file.seek(SeekFrom::Start(0))?;
                }
                file.read_exact(&mut page)?;
                expected(page[0], number as u8 ^ mark)
            }
        };
        self.time("pread of 4 KiB", vec![at_offset(writable()?)])?;
        self.time("read of 4 KiB", vec![at_position(writable()?)])?;
        self.time("read of 4 KiB, opened to read", vec![at_position(File::open(&called)?)])?;
        let file = writable()?;
        self.time("pread of 4 KiB, 2 threads, 1 descriptor", vec![at_offset(file.try_clone()?), at_offset(file)])?;
        self.time("pread of 4 KiB, 2 threads, 2 descriptors", vec![at_offset(writable()?), at_offset(writable()?)])?;
        self.time("read of 4 KiB, 2 threads, 2 descriptors", vec![at_position(writable()?), at_position(writable()?)])?;
        let file = writable()?;
        let mut page = [0; PAGE];
        let write = |op: u64| {
            let number = op as usize % PAGES;
            page[0] = number as u8 ^ mark;
            file.write_all_at(&page, (number * PAGE) as u64)
        };
        self.time("pwrite of 4 KiB", vec![write])?;
        let (mut from, mut to): (PipeReader, PipeWriter) = io::pipe()?;
        let mut byte = [0];
        let through_pipe = |_| {
            to.write_all(&[1])?;
            from.read_exact(&mut byte)
        };
        self.time("a byte into a pipe and out of it", vec![through_pipe])?;
        let file = writable()?;
        self.time("fstat", vec![|_| file.metadata().map(drop)])?;
        let mut file = writable()?;
        self.time("lseek", vec![|_| file.seek(SeekFrom::Start(0)).map(drop)])?;
        self.time("open and close", vec![|_| File::open(&called).map(drop)])?;
        self.of_the_c_library(&called)
    }

    fn of_the_c_library(&mut self, called: &Path) -> io::Result<()> {
        let stream = Stream::open(called)?;
        self.time("fread of 16 bytes", vec![|_| stream.read_16()])?;
        let lock = Lock::new();
        self.time("pthread_mutex_lock and unlock", vec![|_| lock.turn()])
    }
}

/// A stream of the C library: `FILE`.
struct Stream(*mut libc::FILE);

// SAFETY: a stream has a lock, which every call on it takes.
unsafe impl Send for Stream {}
// SAFETY: a stream has a lock, which every call on it takes.
unsafe impl Sync for Stream {}

impl Stream {
    fn open(path: &Path) -> io::Result<Stream> {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: both strings are C strings.
        let stream = unsafe { libc::fopen(path.as_ptr(), c"r".as_ptr()) };
        if stream.is_null() { Err(io::Error::last_os_error()) } else { Ok(Stream(stream)) }
    }

    fn read_16(&self) -> io::Result<()> {
        let mut bytes = [0u8; 16];
        // SAFETY: the stream is open, and there is room for 16 bytes.
        unsafe {
            if libc::fread(bytes.as_mut_ptr().cast(), 16, 1, self.0) == 0 {
                libc::rewind(self.0);
            }
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open until here, and nobody uses it later.
        unsafe { libc::fclose(self.0) };
    }
}

/// A mutex of the C library.
struct Lock(std::cell::UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a mutex is made to be used by several threads.
unsafe impl Sync for Lock {}

impl Lock {
    fn new() -> Lock {
        Lock(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    fn turn(&self) -> io::Result<()> {
        // SAFETY: the mutex is initialised, and stays where it is while it is held.
        unsafe {
            libc::pthread_mutex_lock(self.0.get());
            libc::pthread_mutex_unlock(self.0.get());
        }
        Ok(())
    }
}
