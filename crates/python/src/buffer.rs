//! The buffer protocol of mappings.
//!
//! CPython's stable ABI, and PyO3 with it, has the protocol from 3.11 on only. Its symbols and type slots have been there for longer. So this
//! file makes the class that Python sees: a subclass of PyO3's, with the two slots.

use crate::mapping::Mapping;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use std::ffi::{c_int, c_void};

/// From CPython's `typeslots.h`.
const BF_GETBUFFER: c_int = 1;
const BF_RELEASEBUFFER: c_int = 2;

unsafe extern "C" {
    /// `view` is a `Py_buffer`, which only the interpreter looks into.
    fn PyBuffer_FillInfo(
        view: *mut c_void,
        exporter: *mut PyObject,
        memory: *mut c_void,
        len: ffi::Py_ssize_t,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
}

fn with<T>(object: *mut PyObject, run: impl FnOnce(&Mapping) -> PyResult<T>) -> PyResult<T> {
    // SAFETY: the interpreter calls a slot with its lock held, if it has one, and with an object of the type.
    Python::attach(|py| run(unsafe { Bound::from_borrowed_ptr(py, object) }.cast::<Mapping>()?.get()))
}

unsafe extern "C" fn get_buffer(object: *mut PyObject, view: *mut c_void, flags: c_int) -> c_int {
    let given = with(object, |mapping| {
        let bytes = mapping.lend()?;
        // SAFETY: the interpreter's view; the bytes stay until it is released.
        let result = unsafe {
            PyBuffer_FillInfo(view, object, bytes.at as *mut _, bytes.len as _, (!bytes.is_writable).into(), flags)
        };
        if result < 0 {
            mapping.give_back();
        }
        Ok(result)
    });
    given.unwrap_or_else(|error| {
        Python::attach(|py| error.restore(py));
        -1
    })
}

unsafe extern "C" fn release_buffer(object: *mut PyObject, _view: *mut c_void) {
    // The object is a mapping, or it would not have been lent.
    let _ = with(object, |mapping| {
        mapping.give_back();
        Ok(())
    });
}

/// `fastmap.Mapping`.
pub fn mapping_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let mut slots = [
        ffi::PyType_Slot { slot: BF_GETBUFFER, pfunc: get_buffer as *mut c_void },
        ffi::PyType_Slot { slot: BF_RELEASEBUFFER, pfunc: release_buffer as *mut c_void },
        ffi::PyType_Slot { slot: ffi::Py_tp_doc, pfunc: crate::mapping::DOC.as_ptr() as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"fastmap.Mapping".as_ptr(),
        basicsize: 0,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = pyo3::types::PyTuple::new(py, [py.get_type::<Mapping>()])?;
    // SAFETY: the type copies what the spec points to, but for its name, which is static.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&raw mut spec, bases.as_ptr())) }
}
