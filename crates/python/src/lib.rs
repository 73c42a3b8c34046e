//! `fastmap._native`: what the Python package is made of, over the functions of `libfastmap.so`.
//!
//! `cache.rs` has the caches, `mapping.rs` the mappings, `buffer.rs` the buffer protocol of these, `cut.rs` what becomes of those whose file is cut. Arguments are checked in Python
//! (`python/fastmap`); what may block runs without the interpreter's lock.

mod buffer;
mod cache;
mod cut;
mod failure;
mod mapping;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    cut::prepare();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<cache::Cache>()?;
    module.add("Mapping", buffer::mapping_type(module.py())?)
}
