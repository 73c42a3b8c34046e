//! `fastmap run` checks its settings and the program, starts it as its child, and steers it from outside. Only with the engine does it put anything
//! into the program: a preload library, by the environment.

mod beside;
mod companion;
mod glob;
mod guard;
mod heap;
mod keepers;
pub(crate) mod objects;
mod parent;
mod program;
mod signals;
mod voice;
mod warm;

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use fastmap::Cache;

use crate::args::{Faults, RunArgs};
use crate::failure::Failure;
use crate::size::{Capacity, Size};
use crate::table::printable;
use companion::Companion;
use keepers::Keepers;
use program::Kind;
use warm::Warmth;

/// The engine's library, which serves the program's mappings.
const ENGINE: &str = "libfastmap_preload.so";
/// The engine's library with the heap. Programs without `--heap` do not get it, because it makes malloc(3) take a detour.
const ENGINE_AND_HEAP: &str = "libfastmap_preload_heap.so";

/// Runs the program, and ends as it has ended. This does not return once the program was started.
pub fn run(args: &RunArgs) -> Result<Infallible, Failure> {
    let cache = setting(args.cache, "--cache", "FASTMAP_CACHE")?;
    let heap = text(args.heap.as_deref(), "--heap", "FASTMAP_HEAP");
    let engine = match (&heap, &cache) {
        (Some(_), _) => Some(ENGINE_AND_HEAP),
        (None, Some(_)) => Some(ENGINE),
        (None, None) => (!args.objects.object.is_empty()).then_some(ENGINE),
    };
    let mut variables = match engine {
        Some(_) => Some(engine_variables(args, cache, heap)?),
        None => check_without_engine(args)?,
    };
    if args.warm && engine.is_some() {
        let what = "needs pages that the kernel keeps; with a cache, FastMap keeps them";
        return Err(Failure::usage(
            "--warm",
            what,
            "leave out --warm, or --cache and --heap (and FASTMAP_CACHE and FASTMAP_HEAP)",
        ));
    }
    let overrides = args.r#override || env::var_os("FASTMAP_STEER_OVERRIDE").is_some_and(|value| value == "1");
    let log = env::var_os("FASTMAP_LOG").unwrap_or_default();
    let logs = check_log(&log.to_string_lossy())?;
    let library = engine.map(library).transpose()?;
    let program = program::find(&args.program[0])?;
    let kind = program::check(&program, engine.is_some())?;
    let objects = objects::start(&args.objects)?;
    // The other checks come first, because this one makes a file.
    let stats = text(args.stats.as_deref(), "--stats", "FASTMAP_STATS");
    let made = stats.map(|(source, path)| checked_stats(source, &path)).transpose()?;
    let mut keepers = None;
    if let Some(variables) = &mut variables {
        variables.extend(objects);
        if let Some(Made { path, .. }) = &made {
            variables.push(("FASTMAP_STATS", path.clone().into()));
        }
        variables.push(("LD_PRELOAD", preload(library.as_deref(), env::var_os("LD_PRELOAD"))));
        if variables.iter().any(|(name, _)| *name == "FASTMAP_OWN")
            && let Ok(made) = Keepers::new()
        {
            variables.push(("FASTMAP_KEEPERS", made.path()));
            keepers = Some(made);
        }
    }
    if kind == Kind::Go && engine.is_some() {
        eprintln!("{}", program::OF_GO.replace("PROGRAM", &printable(program.display())));
    }
    let warm = args.warm.then(|| warm::command(&program, &args.program[1..]));
    let before = || {
        if let Some(Made { path, .. }) = &made {
            write_unfinished(path, &program);
        }
    };
    let mut child = match parent::start(&program, &args.program, variables, logs, keepers, before) {
        Ok(child) => child,
        Err(error) => {
            if let Some(Made { path, fresh: true }) = &made {
                let _ = fs::remove_file(path);
            }
            return Err(program::not_run(&program, &error));
        }
    };
    let mut companion = None;
    if companion::is_allowed() {
        let warm = warm.and_then(|command| Warmth::begin(command, child.pid, logs));
        companion = Some(Companion::new(child.pid, overrides, warm, logs));
    } else {
        voice::say(
            "the program is not steered: a system call filter (seccomp) of fastmap's own forbids that; allow madvise and what else @system-service has",
        );
    }
    // A fault in here, which the panic hook reports, must not end the program.
    let end = child.wait(|| {
        let look = || companion.as_mut().map(Companion::look);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).ok().flatten().unwrap_or_else(|| {
            std::mem::forget(companion.take());
            Duration::from_secs(3600)
        })
    });
    let ends = std::panic::AssertUnwindSafe(|| companion.and_then(Companion::end));
    let done = std::panic::catch_unwind(ends).ok().flatten();
    if let Some(Made { path, .. }) = made.filter(|_| engine.is_none()) {
        write_stats(&path, child.pid, done.as_deref().unwrap_or_default());
    }
    child.end_likewise(end)
}

/// Environment variables with their values.
type Variables = Vec<(&'static str, OsString)>;

/// Checks the engine's settings. Returns the environment variables that pass them to its library.
fn engine_variables(
    args: &RunArgs,
    cache: Option<Given<Capacity>>,
    heap: Option<(&'static str, OsString)>,
) -> Result<Variables, Failure> {
    let mut variables = Vec::new();
    let cache = checked_cache(cache)?.map_or_else(|| "auto".into(), |bytes| bytes.to_string().into());
    variables.push(("FASTMAP_CACHE", cache));
    for (name, flags, variable) in [("--map", &args.map, "FASTMAP_MAP"), ("--own", &args.own, "FASTMAP_OWN")] {
        if let Some(globs) = glob::checked(name, flags, variable)? {
            variables.push((variable, globs));
        }
    }
    let within = args.write_within.map(|time| Ok(format!("{}s", time.as_secs()))).or_else(|| {
        let text = env::var_os("FASTMAP_WRITE_WITHIN")?.to_string_lossy().into_owned();
        Some(fastmap::size::time(&text).map(|_| text))
    });
    if let Some(within) = within.transpose().map_err(|why| Failure::refused("FASTMAP_WRITE_WITHIN", why))? {
        variables.push(("FASTMAP_WRITE_WITHIN", within.into()));
    }
    let faults = setting(args.faults, "--faults", "FASTMAP_FAULTS")?.map(|given| given.value);
    if let Some(faults) = faults {
        variables.push(("FASTMAP_FAULTS", faults.name().into()));
    }
    if args.async_stores {
        if faults == Some(Faults::Service) {
            let what = "needs the thread that stores, and with --faults service others serve its faults";
            return Err(Failure::usage("--async-stores", what, "leave one of the two out"));
        }
        variables.push(("FASTMAP_ASYNC_STORES", "1".into()));
    }
    if args.risk_stores {
        variables.push(("FASTMAP_RISK_STORES", "1".into()));
    }
    if let Some(Given { value: direct, .. }) = setting(args.direct, "--direct", "FASTMAP_DIRECT")? {
        variables.push(("FASTMAP_DIRECT", direct.name().into()));
    }
    if let Some(Given { value: persist, .. }) = setting(args.persist, "--persist", "FASTMAP_PERSIST")? {
        variables.push(("FASTMAP_PERSIST", persist.name().into()));
    }
    if let Some((source, heap)) = heap {
        variables.push(("FASTMAP_HEAP", heap::checked(source, &heap)?));
    }
    Ok(variables)
}

/// Fails if FASTMAP_LOG has a word that nobody reads. Returns whether it asks for what steering does.
fn check_log(words: &str) -> Result<bool, Failure> {
    let unknown = words.split(',').find(|word| !["", "steer", "mappings"].contains(word));
    match unknown {
        None => Ok(words.split(',').any(|word| word == "steer")),
        Some(word) => {
            let what = format!("\"{word}\" is not a subject of messages");
            Err(Failure::usage("FASTMAP_LOG", what, "give steer, mappings, or steer,mappings"))
        }
    }
}

/// Fails if a flag of the engine is given. Returns no variables.
fn check_without_engine(args: &RunArgs) -> Result<Option<Variables>, Failure> {
    let flags = [
        ("--map", !args.map.is_empty()),
        ("--own", !args.own.is_empty()),
        ("--write-within", args.write_within.is_some()),
        ("--faults", args.faults.is_some()),
        ("--async-stores", args.async_stores),
        ("--risk-stores", args.risk_stores),
        ("--direct", args.direct.is_some()),
        ("--persist", args.persist.is_some()),
    ];
    match flags.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(None),
        Some((flag, _)) => {
            let remedy = "add --cache SIZE, or --cache auto for the memory that is left; or leave it out";
            Err(Failure::usage(flag, "needs --cache: without a cache the kernel serves all mappings", remedy))
        }
    }
}

/// A setting, and its source: the flag or variable that errors name.
struct Given<T> {
    source: &'static str,
    value: T,
}

/// The value of a flag, or else of the environment variable with the same meaning.
fn setting<T: FromStr<Err = String> + Copy>(
    flag: Option<T>,
    name: &'static str,
    variable: &'static str,
) -> Result<Option<Given<T>>, Failure> {
    if let Some(value) = flag {
        return Ok(Some(Given { source: name, value }));
    }
    let Some(text) = env::var_os(variable) else { return Ok(None) };
    let value = text.to_string_lossy().parse::<T>().map_err(|reason| Failure::refused(variable, reason))?;
    Ok(Some(Given { source: variable, value }))
}

fn text(flag: Option<&OsStr>, name: &'static str, variable: &'static str) -> Option<(&'static str, OsString)> {
    flag.map(|value| (name, value.to_owned())).or_else(|| Some((variable, env::var_os(variable)?)))
}

/// The cache's capacity, in bytes. `None`: `auto`, or no setting.
fn checked_cache(given: Option<Given<Capacity>>) -> Result<Option<u64>, Failure> {
    let Some(Given { source, value: Capacity::Given(value) }) = given else { return Ok(None) };
    let minimum = Size(Cache::MIN_CAPACITY as u64);
    if value < minimum {
        return Err(Failure::usage(source, format!("{value} is too small"), format!("give at least {minimum}")));
    }
    let limit = Size(Cache::memory_limit() as u64);
    if value > limit {
        // SAFETY: sysconf has no preconditions.
        let physical = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) * libc::sysconf(libc::_SC_PAGESIZE) };
        let whose = if limit.0 < physical as u64 { "its memory cgroup allows" } else { "this machine has" };
        let remedy = "give less, or auto: the memory that other programs leave free";
        return Err(Failure::usage(
            source,
            format!("a cache of {value} is larger than the {limit} that {whose}"),
            remedy,
        ));
    }
    Ok(Some(value.0))
}

/// The file for the counters.
struct Made {
    path: PathBuf,
    /// This command has made the file. It is removed if the program cannot be executed.
    fresh: bool,
}

fn checked_stats(source: &str, path: &OsStr) -> Result<Made, Failure> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let fresh = !path.exists();
    match File::options().write(true).create(true).truncate(false).open(&path) {
        Ok(_) => Ok(Made { path, fresh }),
        Err(error) => {
            let what = format!("{}: cannot be written: {error}", path.display());
            Err(Failure::new(source, what, "name a file in a directory that you may write to"))
        }
    }
}

/// Writes a valid JSON document that says that the counters are not complete. It is replaced when the program has ended: by the preload library, if
/// the program ends through the C library, or by this process, if there is no engine. Otherwise the document stays.
fn write_unfinished(path: &Path, program: &Path) {
    let text = format!(
        "{{\"pid\":{},\"complete\":false,\"why\":\"the program has not ended yet, or not by exit(3), _exit(2) or a return from main: it was killed, \
         or made the system call itself, as Go programs do; nothing was counted\",\"program\":{},\"caches\":[],\"maps\":[]}}\n",
        std::process::id(),
        serde_json::Value::from(program.to_string_lossy())
    );
    // The file could be opened for writing a moment ago. If that has changed, the library reports it.
    let _ = fs::write(path, text);
}

/// Writes the statistics of a program without the engine, in the engine's format: what steering has done for it.
fn write_stats(path: &Path, pid: u32, done: &str) {
    let done = serde_json::Value::from(done);
    let text = format!("{{\"pid\":{pid},\"complete\":true,\"steered\":{done},\"caches\":[],\"maps\":[]}}\n");
    if let Err(error) = fs::write(path, text) {
        voice::say(&format!("--stats: {}: cannot be written: {error}", path.display()));
    }
}

/// The library to load: the one that `FASTMAP_PRELOAD` names, or else the engine's, beside this command or in ../lib/fastmap.
fn library(name: &str) -> Result<PathBuf, Failure> {
    let places: Vec<PathBuf> = match env::var_os("FASTMAP_PRELOAD") {
        Some(named) => vec![named.into()],
        None => {
            let own = env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
            let folder = own.parent().unwrap_or(Path::new("/"));
            vec![folder.join(name), folder.join("../lib/fastmap").join(name)]
        }
    };
    let Some(found) = places.iter().find_map(|place| fs::canonicalize(place).ok().filter(|path| path.is_file())) else {
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(Failure::new(
            name,
            format!("not found: looked for {}", places.join(" and ")),
            "build it (make build), install it (make install), or say where it is in FASTMAP_PRELOAD",
        ));
    };
    // LD_PRELOAD is a list that spaces and colons separate. ld.so(8)
    if found.as_os_str().as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        let what = format!("{}: LD_PRELOAD takes no path with a space or a colon", found.display());
        return Err(Failure::new(name, what, "move it, or name a link to it in FASTMAP_PRELOAD"));
    }
    Ok(found)
}

/// The value of `LD_PRELOAD`: the library, then the entries of `before`. FastMap's libraries in `before` are left out: an outer `fastmap run`
/// may have put them there.
fn preload(library: Option<&Path>, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let others = before.as_bytes().split(|byte| byte.is_ascii_whitespace() || *byte == b':');
    let is_ours = |other: &[u8]| {
        let name = Path::new(OsStr::from_bytes(other)).file_name();
        library.is_some_and(|library| library.as_os_str().as_bytes() == other)
            || [ENGINE, ENGINE_AND_HEAP].iter().any(|ours| name == Some(OsStr::new(ours)))
    };
    let others = others.filter(|other| !other.is_empty() && !is_ours(other)).map(OsStr::from_bytes);
    let all: Vec<_> = library.map(Path::as_os_str).into_iter().chain(others).collect();
    all.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let ours = "/lib/libfastmap_preload.so";
        for (before, after) in [
            (None, ""),
            (Some(""), ""),
            (Some("/a.so:/b.so c.so"), ":/a.so:/b.so:c.so"),
            (Some("/a.so:/lib/libfastmap_preload.so"), ":/a.so"),
            (Some("/lib/libfastmap_preload_heap.so:/a.so"), ":/a.so"),
        ] {
            let list = preload(Some(Path::new(ours)), before.map(OsString::from));
            assert_eq!(list, *format!("{ours}{after}"), "{before:?}");
        }
    }
}
