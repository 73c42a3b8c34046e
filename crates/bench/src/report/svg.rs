//! Plots as SVG inside the page: each twice, for a wide and for a narrow screen, of which the style sheet shows one.
//!
//! Text has the size that it is read at, so a plot is laid out for its width rather than shrunk. Colours are classes.

mod bars;
mod forest;
mod points;
mod scale;

use maud::{Markup, html};

pub use forest::overview;

use crate::results::{Axis, Figure, Kind, X};

/// Widths of the two layouts, in the units of the text's size.
const WIDTHS: [(&str, f64); 2] = [("wide", 760.0), ("narrow", 336.0)];

/// Height of a line of text, and the width of an average and of a broad character, in 12 units' size; of the broader of fonts.
const LINE: f64 = 15.0;
const CHARACTER: f64 = 6.7;
const BROAD: f64 = 7.8;

/// Series that look different.
pub const LOOKS: usize = 8;

/// A figure's legend and its plot; `id` is the page's only one such.
pub fn plot(figure: &Figure, id: &str) -> Markup {
    if figure.series.iter().all(|s| s.points.is_empty()) {
        return html! { p.nothing { "Nothing was measured for this plot." } };
    }
    let looks = looks(figure);
    let numbers = figure.series.iter().flat_map(|s| &s.points).all(|p| matches!(p.x, X::Number(_)));
    let points = numbers && matches!(figure.kind, Kind::Lines | Kind::Scatter);
    html! {
        @if figure.series.len() > 1 {
            ul.legend {
                @for (series, look) in figure.series.iter().zip(&looks) {
                    li { (swatch(*look, points && figure.kind == Kind::Lines)) (series.name) }
                }
            }
        }
        @for (class, width) in WIDTHS {
            @let (height, drawn) = if points { points::draw(figure, &looks, width) } else { bars::draw(figure, &looks, width) };
            (frame(&format!("{id}-{class}"), class, (width, height), &figure.title, &described(figure), drawn))
        }
    }
}

/// An SVG with its title and description.
fn frame(id: &str, class: &str, (width, height): (f64, f64), title: &str, text: &str, drawn: Markup) -> Markup {
    let (width, height) = (round(width), round(height));
    html! {
        svg class=(format!("plot {class}")) viewBox=(format!("0 0 {width} {height}")) role="img"
            aria-labelledby=(format!("{id}-t {id}-d")) {
            title id=(format!("{id}-t")) { (title) }
            desc id=(format!("{id}-d")) { (text) }
            (drawn)
        }
    }
}

/// What a plot shows, for those who hear it.
fn described(figure: &Figure) -> String {
    let kind = match figure.kind {
        Kind::Lines => "Lines",
        Kind::Bars => "Bars",
        Kind::Stacked => "Stacked bars",
        Kind::Scatter => "Points",
    };
    let names: Vec<&str> = figure.series.iter().map(|s| s.name.as_str()).collect();
    let (x, y) = (axis_label(&figure.x), axis_label(&figure.y));
    let (count, names) = (names.len(), names.join(", "));
    format!("{kind} of {y} by {x}; {count} series: {names}. The numbers are in the table below.")
}

/// What an axis is called.
fn axis_label(axis: &Axis) -> String {
    if axis.log { format!("{} (logarithmic)", axis.label) } else { axis.label.clone() }
}

/// How each series looks. FastMap and kernel mmap look the same in every plot; the others take what is left.
fn looks(figure: &Figure) -> Vec<usize> {
    let mut looks: Vec<Option<usize>> = vec![None; figure.series.len()];
    let mut taken = [false; LOOKS];
    for (look, prefix) in ["fastmap", "mmap"].into_iter().enumerate() {
        let named = |name: &str| name.to_ascii_lowercase().starts_with(prefix);
        if let Some(at) = figure.series.iter().position(|s| named(&s.name)) {
            (looks[at], taken[look]) = (Some(look), true);
        }
    }
    // Where neither is there, nothing is kept for them.
    for look in looks.iter_mut().filter(|look| look.is_none()) {
        let free = taken.iter().position(|taken| !taken).unwrap_or(LOOKS - 1);
        (*look, taken[free]) = (Some(free), true);
    }
    looks.into_iter().flatten().collect()
}

fn swatch(look: usize, line: bool) -> Markup {
    html! {
        svg class=(format!("swatch s{look}")) viewBox="0 0 22 12" aria-hidden="true" {
            @if line {
                path.line d="M1 6H21" {}
                (mark(look, 11.0, 6.0))
            } @else {
                rect.fill x="4" y="0" width="14" height="12" rx="2" {}
            }
        }
    }
}

/// A mark of a shape that belongs to the look: colours are not all there is to tell series apart.
fn mark(look: usize, x: f64, y: f64) -> Markup {
    let (x, y) = (round(x), round(y));
    let shape = match look % 4 {
        0 => return html! { circle.mark cx=(x) cy=(y) r="4.2" {} },
        1 => "m-4 -4h8v8h-8z",
        2 => "m0 -5l5 9h-10z",
        _ => "m0 -5.4l5.4 5.4l-5.4 5.4l-5.4 -5.4z",
    };
    html! { path.mark d=(format!("M{x} {y}{shape}")) {} }
}

/// A tenth of a unit is as exact as anybody sees.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// About how wide a text is.
fn text_width(text: &str) -> f64 {
    let wide = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || !c.is_ascii();
    text.chars().map(|c| if wide(c) { BROAD } else { CHARACTER }).sum()
}

/// Lines of a text that are no wider, and no more than `most`; what is left out shows as an ellipsis.
fn wrap(text: &str, width: f64, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        // A word that no line can hold is broken.
        let mut part = String::new();
        for c in word.chars() {
            if text_width(&part) + BROAD > width && !part.is_empty() {
                words.push(std::mem::take(&mut part));
            }
            part.push(c);
        }
        words.push(part);
    }
    for word in words {
        let last = lines.last_mut().expect("there is always one");
        if last.is_empty() {
            *last = word;
        } else if text_width(last) + CHARACTER + text_width(&word) <= width {
            last.push(' ');
            last.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            last.push('…');
        }
    }
    lines
}

/// Lines of text below each other; `anchor` is `start`, `middle` or `end`.
fn text(lines: &[String], x: f64, y: f64, class: &str, anchor: &str) -> Markup {
    html! {
        @for (n, line) in lines.iter().enumerate() {
            text class=(class) x=(round(x)) y=(round(y + n as f64 * LINE)) text-anchor=(anchor) { (line) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Point, Series};

    fn figure(kind: Kind, names: &[&str]) -> Figure {
        let series = |name: &&str| Series { name: name.to_string(), points: vec![Point::bare("a", 1.0)] };
        let (title, caption) = ("A title".into(), String::new());
        let series = names.iter().map(series).collect();
        Figure { title, caption, paper: None, kind, x: Axis::of("x"), y: Axis::log("y"), series }
    }

    #[test]
    fn fastmap_and_mmap_look_the_same_everywhere() {
        assert_eq!(looks(&figure(Kind::Bars, &["mmap", "fastmap"])), [1, 0]);
        assert_eq!(looks(&figure(Kind::Bars, &["pread", "fastmap-pin", "mmap-random", "fastmap"])), [2, 0, 1, 3]);
        assert_eq!(looks(&figure(Kind::Stacked, &["user", "trap"])), [0, 1]);
        let many = looks(&figure(Kind::Bars, &["x"; 10]));
        assert_eq!(many, [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]);
    }

    #[test]
    fn both_layouts_and_a_legend_where_there_is_something_to_tell_apart() {
        let drawn = plot(&figure(Kind::Bars, &["<b>", "two"]), "f1").into_string();
        assert_eq!((drawn.matches("<svg class=\"plot").count(), drawn.matches("<li>").count()), (2, 2));
        assert!(drawn.contains("&lt;b&gt;") && !drawn.contains("<b>"));
        assert!(drawn.contains("Bars of y (logarithmic) by x; 2 series: "), "{drawn}");
        assert!(!plot(&figure(Kind::Bars, &["one"]), "f1").into_string().contains("legend"));
        let nothing = Figure { series: Vec::new(), ..figure(Kind::Lines, &[]) };
        assert!(plot(&nothing, "f1").into_string().contains("Nothing was measured"));
    }

    #[test]
    fn long_words_and_texts_are_broken() {
        assert_eq!(wrap("one two three", 54.0, 3), ["one two", "three"]);
        assert_eq!(wrap("aaaaaaaaaaaaaaaaaaaa", 64.0, 9).len(), 3);
        assert_eq!(wrap("one two three four", 30.0, 2), ["one", "two…"]);
        assert_eq!(wrap("", 30.0, 2), [""]);
    }
}
