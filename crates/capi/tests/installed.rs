//! What `make install` gives, and C and C++ programs that are built and run with that alone.

#[path = "../../engine/tests/suite/effort.rs"]
mod effort;
mod server;

use effort::skip;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What programs that are linked with the library ask for.
const SONAME: &str = concat!("libfastmap.so.", env!("CARGO_PKG_VERSION_MAJOR"));
/// The library that fetches objects, in the folder of the other one.
const OBJECT: &str = concat!("fastmap/libfastmap_object.so.", env!("CARGO_PKG_VERSION_MAJOR"));

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder on the build directory's disk, where direct I/O works.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: install it to run these tests"))
}

/// What a command prints; it succeeds.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = output(command);
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}

/// make(1) for the profile that this test was built with.
fn make() -> Command {
    let built = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let profile = if built.ends_with("debug") { "dev" } else { "release" };
    let mut make = Command::new("make");
    make.arg("-s").current_dir(root()).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg(format!("PROFILE={profile}")).arg(format!("CARGO={}", env!("CARGO")));
    make.arg(format!("CARGO_TARGET_DIR={}", built.parent().unwrap().display()));
    make
}

/// A `PREFIX` that the library is installed to; it goes with the process's files in the build directory.
static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    run(make().arg("build"));
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = fs::remove_dir_all(&prefix);
    run(make().args(["install", "STATIC=1"]).arg(format!("PREFIX={}", prefix.display())));
    prefix
});

fn pkg_config(argument: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", PREFIX.join("lib/pkgconfig")).args([argument, "fastmap"]);
    run(&mut command).split_whitespace().map(String::from).collect()
}

/// What pkg-config says, here without it: see [`pkg_config_says_how_to_build`].
fn flags(argument: &str) -> Vec<String> {
    let folder = |option: &str, name: &str| format!("{option}{}", PREFIX.join(name).display());
    match argument {
        "--cflags" => vec![folder("-I", "include")],
        _ => vec![folder("-L", "lib"), "-lfastmap".into()],
    }
}

/// Whether a tool is there that `make test` can do without; otherwise says that tests are skipped.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skip(format!("no {tool}"));
    }
    found
}

fn compile(compiler: &str, standard: &str, source: &Path, to: &Path, libraries: &[String]) {
    let mut command = Command::new(compiler);
    command.arg(standard).args(STRICT).arg(source).arg("-o").arg(to).args(flags("--cflags")).args(libraries);
    run(&mut command);
}

/// A program of this crate, built as a user would.
fn program(compiler: &str, standard: &str, source: &str, folder: &TempDir) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let to = folder.path().join(source.file_stem().unwrap());
    compile(compiler, standard, &source, &to, &[flags("--libs"), vec!["-lpthread".into()]].concat());
    timed(&to)
}

/// A program that is ended if it hangs.
fn timed(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).env("LD_LIBRARY_PATH", PREFIX.join("lib"));
    command
}

/// Whether files can be cached here; otherwise says what is missing.
fn ready(folder: &TempDir) -> bool {
    let file = fs::File::create(folder.path().join("probe")).unwrap();
    let lacking = fastmap::requirements::of_machine()
        .into_iter()
        .chain(fastmap::requirements::of_file(&file))
        .find(|one| !one.optional && one.found.is_err());
    if let Some(lacking) = &lacking {
        skip(format!("{} is missing: {:?}", lacking.name, lacking.found));
    }
    lacking.is_none()
}

fn files_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut coming = vec![folder.to_owned()];
    while let Some(path) = coming.pop() {
        for entry in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap()) {
            if entry.file_type().unwrap().is_dir() {
                coming.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found
}

#[test]
fn this_is_installed_and_nothing_else() {
    let version = env!("CARGO_PKG_VERSION");
    let library = format!("lib/libfastmap.so.{version}");
    let soname = format!("lib/{SONAME}");
    let object = format!("lib/{OBJECT}");
    let expected = [
        "bin/fastmap",
        "include/fastmap.h",
        "lib/libfastmap.a",
        "lib/libfastmap.so",
        &soname,
        &library,
        &object,
        "lib/fastmap/libfastmap_preload.so",
        "lib/fastmap/libfastmap_preload_heap.so",
        "lib/pkgconfig/fastmap.pc",
        "share/bash-completion/completions/fastmap",
        "share/fish/vendor_completions.d/fastmap.fish",
        "share/man/man1/fastmap.1",
        "share/man/man1/fastmap-attach.1",
        "share/man/man1/fastmap-cache.1",
        "share/man/man1/fastmap-cache-ls.1",
        "share/man/man1/fastmap-cache-rm.1",
        "share/man/man1/fastmap-cache-verify.1",
        "share/man/man1/fastmap-doctor.1",
        "share/man/man1/fastmap-run.1",
        "share/man/man1/fastmap-top.1",
        "share/man/man1/fastmap-warm.1",
        "share/man/man1/fastmap-warm-load.1",
        "share/man/man1/fastmap-warm-save.1",
        "share/man/man1/fastmap-warm-show.1",
        "share/zsh/site-functions/_fastmap",
    ];
    let small = fs::metadata(PREFIX.join("bin/fastmap")).unwrap().len();
    assert!(small < 30 << 20, "stripped, and without what fastmap-bench alone needs: {small} bytes");
    let installed = files_below(&PREFIX);
    assert_eq!(installed, expected.map(String::from).into());
    assert_eq!(fs::read_link(PREFIX.join(&soname)).unwrap(), Path::new(&library[4..]));
    assert_eq!(run(Command::new(PREFIX.join("bin/fastmap")).arg("--version")).trim(), format!("fastmap {version}"));
    // To be packed: below DESTDIR, saying where it will be.
    let packed = folder();
    let destination = format!("DESTDIR={}", packed.path().display());
    run(make().args(["install", "PREFIX=/opt/fastmap", &destination]));
    let mut without = files_below(&PREFIX);
    assert!(without.remove("lib/libfastmap.a"));
    assert_eq!(files_below(&packed.path().join("opt/fastmap")), without);
    // The bench comes with BENCH=1.
    run(make().args(["install", "BENCH=1", "PREFIX=/opt/measured", &destination]));
    let measured = files_below(&packed.path().join("opt/measured"));
    for name in ["bin/fastmap-bench", "share/man/man1/fastmap-bench-micro.1", "share/man/man1/fastmap-report.1"] {
        assert!(measured.contains(name), "{name}");
    }
    assert!(measured.is_superset(&without));
    let text = fs::read_to_string(packed.path().join("opt/fastmap/lib/pkgconfig/fastmap.pc")).unwrap();
    assert!(text.starts_with("prefix=/opt/fastmap\n") && text.contains(&format!("Version: {version}\n")), "{text}");
    assert!(!text.contains('@'), "{text}");
    // What was never built is not installed, in part or at all.
    let empty = folder();
    let built = format!("CARGO_TARGET_DIR={}", empty.path().display());
    for (profile, wanted) in [("PROFILE=release", "run 'make' first"), ("PROFILE=dev", "run 'make PROFILE=dev' first")]
    {
        let prefix = format!("PREFIX={}/to", empty.path().display());
        let refused = output(make().args(["install", profile, &built, &prefix]));
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(wanted));
    }
    assert!(files_below(empty.path()).is_empty());
}

#[test]
fn what_was_installed_is_uninstalled_and_nothing_else() {
    LazyLock::force(&PREFIX);
    let folder = folder();
    let destination = format!("DESTDIR={}", folder.path().display());
    // Of others, in the same places and with names that are nearly ours.
    let others = ["bin/fast", "lib/libfastmap.so.99", "lib/pkgconfig/fast.pc", "share/man/man1/fastmapper.1"];
    let at = |name: &str| folder.path().join("usr/local").join(name);
    for name in others {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), name).unwrap();
    }
    run(make().args(["install", "BENCH=1", &destination]));
    assert!(files_below(folder.path()).len() > 20);
    run(make().args(["uninstall", &destination]));
    assert_eq!(files_below(&folder.path().join("usr/local")), others.map(String::from).into());
    others.iter().for_each(|name| assert_eq!(fs::read_to_string(at(name)).unwrap(), *name));
    // There is nothing left to take away.
    run(make().args(["uninstall", &destination]));
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let library = PREFIX.join("lib/libfastmap.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let header = fs::read_to_string(PREFIX.join("include/fastmap.h")).unwrap();
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let declared: BTreeSet<&str> = code
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("fm_"))
        .collect();
    assert_eq!(exported, declared);
    assert!(declared.len() > 20, "{declared:?}");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains(&format!("Library soname: [{SONAME}]")) && dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn pkg_config_says_how_to_build() {
    if has("pkg-config") {
        ["--cflags", "--libs"].into_iter().for_each(|argument| assert_eq!(pkg_config(argument), flags(argument)));
    }
}

#[test]
fn the_header_is_clean_in_c_and_cpp() {
    let folder = folder();
    for (compiler, standard, name) in [("cc", "-std=c11", "alone.c"), ("c++", "-std=c++11", "alone.cpp")] {
        if compiler == "c++" && !has(compiler) {
            continue;
        }
        let source = folder.path().join(name);
        fs::write(&source, "#include <fastmap.h>\nint main(void) { return fm_is_cached(\"\", 1); }\n").unwrap();
        let to = source.with_extension("");
        compile(compiler, standard, &source, &to, &flags("--libs"));
        run(&mut timed(&to));
    }
}

#[test]
fn errors_are_those_of_the_kernels_calls() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    let mut conformance = program("cc", "-std=c11", "tests/c/conformance.c", &folder);
    let printed = run(conformance.arg(&files));
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
    let checks: usize = printed.split(' ').next().unwrap().parse().unwrap();
    assert!(checks > 200, "{printed}");
    printed.lines().filter_map(|line| line.strip_prefix("skipped: ")).for_each(skip);
    // With all that can be in the engine.
    let cached = run(timed(&folder.path().join("conformance")).arg(&files).arg("engine"));
    assert!(cached.ends_with(" 0 failed\n"), "{cached}");
    // The same with the library linked in.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/conformance.c");
    let to = folder.path().join("static");
    let libraries = [&PREFIX.join("lib/libfastmap.a").display().to_string(), "-lgcc_s", "-lpthread", "-ldl", "-lm"];
    compile("cc", "-std=c11", &source, &to, &libraries.map(String::from));
    assert!(!run(Command::new("ldd").arg(&to)).contains("libfastmap"));
    assert_eq!(run(timed(&to).arg(&files)), printed);
}

#[test]
fn every_call_works_whoever_serves_a_map() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    program("cc", "-std=c11", "tests/c/whoever.c", &folder);
    for way in ["kernel", "engine"] {
        let printed = run(timed(&folder.path().join("whoever")).arg(folder.path()).arg(way));
        assert!(printed.ends_with(" 0 failed\n"), "{way}: {printed}");
    }
}

/// A cache was given by name, and the kernel has the file: said once, with the reason.
#[test]
fn a_file_that_is_not_in_the_cache_that_was_named_is_said() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    program("cc", "-std=c11", "tests/c/unserved.c", &folder);
    let file = folder.path().join("data");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    for (way, reason) in
        [("private", Some("MAP_PRIVATE")), ("protected", Some("mprotect")), ("cached", None), ("plain", None)]
    {
        let Output { status, stderr, .. } = output(timed(&folder.path().join("unserved")).arg(&file).arg(way));
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{way}: {status}: {said}");
        let is_it = |reason: &str| said.contains("/data is the kernel's, outside the cache: ") && said.contains(reason);
        assert!(reason.is_none_or(is_it) && said.lines().count() == usize::from(reason.is_some()), "{way}: {said}");
    }
}

/// Each engine has a keeper, which waits until nobody else has the program's memory: the other's keeper has it, too.
#[test]
fn two_engines_in_one_program_save_what_was_stored_and_end() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    let made = program("cc", "-std=c11", "tests/c/two_engines.c", &folder);
    for end in ["abort", "exec"] {
        let files = ["own", "other"].map(|name| folder.path().join(format!("{name}-{end}")));
        files.iter().for_each(|file| fs::write(file, vec![1; 8 << 20]).unwrap());
        let mut command = Command::new(PREFIX.join("bin/fastmap"));
        command
            .args(["run", "--risk-stores", "--cache", "1MiB", "--"])
            .arg(folder.path().join("two_engines"))
            .args(&files)
            .arg(end);
        command.envs(made.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let is_saved = || files.iter().all(|file| fs::read(file).unwrap().iter().step_by(4096).all(|byte| *byte == 9));
        let keepers = || {
            let open = |process: &Path| fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
            let is_keeper = |process: &PathBuf| {
                fs::read_to_string(process.join("comm")).is_ok_and(|name| name == "fastmap-keeper\n")
                    && open(process).any(|one| fs::read_link(one.path()).is_ok_and(|to| files.contains(&to)))
            };
            processes.filter(is_keeper).count()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !(is_saved() && keepers() == 0) {
            // While another test starts a program, that has the files open to write: the cache does without them.
            if child.try_wait().unwrap().is_some_and(|status| status.code() == Some(1)) {
                child = command.spawn().unwrap();
            }
            assert!(Instant::now() < deadline, "{end}: saved: {}, keepers: {}", is_saved(), keepers());
            std::thread::sleep(Duration::from_millis(10));
        }
        if end == "exec" {
            assert!(child.try_wait().unwrap().is_none(), "the program that was executed still runs");
            child.kill().unwrap();
        }
        child.wait().unwrap();
    }
}

#[test]
fn objects_are_mapped_as_files_are() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    let files = folder.path().join("files");
    fs::create_dir(&files).unwrap();
    let url = server::serve(&files);
    let printed = run(program("cc", "-std=c11", "tests/c/objects.c", &folder).arg(&files).arg(url));
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
    let checks: usize = printed.split(' ').next().unwrap().parse().unwrap();
    assert!(checks > 60, "{printed}");
}

/// TLS and HTTP are in a library of their own, which is opened with the first URL.
#[test]
fn programs_that_map_files_alone_load_no_store() {
    let library = |name: &str| fs::read(PREFIX.join("lib").join(name)).unwrap();
    let has_tls = |library: Vec<u8>| library.windows(6).any(|bytes| bytes == b"rustls");
    assert!(!has_tls(library("libfastmap.so")) && has_tls(library(OBJECT)));
    let folder = folder();
    fs::write(folder.path().join("table"), [7; 4096]).unwrap();
    program("cc", "-std=c11", "examples/rows.c", &folder);
    let without = folder.path().join("lib");
    fs::create_dir(&without).unwrap();
    fs::copy(PREFIX.join("lib/libfastmap.so"), without.join(SONAME)).unwrap();
    let mut rows = timed(&folder.path().join("rows"));
    rows.env("LD_LIBRARY_PATH", &without).arg(format!("file://{}/table", folder.path().display())).args(["100", "1"]);
    let said = String::from_utf8(output(&mut rows).stderr).unwrap();
    let place =
        format!("install it in {}, as {OBJECT}, or where ld.so(8) looks", without.canonicalize().unwrap().display());
    for part in ["URLs need libfastmap_object.so", "cannot open shared object file", &place] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn rows_of_a_table_in_a_store_are_copied() {
    let folder = folder();
    if !ready(&folder) {
        return;
    }
    let table: Vec<u8> = (0..2 << 20_u32).map(|at| (at / 100 * 7 + at % 100) as u8).collect();
    fs::write(folder.path().join("table"), &table).unwrap();
    let url = server::serve(folder.path());
    program("cc", "-std=c11", "examples/rows.c", &folder);
    let rows = |arguments: &[&str]| {
        let mut rows = timed(&folder.path().join("rows"));
        output(rows.arg(format!("{url}/table")).args(arguments).env("FASTMAP_TIER", folder.path().join("tier")))
    };
    let numbers = ["20000", "3", "3", "7"];
    let expected: Vec<u8> =
        numbers.iter().flat_map(|number| table[number.parse::<usize>().unwrap() * 100..][..100].to_vec()).collect();
    for fetched in [true, false] {
        let copied = rows(&[&["100"], &numbers[..]].concat());
        let said = String::from_utf8_lossy(&copied.stderr).into_owned();
        assert!(copied.status.success() && copied.stdout == expected, "{said}");
        assert_eq!(!said.starts_with("0 bytes fetched"), fetched, "{said}");
    }
    let refused = rows(&["100", "1000000"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the table has 20971 rows"), "{refused:?}");
}

/// The words of a text as `tally` has them: runs of ASCII letters and digits, 23 of them at most, in lower case.
fn words_of(text: &[u8]) -> Vec<String> {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(&word[..word.len().min(23)]).to_ascii_lowercase()).collect()
}

#[test]
fn words_are_counted_in_a_table_larger_than_its_cache() {
    let folder = folder();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    // Enough different words for every page of the table to be stored to.
    let numbers = folder.path().join("numbers");
    fs::write(&numbers, (0..50_000).map(|number| format!("n{number}\n")).collect::<String>()).unwrap();
    let (table, text) = (folder.path().join("table"), root().join("ARCHITECTURE.md"));
    program("cc", "-std=c11", "examples/tally.c", &folder);
    for run_number in 1..=2 {
        let words: Vec<_> = [&text, &numbers].iter().flat_map(|path| words_of(&fs::read(path).unwrap())).collect();
        words.iter().for_each(|word| *counts.entry(word.clone()).or_default() += 1);
        let printed = run(timed(&folder.path().join("tally")).args([&table, &text, &numbers]));
        let most = counts.values().max().unwrap();
        let expected = format!("{} words counted, {} in the table, most often", words.len(), counts.len());
        assert!(printed.starts_with(&expected) && printed.ends_with(&format!(": {most}\n")), "{run_number}: {printed}");
    }
    // The file, by read(2): entries of 24 bytes of text and a count.
    let bytes = fs::read(&table).unwrap();
    assert_eq!(bytes, fs::read(folder.path().join("table.copy")).unwrap());
    let found: BTreeMap<String, u64> = bytes
        .chunks(32)
        .map(|entry| {
            let end = entry.iter().position(|byte| *byte == 0).unwrap();
            (String::from_utf8_lossy(&entry[..end]).into_owned(), u64::from_ne_bytes(entry[24..].try_into().unwrap()))
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(found, counts);
    // What went wrong is said by the library.
    let refused = output(timed(&folder.path().join("tally")).args([OsStr::new("/dev/null"), text.as_ref()]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).starts_with("tally: /dev/null: "), "{refused:?}");
}

#[test]
fn the_standard_librarys_sort_orders_a_file() {
    if !has("c++") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("numbers");
    let mut numbers: Vec<u64> = (1..=500_000u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let bytes_of = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
    fs::write(&path, bytes_of(&numbers)).unwrap();
    let mut order = program("c++", "-std=c++11", "examples/order.cpp", &folder);
    assert_eq!(run(order.args([path.as_os_str(), OsStr::new("1000000")])), "500000 numbers, in order\n");
    numbers.sort_unstable();
    assert!(fs::read(&path).unwrap() == bytes_of(&numbers));
    let refused = output(timed(&folder.path().join("order")).args([path.as_os_str(), OsStr::new("100")]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("fm_cache_create: a cache of 100 bytes is too small"));
}
