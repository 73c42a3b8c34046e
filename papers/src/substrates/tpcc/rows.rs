//! The rows of TPC-C's tables (clause 1.3), as bytes of fixed length, each with a check word over all of them.
//!
//! Lengths are the specification's, rounded up to whole words: a customer takes 680 bytes, a stock row 320. Money is in cents,
//! taxes and discounts in hundredths of a percent.

use bytemuck::{Pod, Zeroable};

/// Fields of an address, the same in three tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Address {
    /// Two lines of street, and the city.
    pub lines: [[u8; 20]; 3],
    /// State.
    pub state: [u8; 2],
    /// Zip code.
    pub zip: [u8; 9],
    /// Makes it whole words.
    pub pad: [u8; 1],
}

/// A warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Warehouse {
    /// Payments received.
    pub ytd: i64,
    /// Sales tax.
    pub tax: u32,
    /// Name.
    pub name: [u8; 12],
    /// Address.
    pub address: Address,
}

/// A district of a warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct District {
    /// Payments received.
    pub ytd: i64,
    /// Sales tax.
    pub tax: u32,
    /// Number of the next order.
    pub next_order: u32,
    /// Name.
    pub name: [u8; 16],
    /// Address.
    pub address: Address,
}

/// A customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Customer {
    /// What the customer owes, negated.
    pub balance: i64,
    /// What the customer has paid.
    pub ytd_payment: i64,
    /// Limit of credit.
    pub credit_limit: i64,
    /// When the customer came, microseconds since 1970.
    pub since: u64,
    /// Discount.
    pub discount: u32,
    /// Payments made.
    pub payments: u32,
    /// Orders delivered.
    pub deliveries: u32,
    /// First name, ended by zeros.
    pub first: [u8; 16],
    /// Middle name.
    pub middle: [u8; 2],
    /// Last name, ended by zeros.
    pub last: [u8; 16],
    /// Address.
    pub address: Address,
    /// Telephone number.
    pub phone: [u8; 16],
    /// `GC` or `BC`.
    pub credit: [u8; 2],
    /// Miscellaneous.
    pub data: [u8; 500],
    /// Makes it whole words.
    pub pad: [u8; 4],
}

/// An article that is sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Item {
    /// Price.
    pub price: u32,
    /// Picture.
    pub image: u32,
    /// Name.
    pub name: [u8; 24],
    /// Brand.
    pub data: [u8; 50],
    /// Makes it whole words.
    pub pad: [u8; 6],
}

/// What a warehouse has of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Stock {
    /// Pieces.
    pub quantity: i32,
    /// Pieces sold.
    pub ytd: u32,
    /// Order lines that took of it.
    pub orders: u32,
    /// Those of other warehouses among them.
    pub remote: u32,
    /// Information for the order lines of each district.
    pub districts: [[u8; 24]; 10],
    /// Brand.
    pub data: [u8; 50],
    /// Makes it whole words.
    pub pad: [u8; 6],
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Order {
    /// When it came, microseconds since 1970.
    pub entered: u64,
    /// Number.
    pub id: u32,
    /// Who ordered.
    pub customer: u32,
    /// Who delivers, from 1; 0: nobody yet.
    pub carrier: u32,
    /// Its lines.
    pub lines: u32,
    /// Where its lines begin in the district's table.
    pub first_line: u32,
    /// 1 if all lines are of the home warehouse.
    pub all_local: u32,
}

/// A line of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct OrderLine {
    /// When it was delivered, microseconds since 1970; 0: not yet.
    pub delivered: u64,
    /// Price of all pieces.
    pub amount: i64,
    /// The order.
    pub order: u32,
    /// Number within the order, from 1.
    pub number: u32,
    /// The article.
    pub item: u32,
    /// The warehouse it comes from.
    pub supplier: u32,
    /// Pieces.
    pub quantity: u32,
    /// Information of the stock row.
    pub district: [u8; 24],
    /// Makes it whole words.
    pub pad: [u8; 4],
}

/// An order that is not delivered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct NewOrder {
    /// Its number.
    pub order: u64,
}

/// A payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct History {
    /// When, microseconds since 1970.
    pub date: u64,
    /// How much.
    pub amount: i64,
    /// Warehouse, district and number of the customer.
    pub customer: [u32; 3],
    /// Names of the warehouse and the district where it was made.
    pub data: [u8; 24],
    /// Makes it whole words.
    pub pad: [u8; 4],
}

/// The check word of a row that is found under `key`.
#[inline]
pub fn check_word<T: Pod>(key: u64, row: &T) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(row));
    // Two chains, so that the processor multiplies for both at once.
    let (mut even, mut odd) = (key ^ FACTOR, !key);
    let mut pairs = words.chunks_exact(2);
    for pair in &mut pairs {
        even = (even ^ pair[0]).wrapping_mul(FACTOR).rotate_left(29);
        odd = (odd ^ pair[1]).wrapping_mul(FACTOR).rotate_left(31);
    }
    for word in pairs.remainder() {
        even = (even ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }
    (even ^ odd.rotate_left(17)).wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_as_long_as_the_specification_says_and_a_little_more() {
        let lengths = [
            (size_of::<Warehouse>(), 89),
            (size_of::<District>(), 95),
            (size_of::<Customer>(), 655),
            (size_of::<History>(), 46),
            (size_of::<Order>(), 24),
            (size_of::<NewOrder>(), 8),
            (size_of::<OrderLine>(), 54),
            (size_of::<Stock>(), 306),
            (size_of::<Item>(), 82),
        ];
        for (ours, specified) in lengths {
            assert!(ours >= specified && ours <= specified + 24 && ours.is_multiple_of(8), "{ours} for {specified}");
        }
    }

    #[test]
    fn every_bit_and_the_key_count() {
        let mut line = OrderLine::zeroed();
        let right = check_word(7, &line);
        assert_ne!(right, check_word(8, &line));
        for byte in 0..size_of::<OrderLine>() {
            bytemuck::bytes_of_mut(&mut line)[byte] ^= 0x10;
            assert_ne!(right, check_word(7, &line), "byte {byte}");
            bytemuck::bytes_of_mut(&mut line)[byte] ^= 0x10;
        }
        assert_eq!(right, check_word(7, &line));
    }
}
