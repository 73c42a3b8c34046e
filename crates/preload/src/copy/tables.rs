//! Wrappers from a table: `bounced!` declares functions of the C library with what each pointer argument means, and
//! makes the wrapper and `next::NAME` of a line.
//!
//! * `text p`: a path, or another string of which the kernel reads 4096 bytes at most; `looked p`: the path of what the
//!   call tells about, `entered p`: of a folder that it opens (`processes/sandbox.rs` wants to know of both, the one
//!   call upward from here);
//! * `input p`: read by the call; `changed p`: read and written, or written whole or not at all;
//! * `filled p[n]`: written as far as the result says;
//! * `signals p`: a set of signals that is blocked during the call;
//! * `pair p[2]`: written whole with two descriptors that the call makes; `from p`: as `changed`, by a call that returns one.
//!
//! `p` is one of what it points to, `p[n]` is n of them. Later lengths may look at earlier arguments.

/// The length of an argument of a table in bytes.
macro_rules! span {
    (text $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    (looked $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    (entered $pointer:ident) => {
        ::libc::PATH_MAX as usize
    };
    ($kind:ident $pointer:ident) => {
        $crate::copy::bytes($pointer, 1)
    };
    ($kind:ident $pointer:ident [$count:expr]) => {
        $crate::copy::bytes($pointer, $count as usize)
    };
}

/// Whether an argument of a table must be copied.
macro_rules! concerned {
    (signals $pointer:ident $([$count:expr])?) => {
        $crate::copy::held($pointer, span!(signals $pointer $([$count])?)) || $crate::signals::has_sigbus($pointer)
    };
    ($kind:ident $pointer:ident $([$count:expr])?) => {
        $crate::copy::held($pointer, span!($kind $pointer $([$count])?))
    };
}

/// Whether a call must be repeated because of what it looked at (`looked` and `entered`).
macro_rules! again {
    (looked $pointer:ident, $result:ident) => {
        $result == 0 && $crate::processes::sandbox::looked_at($pointer)
    };
    (entered $pointer:ident, $result:ident) => {
        !$result.is_null() && $crate::processes::sandbox::looked_at($pointer) && false
    };
    ($kind:ident $pointer:ident, $result:ident) => {
        false
    };
}

/// Notes the descriptors that a call has made (`pair` and `from`).
macro_rules! noted {
    (pair $pointer:ident, $result:ident) => {
        // The call has filled both: within the wrapper's `unsafe`.
        if $result == 0 {
            $crate::own::remembered::opened($pointer.read(), false);
            $crate::own::remembered::opened($pointer.add(1).read(), false);
        }
    };
    (from $pointer:ident, $result:ident) => {
        $crate::own::remembered::opened($result, false)
    };
    ($kind:ident $pointer:ident, $result:ident) => {};
}

/// Declares intercepted functions with the meaning of their pointers, as the file's beginning explains.
macro_rules! bounced {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty: $($kind:ident $pointer:ident $([$count:expr])?),+;)*) => {
        table! { $(fn $name($($argument: $type),*) -> $result;)* }

        // What the program calls.
        const _: () = { $(
                #[allow(clippy::too_many_arguments)]
                // SAFETY: the C library's name and signature.
                #[unsafe(no_mangle)]
                unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                    #[cold]
                    unsafe fn copied($($argument: $type),*) -> $result {
                        let call = $crate::copy::Call::new();
                        // SAFETY: the caller's contract, which is the C library's.
                        unsafe {
                            $(let $pointer = call.$kind($pointer, span!($kind $pointer $([$count])?));)+
                            let result = self::$name($($argument),*);
                            call.finish(result as isize);
                            $(noted!($kind $pointer, result);)+
                            result
                        }
                    }
                    // SAFETY: the caller's contract, which is the C library's.
                    unsafe {
                        if $crate::copy::mapped() && ($(concerned!($kind $pointer $([$count])?))||+) {
                            return copied($($argument),*);
                        }
                        let result = self::$name($($argument),*);
                        $(noted!($kind $pointer, result);)+
                        if $crate::copy::is_taken_since(result as isize) && ($(concerned!($kind $pointer $([$count])?))||+) {
                            return copied($($argument),*);
                        }
                        if $(again!($kind $pointer, result))||+ {
                            return self::$name($($argument),*);
                        }
                        result
                    }
                }
        )* };
    };
}
