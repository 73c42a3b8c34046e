//! The page's picture: bars around 1 on a logarithmic axis. It is an SVG that needs no other file.

use std::fmt::Write;

use super::page::Page;
use super::words::{ratio, tick};
use crate::results::Spread;

/// The width of the picture, the width of the column of names, and the ends of the axis. Numbers have the room on both sides of the axis.
const WIDTH: f64 = 800.0;
const NAMES: f64 = 236.0;
const AXIS: (f64, f64) = (300.0, 728.0);

/// The height of a line of text, the height of a bar, and the distance between two works.
const LINE: f64 = 17.0;
const BAR: f64 = 17.0;
const APART: f64 = 14.0;

/// The width of an average character and of a wide one, in text of 13 units in the widest of the usual fonts.
const CHARACTER: f64 = 7.2;
const BROAD: f64 = 8.5;

/// Most numbers on the axis.
const TICKS: usize = 9;

/// The colours of a picture.
pub struct Palette {
    name: &'static str,
    ground: &'static str,
    text: &'static str,
    quiet: &'static str,
    grid: &'static str,
    as_is: &'static str,
    best: &'static str,
}

impl Palette {
    /// The palettes for light and for dark screens.
    pub const ALL: [Palette; 2] = [
        Palette {
            name: "light",
            ground: "#ffffff",
            text: "#1f2328",
            quiet: "#59636e",
            grid: "#d1d9e0",
            as_is: "#0969da",
            best: "#d4a72c",
        },
        Palette {
            name: "dark",
            ground: "#0d1117",
            text: "#f0f6fc",
            quiet: "#9198a1",
            grid: "#3d444d",
            as_is: "#4493f8",
            best: "#bb8009",
        },
    ];

    /// The name of the picture's file beside a document with this stem.
    pub fn file(&self, stem: &str) -> String {
        format!("{stem}-{}.svg", self.name)
    }
}

/// The two bars of a work.
struct Group<'a> {
    work: &'a str,
    bars: Vec<(Spread, &'static str)>,
    unsteady: bool,
}

/// Draws the page in these colours. None: no ratio was measured.
pub fn draw(page: &Page<'_>, colours: &Palette) -> Option<String> {
    let (at, way) = page.shown();
    let column = &page.columns[at];
    let rows = page.rows.iter().filter(|row| row.way == way).filter_map(|row| Some((row, row.cells[at]?)));
    let groups = rows.map(|(row, gain)| {
        let bars = [(gain.as_is, colours.as_is), (gain.best, colours.best)].into_iter();
        let bars = bars.filter_map(|(spread, colour)| Some((spread.filter(is_drawn)?, colour))).collect();
        Group { work: &row.work, bars, unsteady: gain.unsteady }
    });
    let groups: Vec<Group<'_>> = groups.filter(|group| !group.bars.is_empty()).collect();
    if groups.is_empty() {
        return None;
    }
    let scale = Scale::of(groups.iter().flat_map(|group| &group.bars).flat_map(|(s, _)| [s.low, s.median, s.high]));
    let mut drawn = String::new();
    let title = format!("Times as good as kernel mmap: {way}, {}", column.title);
    let mut y = texts(&mut drawn, &wrap(&title, WIDTH - 120.0), 16.0, 30.0, "class=\"title\"");
    for (x, colour, name) in
        [(16.0, colours.as_is, "to mmap as it is"), (180.0, colours.best, "to mmap with the best advice")]
    {
        let _ = writeln!(drawn, "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"12\" fill=\"{colour}\"/>", y - 6.0);
        texts(&mut drawn, &[name.to_owned()], x + 20.0, y + 5.0, "");
    }
    y += 24.0;
    let top = y;
    let mut body = String::new();
    for group in &groups {
        y = group.draw(&mut body, y, &scale);
    }
    for value in scale.ticks() {
        let x = round(scale.at(value));
        let class = if value == 1.0 { "one" } else { "grid" };
        let _ = writeln!(drawn, "<path class=\"{class}\" d=\"M{x} {top}V{}\"/>", round(y));
        texts(&mut drawn, &[tick(value)], x, y + 16.0, "class=\"quiet\" text-anchor=\"middle\"");
    }
    drawn.push_str(&body);
    let one = scale.at(1.0);
    texts(&mut drawn, &["← slower".to_owned()], one - 10.0, y + 34.0, "class=\"quiet\" text-anchor=\"end\"");
    texts(&mut drawn, &["faster →".to_owned()], one + 10.0, y + 34.0, "class=\"quiet\"");
    let unsteady = if groups.iter().any(|group| group.unsteady) { " ~: the repetitions are far apart." } else { "" };
    let notes = format!(
        "Bars are medians, whiskers reach from the lowest to the highest repetition; the axis is logarithmic.{unsteady}"
    );
    let mut notes = wrap(&notes, WIDTH - 32.0);
    notes.extend(wrap(&column.measured.to_string(), WIDTH - 32.0));
    let height = round(texts(&mut drawn, &notes, 16.0, y + 62.0, "class=\"quiet\"") + 2.0);
    let Palette { ground, text, quiet, grid, .. } = colours;
    let style = format!(
        "text {{ font: 13px system-ui, sans-serif; fill: {text}; }} .title {{ font-size: 16px; font-weight: 600; }} .quiet {{ fill: {quiet}; }} \
         path {{ fill: none; stroke: {text}; }} .grid {{ stroke: {grid}; }} .one {{ stroke: {quiet}; stroke-width: 2; }}"
    );
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>{}</title>\n<style>{style}</style>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"{ground}\"/>\n{drawn}</svg>\n",
        escaped(&title)
    ))
}

impl Group<'_> {
    /// Draws the group below `y`. Returns the `y` below the group.
    fn draw(&self, into: &mut String, y: f64, scale: &Scale) -> f64 {
        let lines = wrap(self.work, NAMES);
        let bars = self.bars.len() as f64 * BAR;
        let height = bars.max(lines.len() as f64 * LINE);
        let first = y + (height - lines.len() as f64 * LINE) / 2.0 + LINE - 4.0;
        texts(into, &lines, 16.0 + NAMES, first, "text-anchor=\"end\"");
        for (n, (spread, colour)) in self.bars.iter().enumerate() {
            let top = y + (height - bars) / 2.0 + n as f64 * BAR;
            let middle = round(top + (BAR - 2.0) / 2.0);
            let (one, end) = (scale.at(1.0), scale.at(spread.median));
            let (low, high) = (round(scale.at(spread.low)), round(scale.at(spread.high)));
            let _ = writeln!(
                into,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"/>",
                round(one.min(end)),
                round(top),
                round((end - one).abs()),
                BAR - 2.0
            );
            if low < high {
                let (above, below) = (middle - 3.0, middle + 3.0);
                let _ =
                    writeln!(into, "<path d=\"M{low} {above}V{below}M{high} {above}V{below}M{low} {middle}H{high}\"/>");
            }
            let number = format!("{}{}", ratio(spread.median), if self.unsteady { " ~" } else { "" });
            // The number stands beyond the whisker, on the bar's side of 1.
            match spread.median < 1.0 {
                true => texts(into, &[number], low.min(one) - 6.0, middle + 4.5, "text-anchor=\"end\""),
                false => texts(into, &[number], high.max(one) + 6.0, middle + 4.5, ""),
            };
        }
        y + height + APART
    }
}

/// A logarithmic axis has only positive numbers.
fn is_drawn(spread: &Spread) -> bool {
    [spread.low, spread.median, spread.high].iter().all(|value| value.is_finite() && *value > 0.0)
}

/// The axis. It goes from a round number below the least value to a round number above the greatest. 1 lies between them.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) = values.fold((1.0 / 1.01, 1.01), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
        let round_number = |value: f64| steps(value).find(|step| *step >= value * 0.999).unwrap_or(value);
        Scale { low: 1.0 / round_number(1.0 / low), high: round_number(high) }
    }

    /// The place of a value on the picture.
    fn at(&self, value: f64) -> f64 {
        AXIS.0 + (value / self.low).ln() / (self.high / self.low).ln() * (AXIS.1 - AXIS.0)
    }

    /// Round numbers on the axis, as many as there is room for.
    fn ticks(&self) -> Vec<f64> {
        let of = |fine: &[f64]| -> Vec<f64> {
            let all = (-9..=9).flat_map(|decade| fine.iter().map(move |step| step * 10f64.powi(decade)));
            all.filter(|value| (self.low * 0.999..=self.high * 1.001).contains(value)).collect()
        };
        let fine: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        fine.into_iter().map(of).find(|ticks| ticks.len() <= TICKS).unwrap_or_else(|| of(&[1.0]))
    }
}

/// 1.25, then 2, 5, 10, 20 and so on. An axis of small differences ends at 1.25.
fn steps(value: f64) -> impl Iterator<Item = f64> {
    let decades = value.log10().ceil() as i32 + 1;
    [1.25]
        .into_iter()
        .chain((0..=decades).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade))))
        .filter(|step| *step > 1.0)
}

/// Writes lines below each other. Returns the `y` of the next line.
fn texts(into: &mut String, lines: &[String], x: f64, y: f64, attributes: &str) -> f64 {
    let gap = if attributes.is_empty() { "" } else { " " };
    for (n, line) in lines.iter().enumerate() {
        let y = round(y + n as f64 * LINE);
        let _ = writeln!(into, "<text x=\"{}\" y=\"{y}\"{gap}{attributes}>{}</text>", round(x), escaped(line));
    }
    y + lines.len() as f64 * LINE
}

/// Escapes text for XML. Characters that XML forbids become spaces.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Rounds to a tenth of a unit. Nobody sees a smaller difference.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The approximate width of a text.
fn text_width(text: &str) -> f64 {
    let wide = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || !c.is_ascii();
    text.chars().map(|c| if wide(c) { BROAD } else { CHARACTER }).sum()
}

/// Breaks a text into lines of at most this width. A word that is wider than a line is broken.
fn wrap(text: &str, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut room = width;
    for word in text.split_whitespace() {
        let wide = text_width(word);
        if room < width && wide + CHARACTER > room {
            lines.push(String::new());
            room = width;
        }
        if room < width {
            lines.last_mut().expect("there is always one").push(' ');
            room -= CHARACTER;
        }
        for c in word.chars() {
            let wide = text_width(c.encode_utf8(&mut [0; 4]));
            if wide > room + 0.01 {
                lines.push(String::new());
                room = width;
            }
            lines.last_mut().expect("there is always one").push(c);
            room -= wide;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::{gain, on};
    use super::*;

    #[test]
    fn bars_start_at_1_and_both_palettes_draw_the_same() {
        let all = [
            on("fast", "tour", vec![gain("elsewhere", "fastmap run", 2.0, 2.0)]),
            on("disk", "tour", vec![gain("<b> & walk", "fastmap run", 4.0, 0.5), gain("walk", "engine", 3.0, 3.0)]),
        ];
        let page = Page::of(&all).unwrap();
        let [light, dark] = Palette::ALL.map(|palette| draw(&page, &palette).unwrap());
        let one = round(Scale::of([3.6, 4.4, 0.45].into_iter()).at(1.0));
        assert!(light.contains(&format!("<rect x=\"{one}\" y=\"")), "{light}");
        assert!(light.contains("&lt;b&gt; &amp; walk") && !light.contains("elsewhere") && !light.contains("engine"));
        assert!(
            light.contains(">4</text>")
                && light.contains(">0.5</text>")
                && light.contains("disk, readahead 128 KiB</title>")
        );
        let uncoloured =
            |text: &str| text.split('#').map(|part| part.get(6..).unwrap_or_default().to_owned()).collect::<Vec<_>>();
        assert_eq!(uncoloured(&light)[1..], uncoloured(&dark)[1..]);
    }

    #[test]
    fn what_has_no_ratio_gives_no_picture() {
        let mut none = gain("walk", "fastmap run", 1.0, 1.0);
        (none.as_is, none.best) = (None, Some(Spread { median: 0.0, low: 0.0, high: 0.0 }));
        let all = [on("disk", "tour", vec![none])];
        assert!(draw(&Page::of(&all).unwrap(), &Palette::ALL[0]).is_none());
    }

    #[test]
    fn an_axis_has_1_and_round_ends() {
        let ends = |values: &[f64]| {
            let scale = Scale::of(values.iter().copied());
            assert!(scale.ticks().contains(&1.0) && scale.ticks().len() <= TICKS, "{:?}", scale.ticks());
            (scale.low, scale.high)
        };
        assert_eq!(ends(&[1.0]), (0.8, 1.25));
        assert_eq!(ends(&[0.45, 4.4]), (0.2, 5.0));
        assert_eq!(ends(&[1.1, 640.0]), (0.8, 1000.0));
        assert_eq!(ends(&[0.001, 1000.0]), (0.001, 1000.0));
    }

    #[test]
    fn long_words_and_texts_are_broken() {
        assert_eq!(wrap("one two three", 60.0), ["one two", "three"]);
        assert_eq!(wrap("aaaaaaaaaaaaaaaaaaaa", 64.0).len(), 3);
        assert_eq!(wrap("", 30.0), [""]);
    }
}
