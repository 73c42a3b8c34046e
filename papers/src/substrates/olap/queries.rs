//! The 22 queries, and whether two answers to one are the same.

use tpchgen::q_and_a::answers_sf1;

use super::monetdb::Rows;

/// How many there are.
pub const QUERIES: u32 = 22;

/// All of them, each behind a line with its number.
const TEXT: &str = include_str!("queries.sql");

/// A query, by its number from 1 on.
pub fn query(number: u32) -> &'static str {
    let (_, rest) = TEXT.split_once(&format!("-- Q{number}\n")).expect("numbers are those of queries");
    rest.split_once(";\n").expect("queries end").0
}

/// Where an answer is not the one expected, for people; nothing where it is. Every row and column is compared, in order: sums are
/// of decimals, exact in whatever order they are taken.
pub fn difference(expected: &Rows, found: &Rows) -> Option<String> {
    differs(expected, found, |expected, found| expected == found)
}

/// The same of the answer that the specification gives at scale factor 1: to five cents, since query 17's is three off (the
/// specification allows 100 dollars), and of query 11 the keys as `tpchgen` has them, cut to four characters.
pub fn from_official(number: u32, found: &Rows) -> Option<String> {
    differs(&official(number), found, |expected, found| {
        let (Some(expected), Some(found)) = (expected, found) else { return expected == found };
        let numbers = (expected.parse::<f64>(), found.parse::<f64>());
        expected == found.trim()
            || matches!(numbers, (Ok(expected), Ok(found)) if (expected - found).abs() <= 0.05)
            || number == 11 && expected.len() <= 4 && found.starts_with(expected.as_str())
    })
}

fn differs(expected: &Rows, found: &Rows, same: impl Fn(&Option<String>, &Option<String>) -> bool) -> Option<String> {
    if expected.len() != found.len() {
        return Some(format!("it has {} rows where {} belong", found.len(), expected.len()));
    }
    for (number, (expected, found)) in expected.iter().zip(found).enumerate() {
        if expected.len() != found.len() {
            return Some(format!("row {} has {} columns where {} belong", number + 1, found.len(), expected.len()));
        }
        let wrong = expected.iter().zip(found).position(|(expected, found)| !same(expected, found));
        if let Some(column) = wrong {
            let shown = |cell: &Option<String>| cell.as_ref().map_or("NULL".to_owned(), |cell| format!("\"{cell}\""));
            let (expected, found) = (shown(&expected[column]), shown(&found[column]));
            return Some(format!("row {}, column {}: {found} where {expected} belongs", number + 1, column + 1));
        }
    }
    None
}

/// The specification's answer at scale factor 1: a heading, then rows, with bars between columns.
fn official(number: u32) -> Rows {
    let text = answers_sf1::answer(number as i32).expect("as many answers as queries");
    let rows = text.lines().filter(|line| !line.trim().is_empty()).skip(1);
    rows.map(|row| row.split('|').map(|cell| Some(cell.trim().to_owned())).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_is_there_and_whole() {
        for number in 1..=QUERIES {
            let query = query(number);
            assert!(query.contains("select") && !query.contains("-- Q") && !query.contains(':'), "{number}: {query}");
            assert!(!official(number).is_empty(), "{number}");
        }
        assert!(query(2).ends_with("limit 100") && query(22).ends_with("cntrycode"));
    }

    #[test]
    fn a_cell_row_or_column_that_differs_is_named() {
        let rows = |text: &str| -> Rows {
            let row = |line: &str| line.split('|').map(|cell| (cell != "-").then(|| cell.to_owned())).collect();
            text.lines().map(row).collect()
        };
        let right = rows("a|1.00\nb|-");
        assert_eq!(difference(&right, &right.clone()), None);
        for (wrong, said) in [
            ("a|1.00", "it has 1 rows where 2 belong"),
            ("a|1.00\nb", "row 2 has 1 columns where 2 belong"),
            ("a|1.01\nb|-", "row 1, column 2: \"1.01\" where \"1.00\" belongs"),
            ("b|-\na|1.00", "row 1, column 1: \"b\" where \"a\" belongs"),
            ("a|1.00\nb|0", "row 2, column 2: \"0\" where NULL belongs"),
        ] {
            assert_eq!(difference(&right, &rows(wrong)).as_deref(), Some(said));
        }
    }

    #[test]
    fn official_answers_have_two_decimals() {
        let mut found = official(14);
        assert_eq!(found, [[Some("16.38".to_owned())]]);
        found[0][0] = Some("16.3807786263955401".to_owned());
        assert_eq!(from_official(14, &found), None);
        found[0][0] = Some("16.45".to_owned());
        assert!(from_official(14, &found).unwrap().starts_with("row 1, column 1"));
    }
}
