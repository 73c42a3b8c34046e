//! The server of the slots. It fetches the units that are asked for, each by one request at a time. It answers a waiting thread as soon as its
//! units are there.
//!
//! # One miss of an object
//!
//! An object of a store has a *local copy*: a sparse file of the object's length in the tier's folder, and beside it an index. The index says
//! which *units* of 256 KiB the copy has, with a crc32c for each page (`crates/tier`). The engine maps the copy as it maps any file, by the
//! decorator `OriginStore` (`store/origin.rs` of the engine), which calls an `Origin` before and after each read. To the engine each map of an
//! object is a file of its own. It never becomes a kernel mapping, because the kernel would read zeros where nothing has been fetched yet.
//!
//! 1. The engine claims the page as in any miss. A stream asks for all of its window at once when it meets a page that is not there
//!    (`readahead/window.rs` `is_near`).
//! 2. `fault/load.rs` `load` calls `Origin::bring` for the page, in the thread that missed. Other threads that want the page sleep on its word.
//!    Of the pages that would be read with it, only those that are there are read.
//! 3. `crates/tier/src/origin.rs` `TierOrigin` looks whether the unit is PRESENT in the index. If not, `asking.rs` `Asking::bring` claims and
//!    fills a slot in shared memory, rings the doorbell word, and sleeps on the slot's word until the deadline. The program's thread opens no
//!    descriptor, allocates nothing, and runs no async code.
//! 4. Here a thread that sleeps on the doorbell hands the request to a runtime. If the unit is under way, the request waits for that fetch.
//!    Otherwise a *chunk* of learnt size is fetched by a ranged GET with `If-Match` (`fetch.rs`: retries with jitter, a second request after the
//!    95th percentile; limits on requests in flight).
//! 5. `crates/tier/src/local.rs` `put` reserves room in the folder's counter (or makes room: `room.rs`), writes the unit and its checksums,
//!    publishes its state, and wakes the waiting threads.
//! 6. Back in the program's thread, the page is read (from the page cache), and `Origin::is_right` compares its checksum. A page that is wrong
//!    counts as absent and is brought anew.
//! 7. The engine installs the page as in any miss.
//!
//! The thread that has the turn of a reader reads ahead while pages are local. For other pages the reader's thread brings them, and waits for
//! half a second at most; the program's thread does not wait. In a child made by fork(2) `fault/child.rs` copies windows of 256 KiB, which the
//! parent's server fetches as long as the parent lives.

use crate::fetch::Source;
use crate::plan::{LONGEST_WINDOW, PIECES, Plan};
use fastmap_tier::{Asking, Local, Request, Tier, UNIT};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep, timeout_at};

/// Requests of a process in flight at a time. Each holds at most one unit in memory, and a socket's buffers.
const REQUESTS: usize = 64;
/// Of these, requests that nobody waits for.
const ASKED: usize = 48;
/// For a map without a deadline: after this time a request gives up and begins anew.
const FOR_EVER: Duration = Duration::from_secs(30);
/// How often a stream is looked at to see whether the program has read on; and how long until it is no longer watched, while it has not.
const STREAM_LOOKS: Duration = Duration::from_millis(2);
const STREAM_RESTS: Duration = Duration::from_millis(500);
/// The time between two looks whether another process has fetched a unit.
const OTHERS_LOOKS: Duration = Duration::from_millis(5);

/// The permits to send requests, of a process.
#[derive(Debug)]
pub(crate) struct Permits {
    all: Semaphore,
    asked: Semaphore,
}

impl Permits {
    pub fn new() -> Self {
        Permits { all: Semaphore::new(REQUESTS), asked: Semaphore::new(ASKED) }
    }

    /// Takes the permits for a flight. A flight needs no permit of `asked` from the moment on that a thread waits for it.
    async fn take(&self, flight: &Flight) -> [Option<SemaphorePermit<'_>>; 2] {
        let asked = tokio::select! {
            biased;
            () = flight.awaited.notified() => None,
            permit = self.asked.acquire() => permit.ok(),
        };
        [asked, self.all.acquire().await.ok()]
    }
}

/// Answers the requests in the slots for some objects, by their numbers.
pub(crate) struct Server {
    pub asking: Arc<Asking>,
    pub objects: RwLock<HashMap<u32, Arc<Remote>>>,
    pub runtime: tokio::runtime::Handle,
}

impl Server {
    /// Serves in this thread until `stop` is set.
    pub fn run(&self, stop: &AtomicBool) {
        self.asking.serve(stop, |request| {
            let object = self.objects.read().unwrap_or_else(PoisonError::into_inner).get(&request.object).cloned();
            match object {
                Some(object) => drop(self.runtime.spawn(object.serve(request))),
                None => request.answer(Err(libc::EIO)),
            }
        });
    }
}

/// An object, its local copy, and the requests under way between them.
pub(crate) struct Remote {
    pub source: Source,
    pub local: Arc<Local>,
    tier: Arc<Tier>,
    pub deadline: Option<Duration>,
    permits: Arc<Permits>,
    state: Mutex<State>,
}

struct State {
    /// The flights, by each of their units that is not there yet.
    flights: HashMap<u64, Arc<Flight>>,
    plan: Plan,
    /// The streams that a task watches.
    watched: Vec<u64>,
}

/// Units that one task fetches, in order.
#[derive(Debug)]
struct Flight {
    units: Range<u64>,
    /// The next unit to arrive, and the error number with which the flight has ended.
    progress: watch::Sender<(u64, Option<i32>)>,
    awaited: Notify,
}

/// The end of a flight, in whatever way: nobody waits for it any longer.
struct Landing<'a> {
    remote: &'a Remote,
    flight: &'a Flight,
    result: Result<(), i32>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let (next, _) = *self.flight.progress.borrow();
        let mut state = self.remote.state();
        for unit in next..self.flight.units.end {
            state.flights.remove(&unit);
        }
        drop(state);
        if next < self.flight.units.end {
            self.flight.progress.send_modify(|(_, error)| *error = Some(self.result.err().unwrap_or(libc::EIO)));
        }
    }
}

impl Remote {
    pub fn new(
        source: Source,
        local: Arc<Local>,
        tier: Arc<Tier>,
        deadline: Option<Duration>,
        permits: Arc<Permits>,
    ) -> Self {
        let plan = Plan::new(source.version().len.div_ceil(UNIT));
        let state = Mutex::new(State { flights: HashMap::new(), plan, watched: Vec::new() });
        Remote { source, local, tier, deadline, permits, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> u64 {
        self.source.version().len
    }

    /// The bytes of some units.
    fn bytes(&self, units: &Range<u64>) -> Range<u64> {
        units.start * UNIT..(units.end * UNIT).min(self.len())
    }

    fn has(&self, unit: u64) -> bool {
        self.local.has(self.bytes(&(unit..unit + 1)))
    }

    fn is_used(&self, unit: u64) -> bool {
        self.has(unit) && self.local.touched(self.bytes(&(unit..unit + 1))) > 0
    }

    /// Most units that are fetched ahead of the program. Units that are not read yet must not drive out those that are.
    fn longest(&self) -> u64 {
        (self.tier.limit() / 4 / UNIT).clamp(1, LONGEST_WINDOW)
    }

    async fn serve(self: Arc<Self>, request: Request) {
        let end = request.range.end.min(self.len());
        let units = request.range.start / UNIT..end.div_ceil(UNIT);
        if !request.is_awaited {
            self.want(units.start..units.end.min(units.start + self.longest()), false);
            return request.answer(Ok(()));
        }
        let bring = self.bring(units);
        let result = match request.deadline {
            Some(deadline) => timeout_at(Instant::now() + deadline, bring).await.unwrap_or(Err(libc::ETIMEDOUT)),
            None => bring.await,
        };
        request.answer(result);
    }

    /// Starts to fetch units, and waits for them.
    async fn bring(self: &Arc<Self>, units: Range<u64>) -> Result<(), i32> {
        let longest = self.longest();
        let mut begun = units.start;
        for unit in units.clone() {
            // The next part of a long range is fetched while this one arrives.
            if unit >= begun.saturating_sub(longest / 2) && begun < units.end {
                let part = begun..units.end.min(begun + longest);
                begun = part.end;
                self.want(part, true);
            }
            self.arrival(unit).await?;
        }
        Ok(())
    }

    /// Starts to fetch units, and others around or ahead of them as the plan says.
    fn want(self: &Arc<Self>, units: Range<u64>, is_awaited: bool) {
        let mut state = self.state();
        let is_absent = |state: &State, unit: &u64| !state.flights.contains_key(unit) && !self.has(*unit);
        let Some(first) = units.clone().find(|unit| is_absent(&state, unit)) else {
            return;
        };
        let last = units.clone().rfind(|unit| is_absent(&state, unit)).unwrap_or(first);
        let missed = first..last + 1;
        let largest = self.source.times.chunk();
        let answer = state.plan.missed(missed.clone(), largest, is_awaited, &|unit| self.is_used(unit));
        self.launch(&mut state, missed.clone(), largest);
        if is_awaited {
            missed.for_each(|unit| state.flights.get(&unit).into_iter().for_each(|flight| flight.awaited.notify_one()));
        }
        self.launch(&mut state, answer.units, largest);
        let Some(stream) = answer.stream else {
            return;
        };
        if let Some((ahead, _)) = state.plan.ahead(stream, self.longest(), |unit| self.is_used(unit)) {
            self.launch_ahead(&mut state, ahead);
        }
        if !state.watched.contains(&stream) {
            state.watched.push(stream);
            tokio::spawn(self.clone().watch(stream));
        }
    }

    /// Starts to fetch units ahead of a stream, in requests as large as a part of the longest window.
    fn launch_ahead(self: &Arc<Self>, state: &mut State, units: Range<u64>) {
        self.launch(state, units, LONGEST_WINDOW / PIECES * UNIT);
    }

    /// Fetches ahead of a stream while it goes on.
    async fn watch(self: Arc<Self>, stream: u64) {
        let mut moved = Instant::now();
        loop {
            sleep(STREAM_LOOKS).await;
            let mut state = self.state();
            let ahead = state.plan.ahead(stream, self.longest(), |unit| self.is_used(unit));
            match ahead {
                Some((units, has_moved)) => {
                    if has_moved {
                        moved = Instant::now();
                    }
                    self.launch_ahead(&mut state, units);
                }
                None => moved -= STREAM_RESTS,
            }
            if moved.elapsed() > STREAM_RESTS {
                state.watched.retain(|other| *other != stream);
                return;
            }
        }
    }

    /// Starts to fetch those of some units that are neither there nor under way, with at most `largest` bytes a request.
    fn launch(self: &Arc<Self>, state: &mut State, units: Range<u64>, largest: u64) {
        let longest = (largest / UNIT).max(1);
        let mut at = units.start;
        while at < units.end {
            let is_absent = |state: &State, unit| !state.flights.contains_key(&unit) && !self.has(unit);
            if !is_absent(state, at) {
                at += 1;
                continue;
            }
            let start = at;
            // Cut at multiples of the request's size, where stores' blocks end.
            let end = units.end.min((start / longest + 1) * longest);
            while at < end && is_absent(state, at) {
                at += 1;
            }
            let progress = watch::Sender::new((start, None));
            let flight = Arc::new(Flight { units: start..at, progress, awaited: Notify::new() });
            for unit in start..at {
                state.flights.insert(unit, flight.clone());
            }
            tokio::spawn(self.clone().fly(flight));
        }
    }

    /// Waits until a unit is there; starts to fetch it again if it has gone.
    async fn arrival(self: &Arc<Self>, unit: u64) -> Result<(), i32> {
        loop {
            let flight = self.state().flights.get(&unit).cloned();
            let Some(flight) = flight else {
                if self.has(unit) {
                    return Ok(());
                }
                // The unit was evicted meanwhile, or its flight has given up.
                self.launch(&mut self.state(), unit..unit + 1, UNIT);
                continue;
            };
            flight.awaited.notify_one();
            let mut progress = flight.progress.subscribe();
            let ended = progress.wait_for(|(next, error)| *next > unit || error.is_some()).await;
            let (next, error) = ended.map_or((unit, Some(libc::EIO)), |ended| *ended);
            match error {
                _ if next > unit => return Ok(()),
                // Begun anew: the waiting thread is answered when its own deadline passes, or never.
                Some(libc::ETIMEDOUT) | None => {}
                Some(error) => return Err(error),
            }
        }
    }

    async fn fly(self: Arc<Self>, flight: Arc<Flight>) {
        let mut landing = Landing { remote: &self, flight: &flight, result: Err(libc::EIO) };
        let deadline = Instant::now() + self.deadline.unwrap_or(FOR_EVER);
        landing.result = match timeout_at(deadline, self.permits.take(&flight)).await {
            Ok(_permits) => self.fill(&flight, deadline).await,
            Err(_) => Err(libc::ETIMEDOUT),
        };
    }

    /// Fetches the units of a flight and puts them into the local copy, except for units that other processes fetch.
    async fn fill(self: &Arc<Self>, flight: &Flight, deadline: Instant) -> Result<(), i32> {
        let mut at = flight.units.start;
        while at < flight.units.end {
            if self.has(at) {
                self.arrived(flight, at);
                at += 1;
                continue;
            }
            let claims: Vec<_> = (at..flight.units.end)
                .map_while(|unit| if unit > at && self.has(unit) { None } else { self.local.claim(unit) })
                .collect();
            if claims.is_empty() {
                if Instant::now() >= deadline {
                    return Err(libc::ETIMEDOUT);
                }
                sleep(OTHERS_LOOKS).await;
                continue;
            }
            if self.has(at) {
                continue;
            }
            let range = self.bytes(&(at..at + claims.len() as u64));
            let mut unit = Vec::with_capacity(UNIT as usize);
            let fetched = self.source.fetch(range, deadline, |mut bytes| {
                while !bytes.is_empty() {
                    let whole = self.bytes(&(at..at + 1));
                    let missing = (whole.end - whole.start) as usize - unit.len();
                    let (part, rest) = bytes.split_at(missing.min(bytes.len()));
                    unit.extend_from_slice(part);
                    bytes = rest;
                    if part.len() == missing {
                        self.local.put(at, &unit)?;
                        self.arrived(flight, at);
                        unit.clear();
                        at += 1;
                    }
                }
                Ok(())
            });
            if let Err(failure) = fetched.await {
                tracing::warn!(object = %self.source.version().url, why = %failure.why, "a part of an object was not fetched");
                return Err(failure.errno);
            }
        }
        Ok(())
    }

    fn arrived(&self, flight: &Flight, unit: u64) {
        self.state().flights.remove(&unit);
        flight.progress.send_modify(|(next, _)| *next = unit + 1);
    }
}

/// The value of a counter, for [`ObjectStats`](crate::ObjectStats).
pub(crate) fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
