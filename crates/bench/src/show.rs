//! Tables, plots, headlines and JSON of any experiment, made from its rows and columns.

use fastmap_cli::table::{figure, render};
use serde_json::{Map, Value, json};

/// Most series in a plot: the number of the report's colours.
const MOST_SERIES: usize = 8;

use crate::experiment::{Claim, Column, Experiment, Of, Over, Plot, Row, Stat, paired, ratios};
use crate::report::Verdict;
use crate::results::{self, Axis, Gain, Headline, Kind, Point, Series, Spread, X};
use crate::substrates::Engine;

/// Repetitions agree if the least and the greatest are no further apart than this, per cent of their statistic.
const AGREE: f64 = 10.0;

/// A table with more columns than this is turned: its columns become lines.
const WIDE: usize = 16;

/// The rows of an experiment, to be shown by its columns.
pub struct Shown<'a, E: Experiment> {
    rows: &'a [Row<E::Outcome>],
}

type RowOf<E> = Row<<E as Experiment>::Outcome>;
type ColumnOf<E> = Column<<E as Experiment>::Outcome>;

impl<'a, E: Experiment> Shown<'a, E> {
    /// `rows` are in the order of groups. The rows of a group are in the order of parts, then of arms.
    pub fn new(rows: &'a [RowOf<E>]) -> Shown<'a, E> {
        Shown { rows }
    }

    fn column(&self, key: &str) -> &'static ColumnOf<E> {
        let known = E::COLUMNS.iter().find(|column| column.key == key);
        known.unwrap_or_else(|| panic!("{}: no column {key}", E::NAME))
    }

    /// The figure of each repetition, with the number of the repetition. Empty if the column's figures come from elsewhere.
    fn each(&self, row: &RowOf<E>, column: &ColumnOf<E>) -> Vec<(u32, f64)> {
        match column.of {
            Of::Each(figure) => row.trials.iter().filter_map(|t| Some((t.repetition, figure(t)?))).collect(),
            _ => Vec::new(),
        }
    }

    /// The figure of a row in a column.
    fn value(&self, row: &RowOf<E>, column: &ColumnOf<E>) -> Option<f64> {
        match column.of {
            Of::Each(_) => {
                let figures: Vec<f64> = self.each(row, column).into_iter().map(|(_, figure)| figure).collect();
                (!figures.is_empty()).then(|| column.stat.of(&figures))
            }
            Of::Rows(of) => of(row, self.rows),
            Of::TimesMmap(_) | Of::Worth(_) => self.spread(row, column).map(|spread| spread.median),
        }
    }

    /// The figure with its range. None if the column has no range, as a standard deviation has none.
    fn spread(&self, row: &RowOf<E>, column: &ColumnOf<E>) -> Option<Spread> {
        match column.of {
            Of::Each(_) if !matches!(column.stat, Stat::Median | Stat::Mean) => None,
            Of::Each(_) => {
                let figures: Vec<f64> = self.each(row, column).into_iter().map(|(_, figure)| figure).collect();
                (!figures.is_empty()).then(|| Spread { median: column.stat.of(&figures), ..Spread::of(&figures) })
            }
            Of::TimesMmap(of) => {
                let theirs = self.best(
                    row,
                    |other| other.engine.is_mmap() && !other.trial && other.knows_no_more_than(row),
                    of,
                )?;
                self.ratio(row, theirs, of)
            }
            Of::Worth(of) => {
                let first = self.rows.iter().find(|other| same_work(row, other) && other.arm == 0)?;
                if row.arm == 0 { None } else { self.ratio(first, row, of) }
            }
            Of::Rows(_) => None,
        }
    }

    /// How many times as good `ours` is as `theirs`, at a column.
    fn ratio(&self, ours: &RowOf<E>, theirs: &RowOf<E>, column: &str) -> Option<Spread> {
        let column = self.column(column);
        ratios(&self.each(ours, column), &self.each(theirs, column), column.less)
    }

    /// The best of the rows that do the same work as `row` and for which `of` is true.
    fn best(&self, row: &RowOf<E>, of: impl Fn(&RowOf<E>) -> bool, column: &str) -> Option<&'a RowOf<E>> {
        let column = self.column(column);
        let rows = self.rows.iter().filter(|other| same_work(row, other) && of(other));
        let measured = rows.filter_map(|row| Some((self.value(row, column)?, row)));
        let better = |a: &f64, b: &f64| if column.less { b.total_cmp(a) } else { a.total_cmp(b) };
        measured.max_by(|a, b| better(&a.0, &b.0)).map(|(_, row)| row)
    }

    /// The rows of each table.
    fn groups(&self) -> impl Iterator<Item = &'a [RowOf<E>]> {
        self.rows.chunk_by(|a, b| a.text("what") == b.text("what"))
    }

    /// The tables.
    pub fn tables(&self) -> String {
        let title = |group: &[RowOf<E>]| {
            let several = group.iter().any(|row| row.what != group[0].what);
            if several { group[0].text("what").to_owned() } else { group[0].what.clone() }
        };
        self.groups().map(|group| format!("\n{}\n\n{}", title(group), self.table(group))).collect()
    }

    fn table(&self, group: &[RowOf<E>]) -> String {
        let name = |row: &RowOf<E>| {
            let trial = if row.trial {
                " (trial)"
            } else if row.cold() {
                " (cold)"
            } else {
                ""
            };
            let part = if row.part.is_empty() { String::new() } else { format!("{}: ", row.part) };
            format!("{part}{}{trial}", row.name)
        };
        let mut columns: Vec<(String, Vec<String>)> = Vec::new();
        if group.iter().any(|row| row.number("threads") != group[0].number("threads")) {
            let threads = group.iter().map(|row| row.number("threads").unwrap_or_default().to_string());
            columns.push(("threads".to_owned(), threads.collect()));
        }
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        let late = |row: &RowOf<E>| (row.trials.is_empty() && !row.late.is_empty()).then(|| "killed".to_owned());
        for column in E::COLUMNS.iter().filter(|column| !column.title.is_empty()) {
            let shown = |row| self.value(row, column).map(|value| figure(value / column.unit)).or_else(|| late(row));
            let cells: Vec<_> = group.iter().map(shown).collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            columns.push((column.title.to_owned(), cells.into_iter().map(or_dash).collect()));
            if column.range && group.iter().any(|row| row.trials.len() > 1) {
                let range = |row| {
                    let Spread { low, high, .. } = self.spread(row, column)?;
                    let range = format!("{}..{}", figure(low / column.unit), figure(high / column.unit));
                    Some(self.apart(row, column).map_or(range.clone(), |apart| format!("{range} (!{apart:.0}%)")))
                };
                columns.push(("min..max".to_owned(), group.iter().map(|row| or_dash(range(row))).collect()));
            }
        }
        if columns.len() > WIDE {
            let names: Vec<String> = std::iter::once(String::new()).chain(group.iter().map(name)).collect();
            let rows: Vec<Vec<String>> =
                columns.into_iter().map(|(title, cells)| std::iter::once(title).chain(cells).collect()).collect();
            return render(&names.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
        }
        let headings: Vec<&str> =
            std::iter::once("engine").chain(columns.iter().map(|(title, _)| title.as_str())).collect();
        let cells = |at: usize| columns.iter().map(move |(_, cells)| cells[at].clone());
        let rows: Vec<Vec<String>> =
            group.iter().enumerate().map(|(at, row)| std::iter::once(name(row)).chain(cells(at)).collect()).collect();
        render(&headings, &rows)
    }

    /// How far the repetitions of a row are apart, per cent of their statistic. None: they are no further apart than [`AGREE`].
    fn apart(&self, row: &RowOf<E>, column: &ColumnOf<E>) -> Option<f64> {
        let Spread { median, low, high } = self.spread(row, column)?;
        Some((high - low) / median * 100.0).filter(|apart| *apart > AGREE)
    }

    /// Whether the repetitions of a row agree at the first column.
    pub fn is_steady(&self, row: &RowOf<E>) -> bool {
        is_steady(&self.each(row, &E::COLUMNS[0]).into_iter().map(|(_, figure)| figure).collect::<Vec<_>>())
    }

    /// Notes on rows whose repetitions do not agree, and on rows that were measured before memory was full.
    pub fn notes(&self) -> Vec<String> {
        let named = |rows: Vec<String>| rows.join("; ");
        let of = |row: &RowOf<E>| format!("{}, {}", row.what, row.name);
        let apart = |row: &RowOf<E>| Some(format!("{} ({:.0} %)", of(row), self.apart(row, &E::COLUMNS[0])?));
        let apart: Vec<String> = self.rows.iter().filter(|row| !row.trial).filter_map(apart).collect();
        let cold: Vec<String> = self.rows.iter().filter(|row| row.cold()).map(of).collect();
        let mut notes = Vec::new();
        if !apart.is_empty() {
            notes.push(format!("Repetitions that are more than {AGREE} % apart, marked (!): {}.", named(apart)));
        }
        if !cold.is_empty() {
            let why = "The warm-up ran out of time before memory was full and all in it had been replaced once";
            notes.push(format!("{why}, marked (cold): {}.", named(cold)));
        }
        notes
    }

    /// FastMap's gain in each work, over kernel mmap as it is and over the best kernel engine.
    pub fn gains(&self) -> Vec<Gain> {
        let key = E::COLUMNS[0].key;
        let gain = |row: &RowOf<E>| {
            let (work, way) = (E::work(row)?, E::way(row)?);
            let plain = self.rows.iter().find(|other| same_work(row, other) && other.engine == Engine::Mmap);
            // An engine that was given up after the first repetition is no rival.
            let is_rival = |other: &RowOf<E>| other.engine.is_mmap() && 2 * other.trials.len() > row.trials.len();
            let best = self.best(row, is_rival, key)?;
            let unsteady =
                !self.is_steady(row) || !self.is_steady(best) || plain.is_some_and(|plain| !self.is_steady(plain));
            Some(Gain {
                work,
                way: way.to_owned(),
                as_is: plain.and_then(|plain| self.ratio(row, plain, key)),
                best: self.ratio(row, best, key),
                best_name: advice(best.engine).to_owned(),
                unsteady,
            })
        };
        self.rows.iter().filter_map(gain).collect()
    }

    /// The headlines that the claims give for these rows.
    pub fn headlines(&self, claims: &[Claim<E::Outcome>]) -> Vec<Headline> {
        claims.iter().flat_map(|claim| self.claim(claim)).collect()
    }

    fn claim(&self, claim: &Claim<E::Outcome>) -> Vec<Headline> {
        let ours = |row: &RowOf<E>| claim.ours.contains(&row.engine) && !row.trial && (claim.of)(row);
        let theirs = |row: &RowOf<E>| claim.theirs.contains(&row.engine) && !row.trial;
        let threads = |row: &RowOf<E>| row.number("threads").unwrap_or(0.0);
        let most = self.rows.iter().filter(|row| ours(row)).map(threads).fold(0.0, f64::max);
        let mut told = Vec::new();
        let mut done: Vec<(usize, usize)> = Vec::new();
        for row in self.rows.iter().filter(|row| ours(row)) {
            if claim.most_threads && threads(row) < most || done.contains(&(row.group, row.arm)) {
                continue;
            }
            if claim.best && self.best(row, ours, claim.column).is_some_and(|best| best.arm != row.arm) {
                continue;
            }
            let (ratio, what) = if claim.mean {
                done.push((row.group, row.arm));
                match self.mean(row, &theirs, claim.column) {
                    Some((ratio, who)) => (ratio, format!("{}, mean of all: {} to {who}", row.what, row.name)),
                    None => continue,
                }
            } else {
                let rival = |other: &RowOf<E>| theirs(other) && other.knows_no_more_than(row);
                let Some(best) = self.best(row, rival, claim.column) else { continue };
                let Some(ratio) = self.ratio(row, best, claim.column) else { continue };
                let part = if row.part.is_empty() { String::new() } else { format!(", {}", row.part) };
                (ratio, format!("{}{part}: {} to {}", row.what, row.name, best.name))
            };
            let what = if claim.what.is_empty() { what } else { format!("{}, {what}", claim.what) };
            let paper = (claim.paper)(row).map(|paper| results::Paper {
                ratio: paper.ratio,
                source: paper.source.to_owned(),
                setting: paper.setting.to_owned(),
            });
            told.push(Headline { what, ratio, paper });
        }
        told
    }

    /// The geometric mean over the parts of an arm's runs, repetition by repetition. Each part is compared with the best of `theirs`. Also
    /// returns the names of those.
    fn mean(&self, row: &RowOf<E>, theirs: &impl Fn(&RowOf<E>) -> bool, column: &str) -> Option<(Spread, String)> {
        let parts = self.rows.iter().filter(|other| (other.group, other.arm) == (row.group, row.arm));
        let (mut all, mut names): (Vec<Vec<f64>>, Vec<&str>) = (Vec::new(), Vec::new());
        let by = self.column(column);
        for part in parts.filter(|part| !self.each(part, by).is_empty()) {
            let best = self.best(part, |other| theirs(other) && other.knows_no_more_than(part), column)?;
            if !names.contains(&best.name.as_str()) {
                names.push(&best.name);
            }
            all.push(paired(&self.each(part, by), &self.each(best, by), by.less));
        }
        let repetitions = all.iter().map(Vec::len).min().filter(|count| *count > 0)?;
        let mean = |n: usize| (all.iter().map(|part| part[n].ln()).sum::<f64>() / all.len() as f64).exp();
        let who = if names.len() > 1 { format!("the best of {}", names.join(", ")) } else { names.concat() };
        Some((Spread::of(&(0..repetitions).map(mean).collect::<Vec<_>>()), who))
    }

    /// The plots.
    pub fn figures(&self, repeat: u32) -> Vec<results::Figure> {
        E::PLOTS.iter().flat_map(|plot| self.plot(plot, repeat)).collect()
    }

    fn plot(&self, plot: &Plot<E::Outcome>, repeat: u32) -> Vec<results::Figure> {
        let rows: Vec<&RowOf<E>> = self.rows.iter().filter(|row| (plot.of)(row) && !row.trial).collect();
        let over = match plot.over {
            // An axis needs two numbers.
            Over::Label(label) if distinct(rows.iter().map(|row| row.number(label))).len() < 2 => Over::Groups,
            over => over,
        };
        // An axis needs two groups.
        let over = match over {
            Over::Groups if distinct(rows.iter().map(|row| row.group)).len() < 2 => Over::Arms,
            over => over,
        };
        let family = |row: &RowOf<E>| match over {
            Over::Arms => (row.group.to_string(), row.part.clone()),
            Over::Groups => (String::new(), row.part.clone()),
            Over::Parts => (row.group.to_string(), String::new()),
            Over::Label(label) => {
                let others = row.labels.iter().filter(|(name, _)| *name != label && !is_of_arm(name, row));
                (others.map(|(_, value)| value.to_string()).collect(), row.part.clone())
            }
        };
        let mut figures = Vec::new();
        for of in distinct(rows.iter().map(|row| family(row))) {
            let rows: Vec<&RowOf<E>> = rows.iter().copied().filter(|row| family(row) == of).collect();
            let each: Vec<&[&'static str]> = match over {
                Over::Arms => vec![plot.columns],
                _ => plot.columns.chunks(1).collect(),
            };
            figures.extend(each.into_iter().filter_map(|keys| self.figure(plot, over, &rows, keys, repeat)));
        }
        figures
    }

    fn figure(
        &self,
        plot: &Plot<E::Outcome>,
        over: Over,
        rows: &[&RowOf<E>],
        keys: &[&'static str],
        repeat: u32,
    ) -> Option<results::Figure> {
        let mut series: Vec<Series> = Vec::new();
        // If there are more engines than colours, the works have the colours, and the engines are on the axis.
        let by_engine = over == Over::Groups && distinct(rows.iter().map(|row| &row.name)).len() > MOST_SERIES;
        for key in keys {
            let column = self.column(key);
            for row in rows {
                let x = match over {
                    Over::Arms => X::Name(row.name.clone()),
                    Over::Groups if by_engine => X::Name(row.name.clone()),
                    Over::Groups => X::Name(row.what.clone()),
                    Over::Parts => X::Name(row.part.clone()),
                    Over::Label(label) => match row.number(label) {
                        Some(number) => X::Number(number),
                        None => continue,
                    },
                };
                let Some(value) = self.value(row, column) else { continue };
                // A logarithmic axis has no zero.
                if plot.log && value <= 0.0 {
                    continue;
                }
                let range = self.spread(row, column).map(|s| (s.low / column.unit, s.high / column.unit));
                let range = range.filter(|_| plot.kind != Kind::Stacked);
                let point = Point { x, y: value / column.unit, range };
                let of_column = if column.title.is_empty() { column.axis } else { column.title };
                let name = match over {
                    Over::Arms => of_column.to_owned(),
                    _ if by_engine => row.what.clone(),
                    _ => row.name.clone(),
                };
                match series.iter_mut().find(|series| series.name == name) {
                    Some(series) => series.points.push(point),
                    None => series.push(Series { name, points: vec![point] }),
                }
            }
        }
        let first = rows.first().filter(|_| !series.is_empty())?;
        let column = self.column(keys[0]);
        let part =
            if first.part.is_empty() || over == Over::Parts { String::new() } else { format!(", {}", first.part) };
        let of = match over {
            Over::Arms | Over::Parts => format!(": {}{part}", first.what),
            Over::Label(_) => format!(": {}{part}", first.text("what")),
            Over::Groups => first.part.is_empty().then(String::new).unwrap_or_else(|| format!(": {}", first.part)),
        };
        let which = if keys.len() < plot.columns.len() { format!(", {}", column.title) } else { String::new() };
        let y = if plot.log { Axis::log(column.axis) } else { Axis::of(column.axis) };
        let (kind, x) = match over {
            Over::Arms => (plot.kind, Axis::of("engine")),
            Over::Groups if by_engine => (plot.kind, Axis::of("engine")),
            Over::Groups => (plot.kind, Axis::of("work")),
            Over::Parts => (plot.kind, Axis::of(E::PART)),
            Over::Label(label) => (plot.kind, Axis::log(label)),
        };
        let kind = match (kind, over) {
            (Kind::Lines, Over::Arms | Over::Groups | Over::Parts) => Kind::Bars,
            (kind, _) => kind,
        };
        let better = if column.less { "less" } else { "more" };
        Some(results::Figure {
            title: format!("{}{which}{}", plot.title, of.trim_end_matches(": ")),
            caption: format!(
                "Engines in turn, {repeat} repetition{}: what they come to, from the least to the greatest; {better} is better.",
                if repeat == 1 { "" } else { "s" }
            ),
            paper: plot.paper.map(str::to_owned),
            kind,
            x,
            y,
            series,
        })
    }

    /// The rows as JSON: labels, columns by their keys, the figures of the first column (`runs`), and every repetition as it was measured.
    pub fn json(&self) -> Vec<Value> {
        self.rows.iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: &RowOf<E>) -> Value {
        let mut object = Map::new();
        for (name, value) in row.labels.iter().filter(|(name, _)| *name != "what") {
            object.insert((*name).to_owned(), value.clone());
        }
        object.insert("engine".to_owned(), json!(row.engine));
        if row.name != row.engine.name() {
            object.insert("name".to_owned(), json!(row.name));
        }
        if !row.part.is_empty() {
            object.insert(E::PART.to_owned(), json!(row.part));
        }
        if row.trial {
            object.insert("trial".to_owned(), json!(true));
        }
        for column in E::COLUMNS {
            let Some(value) = self.value(row, column) else { continue };
            // Whole numbers stay whole.
            let value =
                if value.fract() == 0.0 && (0.0..9e15).contains(&value) { json!(value as u64) } else { json!(value) };
            let mut at = &mut object;
            let mut path: Vec<&str> = column.key.split('.').collect();
            let last = path.pop().unwrap_or(column.key);
            for name in path {
                let inner = at.entry(name.to_owned()).or_insert_with(|| Value::Object(Map::new()));
                at = inner.as_object_mut().unwrap_or_else(|| panic!("{}: {name} is no object", E::NAME));
            }
            at.insert(last.to_owned(), value);
        }
        let runs: Vec<f64> = self.each(row, &E::COLUMNS[0]).into_iter().map(|(_, figure)| figure).collect();
        object.insert("runs".to_owned(), json!(runs));
        object.insert("trials".to_owned(), json!(row.trials));
        if !row.late.is_empty() {
            object.insert("late".to_owned(), json!(row.late));
        }
        Value::Object(object)
    }
}

/// The name of the advice that an engine gives to the kernel.
pub fn advice(engine: Engine) -> &'static str {
    match engine {
        Engine::MmapRandom => "MADV_RANDOM",
        Engine::MmapSequential => "MADV_SEQUENTIAL",
        Engine::MmapWillneed => "MADV_WILLNEED",
        Engine::MmapPopulate => "MADV_POPULATE_READ",
        Engine::MmapFadvise => "POSIX_FADV_WILLNEED",
        Engine::MmapAdvised => "MADV_RANDOM or MADV_SEQUENTIAL",
        _ => "none",
    }
}

/// Whether the middle half of some figures is no further apart than `AGREE`. No figure, or a single one, counts as steady.
pub fn is_steady(figures: &[f64]) -> bool {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * figures.len().saturating_sub(1) as f64;
        let (below, above) = (figures[place.floor() as usize], figures[place.ceil() as usize]);
        below + (above - below) * place.fract()
    };
    figures.is_empty() || (at(0.75) - at(0.25)) / at(0.5) * 100.0 <= AGREE
}

fn same_work<O>(a: &Row<O>, b: &Row<O>) -> bool {
    (a.group, &a.part) == (b.group, &b.part)
}

/// Whether a label is an arm's. The labels of a group come first, and `what` is the last of them.
fn is_of_arm<O>(name: &str, row: &Row<O>) -> bool {
    let what = row.labels.iter().position(|(label, _)| *label == "what");
    let at = row.labels.iter().position(|(label, _)| *label == name);
    at > what
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    all.for_each(|one| {
        if !once.contains(&one) {
            once.push(one);
        }
    });
    once
}

/// A headline on one line.
pub fn line(headline: &Headline) -> String {
    let Spread { median, low, high } = headline.ratio;
    let paper = headline.paper.as_ref().map_or_else(String::new, |paper| format!("; paper {:.2}", paper.ratio));
    format!("{}: {median:.2}x ({low:.2}..{high:.2}{paper}), {}\n", headline.what, Verdict::of(headline.ratio).word())
}

#[cfg(test)]
mod tests;
