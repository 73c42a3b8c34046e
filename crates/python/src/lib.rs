//! `fastmap._native`: the native part of the Python package, made of the functions of `libfastmap.so`.
//!
//! * `cache.rs`: caches
//! * `mapping.rs`: mappings; `buffer.rs`: their buffer protocol
//! * `cut.rs`: mappings whose file is truncated, or whose object cannot be fetched
//! * `failure.rs`: failed calls as exceptions
//!
//! Python code (`python/fastmap`) checks the arguments. Calls that may block run without the interpreter's lock.

mod buffer;
mod cache;
mod cut;
mod failure;
mod mapping;

use fastmap::coherence;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::io;

/// Truncates a file to length 0 (ftruncate(2)), also one that the engine has mapped, with pages that were stored to.
#[pyfunction]
fn truncate(py: Python<'_>, fd: i32) -> PyResult<()> {
    py.detach(|| {
        let file = coherence::file(fd);
        let resizing = file.as_ref().map(|file| file.resizing(0)).transpose().map_err(io::Error::from_raw_os_error)?;
        // SAFETY: no memory.
        let cut = unsafe { libc::ftruncate(fd, 0) };
        let failed = io::Error::last_os_error();
        if cut != 0 {
            return Err(failed.into());
        }
        if let Some(resizing) = resizing {
            // SAFETY: the length was set, and by a call that the caller asked for.
            unsafe { resizing.done() };
        }
        Ok(())
    })
}

/// Makes a call that changes the program's handler of SIGBUS, such as `faulthandler.enable`. The engine's handler stays before the new one.
#[pyfunction]
#[pyo3(signature = (call, *args, **kwargs))]
fn beneath<'py>(
    call: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    cut::beneath(|| call.call(args, kwargs))
}

/// Starts the thread that steers this process's file mappings.
#[pyfunction]
fn steer() {
    fastmap_steer::start_here();
}

/// One line of what steering has done so far.
#[pyfunction]
fn report() -> Option<String> {
    fastmap_steer::report()
}

/// Bytes of a size as people type it, such as `1.5GiB`.
#[pyfunction]
fn bytes_of(text: &str) -> PyResult<u64> {
    fastmap::size::bytes(text).map_err(PyValueError::new_err)
}

/// Bytes of a cache's capacity: a size, or a share of memory such as `50%`.
#[pyfunction]
fn capacity_of(text: &str) -> PyResult<u64> {
    fastmap::size::capacity(text).map_err(PyValueError::new_err)
}

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    cut::prepare();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<cache::Cache>()?;
    module.add_function(wrap_pyfunction!(truncate, module)?)?;
    module.add_function(wrap_pyfunction!(beneath, module)?)?;
    module.add_function(wrap_pyfunction!(steer, module)?)?;
    module.add_function(wrap_pyfunction!(report, module)?)?;
    module.add_function(wrap_pyfunction!(bytes_of, module)?)?;
    module.add_function(wrap_pyfunction!(capacity_of, module)?)?;
    module.add("Mapping", buffer::mapping_type(module.py())?)
}
