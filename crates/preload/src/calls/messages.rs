//! Messages: send(2), sendto(2), sendmsg(2), recvmsg(2), sendmmsg(2), recvmmsg(2). The calls that take a `msghdr` are never
//! split. send(2) and sendto(2) are split only on a stream socket.

use crate::copy::{Call, Unit, Way, any_held, exchange, held, mapped};
use crate::next;
use crate::own::remembered;
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, socklen_t, ssize_t, timespec};

/// Flags of calls that must not be split. Other calls may be split, on a stream socket.
const AS_ONE: c_int = libc::MSG_OOB | libc::MSG_EOR | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;

fn unit(fd: c_int, flags: c_int) -> Unit {
    match flags & AS_ONE {
        0 => Unit::Descriptor(fd),
        flags if flags & libc::MSG_ZEROCOPY != 0 => Unit::KeptCall,
        _ => Unit::Call,
    }
}

/// Wrappers of send(2).
macro_rules! sends {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !held(buf, len) {
                    return next::$name(fd, buf, len, flags);
                }
                let entry = iovec { iov_base: buf.cast_mut(), iov_len: len };
                exchange(Way::Out, unit(fd, flags), &entry, 1, &mut |window, _| {
                    next::$name(fd, window[0].iov_base, window[0].iov_len, flags)
                })
            }
        }
    )* };
}
sends!(send __send);

/// sendto(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const c_void,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let arguments = Call::new();
        let addr = arguments.input(addr, addr_len as usize);
        if !held(buf, len) {
            return next::sendto(fd, buf, len, flags, addr, addr_len);
        }
        let entry = iovec { iov_base: buf.cast_mut(), iov_len: len };
        exchange(Way::Out, unit(fd, flags), &entry, 1, &mut |window, _| {
            next::sendto(fd, window[0].iov_base, window[0].iov_len, flags, addr, addr_len)
        })
    }
}

/// Whether any part of a message, or its header, is in an engine mapping.
unsafe fn message_held(message: *const msghdr) -> bool {
    if held(message, size_of::<msghdr>()) {
        return true;
    }
    // SAFETY: the message is the caller's and lies in ordinary memory. The real call would read it too.
    unsafe {
        let Some(header) = message.as_ref() else { return false };
        held(header.msg_name, header.msg_namelen as usize)
            || held(header.msg_control, header.msg_controllen)
            || (header.msg_iovlen <= libc::UIO_MAXIOV as usize && any_held(header.msg_iov, header.msg_iovlen))
    }
}

/// sendmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if mapped() && message_held(message) {
            send_copied(fd, message, flags)
        } else {
            next::sendmsg(fd, message, flags)
        }
    }
}

/// sendmsg(2), from copies.
unsafe fn send_copied(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let mut header = message.read();
        if header.msg_iovlen > libc::UIO_MAXIOV as usize {
            return next::sendmsg(fd, &header, flags);
        }
        let arguments = Call::new();
        header.msg_name = arguments.input(header.msg_name, header.msg_namelen as usize);
        header.msg_control = arguments.input(header.msg_control, header.msg_controllen);
        let unit = if flags & libc::MSG_ZEROCOPY != 0 { Unit::KeptCall } else { Unit::Call };
        let (entries, count) = (header.msg_iov, header.msg_iovlen);
        exchange(Way::Out, unit, entries, count, &mut |window, _| {
            header.msg_iov = window.as_ptr().cast_mut();
            header.msg_iovlen = window.len();
            next::sendmsg(fd, &header, flags)
        })
    }
}

/// recvmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if mapped() && message_held(message) {
            return receive_copied(fd, message, flags);
        }
        let received = next::recvmsg(fd, message, flags);
        if received >= 0 && (*message).msg_controllen > 0 {
            note_descriptors(message);
        }
        received
    }
}

/// Notes the descriptors that a message has brought (unix(7), `SCM_RIGHTS`).
unsafe fn note_descriptors(message: *const msghdr) {
    // SAFETY: the kernel has filled the message, which lies in ordinary memory.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = part.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(part).cast::<c_int>();
                let len = header.cmsg_len.saturating_sub(data.addr() - part.addr());
                (0..len / size_of::<c_int>()).for_each(|at| remembered::received(data.add(at).read_unaligned()));
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// recvmsg(2), into copies.
unsafe fn receive_copied(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let mut header = message.read();
        if header.msg_iovlen > libc::UIO_MAXIOV as usize {
            return next::recvmsg(fd, &mut header, flags);
        }
        let arguments = Call::new();
        header.msg_name = arguments.changed(header.msg_name, header.msg_namelen as usize);
        header.msg_control = arguments.changed(header.msg_control, header.msg_controllen);
        let (entries, count) = (header.msg_iov, header.msg_iovlen);
        let received = exchange(Way::In, Unit::Call, entries, count, &mut |window, _| {
            header.msg_iov = window.as_ptr().cast_mut();
            header.msg_iovlen = window.len();
            next::recvmsg(fd, &mut header, flags)
        });
        arguments.finish(received);
        if received >= 0 {
            if header.msg_controllen > 0 {
                note_descriptors(&header);
            }
            // The kernel writes these fields of the header.
            (&raw mut (*message).msg_namelen).write(header.msg_namelen);
            (&raw mut (*message).msg_controllen).write(header.msg_controllen);
            (&raw mut (*message).msg_flags).write(header.msg_flags);
        }
        received
    }
}

/// Whether any part of these messages is in an engine mapping.
unsafe fn messages_held(messages: *const mmsghdr, count: c_uint) -> bool {
    mapped()
        && (held(messages, (count as usize).saturating_mul(size_of::<mmsghdr>()))
            // SAFETY: the messages are the caller's, and the real call would read them too.
            || (0..count.min(libc::UIO_MAXIOV as c_uint) as usize).any(|index| unsafe { message_held(&raw const (*messages.add(index)).msg_hdr) }))
}

/// Wrappers of sendmmsg(2). They send one message after the other, as the kernel does.
macro_rules! sendmmsgs {
    ($($name:ident)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !messages_held(messages, count) {
                    return next::$name(fd, messages, count, flags);
                }
                let count = count.min(libc::UIO_MAXIOV as c_uint) as usize;
                for index in 0..count {
                    let message = messages.add(index);
                    let sent = send_copied(fd, &raw const (*message).msg_hdr, flags);
                    if sent < 0 {
                        return if index > 0 { index as c_int } else { -1 };
                    }
                    (&raw mut (*message).msg_len).write(sent as c_uint);
                }
                count as c_int
            }
        }
    )* };
}
sendmmsgs!(sendmmsg __sendmmsg);

/// recvmmsg(2). It receives one message after the other, as the kernel does. Like the kernel it checks the timeout only
/// after each message.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let arguments = Call::new();
        if !messages_held(messages, count) {
            let timeout = arguments.changed(timeout, size_of::<timespec>());
            let received = next::recvmmsg(fd, messages, count, flags, timeout);
            arguments.finish(received as isize);
            for index in 0..received.max(0) as usize {
                note_descriptors(&raw const (*messages.add(index)).msg_hdr);
            }
            return received;
        }
        let until = timeout.as_ref().map(|timeout| {
            let wait =
                std::time::Duration::new(timeout.tv_sec.max(0) as u64, timeout.tv_nsec.clamp(0, 999_999_999) as u32);
            (std::time::Instant::now(), wait)
        });
        let count = count.min(libc::UIO_MAXIOV as c_uint) as usize;
        let mut each = flags & !libc::MSG_WAITFORONE;
        let mut received = 0;
        while received < count {
            let message = messages.add(received);
            let len = receive_copied(fd, &raw mut (*message).msg_hdr, each);
            if len < 0 {
                if received == 0 {
                    return -1;
                }
                break;
            }
            (&raw mut (*message).msg_len).write(len as c_uint);
            received += 1;
            if flags & libc::MSG_WAITFORONE != 0 {
                each |= libc::MSG_DONTWAIT;
            }
            if let Some((start, wait)) = until {
                let left = wait.saturating_sub(start.elapsed());
                timeout.write(timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
                if left.is_zero() {
                    break;
                }
            }
        }
        received as c_int
    }
}
