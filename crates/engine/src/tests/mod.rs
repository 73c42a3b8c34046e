//! Tests that reach into several rooms: loom models, the engine over a disk that fails.

#[cfg(not(loom))]
mod far;
#[cfg(not(loom))]
mod faulty;
#[cfg(not(loom))]
mod few_writes;
#[cfg(loom)]
mod models;
#[cfg(not(loom))]
mod rooms;
#[cfg(not(loom))]
mod sim;
#[cfg(not(loom))]
mod uses;
