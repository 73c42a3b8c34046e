//! Threads that share out a range of work, as Ligra's parallel loops do.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Pieces for each thread: enough that none waits long for the last, and long enough that what they read is read in order.
const PIECES: usize = 16;

/// Has `threads` threads work through `0..len`, each piece at least `least` long; what each of them made.
pub fn share<T: Default + Send>(
    threads: u32,
    len: usize,
    least: usize,
    work: impl Fn(&mut T, Range<usize>) + Sync,
) -> Vec<T> {
    let piece = (len / (threads as usize * PIECES)).max(least);
    let next = AtomicUsize::new(0);
    crew(threads.min(len.div_ceil(piece) as u32), || {
        let mut made = T::default();
        loop {
            let start = next.fetch_add(piece, Relaxed);
            if start >= len {
                return made;
            }
            work(&mut made, start..len.min(start + piece));
        }
    })
}

/// Has `threads` threads fill `cells`, each piece at least `least` long; `work` is told where its piece begins.
pub fn fill<T: Send>(threads: u32, cells: &mut [T], least: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let piece = (cells.len() / (threads as usize * PIECES)).max(least);
    let pieces = Mutex::new((0..).step_by(piece).zip(cells.chunks_mut(piece)));
    crew(threads, || {
        let next = || pieces.lock().expect("no thread panics with it").next();
        while let Some((start, cells)) = next() {
            work(start, cells);
        }
    });
}

/// Runs the same in each of some threads; this one is the first of them.
fn crew<T: Send>(threads: u32, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let mut made = vec![work()];
        made.extend(others.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))));
        made
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_somebodys_once() {
        for (threads, len, least) in [(1, 0, 1), (3, 1, 64), (4, 1000, 7), (16, 17, 1)] {
            let mut all = share(threads, len, least, |made: &mut Vec<usize>, piece| made.extend(piece)).concat();
            all.sort();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
            let mut cells = vec![usize::MAX; len];
            fill(threads, &mut cells, least, |start, cells| {
                cells.iter_mut().zip(start..).for_each(|(cell, n)| *cell = n)
            });
            assert_eq!(cells, all);
        }
    }
}
