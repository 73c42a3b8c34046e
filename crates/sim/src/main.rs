//! The policy of steering on the model, by seed.
use std::fmt::Write;
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, other: u64| arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(other);
    if arguments.first().is_some_and(|one| one == "seed") {
        let case = fastmap_sim::seed::case(number(1, 0));
        let outcome = case.outcome(true);
        let mut text = format!("{}\n", case.name);
        for (at, event) in outcome.watcher.events.iter().flatten() {
            let _ = writeln!(text, "{:9.3} s  {event}", *at as f64 / 1e9);
        }
        for (name, run) in [
            ("as it is", outcome.as_is),
            (&format!("{:?}", outcome.best.0), outcome.best.1),
            ("steered", outcome.steered),
        ] {
            let c = run.counts;
            let _ = writeln!(
                text,
                "{name:>10}: {:.3} s, {} touches, {} major, {} minor, {} read, {} brought, {} evicted",
                run.time as f64 / 1e9,
                c.touches,
                c.major,
                c.minor,
                c.read,
                c.brought,
                c.evicted
            );
        }
        let _ = writeln!(text, "{:?} cost {:.2} %", outcome.watcher.report, outcome.share() * 100.0);
        print!("{text}");
        return;
    }
    if arguments.first().is_some_and(|one| one == "check") {
        use fastmap_sim::{check, kernel};
        let rules = match arguments[1].as_str() {
            "6.1" => kernel::LINUX_6_1,
            "6.12" => kernel::LINUX_6_12,
            "6.12-lists" => kernel::Rules { generations: false, ..kernel::LINUX_6_12 },
            "6.18-gen" => kernel::Rules { generations: true, ..kernel::LINUX_6_18 },
            _ => kernel::LINUX_6_18,
        };
        let (file, readahead) = (number(2, 65536), number(3, 32));
        for one in check::workloads() {
            let bytes: Vec<u8> = one.touches(file).iter().flat_map(|page| page.to_le_bytes()).collect();
            std::fs::write(format!("{}/{}", arguments[4], one.name), bytes).unwrap();
            for (name, advice) in [
                ("normal", kernel::Advice::Normal),
                ("random", kernel::Advice::Random),
                ("sequential", kernel::Advice::Sequential),
                ("hugepage", kernel::Advice::Huge),
            ] {
                let c = one.counts(rules, file, readahead, advice);
                println!(
                    "{} {} {} touches {} read_pages {} major {} minor {}",
                    one.name,
                    file * one.memory / 16,
                    name,
                    c.touches,
                    c.read,
                    c.major,
                    c.minor
                );
            }
        }
        return;
    }
    let rows = fastmap_sim::distribution::run(number(0, 0)..number(1, 100));
    print!("{}", fastmap_sim::distribution::text(&rows, number(2, 20) as usize));
}
