//! Finds or builds programs with compilers, modules and commands, and makes their command lines.

use super::known::From;
use super::*;

/// How a program is started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Tool {
    /// A program of ours: the words of its command line before `make` and `run`.
    Ours(Vec<PathBuf>),
    /// ripgrep, which searches all of its data once.
    Ripgrep(PathBuf),
    /// fio.
    Fio(PathBuf),
}

/// The library that gives advice, and the advice that it gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Advice {
    /// The library, which is preloaded.
    pub library: PathBuf,
    /// `random` or `sequential`.
    pub what: String,
}

/// The pattern that ripgrep searches for.
const PATTERN: &str = r"sh[a-e]d\w";

impl Tool {
    /// The command that makes the data. None: the data are text, which the bench writes.
    pub fn make(&self, data: &Path, bytes: u64) -> Option<Vec<OsString>> {
        match self {
            Tool::Ours(before) => {
                let before = before.iter().map(OsString::from);
                Some(before.chain(["make".into(), data.into(), bytes.to_string().into()]).collect())
            }
            Tool::Ripgrep(_) => None,
            Tool::Fio(fio) => {
                let flags = ["--rw=write", "--bs=1m", "--do_verify=0", "--output=/dev/null"].map(OsString::from);
                Some(fio_job(fio, data).chain([format!("--size={bytes}").into()]).chain(flags).collect())
            }
        }
    }

    /// The command of a run. With `warm_up`, the program is made warm first.
    pub fn run(&self, data: &Path, seconds: f64, warm_up: Option<WarmUp>) -> Vec<OsString> {
        match self {
            Tool::Ours(before) => {
                let before = before.iter().map(OsString::from);
                let run = ["run".into(), data.into(), seconds.to_string().into()];
                before.chain(run).chain(warm_up.map(|_| "warm".into())).collect()
            }
            Tool::Ripgrep(rg) => {
                let flags = ["--no-config", "--mmap", "-c", PATTERN].map(OsString::from);
                [rg.into()].into_iter().chain(flags).chain([data.join("text").into()]).collect()
            }
            Tool::Fio(fio) => {
                let ms = |seconds: f64| (seconds * 1e3).ceil();
                let ramp = warm_up.map_or(0.0, |warm_up| warm_up.seconds);
                let times = [format!("--runtime={}ms", ms(seconds)), format!("--ramp_time={}ms", ms(ramp))];
                let flags = [
                    "--rw=randread",
                    "--bs=4k",
                    "--ioengine=mmap",
                    "--thread",
                    "--time_based",
                    "--norandommap",
                    "--random_generator=tausworthe64",
                    "--verify_fatal=1",
                    "--output-format=json",
                ];
                fio_job(fio, data).chain(times.map(OsString::from)).chain(flags.map(OsString::from)).collect()
            }
        }
    }

    /// The result that the program has printed (`said`). It has worked for `window`.
    pub(super) fn done(&self, said: &str, data: &Path, window: Duration) -> Option<Done> {
        match self {
            Tool::Ours(_) => ours(said),
            Tool::Fio(_) => of_fio(said),
            Tool::Ripgrep(_) => {
                let count: u64 = said.trim().parse().ok()?;
                let bytes = data.join("text").metadata().ok()?.len();
                Some(Done { ops: bytes / 4096, seconds: window.as_secs_f64(), sums: vec![format!("{count} lines")] })
            }
        }
    }
}

fn fio_job(fio: &Path, data: &Path) -> impl Iterator<Item = OsString> {
    let mut file = OsString::from("--filename=");
    file.push(data.join("rows"));
    let flags = ["--name=rows", "--verify=crc32c", "--verify_interval=4k", "--verify_state_save=0"].map(OsString::from);
    [fio.into(), file].into_iter().chain(flags)
}

/// The directory in which programs are compiled and written out.
pub struct Workshop {
    dir: PathBuf,
    /// The Python interpreter itself. The command in PATH may be a script that looks for it.
    python: Option<PathBuf>,
}

impl Workshop {
    /// Makes the directory.
    ///
    /// # Errors
    ///
    /// It cannot be written to.
    pub fn new(dir: PathBuf) -> io::Result<Workshop> {
        fs::create_dir(&dir)?;
        fs::write(dir.join("program.h"), include_str!("program.h"))?;
        fs::write(dir.join("program.py"), include_str!("program.py"))?;
        fs::write(dir.join("advice.c"), include_str!("advice.c"))?;
        let said = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let python = said.ok().filter(|said| said.status.success());
        let python = python.map(|said| PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()));
        Ok(Workshop { dir, python })
    }

    /// Compiles the library that gives advice.
    ///
    /// # Errors
    ///
    /// There is no compiler, or it fails.
    pub fn advice(&self) -> std::result::Result<PathBuf, String> {
        let library = self.dir.join("advice.so");
        self.compile(&library, "advice.c", &["-shared", "-fPIC", "-ldl"])?;
        Ok(library)
    }

    /// Gets a program ready to be run.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be had, with the package to install.
    pub fn have(&self, program: &Program) -> std::result::Result<Tool, String> {
        let mut whys = Vec::new();
        for from in program.from {
            match self.from(program.name, from) {
                Ok(tool) => return Ok(tool),
                Err(why) => whys.push(why),
            }
        }
        Err(format!("{} ({}): install {}", program.name, whys.join("; "), program.packages))
    }

    fn from(&self, name: &str, from: &From) -> std::result::Result<Tool, String> {
        let write = |file: &str, text: &str| fs::write(self.dir.join(file), text).map_err(|e| format!("{file}: {e}"));
        match from {
            From::C(text, flags) => {
                let (source, command) = (format!("{name}.c"), self.dir.join(name));
                write(&source, text)?;
                self.compile(&command, &source, flags)?;
                Ok(Tool::Ours(vec![self.able_to_start(command)?]))
            }
            From::Python(file, text, modules) => {
                let python = self.python.clone().ok_or("no python3 in PATH")?;
                let import = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
                if !import.is_ok_and(|said| said.status.success()) {
                    return Err(format!("no Python module {modules}"));
                }
                write(&format!("{file}.py"), text)?;
                Ok(Tool::Ours(vec![python, self.dir.join(format!("{file}.py"))]))
            }
            From::Java(class, text) => {
                let source = format!("{class}.java");
                write("Program.java", include_str!("Program.java"))?;
                write(&source, text)?;
                let given = std::env::var_os("CLASSPATH").unwrap_or_default();
                let given = std::env::split_paths(&given).filter(|place| !place.as_os_str().is_empty());
                let places = [self.dir.clone()].into_iter().chain(given);
                let places = std::env::join_paths(places).map_err(|e| format!("CLASSPATH: {e}"))?;
                let mut javac = Command::new("javac");
                javac.arg("-cp").arg(&places).arg("-d").arg(&self.dir);
                javac.args(["Program.java", &source].map(|file| self.dir.join(file)));
                wait_for(&mut javac, || true).map_err(|why| format!("javac: {why}"))?;
                let flags = ["-Xmx32m", "-XX:+UseSerialGC", "-cp"].map(PathBuf::from);
                let java = [in_path("java")?].into_iter().chain(flags);
                Ok(Tool::Ours(java.chain([places.into(), class.into()]).collect()))
            }
            From::Ripgrep => in_path("rg").map(Tool::Ripgrep),
            From::Fio => in_path("fio").map(Tool::Fio),
        }
    }

    fn compile(&self, to: &Path, source: &str, flags: &[&str]) -> std::result::Result<(), String> {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-o"]).arg(to).arg(self.dir.join(source)).args(flags);
        wait_for(&mut cc, || true).map_err(|why| format!("cc: {why}"))
    }

    /// Checks that a compiled program can start. A library that it loads at run time may be missing, and the program finds that out only
    /// when it makes data.
    fn able_to_start(&self, command: PathBuf) -> std::result::Result<PathBuf, String> {
        let probe = self.dir.join("probe");
        fs::create_dir(&probe).map_err(|e| e.to_string())?;
        let made = wait_for(Command::new(&command).arg("make").arg(&probe).arg("65536"), || true);
        fs::remove_dir_all(&probe).map_err(|e| e.to_string())?;
        made.map(|()| command)
    }
}

/// The absolute path of a command in PATH.
fn in_path(name: &str) -> std::result::Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| format!("no {name} in PATH"))
}
