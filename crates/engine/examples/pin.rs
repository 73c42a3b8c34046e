//! Times what a pin costs: of a resident page with the guard's drop, always the same page and pages at random, and of reads
//! through `get_at`; and with a file larger than the cache, random reads that miss.
//!
//! `pin` (a file of its own in the temporary folder), or `pin FILE THREADS SECONDS CACHE_MIB [pin|get|load]`

use fastmap::{Cache, Fallback, Map, MapOptions};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const RESIDENT: usize = 64 << 20;

fn map(file: &std::fs::File, cache: usize) -> fastmap::Result<(Cache, Map)> {
    let cache = Cache::new(cache)?;
    // SAFETY: a file of our own.
    let map = unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map(file)? };
    Ok((cache, map))
}

fn next(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 20) as usize
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => resident(),
        [path, threads, seconds, mebibytes, rest @ ..] => {
            let how = rest.first().map_or("pin", String::as_str);
            misses(path, threads.parse()?, seconds.parse()?, mebibytes.parse::<usize>()? << 20, how)
        }
        _ => Err("usage: pin [FILE THREADS SECONDS CACHE_MIB [pin|get|load]]".into()),
    }
}

/// Looks where the pinned bytes are, and drops the guard.
#[inline(always)]
fn touch(pinned: fastmap::Result<fastmap::Pinned<'_>>) {
    black_box(pinned.unwrap().as_ptr());
}

/// Nanoseconds a call, the best and the median of some rounds.
fn time(what: &str, mut call: impl FnMut()) {
    const CALLS: u32 = 200_000;
    let mut round = || {
        let begin = Instant::now();
        (0..CALLS).for_each(|_| call());
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let mut rounds: Vec<f64> = (0..25).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<44} {:6.1} ns, median {:6.1} ns", rounds[0], rounds[rounds.len() / 2]);
}

fn resident() -> Result<(), Box<dyn std::error::Error>> {
    // Not in a tmpfs, where there is no direct I/O.
    let file = tempfile::tempfile_in(std::env::current_exe()?.parent().ok_or("no folder")?)?;
    file.set_len(RESIDENT as u64)?;
    let (cache, map) = map(&file, 2 * RESIDENT)?;
    (0..RESIDENT).step_by(PAGE).for_each(|at| _ = black_box(map[at]));
    let mut random = 88_172_645_463_325_252;
    time("pin and drop, one page", || touch(map.pin(black_box(100), 8)));
    time("pin and drop, random pages", || touch(map.pin(next(&mut random) % RESIDENT / 8 * 8, 8)));
    time("pin and drop, a page pinned already", {
        let _outer = map.pin(100, 8)?;
        || touch(map.pin(black_box(100), 8))
    });
    time("pin and drop, 64 pages", || touch(map.pin(black_box(0), 64 * PAGE)));
    time("get_at::<u64>, one page", || drop(black_box(map.get_at::<u64>(black_box(100)))));
    time("get_at::<u64>, random pages", || {
        drop(black_box(map.get_at::<u64>(next(&mut random) % RESIDENT / 8 * 8)));
    });
    let mut page = [0; PAGE];
    time("read_at of a page, random pages", || {
        drop(black_box(map.read_at(&mut page, next(&mut random) % RESIDENT / PAGE * PAGE)));
    });
    // SAFETY: as above.
    let mut map = unsafe { MapOptions::new().cache(&cache).map_mut(&file)? };
    time("pin_mut and drop, one page", || drop(black_box(map.pin_mut(black_box(100), 8))));
    time("pin_mut and drop, 64 pages", || drop(black_box(map.pin_mut(black_box(0), 64 * PAGE))));
    println!("{:?}", cache.stats());
    Ok(())
}

fn misses(
    path: &str,
    threads: u64,
    seconds: f64,
    capacity: usize,
    how: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (cache, map) = map(&std::fs::File::open(path)?, capacity)?;
    let pages = map.len() / PAGE;
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (map, stop, total) = (&map, &stop, &total);
            scope.spawn(move || {
                let mut random = 88_172_645_463_325_252u64.wrapping_mul(thread + 1);
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    let at = next(&mut random) % pages * PAGE;
                    let byte = match how {
                        "pin" => map.pin(at, PAGE).map(|pinned| pinned[8]),
                        "get" => map.get_at::<u8>(at + 8),
                        _ => Ok(map[at + 8]),
                    };
                    black_box(byte.unwrap());
                    done += 1;
                }
                total.fetch_add(done, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
    });
    let rate = total.into_inner() as f64 / begin.elapsed().as_secs_f64();
    println!("{how}, {threads} threads: {rate:.0} ops/s; {:?}", cache.stats());
    Ok(())
}
