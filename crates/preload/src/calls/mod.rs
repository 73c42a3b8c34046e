//! Calls by number (syscall(2)), calls whose arguments depend on a command (fcntl(2), ioctl(2)), and calls that take
//! messages. This is the last room, so it may call every other room.

mod by_number;
mod messages;
mod requests;
mod rings;
