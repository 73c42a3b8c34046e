//! The start of a pool's readers: threads that read ahead, for streams and on request.
//!
//! Each serves the streams whose number is its own modulo their count, and has an io_uring of its own; where there is
//! none, or the store is not to be read so, it reads with pread(2), and there are more of them. What other threads
//! reach of them is in `pool/ahead.rs`; what one does is in `reader.rs`, and how it goes on with a stream in
//! `window.rs`.

use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::readahead::reader::Reader;
use crate::sys::uring::Ring;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{cpu, threads};
use std::io;
use std::sync::{Arc, Weak};

/// Readers with rings, at most.
const MOST_READERS: usize = 4;
/// Readers without: each has one read under way.
const READERS_WITHOUT_RINGS: usize = 16;

/// Starts the threads. Where that is not possible nothing is read ahead.
pub fn start(pool: Weak<Pool>, userfaultfd: &'static Userfaultfd) -> Option<Arc<Ahead>> {
    // Only to see whether it works: each thread opens its own.
    let rings = Ring::try_out(Ring::open_for_this_thread).is_ok();
    let count = if rings { cpu::count().min(MOST_READERS) } else { READERS_WITHOUT_RINGS };
    let failed = |error: &io::Error| tracing::warn!(%error, "nothing is read ahead in this cache");
    let ahead = Arc::new(Ahead::new(count, userfaultfd).inspect_err(failed).ok()?);
    for number in 0..count {
        let started = Reader::buffers().and_then(|buffers| {
            let (pool, ahead) = (pool.clone(), ahead.clone());
            let body = move || {
                let ring = if rings { Ring::open_for_this_thread().ok() } else { None };
                Reader::new(ahead, number, buffers, ring).run(&pool);
            };
            std::thread::Builder::new().name(format!("fastmap-read{number}")).spawn(threads::named(body))
        });
        if started.inspect_err(failed).is_err() {
            // Those already started see it.
            ahead.stop();
            return None;
        }
    }
    Some(ahead)
}
