//! Many threads wait for many descriptors: epoll(7).

use super::engine_fd::EngineFd;
use super::process;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A set of descriptors to wait for. Each event wakes one thread. The set is level-triggered: when a thread takes one of two events, the
/// kernel wakes another thread for the second.
#[derive(Debug)]
pub struct Epoll(EngineFd<OwnedFd>);

impl Epoll {
    /// Watches descriptors for something to read. `wait` names a descriptor by its place in `watched`. The caller keeps the descriptors open
    /// as long as this value lives.
    pub fn of<T: AsRawFd>(watched: &[T]) -> io::Result<Self> {
        // SAFETY: the call opens a descriptor, which nobody else owns.
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

    /// Waits until a descriptor has something to read, and returns its place. `None` after `milliseconds` (-1: no limit), or after a short
    /// pause if the call fails. glibc's wrapper is not used, since it is a cancellation point (pthreads(7)).
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
