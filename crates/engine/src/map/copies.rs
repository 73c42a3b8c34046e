//! Copies between maps and other memory that return errors, where a slice would raise SIGBUS.

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::map::cached::Cached;
use crate::map::map_mut::MapMut;
use crate::map::mapping::{Backing, Mapping};
use crate::pin::pin;
use crate::region::region::Region;
use crate::sys::PAGE;
use bytemuck::AnyBitPattern;
use std::mem::MaybeUninit;
use std::ptr;

impl Mapping {
    pub fn read_at(&self, buffer: &mut [u8], offset: usize) -> Result<()> {
        self.check(offset, buffer.len())?;
        match &self.backing {
            Backing::Cached(cached) => copy_out(&cached.region, cached.offset + offset, buffer),
            Backing::Empty(_) | Backing::Kernel(_) => {
                drop(self.hold(offset, buffer.len(), false)?);
                // SAFETY: `check` found the range inside the map, which the buffer, borrowed mutable, cannot overlap.
                unsafe { self.start.add(offset).copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
                Ok(())
            }
        }
    }

    pub fn write_at(&mut self, data: &[u8], offset: usize) -> Result<()> {
        self.check(offset, data.len())?;
        match &mut self.backing {
            Backing::Cached(cached) => copy_in(&cached.region, cached.offset + offset, data),
            Backing::Empty(_) | Backing::Kernel(_) => {
                drop(self.hold(offset, data.len(), true)?);
                // SAFETY: `check` found the range inside the map, which is borrowed mutable. The data may lie in
                // another map of the same bytes, which `copy_from` allows.
                unsafe { self.start.add(offset).copy_from(data.as_ptr(), data.len()) };
                Ok(())
            }
        }
    }

    #[inline]
    pub fn get_at<T: AnyBitPattern>(&self, offset: usize) -> Result<T> {
        let len = size_of::<T>();
        if let Backing::Cached(cached) = &self.backing
            && cached.is_on_one_page(offset, len)
        {
            self.check(offset, len)?;
            return cached.load(offset);
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `len` initialised bytes, which may be replaced by any others.
        self.read_at(unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), len) }, offset)?;
        // SAFETY: any bits are a value of such a type.
        Ok(unsafe { value.assume_init() })
    }
}

impl Cached {
    /// Whether a range, which may lie outside the map, has at least one byte and lies on one page.
    #[inline]
    pub fn is_on_one_page(&self, offset: usize, len: usize) -> bool {
        (1..=PAGE - self.offset.wrapping_add(offset) % PAGE).contains(&len)
    }

    /// The value at an offset, which lies on one page inside the map.
    #[inline]
    fn load<T: AnyBitPattern>(&self, offset: usize) -> Result<T> {
        let start = self.offset.wrapping_add(offset);
        let from = self.region.address_of(start / PAGE).wrapping_add(start % PAGE).cast::<T>();
        // SAFETY: the page is pinned while its bytes are loaded, and any bits are a value. The copy is on the stack or
        // in registers.
        pin::with_page(&self.region, start / PAGE, false, |_| unsafe { from.read_unaligned() })
    }
}

impl MapMut {
    /// Copies data into the map, to `offset`. Unlike a store through a slice, it raises no SIGBUS: if data cannot be
    /// stored, that is an error, and part of the data may have been stored. The data reaches the file as any store does
    /// ([`MapMut::flush`]).
    ///
    /// # Errors
    /// As for [`MapMut::read_at`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(10)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map.write_at(b"bytes", 5)?;
    /// assert_eq!(&map[..], b"\0\0\0\0\0bytes");
    /// assert!(map.write_at(b"bytes", 6).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_at(&mut self, data: &[u8], offset: usize) -> Result<()> {
        self.mapping.write_at(data, offset)
    }
}

/// The part of a copy that lies on one page: the page, the part's first byte there, and its length, at most `rest`.
fn part(region: &Region, at: usize, rest: usize) -> (usize, *mut u8, usize) {
    let (page, within) = (at / PAGE, at % PAGE);
    (page, region.address_of(page).wrapping_add(within), rest.min(PAGE - within))
}

/// Copies bytes of a region, from `at` on.
pub(crate) fn copy_out(region: &Region, at: usize, buffer: &mut [u8]) -> Result<()> {
    region.store().ask(at / PAGE, (at + buffer.len()).div_ceil(PAGE) - at / PAGE);
    let mut done = 0;
    while done < buffer.len() {
        let (page, from, count) = part(region, at + done, buffer.len() - done);
        let to = buffer[done..].as_mut_ptr();
        let mut aside = MaybeUninit::<[u8; PAGE]>::uninit();
        let copied = pin::with_page(region, page, false, |room| {
            // The buffer may be part of another map.
            let to = if room { to } else { aside.as_mut_ptr().cast() };
            // SAFETY: `count` bytes of a pinned page, to as many of the buffer or of a page on the stack. Another map
            // of the same bytes may be the buffer.
            unsafe { ptr::copy(from, to, count) };
            room
        })?;
        if !copied {
            // SAFETY: as many bytes as were put aside.
            unsafe { ptr::copy_nonoverlapping(aside.as_ptr().cast(), to, count) };
        }
        done += count;
    }
    Ok(())
}

/// Copies bytes into a region, from `at` on.
pub(crate) fn copy_in(region: &Region, at: usize, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (page, to, count) = part(region, at + done, data.len() - done);
        let from = data[done..].as_ptr();
        let copied = pin::with_page(region, page, true, |room| {
            if room {
                // SAFETY: as many bytes of the data and of a pinned page; a store may trap all the same. The data may
                // lie in another map of the same bytes, which `copy` allows.
                unsafe { ptr::copy(from, to, count) };
            }
            room
        })?;
        if !copied {
            let mut aside = MaybeUninit::<[u8; PAGE]>::uninit();
            // SAFETY: at most a page.
            unsafe { ptr::copy_nonoverlapping(from, aside.as_mut_ptr().cast(), count) };
            // SAFETY: what was put aside, to a pinned page.
            pin::with_page(region, page, true, |_| unsafe {
                ptr::copy_nonoverlapping(aside.as_ptr().cast(), to, count);
            })?;
        }
        done += count;
    }
    Ok(())
}
