//! `fastmap cache` lists, removes and verifies the local copies of objects.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fastmap_tier::{Listed, Tier, UNIT, Verified};
use serde_json::json;

use crate::args::{CacheArgs, CacheCommand, LsArgs, RmArgs, TierArgs};
use crate::failure::Failure;
use crate::size::short;
use crate::table::{self, printable};

/// Runs the subcommand.
///
/// # Errors
/// The folder cannot be used, there is no copy of the object to remove, or a copy holds other bytes than were fetched.
pub fn run(args: &CacheArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        CacheCommand::Ls(args) => ls(args)?,
        CacheCommand::Rm(args) => rm(args)?,
        CacheCommand::Verify(args) => verify(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Turns an error of the tier into a failure. The error's text already names the folder and the remedy.
pub fn told(error: fastmap_tier::Error) -> Failure {
    use fastmap_tier::Error;
    match error {
        Error::NoSize(_) => Failure::told(error.to_string()).with_status(2),
        Error::LimitTooSmall { .. } => Failure::refused("FASTMAP_TIER_LIMIT", error),
        error => Failure::told(error.to_string()),
    }
}

fn open(args: &TierArgs) -> Result<Arc<Tier>, Failure> {
    Tier::open(args.tier.as_deref(), None).map_err(told)
}

fn ls(args: &LsArgs) -> Result<(), Failure> {
    let tier = open(&args.tier)?;
    let mut copies = tier.list().map_err(told)?;
    copies.sort_by(|one, other| one.version.url.cmp(&other.version.url).then(other.last_used.cmp(&one.last_used)));
    crate::print(&if args.json { in_json(&tier, &copies) } else { as_table(&tier, &copies, SystemTime::now()) });
    Ok(())
}

fn as_table(tier: &Tier, copies: &[Listed], now: SystemTime) -> String {
    let row = |one: &Listed| {
        vec![
            printable(&one.version.url),
            printable(version_of(one)),
            short(one.version.len),
            short(one.local),
            ago(one.last_used, now),
            if one.in_use { "yes" } else { "no" }.to_owned(),
        ]
    };
    let rows: Vec<_> = copies.iter().map(row).collect();
    let mut text = table::render(&["OBJECT", "VERSION", "LENGTH", "LOCAL", "LAST USED", "IN USE"], &rows);
    let dir = printable(tier.dir().display());
    text.push_str(&format!("{} of at most {} in {dir}\n", short(tier.used()), short(tier.limit())));
    text
}

/// The property by which the store tells versions apart: version id, ETag or modification time.
fn version_of(one: &Listed) -> &str {
    let version = &one.version;
    version.version.as_deref().or(version.etag.as_deref()).or(version.modified.as_deref()).unwrap_or("-")
}

/// The time since `then`, in one unit.
pub fn ago(then: SystemTime, now: SystemTime) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let seconds = now.duration_since(then).unwrap_or_default().as_secs();
    // A unit is used from two of it on: 119 min rather than 1 h.
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| seconds >= 2 * unit).unwrap_or((1, "s"));
    format!("{} {name} ago", seconds / unit)
}

fn in_json(tier: &Tier, copies: &[Listed]) -> String {
    let copy = |one: &Listed| {
        json!({
            "url": one.version.url,
            "etag": one.version.etag,
            "version": one.version.version,
            "modified": one.version.modified,
            "length_bytes": one.version.len,
            "local_bytes": one.local,
            "last_used_unix_s": one.last_used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            "in_use": one.in_use,
        })
    };
    let copies: Vec<_> = copies.iter().map(copy).collect();
    let dir = tier.dir().to_string_lossy();
    let all = json!({ "folder": dir, "used_bytes": tier.used(), "limit_bytes": tier.limit(), "copies": copies });
    table::json(&all)
}

fn rm(args: &RmArgs) -> Result<(), Failure> {
    let tier = open(&args.tier)?;
    if let Some(url) = &args.url
        && !tier.list().map_err(told)?.iter().any(|one| one.version.url == *url)
    {
        let what = format!("no local copy in {}", tier.dir().display());
        return Err(Failure::new(printable(url), what, "see `fastmap cache ls` for what is there"));
    }
    let freed = tier.remove(args.url.as_deref()).map_err(told)?;
    crate::print(&format!("{} freed in {}\n", short(freed), printable(tier.dir().display())));
    Ok(())
}

fn verify(args: &TierArgs) -> Result<(), Failure> {
    let tier = open(args)?;
    let Verified { objects, units, wrong, .. } = tier.verify().map_err(told)?;
    let looked = format!("{units} units of {} KiB, of {objects} local copies", UNIT >> 10);
    if wrong > 0 {
        let what = format!("{wrong} wrong of {looked}: they hold other bytes than were fetched");
        return Err(Failure::new(
            tier.dir().display(),
            what,
            "they will be fetched anew; look for errors of the disk in dmesg(1)",
        ));
    }
    crate::print(&format!("{}: {looked}: all right\n", printable(tier.dir().display())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_are_short() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (seconds, text) in [
            (0, "0 s ago"),
            (119, "119 s ago"),
            (120, "2 min ago"),
            (7199, "119 min ago"),
            (7200, "2 h ago"),
            (200_000, "2 d ago"),
        ] {
            assert_eq!(ago(now - Duration::from_secs(seconds), now), text);
        }
        assert_eq!(ago(now + Duration::from_secs(5), now), "0 s ago", "a clock that was set back");
    }
}
