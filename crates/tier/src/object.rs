//! A local copy's two files, and the words in them that processes share.
//!
//! The data file is sparse and has the object's length. The index file has three parts: a header ([`Head`]); for each unit of 256 KiB its state,
//! its last use, and which of its pages were read ([`Unit`]); and for each page of 4 KiB a checksum (crc32c). A unit's state changes so:
//!
//! ```text
//! Absent, Stale  -> Filling     a write of the unit begins (`Local::put`)
//! Filling        -> Present     its bytes and checksums are written
//! Filling        -> Stale       the write has failed
//! Present        -> Stale       a page's checksum does not fit
//! Present, Stale -> Evicting    the unit is evicted
//! Evicting       -> Absent      its disk blocks are freed
//! Evicting       -> Stale       they could not be freed
//! ```
//!
//! * **Absent**: the unit has no bytes on disk, and is not counted. It is Evicting for a moment while its part of the index is freed.
//! * **Filling**: the holder of the unit's lock writes it. If nobody holds the lock, the writer was killed. Then the unit can be filled anew or
//!   evicted.
//! * **Present**: its bytes are there. A page whose checksum does not fit is not used: after a power failure the state, the checksum or the
//!   bytes may be older than the others. An old checksum does no harm, since the bytes of one version never change.
//! * **Stale**: it takes room on disk, but is of no use.
//! * **Evicting**: the holder of the folder's lock frees its blocks. If nobody holds the lock, the holder was killed. Then the next write of the
//!   unit, or the next count of the folder, finishes the eviction.
//!
//! All states but Absent count as room taken. A unit's state is the low three bits of its state word ([`Unit::word`]). The other bits are a
//! counter, which each change of the state increments. So a compare-and-swap fails if the state has changed since it was read, even if it has
//! changed back. An unknown state is taken for Stale.

use crate::sys::{self, Mapping, PAGE, Shared};
use crate::{UNIT, Version};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub const ABSENT: u32 = 0;
pub const FILLING: u32 = 1;
pub const PRESENT: u32 = 2;
pub const STALE: u32 = 3;
pub const EVICTING: u32 = 4;

/// In [`Unit::used`]: the unit was read more than once. The other bits are a time of the folder's clock.
pub const PROTECTED: u32 = 1 << 31;

/// The first bytes of an index: they name the format and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"FMTIER01");
/// Byte offset, in the index, of the description of the version that is copied.
const META: u64 = 64;
pub const PAGES: u64 = UNIT / PAGE;

/// The state in a state word.
pub fn state(word: u32) -> u32 {
    if word & 7 > EVICTING { STALE } else { word & 7 }
}

/// The word after a change of state.
pub fn next(word: u32, state: u32) -> u32 {
    (word & !7).wrapping_add(8) | state
}

/// The words of a unit, which processes share.
#[repr(C)]
#[derive(Debug)]
pub struct Unit {
    /// State and counter of changes. Waiting threads sleep on this word.
    pub word: AtomicU32,
    /// When it was last read or filled, by the folder's clock; and [`PROTECTED`].
    pub used: AtomicU32,
    /// A bit for each page that was read since the unit was filled.
    pub touched: AtomicU64,
}

// SAFETY: atomics.
unsafe impl Shared for Unit {}

impl Unit {
    /// Changes the state if the word is still `seen`.
    pub fn change(&self, seen: u32, to: u32) -> bool {
        // Acquire pairs with the release of the thread that filled the unit, so that its checksums are seen.
        self.word.compare_exchange(seen, next(seen, to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The header of the index file. The fields before `superseded` say that the file is an index, and describe the bytes that name the version.
/// They are written once.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    magic: AtomicU64,
    meta_len: AtomicU32,
    meta_crc: AtomicU32,
    /// 1 if another version of the URL has been opened since.
    pub superseded: AtomicU32,
    _unused: AtomicU32,
    /// When the copy was last opened or closed, in seconds since 1970.
    pub last_used: AtomicU64,
    /// Bytes evicted without having been read.
    pub wasted: AtomicU64,
}

// SAFETY: atomics.
unsafe impl Shared for Head {}

/// The offsets of the parts of an index file, in bytes.
#[derive(Debug, Clone, Copy)]
struct Layout {
    units: u64,
    units_at: u64,
    crcs_at: u64,
    end: u64,
}

impl Layout {
    fn new(meta: u64, len: u64) -> Self {
        let units = len.div_ceil(UNIT);
        let units_at = (META + meta).next_multiple_of(PAGE);
        let crcs_at = units_at + (units * size_of::<Unit>() as u64).next_multiple_of(PAGE);
        Layout { units, units_at, crcs_at, end: crcs_at + (units * PAGES * 4).next_multiple_of(PAGE) }
    }
}

/// A local copy's files, opened.
#[derive(Debug)]
pub struct Object {
    pub version: Version,
    pub data: File,
    pub index: File,
    /// Held to write to the data. Without it the threads that write would all spin on the kernel's lock of the file.
    writing: Mutex<()>,
    map: Mapping,
    layout: Layout,
}

/// The paths of a local copy's data and index.
pub fn paths(dir: &Path, name: &str) -> [PathBuf; 2] {
    ["data", "index"].map(|kind| dir.join(format!("{name}.{kind}")))
}

/// Opens a file for reading and writing. One that is made is accessible to this user alone.
pub fn open_file(path: &Path, create: bool) -> io::Result<File> {
    File::options().read(true).write(true).create(create).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

impl Object {
    /// Opens an existing copy. Fails with `InvalidData` if the files are not a local copy.
    pub fn open(dir: &Path, name: &str) -> io::Result<Object> {
        let [data, index] = paths(dir, name).map(|path| open_file(&path, false));
        Self::of(data?, index?)
    }

    fn of(data: File, index: File) -> io::Result<Object> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut head = [0; META as usize];
        index.read_exact_at(&mut head, 0).map_err(|_| invalid())?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let (magic, meta_len) = (head[..8] == MAGIC.to_le_bytes(), u64::from(word(8)));
        let size = index.metadata()?.len();
        if !magic || META + meta_len > size {
            return Err(invalid());
        }
        let mut meta = vec![0; meta_len as usize];
        index.read_exact_at(&mut meta, META)?;
        let version = Version::from_bytes(&meta).filter(|_| crc32c::crc32c(&meta) == word(12)).ok_or_else(invalid)?;
        let layout = Layout::new(meta_len, version.len);
        if size != layout.end {
            return Err(invalid());
        }
        match data.metadata()?.len() {
            len if len == version.len => {}
            _ => data.set_len(version.len)?,
        }
        let map = Mapping::new(&index, layout.end)?;
        Ok(Object { version, data, index, writing: Mutex::new(()), map, layout })
    }

    /// Turns two files that nobody uses into an empty local copy of `version`.
    pub fn create(data: File, index: File, version: &Version) -> io::Result<Object> {
        data.set_len(0)?;
        data.set_len(version.len)?;
        let meta = version.to_bytes();
        let mut head = vec![0; META as usize];
        head[..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..12].copy_from_slice(&(meta.len() as u32).to_le_bytes());
        head[12..16].copy_from_slice(&crc32c::crc32c(&meta).to_le_bytes());
        head.extend(&meta);
        index.set_len(0)?;
        index.write_all_at(&head, 0)?;
        let layout = Layout::new(meta.len() as u64, version.len);
        index.set_len(layout.end)?;
        if sys::is_in_memory(&index)? {
            sys::allocate(&index, 0..layout.crcs_at)?;
        }
        Self::of(data, index)
    }

    /// Bytes that a new copy takes on a file system in memory.
    pub fn empty_bytes(version: &Version) -> u64 {
        Layout::new(version.to_bytes().len() as u64, version.len).crcs_at
    }

    pub fn head(&self) -> &Head {
        self.map.at(0)
    }

    pub fn units(&self) -> u64 {
        self.layout.units
    }

    /// Every unit's words.
    pub fn all(&self) -> &[Unit] {
        self.map.all(self.layout.units_at, self.layout.units)
    }

    pub fn unit(&self, unit: u64) -> Option<&Unit> {
        self.all().get(usize::try_from(unit).ok()?)
    }

    /// Bytes of the object in a unit.
    pub fn bytes_of(&self, unit: u64) -> u64 {
        UNIT.min(self.version.len - unit * UNIT)
    }

    /// The checksums of a unit's pages.
    pub fn crcs(&self, unit: u64) -> &[AtomicU32] {
        self.map.all(self.layout.crcs_at + unit * PAGES * 4, PAGES)
    }

    /// The blocks that the index takes of the disk, bytes.
    pub fn index_bytes(&self) -> io::Result<u64> {
        Ok(self.index.metadata()?.blocks() * 512)
    }

    /// The blocks that the data take of the disk, bytes.
    pub fn data_bytes(&self) -> io::Result<u64> {
        Ok(self.data.metadata()?.blocks() * 512)
    }

    /// Calls `f` with every unit that is not Absent, and with some that are. Holes of the index are skipped: their units are Absent.
    pub fn each(&self, mut f: impl FnMut(u64, &Unit)) {
        let Layout { units, units_at, crcs_at, .. } = self.layout;
        let size = size_of::<Unit>() as u64;
        let mut at = units_at;
        while let Some(from) = sys::seek(&self.index, at, libc::SEEK_DATA).filter(|from| *from < crcs_at) {
            let to = sys::seek(&self.index, from, libc::SEEK_HOLE).unwrap_or(crcs_at).min(crcs_at);
            let range = (from - units_at) / size..(to - units_at).div_ceil(size).min(units);
            let some = &self.all()[range.start.min(range.end) as usize..range.end as usize];
            range.zip(some).for_each(|(unit, words)| f(unit, words));
            at = to;
        }
    }

    /// Allocates disk blocks for a unit's words. A store to a hole through the mapping would raise SIGBUS if the disk is full.
    pub fn prepare(&self, unit: u64) -> io::Result<()> {
        let at = self.layout.units_at + unit * size_of::<Unit>() as u64;
        let page = at / PAGE * PAGE;
        sys::allocate(&self.index, page..page + PAGE)
    }

    /// Writes a unit's bytes and checksums.
    pub fn write(&self, unit: u64, bytes: &[u8]) -> io::Result<()> {
        let crcs: Vec<u8> = bytes.chunks(PAGE as usize).flat_map(|page| crc32c::crc32c(page).to_le_bytes()).collect();
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.data.write_all_at(bytes, unit * UNIT)?;
        drop(writing);
        // By pwrite(2) and not through the mapping, where a full disk means SIGBUS.
        self.index.write_all_at(&crcs, self.layout.crcs_at + unit * PAGES * 4)
    }

    /// Whether a page's bytes in the file fit their checksum. Uses little stack, because fault handlers call it.
    pub fn is_page_right(&self, unit: u64, page: u64) -> bool {
        let end = (unit * UNIT + (page + 1) * PAGE).min(self.version.len);
        let (mut at, mut crc, mut piece) = (unit * UNIT + page * PAGE, 0, [0; 512]);
        while at < end {
            let piece = &mut piece[..(end - at).min(512) as usize];
            if sys::read_at(&self.data, piece, at) < piece.len() {
                return false;
            }
            crc = crc32c::crc32c_append(crc, piece);
            at += piece.len() as u64;
        }
        self.crcs(unit).get(page as usize).is_some_and(|right| right.load(Ordering::Relaxed) == crc)
    }

    /// Frees the disk blocks of some units' bytes.
    pub fn punch(&self, units: Range<u64>) -> io::Result<()> {
        sys::punch(&self.data, units.start * UNIT..units.end * UNIT)
    }

    /// The group of `many` units, aligned, that a unit belongs to.
    fn sharing(&self, unit: u64, many: u64) -> Range<u64> {
        let first = unit / many * many;
        first..(first + many).min(self.layout.units)
    }

    /// The units whose states share a page with a unit's.
    pub fn sharing_states(&self, unit: u64) -> Range<u64> {
        self.sharing(unit, PAGE / size_of::<Unit>() as u64)
    }

    /// The units whose checksums share a page with a unit's.
    pub fn sharing_crcs(&self, unit: u64) -> Range<u64> {
        self.sharing(unit, PAGE / (PAGES * 4))
    }

    /// Frees the pages of the index with the checksums of some units. The caller keeps all these units, which have no bytes, from being filled
    /// meanwhile.
    pub fn punch_crcs(&self, units: &Range<u64>) -> bool {
        let [start, end] = [units.start, units.end].map(|unit| self.layout.crcs_at + unit * PAGES * 4);
        sys::punch(&self.index, start..end.next_multiple_of(PAGE)).is_ok()
    }

    /// Frees the page of the index with the states of some units. They are Absent afterwards, since a hole reads as zeros.
    pub fn punch_states(&self, units: &Range<u64>) -> bool {
        let at = self.layout.units_at + units.start * size_of::<Unit>() as u64;
        sys::punch(&self.index, at..at + PAGE).is_ok()
    }
}
