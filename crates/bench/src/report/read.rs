//! Reading results.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Results;
use fastmap_cli::failure::Failure;

/// Reads one file that `fastmap bench --json` wrote.
///
/// # Errors
///
/// The file cannot be read, or holds something else. Or an older version wrote it, without figures.
pub fn read(path: &Path) -> Result<Results, Failure> {
    let name = path.display();
    let remedy = "name files that `fastmap bench NAME --json FILE` wrote";
    let text = fs::read(path).map_err(|e| Failure::new(name, format!("cannot be read: {e}"), remedy))?;
    let no_result = |e: serde_json::Error| Failure::new(path.display(), format!("is not a result: {e}"), remedy);
    let mut value: Value = serde_json::from_slice(&text).map_err(no_result)?;
    if let Some(Value::String(experiment)) = value.get("experiment")
        && value.get("figures").is_none()
    {
        let experiment = if experiment == "tour" { "" } else { experiment };
        let remedy = format!("measure again: fastmap bench {experiment} --json {}", path.display());
        let what = "is a result of an older fastmap, without figures";
        return Err(Failure::new(path.display(), what, remedy.replace("  ", " ")));
    }
    drop_what_is_no_number(&mut value);
    serde_json::from_value(value).map_err(no_result)
}

/// Removes ratios, points and ranges that cannot be shown. Where a number was infinite or not a number (0 divided by 0), JSON has null.
fn drop_what_is_no_number(value: &mut Value) {
    fn list<'a>(of: &'a mut Value, name: &str) -> Option<&'a mut Vec<Value>> {
        of.get_mut(name)?.as_array_mut()
    }
    let is_null = |value: &Value| value.is_null();
    if let Some(headlines) = list(value, "headlines") {
        headlines.retain(|h| !h["ratio"].as_object().is_some_and(|ratio| ratio.values().any(is_null)));
    }
    for gain in list(value, "gains").into_iter().flatten() {
        for which in ["as_is", "best"] {
            if gain[which].as_object().is_some_and(|ratio| ratio.values().any(is_null)) {
                gain[which] = Value::Null;
            }
        }
    }
    for figure in list(value, "figures").into_iter().flatten() {
        for series in list(figure, "series").into_iter().flatten() {
            if let Some(points) = list(series, "points") {
                points.retain(|p| !p["x"].is_null() && !p["y"].is_null());
                for point in points {
                    if point["range"].as_array().is_some_and(|range| range.iter().any(is_null)) {
                        point["range"] = Value::Null;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::results;
    use crate::results::{Axis, Figure, Headline, Kind, Point, Series, Spread};

    #[test]
    fn what_is_no_number_is_left_out() {
        let ratio =
            |median| Headline { what: "one".into(), ratio: Spread { median, low: 1.0, high: 2.0 }, paper: None };
        let points =
            vec![Point::bare("a", f64::NAN), Point { x: "b".into(), y: 1.0, range: Some((f64::INFINITY, 1.0)) }];
        let figure = Figure {
            title: String::new(),
            caption: String::new(),
            paper: None,
            kind: Kind::Bars,
            x: Axis::of(""),
            y: Axis::of(""),
            series: vec![Series { name: String::new(), points }],
        };
        let good = results("kv", vec![ratio(1.5)], Vec::new());
        let mut value = serde_json::to_value(good).unwrap();
        value["headlines"].as_array_mut().unwrap().push(serde_json::to_value(ratio(f64::NAN)).unwrap());
        value["figures"] = serde_json::json!([figure]);
        value["gains"] = serde_json::json!([
            {"work": "w", "way": "engine", "as_is": {"median": null, "low": 1.0, "high": 2.0}, "best": ratio(1.5).ratio, "best_name": "a"},
        ]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, value.to_string()).unwrap();
        let read = read(&path).unwrap();
        assert_eq!(read.headlines.len(), 1);
        assert!(read.gains[0].as_is.is_none() && read.gains[0].best.is_some() && !read.gains[0].unsteady);
        let points = &read.figures[0].series[0].points;
        assert_eq!((points.len(), points[0].y, points[0].range), (1, 1.0, None));
    }
}
