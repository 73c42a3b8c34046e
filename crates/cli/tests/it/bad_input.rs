//! Bad input: each is one line that names the thing and the remedy, with the exit status of its kind: 1 a failure, 2 wrong usage, and of `run`
//! 126 and 127.

use crate::FASTMAP;
use crate::prompt::{dir, files_in, run_in};
use std::fs;
use std::process::Command;

/// An environment variable or none, a command line, the status, and a part of what is said.
const CASES: [(&str, &str, i32, &str); 105] = [
    ("", "frobnicate", 2, "'frobnicate': see `fastmap --help`"),
    ("", "help frobnicate", 2, "'frobnicate'"),
    ("", "run", 2, "<PROGRAM>...: see `fastmap run --help`"),
    ("", "run --cache 1GX -- true", 2, "--cache: \"1GX\" is not a size: give bytes, or a number with K, M, G or T"),
    ("", "run --cache -- true", 2, "a value is required for '--cache <SIZE|auto>'"),
    ("", "run --cahce 1G -- true", 2, "did you mean --cache?: see `fastmap run --help`"),
    ("", "--cache 1G -- true", 2, "it is a flag of `fastmap run`: see `fastmap run --help`"),
    ("", "--metrics 1", 2, "it is a flag of `fastmap top`: see `fastmap top --help`"),
    ("", "-x", 2, "'-x' found: see `fastmap --help`"),
    ("", "--jsn", 2, "'--jsn' found: see `fastmap --help`"),
    ("", "run --cache 150% -- true", 2, "--cache: \"150%\" is not a share of memory: give 1% to 100%; or auto"),
    ("", "run --cache 0% -- true", 2, "--cache: \"0%\" is not a share of memory"),
    ("", "run --cache 1K -- true", 2, "--cache: 1KiB is too small: give at least 64KiB"),
    (
        "",
        "run --cache 99999999999999999999 -- true",
        2,
        "--cache: \"99999999999999999999\" is too large: give at most 8388607TiB; or auto",
    ),
    ("", "run --cache 4096TiB -- true", 2, "--cache: a cache of 4096TiB is larger than the"),
    ("", "run --cache 1,5G -- true", 2, "--cache: \"1,5G\" is not a size"),
    ("", "run --cache= -- true", 2, "--cache: \"\" is not a size"),
    ("", "run --cache Auto -- true", 2, "--cache: \"Auto\" is not a size"),
    ("", "run --heap h:abc -- true", 2, "--heap: \"abc\" is not a size"),
    ("", "run --heap h: -- true", 2, "--heap: \"\" is not a size"),
    ("", "run --heap :1G -- true", 2, "--heap: names no file: give FILE or FILE:SIZE"),
    ("", "run --heap folder -- true", 1, "/folder: is a directory: name a file in it"),
    ("", "run --heap no/such/h -- true", 1, "there is no directory"),
    ("", "run --heap h:4096TiB -- true", 1, "does not fit into the"),
    ("", "run --heap h:0 -- true", 2, "--heap: a heap of 0 bytes holds nothing"),
    ("", "run --heap full -- true", 1, "exists and holds 5 bytes, which a heap would overwrite"),
    (
        "",
        "run --faults sginal --cache 1M -- true",
        2,
        "--faults: \"sginal\" is not one of its values: give signal or service; did you mean signal?",
    ),
    ("", "run --faults signal -- true", 2, "--faults: needs --cache"),
    (
        "",
        "run --direct maybe --cache 1M -- true",
        2,
        "--direct: \"maybe\" is not one of its values: give auto or always or never",
    ),
    (
        "",
        "run --persist lines --cache 1M -- true",
        2,
        "--persist: \"lines\" is not one of its values: give auto or cache-lines",
    ),
    ("", "run --map /a:b --cache 1M -- true", 2, "--map: \"/a:b\" has a colon"),
    ("", "run --map [ --cache 1M -- true", 2, "--map: \"[\" is not a glob"),
    ("", "run --map= --cache 1M -- true", 2, "--map: an empty glob"),
    ("", "run --async-stores -- true", 2, "--async-stores: needs --cache"),
    ("", "run --risk-stores -- true", 2, "--risk-stores: needs --cache"),
    ("", "run --async-stores --faults service --cache 1M -- true", 2, "leave one of the two out"),
    ("", "run --warm --cache 1M -- true", 2, "--warm: needs pages that the kernel keeps"),
    ("", "run --stats no/such/file -- true", 1, "--stats: "),
    ("", "run --stats folder -- true", 1, "/folder: cannot be written"),
    ("", "run --tier x -- true", 2, "--tier: there is no object"),
    ("", "run --tier-limit 1G -- true", 2, "--tier-limit: there is no object"),
    ("", "run --deadline 5 -- true", 2, "--deadline: there is no object"),
    ("", "run --object nothing -- true", 2, "--object: nothing: names no path: give URL=PATH"),
    ("", "run --object s4://a/b=at -- true", 2, "--object: s4://a/b: "),
    ("", "run --object file:///full=folder -- true", 2, "the path is a directory's"),
    ("", "run --object file:///full=at --tier-limit 1M -- true", 2, "--tier-limit: "),
    ("", "run --object file:///full=at --tier-limit lots -- true", 2, "--tier-limit: \"lots\" is not a size"),
    (
        "",
        "run --object file:///full=at --tier /fastmap-no-such -- true",
        1,
        "none is made at /: make it (mkdir), or name another",
    ),
    ("", "run --object file:///full=at --tier no/such -- true", 1, "to make it in: make it (mkdir), or name another"),
    ("", "run --object file:///full=at --deadline soon -- true", 2, "--deadline: \"soon\" is not a deadline"),
    ("", "run --object file:///full=at --deadline 0 -- true", 2, "--deadline: \"0\" is not a deadline"),
    ("", "run -- no-such-program", 127, "no-such-program: not found: in no directory of PATH"),
    ("", "run -- ./no-such-program", 127, "./no-such-program: not found"),
    ("", "run -- ./full", 126, "./full: cannot be executed: Permission denied"),
    ("", "run -- ./folder", 126, "./folder: cannot be executed"),
    ("", "run --", 2, "<PROGRAM>...: see `fastmap run --help`"),
    ("", "attach", 2, "see `fastmap attach --help`"),
    ("", "attach abc", 2, "PID: \"abc\" is not a process id: give one as ps(1) shows it"),
    ("", "attach -1", 2, "'-1' found"),
    ("", "attach 4194305", 1, "4194305: no such process"),
    ("", "attach --group no/such", 1, "no such cgroup"),
    ("", "attach --for soon 1", 2, "--for: \"soon\" is not a time: give 60s, 10m or 2h"),
    ("", "attach --for 0s 1", 2, "--for: \"0s\" is not a time"),
    ("", "attach 1 --cache 1G", 2, "see `fastmap attach --help`"),
    ("", "warm lode full", 2, "did you mean load?: see `fastmap warm --help`"),
    ("", "warm save", 2, "<FILE>...: see `fastmap warm save --help`"),
    ("", "warm save no/such", 1, "no/such: No such file or directory"),
    ("", "warm save folder", 1, "folder: is not a regular file: name a file"),
    ("", "warm load full", 1, "full: nothing is remembered of it: save it"),
    ("", "top --interval 0", 2, "--interval: \"0\" is not an interval: give 0.1 to 3600 seconds"),
    ("", "top --interval fast", 2, "--interval: \"fast\" is not an interval"),
    ("", "top --interval -1", 2, "'-1'"),
    ("", "top --json", 2, "--json: prints one look only: give --once, too"),
    ("", "top 99999999999", 2, "\"99999999999\" is not a process id"),
    ("", "top no/such", 1, "no/such: No such file or directory"),
    ("", "top 4194305", 1, "process 4194305: is not running"),
    ("", "top --metrics example", 2, "--metrics: \"example\" is not an address: give IP:PORT"),
    ("", "top --metrics 127.0.0.1:99999", 2, "--metrics: \"127.0.0.1:99999\" is not an address"),
    ("", "top --metrics 0 --once", 2, "cannot be used with '--once': see `fastmap top --help`"),
    ("", "top --metrics 192.0.2.1:9742", 1, "give an address of this machine"),
    ("", "doctor no/such", 1, "no/such: cannot be looked at"),
    ("", "doctor --jsn", 2, "did you mean --json?: see `fastmap doctor --help`"),
    ("", "doctor a b", 2, "'b' found: see `fastmap doctor --help`"),
    ("", "cache rm", 2, "see `fastmap cache rm --help`"),
    ("", "cache rm --all s3://a/b", 2, "cannot be used with '[URL]'"),
    ("", "cache lss", 2, "did you mean ls?: see `fastmap cache --help`"),
    ("", "cache ls --tier no/such", 1, "no/such: there is no such folder"),
    ("", "cache ls --tier full", 1, "full: "),
    ("", "cache rm s3://no/such", 1, "s3://no/such: no local copy in"),
    ("", "cache verify --tier /fastmap-no-such", 1, "none is made at /"),
    ("FASTMAP_CACHE=lots", "run -- true", 2, "FASTMAP_CACHE: \"lots\" is not a size"),
    ("FASTMAP_CACHE=1K", "run -- true", 2, "FASTMAP_CACHE: 1KiB is too small"),
    ("FASTMAP_CACHE=101%", "run -- true", 2, "FASTMAP_CACHE: \"101%\" is not a share of memory"),
    ("FASTMAP_HEAP=h:abc", "run -- true", 2, "FASTMAP_HEAP: \"abc\" is not a size"),
    ("FASTMAP_WRITE_WITHIN=soon", "run --cache 1M -- true", 2, "FASTMAP_WRITE_WITHIN: \"soon\" is not a time"),
    ("FASTMAP_FAULTS=no", "run --cache 1M -- true", 2, "FASTMAP_FAULTS: \"no\" is not one of its values"),
    ("FASTMAP_DIRECT=no", "run --cache 1M -- true", 2, "FASTMAP_DIRECT: \"no\" is not one of its values"),
    ("FASTMAP_PERSIST=no", "run --cache 1M -- true", 2, "FASTMAP_PERSIST: \"no\" is not one of its values"),
    (
        "FASTMAP_LOG=stear",
        "run -- true",
        2,
        "FASTMAP_LOG: \"stear\" is not a subject of messages: give steer, mappings, or steer,mappings",
    ),
    ("FASTMAP_LOG=steer,all", "run -- true", 2, "FASTMAP_LOG: \"all\" is not a subject"),
    (
        "FASTMAP_PRELOAD=nowhere.so",
        "run --cache 1M -- true",
        1,
        "libfastmap_preload.so: not found: looked for nowhere.so",
    ),
    ("FASTMAP_STATS=no/such", "run -- true", 1, "FASTMAP_STATS: "),
    ("FASTMAP_TIER_LIMIT=lots", "cache ls", 2, "FASTMAP_TIER_LIMIT: \"lots\" is not a size"),
    ("FASTMAP_TIER_LIMIT=1M", "cache ls", 2, "FASTMAP_TIER_LIMIT: "),
    ("FASTMAP_TIER=no/such", "cache ls", 1, "no/such: there is no such folder"),
];

#[test]
fn each_has_its_line_and_its_status() {
    let dir = dir();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("full"), "bytes").unwrap();
    // Where tests run as root, the folder may be in another user's, where root has no records.
    let cache = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (variable, line, status, part) in CASES {
        let mut command = Command::new(FASTMAP);
        for name in ["CACHE", "HEAP", "LOG", "STATS", "TIER", "TIER_LIMIT", "PRELOAD"] {
            command.env_remove(format!("FASTMAP_{name}"));
        }
        command.args(line.split_whitespace()).env("HOME", dir.path()).env("XDG_CACHE_HOME", cache.path());
        command.envs(variable.split_once('='));
        let ran = run_in(dir.path(), &mut command);
        let is_line = ran.stderr.starts_with("fastmap: ") && ran.stderr.lines().count() == 1;
        if !is_line || !ran.stderr.contains(part) || ran.status != Some(status) {
            wrong.push(format!("{variable} fastmap {line}: {:?}: {}{}", ran.status, ran.stdout, ran.stderr));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let left = files_in(dir.path());
    assert!(left.iter().all(|name| ["folder", "full"].contains(&name.as_str())), "left behind: {left:?}");
}
