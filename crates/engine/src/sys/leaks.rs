//! LeakSanitizer, in programs that are built with it: what the engine allocates is not the program's to leak.
//!
//! It looks for pointers to each block of malloc(3) in the program's memory, and does not know the preload library's, which is none of
//! malloc's: a thread's handle there, for one, it takes for lost, and a program that ends well exits with another status.

use std::arch::asm;
use std::marker::PhantomData;

/// While it lives this thread's allocations are no leaks. Elsewhere than under LeakSanitizer it does nothing.
#[derive(Debug)]
pub struct Unseen(PhantomData<*const ()>);

impl Unseen {
    /// From now on.
    #[inline]
    pub fn begin() -> Self {
        call(disable());
        Unseen(PhantomData)
    }

    /// For as long as this thread lives.
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
        // SAFETY: the linker's address of a function of sanitizer/lsan_interface.h, which takes nothing and returns nothing.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn()>(address) };
        function();
    }
}

/// The address of a function that the program may have; zero: it has none. The linker finds it when it loads this, so that no call waits
/// for the linker's lock.
macro_rules! addresses {
    ($($name:ident $symbol:literal)*) => { $(
        #[inline]
        fn $name() -> usize {
            #[cfg(miri)]
            return 0;
            #[cfg(not(miri))]
            {
                let address;
                // SAFETY: it reads the table that the linker has filled.
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
