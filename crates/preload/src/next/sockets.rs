//! Sockets, and waiting for descriptors.

use crate::copy::{at, descriptors};
use libc::{
    c_int, c_uint, c_void, epoll_event, mmsghdr, msghdr, nfds_t, pollfd, sigset_t, size_t, socklen_t, ssize_t,
    timespec, timeval,
};

bounced! {
    fn connect(fd: c_int, addr: *const c_void, len: socklen_t) -> c_int: input addr[len];
    fn __connect(fd: c_int, addr: *const c_void, len: socklen_t) -> c_int: input addr[len];
    fn bind(fd: c_int, addr: *const c_void, len: socklen_t) -> c_int: input addr[len];
    fn accept(fd: c_int, addr: *mut c_void, len: *mut socklen_t) -> c_int: from len, changed addr[at(len)];
    fn accept4(fd: c_int, addr: *mut c_void, len: *mut socklen_t, flags: c_int) -> c_int: from len, changed addr[at(len)];
    fn getsockname(fd: c_int, addr: *mut c_void, len: *mut socklen_t) -> c_int: changed len, changed addr[at(len)];
    fn getpeername(fd: c_int, addr: *mut c_void, len: *mut socklen_t) -> c_int: changed len, changed addr[at(len)];
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int: changed len, changed value[at(len)];
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int: input value[len];
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int: pair fds[2];
    fn pipe(fds: *mut c_int) -> c_int: pair fds[2];
    fn __pipe(fds: *mut c_int) -> c_int: pair fds[2];
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int: pair fds[2];

    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t: filled buf[len];
    fn __recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t: filled buf[len];
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t, flags: c_int) -> ssize_t: filled buf[len];
    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut c_void, addr_len: *mut socklen_t) -> ssize_t: filled buf[len], changed addr_len, changed addr[at(addr_len)];
    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t, flags: c_int, addr: *mut c_void, addr_len: *mut socklen_t) -> ssize_t: filled buf[len], changed addr_len, changed addr[at(addr_len)];

    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int: changed fds[count];
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int: changed fds[count];
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int: changed fds[count];
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int: changed fds[count], input timeout, signals mask;
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t) -> c_int: changed fds[count], input timeout, signals mask;
    fn select(n: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut timeval) -> c_int: changed read[descriptors(n)], changed write[descriptors(n)], changed except[descriptors(n)], changed timeout;
    fn __select(n: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *mut timeval) -> c_int: changed read[descriptors(n)], changed write[descriptors(n)], changed except[descriptors(n)], changed timeout;
    fn pselect(n: c_int, read: *mut c_void, write: *mut c_void, except: *mut c_void, timeout: *const timespec, mask: *const sigset_t) -> c_int: changed read[descriptors(n)], changed write[descriptors(n)], changed except[descriptors(n)], input timeout, signals mask;
    fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int: input event;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int: filled events[most];
    fn epoll_pwait(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int: filled events[most], signals mask;
    fn epoll_pwait2(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int: filled events[most], input timeout, signals mask;
}

// The wrappers of these functions are in `calls/messages.rs`.
table! {
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const c_void, addr_len: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn __sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
}
