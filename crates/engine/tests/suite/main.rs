//! The engine from outside. One executable, so that tests overlap: whatever changes or looks at what is the whole process's (limits,
//! addresses, forked children, the way of serving faults) runs in a process of its own (`alone!`, `by_service!`, or a file's `role`).

#[macro_use]
mod common;
mod effort;
mod loops;
mod random;

mod async_interplay;
mod async_stores;
mod auto;
mod calls;
mod coherent;
mod depth;
mod descriptors;
mod direct;
mod disks;
mod edges;
mod faults;
mod foreign_writes;
mod gather;
mod handover;
mod keeper;
mod killed;
mod live;
mod maps;
mod one_writer;
mod origin;
mod pinned_work;
mod pins;
mod prefetch;
mod property;
mod property_ahead;
mod reach;
mod replaced;
mod replacement;
mod resize;
mod runs;
mod scans;
mod scratch;
mod second_tier;
mod served;
mod service;
mod signals;
mod sizes;
mod sparse;
mod store_groups;
mod streams;
mod stress;
mod writes;
