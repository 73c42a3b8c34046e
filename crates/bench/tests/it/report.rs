//! `fastmap report`: what is in the document and in its pictures, what is refused, and whether the repository's own results are what
//! its evidence gives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::prompt::{dir, fastmap, files_in, run_in, skipped};
use crate::{FASTMAP, check_told, memory_flag};
use serde_json::{Value, json};

/// Text that is markup to whoever forgets to escape it.
const EVIL: &str = "</svg><script>alert('1')</script> & \"Größe\"";

fn series(name: &str, points: Vec<Value>) -> Value {
    json!({"name": name, "points": points})
}

/// A figure of so many series and places.
fn figure(kind: &str, title: &str, count: usize, places: usize, log: bool) -> Value {
    let of = |n: usize| {
        let point = |at: usize| {
            let y = ((n + 1) * (at + 1)) as f64 * 10f64.powi(at as i32 % 5);
            let x = match kind {
                "lines" | "scatter" => json!((1u64 << at.min(40)) as f64),
                _ => json!(format!("a place with a long name, number {at}")),
            };
            json!({"x": x, "y": y, "range": [y * 0.9, y * 1.2]})
        };
        series(&format!("engine {n}"), (0..places).map(point).collect())
    };
    json!({
        "title": title, "caption": "How to read it.", "kind": kind, "paper": "A paper, figure 4",
        "x": {"label": "x axis", "log": log && kind == "lines"}, "y": {"label": "rate", "log": log},
        "series": (0..count).map(of).collect::<Vec<_>>(),
    })
}

/// A plot of each kind, at its easiest and at its worst.
fn figures() -> Vec<Value> {
    let zeros = series(
        "zeros",
        vec![json!({"x": "nothing", "y": 0.0}), json!({"x": "much", "y": 1e9}), json!({"x": "less", "y": -3.0})],
    );
    vec![
        figure("lines", "Lines of eight", 8, 6, true),
        figure("lines", "One point", 1, 1, false),
        figure("bars", "Bars of eight at sixteen", 8, 16, true),
        figure("stacked", "Stacked", 8, 4, false),
        figure("scatter", "Scattered", 2, 300, false),
        json!({"title": EVIL, "caption": EVIL, "kind": "bars", "x": {"label": EVIL}, "y": {"label": EVIL},
               "series": [series(EVIL, vec![json!({"x": EVIL, "y": 1.0})])]}),
        json!({"title": "Zeros", "caption": "", "kind": "bars", "x": {"label": "x"}, "y": {"label": "y", "log": true}, "series": [zeros]}),
        json!({"title": "Nothing", "caption": "", "kind": "lines", "x": {"label": "x"}, "y": {"label": "y"}, "series": []}),
    ]
}

fn headline(what: &str, low: f64, median: f64, high: f64) -> Value {
    json!({"what": what, "ratio": {"median": median, "low": low, "high": high}})
}

fn headlines() -> Vec<Value> {
    let mut of_paper = headline("random reads: FastMap to mmap", 2.2, 2.41, 2.6);
    of_paper["paper"] = json!({"ratio": 11.8, "source": "FastMap, USENIX ATC '20, figure 4", "setting": "80 threads"});
    vec![of_paper, headline("writes", 0.93, 1.08, 1.31), headline(EVIL, 0.55, 0.61, 0.66)]
}

/// Results that nobody measured.
fn results(experiment: &str, began: f64) -> Value {
    json!({
        "experiment": experiment, "about": "Measure stores that are flushed at once", "command": format!("fastmap bench {experiment} --dir '/my disk'"), "began_unix_s": began, "took_s": 125.0,
        "machine": {"cpus": 2, "model": "A processor", "kernel": "6.1", "memory_bytes": 1u64 << 33, "file_system": "ext4", "device": "/dev/vda"},
        "memory_limit": "cgroup-v2", "memory_limit_bytes": 256 << 20, "file": "temporary file in .", "file_bytes": 1 << 30,
        "verified": "Every page's stamp.", "notes": ["What was left out.", EVIL], "headlines": headlines(), "figures": figures(), "results": [1],
    })
}

/// A directory with two files of results of one experiment and one of another, of before there were gains.
fn three() -> tempfile::TempDir {
    let dir = dir();
    for (file, experiment, began) in [
        ("a.json", "scale", 1_795_311_255.0),
        ("b.json", "sync", 1_795_311_455.0),
        ("c.json", "scale", 1_795_397_655.0),
    ] {
        fs::write(dir.path().join(file), results(experiment, began).to_string()).unwrap();
    }
    dir
}

#[test]
fn a_document_has_every_headline_and_every_figure() {
    let dir = three();
    let ran = fastmap(dir.path(), "report a.json b.json c.json -o results.md");
    ran.succeeded();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let text = fs::read_to_string(dir.path().join("results.md")).unwrap();
    let start = "# FastMap measured\n\nWritten by `fastmap report` from the results of the commands below; not by hand.\n\n\
                 Of 9 comparisons FastMap is ahead in 3, level in 3 and behind in 3.";
    assert!(text.starts_with(start), "{text}");
    for part in [
        "## FastMap is ahead (3)",
        "* **2.41x (2.20x to 2.60x)** scale (2): random reads: FastMap to mmap\n",
        "sync: writes: repetitions fall on both sides of 1\n",
        "| sync: random reads: FastMap to mmap | 11.8x | 2.41x (2.20x to 2.60x) | FastMap, USENIX ATC '20, figure 4; 80 threads |",
        "\n## scale (1)\n",
        "\nMeasure stores that are flushed at once",
        "\n    fastmap bench sync --dir '/my disk'\n",
        "* When: 22 November 2026, 01:34 UTC, took 2 min 5 s\n",
        "* Machine: 2 processors (A processor), 8 GiB of memory, Linux 6.1\n",
        "* Memory: 256 MiB for each run (cgroup-v2)\n",
        "* Checked: Every page's stamp.",
        "* Note: What was left out.",
        "| x axis | engine 0 |",
        "| 2 | 20.0 (18 to 24) | 40.0 (36 to 48) |",
        "After A paper, figure 4.",
        "One row in ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("<script") && !text.contains("<svg") && !text.contains("At a glance"));
    assert_eq!(files_in(dir.path()), ["a.json", "b.json", "c.json", "results.md"], "without gains there is no picture");
}

fn gain(work: &str, way: &str, as_is: [f64; 3], best: [f64; 3]) -> Value {
    let ratio = |[low, median, high]: [f64; 3]| json!({"median": median, "low": low, "high": high});
    json!({"work": work, "way": way, "as_is": ratio(as_is), "best": ratio(best), "best_name": "MADV_RANDOM"})
}

#[test]
fn it_begins_with_a_page_for_people_and_its_pictures() {
    let dir = dir();
    let mut unsteady = gain("a walk backward", "fastmap run", [0.95, 1.5, 2.2], [0.5, 0.6, 0.7]);
    unsteady["unsteady"] = json!(true);
    let on = |storage: &str, gains: Vec<Value>| {
        let mut all = results("tour", 1_795_311_255.0);
        all["machine"]["read_ahead_kb"] = json!(128);
        (all["storage"], all["gains"]) = (json!(storage), json!(gains));
        fs::write(dir.path().join(format!("{storage}.json")), all.to_string()).unwrap();
    };
    let random = |as_is, best| gain("touches at random", "fastmap run", as_is, best);
    on("fast", vec![random([0.7, 0.8, 0.9], [0.98, 1.0, 1.02])]);
    on("slow", vec![random([5.0, 6.3, 7.1], [1.9, 2.0, 2.1])]);
    on(
        "disk",
        vec![
            random([4.1, 4.5, 4.8], [0.98, 1.02, 1.1]),
            gain("touches at random", "engine", [5.1, 5.5, 5.8], [1.1, 1.2, 1.3]),
            unsteady,
            gain(EVIL, "fastmap run", [1.0, 1.0, 1.0], [70.0, 83.6, 114.0]),
        ],
    );
    fastmap(dir.path(), "report fast.json slow.json disk.json -o results.md").succeeded();
    assert_eq!(
        files_in(dir.path()),
        ["disk.json", "fast.json", "results-dark.svg", "results-light.svg", "results.md", "slow.json"]
    );
    let text = fs::read_to_string(dir.path().join("results.md")).unwrap();
    let evil = "&lt;/svg&gt;&lt;script&gt;alert('1')&lt;/script&gt; &amp; \"Größe\"";
    for part in [
        "not by hand.\n\n## At a glance\n",
        "* 2 processors (A processor), 8 GiB of memory, Linux 6.1; 22 November 2026\n",
        "<source media=\"(prefers-color-scheme: dark)\" srcset=\"results-dark.svg\">\n  <img src=\"results-light.svg\" width=\"800\"",
        &format!(
            "\n| Work | By | disk, readahead 128 KiB | slow storage, 2 ms a request | fast (zram), readahead 128 KiB |\n\
        |---|---|---|---|---|\n\
        | touches at random | `fastmap run` | **4.5 (4.1-4.8)**; 1.02 (0.98-1.1) | **6.3 (5-7.1)**; **2 (1.9-2.1)** | ▼ 0.8 (0.7-0.9); 1 (0.98-1.02) |\n\
        |  | engine | **5.5 (5.1-5.8)**; **1.2 (1.1-1.3)** | – | – |\n\
        | a walk backward | `fastmap run` | 1.5 (0.95-2.2); ▼ 0.6 (0.5-0.7) ~ | – | – |\n\
        | {evil} | `fastmap run` | 1 (one run); **84 (70-114)** | – | – |\n"
        ),
        "* slow storage, 2 ms a request: MADV\\_RANDOM (touches at random)\n",
        "\n## All comparisons\n\nOf 9 comparisons",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    for file in ["results-light.svg", "results-dark.svg"] {
        let drawn = fs::read_to_string(dir.path().join(file)).unwrap();
        for part in [
            "disk, readahead 128 KiB</title>",
            ">touches at random<",
            ">4.5<",
            ">0.6 ~<",
            ">84<",
            "22 November 2026",
            "&lt;script&gt;",
        ] {
            assert!(drawn.contains(part), "no {part:?} in {drawn}");
        }
        assert!(!drawn.contains("<script"));
        for fetching in ["href", "src=", "url(", "@import", "<image", "<use"] {
            assert!(!drawn.contains(fetching), "{fetching}");
        }
        let parse = "import sys, xml.etree.ElementTree as tree; print(tree.parse(sys.argv[1]).getroot().tag)";
        if Command::new("python3").arg("--version").output().is_err() {
            skipped("whether a picture is XML: no python3");
            continue;
        }
        let ran = run_in(dir.path(), Command::new("python3").args(["-c", parse, file]));
        ran.succeeded();
        assert_eq!(ran.stdout, "{http://www.w3.org/2000/svg}svg\n");
    }
}

#[test]
fn what_was_really_measured_is_shown() {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let short = "--size 32MiB --seconds 0.05 --repeat 2 --engines mmap-random,fastmap";
    fastmap(dir.path(), &format!("micro {short} --memory {memory} --json micro.json")).succeeded();
    fastmap(dir.path(), "report micro.json -o results.md").succeeded();
    let text = fs::read_to_string(dir.path().join("results.md")).unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("micro.json")).unwrap()).unwrap();
    check_told(&report);
    for headline in report["headlines"].as_array().unwrap() {
        assert!(text.contains(headline["what"].as_str().unwrap()), "{headline}");
    }
    assert_eq!(text.matches("\n### ").count(), report["figures"].as_array().unwrap().len());
}

#[test]
fn what_is_no_result_is_refused_in_one_line() {
    let dir = dir();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("no.json", "{\"a\": 1}");
    write("text.json", "nothing");
    write("old.json", "{\"experiment\": \"kv\", \"results\": []}");
    write("good.json", &results("scale", 0.0).to_string());
    let refused = |line: &str, status: i32, parts: &[&str]| {
        fastmap(dir.path(), &format!("report {line}")).failed_with(status, parts)
    };
    refused(
        "gone.json -o a.md",
        1,
        &["gone.json: cannot be read: No such file", "name files that `fastmap bench NAME --json FILE` wrote"],
    );
    refused("no.json -o a.md", 1, &["no.json: is not a result: missing field", "name files that"]);
    refused("text.json -o a.md", 1, &["text.json: is not a result: expected", "name files that"]);
    refused(". -o a.md", 1, &[".: cannot be read: Is a directory", "name files that"]);
    refused(
        "good.json old.json -o a.md",
        1,
        &["old.json: is a result of an older fastmap", "fastmap bench kv --json old.json"],
    );
    refused("-o a.md", 2, &["command line: ", "RESULTS", "see `fastmap report --help`"]);
    refused("good.json", 2, &["command line: ", "--output", "see `fastmap report --help`"]);
    for other in ["a.html", "a"] {
        let what = format!("--output: \"{other}\" is not a name of a Markdown document: give one that ends in .md");
        refused(&format!("good.json -o {other}"), 2, &[&what]);
    }
    refused(
        "good.json -o no/such/a.md",
        1,
        &["no/such/a.md: cannot be written: No such file", "name a writable file with --output"],
    );
    assert_eq!(files_in(dir.path()), ["good.json", "no.json", "old.json", "text.json"]);
}

/// The results that the repository keeps, by their files' names.
fn evidence(root: &Path) -> Vec<PathBuf> {
    let folder = root.join("docs/evidence");
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|e| panic!("docs/evidence, which docs/results.md is made of: {e}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "docs/evidence has no JSON");
    files
}

/// A command's words, as a shell reads what `--json` wrote: there are no quotes but single ones.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    let mut rest = command.chars();
    while let Some(c) = rest.next() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            '\\' if !quoted => word.get_or_insert_default().extend(rest.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.into_iter().chain(word).collect()
}

#[test]
fn evidence_gives_the_results_in_docs_by_commands_that_there_are() {
    assert_eq!(
        words(r"fastmap bench kv --dir '/my disk/it'\''s' ''"),
        ["fastmap", "bench", "kv", "--dir", "/my disk/it's", ""]
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = evidence(&root);
    for file in &files {
        let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let command = report["command"].as_str().unwrap_or_default();
        let words = words(command);
        let ["fastmap", "bench", arguments @ ..] = &words.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
            panic!("{}: is not of `fastmap bench`: {command}", file.display());
        };
        let parsed = fastmap_bench::cli().try_get_matches_from(["fastmap-bench"].iter().chain(arguments));
        parsed.unwrap_or_else(|e| panic!("{}: {command}: {e}", file.display()));
    }
    let dir = dir();
    let mut command = Command::new(FASTMAP);
    run_in(dir.path(), command.arg("report").args(&files).args(["-o", "results.md"])).succeeded();
    for file in ["results.md", "results-light.svg", "results-dark.svg"] {
        let [made, kept] =
            [dir.path(), &root.join("docs")].map(|folder| fs::read_to_string(folder.join(file)).unwrap_or_default());
        let line = made.lines().zip(kept.lines()).position(|(made, kept)| made != kept).map_or(0, |line| line + 1);
        assert!(
            made == kept,
            "docs/{file} is not what `fastmap report docs/evidence/*.json -o docs/results.md` writes; first in line {line}"
        );
    }
}
