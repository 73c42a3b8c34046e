//! Makes the runs of all experiments, each in a fresh process and a memory cgroup of its own.
//!
//! The process is a worker: this executable again (`worker.rs`), by itself or under `fastmap run`.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fastmap_cli::cgroup::{Controller, Group, REMEDY, Version};
use fastmap_cli::failure::Failure;
use fastmap_cli::interrupt;
use fastmap_cli::size::{Memory, Size};

use crate::experiment::{Experiment, Part};
use crate::worker::{Answer, Order};

/// How often the bench checks whether a worker has ended or a signal has come.
const POLL: Duration = Duration::from_millis(10);

/// The memory that each run may use, and the controller that makes the run's cgroup.
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

    /// The limit that is `asked` for, else `default`. `suits` fails if the engines cannot work within a limit.
    ///
    /// # Errors
    ///
    /// `suits` fails, or a limit is asked for and no memory cgroup can be made.
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

    /// The version of cgroups that limits runs.
    pub fn version(&self) -> Option<Version> {
        self.0.as_ref().map(|(controller, _)| controller.version())
    }

    /// A cgroup for one run, limited to `memory` bytes. None: memory is not limited.
    ///
    /// # Errors
    ///
    /// The cgroup cannot be made.
    pub fn group(&self, memory: Option<u64>) -> Result<Option<Group>, Failure> {
        let limited = self.0.as_ref().zip(memory);
        limited
            .map(|((controller, _), bytes)| controller.group(bytes))
            .transpose()
            .map_err(|e| Failure::told(format!("{e}: {REMEDY}")))
    }

    /// Runs a case in a fresh process, in a cgroup of its own that is limited to `memory` bytes. If memory is not limited there is no
    /// cgroup. Failures name `who`. `under` holds the arguments of `fastmap run`, if the process is run under it.
    ///
    /// # Errors
    ///
    /// The worker's failure, a cgroup that cannot be used, or an interruption. Nothing is left behind.
    pub fn obey<E: Experiment>(
        &self,
        who: &str,
        case: &E::Case,
        memory: Option<u64>,
        under: Option<&[OsString]>,
    ) -> Result<Vec<Part<E::Outcome>>, Failure> {
        self.attempt::<E>(who, case, memory, under, None).map(Option::unwrap_or_default)
    }

    /// Like [`Limit::obey`], with a time limit. If the run takes longer than `within`, the process and all processes that it started are
    /// killed, and there is no answer.
    ///
    /// # Errors
    ///
    /// As [`Limit::obey`].
    pub fn attempt<E: Experiment>(
        &self,
        who: &str,
        case: &E::Case,
        memory: Option<u64>,
        under: Option<&[OsString]>,
        within: Option<Duration>,
    ) -> Result<Option<Vec<Part<E::Outcome>>>, Failure> {
        interrupt::check()?;
        let broken = |e: serde_json::Error| {
            Failure::new(who, format!("cannot be talked to: {e}"), "this is an error in fastmap: please report it")
        };
        let group = self.group(memory)?;
        let order = Order {
            experiment: E::NAME.to_owned(),
            case: serde_json::to_value(case).map_err(broken)?,
            join: group.as_ref().map(|g| g.join_file()),
            peak: group.as_ref().and_then(|g| g.peak_file()),
            parent: under.is_none().then(std::process::id),
        };
        let ended = in_fresh_process(&order, under, within)?;
        interrupt::check()?;
        let Some(ended) = ended else { return Ok(None) };
        match serde_json::from_slice(&ended.stdout).map_err(|_| died(who, memory, &ended))? {
            Answer::Done(parts) => serde_json::from_value(parts).map(Some).map_err(broken),
            Answer::Failed(why) => Err(Failure::told(format!("{who}: {why}"))),
        }
    }
}

/// The failure of a worker that ended without an answer.
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

/// How a worker ended, and its output.
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

/// Runs this executable again as a worker. The worker and all processes that it started are killed if a signal asks the bench to stop, or
/// if the worker takes longer than `within`. In the second case the result is None.
fn in_fresh_process(
    order: &Order,
    under: Option<&[OsString]>,
    within: Option<Duration>,
) -> Result<Option<Ended>, Failure> {
    let failed =
        |e: io::Error| Failure::new("bench worker", format!("cannot run: {e}"), "check `ulimit -u` and free memory");
    let text = serde_json::to_string(order).map_err(|e| failed(e.into()))?;
    let own = env::current_exe().map_err(failed)?;
    let mut command = match under {
        Some(under) => {
            // `fastmap run` joins the cgroup of its program, so that the reads of its readers are charged there, as for a user.
            let mut command = match &order.join {
                Some(join) => {
                    let mut command = Command::new("/bin/sh");
                    command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(join).arg(fastmap(&own));
                    command
                }
                None => Command::new(fastmap(&own)),
            };
            command.arg("run").args(under).arg("--").arg(&own);
            command
        }
        None => Command::new("/proc/self/exe"),
    };
    // The kernel kills it when the bench ends, however that ends; `fastmap run` takes the worker along. PR_SET_PDEATHSIG(2const)
    // SAFETY: the new process makes one system call more, with numbers.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command
        .args(["worker", &text])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Both pipes are drained while the worker runs, so that the worker never blocks on them.
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let Some(status) = wait(&mut child, within).map_err(failed)? else { return Ok(None) };
    let stdout = stdout.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
    Ok(Some(Ended { status, stdout, stderr }))
}

/// The path of the command `fastmap`: beside this executable, else in PATH.
pub fn fastmap(own: &Path) -> PathBuf {
    let beside = own.with_file_name("fastmap");
    if beside.exists() { beside } else { "fastmap".into() }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error the bytes so far are used.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for a worker. None: it was killed since it took longer than `within`.
fn wait(child: &mut Child, within: Option<Duration>) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let late = within.is_some_and(|within| began.elapsed() > within);
        if late || interrupt::requested() {
            // SAFETY: no memory is handed over. The group is the child's. The child is not waited for yet, so no other group can have its
            // number.
            unsafe { libc::killpg(child.id() as libc::pid_t, libc::SIGKILL) };
            let status = child.wait()?;
            return Ok(Some(status).filter(|_| !late));
        }
        thread::sleep(POLL);
    }
}
