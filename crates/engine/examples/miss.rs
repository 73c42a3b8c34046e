//! Times random loads or stores through the engine, without verification: for profiling one miss.
//!
//! `miss FILE read|write THREADS SECONDS CACHE_MIB [BATCH]`

use fastmap::{Cache, Fallback, MapOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, op, threads, seconds, mebibytes, rest @ ..] = &args[..] else {
        return Err("usage: miss FILE read|write THREADS SECONDS CACHE_MIB [BATCH]".into());
    };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let batch = rest.first().map_or(Ok(512), |batch| batch.parse())?;
    let cache = Cache::builder().capacity(mebibytes.parse::<usize>()? << 20).evict_batch(batch).build()?;
    // SAFETY: a file of our own.
    let mut map = unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map_mut(&file)? };
    let (base, pages) = (map.as_mut_ptr() as usize, map.len() / 4096);
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let store = op == "write";
    let begin = Instant::now();
    std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        for thread in 0..threads.parse::<u64>()? {
            let (stop, total) = (&stop, &total);
            scope.spawn(move || {
                let mut random = 88_172_645_463_325_252u64.wrapping_mul(thread + 1);
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // SAFETY: inside the map; 8-byte aligned.
                    let word = unsafe { &*((base + random as usize % pages * 4096) as *const AtomicU64) };
                    if store {
                        word.fetch_add(1, Ordering::Relaxed)
                    } else {
                        word.load(Ordering::Relaxed)
                    };
                    done += 1;
                }
                total.fetch_add(done, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let rate = total.into_inner() as f64 / begin.elapsed().as_secs_f64();
    // SAFETY: all-zero bytes are a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    let cpu = (micros(usage.ru_utime) + micros(usage.ru_stime)) / (rate * begin.elapsed().as_secs_f64());
    println!("{op}, {threads} threads: {rate:.0} ops/s, {cpu:.2} us CPU an op; {:?}", cache.stats());
    Ok(())
}
