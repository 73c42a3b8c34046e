//! A use of a region that lies in a queue keeps the region, also while the region is going.

use crate::effort::skip;
use crate::region::registry;
use crate::{Cache, Fallback, MapOptions};
use std::time::{Duration, Instant};

#[test]
fn a_queued_use_is_resumed_while_its_region_goes() {
    let file = tempfile::NamedTempFile::new_in(".").unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let cache = Cache::new(256 << 10).unwrap();
    // SAFETY: nobody else changes the file.
    let map = match unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map(file.as_file()) } {
        Ok(map) => map,
        Err(why) => return skip(why),
    };
    let start = map.as_ptr() as usize;
    // SAFETY: the map keeps its region.
    let id = unsafe { registry::find(start) }.expect("it is mapped").id();
    let held = registry::enter(id).expect("it is there").held();
    let going = std::thread::spawn(move || drop(map));
    let deadline = Instant::now() + Duration::from_secs(30);
    while registry::enter(id).is_some() {
        assert!(Instant::now() < deadline, "the region does not go");
        std::thread::yield_now();
    }
    assert!(!going.is_finished(), "the use keeps it");
    assert_eq!(registry::resume(held).expect("it waits for the use").id(), id);
    going.join().unwrap();
}
