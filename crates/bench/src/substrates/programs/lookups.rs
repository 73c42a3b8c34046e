//! One run of the program of `fastmap bench try` (`lookups.c`), heard while it runs.

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
    /// How long it looks keys up.
    pub seconds: f64,
    /// To be run under `fastmap run`: that command.
    pub under: Option<&'a Path>,
    /// What a process writes "0" into to join the memory cgroup.
    pub join: Option<PathBuf>,
}

/// What the program has said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Looked {
    /// Lookups it came to, and the time that took.
    pub lookups: u64,
    /// Seconds.
    pub seconds: f64,
    /// Of one lookup in microseconds: the median, of a thousand the slowest but one, the slowest of all.
    pub latency_us: [f64; 3],
    /// The most memory it had at a time, pages of its file among it.
    pub peak: u64,
    /// A sum of what each batch of lookups read.
    pub sums: Vec<String>,
    /// About each second: when that was, and lookups so far.
    pub course: Vec<(f64, u64)>,
}

impl Looked {
    /// Lookups a second, from beginning to end.
    pub fn rate(&self) -> f64 {
        self.lookups as f64 / self.seconds
    }

    /// The same in the last `seconds`; what was before it is as if it had never been.
    pub fn last(&self, seconds: f64) -> f64 {
        let from = self.course.iter().rfind(|(at, _)| *at <= self.seconds - seconds).copied().unwrap_or((0.0, 0));
        (self.lookups - from.1) as f64 / (self.seconds - from.0)
    }

    /// The same in the last second that it spoke of.
    pub fn now(&self) -> f64 {
        let mut back = self.course.iter().rev().copied();
        let (to, from) = (back.next().unwrap_or((1.0, 0)), back.next().unwrap_or((0.0, 0)));
        (to.1 - from.1) as f64 / (to.0 - from.0)
    }

    fn hear(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let mut numbers = rest.split_whitespace();
        match word {
            "second" => self.course.push((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?)),
            "latency" => {
                for latency in &mut self.latency_us {
                    *latency = numbers.next()?.parse().ok()?;
                }
            }
            "peak" => self.peak = numbers.next()?.parse().ok()?,
            _ => {
                let done = ours(line)?;
                (self.lookups, self.seconds, self.sums) = (done.ops, done.seconds, done.sums);
            }
        }
        Some(())
    }
}

/// Makes a run. `look` is called often, with what the process has said so far; where it says no the process is killed.
///
/// # Errors
///
/// That the process could not be started or failed, that it was killed.
pub fn run(job: &Job<'_>, mut look: impl FnMut(&Looked) -> bool) -> std::result::Result<Looked, String> {
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
    let mut looked = Looked::default();
    loop {
        match heard.recv_timeout(LOOK) {
            // A word that is none of ours is missed at the end.
            Ok(line) => drop(looked.hear(&line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !look(&looked) {
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
    if looked.lookups == 0 { Err("gave no answer".to_owned()) } else { Ok(looked) }
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
        let mut looked = Looked::default();
        for line in
            ["begin", "second 1.5 300", "second 3.000 800", "noise", "end 1000 4 a b c", "latency 1 2 3.5", "peak 4096"]
        {
            looked.hear(line);
        }
        let expected = Looked {
            lookups: 1000,
            seconds: 4.0,
            latency_us: [1.0, 2.0, 3.5],
            peak: 4096,
            sums: ["a", "b", "c"].map(str::to_owned).to_vec(),
            course: vec![(1.5, 300), (3.0, 800)],
        };
        assert_eq!(looked, expected);
        assert_eq!((looked.rate(), looked.last(1.0), looked.last(2.0)), (250.0, 200.0, 280.0));
        assert_eq!((looked.now(), Looked::default().now()), (500.0 / 1.5, 0.0));
        assert_eq!(looked.last(3.0), 250.0, "nothing is known of the first second");
    }
}
