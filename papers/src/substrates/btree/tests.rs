//! The store against a `BTreeMap`, under threads, and opened again; over kernel mmap and over FastMap.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;

const CAPACITY: u64 = 256 << 20;

fn file() -> File {
    tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn kernel(file: &File) -> KernelRegion {
    // SAFETY: nobody else has the file.
    unsafe { KernelRegion::map(file.try_clone().unwrap(), CAPACITY, false) }.unwrap()
}

/// A cache much smaller than what is stored.
fn fastmap(file: &File) -> FastmapRegion {
    let cache = fastmap::Cache::new(2 << 20).unwrap();
    // SAFETY: nobody else has the file.
    unsafe { FastmapRegion::map(file.try_clone().unwrap(), CAPACITY, &cache) }.unwrap()
}

/// Keys of every kind: empty, short, equal in 16 bytes and more, with zeros at the end.
fn key(chance: &mut Pcg64Mcg) -> Vec<u8> {
    let number = chance.random_range(0..4000u32);
    match chance.random_range(0..4) {
        0 => format!("{number}").into_bytes(),
        1 => format!("the same sixteen bytes {number:05}").into_bytes(),
        2 => vec![0; number as usize % 40],
        _ => number.to_be_bytes().repeat(1 + number as usize % 9),
    }
}

fn value(chance: &mut Pcg64Mcg) -> Vec<u8> {
    let len = if chance.random_ratio(1, 500) { 100_000 } else { chance.random_range(0..300) };
    vec![chance.random(); len]
}

fn contents<R: Region>(tree: &Tree<R>, from: &[u8], most: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    tree.scan(from, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        found.len() < most
    });
    found
}

fn as_a_map<R: Region>(map: impl Fn(&File) -> R, seed: u64) {
    let (file, mut chance) = (file(), Pcg64Mcg::seed_from_u64(seed));
    let mut tree = Tree::create(map(&file)).unwrap();
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for step in 0..30_000 {
        let key = key(&mut chance);
        match chance.random_range(0..10) {
            0..=4 => {
                let value = match expected.get(&key) {
                    // Of the same length half of the time: where it is.
                    Some(old) if chance.random() => vec![chance.random(); old.len()],
                    _ => value(&mut chance),
                };
                let is_new = tree.put(&key, &value).unwrap();
                assert_eq!(is_new, expected.insert(key, value).is_none());
            }
            5 => {
                let add = |value: &mut [u8]| value.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                assert_eq!(tree.modify(&key, add).unwrap(), expected.get_mut(&key).map(|value| add(value)));
            }
            6 => {
                let most = chance.random_range(1..100);
                let found = contents(&tree, &key, most);
                let right = expected.range(key..).take(most).map(|(key, value)| (key.clone(), value.clone()));
                assert_eq!(found, right.collect::<Vec<_>>());
            }
            _ => assert_eq!(tree.get(&key, <[u8]>::to_vec).as_ref(), expected.get(&key)),
        }
        if step % 10_000 == 9_999 {
            tree.flush().unwrap();
            drop(tree);
            tree = Tree::open(map(&file)).unwrap();
        }
    }
    let right: Vec<_> = expected.into_iter().collect();
    assert_eq!(contents(&tree, b"", usize::MAX), right);
}

#[test]
fn it_is_a_map_over_kernel_mmap() {
    (0..3).for_each(|seed| as_a_map(kernel, seed));
}

#[test]
fn it_is_a_map_over_a_small_cache_of_ours() {
    as_a_map(fastmap, 3);
}

/// Threads insert keys of their own, scattered over those of all, and change some that all share; others read and scan
/// meanwhile.
fn threads<R: Region>(map: impl Fn(&File) -> R, each: u64) {
    const WRITERS: u64 = 4;
    const SHARED: u64 = 64;
    let file = file();
    let tree = Tree::create(map(&file)).unwrap();
    let name = |number: u64| format!("{:020}{number:05}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
    for number in 0..SHARED {
        tree.put(&name(number), &[0; 16]).unwrap();
    }
    let (done, sums) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (tree, name, done, sums) = (&tree, &name, &done, &sums);
            scope.spawn(move || {
                for n in 0..each {
                    let number = SHARED + n * WRITERS + writer;
                    assert!(tree.put(&name(number), &number.to_le_bytes().repeat(40)).unwrap());
                    let shared = name(number % SHARED);
                    let add = |value: &mut [u8]| {
                        let sum = u64::from_le_bytes(value[..8].try_into().unwrap()) + number;
                        value.copy_from_slice(&sum.to_le_bytes().repeat(2));
                    };
                    tree.modify(&shared, add).unwrap().unwrap();
                    sums.fetch_add(number, Relaxed);
                    let earlier = SHARED + n / 2 * WRITERS + writer;
                    let right = |value: &[u8]| value == earlier.to_le_bytes().repeat(40);
                    assert_eq!(tree.get(&name(earlier), right), Some(true));
                }
                done.fetch_add(1, Relaxed);
            });
        }
        for reader in 0..2 {
            let (tree, name, done) = (&tree, &name, &done);
            scope.spawn(move || {
                let mut chance = Pcg64Mcg::seed_from_u64(reader);
                while done.load(Relaxed) < WRITERS {
                    let shared = name(chance.random_range(0..SHARED));
                    let is_whole = tree.get(&shared, |value| value[..8] == value[8..16]);
                    assert_eq!(is_whole, Some(true), "a value is seen whole");
                    let mut before = Vec::new();
                    let mut left = 300;
                    tree.scan(&shared, |key, _| {
                        assert!(key > &before[..], "keys come in order, once");
                        before = key.to_vec();
                        left -= 1;
                        left > 0
                    });
                }
            });
        }
    });
    let all = contents(&tree, b"", usize::MAX);
    assert_eq!(all.len() as u64, SHARED + WRITERS * each);
    let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
    let sum: u64 = all.iter().filter(|(_, value)| value.len() == 16).map(|(_, value)| number(value)).sum();
    assert_eq!(sum, sums.load(Relaxed), "no change was lost");
    for (key, value) in all.iter().filter(|(_, value)| value.len() != 16) {
        assert_eq!(*key, name(number(value)));
    }
    assert!(tree.root_changes() > 20, "the root was changed under the readers");
}

#[test]
fn threads_over_kernel_mmap() {
    threads(kernel, 10_000);
}

#[test]
fn threads_over_a_small_cache_of_ours() {
    threads(fastmap, 4_000);
}

#[test]
fn a_tree_of_three_levels_and_keys_in_order() {
    let file = file();
    let mut tree = Tree::create(kernel(&file)).unwrap();
    const KEYS: u32 = 60_000;
    for number in 0..KEYS {
        // Ascending from the left, descending from the right.
        let number = if number % 2 == 0 { number } else { 2 * KEYS - number };
        assert!(tree.put(&number.to_be_bytes(), b"").unwrap());
    }
    let version = tree.root_changes();
    assert!(tree.root.current(&tree.space, &tree.root.change()).level() >= 2);
    let keys = contents(&tree, b"", usize::MAX);
    assert_eq!(keys.len() as u32, KEYS);
    tree.flush().unwrap();
    drop(tree);
    let tree = Tree::open(kernel(&file)).unwrap();
    assert_eq!((tree.root_changes(), contents(&tree, b"", usize::MAX)), (version, keys));
}

#[test]
fn what_was_not_flushed_is_refused_and_so_is_what_is_no_store() {
    let file = file();
    let refused = |file: &File| Tree::open(kernel(file)).map(drop).unwrap_err().to_string();
    assert_eq!(refused(&file), "store: holds no B+-tree: make it anew");
    let mut tree = Tree::create(kernel(&file)).unwrap();
    tree.put(b"key", b"value").unwrap();
    drop(tree);
    assert!(refused(&file).contains("was changed after it was flushed last"));
    let mut tree2 = Tree::create(kernel(&file)).unwrap();
    tree2.put(b"key", b"value").unwrap();
    tree2.flush().unwrap();
    drop(tree2);
    tree = Tree::open(kernel(&file)).unwrap();
    assert_eq!(tree.get(b"key", <[u8]>::to_vec).unwrap(), b"value");
    tree.put(b"key", b"other").unwrap();
    drop(tree);
    assert!(refused(&file).contains("was changed after it was flushed last"));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_lost() {
    let file = file();
    // SAFETY: nobody else has the file.
    let region = unsafe { KernelRegion::map(file, 4 << 20, false) }.unwrap();
    let tree = Tree::create(region).unwrap();
    let too_long = tree.put(&[1; LONGEST_KEY + 1], b"").unwrap_err().to_string();
    assert!(too_long.contains("too long: keys have at most 4096 bytes"), "{too_long}");
    tree.put(&[1; LONGEST_KEY], &[2; LONGEST_VALUE]).unwrap();
    let mut kept = 1;
    let full = loop {
        match tree.put(format!("{kept}").as_bytes(), &[3; 10_000]) {
            Ok(_) => kept += 1,
            Err(full) => break full.to_string(),
        }
    };
    assert!(full.contains("4194304 bytes are mapped for it"), "{full}");
    assert_eq!(contents(&tree, b"", usize::MAX).len(), kept);
}
