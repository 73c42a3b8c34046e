//! Finds the region that holds a file, by the file's identity. Every system call that names a file asks this.

use crate::page::entry::{MOST_REGIONS, RegionId, RegionVisit};
use crate::region::region::Region;
use crate::region::registry::{self, InUse};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Files in the engine.
static FILES: AtomicUsize = AtomicUsize::new(0);
/// How many files have come into the engine so far.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// For each hash, how many files in the engine have an identity with this hash. Zero answers at once for a file that is not in the engine.
static HASHES: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];
/// The identities (device and inode), by the region's number. A number keeps its last region's identity until another region gets the
/// number.
static NAMES: [[AtomicU64; 2]; MOST_REGIONS] = [const { [const { AtomicU64::new(0) }; 2] }; MOST_REGIONS];

fn hash_of([device, inode]: [u64; 2]) -> &'static AtomicU32 {
    let mixed = (device ^ inode.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    &HASHES[(mixed >> 32) as usize % HASHES.len()]
}

/// Makes a region known by its file; called by the registry under its lock.
pub fn note(region: &Region) {
    let numbers = region.store().identity().numbers();
    let name = &NAMES[region.id().0 as usize];
    name.iter().zip(numbers).for_each(|(word, number)| word.store(number, Ordering::Relaxed));
    // Release: a thread that sees the count sees the identity.
    hash_of(numbers).fetch_add(1, Ordering::Release);
    FILES.fetch_add(1, Ordering::Release);
    // Release: a thread that sees the new epoch sees the count.
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Takes `note` back. The identity stays until another region gets the number.
pub fn forget(region: &Region) {
    hash_of(region.store().identity().numbers()).fetch_sub(1, Ordering::Release);
    FILES.fetch_sub(1, Ordering::Release);
}

/// Whether any file is in the engine. One load.
#[inline]
pub fn any() -> bool {
    FILES.load(Ordering::Relaxed) > 0
}

/// Grows whenever a file comes. While it stays the same, a file that `may_know` has denied is not in the engine.
#[inline]
pub fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// False: no region holds this file.
#[inline]
pub fn may_know(numbers: [u64; 2]) -> bool {
    hash_of(numbers).load(Ordering::Acquire) != 0
}

/// The numbers that regions of a file have, or had last.
fn numbers_of(numbers: [u64; 2]) -> impl Iterator<Item = RegionId> {
    let is_named = move |number: &u32| {
        let words = &NAMES[*number as usize];
        [0, 1].map(|at: usize| words[at].load(Ordering::Relaxed)) == numbers
    };
    (0..registry::numbers() as u32).filter(is_named).map(RegionId)
}

/// The regions of a file, entered one at a time. There is more than one only while a larger one replaces another. The caller has signals
/// blocked: a region waits for threads that have entered it.
pub fn find(numbers: [u64; 2]) -> impl Iterator<Item = InUse<'static>> {
    // Compared once more: the number may belong to a region of another file by then.
    numbers_of(numbers).filter_map(registry::enter).filter(move |region| region.store().identity().numbers() == numbers)
}

/// The same regions, visited. Any thread may do this, even one that a handler then takes away for ever.
pub fn visit(numbers: [u64; 2]) -> impl Iterator<Item = (&'static Region, RegionVisit)> {
    numbers_of(numbers)
        .filter_map(registry::visit)
        .filter(move |(region, _)| region.store().identity().numbers() == numbers)
}
