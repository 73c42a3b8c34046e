//! An order and names for structs of numbers.

/// Gives a struct of numbers an order and names, the same in the shared page, in JSON and in documents.
macro_rules! numbers {
    ($type:ident: $($field:ident),+ $(,)?) => {
        impl $type {
            pub(crate) const NUMBERS: usize = [$(stringify!($field)),+].len();

            /// Each number with its name, for tables and JSON.
            ///
            /// ```
            /// let mut numbers = fastmap::Stats::default().numbers();
            /// assert!(numbers.any(|(name, number)| name == "misses" && number == 0));
            /// ```
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let $type { $($field),+ } = *self;
                [$((stringify!($field), $field)),+].into_iter()
            }

            /// The struct of such numbers, in the same order.
            ///
            /// ```
            /// let stats = fastmap::Stats::from_numbers([7, 5].into_iter());
            /// assert_eq!((stats.misses, stats.ghost_hits, stats.born_zero), (7, 5, 0));
            /// ```
            pub fn from_numbers(mut numbers: impl Iterator<Item = u64>) -> Self {
                let mut next = || numbers.next().unwrap_or_default();
                $type { $($field: next()),+ }
            }
        }
    };
}

pub(crate) use numbers;
