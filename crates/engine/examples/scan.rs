//! Times walks through a file that is mapped read-only, or mutable, without verification: for profiling readahead.
//!
//! `scan FILE STEP SECONDS CACHE_MIB [mut]`; STEP in pages, 1 forward, -1 backward; every page of the file is loaded once
//! each time round, eight words of it.

use fastmap::{Cache, Fallback, MapOptions};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, step, seconds, mebibytes, rest @ ..] = &args[..] else {
        return Err("usage: scan FILE STEP SECONDS CACHE_MIB [mut]".into());
    };
    let mutable = !rest.is_empty();
    let file = std::fs::OpenOptions::new().read(true).write(mutable).open(path)?;
    let cache = Cache::new(mebibytes.parse::<usize>()? << 20)?;
    let mut options = MapOptions::new();
    options.cache(&cache).fallback(Fallback::Refuse);
    let (map, map_mut);
    let bytes: &[u8] = if mutable {
        // SAFETY: a file of our own.
        map_mut = unsafe { options.map_mut(&file)? };
        &map_mut
    } else {
        // SAFETY: likewise.
        map = unsafe { options.map(&file)? };
        &map
    };
    let (pages, step) = ((bytes.len() / 4096) as i64, step.parse::<i64>()?);
    let (mut done, mut sum, mut phase) = (0u64, 0u64, 0i64);
    let (mut start, mut before) = (Instant::now(), cache.stats());
    let deadline = start + Duration::from_secs_f64(seconds.parse()?);
    while Instant::now() < deadline {
        let mut page = if step > 0 { phase } else { pages - 1 - phase };
        while (0..pages).contains(&page) {
            for word in 0..8 {
                // SAFETY: inside the map. Volatile: each load reaches the page.
                sum = sum.wrapping_add(u64::from(unsafe {
                    bytes.as_ptr().add(page as usize * 4096 + word * 512).read_volatile()
                }));
            }
            page += step;
            done += 1;
            if done.is_multiple_of(1 << 16) && start.elapsed() > Duration::from_secs(1) {
                let now = cache.stats();
                println!(
                    "{:.0} pages/s: {} misses, {} waits, {} chunks of {} pages, {} wasted, {} streams, {} dropped in {} batches",
                    done as f64 / start.elapsed().as_secs_f64(),
                    now.misses - before.misses,
                    now.waits - before.waits,
                    now.ahead_chunks - before.ahead_chunks,
                    now.ahead_used - before.ahead_used,
                    now.ahead_wasted - before.ahead_wasted,
                    now.streams - before.streams,
                    now.evicted_pages - before.evicted_pages,
                    now.eviction_batches - before.eviction_batches,
                );
                (done, start, before) = (0, Instant::now(), now);
            }
        }
        phase = (phase + 1) % step.abs();
    }
    println!("sum {sum}");
    Ok(())
}
