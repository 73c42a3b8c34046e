//! A small database with work done, and a model of it: the same transactions over plain maps, one after the other.

use std::collections::BTreeMap;
use std::thread;

use super::Kind;
use super::check::Tally;
use super::database::{DISTRICTS, Database, Scale, Who, stripe};
use super::input::Terminal;
use super::load::load;
use super::random::last_name;
use super::rows::{Customer, Order, OrderLine, Stock};
use super::transactions::{Answer, Transaction, Wanted};

/// A few thousand rows.
pub const SMALL: Scale = Scale { warehouses: 2, items: 2000, customers: 30, names: 20 };

/// A small database, with 1500 transactions done by each of some threads.
pub fn busy(threads: u32) -> (Database, Tally) {
    let database = load(SMALL, 1).unwrap();
    let of_thread = |number| {
        let mut terminal = Terminal::new(SMALL, number, threads, 11);
        let mut tally = Tally::default();
        for now in 1..=1500 {
            let (_, transaction) = terminal.next();
            match (database.run(&transaction, now).unwrap(), transaction) {
                (Answer::Ordered { .. }, _) => tally.ordered += 1,
                (Answer::Delivered(orders), _) => tally.delivered += u64::from(orders),
                (Answer::Paid(_), Transaction::Payment { amount, .. }) => {
                    tally.payments += 1;
                    tally.paid += amount;
                }
                _ => {}
            }
        }
        tally
    };
    let of_thread = &of_thread;
    let tally = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|number| scope.spawn(move || of_thread(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(Tally::default(), Tally::and)
    });
    (database, tally)
}

/// What a database must be, kept in the plainest way.
struct Model {
    warehouse_ytd: BTreeMap<u32, i64>,
    warehouse_tax: BTreeMap<u32, u32>,
    district_ytd: BTreeMap<[u32; 2], i64>,
    district_tax: BTreeMap<[u32; 2], u32>,
    customers: BTreeMap<[u32; 3], Customer>,
    orders: BTreeMap<[u32; 3], (Order, Vec<OrderLine>)>,
    undelivered: BTreeMap<[u32; 3], ()>,
    stock: BTreeMap<[u32; 2], Stock>,
    prices: BTreeMap<u32, u32>,
    payments: usize,
}

impl Model {
    /// What is in a database.
    fn of(database: &Database) -> Model {
        let mut model = Model {
            warehouse_ytd: BTreeMap::new(),
            warehouse_tax: BTreeMap::new(),
            district_ytd: BTreeMap::new(),
            district_tax: BTreeMap::new(),
            customers: BTreeMap::new(),
            orders: BTreeMap::new(),
            undelivered: BTreeMap::new(),
            stock: BTreeMap::new(),
            prices: BTreeMap::new(),
            payments: 0,
        };
        for item in 1..=SMALL.items {
            model.prices.insert(item, database.items.get(item as usize - 1).unwrap().price);
        }
        for warehouse in 1..=SMALL.warehouses {
            let row = *database.warehouse(warehouse).get(0).unwrap();
            model.warehouse_ytd.insert(warehouse, row.ytd);
            model.warehouse_tax.insert(warehouse, row.tax);
            for item in 1..=SMALL.items {
                let (stripe, at) = stripe(item);
                model.stock.insert([warehouse, item], *database.stock(warehouse, stripe).get(at).unwrap());
            }
            for district in 1..=DISTRICTS {
                let part = database.district(warehouse, district);
                let row = part.row.get(0).unwrap();
                model.district_ytd.insert([warehouse, district], row.ytd);
                model.district_tax.insert([warehouse, district], row.tax);
                for at in 0..part.customers.len() {
                    let key = [warehouse, district, at as u32 + 1];
                    model.customers.insert(key, *part.customers.get(at).unwrap());
                }
                for at in 0..part.orders.len() {
                    let order = *part.orders.get(at).unwrap();
                    let lines = order.first_line..order.first_line + order.lines;
                    let lines = lines.map(|line| *part.lines.get(line as usize).unwrap()).collect();
                    model.orders.insert([warehouse, district, order.id], (order, lines));
                }
                for at in part.deleted..part.new_orders.len() {
                    let order = part.new_orders.get(at).unwrap().order as u32;
                    model.undelivered.insert([warehouse, district, order], ());
                }
                model.payments += part.history.len();
            }
        }
        model
    }

    fn find(&self, [warehouse, district]: [u32; 2], who: Who) -> u32 {
        match who {
            Who::Number(number) => number,
            Who::Name(name) => {
                let of_district = self.customers.range([warehouse, district, 0]..=[warehouse, district, u32::MAX]);
                let mut named: Vec<_> = of_district
                    .filter(|(_, row)| row.last == last_name(name))
                    .map(|(key, row)| (row.first, key[2]))
                    .collect();
                named.sort_unstable();
                named[named.len().div_ceil(2) - 1].1
            }
        }
    }

    fn run(&mut self, transaction: &Transaction, now: u64) -> Answer {
        match *transaction {
            Transaction::NewOrder { customer, ref items } => self.new_order(customer, items, now),
            Transaction::Payment { home, whose, who, amount } => {
                *self.warehouse_ytd.get_mut(&home[0]).unwrap() += amount;
                *self.district_ytd.get_mut(&home).unwrap() += amount;
                self.payments += 1;
                let number = self.find(whose, who);
                let customer = self.customers.get_mut(&[whose[0], whose[1], number]).unwrap();
                customer.balance -= amount;
                customer.ytd_payment += amount;
                customer.payments += 1;
                if customer.credit == *b"BC" {
                    let mut data =
                        format!("{number} {} {} {} {} {amount}|", whose[1], whose[0], home[1], home[0]).into_bytes();
                    data.extend(customer.data);
                    customer.data.copy_from_slice(&data[..500]);
                }
                Answer::Paid(customer.balance)
            }
            Transaction::OrderStatus { home: [warehouse, district], who } => {
                let customer = self.find([warehouse, district], who);
                let balance = self.customers[&[warehouse, district, customer]].balance;
                let of_district = self.orders.range([warehouse, district, 0]..=[warehouse, district, u32::MAX]);
                let mut of_customer = of_district.filter(|(_, (order, _))| order.customer == customer);
                let (order, lines) = of_customer.next_back().unwrap().1;
                Answer::Status { balance, order: order.id, amount: lines.iter().map(|line| line.amount).sum() }
            }
            Transaction::Delivery { warehouse, carrier } => {
                let mut delivered = 0;
                for district in 1..=DISTRICTS {
                    let mut waiting =
                        self.undelivered.range([warehouse, district, 0]..=[warehouse, district, u32::MAX]);
                    let Some(key) = waiting.next().map(|(key, ())| *key) else { continue };
                    self.undelivered.remove(&key);
                    let (order, lines) = self.orders.get_mut(&key).unwrap();
                    order.carrier = carrier;
                    lines.iter_mut().for_each(|line| line.delivered = now);
                    let customer = self.customers.get_mut(&[warehouse, district, order.customer]).unwrap();
                    customer.balance += lines.iter().map(|line| line.amount).sum::<i64>();
                    customer.deliveries += 1;
                    delivered += 1;
                }
                Answer::Delivered(delivered)
            }
            Transaction::StockLevel { home: [warehouse, district], threshold } => {
                let of_district = self.orders.range([warehouse, district, 0]..=[warehouse, district, u32::MAX]);
                let mut items: Vec<u32> =
                    of_district.rev().take(20).flat_map(|(_, (_, lines))| lines.iter().map(|line| line.item)).collect();
                items.sort_unstable();
                items.dedup();
                items.retain(|&item| self.stock[&[warehouse, item]].quantity < threshold);
                Answer::Few(items.len())
            }
        }
    }

    fn new_order(&mut self, [warehouse, district, customer]: [u32; 3], items: &[Wanted], now: u64) -> Answer {
        if items.iter().any(|wanted| wanted.item > SMALL.items) {
            return Answer::RolledBack;
        }
        let of_district = self.orders.range([warehouse, district, 0]..=[warehouse, district, u32::MAX]);
        let (last, _) = of_district.last().unwrap().1;
        let (id, first_line) = (last.id + 1, last.first_line + last.lines);
        let mut lines = Vec::new();
        for (number, wanted) in (1..).zip(items) {
            let row = self.stock.get_mut(&[wanted.supplier, wanted.item]).unwrap();
            row.quantity -= wanted.quantity as i32;
            if row.quantity < 10 {
                row.quantity += 91;
            }
            row.ytd += wanted.quantity;
            row.orders += 1;
            row.remote += u32::from(wanted.supplier != warehouse);
            lines.push(OrderLine {
                delivered: 0,
                amount: i64::from(self.prices[&wanted.item] * wanted.quantity),
                order: id,
                number,
                item: wanted.item,
                supplier: wanted.supplier,
                quantity: wanted.quantity,
                district: row.districts[district as usize - 1],
                pad: [0; 4],
            });
        }
        let tax = self.warehouse_tax[&warehouse] + self.district_tax[&[warehouse, district]];
        let discount = self.customers[&[warehouse, district, customer]].discount;
        let sum: i64 = lines.iter().map(|line| line.amount).sum();
        let total = sum * (10_000 - i64::from(discount)) / 10_000 * (10_000 + i64::from(tax)) / 10_000;
        let all_local = u32::from(items.iter().all(|wanted| wanted.supplier == warehouse));
        let count = items.len() as u32;
        let order = Order { entered: now, id, customer, carrier: 0, lines: count, first_line, all_local };
        self.orders.insert([warehouse, district, id], (order, lines));
        self.undelivered.insert([warehouse, district, id], ());
        Answer::Ordered { order: id, total }
    }
}

/// Transactions of one kind, with new orders among them, answer as the model does and leave what the model has.
#[track_caller]
fn as_the_model(kind: Kind) {
    let database = load(SMALL, 2).unwrap();
    let mut model = Model::of(&database);
    let mut terminal = Terminal::new(SMALL, 0, 1, 3);
    let mut answers = Vec::new();
    for now in 1..=1000 {
        let transaction = terminal.of(if now % 4 == 0 { Kind::NewOrder } else { kind });
        let answer = database.run(&transaction, now).unwrap();
        assert_eq!(answer, model.run(&transaction, now), "transaction {now}: {transaction:?}");
        answers.push(answer);
    }
    let left = Model::of(&database);
    assert!(left.customers == model.customers && left.orders == model.orders && left.stock == model.stock);
    assert!(left.undelivered == model.undelivered && left.payments == model.payments);
    assert!(left.warehouse_ytd == model.warehouse_ytd && left.district_ytd == model.district_ytd);
    let is_of_note = |answer: &Answer| match (kind, answer) {
        (Kind::NewOrder, answer) => *answer == Answer::RolledBack,
        (Kind::StockLevel, Answer::Few(items)) => *items > 0,
        (Kind::Delivery, Answer::Delivered(orders)) => *orders == 10,
        (Kind::Payment, Answer::Paid(_)) | (Kind::OrderStatus, Answer::Status { .. }) => true,
        _ => false,
    };
    assert!(answers.iter().any(is_of_note), "{kind} did what it is for");
}

#[test]
fn new_orders_are_as_in_the_model() {
    as_the_model(Kind::NewOrder);
}

#[test]
fn payments_are_as_in_the_model() {
    as_the_model(Kind::Payment);
}

#[test]
fn order_status_is_as_in_the_model() {
    as_the_model(Kind::OrderStatus);
}

#[test]
fn deliveries_are_as_in_the_model() {
    as_the_model(Kind::Delivery);
}

#[test]
fn stock_levels_are_as_in_the_model() {
    as_the_model(Kind::StockLevel);
}
