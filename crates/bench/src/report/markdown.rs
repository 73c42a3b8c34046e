//! The Markdown document, which a repository can keep.

use super::page::Page;
use super::summary::{self, HOW_TO_READ, Said, Verdict, in_short, why_level};
use super::words::{bytes, date, duration, machine, parts, times, times_of};
use super::{Results, names, table as rows};
use crate::results::Figure;

/// The largest number of rows in the table of a plot. Nobody reads more.
const ROWS: usize = 40;

/// The whole document. `pictures` has the names of the pictures' files.
pub fn document(experiments: &[Results], page: Option<&Page<'_>>, pictures: &[&str]) -> String {
    let names = names(experiments);
    let all = summary::all(experiments);
    let mut text =
        "# FastMap measured\n\nWritten by `fastmap report` from the results of the commands below; not by hand.\n"
            .to_owned();
    if let Some(page) = page {
        text.push_str(&page.section(pictures));
    }
    if page.is_some() && !all.is_empty() {
        text.push_str("\n## All comparisons\n");
    }
    if page.is_none() || !all.is_empty() {
        text.push_str(&format!("\n{}\n", escaped(&in_short(experiments))));
    }
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
    let headings = ["What", "Paper", "Here", "Place in the paper, and setting"].map(str::to_owned);
    format!("\n## The papers' ratios beside ours\n\n{}", rendered(&headings, &rows, 3))
}

fn experiment(results: &Results, name: &str) -> String {
    let mut text = format!("\n## {}\n\n", escaped(name));
    if !results.about.is_empty() {
        text.push_str(&format!("{}.\n\n", escaped(&results.about)));
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
    let table = rows::of(figure, ROWS);
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

/// The machine, the data and the memory limit of the measurement.
fn facts(results: &Results) -> [(&'static str, String); 3] {
    let on = &results.machine;
    let limit = match results.memory_limit_bytes {
        Some(limit) => format!("{} for each run ({})", bytes(limit), results.memory_limit),
        None => "no limit".to_owned(),
    };
    let size = bytes(results.file_bytes);
    let data = format!("{size}, {} on {} ({}, {})", results.file, on.file_system, on.device, on.readahead());
    [("Machine", machine(on)), ("Data", data), ("Memory", limit)]
}

/// The sentence that says how answers were checked. If the results have none, it says so.
fn verified(results: &Results) -> &str {
    if results.verified.is_empty() { "The result does not say." } else { &results.verified }
}

/// A Markdown table of texts. Escapes the texts. The columns from the second to `numbers` hold numbers.
fn rendered(headings: &[String], rows: &[Vec<String>], numbers: usize) -> String {
    let all_escaped = |cells: &[String]| cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>();
    let rows: Vec<_> = rows.iter().map(|row| all_escaped(row)).collect();
    table(&all_escaped(headings), &rows, numbers)
}

/// A Markdown table of cells that the caller has escaped. The columns from the second to `numbers` hold numbers.
pub fn table(headings: &[String], rows: &[Vec<String>], numbers: usize) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule =
        (0..headings.len()).map(|n| if (1..numbers).contains(&n) { "---:|" } else { "---|" }).collect::<String>();
    format!("{}|{rule}\n{}", line(headings), rows.iter().map(|row| line(row)).collect::<String>())
}

/// The text on one line, escaped so that Markdown shows it as it is. Code in backticks stays code.
pub fn escaped(text: &str) -> String {
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
        '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '#' | '~' => out.extend(['\\', c]),
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
        assert_eq!(escaped("a|b\n<i>*c*_d_`e_`&[f]~g~"), r"a\|b &lt;i&gt;\*c\*\_d\_`e_`&amp;\[f\]\~g\~");
        let rows = [vec!["a|b".to_owned(), "1".to_owned()]];
        assert_eq!(rendered(&["x".into(), "y".into()], &rows, 2), "| x | y |\n|---|---:|\n| a\\|b | 1 |\n");
    }
}
