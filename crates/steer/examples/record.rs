//! Records what a process touches of its file mappings, for the tests of `classify`: `record PID [LOOKS] [MILLISECONDS]`.
//! One line a look and mapping: the time in ms, the mapping's pages, and each run of new pages as `first+count`.

use fastmap_steer::classify::shape;
use fastmap_steer::observe::{Mappings, Pages, Seen};
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize, otherwise| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (Some(process), looks, pause) = (arguments.get(1), number(2, 6), number(3, 20)) else {
        eprintln!("record PID [LOOKS] [MILLISECONDS]");
        std::process::exit(2);
    };
    let mut pages = Pages::of(process).expect("the process's page tables cannot be read");
    let mappings = Mappings::of(process).look();
    let mut seen: Vec<Seen> = mappings.iter().map(|one| Seen::nothing(one.at.start, one.pages)).collect();
    let mut before = vec![Vec::new(); mappings.len()];
    let began = Instant::now();
    for look in 0..=looks {
        for ((mapping, seen), before) in mappings.iter().zip(&mut seen).zip(&mut before) {
            let new = pages.look(seen, 0..mapping.pages);
            if look > 0 && !new.is_empty() {
                let runs: Vec<String> = new.iter().map(|run| format!("{}+{}", run.at, run.len)).collect();
                println!("{} {} {}", began.elapsed().as_millis(), mapping.pages, runs.join(" "));
                eprintln!("{}: {:?}", mapping.path, shape(before, &new));
            }
            *before = new;
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
}
