//! Objects from outside: a store of the tests' own, with all that can go wrong, and a real one (MinIO). One executable, so that tests overlap;
//! what changes the environment runs in a process of its own (`alone!`).

#[macro_use]
mod common;
#[path = "../../../engine/tests/suite/effort.rs"]
mod effort;
#[path = "../../../engine/tests/suite/random.rs"]
mod random;
mod store;

mod changes;
mod faults;
mod killed;
mod minio;
mod others;
mod reads;
mod secrets;
