//! A disk that is full before the limit is reached.

use crate::common::*;
use crate::folders::Mount;
use crate::loops::Ext4;
use fastmap_tier::UNIT;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Takes what room there is, but for so many bytes.
fn fill_but(folder: &Path, bytes: u64) -> std::fs::File {
    let mut file = std::fs::File::create(folder.join("filler")).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let _ = file.sync_all();
    while file.write_all(&[1; 4096]).is_ok() {}
    let len = file.metadata().unwrap().len();
    file.set_len(len.saturating_sub(bytes)).unwrap();
    let _ = file.sync_all();
    file
}

fn fills_up(folder: &Path) {
    let object = object(1, 1, 300 * UNIT);
    let tier = tier(&folder.join("tier"), 1 << 30);
    let local = tier.local(&object).unwrap();
    (0..8).for_each(|unit| put(&local, unit).unwrap());
    // Room for a few more, then others must go.
    let filler = fill_but(folder, 10 * UNIT);
    for unit in 8..200 {
        put(&local, unit).unwrap();
        assert!(read_unit(&local, unit));
    }
    let left = there(&local).len();
    assert!((8..=20).contains(&left), "{left}");
    // No room, and nothing to evict.
    tier.remove(None).unwrap();
    let filler_again = fill_but(folder, 0);
    let error = put(&local, 250).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert!(!local.has(250 * UNIT..251 * UNIT) && local.stats().wrong == 0);
    drop((filler, filler_again));
    std::fs::remove_file(folder.join("filler")).unwrap();
    // Journalled deletion frees the blocks some time after the next commit.
    let begun = Instant::now();
    while let Err(error) = put(&local, 250) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        // SAFETY: no preconditions.
        unsafe { libc::sync() };
    }
    assert!(read_unit(&local, 250));
    drop((local, tier));
    check(&folder.join("tier"), 1 << 30);
}

#[test]
fn a_full_tmpfs_is_an_error_and_nothing_wrong() {
    if let Some(mount) = Mount::new("tmpfs", "size=24m,mode=700") {
        fills_up(mount.0.path());
    }
}

#[test]
fn a_full_ext4_is_an_error_and_nothing_wrong() {
    match Ext4::new(folder(), folder(), 40 << 20, &[]) {
        Ok(disk) => fills_up(&disk.path("")),
        Err(why) => skip(why),
    }
}
