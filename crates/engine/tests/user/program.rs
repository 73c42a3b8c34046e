//! A user's program, for `depth.rs`: every kind of thread loads and stores through maps, on the stacks that it has. Says how deep
//! the engine's handler goes below the kernel's frame.

use fastmap::{Cache, Fallback, MapMut, MapOptions};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGES: usize = 4096;
const LEN: usize = PAGES * 4096;
/// `AT_MINSIGSTKSZ` (getauxval(3)).
const MINSIGSTKSZ: u64 = 51;
const PAINT: u8 = 0xA5;

fn frame() -> usize {
    // The kernel has none for old processors: as signal(7) has it.
    (unsafe { libc::getauxval(MINSIGSTKSZ) } as usize).max(2048)
}

/// All that makes a handler deep: loads, stores, walks, evictions, write-back of a cache that is full of dirty pages.
fn work(base: usize, rounds: usize) {
    let mut x = 0x9E37_79B9_7F4A_7C15u64 ^ rounds as u64;
    for round in 0..rounds {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let random = x as usize % LEN / 8 * 8;
        unsafe {
            ((base + random) as *const u64).read_volatile();
            ((base + (random + LEN / 2) % LEN) as *mut u64).write_volatile(x);
            ((base + round * 4096 * 3 % LEN) as *const u64).read_volatile();
            ((base + (LEN - 8 - round * 4096 % LEN)) as *mut u64).write_volatile(x);
        }
    }
}

fn set_stack(stack: &libc::stack_t) -> libc::stack_t {
    unsafe {
        let mut before: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(stack, &mut before), 0, "{}", std::io::Error::last_os_error());
        before
    }
}

const NONE: libc::stack_t = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

/// Memory with an end: what lies below it, or above, is not there.
fn fenced(len: usize) -> *mut u8 {
    let len = len.next_multiple_of(4096);
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), len + 8192, libc::PROT_NONE, flags, -1, 0).cast::<u8>().add(4096);
        assert_eq!(libc::mprotect(at.cast(), len, libc::PROT_READ | libc::PROT_WRITE), 0);
        at
    }
}

/// Walks over a read-only map in a cache that has buffers and frames for them: reads are submitted, and what has arrived is mapped and
/// moved, by the thread that traps.
fn walk(base: usize, pages: usize) {
    let look = |page: usize| unsafe { ((base + page * 4096) as *const u64).read_volatile() };
    (0..pages).for_each(|page| _ = look(page));
    (0..pages).rev().for_each(|page| _ = look(page));
    (0..pages / 16).for_each(|page| _ = look(page * 16));
}

/// How much of a painted alternate stack the handler takes while something is done, the kernel's frame left out.
fn depth(work: impl FnOnce()) -> usize {
    const SIZE: usize = 256 << 10;
    let at = fenced(SIZE);
    unsafe { at.write_bytes(PAINT, SIZE) };
    let before = set_stack(&libc::stack_t { ss_sp: at.cast(), ss_flags: 0, ss_size: SIZE });
    work();
    set_stack(&before);
    let used = SIZE - (0..SIZE).position(|byte| unsafe { *at.add(byte) } != PAINT).unwrap_or(SIZE);
    assert!(used > 1024, "the handler ran there: {used}");
    used - frame().min(used)
}

/// A thread of the C library with a stack of its own of so many bytes.
fn with_own_stack(bytes: usize, base: usize) {
    extern "C" fn run(base: *mut libc::c_void) -> *mut libc::c_void {
        set_stack(&NONE);
        work(base as usize, 500);
        std::ptr::null_mut()
    }
    unsafe {
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        let mut thread = 0;
        libc::pthread_attr_init(&mut attr);
        assert_eq!(libc::pthread_attr_setstack(&mut attr, fenced(bytes).cast(), bytes), 0, "{bytes}");
        assert_eq!(libc::pthread_create(&mut thread, &attr, run, base as *mut _), 0);
        assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
    }
}

static BASE: AtomicUsize = AtomicUsize::new(0);

/// A coroutine on a stack of so many bytes (makecontext(3)), as green threads have.
fn coroutine(bytes: usize) {
    extern "C" fn body() {
        work(BASE.load(Ordering::Relaxed), 500);
    }
    let stack = fenced(bytes);
    unsafe {
        let mut own: libc::ucontext_t = std::mem::zeroed();
        let mut other: libc::ucontext_t = std::mem::zeroed();
        assert_eq!(libc::getcontext(&mut other), 0);
        other.uc_stack.ss_sp = stack.cast();
        other.uc_stack.ss_size = bytes;
        other.uc_link = &mut own;
        libc::makecontext(&mut other, body, 0);
        assert_eq!(libc::swapcontext(&mut own, &other), 0);
    }
}

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    work(BASE.load(Ordering::Relaxed), 50);
}

fn map(cache: &Cache, file: &std::fs::File, keep: bool) -> MapMut {
    unsafe { MapOptions::new().cache(cache).fallback(Fallback::Refuse).async_stores(keep).map_mut(file) }.unwrap()
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, &vec![b'o'; LEN]).unwrap();
    for keep in [false, true] {
        let cache = Cache::builder().capacity(64 * 4096).high_water(99).keeper(false).build().unwrap();
        let mut map = map(&cache, &file, keep);
        let base = map.as_mut_ptr() as usize;
        BASE.store(base, Ordering::Relaxed);
        work(base, 500);
        set_stack(&NONE);
        work(base, 500);
        println!("depth {}", depth(|| work(base, 4_000)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                // Its alternate stack is Rust's: 8 KiB, or the kernel's frame if that is more.
                scope.spawn(|| work(base, 500));
                // Just the frame, and not a byte below it.
                scope.spawn(|| {
                    let size = frame().next_multiple_of(4096);
                    set_stack(&libc::stack_t { ss_sp: fenced(size).cast(), ss_flags: 0, ss_size: size });
                    let own = unsafe { fenced(size).add(size - frame().next_multiple_of(64)) };
                    set_stack(&libc::stack_t { ss_sp: own.cast(), ss_flags: 0, ss_size: frame().next_multiple_of(64) });
                    work(base, 500);
                });
                // A handler of the program, on an alternate stack that is Rust's, touches maps: of a thread that has before.
                scope.spawn(|| unsafe {
                    work(base, 10);
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = on_signal as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                    libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
                    (0..20).for_each(|_| assert_eq!(libc::raise(libc::SIGUSR1), 0));
                });
            }
        });
        with_own_stack(unsafe { libc::sysconf(libc::_SC_THREAD_STACK_MIN) } as usize, base);
        with_own_stack(64 << 10, base);
        // The frame, and room for what is interrupted: optimised or not, that is little here.
        coroutine(8192.max(frame() + 4096));
        set_stack(&NONE);
        coroutine(8192.max(frame() + 4096));
        map.flush().unwrap();
        drop(map);
    }
    const LARGE: usize = 192 << 20;
    std::io::Write::write_all(&mut &file, &vec![b'o'; LARGE - LEN]).unwrap();
    file.sync_all().unwrap();
    unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let cache = Cache::builder().capacity(LARGE / 2).keeper(false).build().unwrap();
    let map = unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map(&file) }.unwrap();
    println!("depth {}", depth(|| walk(map.as_ptr() as usize, LARGE / 4096)));
    assert!(cache.stats().ahead_used > 1000, "{:?}", cache.stats());
    println!("done");
}
