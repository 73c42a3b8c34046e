//! Runs single instructions with all registers as a test says, once on memory where stores trap and are done by decoding, and once without
//! traps.

use crate::deferred::decode::{self, Store};
use crate::sys::registers::Registers;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, memory};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts what each thread allocates.
struct Counting;

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Pages of code and registers, of memory that is watched, and of other memory.
const PAGES: usize = 4;
const LEN: usize = PAGES * PAGE;
const STATE: usize = 3 * PAGE;
const STACK: usize = 256 << 10;

/// Registers before an instruction, and the general ones after it.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct State {
    pub vectors: [[u8; 64]; 32],
    pub masks: [u64; 8],
    pub general: [u64; 16],
    /// The general registers behind the instruction.
    pub after: [u64; 16],
    stack: u64,
}

impl State {
    /// Registers full of what `random` gives.
    pub fn random(mut random: impl FnMut() -> u64) -> Self {
        let mut vectors = [[0; 64]; 32];
        for word in vectors.as_flattened_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&random().to_le_bytes());
        }
        let general = std::array::from_fn(|_| random());
        let mut mask = |number: usize| if number.is_multiple_of(2) { random() } else { u64::MAX >> (random() % 64) };
        let masks = std::array::from_fn(&mut mask);
        State { vectors, masks, general, after: [0; 16], stack: 0 }
    }
}

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub memory: Vec<u8>,
    pub general: [u64; 16],
}

/// How many traps the handler served by decoding, and how many it did not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traps {
    pub kept: usize,
    pub refused: usize,
}

static BASE: AtomicUsize = AtomicUsize::new(0);
static SHADOW: AtomicUsize = AtomicUsize::new(0);
static KEPT: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

pub struct Machine {
    previous: libc::sigaction,
    previous_stack: libc::stack_t,
    stack: *mut u8,
    _alone: MutexGuard<'static, ()>,
}

extern "C" fn on_trap(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's structures.
    let (address, registers) = unsafe { ((*info).si_addr() as usize, Registers::new(context)) };
    let before = ALLOCATIONS.with(Cell::get);
    let (base, shadow) = (BASE.load(Ordering::Relaxed), SHADOW.load(Ordering::Relaxed));
    let watched = base + LEN..base + 2 * LEN;
    let mut registers = registers;
    let done = watched.contains(&address)
        && decode::store_at(address, &registers).is_some_and(|store| {
            // SAFETY: the second mapping, on which nobody else is now.
            let to =
                unsafe { std::slice::from_raw_parts_mut((shadow + store.at - watched.start) as *mut u8, store.len()) };
            let stored = store.put(to);
            store.advance(&mut registers, stored);
            stored > 0
        });
    ALLOCATED.fetch_add(ALLOCATIONS.with(Cell::get) - before, Ordering::Relaxed);
    if done {
        KEPT.fetch_add(1, Ordering::Relaxed);
    } else {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the machine's memory. Anything else than a trap there ends the process.
        unsafe {
            if !(base..base + 3 * LEN).contains(&address)
                || memory::protect((base + LEN) as *mut u8, 2 * LEN, true).is_err()
            {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            }
        }
    }
}

impl Machine {
    pub fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        decode::prepare();
        let base = memory::reserve(3 * LEN, PAGE).unwrap();
        let stack = memory::reserve(STACK, PAGE).unwrap();
        let map = |at: *mut u8, flags: libc::c_int, fd: libc::c_int, protection: libc::c_int| {
            // SAFETY: where the machine has reserved, or anywhere.
            let at = unsafe { libc::mmap(at.cast(), LEN, protection, flags, fd, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at as usize
        };
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: descriptors, memory and a handler of our own, until the machine is dropped.
        unsafe {
            memory::protect(stack, STACK, true).unwrap();
            let fd = libc::memfd_create(c"watched".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, LEN as libc::off_t), 0);
            map(base, private, -1, both | libc::PROT_EXEC);
            map(base.add(LEN), libc::MAP_SHARED | libc::MAP_FIXED, fd, both);
            map(base.add(2 * LEN), private, -1, both);
            SHADOW.store(map(ptr::null_mut(), libc::MAP_SHARED, fd, both), Ordering::Relaxed);
            libc::close(fd);
            BASE.store(base as usize, Ordering::Relaxed);
            let mut previous_stack = MaybeUninit::uninit();
            let own = libc::stack_t { ss_sp: stack.cast(), ss_flags: 0, ss_size: STACK };
            assert_eq!(libc::sigaltstack(&own, previous_stack.as_mut_ptr()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut previous = MaybeUninit::uninit();
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, previous.as_mut_ptr()), 0);
            let (previous, previous_stack) = (previous.assume_init(), previous_stack.assume_init());
            Machine { previous, previous_stack, stack, _alone: alone }
        }
    }

    /// Addresses whose stores trap.
    pub fn watched(&self) -> Range<usize> {
        let base = BASE.load(Ordering::Relaxed);
        base + LEN..base + 2 * LEN
    }

    /// Addresses of memory to read from.
    pub fn other(&self) -> Range<usize> {
        let base = BASE.load(Ordering::Relaxed);
        base + 2 * LEN..base + 3 * LEN
    }

    fn protect(&self, at: usize, access: libc::c_int) {
        // SAFETY: the machine's memory.
        assert_eq!(unsafe { libc::mprotect(at as *mut libc::c_void, LEN, access) }, 0);
    }

    /// Runs the code that `emit` puts behind an address, once with traps and once without; they must agree. `hidden`: in the run with traps the
    /// other memory cannot be read either.
    pub fn compare(
        &self,
        state: &State,
        at_border: Option<usize>,
        hidden: bool,
        emit: &dyn Fn(&mut Encoder, u64),
    ) -> (Run, Traps) {
        let entry = self.assemble(at_border, emit);
        let start: Vec<u8> = (0..LEN).map(|at| (at * 7 + at / PAGE) as u8).collect();
        let run = |traps: bool| {
            let none = libc::PROT_NONE;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the second mapping, and the state in the machine's first pages.
            unsafe {
                ptr::copy_nonoverlapping(start.as_ptr(), SHADOW.load(Ordering::Relaxed) as *mut u8, LEN);
                ptr::write((BASE.load(Ordering::Relaxed) + STATE) as *mut State, state.clone());
            }
            self.protect(self.watched().start, if traps { none } else { both });
            self.protect(self.other().start, if traps && hidden { none } else { both });
            let _blocked = Blocked::all();
            // SAFETY: whatever it does to registers, it puts them back; the only signal that can come is a trap.
            unsafe {
                let mut trap = std::mem::zeroed();
                libc::sigaddset(&mut trap, libc::SIGSEGV);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &trap, ptr::null_mut());
                std::mem::transmute::<usize, extern "C" fn()>(entry)();
                let memory = std::slice::from_raw_parts(SHADOW.load(Ordering::Relaxed) as *const u8, LEN).to_vec();
                Run { memory, general: (*((BASE.load(Ordering::Relaxed) + STATE) as *const State)).after }
            }
        };
        let (kept, refused) = (KEPT.load(Ordering::Relaxed), REFUSED.load(Ordering::Relaxed));
        let allocated = ALLOCATED.load(Ordering::Relaxed);
        let trapped = run(true);
        let traps =
            Traps { kept: KEPT.load(Ordering::Relaxed) - kept, refused: REFUSED.load(Ordering::Relaxed) - refused };
        assert_eq!(ALLOCATED.load(Ordering::Relaxed), allocated, "decoding allocated");
        let native = run(false);
        assert_eq!(trapped.general, native.general, "registers, {traps:?}");
        let difference = (0..LEN).find(|at| trapped.memory[*at] != native.memory[*at]);
        assert_eq!(difference, None, "first byte that differs, {traps:?}");
        (native, traps)
    }

    /// Writes the code that loads all registers, the code under test, and what stores them; returns its address. `at_border`: so
    /// many bytes of the code under test are on one page and the rest on the next.
    fn assemble(&self, at_border: Option<usize>, emit: &dyn Fn(&mut Encoder, u64)) -> usize {
        let base = BASE.load(Ordering::Relaxed);
        let mut encoder = Encoder::new(64);
        let mut buffer = Vec::new();
        let mut put = |code: &dyn Fn(&mut Encoder, u64)| {
            code(&mut encoder, (base + buffer.len()) as u64);
            buffer.append(&mut encoder.take_buffer());
            buffer.len()
        };
        let one = |instruction: Instruction| {
            move |encoder: &mut Encoder, at: u64| {
                encoder.encode(&instruction, at).unwrap();
            }
        };
        let place = |offset: usize| MemoryOperand::with_base_displ(Register::RIP, (base + STATE + offset) as i64);
        let saved = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
        let general = || (0..16).map(|number| (number, Register::RAX + number as u32));
        for register in saved {
            put(&one(Instruction::with1(Code::Push_r64, register).unwrap()));
        }
        put(&one(
            Instruction::with2(Code::Mov_rm64_r64, place(std::mem::offset_of!(State, stack)), Register::RSP).unwrap()
        ));
        let (code, first, count) = match () {
            () if is_x86_feature_detected!("avx512f") => (Code::EVEX_Vmovups_zmm_k1z_zmmm512, Register::ZMM0, 32),
            () if is_x86_feature_detected!("avx") => (Code::VEX_Vmovups_ymm_ymmm256, Register::YMM0, 16),
            () => (Code::Movups_xmm_xmmm128, Register::XMM0, 16),
        };
        for number in 0..count {
            put(&one(Instruction::with2(code, first + number, place(64 * number as usize)).unwrap()));
        }
        if is_x86_feature_detected!("avx512bw") {
            for number in 1..8 {
                let at = place(std::mem::offset_of!(State, masks) + 8 * number as usize);
                put(&one(Instruction::with2(Code::VEX_Kmovq_kr_km64, Register::K0 + number, at).unwrap()));
            }
        }
        for (number, register) in general() {
            let at = place(std::mem::offset_of!(State, general) + 8 * number);
            put(&one(Instruction::with2(Code::Mov_r64_rm64, register, at).unwrap()));
        }
        if let Some(before) = at_border {
            while put(&one(Instruction::with(Code::Nopd))) < PAGE - before {}
        }
        put(emit);
        for (number, register) in general() {
            let at = place(std::mem::offset_of!(State, after) + 8 * number);
            put(&one(Instruction::with2(Code::Mov_rm64_r64, at, register).unwrap()));
        }
        put(&one(
            Instruction::with2(Code::Mov_r64_rm64, Register::RSP, place(std::mem::offset_of!(State, stack))).unwrap()
        ));
        if is_x86_feature_detected!("avx") {
            put(&one(Instruction::with(Code::VEX_Vzeroupper)));
        }
        for register in saved.into_iter().rev() {
            put(&one(Instruction::with1(Code::Pop_r64, register).unwrap()));
        }
        put(&one(Instruction::with(Code::Retnq)));
        assert!(buffer.len() <= STATE);
        // SAFETY: the machine's pages for code.
        unsafe { ptr::copy_nonoverlapping(buffer.as_ptr(), base as *mut u8, buffer.len()) };
        base
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: what was there before; nobody uses the rest any more.
        unsafe {
            libc::sigaction(libc::SIGSEGV, &self.previous, ptr::null_mut());
            libc::sigaltstack(&self.previous_stack, ptr::null_mut());
            memory::release(BASE.load(Ordering::Relaxed) as *mut u8, 3 * LEN);
            memory::release(SHADOW.load(Ordering::Relaxed) as *mut u8, LEN);
            memory::release(self.stack, STACK);
        }
    }
}

/// Two pages of code.
#[repr(align(4096))]
pub struct Page(pub [u8; 2 * PAGE]);

/// Decodes `code` in a thread whose general registers are `general`, and whose vector registers are zeros of 16 bytes.
pub fn decode_alone(code: &Page, at: usize, general: &[u64; 16], flags: i64, trap: usize) -> Option<Store> {
    const ORDER: [libc::c_int; 16] = [13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
    // SAFETY: a context of our own; zeros are one.
    unsafe {
        let mut context: libc::ucontext_t = std::mem::zeroed();
        let mut vectors: libc::_libc_fpstate = std::mem::zeroed();
        context.uc_mcontext.fpregs = &raw mut vectors;
        for (register, value) in ORDER.into_iter().zip(general) {
            context.uc_mcontext.gregs[register as usize] = *value as i64;
        }
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = code.0[at..].as_ptr() as i64;
        context.uc_mcontext.gregs[libc::REG_EFL as usize] = flags;
        decode::store_at(trap, &Registers::new((&raw mut context).cast()))
    }
}
