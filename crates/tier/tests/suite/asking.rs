//! Those who ask get an answer, whatever becomes of the others.

use crate::common::*;
use fastmap_tier::{Asking, Request};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Serves in this process until dropped.
struct Server {
    asking: Arc<Asking>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn serve(asking: &Arc<Asking>, each: impl FnMut(Request) + Send + 'static) -> Server {
    let stop = Arc::new(AtomicBool::new(false));
    let [to_serve, to_stop] = [asking, asking].map(Arc::clone);
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || to_serve.serve(&stopped, each));
    Server { asking: to_stop, stop, thread: Some(thread) }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.asking.ring();
        self.thread.take().unwrap().join().unwrap();
    }
}

const SOON: Duration = Duration::from_millis(300);

#[test]
fn a_request_says_what_is_asked_and_is_answered() {
    let asking = Asking::anonymous().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let server = serve(&asking, move |request| {
        let left = request.deadline.map(|left| left.as_secs());
        noted.lock().unwrap().push((request.object, request.range.clone(), left, request.is_awaited));
        match request.object {
            0 => request.answer(Ok(())),
            1 => request.answer(Err(libc::ESTALE)),
            _ => drop(request),
        }
    });
    let before = allocations();
    let answers = [0, 1, 2].map(|object| asking.bring(object, 5..(1 << 50), Some(Duration::from_millis(99_900))));
    asking.ask(3, 0..1);
    assert_eq!(allocations(), before);
    assert_eq!(answers, [Ok(()), Err(libc::ESTALE), Err(libc::EIO)]);
    assert_eq!(asking.bring(0, 1..2, None), Ok(()));
    until("all were served", || asked.lock().unwrap().len() == 5);
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked[0], (0, 5..1 << 50, Some(99), true));
    assert!(asked.contains(&(3, 0..1, None, false)) && asked.contains(&(0, 1..2, None, true)));
    drop(server);
    assert_eq!(asking.bring(0, 1..2, None), Err(libc::ESHUTDOWN));
    // Another takes over.
    let _server = serve(&asking, |request| request.answer(Ok(())));
    until("it serves", || asking.bring(0, 1..2, None) == Ok(()));
}

#[test]
fn many_threads_ask_at_once() {
    let asking = Asking::anonymous().unwrap();
    let (send, receive) = std::sync::mpsc::channel::<Request>();
    let receive = Arc::new(Mutex::new(receive));
    let answering: Vec<_> = (0..4)
        .map(|_| {
            let receive = receive.clone();
            std::thread::spawn(move || {
                while let Ok(request) = { receive.lock().unwrap().recv() } {
                    let answer = if request.range.start % 3 == 0 { Ok(()) } else { Err(request.range.start as i32) };
                    request.answer(answer);
                }
            })
        })
        .collect();
    let server = serve(&asking, move |request| send.send(request).unwrap());
    let begun = Instant::now();
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..150_u64 {
            let (asking, count) = (&asking, &count);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                while begun.elapsed() < under_load() {
                    let start = 1 + random.below_u64(1 << 20);
                    let expected = if start.is_multiple_of(3) { Ok(()) } else { Err(start as i32) };
                    assert_eq!(asking.bring(thread as u32, start..start + 1, None), expected);
                    count.fetch_add(1, Ordering::Relaxed);
                    asking.ask(7, 3..4);
                }
            });
        }
    });
    println!("{} a second", count.into_inner() as f64 / begun.elapsed().as_secs_f64());
    drop(server);
    answering.into_iter().for_each(|thread| thread.join().unwrap());
}

/// How many slots there are.
const SLOTS: usize = 4096;

/// How many of them nobody has. There must be no server.
fn free_slots(asking: &Arc<Asking>) -> usize {
    const OURS: u32 = u32::MAX;
    // The last ones find none.
    (0..2 * SLOTS).for_each(|_| asking.ask(OURS, 0..1));
    let taken = Arc::new(AtomicU64::new(0));
    let counted = taken.clone();
    let server = serve(asking, move |request| {
        counted.fetch_add(u64::from(request.object == OURS), Ordering::Relaxed);
        request.answer(Ok(()));
    });
    // What was asked for before it is taken before it, or together with it.
    until("it serves", || asking.bring(0, 0..1, None) == Ok(()));
    drop(server);
    taken.load(Ordering::Relaxed) as usize
}

#[test]
fn all_rows_of_a_gather_are_asked_for_before_the_first_is_fetched() {
    let asking = Asking::anonymous().unwrap();
    let rows = 0..SLOTS as u64;
    rows.clone().for_each(|row| asking.ask(1, row..row + 1));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let _server = serve(&asking, move |request| noted.lock().unwrap().push(request.range.start));
    until("all are taken", || asked.lock().unwrap().len() == SLOTS);
    let mut asked = asked.lock().unwrap().clone();
    asked.sort_unstable();
    assert!(asked.into_iter().eq(rows));
}

#[test]
fn whoever_finds_no_slot_waits_for_one() {
    let asking = Asking::anonymous().unwrap();
    assert_eq!(free_slots(&asking), SLOTS);
    (0..SLOTS).for_each(|_| asking.ask(1, 0..1));
    let begun = Instant::now();
    let before = allocations();
    assert_eq!(asking.bring(2, 0..1, Some(SOON)), Err(libc::ESHUTDOWN));
    assert_eq!(allocations(), before);
    let asking = Asking::anonymous().unwrap();
    (0..SLOTS).for_each(|_| asking.ask(1, 0..1));
    assert_eq!(asking.bring(2, 0..1, Some(SOON)), Err(libc::ETIMEDOUT));
    assert!(begun.elapsed() >= SOON);
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(|| asking.bring(3, 0..1, None))).collect();
        std::thread::sleep(SOON);
        let _server = serve(&asking, |request| request.answer(Ok(())));
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Ok(())));
    });
}

#[test]
fn deadlines_pass() {
    let asking = Asking::anonymous().unwrap();
    let begun = Instant::now();
    // Nobody serves yet.
    assert_eq!(asking.bring(0, 0..1, Some(SOON)), Err(libc::ETIMEDOUT));
    assert!(begun.elapsed() >= SOON && begun.elapsed() < 10 * SOON);
    // The server has it, and says nothing: it may for a little longer.
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let server = serve(&asking, move |request| keep.lock().unwrap().push(request));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..64).map(|_| scope.spawn(|| asking.bring(0, 0..1, Some(SOON)))).collect();
        let before = allocations();
        asking.ask(0, 0..1);
        assert_eq!(allocations(), before);
        for one in waiting {
            assert_eq!(one.join().unwrap(), Err(libc::ETIMEDOUT));
        }
    });
    assert!(begun.elapsed() >= SOON + Duration::from_millis(900));
    assert_eq!(held.lock().unwrap().len(), 65);
    drop(server);
    // Abandoned slots are free when the server is done with them.
    assert_eq!(free_slots(&asking), SLOTS - 64);
    held.lock().unwrap().drain(..).for_each(|request| request.answer(Ok(())));
    assert_eq!(free_slots(&asking), SLOTS);
}

#[test]
fn when_the_server_ends_all_learn_it() {
    let asking = Asking::anonymous().unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let server = serve(&asking, move |request| keep.lock().unwrap().push(request));
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..100).map(|_| scope.spawn(|| asking.bring(0, 0..1, None))).collect();
        until("all are taken", || held.lock().unwrap().len() == 100);
        let begun = Instant::now();
        drop(server);
        for one in waiting {
            assert_eq!(one.join().unwrap(), Err(libc::ESHUTDOWN));
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
    // Too late.
    held.lock().unwrap().clear();
}

const OTHERS: &str = "asking::other_processes_ask";

/// What the children do with the slots in a folder.
fn in_child(role: &str, folder: &Path) {
    match role {
        "serve" => {
            let asking = Asking::create(&folder.join("slots")).unwrap();
            let mut held = Vec::new();
            asking.serve(&AtomicBool::new(false), |request| match request.object {
                0 => request.answer(Ok(())),
                _ => held.push(request),
            });
        }
        _ => {
            let asking = Asking::open(&folder.join("slots")).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..80 {
                    let asking = &asking;
                    scope.spawn(move || {
                        assert_eq!(asking.bring(0, 0..1, None), Ok(()));
                        if role == "hang" {
                            std::fs::write(folder.join(format!("hangs-{thread}")), "").unwrap();
                            assert_eq!(asking.bring(1, 0..1, None), Ok(()));
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn other_processes_ask() {
    if let Some((role, on)) = role() {
        return in_child(&role, &on);
    }
    let folder = folder();
    let path = folder.path().join("slots");
    assert!(Asking::open(&path).is_err());
    std::fs::write(&path, "something else").unwrap();
    assert!(Asking::open(&path).is_err() && Asking::create(&path).is_err());
    std::fs::remove_file(&path).unwrap();
    let mut server = child(OTHERS, "serve", folder.path());
    until("there are slots", || Asking::open(&path).is_ok());
    child(OTHERS, "ask", folder.path()).succeeds();
    let asking = Asking::open(&path).unwrap();
    assert_eq!(asking.bring(0, 0..1, None), Ok(()));
    // One that holds some slots dies.
    let mut hanging = child(OTHERS, "hang", folder.path());
    until("it hangs", || (0..80).all(|thread| folder.path().join(format!("hangs-{thread}")).exists()));
    std::thread::sleep(SOON);
    // Not reaped: it is as good as dead.
    hanging.0.kill().unwrap();
    std::thread::sleep(2 * SOON);
    assert_eq!(asking.bring(0, 0..1, Some(Duration::from_secs(30))), Ok(()));
    // The server dies.
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..80).map(|_| scope.spawn(|| asking.bring(1, 0..1, None))).collect();
        std::thread::sleep(SOON);
        let begun = Instant::now();
        server.0.kill().unwrap();
        for one in waiting {
            assert_eq!(one.join().unwrap(), Err(libc::ESHUTDOWN));
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
    server.kill();
    assert_eq!(asking.bring(0, 0..1, None), Err(libc::ESHUTDOWN));
    // All that those held is free; the first to serve would be given what is not.
    assert_eq!(free_slots(&asking), SLOTS);
    hanging.kill();
}

#[test]
fn a_child_made_by_fork_asks_its_parents_server() {
    let asking = Asking::anonymous().unwrap();
    let _server = serve(&asking, |request| {
        let number = request.object as i32;
        request.answer(Err(number));
    });
    until("it serves", || asking.bring(7, 0..1, None) == Err(7));
    // SAFETY: the child makes system calls alone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answer = asking.bring(42, 0..1, Some(Duration::from_secs(60)));
        // SAFETY: ends the child.
        unsafe { libc::_exit(answer.err().unwrap_or(0)) };
    }
    let mut status = 0;
    // SAFETY: this process's child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 42));
}
