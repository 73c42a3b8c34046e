// Hands memory of a mapped file, absent and across page borders, to everything that takes a pointer. It passes on kernel
// mmap; under the preload library it must do the same. Usage: io CASE FILE; FILE is made, 16 MiB, others beside it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

enum { PAGE = 4096, SIZE = 16 << 20, ZONE = 15 << 20, MIB = 1 << 20 };

static unsigned char *map;
static int map_fd;
static const char *map_path;
static size_t next_place;
static volatile unsigned char sink;

#define CHECK(what)                                                                             \
    do {                                                                                        \
        if (!(what)) {                                                                          \
            dprintf(2, "%s:%d: %s: errno %d\n", __func__, __LINE__, #what, errno);              \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

// What is in memory, dirty pages too, leaves it: several times as much as the cache is stored to and read elsewhere.
static void cool(void) {
    for (size_t at = ZONE; at < SIZE; at += PAGE) map[at]++;
    for (size_t at = ZONE; at < SIZE; at += PAGE) sink = map[at];
}

// A new place in the map, across a page border.
static void *place(size_t len) {
    size_t pages = (len + PAGE - 1) / PAGE + 1;
    if ((next_place + pages) * PAGE > ZONE) next_place = 0;
    unsigned char *found = map + next_place * PAGE;
    next_place += pages;
    return found + (len >= 2 * PAGE ? 16 : PAGE - len / 2 / 8 * 8 - 8);
}

static void *room(size_t len) {
    void *found = place(len);
    memset(found, 0, len);
    cool();
    return found;
}

static void *put(const void *data, size_t len) {
    void *found = place(len);
    memcpy(found, data, len);
    cool();
    return found;
}

static char *text(const char *string) { return put(string, strlen(string) + 1); }

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 31 + (at >> 8) * 7 + 3); }

static void fill(unsigned char *into, size_t len) {
    for (size_t at = 0; at < len; at++) into[at] = byte_at(at);
}

static int is_filled(const unsigned char *from, size_t len) {
    for (size_t at = 0; at < len; at++)
        if (from[at] != byte_at(at)) return 0;
    return 1;
}

static void *data(size_t len) {
    unsigned char *found = place(len);
    fill(found, len);
    cool();
    return found;
}

static const char *folder;
static char *in_folder(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// A system call that nobody intercepts: it shows whether the place is really out of memory.
static long raw_getrandom(void *buf, size_t len) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getrandom), "D"(buf), "S"(len), "d"(0) : "rcx", "r11", "memory");
    return result;
}

static void absent(void) {
    long result = raw_getrandom(room(16), 16);
    CHECK(result == (getenv("FASTMAP_CACHE") ? -EFAULT : 16));
}

static void files(void) {
    size_t sizes[] = {1, 100, 5000, 70000, MIB + 77};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t len = sizes[i];
        int fd = open(text(in_folder("plain")), O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(fd >= 0);
        CHECK(write(fd, data(len), len) == (ssize_t)len);
        CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)len);
        CHECK(pwrite(fd, data(len), len, 5) == (ssize_t)len);
        CHECK(pwrite(fd, data(len), len, 0) == (ssize_t)len);
        unsigned char *back = malloc(len + 5);
        CHECK(pread(fd, back, len + 5, 0) == (ssize_t)len + 5);
        CHECK(is_filled(back, len));
        free(back);
        CHECK(lseek(fd, 0, SEEK_SET) == 0);
        unsigned char *into = room(len);
        CHECK(read(fd, into, len) == (ssize_t)len && is_filled(into, len));
        into = room(len + 100);
        CHECK(pread(fd, into, len + 100, 0) == (ssize_t)len + 5 && is_filled(into, len));
        CHECK(into[len + 5] == 0);
        CHECK(read(fd, into, len + 100) == 5);
        CHECK(read(fd, into, len) == 0);
        // Partly in the map, partly not; the array in the map as well.
        unsigned char before[10], after[10];
        size_t mid = len > 20 ? len - 20 : 0;
        struct iovec entries[3] = {{before, 10}, {room(mid + 1), mid}, {after, 10}};
        struct iovec *vector = put(entries, sizeof entries);
        CHECK(preadv(fd, vector, 3, 0) == (ssize_t)(mid + 20 < len + 5 ? mid + 20 : len + 5));
        if (mid) {
            CHECK(is_filled(before, 10));
            for (size_t at = 0; at < mid; at++) CHECK(((unsigned char *)entries[1].iov_base)[at] == byte_at(at + 10));
            CHECK(after[9] == byte_at(len - 1));
            cool();
            CHECK(pwritev(fd, vector, 3, 7) == (ssize_t)len);
            CHECK(preadv2(fd, vector, 3, 7, 0) == (ssize_t)len);
            CHECK(lseek(fd, 7, SEEK_SET) == 7);
            CHECK(readv(fd, vector, 3) == (ssize_t)len);
            CHECK(is_filled(before, 10) && after[9] == byte_at(len - 1));
            CHECK(lseek(fd, 0, SEEK_SET) == 0);
            cool();
            CHECK(writev(fd, vector, 3) == (ssize_t)len);
            CHECK(pwritev2(fd, vector, 3, -1, 0) == (ssize_t)len);
            CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)(2 * len));
            CHECK(ftruncate(fd, 0) == 0);
        }
        // Errors are the kernel's.
        errno = 0;
        CHECK(write(-1, data(len), len) == -1 && errno == EBADF);
        CHECK(pread(fd, room(len), len, -5) == -1 && errno == EINVAL);
        CHECK(readv(fd, vector, 2000) == -1 && errno == EINVAL);
        close(fd);
        // Direct I/O.
        fd = open(in_folder("plain"), O_RDWR | O_DIRECT | O_TRUNC);
        if (fd < 0) continue;
        size_t aligned = (len + PAGE - 1) / PAGE * PAGE;
        next_place += 1;
        unsigned char *start = map + next_place * PAGE;
        next_place += aligned / PAGE;
        if ((next_place + 1) * PAGE > ZONE) { next_place = 0; continue; }
        fill(start, aligned);
        cool();
        CHECK(write(fd, start, aligned) == (ssize_t)aligned);
        memset(start, 0, aligned);
        cool();
        CHECK(pread(fd, start, aligned, 0) == (ssize_t)aligned && is_filled(start, aligned));
        close(fd);
    }
    int appended = open(in_folder("appended"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(write(appended, data(1000), 1000) == 1000);
    CHECK(write(appended, data(1000), 1000) == 1000);
    struct stat *stat_at = room(sizeof *stat_at);
    CHECK(fstat(appended, stat_at) == 0 && stat_at->st_size == 2000);
    close(appended);
    int full = open("/dev/full", O_WRONLY);
    CHECK(write(full, data(2 * MIB), 2 * MIB) == -1 && errno == ENOSPC);
    close(full);
    int zero = open("/dev/zero", O_RDONLY);
    unsigned char *zeroed = data(3 * MIB);
    CHECK(read(zero, zeroed, 3 * MIB) == 3 * MIB);
    for (size_t at = 0; at < 3 * MIB; at++) CHECK(zeroed[at] == 0);
    close(zero);
}

struct job {
    int fd;
    size_t len;
    size_t piece;
};

static void *drain(void *argument) {
    struct job *job = argument;
    unsigned char *into = malloc(job->len);
    size_t got = 0;
    while (got < job->len) {
        ssize_t n = read(job->fd, into + got, job->piece < job->len - got ? job->piece : job->len - got);
        CHECK(n > 0);
        got += n;
    }
    CHECK(is_filled(into, job->len));
    free(into);
    return NULL;
}

static void *feed(void *argument) {
    struct job *job = argument;
    unsigned char *from = malloc(job->len);
    fill(from, job->len);
    size_t put_so_far = 0;
    while (put_so_far < job->len) {
        size_t piece = job->piece < job->len - put_so_far ? job->piece : job->len - put_so_far;
        CHECK(write(job->fd, from + put_so_far, piece) == (ssize_t)piece);
        put_so_far += piece;
    }
    free(from);
    return NULL;
}

// A stream from one end to the other, both ways, larger than any buffer.
static void stream(int in, int out) {
    pthread_t thread;
    size_t len = 700011;
    struct job reader = {in, len, 10000};
    pthread_create(&thread, NULL, drain, &reader);
    CHECK(write(out, data(len), len) == (ssize_t)len);
    pthread_join(thread, NULL);
    struct job writer = {out, len, 30000};
    pthread_create(&thread, NULL, feed, &writer);
    unsigned char *into = room(len);
    size_t got = 0;
    while (got < len) {
        ssize_t n = read(in, into + got, len - got);
        CHECK(n > 0);
        got += n;
    }
    pthread_join(thread, NULL);
    CHECK(is_filled(into, len));
}

static void pipes(void) {
    int *fds = room(2 * sizeof(int));
    CHECK(pipe(fds) == 0);
    stream(fds[0], fds[1]);
    int *left = room(sizeof(int));
    CHECK(write(fds[1], data(300), 300) == 300);
    CHECK(ioctl(fds[0], FIONREAD, left) == 0 && *left == 300);
    // No more than is there, without waiting.
    unsigned char *into = room(5000);
    CHECK(read(fds[0], into, 5000) == 300 && is_filled(into, 300));
    struct iovec entry = {data(2000), 2000};
    CHECK(vmsplice(fds[1], put(&entry, sizeof entry), 1, 0) == 2000);
    into = room(2000);
    CHECK(read(fds[0], into, 2000) == 2000 && is_filled(into, 2000));
    CHECK(fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0);
    ssize_t sent = write(fds[1], data(MIB), MIB);
    CHECK(sent == 65536);
    CHECK(write(fds[1], data(MIB), MIB) == -1 && errno == EAGAIN);
    close(fds[0]);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(fds[1], data(10), 10) == -1 && errno == EPIPE);
    close(fds[1]);

    CHECK(pipe2(fds, O_DIRECT) == 0);
    CHECK(write(fds[1], data(100), 100) == 100);
    CHECK(write(fds[1], data(200), 200) == 200);
    into = room(5000);
    CHECK(read(fds[0], into, 5000) == 100 && read(fds[0], into, 5000) == 200 && is_filled(into, 200));
    close(fds[0]);
    close(fds[1]);
    int event = eventfd(0, 0);
    uint64_t seven = 7, *value = put(&seven, 8);
    CHECK(write(event, value, 8) == 8);
    value = room(8);
    CHECK(read(event, value, 8) == 8 && *value == 7);
    close(event);
}

static void sockets(void) {
    int *fds = room(2 * sizeof(int));
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    stream(fds[0], fds[1]);
    CHECK(send(fds[0], data(100), 100, 0) == 100);
    unsigned char *into = room(5000);
    CHECK(recv(fds[1], into, 5000, MSG_PEEK) == 100 && is_filled(into, 100));
    into = room(5000);
    CHECK(recv(fds[1], into, 100, MSG_WAITALL) == 100 && is_filled(into, 100));
    close(fds[0]);
    close(fds[1]);

    // Messages keep their borders.
    for (int kind = 0; kind < 2; kind++) {
        CHECK(socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_DGRAM, 0, fds) == 0);
        CHECK(send(fds[0], data(60000), 60000, 0) == 60000);
        CHECK(write(fds[0], data(7000), 7000) == 7000);
        into = room(60000);
        CHECK(recv(fds[1], into, 60000, 0) == 60000 && is_filled(into, 60000));
        into = room(100);
        CHECK(recv(fds[1], into, 100, MSG_TRUNC) == 7000 && is_filled(into, 100));
        // Descriptors, in control data in the map.
        int passed = open("/dev/null", O_RDONLY);
        unsigned char control[CMSG_SPACE(sizeof(int))];
        memset(control, 0, sizeof control);
        struct iovec entries[2] = {{data(3000), 3000}, {data(4000), 4000}};
        struct msghdr message = {0};
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed, sizeof(int));
        message.msg_control = put(control, sizeof control);
        message.msg_iov = put(entries, sizeof entries);
        message.msg_iovlen = 2;
        CHECK(sendmsg(fds[0], put(&message, sizeof message), 0) == 7000);
        struct iovec parts[3] = {{room(3000), 3000}, {room(1000), 1000}, {room(9000), 9000}};
        struct msghdr received = {0};
        received.msg_iov = put(parts, sizeof parts);
        received.msg_iovlen = 3;
        received.msg_control = room(200);
        received.msg_controllen = 200;
        struct msghdr *at = put(&received, sizeof received);
        CHECK(recvmsg(fds[1], at, 0) == 7000);
        CHECK(is_filled(parts[0].iov_base, 3000) && is_filled(parts[1].iov_base, 1000));
        CHECK(((unsigned char *)parts[2].iov_base)[2999] == byte_at(3999));
        CHECK(at->msg_controllen == CMSG_SPACE(sizeof(int)) && at->msg_flags == (kind ? MSG_EOR & at->msg_flags : 0));
        header = CMSG_FIRSTHDR(at);
        CHECK(header && header->cmsg_type == SCM_RIGHTS);
        int got;
        memcpy(&got, CMSG_DATA(header), sizeof got);
        CHECK(got > 2 && close(got) == 0);
        close(passed);
        // Several at once.
        struct mmsghdr several[3];
        memset(several, 0, sizeof several);
        struct iovec each[3];
        for (int i = 0; i < 3; i++) {
            each[i] = (struct iovec){data(100 * i + 1), 100 * i + 1};
            several[i].msg_hdr.msg_iov = &each[i];
            several[i].msg_hdr.msg_iovlen = 1;
        }
        struct mmsghdr *sent = put(several, sizeof several);
        CHECK(sendmmsg(fds[0], sent, 3, 0) == 3 && sent[2].msg_len == 201);
        for (int i = 0; i < 3; i++) each[i] = (struct iovec){room(1000), 1000};
        sent = put(several, sizeof several);
        struct timespec second = {1, 0};
        CHECK(recvmmsg(fds[1], sent, 3, MSG_WAITFORONE, put(&second, sizeof second)) == 3);
        CHECK(sent[0].msg_len == 1 && sent[2].msg_len == 201 && is_filled(each[2].iov_base, 201));
        CHECK(recvmmsg(fds[1], sent, 3, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
        close(fds[0]);
        close(fds[1]);
    }

    for (int kind = 0; kind < 2; kind++) {
        int server = socket(AF_INET, kind ? SOCK_STREAM : SOCK_DGRAM, 0), client = socket(AF_INET, kind ? SOCK_STREAM : SOCK_DGRAM, 0);
        struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        CHECK(bind(server, put(&loopback, sizeof loopback), sizeof loopback) == 0);
        socklen_t len = sizeof loopback, *len_at = put(&len, sizeof len);
        struct sockaddr_in *address = room(sizeof *address);
        CHECK(getsockname(server, (void *)address, len_at) == 0 && *len_at == sizeof *address && address->sin_port);
        loopback = *address;
        int size = 1 << 20, *size_at = put(&size, sizeof size);
        CHECK(setsockopt(server, SOL_SOCKET, SO_RCVBUF, size_at, sizeof size) == 0);
        size_at = room(sizeof size);
        len_at = put(&len, sizeof len);
        CHECK(getsockopt(server, SOL_SOCKET, SO_TYPE, size_at, len_at) == 0);
        CHECK(*size_at == (kind ? SOCK_STREAM : SOCK_DGRAM) && *len_at == sizeof(int));
        if (kind) {
            CHECK(listen(server, 1) == 0);
            CHECK(connect(client, put(&loopback, sizeof loopback), sizeof loopback) == 0);
            len_at = put(&len, sizeof len);
            address = room(sizeof *address);
            int other = accept(server, (void *)address, len_at);
            CHECK(other >= 0 && address->sin_family == AF_INET);
            len_at = put(&len, sizeof len);
            address = room(sizeof *address);
            CHECK(getpeername(client, (void *)address, len_at) == 0 && address->sin_port == loopback.sin_port);
            stream(other, client);
            close(other);
        } else {
            CHECK(sendto(client, data(9000), 9000, 0, put(&loopback, sizeof loopback), sizeof loopback) == 9000);
            len_at = put(&len, sizeof len);
            address = room(sizeof *address);
            into = room(9000);
            CHECK(recvfrom(server, into, 9000, 0, (void *)address, len_at) == 9000 && is_filled(into, 9000));
            CHECK(address->sin_family == AF_INET && *len_at == sizeof *address);
            CHECK(sendto(client, data(90000), 90000, 0, put(&loopback, sizeof loopback), sizeof loopback) == -1 && errno == EMSGSIZE);
        }
        close(server);
        close(client);
    }
}

static void waiting(void) {
    int fds[2];
    CHECK(pipe(fds) == 0 && write(fds[1], "x", 1) == 1);
    struct pollfd wanted[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLOUT, 0}}, *polled = put(wanted, sizeof wanted);
    CHECK(poll(polled, 2, 1000) == 2 && polled[0].revents == POLLIN && polled[1].revents == POLLOUT);
    struct timespec second = {1, 0}, short_time = {0, 1000000};
    sigset_t none;
    sigemptyset(&none);
    polled = put(wanted, sizeof wanted);
    CHECK(ppoll(polled, 2, put(&second, sizeof second), put(&none, sizeof none)) == 2 && polled[0].revents == POLLIN);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fds[0], &set);
    fd_set *sets = put(&set, sizeof set), *outs = room(sizeof set);
    struct timeval *timeout = put(&(struct timeval){1, 0}, sizeof *timeout);
    CHECK(select(fds[1] + 1, sets, outs, NULL, timeout) == 1 && FD_ISSET(fds[0], sets));
    sets = put(&set, sizeof set);
    CHECK(pselect(fds[1] + 1, sets, NULL, NULL, put(&second, sizeof second), put(&none, sizeof none)) == 1);
    int epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u64 = 77}};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], put(&event, sizeof event)) == 0);
    struct epoll_event *events = room(4 * sizeof event);
    CHECK(epoll_wait(epoll, events, 4, 1000) == 1 && events[0].data.u64 == 77);
    events = room(4 * sizeof event);
    CHECK(epoll_pwait(epoll, events, 4, 1000, put(&none, sizeof none)) == 1 && events[0].data.u64 == 77);
    close(epoll);
    close(fds[0]);
    close(fds[1]);

    struct timespec *left = room(sizeof *left);
    CHECK(nanosleep(put(&short_time, sizeof short_time), left) == 0);
    CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, put(&short_time, sizeof short_time), room(sizeof short_time)) == 0);
    struct timespec *now = room(sizeof *now);
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, now) == 0 && now->tv_sec + now->tv_nsec > 0);
    struct timeval *day = room(sizeof *day);
    CHECK(gettimeofday(day, NULL) == 0 && day->tv_sec > 1000000000);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    CHECK(timerfd_settime(timer, 0, put(&soon, sizeof soon), room(sizeof soon)) == 0);
    uint64_t *expired = room(8);
    CHECK(read(timer, expired, 8) == 8 && *expired == 1);
    CHECK(timerfd_gettime(timer, room(sizeof soon)) == 0);
    close(timer);

    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, NULL);
    int signals = signalfd(-1, put(&user, sizeof user), 0);
    CHECK(signals >= 0);
    raise(SIGUSR1);
    struct signalfd_siginfo *info = room(sizeof *info);
    CHECK(read(signals, info, sizeof *info) == sizeof *info && info->ssi_signo == SIGUSR1);
    close(signals);
    raise(SIGUSR1);
    siginfo_t *what = room(sizeof *what);
    CHECK(sigtimedwait(put(&user, sizeof user), what, put(&second, sizeof second)) == SIGUSR1 && what->si_signo == SIGUSR1);
    raise(SIGUSR1);
    int *number = room(sizeof *number);
    sigset_t *pending = room(sizeof *pending);
    CHECK(sigpending(pending) == 0 && sigismember(pending, SIGUSR1));
    CHECK(sigwait(put(&user, sizeof user), number) == 0 && *number == SIGUSR1);

    int *status = room(sizeof *status);
    struct rusage *usage = room(sizeof *usage);
    pid_t child = fork();
    if (child == 0) _exit(7);
    CHECK(wait4(child, status, 0, usage) == child && WEXITSTATUS(*status) == 7);
    child = fork();
    if (child == 0) _exit(8);
    status = room(sizeof *status);
    CHECK(waitpid(child, status, 0) == child && WEXITSTATUS(*status) == 8);
    child = fork();
    if (child == 0) _exit(9);
    what = room(sizeof *what);
    CHECK(waitid(P_PID, child, what, WEXITED) == 0 && what->si_status == 9);
}

static void paths(void) {
    char *name = in_folder("first");
    int fd = creat(text(name), 0640);
    CHECK(fd >= 0 && write(fd, data(5000), 5000) == 5000);
    struct stat *found = room(sizeof *found);
    CHECK(stat(text(name), found) == 0 && found->st_size == 5000);
    found = room(sizeof *found);
    CHECK(lstat(text(name), found) == 0 && found->st_size == 5000);
    found = room(sizeof *found);
    CHECK(fstat(fd, found) == 0 && found->st_size == 5000);
    found = room(sizeof *found);
    CHECK(fstatat(AT_FDCWD, text(name), found, 0) == 0 && found->st_size == 5000);
    struct statx *more = room(sizeof *more);
    CHECK(statx(AT_FDCWD, text(name), 0, STATX_SIZE, more) == 0 && more->stx_size == 5000);
    struct statfs *system = room(sizeof *system);
    CHECK(statfs(text(name), system) == 0 && system->f_bsize > 0);
    CHECK(fstatfs(fd, room(sizeof *system)) == 0);
    struct statvfs *other = room(sizeof *other);
    CHECK(statvfs(text(name), other) == 0 && other->f_bsize > 0);
    close(fd);
    CHECK(access(text(name), R_OK) == 0 && faccessat(AT_FDCWD, text(name), R_OK, 0) == 0);
    CHECK(chmod(text(name), 0600) == 0 && fchmodat(AT_FDCWD, text(name), 0644, 0) == 0);
    CHECK(chown(text(name), -1, -1) == 0 && lchown(text(name), -1, -1) == 0);
    CHECK(truncate(text(name), 1234) == 0);
    found = room(sizeof *found);
    CHECK(stat(text(name), found) == 0 && found->st_size == 1234);
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    CHECK(utimensat(AT_FDCWD, text(name), put(times, sizeof times), 0) == 0);
    found = room(sizeof *found);
    CHECK(stat(text(name), found) == 0 && found->st_mtime == 2000);
    CHECK(utime(text(name), put(&(struct utimbuf){3, 4}, sizeof(struct utimbuf))) == 0);
    struct timeval values[2] = {{5, 0}, {6, 0}};
    CHECK(utimes(text(name), put(values, sizeof values)) == 0);
    char from[4096], to[4096];
    strcpy(from, name);
    strcpy(to, in_folder("second"));
    CHECK(rename(text(from), text(to)) == 0 && link(text(to), text(from)) == 0);
    CHECK(unlink(text(from)) == 0 && symlink(text("second"), text(from)) == 0);
    char *target = room(100);
    CHECK(readlink(text(from), target, 100) == 6 && !memcmp(target, "second", 7));
    target = room(100);
    CHECK(readlinkat(AT_FDCWD, text(from), target, 3) == 3 && !memcmp(target, "sec", 4));
    CHECK(remove(text(from)) == 0);
    strcpy(from, in_folder("folder"));
    CHECK(mkdir(text(from), 0700) == 0);
    char *here = room(4096);
    CHECK(getcwd(here, 4096) == here && here[0] == '/');
    char old[4096];
    strcpy(old, here);
    CHECK(chdir(text(from)) == 0);
    here = room(4096);
    CHECK(getcwd(here, 4096) == here && strcmp(here, old));
    CHECK(chdir(text(old)) == 0);
    here = room(4096);
    CHECK(realpath(text(from), here) == here);
    DIR *listing = opendir(text(from));
    CHECK(listing && readdir(listing));
    closedir(listing);
    int folder_fd = open(text(from), O_RDONLY | O_DIRECTORY);
    CHECK(getdents64(folder_fd, room(1000), 1000) > 0);
    CHECK(mkdirat(folder_fd, text("inner"), 0700) == 0 && unlinkat(folder_fd, text("inner"), AT_REMOVEDIR) == 0);
    CHECK(mkfifo(text(in_folder("fifo")), 0600) == 0);
    int notify = inotify_init();
    CHECK(inotify_add_watch(notify, text(from), IN_CREATE) > 0);
    close(notify);
    close(folder_fd);
    CHECK(rmdir(text(from)) == 0);
    char template[4096];
    snprintf(template, sizeof template, "%s", in_folder("tmpXXXXXX"));
    char *made = text(template);
    fd = mkstemp(made);
    CHECK(fd >= 0 && strcmp(made, template) && unlink(made) == 0);
    close(fd);
    made = text(template);
    CHECK(mkdtemp(made) == made && rmdir(made) == 0);
    CHECK(open(text(in_folder("missing")), O_RDONLY) == -1 && errno == ENOENT);
    char *long_path = room(6000);
    memset(long_path, 'a', 5999);
    cool();
    CHECK(open(long_path, O_RDONLY) == -1 && errno == ENAMETOOLONG);
    if (setxattr(text(to), text("user.name"), text("value"), 5, 0) == 0) {
        char *value = room(100);
        CHECK(getxattr(text(to), text("user.name"), value, 100) == 5 && !memcmp(value, "value", 6));
        CHECK(listxattr(text(to), room(1000), 1000) >= 10);
        CHECK(removexattr(text(to), text("user.name")) == 0);
    }
    fd = memfd_create(text("name"), 0);
    CHECK(fd >= 0);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, *lock = put(&whole, sizeof whole);
    CHECK(fcntl(fd, F_SETLK, lock) == 0);
    lock = put(&whole, sizeof whole);
    CHECK(fcntl(fd, F_GETLK, lock) == 0 && lock->l_type == F_UNLCK);
    CHECK(write(fd, "0123456789", 10) == 10);
    off_t two = 2, *offset = put(&two, sizeof two);
    int out = open(in_folder("sent"), O_RDWR | O_CREAT, 0600);
    CHECK(sendfile(out, fd, offset, 5) == 5 && *offset == 7);
    offset = put(&two, sizeof two);
    off_t *second = put(&two, sizeof two);
    CHECK(copy_file_range(out, offset, out, put(&(off_t){100}, 8), 3, 0) == 3 && *offset == 5);
    int fds[2];
    CHECK(pipe(fds) == 0);
    CHECK(splice(out, second, fds[1], NULL, 3, 0) == 3 && *second == 5);
    close(fds[0]);
    close(fds[1]);
    close(out);
    close(fd);
}

static void futexes(void) {
    int *word = room(8);
    word = (int *)(((uintptr_t)word + 3) & ~3ul);
    struct timespec short_time = {0, 1000000};
    CHECK(syscall(SYS_futex, word, FUTEX_WAIT, 0, put(&short_time, sizeof short_time), NULL, 0) == -1 && errno == ETIMEDOUT);
    cool();
    CHECK(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0) == -1 && errno == EAGAIN);
    CHECK(syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0);
}

static void system_calls(void) {
    unsigned char *bytes = room(300);
    CHECK(getrandom(bytes, 300, 0) == 300 && memcmp(bytes, bytes + 100, 100));
    bytes = room(200);
    CHECK(getentropy(bytes, 200) == 0 && memcmp(bytes, bytes + 100, 100));
    bytes = room(100);
    CHECK(syscall(SYS_getrandom, bytes, 100L, 0L) == 100);
    struct utsname *name = room(sizeof *name);
    CHECK(uname(name) == 0 && !strcmp(name->sysname, "Linux"));
    struct sysinfo *info = room(sizeof *info);
    CHECK(sysinfo(info) == 0 && info->totalram > 0);
    CHECK(times(room(sizeof(struct tms))) != -1);
    struct rusage *usage = room(sizeof *usage);
    CHECK(getrusage(RUSAGE_SELF, usage) == 0 && usage->ru_maxrss > 0);
    struct rlimit *limit = room(sizeof *limit);
    CHECK(getrlimit(RLIMIT_NOFILE, limit) == 0 && limit->rlim_cur > 0);
    cool();
    CHECK(setrlimit(RLIMIT_NOFILE, limit) == 0);
    CHECK(prlimit(0, RLIMIT_NOFILE, NULL, room(sizeof *limit)) == 0);
    cpu_set_t *set = room(sizeof *set);
    CHECK(sched_getaffinity(0, sizeof *set, set) == 0 && CPU_COUNT(set) > 0);
    cool();
    CHECK(sched_setaffinity(0, sizeof *set, set) == 0);
    gid_t *groups = room(1000 * sizeof *groups);
    CHECK(getgroups(1000, groups) >= 0);
    uid_t *ids = room(3 * sizeof *ids);
    CHECK(getresuid(ids, ids + 1, ids + 2) == 0 && ids[1] == geteuid());
    CHECK(pthread_setname_np(pthread_self(), text("renamed")) == 0);
    char *thread = room(16);
    CHECK(pthread_getname_np(pthread_self(), thread, 16) == 0 && !strcmp(thread, "renamed"));
    timer_t *timer = room(sizeof *timer);
    struct sigevent event = {.sigev_notify = SIGEV_NONE};
    CHECK(timer_create(CLOCK_MONOTONIC, put(&event, sizeof event), timer) == 0);
    struct itimerspec later = {{0, 0}, {100, 0}}, *remaining = room(sizeof later);
    CHECK(timer_settime(*timer, 0, put(&later, sizeof later), NULL) == 0 && timer_gettime(*timer, remaining) == 0);
    CHECK(remaining->it_value.tv_sec > 90 && timer_delete(*timer) == 0);
    struct itimerval *interval = room(sizeof *interval);
    CHECK(getitimer(ITIMER_REAL, interval) == 0);
    struct iovec local = {room(5000), 5000}, remote = {malloc(5000), 5000};
    fill(remote.iov_base, 5000);
    if (process_vm_readv(getpid(), put(&local, sizeof local), 1, put(&remote, sizeof remote), 1, 0) == 5000) {
        CHECK(is_filled(local.iov_base, 5000));
        memset(remote.iov_base, 0, 5000);
        cool();
        CHECK(process_vm_writev(getpid(), put(&local, sizeof local), 1, put(&remote, sizeof remote), 1, 0) == 5000);
        CHECK(is_filled(remote.iov_base, 5000));
    }
    free(remote.iov_base);
    int queue = msgget(IPC_PRIVATE, 0600);
    if (queue >= 0) {
        struct { long kind; char text[100]; } message = {3, "hello"};
        CHECK(msgsnd(queue, put(&message, sizeof message), 100, 0) == 0);
        char *received = room(sizeof message);
        CHECK(msgrcv(queue, received, 100, 0, 0) == 100 && !strcmp(received + 8, "hello"));
        msgctl(queue, IPC_RMID, NULL);
    }
    int semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (semaphores >= 0) {
        struct sembuf up = {0, 1, 0};
        CHECK(semop(semaphores, put(&up, sizeof up), 1) == 0 && semctl(semaphores, 0, GETVAL) == 1);
        semctl(semaphores, 0, IPC_RMID);
    }
}

static void streams(void) {
    size_t sizes[] = {10, 4096, 20000, 900001};
    for (int buffered = 0; buffered < 3; buffered++) {
        for (size_t i = 0; i < 4; i++) {
            size_t len = sizes[i];
            FILE *stream = fopen(text(in_folder("stream")), "w+");
            CHECK(stream);
            if (buffered == 1) CHECK(setvbuf(stream, room(8192), _IOFBF, 8192) == 0);
            if (buffered == 2) setbuf(stream, NULL);
            CHECK(fwrite(data(len), 1, len, stream) == len);
            CHECK(fwrite(data(len), len, 1, stream) == 1);
            rewind(stream);
            unsigned char *into = room(len);
            CHECK(fread(into, 1, len, stream) == len && is_filled(into, len));
            into = room(2 * len);
            CHECK(fread(into, 10, len / 5, stream) == len / 10 && is_filled(into, len));
            CHECK(feof(stream));
            fclose(stream);
        }
    }
    FILE *stream = fopen(in_folder("text"), "w+");
    char *line = place(50000);
    memset(line, 'x', 49999);
    line[49999] = 0;
    cool();
    CHECK(fputs(line, stream) >= 0 && fputs(text("\nshort\n"), stream) >= 0);
    rewind(stream);
    char *into = room(60000);
    CHECK(fgets(into, 60000, stream) == into && strlen(into) == 50000);
    char *got = NULL;
    size_t room_for = 0;
    CHECK(getline(&got, &room_for, stream) == 6 && !strcmp(got, "short\n"));
    free(got);
    fclose(stream);
    cool();
    CHECK(puts(line) >= 0);
    fflush(stdout);
}

// fflush(NULL) writes what a stream of the mapped file has, and what was stored beside it stays.
static void flushing(void) {
    FILE *streams[3], *other = fopen(in_folder("other"), "w+");
    for (int i = 0; i < 3; i++) {
        CHECK((streams[i] = fopen(map_path, i ? "r+" : "r")));
        CHECK(fseek(streams[i], (2 + i) * MIB + 50, SEEK_SET) == 0);
    }
    for (int round = 0; round < 10; round++) {
        memset(map, round + 1, 6 * MIB);
        for (int i = 1; i < 3; i++) {
            map[(2 + i) * MIB + round * 100] = 99;
            CHECK(fwrite("streamed", 1, 8, streams[i]) == 8);
        }
        CHECK(fgetc(streams[0]) != EOF && fputs("elsewhere", other) >= 0);
        CHECK((round % 2 ? fflush_unlocked(NULL) : fflush(NULL)) == 0);
        for (int i = 1; i < 3; i++) {
            char *at = (char *)map + (2 + i) * MIB, seen[8];
            CHECK(!memcmp(at + 50 + round * 8, "streamed", 8) && at[round * 100] == 99);
            cool();
            CHECK(!memcmp(at + 50 + round * 8, "streamed", 8) && at[round * 100] == 99 && at[5000] == round + 1);
            CHECK(pread(map_fd, seen, 8, (2 + i) * MIB + 50 + round * 8) == 8 && !memcmp(seen, "streamed", 8));
        }
    }
    struct stat stat;
    CHECK(fstat(fileno(other), &stat) == 0 && stat.st_size == 90);
    for (int i = 0; i < 3; i++) CHECK(fclose(streams[i]) == 0);
    CHECK(fclose(other) == 0);
}

extern int __dprintf_chk(int fd, int flag, const char *format, ...);
extern int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);

static int by_list(int checked, int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int len = checked ? __vdprintf_chk(fd, 1, format, arguments) : vdprintf(fd, format, arguments);
    va_end(arguments);
    return len;
}

static void *print_for_ever(void *argument) {
    for (;;) dprintf(*(int *)argument, "%s%f", "to a pipe that nobody reads", 1.5);
    return NULL;
}

#define FORMAT "%d %s %g %c %ld %s %g %g %u %g %g %g %g %g %g %g %d %m\n"
#define ARGUMENTS(string) 1, string, 2.5, 'c', -3L, "text", 4.5, 5.5, 6u, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14

// dprintf(3) in all its forms, of strings and formats in the map, to a file and to the mapped one.
static void printing(void) {
    size_t sizes[] = {0, 5, 900, 1023, 5000, 300000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t len = sizes[i];
        for (int form = 0; form < 4; form++) {
            char *string = place(len + 1), *right = malloc(len + 1000), *found = malloc(len + 1000);
            memset(string, 'a' + form, len);
            string[len] = 0;
            errno = ENOENT;
            int size = snprintf(right, len + 1000, FORMAT, ARGUMENTS(string));
            char *format = text(FORMAT);
            int file = open(in_folder("printed"), O_RDWR | O_CREAT | O_TRUNC, 0600), into_map = len % 2;
            int fd = into_map ? map_fd : file;
            off_t at = into_map ? 14 * MIB : 0;
            CHECK(file >= 0 && lseek(fd, at, SEEK_SET) == at);
            if (into_map) memset(map + at, 7, len + 1000);
            errno = ENOENT;
            int printed = form == 0   ? dprintf(fd, format, ARGUMENTS(string))
                          : form == 1 ? __dprintf_chk(fd, 1, format, ARGUMENTS(string))
                                      : by_list(form == 3, fd, format, ARGUMENTS(string));
            CHECK(printed == size && lseek(fd, 0, SEEK_CUR) == at + size);
            CHECK(pread(fd, found, (size_t)size, at) == size && !memcmp(found, right, (size_t)size));
            if (into_map) CHECK(!memcmp(map + at, right, (size_t)size) && map[at + size] == 7);
            CHECK(close(file) == 0);
            free(right);
            free(found);
        }
    }
    CHECK(dprintf(-1, "%s", "nowhere") < 0 && errno == EBADF);
    // The C library's own leaves a stream behind that was on the thread's stack, and waits for the pipe at exit.
    for (int round = 0; round < 3 && getenv("LD_PRELOAD"); round++) {
        int fds[2];
        pthread_t thread;
        void *result;
        CHECK(pipe(fds) == 0 && pthread_create(&thread, NULL, print_for_ever, &fds[1]) == 0);
        int held = 0;
        do CHECK(ioctl(fds[0], FIONREAD, &held) == 0 && sched_yield() == 0);
        while (held < 60000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
}

static volatile sig_atomic_t handled;
static int handler_pipe[2];
static void on_alarm(int number) {
    (void)number;
    // A handler may read and write too, and from and to a map.
    char *at = (char *)map + PAGE * 7 + 4090;
    at[0] = 'h';
    if (write(handler_pipe[1], at, 10) == 10 && read(handler_pipe[0], at + 100, 10) == 10 && at[100] == 'h') handled++;
}

static void *blocked_reader(void *argument) {
    int *fds = argument;
    unsigned char *into = (unsigned char *)map + PAGE * 20 + 4000;
    read(fds[0], into, 300);
    return NULL;
}

static void interruptions(void) {
    CHECK(pipe(handler_pipe) == 0);
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    int fds[2];
    CHECK(pipe(fds) == 0);
    unsigned char *into = room(100);
    // Again and again: the first may come before the call.
    ualarm(20000, 20000);
    CHECK(read(fds[0], into, 100) == -1 && errno == EINTR && handled >= 1);
    ualarm(0, 0);
    // Cancelled in a call: many times, since each would keep what it held.
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, blocked_reader, fds) == 0);
        usleep(1000);
        pthread_cancel(thread);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    folder = dirname(strdup(argv[2]));
    int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    map_fd = fd;
    map_path = argv[2];
    map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    struct { const char *name; void (*run)(void); } all[] = {
        {"absent", absent}, {"files", files}, {"pipes", pipes}, {"sockets", sockets}, {"waiting", waiting},
        {"paths", paths}, {"system_calls", system_calls}, {"futexes", futexes}, {"streams", streams}, {"flushing", flushing},
        {"printing", printing}, {"interruptions", interruptions},
    };
    int found = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(argv[1], all[i].name)) continue;
        all[i].run();
        found = 1;
    }
    CHECK(found);
    munmap(map, SIZE);
    close(fd);
    return 0;
}
