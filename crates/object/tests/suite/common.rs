//! What the tests share: folders, random numbers, processes of their own, objects opened for a test.

pub use crate::effort::{quick_or_full, skip, under_load};
pub use crate::random::{Random, seed};
use crate::store::Store;
use fastmap::Cache;
use fastmap_object::{ObjectMap, ObjectOptions};
use fastmap_tier::Tier;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub const PAGE: usize = 4096;
pub const UNIT: usize = fastmap_tier::UNIT as usize;
pub const MIB: usize = 1 << 20;

/// A folder on the disk of the build directory.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build directory")
}

/// Whether maps with a cache work here; otherwise says why a test is skipped.
pub fn ready() -> bool {
    static WHY_NOT: LazyLock<Option<String>> = LazyLock::new(|| {
        let missing = fastmap::requirements::of_machine().into_iter().filter(|one| !one.optional);
        missing.filter_map(|one| Some(format!("{} is missing: {}", one.name, one.found.err()?))).next()
    });
    WHY_NOT.as_ref().inspect(|why| skip(why)).is_none()
}

/// A folder of local copies.
pub fn tier(folder: &Path, limit: usize) -> Arc<Tier> {
    Tier::open(Some(&folder.join("tier")), Some(limit as u64)).unwrap()
}

/// How most tests open: a small cache, a folder of their own, a deadline that is long enough for a busy machine.
pub fn options(tier: &Arc<Tier>) -> ObjectOptions {
    let mut options = ObjectOptions::new();
    options.cache(&Cache::new(4 * MIB).unwrap()).tier(tier);
    options
}

pub fn open(tier: &Arc<Tier>, url: &str) -> ObjectMap {
    options(tier).map(url).unwrap()
}

/// A map whose store gives up after so long.
pub fn open_for(tier: &Arc<Tier>, url: &str, deadline: Duration) -> ObjectMap {
    options(tier).deadline(Some(deadline)).map(url).unwrap()
}

/// A store with one object in it, and a tier.
pub fn store_with(bytes: &Arc<Vec<u8>>) -> (Store, tempfile::TempDir, Arc<Tier>) {
    let store = Store::start();
    store.put("/object", bytes);
    let folder = folder();
    let tier = tier(folder.path(), 256 * MIB);
    (store, folder, tier)
}

/// Bytes of which no two pages are the same.
pub fn pattern(len: usize) -> Arc<Vec<u8>> {
    let mut random = Random::new(len as u64);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(len);
    Arc::new(bytes)
}

/// The rest of the test runs in a process of its own, with these environment variables, and none that name credentials.
macro_rules! alone {
    ($($name:expr => $value:expr),* $(,)?) => {
        fn here() {}
        if !$crate::common::is_alone(std::any::type_name_of_val(&here), &[$(($name, $value)),*]) {
            return;
        }
    };
}

/// Whether this process is for one test, which is told by a function inside of it. Otherwise runs it in one of its own.
pub fn is_alone(here: &str, variables: &[(&str, &str)]) -> bool {
    let (_, test) = here.split_once("::").expect("the crate");
    let (test, _) = test.rsplit_once("::").expect("the function inside");
    if std::env::var("FASTMAP_TEST_ALONE").is_ok_and(|alone| alone == test) {
        return ready();
    }
    let output = child(test).envs(variables.iter().copied()).output().unwrap();
    said(&output);
    assert!(output.status.success(), "{test}: {}", output.status);
    false
}

/// This executable, to run one test in a process of its own, that finds no credentials on this machine and looks for none elsewhere.
pub fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("FASTMAP_TEST_ALONE", test);
    for (name, _) in std::env::vars() {
        if ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true").env("NO_PROXY", "*");
    command
}

/// What a child said, and what it could not run.
pub fn said(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    for line in err.lines().filter(|line| line.starts_with("skipped: ")) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{line}\n").as_bytes());
    }
}

/// Waits for a condition.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}
