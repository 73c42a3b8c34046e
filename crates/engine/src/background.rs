//! The cache's own threads: asleep until there is something to do that nobody should wait for.

use crate::cache::Inner;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::futex;
use crate::sys::signal::Blocked;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One thread that runs a round of work whenever it is woken. It takes no signals and does not keep its cache alive.
#[derive(Debug)]
pub struct Background(Arc<Control>);

#[derive(Debug)]
struct Control {
    calls: AtomicU32,
    stop: AtomicBool,
}

impl Background {
    /// Starts the thread. `round` returns how long to sleep at most before the next one. `None` where no thread can be
    /// started: all its work is also done by the threads that need it.
    pub fn start(name: &str, cache: Weak<Inner>, round: fn(&Inner) -> Option<Duration>) -> Option<Self> {
        let control = Arc::new(Control { calls: AtomicU32::new(0), stop: AtomicBool::new(false) });
        let shared = control.clone();
        let body = move || {
            let _blocked = Blocked::all();
            let mut seen = 0;
            while !shared.stop.load(Ordering::Acquire) {
                let pause = match cache.upgrade() {
                    Some(cache) => round(&cache),
                    None => return,
                };
                futex::wait(&shared.calls, seen, pause);
                seen = shared.calls.load(Ordering::Acquire);
            }
        };
        match std::thread::Builder::new().name(name.into()).spawn(body) {
            Ok(_) => Some(Background(control)),
            Err(error) => {
                tracing::warn!(%error, name, "no background thread: the threads that load and store do its work");
                None
            }
        }
    }

    /// Has the thread run a round, or one more if it is running.
    pub fn wake(&self) {
        self.0.calls.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.0.calls, 1);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }
}
