//! One run of a program for `fastmap bench try`, heard while it runs.

use std::sync::mpsc::{self, RecvTimeoutError};

use super::*;

/// How often the run is looked at beside what it says.
const LOOK: Duration = Duration::from_millis(100);

/// A run that is to be made.
pub struct Job<'a> {
    /// The program.
    pub tool: &'a Tool,
    /// The directory of its data.
    pub data: &'a Path,
    /// How long it works.
    pub seconds: f64,
    /// To be run under `fastmap run`: that command.
    pub under: Option<&'a Path>,
    /// What a process writes "0" into to join the memory cgroup.
    pub join: Option<PathBuf>,
}

/// What the program has said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// Operations so far, at its end all of them.
    pub ops: u64,
    /// The time they took, seconds.
    pub seconds: f64,
    /// Operations a second since it last said how far it is.
    pub now: f64,
    /// At its end: a sum of what each batch of operations read.
    pub sums: Vec<String>,
}

impl Heard {
    /// Operations a second, from beginning to end.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds
    }

    /// A line that is none of its own says nothing.
    fn hear(&mut self, line: &str) {
        let Some(done) = line.strip_prefix("at ").or(line.strip_prefix("end ")).and_then(work_of) else { return };
        self.now = done.ops.saturating_sub(self.ops) as f64 / (done.seconds - self.seconds);
        (self.ops, self.seconds, self.sums) = (done.ops, done.seconds, done.sums);
    }
}

/// Makes a run. `look` is called often, with what the process has said so far; where it says no the process is killed.
///
/// # Errors
///
/// That the process could not be started or failed, that it was killed.
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

/// Without what the environment tells `fastmap run` to do otherwise.
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
