//! A program that is killed while its local copy fills leaves nothing wrong in it: at two hundred moments, or fifteen.

use crate::common::*;
use std::time::Duration;

/// Where the child finds the store, and the folder.
const URL: &str = "FASTMAP_TEST_URL";
const FOLDER: &str = "FASTMAP_TEST_FOLDER";

#[test]
fn while_a_copy_fills() {
    if let (Ok(url), Ok(folder)) = (std::env::var(URL), std::env::var(FOLDER)) {
        return fill(&url, folder.as_ref());
    }
    if !ready() {
        return;
    }
    let bytes = pattern(20 * MIB + 99);
    let store = crate::store::Store::start();
    store.put("/object", &bytes);
    let folder = folder();
    let mut random = Random::new(seed(21));
    for moment in 0..quick_or_full(15, 200) {
        // Every tenth begins with an empty folder, which is made then.
        if moment % 10 == 0 {
            let _ = std::fs::remove_dir_all(folder.path().join("tier"));
        }
        let mut child = child("killed::while_a_copy_fills");
        child.env(URL, store.url("/object")).env(FOLDER, folder.path()).stdout(std::process::Stdio::null());
        let begun = store.settings().asked.len();
        let mut child = child.spawn().unwrap();
        let steps = random.below(12);
        let mut is_over = false;
        until("the child asks", || {
            is_over = child.try_wait().unwrap().is_some();
            is_over || store.settings().asked.len() >= begun + steps
        });
        std::thread::sleep(Duration::from_micros(random.below(5000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let tier = tier(folder.path(), 16 * MIB);
        let verified = tier.verify().unwrap();
        assert_eq!(verified.wrong, 0, "{moment}: {verified:?}");
        assert!(tier.used() <= tier.limit());
        let map = open(&tier, &store.url("/object"));
        assert!(map[..] == bytes[..], "{moment}");
    }
}

/// The child: reads here and there, and on, through a folder that is too small, until it is killed.
fn fill(url: &str, folder: &std::path::Path) {
    let tier = tier(folder, 16 * MIB);
    let map = open(&tier, url);
    let mut random = Random::new(u64::from(std::process::id()));
    for _ in 0..1000 {
        let at = random.below(map.len() - MIB);
        let sum: u64 = map[at..at + MIB].iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum();
        std::hint::black_box(sum);
    }
}
