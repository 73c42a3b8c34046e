//! The program's action for SIGBUS, for a library that stands in for sigaction(2) in a program that knows nothing of
//! the engine's handler.

use crate::sys::signal;

/// Returns the program's action for SIGBUS and, if `new` is given, replaces it, as sigaction(2) does. The engine's
/// handler chains to this action for signals that are not the engine's. The action's flags are honoured (`SA_SIGINFO`,
/// `SA_RESETHAND`, `SA_NODEFER`, `sa_mask`) except for `SA_ONSTACK`: a thread that has an alternate stack always
/// handles SIGBUS there.
///
/// Returns `None` where the engine's handler is not installed: call sigaction(2) then. The first cached map installs
/// the handler. If another thread makes that map during the program's sigaction(2), either may win, as with two calls
/// of sigaction(2) at a time.
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
