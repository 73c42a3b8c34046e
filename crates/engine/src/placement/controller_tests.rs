//! Programs, simulated: what each way would give them, the noise, and user time as it is sampled.

use super::controller::{CREDIT, CREDIT_EVERY, Controller};
use super::look::{Allowed, Look, Way, Why};
use std::time::Duration;

const ALL: Allowed = Allowed { advised: true, engine: true };
const GIB: u64 = 1 << 30;

fn mixer(mut seed: u64) -> impl FnMut() -> f64 {
    move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as f64 / u64::MAX as f64
    }
}

/// What a way gives a program: cores of user time that get it on, faults (or misses) a second, bytes read a second, pages refaulted.
#[derive(Clone, Copy)]
struct Rates(f64, f64, f64, f64);

const NOTHING: Rates = Rates(0.0, 0.0, 0.0, 0.0);

/// At a time: short of memory, everything fits, and what the three ways give.
type Program = fn(f64) -> (bool, bool, [Rates; 3]);

/// LMDB with memory for a quarter.
fn lmdb(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.02, 260.0, 750e6, 180e3), Rates(0.138, 12e3, 49e6, 0.0), Rates(0.138, 12e3, 49e6, 0.0)])
}

/// The same, where the engine hits oftener.
fn lmdb_engine(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.02, 260.0, 750e6, 180e3), Rates(0.138, 12e3, 49e6, 0.0), Rates(0.158, 12e3, 49e6, 0.0)])
}

/// Python's mmap at a quarter, on a disk that reads 8 MiB around: hardly anything of either is its own user time.
fn python(_: f64) -> (bool, bool, [Rates; 3]) {
    let alike = Rates(0.014, 11e3, 45e6, 0.0);
    (true, false, [Rates(0.001, 100.0, 800e6, 190e3), alike, alike])
}

/// numpy at a quarter: progress as 5.4 to 3.3 to 18.
fn numpy(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.01, 40.0, 600e6, 150e3), Rates(0.0061, 20e3, 80e6, 0.0), Rates(0.0333, 8e3, 400e6, 0.0)])
}

fn worse_engine(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.3, 2e3, 500e6, 50e3), Rates(0.25, 9e3, 36e6, 0.0), Rates(0.12, 5e3, 20e6, 0.0)])
}

/// An index that nearly fits: advice is a disaster (0.12), the engine is not (2.6).
fn nearly_fits(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.5, 1e3, 100e6, 20e3), Rates(0.06, 15e3, 60e6, 0.0), Rates(1.3, 1e3, 4e6, 0.0)])
}

/// Both are.
fn hopeless(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.5, 1e3, 100e6, 20e3), Rates(0.06, 15e3, 60e6, 0.0), Rates(0.02, 5e3, 20e6, 0.0)])
}

fn all_equal(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.3, 3e3, 100e6, 20e3); 3])
}

fn all_equal_and_slow(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.015, 3e3, 100e6, 20e3); 3])
}

fn spins(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(1.0, 2.0, 8192.0, 20e3); 3])
}

fn idle(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.0, 0.0, 0.0, 20e3); 3])
}

const WALK: [Rates; 3] = [Rates(0.3, 30.0, 600e6, 150e3), Rates(0.06, 15e3, 60e6, 0.0), Rates(0.25, 5e3, 500e6, 0.0)];

/// Random for a minute, then a walk through the file.
fn then_walks(at: f64) -> (bool, bool, [Rates; 3]) {
    if at < 60.0 { lmdb(at) } else { (true, false, WALK) }
}

/// From one to the other every 20 seconds: worse than that it gets with no switch allowed for.
fn to_and_fro(at: f64) -> (bool, bool, [Rates; 3]) {
    if at % 40.0 < 20.0 { lmdb(at) } else { (true, false, WALK) }
}

/// Memory is short for half a minute, then neither, then everything fits.
fn relieved(at: f64) -> (bool, bool, [Rates; 3]) {
    match at {
        _ if at < 30.0 => lmdb(at),
        _ => (false, at > 40.0, [Rates(0.5, 0.0, 0.0, 0.0); 3]),
    }
}

/// LMDB that stops in the middle of the first trial.
fn pauses(at: f64) -> (bool, bool, [Rates; 3]) {
    if (1.5..40.0).contains(&at) { (true, false, [NOTHING; 3]) } else { lmdb(at) }
}

/// All that happened.
struct Story {
    /// When, and to which way.
    switches: Vec<(f64, Way)>,
    /// What was achieved against the kernel all the time, and against the best way at each moment.
    against_kernel: f64,
    against_best: f64,
}

impl Story {
    fn way_at(&self, at: f64) -> Way {
        self.switches.iter().rfind(|(when, _)| *when <= at).map_or(Way::Kernel, |(_, way)| *way)
    }
}

fn run(program: Program, seconds: f64, noise: f64, seed: u64) -> Story {
    run_with(program, seconds, noise, seed, |_, _| ALL)
}

/// Noise is by look, half of it by a walk that keeps its direction for some seconds; `between` may refuse and forbid.
fn run_with(
    program: Program,
    seconds: f64,
    noise: f64,
    seed: u64,
    mut between: impl FnMut(&mut Controller, Way) -> Allowed,
) -> Story {
    let mut chance = mixer(seed);
    let mut controller = Controller::new();
    let mut story = Story { switches: Vec::new(), against_kernel: 0.0, against_best: 0.0 };
    let (mut at, mut way, mut since, mut slow, mut begun) = (0.0, Way::Kernel, 0.0, 0.0, true);
    let (mut done, mut by_kernel, mut by_best) = (0.0, 0.0, 0.0);
    controller.look(&Look::default(), ALL);
    while at < seconds {
        let (short, fits, ways) = program(at);
        let length: f64 = if begun { 0.25 } else { 1.0 };
        begun = short;
        at += length;
        slow = 0.9 * slow + 0.1 * (2.0 * chance() - 1.0) * 3.0;
        let luck = 1.0 + noise * (0.5 * f64::clamp(slow, -1.0, 1.0) + 0.5 * (2.0 * chance() - 1.0));
        let Rates(progress, faults, read, refaults) = ways[way as usize];
        let cold = if way == Way::Engine && at - since < 1.5 { 0.6 } else { 1.0 };
        let factor = luck * cold * length;
        done += progress * factor;
        by_kernel += ways[0].0 * luck * length;
        by_best += ways.iter().map(|rates| rates.0).fold(0.0, f64::max) * luck * length;
        // What faults bring along is a little more than the controller takes off.
        let brought = if way == Way::Engine { 2.5e-6 } else { 1.15e-6 };
        let share = progress * luck * cold + brought * faults * luck;
        let ticks = (0..2 * (length / 0.004) as u32).filter(|_| chance() < share / 2.0).count();
        let faults = (faults * factor) as u64;
        let look = Look {
            at: Duration::from_secs_f64(at),
            user: Duration::from_millis(4 * ticks as u64),
            major_faults: if way == Way::Engine { 0 } else { faults },
            minor_faults: 50,
            misses: if way == Way::Engine { faults } else { 0 },
            refaults: (refaults * factor) as u64,
            read: (read * factor) as u64,
            short,
            fits,
            mapped: GIB,
            around: 8 << 20,
        };
        let allowed = between(&mut controller, way);
        let decision = controller.look(&look, allowed);
        assert!(decision.way != Way::Engine || allowed.engine, "{:?} at {at}", decision.why);
        let begins = decision.way == Way::Advised && way == Way::Kernel;
        assert!(!begins || allowed.advised, "{:?} at {at}", decision.why);
        if decision.way != way {
            (way, since) = (decision.way, at);
            story.switches.push((at, way));
        }
    }
    story.against_kernel = done / by_kernel;
    story.against_best = done / by_best;
    story
}

/// With 100 seeds.
fn runs(program: Program, seconds: f64) -> Vec<Story> {
    (0..100).map(|seed| run(program, seconds, 0.2, seed)).collect()
}

fn ending_with(stories: &[Story], way: Way) -> usize {
    stories.iter().filter(|story| story.way_at(f64::MAX) == way).count()
}

/// What it costs to find out, and what it brings: means over the seeds, against the kernel all the time and against the best way.
#[test]
fn regret_is_small() {
    let programs: [(&str, Program, f64, f64); 12] = [
        ("lmdb", lmdb, 6.0, 0.93),
        ("lmdb_engine", lmdb_engine, 6.0, 0.85),
        ("numpy", numpy, 2.5, 0.75),
        ("nearly_fits", nearly_fits, 2.3, 0.90),
        ("worse_engine", worse_engine, 0.97, 0.97),
        ("all_equal", all_equal, 0.97, 0.97),
        ("all_equal_and_slow", all_equal_and_slow, 0.97, 0.97),
        ("spins", spins, 1.0, 1.0),
        ("to_and_fro", to_and_fro, 1.2, 0.75),
        ("relieved", relieved, 1.1, 0.95),
        ("pauses", pauses, 5.0, 0.75),
        // Two trials, each of which stops the program: 2.3 s of 60.
        ("hopeless", hopeless, 0.95, 0.95),
    ];
    let mean = |stories: &[Story], of: fn(&Story) -> f64| stories.iter().map(of).sum::<f64>() / stories.len() as f64;
    for (name, program, kernel, best) in programs {
        let stories = runs(program, 60.0);
        let (by_kernel, by_best) =
            (mean(&stories, |story| story.against_kernel), mean(&stories, |story| story.against_best));
        println!("{name}: {by_kernel:.3} of the kernel's, {by_best:.3} of the best way's");
        assert!(by_kernel >= kernel && by_best >= best, "{name}: {by_kernel:.3}, {by_best:.3}");
    }
    for program in [hopeless as Program, to_and_fro] {
        let later = mean(&runs(program, 600.0), |story| story.against_kernel);
        println!("{later:.3} of the kernel's in ten minutes");
        assert!(later >= 0.985, "{later:.3}");
    }
}

#[test]
fn what_pays_is_found() {
    // Memory is short from the first second on.
    let stories = runs(lmdb, 60.0);
    let found =
        stories.iter().filter(|story| (50..=600).all(|tenth| story.way_at(tenth as f64 / 10.0) != Way::Kernel)).count();
    let at_once = stories.iter().filter(|story| story.way_at(6.0) != Way::Kernel).count();
    println!("{at_once} within 5 s, {found} never left");
    assert!(at_once >= 98 && ending_with(&stories, Way::Kernel) == 0);
    assert!(ending_with(&runs(nearly_fits, 60.0), Way::Engine) == 100);
    assert!(ending_with(&runs(numpy, 60.0), Way::Engine) >= 90);
}

#[test]
fn faults_are_not_progress() {
    // User time trebles under advice, and all of it is faults.
    let stories = runs(|at| (true, false, [numpy(at).2[0], numpy(at).2[1], NOTHING]), 60.0);
    assert!(ending_with(&stories, Way::Advised) <= 2, "{}", ending_with(&stories, Way::Advised));
}

/// A binary search at a quarter: what user time there is, misses bring along, and the engine is somewhat slower.
fn search(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.0002, 100.0, 800e6, 190e3), Rates(0.0055, 14e3, 57e6, 0.0), Rates(0.004, 14e3, 57e6, 0.0)])
}

#[test]
fn misses_are_not_progress() {
    let stories = runs(search, 120.0);
    assert!(ending_with(&stories, Way::Engine) <= 10, "{}", ending_with(&stories, Way::Engine));
    let tried = |story: &&Story| story.switches.iter().any(|(_, way)| *way == Way::Engine);
    assert!(stories.iter().filter(tried).count() >= 90);
}

#[test]
fn where_nothing_pays_the_kernel_stays() {
    // Three rounds in ten minutes, each of two trials; half as many again where a window holds three ticks.
    for (program, bound) in [(all_equal as Program, 12), (all_equal_and_slow, 18), (worse_engine, 12), (hopeless, 12)] {
        let stories = runs(program, 600.0);
        let most = stories.iter().map(|story| story.switches.len()).max().unwrap_or_default();
        println!("{} stay, {most} switches at most", ending_with(&stories, Way::Kernel));
        assert!(ending_with(&stories, Way::Kernel) >= 95 && most <= bound, "{most}");
    }
}

/// RocksDB's gets: the kernel has long ceased to read around, and the engine is worse. Back from there the files are new to the kernel.
fn read_singly(_: f64) -> (bool, bool, [Rates; 3]) {
    (
        true,
        false,
        [Rates(0.12, 4e3, 4e3 * 4096.0, 2e3), Rates(0.12, 4e3, 4e3 * 4096.0, 2e3), Rates(0.07, 3e3, 12e6, 0.0)],
    )
}

/// A walk through more than memory: the kernel reads ahead of it.
fn walk(_: f64) -> (bool, bool, [Rates; 3]) {
    (true, false, [Rates(0.5, 200.0, 1e9, 200e3), Rates(0.1, 20e3, 80e6, 20e3), Rates(0.3, 2e3, 600e6, 0.0)])
}

#[test]
fn what_comes_back_is_served_as_it_was() {
    let first_after_the_engine = |story: &Story| {
        let ways: Vec<_> = story.switches.iter().map(|(_, way)| *way).collect();
        ways.iter().position(|way| *way == Way::Engine).map(|at| ways[at + 1])
    };
    for (program, wanted) in [(read_singly as Program, Way::Advised), (walk, Way::Kernel)] {
        let ways: Vec<_> = runs(program, 60.0).iter().filter_map(first_after_the_engine).collect();
        let right = ways.iter().filter(|way| **way == wanted).count();
        assert!(ways.len() >= 90 && right >= ways.len() - 5, "{right} of {} to {wanted:?}", ways.len());
    }
}

/// A trial of the engine takes seconds at a part of the speed, and many a program does not live much longer.
#[test]
fn the_engine_is_tried_later_where_what_is_missed_is_read_alone() {
    let in_time = |seconds| runs(read_singly, seconds).iter().filter(|story| !story.switches.is_empty()).count();
    assert_eq!(in_time(29.0), 0);
    assert!(in_time(40.0) >= 90);
}

#[test]
fn who_spins_or_idles_is_left_alone() {
    for program in [spins as Program, idle, |at| (false, false, lmdb(at).2)] {
        assert!(runs(program, 60.0).iter().all(|story| story.switches.is_empty()));
    }
}

#[test]
fn a_walk_ends_advice() {
    let stories = runs(then_walks, 120.0);
    let advised: Vec<_> = stories.iter().filter(|story| story.way_at(60.0) == Way::Advised).collect();
    let end =
        |story: &&Story| story.switches.iter().find(|(at, way)| *at > 60.0 && *way == Way::Kernel).map(|(at, _)| *at);
    let ends: Vec<_> = advised.iter().filter_map(end).collect();
    let soon = ends.iter().filter(|at| **at <= 62.0).count();
    println!("{} advised, {soon} undone within 2 s", ends.len());
    // A walk that sets in while the way is looked at anew may pass for what was there before, until the next trial.
    assert!(ends.len() >= 90 && advised.len() - ends.len() <= 3, "{} of {}", ends.len(), advised.len());
    assert!(soon >= 55 && ends.iter().all(|at| *at < 65.0), "{ends:?}");
}

#[test]
fn what_fits_is_the_kernels() {
    for story in runs(relieved, 60.0) {
        assert_eq!(story.way_at(44.5), Way::Kernel);
        let between = story.switches.iter().filter(|(at, _)| (33.0..43.0).contains(at)).count();
        assert!(between == 0 && story.way_at(40.0) != Way::Kernel, "{:?}", story.switches);
    }
}

#[test]
fn a_trial_of_one_that_stops_is_ended() {
    for story in runs(pauses, 40.0) {
        assert!(story.way_at(2.5) == Way::Advised && story.way_at(39.0) == Way::Kernel, "{:?}", story.switches);
    }
}

#[test]
fn a_pause_is_not_judged() {
    let stories = runs(|at| (true, false, if (3.5..12.0).contains(&at) { [NOTHING; 3] } else { lmdb(at).2 }), 30.0);
    let paused: Vec<_> = stories.iter().filter(|story| story.way_at(3.5) == Way::Advised).collect();
    println!("{} paused in a trial", paused.len());
    assert!(paused.len() >= 50 && paused.iter().all(|story| story.switches.iter().all(|(_, way)| *way != Way::Kernel)));
}

#[test]
fn faults_of_other_memory_are_none_of_ours() {
    let mut controller = Controller::new();
    for quarter in 0..100 {
        let at = Duration::from_millis(250 * quarter);
        let look = Look { at, user: at / 100, major_faults: 1000, short: true, ..Look::default() };
        assert_eq!(controller.look(&look, ALL).way, Way::Kernel);
    }
}

#[test]
fn new_mappings_are_waited_for() {
    for program in [nearly_fits, worse_engine, all_equal] {
        assert!(run_with(program, 60.0, 0.2, 1, maps_all_the_time()).switches.is_empty());
    }
}

/// As RocksDB does with its tables: what is plain is acted upon, and what pays stays, though no mapping is older than a look.
#[test]
fn advice_is_found_and_stays_though_files_are_mapped_all_the_time() {
    for seed in 0..100 {
        let story = run_with(lmdb, 120.0, 0.2, seed, maps_all_the_time());
        let first = story.switches[0];
        assert!(first.1 == Way::Advised && first.0 <= 1.0, "{seed}: {:?}", story.switches);
        assert!(story.switches.iter().all(|(_, way)| *way != Way::Engine), "{seed}: {:?}", story.switches);
        assert!(story.way_at(f64::MAX) == Way::Advised && story.against_best > 0.93, "{seed}: {:?}", story.switches);
    }
}

/// With a second and more between two mappings the engine has its trial, which they do not prolong.
#[test]
fn a_trial_ends_though_files_are_mapped_in_it() {
    for seed in 0..20 {
        let (mut looks, mut trials) = (0, Vec::new());
        let story = run_with(lmdb_bad_engine, 120.0, 0.2, seed, |controller, _| {
            looks += 1;
            if looks % 6 == 0 {
                controller.mapped_anew();
            }
            ALL
        });
        for two in story.switches.windows(2).filter(|two| two[0].1 == Way::Engine) {
            trials.push(two[1].0 - two[0].0);
        }
        assert!(!trials.is_empty() && trials.iter().all(|long| *long < 10.0), "{seed}: {:?}", story.switches);
    }
}

fn lmdb_bad_engine(at: f64) -> (bool, bool, [Rates; 3]) {
    let [kernel, advised, _] = lmdb(at).2;
    (true, false, [kernel, advised, Rates(0.01, 2e3, 8e6, 0.0)])
}

fn maps_all_the_time() -> impl FnMut(&mut Controller, Way) -> Allowed {
    |controller, _| {
        controller.mapped_anew();
        ALL
    }
}

/// A walk, or work that is served well, is not judged in the first second, whatever it reads.
#[test]
fn what_is_not_plain_is_not_decided_in_the_first_second() {
    let walks: Program = |_| (true, false, WALK);
    for program in [walks, worse_engine, nearly_fits, all_equal] {
        for seed in 0..100 {
            let story = run_with(program, 10.0, 0.2, seed, maps_at_first());
            assert!(story.switches.first().is_none_or(|(at, _)| *at > 1.0), "{seed}: {:?}", story.switches);
        }
    }
}

/// The program maps its files as it begins.
fn maps_at_first() -> impl FnMut(&mut Controller, Way) -> Allowed {
    let mut has_mapped = false;
    move |controller, _| {
        if !std::mem::replace(&mut has_mapped, true) {
            controller.mapped_anew();
        }
        ALL
    }
}

/// What is plain in the first second of a mapping is not looked at for longer.
#[test]
fn what_is_in_vain_from_the_beginning_ends_soon() {
    for seed in 0..100 {
        let (first, way) = run_with(lmdb, 10.0, 0.2, seed, maps_at_first()).switches[0];
        assert!(way == Way::Advised && first <= 0.75, "{way:?} at {first} s");
    }
}

/// Three seconds in which nothing gets on, and the kernel may try again: it reads around in vain as before, and that is seen at once.
#[test]
fn the_kernel_is_not_long_on_trial_where_it_reads_in_vain() {
    let dips: Program = |at| {
        let [kernel, advised, engine] = lmdb(at).2;
        let progress = if (20.0..23.0).contains(&at) { 0.0 } else { advised.0 };
        (true, false, [kernel, Rates(progress, advised.1, advised.2, advised.3), engine])
    };
    let mut tried = 0;
    for story in runs(dips, 28.0) {
        let later =
            story.switches.iter().zip(&story.switches[1..]).filter(|((at, way), _)| *at > 20.0 && *way == Way::Kernel);
        for ((from, _), (to, _)) in later {
            tried += 1;
            assert!(to - from <= 2.0, "{:?}", story.switches);
        }
        assert_eq!(story.way_at(28.0), Way::Advised, "{:?}", story.switches);
    }
    assert!(tried >= 50, "{tried}");
}

/// As RocksDB does when its load turns into compactions: slower by itself just when advice is tried, which then loses to what was before.
#[test]
fn advice_that_lost_to_a_program_that_slowed_down_is_tried_again() {
    let slows_down: Program = |at| {
        let progress = if at < 1.0 { [0.479, 0.6] } else { [0.027, 0.192] };
        let [kernel, advised, engine] = lmdb(at).2;
        let rates = |progress, Rates(_, faults, read, refaults)| Rates(progress, faults, read, refaults);
        (true, false, [rates(progress[0], kernel), rates(progress[1], advised), rates(progress[1], engine)])
    };
    let mut lost = 0;
    for seed in 0..100 {
        let mut maps = maps_at_first();
        let without_engine = move |controller: &mut Controller, way| Allowed { engine: false, ..maps(controller, way) };
        let story = run_with(slows_down, 60.0, 0.2, seed, without_engine);
        lost += story.switches.iter().any(|(at, way)| *at < 5.0 && *way == Way::Kernel) as usize;
        assert!((6..=60).all(|at| story.way_at(at as f64) != Way::Kernel), "{seed}: {:?}", story.switches);
    }
    assert!(lost >= 90, "{lost}");
}

/// Progress in the first second is a tick or none: however long advice is on trial, that is all there is to compare it with.
#[test]
fn advice_against_what_is_plainly_in_vain_stays_unless_it_is_worse() {
    for seed in 0..100 {
        let story = run_with(python, 40.0, 0.2, seed, maps_at_first());
        assert!(story.switches.iter().all(|(_, way)| *way != Way::Kernel), "{seed}: {:?}", story.switches);
    }
}

#[test]
fn what_is_refused_is_not_asked_for_again_soon_and_then_never() {
    let programs = [lmdb as Program, to_and_fro];
    for (program, refused) in programs.into_iter().flat_map(|program| [(program, Way::Advised), (program, Way::Engine)])
    {
        let mut asked = 0;
        let refuse = |controller: &mut Controller, way| {
            if way == refused {
                asked += 1;
                controller.refused(way);
            }
            ALL
        };
        let story = run_with(program, 3600.0, 0.2, 1, refuse);
        let times: Vec<_> = story.switches.iter().filter(|(_, way)| *way == refused).map(|(at, _)| *at).collect();
        assert!(asked == times.len() && (2..=3).contains(&asked), "{:?}", story.switches);
        assert!(times[1] - times[0] > 50.0 && times.get(2).is_none_or(|at| at - times[1] > 150.0), "{times:?}");
    }
}

#[test]
fn one_way_alone_is_tried_where_the_other_is_forbidden() {
    let without = |advised, engine| run_with(lmdb, 60.0, 0.2, 1, move |_, _| Allowed { advised, engine });
    assert_eq!(without(true, false).way_at(60.0), Way::Advised);
    assert_eq!(without(false, true).way_at(60.0), Way::Engine);
    assert!(without(false, false).switches.is_empty());
    // The trial of the engine fails, and there is nothing to advise meanwhile: what is mapped next is to have advice again.
    let slow = |at| (true, false, [lmdb(at).2[0], lmdb(at).2[1], Rates(0.001, 5e3, 20e6, 0.0)]);
    let story = run_with(slow, 60.0, 0.2, 1, |_, way| Allowed { advised: way != Way::Engine, engine: true });
    let tried = story.switches.iter().position(|(_, way)| *way == Way::Engine).expect("on trial");
    assert_eq!(story.switches[tried + 1].1, Way::Advised);
}

/// Most switches in any hour.
fn most_in_an_hour(switches: &[f64]) -> usize {
    let within = |(first, from): (usize, &f64)| switches[first..].iter().take_while(|at| **at < from + 3600.0).count();
    switches.iter().enumerate().map(within).max().unwrap_or_default()
}

/// Whatever is seen: forbidden ways are not asked for, and switches are bounded. The `bait` pays for each change at first and then no more.
#[test]
fn switches_are_bounded_whatever_happens() {
    let bound = (CREDIT + 3600.0 / CREDIT_EVERY) as usize + 2;
    let mut most = 0;
    for seed in 0..64 {
        let (mut chance, bait) = (mixer(seed), seed % 2 == 0);
        let (mut controller, mut at, mut way, mut allowed) = (Controller::new(), 0.0, Way::Kernel, ALL);
        let (mut switches, mut since) = (Vec::new(), 0.0);
        while at < 3.0 * 3600.0 {
            let length = if bait { 0.25 } else { 3.0 * chance() };
            at += length;
            let share = if bait { if at - since < 4.0 { 0.9 } else { 0.1 } } else { chance() * chance() };
            let any = |chance: &mut dyn FnMut() -> f64, most: f64| (most * chance() * length) as u64;
            let look = Look {
                at: Duration::from_secs_f64(at),
                user: Duration::from_secs_f64(share * length),
                major_faults: any(&mut chance, 1e4) + 200,
                minor_faults: any(&mut chance, 1e4),
                misses: any(&mut chance, 1e4),
                refaults: any(&mut chance, 1e5),
                read: any(&mut chance, 1e9),
                short: bait || chance() < 0.95,
                fits: !bait && chance() < 0.3,
                mapped: GIB,
                around: 8 << 20,
            };
            if !bait && chance() < 0.05 {
                allowed = Allowed { advised: chance() < 0.8, engine: chance() < 0.8 };
            }
            if !bait && chance() < 0.001 {
                controller.refused(way);
            }
            if !bait && chance() < 0.05 {
                controller.mapped_anew();
            }
            let next = controller.look(&look, allowed).way;
            assert!(next != Way::Engine || allowed.engine, "{next:?} at {at}, seed {seed}");
            if next != way {
                (way, since) = (next, at);
                switches.push(at);
            }
        }
        most = most.max(most_in_an_hour(&switches));
    }
    println!("{most} switches in an hour, bound {bound}");
    assert!(most <= bound, "{most}");
    assert!(most > bound / 2, "the traces do make it switch: {most}");
}

#[test]
fn reasons_have_their_numbers() {
    let why = Why { reason: "pays, and stays", progress: Some((0.0197, 0.138)) };
    assert_eq!(why.to_string(), "pays, and stays: 2.0 % of a core, then 13.8 %");
    assert_eq!(Why { reason: "on trial", progress: None }.to_string(), "on trial");
}
