//! Bars at names, side by side or stacked. They lie, so that long names and many of them are read on a narrow screen too.

use maud::{Markup, html};

use super::scale::Scale;
use super::{LINE, axis_label, round, text, text_width, wrap};
use crate::report::table::{places, value};
use crate::report::words::{amount, place, tick};
use crate::results::{Figure, Kind, Point, Series, X};

/// A bar's thickness and what is between two of them.
const BAR: f64 = 14.0;
const GAP: f64 = 3.0;

/// What is between two names.
const APART: f64 = 12.0;

/// Draws them; the height, and what is drawn.
pub fn draw(figure: &Figure, looks: &[usize], width: f64) -> (f64, Markup) {
    let stacked = figure.kind == Kind::Stacked;
    let places = places(figure);
    let groups: Vec<Group<'_>> = places.iter().map(|x| Group::at(figure, looks, x, stacked)).collect();
    // Names are beside their bars where there is room, else above.
    let beside = width > 500.0;
    let longest = groups.iter().map(|g| text_width(&g.name)).fold(0.0, f64::max);
    let left = if beside { (longest + 12.0).min(width * 0.3) } else { 0.0 };
    let label = groups.iter().flat_map(|g| &g.bars).map(|b| text_width(&b.label)).fold(0.0, f64::max);
    let right = width - label - 10.0;
    let ends = groups.iter().flat_map(|g| &g.bars).flat_map(|b| [b.low, b.high, b.ends_at]);
    // What is stacked has no meaning on a logarithmic axis.
    let log = figure.y.log && !stacked;
    let scale = Scale::of(ends, log, true, (left + 1.0, right)).with_room_below();
    let mut y = 6.0;
    let mut drawn = Vec::new();
    for group in &groups {
        let name = wrap(&group.name, if beside { left - 10.0 } else { width }, 3);
        let bars = group.bars.len() as f64 * (BAR + GAP) - GAP;
        let name_height = name.len() as f64 * LINE;
        match beside {
            true => {
                let height = bars.max(name_height);
                let middle = y + height / 2.0;
                drawn.push(text(&name, left - 8.0, middle - name_height / 2.0 + 11.0, "name", "end"));
                drawn.push(group.draw(&scale, middle - bars / 2.0));
                y += height + APART;
            }
            false => {
                drawn.push(text(&name, 0.0, y + 10.0, "name", "start"));
                drawn.push(group.draw(&scale, y + name_height));
                y += name_height + bars + APART;
            }
        }
    }
    let bottom = y - APART / 2.0;
    let below = wrap(&axis_label(&crate::results::Axis { log, ..figure.y.clone() }), width, 2);
    let base = round(scale.base());
    let axes = html! {
        @for t in scale.apart(&scale.ticks(((right - left) / 80.0) as usize)) {
            @let x = round(scale.at(t));
            path.grid d=(format!("M{x} 0V{}", round(bottom))) {}
            text x=(x) y=(round(bottom + 14.0)) text-anchor="middle" { (tick(t)) }
        }
    };
    let all = html! {
        (axes)
        path.base d=(format!("M{base} 0V{}", round(bottom))) {}
        @for group in drawn { (group) }
        (text(&below, (left + right) / 2.0, bottom + 34.0, "axis", "middle"))
    };
    (bottom + 34.0 + below.len() as f64 * LINE - 8.0, all)
}

/// The bars at one name.
struct Group<'a> {
    name: String,
    bars: Vec<Bar<'a>>,
}

/// One bar: of one piece, or of several on top of each other.
struct Bar<'a> {
    pieces: Vec<(&'a Series, &'a Point, usize)>,
    /// Where its drawn pieces end.
    ends_at: f64,
    low: f64,
    high: f64,
    label: String,
}

impl<'a> Group<'a> {
    fn at(figure: &'a Figure, looks: &[usize], x: &X, stacked: bool) -> Group<'a> {
        let of = |(series, look): (&'a Series, &usize)| {
            series.points.iter().filter(|p| p.x == *x).map(|p| (series, p, *look)).collect::<Vec<_>>()
        };
        let pieces: Vec<_> = figure.series.iter().zip(looks).flat_map(of).collect();
        let bars = match stacked {
            true => vec![Bar::of(pieces)],
            false => pieces.into_iter().map(|piece| Bar::of(vec![piece])).collect(),
        };
        Group { name: place(x), bars }
    }

    fn draw(&self, scale: &Scale, top: f64) -> Markup {
        html! {
            @for (n, bar) in self.bars.iter().enumerate() { (bar.draw(&self.name, scale, top + n as f64 * (BAR + GAP))) }
        }
    }
}

impl<'a> Bar<'a> {
    fn of(pieces: Vec<(&'a Series, &'a Point, usize)>) -> Bar<'a> {
        let ends_at = pieces.iter().map(|(_, p, _)| p.y).sum();
        let (low, high) = match pieces[..] {
            [(_, point, _)] => point.range.unwrap_or((point.y, point.y)),
            _ => (ends_at, ends_at),
        };
        Bar { pieces, ends_at, low, high, label: amount(ends_at) }
    }

    fn draw(&self, name: &str, scale: &Scale, top: f64) -> Markup {
        let (y, middle) = (round(top), round(top + BAR / 2.0));
        let mut at = 0.0;
        let mut drawn = Vec::new();
        for (series, point, look) in &self.pieces {
            // A piece begins where the one before ends; the first at the base.
            let (from, to) = (if at == 0.0 { scale.base() } else { scale.at(at) }, scale.at(at + point.y));
            at += point.y;
            // A bar too short to be seen is shown all the same, unless it is nothing.
            let (x, length) = (from.min(to), (from - to).abs().max(if point.y == 0.0 { 0.0 } else { 1.0 }));
            drawn.push(html! {
                rect class=(format!("fill s{look}")) x=(round(x)) y=(y) width=(round(length)) height=(BAR) rx="1.5" {
                    title { (name) ", " (series.name) ": " (value(point)) }
                }
            });
        }
        let spread = self.low != self.high;
        let (low, high) = (round(scale.at(self.low)), round(scale.at(self.high)));
        let end = scale.at(self.ends_at).max(scale.base()).max(if spread { high } else { 0.0 });
        html! {
            @for piece in drawn { (piece) }
            @if spread {
                path.error d=(format!("M{low} {middle}H{high}M{low} {}v6M{high} {}v6", round(middle - 3.0), round(middle - 3.0))) {}
            }
            text.value x=(round(end + 5.0)) y=(round(middle + 4.0)) { (self.label) }
        }
    }
}
