//! Objects of a store, mapped by their URLs.

use crate::boundary::{Failure, call};
use crate::caches::{self, fm_cache};
use crate::processes;
pub use crate::store::fm_object_stats;
use crate::store::{self, Object, Store};
use fastmap::Fallback;
use fastmap::by_address::{self, Request};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How fm_open_url() opens an object. Each member may be 0: `struct fm_url_options options = {0};`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fm_url_options {
    /// The cache; NULL: the process's own.
    pub cache: *mut fm_cache,
    /// Folder of local copies, on a local disk; it is made if it does not exist. NULL: $FASTMAP_TIER, else
    /// $XDG_CACHE_HOME/fastmap, else ~/.cache/fastmap.
    pub tier: *const c_char,
    /// Most bytes that all copies in that folder may take together, at least 16 MiB. 0: $FASTMAP_TIER_LIMIT,
    /// else the folder's last limit, else a tenth of the disk's free space.
    pub tier_limit: u64,
    /// Seconds that a map waits for the store. 0: 30 s; INFINITY: for ever.
    pub deadline: f64,
}

/// Where objects were mapped, the latest last.
fn maps() -> MutexGuard<'static, Vec<(Range<usize>, Weak<Object>)>> {
    static MAPS: Mutex<Vec<(Range<usize>, Weak<Object>)>> = Mutex::new(vec![]);
    MAPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object that is mapped at an address.
fn object_at(addr: usize) -> Option<Arc<Object>> {
    let maps = maps();
    let (_, object) = maps.iter().rev().find(|(at, object)| at.contains(&addr) && object.strong_count() > 0)?;
    object.upgrade()
}

/// Keeps other threads from the store's library and from the list of maps.
pub fn lock() -> impl Sized + 'static {
    (store::lock(), maps())
}

fn deadline_of(seconds: f64) -> Result<Option<Duration>, Failure> {
    match seconds {
        0.0 => Ok(Some(Duration::from_secs(30))),
        f64::INFINITY => Ok(None),
        _ => Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
            let why = format_args!("a deadline of {seconds} s: pass seconds, 0 for 30, or INFINITY for ever");
            Failure::new(libc::EINVAL, why)
        }),
    }
}

/// Opens an object and maps it: `length` bytes from `offset` on, or with 0 to its end. This works in a child
/// made by fork(2), too.
fn open(url: &str, offset: u64, length: usize, options: &fm_url_options) -> Result<(*mut c_void, usize), Failure> {
    let deadline = deadline_of(options.deadline)?;
    let cache = caches::find(options.cache)?;
    // SAFETY: the caller of `fm_open_url` has a C string there, if anything.
    let object = unsafe { Store::find()?.open(url, options.tier, options.tier_limit, deadline) }?;
    let rest = object.len.saturating_sub(offset);
    let len = if length == 0 { rest } else { length as u64 };
    if len == 0 || len > rest || !offset.is_multiple_of(4096) {
        let why = format_args!(
            "{}: {len} bytes at offset {offset} of an object of {} bytes: map at least one, within the object, from a multiple of 4096 on",
            object.url.display(),
            object.len
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    let object = Arc::new(object);
    let request = Request {
        addr: 0,
        len: len as usize,
        prot: libc::PROT_READ,
        flags: libc::MAP_SHARED,
        offset,
        one_writer: false,
        own: false,
        fallback: Fallback::Buffered,
        async_stores: false,
        layers: false,
    };
    // SAFETY: no place is fixed.
    let at = unsafe { by_address::map_origin(object.file(), object.clone(), &cache, &request) }?;
    let mut maps = maps();
    maps.retain(|(_, object)| object.strong_count() > 0);
    maps.push((at.addr()..at.addr() + len as usize, Arc::downgrade(&object)));
    Ok((at.cast(), len as usize))
}

/// Maps an object of a store, read-only, at the version that it has now. `url` is one of s3://BUCKET/KEY,
/// gs://BUCKET/KEY, az://CONTAINER/KEY, http(s)://, webdav(s)://, (s)webhdfs://, hdfs://, file:///PATH. Parts
/// are fetched when they are touched, and ahead of walks. They are kept in a folder on local disk that all
/// processes of the user share. Credentials and endpoints are found where each service's own tools find them,
/// and never in the URL.
///
/// `offset` is in bytes, a multiple of 4096. `*length` is the bytes to map from there on; 0: to the object's
/// end. The call sets it to the bytes that are mapped. `options` may be NULL.
///
/// All functions here work on the map as on others, except that it cannot be stored to. fm_munmap() closes the
/// object. A child made by fork(2) has the map, too; the parent fetches for it, as long as it lives.
///
/// If a part cannot be fetched within the deadline, fm_read(), fm_pin(), fm_gather() and fm_prefetch_wait()
/// return an error. A load raises SIGBUS, after a line on standard error that names object and offset. The
/// errors:
/// - ETIMEDOUT: the deadline has passed
/// - ESTALE: the object has changed
/// - EACCES: access is denied, or credentials have expired
/// - ENOENT: the object is gone
/// - ENOSPC: there is no room for the local copy
/// - ESHUTDOWN: the process that fetches has ended (a parent, in a child made by fork(2))
/// - EIO: any other failure
///
/// Returns the address, or MAP_FAILED and sets errno to one of these or of the following. Opening gives up after
/// the deadline, or after 30 s if there is none.
/// - EINVAL: not such a URL; no bytes in the range; an offset that is negative or not a multiple of 4096; not a
///   valid deadline or limit
/// - EFAULT: `url` or `length` is NULL
/// - ELIBACC: libfastmap_object.so, which fetches objects, cannot be opened
/// - other errors of the folder of local copies
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_open_url(
    url: *const c_char,
    offset: libc::off_t,
    length: *mut usize,
    options: *const fm_url_options,
) -> *mut c_void {
    call("fm_open_url", || {
        if url.is_null() || length.is_null() {
            return Err(Failure::new(libc::EFAULT, "url or length is NULL: pass both, and 0 in length for all of it"));
        }
        // SAFETY: the caller has a C string there.
        let Ok(url) = unsafe { CStr::from_ptr(url) }.to_str() else {
            return Err(Failure::new(libc::EINVAL, "the URL is no UTF-8: write other bytes as %XX"));
        };
        let Ok(offset) = u64::try_from(offset) else {
            return Err(Failure::new(libc::EINVAL, format_args!("an offset of {offset}: pass one from 0 on")));
        };
        let defaults =
            fm_url_options { cache: std::ptr::null_mut(), tier: std::ptr::null(), tier_limit: 0, deadline: 0.0 };
        // SAFETY: the caller has the options there, if any.
        let options = unsafe { options.as_ref() }.unwrap_or(&defaults);
        processes::prepare();
        // SAFETY: the caller has a number there.
        let (at, len) = open(url, offset, unsafe { *length }, options)?;
        // SAFETY: as above.
        unsafe { *length = len };
        Ok(at)
    })
}

/// Fills in what has been done for the object that is mapped at `addr`. `size` is sizeof(struct
/// fm_object_stats) as the program knows it. So many bytes are written, with zeros for what this library does
/// not know. A child made by fork(2) gets what its parent had done before.
///
/// Returns 0, or -1 and sets errno: EINVAL (no object is mapped there, or a size that is zero or not a multiple
/// of 8); EFAULT (`stats` is NULL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fm_object_stats(addr: *const c_void, stats: *mut fm_object_stats, size: usize) -> c_int {
    call("fm_object_stats", || {
        let object = object_at(addr.addr()).ok_or_else(|| {
            Failure::new(
                libc::EINVAL,
                format_args!("no object is mapped at {addr:p}: pass what fm_open_url() returned"),
            )
        })?;
        let now = object.counts();
        // SAFETY: the caller has `size` bytes there; a struct of integers without padding.
        unsafe { caches::fill_in(stats, &now, size) }?;
        Ok(0)
    })
}

/// The URL of the object that is mapped at an address, and a text that differs between versions of the object.
/// For the Python module.
pub fn version_at(addr: *const c_void) -> Option<(String, String)> {
    let object = object_at(addr.addr())?;
    Some((object.url.display().to_string(), object.version.clone()))
}
