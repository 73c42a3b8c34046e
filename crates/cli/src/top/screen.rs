//! The full-screen view. It is drawn again after each look, each key, and each change of the terminal's size.

use std::io;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::rows::{Headings, Row};
use super::watch::Watch;
use super::{none, rows};
use crate::failure::Failure;
use crate::interrupt;

/// The width of a figure, with the space before it.
const FIGURE: usize = 6;
/// The least width of names.
const LEAST_NAME: usize = 16;

/// Shows the programs until q or a signal ends the view, or until the one program that was asked for has ended.
pub fn run(watch: &mut Watch, interval: Duration) -> Result<(), Failure> {
    // `try_init` also has a panic restore the terminal.
    interrupt::end_in_time(0, ratatui::restore);
    let failed = |error: io::Error| Failure::new("terminal", error, "give --once for one table");
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, watch, interval);
    ratatui::restore();
    match shown.map_err(failed)? {
        End::Asked => Ok(()),
        End::Gone => {
            eprintln!("fastmap: {}", none(watch));
            Ok(())
        }
    }
}

enum End {
    Asked,
    /// The program that was asked for has ended, or has nothing to show any more.
    Gone,
}

fn show(terminal: &mut ratatui::DefaultTerminal, watch: &mut Watch, interval: Duration) -> io::Result<End> {
    /// A signal is noticed after this time at most.
    const BLINK: Duration = Duration::from_millis(100);
    // Rates need a second look, so the second look comes soon.
    let mut next = Instant::now() + interval.min(Duration::from_millis(500));
    let mut first = 0usize;
    loop {
        let (headings, lines) = (rows::headings(watch), rows::of(watch));
        let mut page = 1;
        terminal.draw(|frame| {
            page = usize::from(frame.area().height).saturating_sub(2).max(1);
            first = first.min(lines.len().saturating_sub(page));
            draw(frame, headings, &lines, first, &title(watch, interval));
        })?;
        loop {
            if interrupt::requested() {
                return Ok(End::Asked);
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                watch.look();
                if watch.is_empty() && watch.only().is_some() {
                    return Ok(End::Gone);
                }
                next = Instant::now() + interval;
                break;
            }
            if !event::poll(left.min(BLINK))? {
                continue;
            }
            match event::read()? {
                Event::Resize(..) => break,
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match key.code {
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(End::Asked),
                        KeyCode::Char('c') if control => return Ok(End::Asked),
                        KeyCode::Down | KeyCode::Char('j') => first += 1,
                        KeyCode::Up | KeyCode::Char('k') => first = first.saturating_sub(1),
                        KeyCode::PageDown | KeyCode::Char(' ') => first += page,
                        KeyCode::PageUp => first = first.saturating_sub(page),
                        KeyCode::Home => first = 0,
                        KeyCode::End => first = usize::MAX,
                        _ => continue,
                    }
                    break;
                }
                _ => {}
            }
        }
    }
}

fn title(watch: &Watch, interval: Duration) -> String {
    let mut counts = Vec::new();
    for (count, one, many) in
        [(watch.programs().len(), "program", "programs"), (watch.processes().len(), "process", "processes")]
    {
        if count > 0 {
            counts.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    }
    let counts = if counts.is_empty() { "nothing to show".into() } else { counts.join(", ") };
    format!("fastmap top: {counts}, every {} s", interval.as_secs_f64())
}

fn draw(frame: &mut Frame<'_>, headings: Headings, lines: &[Row], first: usize, left: &str) {
    let [title, top, body] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
    let width = usize::from(frame.area().width);
    let hidden = lines.len().saturating_sub(first + usize::from(body.height));
    let right = if hidden > 0 { format!("{hidden} more below, q quits") } else { "q quits".into() };
    let space = width.saturating_sub(left.chars().count() + right.chars().count());
    frame.render_widget(Paragraph::new(format!("{left}{}{right}", " ".repeat(space))), title);
    let name = width.saturating_sub(headings.1.len() * FIGURE).max(LEAST_NAME);
    let cells = |first: String, figures: &[String]| {
        let figures: String = figures.iter().map(|figure| format!("{figure:>FIGURE$}")).collect();
        format!("{first:<name$}{figures}")
    };
    let heading = |Headings(text, figures): Headings| {
        let cells = cells(text.into(), &figures.map(String::from));
        format!("{cells:<width$}")
    };
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(heading(headings)).style(reversed), top);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let line = |row: &Row| match row {
        Row::Headings(headings) => Line::from(Span::styled(heading(*headings), reversed)),
        Row::Program { name: text, figures } => {
            Line::from(Span::styled(cells(text.chars().take(name).collect(), figures), bold))
        }
        Row::Remark(text) => Line::from(format!("  {text}")),
        Row::Map { mark, path, figures } => {
            Line::from(cells(format!("  {mark} {}", end_of(path, name.saturating_sub(6))), figures))
        }
    };
    let shown: Vec<_> = lines.iter().skip(first).take(usize::from(body.height)).map(line).collect();
    frame.render_widget(Paragraph::new(shown), body);
}

/// The text, or its end after an ellipsis if it is too long for the columns.
fn end_of(text: &str, columns: usize) -> String {
    let count = text.chars().count();
    if count <= columns {
        return text.to_owned();
    }
    let rest = text.chars().skip(count - columns.saturating_sub(1));
    ['…'].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, first: usize) -> Vec<String> {
        let headings =
            Headings("PROGRAM, FILES", ["SIZE", "RES", "DIRTY", "MISS", "READ", "EVICT", "WRITE", "AHEAD", "WASTE"]);
        let figures = || vec!["12.3k".to_owned(); headings.1.len()];
        let map = |number| Row::Map { mark: "rw", path: format!("/data/where/file-{number}"), figures: figures() };
        let mut lines = vec![Row::Program { name: "4711 db".into(), figures: figures() }, Row::Remark("idle".into())];
        lines.extend((0..39).map(map));
        lines.push(Row::Headings(Headings("PROCESS, FILES", headings.1)));
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, headings, &lines, first, "fastmap top: 1 program, every 1 s")).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).collect()
    }

    #[test]
    fn it_fits_into_80_columns() {
        let rows = drawn(80, 24, 0);
        assert!(
            rows[0].starts_with("fastmap top: 1 program, every 1 s") && rows[0].ends_with("20 more below, q quits")
        );
        assert!(rows[1].starts_with("PROGRAM, FILES") && rows[1].ends_with(" AHEAD WASTE"), "{}", rows[1]);
        assert!(rows[2].starts_with("4711 db ") && rows[2].ends_with(" 12.3k 12.3k"), "{}", rows[2]);
        assert!(rows[4].starts_with("  rw /data/where/file-0 ") && rows[4].ends_with(" 12.3k"), "{}", rows[4]);
        let rows = drawn(80, 24, 20);
        assert!(rows[22].contains("file-38"), "{rows:?}");
        assert!(rows[23].starts_with("PROCESS, FILES") && rows[23].ends_with(" AHEAD WASTE"), "{rows:?}");
    }

    #[test]
    fn a_narrow_terminal_shows_the_ends_of_paths_and_a_tiny_one_does_no_harm() {
        let narrow = &drawn(70, 10, 0)[4];
        assert!(narrow.starts_with("  rw …re/file-0 ") && narrow.ends_with(" 12.3k"), "{narrow}");
        drawn(10, 2, 0);
        drawn(1, 1, 0);
    }
}
