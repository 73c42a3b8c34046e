//! The callers of `malloc`. The C library itself gets memory that is always present.
//!
//! It passes its own blocks to system calls, and no wrapper sees these calls (stdio's buffers, directory streams,
//! thread tables). A system call that meets an absent page fails.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The most ranges of code that are kept. The objects of [`NAMES`] have fewer.
const MOST: usize = 8;

struct Text {
    start: AtomicUsize,
    len: AtomicUsize,
}

static TEXTS: [Text; MOST] = [const { Text { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; MOST];

/// Whether an address is in the code of an object of [`NAMES`].
#[inline]
pub fn is_system(address: usize) -> bool {
    TEXTS.iter().any(|text| address.wrapping_sub(text.start.load(Ordering::Relaxed)) < text.len.load(Ordering::Relaxed))
}

/// Finds the code of the objects of [`NAMES`]. Called before there are other threads.
pub fn learn() {
    let mut used = 0usize;
    // SAFETY: `note` keeps to what dl_iterate_phdr(3) gives it.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut used).cast()) };
}

/// Parts of the paths of the objects whose blocks stay in memory. libgomp is one of them because it waits on words in
/// its blocks by futex(2), without a wrapper.
const NAMES: [&[u8]; 4] = [b"/libc.so.", b"/ld-linux", b"/libpthread.so.", b"/libgomp.so."];

unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: libc::size_t, used: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the linker's description of one object, and the count that `learn` passes.
    unsafe {
        let (info, used) = (&*info, &mut *used.cast::<usize>());
        if info.dlpi_name.is_null() || info.dlpi_phnum == 0 {
            return 0;
        }
        let name = std::ffi::CStr::from_ptr(info.dlpi_name).to_bytes();
        if !NAMES.iter().any(|part| name.windows(part.len()).any(|window| window == *part)) {
            return 0;
        }
        for header in std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) {
            let code = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
            if let (true, Some(text)) = (code, TEXTS.get(*used)) {
                text.start.store((info.dlpi_addr + header.p_vaddr) as usize, Ordering::Relaxed);
                text.len.store(header.p_memsz as usize, Ordering::Relaxed);
                *used += 1;
            }
        }
    }
    0
}
