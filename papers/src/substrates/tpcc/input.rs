//! What terminals ask for (clause 2): which transaction, and with what input.

use super::Kind;
use super::database::{DISTRICTS, Scale, Who};
use super::random::Random;
use super::transactions::{Transaction, Wanted};

/// One terminal, with warehouses of its own.
pub struct Terminal {
    random: Random,
    scale: Scale,
    /// Home warehouses, from 1.
    homes: Vec<u32>,
}

impl Terminal {
    /// Terminal `number` of `of`: warehouses are shared out, as Silo's are among its workers; where there are fewer than
    /// terminals, several terminals have one.
    pub fn new(scale: Scale, number: u32, of: u32, seed: u64) -> Terminal {
        let share = |warehouse: &u32| (warehouse - 1) % of == number % scale.warehouses.min(of);
        let homes = (1..=scale.warehouses).filter(share).collect();
        Terminal { random: Random::new(seed * 1_000_003 + u64::from(number)), scale, homes }
    }

    /// The next transaction, in the mix of clause 5.2.3: at least 43 % payments and 4 % each of three others, the rest new orders.
    pub fn next(&mut self) -> (Kind, Transaction) {
        let kind = match self.random.within(1, 100) {
            ..=45 => Kind::NewOrder,
            46..=88 => Kind::Payment,
            89..=92 => Kind::OrderStatus,
            93..=96 => Kind::Delivery,
            _ => Kind::StockLevel,
        };
        (kind, self.of(kind))
    }

    /// A transaction of this kind.
    pub fn of(&mut self, kind: Kind) -> Transaction {
        let random = &mut self.random;
        let warehouse = self.homes[random.within(0, self.homes.len() as u32 - 1) as usize];
        let district = random.within(1, DISTRICTS);
        match kind {
            Kind::NewOrder => self.new_order(warehouse, district),
            Kind::Payment => {
                let home = [warehouse, district];
                let amount = random.within(100, 500_000).into();
                let whose = match random.percent(85) {
                    true => home,
                    false => [self.another_warehouse(warehouse), self.random.within(1, DISTRICTS)],
                };
                Transaction::Payment { home, whose, who: self.who(), amount }
            }
            Kind::OrderStatus => Transaction::OrderStatus { home: [warehouse, district], who: self.who() },
            Kind::Delivery => Transaction::Delivery { warehouse, carrier: random.within(1, 10) },
            Kind::StockLevel => {
                Transaction::StockLevel { home: [warehouse, district], threshold: random.within(10, 20) as i32 }
            }
        }
    }

    fn new_order(&mut self, warehouse: u32, district: u32) -> Transaction {
        let customer = [warehouse, district, self.random.customer(self.scale.customers)];
        let count = self.random.within(5, 15) as usize;
        let mut items: Vec<Wanted> = Vec::with_capacity(count);
        while items.len() < count {
            let item = self.random.item(self.scale.items);
            // Clause 2.4.1.5 allows an item twice; the order of its updates would not be told apart then.
            if items.iter().any(|other| other.item == item) {
                continue;
            }
            let supplier = if self.random.percent(1) { self.another_warehouse(warehouse) } else { warehouse };
            items.push(Wanted { item, supplier, quantity: self.random.within(1, 10) });
        }
        if self.random.percent(1)
            && let Some(last) = items.last_mut()
        {
            last.item = self.scale.items + 1;
        }
        Transaction::NewOrder { customer, items }
    }

    /// Another warehouse, if there is another.
    fn another_warehouse(&mut self, than: u32) -> u32 {
        if self.scale.warehouses == 1 {
            return than;
        }
        let other = self.random.within(1, self.scale.warehouses - 1);
        other + u32::from(other >= than)
    }

    /// 60 of 100 by last name (clauses 2.5.1.2 and 2.6.1.2).
    fn who(&mut self) -> Who {
        match self.random.percent(60) {
            true => Who::Name(self.random.sought_name(self.scale.names)),
            false => Who::Number(self.random.customer(self.scale.customers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_and_its_inputs_are_the_specifications() {
        let scale = Scale::of(3);
        let mut terminal = Terminal::new(scale, 1, 2, 7);
        let (mut kinds, mut rolled_back, mut remote, mut lines, mut away, mut by_name) = ([0; 5], 0, 0, 0, 0, 0);
        for _ in 0..100_000 {
            let (kind, transaction) = terminal.next();
            kinds[kind as usize] += 1;
            let home = match transaction {
                Transaction::NewOrder { customer: [warehouse, district, customer], items } => {
                    assert!((5..=15).contains(&items.len()) && (1..=3000).contains(&customer));
                    rolled_back += usize::from(items.last().unwrap().item > 100_000);
                    assert!(items[..items.len() - 1].iter().all(|wanted| (1..=100_000).contains(&wanted.item)));
                    assert!(items.iter().all(|wanted| (1..=10).contains(&wanted.quantity)));
                    lines += items.len();
                    remote += items.iter().filter(|wanted| wanted.supplier != warehouse).count();
                    [warehouse, district]
                }
                Transaction::Payment { home, whose, who, amount } => {
                    assert!((100..=500_000).contains(&amount));
                    away += usize::from(whose[0] != home[0]);
                    by_name += usize::from(matches!(who, Who::Name(_)));
                    assert!(whose == home || whose[0] != home[0]);
                    home
                }
                Transaction::OrderStatus { home, .. } => home,
                Transaction::StockLevel { home, threshold } => {
                    assert!((10..=20).contains(&threshold));
                    home
                }
                Transaction::Delivery { warehouse, carrier } => {
                    assert!((1..=10).contains(&carrier));
                    [warehouse, 1]
                }
            };
            assert_eq!(home[0], 2, "terminal 1 of 2 has warehouse 2 of 3");
            assert!((1..=10).contains(&home[1]));
        }
        let share = |part: usize, of: usize| part as f64 / of as f64 * 100.0;
        for (kind, percent) in kinds.into_iter().zip([45.0, 43.0, 4.0, 4.0, 4.0]) {
            assert!((share(kind, 100_000) - percent).abs() < 0.7, "{kinds:?}");
        }
        assert!((share(rolled_back, kinds[0]) - 1.0).abs() < 0.3, "{rolled_back}");
        assert!((share(remote, lines) - 1.0).abs() < 0.2, "{remote}");
        assert!((share(away, kinds[1]) - 15.0).abs() < 1.0, "{away}");
        assert!((share(by_name, kinds[1]) - 60.0).abs() < 1.5, "{by_name}");
    }

    #[test]
    fn warehouses_are_shared_out() {
        let homes = |number, of, warehouses| Terminal::new(Scale::of(warehouses), number, of, 1).homes;
        assert_eq!((homes(0, 2, 5), homes(1, 2, 5)), (vec![1, 3, 5], vec![2, 4]));
        assert_eq!((homes(0, 4, 2), homes(3, 4, 2)), (vec![1], vec![2]));
    }
}
