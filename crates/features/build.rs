//! Nothing: see Cargo.toml.

fn main() {}
