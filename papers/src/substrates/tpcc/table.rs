//! Tables of rows in pieces of 64 KiB, and the check of every row that is read.
//!
//! Pieces, since an allocator over a file is what is measured: rows stay where they are while a table grows, and a row's
//! neighbours in memory are its neighbours in the table, as in Silo, whose allocator hands out slabs of one size.

use bytemuck::Pod;

use super::rows::check_word;
use crate::substrates::{Error, Result};

/// Bytes of a piece, at most.
const PIECE: usize = 64 << 10;

/// A row and the word that belongs to its bytes and its place.
#[derive(Clone, Copy, Debug)]
struct Checked<T> {
    row: T,
    check: u64,
}

/// Rows of one kind, found by number.
#[derive(Debug)]
pub struct Table<T> {
    name: &'static str,
    /// Which of the tables of this name: the number of its warehouse, district or stripe.
    place: u32,
    /// Rows in a piece.
    in_piece: usize,
    len: usize,
    pieces: Vec<Vec<Checked<T>>>,
}

impl<T: Pod> Table<T> {
    /// One without rows, that is to grow.
    pub fn new(name: &'static str, place: usize) -> Table<T> {
        Table::of(name, place, usize::MAX)
    }

    /// One without rows, for `most` rows, at least one.
    pub fn of(name: &'static str, place: usize, most: usize) -> Table<T> {
        let in_piece = (PIECE / size_of::<Checked<T>>()).min(most);
        Table { name, place: place as u32, in_piece, len: 0, pieces: Vec::new() }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a row.
    pub fn push(&mut self, row: T) {
        if self.len.is_multiple_of(self.in_piece) {
            self.pieces.push(Vec::with_capacity(self.in_piece));
        }
        let check = check_word(self.key(self.len), &row);
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(Checked { row, check });
        }
        self.len += 1;
    }

    /// The row of this number, from 0.
    ///
    /// # Errors
    ///
    /// [`Error::Answer`] if it is not what was stored there, or not there at all.
    #[inline]
    pub fn get(&self, number: usize) -> Result<&T> {
        let found = self.pieces.get(number / self.in_piece).and_then(|piece| piece.get(number % self.in_piece));
        match found {
            Some(Checked { row, check }) if check_word(self.key(number), row) == *check => Ok(row),
            found => Err(self.wrong(number, found.is_some())),
        }
    }

    /// Changes a row.
    ///
    /// # Errors
    ///
    /// As [`Table::get`].
    #[inline]
    pub fn change<R>(&mut self, number: usize, change: impl FnOnce(&mut T) -> R) -> Result<R> {
        self.get(number)?;
        let key = self.key(number);
        let Checked { row, check } = &mut self.pieces[number / self.in_piece][number % self.in_piece];
        let changed = change(row);
        *check = check_word(key, row);
        Ok(changed)
    }

    /// Where its first row is in memory; null if there is none.
    pub fn first_row(&self) -> *const T {
        self.pieces.first().and_then(|piece| piece.first()).map_or(std::ptr::null(), |first| &raw const first.row)
    }

    #[inline]
    fn key(&self, number: usize) -> u64 {
        let name = self.name.as_bytes();
        let kind = (u64::from(name[0]) << 56) ^ (u64::from(name[name.len() - 1]) << 48);
        kind ^ (u64::from(self.place) << 32) ^ number as u64
    }

    #[cold]
    fn wrong(&self, number: usize, is_there: bool) -> Error {
        let what = if is_there { "its check word is wrong" } else { "is missing" };
        Error::Answer { thing: format!("{} {number} of {}", self.name, self.place), what: what.to_owned() }
    }

    /// Flips a bit of a row behind the check word's back.
    #[cfg(test)]
    pub fn damage(&mut self, number: usize) {
        let row = &mut self.pieces[number / self.in_piece][number % self.in_piece].row;
        bytemuck::bytes_of_mut(row)[3] ^= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::NewOrder;
    use super::*;

    #[test]
    fn rows_are_kept_and_checked() {
        let mut table = Table::new("new-order", 3);
        for order in 0..10_000 {
            table.push(NewOrder { order });
        }
        assert_eq!(table.len(), 10_000);
        table.change(7777, |row| row.order = 5).unwrap();
        for number in 0..10_000 {
            let expected = if number == 7777 { 5 } else { number as u64 };
            assert_eq!(table.get(number).unwrap().order, expected);
        }
        table.damage(4096);
        let wrong = table.get(4096).unwrap_err().to_string();
        assert!(wrong.starts_with("new-order 4096 of 3: its check word is wrong: "), "{wrong}");
        assert!(table.get(10_000).unwrap_err().to_string().contains("is missing"));
        assert!(table.change(4096, |_| ()).is_err());
    }
}
