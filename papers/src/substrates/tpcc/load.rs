//! The database as it is at first (clause 4.3.3): the same for the same scale, however many threads fill it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::database::{DISTRICTS, Database, DistrictPart, Names, STRIPES, Scale, WarehousePart, stripe};
use super::random::{Random, last_name};
use super::rows::{Address, Customer, District, History, Item, NewOrder, Order, OrderLine, Stock, Warehouse};
use super::table::Table;
use crate::substrates::Result;

/// When everything of the beginning happened, microseconds since 1970: any time, but the same in all runs.
const THEN: u64 = 1_600_000_000_000_000;

/// Fills a database, by so many threads.
///
/// # Errors
///
/// A row that is wrong as soon as it is written.
pub fn load(scale: Scale, threads: u32) -> Result<Database> {
    let next = AtomicUsize::new(0);
    let mut parts: Vec<(usize, WarehousePart)> = thread::scope(|scope| {
        let work = || {
            let mut parts = Vec::new();
            loop {
                let warehouse = next.fetch_add(1, Relaxed);
                if warehouse >= scale.warehouses as usize {
                    return Ok(parts);
                }
                parts.push((warehouse, load_warehouse(scale, warehouse)?));
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let parts: Result<Vec<_>> =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect();
        parts.map(|parts| parts.into_iter().flatten().collect())
    })?;
    parts.sort_by_key(|(warehouse, _)| *warehouse);
    let mut items = Table::new("item", 0);
    let mut random = Random::new(0x17e5);
    for number in 1..=scale.items {
        let mut item =
            Item { price: random.within(100, 10_000), image: number, name: [0; 24], data: [0; 50], pad: [0; 6] };
        random.some_text(&mut item.name, 14);
        item.data = brand(&mut random);
        items.push(item);
    }
    Ok(Database { scale, items, warehouses: parts.into_iter().map(|(_, part)| part).collect() })
}

fn load_warehouse(scale: Scale, warehouse: usize) -> Result<WarehousePart> {
    let mut random = Random::new(0xa_0000 + warehouse as u64);
    let mut row = Table::of("warehouse", warehouse, 1);
    let mut name = [0; 12];
    random.some_text(&mut name[..10], 6);
    let ytd = i64::from(DISTRICTS * scale.customers) * 1000;
    row.push(Warehouse { ytd, tax: random.within(0, 2000), name, address: address(&mut random) });
    let rows = scale.items.div_ceil(STRIPES) as usize;
    let mut stock: Vec<Table<Stock>> =
        (0..STRIPES as usize).map(|stripe| Table::of("stock", warehouse * STRIPES as usize + stripe, rows)).collect();
    // Stripe by stripe: each is one block of memory.
    for of_stripe in 0..STRIPES {
        for item in (of_stripe + 1..=scale.items).step_by(STRIPES as usize) {
            let mut districts = [[0; 24]; 10];
            districts.iter_mut().for_each(|district| random.text(district));
            let quantity = random.within(10, 100) as i32;
            let data = brand(&mut random);
            let (to, number) = stripe(item);
            debug_assert_eq!((to, number), (of_stripe, stock[to as usize].len()));
            stock[to as usize].push(Stock { quantity, ytd: 0, orders: 0, remote: 0, districts, data, pad: [0; 6] });
        }
    }
    let districts = (0..DISTRICTS).map(|district| load_district(scale, warehouse, district as usize));
    let districts = districts.map(|district| district.map(Mutex::new)).collect::<Result<_>>()?;
    Ok(WarehousePart { row: Mutex::new(row), districts, stock: stock.into_iter().map(Mutex::new).collect() })
}

fn load_district(scale: Scale, warehouse: usize, district: usize) -> Result<DistrictPart> {
    let place = warehouse * DISTRICTS as usize + district;
    let mut random = Random::new(0xd_0000 + place as u64);
    let mut name = [0; 16];
    random.some_text(&mut name[..10], 6);
    let mut part = DistrictPart {
        row: Table::of("district", place, 1),
        customers: Table::new("customer", place),
        orders: Table::new("order", place),
        lines: Table::new("order-line", place),
        new_orders: Table::new("new-order", place),
        deleted: 0,
        history: Table::new("history", place),
        last_orders: vec![0; scale.customers as usize],
        names: Names::of(&[], scale.names, &Table::new("customer", place))?,
    };
    part.row.push(District {
        ytd: i64::from(scale.customers) * 1000,
        tax: random.within(0, 2000),
        next_order: scale.customers + 1,
        name,
        address: address(&mut random),
    });
    let mut names = Vec::with_capacity(scale.customers as usize);
    for number in 1..=scale.customers {
        let name = if number <= scale.names { number - 1 } else { random.loaded_name(scale.names) };
        names.push(name);
        part.customers.push(customer(&mut random, name));
        let mut data = [0; 24];
        random.some_text(&mut data, 12);
        let customer = [warehouse as u32 + 1, district as u32 + 1, number];
        part.history.push(History { date: THEN, amount: 1000, customer, data, pad: [0; 4] });
    }
    part.names = Names::of(&names, scale.names, &part.customers)?;
    for (id, customer) in (1..).zip(random.permutation(scale.customers)) {
        let delivered = id <= scale.delivered();
        let lines = random.within(5, 15);
        let first_line = part.lines.len() as u32;
        for number in 1..=lines {
            let mut line = OrderLine {
                delivered: if delivered { THEN } else { 0 },
                amount: if delivered { 0 } else { i64::from(random.within(1, 999_999)) },
                order: id,
                number,
                item: random.within(1, scale.items),
                supplier: warehouse as u32 + 1,
                quantity: 5,
                district: [0; 24],
                pad: [0; 4],
            };
            random.text(&mut line.district);
            part.lines.push(line);
        }
        let carrier = if delivered { random.within(1, 10) } else { 0 };
        part.orders.push(Order { entered: THEN, id, customer, carrier, lines, first_line, all_local: 1 });
        part.last_orders[customer as usize - 1] = id;
        if !delivered {
            part.new_orders.push(NewOrder { order: id.into() });
        }
    }
    Ok(part)
}

fn customer(random: &mut Random, name: u32) -> Customer {
    let mut customer = Customer {
        balance: -1000,
        ytd_payment: 1000,
        credit_limit: 5_000_000,
        since: THEN,
        discount: random.within(0, 5000),
        payments: 1,
        deliveries: 0,
        first: [0; 16],
        middle: *b"OE",
        last: last_name(name),
        address: address(random),
        phone: [0; 16],
        credit: if random.percent(10) { *b"BC" } else { *b"GC" },
        data: [0; 500],
        pad: [0; 4],
    };
    random.some_text(&mut customer.first, 8);
    random.figures(&mut customer.phone);
    random.some_text(&mut customer.data, 300);
    customer
}

fn address(random: &mut Random) -> Address {
    let mut address = Address { lines: [[0; 20]; 3], state: [0; 2], zip: *b"000011111", pad: [0] };
    address.lines.iter_mut().for_each(|line| random.some_text(line, 10));
    random.text(&mut address.state);
    random.figures(&mut address.zip[..4]);
    address
}

/// Text that says ORIGINAL somewhere in a tenth of the cases.
fn brand(random: &mut Random) -> [u8; 50] {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let mut data = [0; 50];
    random.some_text(&mut data, 26);
    if random.percent(10) {
        let at = random.within(0, 26 - ORIGINAL.len() as u32) as usize;
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}
