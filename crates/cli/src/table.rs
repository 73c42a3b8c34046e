//! Text for standard output: aligned tables, figures, and names without control characters.

use std::fmt::Display;

/// Renders rows under their headings. The first column is aligned to the left, the others to the right.
pub fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            match column {
                0 => text.push_str(&format!("{cell:<width$}")),
                _ => text.push_str(&format!("  {cell:>width$}")),
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut headings.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

/// A figure with about three significant digits.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The text with `?` for each control character, and for each that begins a line or turns the direction of writing. So a name cannot steer
/// the terminal, nor look like another one. All names of programs and files are printed by this.
pub fn printable(text: impl Display) -> String {
    let is_safe = |one: &char| {
        !one.is_control() && !matches!(one, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.to_string().chars().map(|one| if is_safe(&one) { one } else { '?' }).collect()
}

/// A value as JSON, with a line feed at the end. Control characters that JSON allows are escaped, too.
pub fn json(value: &serde_json::Value) -> String {
    let mut text = String::new();
    for one in format!("{value:#}\n").chars() {
        match one {
            // These are in strings only.
            '\u{7f}'..='\u{9f}' => text.push_str(&format!("\\u{:04x}", u32::from(one))),
            one => text.push(one),
        }
    }
    text
}

/// A number of threads, in words: `1 thread`, `2 threads`.
pub fn threads(count: u32) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["mmap", "1.0"], ["mmap-random", "100"]].map(|r| r.map(String::from).to_vec());
        assert_eq!(render(&["engine", "k"], &rows), "engine         k\nmmap         1.0\nmmap-random  100\n");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a?[2Jb?c");
        assert_eq!(printable("\u{9b}31m \u{202e}txt\u{2028} \u{fffd}é"), "?31m ?txt? \u{fffd}é");
        let json = json(&serde_json::json!("\x1b\u{9b}\x7f\n\""));
        assert_eq!(json, "\"\\u001b\\u009b\\u007f\\n\\\"\"\n");
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!([0.0, 0.1234, 1.234, 12.34, 1234.4].map(figure), ["0.00", "0.123", "1.23", "12.3", "1234"]);
    }
}
