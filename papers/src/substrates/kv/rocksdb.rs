//! RocksDB, as the system has it (`librocksdb.so`, by its C interface, `rocksdb/c.h`): tables are read through maps,
//! uncompressed, and written by write(2). There is no log of writes, as the other stores have none: what is in its
//! buffers is saved by a flush. Small buffers, since memory is small.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use super::Store;
use crate::substrates::{Error, Result};

/// Where it is found: a plain name, and those of the versions that distributions have.
const NAMES: [&str; 6] = [
    "librocksdb.so",
    "librocksdb.so.7.8",
    "librocksdb.so.8.9",
    "librocksdb.so.9.10",
    "librocksdb.so.6.29",
    "librocksdb.so.6.11",
];

/// Bytes written before a table is made of them; two such buffers may be full.
const WRITE_BUFFER: usize = 4 << 20;

/// For blocks of tables; with maps little is in it.
const BLOCK_CACHE: usize = 2 << 20;

/// Bytes of a table, and of the first sorted level: smaller than by default, as the buffers are.
const TABLE: u64 = 16 << 20;
const FIRST_LEVEL: u64 = 64 << 20;

/// What it uses beside its maps: buffers, the tables' indices, two compactions, and its code.
pub const MEMORY: u64 = 24 << 20;

const NO_COMPRESSION: c_int = 0;

/// Declares the calls that are used, each a pointer into the library.
macro_rules! calls {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[expect(non_snake_case, reason = "the library has it so")]
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Last, so that it is there as long as the pointers.
            _library: Library,
        }

        impl Calls {
            fn of(library: Library) -> std::result::Result<Calls, libloading::Error> {
                // SAFETY: the types are those of rocksdb/c.h.
                unsafe {
                    Ok(Calls { $($name: *library.get(stringify!($name))?,)* _library: library })
                }
            }
        }
    };
}

type Handle = *mut c_void;
type Text = *const c_char;
type Fault = *mut *mut c_char;

calls! {
    rocksdb_options_create: fn() -> Handle;
    rocksdb_options_destroy: fn(Handle);
    rocksdb_options_set_create_if_missing: fn(Handle, u8);
    rocksdb_options_set_allow_mmap_reads: fn(Handle, u8);
    rocksdb_options_set_compression: fn(Handle, c_int);
    rocksdb_options_set_write_buffer_size: fn(Handle, usize);
    rocksdb_options_set_target_file_size_base: fn(Handle, u64);
    rocksdb_options_set_max_bytes_for_level_base: fn(Handle, u64);
    rocksdb_options_set_max_open_files: fn(Handle, c_int);
    rocksdb_options_set_block_based_table_factory: fn(Handle, Handle);
    rocksdb_block_based_options_create: fn() -> Handle;
    rocksdb_block_based_options_destroy: fn(Handle);
    rocksdb_block_based_options_set_block_cache: fn(Handle, Handle);
    rocksdb_cache_create_lru: fn(usize) -> Handle;
    rocksdb_cache_destroy: fn(Handle);
    rocksdb_open: fn(Handle, Text, Fault) -> Handle;
    rocksdb_close: fn(Handle);
    rocksdb_writeoptions_create: fn() -> Handle;
    rocksdb_writeoptions_destroy: fn(Handle);
    rocksdb_writeoptions_disable_WAL: fn(Handle, c_int);
    rocksdb_readoptions_create: fn() -> Handle;
    rocksdb_readoptions_destroy: fn(Handle);
    rocksdb_flushoptions_create: fn() -> Handle;
    rocksdb_flushoptions_destroy: fn(Handle);
    rocksdb_put: fn(Handle, Handle, Text, usize, Text, usize, Fault);
    rocksdb_get_pinned: fn(Handle, Handle, Text, usize, Fault) -> Handle;
    rocksdb_pinnableslice_value: fn(Handle, *mut usize) -> Text;
    rocksdb_pinnableslice_destroy: fn(Handle);
    rocksdb_create_iterator: fn(Handle, Handle) -> Handle;
    rocksdb_iter_seek: fn(Handle, Text, usize);
    rocksdb_iter_valid: fn(Handle) -> u8;
    rocksdb_iter_key: fn(Handle, *mut usize) -> Text;
    rocksdb_iter_value: fn(Handle, *mut usize) -> Text;
    rocksdb_iter_next: fn(Handle);
    rocksdb_iter_get_error: fn(Handle, Fault);
    rocksdb_iter_destroy: fn(Handle);
    rocksdb_flush: fn(Handle, Handle, Fault);
    rocksdb_free: fn(Handle);
}

fn load() -> std::result::Result<Calls, String> {
    let mut why = String::new();
    for name in NAMES {
        // SAFETY: RocksDB's initialisers do nothing that matters to anybody else.
        match unsafe { Library::new(name) } {
            Ok(library) => return Calls::of(library).map_err(|error| format!("{name}: {error}")),
            Err(error) => why = format!("{}: {error}", NAMES[1]),
        }
    }
    Err(why)
}

/// Why it cannot be used here, with the remedy; none if it can.
pub fn why_missing() -> Option<String> {
    load().err().map(|why| format!("{why}: install librocksdb (Debian 12: apt install librocksdb7.8)"))
}

/// A database.
pub struct Rocksdb {
    calls: Calls,
    db: Handle,
    reading: Handle,
    writing: Handle,
    /// Its directory, if its tables' maps are to have `MADV_RANDOM`.
    advised: Option<PathBuf>,
}

// SAFETY: a database and its options, which do not change, may be used by any threads.
unsafe impl Send for Rocksdb {}
// SAFETY: likewise.
unsafe impl Sync for Rocksdb {}

impl Rocksdb {
    /// Opens the database in a directory, or makes it.
    pub fn open(path: &Path, random: bool) -> Result<Rocksdb> {
        let calls = load().map_err(|why| refused(&why))?;
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| refused("a path with a zero byte"))?;
        // SAFETY: each handle is used as rocksdb/c.h says, and the options end when the database has its copy.
        let (db, reading, writing) = unsafe {
            let options = (calls.rocksdb_options_create)();
            (calls.rocksdb_options_set_create_if_missing)(options, 1);
            (calls.rocksdb_options_set_allow_mmap_reads)(options, 1);
            (calls.rocksdb_options_set_compression)(options, NO_COMPRESSION);
            (calls.rocksdb_options_set_write_buffer_size)(options, WRITE_BUFFER);
            (calls.rocksdb_options_set_target_file_size_base)(options, TABLE);
            (calls.rocksdb_options_set_max_bytes_for_level_base)(options, FIRST_LEVEL);
            (calls.rocksdb_options_set_max_open_files)(options, -1);
            let (tables, cache) =
                ((calls.rocksdb_block_based_options_create)(), (calls.rocksdb_cache_create_lru)(BLOCK_CACHE));
            (calls.rocksdb_block_based_options_set_block_cache)(tables, cache);
            (calls.rocksdb_options_set_block_based_table_factory)(options, tables);
            let opened = answered(&calls, |fault| (calls.rocksdb_open)(options, name.as_ptr(), fault));
            (calls.rocksdb_block_based_options_destroy)(tables);
            (calls.rocksdb_cache_destroy)(cache);
            (calls.rocksdb_options_destroy)(options);
            let writing = (calls.rocksdb_writeoptions_create)();
            (calls.rocksdb_writeoptions_disable_WAL)(writing, 1);
            (opened?, (calls.rocksdb_readoptions_create)(), writing)
        };
        Ok(Rocksdb { calls, db, reading, writing, advised: random.then(|| path.to_owned()) })
    }
}

impl Drop for Rocksdb {
    fn drop(&mut self) {
        // SAFETY: live handles, the database last used before.
        unsafe {
            (self.calls.rocksdb_readoptions_destroy)(self.reading);
            (self.calls.rocksdb_writeoptions_destroy)(self.writing);
            (self.calls.rocksdb_close)(self.db);
        }
    }
}

impl Store for Rocksdb {
    fn read(&self, key: &[u8], with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Calls { rocksdb_get_pinned, rocksdb_pinnableslice_value, rocksdb_pinnableslice_destroy, .. } = self.calls;
        // SAFETY: live handles; the value's bytes are there until the slice is destroyed.
        unsafe {
            let found = answered(&self.calls, |fault| {
                rocksdb_get_pinned(self.db, self.reading, key.as_ptr().cast(), key.len(), fault)
            })?;
            if found.is_null() {
                return Ok(false);
            }
            with(bytes(|len| rocksdb_pinnableslice_value(found, len)));
            rocksdb_pinnableslice_destroy(found);
        }
        Ok(true)
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key, key_len, value, value_len) = (key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len());
        // SAFETY: live handles; key and value outlive the call.
        answered(&self.calls, |fault| unsafe {
            (self.calls.rocksdb_put)(self.db, self.writing, key, key_len, value, value_len, fault);
        })
    }

    fn modify(&self, key: &[u8], with: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        let mut value = Vec::new();
        let found = self.read(key, &mut |found| value.extend_from_slice(found))?;
        if found {
            with(&mut value);
            self.write(key, &value)?;
        }
        Ok(found)
    }

    fn scan(&self, from: &[u8], with: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let calls = &self.calls;
        // SAFETY: live handles; key and value are there until the iterator moves.
        unsafe {
            let iterator = (calls.rocksdb_create_iterator)(self.db, self.reading);
            (calls.rocksdb_iter_seek)(iterator, from.as_ptr().cast(), from.len());
            while (calls.rocksdb_iter_valid)(iterator) != 0 {
                let key = bytes(|len| (calls.rocksdb_iter_key)(iterator, len));
                if !with(key, bytes(|len| (calls.rocksdb_iter_value)(iterator, len))) {
                    break;
                }
                (calls.rocksdb_iter_next)(iterator);
            }
            let ended = answered(calls, |fault| (calls.rocksdb_iter_get_error)(iterator, fault));
            (calls.rocksdb_iter_destroy)(iterator);
            ended
        }
    }

    fn flush(&mut self) -> Result<()> {
        // SAFETY: live handles.
        unsafe {
            let options = (self.calls.rocksdb_flushoptions_create)();
            let flushed = answered(&self.calls, |fault| (self.calls.rocksdb_flush)(self.db, options, fault));
            (self.calls.rocksdb_flushoptions_destroy)(options);
            flushed
        }
    }

    /// RocksDB has no option that advises its maps, so it is done for it: tables come and go.
    fn tend(&self) {
        let Some(dir) = self.advised.as_deref().and_then(Path::to_str) else { return };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for map in maps.lines().filter(|map| map.ends_with(".sst") && map.contains(dir)) {
            let range = map.split_whitespace().next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(start, end)| (number(start), number(end))) {
                // SAFETY: advice changes no byte, of whatever is there by now.
                unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_RANDOM) };
            }
        }
    }
}

/// The bytes that a call returns with their number.
///
/// # Safety
///
/// They are there as long as the caller uses them.
unsafe fn bytes<'a>(call: impl FnOnce(*mut usize) -> Text) -> &'a [u8] {
    let mut len = 0;
    let start = call(&mut len);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

/// What a call returns, or the fault that it reports.
fn answered<T>(calls: &Calls, call: impl FnOnce(Fault) -> T) -> Result<T> {
    let mut fault = ptr::null_mut();
    let answer = call(&mut fault);
    if fault.is_null() {
        return Ok(answer);
    }
    // SAFETY: a C string that is the caller's to free.
    let why = unsafe { CStr::from_ptr(fault).to_string_lossy().into_owned() };
    // SAFETY: as above.
    unsafe { (calls.rocksdb_free)(fault.cast()) };
    Err(refused(&why))
}

fn refused(why: &str) -> Error {
    let remedy = "give another --dir, or leave rocksdb out of --stores";
    Error::Refused { thing: "RocksDB".to_owned(), what: why.to_owned(), remedy }
}
