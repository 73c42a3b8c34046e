//! Whether the database is as its transactions must leave it: conditions 1 to 10 and 12 of clause 3.3.2 over all rows, every
//! row's check word, and the number of transactions that the terminals counted themselves.
//!
//! Condition 11 holds for a database that has just been filled; it is left out.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::database::{DISTRICTS, Database, DistrictPart, STRIPES};
use crate::substrates::{Error, Result};

/// What the terminals did, counted by themselves, from the very first transaction on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// New orders that were not rolled back.
    pub ordered: u64,
    /// Payments.
    pub payments: u64,
    /// What was paid, cents.
    pub paid: i64,
    /// Orders delivered.
    pub delivered: u64,
}

impl Tally {
    /// Both together.
    pub fn and(self, other: Tally) -> Tally {
        Tally {
            ordered: self.ordered + other.ordered,
            payments: self.payments + other.payments,
            paid: self.paid + other.paid,
            delivered: self.delivered + other.delivered,
        }
    }
}

/// Checks all of it, by so many threads, and returns how many rows there are.
///
/// # Errors
///
/// [`Error::Answer`]: the first condition that does not hold, or the first wrong row.
pub fn check(database: &Database, tally: Tally, threads: u32) -> Result<u64> {
    let scale = database.scale;
    let customers = (scale.warehouses * DISTRICTS * scale.customers) as usize;
    let accounts: Vec<Account> = (0..customers).map(|_| Account::default()).collect();
    let next = AtomicUsize::new(0);
    let sums = in_turn(database, threads, &next, |warehouse| of_warehouse(database, warehouse, &accounts))?;
    let sum = sums.into_iter().fold(Sum::default(), Sum::and);
    let initially = customers as u64;
    let undelivered = u64::from(scale.customers - scale.delivered()) * u64::from(scale.warehouses * DISTRICTS);
    let whole = |what: &str, found: i64, expected: i64| equal("the whole database", what, found, expected);
    whole("orders, as counted by terminals", sum.orders as i64, (initially + tally.ordered) as i64)?;
    whole("payments, as counted by terminals", sum.payments as i64, (initially + tally.payments) as i64)?;
    whole("cents paid, as counted by terminals", sum.paid, initially as i64 * 1000 + tally.paid)?;
    let new_orders = (undelivered + tally.ordered) as i64 - tally.delivered as i64;
    whole("new orders, as counted by terminals", sum.new_orders as i64, new_orders)?;
    next.store(0, Relaxed);
    in_turn(database, threads, &next, |warehouse| balances(database, warehouse, &accounts))?;
    for item in 0..database.items.len() {
        database.items.get(item)?;
    }
    Ok(sum.rows + database.items.len() as u64)
}

/// Calls `of` for each warehouse, from 0, by some threads.
fn in_turn<T: Send>(
    database: &Database,
    threads: u32,
    next: &AtomicUsize,
    of: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let work = || {
            let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)));
            numbers.take_while(|&number| number < database.warehouses.len()).map(&of).collect::<Result<Vec<T>>>()
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(all)
    })
}

/// What a customer's balance must come of, wherever it was paid.
#[derive(Debug, Default)]
struct Account {
    /// Payments in the history.
    paid: AtomicI64,
    /// Lines that were delivered.
    delivered: AtomicI64,
}

/// Figures of a warehouse or several.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    rows: u64,
    orders: u64,
    new_orders: u64,
    payments: u64,
    paid: i64,
}

impl Sum {
    fn and(self, other: Sum) -> Sum {
        Sum {
            rows: self.rows + other.rows,
            orders: self.orders + other.orders,
            new_orders: self.new_orders + other.new_orders,
            payments: self.payments + other.payments,
            paid: self.paid + other.paid,
        }
    }
}

fn equal(place: &str, what: &str, found: i64, expected: i64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Answer { thing: place.to_owned(), what: format!("{what}: {found} where {expected} belongs") })
}

/// Conditions 1 to 9 of a warehouse.
fn of_warehouse(database: &Database, warehouse: usize, accounts: &[Account]) -> Result<Sum> {
    let number = warehouse as u32 + 1;
    let mut sum = Sum::default();
    let mut of_districts = 0;
    for district in 1..=DISTRICTS {
        let part = database.district(number, district);
        let of_district = of_district(database, [number, district], &part, accounts)?;
        of_districts += part.row.get(0)?.ytd;
        sum = sum.and(of_district);
    }
    let place = format!("warehouse {number}");
    let ytd = database.warehouse(number).get(0)?.ytd;
    equal(&place, "condition 1, its payments and those of its districts", ytd, of_districts)?;
    equal(&place, "condition 8, its payments and its history", ytd, sum.paid)?;
    let mut rows = 0;
    for stripe in 0..STRIPES {
        let stock = database.stock(number, stripe);
        (0..stock.len()).try_for_each(|at| stock.get(at).map(drop))?;
        rows += stock.len();
    }
    equal(&place, "rows of stock", rows as i64, database.scale.items.into())?;
    sum.rows += rows as u64 + 1;
    Ok(sum)
}

/// Conditions 2 to 7 and 9 of a district; adds to the accounts of those who paid there or ordered.
fn of_district(database: &Database, home: [u32; 2], part: &DistrictPart, accounts: &[Account]) -> Result<Sum> {
    let place = &format!("district {} of warehouse {}", home[1], home[0]);
    let row = part.row.get(0)?;
    let last = i64::from(row.next_order) - 1;
    let is = |what, found, expected| equal(place, what, found, expected);
    let mut undelivered = vec![false; part.orders.len()];
    let mut waiting =
        (part.deleted..part.new_orders.len()).map(|at| part.new_orders.get(at).map(|row| row.order as i64));
    let (mut least, mut most, mut count) = (0, 0, 0);
    while let Some(order) = waiting.next().transpose()? {
        least = if count == 0 { order } else { least.min(order) };
        most = most.max(order);
        count += 1;
        match undelivered.get_mut((order - 1) as usize) {
            Some(it) => *it = true,
            None => is("condition 2, the number of a new order and its last order", order, last)?,
        }
    }
    if count > 0 {
        is("condition 2, its last new order and its next one", most, last)?;
        is("condition 3, the span of its new orders and their count", most - least + 1, count)?;
    }
    let mut lines = 0;
    for (at, &waits) in undelivered.iter().enumerate() {
        let order = part.orders.get(at)?;
        let of_order = |what: &str, found: i64, expected: i64| match found == expected {
            true => Ok(()),
            false => equal(place, &format!("{what} of order {}", at + 1), found, expected),
        };
        of_order("condition 2, the number", order.id.into(), at as i64 + 1)?;
        of_order("condition 5, whether somebody delivers", (order.carrier != 0).into(), (!waits).into())?;
        of_order("condition 6, where the lines begin", order.first_line.into(), lines)?;
        let mut delivered = 0;
        for number in 1..=order.lines {
            let line = part.lines.get(lines as usize)?;
            of_order("condition 6, the order of a line", line.order.into(), order.id.into())?;
            of_order("condition 6, the number of a line", line.number.into(), number.into())?;
            of_order("condition 7, whether a line is delivered", (line.delivered != 0).into(), (!waits).into())?;
            lines += 1;
            delivered += if waits { 0 } else { line.amount };
        }
        let account = account(database, [home[0], home[1], order.customer]);
        accounts[account].delivered.fetch_add(delivered, Relaxed);
    }
    is("condition 2, its orders and its next one", part.orders.len() as i64, last)?;
    is("condition 4, lines of its orders and its lines", lines, part.lines.len() as i64)?;
    let mut of_history = 0;
    for at in 0..part.history.len() {
        let payment = part.history.get(at)?;
        of_history += payment.amount;
        accounts[account(database, payment.customer)].paid.fetch_add(payment.amount, Relaxed);
    }
    is("condition 9, its payments and its history", row.ytd, of_history)?;
    let rows = 1 + part.customers.len() + part.orders.len() + part.lines.len() + part.history.len() + count as usize;
    Ok(Sum {
        rows: rows as u64,
        orders: part.orders.len() as u64,
        new_orders: count as u64,
        payments: part.history.len() as u64,
        paid: of_history,
    })
}

/// Conditions 10 and 12 of a warehouse's customers.
fn balances(database: &Database, warehouse: usize, accounts: &[Account]) -> Result<()> {
    let number = warehouse as u32 + 1;
    for district in 1..=DISTRICTS {
        let part = database.district(number, district);
        for at in 0..part.customers.len() {
            let row = part.customers.get(at)?;
            let place = || format!("customer {} of district {district} of warehouse {number}", at + 1);
            let account = &accounts[account(database, [number, district, at as u32 + 1])];
            let (paid, delivered) = (account.paid.load(Relaxed), account.delivered.load(Relaxed));
            if row.balance != delivered - paid {
                equal(&place(), "condition 10, balance", row.balance, delivered - paid)?;
            }
            if row.balance + row.ytd_payment != delivered {
                equal(&place(), "condition 12, balance and payments", row.balance + row.ytd_payment, delivered)?;
            }
        }
    }
    Ok(())
}

/// A customer's place among all accounts.
fn account(database: &Database, [warehouse, district, customer]: [u32; 3]) -> usize {
    let of_district = (warehouse - 1) * DISTRICTS + district - 1;
    (of_district * database.scale.customers + customer - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::super::load::load;
    use super::super::testing::{SMALL, busy};
    use super::super::transactions::Transaction;
    use super::*;

    #[test]
    fn a_database_is_consistent_when_it_is_filled_and_after_transactions() {
        let database = load(SMALL, 2).unwrap();
        let rows = check(&database, Tally::default(), 2).unwrap();
        assert!(rows > 2 * 10 * 30 * 13);
        let (database, tally) = busy(3);
        assert!(tally.ordered > 500 && tally.payments > 500 && tally.delivered > 100, "{tally:?}");
        check(&database, tally, 3).unwrap();
    }

    /// What is found when the database is changed behind the transactions' back.
    #[track_caller]
    fn finds(what: &str, plant: impl FnOnce(&Database)) {
        let (database, tally) = busy(1);
        plant(&database);
        let found = check(&database, tally, 1).unwrap_err().to_string();
        assert!(found.contains(what), "{what} is not in: {found}");
    }

    #[test]
    fn whatever_is_planted_is_found() {
        finds("warehouse 2: condition 1,", |db| db.warehouse(2).change(0, |row| row.ytd += 1).unwrap());
        finds("district 3 of warehouse 1: condition 9,", |db| {
            db.district(1, 3).row.change(0, |row| row.ytd -= 1).unwrap()
        });
        finds("condition 2,", |db| db.district(2, 10).row.change(0, |row| row.next_order += 1).unwrap());
        finds("condition 2,", |db| db.district(1, 1).orders.change(7, |row| row.id = 7).unwrap());
        finds("condition 3,", |db| {
            let mut district = db.district(1, 1);
            let first = district.deleted;
            district.new_orders.change(first, |row| row.order -= 1).unwrap();
        });
        finds("condition 4,", |db| {
            let mut district = db.district(1, 2);
            let line = *district.lines.get(0).unwrap();
            district.lines.push(line);
        });
        finds("condition 5,", |db| db.district(2, 2).orders.change(0, |row| row.carrier = 0).unwrap());
        finds("condition 6,", |db| db.district(2, 2).lines.change(20, |row| row.number += 1).unwrap());
        finds("condition 7,", |db| db.district(2, 2).lines.change(20, |row| row.delivered = 0).unwrap());
        finds("condition 10,", |db| {
            db.district(1, 9)
                .customers
                .change(5, |row| {
                    row.balance += 1;
                    row.ytd_payment -= 1;
                })
                .unwrap();
        });
        finds("condition 12,", |db| db.district(1, 9).customers.change(5, |row| row.ytd_payment += 1).unwrap());
        finds("order 3 of ", |db| db.district(1, 1).orders.damage(3));
        finds("customer 29 of 19", |db| db.district(2, 10).customers.damage(29));
        finds("stock 0 of 1029", |db| db.stock(2, 5).damage(0));
        finds("history 4 of 0", |db| db.district(1, 1).history.damage(4));
    }

    #[test]
    fn a_transaction_that_did_not_arrive_is_found() {
        let (database, tally) = busy(1);
        let home = [1, 1];
        let payment =
            Transaction::Payment { home, whose: home, who: super::super::database::Who::Number(1), amount: 700 };
        database.run(&payment, 1).unwrap();
        let found = check(&database, tally, 1).unwrap_err().to_string();
        assert!(found.contains("payments, as counted by terminals"), "{found}");
    }
}
