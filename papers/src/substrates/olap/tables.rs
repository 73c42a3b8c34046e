//! The eight tables of TPC-H: what is in them, and how they come into a database.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};

use super::monetdb::Database;
use crate::substrates::{Error, Result};

/// Bytes of all tables as text at scale factor 1, about.
pub const TEXT_BYTES: f64 = 1.1e9;

/// The statements that make them.
const SCHEMA: &str = include_str!("schema.sql");

/// All tables, small ones first: while MonetDB loads one the next is generated.
const TABLES: [&str; 8] = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"];

/// Makes the tables of a scale factor and fills them; `scratch` is a directory for them as text, each until it is loaded.
/// Answers how many bytes the text had.
///
/// # Errors
///
/// No room on the disk, or what MonetDB says.
pub fn load(database: &Database, scratch: &Path, scale: f64) -> Result<u64> {
    // It takes one statement at a time.
    SCHEMA.split_inclusive(";\n").try_for_each(|statement| database.run(statement))?;
    thread::scope(|scope| {
        // One table waits at most.
        let (done, tables) = sync_channel(1);
        scope.spawn(move || {
            for table in TABLES {
                let path = scratch.join(format!("{table}.tbl"));
                let generated = generate(table, scale, &path).map(|bytes| (table, path, bytes));
                // Nobody waits for more after a failure.
                if done.send(generated).is_err() {
                    return;
                }
            }
        });
        let mut all = 0;
        for generated in tables {
            let (table, path, bytes) = generated.map_err(|source| no_room(scratch, source))?;
            let name = path.display().to_string().replace('\'', "''");
            database.run(&format!("copy into {table} from '{name}' using delimiters '|', E'|\\n'"))?;
            fs::remove_file(&path).map_err(|source| no_room(scratch, source))?;
            all += bytes;
        }
        Ok(all)
    })
}

fn no_room(scratch: &Path, source: io::Error) -> Error {
    let what = "cannot write the tables";
    Error::Io {
        thing: scratch.display().to_string(),
        what,
        source,
        remedy: "make room, or name another place with --dir",
    }
}

/// Writes a table as text, its fields ended by a bar; answers how many bytes that were.
fn generate(table: &str, scale: f64, path: &Path) -> io::Result<u64> {
    let mut to = BufWriter::with_capacity(1 << 20, File::create(path)?);
    macro_rules! rows {
        ($generator:ident) => {
            for row in $generator::new(scale, 1, 1).iter() {
                writeln!(to, "{row}")?;
            }
        };
    }
    match table {
        "region" => rows!(RegionGenerator),
        "nation" => rows!(NationGenerator),
        "supplier" => rows!(SupplierGenerator),
        "customer" => rows!(CustomerGenerator),
        "part" => rows!(PartGenerator),
        "partsupp" => rows!(PartSuppGenerator),
        "orders" => rows!(OrderGenerator),
        _ => rows!(LineItemGenerator),
    }
    let file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(file.metadata()?.len())
}
