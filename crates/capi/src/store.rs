//! `libfastmap_object.so`, which is opened with the first URL: programs that map only files load neither TLS nor HTTP.

#[path = "../../object-capi/src/table.rs"]
mod table;

use crate::boundary::Failure;
use fastmap::Origin;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub use table::fm_object_stats;
use table::{Asked, FOR_EVER, Limit, Opened, Table, Text, VERSION};

const NAME: &str = "libfastmap_object.so";
/// Where it is installed, in the folder of `libfastmap.so`: each version of that library has its own.
const INSTALLED: &str = concat!("fastmap/libfastmap_object.so.", env!("CARGO_PKG_VERSION_MAJOR"));
/// The name of its only symbol, a function without arguments that returns a [`Table`].
const SYMBOL: &CStr = c"fastmap_object_table";

fn limit_of(time: Option<Duration>) -> Limit {
    time.map_or(FOR_EVER, |time| u64::try_from(time.as_nanos()).unwrap_or(FOR_EVER))
}

/// The library, open.
#[derive(Clone, Copy)]
pub struct Store(&'static Table);

impl fmt::Debug for Store {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(NAME)
    }
}

fn opened() -> MutexGuard<'static, Option<Store>> {
    static OPENED: Mutex<Option<Store>> = Mutex::new(None);
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// The library. The first call opens it: beside the library with this code, where it is installed, or else where ld.so(8) looks.
    pub fn find() -> Result<Store, Failure> {
        let mut opened = opened();
        if let Some(store) = *opened {
            return Ok(store);
        }
        let folder = own_folder();
        let places = folder.iter().flat_map(|folder| [folder.join(NAME), folder.join(INSTALLED)]);
        let path = places.into_iter().find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(NAME));
        let table = open_library(&path).map_err(|why| {
            let folder = folder.map_or_else(String::new, |folder| format!(" {}, as {INSTALLED}, or", folder.display()));
            let why = format_args!("URLs need {NAME}: {why}: install it in{folder} where ld.so(8) looks");
            Failure::new(libc::ELIBACC, why)
        })?;
        // SAFETY: a constant of the library.
        let version = unsafe { table.version.get() };
        if version != VERSION {
            let why = format_args!(
                "{} is of version {version}, libfastmap.so of {VERSION}: install both anew",
                path.display()
            );
            return Err(Failure::new(libc::ELIBACC, why));
        }
        fastmap::live::count_also(table.counted);
        Ok(*opened.insert(Store(table)))
    }

    /// Opens an object.
    ///
    /// # Safety
    /// `tier` is a C string or NULL.
    pub unsafe fn open(
        self,
        url: &str,
        tier: *const c_char,
        tier_limit: u64,
        deadline: Option<Duration>,
    ) -> Result<Object, Failure> {
        let asked = Asked { url: Text::new(url), tier, tier_limit, deadline: limit_of(deadline) };
        let mut is =
            Opened { object: std::ptr::null_mut(), fd: -1, errno: 0, len: 0, text: Text::EMPTY, version: Text::EMPTY };
        // SAFETY: the caller's contract.
        unsafe { (self.0.open)(&asked, &mut is) };
        // SAFETY: of the call just made.
        let (text, version) = unsafe { (is.text.get().to_owned(), is.version.get().to_owned()) };
        if is.object.is_null() {
            return Err(Failure::new(is.errno, text));
        }
        Ok(Object { table: self.0, handle: is.object, fd: is.fd, len: is.len, url: text.into(), version })
    }
}

/// The folder of the file that this code was loaded from.
fn own_folder() -> Option<PathBuf> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address, and room for what is found.
    let is_found = unsafe { libc::dladdr(own_folder as *const c_void, found.as_mut_ptr()) } != 0;
    if !is_found {
        return None;
    }
    // SAFETY: filled in; the name stays as long as the code.
    let name = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
    // If this code is in the program itself, the name is the one that the program was called by.
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).canonicalize().ok()?;
    path.parent().map(Path::to_owned)
}

fn open_library(path: &Path) -> Result<&'static Table, String> {
    // SAFETY: called in the same thread, after a failure.
    let why = || unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: a C string; the library's initialisers are its own.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(why());
    }
    // SAFETY: an open library, and a C string.
    let symbol = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return Err(why());
    }
    // SAFETY: the library's function of that name is of this type, and gives a constant.
    let table = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> &'static Table>(symbol) };
    Ok(table())
}

/// An open object, as the engine maps it.
pub struct Object {
    table: &'static Table,
    handle: *mut c_void,
    fd: RawFd,
    /// Bytes.
    pub len: u64,
    pub url: PathBuf,
    /// A text that differs between versions of the object.
    pub version: String,
}

// SAFETY: the library's functions may be called by any thread.
unsafe impl Send for Object {}
// SAFETY: the library's functions may be called by any thread.
unsafe impl Sync for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Object").field("url", &self.url).field("version", &self.version).finish_non_exhaustive()
    }
}

impl Object {
    /// Its local copy.
    pub fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the object is.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Counts since it was opened.
    pub fn counts(&self) -> fm_object_stats {
        // SAFETY: it is open.
        unsafe { (self.table.counts)(self.handle) }
    }
}

impl Origin for Object {
    fn has(&self, range: Range<u64>) -> bool {
        // SAFETY: it is open.
        unsafe { (self.table.has)(self.handle, range.start, range.end) }
    }

    fn bring(&self, range: Range<u64>, patience: Option<Duration>) -> Result<(), c_int> {
        // SAFETY: it is open.
        match unsafe { (self.table.bring)(self.handle, range.start, range.end, limit_of(patience)) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    fn ask(&self, range: Range<u64>) {
        // SAFETY: it is open.
        unsafe { (self.table.ask)(self.handle, range.start, range.end) };
    }

    fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        // SAFETY: it is open.
        unsafe { (self.table.is_right)(self.handle, offset, bytes.as_ptr(), bytes.len()) }
    }

    fn name(&self) -> &Path {
        &self.url
    }

    fn explain(&self, error: c_int) -> Option<&str> {
        // SAFETY: it is open; the text is a constant of the library.
        let text = unsafe { (self.table.explain)(self.handle, error).get() };
        (!text.is_empty()).then_some(text)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: it is open, and closed once.
        unsafe { (self.table.close)(self.handle) };
    }
}

/// Holds the locks of `libfastmap_object.so`, and the one of this module, while this thread forks.
pub fn lock() -> impl Sized + 'static {
    struct Locked(MutexGuard<'static, Option<Store>>);
    impl Drop for Locked {
        fn drop(&mut self) {
            if let Some(store) = *self.0 {
                (store.0.unlock)();
            }
        }
    }
    let locked = Locked(opened());
    if let Some(store) = *locked.0 {
        (store.0.lock)();
    }
    locked
}
