//! What every experiment's JSON holds, and whether memory can be limited here.

use fastmap_cli::cgroup::Controller;

/// Whether this machine lets the tests make memory cgroups: then what is limited is tested with limits.
pub fn memory_flag(limit: &'static str) -> &'static str {
    if Controller::find().is_ok() { limit } else { "none" }
}

/// What every experiment tells beside its rows: how it was checked, headlines and figures that `fastmap report` can show, and where
/// and when it was.
#[track_caller]
pub fn check_told(report: &serde_json::Value) {
    let list = |of: &serde_json::Value, name: &str| of[name].as_array().unwrap().clone();
    assert!(!report["verified"].as_str().unwrap().is_empty());
    assert!(report["began_unix_s"].as_f64().unwrap() > 1.7e9 && report["took_s"].as_f64().unwrap() > 0.0);
    assert!(report["command"].as_str().unwrap().starts_with("fastmap bench"));
    for headline in list(report, "headlines") {
        let ratio = |which: &str| headline["ratio"][which].as_f64().unwrap();
        assert!(
            0.0 < ratio("low") && ratio("low") <= ratio("median") && ratio("median") <= ratio("high"),
            "{headline}"
        );
        assert!(!headline["what"].as_str().unwrap().is_empty());
    }
    assert!(list(report, "figures").len() >= 2);
    for figure in list(report, "figures") {
        let series = list(&figure, "series");
        assert!((1..=8).contains(&series.len()), "{figure}");
        for point in series.iter().flat_map(|s| list(s, "points")) {
            let y = point["y"].as_f64().unwrap();
            let range = |n: usize| point["range"][n].as_f64().unwrap_or(y);
            assert!(range(0) <= y && y <= range(1), "{point}");
        }
    }
}
