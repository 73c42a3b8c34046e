//! The five transactions (clause 2), and why they are serializable.
//!
//! Two-phase locking: a transaction locks what it touches before it touches it and lets go of all at its end. Locks are
//! taken in one order, so that there is no deadlock: districts by number, then stripes of stock by number, then rows of
//! warehouses. Writes of a New-Order are kept aside until all of its items are found, as in Silo, so one that rolls back has
//! read all it would have, and changed nothing. Two things are looser, and the specification allows both: a Delivery is one transaction for each of
//! its ten districts (clause 2.7.2.2), and a Stock-Level reads committed rows, one after the other (clause 3.4.1).
//!
//! Every row that is read is checked against its check word.

use std::io::Write;
use std::sync::MutexGuard;

use super::database::{DISTRICTS, Database, DistrictPart, Who, stripe};
use super::rows::{Customer, History, NewOrder, Order, OrderLine, Stock};
use super::table::Table;
use crate::substrates::{Error, Result};

/// One piece of an order that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The item, from 1; of an order that is to roll back, the last is one that there is not.
    pub item: u32,
    /// The warehouse it shall come from.
    pub supplier: u32,
    /// Pieces.
    pub quantity: u32,
}

/// A transaction with its input; warehouses and districts count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transaction {
    /// Clause 2.4.
    NewOrder {
        /// Warehouse, district, number of the customer.
        customer: [u32; 3],
        /// What is ordered.
        items: Vec<Wanted>,
    },
    /// Clause 2.5.
    Payment {
        /// Warehouse and district where it is made.
        home: [u32; 2],
        /// Those of the customer.
        whose: [u32; 2],
        /// The customer.
        who: Who,
        /// Cents.
        amount: i64,
    },
    /// Clause 2.6.
    OrderStatus {
        /// Warehouse and district.
        home: [u32; 2],
        /// The customer.
        who: Who,
    },
    /// Clause 2.7.
    Delivery {
        /// Warehouse.
        warehouse: u32,
        /// Who delivers.
        carrier: u32,
    },
    /// Clause 2.8.
    StockLevel {
        /// Warehouse and district.
        home: [u32; 2],
        /// Fewer pieces than this are few.
        threshold: i32,
    },
}

/// What a transaction answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A new order: its number, and what it costs in cents.
    Ordered {
        /// Number.
        order: u32,
        /// Cents, with taxes and discount.
        total: i64,
    },
    /// A new order with an item that there is not: nothing has changed.
    RolledBack,
    /// A payment: the customer's balance now.
    Paid(i64),
    /// The customer's balance, the number of the last order, and what its lines cost together.
    Status {
        /// Cents.
        balance: i64,
        /// Number.
        order: u32,
        /// Cents.
        amount: i64,
    },
    /// How many orders were delivered.
    Delivered(u32),
    /// How many items there are few of.
    Few(usize),
}

impl Database {
    /// Does a transaction; `now` is in microseconds since 1970.
    ///
    /// # Errors
    ///
    /// A row that is not as it was left.
    pub fn run(&self, transaction: &Transaction, now: u64) -> Result<Answer> {
        match *transaction {
            Transaction::NewOrder { customer, ref items } => self.new_order(customer, items, now),
            Transaction::Payment { home, whose, who, amount } => self.payment(home, whose, who, amount, now),
            Transaction::OrderStatus { home, who } => self.order_status(home, who),
            Transaction::Delivery { warehouse, carrier } => {
                let mut delivered = 0;
                for district in 1..=DISTRICTS {
                    delivered += u32::from(self.deliver(warehouse, district, carrier, now)?);
                }
                Ok(Answer::Delivered(delivered))
            }
            Transaction::StockLevel { home, threshold } => self.stock_level(home, threshold),
        }
    }

    fn new_order(&self, [warehouse, district, customer]: [u32; 3], items: &[Wanted], now: u64) -> Result<Answer> {
        let mut home = self.district(warehouse, district);
        let home = &mut *home;
        let mut stock = Stripes::lock(self, items);
        let discount = home.customers.get(customer as usize - 1)?.discount;
        let (district_tax, id) = (home.row.get(0)?.tax, home.row.get(0)?.next_order);
        let mut lines = Vec::with_capacity(items.len());
        for (number, wanted) in (1..).zip(items) {
            if wanted.item as usize > self.items.len() {
                return Ok(Answer::RolledBack);
            }
            let price = self.items.get(wanted.item as usize - 1)?.price;
            lines.push(OrderLine {
                delivered: 0,
                amount: i64::from(price) * i64::from(wanted.quantity),
                order: id,
                number,
                item: wanted.item,
                supplier: wanted.supplier,
                quantity: wanted.quantity,
                district: stock.of(wanted)?.districts[district as usize - 1],
                pad: [0; 4],
            });
        }
        let tax = self.warehouse(warehouse).get(0)?.tax + district_tax;
        // From here on everything is done.
        for wanted in items {
            stock.change(wanted, |row| take(row, wanted.quantity, wanted.supplier != warehouse))?;
        }
        let sum: i64 = lines.iter().map(|line| line.amount).sum();
        home.row.change(0, |row| row.next_order += 1)?;
        home.orders.push(Order {
            entered: now,
            id,
            customer,
            carrier: 0,
            lines: items.len() as u32,
            first_line: home.lines.len() as u32,
            all_local: u32::from(items.iter().all(|wanted| wanted.supplier == warehouse)),
        });
        lines.into_iter().for_each(|line| home.lines.push(line));
        home.new_orders.push(NewOrder { order: id.into() });
        home.last_orders[customer as usize - 1] = id;
        let total = sum * (10_000 - i64::from(discount)) / 10_000 * (10_000 + i64::from(tax)) / 10_000;
        Ok(Answer::Ordered { order: id, total })
    }

    fn payment(&self, home: [u32; 2], whose: [u32; 2], who: Who, amount: i64, now: u64) -> Result<Answer> {
        // Both districts, the smaller first; of one there is one lock.
        let lock = |[warehouse, district]: [u32; 2]| self.district(warehouse, district);
        let mut first = lock(home.min(whose));
        let mut second = (home != whose).then(|| lock(home.max(whose)));
        let (receiver, owner) = match &mut second {
            None => (&mut *first, None),
            Some(second) if home < whose => (&mut *first, Some(&mut **second)),
            Some(second) => (&mut **second, Some(&mut *first)),
        };
        let district_name = receiver.row.change(0, |row| {
            row.ytd += amount;
            row.name
        })?;
        let pay = |district: &mut DistrictPart| {
            let customer = district.find(who)?;
            let balance = district.customers.change(customer, |row| {
                row.balance -= amount;
                row.ytd_payment += amount;
                row.payments += 1;
                if row.credit == *b"BC" {
                    note(row, home, whose, customer as u32 + 1, amount);
                }
                row.balance
            })?;
            Ok::<_, Error>((customer as u32 + 1, balance))
        };
        let (customer, balance) = match owner {
            Some(owner) => pay(owner)?,
            None => pay(receiver)?,
        };
        let name = self.warehouse(home[0]).change(0, |row| {
            row.ytd += amount;
            row.name
        })?;
        let mut data = [0; 24];
        data[..10].copy_from_slice(&name[..10]);
        data[14..].copy_from_slice(&district_name[..10]);
        let customer = [whose[0], whose[1], customer];
        receiver.history.push(History { date: now, amount, customer, data, pad: [0; 4] });
        Ok(Answer::Paid(balance))
    }

    fn order_status(&self, [warehouse, district]: [u32; 2], who: Who) -> Result<Answer> {
        let district = self.district(warehouse, district);
        let customer = district.find(who)?;
        let balance = district.customers.get(customer)?.balance;
        let order = district.orders.get(district.last_orders[customer] as usize - 1)?;
        let mut amount = 0;
        for line in order.first_line..order.first_line + order.lines {
            amount += district.lines.get(line as usize)?.amount;
        }
        Ok(Answer::Status { balance, order: order.id, amount })
    }

    /// Delivers the oldest new order of a district, if there is one.
    fn deliver(&self, warehouse: u32, district: u32, carrier: u32, now: u64) -> Result<bool> {
        let mut district = self.district(warehouse, district);
        let district = &mut *district;
        if district.deleted == district.new_orders.len() {
            return Ok(false);
        }
        let id = district.new_orders.get(district.deleted)?.order as usize;
        district.deleted += 1;
        let order = district.orders.change(id - 1, |row| {
            row.carrier = carrier;
            *row
        })?;
        let mut amount = 0;
        for line in order.first_line..order.first_line + order.lines {
            amount += district.lines.change(line as usize, |row| {
                row.delivered = now;
                row.amount
            })?;
        }
        district.customers.change(order.customer as usize - 1, |row| {
            row.balance += amount;
            row.deliveries += 1;
        })?;
        Ok(true)
    }

    fn stock_level(&self, [warehouse, district]: [u32; 2], threshold: i32) -> Result<Answer> {
        let mut items = {
            let district = self.district(warehouse, district);
            let next = district.row.get(0)?.next_order as usize;
            let oldest = district.orders.get(next.saturating_sub(20).max(1) - 1)?;
            let lines = oldest.first_line as usize..district.lines.len();
            lines.map(|line| Ok(district.lines.get(line)?.item)).collect::<Result<Vec<u32>>>()?
        };
        items.sort_unstable();
        items.dedup();
        let mut few = 0;
        for item in items {
            let (stripe, number) = stripe(item);
            few += usize::from(self.stock(warehouse, stripe).get(number)?.quantity < threshold);
        }
        Ok(Answer::Few(few))
    }
}

/// Takes pieces of a stock row (clause 2.4.2.2).
fn take(row: &mut Stock, quantity: u32, is_remote: bool) {
    let left = row.quantity - quantity as i32;
    row.quantity = if left >= 10 { left } else { left + 91 };
    row.ytd += quantity;
    row.orders += 1;
    row.remote += u32::from(is_remote);
}

/// Notes a payment in the data of a customer with bad credit, which moves to the right for it (clause 2.5.2.2).
fn note(row: &mut Customer, home: [u32; 2], whose: [u32; 2], customer: u32, amount: i64) {
    let mut text = [0; 80];
    let mut rest = &mut text[..];
    // It fits, whatever the numbers.
    let _ = write!(rest, "{customer} {} {} {} {} {amount}|", whose[1], whose[0], home[1], home[0]);
    let len = 80 - rest.len();
    row.data.copy_within(..500 - len, len);
    row.data[..len].copy_from_slice(&text[..len]);
}

/// A warehouse and a stripe of its stock.
type Place = (u32, u32);

/// The stock that an order needs, locked.
struct Stripes<'a> {
    /// Ascending by place.
    locked: Vec<(Place, MutexGuard<'a, Table<Stock>>)>,
}

impl<'a> Stripes<'a> {
    fn lock(database: &'a Database, items: &[Wanted]) -> Stripes<'a> {
        let there_is = |wanted: &&Wanted| wanted.item as usize <= database.items.len();
        let mut places: Vec<_> =
            items.iter().filter(there_is).map(|wanted| (wanted.supplier, stripe(wanted.item).0)).collect();
        places.sort_unstable();
        places.dedup();
        Stripes { locked: places.into_iter().map(|place| (place, database.stock(place.0, place.1))).collect() }
    }

    fn of(&self, wanted: &Wanted) -> Result<&Stock> {
        let (stripe, number) = stripe(wanted.item);
        self.locked[self.place(wanted, stripe)].1.get(number)
    }

    fn change(&mut self, wanted: &Wanted, change: impl FnOnce(&mut Stock)) -> Result<()> {
        let (stripe, number) = stripe(wanted.item);
        let place = self.place(wanted, stripe);
        self.locked[place].1.change(number, change)
    }

    fn place(&self, wanted: &Wanted, stripe: u32) -> usize {
        self.locked.partition_point(|(place, _)| *place < (wanted.supplier, stripe))
    }
}
