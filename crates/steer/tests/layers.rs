//! Modules import only modules above them in this list.

use std::path::Path;

/// From what knows nothing of the others to what knows all.
const LAYERS: [&str; 18] = [
    "clock",
    "run",
    "observe",
    "act",
    "sampler",
    "requirements",
    "warm",
    "report",
    "settings",
    "classify",
    "sampling",
    "trial",
    "given",
    "mapping",
    "patterns",
    "program",
    "watcher",
    "attach",
];

fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for one in std::fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()) {
        match one.is_dir() {
            true => sources(&one, found),
            false => found.push(one),
        }
    }
}

#[test]
fn imports_point_upward_in_the_list() {
    let (src, mut all) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), Vec::new());
    sources(&src, &mut all);
    let place = |module: &str| LAYERS.iter().position(|one| *one == module);
    let mut wrong = Vec::new();
    for file in all {
        let own = file.strip_prefix(&src).unwrap().iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        let Some(own_place) = place(own) else {
            // A library's thread knows all; the crate's root names all.
            assert!(["lib", "inside"].contains(&own), "{own} is not in the list");
            continue;
        };
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("use crate::")) {
            let module = line.split([':', ';', ' ', '{']).next().unwrap();
            if place(module).is_some_and(|at| at > own_place) {
                wrong.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
