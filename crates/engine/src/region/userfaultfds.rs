//! The process's userfaultfds, and the choice of the threads that serve page faults of cached maps: the faulting thread itself, in a signal
//! handler, or threads of the engine.

use crate::error::{Error, Result};
use crate::modes::Faults;
use crate::sys::cpu;
use crate::sys::userfaultfd::Userfaultfd;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static CHOSEN: OnceLock<Faults> = OnceLock::new();
static SERVICE: AtomicBool = AtomicBool::new(false);

/// Chooses the threads that serve page faults, for the life of the process. The first cached map settles the choice ([`Faults::Signal`], if
/// nothing was chosen), so choose before that.
///
/// # Errors
/// [`Error::FaultsChosen`] if it is settled otherwise; [`Error::Missing`] where this process may not have
/// [`Faults::Service`]: nothing is chosen then.
///
/// ```
/// use fastmap::faults::{self, Faults};
///
/// faults::choose(Faults::Signal)?;
/// assert!(faults::choose(Faults::Service).is_err(), "once");
/// # Ok::<(), fastmap::Error>(())
/// ```
pub fn choose(how: Faults) -> Result<()> {
    if how == Faults::Service && CHOSEN.get().is_none() {
        Userfaultfd::open_for_service().map_err(|error| Error::Missing {
            path: "/dev/userfaultfd".into(),
            missing: "the right to serve page faults of system calls",
            remedy: format!("{REMEDY} ({error})"),
        })?;
    }
    match settle(how) {
        chosen if chosen == how => Ok(()),
        chosen => Err(Error::FaultsChosen { chosen }),
    }
}

/// The remedy where faults inside the kernel may not be served.
pub(crate) const REMEDY: &str = "run as root (or give the program CAP_SYS_PTRACE), set the sysctl \
    vm.unprivileged_userfaultfd to 1, or let this user read and write /dev/userfaultfd";

fn settle(how: Faults) -> Faults {
    *CHOSEN.get_or_init(|| {
        SERVICE.store(how == Faults::Service, Ordering::Release);
        how
    })
}

/// Whether service threads serve faults. Called by fault handlers.
#[inline]
pub(crate) fn by_service() -> bool {
    SERVICE.load(Ordering::Relaxed)
}

/// The process's userfaultfds.
#[derive(Debug)]
pub struct Userfaultfds {
    /// Shared by all regions: two neighbouring stripes never have the same one, so the kernel keeps their VMAs, and the
    /// locks in them, apart.
    pub regions: Vec<Userfaultfd>,
    /// For staging memory, which no program touches. Present only if service threads serve faults, because these serve `regions` only.
    staging: Option<Userfaultfd>,
}

impl Userfaultfds {
    /// Opens them, once, in the chosen mode. This settles the choice.
    pub fn get() -> io::Result<&'static Self> {
        static OPENED: OnceLock<Userfaultfds> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(opened);
        }
        let service = settle(Faults::default()) == Faults::Service;
        let open = if service { Userfaultfd::open_for_service } else { Userfaultfd::open };
        let regions = (0..cpu::count().clamp(2, 16)).map(|_| open()).collect::<io::Result<_>>()?;
        let staging = service.then(Userfaultfd::open_for_nobody).transpose()?;
        let opened = OPENED.get_or_init(|| Userfaultfds { regions, staging });
        Ok(opened)
    }

    /// The one for staging memory.
    pub fn staging(&self) -> &Userfaultfd {
        self.staging.as_ref().unwrap_or(&self.regions[0])
    }
}
