//! The page: everything in one file, which fetches nothing and runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::summary::{self, HOW_TO_READ, Said, Verdict, in_short, why_level};
use super::words::{bytes, date, duration, machine, parts, times, times_of, times_range};
use super::{Results, about, names, svg, table};
use crate::results::{Figure, Headline};

/// Rows of a plot's table; scattered points, which are to be looked at, can be thousands.
const ROWS: usize = 60;

/// The page's looks, in light, in dark and on paper.
const STYLE: &str = include_str!("html/style.css");

/// All of it.
pub fn page(experiments: &[Results]) -> String {
    let names = names(experiments);
    let all = summary::all(experiments);
    let title = match experiments {
        [one] => format!("FastMap measured: {}", one.experiment),
        _ => "FastMap measured".to_owned(),
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    @for line in machines(experiments) { p.lede { (line) } }
                }
                @if experiments.len() > 1 {
                    nav aria-label="Experiments" {
                        ul { @for (n, name) in names.iter().enumerate() { li { a href=(anchor(n)) { (name) } } } }
                    }
                }
                main {
                    (in_words(experiments, &all, &names))
                    (papers(&all, &names))
                    @for (n, (results, name)) in experiments.iter().zip(&names).enumerate() { (experiment(n, results, name, names.len() == 1)) }
                }
                footer { p { "Written by fastmap " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    page.into_string()
}

/// Each machine and the day, once.
fn machines(experiments: &[Results]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for results in experiments {
        let line = format!("On {}.", machine(&results.machine));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn anchor(experiment: usize) -> String {
    format!("#e{}", experiment + 1)
}

/// What it all comes to.
fn in_words(experiments: &[Results], all: &[Said<'_>], names: &[String]) -> Markup {
    html! {
        section aria-labelledby="short" {
            h2 #short { "In short" }
            p { (in_short(experiments)) }
            @if !all.is_empty() {
                p.quiet { (HOW_TO_READ) }
                figure { (svg::overview(all, names)) }
                @for verdict in Verdict::ALL {
                    @let some = summary::with(all, verdict);
                    @if !some.is_empty() {
                        h3 class=(verdict.word()) { (verdict.heading()) " " span.count { "(" (some.len()) ")" } }
                        ul.said { @for said in some { li { (sentence(&said, names)) } } }
                    }
                }
            }
        }
    }
}

fn sentence(Said { experiment, headline }: &Said<'_>, names: &[String]) -> Markup {
    html! {
        strong { (times(headline.ratio.median)) } " "
        span.quiet { "(" (times_range(headline.ratio)) ")" } " "
        (headline.what) " "
        @if names.len() > 1 { a.quiet href=(anchor(*experiment)) { (names[*experiment]) } }
        @if let Some(why) = why_level(headline.ratio) { span.quiet { ": " (why) } }
    }
}

/// Text with its code set as such.
fn prose(text: &str) -> Markup {
    html! { @for (code, part) in parts(text) { @if code { code { (part) } } @else { (part) } } }
}

/// What the papers say, and what was measured here.
fn papers(all: &[Said<'_>], names: &[String]) -> Markup {
    let some: Vec<_> = all.iter().filter_map(|said| Some((said, said.headline.paper.as_ref()?))).collect();
    if some.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="papers" {
            h2 #papers { "The papers’ figure beside ours" }
            (scroll("The papers’ figures", html! {
                table.texts {
                    thead {
                        tr {
                            th { "What" } th.n { "Paper" } th.n { "Here" } th { "Where the paper has it from" }
                        }
                    }
                    tbody {
                        @for (said, paper) in some {
                            tr {
                                th scope="row" { a href=(anchor(said.experiment)) { (names[said.experiment]) } ": " (said.headline.what) }
                                td.n data-label="Paper" { (times(paper.ratio)) }
                                td.n data-label="Here" { (ours(said.headline)) }
                                td { (paper.source) "; " (paper.setting) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

fn ours(headline: &Headline) -> Markup {
    html! {
        strong { (times(headline.ratio.median)) }
        br; " " span.quiet { "(" (times_range(headline.ratio)) ")" }
    }
}

/// What is wider than the screen scrolls by itself, also by keys.
fn scroll(label: &str, content: Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { (content) } }
}

/// One experiment: what it is, its plots, and what makes it credible. Alone on the page it does not repeat the summary.
fn experiment(n: usize, results: &Results, name: &str, alone: bool) -> Markup {
    let id = &anchor(n)[1..];
    let about = about(&results.experiment);
    html! {
        section.experiment id=(id) aria-labelledby=(format!("{id}-h")) {
            h2 id=(format!("{id}-h")) { (name) }
            @if let Some((line, _)) = &about { p { (prose(line)) "." } }
            p.quiet { (date(results.began_unix_s)) ", took " (duration(results.took_s)) }
            @if !alone && !results.headlines.is_empty() {
                ul.said { @for headline in &results.headlines { li { (said_here(headline)) } } }
            }
            @for (m, figure) in results.figures.iter().enumerate() { (plot(figure, &format!("{id}-f{}", m + 1))) }
            @if !results.notes.is_empty() {
                h3 { "What to know" }
                ul { @for note in &results.notes { li { (prose(note)) } } }
            }
            h3 { "How it was checked" }
            p { (prose(verified(results))) }
            h3 { "To run it again" }
            pre tabindex="0" { code { (results.command) } }
            dl { @for (term, text) in facts(results) { div { dt { (term) } dd { (text) } } } }
            @if let Some((_, paragraphs)) = about.filter(|(_, paragraphs)| !paragraphs.is_empty()) {
                details { summary { "How it is measured" } @for paragraph in paragraphs { p { (prose(&paragraph)) } } }
            }
        }
    }
}

fn said_here(headline: &Headline) -> Markup {
    let verdict = Verdict::of(headline.ratio);
    html! {
        span class=(format!("badge {}", verdict.word())) { (verdict.word()) } " "
        strong { (times_of(headline.ratio)) } " " (headline.what)
        @if let Some(paper) = &headline.paper { span.quiet { "; the paper: " (times(paper.ratio)) " (" (paper.source) ")" } }
    }
}

/// How answers were checked; a result that does not say is not to be trusted silently.
pub fn verified(results: &Results) -> &str {
    if results.verified.is_empty() { "The result does not say." } else { &results.verified }
}

/// Where and within what limits it was measured.
pub fn facts(results: &Results) -> Vec<(&'static str, String)> {
    let machine_of = &results.machine;
    let limit = match results.memory_limit_bytes {
        Some(limit) => format!("{} for each run ({})", bytes(limit), results.memory_limit),
        None => "no limit".to_owned(),
    };
    vec![
        ("Machine", machine(machine_of)),
        (
            "Data",
            format!(
                "{}, {} on {} ({}, {})",
                bytes(results.file_bytes),
                results.file,
                machine_of.file_system,
                machine_of.device,
                machine_of.readahead()
            ),
        ),
        ("Memory", limit),
    ]
}

fn plot(figure: &Figure, id: &str) -> Markup {
    let table = table::of(figure, ROWS);
    html! {
        figure id=(id) {
            figcaption {
                h3 { (figure.title) }
                @if !figure.caption.is_empty() { p { (prose(&figure.caption)) } }
                @if let Some(paper) = &figure.paper { p.quiet { "After " (paper.trim_end_matches('.')) "." } }
            }
            (svg::plot(figure, id))
        }
        details {
            summary { "The numbers (" (figure.y.label) ")" }
            (scroll(&format!("Numbers of: {}", figure.title), html! {
                table {
                    thead { tr { @for (n, heading) in table.headings.iter().enumerate() { th.n[n > 0] scope="col" { (heading) } } } }
                    tbody { @for row in &table.rows {
                        tr { th scope="row" { (row[0]) } @for cell in &row[1..] { td.n { (cell) } } }
                    } }
                }
                @if let Some(text) = &table.left_out { p.quiet { (text) } }
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::results;
    use crate::results::Spread;

    #[test]
    fn nothing_is_fetched_and_text_is_text() {
        let ratio = Spread { median: 1.5, low: 1.4, high: 1.6 };
        let headline = Headline { what: "<script>alert(1)</script> a & b".into(), ratio, paper: None };
        let page = page(&[results("kv\"", vec![headline], Vec::new())]);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;") && page.contains("a &amp; b"));
        for fetching in ["http:", "https:", "src=", "url(", "@import", "<link"] {
            assert!(!page.contains(fetching), "{fetching}");
        }
        assert!(!STYLE.contains('<'), "a style sheet is not escaped");
    }
}
