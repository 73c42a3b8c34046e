//! Text for standard output: aligned tables, figures, and names without control characters.

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

/// The text with `?` for each control character, so that it cannot steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '?' } else { one }).collect()
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
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!([0.0, 0.1234, 1.234, 12.34, 1234.4].map(figure), ["0.00", "0.123", "1.23", "12.3", "1234"]);
    }
}
