//! Wrappers from a table. `bounced!` declares functions of the C library, with the meaning of each pointer argument. From
//! each line it makes the wrapper and `next::NAME`.
//!
//! A pointer `p` has one of these kinds:
//!
//! | kind | meaning |
//! | --- | --- |
//! | `text p` | a path, or another string of which the kernel reads 4096 bytes at most |
//! | `looked p` | a path of a file whose facts the call returns; `processes/sandbox.rs` is told of it |
//! | `entered p` | a path of a folder that the call opens; `processes/sandbox.rs` is told of it |
//! | `shown p` | a path that may be an object's (`--object`); then the call gets the path of the object's local copy |
//! | `kept p` | a path of a file that the call would change; refused for an object |
//! | `made p` | a path of a file that the call would make; refused where an object is |
//! | `accessed p[(folder, mode)]` | a path of a file whose access rights the call checks; writing to an object is denied |
//! | `file fd` | no pointer, but a descriptor whose file the call would change; refused for an object |
//! | `input p` | read by the call |
//! | `changed p` | read and written, or written either whole or not at all |
//! | `filled p[n]` | written, as many items as the result says |
//! | `told p` | as `changed`: the facts of a file, which are corrected for an object |
//! | `signals p` | a set of signals that is blocked during the call, without SIGBUS |
//! | `pair p[2]` | written whole: two descriptors that the call makes |
//! | `from p` | as `changed`, in a call that returns a new descriptor |
//!
//! `looked`, `entered` and `accessed` paths may be an object's too, as `shown`. With all kinds that may be an object's, `p[folder]`
//! is a path relative to a folder. With the other kinds, `p` stands for one item and `p[n]` for n items. A length may depend on
//! earlier arguments.
//!
//! The calls of `processes::sandbox` and `objects` are the only ones that go upward from this room.

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

/// Tells `processes::sandbox` of a path (`looked` and `entered`). True if the call must be repeated, since the engine has
/// left because of this path. A call with an `entered` path is never repeated.
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

/// Whether a call is refused because it concerns an object. Then errno says why.
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

/// An argument as the C library gets it. The path of an object becomes the path of its local copy.
macro_rules! shown {
    (looked $path:ident $([$folder:expr])?) => { shown!(shown $path $([$folder])?) };
    (entered $path:ident $([$folder:expr])?) => { shown!(shown $path $([$folder])?) };
    (accessed $path:ident [$asked:expr]) => { shown!(shown $path [$asked.0]) };
    (shown $path:ident) => { $crate::objects::shown(::libc::AT_FDCWD, $path) };
    (shown $path:ident [$folder:expr]) => { $crate::objects::shown($folder, $path) };
    ($kind:ident $pointer:ident $([$count:expr])?) => { $pointer };
}

/// Corrects the facts that a call has returned of an object's local copy (`told`).
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
        // The call has filled both numbers. The reads stand in the wrapper's `unsafe` block.
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

/// Declares intercepted functions with the meaning of their pointers (see the head of this file).
macro_rules! bounced {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty: $($kind:ident $pointer:ident $([$count:expr])?),+;)*) => {
        table! { $(fn $name($($argument: $type),*) -> $result;)* }

        // The exported functions, which the program calls.
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
