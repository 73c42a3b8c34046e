//! Imports point downward: a room names only those above it in [`ROOMS`]. So no circle of rooms can come into being.
//!
//! `cargo test -p fastmap-io rooms -- --nocapture` draws the graph (Graphviz); `FASTMAP_ROOMS=DIRECTORY` draws that of other sources, by
//! file where they have no rooms.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// From the top, which knows nobody, down. A folder or a file of `src`.
const ROOMS: [&str; 25] = [
    "sys",
    "size",
    "modes",
    "error",
    "signals",
    "descriptors",
    "mechanism",
    "page",
    "counters",
    "store",
    "pool",
    "region",
    "deferred",
    "writeback",
    "evict",
    "readahead",
    "fault",
    "pin",
    "direct",
    "requirements",
    "live",
    "files",
    "map",
    "coherence",
    "by_address",
];

/// Who names whom, and where.
type Graph = BTreeMap<(String, String), Vec<String>>;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the sources are there").map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Tests may reach anywhere.
fn is_test(path: &Path) -> bool {
    let is_of_tests = |part: &str| matches!(part, "tests" | "models" | "faulty") || part.ends_with("_tests");
    path.components().any(|part| is_of_tests(part.as_os_str().to_str().unwrap_or_default().trim_end_matches(".rs")))
}

fn graph(src: &Path) -> Graph {
    let mut graph = Graph::new();
    for path in sources(src) {
        let within = path.strip_prefix(src).expect("below it");
        if is_test(within) || within == Path::new("lib.rs") {
            continue;
        }
        let first = within.components().next().expect("a name").as_os_str().to_str().expect("UTF-8");
        let from = first.trim_end_matches(".rs");
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text.split("#[cfg(all(test, not(loom)))]\nmod tests {").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for rest in line.split("crate::").skip(1) {
                let name = |character: char| character.is_ascii_lowercase() || character == '_';
                // What the root exports begins with a capital: a room must say where a thing lives.
                let to = rest.split(|character| !name(character)).next().unwrap_or_default();
                let to = if to.is_empty() { "lib" } else { to };
                if to != from {
                    let place = format!("{}:{}", within.display(), number + 1);
                    graph.entry((from.to_owned(), to.to_owned())).or_default().push(place);
                }
            }
        }
    }
    graph
}

/// Rooms that can reach themselves, by names of rooms on the way.
fn in_circles(graph: &Graph) -> Vec<String> {
    let reach = |from: &str| {
        let mut seen = std::collections::BTreeSet::new();
        let mut left = vec![from.to_owned()];
        while let Some(room) = left.pop() {
            for (_, to) in graph.keys().filter(|(one, _)| *one == room) {
                if seen.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        seen
    };
    let mut rooms: Vec<_> = graph.keys().map(|(from, _)| from.clone()).collect();
    rooms.dedup();
    rooms.into_iter().filter(|room| reach(room).contains(room)).collect()
}

fn draw(graph: &Graph) {
    println!("digraph rooms {{");
    graph.iter().for_each(|((from, to), places)| println!("    {from} -> {to} [label={}];", places.len()));
    println!("}}");
    let circle = in_circles(graph);
    println!(
        "// {} edges, {} imports, {} in circles: {}",
        graph.len(),
        graph.values().flatten().count(),
        circle.len(),
        circle.join(" ")
    );
}

#[test]
fn imports_point_downward() {
    if let Some(other) = std::env::var_os("FASTMAP_ROOMS") {
        return draw(&graph(Path::new(&other)));
    }
    let graph = graph(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    draw(&graph);
    let rank = |room: &str| ROOMS.iter().position(|one| *one == room);
    let mut wrong = Vec::new();
    for ((from, to), places) in &graph {
        match (rank(from), rank(to)) {
            (Some(from), Some(to)) if to < from => {}
            (Some(_), Some(_)) => wrong.push(format!("{from} must not name {to}: {}", places.join(", "))),
            _ => wrong.push(format!("{from} or {to} is not in ROOMS: {}", places.join(", "))),
        }
    }
    assert!(wrong.is_empty(), "imports that point up:\n{}", wrong.join("\n"));
    assert!(graph.len() > 50, "the sources were found: {}", graph.len());
}
