//! Waiting for many descriptors in many threads: epoll(7).

use super::engine_fd::EngineFd;
use super::process;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Wakes one thread for each event: level-triggered, so a thread that takes one of two hands the other on.
#[derive(Debug)]
pub struct Epoll(EngineFd<OwnedFd>);

impl Epoll {
    /// Watches descriptors for something to read, each known by its place among them. They stay open for as long.
    pub fn of<T: AsRawFd>(watched: &[T]) -> io::Result<Self> {
        // SAFETY: opens a descriptor that is ours.
        let epoll = unsafe {
            match libc::epoll_create1(libc::EPOLL_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                number => EngineFd::new(OwnedFd::from_raw_fd(number)),
            }
        };
        for (place, one) in watched.iter().enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: place as u64 };
            // SAFETY: the kernel reads the event.
            if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, one.as_raw_fd(), &mut event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Epoll(epoll))
    }

    /// The place of one that has something to read; `None` after so many milliseconds (-1: none pass), or if the kernel
    /// cannot say, which takes a moment too. Not through glibc's wrapper: that is a cancellation point.
    pub fn wait(&self, milliseconds: i32) -> Option<usize> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let (number, signals) = (self.0.as_raw_fd(), std::ptr::null::<libc::sigset_t>());
        // SAFETY: the kernel writes one event.
        match unsafe { libc::syscall(libc::SYS_epoll_pwait, number, &mut event, 1, milliseconds, signals, 8) } {
            1 => Some(event.u64 as usize),
            0 => None,
            _ => {
                process::pause();
                None
            }
        }
    }
}
