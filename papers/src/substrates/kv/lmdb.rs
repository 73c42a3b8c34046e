//! LMDB (Chu), as it is: writes go through its map (MDB_WRITEMAP), each put is a transaction, and none is synced
//! (MDB_NOSYNC) until the flush; MDB_NORDAHEAD is its word for `MADV_RANDOM`. lmdb.h says what the calls do.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use lmdb_master_sys as ffi;

use super::Store;
use crate::substrates::{Error, Result};

/// An environment with one database in it.
pub struct Lmdb {
    env: *mut ffi::MDB_env,
    dbi: ffi::MDB_dbi,
}

// SAFETY: an environment and a database may be used by any threads; transactions stay with the thread that began them.
unsafe impl Send for Lmdb {}
// SAFETY: likewise.
unsafe impl Sync for Lmdb {}

impl Lmdb {
    /// Opens the environment in a directory, or makes it, with a map of so many bytes.
    pub fn open(path: &Path, mapped: u64, random: bool) -> Result<Lmdb> {
        let mut flags = ffi::MDB_WRITEMAP | ffi::MDB_NOSYNC;
        if random {
            flags |= ffi::MDB_NORDAHEAD;
        }
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| refused("a path with a zero byte"))?;
        let mut env = ptr::null_mut();
        // SAFETY: room for the handle.
        done(unsafe { ffi::mdb_env_create(&mut env) })?;
        let mut lmdb = Lmdb { env, dbi: 0 };
        // SAFETY: a fresh environment; a C string.
        unsafe {
            done(ffi::mdb_env_set_mapsize(env, mapped as usize))?;
            done(ffi::mdb_env_set_maxreaders(env, 1100))?;
            done(ffi::mdb_env_open(env, name.as_ptr(), flags, 0o600))?;
        }
        let txn = lmdb.begin(0)?;
        // SAFETY: a live transaction; the unnamed database.
        done(unsafe { ffi::mdb_dbi_open(txn.0, ptr::null(), 0, &mut lmdb.dbi) })?;
        txn.commit()?;
        Ok(lmdb)
    }

    fn begin(&self, flags: u32) -> Result<Txn> {
        let mut txn = ptr::null_mut();
        // SAFETY: an open environment, room for the handle.
        done(unsafe { ffi::mdb_txn_begin(self.env, ptr::null_mut(), flags, &mut txn) })?;
        Ok(Txn(txn))
    }

    /// A key's value, which stays as it is until the transaction writes or ends.
    fn get<'a>(&self, txn: &'a Txn, key: &[u8]) -> Result<Option<&'a [u8]>> {
        let (mut key, mut data) = (val(key), val(&[]));
        // SAFETY: a live transaction, a key that outlives the call.
        match unsafe { ffi::mdb_get(txn.0, self.dbi, &mut key, &mut data) } {
            ffi::MDB_NOTFOUND => Ok(None),
            // SAFETY: LMDB's bytes, valid as said above.
            code => done(code).map(|()| Some(unsafe { bytes(&data) })),
        }
    }

    fn put(&self, txn: &mut Txn, key: &[u8], value: &[u8]) -> Result<()> {
        let (mut key, mut data) = (val(key), val(value));
        // SAFETY: a live transaction for writing; both outlive the call.
        done(unsafe { ffi::mdb_put(txn.0, self.dbi, &mut key, &mut data, 0) })
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        // SAFETY: no transaction is left, since each is used within a call.
        unsafe { ffi::mdb_env_close(self.env) }
    }
}

impl Store for Lmdb {
    fn read(&self, key: &[u8], with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let txn = self.begin(ffi::MDB_RDONLY)?;
        Ok(self.get(&txn, key)?.map(with).is_some())
    }

    fn write(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut txn = self.begin(0)?;
        self.put(&mut txn, key, value)?;
        txn.commit()
    }

    fn modify(&self, key: &[u8], with: &mut dyn FnMut(&mut [u8])) -> Result<bool> {
        let mut txn = self.begin(0)?;
        let Some(mut value) = self.get(&txn, key)?.map(<[u8]>::to_vec) else { return Ok(false) };
        with(&mut value);
        self.put(&mut txn, key, &value)?;
        txn.commit().map(|()| true)
    }

    fn scan(&self, from: &[u8], with: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let txn = self.begin(ffi::MDB_RDONLY)?;
        let cursor = Cursor::of(&txn, self.dbi)?;
        let (mut key, mut data) = (val(from), val(&[]));
        // An empty key cannot be looked for.
        let mut operation = if from.is_empty() { ffi::MDB_FIRST } else { ffi::MDB_SET_RANGE };
        loop {
            // SAFETY: a live cursor; the key outlives the call.
            match unsafe { ffi::mdb_cursor_get(cursor.0, &mut key, &mut data, operation) } {
                ffi::MDB_NOTFOUND => return Ok(()),
                code => done(code)?,
            }
            // SAFETY: LMDB's bytes, valid until the transaction ends.
            if !with(unsafe { bytes(&key) }, unsafe { bytes(&data) }) {
                return Ok(());
            }
            operation = ffi::MDB_NEXT;
        }
    }

    fn flush(&mut self) -> Result<()> {
        // SAFETY: an open environment.
        done(unsafe { ffi::mdb_env_sync(self.env, 1) })
    }
}

/// A transaction; one that is not committed is aborted.
struct Txn(*mut ffi::MDB_txn);

impl Txn {
    fn commit(self) -> Result<()> {
        let txn = self.0;
        std::mem::forget(self);
        // SAFETY: a live transaction, gone after the call whatever it answers.
        done(unsafe { ffi::mdb_txn_commit(txn) })
    }
}

impl Drop for Txn {
    fn drop(&mut self) {
        // SAFETY: a live transaction.
        unsafe { ffi::mdb_txn_abort(self.0) }
    }
}

/// A cursor, which ends before its transaction.
struct Cursor<'a>(*mut ffi::MDB_cursor, std::marker::PhantomData<&'a Txn>);

impl<'a> Cursor<'a> {
    fn of(txn: &'a Txn, dbi: ffi::MDB_dbi) -> Result<Cursor<'a>> {
        let mut cursor = ptr::null_mut();
        // SAFETY: a live transaction, room for the handle.
        done(unsafe { ffi::mdb_cursor_open(txn.0, dbi, &mut cursor) })?;
        Ok(Cursor(cursor, std::marker::PhantomData))
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: a live cursor.
        unsafe { ffi::mdb_cursor_close(self.0) }
    }
}

fn val(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}

/// # Safety
///
/// LMDB filled it in, and its bytes are still valid.
unsafe fn bytes<'a>(val: &ffi::MDB_val) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(val.mv_data.cast(), val.mv_size) }
}

fn done(code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: a C string that stays.
    let why = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Err(refused(&why.to_string_lossy()))
}

fn refused(why: &str) -> Error {
    let remedy = "give another --dir, or leave lmdb out of --stores";
    Error::Refused { thing: "LMDB".to_owned(), what: why.to_owned(), remedy }
}
