//! Placement for maps that are made through this crate or the C library, in programs whose other calls nobody sees.
//!
//! All maps of a file in a process are placed alike, or they would not agree: one that is asked for by name (a cache, a flag) takes what
//! the kernel has of its file along to the engine, or is the kernel's with it. So mapping is exclusive: `enter` for maps that begin as the
//! kernel's, `enter_named` for those that are to be the engine's.

use super::asked::What;
use super::watch::{self, Face, SMALL, Then};
use super::{act, known};
use crate::by_address::{self, Passing, Still};
use crate::map::cache::Cache;
use crate::map::placed::{self, Entry};
use crate::store::one_writer;
use crate::sys::{PAGE, file, fork};
use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Held while a file is mapped: its placement stays what it was found to be.
#[must_use]
#[derive(Debug)]
pub struct Entered {
    // In this order: who waits for the others is not inside the gate.
    _passing: Passing,
    _still: Option<Still>,
    _entry: Entry,
}

/// Before a file is mapped that may begin as the kernel's. What a program that was killed had stored is in the file then.
pub fn enter(fd: BorrowedFd<'_>) -> Entered {
    if !fork::is_child() {
        with_file(fd, |from| file::facts(from).is_ok().then(|| one_writer::wait_for_keeper(from)));
    }
    let entry = placed::enter(true);
    Entered { _passing: by_address::pass(), _still: None, _entry: entry }
}

/// Before a file is mapped by [`by_address::map`] because the program asked for the engine: what the kernel has of it, and placement looks
/// after, is made the engine's, in `cache`, for good. Where that cannot be, it is the kernel's for good, and so will the new map be.
pub fn enter_named(fd: BorrowedFd<'_>, cache: &Cache) -> Entered {
    const TRIES: usize = 10;
    const NAP: Duration = Duration::from_millis(2);
    let entry = placed::enter(false);
    let identity = with_file(fd, file::facts).ok().map(|facts| facts.identity);
    // Small mappings are looked after, too, though nobody watches them.
    if !watch::is_watching() && !identity.is_some_and(by_address::is_looked_after) {
        return Entered { _passing: by_address::pass(), _still: None, _entry: entry };
    }
    identity.iter().for_each(|identity| known::keep(*identity));
    let mut tries = 0..TRIES;
    loop {
        let of_kernel = identity.filter(|identity| by_address::is_looked_after(*identity));
        let refused = of_kernel.is_some_and(|identity| !act::take_now(identity, cache));
        // From here on it is not being taken or given back.
        let still = by_address::turn();
        let passing = by_address::pass();
        match identity.filter(|identity| by_address::is_looked_after(*identity)) {
            Some(identity) if refused || tries.next().is_none() => by_address::leave_noted_to_kernel(identity),
            Some(_) => {
                // In use; or given back before it was known to be wanted.
                drop((passing, still));
                std::thread::sleep(NAP);
                continue;
            }
            None => {}
        }
        return Entered { _passing: passing, _still: Some(still), _entry: entry };
    }
}

/// Whether the engine has a file that is open: then its other maps are to be the engine's, too.
pub fn has_engine(fd: BorrowedFd<'_>) -> bool {
    with_file(fd, file::facts).is_ok_and(|facts| by_address::bytes_of(facts.identity) > 0)
}

/// Has the kernel's mapping of a file, `MAP_SHARED`, which was made just now ([`enter`]), looked after: it may become the
/// engine's, in place, in the process's own cache ([`Cache::global_auto`]), and go back. Small ones (1 MiB, or less than 4 MiB of a file in all) stay the kernel's.
pub fn look_after(fd: BorrowedFd<'_>, addr: usize, len: usize) {
    let turns = turns();
    let Ok(facts) = with_file(fd, file::facts) else { return };
    let at = addr..addr + len.next_multiple_of(PAGE);
    if !by_address::is_looked_after(facts.identity) {
        known::begin_anew(facts.identity);
    }
    by_address::note_looked_after(facts.identity, at.clone());
    match len > SMALL || turns.is_some() {
        true => {
            _ = watch::watch(fd, at, Face { with_cache, say: Some(say), turns, only_noted: true, risks_stores: false })
        }
        false => known::forget_asked(&at),
    }
}

fn with_file<R>(fd: BorrowedFd<'_>, then: impl FnOnce(&File) -> R) -> R {
    // SAFETY: borrowed for as long as it is used here; never closed.
    then(&ManuallyDrop::new(unsafe { File::from_raw_fd(fd.as_raw_fd()) }))
}

/// For tests: `FASTMAP_TURNS`, milliseconds, has files change hands all the time.
fn turns() -> Option<Duration> {
    static TURNS: OnceLock<Option<Duration>> = OnceLock::new();
    let read = || std::env::var("FASTMAP_TURNS").ok().and_then(|text| text.parse().ok()).map(Duration::from_millis);
    *TURNS.get_or_init(read)
}

fn with_cache(then: Then<'_>) {
    if let Ok(cache) = Cache::global_auto() {
        then(&cache);
    }
}

fn say(what: fmt::Arguments<'_>) {
    tracing::info!("{what}");
}

/// Notes what the program asks of memory that may be looked after (madvise(2)): advice on how it will be used, which wins over what is
/// learnt, until `MADV_NORMAL` takes it back; and what only the kernel does.
pub fn note_advice(at: Range<usize>, advice: i32) {
    match advice {
        libc::MADV_RANDOM | libc::MADV_SEQUENTIAL => note_asked(at, What::Advice(advice)),
        libc::MADV_DONTFORK | libc::MADV_WIPEONFORK => note_asked(at, What::Kernels),
        libc::MADV_NORMAL if watch::is_watching() && known::take_back(&at) => watch::list_anew(),
        _ => {}
    }
}

/// Notes that the program will walk through such memory from its end.
pub fn note_backward(at: Range<usize>) {
    note_asked(at, What::Backward);
}

/// Notes that the program asks for such memory what only the kernel does (mlock(2), pkey_mprotect(2)): it stays, or becomes, the kernel's.
pub fn note_kernels(at: Range<usize>) {
    note_asked(at, What::Kernels);
}

/// A call that moves memory which may be looked after, or makes it longer or shorter (mremap(2)): what was asked of it goes along.
#[must_use]
#[derive(Debug)]
pub struct Moving(bool);

impl Moving {
    /// Before the call.
    pub fn begin() -> Self {
        let is_watched = watch::is_watching();
        if is_watched {
            known::begin_move();
        }
        Moving(is_watched)
    }

    /// After it has succeeded.
    pub fn done(mut self, from: &Range<usize>, to: &Range<usize>) {
        if std::mem::take(&mut self.0) {
            known::end_move(Some((from, to)));
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        if self.0 {
            known::end_move(None);
        }
    }
}

fn note_asked(at: Range<usize>, what: What) {
    if watch::is_watching() && !at.is_empty() {
        known::note_asked(at, what);
    }
}
