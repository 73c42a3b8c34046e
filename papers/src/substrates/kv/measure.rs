//! One workload: threads that take its operations, check every answer, and are timed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::ledger::{Ledger, Writing};
use super::{Order, Phase, Store};
use crate::substrates::measure::histogram;
use crate::substrates::ycsb::{self, Distributions, Step, Steps, VALUE, Workload};
use crate::substrates::{Error, Meter, Reading, Result};

/// How often a store is tended while its threads work.
const TENDING: Duration = Duration::from_millis(20);

/// What the threads of a workload share.
struct Shared<'a> {
    order: &'a Order,
    workload: Workload,
    store: &'a dyn Store,
    ledger: &'a Ledger,
    /// Operations that nobody has taken.
    left: AtomicU64,
    start: Barrier,
    failed: AtomicBool,
}

/// How long something took.
pub fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Runs a workload.
///
/// # Errors
///
/// The first operation that fails or gives a wrong answer, which stops all threads.
pub fn measure(
    order: &Order,
    workload: Workload,
    store: &dyn Store,
    ledger: &Ledger,
    meter: &Meter,
) -> Result<(Reading, Phase)> {
    let ops = if workload.is_load() { order.records } else { order.ops };
    let shared = Shared {
        order,
        workload,
        store,
        ledger,
        left: AtomicU64::new(ops),
        start: Barrier::new(order.threads as usize + 1),
        failed: AtomicBool::new(false),
    };
    let records = ledger.inserted();
    let distributions = Distributions::of(records.max(1));
    thread::scope(|scope| {
        let running: Vec<_> = (0..u64::from(order.threads))
            .map(|thread| {
                let steps = Steps::of(workload, &distributions, records, ops, thread);
                let shared = &shared;
                scope.spawn(move || one_thread(shared, steps))
            })
            .collect();
        shared.start.wait();
        let open = meter.start(&order.dir);
        let start = open.at;
        while !running.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(TENDING);
            store.tend();
        }
        let closed = open.end();
        let ended: Vec<Result<(Instant, Histogram<u32>)>> =
            running.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        let (mut window, mut latency) = (Duration::ZERO, histogram());
        for one in ended {
            let (end, histogram) = one?;
            window = window.max(end.saturating_duration_since(start));
            latency.add(histogram).expect("all histograms have the same bounds");
        }
        let reading = closed.counting(latency.len(), window, Some(&latency));
        let busy = (reading.user_s + reading.system_s) / (reading.seconds * f64::from(order.threads));
        let phase = Phase { workload: Some(workload), flush_seconds: None, waiting: (1.0 - busy).max(0.0) };
        Ok((reading, phase))
    })
}

fn one_thread(shared: &Shared<'_>, mut steps: Steps<'_>) -> Result<(Instant, Histogram<u32>)> {
    let mut latency = histogram();
    shared.start.wait();
    let mut before = Instant::now();
    let end = (!shared.workload.is_load()).then(|| before + Duration::from_secs_f64(shared.order.seconds));
    while shared.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        if let Err(error) = operate(shared, &mut steps) {
            shared.failed.store(true, Relaxed);
            return Err(error);
        }
        let now = Instant::now();
        latency.saturating_record((now - before).as_nanos() as u64);
        before = now;
        if end.is_some_and(|end| now >= end) || shared.failed.load(Relaxed) {
            break;
        }
    }
    Ok((before, latency))
}

#[inline]
fn operate(shared: &Shared<'_>, steps: &mut Steps<'_>) -> Result<()> {
    let Shared { order, workload, ledger, .. } = *shared;
    let step = if workload.is_load() { Step::Insert } else { steps.next_step(ledger.inserted()) };
    match step {
        Step::Read(number) => read(shared, number),
        Step::Update(number) => write(shared, ledger.update(number)),
        Step::Modify(number) => modify(shared, ledger.update(number)),
        Step::Scan(number, most) => scan(shared, number, most),
        Step::Insert => {
            let most = if workload.is_load() { order.records } else { order.most_records() };
            match ledger.insert(most) {
                Some(new) => write(shared, new),
                // So many more inserts than come by chance that nobody will see it.
                None => read(shared, 0),
            }
        }
    }
}

fn write(shared: &Shared<'_>, record: Writing<'_>) -> Result<()> {
    let mut value = [0; VALUE];
    ycsb::fill(&mut value, record.number, record.version);
    shared.store.write(&ycsb::key(record.number), &value)?;
    record.done();
    Ok(())
}

fn read(shared: &Shared<'_>, number: u64) -> Result<()> {
    let least = shared.ledger.at_least(number);
    let mut answer = None;
    let found = shared.store.read(&ycsb::key(number), &mut |value| answer = Some(ycsb::check_of(number, value)))?;
    let most = shared.ledger.at_most(number).unwrap_or(0);
    match answer {
        Some(Ok(version)) if found && (least..=most).contains(&version) => Ok(()),
        Some(Ok(version)) => {
            let versions = if least == most { least.to_string() } else { format!("{least} to {most}") };
            Err(wrong(shared, number, format!("version {version} where {versions} belongs")))
        }
        Some(Err(what)) => Err(wrong(shared, number, what.to_string())),
        None => Err(wrong(shared, number, "nothing".to_owned())),
    }
}

fn modify(shared: &Shared<'_>, record: Writing<'_>) -> Result<()> {
    let (number, version) = (record.number, record.version);
    let mut before = None;
    let found = shared.store.modify(&ycsb::key(number), &mut |value| {
        before = Some(ycsb::check_of(number, value));
        if let Ok(value) = <&mut [u8; VALUE]>::try_from(value) {
            ycsb::fill(value, number, version);
        }
    })?;
    match before {
        Some(Ok(old)) if found && old + 1 == version => {
            record.done();
            Ok(())
        }
        Some(Ok(old)) => Err(wrong(shared, number, format!("version {old} where {} belongs", version - 1))),
        Some(Err(what)) => Err(wrong(shared, number, what.to_string())),
        None => Err(wrong(shared, number, "nothing".to_owned())),
    }
}

fn scan(shared: &Shared<'_>, number: u64, most: usize) -> Result<()> {
    let from = ycsb::key(number);
    let (mut found, mut before, mut fault) = (0, from, None);
    shared.store.scan(&from, &mut |key, value| {
        fault = fault_in_scan(shared, found, &before, key, value);
        if let Ok(key) = key.try_into() {
            before = key;
        }
        found += 1;
        found < most && fault.is_none()
    })?;
    match fault {
        None if found > 0 => Ok(()),
        None => Err(wrong(shared, number, "nothing in a scan".to_owned())),
        Some(what) => Err(wrong(shared, number, format!("in a scan from it {what}"))),
    }
}

/// The scan's record number `found` must be the first one itself, then ever larger keys, each with a value of its own.
fn fault_in_scan(shared: &Shared<'_>, found: usize, before: &[u8], key: &[u8], value: &[u8]) -> Option<String> {
    if if found == 0 { key != before } else { key <= before } {
        return Some(format!("key {} after {}", key.escape_ascii(), before.escape_ascii()));
    }
    match ycsb::check(value) {
        Err(what) => Some(what.to_string()),
        Ok((number, _)) if ycsb::key(number) != key => {
            Some(format!("the value of record {number} at {}", key.escape_ascii()))
        }
        Ok((number, version)) if version == 0 || shared.ledger.at_most(number).is_none_or(|most| version > most) => {
            Some(format!("version {version} of record {number}, which nobody wrote"))
        }
        Ok(_) => None,
    }
}

fn wrong(shared: &Shared<'_>, number: u64, what: String) -> Error {
    let store = shared.order.store.title().to_owned();
    Error::Answer { thing: store, what: format!("{}: record {number}: gave {what}", shared.workload.title()) }
}
