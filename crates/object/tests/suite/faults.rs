//! What goes wrong with requests, stores and disks is put right, or is an error within the deadline.

use crate::common::*;
use crate::store::{Fault, Store};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn requests_that_fail_are_sent_again() {
    if !ready() {
        return;
    }
    let bytes = pattern(2 * MIB);
    for fault in [
        Fault::HalfSent,
        Fault::Reset,
        Fault::WrongLength,
        Fault::WrongRange,
        Fault::Status(500, None),
        Fault::Status(503, None),
        Fault::Status(429, None),
    ] {
        let (store, _folder, tier) = store_with(&bytes);
        store.fail([fault.clone(), fault.clone()]);
        let map = open(&tier, &store.url("/object"));
        let mut copy = vec![0; bytes.len()];
        map.read_at(&mut copy, 0).unwrap();
        assert!(copy == **bytes, "{fault:?}");
        assert!(map.stats().retries >= 1, "{fault:?}: {:?}", map.stats());
    }
}

#[test]
fn a_store_that_wants_to_be_left_alone_is() {
    if !ready() {
        return;
    }
    let bytes = pattern(MIB);
    let (store, _folder, tier) = store_with(&bytes);
    store.fail([Fault::Status(503, Some(1))]);
    let map = open(&tier, &store.url("/object"));
    assert_eq!(map[0], bytes[0]);
    let asked = &store.settings().asked;
    assert!(asked[1].1 - asked[0].1 >= Duration::from_secs(1));
}

#[test]
fn a_store_that_wants_to_be_left_alone_for_longer_than_anybody_waits_is_asked_once() {
    if !ready() {
        return;
    }
    for wait in [60, u64::MAX] {
        let (store, _folder, tier) = store_with(&pattern(MIB));
        store.settings().always = Some(Fault::Status(503, Some(wait)));
        let map = open_for(&tier, &store.url("/object"), Duration::from_secs(1));
        let begun = Instant::now();
        assert!(map.read_at(&mut [0], 0).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(store.settings().asked.len() <= 3, "{:?}", store.settings().asked);
    }
}

#[test]
fn a_store_that_gives_no_ranges_is_told() {
    if !ready() {
        return;
    }
    let (store, _folder, tier) = store_with(&pattern(MIB));
    store.settings().has_no_ranges = true;
    let error = options(&tier).map(&store.url("/object")).unwrap_err().to_string();
    assert!(error.contains("no ranges"), "{error}");
}

#[test]
fn a_store_that_dies_is_an_error_within_the_deadline() {
    if !ready() {
        return;
    }
    let bytes = pattern(8 * MIB);
    for fault in [
        None,
        Some(Fault::Hang),
        Some(Fault::Stuck),
        Some(Fault::Status(503, None)),
        Some(Fault::Status(503, Some(60))),
    ] {
        let (store, _folder, tier) = store_with(&bytes);
        let map = open_for(&tier, &store.url("/object"), Duration::from_secs(1));
        assert_eq!(map[0], bytes[0]);
        let mut store = Some(store);
        match &fault {
            Some(fault) => store.as_ref().unwrap().settings().always = Some(fault.clone()),
            None => store = None,
        }
        for (way, read) in [
            &(|| map.read_at(&mut [0], 4 * MIB)) as &dyn Fn() -> fastmap::Result<()>,
            &|| map.pin(5 * MIB, PAGE).map(drop),
            &|| map.gather(&[(6 * MIB, 1), (7 * MIB, 1)], &mut [0; 2]),
        ]
        .into_iter()
        .enumerate()
        {
            let begun = Instant::now();
            let error = read().unwrap_err().to_string();
            let took = begun.elapsed();
            assert!(error.contains("within the deadline"), "{fault:?}: {error}");
            println!("{fault:?}, {way}: {took:?}");
            // A page of a gather may wait for a thread that reads ahead, which gives up after two seconds, before it is asked for.
            let longest = Duration::from_millis(if way == 2 { 4000 } else { 2000 });
            assert!(took < longest, "{fault:?}, {way}: {took:?}");
        }
        assert_eq!(map[1], bytes[1]);
        drop(store);
    }
}

#[test]
fn a_store_that_is_not_there_is_soon_an_error() {
    if !ready() {
        return;
    }
    let folder = folder();
    let tier = tier(folder.path(), 64 * MIB);
    let address = Store::start().address();
    let begun = Instant::now();
    let error = options(&tier).map(&format!("http://{address}/object")).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("can be reached"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_map_that_waits_for_ever_does() {
    if !ready() {
        return;
    }
    let bytes = pattern(2 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let map = options(&tier).deadline(None).map(&store.url("/object")).unwrap();
    let address = store.address();
    let object = store.settings().objects["/object"].clone();
    drop(store);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| map[MIB]);
        // The store lets its address go in its own time.
        let mut nobody = None;
        until("the address is free", || {
            nobody = TcpListener::bind(address).ok();
            nobody.is_some()
        });
        // Nobody answers, and the map asks again and again.
        (0..5).for_each(|_| drop(nobody.as_ref().unwrap().accept().unwrap()));
        assert!(!read.is_finished());
        drop(nobody);
        let store = Store::at(address);
        store.settings().objects.insert("/object".to_owned(), object);
        assert_eq!(read.join().unwrap(), bytes[MIB]);
    });
}

#[test]
fn a_late_request_is_sent_twice() {
    if !ready() {
        return;
    }
    let bytes = pattern(64 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let map = open(&tier, &store.url("/object"));
    // In no order that could be told in advance, and no two beside each other.
    let (mut rows, mut random) = ((0..128).collect::<Vec<usize>>(), Random::new(seed(4)));
    (1..128).rev().for_each(|row| rows.swap(row, random.below(row + 1)));
    let read = |row: usize| {
        let (at, begun) = (rows[row] * (MIB / 2), Instant::now());
        assert_eq!(map[at], bytes[at]);
        begun.elapsed()
    };
    (0..100).for_each(|row| _ = read(row));
    // What is late by itself, on a busy machine, takes of the part of all requests that are sent twice.
    let late = Duration::from_secs(2);
    let times: Vec<_> = (100..105)
        .map(|row| {
            store.fail([Fault::Late(late)]);
            read(row)
        })
        .collect();
    assert!(map.stats().hedges >= 1 && times.iter().any(|time| *time < late), "{times:?}, {:?}", map.stats());
}

#[test]
fn bytes_that_flip_on_disk_are_fetched_again() {
    if !ready() {
        return;
    }
    let bytes = pattern(4 * MIB);
    let (store, folder, tier) = store_with(&bytes);
    let map = open(&tier, &store.url("/object"));
    assert!(map[..] == bytes[..]);
    let is_copy =
        |path: &std::path::PathBuf| std::fs::metadata(path).is_ok_and(|file| file.len() == bytes.len() as u64);
    let mut files: Vec<_> = Vec::new();
    let mut folders = vec![folder.path().join("tier")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path)
            } else if is_copy(&path) {
                files.push(path)
            }
        }
    }
    let copy = std::fs::OpenOptions::new().write(true).open(&files[0]).unwrap();
    for at in [0, MIB + 5, 3 * MIB] {
        copy.write_all_at(&[!bytes[at]], at as u64).unwrap();
    }
    let again = open(&tier, &store.url("/object"));
    assert!(again[..] == bytes[..]);
    let stats = again.stats();
    // Who has read the old bytes while another fetched new ones finds these wrong, too.
    assert!((3..=6).contains(&stats.wrong_units) && (3..=6).contains(&(stats.fetched as usize / UNIT)), "{stats:?}");
}

#[test]
fn a_disk_that_is_full_is_an_error_and_no_wrong_byte() {
    if !ready() {
        return;
    }
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skip("a disk to fill needs root");
    }
    let bytes = pattern(24 * MIB);
    let store = Store::start();
    store.put("/object", &bytes);
    let folder = folder();
    let disk = Disk::new(folder.path(), 10 * MIB);
    let tier = tier(folder.path(), 64 * MIB);
    let map = open_for(&tier, &store.url("/object"), Duration::from_secs(20));
    let mut copy = vec![0; MIB];
    let mut wrong = 0;
    for at in (0..24 * MIB).step_by(MIB) {
        match map.read_at(&mut copy, at) {
            Ok(()) => assert!(copy == bytes[at..at + MIB], "{at}"),
            Err(error) => {
                assert!(error.to_string().contains("no room"), "{error}");
                wrong += 1;
            }
        }
    }
    println!("{wrong} of 24 had no room");
    drop((map, tier, disk));
}

/// A small disk at a folder.
struct Disk(std::path::PathBuf);

impl Disk {
    fn new(folder: &std::path::Path, bytes: usize) -> Self {
        let at = folder.join("tier");
        std::fs::create_dir(&at).unwrap();
        let options = format!("size={bytes},mode=0700");
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).status();
        assert!(mounted.unwrap().success());
        Disk(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn load_and_faults_at_once() {
    if !ready() {
        return;
    }
    let bytes = pattern(32 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let map = open(&tier, &store.url("/object"));
    let faults = [Fault::HalfSent, Fault::Reset, Fault::WrongLength, Fault::WrongRange, Fault::Status(503, None)];
    let mut random = Random::new(seed(8));
    store.fail((0..200).map(|_| match random.below(12) {
        at if at < faults.len() => faults[at].clone(),
        _ => Fault::Late(Duration::from_millis(random.below(20) as u64)),
    }));
    let (map, bytes) = (&map, &Arc::clone(&bytes));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..200 {
                    let at = random.below(bytes.len() - PAGE);
                    let mut copy = [0; PAGE];
                    map.read_at(&mut copy, at).unwrap();
                    assert_eq!(copy, bytes[at..at + PAGE]);
                }
            });
        }
    });
}
