//! The page cache, readahead, faults and advice. Each rule names the function of Linux 6.18 that it is from.

use crate::Time;
use crate::device::{Device, Kind};
use crate::lists::{Link, List, NONE};
use std::ops::Range;

/// What differs between kernels and file systems.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// MGLRU is on: generations and not two lists.
    pub generations: bool,
    /// Accesses through a mapping with MADV_RANDOM count as use: until Linux 6.3 (vma_has_recency).
    pub random_is_use: bool,
    /// Pages that were evicted a short time ago do not count as hits: from Linux 6.10 on (filemap_map_folio_range).
    pub refaults_are_misses: bool,
    /// A fault maps all of a large folio: from Linux 6.18 on (finish_fault, filemap_map_folio_range).
    pub maps_folios: bool,
    /// The order of the largest folio that the file system takes: ext4 none until 6.16.
    pub largest: u8,
}

/// Linux 6.18 with two lists, on ext4.
pub const LINUX_6_18: Rules =
    Rules { generations: false, random_is_use: false, refaults_are_misses: true, maps_folios: true, largest: 9 };
/// Debian 13's.
pub const LINUX_6_12: Rules =
    Rules { generations: true, random_is_use: false, refaults_are_misses: true, maps_folios: false, largest: 0 };
/// Debian 12's.
pub const LINUX_6_1: Rules =
    Rules { generations: false, random_is_use: true, refaults_are_misses: false, maps_folios: false, largest: 0 };

/// Advice on a mapping (madvise(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// None.
    Normal,
    /// MADV_RANDOM.
    Random,
    /// MADV_SEQUENTIAL.
    Sequential,
    /// MADV_WILLNEED, once for all of it when it is mapped.
    WillNeed,
    /// MADV_HUGEPAGE.
    Huge,
}

/// A mapping of a part of a file.
#[derive(Debug)]
pub struct Area {
    /// Which file.
    pub file: usize,
    /// Its first page in the file.
    pub offset: u64,
    /// Its length.
    pub pages: u64,
    /// Whether it is mapped now.
    pub is_mapped: bool,
    /// Its advice now.
    pub advice: Advice,
    /// Whether the program may store to it.
    pub is_writable: bool,
    /// The open file (`struct file`) that it was mapped by.
    handle: usize,
    /// Entries of the page table, and those that were used since they were looked at: a bit a page.
    present: Vec<u64>,
    young: Vec<u64>,
}

impl Area {
    /// Whether a page is mapped.
    pub fn has(&self, page: u64) -> bool {
        self.present[(page / 64) as usize] >> (page % 64) & 1 != 0
    }

    /// The words of the page table's bits.
    pub fn words(&self) -> &[u64] {
        &self.present
    }

    fn set(&mut self, page: u64) {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        self.present[word] |= bit;
        self.young[word] |= bit;
    }

    fn clear(&mut self, page: u64) {
        let (word, bit) = ((page / 64) as usize, !(1 << (page % 64)));
        self.present[word] &= bit;
        self.young[word] &= bit;
    }

    fn take_young(&mut self, page: u64) -> bool {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let was = self.young[word] & bit != 0;
        self.young[word] &= !bit;
        was
    }
}

/// `struct file_ra_state`.
#[derive(Debug, Clone, Copy, Default)]
struct Handle {
    start: u64,
    size: u64,
    async_size: u64,
    order: u8,
    misses: u64,
}

#[derive(Debug)]
struct File {
    /// Its first page among all.
    base: u64,
    pages: u64,
    areas: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Folio {
    flags: u8,
    generation: u64,
    /// When it is read.
    ready: Time,
}

const ACTIVE: u8 = 1;
const REFERENCED: u8 = 2;
const WORKINGSET: u8 = 4;
/// PG_readahead: the next window is read when this is touched.
const MARKED: u8 = 8;
const DIRTY: u8 = 16;

/// Not in the page cache.
const ABSENT: u8 = u8::MAX;
/// Of a shadow entry: it was in the working set.
const WAS_WORKING: u32 = 1 << 31;

/// `MMAP_LOTSAMISS`.
const LOTS_OF_MISSES: u64 = 100;
/// `SWAP_CLUSTER_MAX`.
const CLUSTER: u64 = 32;
/// fault_around_bytes.
const AROUND: u64 = 16;
/// Pages of a huge page.
const HUGE: u64 = 512;
/// Generations at least and at most.
const FEWEST: u64 = 2;
const MOST: u64 = 4;

/// Processor time: of an access, a fault, a page that a fault maps, a page that is read, and one that is evicted.
pub const ACCESS: Time = 50;
const FAULT: Time = 500;
const MISS: Time = 1500;
const MAP: Time = 25;
const READ: Time = 180;
const EVICT: Time = 120;

/// What happened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// Accesses of the program.
    pub touches: u64,
    /// Faults that began no read.
    pub minor: u64,
    /// Faults that did.
    pub major: u64,
    /// Pages that the program had read.
    pub read: u64,
    /// Pages that others had read for it.
    pub brought: u64,
    /// Pages that were evicted.
    pub evicted: u64,
}

/// A file's pages.
#[derive(Debug, Clone, Copy)]
struct Span {
    file: usize,
    from: u64,
    to: u64,
}

/// Who reads, and how.
#[derive(Debug, Clone, Copy)]
struct By {
    order: u8,
    /// This page's folio is marked.
    mark: Option<u64>,
    /// In a fault of a mapping whose accesses count as use (lru_gen_in_fault).
    in_fault: bool,
    /// For the program, which counts it.
    is_own: bool,
}

/// The cost of an access: processor time, and until when it waits for storage.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Processor time.
    pub busy: Time,
    /// 0: it does not wait.
    pub until: Time,
}

/// The model.
#[derive(Debug)]
pub struct Kernel {
    rules: Rules,
    /// Pages of files that fit into memory.
    pub memory: u64,
    /// ra_pages of the device.
    pub readahead: u64,
    /// The storage.
    pub device: Device,
    files: Vec<File>,
    /// The mappings.
    pub areas: Vec<Area>,
    /// Advice that the program gives to what it maps anew.
    pub standing: Advice,
    handles: Vec<Handle>,
    /// Of each page: the order of its folio, or `ABSENT`.
    orders: Vec<u8>,
    folios: Vec<Folio>,
    links: Vec<Link>,
    /// Of each page that was evicted: the age of the lists then, and one. 0: it was not.
    shadows: Vec<u32>,
    active: List,
    inactive: List,
    generations: [List; MOST as usize],
    oldest: u64,
    youngest: u64,
    /// nonresident_age.
    age: u64,
    /// Refaults that were activated, and how many there were when pages were reclaimed last.
    refaults: u64,
    refaults_then: u64,
    /// Active pages that are to be scanned.
    owed: u64,
    /// Until then all pages are being read or written.
    busy: Time,
    /// What happened until now.
    pub counts: Counts,
}

impl Kernel {
    /// With nothing in memory.
    pub fn new(rules: Rules, memory: u64, readahead: u64, device: Kind) -> Kernel {
        Kernel {
            rules,
            memory,
            readahead,
            device: Device::new(device),
            files: Vec::new(),
            areas: Vec::new(),
            standing: Advice::Normal,
            handles: Vec::new(),
            orders: Vec::new(),
            folios: Vec::new(),
            links: Vec::new(),
            shadows: Vec::new(),
            active: List::default(),
            inactive: List::default(),
            generations: Default::default(),
            oldest: 0,
            youngest: FEWEST,
            age: 0,
            refaults: 0,
            refaults_then: 0,
            owed: 0,
            busy: 0,
            counts: Counts::default(),
        }
    }

    /// Another file.
    pub fn add_file(&mut self, pages: u64) -> usize {
        let base = self.orders.len() as u64;
        let end = (base + pages).next_multiple_of(HUGE) as usize;
        self.orders.resize(end, ABSENT);
        self.folios.resize(end, Folio::default());
        self.links.resize(end, Link::default());
        self.shadows.resize(end, 0);
        self.files.push(File { base, pages, areas: Vec::new() });
        self.files.len() - 1
    }

    /// Another open file.
    pub fn open(&mut self) -> usize {
        self.handles.push(Handle::default());
        self.handles.len() - 1
    }

    /// Another mapping.
    pub fn map(&mut self, file: usize, handle: usize, offset: u64, pages: u64, is_writable: bool) -> usize {
        let words = pages.div_ceil(64) as usize;
        self.areas.push(Area {
            file,
            offset,
            pages,
            is_mapped: true,
            advice: Advice::Normal,
            is_writable,
            handle,
            present: vec![0; words],
            young: vec![0; words],
        });
        self.files[file].areas.push(self.areas.len() - 1);
        self.areas.len() - 1
    }

    /// Unmaps a mapping and maps the same pages anew.
    pub fn remap(&mut self, area: usize, now: Time) {
        let all = &mut self.areas[area];
        all.present.fill(0);
        all.young.fill(0);
        all.advice = Advice::Normal;
        self.advise(area, self.standing, now);
    }

    /// Gives advice.
    pub fn advise(&mut self, area: usize, advice: Advice, now: Time) {
        self.areas[area].advice = advice;
        if advice == Advice::WillNeed {
            let Area { file, offset, pages, .. } = self.areas[area];
            self.will_need(file, offset..offset + pages, now, true);
            self.areas[area].advice = Advice::Normal;
        }
    }

    /// force_page_cache_ra: no more than one window, or the device's longest request.
    pub fn will_need(&mut self, file: usize, pages: Range<u64>, now: Time, is_own: bool) {
        let most = self.readahead.max(self.device.kind().longest);
        let span = Span { file, from: pages.start, to: pages.end.min(pages.start + most) };
        self.read(span, By { order: 0, mark: None, in_fault: false, is_own }, now);
    }

    /// A reader beside the program reads pages. Returns when they are there.
    pub fn bring(&mut self, file: usize, pages: Range<u64>, is_block: bool, now: Time) -> Time {
        let order = if is_block { self.rules.largest } else { 0 };
        let span = Span { file, from: pages.start, to: pages.end };
        self.read(span, By { order, mark: None, in_fault: false, is_own: false }, now);
        let base = self.files[file].base;
        let end = pages.end.min(self.files[file].pages);
        let last = |page| self.head(base + page).map_or(0, |head| self.folios[head as usize].ready);
        (pages.start..end).map(last).max().unwrap_or(now).max(now)
    }

    /// Whether all pages are in the page cache.
    pub fn has_all(&self, file: usize, mut pages: Range<u64>) -> bool {
        pages.all(|page| {
            page >= self.files[file].pages || self.orders[(self.files[file].base + page) as usize] != ABSENT
        })
    }

    /// MADV_PAGEOUT.
    pub fn drop(&mut self, area: usize, pages: Range<u64>, now: Time) {
        let Area { file, offset, .. } = self.areas[area];
        for page in pages {
            let id = self.files[file].base + offset + page;
            let Some(head) = self.head(id) else { continue };
            let folio = self.folios[head as usize];
            if folio.ready <= now && folio.flags & DIRTY == 0 {
                self.unlist(head);
                self.evict(head);
            }
        }
    }

    fn head(&self, id: u64) -> Option<u32> {
        let order = self.orders[id as usize];
        (order != ABSENT).then(|| (id & !((1 << order) - 1)) as u32)
    }

    fn size(&self, head: u32) -> u64 {
        1 << self.orders[head as usize]
    }

    fn is_use(&self, area: usize) -> bool {
        // vma_has_recency
        let advice = self.areas[area].advice;
        advice != Advice::Sequential && (advice != Advice::Random || self.rules.random_is_use)
    }

    /// An access of the program. `page` of the mapping.
    pub fn touch(&mut self, area: usize, page: u64, is_store: bool, now: Time) -> Cost {
        self.counts.touches += 1;
        let all = &mut self.areas[area];
        if all.has(page) {
            all.set(page);
            if is_store {
                self.soil(area, page);
            }
            return Cost { busy: ACCESS, until: 0 };
        }
        let cost = self.fault(area, page, is_store, now);
        if is_store {
            self.soil(area, page);
        }
        cost
    }

    fn soil(&mut self, area: usize, page: u64) {
        let Area { file, offset, .. } = self.areas[area];
        if let Some(head) = self.head(self.files[file].base + offset + page) {
            self.folios[head as usize].flags |= DIRTY;
        }
    }

    /// do_read_fault and filemap_fault.
    fn fault(&mut self, area: usize, page: u64, is_store: bool, now: Time) -> Cost {
        let mut busy = ACCESS + FAULT;
        // do_shared_fault maps no more than the page.
        if !is_store {
            busy += MAP * self.around(area, page, now);
            if self.areas[area].has(page) {
                self.counts.minor += 1;
                return Cost { busy, until: 0 };
            }
        }
        let Area { file, offset, handle, advice, .. } = self.areas[area];
        let index = offset + page;
        let id = self.files[file].base + index;
        let before = self.counts;
        let is_miss = self.head(id).is_none();
        if is_miss {
            self.counts.major += 1;
            busy += MISS;
            self.read_around(area, index, now);
            if self.head(id).is_none() {
                let by = By { order: 0, mark: None, in_fault: self.is_use(area), is_own: true };
                self.read(Span { file, from: index, to: index + 1 }, by, now);
            }
        } else {
            self.counts.minor += 1;
            // do_async_mmap_readahead
            if advice != Advice::Random && self.readahead > 0 {
                let head = self.head(id).unwrap_or(NONE) as usize;
                if self.folios[head].ready <= now {
                    let misses = &mut self.handles[handle].misses;
                    *misses = misses.saturating_sub(1);
                }
                if self.folios[head].flags & MARKED != 0 {
                    self.folios[head].flags &= !MARKED;
                    self.read_ahead(area, id, index, now);
                }
            }
        }
        busy += READ * (self.counts.read - before.read) + EVICT * (self.counts.evicted - before.evicted);
        // Where memory is full of what is being read, it may be gone again.
        let until = self.head(id).map_or(now, |head| self.folios[head as usize].ready);
        if until > now && !is_store {
            // Who has waited without the lock tries again, and now what lies around the page is there (`VM_FAULT_RETRY`).
            busy += MAP * self.around(area, page, until);
        }
        self.areas[area].set(page);
        if self.rules.maps_folios {
            self.map_folio(area, page);
        }
        Cost { busy, until: if until > now { until } else { 0 } }
    }

    /// Maps all of a page's folio.
    fn map_folio(&mut self, area: usize, page: u64) {
        let Area { file, offset, pages, .. } = self.areas[area];
        let base = self.files[file].base + offset;
        let Some(head) = self.head(base + page).map(u64::from).filter(|head| *head >= base) else { return };
        let end = (head + self.size(head as u32) - base).min(pages);
        (head - base..end).for_each(|one| self.areas[area].set(one));
    }

    /// do_fault_around and filemap_map_pages. Returns how many pages were mapped.
    fn around(&mut self, area: usize, page: u64, now: Time) -> u64 {
        let Area { file, offset, handle, pages, .. } = self.areas[area];
        let from = page / AROUND * AROUND;
        let base = self.files[file].base + offset;
        let end = (from + AROUND).min(pages).min(self.files[file].pages - offset);
        let (mut mapped, mut hits) = (0, 0);
        for one in from..end {
            let Some(head) = self.head(base + one) else { continue };
            let folio = &self.folios[head as usize];
            if folio.ready > now || folio.flags & MARKED != 0 {
                continue;
            }
            if !self.rules.refaults_are_misses || folio.flags & WORKINGSET == 0 {
                hits += 1;
            }
            let all = &mut self.areas[area];
            if !all.has(one) {
                all.set(one);
                mapped += 1;
            }
            if self.rules.maps_folios && self.orders[head as usize] > 0 {
                self.map_folio(area, one);
            }
        }
        let misses = &mut self.handles[handle].misses;
        *misses = misses.saturating_sub(hits);
        mapped
    }

    /// do_sync_mmap_readahead.
    fn read_around(&mut self, area: usize, index: u64, now: Time) {
        let Area { file, handle, advice, .. } = self.areas[area];
        let in_fault = self.is_use(area);
        let window = self.readahead;
        let ra = &mut self.handles[handle];
        let (start, mark, order) = match advice {
            Advice::Huge if self.rules.largest > 0 => {
                (ra.size, ra.async_size) = (2 * HUGE, HUGE);
                (index / HUGE * HUGE, true, 9)
            }
            Advice::Random => return,
            _ if window == 0 => return,
            Advice::Sequential => {
                // page_cache_sync_ra: only at the file's beginning does it begin a window.
                (ra.size, ra.async_size) = (window, window / 2);
                (index, index == 0, 0)
            }
            _ => {
                ra.misses = (ra.misses + 1).min(LOTS_OF_MISSES * 10);
                if ra.misses > LOTS_OF_MISSES {
                    return;
                }
                (ra.size, ra.async_size) = (window, window / 4);
                (index.saturating_sub(window / 2), true, 0)
            }
        };
        if mark {
            (ra.start, ra.order) = (start, order);
        }
        let mark = mark.then_some(start + ra.size - ra.async_size);
        let span = Span { file, from: start, to: start + ra.size };
        self.read(span, By { order, mark, in_fault, is_own: true }, now);
    }

    /// page_cache_async_ra.
    fn read_ahead(&mut self, area: usize, id: u64, index: u64, now: Time) {
        let Area { file, handle, .. } = self.areas[area];
        let most = self.readahead;
        let in_fault = self.is_use(area);
        let size = self.head(id).map_or(1, |head| self.size(head));
        let ra = self.handles[handle];
        // get_next_ra_size
        let next = |size: u64| match size {
            size if size < most / 16 => 4 * size,
            size if size <= most / 2 => 2 * size,
            _ => most,
        };
        let first = index / size * size;
        let expected = (ra.start + ra.size - ra.async_size) / size * size;
        let mut new = ra;
        if first == expected {
            new.start += ra.size;
            new.size = ra.size.max(next(ra.size));
        } else {
            let base = self.files[file].base;
            let limit = self.files[file].pages;
            let is_there = |page: &u64| *page < limit && self.orders[(base + page) as usize] != ABSENT;
            let start = (index + 1..).find(|page| !is_there(page)).unwrap_or(index + 1);
            if start - index > most {
                return;
            }
            new.start = start;
            new.size = next(start - index + most);
        }
        new.order = (ra.order + 2).min(self.rules.largest);
        let align = 1 << new.order.min(most.max(1).trailing_zeros() as u8);
        let end = (new.start + new.size) / align * align;
        if end > new.start {
            new.size = end - new.start;
        }
        new.async_size = new.size;
        self.handles[handle] = new;
        let span = Span { file, from: new.start, to: new.start + new.size };
        self.read(span, By { order: new.order, mark: Some(new.start), in_fault, is_own: true }, now);
    }

    /// page_cache_ra_order and page_cache_ra_unbounded: reads what is missing.
    fn read(&mut self, span: Span, by: By, now: Time) {
        let Span { file, from, to } = span;
        let File { base, pages, .. } = self.files[file];
        let to = to.min(pages);
        let mut page = from;
        while page < to {
            if self.orders[(base + page) as usize] != ABSENT {
                page += 1;
                continue;
            }
            let missing = |page: &u64| self.orders[(base + page) as usize] == ABSENT;
            let end = (page..to.min(page + self.device.kind().longest.max(1 << by.order))).take_while(missing).last();
            let end = end.map_or(page + 1, |last| last + 1);
            if by.is_own {
                self.counts.read += end - page;
            } else {
                self.counts.brought += end - page;
            }
            let ready = self.device.serve(now, end - page);
            while page < end {
                let mut order = by.order.min((page.trailing_zeros()).min(9) as u8);
                while page + (1 << order) > end {
                    order -= 1;
                }
                let size = 1 << order;
                let is_marked = by.mark.is_some_and(|mark| (page..page + size).contains(&mark));
                self.add((base + page) as u32, order, is_marked, ready, by.in_fault, now);
                page += size;
            }
        }
    }

    /// filemap_add_folio.
    fn add(&mut self, head: u32, order: u8, is_marked: bool, ready: Time, in_fault: bool, now: Time) {
        let size = 1u64 << order;
        self.reclaim(size, now);
        self.orders[head as usize..][..size as usize].fill(order);
        let shadow = self.shadows[head as usize];
        let mut flags = if is_marked { MARKED } else { 0 };
        if shadow != 0 && !self.rules.generations {
            // workingset_refault
            let distance = (self.age as u32 & !WAS_WORKING).wrapping_sub((shadow & !WAS_WORKING) - 1) & !WAS_WORKING;
            if u64::from(distance) <= self.active.pages {
                flags |= ACTIVE;
                self.age += size;
                self.refaults += size;
                if shadow & WAS_WORKING != 0 {
                    flags |= WORKINGSET;
                }
            }
        }
        let mut folio = Folio { flags, generation: 0, ready };
        if self.rules.generations {
            // lru_gen_folio_seq
            let back = if in_fault { FEWEST } else { MOST };
            folio.generation = (self.youngest + 1).saturating_sub(back).max(self.oldest);
        }
        self.folios[head as usize] = folio;
        self.list(head);
    }

    fn list(&mut self, head: u32) {
        let (folio, size) = (self.folios[head as usize], self.size(head));
        let list = match (self.rules.generations, folio.flags & ACTIVE != 0) {
            (true, _) => &mut self.generations[(folio.generation % MOST) as usize],
            (false, true) => &mut self.active,
            (false, false) => &mut self.inactive,
        };
        list.push(&mut self.links, head, size);
    }

    fn unlist(&mut self, head: u32) {
        let (folio, size) = (self.folios[head as usize], self.size(head));
        let list = match (self.rules.generations, folio.flags & ACTIVE != 0) {
            (true, _) => &mut self.generations[(folio.generation % MOST) as usize],
            (false, true) => &mut self.active,
            (false, false) => &mut self.inactive,
        };
        list.remove(&mut self.links, head, size);
    }

    /// Pages in the page cache.
    pub fn cached(&self) -> u64 {
        self.active.pages + self.inactive.pages + self.generations.iter().map(|list| list.pages).sum::<u64>()
    }

    fn reclaim(&mut self, need: u64, now: Time) {
        if self.cached() + need <= self.memory || now < self.busy {
            return;
        }
        let target = (self.cached() + need - self.memory).max(CLUSTER);
        let aim = self.counts.evicted + target;
        let mut tries = 2 * (self.cached() / CLUSTER + 2);
        while self.counts.evicted < aim && tries > 0 {
            tries -= 1;
            if self.rules.generations { self.shrink_generations(now) } else { self.shrink_lists(now) }
        }
        if self.counts.evicted < aim {
            // All is being read: it is more than fits, for a moment.
            self.busy = now + self.device.kind().latency / 2;
        }
        self.refaults_then = self.refaults;
    }

    /// shrink_lruvec, in the proportion of get_scan_count.
    fn shrink_lists(&mut self, now: Time) {
        // inactive_is_low: of less than a GiB a half may be active.
        let gib = (self.active.pages + self.inactive.pages) >> 18;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        let is_low = self.inactive.pages * ratio < self.active.pages;
        if is_low || self.refaults != self.refaults_then {
            self.owed += CLUSTER * self.active.pages / self.inactive.pages.max(1);
            while self.owed > 0 && self.active.tail != NONE {
                let head = self.active.tail;
                self.owed = self.owed.saturating_sub(self.size(head));
                self.unlist(head);
                self.references(head);
                let flags = &mut self.folios[head as usize].flags;
                *flags = (*flags & !ACTIVE) | WORKINGSET;
                self.list(head);
            }
            self.owed = self.owed.min(CLUSTER);
        }
        let mut scanned = 0;
        while scanned < CLUSTER && self.inactive.tail != NONE {
            let head = self.inactive.tail;
            let size = self.size(head);
            scanned += size;
            self.unlist(head);
            if self.folios[head as usize].ready > now {
                self.list(head);
                continue;
            }
            // folio_check_references
            let references = self.references(head);
            let flags = self.folios[head as usize].flags;
            let was_referenced = flags & REFERENCED != 0;
            self.folios[head as usize].flags &= !REFERENCED;
            if references > 1 || references == 1 && was_referenced {
                self.folios[head as usize].flags |= ACTIVE;
                self.age += size;
                self.list(head);
            } else if references == 1 {
                self.folios[head as usize].flags |= REFERENCED;
                self.list(head);
            } else if !self.clean(head, now) {
                self.list(head);
            } else {
                self.evict(head);
            }
        }
    }

    /// Begins to write a folio back if it is dirty. Returns whether it is clean.
    fn clean(&mut self, head: u32, now: Time) -> bool {
        if self.folios[head as usize].flags & DIRTY == 0 {
            return true;
        }
        self.folios[head as usize].flags &= !DIRTY;
        let size = self.size(head);
        self.folios[head as usize].ready = self.device.serve(now, size);
        false
    }

    /// evict_folios, with lru_gen_look_around.
    fn shrink_generations(&mut self, now: Time) {
        if self.youngest < self.oldest + FEWEST {
            self.grow_older();
        }
        let mut scanned = 0;
        while scanned < CLUSTER {
            let list = &self.generations[(self.oldest % MOST) as usize];
            let head = list.tail;
            if head == NONE {
                if self.youngest < self.oldest + FEWEST {
                    return;
                }
                self.oldest += 1;
                continue;
            }
            scanned += self.size(head);
            self.unlist(head);
            if self.folios[head as usize].ready > now || !self.clean(head, now) || self.references(head) > 0 {
                self.folios[head as usize].generation = self.youngest;
                self.list(head);
                self.look_around(head);
                continue;
            }
            self.evict(head);
        }
    }

    /// inc_max_seq, with a walk of the page tables.
    fn grow_older(&mut self) {
        self.youngest += 1;
        for area in 0..self.areas.len() {
            if self.areas[area].is_mapped && self.is_use(area) {
                for word in 0..self.areas[area].young.len() {
                    self.promote(area, word);
                }
            }
        }
    }

    fn look_around(&mut self, head: u32) {
        let file = self.files.partition_point(|file| file.base <= u64::from(head)) - 1;
        let index = u64::from(head) - self.files[file].base;
        for place in 0..self.files[file].areas.len() {
            let area = self.files[file].areas[place];
            let Area { offset, pages, .. } = self.areas[area];
            if (offset..offset + pages).contains(&index) && self.is_use(area) {
                self.promote(area, ((index - offset) / 64) as usize);
            }
        }
    }

    /// Moves pages of a word of the page table that were used to the youngest generation.
    fn promote(&mut self, area: usize, word: usize) {
        let mut young = std::mem::take(&mut self.areas[area].young[word]);
        let base = self.files[self.areas[area].file].base + self.areas[area].offset + word as u64 * 64;
        while young != 0 {
            let page = u64::from(young.trailing_zeros());
            young &= young - 1;
            if let Some(head) = self.head(base + page)
                && self.folios[head as usize].generation != self.youngest
            {
                self.unlist(head);
                self.folios[head as usize].generation = self.youngest;
                self.list(head);
            }
        }
    }

    /// folio_referenced: entries that were used since this was asked last.
    fn references(&mut self, head: u32) -> u64 {
        let file = self.files.partition_point(|file| file.base <= u64::from(head)) - 1;
        let index = u64::from(head) - self.files[file].base;
        let mut count = 0;
        for place in 0..self.files[file].areas.len() {
            let area = self.files[file].areas[place];
            if !self.areas[area].is_mapped || !self.is_use(area) {
                continue;
            }
            let Area { offset, pages, .. } = self.areas[area];
            for page in index.max(offset)..(index + self.size(head)).min(offset + pages) {
                count += u64::from(self.areas[area].take_young(page - offset));
            }
        }
        count
    }

    /// Takes a folio that is on no list out of memory. (workingset_eviction)
    fn evict(&mut self, head: u32) {
        let file = self.files.partition_point(|file| file.base <= u64::from(head)) - 1;
        let (index, size) = (u64::from(head) - self.files[file].base, self.size(head));
        for place in 0..self.files[file].areas.len() {
            let area = &mut self.areas[self.files[file].areas[place]];
            for page in index.max(area.offset)..(index + size).min(area.offset + area.pages) {
                area.clear(page - area.offset);
            }
        }
        let was_working = if self.folios[head as usize].flags & WORKINGSET != 0 { WAS_WORKING } else { 0 };
        let shadow = ((self.age as u32 & !WAS_WORKING) + 1) & !WAS_WORKING | was_working;
        self.age += size;
        self.orders[head as usize..][..size as usize].fill(ABSENT);
        self.shadows[head as usize..][..size as usize].fill(shadow.max(1));
        self.counts.evicted += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::workloads;
    use crate::kernel::Advice;

    fn counts(name: &str, rules: Rules, advice: Advice, file: u64) -> Counts {
        let found = workloads().into_iter().find(|one| one.name == name);
        found.map(|one| one.counts(rules, file, 32, advice)).unwrap_or_default()
    }

    /// Linux 6.18 counted these, by `tests/kernels/counts.c`: pages read, major faults.
    #[test]
    fn it_counts_what_the_kernel_counts() {
        let kernel = [
            ("places", Advice::Normal, 859_039, 29_999),
            ("places", Advice::Random, 32_293, 32_293),
            ("places-eighth", Advice::Normal, 1_063_486, 34_960),
            ("places-fit", Advice::Normal, 65_468, 2774),
            ("zipf-1.3", Advice::Normal, 122_528, 4144),
            ("pieces-8", Advice::Normal, 121_469, 4219),
            ("pieces-64", Advice::Normal, 196_643, 2199),
            ("walk", Advice::Random, 150_000, 150_000),
            ("backward", Advice::Normal, 150_010, 8826),
            ("every-16", Advice::Normal, 639_698, 39_973),
        ];
        for (name, advice, read, major) in kernel {
            let found = counts(name, LINUX_6_18, advice, 65_536);
            let is_near = |one: u64, other: u64| one.abs_diff(other) * 10 <= other;
            assert!(is_near(found.read, read) && is_near(found.major, major), "{name} {advice:?}: {found:?}");
        }
    }

    #[test]
    fn no_more_is_in_memory_than_fits() {
        for rules in [LINUX_6_18, LINUX_6_12, LINUX_6_1] {
            let found = counts("zipf-0.99", rules, Advice::Normal, 16_384);
            assert!(found.read - found.evicted <= 4096, "{found:?}");
        }
    }

    /// MADV_RANDOM forgets what is hot from Linux 6.3 on.
    #[test]
    fn what_is_used_is_forgotten_under_random_advice() {
        let forgets = counts("zipf-0.99", LINUX_6_18, Advice::Random, 16_384);
        let keeps = counts("zipf-0.99", Rules { random_is_use: true, ..LINUX_6_18 }, Advice::Random, 16_384);
        assert!(forgets.major * 100 > keeps.major * 105, "{} {}", forgets.major, keeps.major);
    }
}
