//! The rows of processes whose files the kernel serves.

use super::advice::time;
use super::observed::{Observed, Rates, Steered};
use super::rows::{Row, figure};
use crate::size::short as bytes;
use crate::table::printable;

/// Headings of the figures.
pub const HEADINGS: [&str; 9] = ["SIZE", "RES", "FAULT", "READ", "TOUCH", "R/T", "WAIT", "BLOCK", "REFLT"];
/// The heading of the names.
pub const NAME: &str = "PROCESS, FILES";
/// The most files of a process that are shown.
const FILES: usize = 4;

/// The rows of a process: its figures, a remark, and its largest files.
pub fn of(observed: &Observed) -> Vec<Row> {
    let rates = observed.rates();
    let name = format!("{} {}", observed.pid(), printable(observed.name()));
    let or_none = |resident: Option<u64>| resident.map_or_else(|| "-".into(), bytes);
    let sizes = [bytes(observed.mapped_bytes()), or_none(observed.resident_bytes())];
    let figures = sizes.into_iter().chain(of_rates(rates.as_ref())).collect();
    let mut rows = vec![Row::Program { name, figures }];
    rows.extend(remark(observed, rates.is_some()).map(Row::Remark));
    let files = observed.files();
    rows.extend(files.iter().take(FILES).map(|file| {
        let blank = std::iter::repeat_n(String::new(), HEADINGS.len() - 2);
        let figures = [bytes(file.mapped_bytes), or_none(file.resident_bytes)].into_iter().chain(blank).collect();
        let mark = if file.is_writable { "rw" } else { "r-" };
        Row::Map { mark, path: printable(&file.path), figures }
    }));
    match files.len().saturating_sub(FILES) {
        0 => {}
        1 => rows.push(Row::Remark("and 1 more file".into())),
        more => rows.push(Row::Remark(format!("and {more} more files"))),
    }
    rows
}

fn of_rates(rates: Option<&Rates>) -> [String; 7] {
    let Some(rates) = rates else { return std::array::from_fn(|_| "-".into()) };
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        figure(rates.waited_faults),
        bytes(rates.read_bytes as u64),
        bytes(rates.touched_bytes as u64),
        or_none(rates.read_per_touched().map(figure)),
        or_none(rates.wait.map(time)),
        format!("{:.0}%", rates.blocked * 100.0),
        or_none(rates.refaults.map(figure)),
    ]
}

/// The remark about a process: its pattern, the thread or process that steers it, and advice. An idle process without these has no remark.
fn remark(observed: &Observed, has_rates: bool) -> Option<String> {
    if !has_rates {
        return Some("looking...".into());
    }
    let steered = observed.steered.map(|steered| match steered {
        Steered::Thread => "steered by a thread of its own".to_owned(),
        Steered::By(pid) => format!("steered from outside by process {pid}"),
    });
    let parts = [Some(observed.pattern().name().to_owned()), steered, observed.advice()];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    (text != "idle").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::observed::tests::made_up;

    #[test]
    fn a_process_has_figures_a_remark_and_its_files() {
        let rows: Vec<_> = of(&made_up(7, "d\x1bb")).into_iter().map(Row::plain).collect();
        assert_eq!(rows[0], ["7 d?b", "64.0M", "0B", "512", "64.0M", "4.0M", "16.0", "1.0ms", "51%", "200"]);
        assert_eq!(rows[1][0], "  scattered; reads 16 MB for each MB touched: `fastmap attach 7`");
        assert_eq!(rows[2][..3], ["  r- /data/db", "64.0M", "0B"]);
        assert!(rows.len() == 3 && rows.iter().all(|row| row.len() == HEADINGS.len() + 1), "{rows:?}");
    }

    #[test]
    fn one_that_is_steered_says_so() {
        let mut one = made_up(7, "db");
        one.steered = Some(Steered::By(9));
        assert_eq!(remark(&one, true).unwrap(), "scattered; steered from outside by process 9");
        one.steered = Some(Steered::Thread);
        assert_eq!(remark(&one, true).unwrap(), "scattered; steered by a thread of its own");
        assert_eq!(remark(&one, false).unwrap(), "looking...");
    }
}
