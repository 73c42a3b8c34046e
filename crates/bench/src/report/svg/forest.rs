//! Every comparison at a glance: ratios with their spread around 1, and the papers'.

use maud::{Markup, html};

use super::scale::Scale;
use super::{LINE, WIDTHS, frame, round, text, text_width, wrap};
use crate::report::summary::{Said, Verdict};
use crate::report::words::{count, tick, times, times_of};

/// What is between two comparisons.
const APART: f64 = 9.0;

/// A plot of headlines; `names` are those of the experiments.
pub fn overview(all: &[Said<'_>], names: &[String]) -> Markup {
    let paper = all.iter().any(|s| s.headline.paper.is_some());
    html! {
        ul.legend {
            @for verdict in Verdict::ALL {
                li { svg class=(format!("swatch {}", verdict.word())) viewBox="0 0 22 12" aria-hidden="true" { (dot(verdict, 11.0, 6.0)) } (verdict.word()) }
            }
            @if paper { li { svg.swatch viewBox="0 0 22 12" aria-hidden="true" { (diamond(11.0, 6.0)) } "the paper’s" } }
        }
        @for (class, width) in WIDTHS {
            @let (height, drawn) = draw(all, names, width);
            @let text = format!("{}, each a ratio with its spread; the same are in the lists below.", count(all.len(), "comparison"));
            (frame(&format!("overview-{class}"), class, (width, height), "Every comparison", &text, drawn))
        }
    }
}

fn draw(all: &[Said<'_>], names: &[String], width: f64) -> (f64, Markup) {
    let beside = width > 500.0;
    let left = if beside { width * 0.46 } else { 6.0 };
    let label = all.iter().map(|s| text_width(&times(s.headline.ratio.median))).fold(0.0, f64::max);
    let right = width - label - 16.0;
    let of = |s: &Said<'_>| {
        let ratio = s.headline.ratio;
        [ratio.low, ratio.high, ratio.median, s.headline.paper.as_ref().map_or(1.0, |p| p.ratio)]
    };
    let scale = Scale::of(all.iter().flat_map(of).chain([0.8, 1.25]), true, false, (left, right));
    let mut y = 4.0;
    let mut rows = Vec::new();
    let mut experiment = None;
    for said in all {
        if experiment != Some(said.experiment) {
            experiment = Some(said.experiment);
            rows.push(text(&[names[said.experiment].clone()], 0.0, y + 12.0, "group", "start"));
            y += LINE + 6.0;
        }
        let lines = wrap(&said.headline.what, if beside { left - 16.0 } else { width }, 3);
        let height = lines.len() as f64 * LINE;
        rows.push(text(&lines, 0.0, y + 11.0, "name", "start"));
        let middle = if beside { y + height / 2.0 } else { y + height + 7.0 };
        rows.push(row(said, &scale, middle, width));
        y += if beside { height } else { height + LINE } + APART;
    }
    let one = round(scale.at(1.0));
    let drawn = html! {
        @for t in scale.apart(&scale.ticks(((right - left) / 70.0) as usize)) {
            path.grid d=(format!("M{} 0V{}", round(scale.at(t)), round(y))) {}
            text x=(round(scale.at(t))) y=(round(y + 14.0)) text-anchor="middle" { (tick(t)) "x" }
        }
        path.one d=(format!("M{one} 0V{}", round(y))) {}
        @for row in rows { (row) }
        (text(&["times as good (logarithmic)".to_owned()], (left + right) / 2.0, y + 34.0, "axis", "middle"))
    };
    (y + 42.0, drawn)
}

/// One comparison; what its ratio is stands at `end`.
fn row(said: &Said<'_>, scale: &Scale, y: f64, end: f64) -> Markup {
    let headline = said.headline;
    let ratio = headline.ratio;
    let verdict = Verdict::of(ratio);
    let (low, high) = (round(scale.at(ratio.low)), round(scale.at(ratio.high)));
    let paper = headline.paper.as_ref().map(|paper| scale.at(paper.ratio));
    let middle = round(y);
    html! {
        g class=(verdict.word()) {
            title { (headline.what) ": " (times_of(ratio)) ", " (verdict.word()) }
            @if low != high { path.range d=(format!("M{low} {middle}H{high}")) {} }
            @if let Some(x) = paper { (diamond(x, y)) }
            (dot(verdict, scale.at(ratio.median), y))
            text.value x=(round(end)) y=(round(y + 4.0)) text-anchor="end" { (times(ratio.median)) }
        }
    }
}

/// Shapes tell verdicts apart where colours do not.
fn dot(verdict: Verdict, x: f64, y: f64) -> Markup {
    let (x, y) = (round(x), round(y));
    match verdict {
        Verdict::Ahead => html! { circle.mark cx=(x) cy=(y) r="5" {} },
        Verdict::Level => html! { path.mark d=(format!("M{x} {y}m-4.2 -4.2h8.4v8.4h-8.4z")) {} },
        Verdict::Behind => html! { path.mark d=(format!("M{x} {y}m0 5.4l5.4 -9.6h-10.8z")) {} },
    }
}

fn diamond(x: f64, y: f64) -> Markup {
    html! { path.paper d=(format!("M{} {}m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z", round(x), round(y))) {} }
}
