//! The same as Markdown: what a repository keeps.

use super::html::{facts, verified};
use super::summary::{self, HOW_TO_READ, Said, Verdict, in_short, why_level};
use super::words::{date, duration, parts, times, times_of};
use super::{Results, about, names, table};
use crate::results::Figure;

/// Rows of a plot's table; more than these are to be looked at, not read.
const ROWS: usize = 40;

/// All of it.
pub fn document(experiments: &[Results]) -> String {
    let names = names(experiments);
    let all = summary::all(experiments);
    let mut text =
        "# FastMap measured\n\nWritten by `fastmap report` from the results of the commands below; not by hand.\n"
            .to_owned();
    text.push_str(&format!("\n{}\n", escaped(&in_short(experiments))));
    if !all.is_empty() {
        text.push_str(&format!("\n{HOW_TO_READ}\n"));
    }
    for verdict in Verdict::ALL {
        let some = summary::with(&all, verdict);
        if !some.is_empty() {
            text.push_str(&format!("\n## {} ({})\n\n", verdict.heading(), some.len()));
            some.iter().for_each(|said| text.push_str(&sentence(said, &names)));
        }
    }
    text.push_str(&papers(&all, &names));
    experiments.iter().zip(&names).for_each(|(results, name)| text.push_str(&experiment(results, name)));
    text
}

fn sentence(Said { experiment, headline }: &Said<'_>, names: &[String]) -> String {
    let level = why_level(headline.ratio).map_or_else(String::new, |why| format!(": {why}"));
    format!("* **{}** {}: {}{level}\n", times_of(headline.ratio), escaped(&names[*experiment]), escaped(&headline.what))
}

fn papers(all: &[Said<'_>], names: &[String]) -> String {
    let row = |said: &Said<'_>| {
        let headline = said.headline;
        let paper = headline.paper.as_ref()?;
        let what = format!("{}: {}", names[said.experiment], headline.what);
        let from = format!("{}; {}", paper.source, paper.setting);
        Some(vec![what, times(paper.ratio), times_of(headline.ratio), from])
    };
    let rows: Vec<_> = all.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["What", "Paper", "Here", "Where the paper has it from"].map(str::to_owned);
    format!("\n## The papers' figure beside ours\n\n{}", rendered(&headings, &rows, 3))
}

fn experiment(results: &Results, name: &str) -> String {
    let mut text = format!("\n## {}\n\n", escaped(name));
    if let Some((line, _)) = about(&results.experiment) {
        text.push_str(&format!("{}.\n\n", escaped(&line)));
    }
    text.push_str(&format!("    {}\n\n", results.command.replace('\n', " ")));
    text.push_str(&format!("* When: {}, took {}\n", date(results.began_unix_s), duration(results.took_s)));
    for (term, fact) in facts(results) {
        text.push_str(&format!("* {term}: {}\n", escaped(&fact)));
    }
    text.push_str(&format!("* Checked: {}\n", escaped(verified(results))));
    results.notes.iter().for_each(|note| text.push_str(&format!("* Note: {}\n", escaped(note))));
    results.figures.iter().for_each(|one| text.push_str(&figure(one)));
    text
}

fn figure(figure: &Figure) -> String {
    let table = table::of(figure, ROWS);
    let mut text = format!(
        "\n### {}\n\n{} Numbers are {}.",
        escaped(&figure.title),
        escaped(&figure.caption),
        escaped(&figure.y.label)
    );
    if let Some(paper) = &figure.paper {
        text.push_str(&format!(" After {}.", escaped(paper.trim_end_matches('.'))));
    }
    text.push_str("\n\n");
    text.push_str(&rendered(&table.headings, &table.rows, table.headings.len()));
    if let Some(left_out) = table.left_out {
        text.push_str(&format!("\n{left_out}\n"));
    }
    text
}

/// A table; columns from the second to `numbers` are figures.
fn rendered(headings: &[String], rows: &[Vec<String>], numbers: usize) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.iter().map(|c| escaped(c)).collect::<Vec<_>>().join(" | "));
    let rule =
        (0..headings.len()).map(|n| if (1..numbers).contains(&n) { "---:|" } else { "---|" }).collect::<String>();
    format!("{}|{rule}\n{}", line(headings), rows.iter().map(|row| line(row)).collect::<String>())
}

/// Text that means nothing but itself, on one line; code stays code.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (code, part) in parts(text) {
        match code {
            true => out.push_str(&format!("`{}`", part.replace(['\n', '\r'], " ").replace('|', "\\|"))),
            false => part.chars().for_each(|c| escape(c, &mut out)),
        }
    }
    out
}

fn escape(c: char, out: &mut String) {
    match c {
        '\n' | '\r' => out.push(' '),
        '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '#' => out.extend(['\\', c]),
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        '&' => out.push_str("&amp;"),
        _ => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a|b\n<i>*c*_d_`e_`&[f]"), r"a\|b &lt;i&gt;\*c\*\_d\_`e_`&amp;\[f\]");
        let rows = [vec!["a|b".to_owned(), "1".to_owned()]];
        assert_eq!(rendered(&["x".into(), "y".into()], &rows, 2), "| x | y |\n|---|---:|\n| a\\|b | 1 |\n");
    }
}
