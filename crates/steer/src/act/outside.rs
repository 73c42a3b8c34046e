//! The hand from outside: advice by ptrace(2), and reading by descriptors of this process.

use super::{Advice, Beside, Files, Hand, Made, Reading, Refusal, Traced};
use crate::PAGE;
use crate::observe::{Mapping, same_group};
use crate::run::Run;

/// Acts on another process's mappings.
#[derive(Debug)]
pub struct Outside {
    /// None where only loads are helped.
    traced: Option<Traced>,
    beside: Beside,
    /// Whether this process is in the program's memory group, to which pages that it reads are then charged.
    may_read: bool,
}

impl Outside {
    /// Of process `pid`, which `descends` from the calling one. Fails where advice is needed and cannot be given.
    pub fn of(pid: u32, only_loads: bool, descends: bool) -> Result<Outside, Refusal> {
        let traced = if only_loads { None } else { Some(Traced::of(pid, descends)?) };
        Ok(Outside { traced, beside: Beside::new(Files::of(pid)), may_read: same_group(pid) })
    }
}

impl Hand for Outside {
    fn advise(&mut self, mapping: &Mapping, advice: Advice) -> Made {
        self.traced.as_mut().map_or(Made::Refused, |traced| traced.advise(mapping, advice))
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        let file = if self.may_read { self.beside.files().get(mapping) } else { None };
        let Some(file) = file else { return false };
        let len = std::num::NonZeroU64::new(pages.len * PAGE);
        rustix::fs::fadvise(file, mapping.offset + pages.at * PAGE, len, rustix::fs::Advice::WillNeed).is_ok()
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        self.traced.as_mut().is_some_and(|traced| traced.drop(mapping, pages))
    }

    fn readers(&mut self) -> Option<&mut dyn Reading> {
        if self.may_read { Some(&mut self.beside) } else { None }
    }
}
