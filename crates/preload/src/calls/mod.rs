//! Calls that are made by number, whose arguments mean something else with each command, or that take messages. The
//! last room: it may call every other.

mod by_number;
mod messages;
mod requests;
