//! `libfastmap_object.so` opens objects of a store (TLS, HTTP, local copies) for `libfastmap.so`, which opens this library with the first URL. So
//! programs that map only files load none of it.
//!
//! The library exports one symbol: a function that returns a table of functions (`table.rs`).

mod table;

use fastmap::Origin;
use fastmap_tier::{Tier, TierOrigin};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use store::{Error, Object, ObjectOptions};
use table::{Asked, FOR_EVER, Limit, Opened, Table, Text, VERSION, fm_object_stats};

/// An open object, and its origin for the engine.
struct Held {
    origin: Arc<TierOrigin>,
    object: Object,
    version: String,
}

static TABLE: Table = Table {
    version: Text::new(VERSION),
    counted: fastmap::live::counted(),
    open,
    close,
    has,
    bring,
    ask,
    is_right,
    explain,
    counts,
    lock,
    unlock,
};

/// The library's functions, for the `libfastmap.so` of the same version.
#[unsafe(no_mangle)]
pub extern "C" fn fastmap_object_table() -> &'static Table {
    &TABLE
}

/// The folders of local copies that callers have named, with their limits in bytes.
type Tiers = Vec<(Option<PathBuf>, u64, Weak<Tier>)>;

fn tiers() -> MutexGuard<'static, Tiers> {
    static TIERS: Mutex<Tiers> = Mutex::new(vec![]);
    TIERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of local copies that a caller has named. Objects that are opened with the same folder and limit share it.
fn tier_of(dir: *const c_char, limit: u64) -> store::Result<Option<Arc<Tier>>> {
    if dir.is_null() && limit == 0 {
        return Ok(None);
    }
    let dir = (!dir.is_null()).then(|| {
        // SAFETY: the caller has a C string there.
        let dir = unsafe { CStr::from_ptr(dir) };
        PathBuf::from(OsStr::from_bytes(dir.to_bytes()))
    });
    let mut open = tiers();
    open.retain(|(_, _, tier)| tier.strong_count() > 0);
    let is_it = |(other, its, _): &&(Option<PathBuf>, u64, _)| *other == dir && *its == limit;
    if let Some(tier) = open.iter().find(is_it).and_then(|(_, _, tier)| tier.upgrade()) {
        return Ok(Some(tier));
    }
    let tier = Tier::open(dir.as_deref(), Some(limit).filter(|limit| *limit > 0))?;
    open.push((dir, limit, Arc::downgrade(&tier)));
    Ok(Some(tier))
}

/// Opens an object.
///
/// # Safety
/// The texts of `asked` can be read. Its folder is null, or a C string.
unsafe fn held(asked: &Asked) -> store::Result<Held> {
    let mut how = ObjectOptions::new();
    how.deadline(time_of(asked.deadline));
    if let Some(tier) = tier_of(asked.tier, asked.tier_limit)? {
        how.tier(&tier);
    }
    // SAFETY: the caller's contract.
    let object = how.open(unsafe { asked.url.get() })?;
    let is = object.local().version();
    let parts = [&is.etag, &is.version, &is.modified].map(|text| text.as_deref().unwrap_or_default());
    let version = format!("{} {} {} {}", is.len, parts[0], parts[1], parts[2]);
    Ok(Held { origin: object.origin(), object, version })
}

fn time_of(limit: Limit) -> Option<Duration> {
    (limit != FOR_EVER).then(|| Duration::from_nanos(limit))
}

unsafe extern "C" fn open(asked: &Asked, opened: &mut Opened) {
    thread_local! {
        /// Why the last object that this thread failed to open is not open.
        static REFUSED: RefCell<String> = const { RefCell::new(String::new()) };
    }
    // SAFETY: the caller's contract.
    let (errno, why) = match catch_unwind(|| unsafe { held(asked) }) {
        Ok(Ok(held)) => {
            let held = Box::leak(Box::new(held));
            let is = held.object.local();
            *opened = Opened {
                fd: is.file().as_raw_fd(),
                errno: 0,
                len: held.object.len(),
                text: Text::new(&is.version().url),
                version: Text::new(&held.version),
                object: std::ptr::from_mut(held).cast(),
            };
            return;
        }
        Ok(Err(error)) => (errno_of(&error), error.to_string()),
        Err(panic) => {
            // Dropping it may panic.
            std::mem::forget(panic);
            (libc::EIO, "a defect of fastmap: please report it".to_owned())
        }
    };
    let text = REFUSED.with(|refused| {
        let mut refused = refused.borrow_mut();
        *refused = why;
        Text::new(&refused)
    });
    *opened = Opened { object: std::ptr::null_mut(), fd: -1, errno, len: 0, text, version: Text::EMPTY };
}

fn errno_of(error: &Error) -> c_int {
    match error {
        Error::Url { .. } => libc::EINVAL,
        Error::Store { errno, .. } => *errno,
        Error::Tier(tier) => errno_of_tier(tier),
        Error::Map(map) => map.errno(),
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EIO,
    }
}

fn errno_of_tier(error: &fastmap_tier::Error) -> c_int {
    use fastmap_tier::Error;
    match error {
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::NoFolder | Error::Absent { .. } => libc::ENOENT,
        Error::NotOurs { .. } => libc::EACCES,
        Error::FileSystem { .. } | Error::Unversioned { .. } => libc::EOPNOTSUPP,
        Error::TooManyProcesses { .. } | Error::InUse { .. } => libc::EBUSY,
        _ => libc::EINVAL,
    }
}

unsafe extern "C" fn close(object: *mut c_void) {
    // SAFETY: the pointer is of `open`, and is closed once.
    let held = unsafe { Box::from_raw(object.cast::<Held>()) };
    // No panic crosses the boundary. After a panic a file stays open.
    let _ = catch_unwind(std::panic::AssertUnwindSafe(|| drop(held)));
}

/// # Safety
/// The object is open.
unsafe fn at<'a>(object: *const c_void) -> &'a Held {
    // SAFETY: the pointer is of `open`, and by the caller's contract the object is still open.
    unsafe { &*object.cast::<Held>() }
}

unsafe extern "C" fn has(object: *const c_void, from: u64, to: u64) -> bool {
    // SAFETY: the object is open.
    unsafe { at(object) }.origin.has(from..to)
}

unsafe extern "C" fn bring(object: *const c_void, from: u64, to: u64, patience: Limit) -> c_int {
    // SAFETY: the object is open.
    unsafe { at(object) }.origin.bring(from..to, time_of(patience)).err().unwrap_or(0)
}

unsafe extern "C" fn ask(object: *const c_void, from: u64, to: u64) {
    // SAFETY: the object is open.
    unsafe { at(object) }.origin.ask(from..to);
}

unsafe extern "C" fn is_right(object: *const c_void, offset: u64, bytes: *const u8, len: usize) -> bool {
    // SAFETY: the object is open, and the bytes are the caller's.
    unsafe { at(object).origin.is_right(offset, std::slice::from_raw_parts(bytes, len)) }
}

unsafe extern "C" fn explain(object: *const c_void, errno: c_int) -> Text {
    // SAFETY: the object is open.
    unsafe { at(object) }.origin.explain(errno).map_or(Text::EMPTY, Text::new)
}

unsafe extern "C" fn counts(object: *const c_void) -> fm_object_stats {
    // SAFETY: the object is open.
    let stats = unsafe { at(object) }.object.stats();
    fm_object_stats {
        fetched: stats.fetched,
        hit: stats.hit,
        wasted: stats.wasted,
        requests: stats.requests,
        retries: stats.retries,
        hedges: stats.hedges,
        wrong: stats.wrong_units,
    }
}

thread_local! {
    /// This library's locks, held while this thread forks.
    static LOCKS: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

extern "C" fn lock() {
    let _ = LOCKS.try_with(|held| held.set(Some(Box::new(tiers()))));
}

extern "C" fn unlock() {
    let _ = LOCKS.try_with(Cell::take);
}
