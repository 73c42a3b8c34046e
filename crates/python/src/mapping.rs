//! A mapped file or object: its bytes, and the methods on them.

use crate::cache::Cache;
use crate::cut;
use crate::failure::{Failure, check};
use fastmap_capi::{
    FM_MADV_BACKWARD, FM_MAP_CACHED, FM_PIN_WRITE, fm_gather, fm_is_cached, fm_madvise, fm_mmap, fm_mmap_in, fm_msync,
    fm_munmap, fm_object_stats, fm_open_url, fm_pin, fm_prefetch, fm_prefetch_wait, fm_range, fm_read, fm_unpin,
    fm_url_options, fm_write, version_at,
};
use libc::{c_int, c_void, off_t};
use pyo3::exceptions::{PyBufferError, PyIndexError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// The text of `help(fastmap.Mapping)`.
pub const DOC: &CStr = c"Bytes of a file or an object in memory: what `fastmap.open` returns, and arrays are made of.

It has the buffer protocol: `memoryview(mapping)`, `numpy.frombuffer(mapping, dtype)`. As a context manager it is closed at the end.
Offsets and lengths are bytes, inside the mapping; what lies outside raises IndexError. All that may block runs without the
interpreter's lock.";

/// PyO3's part of `fastmap.Mapping`.
#[pyclass(frozen, subclass, name = "MappingBase", module = "fastmap._native")]
pub struct Mapping {
    state: Mutex<State>,
    len: usize,
    offset: u64,
    /// The first byte's offset in its page.
    skip: usize,
    is_writable: bool,
    cache: Option<Py<Cache>>,
    /// For an object: its URL as messages show it, and a text that differs between its versions.
    object: Option<(String, String)>,
}

/// How an object is opened: URL, folder of local copies, the folder's limit in bytes (or 0), deadline in seconds.
type Url = (Vec<u8>, Option<Vec<u8>>, u64, f64);

/// The file or object that is mapped.
#[derive(FromPyObject)]
pub enum Source {
    #[pyo3(transparent)]
    File(c_int),
    #[pyo3(transparent)]
    Object(Url),
}

struct State {
    /// Address of the first page; `None` when the mapping is closed.
    at: Option<usize>,
    /// Buffers that are lent, pins, and calls under way.
    uses: usize,
}

/// An offset or a length. A negative number, or one beyond the address space, becomes `usize::MAX`, which is outside of any mapping.
pub struct Number(usize);

impl<'a, 'py> FromPyObject<'a, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Ok(Number(usize::MAX)),
            number => Ok(Number(number?)),
        }
    }
}

/// The bytes of a mapping while it is in use.
#[derive(Clone, Copy)]
pub struct Bytes {
    pub at: usize,
    pub len: usize,
    pub is_writable: bool,
}

/// Keeps a mapping open until dropped.
struct Use<'a> {
    mapping: &'a Mapping,
    bytes: Bytes,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.mapping.give_back();
    }
}

impl Use<'_> {
    /// The address of a range. Fails unless the range is inside the mapping.
    fn range(&self, offset: usize, len: usize) -> PyResult<usize> {
        if offset <= self.bytes.len && len <= self.bytes.len - offset {
            return Ok(self.bytes.at + offset);
        }
        let all = self.bytes.len;
        Err(PyIndexError::new_err(format!("{len} bytes at offset {offset} are not inside the mapping of {all} bytes")))
    }

    /// A range, which without `len` reaches to the end, extended to a page's start: mmap(2)'s kin take addresses of pages.
    fn pages(&self, offset: usize, len: Option<usize>) -> PyResult<(usize, usize)> {
        let len = len.unwrap_or(self.bytes.len.saturating_sub(offset));
        let at = self.range(offset, len)?;
        Ok((at & !(PAGE - 1), len + at % PAGE))
    }

    /// The ranges whose offsets and lengths are in two arrays.
    ///
    /// # Safety
    /// At each address there are `count` numbers of 8 bytes.
    unsafe fn ranges(&self, starts: usize, lengths: usize, count: usize) -> PyResult<Ranges> {
        if count == 0 {
            return Ok(Ranges(vec![]));
        }
        // SAFETY: the caller's contract.
        let (starts, lengths) = unsafe {
            (
                std::slice::from_raw_parts(starts as *const i64, count),
                std::slice::from_raw_parts(lengths as *const i64, count),
            )
        };
        let number = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        let range = |(start, length): (&i64, &i64)| {
            let (offset, length) = (number(*start), number(*length));
            Ok(fm_range { addr: self.range(offset, length)? as *const c_void, length })
        };
        starts.iter().zip(lengths).map(range).collect::<PyResult<_>>().map(Ranges)
    }
}

/// Ranges that may be handed to another thread.
struct Ranges(Vec<fm_range>);

// SAFETY: addresses in a mapping that the caller keeps open.
unsafe impl Send for Ranges {}
// SAFETY: as above, and nobody changes them.
unsafe impl Sync for Ranges {}

impl Ranges {
    fn first(&self) -> *const fm_range {
        self.0.as_ptr()
    }
}

impl Mapping {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more user of the bytes, until [`give_back`](Self::give_back).
    pub fn lend(&self) -> PyResult<Bytes> {
        let mut state = self.state();
        let at = state.at.ok_or_else(|| PyValueError::new_err("mmap closed or invalid"))?;
        state.uses += 1;
        Ok(Bytes { at: at + self.skip, len: self.len, is_writable: self.is_writable })
    }

    /// Counts one user less.
    pub fn give_back(&self) {
        self.state().uses -= 1;
    }

    fn open(&self) -> PyResult<Use<'_>> {
        let used = Use { mapping: self, bytes: self.lend()? };
        if cut::was_cut(used.bytes.at) { Err(cut::failure(self.object.is_some()).into()) } else { Ok(used) }
    }

    /// The first page's address, and the length of the mapping in whole pages, in bytes.
    fn whole(&self, at: usize) -> (*mut c_void, usize) {
        (at as *mut c_void, (self.skip + self.len).next_multiple_of(PAGE))
    }
}

#[pymethods]
impl Mapping {
    /// Maps `length` bytes from `offset` on, in mode "r", "r+" or "c". With `cache` the mapping is in that cache, or the call fails. Without it
    /// the kernel serves the mapping, steered. `bare` calls mmap(2) alone, for a process whose mappings the preload library makes.
    ///
    /// An object is read-only, and always in a cache; a length of 0 means all of it.
    #[new]
    #[pyo3(signature = (source, offset, length, mode, cache, bare))]
    fn new(
        py: Python<'_>,
        source: Source,
        offset: u64,
        length: usize,
        mode: &str,
        cache: Option<Py<Cache>>,
        bare: bool,
    ) -> PyResult<Self> {
        let fd = match source {
            Source::File(fd) => fd,
            Source::Object(url) => return Self::of_object(py, url, offset, length, cache),
        };
        let skip = (offset % PAGE as u64) as usize;
        let whole = skip.checked_add(length).and_then(|all| all.checked_next_multiple_of(PAGE));
        let (Some(whole), Ok(from)) = (whole, off_t::try_from(offset - skip as u64)) else {
            return Err(PyValueError::new_err(format!(
                "{length} bytes at offset {offset} do not fit the address space"
            )));
        };
        let is_writable = mode != "r";
        let prot = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        let flags = if mode == "c" { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
        let handle = cache.as_ref().map(|cache| cache.get().handle().addr());
        let at = py.detach(|| {
            let nowhere = std::ptr::null_mut();
            // SAFETY: a new mapping, at a place of the kernel's choice.
            let at = unsafe {
                match handle {
                    Some(handle) => {
                        let handle = std::ptr::without_provenance_mut(handle);
                        fm_mmap_in(handle, nowhere, whole, prot, flags | FM_MAP_CACHED, fd, from)
                    }
                    None if bare => libc::mmap(nowhere, whole, prot, flags, fd, from),
                    None => fm_mmap(nowhere, whole, prot, flags, fd, from),
                }
            };
            if at == libc::MAP_FAILED {
                return Err(if bare { Failure::of_kernel("mmap") } else { Failure::last() });
            }
            if !cut::watch(at.addr()..at.addr() + whole, false) {
                // SAFETY: mapped above.
                unsafe { fm_munmap(at, whole) };
                return Err(cut::failure(false));
            }
            Ok(at.addr())
        })?;
        let state = Mutex::new(State { at: Some(at), uses: 0 });
        Ok(Mapping { state, len: length, offset, skip, is_writable, cache, object: None })
    }

    /// Unmaps the file. Stored bytes have been written to it, but maybe not to stable storage: see `flush`.
    ///
    /// Raises
    /// ------
    /// BufferError
    ///     Arrays, memoryviews or pins of the mapping still exist: delete them first.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let at = {
            let mut state = self.state();
            if state.uses > 0 {
                let why = format!(
                    "cannot close exported pointers exist: {} array(s), view(s), pin(s) or call(s) use the mapping: \
                     delete them first",
                    state.uses
                );
                return Err(PyBufferError::new_err(why));
            }
            state.at.take()
        };
        if let Some(at) = at {
            py.detach(|| self.unmap(at))?;
        }
        Ok(())
    }

    /// Whether the mapping has been closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state().at.is_none()
    }

    /// Offset of the first byte in the file.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the mapping may be stored to.
    #[getter]
    fn writable(&self) -> bool {
        self.is_writable
    }

    /// The cache that the mapping was made in, or None.
    #[getter]
    fn cache(&self, py: Python<'_>) -> Option<Py<Cache>> {
        self.cache.as_ref().map(|cache| cache.clone_ref(py))
    }

    /// Whether "fastmap" or the "kernel" serves the mapping now.
    #[getter]
    fn engine(&self) -> PyResult<&'static str> {
        let used = self.open()?;
        // SAFETY: an address.
        let is_cached = unsafe { fm_is_cached(used.bytes.at as *const c_void, used.bytes.len) } == 1;
        // Objects are FastMap's in a child made by fork(2), too.
        Ok(if is_cached || self.object.is_some() { "fastmap" } else { "kernel" })
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// The URL of an object, without its signature; None for a file.
    #[getter]
    fn url(&self) -> Option<&str> {
        self.object.as_ref().map(|(url, _)| url.as_str())
    }

    /// A text that differs between versions of the object; None for a file.
    #[getter]
    fn _version(&self) -> Option<&str> {
        self.object.as_ref().map(|(_, version)| version.as_str())
    }

    #[pyo3(name = "_object_stats")]
    fn object_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let used = self.open()?;
        let mut now = fm_object_stats::default();
        // SAFETY: a struct of the size that is passed.
        check(unsafe { fm_object_stats(used.bytes.at as *const c_void, &raw mut now, size_of::<fm_object_stats>()) })?;
        let all = PyDict::new(py);
        macro_rules! fill {
            ($($name:ident)*) => { $(all.set_item(stringify!($name), now.$name)?;)* };
        }
        fill!(fetched hit wasted requests retries hedges wrong);
        Ok(all)
    }

    /// Writes stored bytes to the file, and returns when they are on stable storage (msync(2) with MS_SYNC).
    ///
    /// Raises
    /// ------
    /// OSError
    ///     ENOSPC, EIO and the other errors of write(2) and fdatasync(2). Bytes that could not be written stay in memory; a later call writes
    ///     them.
    #[pyo3(signature = (offset = Number(0), length = None), text_signature = "($self, offset=0, length=None)")]
    fn flush(&self, py: Python<'_>, offset: Number, length: Option<Number>) -> PyResult<()> {
        let used = self.open()?;
        let (at, len) = used.pages(offset.0, length.map(|length| length.0))?;
        // SAFETY: addresses.
        Ok(py.detach(|| check(unsafe { fm_msync(at as *mut c_void, len, libc::MS_SYNC) })).map(|_| ())?)
    }

    #[pyo3(name = "_advise")]
    fn advise(&self, py: Python<'_>, advice: c_int, offset: Number, length: Option<Number>) -> PyResult<()> {
        let used = self.open()?;
        let (at, len) = used.pages(offset.0, length.map(|length| length.0))?;
        // SAFETY: the caller passes advice that keeps what is stored.
        Ok(py.detach(|| check(unsafe { fm_madvise(at as *mut c_void, len, advice) })).map(|_| ())?)
    }

    /// Prefetches ranges, given by the addresses of two arrays of 8-byte integers. Returns how many ranges were taken.
    #[pyo3(name = "_prefetch")]
    fn prefetch(&self, py: Python<'_>, starts: usize, lengths: usize, count: usize, wait: bool) -> PyResult<usize> {
        let used = self.open()?;
        // SAFETY: the caller has the arrays there.
        let ranges = unsafe { used.ranges(starts, lengths, count) }?;
        let taken = py.detach(|| {
            let ranges = ranges.first();
            if wait {
                // SAFETY: as many ranges, inside the mapping.
                check(unsafe { fm_prefetch_wait(ranges, count) }).map(|_| count)
            } else {
                // SAFETY: as many ranges, inside the mapping.
                check(unsafe { fm_prefetch(ranges, count) }).map(|taken| taken as usize)
            }
        });
        Ok(taken?)
    }

    /// Copies ranges, given as for `_prefetch`, to `room` bytes at the address `out`.
    #[pyo3(name = "_gather")]
    fn gather(
        &self,
        py: Python<'_>,
        starts: usize,
        lengths: usize,
        count: usize,
        out: usize,
        room: usize,
    ) -> PyResult<()> {
        let used = self.open()?;
        // SAFETY: the caller has the arrays there.
        let ranges = unsafe { used.ranges(starts, lengths, count) }?;
        // SAFETY: the caller has `room` bytes at `out`.
        let gathered = py.detach(|| check(unsafe { fm_gather(ranges.first(), count, out as *mut c_void, room) }));
        Ok(gathered.map(|_| ())?)
    }

    /// A copy of some bytes. If they cannot be read, because the file was truncated or its device fails, this raises an exception. A load
    /// would raise SIGBUS.
    ///
    /// Raises
    /// ------
    /// OSError
    ///     ENXIO or EFAULT past the file's end; EIO.
    fn read<'py>(&self, py: Python<'py>, offset: Number, length: Number) -> PyResult<Bound<'py, PyBytes>> {
        let (offset, length) = (offset.0, length.0);
        let used = self.open()?;
        let at = used.range(offset, length)?;
        PyBytes::new_with(py, length, |bytes| {
            let to = bytes.as_mut_ptr().addr();
            // SAFETY: as many bytes are there, this function's.
            let read = py.detach(|| check(unsafe { fm_read(at as *const c_void, to as *mut c_void, length) }));
            Ok(read.map(|_| ())?)
        })
    }

    #[pyo3(name = "_write")]
    fn write(&self, py: Python<'_>, offset: Number, data: &[u8]) -> PyResult<()> {
        let used = self.open()?;
        let at = used.range(offset.0, data.len())?;
        if !self.is_writable {
            return Err(pyo3::exceptions::PyTypeError::new_err("the mapping is for reading: open it with mode 'r+'"));
        }
        // SAFETY: of a bytes object, which nobody changes; the mapping is writable.
        let stored = py.detach(|| check(unsafe { fm_write(at as *mut c_void, data.as_ptr().cast(), data.len()) }));
        Ok(stored.map(|_| ())?)
    }

    #[pyo3(name = "_pin")]
    fn pin(&self, py: Python<'_>, offset: Number, length: Number) -> PyResult<()> {
        let (offset, length) = (offset.0, length.0);
        let used = self.open()?;
        let at = used.range(offset, length)?;
        let flags = if self.is_writable { FM_PIN_WRITE } else { 0 };
        // SAFETY: a range of the mapping.
        py.detach(|| check(unsafe { fm_pin(at as *const c_void, length, flags) }))?;
        // Until `_unpin`.
        std::mem::forget(used);
        Ok(())
    }

    #[pyo3(name = "_unpin")]
    fn unpin(&self, py: Python<'_>, offset: Number, length: Number) -> PyResult<()> {
        let (offset, length) = (offset.0, length.0);
        let used = self.open()?;
        let at = used.range(offset, length)?;
        let flags = if self.is_writable { FM_PIN_WRITE } else { 0 };
        // SAFETY: a range of the mapping.
        py.detach(|| check(unsafe { fm_unpin(at as *const c_void, length, flags) }))?;
        self.give_back();
        Ok(())
    }

    /// Counts an array as a user, until `_give_back`.
    #[pyo3(name = "_lend")]
    fn lend_to_array(&self) -> PyResult<()> {
        self.lend().map(|_| ())
    }

    #[pyo3(name = "_give_back")]
    fn take_from_array(&self) {
        self.give_back();
    }

    /// The address of the first byte, for C functions.
    #[getter]
    fn _address(&self) -> PyResult<usize> {
        Ok(self.open()?.bytes.at)
    }

    #[classattr]
    const _BACKWARD: c_int = FM_MADV_BACKWARD;
}

impl Mapping {
    fn of_object(
        py: Python<'_>,
        (url, tier, tier_limit, deadline): Url,
        offset: u64,
        length: usize,
        cache: Option<Py<Cache>>,
    ) -> PyResult<Self> {
        let skip = (offset % PAGE as u64) as usize;
        let Ok(from) = off_t::try_from(offset - skip as u64) else {
            return Err(PyValueError::new_err(format!("an offset of {offset} is beyond any object's end")));
        };
        let (url, tier) = (CString::new(url)?, tier.map(CString::new).transpose()?);
        let mut whole = if length == 0 { 0 } else { length.saturating_add(skip) };
        let handle = cache.as_ref().map_or(0, |cache| cache.get().handle().addr());
        let (at, object) = py.detach(|| {
            let options = fm_url_options {
                cache: std::ptr::without_provenance_mut(handle),
                tier: tier.as_ref().map_or(std::ptr::null(), |tier| tier.as_ptr()),
                tier_limit,
                deadline,
            };
            // SAFETY: C strings and options that stay until it returns.
            let at = unsafe { fm_open_url(url.as_ptr(), from, &raw mut whole, &raw const options) };
            if at == libc::MAP_FAILED {
                return Err(Failure::last());
            }
            cut::watch(at.addr()..at.addr() + whole.next_multiple_of(PAGE), true);
            Ok((at.addr(), version_at(at)))
        })?;
        let state = Mutex::new(State { at: Some(at), uses: 0 });
        let mapping =
            Mapping { state, len: whole.saturating_sub(skip), offset, skip, is_writable: false, cache, object };
        if mapping.len == 0 {
            return Err(PyValueError::new_err(format!("an offset of {offset} is beyond the object's end")));
        }
        Ok(mapping)
    }

    fn unmap(&self, at: usize) -> Result<(), Failure> {
        let (at, len) = self.whole(at);
        cut::forget(at.addr()..at.addr() + len);
        // SAFETY: nobody uses the mapping.
        check(unsafe { fm_munmap(at, len) }).map(|_| ())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(at) = self.state().at.take() {
            // Nobody can be told of an error. The engine keeps pages that could not be written, and tries again.
            let _ = Python::attach(|py| py.detach(|| self.unmap(at)));
        }
    }
}
