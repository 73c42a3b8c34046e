//! A cache of pages over `pread` with O_DIRECT. Programs that want a memory limit of their own, and no map, have such a cache. The crate
//! quick_cache decides which pages stay. If several threads want a page at once, it is read once. An update is written through.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::MmapMut;
use quick_cache::sync::Cache;

use crate::substrates::engine::Access;
use crate::substrates::measure::Shadow;
use crate::substrates::{Error, PAGE, Result, Spec, stamp};

/// Pages of memory that are allocated at once, 2 MiB. They are page-aligned. An allocator would leave holes between aligned pages.
const SLAB: usize = 512;

/// Bytes that the cache takes for each page beside the page itself, as measured: the page's entry, its share of the keys of evicted pages
/// that quick_cache remembers, and the frame's `Arc` (reference counts and pointers).
const BESIDE: usize = 200;

/// The pool: a cache over a file.
pub struct Pool {
    file: File,
    label: String,
    cache: Cache<u64, Arc<Frame>>,
    frames: Arc<Frames>,
}

impl Pool {
    /// A pool over the spec's file. It takes `capacity` bytes, everything included.
    pub fn open(spec: &Spec, capacity: usize) -> Result<Pool> {
        let file = OpenOptions::new().read(true).write(spec.op.writes()).custom_flags(libc::O_DIRECT).open(&spec.path);
        let file = file.map_err(|source| Error::Io {
            thing: spec.label.clone(),
            what: "cannot open with O_DIRECT",
            source,
            remedy: "name a directory on another file system, or leave `direct` and `quick-cache` out of --engines",
        })?;
        let cache = Cache::new(capacity / (PAGE + BESIDE));
        Ok(Pool { file, label: spec.label.clone(), cache, frames: Arc::default() })
    }

    fn failed(&self, what: &'static str, source: io::Error) -> Error {
        let remedy = "check the file and its device, or leave this engine out of --engines";
        Error::Io { thing: self.label.clone(), what, source, remedy }
    }

    fn frame(&self) -> Result<Frame> {
        Frame::take(&self.frames).map_err(|e| self.failed("no memory for a page", e))
    }

    fn get(&self, page: u64) -> Result<Arc<Frame>> {
        self.cache.get_or_insert_with(&page, || {
            let mut frame = self.frame()?;
            let read = self.file.read_exact_at(frame.bytes_mut(), page * PAGE as u64);
            read.map_err(|e| self.failed("pread failed", e))?;
            Ok(Arc::new(frame))
        })
    }

    /// Changes a copy of the page, writes it to the file, and puts it into the cache. Each page is written by one thread only, so no other
    /// change comes between.
    fn update(&self, page: u64, change: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let mut frame = self.frame()?;
        frame.bytes_mut().copy_from_slice(self.get(page)?.bytes());
        change(frame.bytes_mut())?;
        let written = self.file.write_all_at(frame.bytes(), page * PAGE as u64);
        written.map_err(|e| self.failed("pwrite failed", e))?;
        self.cache.insert(page, Arc::new(frame));
        Ok(())
    }
}

impl Access for Pool {
    type Local = ();

    fn local(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn read(&self, (): &mut (), page: u64) -> Result<()> {
        stamp::check_stamp_in(page, self.get(page)?.bytes())
    }

    fn write(&self, (): &mut (), page: u64, shadow: &Shadow) -> Result<()> {
        self.update(page, |bytes| {
            stamp::set_generation(bytes, shadow.next(page));
            stamp::check_stamp_in(page, bytes)
        })
    }

    fn rmw(&self, (): &mut (), page: u64, shadow: &Shadow) -> Result<()> {
        self.update(page, |bytes| {
            shadow.check(page, stamp::generation(bytes))?;
            stamp::set_generation(bytes, shadow.next(page));
            Ok(())
        })
    }

    fn fill(&self, (): &mut (), page: u64, _last: bool, shadow: &Shadow) -> Result<()> {
        self.update(page, |bytes| {
            stamp::fill(bytes, page, shadow.next(page));
            Ok(())
        })
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failed("fdatasync failed", e))
    }
}

/// All slabs, and their rooms that no frame has.
#[derive(Default)]
struct Frames {
    free: Mutex<Vec<Room>>,
    /// All slabs. They stay until the pool is dropped.
    slabs: Mutex<Vec<MmapMut>>,
}

/// A page of a slab. Nothing else refers to it.
struct Room(*mut u8);

// SAFETY: the holder of this value is the only one that may touch that page of memory, in whatever thread it runs.
unsafe impl Send for Room {}
// SAFETY: if it is shared, the page is only read, see `Frame::bytes`.
unsafe impl Sync for Room {}

/// A page in memory. Its room becomes free when the frame is dropped.
struct Frame {
    room: Room,
    home: Arc<Frames>,
}

impl Frame {
    fn take(home: &Arc<Frames>) -> io::Result<Frame> {
        let free = lock(&home.free).pop();
        let room = match free {
            Some(room) => room,
            None => {
                let mut slab = MmapMut::map_anon(SLAB * PAGE)?;
                let base = slab.as_mut_ptr();
                lock(&home.free).extend((1..SLAB).map(|n| Room(base.wrapping_add(n * PAGE))));
                lock(&home.slabs).push(slab);
                Room(base)
            }
        };
        Ok(Frame { room, home: Arc::clone(home) })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the room is a page of a slab, which lives as long as `home`. It changes only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.room.0, PAGE) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the room is a page of a slab, which lives as long as `home`. It is this frame's alone, and the frame is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.room.0, PAGE) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        lock(&self.home.free).push(Room(self.room.0));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
