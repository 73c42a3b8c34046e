//! SIGINT, SIGTERM and SIGHUP: a flag that every long loop looks at, so that unwinding cleans up as it does on any failure.

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
        // Only a signal number that may not be caught is refused.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// Whether one of the signals has come.
pub fn requested() -> bool {
    STOP.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if one of the signals has come.
pub fn check() -> Result<(), Failure> {
    if requested() {
        return Err(Failure::new("bench", "interrupted", "run it again; nothing was left behind"));
    }
    Ok(())
}
