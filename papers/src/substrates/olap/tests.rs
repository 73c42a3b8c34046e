//! TPC-H over MonetDB, small, on kernel mmap: the same answers each time, and others once a stored value is another.

use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Load, Order, Outcome, QUERIES, check_monetdb, difference, load, run};
use crate::substrates::{Meter, skipped};

/// Rows of LINEITEM at the scale here.
const LINES: u64 = 60_175;

/// Where scripts/monetdb puts it.
fn monetdb() -> PathBuf {
    let named = |name| env::var_os(name).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    cache.unwrap_or_default().join("fastmap/monetdb")
}

fn answers(database: &Path, queries: &[u32]) -> Outcome {
    let order = Order { monetdb: monetdb(), database: database.to_owned(), threads: 2, queries: queries.to_vec() };
    run(&order, &Meter::default()).unwrap()
}

#[test]
fn all_queries_answer_and_a_changed_value_is_noticed() {
    if let Err(why) = check_monetdb(&monetdb()) {
        return skipped(&why.to_string());
    }
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let database = folder.path().join("database");
    let scratch = folder.path().join("it's scratch");
    fs::create_dir(&scratch).unwrap();
    let order =
        Load { monetdb: monetdb(), database: database.clone(), scratch: scratch.clone(), scale: 0.01, threads: 2 };
    let loaded = load(&order).unwrap();
    assert!((10 << 20..12 << 20).contains(&loaded.text_bytes), "{loaded:?}");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "texts are gone once they are loaded");

    let all: Vec<u32> = (1..=QUERIES).collect();
    let first = answers(&database, &all);
    assert!(first.open_seconds > 0.0 && first.all.user_s > 0.0);
    let rows: Vec<usize> = first.answers.iter().map(|answer| answer.rows.len()).collect();
    // Query 1 has four groups and 4 five priorities at any scale; 3 and 10 have limits.
    assert_eq!((rows[0], rows[2], rows[3], rows[9]), (4, 10, 5, 20), "{rows:?}");
    // Sums have the decimals of their type.
    let sums: Vec<_> = first.answers[0].rows[0].iter().map(|cell| cell.clone().unwrap()).collect();
    assert_eq!((sums[0].as_str(), sums[1].as_str(), sums[2].as_str()), ("A", "F", "380456.00"), "{sums:?}");
    let second = answers(&database, &all);
    for (first, second) in first.answers.iter().zip(&second.answers) {
        assert_eq!(difference(&first.rows, &second.rows), None, "query {}", first.query);
    }

    // A cent more, or a hundredth of a piece, in the columns of LINEITEM that have eight bytes a row.
    let files = crate::substrates::cold::files(&database).unwrap();
    let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes > 5 << 20, "{bytes}");
    let mut changed = 0;
    for file in files {
        let length = file.metadata().unwrap().len();
        if (LINES * 8..LINES * 8 + 65536).contains(&length) && file.extension().is_some_and(|kind| kind == "tail") {
            let file = OpenOptions::new().read(true).write(true).open(&file).unwrap();
            let mut value = [0; 8];
            file.read_exact_at(&mut value, 30_000 * 8).unwrap();
            file.write_all_at(&(i64::from_le_bytes(value) + 1).to_le_bytes(), 30_000 * 8).unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 4, "quantity, price, discount and tax");
    let third = answers(&database, &[1]);
    let what = difference(&first.answers[0].rows, &third.answers[0].rows).expect("a difference");
    assert!(what.starts_with("row ") && what.contains("column 3"), "{what}");
}
