//! Memory groups (cgroups(7), versions 1 and 2).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A memory group that is gone with this.
pub struct Group(pub PathBuf);

impl Group {
    /// With a limit, bytes, and no swap.
    pub fn new(limit: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fastmap-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let limit = limit.to_string();
        let (old, new) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (folder, limits) = if old.join("memory.limit_in_bytes").exists() {
            (old.join(name), ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"])
        } else {
            (new.join(name), ["memory.max", "memory.swap.max"])
        };
        std::fs::create_dir(&folder).map_err(|why| format!("no memory group: {}: {why}", folder.display()))?;
        let group = Group(folder);
        let swap = if limits[1] == "memory.swap.max" { "0" } else { &limit };
        std::fs::write(group.0.join(limits[0]), &limit).map_err(|why| format!("no limit on a memory group: {why}"))?;
        // Where swap is not counted there is none to count, or the memory takes longer to fill.
        let _ = std::fs::write(group.0.join(limits[1]), swap);
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Those that were killed in it leave it a moment later.
        while std::fs::remove_dir(&self.0).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            std::thread::yield_now();
        }
    }
}
