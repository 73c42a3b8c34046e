//! Points over numbers: joined by lines with error bars, or scattered.

use std::collections::HashSet;
use std::fmt::Write;

use maud::{Markup, html};

use super::scale::Scale;
use super::{LINE, axis_label, mark, round, text, text_width, wrap};
use crate::report::table::{places, value};
use crate::report::words::{place, tick};
use crate::results::{Figure, Kind, Series, X};

/// More places than these are not each named on the axis.
const NAMED: usize = 10;

/// Draws them; the height, and what is drawn.
pub fn draw(figure: &Figure, looks: &[usize], width: f64) -> (f64, Markup) {
    let above = wrap(&axis_label(&figure.y), width, 2);
    let below = wrap(&axis_label(&figure.x), width - 40.0, 2);
    let (top, right) = (above.len() as f64 * LINE + 12.0, width - 14.0);
    let bottom = top + (width * 0.42).max(190.0);
    let all = || figure.series.iter().flat_map(|s| &s.points);
    let lines = figure.kind == Kind::Lines;
    let values = all().flat_map(|p| [p.y].into_iter().chain(p.range.into_iter().flat_map(|(low, high)| [low, high])));
    let y = Scale::of(values, figure.y.log, lines, (bottom, top));
    let y_ticks = y.ticks(5);
    let left = y_ticks.iter().map(|t| text_width(&tick(*t))).fold(10.0, f64::max) + 10.0;
    let x_values: Vec<f64> = places(figure).iter().filter_map(number).collect();
    // A little room, so that no point lies on the axis.
    let x = Scale::of(x_values.iter().copied(), figure.x.log, false, (left + 8.0, right - 8.0));
    let named = lines && x_values.len() <= NAMED;
    let x_ticks = if named { x_values } else { x.ticks((width / 90.0) as usize) };
    let drawn = html! {
        (text(&above, 0.0, 11.0, "axis", "start"))
        @for t in y_ticks {
            path.grid d=(format!("M{} {}H{}", round(left), round(y.at(t)), round(right))) {}
            text x=(round(left - 6.0)) y=(round(y.at(t) + 4.0)) text-anchor="end" { (tick(t)) }
        }
        path.base d=(format!("M{} {}H{}", round(left), round(bottom), round(right))) {}
        @for t in x.apart(&x_ticks) {
            path.base d=(format!("M{} {}v4", round(x.at(t)), round(bottom))) {}
            text x=(round(x.at(t))) y=(round(bottom + 18.0)) text-anchor="middle" { (tick(t)) }
        }
        (text(&below, (left + right) / 2.0, bottom + 36.0, "axis", "middle"))
        @for (series, look) in figure.series.iter().zip(looks) {
            g class=(format!("s{look}")) {
                @if lines { (line(series, *look, &x, &y)) } @else { path.dots d=(dots(series, &x, &y)) {} }
            }
        }
    };
    (bottom + 36.0 + below.len() as f64 * LINE - 8.0, drawn)
}

fn line(series: &Series, look: usize, x: &Scale, y: &Scale) -> Markup {
    let mut points: Vec<_> = series.points.iter().filter_map(|p| Some((number(&p.x)?, p))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut path = String::new();
    for (n, (at, point)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if n == 0 { 'M' } else { 'L' }, round(x.at(*at)), round(y.at(point.y)));
    }
    html! {
        path.line d=(path) {}
        @for (at, point) in &points {
            @if let Some((low, high)) = point.range.filter(|(low, high)| low != high) {
                @let (x, low, high) = (round(x.at(*at)), round(y.at(low)), round(y.at(high)));
                path.error d=(format!("M{x} {low}V{high}M{} {low}h6M{} {high}h6", round(x - 3.0), round(x - 3.0))) {}
            }
        }
        @for (at, point) in &points {
            g {
                title { (series.name) ", " (place(&point.x)) ": " (value(point)) }
                (mark(look, x.at(*at), y.at(point.y)))
            }
        }
    }
}

/// All points of a series as one path of dots; those that nobody could tell apart once.
fn dots(series: &Series, x: &Scale, y: &Scale) -> String {
    let mut seen = HashSet::new();
    let mut path = String::new();
    for point in &series.points {
        let Some(at) = number(&point.x) else { continue };
        let (x, y) = (round(x.at(at)), round(y.at(point.y)));
        if seen.insert(((x * 2.0) as i64, (y * 2.0) as i64)) {
            let _ = write!(path, "M{x} {y}h0");
        }
    }
    path
}

fn number(x: &X) -> Option<f64> {
    match x {
        X::Number(number) => Some(*number),
        X::Name(_) => None,
    }
}
