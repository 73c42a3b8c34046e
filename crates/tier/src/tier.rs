//! A folder of local copies: who has it open, its limit, what is in it.
//!
//! The folder holds these files:
//!
//! * Two files for each copy (`object.rs`). Each user of a copy holds a shared flock(2) on its data file.
//! * `usage`. Every process that has the folder open maps this file (`room.rs`), and has locked one byte of it, its *place*.
//! * `lock`. Its flock(2), the *folder's lock*, is held to evict, make or remove a copy, and to look which copies are in use.

use crate::object::{self, Object, PRESENT, STALE, open_file, state};
use crate::room::{self, PLACES, Usage};
use crate::sys::{self, Mapping, PAGE};
use crate::{Error, Local, Result, Version};
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// The first bytes of `usage`: they name the format and its version.
const MAGIC: u64 = u64::from_le_bytes(*b"FMUSED01");
/// How long a thread waits for the folder's lock. Evictions hold it for less than a second.
const LONGEST_LOCKED: Duration = Duration::from_secs(20);
const USAGE: u64 = size_of::<Usage>() as u64;

/// A folder of local copies, which together never take more room than its limit.
///
/// ```
/// use fastmap_tier::{Tier, UNIT, Version};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let tier = Tier::open(Some(folder.path()), Some(1 << 30))?;
/// let etag = Some("\"5d41402a\"".to_owned());
/// let object = Version { url: "s3://bucket/key".into(), etag, version: None, modified: None, len: 5 << 30 };
/// let local = tier.local(&object)?;
/// local.put(7, &[1; UNIT as usize])?;
/// assert!(tier.used() >= UNIT && tier.used() <= tier.limit());
/// assert_eq!(tier.list()?[0].version, object);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tier {
    dir: PathBuf,
    file: File,
    map: Mapping,
    place: u64,
    is_in_memory: bool,
    /// The process that opened it. A child made by fork(2) does not give back its parent's locks.
    process: u32,
}

/// A local copy in a folder ([`Tier::list`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The version of an object that it is a copy of.
    pub version: Version,
    /// Bytes of the disk that its data take.
    pub local: u64,
    /// When a program last opened or closed it.
    pub last_used: SystemTime,
    /// Whether a program has it open.
    pub in_use: bool,
}

/// The result of [`Tier::verify`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Local copies looked at.
    pub objects: u64,
    /// Units looked at.
    pub units: u64,
    /// Of these units, those with bytes that are not the object's. They will be fetched anew.
    pub wrong: u64,
}

/// The folder's lock: one thread of all processes holds it, to evict, make or remove a copy. The file is opened anew each time, so that the
/// threads of one process exclude each other, too.
pub(crate) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Unlocked, not just closed: a child made by fork(2) may have the descriptor, too.
        let _ = sys::flock(&self.0, libc::LOCK_UN);
    }
}

impl Tier {
    /// The smallest limit, bytes.
    pub const MIN_LIMIT: u64 = 16 << 20;

    /// Opens a folder: the one given, else `$FASTMAP_TIER`, else `$XDG_CACHE_HOME/fastmap`, else `~/.cache/fastmap`. A folder that does not
    /// exist is made, with mode 0700; one that is named only where its parent exists, and not at `/`. Its limit in bytes is the one given, else
    /// `$FASTMAP_TIER_LIMIT`, else the limit that the folder was given last, else a tenth of the disk's free space. Of the limits of several
    /// processes the smallest holds, while its process has the folder open.
    ///
    /// # Errors
    /// The folder cannot be opened, is another user's, or lies on a file system without holes or locks; the limit is below
    /// [`MIN_LIMIT`](Self::MIN_LIMIT).
    pub fn open(dir: Option<&Path>, limit: Option<u64>) -> Result<Arc<Tier>> {
        let given = dir.map(Path::to_owned).or_else(|| variable("FASTMAP_TIER"));
        if let Some(dir) = &given {
            has_parent(dir)?;
        }
        let dir = given.or_else(default_dir).ok_or(Error::NoFolder)?;
        let limit = limit.map_or_else(limit_of_environment, |limit| Ok(Some(limit)))?;
        if let Some(limit) = limit.filter(|limit| *limit < Self::MIN_LIMIT) {
            return Err(Error::LimitTooSmall { path: dir, limit, minimum: Self::MIN_LIMIT });
        }
        let error = |operation| {
            let dir = dir.clone();
            move |source| Error::Io { path: dir, operation, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(error("make the folder"))?;
        is_ours(&dir, &std::fs::metadata(&dir).map_err(error("look at the folder"))?)?;
        let lock = lock_in(&dir).map_err(error("lock the folder"))?;
        let file = open_file(&dir.join("usage"), true).map_err(error("open its file `usage`"))?;
        let lacks = |what| {
            let (dir, other) = (dir.clone(), error("prepare its file `usage`"));
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENOLCK) => {
                    Error::FileSystem { path: dir, lacks: what }
                }
                _ => other(source),
            }
        };
        sys::allocate(&file, 0..USAGE).map_err(lacks("fallocate(2)"))?;
        sys::punch(&file, USAGE..USAGE + PAGE).map_err(lacks("holes (FALLOC_FL_PUNCH_HOLE)"))?;
        let others = sys::locked_byte(&file, 0..PLACES).map_err(lacks("open file description locks (F_OFD_SETLK)"))?;
        if file.metadata().map_err(error("look at its file `usage`"))?.len() < USAGE {
            file.set_len(USAGE).map_err(error("prepare its file `usage`"))?;
        }
        let map = Mapping::new(&file, USAGE).map_err(lacks("shared mappings (mmap(2))"))?;
        let is_in_memory = sys::is_in_memory(&file).map_err(error("look at its file `usage`"))?;
        let mut tier = Tier { dir, file, map, place: 0, is_in_memory, process: std::process::id() };
        tier.place = tier.take_place()?;
        let usage = tier.usage();
        if usage.magic.load(Ordering::Relaxed) != MAGIC {
            if others.is_some() {
                return Err(Error::InUse { path: tier.dir.join("usage") });
            }
            usage.given.store(0, Ordering::Relaxed);
            usage.magic.store(MAGIC, Ordering::Relaxed);
        }
        let failed = |source| tier.error("count what is in the folder", source);
        if others.is_none() {
            usage.limit.store(i64::MAX, Ordering::SeqCst);
            tier.tidy(&lock).map_err(failed)?;
        }
        let limit = match limit {
            Some(limit) => {
                usage.given.store(limit as i64, Ordering::Relaxed);
                limit
            }
            None => match usage.given.load(Ordering::Relaxed) {
                0 => tier.tenth().map_err(failed)?,
                given => given as u64,
            },
        };
        usage.limits[tier.place as usize].store(limit.min(i64::MAX as u64) as i64, Ordering::SeqCst);
        tier.renew_limit(&lock).map_err(failed)?;
        drop(lock);
        tier.make_room(0).map_err(failed)?;
        Ok(Arc::new(tier))
    }

    /// Locks a byte of `usage` that nobody has locked.
    fn take_place(&self) -> Result<u64> {
        for place in 0..PLACES {
            if sys::lock_byte(&self.file, place).map_err(|source| self.error("lock a byte of `usage`", source))? {
                return Ok(place);
            }
        }
        Err(Error::TooManyProcesses { path: self.dir.clone(), processes: PLACES })
    }

    /// A tenth of the disk space that would be free without local copies.
    fn tenth(&self) -> io::Result<u64> {
        Ok(((sys::free_space(&self.file)? + self.used()) / 10).max(Self::MIN_LIMIT))
    }

    /// Sets the limit to the smallest limit of the processes that have the folder open.
    pub(crate) fn renew_limit(&self, _lock: &FolderLock) -> io::Result<i64> {
        let usage = self.usage();
        let mut limit = usage.limits[self.place as usize].load(Ordering::SeqCst);
        let mut from = 0;
        while let Some(place) = sys::locked_byte(&self.file, from..PLACES)? {
            limit = limit.min(usage.limits[place as usize].load(Ordering::SeqCst));
            from = place + 1;
            if from == PLACES {
                break;
            }
        }
        usage.limit.store(limit, Ordering::SeqCst);
        Ok(limit)
    }

    pub(crate) fn usage(&self) -> &Usage {
        self.map.at(0)
    }

    pub(crate) fn error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::Io { path: self.dir.clone(), operation, source }
    }

    pub(crate) fn lock(&self) -> io::Result<FolderLock> {
        lock_in(&self.dir)
    }

    pub(crate) fn lock_folder(&self) -> Result<FolderLock> {
        self.lock().map_err(|source| self.error("lock the folder", source))
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    pub(crate) fn is_our_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The names of all copies, including those of which only one of the two files is there.
    pub(crate) fn names(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(".data").or(name.strip_suffix(".index")));
            names.extend(name.map(String::from));
        }
        Ok(names)
    }

    /// Removes a copy's files if nobody has it open. While the folder's lock is held, nobody can open it.
    pub(crate) fn unlink_unused(&self, _lock: &FolderLock, name: &str) -> bool {
        let [data, _] = object::paths(&self.dir, name);
        let is_unused = match open_file(&data, false) {
            Ok(data) => sys::flock(&data, libc::LOCK_EX | libc::LOCK_NB).unwrap_or(false),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_unused {
            room::unlink(&self.dir, name);
        }
        is_unused
    }

    /// The local copy of an object: the existing one, or a new, empty one. Copies of other versions of the URL are removed as soon as nobody has
    /// them open.
    ///
    /// # Errors
    /// The [`Version`] has neither ETag nor version id nor modification time; the files cannot be made, or are damaged and in use.
    pub fn local(self: &Arc<Self>, version: &Version) -> Result<Arc<Local>> {
        if !version.is_known() {
            return Err(Error::Unversioned { url: version.url.clone() });
        }
        self.with_room_for_empty(version, |lock| {
            let object = self.open_or_create(version)?;
            let head = object.head();
            head.superseded.store(0, Ordering::Relaxed);
            self.supersede(lock, version).map_err(|source| self.error("look at what is in the folder", source))?;
            Ok(Local::new(self.clone(), object))
        })
    }

    fn open_or_create(&self, version: &Version) -> Result<Object> {
        let name = version.name();
        let [path, index_path] = object::paths(&self.dir, &name);
        let error = |source| Error::Io { path: path.clone(), operation: "open or make the local copy", source };
        let data = open_file(&path, true).map_err(error)?;
        let lock = |kind| sys::flock(&data, kind | libc::LOCK_NB).map_err(error);
        match Object::open(&self.dir, &name) {
            Ok(mut object) if object.version.is(version) => {
                // The store's modification time may differ from the one in the file.
                object.version = version.clone();
                lock(libc::LOCK_SH)?;
                object.data = data;
                return Ok(object);
            }
            Err(other) if !matches!(other.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                return Err(error(other));
            }
            _ => {}
        }
        if !lock(libc::LOCK_EX)? {
            return Err(Error::InUse { path });
        }
        lock(libc::LOCK_SH)?;
        let made = open_file(&index_path, true).and_then(|index| Object::create(data, index, version));
        made.map_err(error)
    }

    /// Marks the copies of a URL's other versions, and removes them. One that is open is removed by the process that closes it last.
    fn supersede(&self, lock: &FolderLock, version: &Version) -> io::Result<()> {
        let (prefix, own) = (Version::prefix(&version.url), version.name());
        let mut is_any = false;
        for name in self.names()?.iter().filter(|name| name.starts_with(&prefix) && **name != own) {
            let Ok(old) = Object::open(&self.dir, name) else { continue };
            if old.version.url == version.url {
                old.head().superseded.store(1, Ordering::Relaxed);
                is_any = true;
            }
        }
        if is_any { self.recount(lock) } else { Ok(()) }
    }

    /// Removes a superseded copy that is being closed, if nobody else has it open.
    pub(crate) fn close_superseded(&self, old: &Object) -> io::Result<()> {
        let lock = self.lock()?;
        sys::flock(&old.data, libc::LOCK_UN)?;
        self.recount(&lock)
    }

    /// Calls `f` with each copy, of all URLs or of one. The copy cannot be removed meanwhile.
    fn each(&self, url: Option<&str>, mut f: impl FnMut(Object) -> io::Result<()>) -> Result<()> {
        let failed = |source| self.error("look at what is in the folder", source);
        for name in self.names().map_err(failed)? {
            let _lock = self.lock_folder()?;
            match Object::open(&self.dir, &name) {
                Ok(object) if url.is_none_or(|url| object.version.url == url) => {
                    f(object).map_err(failed)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All local copies.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        self.each(None, |object| {
            let in_use = !sys::flock(&object.data, libc::LOCK_EX | libc::LOCK_NB)?;
            let seconds = object.head().last_used.load(Ordering::Relaxed);
            let last_used = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
            let local = object.data_bytes()?;
            let last_used = last_used.unwrap_or(SystemTime::UNIX_EPOCH);
            all.push(Listed { version: object.version, local, last_used, in_use });
            Ok(())
        })?;
        Ok(all)
    }

    /// Removes all local copies, or those of one URL. A copy that a program has open is only emptied. Returns the bytes of data that are gone.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn remove(&self, url: Option<&str>) -> Result<u64> {
        let mut freed = 0;
        self.each(url, |object| {
            let before = object.data_bytes()?;
            let mut units = Vec::new();
            object.each(|unit, _| units.push(unit));
            self.empty(&object, &units);
            freed += before.saturating_sub(object.data_bytes()?);
            Ok(())
        })?;
        // Removes the files of empty copies that nobody has open.
        let lock = self.lock_folder()?;
        self.recount(&lock).map_err(|source| self.error("count what is in the folder", source))?;
        Ok(freed)
    }

    /// Reads all units that are there, and compares them with their checksums. Units that differ will be fetched anew.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn verify(&self) -> Result<Verified> {
        let failed = |source| self.error("look at what is in the folder", source);
        let mut found = Verified::default();
        for name in self.names().map_err(failed)? {
            let lock = self.lock_folder()?;
            let Ok(object) = Object::open(&self.dir, &name) else { continue };
            // Reading takes long, so the folder's lock is released. The shared lock on the data keeps the files.
            sys::flock(&object.data, libc::LOCK_SH | libc::LOCK_NB).map_err(failed)?;
            drop(lock);
            found.objects += 1;
            object.each(|unit, words| {
                let word = words.word.load(Ordering::Acquire);
                if state(word) == PRESENT {
                    found.units += 1;
                    let mut pages = 0..object.bytes_of(unit).div_ceil(PAGE);
                    let is_right = pages.all(|page| object.is_page_right(unit, page));
                    found.wrong += u64::from(!is_right && words.change(word, STALE));
                }
            });
        }
        Ok(found)
    }

    /// The limit that holds now, in bytes.
    pub fn limit(&self) -> u64 {
        self.usage().limit.load(Ordering::SeqCst) as u64
    }

    /// Bytes that count towards the limit now: a little more than the local copies take of the disk.
    pub fn used(&self) -> u64 {
        self.usage().used.load(Ordering::SeqCst).max(0) as u64
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        // Unlocked, not just closed: a child made by fork(2) may have the descriptor, too, if only until it calls exec(2).
        if self.is_our_process() {
            sys::unlock_byte(&self.file, self.place);
        }
    }
}

fn lock_in(dir: &Path) -> io::Result<FolderLock> {
    let file = open_file(&dir.join("lock"), true)?;
    // The holder is soon done, unless its process was stopped (SIGSTOP).
    let begun = Instant::now();
    while !sys::flock(&file, libc::LOCK_EX | libc::LOCK_NB)? {
        if begun.elapsed() > LONGEST_LOCKED {
            let why = format!("another process keeps {} locked", dir.join("lock").display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(FolderLock(file))
}

/// The path in an environment variable.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Fails if a folder does not exist and its name is probably wrong: a disk that is not mounted, or a typing mistake.
fn has_parent(dir: &Path) -> Result<()> {
    let absent = |why| Err(Error::Absent { path: dir.to_owned(), why });
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    match dir.parent() {
        _ if dir.try_exists().unwrap_or(true) => Ok(()),
        Some(parent) if parent == Path::new("/") => absent("none is made at /".into()),
        Some(parent) if !parent.try_exists().unwrap_or(true) => {
            absent(format!("there is no {} to make it in", parent.display()))
        }
        _ => Ok(()),
    }
}

/// The default folder of local copies.
fn default_dir() -> Option<PathBuf> {
    let cache = || variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = || cache().or_else(|| Some(variable("HOME")?.join(".cache")));
    Some(cache()?.join("fastmap"))
}

fn limit_of_environment() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os("FASTMAP_TIER_LIMIT").filter(|text| !text.is_empty()) else { return Ok(None) };
    let text = text.to_string_lossy();
    fastmap::size::bytes(&text).map(Some).map_err(Error::NoSize)
}

/// Fails unless the folder is this user's, and only this user may write into it: others could put bytes there that would be taken for an
/// object's.
fn is_ours(dir: &Path, of: &std::fs::Metadata) -> Result<()> {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let not = |why, remedy| Err(Error::NotOurs { path: dir.to_owned(), why, remedy });
    if of.uid() != user {
        return not(format!("the folder is user {}'s, and this is user {user}", of.uid()), "run as that user");
    }
    if of.mode() & 0o022 != 0 {
        return not("others may write into the folder".into(), "take that away from them: chmod go-w");
    }
    Ok(())
}
