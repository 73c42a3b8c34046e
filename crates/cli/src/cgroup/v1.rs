//! The limit of a version 1 memory cgroup. Kernel documentation: admin-guide/cgroup-v1/memory.rst

use std::fs;
use std::path::Path;

use super::Unavailable;

/// Limits the group to `bytes` of memory, kernel memory such as page tables included, and keeps it out of swap.
pub fn limit(dir: &Path, bytes: u64) -> Result<(), Unavailable> {
    let file = dir.join("memory.limit_in_bytes");
    fs::write(&file, bytes.to_string()).map_err(Unavailable::at(&file, "cannot set the limit"))?;
    // The first file is missing where the kernel does not account swap. Then there is no swap, or the second file must do.
    let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), bytes.to_string());
    let _ = fs::write(dir.join("memory.swappiness"), "0");
    Ok(())
}
