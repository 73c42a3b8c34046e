//! `fastmap report`: what is in a page and in Markdown, what a browser makes of the page, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::prompt::{Ran, dir, fastmap, files_in, skipped};
use crate::{check_told, memory_flag};
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

/// A file of results that nobody measured.
fn write_results(path: &Path, experiment: &str, began: f64) {
    let report = json!({
        "experiment": experiment, "command": format!("fastmap bench {experiment} --dir '/my disk'"), "began_unix_s": began, "took_s": 125.0,
        "machine": {"cpus": 2, "model": "A processor", "kernel": "6.1", "memory_bytes": 1u64 << 33, "file_system": "ext4", "device": "/dev/vda"},
        "memory_limit": "cgroup-v2", "memory_limit_bytes": 256 << 20, "file": "temporary file in .", "file_bytes": 1 << 30,
        "verified": "Every page's stamp.", "notes": ["What was left out.", EVIL], "headlines": headlines(), "figures": figures(), "results": [1],
    });
    fs::write(path, report.to_string()).unwrap();
}

/// A directory with two files of results of one experiment and one of another, and a page of them.
fn page_of_three() -> (tempfile::TempDir, String) {
    let dir = dir();
    for (file, experiment, began) in [
        ("a.json", "scale", 1_795_311_255.0),
        ("b.json", "sync", 1_795_311_455.0),
        ("c.json", "scale", 1_795_397_655.0),
    ] {
        write_results(&dir.path().join(file), experiment, began);
    }
    let ran = fastmap(dir.path(), "report a.json b.json c.json -o page.html");
    ran.succeeded();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    (dir, page)
}

#[test]
fn a_page_has_every_figure_and_every_headline() {
    let (_dir, page) = page_of_three();
    let count = |part: &str| page.matches(part).count();
    // Seven figures have something to draw; and the overview of all.
    assert_eq!((count("<svg class=\"plot wide\""), count("<svg class=\"plot narrow\"")), (3 * 7 + 1, 3 * 7 + 1));
    assert_eq!(count("<title id="), 2 * (3 * 7 + 1));
    assert_eq!(count("Nothing was measured for this plot."), 3);
    // In the list of the summary, and with the experiment.
    assert!(count("random reads: FastMap to mmap") >= 2 * 3);
    assert_eq!(count("<h3>Lines of eight</h3>"), 3);
    for part in [
        "Of 9 comparisons FastMap is ahead in 3, level in 3 and behind in 3.",
        "2.41x",
        "(2.20x to 2.60x)",
        "11.8x",
        "figure 4; 80 threads",
        "repetitions fall on both sides of 1",
        ">scale (1)</h2>",
        ">scale (2)</h2>",
        ">sync</h2>",
        "22 November 2026, 01:34 UTC, took 2 min 5 s",
        "23 November 2026, 01:34 UTC",
        "<code>fastmap bench scale --dir '/my disk'</code>",
        "2 processors (A processor), 8 GiB of memory",
        "256 MiB for each run (cgroup-v2)",
        "Every page's stamp.",
        "What was left out.",
        "Measure stores that are flushed at once",
        "lang=\"en\"",
        "One row in ",
    ] {
        assert!(page.contains(part), "no {part:?}");
    }
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "text is escaped");
    for fetching in ["http:", "https:", " src=", "url(", "@import", "<link", "<iframe"] {
        assert!(!page.contains(fetching), "{fetching}");
    }
}

#[test]
fn markdown_has_the_same_in_tables() {
    let (dir, _) = page_of_three();
    fastmap(dir.path(), "report c.json b.json -o results.md").succeeded();
    let text = fs::read_to_string(dir.path().join("results.md")).unwrap();
    for part in [
        "Of 6 comparisons",
        "## FastMap is ahead (2)",
        "* **2.41x (2.20x to 2.60x)** scale: random reads: FastMap to mmap\n",
        "| scale: random reads: FastMap to mmap | 11.8x | 2.41x (2.20x to 2.60x) | FastMap, USENIX ATC '20, figure 4; 80 threads |",
        "\n    fastmap bench sync --dir '/my disk'\n",
        "* Checked: Every page's stamp.",
        "* Note: What was left out.",
        "| x axis | engine 0 |",
        "| 2 | 20.0 (18 to 24) | 40.0 (36 to 48) |",
        "After A paper, figure 4.",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!text.contains("<script") && !text.contains("<svg"));
}

#[test]
fn what_was_really_measured_is_shown() {
    let dir = dir();
    let memory = memory_flag("24MiB");
    let short = "--size 32MiB --seconds 0.05 --repeat 2 --engines mmap-random,fastmap";
    fastmap(dir.path(), &format!("micro {short} --memory {memory} --json micro.json")).succeeded();
    fastmap(
        dir.path(),
        &format!(
            "async --dir . --size 32MiB --work record --ops 500 --threads 1 --repeat 1 --memory {memory} \
        --engines mmap-random,fastmap,fastmap-ar --json async.json"
        ),
    )
    .succeeded();
    fastmap(dir.path(), "report micro.json async.json -o page.html").succeeded();
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    let mut plots = 1;
    for file in ["micro.json", "async.json"] {
        let report: Value = serde_json::from_str(&fs::read_to_string(dir.path().join(file)).unwrap()).unwrap();
        check_told(&report);
        for headline in report["headlines"].as_array().unwrap() {
            assert!(page.contains(headline["what"].as_str().unwrap()), "{headline}");
        }
        plots += report["figures"].as_array().unwrap().len();
    }
    assert_eq!(page.matches("<svg class=\"plot wide\"").count(), plots);
    // The AR-MMAP paper's own load at its fewest threads has a figure to stand beside.
    assert!(page.contains("AR-MMAP (poster") && page.contains("1.44x"));
}

#[test]
fn what_is_no_result_is_refused_in_one_line() {
    let dir = dir();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("no.json", "{\"a\": 1}");
    write("text.json", "nothing");
    write("old.json", "{\"experiment\": \"kv\", \"results\": []}");
    write_results(&dir.path().join("good.json"), "scale", 0.0);
    let refused = |line: &str, status: i32, parts: &[&str]| {
        fastmap(dir.path(), &format!("report {line}")).failed_with(status, parts)
    };
    refused(
        "gone.json -o a.html",
        1,
        &["gone.json: cannot be read: No such file", "name files that `fastmap bench NAME --json FILE` wrote"],
    );
    refused("no.json -o a.html", 1, &["no.json: is no result: missing field", "name files that"]);
    refused("text.json -o a.html", 1, &["text.json: is no result: expected", "name files that"]);
    refused(". -o a.html", 1, &[".: cannot be read: Is a directory", "name files that"]);
    refused(
        "good.json old.json -o a.html",
        1,
        &["old.json: is a result of an older fastmap", "fastmap bench kv --json old.json"],
    );
    refused("-o a.html", 2, &["command line: ", "RESULTS", "see `fastmap --help`"]);
    refused("good.json", 2, &["command line: ", "--output", "see `fastmap --help`"]);
    refused("good.json -o a.pdf", 2, &["--output: \"a.pdf\" says no format: give a name that ends in .html or .md"]);
    refused(
        "good.json -o no/such/a.html",
        1,
        &["no/such/a.html: cannot be written: No such file", "name a writable file with --output"],
    );
    assert_eq!(files_in(dir.path()), ["good.json", "no.json", "old.json", "text.json"]);
    let refused = |line: &str, status: i32, parts: &[&str]| fastmap(dir.path(), line).failed_with(status, parts);
    refused("--report a.txt", 2, &["--report: \"a.txt\" says no format"]);
    refused("--report no/such/a.html", 1, &["no/such: is no directory", "make it first"]);
}

/// Runs a browser without a screen on a page; None, with the reason printed, where none is installed.
fn browse(dir: &Path, page: &str, flags: &[&str]) -> Option<Ran> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = |name: &str| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let found: Option<PathBuf> = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(installed);
    let Some(browser) = found else {
        skipped("no chromium in PATH");
        return None;
    };
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.arg("60").arg(browser).args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]);
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
    ]);
    command.args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000"]).args(flags);
    command
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", dir.join(page).display()));
    let ran = crate::prompt::run_in(dir, &mut command);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    Some(ran)
}

fn console(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().filter(|line| line.contains(":CONSOLE:")).collect()
}

/// What a page finds of itself: handed to the page that shows it, or left at its own root.
const MEASURE: &str = "<script>onload = () => {
    const root = document.documentElement;
    const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.right, b.width, b.height]; };
    const shown = [...document.querySelectorAll('svg.plot')].filter(s => s.getBoundingClientRect().width > 0);
    const text = shown.flatMap(s => [...s.querySelectorAll('text')]);
    const found = JSON.stringify({
        width: innerWidth, scroll: root.scrollWidth, fetched: performance.getEntriesByType('resource').length,
        plots: shown.map(box), text: Math.min(...text.map(t => t.getBoundingClientRect().height)),
        outside: text.filter(t => box(t)[0] < -0.5 || box(t)[1] > innerWidth + 0.5).map(t => t.textContent),
    });
    parent === window ? root.dataset.found = encodeURIComponent(found) : parent.postMessage(found, '*');
}</script></body>";

fn found(dom: &str) -> Value {
    let (_, rest) = dom.split_once("data-found=\"").unwrap_or_else(|| panic!("nothing was measured: {dom}"));
    let encoded = rest.split('"').next().unwrap();
    let mut bytes = Vec::new();
    let mut parts = encoded.split('%');
    bytes.extend(parts.next().unwrap().bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn a_browser_shows_every_plot_on_a_desk_and_on_a_phone() {
    let (dir, page) = page_of_three();
    let Some(ran) = browse(dir.path(), "page.html", &["--window-size=1000,800", "--dump-dom"]) else { return };
    assert_eq!(console(&ran), Vec::<&str>::new(), "the page as it is");
    let policy = page.find("<meta http-equiv").unwrap()..page.find("<title>").unwrap();
    let mut measured = page.clone();
    measured.replace_range(policy, "");
    fs::write(dir.path().join("measured.html"), measured.replace("</body>", MEASURE)).unwrap();
    // Windows of less than 500 are not to be had, frames are.
    let phone = "<body style='margin:0'><script>onmessage = e => document.documentElement.dataset.found = encodeURIComponent(e.data)</script>\
                 <iframe src='measured.html' style='width:360px;height:800px;border:0'></iframe></body>";
    fs::write(dir.path().join("phone.html"), phone).unwrap();
    for (file, width) in [("measured.html", 1000), ("phone.html", 360)] {
        let ran = browse(dir.path(), file, &["--window-size=1000,800", "--dump-dom"]).unwrap();
        assert_eq!(console(&ran), Vec::<&str>::new());
        let found = found(&ran.stdout);
        assert_eq!((&found["width"], &found["fetched"]), (&json!(width), &json!(0)), "{found}");
        assert!(found["scroll"].as_u64().unwrap() <= width, "the page itself does not scroll sideways: {found}");
        let plots = found["plots"].as_array().unwrap();
        assert_eq!(plots.len(), 3 * 7 + 1, "one of the two layouts of each");
        for plot in plots {
            let side = |n: usize| plot[n].as_f64().unwrap();
            assert!(side(2) > 300.0 && side(3) > 40.0 && side(0) >= 0.0 && side(1) <= width as f64, "{plot}");
        }
        assert_eq!(found["outside"], json!([]), "no text of a plot is cut off at {width}");
        assert!(found["text"].as_f64().unwrap() >= 11.0, "{found}");
    }
    // That it would be noticed.
    fs::write(dir.path().join("planted.html"), "<script>console.error('planted')</script>").unwrap();
    assert_eq!(console(&browse(dir.path(), "planted.html", &["--dump-dom"]).unwrap()).len(), 1);
}

#[test]
fn it_prints_with_its_numbers() {
    let (dir, _) = page_of_three();
    if browse(dir.path(), "page.html", &["--no-pdf-header-footer", "--print-to-pdf=page.pdf"]).is_none() {
        return;
    }
    assert!(fs::read(dir.path().join("page.pdf")).unwrap().starts_with(b"%PDF"));
    let Ok(text) = Command::new("pdftotext").args(["-layout", "page.pdf", "-"]).current_dir(dir.path()).output() else {
        return skipped("what is in the PDF, no pdftotext (poppler-utils)");
    };
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.matches("engine 7").count() >= 3 && text.contains("In short"), "{text}");
    assert!(text.contains("20.0 (18"), "tables that are folded on the screen are open: {text}");
}
