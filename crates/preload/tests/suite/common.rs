//! What the preload library's tests share: the library, C programs, and running them with and without it.
//!
//! A program in `tests/programs` is a list of cases, each of which checks what the manual pages say: `PROGRAM CASE FILE`. It
//! must pass on the kernel as well as with the library, so the kernel says whether a case is right.

#![allow(dead_code, unused_macros)] // `preload-heap` has it too, and uses less

use crate::effort::skip;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

/// A folder on the disk of the build directory, which is no tmpfs: direct I/O works there.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build directory")
}

/// Whether cached maps work here; otherwise says why a test is skipped.
pub fn ready() -> bool {
    for requirement in fastmap::requirements::of_machine() {
        if let (false, Err(why)) = (requirement.optional, &requirement.found) {
            skip(format!("{} is missing: {why}", requirement.name));
            return false;
        }
    }
    true
}

#[path = "library.rs"]
mod library;

/// The library under test.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let package = env!("CARGO_PKG_NAME");
    LIBRARY.get_or_init(|| library::built(package, &format!("lib{}.so", package.replace('-', "_"))))
}

/// Compiles a program of `tests/programs` into a folder; with more flags of the compiler. Programs have many cases: what needs no
/// file of the test's own is compiled once, into the build directory, and linked from there.
pub fn compile(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    let program = folder.join(Path::new(name).file_stem().expect("a name"));
    if flags.iter().any(|flag| flag.contains('/')) {
        compile_to(&program, name, flags);
        return program;
    }
    let key = format!("{name}{}", flags.concat());
    let once = COMPILED.lock().expect("nobody panics with it").entry(key.clone()).or_default().clone();
    let compiled = once.get_or_init(|| {
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
        std::fs::create_dir_all(&programs).expect("a folder in the build directory");
        let (new, compiled) = (programs.join(format!("{key}.{}", std::process::id())), programs.join(key));
        compile_to(&new, name, flags);
        // Another run of these tests may be using the one before.
        std::fs::rename(&new, &compiled).expect("a file of our own");
        compiled
    });
    std::fs::hard_link(compiled, &program).expect("a link in the build directory");
    program
}

fn compile_to(program: &Path, name: &str, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let (compiler, standard) = if name.ends_with(".cc") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
    let mut compiler = Command::new(compiler);
    compiler.args([standard, "-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(program).arg(source).args(flags);
    let output = compiler.output().expect("compilers for C and C++");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A command that ends, if not by itself then after five minutes (some take one where there is much else to do); with the library, a small
/// cache and these variables, or without; what is not the library's is set in any case.
pub fn command(program: &Path, library: Option<&Path>, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300"]);
    if let Some(library) = library {
        // Through env: timeout itself does without.
        command.arg("env").arg(format!("LD_PRELOAD={}", library.display()));
        command.env("FASTMAP_CACHE", "1MiB");
        // Where a container or a group with a limit runs the tests.
        command.env("FASTMAP_RISK_STORES", "1");
        command.env("FASTMAP_OWN", "*");
    }
    let is_set = |name: &str| library.is_some() || !name.starts_with("FASTMAP_");
    command.envs(variables.iter().copied().filter(|(name, _)| is_set(name))).arg(program);
    command
}

/// What was said, but for the line that the files are the program's own.
pub fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| !line.contains("by this program alone (--own)")).map(str::to_owned).collect()
}

/// Fails unless a program ended well.
pub fn expect_success(what: &str, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}{err}", output.status);
}

/// Runs one case of a program, on the kernel's maps and on the engine's, which says so in its statistics if `served`.
pub fn case(program: &str, flags: &[&str], case: &str, served: bool) {
    case_with(program, flags, case, served, &[]);
}

/// The same, with more variables. The file is called `data`.
pub fn case_with(program: &str, flags: &[&str], case: &str, served: bool, variables: &[(&str, &str)]) {
    if !ready() {
        return;
    }
    let folder = folder();
    let exe = compile(folder.path(), program, flags);
    for library in [None, Some(library())] {
        let file = folder.path().join("data");
        let stats = folder.path().join("stats");
        let stats = ("FASTMAP_STATS", stats.to_str().expect("a plain path"));
        let mut command = command(&exe, library, &[variables, &[stats]].concat());
        command.arg(case).arg(&file);
        let how = if library.is_some() { "with the library" } else { "on the kernel" };
        let what = format!("{program} {case} {how}");
        expect_success(&what, &command.output().expect("timeout"));
        if library.is_some() {
            let written = |entry: std::io::Result<std::fs::DirEntry>| {
                let path = entry.expect("an entry").path();
                path.to_string_lossy().contains("/stats.").then(|| std::fs::read_to_string(path).expect("statistics"))
            };
            let all: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").filter_map(written).collect();
            let is_served = all.iter().any(|text| text.contains(&format!("\"path\":\"{}\"", file.display())));
            assert_eq!(is_served, served, "{what}: {all:?}");
        }
        let _ = std::fs::remove_file(file);
    }
}

/// Makes a test of each case of a program; a case after `kernel` is one that the engine does not serve.
macro_rules! cases {
    ($program:literal, $flags:expr; $($case:ident)*; kernel $($other:ident)*) => {
        $(#[test] fn $case() { $crate::common::case($program, $flags, stringify!($case), true); })*
        $(#[test] fn $other() { $crate::common::case($program, $flags, stringify!($other), false); })*
    };
}
