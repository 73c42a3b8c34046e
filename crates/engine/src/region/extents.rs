//! The parts of a file that are mapped. Nothing else of the file is read ahead: other processes may write where no map is, and a page in
//! memory would hide that.

use crate::sys::lock::Guarded;
use std::ops::Range;

/// The parts that a region's maps cover, pages, one entry a map. Fault handlers wait for the list.
#[derive(Debug)]
pub struct Extents(Guarded<Vec<Range<usize>>>);

impl Default for Extents {
    fn default() -> Self {
        Extents(Guarded::new(Vec::new()))
    }
}

impl Extents {
    /// Notes a map.
    pub fn add(&self, map: Range<usize>) {
        let mut larger = Vec::new();
        loop {
            // A thread that traps inside the allocator may wait for the lock, so nothing is allocated or freed under it.
            let wanted = self.0.with(|maps| {
                if maps.len() == maps.capacity() && larger.capacity() > maps.len() {
                    larger.append(maps);
                    std::mem::swap(maps, &mut larger);
                }
                let has_room = maps.len() < maps.capacity();
                if has_room {
                    maps.push(map.clone());
                }
                (!has_room).then_some(2 * maps.len() + 4)
            });
            let Some(wanted) = wanted else { return };
            larger = Vec::with_capacity(wanted);
        }
    }

    /// Forgets one.
    pub fn remove(&self, map: &Range<usize>) {
        self.0.with(|maps| {
            if let Some(at) = maps.iter().position(|one| one == map) {
                maps.swap_remove(at);
            }
        });
    }

    /// All of them.
    pub fn all(&self) -> Vec<Range<usize>> {
        let mut all = Vec::new();
        loop {
            let wanted = self.0.with(|maps| {
                let fits = maps.len() <= all.capacity();
                if fits {
                    all.extend_from_slice(maps);
                }
                (!fits).then_some(maps.len())
            });
            let Some(wanted) = wanted else { return all };
            all.reserve(wanted);
        }
    }

    /// How many pages of a range are covered by maps.
    pub fn covered(&self, range: Range<usize>) -> usize {
        let inside = |map: Range<usize>| map.start.max(range.start)..map.end.min(range.end);
        let mut parts: Vec<_> = self.all().into_iter().map(inside).collect();
        parts.sort_by_key(|part| part.start);
        let mut end = range.start;
        let mut count = 0;
        for part in parts {
            count += part.end.saturating_sub(part.start.max(end));
            end = end.max(part.end);
        }
        count
    }

    /// The pages around a page from the first start to the last end of the maps that it is part of; empty when it is part of none.
    pub fn around(&self, page: usize) -> Range<usize> {
        self.0.with(|maps| {
            let here = maps.iter().filter(|map| map.contains(&page));
            here.fold(page..page, |all, map| all.start.min(map.start)..all.end.max(map.end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_around_a_page() {
        let extents = Extents::default();
        [0..100, 50..200, 300..400, 50..200].into_iter().for_each(|map| extents.add(map));
        assert_eq!(extents.around(20), 0..100);
        assert_eq!(extents.around(60), 0..200);
        assert_eq!(extents.around(399), 300..400);
        assert!(extents.around(250).is_empty() && extents.around(400).is_empty());
        assert_eq!((extents.covered(0..1000), extents.covered(150..310), extents.covered(200..300)), (300, 60, 0));
        extents.remove(&(50..200));
        assert_eq!(extents.around(150), 50..200, "there were two");
        extents.remove(&(50..200));
        assert!(extents.around(150).is_empty());
    }
}
