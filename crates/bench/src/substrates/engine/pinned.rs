//! `fastmap-pin`: every operation pins its page and works on the page through the guard, so that no access traps.

use fastmap::{Map, MapMut};

use super::Access;
use crate::substrates::measure::Shadow;
use crate::substrates::{PAGE, Result, stamp};

/// The map through which a thread pins.
pub enum Face<'a> {
    /// The map of all threads, in a load that reads.
    Shared(&'a Map),
    /// A map of the thread's own, over the same cached pages. A store through a guard needs a mutable map.
    Own(MapMut),
}

/// A fastmap map whose pages are pinned one by one.
pub struct Pinned<'a> {
    /// Makes the map of a thread.
    pub face: &'a (dyn Fn() -> Result<Face<'a>> + Sync),
    /// Flushes the file.
    pub flush: &'a (dyn Fn() -> Result<()> + Sync),
}

impl<'a> Face<'a> {
    #[inline]
    fn pin(&self, page: u64) -> Result<fastmap::Pinned<'_>> {
        let offset = page as usize * PAGE;
        Ok(match self {
            Face::Shared(map) => map.pin(offset, PAGE),
            Face::Own(map) => map.pin(offset, PAGE),
        }?)
    }

    #[inline]
    fn pin_mut(&mut self, page: u64) -> Result<fastmap::PinnedMut<'_>> {
        match self {
            Face::Shared(_) => unreachable!("a load that stores has a mutable map a thread"),
            Face::Own(map) => Ok(map.pin_mut(page as usize * PAGE, PAGE)?),
        }
    }
}

impl<'a> Access for Pinned<'a> {
    type Local = Face<'a>;

    fn local(&self) -> Result<Face<'a>> {
        (self.face)()
    }

    #[inline]
    fn read(&self, local: &mut Face<'a>, page: u64) -> Result<()> {
        stamp::check_stamp_in(page, &local.pin(page)?)
    }

    #[inline]
    fn write(&self, local: &mut Face<'a>, page: u64, shadow: &Shadow) -> Result<()> {
        let mut bytes = local.pin_mut(page)?;
        stamp::set_generation(&mut bytes, shadow.next(page));
        stamp::check_stamp_in(page, &bytes)
    }

    #[inline]
    fn rmw(&self, local: &mut Face<'a>, page: u64, shadow: &Shadow) -> Result<()> {
        let mut bytes = local.pin_mut(page)?;
        shadow.check(page, stamp::generation(&bytes))?;
        stamp::set_generation(&mut bytes, shadow.next(page));
        Ok(())
    }

    #[inline]
    fn fill(&self, local: &mut Face<'a>, page: u64, _last: bool, shadow: &Shadow) -> Result<()> {
        let mut bytes = local.pin_mut(page)?;
        stamp::fill(&mut bytes, page, shadow.next(page));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        (self.flush)()
    }
}
