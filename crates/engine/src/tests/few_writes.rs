//! A thread that needs room writes a few pages at a time: whole groups of pages that become writable together, so that they stay known.

use crate::effort::skip;
use crate::region::registry;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use crate::writeback::sweep::{self, Stripe, Swept};
use crate::{Cache, Fallback, MapOptions};

#[test]
fn groups_that_are_written_a_few_pages_at_a_time_are_learnt_whole() {
    const PAGES: usize = 512;
    let file = tempfile::NamedTempFile::new_in(".").unwrap();
    file.as_file().set_len((PAGES * PAGE) as u64).unwrap();
    // Nothing is written but by the sweeps.
    let cache = Cache::builder().capacity(4 * PAGES * PAGE).high_water(95).dirty_expire(None).build().unwrap();
    // SAFETY: nobody else changes the file.
    let mut map = match unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map_mut(file.as_file()) } {
        Ok(map) => map,
        Err(why) => return skip(why),
    };
    (0..PAGES).for_each(|page| map[page * PAGE] = 1);
    // SAFETY: the map keeps its region.
    let region = unsafe { registry::find(map.as_ptr() as usize) }.expect("it is mapped");
    let mut dirty = PAGES as u64;
    while dirty > 0 {
        let swept = {
            let _blocked = Blocked::all();
            sweep::sweep(region, Stripe::ALL, 32, || false)
        };
        assert!(matches!(swept, Swept::Wrote), "{swept:?}");
        dirty -= 64;
        assert_eq!(cache.stats().dirty_pages, dirty, "a group at a time");
    }
    // Groups of 8 as long as nothing was learnt, without the page itself and perhaps without the sample.
    let fewest = (0..PAGES).map(|page| region.companions(page).count_ones()).min();
    assert!(fewest >= Some(6), "{fewest:?}");
}
