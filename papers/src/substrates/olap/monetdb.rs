//! MonetDB inside this process: the part of its C interface (`monetdbe.h` of version Jul2021, which is what the wheel of
//! `monetdbe` 0.11 carries) that loading and querying takes. The library is opened when it is needed, and never closed.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::substrates::{Error, Result};

/// The wheel's libraries, each after those that it needs: they name each other, and not where they are.
const LIBRARIES: [&str; 7] =
    ["libpcre-", "libstream-", "libbat-", "libmapi-", "libmonetdb5-", "libmonetdbsql-", "libmonetdbe-"];

/// Where the wheel has them.
const FOLDER: &str = "monetdbe.libs";

/// What gets the wheel.
const REMEDY: &str = "run scripts/monetdb, which gets it from PyPI, or name its folder with --monetdb";

/// `monetdbe_options`.
#[repr(C)]
struct Options {
    /// MiB; 0: what the machine, or its cgroup, has.
    memory_limit: c_int,
    query_timeout: c_int,
    session_timeout: c_int,
    threads: c_int,
    remote: *const c_void,
    mapi_server: *const c_void,
    trace_file: *const c_char,
}

/// `monetdbe_result`.
#[repr(C)]
struct Answer {
    rows: i64,
    columns: usize,
    name: *const c_char,
    last_id: i64,
}

/// The beginning of every `monetdbe_column_*`; behind it are the type's null, and for numbers the scale.
#[repr(C)]
struct Column {
    kind: c_int,
    data: *const c_void,
    count: usize,
    name: *const c_char,
}

/// The whole of a column of numbers: `monetdbe_column_int32_t` and its kin.
#[repr(C)]
struct Numbers<T> {
    column: Column,
    null: T,
    /// What decimals are multiplied by to be whole numbers; 1 or 0 of others.
    scale: f64,
}

/// `monetdbe_data_date`.
#[repr(C)]
struct Date {
    day: u8,
    month: u8,
    year: i16,
}

/// `monetdbe_types`, of a library with numbers of 128 bits.
mod kind {
    pub const INT8: i32 = 1;
    pub const INT16: i32 = 2;
    pub const INT32: i32 = 3;
    pub const INT64: i32 = 4;
    pub const INT128: i32 = 5;
    pub const DOUBLE: i32 = 8;
    pub const TEXT: i32 = 9;
    pub const DATE: i32 = 11;
}

/// `monetdbe_database`.
type Handle = *mut c_void;
/// Null, or what went wrong.
type Complaint = *const c_char;

type Open = unsafe extern "C" fn(*mut Handle, *const c_char, *mut Options) -> c_int;
type Close = unsafe extern "C" fn(Handle) -> c_int;
type LastError = unsafe extern "C" fn(Handle) -> *const c_char;
type Query = unsafe extern "C" fn(Handle, *const c_char, *mut *mut Answer, *mut i64) -> Complaint;
type Fetch = unsafe extern "C" fn(*mut Answer, *mut *mut Column, usize) -> Complaint;
type CleanUp = unsafe extern "C" fn(Handle, *mut Answer) -> Complaint;

/// The functions, for as long as the process lives.
#[derive(Clone, Copy)]
struct Functions {
    open: Open,
    close: Close,
    last_error: LastError,
    query: Query,
    fetch: Fetch,
    clean_up: CleanUp,
    /// MonetDB's setting `gdk_vm_maxsize`: the most address space it takes, bytes.
    address_space: *mut usize,
}

/// That setting's default. In a cgroup MonetDB takes the limit on memory and swap for it, which is none on address space, and
/// then refuses to map its own files.
const ADDRESS_SPACE: usize = 1 << 42;

impl Functions {
    fn load(folder: &Path) -> Result<Functions> {
        let folder = folder.join(FOLDER);
        let missing = |what: String| Error::Refused { thing: folder.display().to_string(), what, remedy: REMEDY };
        let files = fs::read_dir(&folder).map_err(|e| missing(format!("MonetDB is not there: {e}")))?;
        let names: Vec<_> = files.filter_map(|file| Some(file.ok()?.file_name())).collect();
        let mut last = None;
        for library in LIBRARIES {
            let name = names.iter().find(|name| name.as_bytes().starts_with(library.as_bytes()));
            let name = name.ok_or_else(|| missing(format!("holds no {library}*.so")))?;
            // SAFETY: libraries of an unchanged wheel, whose initialisers ask nothing of whoever loads them.
            let opened = unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL) };
            let opened = opened.map_err(|e| missing(format!("cannot be loaded: {e}")))?;
            // Its threads and what it does at exit are there to the end, so it must be, too.
            last = Some(std::mem::ManuallyDrop::new(opened));
        }
        let library = last.expect("several libraries");
        // SAFETY: each with the type that monetdbe.h declares it to have.
        let functions = unsafe {
            library.get(b"hgeToStr").map(|hge| *hge).and_then(|_: unsafe extern "C" fn()| {
                Ok(Functions {
                    open: *library.get(b"monetdbe_open")?,
                    close: *library.get(b"monetdbe_close")?,
                    last_error: *library.get(b"monetdbe_error")?,
                    query: *library.get(b"monetdbe_query")?,
                    fetch: *library.get(b"monetdbe_result_fetch")?,
                    clean_up: *library.get(b"monetdbe_cleanup_result")?,
                    address_space: *library.get(b"GDK_vm_maxsize")?,
                })
            })
        };
        functions.map_err(|e| missing(format!("is another version of MonetDB: {e}")))
    }
}

/// Where scripts/monetdb puts MonetDB if it is not told.
pub fn usual_folder() -> PathBuf {
    let named = |name| env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    cache.unwrap_or_else(|| PathBuf::from(".")).join("fastmap/monetdb")
}

/// Whether MonetDB is in a folder, as far as can be seen without loading it.
pub fn is_in(folder: &Path) -> bool {
    folder.join(FOLDER).is_dir()
}

/// Fails, with what to do about it, if MonetDB is not in a folder.
///
/// # Errors
///
/// That.
pub fn check(folder: &Path) -> Result<()> {
    if is_in(folder) {
        return Ok(());
    }
    let what = format!("MonetDB is not there (no {FOLDER})");
    Err(Error::Refused { thing: folder.display().to_string(), what, remedy: REMEDY })
}

/// An open database. A process can have one at a time.
pub struct Database {
    functions: Functions,
    handle: Handle,
}

/// An answer: rows of columns as text, numbers with as many decimals as their type has. None is NULL.
pub type Rows = Vec<Vec<Option<String>>>;

impl Database {
    /// Opens, or makes, the database in a directory with the MonetDB in another.
    ///
    /// # Errors
    ///
    /// No MonetDB, another version, or what it says.
    pub fn open(monetdb: &Path, directory: &Path, threads: u32) -> Result<Database> {
        let functions = Functions::load(monetdb)?;
        let path = CString::new(directory.as_os_str().as_bytes()).expect("paths have no zero bytes");
        let mut options = Options {
            memory_limit: 0,
            query_timeout: 0,
            session_timeout: 0,
            threads: threads as c_int,
            remote: ptr::null(),
            mapi_server: ptr::null(),
            trace_file: ptr::null(),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: as monetdbe.h has it; path and options outlive the call, which copies what it keeps.
        let failed = unsafe { (functions.open)(&mut handle, path.as_ptr(), &mut options) };
        let database = Database { functions, handle };
        if failed == 0 {
            // SAFETY: a variable of the library's, set at its start and by opening, and by no query.
            unsafe { functions.address_space.write(ADDRESS_SPACE) };
            return Ok(database);
        }
        let why = match handle.is_null() {
            // SAFETY: a handle that was made; the text lives as long as it does.
            false => text(unsafe { (functions.last_error)(handle) }),
            true => None,
        };
        let what = format!("cannot be opened: {} ({failed})", why.unwrap_or_else(|| "MonetDB does not say why".into()));
        let thing = format!("database {}", directory.display());
        Err(Error::Refused { thing, what, remedy: "see whether there is memory and room on the disk" })
    }

    /// Runs a statement that answers nothing.
    ///
    /// # Errors
    ///
    /// What MonetDB says.
    pub fn run(&self, statement: &str) -> Result<()> {
        self.ask(statement, ptr::null_mut())
    }

    /// Runs a query and fetches all of its answer.
    ///
    /// # Errors
    ///
    /// What MonetDB says.
    pub fn query(&self, query: &str) -> Result<Rows> {
        let mut answer = ptr::null_mut();
        self.ask(query, &mut answer)?;
        if answer.is_null() {
            return Err(complaint(query, "no answer".into()));
        }
        // SAFETY: an answer of MonetDB's, ours until it is cleaned up.
        let (count, columns) = unsafe { ((*answer).rows as usize, (*answer).columns) };
        let mut rows: Rows = (0..count).map(|_| Vec::with_capacity(columns)).collect();
        for number in 0..columns {
            let mut column = ptr::null_mut();
            // SAFETY: an answer and one of its columns; what is fetched lives as long as the answer.
            let cells = unsafe {
                let failed = (self.functions.fetch)(answer, &mut column, number);
                text(failed).map_or_else(|| cells(column, count), Err)
            };
            let cells = cells.map_err(|why| complaint(query, format!("column {}: {why}", number + 1)))?;
            rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
        }
        // SAFETY: nothing of the answer is used any more.
        let failed = unsafe { (self.functions.clean_up)(self.handle, answer) };
        text(failed).map_or(Ok(rows), |why| Err(complaint(query, why)))
    }

    fn ask(&self, statement: &str, answer: *mut *mut Answer) -> Result<()> {
        let asked = CString::new(statement).expect("statements have no zero bytes");
        // SAFETY: an open database; the text outlives the call, and `answer` is null or room for one.
        let failed = unsafe { (self.functions.query)(self.handle, asked.as_ptr(), answer, &mut 0) };
        text(failed).map_or(Ok(()), |why| Err(complaint(statement, why)))
    }

    /// Closes it: what is in the logs goes to the tables.
    ///
    /// # Errors
    ///
    /// What MonetDB says, which is only that it cannot.
    pub fn close(mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: an open database that nobody uses any more.
        match unsafe { (self.functions.close)(handle) } {
            0 => Ok(()),
            failed => Err(complaint("close", format!("it failed ({failed})"))),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: a database that nobody uses any more. What it cannot do is told by the error that led here.
            unsafe { (self.functions.close)(self.handle) };
        }
    }
}

fn complaint(statement: &str, why: String) -> Error {
    let thing = statement.split_whitespace().take(8).collect::<Vec<_>>().join(" ");
    let what = why.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::Refused {
        thing: format!("MonetDB: {thing}…"),
        what,
        remedy: "see whether there is memory and room on the disk",
    }
}

/// A C string, if there is one.
fn text(at: *const c_char) -> Option<String> {
    // SAFETY: null, or a string of MonetDB's.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// A column as text.
///
/// # Safety
/// It is a column that was fetched, of so many rows.
unsafe fn cells(column: *const Column, rows: usize) -> std::result::Result<Vec<Option<String>>, String> {
    // SAFETY: the caller's contract, and what monetdbe.h says of each kind.
    unsafe {
        let Column { kind, data, count, .. } = &*column;
        if *count != rows {
            return Err(format!("has {count} values, the answer {rows} rows"));
        }
        if rows == 0 {
            return Ok(Vec::new());
        }
        Ok(match *kind {
            kind::INT8 => decimals::<i8>(column),
            kind::INT16 => decimals::<i16>(column),
            kind::INT32 => decimals::<i32>(column),
            kind::INT64 => decimals::<i64>(column),
            kind::INT128 => decimals::<i128>(column),
            kind::DOUBLE => {
                let values = slice::from_raw_parts(data.cast::<f64>(), rows);
                // As many digits as tell it from all others.
                values.iter().map(|value| (!value.is_nan()).then(|| format!("{value:?}"))).collect()
            }
            kind::TEXT => {
                let values = slice::from_raw_parts(data.cast::<*const c_char>(), rows);
                values.iter().map(|value| text(*value)).collect()
            }
            kind::DATE => {
                let values = slice::from_raw_parts(data.cast::<Date>(), rows);
                let shown = values.iter().map(|d| format!("{:04}-{:02}-{:02}", d.year, d.month, d.day));
                shown.map(Some).collect()
            }
            other => return Err(format!("has values of kind {other}, which no TPC-H query answers")),
        })
    }
}

/// Whole numbers that may stand for decimals.
///
/// # Safety
/// It is a column of such numbers.
unsafe fn decimals<T: Copy + PartialEq + Into<i128>>(column: *const Column) -> Vec<Option<String>> {
    // SAFETY: the caller's contract.
    let (values, null, scale) = unsafe {
        let Numbers { column: Column { data, count, .. }, null, scale } = &*column.cast::<Numbers<T>>();
        (slice::from_raw_parts(data.cast::<T>(), *count), *null, *scale)
    };
    let digits = if scale > 1.0 { scale.log10().round() as usize } else { 0 };
    values.iter().map(|value| (*value != null).then(|| decimal((*value).into(), digits))).collect()
}

/// A number with so many of its digits behind the point.
fn decimal(value: i128, digits: usize) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let all = format!("{:0width$}", value.unsigned_abs(), width = digits + 1);
    let (whole, part) = all.split_at(all.len() - digits);
    if digits == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_their_point() {
        let of = |value, digits| decimal(value, digits);
        assert_eq!((of(12345, 2), of(-5, 2), of(7, 0)), ("123.45".into(), "-0.05".into(), "7".into()));
        assert_eq!(of(i128::MIN + 1, 4), "-17014118346046923173168730371588410.5727");
    }

    #[test]
    fn a_folder_without_it_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let why = check(folder.path()).unwrap_err().to_string();
        assert!(why.contains("MonetDB is not there") && why.contains("scripts/monetdb"), "{why}");
        fs::create_dir(folder.path().join(FOLDER)).unwrap();
        let why = Database::open(folder.path(), folder.path(), 1).err().unwrap().to_string();
        assert!(why.contains("holds no libpcre-*.so"), "{why}");
    }
}
