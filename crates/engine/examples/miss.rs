//! Times random loads or stores through the engine, without verification: for profiling one miss. Or a file made anew, as
//! long as it was, that one thread fills from front to back and flushes (THREADS and SECONDS are ignored).
//!
//! `miss FILE read|write|fill THREADS SECONDS CACHE_MIB [BATCH]`

use fastmap::{Cache, Fallback, MapOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, op, threads, seconds, mebibytes, rest @ ..] = &args[..] else {
        return Err("usage: miss FILE read|write|fill THREADS SECONDS CACHE_MIB [BATCH]".into());
    };
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let batch = rest.first().map_or(Ok(512), |batch| batch.parse())?;
    let cache = Cache::builder().capacity(mebibytes.parse::<usize>()? << 20).evict_batch(batch).build()?;
    if op == "fill" {
        let size = file.metadata()?.len();
        file.set_len(0)?;
        file.set_len(size)?;
    }
    // SAFETY: a file of our own.
    let mut map = unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map_mut(&file)? };
    let (base, pages) = (map.as_mut_ptr() as usize, map.len() / 4096);
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let store = op == "write";
    let begin = Instant::now();
    if op == "fill" {
        for page in map.chunks_mut(4096) {
            let mut random = page.as_ptr() as u64;
            for word in page.chunks_exact_mut(8) {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                word.copy_from_slice(&random.to_ne_bytes());
            }
        }
        let filled = begin.elapsed();
        map.flush()?;
        let (rate, micros) = (pages as f64 / begin.elapsed().as_secs_f64(), cpu_micros() / pages as f64);
        println!("{op}: {rate:.0} pages/s, stored after {filled:?}, {micros:.2} us CPU a page; {:?}", cache.stats());
        return Ok(());
    }
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
    let cpu = cpu_micros() / (rate * begin.elapsed().as_secs_f64());
    println!("{op}, {threads} threads: {rate:.0} ops/s, {cpu:.2} us CPU an op; {:?}", cache.stats());
    Ok(())
}

/// Processor time of this process so far.
fn cpu_micros() -> f64 {
    // SAFETY: all-zero bytes are a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}
