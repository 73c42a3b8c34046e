//! How much the kernel reads ahead on a file's device: /sys/class/bdi.

use super::text::{number, read};
use crate::PAGE;

/// Pages that the kernel reads ahead at most on the device with these numbers; `None` where that is not told.
pub fn readahead((major, minor): (u64, u64)) -> Option<u64> {
    let mut text = Vec::new();
    // A partition has no entry of its own.
    let places = [format!("/sys/class/bdi/{major}:{minor}"), format!("/sys/dev/block/{major}:{minor}/../bdi")];
    let found = places.iter().find(|place| read(&format!("{place}/read_ahead_kb"), &mut text));
    found.and_then(|_| number(&text)).map(|kib| (kib << 10) / PAGE)
}
