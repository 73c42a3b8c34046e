//! What is put into a local copy comes out of it, for as long as it is there; versions and URLs are kept apart.

use crate::common::*;
use fastmap_tier::{Asking, Error, Tier, TierOrigin, UNIT, Version};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn what_is_put_there_is_read_by_whoever_opens_it() {
    let folder = folder();
    let object = object(1, 1, 5 * UNIT + 5000);
    let tier = tier(folder.path(), 64 * MIB);
    let local = tier.local(&object).unwrap();
    assert_eq!((local.units(), local.file().metadata().unwrap().len()), (6, object.len));
    assert!(!local.has(0..1) && local.has(0..0) && local.has(object.len..u64::MAX));
    for unit in [5, 0, 3] {
        put(&local, unit).unwrap();
        put(&local, unit).unwrap();
        assert!(read_unit(&local, unit));
    }
    assert_eq!(there(&local), [0, 3, 5]);
    assert!(local.has(5 * UNIT..u64::MAX) && !local.has(2 * UNIT..4 * UNIT) && local.has(3 * UNIT + 7..4 * UNIT));
    let again = tier.local(&object).unwrap();
    assert!(there(&again) == [0, 3, 5] && read_unit(&again, 3));
    let put_bytes = 2 * UNIT + 5000;
    assert_eq!((local.stats().put, local.stats().hit, local.stats().wrong), (put_bytes, put_bytes, 0));
    drop((local, again, tier));
    let tier = Tier::open(Some(folder.path()), None).unwrap();
    assert_eq!(tier.limit(), 64 * MIB, "what it was given last");
    let local = tier.local(&object).unwrap();
    assert!(there(&local) == [0, 3, 5] && read_unit(&local, 5));
    drop((local, tier));
    check(folder.path(), 64 * MIB);
}

#[test]
fn objects_of_no_bytes_and_of_many() {
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let empty = tier.local(&object(1, 1, 0)).unwrap();
    assert!(empty.units() == 0 && empty.has(0..10) && empty.is_right(0, &[]));
    assert!(empty.put(0, &[]).is_err() && empty.claim(0).is_none() && !empty.wait(0, Duration::ZERO));
    assert!(!empty.is_right(0, &[1]));
    // 8 TiB, in one of whose units nearly everything is.
    let large = tier.local(&object(2, 1, (8 << 40) + 1)).unwrap();
    let last = large.units() - 1;
    for unit in [0, 1 << 24, last] {
        put(&large, unit).unwrap();
        assert!(read_unit(&large, unit));
    }
    assert!(!large.has(0..2 * UNIT) && large.has(last * UNIT..u64::MAX));
    assert!(on_disk(folder.path()) < 2 * MIB);
    drop((empty, large, tier));
    check(folder.path(), 64 * MIB);
}

#[test]
fn parts_that_are_no_units_and_reads_that_are_no_pages_are_refused() {
    let folder = folder();
    let object = object(1, 1, 2 * UNIT + 5000);
    let local = tier(folder.path(), 64 * MIB).local(&object).unwrap();
    for (unit, len) in [(0, UNIT - 1), (0, UNIT + 1), (2, UNIT), (2, 4999), (3, UNIT), (u64::MAX, UNIT)] {
        let refused = local.put(unit, &vec![0; len as usize]).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    }
    put(&local, 0).unwrap();
    let bytes = bytes_of(&object, 0);
    assert!(local.is_right(4096, &bytes[4096..]) && local.is_right(0, &[]));
    assert!(
        !local.is_right(1, &bytes[1..4097]) && !local.is_right(0, &bytes[..100]) && !local.is_right(u64::MAX, &[1])
    );
    assert!(local.has(0..UNIT) && local.stats().wrong == 0);
}

#[test]
fn versions_never_mix_and_old_ones_go_when_nobody_has_them_open() {
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let [one, two] = [object(1, 1, 3 * UNIT), object(1, 2, 3 * UNIT)];
    let old = tier.local(&one).unwrap();
    put(&old, 1).unwrap();
    let new = tier.local(&two).unwrap();
    assert!(there(&new).is_empty() && there(&old) == [1]);
    put(&new, 1).unwrap();
    put(&old, 2).unwrap();
    assert!(read_unit(&new, 1) && read_unit(&old, 1) && read_unit(&old, 2));
    let another = tier.local(&object(2, 1, UNIT)).unwrap();
    put(&another, 0).unwrap();
    assert_eq!(files(folder.path(), "data").len(), 3);
    let used = tier.used();
    drop(old);
    assert_eq!((files(folder.path(), "data").len(), files(folder.path(), "index").len()), (2, 2));
    assert!(tier.used() < used - UNIT && there(&new) == [1]);
    // Of another length; not in use, it goes at once.
    drop(new);
    let longer = tier.local(&Version { len: 4 * UNIT, ..two.clone() }).unwrap();
    assert!(there(&longer).is_empty() && files(folder.path(), "data").len() == 2);
    // One that is opened again is no longer old.
    let back = tier.local(&two).unwrap();
    put(&back, 0).unwrap();
    drop(back);
    drop(tier.local(&two).unwrap());
    assert_eq!(there(&tier.local(&two).unwrap()), [0]);
    assert!(read_unit(&another, 0));
}

#[test]
fn without_etag_or_version_the_modification_time_tells_and_without_that_nothing_does() {
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let at =
        |modified: Option<&str>| Version { etag: None, modified: modified.map(String::from), ..object(1, 1, UNIT) };
    put(&tier.local(&at(Some("Mon"))).unwrap(), 0).unwrap();
    assert_eq!(there(&tier.local(&at(Some("Mon"))).unwrap()), [0]);
    assert!(there(&tier.local(&at(Some("Tue"))).unwrap()).is_empty());
    let error = tier.local(&at(None)).unwrap_err();
    assert!(matches!(error, Error::Unversioned { .. }) && error.to_string().contains("s3://bucket/1"), "{error}");
}

#[test]
fn a_unit_is_claimed_once() {
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let object = object(1, 1, 8 * UNIT);
    let [local, other] = [(); 2].map(|()| tier.local(&object).unwrap());
    let lock = local.claim(3).unwrap();
    assert!(local.claim(3).is_none() && other.claim(3).is_none() && lock.unit() == 3);
    let next = other.claim(4).unwrap();
    assert!(local.claim(4).is_none());
    std::thread::scope(|scope| {
        // Through the other it waits for the claim.
        let putting = scope.spawn(|| put(&other, 3));
        assert!(!local.wait(3, Duration::from_millis(20)));
        put(&local, 3).unwrap();
        assert!(!putting.is_finished());
        drop(lock);
        putting.join().unwrap().unwrap();
    });
    assert!(local.claim(3).is_some() && other.wait(3, Duration::ZERO));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| while !local.wait(4, Duration::from_secs(60)) {});
        put(&other, 4).unwrap();
        waiting.join().unwrap();
        drop(next);
        // Many at once put the same.
        for _ in 0..4 {
            scope.spawn(|| put(&local, 5).unwrap());
            scope.spawn(|| put(&other, 5).unwrap());
        }
    });
    assert!(read_unit(&local, 5) && local.stats().put + other.stats().put == 3 * UNIT);
}

#[test]
fn what_fault_handlers_call_allocates_nothing() {
    let folder = folder();
    let object = object(1, 1, 8 * UNIT);
    let local = tier(folder.path(), 64 * MIB).local(&object).unwrap();
    put(&local, 1).unwrap();
    let (right, mut wrong) = (bytes_of(&object, 1), bytes_of(&object, 1));
    wrong[5000] ^= 1;
    local.file().sync_all().unwrap();
    let data = std::fs::File::options().write(true).open(&files(folder.path(), "data")[0]).unwrap();
    let before = allocations();
    assert!(!local.has(0..2 * UNIT) && local.has(UNIT..2 * UNIT) && local.is_right(UNIT, &right));
    data.write_all_at(&wrong[4096..8192], UNIT + 4096).unwrap();
    assert!(!local.is_right(UNIT, &wrong) && !local.has(UNIT..2 * UNIT));
    assert_eq!(allocations(), before);
    assert_eq!(local.stats().wrong, 1);
}

#[test]
fn what_is_there_is_listed_and_removed() {
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let [one, two] = [object(1, 1, 3 * UNIT), object(2, 1, 3 * UNIT)];
    let local = tier.local(&one).unwrap();
    (0..3).for_each(|unit| put(&local, unit).unwrap());
    put(&tier.local(&two).unwrap(), 0).unwrap();
    let mut listed = tier.list().unwrap();
    listed.sort_by_key(|one| one.version.url.clone());
    assert_eq!((listed[0].version.clone(), listed[1].version.clone()), (one, two));
    assert_eq!([listed[0].in_use, listed[1].in_use], [true, false]);
    assert!(listed[0].local >= 3 * UNIT && listed[1].local >= UNIT && listed[1].local < 2 * UNIT);
    assert!(listed[0].last_used.elapsed().unwrap() < Duration::from_secs(3600));
    assert_eq!(tier.remove(Some("s3://bucket/3")).unwrap(), 0);
    assert!(tier.remove(Some("s3://bucket/1")).unwrap() >= 3 * UNIT);
    assert!(there(&local).is_empty() && tier.list().unwrap().len() == 2);
    put(&local, 2).unwrap();
    assert!(read_unit(&local, 2));
    drop(local);
    assert!(tier.remove(None).unwrap() >= 2 * UNIT);
    assert!(tier.list().unwrap().is_empty() && files(folder.path(), "data").is_empty() && tier.used() < 20 * PAGE);
}

#[test]
fn what_is_put_there_is_read_past_the_page_cache() {
    use std::os::unix::fs::OpenOptionsExt;
    let folder = folder();
    let object = object(1, 1, 8 * UNIT);
    let local = tier(folder.path(), 64 * MIB).local(&object).unwrap();
    let direct =
        std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(&files(folder.path(), "data")[0]);
    let direct = match direct {
        Ok(direct) => direct,
        Err(why) => return skip(format!("O_DIRECT: {why}")),
    };
    let mut buffer = vec![0; 3 * 4096];
    let start = buffer.as_ptr().align_offset(4096);
    for unit in 0..8 {
        put(&local, unit).unwrap();
        direct.read_exact_at(&mut buffer[start..start + 8192], unit * UNIT + 8192).unwrap();
        assert!(local.is_right(unit * UNIT + 8192, &buffer[start..start + 8192]));
    }
}

#[test]
fn to_the_engine_it_is_an_origin() {
    use fastmap::Origin;
    let folder = folder();
    let object = object(1, 1, 8 * UNIT);
    let local = tier(folder.path(), 64 * MIB).local(&object).unwrap();
    let asking = Asking::anonymous().unwrap();
    let origin = TierOrigin::new(local.clone(), asking.clone(), 9, Some(Duration::from_millis(100)));
    assert_eq!(origin.name().to_str(), Some("s3://bucket/1"));
    assert_eq!(origin.bring(0..1, None), Err(libc::ETIMEDOUT));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asking.serve(&stop, |request| {
                let units = request.range.start / UNIT..request.range.end.div_ceil(UNIT);
                units.for_each(|unit| put(&local, unit).unwrap());
                request.answer(Ok(()));
            })
        });
        let patient = Some(Duration::from_secs(60));
        let origin = TierOrigin::new(local.clone(), asking.clone(), 9, None);
        assert!(!origin.has(0..1) && origin.bring(UNIT - 1..UNIT + 1, patient).is_ok() && origin.has(0..2 * UNIT));
        assert!(origin.is_right(0, &bytes_of(&object, 0)) && origin.bring(5..6, Some(Duration::ZERO)).is_ok());
        origin.ask(7 * UNIT..8 * UNIT);
        until("it was asked for", || origin.has(7 * UNIT..8 * UNIT));
        stop.store(true, Ordering::Release);
        asking.ring();
    });
    assert_eq!(origin.bring(6 * UNIT..7 * UNIT, None), Err(libc::ESHUTDOWN));
    for error in [libc::ETIMEDOUT, libc::ESTALE, libc::EACCES, libc::ENOENT, libc::ENOSPC, libc::ESHUTDOWN, libc::EIO] {
        assert!(origin.explain(error).is_some());
    }
    assert!(origin.explain(libc::EPERM).is_none());
}
