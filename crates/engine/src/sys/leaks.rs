//! Keeps LeakSanitizer, in programs that are built with it, from reporting the engine's allocations as leaks of the program.
//!
//! LeakSanitizer searches the program's memory for pointers to each block of malloc(3). It does not search the preload library's own memory,
//! which does not come from malloc(3). So it takes a block for lost if only that memory points to it: a thread's handle, for example. A
//! program that ended well would then exit with another status.

use std::arch::asm;
use std::marker::PhantomData;

/// While this value lives, LeakSanitizer ignores allocations of this thread. In programs without LeakSanitizer it does nothing.
#[derive(Debug)]
pub struct Unseen(PhantomData<*const ()>);

impl Unseen {
    /// Starts to hide this thread's allocations, until the value is dropped.
    #[inline]
    pub fn begin() -> Self {
        call(disable());
        Unseen(PhantomData)
    }

    /// Hides this thread's allocations until the thread ends.
    pub fn for_good() {
        std::mem::forget(Unseen::begin());
    }
}

impl Drop for Unseen {
    #[inline]
    fn drop(&mut self) {
        call(enable());
    }
}

#[inline]
fn call(address: usize) {
    if address != 0 {
        // SAFETY: the dynamic linker has given this address for a function of sanitizer/lsan_interface.h. The function takes nothing and
        // returns nothing.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address) };
        function();
    }
}

/// Makes functions that return the address of a function of the program, or zero if the program has no such function. The dynamic linker
/// looks the address up when it loads this library, so no call waits for the linker's lock.
macro_rules! addresses {
    ($($name:ident $symbol:literal)*) => { $(
        #[inline]
        fn $name() -> usize {
            #[cfg(miri)]
            return 0;
            #[cfg(not(miri))]
            {
                let address;
                // SAFETY: reads the global offset table, which the dynamic linker has filled.
                unsafe {
                    asm!(
                        concat!(".weak ", $symbol),
                        concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                        out(reg) address,
                        options(nostack, pure, readonly, preserves_flags)
                    );
                }
                address
            }
        }
    )* };
}

addresses! {
    disable "__lsan_disable"
    enable "__lsan_enable"
}
