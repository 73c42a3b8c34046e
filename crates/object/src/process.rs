//! The parts that a process has once, from its first object on until it ends: the runtime, the client, the slots and the thread that serves
//! them.

use crate::client::Client;
use crate::error::{Error, Result};
use crate::serve::{Permits, Server};
use fastmap_tier::{Asking, Tier};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// Threads of the runtime. They copy, take checksums and write to the page cache. While the disk makes them wait, nothing is received either.
const THREADS: usize = 4;

pub(crate) struct Process {
    pid: u32,
    runtime: tokio::runtime::Runtime,
    pub client: Client,
    pub permits: Arc<Permits>,
    pub server: Arc<Server>,
    tier: Mutex<Weak<Tier>>,
}

/// Never freed: other threads may wait for its threads at any time, until the process ends.
static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

impl Process {
    /// This process's, made by the first call. A child made by fork(2) has none of its parent's threads, so it makes its own when it opens an
    /// object itself.
    pub fn get() -> Result<&'static Process> {
        let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        if let Some(process) = process.filter(|process| process.pid == pid) {
            return Ok(process);
        }
        let started: &'static Process = Box::leak(Box::new(without_signals(|| Process::start(pid))?));
        *process = Some(started);
        Ok(started)
    }

    fn start(pid: u32) -> Result<Process> {
        let failed = |operation| move |source| Error::Io { operation, source };
        let asking = Asking::anonymous().map_err(failed("get memory for requests"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(2 * THREADS)
            .thread_name("fastmap-fetch")
            .on_thread_start(|| _ = without_signals_from_now_on())
            .enable_all()
            .build()
            .map_err(failed("start the threads that fetch objects"))?;
        let client = Client::new()
            .map_err(|why| Error::Io { operation: "set up an HTTP client", source: io::Error::other(why) })?;
        let handle = runtime.handle().clone();
        let server = Arc::new(Server { asking, objects: RwLock::new(HashMap::new()), runtime: handle });
        let serving = server.clone();
        std::thread::Builder::new()
            .name("fastmap-serve".to_owned())
            .spawn(move || serving.run(&AtomicBool::new(false)))
            .map_err(failed("start the thread that serves objects"))?;
        Ok(Process { pid, runtime, client, permits: Arc::new(Permits::new()), server, tier: Mutex::new(Weak::new()) })
    }

    /// The default folder of local copies.
    pub fn tier(&self) -> Result<Arc<Tier>> {
        let mut tier = self.tier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tier) = tier.upgrade() {
            return Ok(tier);
        }
        let opened = Tier::open(None, None)?;
        *tier = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// Runs `work` in the runtime and waits for its result. The runtime is not entered here, since the caller may be a thread of another
    /// runtime.
    pub fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move { drop(done.send(work.await)) });
        let ended = || Error::Io { operation: "open an object", source: io::Error::other("its thread has panicked") };
        result.recv().map_err(|_| ended())
    }
}

/// Blocks all signals in this thread: the program's own threads handle them. Returns the mask from before.
fn without_signals_from_now_on() -> libc::sigset_t {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours, the first filled by sigfillset(3), the second by pthread_sigmask(3), which cannot fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Runs `start` with all signals blocked, so that the threads which it starts have them blocked, too.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let before = without_signals_from_now_on();
    let result = start();
    // SAFETY: the set is one that the kernel gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    result
}
