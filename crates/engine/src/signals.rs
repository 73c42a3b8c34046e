//! The program's SIGBUS, for a library that stands in for sigaction(2) in a program that knows nothing of the engine's
//! handler.

use crate::sys::signal;

/// The program's action for SIGBUS, to which the engine's handler chains what is not the engine's: returns the one in
/// force and, if `new` is given, replaces it, as sigaction(2) does. Its flags are honoured (`SA_SIGINFO`,
/// `SA_RESETHAND`, `SA_NODEFER`, `sa_mask`), but for `SA_ONSTACK`: a thread that has an alternate stack always handles
/// SIGBUS there.
///
/// `None`: the engine's handler is not installed, which it is with the first cached map; call sigaction(2). A program
/// that does so while another of its threads makes that map is as any that calls it twice at a time: either may win.
///
/// Async-signal-safe.
///
/// # Safety
/// As for sigaction(2): the handler of a new action may be called for any SIGBUS, with the arguments that its flags ask
/// for.
///
/// ```
/// // SAFETY: nothing is replaced.
/// assert!(unsafe { fastmap::signals::replace_sigbus(None) }.is_none(), "nothing is mapped yet");
/// ```
///
/// ```compile_fail,E0133
/// # let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
/// action.sa_sigaction = 0x4141_4141;
/// fastmap::signals::replace_sigbus(Some(&action));
/// ```
pub unsafe fn replace_sigbus(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    signal::replace(new)
}
