//! The nine tables in memory, and how rows are found and locked.
//!
//! What belongs to a district (its row, customers, orders, lines, payments) is behind one lock, the stock of a warehouse behind
//! 1024, a warehouse's row behind one; items never change. The order of locks is in `transactions.rs`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::random::last_name;
use super::rows::{Customer, District, History, Item, NewOrder, Order, OrderLine, Stock, Warehouse};
use super::table::Table;
use crate::substrates::{Error, Result};

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;

/// Locks of a warehouse's stock: so many that the up to fifteen items of an order rarely meet those of another.
pub const STRIPES: u32 = 1024;

/// How many rows tables have at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u32,
    /// Items, and stock rows of each warehouse.
    pub items: u32,
    /// Customers of a district, and orders.
    pub customers: u32,
    /// Different last names.
    pub names: u32,
}

impl Scale {
    /// The specification's (clause 4.3.3), with so many warehouses.
    pub fn of(warehouses: u32) -> Scale {
        Scale { warehouses, items: 100_000, customers: 3000, names: 1000 }
    }

    /// Orders of a district that are delivered at first.
    pub fn delivered(self) -> u32 {
        self.customers * 7 / 10
    }

    /// Bytes of all rows at first, check words included.
    pub fn bytes(self) -> u64 {
        let checked = |row: usize| row as u64 + 8;
        // An order has ten lines on average.
        let customer = checked(size_of::<Customer>())
            + checked(size_of::<History>())
            + checked(size_of::<Order>())
            + 10 * checked(size_of::<OrderLine>());
        let (items, customers) = (u64::from(self.items), u64::from(self.customers * DISTRICTS));
        items * checked(size_of::<Item>())
            + u64::from(self.warehouses) * (items * checked(size_of::<Stock>()) + customers * customer)
    }
}

/// All of it.
pub struct Database {
    /// How many rows there were at first.
    pub scale: Scale,
    /// By number, from 0.
    pub items: Table<Item>,
    /// By number, from 0.
    pub warehouses: Vec<WarehousePart>,
}

/// A warehouse, its districts and its stock.
pub struct WarehousePart {
    /// One row.
    pub row: Mutex<Table<Warehouse>>,
    /// By number, from 0.
    pub districts: Vec<Mutex<DistrictPart>>,
    /// By stripe: see [`stripe`].
    pub stock: Vec<Mutex<Table<Stock>>>,
}

/// A district and what belongs to it.
pub struct DistrictPart {
    /// One row.
    pub row: Table<District>,
    /// By number, from 0.
    pub customers: Table<Customer>,
    /// By number, from 0.
    pub orders: Table<Order>,
    /// In the order of orders.
    pub lines: Table<OrderLine>,
    /// Orders that were not delivered when they came, oldest first.
    pub new_orders: Table<NewOrder>,
    /// How many of these are delivered: their rows count as deleted.
    pub deleted: usize,
    /// Payments.
    pub history: Table<History>,
    /// Number of each customer's last order.
    pub last_orders: Vec<u32>,
    /// Customers by last name.
    pub names: Names,
}

/// An index: customers by last name, then first name.
pub struct Names {
    /// Where the customers of each name begin.
    starts: Vec<u32>,
    /// Numbers from 0.
    customers: Vec<u32>,
}

impl Names {
    /// Of customers whose last names have these numbers.
    ///
    /// # Errors
    ///
    /// A wrong row.
    pub fn of(numbers: &[u32], names: u32, customers: &Table<Customer>) -> Result<Names> {
        let mut sorted = Vec::with_capacity(numbers.len());
        for (customer, &name) in numbers.iter().enumerate() {
            sorted.push((name, customers.get(customer)?.first, customer as u32));
        }
        sorted.sort_unstable();
        let starts = (0..=names).map(|name| sorted.partition_point(|one| one.0 < name) as u32).collect();
        Ok(Names { starts, customers: sorted.iter().map(|one| one.2).collect() })
    }

    /// The one in the middle of those with this last name, rounded up (clause 2.5.2.2); nobody if there is none.
    pub fn middle(&self, name: u32) -> Option<usize> {
        let (from, to) = (self.starts[name as usize] as usize, self.starts[name as usize + 1] as usize);
        (from < to).then(|| self.customers[from + (to - from - 1) / 2] as usize)
    }
}

/// Who is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// By number, from 1.
    Number(u32),
    /// By the number of the last name.
    Name(u32),
}

impl DistrictPart {
    /// The customer's place in the table.
    ///
    /// # Errors
    ///
    /// Nobody of this name, or a row of another: the index does not fit the table.
    pub fn find(&self, who: Who) -> Result<usize> {
        match who {
            Who::Number(number) => Ok(number as usize - 1),
            Who::Name(name) => {
                let found = self.names.middle(name);
                let wrong = || Error::Answer {
                    thing: format!(
                        "customers named {}",
                        String::from_utf8_lossy(&last_name(name)).trim_end_matches('\0')
                    ),
                    what: "the index leads to another or to nobody".to_owned(),
                };
                let customer = found.ok_or_else(wrong)?;
                if self.customers.get(customer)?.last != last_name(name) { Err(wrong()) } else { Ok(customer) }
            }
        }
    }
}

impl Database {
    /// A district, locked; numbers from 1.
    pub fn district(&self, warehouse: u32, district: u32) -> MutexGuard<'_, DistrictPart> {
        lock(&self.warehouses[warehouse as usize - 1].districts[district as usize - 1])
    }

    /// A warehouse's row, locked.
    pub fn warehouse(&self, warehouse: u32) -> MutexGuard<'_, Table<Warehouse>> {
        lock(&self.warehouses[warehouse as usize - 1].row)
    }

    /// A stripe of a warehouse's stock, locked.
    pub fn stock(&self, warehouse: u32, stripe: u32) -> MutexGuard<'_, Table<Stock>> {
        lock(&self.warehouses[warehouse as usize - 1].stock[stripe as usize])
    }
}

/// The stripe of an item, and its place there.
pub fn stripe(item: u32) -> (u32, usize) {
    ((item - 1) % STRIPES, ((item - 1) / STRIPES) as usize)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked takes the run with it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
