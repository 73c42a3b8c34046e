//! Calls that a file system may never answer (a network's, FUSE's). A thread for each file system makes them. Whoever asked goes on
//! without the answer, and the threads are never waited for.

use crate::clock::now;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A file system, by the two numbers of its device.
pub type Device = (u64, u64);

/// An answer is waited for so long. A file system that is well answers sooner.
const GRACE: Duration = Duration::from_millis(10);
/// A thread that has nothing to do ends after this time.
const IDLE: Duration = Duration::from_secs(2);
/// The most calls that wait for one file system. Further ones are given up.
const MOST: usize = 1024;

/// What a call will return.
#[derive(Debug)]
pub struct Asked<T> {
    answer: Receiver<T>,
    /// The answer is waited for until then.
    until: Duration,
}

/// The state of a call.
#[derive(Debug, PartialEq)]
pub enum Answer<T> {
    /// Its answer.
    Known(T),
    /// It has not returned yet.
    NotYet,
    /// It was given up, or its answer was taken already.
    Lost,
}

impl<T: Send + 'static> Asked<T> {
    /// Has `call`, which is about a file of `device`, made by that file system's thread.
    pub fn of(device: Device, call: impl FnOnce() -> T + Send + 'static) -> Asked<T> {
        let (sender, answer) = channel();
        // If nobody wants the answer any more, it is dropped by the same thread: closing a file may take for ever, too.
        let is_stuck = make(device, Box::new(move || drop(sender.send(call()))));
        Asked { answer, until: if is_stuck { Duration::ZERO } else { now() + GRACE } }
    }

    /// Has `call`, which is about the file at `path`, made by a thread for the files of its folder: only the file system itself could say
    /// which one it is.
    pub fn about(path: &Path, call: impl FnOnce() -> T + Send + 'static) -> Asked<T> {
        let mut folder = std::hash::DefaultHasher::new();
        path.parent().hash(&mut folder);
        // No device has such numbers.
        Asked::of((u64::MAX, folder.finish()), call)
    }

    /// Waits for the answer, until a few milliseconds after it was asked for. Later it only looks whether the answer is there.
    pub fn answer(&self) -> Answer<T> {
        self.answer_by(self.until)
    }

    /// Waits for the answer for so long.
    pub fn answer_within(&self, time: Duration) -> Answer<T> {
        self.answer_by(now() + time)
    }

    fn answer_by(&self, until: Duration) -> Answer<T> {
        match self.answer.recv_timeout(until.saturating_sub(now())) {
            Ok(answer) => Answer::Known(answer),
            Err(RecvTimeoutError::Timeout) => Answer::NotYet,
            Err(RecvTimeoutError::Disconnected) => Answer::Lost,
        }
    }
}

/// Closes a file of `device`, of which this is the last owner. FUSE's close(2) waits for the server, and not even SIGKILL ends that. So the
/// server is asked something before that it always has to answer, and that SIGKILL does end.
pub(crate) fn close_there(device: Device, file: Arc<File>) {
    make(
        device,
        Box::new(move || {
            let _ = rustix::fs::fstatfs(&file);
            drop(file);
        }),
    );
}

type Call = Box<dyn FnOnce() + Send>;

/// The way to the thread of one file system.
#[derive(Debug)]
struct Line {
    calls: Sender<Call>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the call that is being made began, in nanoseconds. 0: none is.
    since: AtomicU64,
    /// Calls that are not finished.
    count: AtomicUsize,
}

/// A value that each process makes for itself when it first needs it. A child of fork(2) has none of its parent's threads, and a lock that
/// one of them held stays locked in it. So it begins anew, and its copy of the old value is left as it is.
pub(super) struct OfProcess<T>(AtomicPtr<(u32, T)>);

impl<T: Default> OfProcess<T> {
    pub(super) const fn new() -> OfProcess<T> {
        OfProcess(AtomicPtr::new(null_mut()))
    }

    pub(super) fn get(&'static self) -> &'static T {
        let own = std::process::id();
        loop {
            let found = self.0.load(Ordering::Acquire);
            // SAFETY: null, or a box that was leaked below.
            if let Some((_, value)) = unsafe { found.as_ref() }.filter(|(pid, _)| *pid == own) {
                return value;
            }
            let new = Box::into_raw(Box::new((own, T::default())));
            if self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made just now, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

type Lines = Mutex<BTreeMap<Device, Line>>;

fn lock(lines: &Lines) -> MutexGuard<'_, BTreeMap<Device, Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

static LINES: OfProcess<Lines> = OfProcess::new();

/// Gives a call to the thread of its file system, and starts the thread if there is none. Returns whether the file system does not seem
/// to answer. A call that cannot be made is dropped.
fn make(device: Device, call: Call) -> bool {
    let all = LINES.get();
    let mut lines = lock(all);
    let Line { calls, state } = match lines.entry(device) {
        Entry::Occupied(line) => line.into_mut(),
        Entry::Vacant(line) => {
            let (calls, to_make) = channel();
            let state = Arc::new(State::default());
            let own = Arc::clone(&state);
            let body = move || serve(all, device, &to_make, &own);
            let thread = std::thread::Builder::new().name("fastmap-files".into()).stack_size(256 << 10);
            if thread.spawn(body).is_err() {
                return false;
            }
            line.insert(Line { calls, state })
        }
    };
    let since = Duration::from_nanos(state.since.load(Ordering::Relaxed));
    let is_stuck = !since.is_zero() && now().saturating_sub(since) > GRACE;
    if state.count.load(Ordering::Relaxed) < MOST {
        state.count.fetch_add(1, Ordering::Relaxed);
        // The thread takes its line away before it ends, under the same lock.
        let _ = calls.send(call);
    }
    is_stuck
}

/// The body of a thread.
fn serve(all: &Lines, device: Device, calls: &Receiver<Call>, state: &State) {
    block_signals();
    loop {
        let call = match calls.recv_timeout(IDLE) {
            Ok(call) => call,
            Err(_) => {
                let mut lines = lock(all);
                // One may have come just now.
                let Ok(call) = calls.try_recv() else {
                    lines.remove(&device);
                    return;
                };
                call
            }
        };
        state.since.store(now().as_nanos() as u64, Ordering::Relaxed);
        call();
        state.since.store(0, Ordering::Relaxed);
        state.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A signal that comes to a thread that hangs would be handled by nobody.
fn block_signals() {
    // SAFETY: an all-zero set is valid, and both calls get sets of this function's.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Devices that no file of a test is on.
    const HUNG: Device = (9999, 1);
    const WELL: Device = (9999, 2);

    #[test]
    fn one_that_hangs_holds_up_nobody_else() {
        let (goes_on, stop) = channel::<()>();
        let hung = Asked::of(HUNG, move || stop.recv().is_err());
        let behind = Asked::of(HUNG, || 7);
        assert_eq!(hung.answer(), Answer::NotYet);
        assert_eq!(Asked::of(WELL, || 8).answer_within(Duration::from_secs(60)), Answer::Known(8));
        std::thread::sleep(GRACE * 2);
        // By now it is known not to answer: of so many, none is waited for.
        let began = Instant::now();
        let all: Vec<_> = (0..2000).map(|number| Asked::of(HUNG, move || number)).collect();
        let states: Vec<_> = all.iter().map(Asked::answer).collect();
        assert!(began.elapsed() < GRACE * 2000 / 2, "{:?}", began.elapsed());
        assert!(states.iter().all(|state| matches!(state, Answer::NotYet | Answer::Lost)));
        assert_eq!((&states[0], &states[1999]), (&Answer::NotYet, &Answer::Lost));
        drop(goes_on);
        assert_eq!(hung.answer_within(Duration::from_secs(60)), Answer::Known(true));
        assert_eq!(behind.answer_within(Duration::from_secs(60)), Answer::Known(7));
    }

    #[test]
    fn an_idle_thread_ends_and_another_is_started() {
        const DEVICE: Device = (9999, 3);
        let name = || std::thread::current().id();
        let first = Asked::of(DEVICE, name).answer_within(Duration::from_secs(60));
        while lock(LINES.get()).contains_key(&DEVICE) {
            std::thread::sleep(IDLE / 10);
        }
        let second = Asked::of(DEVICE, name).answer_within(Duration::from_secs(60));
        assert!(matches!((&first, &second), (Answer::Known(one), Answer::Known(other)) if one != other));
    }

    #[test]
    fn an_answer_that_nobody_wants_is_dropped_by_the_thread() {
        struct Tells(Sender<std::thread::ThreadId>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let (sender, dropped) = channel();
        drop(Asked::of(WELL, move || {
            std::thread::sleep(GRACE);
            Tells(sender)
        }));
        assert_ne!(dropped.recv().unwrap(), std::thread::current().id());
    }
}
