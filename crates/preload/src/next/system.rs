//! All other calls that hand memory to the kernel: time, resources, processes, signals, messages, random bytes.

use libc::{
    c_char, c_int, c_long, c_uint, c_void, clock_t, clockid_t, gid_t, id_t, idtype_t, mode_t, pid_t, pthread_t, size_t,
    ssize_t, timer_t,
};
use libc::{
    itimerspec, itimerval, mq_attr, mqd_t, rlimit, rlimit64, rusage, sched_param, sembuf, sigevent, siginfo_t,
    sigset_t, timespec, timeval, timex, tms, utsname,
};

bounced! {
    fn getrandom(buf: *mut c_void, len: size_t, flags: c_uint) -> ssize_t: filled buf[len];
    fn getentropy(buf: *mut c_void, len: size_t) -> c_int: changed buf[len];
    fn arc4random_buf(buf: *mut c_void, len: size_t) -> c_int: changed buf[len];
    fn getdents64(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t: filled buf[len];
    fn klogctl(kind: c_int, buf: *mut c_char, len: c_int) -> c_int: filled buf[len];
    fn ttyname_r(fd: c_int, buf: *mut c_char, len: size_t) -> c_int: changed buf[len];

    fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int: input time, changed left;
    fn __nanosleep(time: *const timespec, left: *mut timespec) -> c_int: input time, changed left;
    fn clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int: input time, changed left;
    fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int: changed time;
    fn clock_getres(clock: clockid_t, time: *mut timespec) -> c_int: changed time;
    fn clock_settime(clock: clockid_t, time: *const timespec) -> c_int: input time;
    fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int: changed time, changed zone[8];
    fn settimeofday(time: *const timeval, zone: *const c_void) -> c_int: input time, input zone[8];
    fn adjtimex(time: *mut timex) -> c_int: changed time;
    fn ntp_adjtime(time: *mut timex) -> c_int: changed time;
    fn clock_adjtime(clock: clockid_t, time: *mut timex) -> c_int: changed time;
    fn getitimer(which: c_int, value: *mut itimerval) -> c_int: changed value;
    fn setitimer(which: c_int, new: *const itimerval, old: *mut itimerval) -> c_int: input new, changed old;
    fn timer_create(clock: clockid_t, event: *mut sigevent, timer: *mut timer_t) -> c_int: input event, changed timer;
    fn timer_gettime(timer: timer_t, value: *mut itimerspec) -> c_int: changed value;
    fn timer_settime(timer: timer_t, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int: input new, changed old;
    fn timerfd_gettime(fd: c_int, value: *mut itimerspec) -> c_int: changed value;
    fn timerfd_settime(fd: c_int, flags: c_int, new: *const itimerspec, old: *mut itimerspec) -> c_int: input new, changed old;
    fn times(times: *mut tms) -> clock_t: changed times;

    fn wait(status: *mut c_int) -> pid_t: changed status;
    fn __wait(status: *mut c_int) -> pid_t: changed status;
    fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t: changed status;
    fn __waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t: changed status;
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t: changed status, changed usage;
    fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t: changed status, changed usage;
    fn waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int: changed info;
    fn getrusage(who: c_int, usage: *mut rusage) -> c_int: changed usage;
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int: changed limit;
    fn getrlimit64(resource: c_uint, limit: *mut rlimit64) -> c_int: changed limit;
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int: input limit;
    fn setrlimit64(resource: c_uint, limit: *const rlimit64) -> c_int: input limit;
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int: input new, changed old;
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit64, old: *mut rlimit64) -> c_int: input new, changed old;
    fn uname(name: *mut utsname) -> c_int: changed name;
    fn sysinfo(info: *mut libc::sysinfo) -> c_int: changed info;
    fn getgroups(count: c_int, list: *mut gid_t) -> c_int: filled list[count];
    fn __getgroups_chk(count: c_int, list: *mut gid_t, size: size_t) -> c_int: filled list[count];
    fn setgroups(count: size_t, list: *const gid_t) -> c_int: input list[count];
    fn getresuid(real: *mut c_uint, effective: *mut c_uint, saved: *mut c_uint) -> c_int: changed real, changed effective, changed saved;
    fn getresgid(real: *mut c_uint, effective: *mut c_uint, saved: *mut c_uint) -> c_int: changed real, changed effective, changed saved;
    fn sethostname(name: *const c_char, len: size_t) -> c_int: input name[len];
    fn sched_getparam(pid: pid_t, param: *mut sched_param) -> c_int: changed param;
    fn sched_setparam(pid: pid_t, param: *const sched_param) -> c_int: input param;
    fn sched_setscheduler(pid: pid_t, policy: c_int, param: *const sched_param) -> c_int: input param;
    fn sched_rr_get_interval(pid: pid_t, time: *mut timespec) -> c_int: changed time;
    fn sched_getaffinity(pid: pid_t, len: size_t, set: *mut c_void) -> c_int: changed set[len];
    fn sched_setaffinity(pid: pid_t, len: size_t, set: *const c_void) -> c_int: input set[len];
    fn pthread_getaffinity_np(thread: pthread_t, len: size_t, set: *mut c_void) -> c_int: changed set[len];
    fn pthread_setaffinity_np(thread: pthread_t, len: size_t, set: *const c_void) -> c_int: input set[len];
    fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int: text name;
    fn pthread_getname_np(thread: pthread_t, name: *mut c_char, len: size_t) -> c_int: changed name[len];

    fn sigpending(set: *mut sigset_t) -> c_int: changed set;
    fn sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int: input set, changed signal;
    fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int: input set, changed info;
    fn sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int: input set, changed info, input timeout;
    fn signalfd(fd: c_int, set: *const sigset_t, flags: c_int) -> c_int: input set;

    fn mq_send(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint) -> c_int: input message[len];
    fn mq_timedsend(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint, timeout: *const timespec) -> c_int: input message[len], input timeout;
    fn mq_receive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint) -> ssize_t: filled message[len], changed priority;
    fn mq_timedreceive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint, timeout: *const timespec) -> ssize_t: filled message[len], changed priority, input timeout;
    fn mq_getattr(queue: mqd_t, attributes: *mut mq_attr) -> c_int: changed attributes;
    fn mq_setattr(queue: mqd_t, new: *const mq_attr, old: *mut mq_attr) -> c_int: input new, changed old;
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *const mq_attr) -> mqd_t: text name, input attributes;
    fn mq_unlink(name: *const c_char) -> c_int: text name;
    fn msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int: input message[len.saturating_add(size_of::<c_long>())];
    fn msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: c_long, flags: c_int) -> ssize_t: changed message[len.saturating_add(size_of::<c_long>())];
    fn msgctl(queue: c_int, command: c_int, buf: *mut libc::msqid_ds) -> c_int: changed buf;
    fn shmctl(segment: c_int, command: c_int, buf: *mut libc::shmid_ds) -> c_int: changed buf;
    fn semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int: input operations[count];
    fn semtimedop(set: c_int, operations: *mut sembuf, count: size_t, timeout: *const timespec) -> c_int: input operations[count], input timeout;
}
