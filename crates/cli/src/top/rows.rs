//! The rows of the view. Each program has its figures, a remark about its traps, and its files. Below are processes whose files the kernel serves.

use fastmap::Stats;
use fastmap::live::{CacheSnapshot, MapStats, Objects};

use super::process_rows;
use super::watch::{Watch, Watched};
use crate::size::{scaled, short as bytes};
use crate::table::{self, printable};

/// The headings of the figures of programs.
const HEADINGS: [&str; 9] = ["SIZE", "RES", "DIRTY", "MISS", "READ", "EVICT", "WRITE", "AHEAD", "WASTE"];

/// A row of the view.
pub enum Row {
    /// The headings of the rows that follow.
    Headings(Headings),
    /// A program, or a process.
    Program {
        name: String,
        figures: Vec<String>,
    },
    /// A line about the program above.
    Remark(String),
    Map {
        mark: &'static str,
        path: String,
        figures: Vec<String>,
    },
}

/// The headings of the names, and of the figures.
#[derive(Clone, Copy)]
pub struct Headings(pub &'static str, pub [&'static str; 9]);

const OF_PROGRAMS: Headings = Headings("PROGRAM, FILES", HEADINGS);
const OF_PROCESSES: Headings = Headings(process_rows::NAME, process_rows::HEADINGS);

/// The headings of the first rows.
pub fn headings(watch: &Watch) -> Headings {
    if watch.programs().is_empty() { OF_PROCESSES } else { OF_PROGRAMS }
}

/// The rows of all programs and processes, after the first headings.
pub fn of(watch: &Watch) -> Vec<Row> {
    let mut rows: Vec<Row> = watch.programs().into_iter().flat_map(of_program).collect();
    let processes = watch.processes();
    if !rows.is_empty() && !processes.is_empty() {
        rows.push(Row::Headings(OF_PROCESSES));
    }
    rows.extend(processes.into_iter().flat_map(process_rows::of));
    rows.extend(hidden(watch.hidden()).map(Row::Remark));
    rows
}

/// Says how many processes this user may not look at.
pub fn hidden(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 process that you may not look at is left out: the machine's root may".into()),
        _ => Some(format!("{count} processes that you may not look at are left out; the machine's root sees them")),
    }
}

/// The remark about objects: bytes fetched, hit and wasted. `None` if there are no objects.
fn of_objects((all, since): (Objects, Objects), seconds: Option<f64>) -> Option<String> {
    let part = |all, since: u64, what| {
        let rate = seconds.map(|seconds| format!(" ({}/s)", bytes((since as f64 / seconds) as u64)));
        format!("{} {what}{}", bytes(all), rate.unwrap_or_default())
    };
    (all != Objects::default()).then(|| {
        format!(
            "objects: {}, {}, {}",
            part(all.fetched_bytes, since.fetched_bytes, "fetched"),
            part(all.hit_bytes, since.hit_bytes, "hit"),
            part(all.wasted_bytes, since.wasted_bytes, "wasted"),
        )
    })
}

fn of_program(watched: &Watched) -> Vec<Row> {
    let (total, since) = watched.total();
    let seconds = watched.seconds();
    let name = format!("{} {}", watched.pid(), printable(watched.name()));
    let figures = vec![
        bytes(total.capacity_bytes),
        pages(total.stats.resident_pages),
        pages(total.stats.dirty_pages),
        rate(since.misses, seconds),
        bytes(total.stats.read_size),
        rate(since.evicted_pages, seconds),
        rate(since.writeback_pages, seconds),
        rate(since.ahead_used, seconds),
        rate(since.ahead_wasted, seconds),
    ];
    let mut rows = vec![Row::Program { name, figures }, Row::Remark(of_traps(watched, &since))];
    rows.extend(of_writes(&total, &since).map(Row::Remark));
    if let (1.., flushed) = watched.flushed_bytes() {
        let rate = seconds.map_or(String::new(), |seconds| format!("{}/s ", bytes((flushed as f64 / seconds) as u64)));
        rows.push(Row::Remark(format!("{rate}flushed by direct mappings, by cache line")));
    }
    rows.extend(of_objects(watched.objects(), seconds).map(Row::Remark));
    rows.extend(watched.maps().map(|(map, since)| {
        let MapStats { misses, evicted_pages, writeback_pages, ahead_used, ahead_wasted, .. } = since;
        let figures = vec![
            bytes(map.mapped_bytes),
            pages(map.stats.resident_pages),
            String::new(),
            rate(misses, seconds),
            bytes(map.stats.read_size),
            rate(evicted_pages, seconds),
            rate(writeback_pages, seconds),
            rate(ahead_used, seconds),
            rate(ahead_wasted, seconds),
        ];
        let mark = match (map.mapped_bytes, map.writable) {
            (0, _) => "--",
            (_, true) => "rw",
            (_, false) => "r-",
        };
        Row::Map { mark, path: printable(map.path.to_string_lossy()), figures }
    }));
    if watched.maps_left_out() > 0 {
        rows.push(Row::Remark(format!("and {} more files", watched.maps_left_out())));
    }
    rows
}

/// The remark about the traps that a program took.
fn of_traps(watched: &Watched, since: &Stats) -> String {
    if !watched.answers {
        return "does not answer: it is stopped, or ending; these are its last figures".into();
    }
    let Some(seconds) = watched.seconds() else { return "looking...".into() };
    let all = traps(since);
    let rate = |count: u64| figure(count as f64 / seconds);
    let mut text = format!("{} traps/s", rate(all));
    if all > 0 {
        let part = |count: u64| percent(share(count, all));
        text.push_str(&format!(
            ": {} misses ({} ghosts), {} staged, {} first stores",
            part(since.misses),
            percent(share(since.ghost_hits, since.misses)),
            part(since.ahead_chunks),
            part(since.upgrades),
        ));
    }
    if let Some(used) = share(since.run_used, since.run_pages) {
        text.push_str(&format!("; rows {} used", percent(Some(used))));
    }
    if since.waits > 0 {
        text.push_str(&format!("; {} waits/s", rate(since.waits)));
    }
    text
}

/// The remark about writes, failed writes and pinned pages. `None` if there are none.
fn of_writes(total: &CacheSnapshot, since: &Stats) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(run) = share(since.writeback_pages, since.writeback_runs) {
        let depth = share(since.writeback_depth, since.writeback_runs).unwrap_or_default();
        parts.push(format!("{} pages a write, queue depth {}", figure(run), figure(depth)));
    }
    if total.stats.writeback_errors > 0 {
        parts.push(format!("{} writes FAILED so far", total.stats.writeback_errors));
    }
    if total.stats.pinned_pages > 0 {
        parts.push(format!("{} pinned", pages(total.stats.pinned_pages)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The number of traps, with pins that found their page absent.
pub fn traps(since: &Stats) -> u64 {
    since.misses + since.ahead_chunks + since.upgrades
}

/// The share of a part in a whole. `None` if the whole is 0.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.0}%", share * 100.0))
}

fn rate(count: u64, seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".into(), |seconds| figure(count as f64 / seconds))
}

fn pages(count: u64) -> String {
    bytes(count * 4096)
}

/// A number in units of 1000, with at most three digits. It is like [`short`](crate::size::short).
pub fn figure(value: f64) -> String {
    scaled(value, 1000.0, ["", "k", "M", "G", "T"])
}

/// The rows as text. Remarks may be longer than their column, and make no column wider.
pub fn table(headings: Headings, rows: Vec<Row>) -> String {
    let remarks: Vec<Option<String>> = rows.iter().map(Row::remark).collect();
    let cells: Vec<_> = rows.into_iter().filter(|row| row.remark().is_none()).map(Row::plain).collect();
    let table = table::render(&headings.plain(), &cells);
    let mut lines = table.lines();
    let heading = lines.next().map(str::to_owned);
    let lines = remarks.into_iter().filter_map(|remark| remark.or_else(|| lines.next().map(str::to_owned)));
    heading.into_iter().chain(lines).map(|line| line + "\n").collect()
}

impl Row {
    /// The line of a remark. `None` for other rows.
    fn remark(&self) -> Option<String> {
        if let Row::Remark(text) = self { Some(format!("  {text}")) } else { None }
    }

    /// The cells of the row: the name, and the figures. A remark has empty figures.
    pub fn plain(self) -> Vec<String> {
        let (name, figures) = match self {
            Row::Headings(Headings(name, figures)) => (name.into(), figures.map(String::from).into()),
            Row::Program { name, figures } => (name, figures),
            Row::Remark(text) => (format!("  {text}"), vec![String::new(); HEADINGS.len()]),
            Row::Map { mark, path, figures } => (format!("  {mark} {path}"), figures),
        };
        [name].into_iter().chain(figures).collect()
    }
}

impl Headings {
    /// The headings as the cells of a row.
    fn plain(self) -> Vec<&'static str> {
        [self.0].into_iter().chain(self.1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns() {
        for (value, text) in
            [(0.0, "0"), (0.25, "0.2"), (7.0, "7.0"), (99.94, "99.9"), (99.96, "100"), (999.4, "999"), (999.6, "1.0k")]
        {
            assert_eq!(figure(value), text);
        }
        assert_eq!([figure(12_345.0), figure(1e9), figure(1e20)], ["12.3k", "1.0G", "100000000T"]);
    }

    #[test]
    fn remarks_make_no_column_wider() {
        let row = |name: &str| Row::Program { name: name.into(), figures: vec!["1".into(); 9] };
        let rows =
            vec![Row::Remark("x".repeat(50)), row("7 db"), Row::Remark("last".into()), Row::Headings(OF_PROCESSES)];
        let text = table(OF_PROGRAMS, rows);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("PROGRAM, FILES  SIZE  RES "), "{text}");
        assert_eq!((lines[1], lines[3], lines.len()), (format!("  {}", "x".repeat(50)).as_str(), "  last", 5));
        assert!(
            lines[2].starts_with("7 db               1    1 ") && lines[4].starts_with("PROCESS, FILES  SIZE "),
            "{text}"
        );
    }

    #[test]
    fn those_left_out_are_counted() {
        assert_eq!(hidden(0), None);
        assert_eq!(hidden(1).unwrap(), "1 process that you may not look at is left out: the machine's root may");
        assert!(hidden(12).unwrap().starts_with("12 processes "));
    }

    #[test]
    fn objects_are_shown_where_there_are_any() {
        let objects = |fetched_bytes, hit_bytes| Objects { fetched_bytes, hit_bytes, wasted_bytes: 0 };
        assert_eq!(of_objects((Objects::default(), Objects::default()), Some(1.0)), None);
        let (all, since) = (objects(3 << 30, 1 << 20), objects(1 << 20, 0));
        let text = of_objects((all, since), Some(2.0)).unwrap();
        assert_eq!(text, "objects: 3.0G fetched (512K/s), 1.0M hit (0B/s), 0B wasted (0B/s)");
        assert_eq!(of_objects((all, since), None).unwrap(), "objects: 3.0G fetched, 1.0M hit, 0B wasted");
    }
}
