//! Starts a pool's readers (`pool/reader.rs`), and a thread for each. The thread serves devices that read inside the call. Where Linux AIO is
//! refused, other threads do the reads (`sys/preads.rs`). The work of a reader's turn is in `reads.rs`, and that for a stream in `window.rs`.

use crate::pool::ahead::Ahead;
use crate::pool::pool::Pool;
use crate::readahead::reads;
use crate::sys::aio::Aio;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{cpu, threads};
use std::io;
use std::sync::{Arc, Weak};

/// Readers, at most.
const MOST_READERS: usize = 4;

/// Makes the readers and starts the threads. Where that is not possible nothing is read ahead.
pub fn start(pool: Weak<Pool>, userfaultfd: &'static Userfaultfd) -> Option<Arc<Ahead>> {
    let failed = |error: &io::Error| tracing::warn!(%error, "nothing is read ahead in this cache");
    let contexts: Vec<_> = (0..cpu::count().min(MOST_READERS)).map(|_| Aio::open().ok()).collect();
    let ahead = Arc::new(Ahead::new(contexts, userfaultfd).inspect_err(failed).ok()?);
    for number in 0..ahead.readers.len() {
        let (of_thread, pool) = (ahead.clone(), pool.clone());
        let body = move || reads::run(&of_thread, number, &pool);
        let started = std::thread::Builder::new().name(format!("fastmap-read{number}")).spawn(threads::named(body));
        if started.inspect_err(failed).is_err() {
            // The threads that have been started see it, and end.
            ahead.stop();
            return None;
        }
    }
    Some(ahead)
}
