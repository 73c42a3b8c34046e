//! Wrappers from a table: `bounced!` declares functions of the C library with what each pointer argument means, and
//! makes the wrapper and `next::NAME` of a line.
//!
//! * `text p`: a path, or another string of which the kernel reads 4096 bytes at most; `looked p`: the path of what the
//!   call tells about, `entered p`: of a folder that it opens (`processes/sandbox.rs` wants to know of both, the one
//!   call upward from here, but for `objects`);
//! * `shown p`: a path that may be an object's (`--object`), which is as a file there; so are `looked` and `entered`.
//!   `kept p`: what the call would change, `made p`: what it would make, `accessed p[(folder, mode)]`: what it asks the rights of. Of all
//!   these `p[folder]` is a path from a folder. `file fd`: a descriptor whose file the call would change;
//! * `told p`: as `changed`, what the call tells of a file;
//! * `input p`: read by the call; `changed p`: read and written, or written whole or not at all;
//! * `filled p[n]`: written as far as the result says;
//! * `signals p`: a set of signals that is blocked during the call;
//! * `pair p[2]`: written whole with two descriptors that the call makes; `from p`: as `changed`, by a call that returns one.
//!
//! `p` is one of what it points to, `p[n]` is n of them. Later lengths may look at earlier arguments.

/// The length of an argument of a table in bytes.
macro_rules! span {
    (text $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (looked $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (entered $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (shown $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (kept $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (made $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (accessed $($rest:tt)+) => {
        ::libc::PATH_MAX as usize
    };
    (file $fd:ident) => {
        0
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
    (file $fd:ident) => {
        false
    };
    ($kind:ident $pointer:ident $([$count:expr])?) => {
        $crate::copy::held($pointer, span!($kind $pointer $([$count])?))
    };
}

/// Whether a call must be repeated because of what it looked at (`looked` and `entered`).
macro_rules! again {
    (looked $pointer:ident $([$folder:expr])?, $result:ident) => {
        $result == 0 && $crate::processes::sandbox::looked_at($pointer)
    };
    (entered $pointer:ident, $result:ident) => {
        !$result.is_null() && $crate::processes::sandbox::looked_at($pointer) && false
    };
    ($kind:ident $pointer:ident $([$count:expr])?, $result:ident) => {
        false
    };
}

/// Whether a call is refused because it is about an object; errno says why.
macro_rules! refused {
    (kept $path:ident) => {
        $crate::objects::is_kept(::libc::AT_FDCWD, $path.cast())
    };
    (kept $path:ident [$folder:expr]) => {
        $crate::objects::is_kept($folder, $path.cast())
    };
    (made $path:ident) => {
        $crate::objects::is_there(::libc::AT_FDCWD, $path)
    };
    (made $path:ident [$folder:expr]) => {
        $crate::objects::is_there($folder, $path)
    };
    (accessed $path:ident [$asked:expr]) => {
        $crate::objects::is_denied($asked, $path)
    };
    (file $fd:ident) => {
        $crate::objects::is_fixed($fd)
    };
    ($kind:ident $pointer:ident $([$count:expr])?) => {
        false
    };
}

/// An argument as the C library gets it: the path of an object's local copy in place of the object's.
macro_rules! shown {
    (looked $path:ident $([$folder:expr])?) => { shown!(shown $path $([$folder])?) };
    (entered $path:ident $([$folder:expr])?) => { shown!(shown $path $([$folder])?) };
    (accessed $path:ident [$asked:expr]) => { shown!(shown $path [$asked.0]) };
    (shown $path:ident) => { $crate::objects::shown(::libc::AT_FDCWD, $path) };
    (shown $path:ident [$folder:expr]) => { $crate::objects::shown($folder, $path) };
    ($kind:ident $pointer:ident $([$count:expr])?) => { $pointer };
}

/// Corrects what a call has told of an object's local copy (`told`).
macro_rules! told {
    (told $facts:ident, $result:ident) => {
        if $result == 0 {
            $crate::objects::tell($facts);
        }
    };
    ($kind:ident $pointer:ident $([$count:expr])?, $result:ident) => {};
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
    ($kind:ident $pointer:ident $([$count:expr])?, $result:ident) => {};
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
                            $(told!($kind $pointer $([$count])?, result);)+
                            call.finish(result as isize);
                            $(noted!($kind $pointer $([$count])?, result);)+
                            result
                        }
                    }
                    // SAFETY: the caller's contract, which is the C library's.
                    unsafe {
                        if $(refused!($kind $pointer $([$count])?))||+ {
                            return $crate::next::failed();
                        }
                        $(let $pointer = shown!($kind $pointer $([$count])?);)+
                        if $crate::copy::mapped() && ($(concerned!($kind $pointer $([$count])?))||+) {
                            return copied($($argument),*);
                        }
                        let result = self::$name($($argument),*);
                        $(told!($kind $pointer $([$count])?, result);)+
                        $(noted!($kind $pointer $([$count])?, result);)+
                        if $crate::copy::is_taken_since(result as isize) && ($(concerned!($kind $pointer $([$count])?))||+) {
                            return copied($($argument),*);
                        }
                        if $(again!($kind $pointer $([$count])?, result))||+ {
                            let result = self::$name($($argument),*);
                            $(told!($kind $pointer $([$count])?, result);)+
                            return result;
                        }
                        result
                    }
                }
        )* };
    };
}
