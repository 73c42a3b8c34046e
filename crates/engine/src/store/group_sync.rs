//! Syncs shared by the threads that ask for them at the same time (group commit).
//!
//! A sync covers what was written before it *started*. A caller that finds a sync running therefore waits for the next one. That one runs
//! once, for all callers that came meanwhile. So each caller waits for two syncs at most.

use crate::sys::sync::{Condvar, Mutex};
use std::io;

/// Runs one sync at a time. Each serves all callers that came before it started.
#[derive(Debug, Default)]
pub struct GroupSync {
    state: Mutex<State>,
    ended: Condvar,
}

/// Syncs are numbered from one, in the order in which they run.
#[derive(Debug, Default)]
struct State {
    /// The last sync that was started.
    started: u64,
    running: bool,
    /// The last sync that succeeded.
    succeeded: u64,
    /// The sync that failed, with its error number. No sync runs after it: the kernel marks the pages that it could not write as clean, so
    /// the next fdatasync(2) would succeed although data are lost.
    failed: Option<(u64, i32)>,
}

impl GroupSync {
    /// Waits for the end of a sync that starts after this call has begun. This thread runs it with its `sync`, or another thread does with its own.
    /// If a sync fails, all callers that it covers get its error. Other callers get the error of `lost` from then on, and no sync runs.
    pub fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|poison| poison.into_inner());
        let wanted = state.started + 1;
        loop {
            if state.succeeded >= wanted {
                return Ok(());
            }
            if let Some((number, error)) = state.failed {
                let error = io::Error::from_raw_os_error(error);
                return Err(if number >= wanted { error } else { lost(&error) });
            }
            if !state.running {
                break;
            }
            state = self.ended.wait(state).unwrap_or_else(|poison| poison.into_inner());
        }
        state.started += 1;
        state.running = true;
        drop(state);
        let result = sync();
        let mut state = self.state.lock().unwrap_or_else(|poison| poison.into_inner());
        state.running = false;
        match &result {
            Ok(()) => state.succeeded = state.started,
            Err(error) => state.failed = Some((state.started, error.raw_os_error().unwrap_or(libc::EIO))),
        }
        self.ended.notify_all();
        result
    }
}

/// The error for callers that the failed sync did not cover.
fn lost(error: &io::Error) -> io::Error {
    let text = format!("an earlier fdatasync failed ({error}): written data may be lost; restore the file");
    io::Error::new(error.kind(), text)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn failure() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    #[test]
    fn one_after_another_each_syncs() {
        let group = GroupSync::default();
        let mut syncs = 0;
        for _ in 0..3 {
            group
                .run(|| {
                    syncs += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(syncs, 3);
    }

    /// While one sync runs, eight threads call `run`. A sync that one of them runs itself returns `result()`. Returns how many syncs these threads
    /// ran, what each of them got, and the group.
    fn followers_of(result: fn() -> io::Result<()>) -> (usize, Vec<io::Result<()>>, GroupSync) {
        const FOLLOWERS: usize = 8;
        let (group, syncs) = (GroupSync::default(), AtomicUsize::new(0));
        let (arrive, arrived) = mpsc::channel();
        let results = std::thread::scope(|scope| {
            let group = &group;
            let syncs = &syncs;
            let mut followers = Vec::new();
            group
                .run(|| {
                    for _ in 0..FOLLOWERS {
                        let arrive = arrive.clone();
                        followers.push(scope.spawn(move || {
                            arrive.send(()).unwrap();
                            group.run(|| {
                                syncs.fetch_add(1, Ordering::Relaxed);
                                result()
                            })
                        }));
                    }
                    arrived.iter().take(FOLLOWERS).for_each(drop);
                    // All threads are about to call `run`. The pause gives them time to do so. A late one runs one more sync.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    Ok(())
                })
                .unwrap();
            followers.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (syncs.into_inner(), results, group)
    }

    #[test]
    fn who_comes_while_one_runs_shares_the_next() {
        let (syncs, results, _) = followers_of(|| Ok(()));
        assert!(results.iter().all(Result::is_ok));
        assert!((1..8).contains(&syncs), "{syncs} syncs for 8 threads");
    }

    #[test]
    fn a_failure_is_every_followers_and_for_good() {
        let (syncs, results, group) = followers_of(failure);
        assert_eq!(syncs, 1);
        for error in results.into_iter().map(Result::unwrap_err) {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        for _ in 0..2 {
            let error = group.run(|| panic!("the kernel would call it a success")).unwrap_err();
            assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::StorageFull, None));
            assert!(error.to_string().contains("an earlier fdatasync failed"), "{error}");
        }
    }
}
