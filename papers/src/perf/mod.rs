//! Sampling the whole machine with perf(1), where it is installed and allowed.

mod parts;

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastmap_cli::failure::Failure;
use tempfile::TempDir;

pub use self::parts::{Part, part};

/// Samples a second of each processor; the paper's. Odd, so that it keeps step with no timer.
pub const HERTZ: u32 = 999;

/// Of each processor: some ten thousand samples, for perf gets to write them down late where the machine is busy.
const BUFFER: &str = "8M";

/// How long perf may take to begin, and to write the rest when it is to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names of the FIFOs by which perf is told to begin, and says that it has.
const CONTROL: &str = "control";
const ACKNOWLEDGE: &str = "acknowledge";

/// One sample.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The thread's name.
    pub thread: String,
    pub pid: u32,
    /// 0 of an idle processor.
    pub tid: u32,
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// What was active, innermost first.
    pub frames: Vec<Frame>,
}

/// One active function.
#[derive(Debug, Clone)]
pub struct Frame {
    pub symbol: String,
    /// The file it is in.
    pub module: String,
    pub kernel: bool,
}

/// A perf at work. Dropped, it is ended and what it wrote is gone.
pub struct Recording {
    perf: Child,
    dir: TempDir,
}

/// Whether perf can sample the whole machine, the kernel included; else why not, half a sentence.
pub fn allowed() -> Result<(), String> {
    let recorded = (|| -> io::Result<Result<(), String>> {
        let dir = tempfile::tempdir()?;
        let output = record(&dir).args(["--", "true"]).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().map(str::trim).find(|line| !line.is_empty() && !line.ends_with(':'));
            return Ok(Err(format!("perf record -a failed: {}", first.unwrap_or("it does not say why"))));
        }
        let kernel = script(&dir, (0, u64::MAX))?.contains("[kernel.kallsyms]");
        Ok(if kernel { Ok(()) } else { Err("perf may not look into the kernel here".to_owned()) })
    })();
    match recorded {
        Ok(verdict) => verdict,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("perf is not installed".to_owned()),
        Err(error) => Err(format!("perf cannot be run: {error}")),
    }
}

/// The processor's clock, since virtual machines often lack its counters; no cache of build ids in the user's home.
fn record(dir: &TempDir) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-a", "-g", "-N", "-B", "-k", "CLOCK_MONOTONIC", "-e", "cpu-clock", "-m", BUFFER, "-F"]);
    perf.arg(HERTZ.to_string()).arg("-o").arg(data(dir));
    perf
}

/// Makes a FIFO and opens it for both, so that neither end waits for the other. mkfifo(3).
fn fifo(dir: &TempDir, name: &str) -> io::Result<File> {
    let path = dir.path().join(name);
    let bytes = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a string that ends with a zero, which the call reads.
    if unsafe { libc::mkfifo(bytes.as_ptr(), 0o600) } != 0 {
        return Err(io::Error::last_os_error());
    }
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn data(dir: &TempDir) -> PathBuf {
    dir.path().join("perf.data")
}

/// What it recorded between two moments; functions are looked up for these samples only.
fn script(dir: &TempDir, window_ns: (u64, u64)) -> io::Result<String> {
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let window = format!("{},{}", seconds(window_ns.0), seconds(window_ns.1));
    let mut perf = Command::new("perf");
    perf.args(["script", "--ns", "--no-inline", "-F", "comm,pid,tid,time,ip,sym,dso", "--time", &window, "-i"])
        .arg(data(dir));
    let output = perf.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Recording {
    /// Begins; when this returns, it samples.
    ///
    /// # Errors
    ///
    /// If perf cannot be run after all.
    pub fn start() -> Result<Recording, Failure> {
        let dir = tempfile::tempdir().map_err(failed)?;
        let mut control = fifo(&dir, CONTROL).map_err(failed)?;
        let mut acknowledged = fifo(&dir, ACKNOWLEDGE).map_err(failed)?;
        let mut command = record(&dir);
        // It opens its events, which takes some time, and waits to be told.
        command.arg("--delay=-1").arg(format!(
            "--control=fifo:{},{}",
            dir.path().join(CONTROL).display(),
            dir.path().join(ACKNOWLEDGE).display()
        ));
        // It ends with the bench, however that ends. PR_SET_PDEATHSIG(2const).
        // SAFETY: the child makes one system call, which takes no memory, before it becomes perf.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGINT) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let perf = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(failed)?;
        let mut recording = Recording { perf, dir };
        control.write_all(b"enable\n").map_err(failed)?;
        let deadline = Instant::now() + PATIENCE;
        let mut answer = [0; 16];
        while acknowledged.read(&mut answer).is_err() {
            if recording.perf.try_wait().map_err(failed)?.is_some() || Instant::now() > deadline {
                return Err(failed(io::Error::other("it does not begin")));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(recording)
    }

    /// Ends, and gives the samples between two moments of CLOCK_MONOTONIC.
    ///
    /// # Errors
    ///
    /// If there are none.
    pub fn finish(mut self, window_ns: (u64, u64)) -> Result<Vec<Sample>, Failure> {
        self.end().map_err(failed)?;
        let text = script(&self.dir, window_ns).map_err(failed)?;
        let within: Vec<Sample> =
            samples(&text).filter(|sample| (window_ns.0..=window_ns.1).contains(&sample.at_ns)).collect();
        match within.is_empty() {
            true => Err(failed(io::Error::other("it has no sample of the run"))),
            false => Ok(within),
        }
    }

    /// Asks it to end, as Ctrl-C does, and waits until it has written everything.
    fn end(&mut self) -> io::Result<()> {
        if self.perf.try_wait()?.is_some() {
            return Ok(());
        }
        // SAFETY: no memory is handed over, and the process is a child not waited for yet.
        unsafe { libc::kill(self.perf.id() as libc::pid_t, libc::SIGINT) };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.perf.try_wait()? {
                return match status.success() || status.signal() == Some(libc::SIGINT) {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("it ended with {status}"))),
                };
            }
            sleep(Duration::from_millis(5));
        }
        self.perf.kill()?;
        self.perf.wait()?;
        Err(io::Error::other("it does not end"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // It has ended, or is not to outlive the failure that is on its way.
        let _ = self.end();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::new("perf", error, "try again, or give --no-perf")
}

/// The samples in what `perf script` prints: a line with the thread, its ids and the time, then a line for each function, then
/// an empty one.
pub fn samples(script: &str) -> impl Iterator<Item = Sample> {
    script.split("\n\n").filter_map(sample)
}

fn sample(text: &str) -> Option<Sample> {
    let mut lines = text.lines().skip_while(|line| line.trim().is_empty());
    // A thread's name may have spaces in it.
    let (rest, time) = lines.next()?.trim().rsplit_once(char::is_whitespace)?;
    let (thread, ids) = rest.trim_end().rsplit_once(char::is_whitespace)?;
    let (time, (pid, tid)) = (time.strip_suffix(':')?, ids.split_once('/')?);
    let thread = thread.trim().to_owned();
    let (seconds, nanoseconds) = time.split_once('.')?;
    let at_ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + format!("{nanoseconds:0<9}").parse::<u64>().ok()?;
    // Ids of threads that have ended may come as -1.
    let id = |text: &str| text.parse::<i64>().ok().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    Some(Sample { thread, pid: id(pid)?, tid: id(tid)?, at_ns, frames: lines.filter_map(frame).collect() })
}

/// `address function (module)`; the function may have spaces and brackets in it.
fn frame(line: &str) -> Option<Frame> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, module) = rest.trim().rsplit_once(" (")?;
    let module = module.strip_suffix(')')?;
    let kernel = module.starts_with("[kernel") || module.starts_with("[guest.kernel") || module.ends_with(".ko");
    Some(Frame { symbol: symbol.to_owned(), module: module.to_owned(), kernel })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perf 6.1 prints it.
    const SCRIPT: &str = "\
load  3281/3302  36671.875682440: 
\tffffffff815fc7e2 page_vma_mapped_walk ([kernel.kallsyms])
\tffffffff81602568 try_to_unmap_one ([kernel.kallsyms])
\t          1e025a <fastmap_bench::substrates::engine::Mapped as fastmap_bench::substrates::engine::Access>::write (/usr/bin/fastmap)

opt cgu.09  3202/3284  36671.878359141: 
\t         8e4db5b (anonymous namespace)::CFIInstrInserter::runOnMachineFunction (/usr/lib/libLLVM.so)

swapper     0/0     36671.9: 
\tffffffff815924b7 pv_native_safe_halt ([kernel.kallsyms])

";

    #[test]
    fn samples_are_read_back() {
        let samples: Vec<Sample> = samples(SCRIPT).collect();
        assert_eq!(samples.len(), 3);
        let names: Vec<_> = samples.iter().map(|s| (s.thread.as_str(), s.pid, s.tid, s.frames.len())).collect();
        assert_eq!(names, [("load", 3281, 3302, 3), ("opt cgu.09", 3202, 3284, 1), ("swapper", 0, 0, 1)]);
        assert_eq!((samples[0].at_ns, samples[2].at_ns), (36_671_875_682_440, 36_671_900_000_000));
        let frames = &samples[0].frames;
        assert!(frames[0].kernel && frames[0].symbol == "page_vma_mapped_walk");
        assert!(!frames[2].kernel && frames[2].module == "/usr/bin/fastmap");
        assert!(frames[2].symbol.ends_with("Access>::write"), "{frames:?}");
        assert_eq!(samples[1].frames[0].symbol, "(anonymous namespace)::CFIInstrInserter::runOnMachineFunction");
    }

    #[test]
    fn what_is_no_sample_is_passed_over() {
        assert_eq!(samples("").count(), 0);
        assert_eq!(samples("nonsense\n\nmore: of it\n\n").count(), 0);
        assert_eq!(samples("gone  -1/-1  1.5: \n\n").next().unwrap().pid, u32::MAX);
    }

    #[test]
    fn whether_it_is_allowed_can_be_asked() {
        if let Err(why) = allowed() {
            assert!(why.contains("perf"), "{why}");
            eprintln!("not here: {why}");
        }
    }
}
