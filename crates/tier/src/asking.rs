//! Who fetches: slots in shared memory.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The slots in which programs ask for parts of objects, in memory that they share with the server.
#[derive(Debug)]
pub struct Asking {}

impl Asking {
    /// Slots for this process, and for its children by fork(2).
    pub fn anonymous() -> io::Result<Arc<Asking>> {
        todo!()
    }

    /// Slots for processes that [`open`](Self::open) the file, which must not be there yet.
    pub fn create(path: &Path) -> io::Result<Arc<Asking>> {
        let _ = path;
        todo!()
    }

    /// The slots that another process has made.
    pub fn open(path: &Path) -> io::Result<Arc<Asking>> {
        let _ = path;
        todo!()
    }

    /// Asks for a range of an object, and waits for the answer. For fault handlers.
    pub fn bring(&self, object: u32, range: Range<u64>, deadline: Option<Duration>) -> Result<(), i32> {
        let _ = (object, range, deadline);
        todo!()
    }

    /// Asks for a range of an object, and does not wait; nobody is asked when all slots are taken. For fault handlers.
    pub fn ask(&self, object: u32, range: Range<u64>) {
        let _ = (object, range);
        todo!()
    }

    /// Serves requests until `stop` is set, which is noticed within 200 ms, or at once after [`ring`](Self::ring). Then all who ask get
    /// `ESHUTDOWN`.
    pub fn serve(self: &Arc<Self>, stop: &AtomicBool, each: impl FnMut(Request)) {
        let _ = (stop, each);
        todo!()
    }

    /// Has the server look whether it is to stop.
    pub fn ring(&self) {
        todo!()
    }
}

/// A request that somebody waits for, or not. Dropped without an answer it is answered with `EIO`.
#[derive(Debug)]
pub struct Request {
    /// The object's number, which means what both sides agreed on.
    pub object: u32,
    /// The bytes that are to be there.
    pub range: Range<u64>,
    /// How long the one who asks still waits; `None`: for ever.
    pub deadline: Option<Duration>,
    /// Whether anybody waits.
    pub is_awaited: bool,
}

impl Request {
    /// The bytes are there, or an error number: see [`TierOrigin`](crate::TierOrigin).
    pub fn answer(self, result: Result<(), i32>) {
        let _ = result;
        todo!()
    }
}
