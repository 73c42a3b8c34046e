// What a program sees of itself and of its parent: each mode makes calls, and prints what they returned. No mode prints an identity that
// differs between runs (a PID, a port, a time), and none decides by time, so two runs print the same. See untouched.rs.

#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static char out[4 << 20];
static size_t out_len;

static void say(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int len = vsnprintf(out + out_len, sizeof out - out_len, format, rest);
    va_end(rest);
    if (len < 0 || (size_t)len >= sizeof out - out_len)
        abort();
    out_len += len;
}

static void flush(void) {
    for (size_t done = 0; done < out_len;) {
        ssize_t count = write(1, out + done, out_len - done);
        if (count <= 0)
            _exit(99);
        done += count;
    }
    out_len = 0;
}

static long told(const char *what, long result) {
    if (result < 0)
        say("%s: error %d\n", what, errno);
    else
        say("%s: %ld\n", what, result);
    return result;
}

static void *placed(const char *what, void *result) {
    say("%s: %s\n", what, result == MAP_FAILED ? "failed" : "placed");
    return result;
}

// Says what the call returned.
#define R(call) told(#call, (long)(call))
// Says whether the call failed: what it returns differs from run to run.
#define OK(call) told(#call " < 0", (long)((call) < 0))
// Says whether there is a mapping now.
#define MAP(call) placed(#call, call)

static void milliseconds(long count) {
    struct timespec time = {count / 1000, count % 1000 * 1000000};
    if (nanosleep(&time, NULL))
        say("nanosleep: error %d\n", errno);
}

static void status_of(const char *what, int status) {
    if (WIFEXITED(status))
        say("%s: exit %d\n", what, WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        say("%s: signal %d%s\n", what, WTERMSIG(status), WCOREDUMP(status) ? ", core" : "");
    else if (WIFSTOPPED(status))
        say("%s: stopped %d\n", what, WSTOPSIG(status));
    else
        say("%s: continued\n", what);
}

// --- what /proc says ---

static char text[1 << 20];

static size_t contents(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        say("error %d\n", errno);
        return 0;
    }
    size_t len = 0;
    ssize_t count;
    while ((count = read(file, text + len, sizeof text - 1 - len)) > 0)
        len += count;
    close(file);
    text[len] = 0;
    return len;
}

static void entries(const char *path) {
    DIR *dir = opendir(path);
    struct dirent *entry;
    int count = 0;
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        count++;
        char name[300], target[PATH_MAX];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        ssize_t len = readlink(name, target, sizeof target - 1);
        if (len >= 0)
            say("%s -> %.*s\n", entry->d_name, (int)len, target);
    }
    say("%d entries\n", count);
    if (dir)
        closedir(dir);
}

// The test compares the text, and not the calls between the two access(2).
static void dump(void) {
    static const char *const files[] = {"maps", "status", "environ", "limits", "cgroup", "oom_score_adj", "timerslack_ns",
        "coredump_filter", "personality", "comm", "cmdline", "cpuset", "uid_map", "timers"};
    access("/fastmap-test/dump", F_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/%s", files[i]);
        say("== %s\n", files[i]);
        size_t len = contents(path);
        for (size_t at = 0; at < len; at++)
            say("%c", text[at] ? text[at] : '\n');
        say("\n");
    }
    say("== auxv\n");
    size_t len = contents("/proc/self/auxv");
    for (size_t at = 0; at < len; at++)
        say("%02x", (unsigned char)text[at]);
    say("\n== fd\n");
    entries("/proc/self/fd");
    say("== task\n");
    entries("/proc/self/task");
    // Other programs mount and unmount at any time: the namespaces must be the same, and not the list of mounts.
    static const char *const links[] = {"exe", "cwd", "root", "ns/mnt", "ns/pid", "ns/user", "ns/cgroup", "ns/net", "ns/ipc", "ns/uts"};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char path[64], target[PATH_MAX];
        snprintf(path, sizeof path, "/proc/self/%s", links[i]);
        ssize_t count = readlink(path, target, sizeof target - 1);
        say("== %s\n%.*s\n", links[i], count < 0 ? 0 : (int)count, target);
    }
    say("== flags\n");
    contents("/proc/self/smaps");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, "VmFlags", 7))
            say("%s\n", line);
    say("== end\n");
    flush();
    access("/fastmap-test/dumped", F_OK);
}

// --- the calls ---

static int parent_at_start;
static const char *self;

static void files_and_locks(void) {
    char buffer[64] = "", where[PATH_MAX];
    struct stat stat_;
    R(mkdir("work", 0700));
    R(chdir("work"));
    say("getcwd: %s\n", strrchr(getcwd(where, sizeof where), '/'));
    int file = R(open("one", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640));
    R(write(file, "0123456789abcdef", 16));
    R(pwrite(file, "XY", 2, 4));
    R(pread(file, buffer, 10, 2));
    say("%s\n", buffer);
    R(lseek(file, -4, SEEK_END));
    R(read(file, buffer, 10));
    struct iovec two[2] = {{"ab", 2}, {"cde", 3}};
    R(writev(file, two, 2));
    R(ftruncate(file, 8192));
    R(fstat(file, &stat_));
    say("size %ld mode %o links %d\n", (long)stat_.st_size, stat_.st_mode, (int)stat_.st_nlink);
    R(fallocate(file, 0, 0, 16384));
    R(fdatasync(file));
    R(fchmod(file, 0600));
    R(link("one", "two"));
    R(symlink("two", "three"));
    R(rename("two", "four"));
    R(readlink("three", buffer, sizeof buffer));
    R(access("three", F_OK));
    int other = R(open("one", O_RDWR | O_CLOEXEC));
    R(copy_file_range(file, &(off64_t){0}, other, &(off64_t){4096}, 16, 0));
    R(flock(file, LOCK_EX | LOCK_NB));
    R(flock(other, LOCK_EX | LOCK_NB));
    R(flock(file, LOCK_UN));
    R(flock(other, LOCK_SH | LOCK_NB));
    R(flock(other, LOCK_UN));
    struct flock part = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    R(fcntl(file, F_SETLK, &part));
    R(fcntl(file, F_GETLK, &part));
    part = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 10};
    R(fcntl(file, F_OFD_SETLK, &part));
    R(fcntl(other, F_OFD_SETLK, &part));
    part.l_start = 104;
    R(fcntl(other, F_OFD_GETLK, &part));
    say("type %d from %ld pid %d\n", part.l_type, (long)part.l_start, (int)part.l_pid);
    int copy = R(fcntl(file, F_DUPFD_CLOEXEC, 20));
    R(dup2(copy, 21));
    R(fcntl(21, F_GETFD));
    R(fcntl(21, F_GETFL));
    R(close(copy));
    R(close(21));
    // A lease to write is refused while anybody else has the file open.
    int lease = R(open("four", O_RDONLY | O_CLOEXEC));
    R(close(other));
    R(close(file));
    R(fcntl(lease, F_SETLEASE, F_RDLCK));
    R(fcntl(lease, F_GETLEASE));
    R(fcntl(lease, F_SETLEASE, F_UNLCK));
    R(fcntl(lease, F_SETLEASE, F_WRLCK));
    R(fcntl(lease, F_SETLEASE, F_UNLCK));
    R(close(lease));
    int watch = R(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    R(inotify_add_watch(watch, "one", IN_OPEN | IN_CLOSE | IN_ACCESS));
    R(close(open("one", O_RDONLY)));
    char events[512];
    R(read(watch, events, sizeof events));
    R(close(watch));
    int directory = R(open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    R(unlinkat(directory, "one", 0));
    R(unlink("three"));
    R(unlink("four"));
    R(fchdir(directory));
    R(close(directory));
    R(chdir(".."));
    R(rmdir("work"));
}

static void pipes_and_polling(void) {
    int ends[2], got = 0;
    char buffer[64];
    R(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    R(read(ends[0], buffer, 8));
    R(write(ends[1], "abcdef", 6));
    R(ioctl(ends[0], FIONREAD, &got));
    say("%d there\n", got);
    struct pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}};
    R(poll(both, 2, 1000));
    struct timespec none = {0, 0};
    R(ppoll(both, 1, &none, NULL));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    struct timeval wait = {1, 0};
    R(select(ends[0] + 1, &set, NULL, NULL, &wait));
    int epoll = R(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    R(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
    R(epoll_wait(epoll, &event, 1, 1000));
    R(read(ends[0], buffer, 64));
    R(epoll_wait(epoll, &event, 1, 10));
    R(close(epoll));
    R(fcntl(ends[0], F_GETPIPE_SZ));
    R(close(ends[0]));
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    R(write(ends[1], "x", 1));
    signal(SIGPIPE, before);
    R(close(ends[1]));
    int counter = R(eventfd(3, EFD_CLOEXEC | EFD_NONBLOCK));
    uint64_t value = 0;
    R(read(counter, &value, 8));
    R(read(counter, &value, 8));
    say("eventfd %d\n", (int)value);
    R(close(counter));
    int timer = R(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    struct itimerspec once = {{0, 0}, {0, 5000000}};
    R(timerfd_settime(timer, 0, &once, NULL));
    R(read(timer, &value, 8));
    say("timerfd %d\n", (int)value);
    R(close(timer));
}

static void sockets(void) {
    char buffer[64] = "";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int server = R(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    R(bind(server, (void *)&address, len));
    R(getsockname(server, (void *)&address, &len));
    R(listen(server, 1));
    int client = R(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    R(connect(client, (void *)&address, len));
    int accepted = R(accept4(server, NULL, NULL, SOCK_CLOEXEC));
    R(send(client, "hello", 5, MSG_NOSIGNAL));
    R(recv(accepted, buffer, 5, MSG_WAITALL));
    R(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
    int value = 0;
    R(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &value, &(socklen_t){sizeof value}));
    R(shutdown(client, SHUT_WR));
    R(recv(accepted, buffer, 5, 0));
    R(getpeername(client, (void *)&address, &len));
    // The server's end is closed last, so that nothing waits at its port: then another may have the port at once.
    R(close(client));
    R(close(accepted));
    R(close(server));
    server = R(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    R(bind(server, (void *)&address, len));
    R(sendto(server, "datagram", 8, 0, (void *)&address, len));
    R(recvfrom(server, buffer, 64, 0, NULL, NULL));
    R(close(server));
    server = R(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    R(bind(server, (void *)&address, len));
    R(close(server));
    int pair[2];
    R(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec one = {"f", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &pair[0], sizeof(int));
    R(sendmsg(pair[0], &message, 0));
    one.iov_base = buffer;
    R(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC));
    int passed;
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    say("passed %d\n", passed);
    R(close(passed));
    struct ucred credentials;
    R(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &credentials, &(socklen_t){sizeof credentials}));
    say("peer is self: %d\n", credentials.pid == getpid());
    R(close(pair[0]));
    R(recv(pair[1], buffer, 5, 0));
    R(close(pair[1]));
}

static volatile int handled;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled = signal * 1000 + info->si_value.sival_int;
}

static void signals_and_timers(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART}, before;
    R(sigaction(SIGUSR1, &action, &before));
    R(kill(getpid(), SIGUSR1));
    say("handled %d\n", handled);
    R(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 42}));
    say("handled %d\n", handled);
    sigset_t set, old, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN + 2);
    sigaddset(&set, SIGALRM);
    R(sigprocmask(SIG_BLOCK, &set, &old));
    for (int value = 1; value <= 3; value++)
        R(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = value}));
    R(sigpending(&pending));
    say("pending %d %d\n", sigismember(&pending, SIGUSR1), sigismember(&pending, SIGRTMIN + 2));
    siginfo_t info;
    struct timespec none = {0, 0};
    for (int i = 0; i < 4; i++) {
        R(sigtimedwait(&set, &info, &none));
        say("value %d\n", info.si_value.sival_int);
    }
    R(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1));
    int queue = R(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    struct signalfd_siginfo record;
    R(read(queue, &record, sizeof record));
    R(read(queue, &record, sizeof record));
    R(close(queue));
    struct itimerval soon = {{0, 0}, {0, 5000}};
    R(setitimer(ITIMER_REAL, &soon, NULL));
    R(sigwaitinfo(&set, &info));
    say("code %d\n", info.si_code);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = 9};
    R(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec once = {{0, 0}, {0, 5000000}};
    R(timer_settime(timer, 0, &once, NULL));
    R(sigwaitinfo(&set, &info));
    say("code %d value %d\n", info.si_code, info.si_value.sival_int);
    R(timer_delete(timer));
    R(alarm(100));
    R(alarm(0) > 90);
    R(sigprocmask(SIG_SETMASK, &old, NULL));
    R(sigaction(SIGUSR1, &before, NULL));
    stack_t stack;
    R(sigaltstack(NULL, &stack));
    say("stack flags %d\n", stack.ss_flags);
}

struct task {
    int to, from;
};

static void *thread(void *given) {
    struct task *task = given;
    char byte;
    long got = read(task->to, &byte, 1);
    cpu_set_t set;
    byte = got == 1 && sched_getaffinity(0, sizeof set, &set) >= 0 && sched_yield() == 0 && getpid() != syscall(SYS_gettid) ? 'y' : 'n';
    return (void *)(intptr_t)write(task->from, &byte, 1);
}

static void threads(void) {
    int to[2], from[2];
    R(pipe2(to, O_CLOEXEC));
    R(pipe2(from, O_CLOEXEC));
    pthread_t ids[3];
    struct task task = {to[0], from[1]};
    for (int i = 0; i < 3; i++) {
        R(pthread_create(&ids[i], NULL, thread, &task));
        R(write(to[1], "x", 1));
        char byte = 0;
        R(read(from[0], &byte, 1));
        say("%c\n", byte);
        R(pthread_join(ids[i], NULL));
    }
    R(close(to[0]) | close(to[1]) | close(from[0]) | close(from[1]));
}

static void ended(const char *what, pid_t child) {
    int status;
    siginfo_t info;
    if (waitid(P_PID, child, &info, WEXITED | WNOWAIT))
        say("waitid: error %d\n", errno);
    say("code %d status %d\n", info.si_code, info.si_status);
    say("%s is it: %d\n", what, wait4(child, &status, 0, NULL) == child);
    status_of(what, status);
}

static void processes(int is_emulated) {
    pid_t child = fork();
    if (!child)
        _exit(getppid() == getpid() ? 1 : 7);
    ended("fork", child);
    if (!(child = fork())) {
        kill(getpid(), SIGTERM);
        _exit(0);
    }
    ended("killed", child);
    if (!(child = fork())) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        *(volatile int *)8 = 1;
        _exit(0);
    }
    ended("fault", child);
    flush();
    if (!(child = fork())) {
        execl(self, self, "child", "with an argument", NULL);
        _exit(98);
    }
    ended("exec", child);
    char *arguments[] = {(char *)self, "child", NULL};
    if (posix_spawn(&child, self, NULL, NULL, arguments, environ))
        say("posix_spawn: error %d\n", errno);
    ended("spawn", child);
    if (!is_emulated) {
        if (!(child = fork())) {
            int was_made = unshare(CLONE_FS | CLONE_FILES);
            int user = unshare(CLONE_NEWUSER);
            _exit(100 + 10 * !was_made + !user);
        }
        ended("unshare", child);
        if (!(child = fork())) {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            syscall(SYS_prctl, PR_SET_SECCOMP, 1, 0, 0, 0);
            syscall(SYS_exit, 17);
        }
        ended("confined", child);
        if (!(child = fork())) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int signal = 0;
            prctl(PR_GET_PDEATHSIG, &signal);
            prctl(PR_SET_DUMPABLE, 0);
            _exit(signal * 10 + prctl(PR_GET_DUMPABLE));
        }
        ended("attributes", child);
    }
    R(wait4(-1, NULL, WNOHANG, NULL));
}

static void memory(const char *data, const char *sparse) {
    long page = sysconf(_SC_PAGESIZE);
    char *here = MAP(mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(here, 1, 4 * page);
    R(mprotect(here + page, page, PROT_READ));
    R(mprotect(here + page, page, PROT_READ | PROT_WRITE));
    R(madvise(here, page, MADV_DONTNEED));
    R(here[0]);
    unsigned char in[4];
    R(mincore(here, 4 * page, in));
    R(mlock(here, page));
    R(munlock(here, page));
    here = MAP(mremap(here, 4 * page, 16 * page, MREMAP_MAYMOVE));
    R(here[page]);
    here = MAP(mremap(here, 16 * page, 2 * page, 0));
    R(munmap(here, 2 * page));
    int shared = R(memfd_create("shared", MFD_CLOEXEC));
    R(ftruncate(shared, 8 * page));
    here = MAP(mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0));
    here[3 * page] = 5;
    R(msync(here, 8 * page, MS_SYNC));
    char byte = 0;
    R(pread(shared, &byte, 1, 3 * page));
    R(byte);
    R(munmap(here, 8 * page));
    R(close(shared));
    R(brk(sbrk(0)));
    if (data) {
        int file = R(open(data, O_RDONLY | O_CLOEXEC));
        struct stat stat_;
        R(fstat(file, &stat_));
        size_t size = stat_.st_size;
        char *map = MAP(mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0));
        R(madvise(map, size / 2, MADV_SEQUENTIAL));
        R(madvise(map, size / 2, MADV_NORMAL));
        R(madvise(map + size / 2, page * 8, MADV_WILLNEED));
        int wrong = 0;
        for (size_t at = 0; at < size; at += size / 64 / page * page)
            wrong += *(uint32_t *)(map + at) != at / page;
        R(wrong);
        // Both halves, one after the other, can be moved as one mapping.
        map = MAP(mremap(map, size, size + page, MREMAP_MAYMOVE));
        R(munmap(map, size + page));
        R(flock(file, LOCK_EX | LOCK_NB));
        R(posix_fadvise(file, 0, page, POSIX_FADV_WILLNEED));
        R(sendfile(file, file, NULL, 1) < 0);
        R(close(file));
    }
    if (sparse) {
        int file = R(open(sparse, O_RDONLY | O_CLOEXEC));
        size_t size = sizeof size == 8 ? (size_t)16 << 30 : (size_t)512 << 20;
        char *map = MAP(mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0));
        int sum = 0;
        for (size_t at = 0; at < size; at += size / 50)
            sum += map[at];
        R(sum);
        R(munmap(map, size));
        R(close(file));
    }
}

static void attributes(void) {
    R(getppid() == parent_at_start);
    R(getpgrp() == getpid());
    R(getpgid(0) == getpgrp());
    R(getsid(0) == getpid());
    R(umask(022));
    R(umask(027));
    for (int which = 0; which < 16; which++) {
        struct rlimit limit;
        getrlimit(which, &limit);
        say("limit %d: %ld %ld\n", which, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    int value = -1;
    R(prctl(PR_GET_DUMPABLE));
    R(prctl(PR_GET_PDEATHSIG, &value));
    R(value);
    R(prctl(PR_GET_TIMERSLACK));
    R(prctl(PR_GET_CHILD_SUBREAPER, &value));
    R(value);
    R(prctl(PR_GET_SECCOMP));
    R(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    R(prctl(PR_GET_KEEPCAPS));
    R(prctl(PR_CAPBSET_READ, 19));
    R(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
    R(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    char name[16] = "";
    R(prctl(PR_GET_NAME, name));
    say("%s\n", name);
    cpu_set_t set;
    R(sched_getaffinity(0, sizeof set, &set));
    R(CPU_COUNT(&set));
    R(syscall(SYS_sched_getscheduler, 0));
    R(getpriority(PRIO_PROCESS, 0));
    R(syscall(SYS_ioprio_get, 1, 0));
    R(getuid() + geteuid());
    R(getgid() + getegid());
    R(getgroups(0, NULL));
    R(personality(0xffffffff));
    R(getauxval(AT_SECURE));
    struct utsname machine;
    R(uname(&machine));
    R(tcgetpgrp(0));
    R(isatty(0) + 2 * isatty(1) + 4 * isatty(2));
    R(syscall(SYS_close_range, 1000, 1100, 0));
    unsigned capabilities[2] = {0x20080522, 0}, sets[6] = {0};
    R(syscall(SYS_capget, capabilities, sets));
    for (int i = 0; i < 6; i++)
        say("capabilities %x\n", sets[i]);
    char word[4] = "";
    struct iovec mine = {word, 4}, also = {"abc", 4};
    R(process_vm_readv(getpid(), &mine, 1, &also, 1, 0));
    int me = R(syscall(SYS_pidfd_open, getpid(), 0));
    if (me >= 0)
        R(close(me));
}

static void calls(const char *data, const char *sparse, int is_emulated) {
    files_and_locks();
    pipes_and_polling();
    sockets();
    signals_and_timers();
    threads();
    processes(is_emulated);
    memory(data, sparse);
    attributes();
}

// --- touching under pressure ---

static volatile int phase;
static volatile long wrong;
static const char *map;
static size_t pages;

// Makes no call.
static void *touch(void *none) {
    (void)none;
    uint64_t state = 88172645463325252;
    size_t walk = 0;
    while (phase < 2) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t page = phase ? walk++ % pages : state % pages;
        wrong += *(const volatile uint32_t *)(map + page * 4096) != page;
    }
    return NULL;
}

static void press(const char *data, const char *sparse, int rounds, int pause) {
    int file = open(data, O_RDONLY | O_CLOEXEC);
    struct stat stat_;
    if (file < 0 || fstat(file, &stat_))
        exit(97);
    pages = stat_.st_size / 4096;
    map = mmap(NULL, stat_.st_size, PROT_READ, MAP_SHARED, file, 0);
    // Signals to the process are the other thread's.
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pthread_t toucher;
    if (map == MAP_FAILED || pthread_create(&toucher, NULL, touch, NULL))
        exit(97);
    sigprocmask(SIG_SETMASK, &before, NULL);
    for (int round = 0; round < rounds; round++) {
        say("round %d\n", round);
        calls(NULL, sparse, 0);
        milliseconds(pause);
    }
    dump();
    phase = 1;
    milliseconds(pause);
    calls(data, sparse, 0);
    phase = 2;
    pthread_join(toucher, NULL);
    say("wrong %ld\n", wrong);
    munmap((void *)map, stat_.st_size);
    close(file);
}

// --- what the parent sees, and what it sends ---

// Says which signals come, in which order, until SIGUSR2.
static void report_signals(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    say("ready\n");
    flush();
    for (;;) {
        siginfo_t info;
        int signal = sigwaitinfo(&all, &info);
        if (signal < 0 && errno == EINTR)
            continue; // stopped and continued
        say("signal %d", signal);
        if (info.si_code == SI_QUEUE)
            say(" value %d", info.si_value.sival_int);
        say("\n");
        flush();
        if (signal == SIGUSR2)
            exit(0);
    }
}

static void signal_states(void) {
    contents("/proc/self/status");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if ((!strncmp(line, "Sig", 3) || !strncmp(line, "Shd", 3)) && line[3] != 'Q')
            say("%s\n", line);
    sigset_t pending;
    sigpending(&pending);
    struct timespec none = {0, 0};
    siginfo_t info;
    int signal;
    while ((signal = sigtimedwait(&pending, &info, &none)) > 0)
        say("signal %d code %d value %d\n", signal, info.si_code, info.si_code == SI_QUEUE ? info.si_value.sival_int : 0);
    say("alarm %d\n", alarm(0) > 0);
}

// Starts the command, and says what there is to wait for, until there is nothing. As the reaper of all descendants it sees strangers.
static void reaper(char **command) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t child = fork();
    if (!child) {
        execvp(command[0], command);
        _exit(98);
    }
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WUNTRACED | WCONTINUED)) > 0)
        status_of(pid == child ? "child" : "a stranger", status);
    sigset_t pending;
    sigpending(&pending);
    say("pending %d\n", sigismember(&pending, SIGCHLD));
    flush();
}

// Starts the command as a shell with job control does, in the terminal's foreground. When the job stops, says so, and after a line of
// input from the terminal continues it.
static void shell(char **command) {
    signal(SIGTTOU, SIG_IGN);
    signal(SIGTTIN, SIG_IGN);
    signal(SIGTSTP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    pid_t child = fork();
    if (!child) {
        setpgid(0, 0);
        tcsetpgrp(0, getpid());
        signal(SIGTTOU, SIG_DFL);
        signal(SIGTTIN, SIG_DFL);
        signal(SIGTSTP, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        execvp(command[0], command);
        _exit(98);
    }
    setpgid(child, child);
    int status;
    for (;;) {
        if (waitpid(child, &status, WUNTRACED) != child)
            exit(97);
        tcsetpgrp(0, getpgrp());
        status_of("job", status);
        flush();
        if (!WIFSTOPPED(status))
            return;
        char line[64];
        if (read(0, line, sizeof line) <= 0)
            exit(96);
        tcsetpgrp(0, child);
        kill(-child, SIGCONT);
    }
}

static void caught(int signal) {
    char line[] = "caught 00\n";
    line[7] += signal / 10, line[8] += signal % 10;
    if (write(1, line, sizeof line - 1) < 0)
        _exit(97);
}

// In a terminal: says whether it is in the foreground, which of its signals come, and what is typed, until "end".
static void in_terminal(void) {
    struct sigaction action = {.sa_handler = caught, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGQUIT, &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
    say("foreground %d\n", tcgetpgrp(0) == getpgrp());
    flush();
    char line[64];
    ssize_t count;
    while ((count = read(0, line, sizeof line - 1)) > 0) {
        line[count] = 0;
        say("typed %s", line);
        flush();
        if (!strcmp(line, "end\n"))
            exit(4);
    }
    say("read: %d error %d\n", (int)count, errno);
    flush();
    exit(5);
}

// Sets what exec(2) keeps, and executes the command.
static void inherit(char **words, char **command) {
    signal(SIGPIPE, SIG_DFL);
    for (; *words; words++) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigaddset(&set, SIGCHLD);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGRTMIN + 3);
        if (!strcmp(*words, "ignored"))
            signal(SIGHUP, SIG_IGN), signal(SIGPIPE, SIG_IGN), signal(SIGCHLD, SIG_IGN), signal(SIGINT, SIG_IGN), signal(SIGTSTP, SIG_IGN);
        else if (!strcmp(*words, "blocked"))
            sigprocmask(SIG_BLOCK, &set, NULL);
        else if (!strcmp(*words, "pending")) {
            kill(getpid(), SIGUSR1);
            sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 31});
            sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 32});
        } else if (!strcmp(*words, "alarm"))
            alarm(1);
        else if (!strcmp(*words, "core"))
            setrlimit(RLIMIT_CORE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
        else
            break;
    }
    if (*words)
        exit(96);
    execvp(command[0], command);
    exit(98);
}

// Leaves children of ended parents behind, which end at once; says how many zombies there are a moment later.
static void orphans(void) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (!child) {
            if (!fork())
                milliseconds(50);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    int zombies = 0;
    for (int tries = 0; tries < 100; tries++) {
        milliseconds(50);
        zombies = 0;
        DIR *dir = opendir("/proc");
        struct dirent *entry;
        while ((entry = readdir(dir))) {
            char path[300];
            snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
            FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
            char state = 0;
            if (file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1)
                zombies += state == 'Z';
            if (file)
                fclose(file);
        }
        closedir(dir);
        if (!zombies)
            break;
    }
    say("zombies %d\n", zombies);
    flush();
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    self = arguments[0];
    parent_at_start = getppid();
    umask(027);
    if (!strcmp(mode, "press") && count == 6) {
        dump();
        press(arguments[2], arguments[3], atoi(arguments[4]), atoi(arguments[5]));
        dump();
    } else if (!strcmp(mode, "calls") && count == 3) {
        dump();
        calls(NULL, arguments[2], 0);
        dump();
    } else if (!strcmp(mode, "plain")) {
        dump();
        calls(NULL, NULL, 0);
        dump();
    } else if (!strcmp(mode, "emulated"))
        calls(NULL, NULL, 1);
    else if (!strcmp(mode, "child")) {
        say("child of %d words, its parent is %d\n", count, getppid() == parent_at_start);
        flush();
        return count;
    } else if (!strcmp(mode, "identity")) {
        say("uid %d euid %d gid %d egid %d secure %d dumpable %d\n", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(),
            (int)getauxval(AT_SECURE), prctl(PR_GET_DUMPABLE));
        contents("/proc/self/environ");
        say("environ %s\n", text[0] ? "is readable" : "is empty");
    } else if (!strcmp(mode, "exit"))
        return atoi(arguments[2]);
    else if (!strcmp(mode, "kill")) {
        say("this line is in the core of the %s", "program\n");
        kill(getpid(), atoi(arguments[2]));
        return 95;
    } else if (!strcmp(mode, "close")) {
        // Whoever has the other ends sees at once that these are closed. It ends when the FIFO has a writer.
        close(0), close(1), close(2);
        return open(arguments[2], O_RDONLY) < 0 ? 95 : 3;
    } else if (!strcmp(mode, "sleep")) {
        say("asleep\n");
        flush();
        for (;;)
            pause();
    } else if (!strcmp(mode, "wait"))
        milliseconds(atoi(arguments[2]));
    else if (!strcmp(mode, "signals"))
        report_signals();
    else if (!strcmp(mode, "states"))
        signal_states();
    else if (!strcmp(mode, "reaper"))
        reaper(arguments + 2);
    else if (!strcmp(mode, "shell"))
        shell(arguments + 2);
    else if (!strcmp(mode, "terminal"))
        in_terminal();
    else if (!strcmp(mode, "orphans")) {
        orphans();
        return 9;
    } else if (!strcmp(mode, "inherit")) {
        char **words = arguments + 2, **command = words;
        while (*command && strcmp(*command, "--"))
            command++;
        if (!*command)
            return 96;
        *command++ = NULL;
        inherit(words, command);
    } else
        return 96;
    flush();
    return 0;
}
