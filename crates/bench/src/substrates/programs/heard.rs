//! One run of a program for `fastmap bench try`. Its output is read while it runs.

use std::sync::mpsc::{self, RecvTimeoutError};

use super::*;

/// The longest pause between two calls of `look` ([`run`]), even if the program prints nothing.
const LOOK: Duration = Duration::from_millis(100);

/// A run that is to be made.
pub struct Job<'a> {
    /// The program.
    pub tool: &'a Tool,
    /// The directory of its data.
    pub data: &'a Path,
    /// How long the program works, seconds.
    pub seconds: f64,
    /// The `fastmap` command, if the program is run under `fastmap run`.
    pub under: Option<&'a Path>,
    /// The `cgroup.procs` of the memory cgroup that the process joins, if any.
    pub join: Option<PathBuf>,
}

/// The numbers that the program has reported.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// Operations so far. After the program's end: all operations.
    pub ops: u64,
    /// The time they took, seconds.
    pub seconds: f64,
    /// Operations a second between the last two reports.
    pub now: f64,
    /// For each batch of operations, a checksum of the data that the batch read. Empty until the program's end.
    pub sums: Vec<String>,
}

impl Heard {
    /// Operations a second, from beginning to end.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds
    }

    /// Takes in one line of output: `at OPS SECONDS`, or `end OPS SECONDS SUM...`. Other lines are ignored.
    fn hear(&mut self, line: &str) {
        let Some(done) = line.strip_prefix("at ").or(line.strip_prefix("end ")).and_then(work_of) else { return };
        self.now = done.ops.saturating_sub(self.ops) as f64 / (done.seconds - self.seconds);
        (self.ops, self.seconds, self.sums) = (done.ops, done.seconds, done.sums);
    }
}

/// Makes a run. `look` is called often, with the numbers reported so far. If it returns false, the process is killed.
///
/// # Errors
///
/// The process could not be started, has failed, was killed, or has reported no sums.
pub fn run(job: &Job<'_>, mut look: impl FnMut(&Heard) -> bool) -> std::result::Result<Heard, String> {
    let own = job.tool.run(job.data, job.seconds, None);
    let mut command = match job.under {
        Some(fastmap) => {
            let mut command = Command::new(fastmap);
            command.arg("run").arg("--").args(&own);
            command
        }
        None => {
            let mut command = Command::new(&own[0]);
            command.args(&own[1..]);
            command
        }
    };
    with_defaults(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(join) = &job.join {
        let procs = File::options().write(true).open(join).map_err(|e| format!("{}: {e}", join.display()))?;
        sys::joins(&mut command, procs);
    }
    sys::dies_with_parent(&mut command);
    let mut child = command.spawn().map_err(|e| format!("cannot be started: {e}"))?;
    let words = listen(child.stderr.take());
    let (say, heard) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().expect("piped"));
    thread::spawn(move || out.lines().map_while(io::Result::ok).try_for_each(|line| say.send(line)));
    let mut so_far = Heard::default();
    loop {
        match heard.recv_timeout(LOOK) {
            Ok(line) => so_far.hear(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !look(&so_far) {
            let _ = child.kill();
            let _ = child.wait();
            return Err("interrupted".to_owned());
        }
    }
    let status = child.wait().map_err(|e| format!("cannot be waited for: {e}"))?;
    if !status.success() {
        let words = words.join().unwrap_or_default();
        let last = words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(match status.signal() {
            Some(libc::SIGKILL) => "most likely since it used more memory than it may",
            _ => "it said nothing",
        });
        return Err(format!("ended with {status}: {last}"));
    }
    if so_far.sums.is_empty() { Err("gave no answer".to_owned()) } else { Ok(so_far) }
}

/// Removes the settings of `fastmap run` (`FASTMAP_*`) from a command's environment. Keeps `FASTMAP_PRELOAD`, which names the library.
pub fn with_defaults(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("FASTMAP_") && name != "FASTMAP_PRELOAD") {
            command.env_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_heard() {
        let mut heard = Heard::default();
        ["begin", "at 300 1.5", "noise", "at 800 2.000"].iter().for_each(|line| heard.hear(line));
        assert_eq!((heard.ops, heard.seconds, heard.now), (800, 2.0, 1000.0));
        heard.hear("end 1000 4 a b c");
        let sums = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(heard, Heard { ops: 1000, seconds: 4.0, now: 100.0, sums });
        assert_eq!(heard.rate(), 250.0);
    }
}
