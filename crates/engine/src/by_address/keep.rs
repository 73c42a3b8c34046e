//! Locks, and pins that are named by their range: both keep pages of maps in memory, by address.

use super::access::{as_it_is, bytes_at, failed, parts_of, unusable};
use super::own::note_kept;
use super::table::{Share, Table, intersection};
use crate::coherence::to_kernel;
use crate::error::{Error, Result};
use crate::pin::pin::Hold;
use crate::region::region::Region;
use crate::sys::file::Identity;
use std::ops::Range;
use std::sync::Arc;

/// Pages locked by mlock(2).
#[derive(Debug)]
pub struct Locked {
    pub at: Range<usize>,
    // In this order: the pin goes before the region may.
    pub hold: Hold<'static>,
    pub share: Arc<Share>,
}

impl Locked {
    /// Cuts it into the part that lies in a range, and up to two that do not.
    fn cut(mut self, range: &Range<usize>) -> (Self, impl Iterator<Item = Self>) {
        let within = intersection(&self.at, range).unwrap_or(self.at.end..self.at.end);
        let page = |address| self.share.region.address().page_at(address);
        let (first, end) = (page(within.start), page(within.end));
        let piece = |at, hold, share: &Arc<Share>| Locked { at, hold, share: share.clone() };
        let mut inside = piece(within.clone(), self.hold.split_off(first), &self.share);
        let after = piece(within.end..self.at.end, inside.hold.split_off(end), &self.share);
        self.at.end = within.start;
        (inside, [self, after].into_iter().filter(|one| !one.at.is_empty()))
    }
}

/// A lock or pin that comes back if the conversion of its file fails.
#[derive(Debug)]
pub struct Unlocked {
    pub at: Range<usize>,
    pub share: Arc<Share>,
    /// Its key in [`Table::pins`]; `None` for a lock.
    pub key: Option<PinKey>,
}

/// Names a range that was asked to be kept in memory ([`keep`]), and later to be let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PinKey {
    pub addr: usize,
    pub len: usize,
    pub writing: bool,
}

/// The pins of a key.
#[derive(Debug, Default)]
pub struct Pins {
    /// How often it was asked for.
    pub count: usize,
    /// Its cached parts; gone with their maps.
    pub holds: Vec<Locked>,
}

impl Table {
    /// Takes away the locks of a range.
    pub fn unlock(&mut self, range: &Range<usize>) -> Vec<Locked> {
        let met: Vec<_> = self.locked.extract_if(.., |one| intersection(&one.at, range).is_some()).collect();
        let cut = met.into_iter().map(|one| {
            let (inside, left) = one.cut(range);
            self.locked.extend(left);
            inside
        });
        cut.collect()
    }

    /// Whether any page of a range is locked.
    pub fn is_locked(&self, range: &Range<usize>) -> bool {
        self.locked.iter().any(|one| intersection(&one.at, range).is_some())
    }

    /// Takes away what is in the way of converting a file: its locks, and those pins that are asked for by an address
    /// in a range.
    pub fn unlock_file(&mut self, identity: Identity, range: &Range<usize>) -> Vec<Unlocked> {
        let is_of_file = |one: &Locked| one.share.identity == identity;
        let unlocked = |one: Locked, key| Unlocked { at: one.at, share: one.share, key };
        let locks = self.locked.extract_if(.., |one| is_of_file(one)).map(|one| unlocked(one, None));
        let mut gone: Vec<_> = locks.collect();
        for (key, pins) in &mut self.pins {
            let in_the_way = |one: &mut Locked| is_of_file(one) && intersection(&one.at, range).is_some();
            gone.extend(pins.holds.extract_if(.., in_the_way).map(|one| unlocked(one, Some(*key))));
        }
        gone
    }
}

/// Keeps a range of bytes in memory for system calls, with `writing` also writable, until [`let_go`] of the same range has been called as often.
/// Memory that is not cached is brought in, and left to the kernel.
///
/// # Errors
/// As for [`Map::pin`](crate::Map::pin) and [`MapMut::pin_mut`](crate::MapMut::pin_mut); [`Error::Io`] with EFAULT for
/// what is not mapped, or not for that.
pub fn keep(addr: usize, len: usize, writing: bool) -> Result<()> {
    as_it_is(|| keep_parts(addr, len, writing))
}

fn keep_parts(addr: usize, len: usize, writing: bool) -> Result<()> {
    let range = bytes_at(addr, len)?;
    let key = PinKey { addr, len, writing };
    let parts = parts_of(&range);
    let cached = || parts.iter().filter_map(|part| Some((part, part.cached.as_ref()?)));
    let wanted: usize = cached().map(|(part, _)| part.at.len()).sum();
    let is_cached = parts.iter().all(|part| part.cached.is_some());
    let again = note_kept(|table| match table.pins.get_mut(&key) {
        // Not if some of it was unmapped meanwhile, and mapped again.
        Some(pins) if pins.holds.iter().map(|hold| hold.at.len()).sum::<usize>() >= wanted && is_cached => {
            pins.count += 1;
            true
        }
        _ => false,
    });
    if again {
        return Ok(());
    }
    if cached().any(|(_, (share, _))| share.region.is_leaving()) {
        to_kernel::nap();
        return Err(failed(&range, Error::CHANGED_HANDS, libc::ESTALE));
    }
    let prot = if writing { libc::PROT_WRITE } else { libc::PROT_READ | libc::PROT_WRITE };
    let advice = if writing { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    for part in &parts {
        part.allow(prot)?;
        if part.cached.is_none() {
            // SAFETY: of no memory; it says whether there is such advice (Linux 5.14). If not, a touch brings the pages in.
            let is_known = unsafe { libc::madvise(std::ptr::null_mut(), 0, advice) } == 0;
            match part.advise(advice) {
                Err(_) if is_known => return Err(unusable(&part.at, libc::EFAULT)),
                _ => {}
            }
        }
    }
    let mut held = Vec::new();
    for (part, (share, _)) in cached() {
        // SAFETY: the share beside it keeps the region.
        let region: &'static Region = unsafe { &*Arc::as_ptr(&share.region) };
        let hold = Hold::new(region, part.pages(region), writing)?;
        held.push(Locked { at: part.at.clone(), hold, share: share.clone() });
    }
    let is_there = note_kept(|table| {
        // A pin that came after the unmapping would keep what nobody can reach.
        let is_there =
            held.iter().all(|one| table.meeting(&one.at).any(|(piece, _)| Arc::ptr_eq(&piece.share, &one.share)));
        if is_there {
            let pins = table.pins.entry(key).or_default();
            pins.count += 1;
            pins.holds.append(&mut held);
        }
        is_there
    });
    if is_there { Ok(()) } else { Err(unusable(&range, libc::EFAULT)) }
}

/// Takes back one [`keep`] of the same range.
///
/// # Errors
/// EINVAL where there is none.
pub fn let_go(addr: usize, len: usize, writing: bool) -> std::result::Result<(), i32> {
    let key = PinKey { addr, len, writing };
    let last = note_kept(|table| {
        let pins = table.pins.get_mut(&key).ok_or(libc::EINVAL)?;
        pins.count -= 1;
        Ok::<_, i32>(if pins.count == 0 { table.pins.remove(&key) } else { None })
    });
    // With the table free: the share may be the file's last.
    last.map(drop)
}
