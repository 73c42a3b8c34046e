//! Fresh processes in memory cgroups of their own: how every run of every experiment is made.
//!
//! A worker is this executable again (`worker.rs`), as it is or under `fastmap run`.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::worker::{Answer, Job, Order};
use crate::cgroup::{Controller, REMEDY, Version};
use crate::failure::Failure;
use crate::interrupt;
use crate::size::{Memory, Size};

/// How often the bench looks whether a worker has ended or a signal has come.
const POLL: Duration = Duration::from_millis(10);

/// The memory that each run may use, and the place to make its cgroup.
pub struct Limit(Option<(Controller, u64)>);

impl Limit {
    /// Nothing is limited.
    pub fn none() -> Limit {
        Limit(None)
    }

    /// So many bytes for each run.
    pub fn new(controller: Controller, bytes: u64) -> Limit {
        Limit(Some((controller, bytes)))
    }

    /// What is `asked` for, else `default`. `suits` says whether the engines can work within some limit.
    ///
    /// # Errors
    ///
    /// What `suits` answers; no cgroup to be made where a limit was asked for.
    pub fn of(
        asked: Option<Memory>,
        default: u64,
        suits: impl FnOnce(u64) -> Result<(), Failure>,
    ) -> Result<Limit, Failure> {
        let limit = match asked {
            Some(Memory::Unlimited) => return Ok(Limit(None)),
            Some(Memory::Limit(size)) => size.0,
            None => default,
        };
        suits(limit)?;
        match Controller::find() {
            Ok(controller) => Ok(Limit::new(controller, limit)),
            Err(why) if asked.is_some() => Err(Failure::told(format!("{why}: {REMEDY}, or give --memory none"))),
            Err(why) => {
                eprintln!("fastmap: {why}: no run is limited: {REMEDY}, or give --memory none to say so");
                Ok(Limit(None))
            }
        }
    }

    /// The limit of each run in bytes.
    pub fn bytes(&self) -> Option<u64> {
        self.0.as_ref().map(|(_, bytes)| *bytes)
    }

    /// What limits it.
    pub fn version(&self) -> Option<Version> {
        self.0.as_ref().map(|(controller, _)| controller.version())
    }

    /// Has a fresh process do a job in a cgroup of its own limited to `memory` bytes, where memory is limited at all;
    /// `engine` is what a failure names. `under` are arguments of `fastmap run` for the process, if it is to run under that.
    ///
    /// # Errors
    ///
    /// Whatever the worker failed with, an unusable cgroup, or an interruption. Nothing is left behind.
    pub fn obey<A: DeserializeOwned>(
        &self,
        engine: &str,
        job: Job,
        memory: Option<u64>,
        under: Option<&[OsString]>,
    ) -> Result<A, Failure> {
        interrupt::check()?;
        let group = match (&self.0, memory) {
            (Some((controller, _)), Some(bytes)) => {
                Some(controller.group(bytes).map_err(|e| Failure::told(format!("{e}: {REMEDY}")))?)
            }
            _ => None,
        };
        let order = Order {
            job,
            join: group.as_ref().map(|g| g.join_file()),
            peak: group.as_ref().and_then(|g| g.peak_file()),
            parent: std::process::id(),
        };
        let ended = in_fresh_process(&order, under)?;
        interrupt::check()?;
        let answer: Answer = serde_json::from_slice(&ended.stdout).map_err(|_| died(engine, memory, &ended))?;
        let answer = match answer {
            Answer::Done(answer) => answer,
            Answer::Failed(why) => return Err(Failure::told(format!("{engine}: {why}"))),
        };
        serde_json::from_value(answer)
            .map_err(|e| Failure::new(engine, format!("answered something else: {e}"), "please report this error"))
    }
}

/// A worker that ended without an answer.
fn died(engine: &str, memory: Option<u64>, ended: &Ended) -> Failure {
    let last_words = ended.stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").trim();
    match (ended.status.signal(), memory) {
        (Some(libc::SIGKILL), Some(bytes)) => Failure::new(
            engine,
            format!("killed, most likely since it used more memory than {}", Size(bytes)),
            "give more --memory or fewer --threads",
        ),
        (Some(libc::SIGBUS), _) => Failure::new(
            engine,
            format!("a page of its file could not be read, or has no room (SIGBUS): {last_words}"),
            "check the file and its device",
        ),
        _ => Failure::new(
            engine,
            format!("ended without a result ({}): {last_words}", ended.status),
            "this is an error in fastmap: please report it",
        ),
    }
}

/// What is left of a worker process.
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

/// Runs this executable again as a worker, and kills it when a signal asks the bench to stop.
fn in_fresh_process(order: &Order, under: Option<&[OsString]>) -> Result<Ended, Failure> {
    let failed =
        |e: io::Error| Failure::new("bench worker", format!("cannot run: {e}"), "check `ulimit -u` and free memory");
    let order = serde_json::to_string(order).map_err(|e| failed(e.into()))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("fastmap");
    if let Some(under) = under {
        command.arg("run").args(under).arg("--").arg(env::current_exe().map_err(failed)?);
    }
    let mut child = command
        .args(["bench", "worker", &order])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Both pipes are drained while it runs, so that it can never block on one.
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child).map_err(failed)?;
    let stdout = stdout.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
    Ok(Ended { status, stdout, stderr })
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is what there is.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if interrupt::requested() {
            child.kill()?;
            return child.wait();
        }
        thread::sleep(POLL);
    }
}
