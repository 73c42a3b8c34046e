//! Real programs that map files, and that nobody changes: which there are, what is needed to have them, their data, and one run of one.
//!
//! Most are programs of a few dozen lines around a library that maps files (LMDB, SQLite, RocksDB, numpy), in `programs`; `program.h`
//! there says what they are told and what they say. They are compiled, or written out, when they are needed. A run is a process of its
//! own below the worker, in the worker's memory cgroup, and works for a time cold, until it is warm, and as long again; its answer is a
//! list of sums, one of each batch of operations, so that runs that came to different lengths can be compared all the same.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use procfs::process::Process;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::substrates::spec::names;
use crate::substrates::{Error, Meter, Reading, Result, sys};

pub mod heard;
mod known;
mod tool;

pub use known::{ALL, COLUMN, LOAD, MODEL, Program, named};
pub use tool::{Advice, Tool, Workshop};

/// How often it is looked at whether a program is warm.
const LOOK: Duration = Duration::from_millis(100);

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// As it is.
    Kernel,
    /// With advice for all its maps, given from outside.
    Advised,
    /// Under `fastmap run`, without any flag that changes what it does.
    Fastmap,
    /// The same with a cache as large as the memory that the kernel has for the data.
    FastmapSized,
}

names!(Way, "way", {
    Kernel => "kernel", Advised => "advised", Fastmap => "fastmap", FastmapSized => "fastmap-sized",
});

impl Way {
    /// Whether `fastmap run` is in it.
    pub fn is_fastmap(self) -> bool {
        matches!(self, Way::Fastmap | Way::FastmapSized)
    }
}

/// One run of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Which.
    pub program: String,
    /// How it is started.
    pub tool: Tool,
    /// Through what it reaches its data.
    pub way: Way,
    /// What gives advice.
    pub advice: Advice,
    /// The directory of its data.
    pub data: PathBuf,
    /// Seconds to measure.
    pub seconds: f64,
    /// What makes it warm.
    pub warm_up: WarmUp,
    /// The command `fastmap`.
    pub fastmap: PathBuf,
    /// FastMap's cache with [`Way::FastmapSized`], bytes.
    pub cache: u64,
    /// Where `fastmap run` says what it did.
    pub stats: PathBuf,
}

/// The work between the cold window and the warm one: the program's own, until the time is over and so much has been read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct WarmUp {
    /// Seconds, at least.
    pub seconds: f64,
    /// Bytes that the program has read since its start, at least: the memory that there is for the data. None where all of them are
    /// in memory: the bench reads them into the page cache.
    pub bytes: Option<u64>,
}

impl WarmUp {
    /// A device on which that is not read in so many times the time is not waited for.
    pub const MOST: f64 = 3.0;

    /// Seconds, at most.
    pub fn most(&self) -> f64 {
        self.seconds * WarmUp::MOST
    }
}

/// What it came to.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Operations, time, and what the machine did meanwhile: from a cold start, and warm.
    pub readings: [Reading; 2],
    /// A sum of what each batch of operations read.
    pub sums: Vec<String>,
    /// Seconds between the two, and bytes that the program had read by their end, where it was one process.
    pub warmed: (f64, Option<u64>),
}

/// Runs a program.
///
/// # Errors
///
/// What it says when it fails, or no answer.
pub fn run(order: &Order, meter: &Meter) -> Result<Ran> {
    if let Tool::Ours(_) = order.tool {
        return once(order, meter, true);
    }
    // fio warms up by itself; ripgrep has no longer life than a search.
    let first = once(order, meter, false)?;
    let began = Instant::now();
    warm_page_cache(order)?;
    let ran = loop {
        let ran = once(order, meter, true)?;
        if let Some(what) = difference(&first.sums, &ran.sums) {
            let what = format!("it read other data than just before: {what}");
            let remedy = "this is an error in fastmap or in the program: please report it";
            return Err(Error::Refused { thing: order.program.clone(), what, remedy });
        }
        if !matches!(order.tool, Tool::Ripgrep(_)) || began.elapsed().as_secs_f64() >= order.warm_up.seconds {
            break ran;
        }
    };
    let ([cold, _], [_, warm]) = (first.readings, ran.readings);
    let seconds = began.elapsed().as_secs_f64() - warm.seconds;
    Ok(Ran { readings: [cold, warm], sums: ran.sums, warmed: (seconds, None) })
}

/// Where all the data may be in memory they are in the page cache then.
fn warm_page_cache(order: &Order) -> Result<()> {
    if order.warm_up.bytes.is_none() { read_all(&order.data) } else { Ok(()) }
}

/// Returns when the program has worked long enough to be warm: since when, and bytes read by its process group, which is this one's.
fn warm_up(order: &Order) -> Result<(f64, Option<u64>)> {
    let began = Instant::now();
    warm_page_cache(order)?;
    loop {
        let (seconds, read) = (began.elapsed().as_secs_f64(), read_so_far());
        let replaced = order.warm_up.bytes.is_none_or(|bytes| read >= bytes);
        if seconds >= order.warm_up.seconds && (replaced || seconds >= order.warm_up.most()) {
            return Ok((seconds, Some(read)));
        }
        thread::sleep(LOOK);
    }
}

/// Bytes that the other processes of this process group have had read from devices. proc_pid_io(5).
fn read_so_far() -> u64 {
    let own = std::process::id() as i32;
    let group = Process::new(own).and_then(|process| process.stat()).map_or(own, |stat| stat.pgrp);
    let all = procfs::process::all_processes().into_iter().flatten().filter_map(std::result::Result::ok);
    let others = all.filter(|process| process.pid != own && process.stat().is_ok_and(|stat| stat.pgrp == group));
    others.filter_map(|process| Some(process.io().ok()?.read_bytes)).sum()
}

/// Every byte of the data by read(2): what the kernel keeps of them is in this process's memory cgroup.
fn read_all(data: &Path) -> Result<()> {
    let failed = |source| Error::Io {
        thing: data.display().to_string(),
        what: "cannot be read",
        source,
        remedy: "check the device, or name another place with --dir",
    };
    let mut buffer = vec![0; 1 << 20];
    for file in super::cold::files(data)? {
        let mut file = File::open(file).map_err(failed)?;
        while file.read(&mut buffer).map_err(failed)? > 0 {}
    }
    Ok(())
}

/// The command in the order's way.
fn command(order: &Order, warm: bool) -> Command {
    let own: Vec<OsString> = order.tool.run(&order.data, order.seconds, warm.then_some(order.warm_up));
    let mut command = if order.way.is_fastmap() {
        let mut command = Command::new(&order.fastmap);
        command.arg("run").arg("--stats").arg(&order.stats);
        if order.way == Way::FastmapSized {
            // Its memory group has a limit.
            command.arg("--risk-stores").arg("--cache").arg(order.cache.to_string());
        }
        command.arg("--").args(&own);
        command
    } else {
        let mut command = Command::new(&own[0]);
        command.args(&own[1..]);
        command
    };
    if order.way == Way::Advised {
        command.env("LD_PRELOAD", &order.advice.library).env("FASTMAP_BENCH_ADVICE", &order.advice.what);
    }
    command
}

/// One process; where it does not say that it had a cold window both are the same.
fn once(order: &Order, meter: &Meter, warm: bool) -> Result<Ran> {
    let failed = |what: String| Error::Refused {
        thing: format!("{} in the way \"{}\"", order.program, order.way),
        what,
        remedy: "run it by itself to see why, or leave it out with --programs",
    };
    let mut command = command(order, warm);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("PYTHONDONTWRITEBYTECODE", "1");
    sys::dies_with_parent(&mut command);
    let mut open = meter.start(&order.data);
    let mut before = (0.0, 0.0);
    let mut child = command.spawn().map_err(|e| failed(format!("cannot be started: {e}")))?;
    let words = listen(child.stderr.take());
    // The process is not reaped yet, so that its times can still be read after its end.
    let (mut said, mut ended) = (String::new(), None);
    let (mut cold, mut warmed) = (Reading::default(), (0.0, None));
    let mut tell = child.stdin.take().expect("piped");
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        match line.map_err(|e| failed(format!("cannot be listened to: {e}")))? {
            line if line == "start" || line == "begin" => {
                before = cpu(&child);
                open = meter.start(&order.data);
            }
            line if line.starts_with("cold ") => {
                let Done { ops, seconds, .. } =
                    work_of(&line[5..]).ok_or_else(|| failed(format!("said \"{line:.200}\"")))?;
                cold = of_window(open.end(), before, cpu(&child)).counting(ops, Duration::from_secs_f64(seconds), None);
                open = meter.start(&order.data);
                warmed = warm_up(order)?;
                tell.write_all(b"\n").map_err(|e| failed(format!("does not listen: {e}")))?;
            }
            line => {
                said.push_str(&line);
                said.push('\n');
                if line.starts_with("end ") {
                    ended = Some((cpu(&child), open.at.elapsed()));
                }
            }
        }
    }
    let (after, window) = ended.unwrap_or_else(|| (cpu(&child), open.at.elapsed()));
    let reading = open.end();
    let status = child.wait().map_err(|e| failed(format!("cannot be waited for: {e}")))?;
    meter.let_go();
    if !status.success() {
        let words = words.join().unwrap_or_default();
        let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(match status.signal() {
            Some(libc::SIGKILL) => "most likely since it used more memory than it may",
            _ => "it said nothing",
        });
        return Err(failed(format!("ended with {status}: {last}")));
    }
    let Done { ops, seconds, sums } =
        order.tool.done(&said, &order.data, window).ok_or_else(|| failed(format!("gave no answer: {said:.200}")))?;
    let warm = of_window(reading, before, after).counting(ops, Duration::from_secs_f64(seconds), None);
    let cold = if cold.ops == 0 { warm.clone() } else { cold };
    Ok(Ran { readings: [cold, warm], sums, warmed })
}

/// With the program's processor time; page faults are the worker's.
fn of_window(reading: Reading, before: (f64, f64), after: (f64, f64)) -> Reading {
    Reading { user_s: after.0 - before.0, system_s: after.1 - before.1, faults: 0, major_faults: 0, ..reading }
}

/// User and system time of a process and all its threads so far, in ticks of 10 ms.
fn cpu(child: &Child) -> (f64, f64) {
    let tick = procfs::ticks_per_second() as f64;
    let stat = Process::new(child.id() as i32).and_then(|process| process.stat());
    stat.map_or((0.0, 0.0), |stat| (stat.utime as f64 / tick, stat.stime as f64 / tick))
}

/// What a program says of its work.
struct Done {
    ops: u64,
    seconds: f64,
    sums: Vec<String>,
}

/// A program of ours: `end OPS SECONDS SUM...`.
fn ours(said: &str) -> Option<Done> {
    work_of(said.lines().find_map(|line| line.strip_prefix("end "))?)
}

/// `OPS SECONDS SUM...`
fn work_of(said: &str) -> Option<Done> {
    let mut words = said.split_whitespace();
    let (ops, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Done { ops, seconds, sums: words.map(str::to_owned).collect() })
}

/// fio: it checks each block's checksum itself, and ends with an error where one is wrong.
fn of_fio(said: &str) -> Option<Done> {
    let told: Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let job = &told["jobs"][0];
    let (ops, ms) = (job["read"]["total_ios"].as_u64()?, job["read"]["runtime"].as_f64()?);
    (job["error"] == 0 && ops > 0).then(|| Done {
        ops,
        seconds: ms / 1e3,
        sums: vec!["every block verified".to_owned()],
    })
}

/// How two lists of sums differ: the first batch that both did and that has another sum.
pub fn difference(first: &[String], other: &[String]) -> Option<String> {
    let differ = first.iter().zip(other).enumerate().find(|(_, (a, b))| a != b);
    differ.map(|(batch, (a, b))| format!("batch {batch} has the sum {b} where {a} belongs"))
}

/// Waits for a command, looking now and then whether to go on.
///
/// # Errors
///
/// What it said last; that it was told to stop.
pub fn wait_for(command: &mut Command, go_on: impl Fn() -> bool) -> std::result::Result<(), String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
    let words = listen(child.stderr.take());
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if go_on() => thread::sleep(Duration::from_millis(5)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("interrupted".to_owned());
            }
        }
    };
    let words = words.join().unwrap_or_default();
    let wrong = words.lines().find(|line| line.contains("error")).or(words.lines().last());
    if status.success() { Ok(()) } else { Err(format!("{status}: {}", wrong.unwrap_or("it said nothing").trim())) }
}

/// All that comes out of a pipe, read while the process runs, so that it can never block on it.
fn listen(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is what there is.
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Writes about so many bytes of lines of made-up words.
fn write_text(path: &Path, bytes: u64) -> io::Result<()> {
    const LETTERS: &[u8; 16] = b"etaoinshrdlucmfw";
    let mut file = io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    let (mut written, mut number) = (0, 0u64);
    while written < bytes {
        let mut line = Vec::with_capacity(128);
        for _ in 0..12 {
            number += 1;
            let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word ^= word >> 29;
            let length = 2 + word % 8;
            for _ in 0..length {
                word >>= 4;
                line.push(LETTERS[(word & 15) as usize]);
            }
            line.push(b' ');
        }
        line.push(b'\n');
        io::Write::write_all(&mut file, &line)?;
        written += line.len() as u64;
    }
    io::Write::flush(&mut file)
}

/// Makes a program's data in an empty directory.
///
/// # Errors
///
/// What kept it from being made.
pub fn make(tool: &Tool, data: &Path, bytes: u64, go_on: impl Fn() -> bool) -> std::result::Result<(), String> {
    match tool.make(data, bytes) {
        Some(command) => {
            let mut making = Command::new(&command[0]);
            making.args(&command[1..]).env("PYTHONDONTWRITEBYTECODE", "1");
            wait_for(&mut making, go_on)
        }
        None => write_text(&data.join("text"), bytes).map_err(|e| e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_say() {
        let Done { ops, seconds, sums } = ours("noise\nend 512 0.25 1f 0 aa\n").unwrap();
        assert_eq!((ops, seconds, sums.join(",").as_str()), (512, 0.25, "1f,0,aa"));
        assert!(ours("end 512\n").is_none() && ours("begin\n").is_none());
        let fio = |error| {
            format!("note\n{{\"jobs\": [{{\"error\": {error}, \"read\": {{\"total_ios\": 7, \"runtime\": 500}}}}]}}\n")
        };
        let done = of_fio(&fio(0)).unwrap();
        assert_eq!((done.ops, done.seconds), (7, 0.5));
        assert!(of_fio(&fio(84)).is_none());
    }

    #[test]
    fn runs_are_compared_as_far_as_both_came() {
        let sums = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(difference(&sums("1 2 3"), &sums("1 2")), None);
        assert_eq!(difference(&sums("1 2 3"), &sums("1 2 3 4")), None);
        assert_eq!(difference(&sums("1 2 3"), &sums("1 5")).as_deref(), Some("batch 1 has the sum 5 where 2 belongs"));
    }
}
