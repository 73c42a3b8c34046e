//! SIGINT, SIGTERM and SIGHUP set a flag. Every long loop checks the flag and returns, so that the cleanup is the same as after a failure.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes these signals set the flag from now on.
pub fn watch() {
    let flag = STOP.get_or_init(Default::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // This fails only for signals that cannot be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// Whether one of the signals has come.
pub fn requested() -> bool {
    STOP.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// For the loops of `fastmap-bench`: fails if one of the signals has come.
pub fn check() -> Result<(), Failure> {
    if requested() {
        return Err(Failure::new("bench", "interrupted", "run it again; nothing was left behind"));
    }
    Ok(())
}
