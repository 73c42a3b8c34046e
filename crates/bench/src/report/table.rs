//! The numbers of a figure, as rows of a table.

use super::words::{amount, place, tick};
use crate::results::{Figure, Kind, Point, X};

/// A table and its headings.
pub struct Table {
    /// The headings of the columns.
    pub headings: Vec<String>,
    /// The rows. The first cell of a row is the place of its points on the x axis. In a scatter plot it is the series, and the second is the place.
    pub rows: Vec<Vec<String>>,
    /// A sentence about rows that were left out.
    pub left_out: Option<String>,
}

/// The numbers of `figure`, in at most `most` rows. There is a row for each place and a column for each series. A scatter plot has a row for each
/// point, and at most `most / 2` rows. If there are more rows, only every n-th is kept.
pub fn of(figure: &Figure, most: usize) -> Table {
    let (mut table, most) = match figure.kind {
        Kind::Scatter => (scattered(figure), most / 2),
        _ => (by_place(figure), most),
    };
    let count = table.rows.len();
    if count > most {
        let step = count.div_ceil(most);
        table.rows = table.rows.into_iter().step_by(step).collect();
        table.left_out = Some(format!("One row in {step} of {count}; all are in the JSON."));
    }
    table
}

fn scattered(figure: &Figure) -> Table {
    let headings = vec!["series".to_owned(), figure.x.label.clone(), figure.y.label.clone()];
    let row = |name: &str, point: &Point| vec![name.to_owned(), place(&point.x), value(point)];
    let rows = figure.series.iter().flat_map(|s| s.points.iter().map(|p| row(&s.name, p))).collect();
    Table { headings, rows, left_out: None }
}

fn by_place(figure: &Figure) -> Table {
    let headings = [figure.x.label.clone()].into_iter().chain(figure.series.iter().map(|s| s.name.clone())).collect();
    let row = |x: &X| {
        let cell = |series: &crate::results::Series| {
            let here: Vec<_> = series.points.iter().filter(|p| p.x == *x).map(value).collect();
            if here.is_empty() { "–".to_owned() } else { here.join(", ") }
        };
        [place(x)].into_iter().chain(figure.series.iter().map(cell)).collect()
    };
    Table { headings, rows: places(figure).iter().map(row).collect(), left_out: None }
}

/// The places of a figure's points on the axis, each once. Names keep the order of their first appearance. Numbers are sorted.
fn places(figure: &Figure) -> Vec<X> {
    let mut places: Vec<X> = Vec::new();
    for point in figure.series.iter().flat_map(|s| &s.points) {
        if !places.contains(&point.x) {
            places.push(point.x.clone());
        }
    }
    places.sort_by(|a, b| match (a, b) {
        (X::Number(a), X::Number(b)) => a.total_cmp(b),
        _ => std::cmp::Ordering::Equal,
    });
    places
}

/// The value of a point, with its range.
fn value(point: &Point) -> String {
    match point.range {
        Some((low, high)) if low != high => format!("{} ({} to {})", amount(point.y), tick(low), tick(high)),
        _ => amount(point.y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Axis, Series};

    #[test]
    fn a_row_for_each_place_and_a_column_for_each_series() {
        let one = Series { name: "mmap".into(), points: vec![Point::bare(4.0, 2.0), Point::bare(1.0, 3.0)] };
        let two =
            Series { name: "fastmap".into(), points: vec![Point { range: Some((4.5, 6.0)), ..Point::bare(1.0, 5.0) }] };
        let (x, y) = (Axis::of("threads"), Axis::of("rate"));
        let kind = Kind::Lines;
        let figure = Figure { title: "".into(), caption: "".into(), paper: None, kind, x, y, series: vec![one, two] };
        let table = of(&figure, 10);
        assert_eq!(table.headings, ["threads", "mmap", "fastmap"]);
        assert_eq!(table.rows, [["1", "3.00", "5.00 (4.5 to 6)"], ["4", "2.00", "–"]]);
        let table = of(&Figure { kind: Kind::Scatter, ..figure }, 4);
        assert_eq!(table.left_out.as_deref(), Some("One row in 2 of 3; all are in the JSON."));
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[0], ["mmap", "4", "2.00"]);
    }
}
