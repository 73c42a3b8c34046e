//! Real programs that map files, unchanged: the list of programs, their requirements, their data, and their runs.
//!
//! Most of them are a few dozen lines around a library that maps files (LMDB, SQLite, RocksDB, numpy). Their sources are in the folder
//! `programs`, and `program.h` there describes their arguments and their output. They are compiled or written out when they are needed.
//!
//! A run is a process of its own, started by the worker and in the worker's memory cgroup. It begins with its data cold, and works for a set
//! time: the cold window. Then it works until it is warm, and then for the set time again: the warm window. Its answer is a list of sums, one
//! for each batch of operations. So runs of different lengths can be compared as far as both came.

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

/// How often the bench checks whether a program is warm.
const LOOK: Duration = Duration::from_millis(100);

/// The way in which a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// As it is.
    Kernel,
    /// With advice for all its maps, which a preloaded library gives.
    Advised,
    /// Under `fastmap run` with its defaults.
    Fastmap,
    /// Under `fastmap run` with a cache. The cache is as large as the memory that the kernel has for the data.
    FastmapSized,
}

names!(Way, "a way", {
    Kernel => "kernel", Advised => "advised", Fastmap => "fastmap", FastmapSized => "fastmap-sized",
});

impl Way {
    /// Whether the program runs under `fastmap run`.
    pub fn is_fastmap(self) -> bool {
        matches!(self, Way::Fastmap | Way::FastmapSized)
    }
}

/// One run of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The name of the program.
    pub program: String,
    /// How it is started.
    pub tool: Tool,
    /// The way in which it is run.
    pub way: Way,
    /// The library that gives advice.
    pub advice: Advice,
    /// The directory of its data.
    pub data: PathBuf,
    /// Length of each of the two windows, seconds.
    pub seconds: f64,
    /// The work that makes it warm.
    pub warm_up: WarmUp,
    /// The command `fastmap`.
    pub fastmap: PathBuf,
    /// The size of FastMap's cache with [`Way::FastmapSized`], bytes.
    pub cache: u64,
    /// The file for the report of `fastmap run`.
    pub stats: PathBuf,
}

/// The work between the cold window and the warm one. The program goes on with its own work until both conditions are met.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct WarmUp {
    /// The least time, seconds.
    pub seconds: f64,
    /// The program must have read at least this many bytes since its start. It is the size of the memory for the data, which then was filled
    /// once. None: there is memory for all of the data, and the bench reads them into the page cache.
    pub bytes: Option<u64>,
}

impl WarmUp {
    /// After so many times `seconds` the warm-up ends in any case: the device is too slow to read `bytes`.
    pub const MOST: f64 = 3.0;

    /// The longest time, seconds.
    pub fn most(&self) -> f64 {
        self.seconds * WarmUp::MOST
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Operations, time, and what the machine did meanwhile: in the cold window, then in the warm one.
    pub readings: [Reading; 2],
    /// A sum for each batch of operations, of the data that it read.
    pub sums: Vec<String>,
    /// First the seconds between the two windows, then the bytes that the program had read by the end of that time. None: the windows were in
    /// two processes.
    pub warmed: (f64, Option<u64>),
}

/// Runs a program.
///
/// # Errors
///
/// The program fails, or gives no answer.
pub fn run(order: &Order, meter: &Meter) -> Result<Ran> {
    if let Tool::Ours(_) = order.tool {
        return once(order, meter, true);
    }
    // These have a second process for the warm window. One run of fio is enough, since it warms up by itself. A run of ripgrep is a single
    // search, so it is repeated until the time for the warm-up is over. The last run counts.
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

/// Reads the data into the page cache, if there is memory for all of them.
fn warm_page_cache(order: &Order) -> Result<()> {
    if order.warm_up.bytes.is_none() { read_all(&order.data) } else { Ok(()) }
}

/// Waits until the program has worked long enough to be warm. Returns how long that took, and the bytes read so far by the other processes of
/// this process's group: the program's.
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

/// Bytes that the other processes of this process group have read from devices. proc_pid_io(5).
fn read_so_far() -> u64 {
    let own = std::process::id() as i32;
    let group = Process::new(own).and_then(|process| process.stat()).map_or(own, |stat| stat.pgrp);
    let all = procfs::process::all_processes().into_iter().flatten().filter_map(std::result::Result::ok);
    let others = all.filter(|process| process.pid != own && process.stat().is_ok_and(|stat| stat.pgrp == group));
    others.filter_map(|process| Some(process.io().ok()?.read_bytes)).sum()
}

/// Reads every byte of the data by read(2). Their page cache is charged to this process's memory cgroup.
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

/// The command that runs the program as `order.way` says.
fn command(order: &Order, warm: bool) -> Command {
    let own: Vec<OsString> = order.tool.run(&order.data, order.seconds, warm.then_some(order.warm_up));
    let mut command = if order.way.is_fastmap() {
        let mut command = Command::new(&order.fastmap);
        command.arg("run").arg("--stats").arg(&order.stats);
        if order.way == Way::FastmapSized {
            // In a memory cgroup `fastmap run` leaves writable maps to the kernel, since stores could be lost if memory runs out. The data are
            // not kept after the run, so it takes that risk.
            command.args(["--risk-stores", "--own", "*", "--cache"]).arg(order.cache.to_string());
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

/// Runs the program once. If it reports no cold window, both readings are the same.
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

/// The reading with the program's processor time, and without page faults: those that were counted are the worker's.
fn of_window(reading: Reading, before: (f64, f64), after: (f64, f64)) -> Reading {
    Reading { user_s: after.0 - before.0, system_s: after.1 - before.1, faults: 0, major_faults: 0, ..reading }
}

/// User and system time of a process and all its threads so far, seconds. The kernel counts them in ticks, usually of 10 ms.
fn cpu(child: &Child) -> (f64, f64) {
    let tick = procfs::ticks_per_second() as f64;
    let stat = Process::new(child.id() as i32).and_then(|process| process.stat());
    stat.map_or((0.0, 0.0), |stat| (stat.utime as f64 / tick, stat.stime as f64 / tick))
}

/// A program's report on its work.
struct Done {
    ops: u64,
    seconds: f64,
    sums: Vec<String>,
}

/// The report of a program of ours: `end OPS SECONDS SUM...`.
fn ours(said: &str) -> Option<Done> {
    work_of(said.lines().find_map(|line| line.strip_prefix("end "))?)
}

/// `OPS SECONDS SUM...`
fn work_of(said: &str) -> Option<Done> {
    let mut words = said.split_whitespace();
    let (ops, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Done { ops, seconds, sums: words.map(str::to_owned).collect() })
}

/// The report of fio. It checks each block's checksum itself, and ends with an error if a checksum is wrong.
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

/// The difference of two lists of sums: the first batch in both lists whose sums differ.
pub fn difference(first: &[String], other: &[String]) -> Option<String> {
    let differ = first.iter().zip(other).enumerate().find(|(_, (a, b))| a != b);
    differ.map(|(batch, (a, b))| format!("batch {batch} has the sum {b} where {a} belongs"))
}

/// Runs a command and waits for its end. Asks `go_on` now and then whether to go on.
///
/// # Errors
///
/// If the command fails: its status, and the first line of its messages with the word "error", else the last line. `interrupted` if `go_on`
/// returns false.
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

/// Reads everything that comes out of a pipe, in a thread. So the process never blocks on the pipe.
fn listen(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error the bytes so far are used.
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Writes lines of made-up words, about so many bytes.
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
/// The reason why they could not be made.
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
