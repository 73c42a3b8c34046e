//! Workloads and machines by seed.

use crate::device::{CLOUD, DISK, FUSE, SLOW, SSD};
use crate::kernel::{LINUX_6_1, LINUX_6_12, LINUX_6_18, Rules};
use crate::policy::{Case, Machine, Mapped};
use crate::random::Random;
use crate::workload::{Pattern, Phase, Plan};
use crate::{SECOND, Time};

/// Pages of all files at least and at most: 64 to 512 MiB.
const SMALLEST: u64 = 1 << 14;
const LARGEST: u64 = 1 << 17;

/// The workload of a seed.
pub fn case(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let pages = random.within(SMALLEST, LARGEST) / 512 * 512;
    let machine = machine(&mut random, pages);
    let (files, mapped) = mappings(&mut random, pages);
    let threads = match random.below(8) {
        0..4 => 1,
        4..6 => random.within(2, 4),
        _ => random.within(5, 32),
    };
    let (names, plans) = plans(&mut random, &mapped, threads, machine.memory);
    let length = random.within(3 * SECOND, 8 * SECOND);
    let Machine { kernel, memory, readahead, device, .. } = machine;
    let name = format!(
        "{names}; {threads} threads, {} mappings of {} files, {} MiB in {} MiB, {}, readahead {} KiB, Linux {kernel}",
        mapped.len(),
        files.len(),
        pages >> 8,
        memory >> 8,
        device.name,
        readahead * 4,
    );
    Case { name, machine, files, mapped, plans, length }
}

fn machine(random: &mut Random, pages: u64) -> Machine {
    let (kernel, rules) =
        random.one_of(&[("6.18", LINUX_6_18), ("6.18", LINUX_6_18), ("6.12", LINUX_6_12), ("6.1", LINUX_6_1)]);
    let part = random.one_of(&[0.125, 0.25, 0.25, 0.25, 0.5, 0.5, 0.75, 1.3]);
    let device = random.one_of(&[DISK, DISK, SSD, SSD, CLOUD, SLOW, FUSE]);
    // FUSE reads no more than 128 KiB ahead.
    let readahead = if device.counts { random.one_of(&[32, 32, 32, 32, 1, 4, 128, 1024, 2048]) } else { 32 };
    // Nor has it large folios.
    let rules = Rules { largest: if device.counts { rules.largest } else { 0 }, ..rules };
    Machine { rules, kernel, memory: ((pages as f64 * part) as u64).max(4096), readahead, device }
}

fn mappings(random: &mut Random, pages: u64) -> (Vec<u64>, Vec<Mapped>) {
    let is_writable = random.once_in(6);
    match random.below(6) {
        // Several files.
        0 => {
            let count = random.within(2, 6);
            let each = (pages / count).max(2048);
            let files = vec![each; count as usize];
            let mapped = (0..count as usize).map(|file| (file, 0, each, is_writable)).collect();
            (files, mapped)
        }
        // Pieces of one file, or the file many times.
        1 => {
            let count = random.within(2, 60);
            let each = (pages / count).max(1024);
            let is_whole = random.once_in(3);
            let place =
                |index| if is_whole { (0, 0, pages, is_writable) } else { (0, index * each, each, is_writable) };
            (vec![pages.max(each * count)], (0..count).map(place).collect())
        }
        _ => (vec![pages], vec![(0, 0, pages, is_writable)]),
    }
}

fn pattern(random: &mut Random, pages: u64) -> (String, Pattern) {
    let skew = random.one_of(&[0.0, 0.0, 0.5, 0.8, 0.99, 1.3]);
    match random.below(12) {
        0..3 => {
            (format!("single places, skew {skew}"), Pattern::Scattered { skew, least: 1, most: 1, are_aligned: false })
        }
        3..5 => {
            let most = random.one_of(&[2, 4, 8, 16, 32, 64, 128, 256, 512]);
            let least = if random.once_in(2) { most } else { 1 };
            let are_aligned = random.once_in(2);
            let name =
                format!("pieces of {least} to {most}{}, skew {skew}", if are_aligned { ", aligned" } else { "" });
            (name, Pattern::Scattered { skew, least, most, are_aligned })
        }
        5 => {
            let row = random.one_of(&[4, 16, 32, 64, 256]).min(pages / 4);
            let rows = random.one_of(&[16, 64, 256]).min(pages / row);
            let wide = random.one_of(&[1, 1, 2, 4]).min(row);
            let are_random = random.once_in(2);
            let name = format!(
                "tiles of {rows} rows of {wide}, each row of {row}, {}",
                if are_random { "at random" } else { "in order" }
            );
            (name, Pattern::Tiles { row, rows, wide, are_random })
        }
        6 => {
            let (fan, leaf) = (random.one_of(&[50, 200]), random.one_of(&[1, 1, 2, 4]));
            (format!("a tree of {fan}, leaves of {leaf}, skew {skew}"), Pattern::Descent { fan, leaf, skew })
        }
        7..9 => ("a walk forward".into(), Pattern::Walk { step: 1, of: (1, 1) }),
        9 => {
            let step = random.one_of(&[-1, -1, -1, -2, -16]);
            (format!("a walk by {step}"), Pattern::Walk { step, of: (1, 1) })
        }
        10 => {
            let step = random.one_of(&[2, 4, 7, 8, 16, 24, 64, 256]);
            (format!("a walk by {step}"), Pattern::Walk { step, of: (1, 1) })
        }
        _ => {
            let all = random.within(2, 16);
            let some = random.within(1, all - 1);
            (format!("{some} of {all} pages"), Pattern::Walk { step: 1, of: (some, all) })
        }
    }
}

fn plans(random: &mut Random, mapped: &[Mapped], threads: u64, memory: u64) -> (String, Vec<Plan>) {
    let phases = random.one_of(&[1, 1, 1, 2, 3]);
    let mut names = Vec::new();
    let mut all: Vec<Vec<Phase>> = vec![Vec::new(); threads as usize];
    for _ in 0..phases {
        let (name, one) = pattern(random, mapped[0].2);
        // Beside it, other threads do something else.
        let other = (threads > 1 && random.once_in(3)).then(|| pattern(random, mapped[0].2));
        let work: Time = random.one_of(&[100, 500, 2000, 10_000, 50_000]);
        let stores = if mapped[0].3 { random.one_of(&[2, 8, 50]) } else { 0 };
        let bursts =
            if random.once_in(5) { (random.within(100, 20_000), random.within(SECOND / 1000, SECOND)) } else { (0, 0) };
        let remaps = if random.once_in(12) { random.within(2_000, 50_000) } else { 0 };
        let touches = if phases == 1 { u64::MAX } else { random.within(3_000, 200_000) };
        // A loop of 1.05 to 4 memories, or all of it.
        let looped = random.once_in(3).then(|| (memory as f64 * (1.05 + random.part() * 2.95)) as u64);
        names.push(match &other {
            Some((other, _)) => format!("{name} beside {other}"),
            None => name,
        });
        for (index, phases) in all.iter_mut().enumerate() {
            let area = if threads > 1 { index % mapped.len() } else { random.below(mapped.len() as u64) as usize };
            let pages = mapped[area].2;
            let part = (0, looped.map_or(pages, |looped| looped.clamp(1024, pages)));
            let pattern = match &other {
                Some((_, other)) if index % 2 == 1 => *other,
                _ => one,
            };
            phases.push(Phase { area, part, pattern, touches, work, stores, bursts, remaps });
        }
    }
    let are_apart = random.once_in(2);
    let plan = |(index, phases): (usize, Vec<Phase>)| {
        let pages = phases[0].part.1;
        let place = if are_apart { pages / threads * index as u64 } else { 0 };
        let seed = random.number();
        // A tile, or a path, begins at its beginning.
        let is_walk = phases.iter().all(|phase| matches!(phase.pattern, Pattern::Walk { .. }));
        Plan::new(phases, seed).beginning(if is_walk { place } else { 0 })
    };
    (names.join(", then "), all.into_iter().enumerate().map(plan).collect())
}
