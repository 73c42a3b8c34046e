//! An object of 1 GiB in MinIO on this machine, 10 ms added to each request, read through a map with a cache of 96 MiB, beside other ways to read
//! it. Each number is the median of five, with the least and the most; every byte is verified.
//!
//!     FASTMAP_MINIO=~/go/bin/minio FASTMAP_PYTHON=python3 cargo run --release -p fastmap-object --example bench [FOLDER [MIB [WHICH]]]
//!
//! The mounts are rclone's and s3fs-fuse's, where these are installed and FUSE works.
//! FASTMAP_MINIO names the server, beside which mc lies (`scripts/minio mc` builds both); FASTMAP_PYTHON an interpreter with s3fs and pyarrow, if there is
//! one. FOLDER is on the disk to be measured; there must be room for four times the object. WHICH: only rows with this in them.

use fastmap::{Cache, Map, MapOptions};
use fastmap_object::{ObjectMap, ObjectOptions};
use fastmap_tier::{Tier, UNIT};
use futures::StreamExt;
use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const RUNS: usize = 5;
const ROWS: usize = 1000;
const ADDED: Duration = Duration::from_millis(10);
const CACHE: usize = 96 * MIB;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "target/object-bench".into()));
    let len = arguments.next().map_or(Ok(1024), |mib| mib.parse::<usize>())? * MIB;
    std::fs::create_dir_all(&folder)?;
    let which = arguments.next().unwrap_or_default();
    let store = Store::start(&folder, len)?;
    let bench = Bench { tier: folder.join("tier"), plain: folder.join("plain"), len };

    println!("| work | way | median | best | worst |\n| --- | --- | --- | --- | --- |");
    let rate = |seconds: f64| format!("{:.0} MB/s", len as f64 / seconds / 1e6);
    // In turns.
    let rows_of = |work: &str, ways: &mut [(&str, &mut dyn FnMut() -> Outcome<f64>)], show: &dyn Fn(f64) -> String| {
        let mut ways: Vec<_> = ways
            .iter_mut()
            .filter(|(way, _)| format!("{work}, {way}").contains(&which))
            .map(|way| (way, vec![], 0.0))
            .collect();
        let mut round = || -> Outcome<()> {
            for ((_, run), seconds, taken) in &mut ways {
                let before = processor();
                seconds.push(run()?);
                *taken += processor() - before;
            }
            Ok(())
        };
        if let Err(error) = (0..RUNS).try_for_each(|_| round()) {
            return println!("| {work} | not run: {error} | | | |");
        }
        for ((way, _), mut seconds, taken) in ways {
            eprintln!("{way}: {:.2} s of a processor each, the proxy included", taken / RUNS as f64);
            seconds.sort_by(f64::total_cmp);
            let [least, median, most] = [0, RUNS / 2, RUNS - 1].map(|at| show(seconds[at]));
            println!("| {work} | {way} | {median} | {least} | {most} |");
        }
    };
    let row = |work: &str, way: &str, run: &mut dyn FnMut() -> Outcome<f64>, show: &dyn Fn(f64) -> String| {
        rows_of(work, &mut [(way, run)], show);
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let operator = store.operator()?;

    let work = "forward, first time";
    for (size, depth) in [(4, 8), (4, 16), (4, 32), (16, 4), (16, 8)] {
        let way = format!("GETs of {size} MiB, {depth} at a time, to memory");
        row(work, &way, &mut || runtime.block_on(ranged_gets(&operator, len, size * MIB, depth)), &rate);
    }
    row(work, "mc cat", &mut || store.cat(), &rate);
    row(work, "mc cp to the same disk", &mut || store.copy(), &rate);
    row(work, "fastmap", &mut || bench.forward_first(), &rate);
    for mount in ["rclone", "s3fs"] {
        let way = format!("mmap(2) of {mount}'s mount");
        let whole: Vec<_> = (0..len).step_by(MIB).map(|at| (at, MIB)).collect();
        row(work, &way, &mut || store.mounted(mount, |file| loads(file, &whole, false)), &rate);
    }
    let (local, plain) = ("fastmap, from the local copy", "fastmap, a plain file on the same disk");
    rows_of(
        "forward, again",
        &mut [(local, &mut || bench.forward_again()), (plain, &mut || bench.forward_plain())],
        &rate,
    );

    let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let work = "1000 rows of 4 KiB at random";
    let way = "GETs of 4 KiB, 64 at a time, to memory";
    row(work, way, &mut || runtime.block_on(ranged_rows(&operator, &rows(len))), &milliseconds);
    let way = "GETs of the 256 KiB around each, 64 at a time, to memory";
    row(work, way, &mut || runtime.block_on(ranged_rows(&operator, &units(len))), &milliseconds);
    row(work, "s3fs", &mut || store.python("s3fs", &rows(len)), &milliseconds);
    row(work, "pyarrow", &mut || store.python("pyarrow", &rows(len)), &milliseconds);
    row(work, "fastmap, first time", &mut || bench.gather_first(), &milliseconds);
    for mount in ["rclone", "s3fs"] {
        let way = format!("mmap(2) of {mount}'s mount, first time");
        row(work, &way, &mut || store.mounted(mount, |file| loads(file, &rows(len), false)), &milliseconds);
        let way = format!("{way}, after MADV_WILLNEED for each");
        row(work, &way, &mut || store.mounted(mount, |file| loads(file, &rows(len), true)), &milliseconds);
    }
    rows_of(work, &mut [(local, &mut || bench.gather_again()), (plain, &mut || bench.gather_plain())], &milliseconds);

    let python = std::env::var("FASTMAP_PYTHON").unwrap_or_else(|_| "python3".into());
    let programs = [("rg --mmap", ["rg", "--mmap", "-ac", NOWHERE]), ("numpy.memmap", [&python, "-c", SUM, "numpy"])];
    for (name, program) in programs {
        let work = format!("{name}, unchanged, {} MiB of memory, again", LIMIT / MIB);
        let (kernel, engine, object) =
            ("the kernel's, of a local copy", "fastmap run, of a local copy", "fastmap run --object");
        let ways: &mut [(&str, &mut dyn FnMut() -> Outcome<f64>)] = &mut [
            (kernel, &mut || bench.walk(&program, &[], &bench.plain)),
            (engine, &mut || bench.walk(&program, &["run", "--"], &bench.plain)),
            (object, &mut || bench.walk_object(&program)),
        ];
        rows_of(&work, ways, &rate);
    }
    if which.is_empty() { bench.random_reads() } else { Ok(()) }
}

/// What this process has taken, seconds.
fn processor() -> f64 {
    // SAFETY: zeroes are a value, which the system fills.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// A word of the object: nothing that another place has.
fn word(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5555
}

fn verify(at: usize, bytes: &[u8]) -> Outcome<()> {
    assert!(at.is_multiple_of(8));
    let wrong = bytes.chunks_exact(8).enumerate().fold(0, |wrong, (index, bytes)| {
        wrong | (u64::from_le_bytes(bytes.try_into().unwrap_or_default()) ^ word(at / 8 + index))
    });
    if wrong == 0 { Ok(()) } else { Err(format!("wrong bytes at {at} and behind").into()) }
}

/// The same rows each time.
fn rows(len: usize) -> Vec<(usize, usize)> {
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % (len / PAGE) * PAGE
    };
    (0..ROWS).map(|_| (next(), PAGE)).collect()
}

/// What a map fetches for them.
fn units(len: usize) -> Vec<(usize, usize)> {
    let starts: BTreeSet<usize> = rows(len).iter().map(|(at, _)| at / UNIT as usize * UNIT as usize).collect();
    starts.into_iter().map(|at| (at, (UNIT as usize).min(len - at))).collect()
}

struct Bench {
    tier: PathBuf,
    plain: PathBuf,
    len: usize,
}

impl Bench {
    fn open(&self) -> Outcome<ObjectMap> {
        let tier = Tier::open(Some(&self.tier), Some(4 * self.len as u64))?;
        Ok(ObjectOptions::new().cache(&Cache::new(CACHE)?).tier(&tier).map("s3://bucket/object")?)
    }

    /// With nothing local.
    fn open_first(&self) -> Outcome<ObjectMap> {
        Tier::open(Some(&self.tier), Some(4 * self.len as u64))?.remove(None)?;
        self.open()
    }

    fn forward_first(&self) -> Outcome<f64> {
        let map = self.open_first()?;
        let took = forward(&map)?;
        eprintln!("{:?}", map.stats());
        Ok(took)
    }

    fn forward_again(&self) -> Outcome<f64> {
        let map = self.open()?;
        if !map.object().local().has(0..self.len as u64) {
            forward(&map)?;
            return self.forward_again();
        }
        uncache(map.object().local().file())?;
        let took = forward(&map)?;
        assert_eq!(map.stats().fetched, 0);
        Ok(took)
    }

    fn forward_plain(&self) -> Outcome<f64> {
        forward(&self.open_plain()?)
    }

    fn walk(&self, program: &[&str; 4], before: &[&str], on: &Path) -> Outcome<f64> {
        if on == self.plain {
            uncache(&File::open(on)?)?;
        }
        let fastmap = std::env::current_exe()?.with_file_name("../fastmap");
        let mut command = if before.is_empty() { Command::new(program[0]) } else { Command::new(fastmap) };
        let own = if before.is_empty() { &program[1..] } else { &program[..] };
        command.args(before).args(own).arg(on).stderr(Stdio::inherit());
        limit(&mut command)?;
        let begun = Instant::now();
        let output = command.output()?;
        let took = begun.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&output.stdout);
        let words = self.len / 8;
        let right = if program[0] == "rg" {
            output.status.code() == Some(1) && text.is_empty()
        } else {
            let sums = (0..words).step_by(MIB).map(|at| (at..words.min(at + MIB)).fold(0, |sum, at| sum ^ word(at)));
            output.status.success() && text.split_whitespace().map(str::to_owned).eq(sums.map(|sum| sum.to_string()))
        };
        if right { Ok(took) } else { Err(format!("{}: {} {text:.100}", program[0], output.status).into()) }
    }

    /// Of the object as a file, which is wholly in the local copy and not in memory.
    fn walk_object(&self, program: &[&str; 4]) -> Outcome<f64> {
        let map = self.open()?;
        if !map.object().local().has(0..self.len as u64) {
            forward(&map)?;
        }
        uncache(map.object().local().file())?;
        drop(map);
        let (at, limit) = (self.tier.with_file_name("as-a-file"), (4 * self.len).to_string());
        let object = format!("s3://bucket/object={}", at.display());
        let tier = self.tier.display().to_string();
        self.walk(program, &["run", "--object", &object, "--tier", &tier, "--tier-limit", &limit, "--"], &at)
    }

    fn gather_first(&self) -> Outcome<f64> {
        let map = self.open_first()?;
        let took = gather(&map, self.len)?;
        eprintln!("{:?}", map.stats());
        Ok(took)
    }

    fn gather_again(&self) -> Outcome<f64> {
        gather(&*self.open()?, self.len)?;
        let map = self.open()?;
        uncache(map.object().local().file())?;
        let took = gather(&map, self.len)?;
        assert_eq!(map.stats().fetched, 0);
        Ok(took)
    }

    fn gather_plain(&self) -> Outcome<f64> {
        gather(&self.open_plain()?, self.len)
    }

    fn open_plain(&self) -> Outcome<Map> {
        let file = File::open(&self.plain)?;
        uncache(&file)?;
        // SAFETY: nobody changes the file.
        Ok(unsafe { MapOptions::new().cache(&Cache::new(CACHE)?).map(&file)? })
    }

    /// As many reads of 4 KiB as a tenth of the object has pages.
    fn random_reads(&self) -> Outcome<()> {
        let map = self.open_first()?;
        let reads = self.len / PAGE / 10;
        let mut random = 7_u64;
        for _ in 0..reads {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % (self.len / PAGE) * PAGE;
            verify(at, &map[at..at + PAGE])?;
        }
        let stats = map.stats();
        println!(
            "\n{reads} reads of 4 KiB at random: {} MiB fetched by {} requests",
            stats.fetched >> 20,
            stats.requests
        );
        Ok(())
    }
}

/// A program that walks over a file, in so much memory.
const LIMIT: usize = 128 * MIB;
/// What no line has.
const NOWHERE: &str = "nothing of the kind";
const SUM: &str = r"
import sys, numpy
words = numpy.memmap(sys.argv[2], dtype='u8', mode='r')
print(*[numpy.bitwise_xor.reduce(words[at:at + (1 << 20)]) for at in range(0, len(words), 1 << 20)])
";

/// Has a command, and what it starts, get by with so much memory (cgroups(7), version 1, as this user may; else version 2).
fn limit(command: &mut Command) -> Outcome<()> {
    let (one, two) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    let (root, most) = if one.exists() { (one, "memory.limit_in_bytes") } else { (two, "memory.max") };
    let group = root.join("fastmap-object-bench");
    std::fs::create_dir_all(&group)?;
    std::fs::write(group.join(most), LIMIT.to_string())?;
    let procs = File::options().write(true).open(group.join("cgroup.procs"))?;
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(move || std::io::Write::write_all(&mut &procs, b"0"));
    }
    Ok(())
}

fn forward(map: &Map) -> Outcome<f64> {
    let begun = Instant::now();
    for at in (0..map.len()).step_by(MIB) {
        verify(at, &map[at..at + MIB])?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

fn gather(map: &Map, len: usize) -> Outcome<f64> {
    let ranges = rows(len);
    let mut output = vec![0; ROWS * PAGE];
    let begun = Instant::now();
    map.gather(&ranges, &mut output)?;
    let took = begun.elapsed().as_secs_f64();
    ranges.iter().zip(output.chunks(PAGE)).try_for_each(|((at, _), bytes)| verify(*at, bytes))?;
    Ok(took)
}

/// Rows of a file by the kernel's mmap(2); `hinted`: it is told first which.
fn loads(path: &Path, rows: &[(usize, usize)], hinted: bool) -> Outcome<f64> {
    let file = File::open(path)?;
    // SAFETY: nobody changes the object.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    let begun = Instant::now();
    if hinted {
        rows.iter().try_for_each(|(at, len)| map.advise_range(memmap2::Advice::WillNeed, *at, *len))?;
    }
    rows.iter().try_for_each(|(at, len)| verify(*at, &map[*at..at + len]))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// What is read next comes from the disk.
fn uncache(file: &File) -> Outcome<()> {
    file.sync_all()?;
    // SAFETY: numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

async fn ranged_gets(operator: &opendal::Operator, len: usize, chunk: usize, depth: usize) -> Outcome<f64> {
    let begun = Instant::now();
    let get = |at: usize| async move {
        let bytes = operator.read_with("object").range(at as u64..((at + chunk).min(len)) as u64).await?.to_bytes();
        verify(at, &bytes)
    };
    let mut all = futures::stream::iter((0..len).step_by(chunk).map(get)).buffered(depth);
    while let Some(one) = all.next().await {
        one?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

async fn ranged_rows(operator: &opendal::Operator, rows: &[(usize, usize)]) -> Outcome<f64> {
    let begun = Instant::now();
    let get = |(at, len): (usize, usize)| async move {
        verify(at, &operator.read_with("object").range(at as u64..(at + len) as u64).await?.to_bytes())
    };
    let mut all = futures::stream::iter(rows.iter().copied().map(get)).buffer_unordered(64);
    while let Some(one) = all.next().await {
        one?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// MinIO, and a proxy before it.
struct Store {
    server: Child,
    client: PathBuf,
    folder: PathBuf,
    address: SocketAddr,
}

impl Store {
    fn start(folder: &Path, len: usize) -> Outcome<Store> {
        let minio = PathBuf::from(std::env::var("FASTMAP_MINIO").map_err(|_| "FASTMAP_MINIO names no server")?);
        let direct = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut server = Command::new(&minio);
        server.args(["server", "--quiet", "--address", &direct.to_string(), "--console-address", "127.0.0.1:0"]);
        server.arg(folder.join("minio")).env("MINIO_ROOT_USER", "fastmap").env("MINIO_ROOT_PASSWORD", "fastmapfastmap");
        let server = server.env("MINIO_UPDATE", "off").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let address = proxy(direct)?;
        let store = Store { server, client: minio.with_file_name("mc"), folder: folder.to_owned(), address };
        // SAFETY: there is no other thread yet that looks at the environment.
        unsafe {
            std::env::set_var("AWS_ACCESS_KEY_ID", "fastmap");
            std::env::set_var("AWS_SECRET_ACCESS_KEY", "fastmapfastmap");
            std::env::set_var("AWS_REGION", "us-east-1");
            std::env::set_var("AWS_ENDPOINT_URL", format!("http://{address}"));
        }
        while !store
            .mc(direct)
            .args(["mb", "--ignore-existing", "local/bucket"])
            .stderr(Stdio::null())
            .status()?
            .success()
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        let plain = folder.join("plain");
        if std::fs::metadata(&plain).map_or(0, |file| file.len()) != len as u64 {
            let mut file = std::io::BufWriter::new(File::create(&plain)?);
            (0..len / 8).try_for_each(|at| file.write_all(&word(at).to_le_bytes()))?;
            file.into_inner()?.sync_all()?;
        }
        let put = store.mc(direct).arg("cp").arg(&plain).arg("local/bucket/object").status()?;
        if put.success() { Ok(store) } else { Err("mc cp failed".into()) }
    }

    fn mc(&self, address: SocketAddr) -> Command {
        let mut mc = Command::new(&self.client);
        mc.arg("--config-dir").arg(self.folder.join("mc")).arg("--quiet").stdout(Stdio::null());
        mc.env("MC_HOST_local", format!("http://fastmap:fastmapfastmap@{address}"));
        mc
    }

    fn copy(&self) -> Outcome<f64> {
        let to = self.folder.join("copy");
        let begun = Instant::now();
        let done = self.mc(self.address).args(["cp", "local/bucket/object"]).arg(&to).status()?.success();
        let took = begun.elapsed().as_secs_f64();
        std::fs::remove_file(&to)?;
        if done { Ok(took) } else { Err("mc cp failed".into()) }
    }

    fn cat(&self) -> Outcome<f64> {
        let begun = Instant::now();
        let done = self.mc(self.address).args(["cat", "local/bucket/object"]).status()?.success();
        if done { Ok(begun.elapsed().as_secs_f64()) } else { Err("mc cat failed".into()) }
    }

    /// Does something with the object as a file of a mount that is new.
    fn mounted(&self, by: &str, run: impl FnOnce(&Path) -> Outcome<f64>) -> Outcome<f64> {
        let (at, keys, cache) = (self.folder.join("mount"), self.folder.join("keys"), self.folder.join("cache"));
        let _ = std::fs::remove_dir_all(&cache);
        std::fs::create_dir_all(&at)?;
        std::fs::write(&keys, "fastmap:fastmapfastmap")?;
        std::fs::set_permissions(&keys, Permissions::from_mode(0o600))?;
        let mut mount = Command::new(by);
        if by == "rclone" {
            mount.args(["mount", ":s3:bucket"]).arg(&at).args([
                "--read-only",
                "--vfs-cache-mode",
                "full",
                "--cache-dir",
            ]);
            mount.arg(&cache).args(["--s3-provider", "Minio", "--s3-env-auth", "--config", "/dev/null"]);
            mount.arg("--s3-endpoint").arg(format!("http://{}", self.address)).env_remove("AWS_CA_BUNDLE");
        } else {
            mount.arg("bucket").arg(&at).args(["-f", "-o", "use_path_request_style", "-o"]);
            mount.arg(format!("url=http://{}", self.address)).arg("-o").arg(format!("passwd_file={}", keys.display()));
        }
        let mut server = mount.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let file = at.join("object");
        let begun = Instant::now();
        while !file.exists() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let result = run(&file);
        let unmounted = Command::new("fusermount3").arg("-u").arg(&at).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = Command::new("fusermount").arg("-u").arg(&at).status();
        }
        let _ = server.kill();
        server.wait()?;
        result
    }

    fn operator(&self) -> Outcome<opendal::Operator> {
        let endpoint = format!("http://{}", self.address);
        let s3 = opendal::services::S3::default().bucket("bucket").region("us-east-1").endpoint(&endpoint);
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(opendal::Operator::new(s3)?.finish())
    }

    /// Rows by a library for Python.
    fn python(&self, way: &str, rows: &[(usize, usize)]) -> Outcome<f64> {
        let interpreter = std::env::var("FASTMAP_PYTHON").map_err(|_| "FASTMAP_PYTHON names no interpreter")?;
        let script = format!("{PYTHON}\nmain({way:?}, 'http://{}', {rows:?})", self.address);
        let output = Command::new(interpreter).args(["-c", &script]).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("{way}: {}", output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }
}

const PYTHON: &str = r"
import struct, time
from concurrent.futures import ThreadPoolExecutor

def verify(at, data):
    words = struct.unpack('<%dQ' % (len(data) // 8), data)
    assert all(word == (at // 8 + i) * 0x9E3779B97F4A7C15 % 2**64 ^ 0x5555 for i, word in enumerate(words))

def s3fs(endpoint, rows):
    import s3fs
    fs = s3fs.S3FileSystem(endpoint_url=endpoint, skip_instance_cache=True)
    fs.info('bucket/object')
    begun = time.perf_counter()
    data = fs.cat_ranges(['bucket/object'] * len(rows), [at for at, _ in rows], [at + n for at, n in rows])
    return time.perf_counter() - begun, data

def pyarrow(endpoint, rows):
    from pyarrow import fs
    scheme, _, host = endpoint.partition('://')
    file = fs.S3FileSystem(endpoint_override=host, scheme=scheme).open_input_file('bucket/object')
    # Its own pool has as many threads as there are processors.
    with ThreadPoolExecutor(64) as pool:
        begun = time.perf_counter()
        data = list(pool.map(lambda row: file.read_at(row[1], row[0]), rows))
        return time.perf_counter() - begun, data

def main(way, endpoint, rows):
    seconds, data = globals()[way](endpoint, rows)
    for (at, _), one in zip(rows, data):
        verify(at, one)
    print(seconds)
";

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Has each request wait before it goes on.
fn proxy(to: SocketAddr) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let server = TcpStream::connect(to)?;
                client.set_nodelay(true)?;
                server.set_nodelay(true)?;
                let (mut from, mut back) = (server.try_clone()?, client.try_clone()?);
                std::thread::spawn(move || pass_on(&mut from, &mut back, Duration::ZERO));
                pass_on(&mut &client, &mut &server, ADDED)
            });
        }
    });
    Ok(address)
}

/// What comes at once is one request: nobody sends one before the last was answered.
fn pass_on(from: &mut impl Read, to: &mut impl Write, wait: Duration) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        std::thread::sleep(wait);
        to.write_all(&buffer[..count])?;
    }
}
