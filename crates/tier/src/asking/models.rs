//! Loom models of the slots: one slot, one or two asking threads, and a server. The models run the library's own code:
//! `make loom`.
//!
//! futex(2) is modelled as a mutex and a condition variable, so a missing wakeup leaves a thread asleep, which loom finds. No time passes: the
//! deadline 0 has passed from the start. Each wakeup can be left out ([`Omit`]), and then the models fail.

use super::*;
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use loom::thread;

/// The memory of the slots.
#[derive(Debug)]
pub struct Memory {
    head: Head,
    slots: [Slot; SLOTS],
}

impl Memory {
    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// No server is killed here.
pub struct RobustList;

impl RobustList {
    pub fn begin(_: &Head) -> Self {
        RobustList
    }
}

/// The models' kernel.
pub mod sys {
    use super::AtomicU32;
    use std::cell::Cell;
    use std::ptr;
    use std::time::Duration;

    loom::lazy_static! {
        static ref FUTEX: (loom::sync::Mutex<()>, loom::sync::Condvar) = Default::default();
    }

    loom::thread_local! {
        static NUMBER: u32 = NUMBERS.with(|last| last.replace(last.get() % 1000 + 1));
    }

    std::thread_local! {
        static NUMBERS: Cell<u32> = const { Cell::new(1) };
        /// Threads that sleep on this word are not woken. One value serves all threads of a model, which are one thread of the system.
        pub static DEAF: Cell<*const AtomicU32> = const { Cell::new(ptr::null()) };
    }

    pub fn wait(word: &AtomicU32, value: u32, _: Duration) {
        let (lock, woken) = &*FUTEX;
        let guard = lock.lock().unwrap();
        if word.load(super::Ordering::Relaxed) == value {
            drop(woken.wait(guard).unwrap());
        }
    }

    pub fn wake(word: &AtomicU32, _: i32) {
        let (lock, woken) = &*FUTEX;
        if DEAF.get() != ptr::from_ref(word) {
            // Wakes all: a thread that sleeps on another word looks at that again.
            drop(lock.lock().unwrap());
            woken.notify_all();
        }
    }

    pub fn now() -> u64 {
        0
    }

    pub fn thread() -> u32 {
        NUMBER.with(|number| *number)
    }

    pub fn is_dead(_: u32) -> bool {
        false
    }
}

/// A wakeup to leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Omit {
    Nothing,
    /// The server's, by an asking thread.
    Ring,
    /// The asking thread's, by the answer.
    Answer,
    /// The wakeup of a thread that found no slot, by the thread that gives one back.
    Free,
}

fn asking(omit: Omit) -> Arc<Asking> {
    let zero = || AtomicU32::new(0);
    let long = || AtomicU64::new(0);
    let head = Head {
        magic: long(),
        doorbell: zero(),
        freed: zero(),
        robust: long(),
        server: zero(),
        next: zero(),
        _unused: [long(), long(), long()],
        asked: [long()],
    };
    let slot = Slot {
        word: zero(),
        object: zero(),
        is_awaited: zero(),
        answer: zero(),
        start: long(),
        end: long(),
        until: long(),
        _unused: [long(), long(), long()],
    };
    let asking = Arc::new(Asking { memory: Memory { head, slots: [slot] } });
    sys::DEAF.set(match omit {
        Omit::Nothing => std::ptr::null(),
        Omit::Ring => &raw const asking.head().doorbell,
        Omit::Answer => &raw const asking.slots()[0].word,
        Omit::Free => &raw const asking.head().freed,
    });
    asking
}

/// A server in a thread of its own. It answers each request with the object's number as the error, and notes the numbers.
struct Server {
    asking: Arc<Asking>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<u32>>,
}

fn serve(asking: &Arc<Asking>) -> Server {
    let stop = Arc::new(AtomicBool::new(false));
    let (asking, stopped) = (asking.clone(), stop.clone());
    let serving = asking.clone();
    let thread = thread::spawn(move || {
        let mut seen = Vec::new();
        serving.serve(&stopped, |request| {
            seen.push(request.object);
            let number = request.object as i32;
            request.answer(Err(number));
        });
        seen
    });
    Server { asking, stop, thread }
}

impl Server {
    fn end(self) -> Vec<u32> {
        self.stop.store(true, Ordering::Release);
        self.asking.ring();
        self.thread.join().unwrap()
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn one_asks(omit: Omit) {
    explore(3, move || {
        let asking = asking(omit);
        let server = serve(&asking);
        assert_eq!(asking.bring(7, 0..1, None), Err(7));
        assert_eq!(server.end(), [7]);
    });
}

#[test]
fn whoever_asks_is_answered() {
    one_asks(Omit::Nothing);
}

#[test]
#[should_panic]
fn whoever_asks_rings() {
    one_asks(Omit::Ring);
}

#[test]
#[should_panic]
fn whoever_answers_wakes() {
    one_asks(Omit::Answer);
}

fn two_ask(omit: Omit) {
    explore(1, move || {
        let asking = asking(omit);
        let server = serve(&asking);
        let other = {
            let asking = asking.clone();
            thread::spawn(move || assert_eq!(asking.bring(8, 0..1, None), Err(8)))
        };
        assert_eq!(asking.bring(7, 0..1, None), Err(7));
        other.join().unwrap();
        let mut seen = server.end();
        seen.sort_unstable();
        assert_eq!(seen, [7, 8]);
    });
}

#[test]
fn whoever_finds_no_slot_gets_the_next() {
    two_ask(Omit::Nothing);
}

#[test]
#[should_panic]
fn whoever_gives_a_slot_back_wakes() {
    two_ask(Omit::Free);
}

#[test]
fn what_nobody_waits_for_is_seen_and_its_slot_given_back() {
    explore(2, || {
        let asking = asking(Omit::Nothing);
        let server = serve(&asking);
        asking.ask(6, 0..1);
        assert_eq!(asking.bring(7, 0..1, None), Err(7));
        assert_eq!(server.end(), [6, 7]);
    });
}

/// A thread whose deadline has passed may get the answer or not. Either way the next thread gets the slot, and never another's answer.
#[test]
fn whoever_gives_up_leaves_the_slot_to_others() {
    explore(2, || {
        let asking = asking(Omit::Nothing);
        let server = serve(&asking);
        let (at, word) = asking.claim(u64::MAX).unwrap();
        let asked = asking.put(at, word, 6, &(0..1), 0, true).unwrap();
        let answer = asking.wait(&asking.slots()[at], asked, 0);
        assert!(matches!(answer, Some(Err(6 | libc::ETIMEDOUT))), "{answer:?}");
        assert_eq!(asking.bring(7, 0..1, None), Err(7));
        assert!(matches!(server.end()[..], [7] | [6, 7]));
    });
}

#[test]
fn when_the_server_ends_nobody_waits_for_it() {
    explore(2, || {
        let asking = asking(Omit::Nothing);
        let server = serve(&asking);
        let other = {
            let asking = asking.clone();
            thread::spawn(move || asking.bring(7, 0..1, None))
        };
        let seen = server.end();
        let answer = other.join().unwrap();
        // The request came before the server ended, or after.
        assert!(answer == Err(7) && seen == [7] || answer == Err(libc::ESHUTDOWN), "{answer:?} {seen:?}");
    });
}
