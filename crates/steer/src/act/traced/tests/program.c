/* Programs to attach to: `program MODE FILE`. Each says what it has, then `ready`, and ends when its input does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *map;
static size_t length;
static int file;
static atomic_int ends;

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        _exit(99);
    }
}

static double by(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double now(void) { return by(CLOCK_MONOTONIC); }

static long id(void) { return syscall(SYS_gettid); }

static void map_file(const char *path) {
    struct stat s;
    file = open(path, O_RDONLY | O_CLOEXEC);
    need(file >= 0 && !fstat(file, &s), path);
    length = s.st_size;
    map = mmap(0, length, PROT_READ, MAP_SHARED, file, 0);
    need(map != MAP_FAILED, "mmap");
}

static atomic_int touchers, touching;

static void ready(void) {
    while (touching < touchers) usleep(100);
    puts("ready");
    fflush(stdout);
}

static void wait_for_end(void) {
    char c;
    while (read(0, &c, 1) > 0) {}
    ends = 1;
}

/* Sleeps in page faults, without a call of madvise(2). */

static void touch(char **at, unsigned *seed, int pages) {
    /* Nothing of the file is mapped here or in memory from now on. */
    *at = mmap(*at, length, PROT_READ, MAP_SHARED | (*at ? MAP_FIXED : 0), file, 0);
    need(*at != MAP_FAILED, "mmap");
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    for (; pages > 0; pages--) need(((volatile char *)*at)[(size_t)rand_r(seed) % (length / 4096) * 4096] == 1, "a page");
}

static void *toucher(void *a) {
    char *at = 0;
    unsigned seed = (unsigned)(long)a;
    touch(&at, &seed, 64);
    touching++;
    while (!ends) touch(&at, &seed, 64);
    return 0;
}

static void make(void *(*body)(void *), void *a) {
    pthread_t t;
    touchers += body == toucher;
    need(!pthread_create(&t, 0, body, a) && !pthread_detach(t), "pthread_create");
}

/* blocked: threads asleep in system calls. Each checks that its call ends as it would have. */

enum { SPIN, FAULT, SLEEPS,
       NANOSLEEP = SLEEPS, CLOCK, CLOCK_ABS, FUTEX, FUTEX_ABS, FUTEX_WOKEN, FUTEXES, EXACT,
       POLL = EXACT, PPOLL, SELECT, PSELECT, PIPE, PIPE_V, EVENT, TIMER, WAIT4, WAITID, TICKS,
       EPOLL = TICKS, EPOLL_P, EPOLL_P2, SEMOP, SIGTIMED, WRITE, WRITE_SOCKET, RECV, RECV_ALL, READ_SOCKET, ACCEPT, MESSAGE, LOCK, AIO, KINDS };
static const char *names[] = { "spin", "fault", "nanosleep", "clock_nanosleep", "clock_nanosleep absolute", "futex", "futex absolute",
    "futex woken", "futex_waitv", "poll", "ppoll", "select", "pselect6", "read pipe", "readv pipe", "read eventfd", "read timerfd", "wait4",
    "waitid", "epoll_wait", "epoll_pwait", "epoll_pwait2", "semtimedop", "rt_sigtimedwait", "write pipe", "write socket", "recv", "recv all",
    "read socket", "accept", "msgrcv", "fcntl lock", "io_getevents" };

struct one {
    int kind, pair[2], descriptor, word, queue;
    sem_t go;
    char *touched;
    unsigned seed;
    aio_context_t aio;
    struct sockaddr_un name;
    long rounds, wrong;
};
static struct one all[KINDS];
static const struct timespec PAUSE = { 0, 50000000 };
static char big[1 << 20], drain[1 << 20];

static void partner_acts(struct one *o) {
    uint64_t value = 7;
    nanosleep(&PAUSE, 0);
    switch (o->kind) {
    case FUTEX_WOKEN:
        __atomic_store_n(&o->word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &o->word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
        break;
    case PIPE: case PIPE_V: need(write(o->pair[1], "x", 1) == 1, "write"); break;
    case EVENT: need(write(o->descriptor, &value, 8) == 8, "write"); break;
    case WRITE: case WRITE_SOCKET: for (size_t left = sizeof big; left;) { ssize_t r = read(o->pair[0], drain, left); need(r > 0, "read"); left -= r; } break;
    case RECV_ALL: need(write(o->pair[1], "yz", 2) == 2, "write"); break;
    case LOCK: need(!fcntl(o->pair[0], F_OFD_SETLK, &(struct flock){ .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 1 }), "unlock"); break;
    case ACCEPT: {
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        need(!connect(s, (void *)&o->name, sizeof o->name), "connect");
        close(s);
        break;
    }
    case MESSAGE: { struct { long type; char c; } m = { 1, 'x' }; need(!msgsnd(o->queue, &m, 1, 0), "msgsnd"); break; }
    }
}

static int has_partner(int kind) {
    return kind == FUTEX_WOKEN || kind == PIPE || kind == PIPE_V || kind == EVENT || kind == WRITE || kind == WRITE_SOCKET || kind == RECV_ALL ||
        kind == ACCEPT || kind == MESSAGE || kind == LOCK;
}

static void *partner(void *a) {
    struct one *o = a;
    for (;;) {
        while (sem_wait(&o->go)) {}
        partner_acts(o);
    }
    return 0;
}

/* fork(3) and posix_spawn(3) block all signals in this thread for a moment. A blocked signal is kept even where it is ignored: the end of
   a child that is quick, on a machine that is busy, would then end another thread's call, without any stop. */
static int child(void) {
    int pid = syscall(SYS_fork);
    need(pid >= 0, "fork");
    if (!pid) { struct timespec t = PAUSE; while (nanosleep(&t, &t)) {} _exit(3); }
    return pid;
}

static void prepare(struct one *o) {
    struct timeval limit = { 0, 50000 };
    sem_init(&o->go, 0, 0);
    switch (o->kind) {
    case PIPE: case PIPE_V: case WRITE: need(!pipe(o->pair), "pipe"); break;
    case EVENT: o->descriptor = eventfd(0, 0); break;
    case TIMER: o->descriptor = timerfd_create(CLOCK_MONOTONIC, 0); break;
    case EPOLL: case EPOLL_P: case EPOLL_P2: o->descriptor = epoll_create1(0); break;
    case SEMOP: o->queue = semget(IPC_PRIVATE, 1, 0600); break;
    case MESSAGE: o->queue = msgget(IPC_PRIVATE, 0600); break;
    case LOCK: {
        FILE *both = tmpfile();
        char path[40];
        snprintf(path, 40, "/proc/self/fd/%d", fileno(both));
        for (int k = 0; k < 2; k++) need((o->pair[k] = open(path, O_RDWR | O_CLOEXEC)) >= 0, "lock");
        break;
    }
    case WRITE_SOCKET: case RECV_ALL: need(!socketpair(AF_UNIX, SOCK_STREAM, 0, o->pair), "socketpair"); break;
    case RECV: case READ_SOCKET:
        need(!socketpair(AF_UNIX, SOCK_STREAM, 0, o->pair), "socketpair");
        setsockopt(o->pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        break;
    case ACCEPT:
        o->descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
        o->name.sun_family = AF_UNIX;
        snprintf(o->name.sun_path + 1, 90, "steered-%d", getpid());
        need(!bind(o->descriptor, (void *)&o->name, sizeof o->name) && !listen(o->descriptor, 5), "listen");
        break;
    case AIO: need(!syscall(SYS_io_setup, 4, &o->aio), "io_setup"); break;
    }
    pthread_t t;
    if (has_partner(o->kind)) pthread_create(&t, 0, partner, o);
}

/* Whether one call ended as it should. */
static int call(struct one *o) {
    struct timespec t = PAUSE;
    struct epoll_event event;
    char c = 0;
    long r;
    errno = 0;
    switch (o->kind) {
    case NANOSLEEP: return !nanosleep(&t, 0);
    case CLOCK: return !clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0);
    case CLOCK_ABS: case FUTEX_ABS:
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += PAUSE.tv_nsec;
        if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
        if (o->kind == CLOCK_ABS) return !clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0);
        return syscall(SYS_futex, &o->word, FUTEX_WAIT_BITSET_PRIVATE, 0, &t, 0, -1) == -1 && errno == ETIMEDOUT;
    case POLL: return poll(0, 0, 50) == 0;
    case PPOLL: return ppoll(0, 0, &t, 0) == 0;
    case SELECT: { struct timeval v = { 0, 50000 }; return syscall(SYS_select, 0, 0, 0, 0, &v) == 0; }
    case PSELECT: return pselect(0, 0, 0, 0, &t, 0) == 0;
    case FUTEX: return syscall(SYS_futex, &o->word, FUTEX_WAIT_PRIVATE, 0, &t, 0, 0) == -1 && errno == ETIMEDOUT;
    case FUTEX_WOKEN:
        __atomic_store_n(&o->word, 0, __ATOMIC_SEQ_CST);
        sem_post(&o->go);
        r = syscall(SYS_futex, &o->word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
        return __atomic_load_n(&o->word, __ATOMIC_SEQ_CST) && (r == 0 || errno == EAGAIN);
    case FUTEXES: {
        struct { uint64_t value, at; uint32_t flags, reserved; } w = { 0, (uint64_t)&o->word, 2 | 128, 0 };
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += PAUSE.tv_nsec;
        if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
        r = syscall(449, &w, 1, 0, &t, CLOCK_MONOTONIC);
        if (r == -1 && errno == ENOSYS) { usleep(50000); return 1; }
        return r == -1 && errno == ETIMEDOUT;
    }
    case PIPE: sem_post(&o->go); return read(o->pair[0], &c, 1) == 1 && c == 'x';
    case PIPE_V: { struct iovec v = { &c, 1 }; sem_post(&o->go); return readv(o->pair[0], &v, 1) == 1 && c == 'x'; }
    case EVENT: { uint64_t v = 0; sem_post(&o->go); return read(o->descriptor, &v, 8) == 8 && v == 7; }
    case TIMER: {
        struct itimerspec at = { { 0, 0 }, PAUSE };
        uint64_t v = 0;
        timerfd_settime(o->descriptor, 0, &at, 0);
        return read(o->descriptor, &v, 8) == 8 && v == 1;
    }
    case WAIT4: { int s, pid = child(); return wait4(pid, &s, 0, 0) == pid && WEXITSTATUS(s) == 3; }
    case WAITID: { siginfo_t s; int pid = child(); return !waitid(P_PID, pid, &s, WEXITED) && s.si_pid == pid && s.si_status == 3; }
    case SPIN: {
        double until = now() + .0505;
        uint64_t x = 1, y = 1;
        while (now() < until) for (int i = 0; i < 1000; i++) { x = x * 3 + 1; y = y * 3 + 1; }
        return x == y;
    }
    case FAULT: {
        double until = now() + .0505;
        while (now() < until) touch(&o->touched, &o->seed, 64);
        return 1;
    }
    case EPOLL: return epoll_wait(o->descriptor, &event, 1, 50) == 0;
    case EPOLL_P: { sigset_t s; sigfillset(&s); return epoll_pwait(o->descriptor, &event, 1, 50, &s) == 0; }
    case EPOLL_P2:
        r = syscall(441, o->descriptor, &event, 1, &t, 0, 8);
        if (r == -1 && errno == ENOSYS) { usleep(50000); return 1; }
        return r == 0;
    case SEMOP: { struct sembuf b = { 0, -1, 0 }; return semtimedop(o->queue, &b, 1, &t) == -1 && errno == EAGAIN; }
    case SIGTIMED: { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigtimedwait(&s, 0, &t) == -1 && errno == EAGAIN; }
    case WRITE: sem_post(&o->go); return write(o->pair[1], big, sizeof big) == sizeof big;
    case WRITE_SOCKET: sem_post(&o->go); return write(o->pair[1], big, sizeof big) == sizeof big;
    case RECV_ALL: {
        char all[3];
        need(write(o->pair[1], "x", 1) == 1, "write");
        sem_post(&o->go);
        return recv(o->pair[0], all, 3, MSG_WAITALL) == 3 && !memcmp(all, "xyz", 3);
    }
    case LOCK: {
        struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
        need(!fcntl(o->pair[0], F_OFD_SETLK, &l), "lock");
        sem_post(&o->go);
        int locked = !fcntl(o->pair[1], F_OFD_SETLKW, &l);
        l.l_type = F_UNLCK;
        fcntl(o->pair[1], F_OFD_SETLK, &l);
        return locked;
    }
    case RECV: return recv(o->pair[0], &c, 1, 0) == -1 && errno == EAGAIN;
    case READ_SOCKET: return read(o->pair[0], &c, 1) == -1 && errno == EAGAIN;
    case ACCEPT: { sem_post(&o->go); int s = accept(o->descriptor, 0, 0); close(s); return s >= 0; }
    case MESSAGE: { struct { long type; char c; } m = { 0, 0 }; sem_post(&o->go); return msgrcv(o->queue, &m, 1, 0, 0) == 1 && m.c == 'x'; }
    case AIO: { struct io_event e; return syscall(SYS_io_getevents, o->aio, 1, 1, &e, &t) == 0; }
    }
    return 0;
}

static pthread_mutex_t says = PTHREAD_MUTEX_INITIALIZER;
static atomic_int begun;

static void fail(const char *format, ...) {
    va_list a;
    va_start(a, format);
    pthread_mutex_lock(&says);
    vprintf(format, a);
    puts("");
    pthread_mutex_unlock(&says);
    va_end(a);
}

static void *sleeper(void *a) {
    struct one *o = a;
    prepare(o);
    pthread_mutex_lock(&says);
    printf("thread %ld %s %s\n", id(), o->kind < SLEEPS ? "faults" : o->kind < EXACT ? "sleeps" : "never", names[o->kind]);
    pthread_mutex_unlock(&says);
    begun++;
    while (!ends) {
        /* Sockets' limits are counted in ticks, which come late, many at once, after a virtual machine has stood. */
        clockid_t clock = o->kind == RECV || o->kind == READ_SOCKET ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
        double began = by(clock);
        int ok = call(o), error = errno;
        double took = by(clock) - began;
        int early = o->kind != WRITE && o->kind != WRITE_SOCKET && took < (o->kind < TICKS ? .0495 : .040);
        if (!ok || early) {
            o->wrong++;
            fail("%s: %s after %.1f ms (%s)", names[o->kind], ok ? "early" : "failed", took * 1e3, strerror(error));
        }
        o->rounds++;
    }
    begun--;
    return 0;
}

/* storm: beside these, timers, threads and programs that come and go, and threads that wait for pages. */

static atomic_long expired, ticks_wrong, made_wrong, came;

static void tick(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    expired += 1 + info->si_overrun;
}

/* A timer's signals, 1000 a second: each is counted, or is in the count of overruns of the next. */
static void *timers(void *a) {
    struct sigaction s = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO };
    sigaction(SIGRTMIN + 2, &s, 0);
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGRTMIN + 2);
    pthread_sigmask(SIG_UNBLOCK, &own, 0);
    struct sigevent e = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2 };
    struct itimerspec every = { { 0, 1000000 }, { 0, 1000000 } }, none = { { 0, 0 }, { 0, 0 } };
    timer_t t;
    need(!timer_create(CLOCK_MONOTONIC, &e, &t), "timer_create");
    char *at = 0;
    unsigned seed = 99;
    double before = now();
    timer_settime(t, 0, &every, 0);
    double began = now();
    begun++;
    while (!ends) touch(&at, &seed, 16);
    /* Where a processor stands its expirations come late; what was lost never comes. */
    double until = now() + 10, least;
    long counted;
    do {
        usleep(1000);
        least = now() - began;
        counted = expired;
    } while (counted < least * 1000 - 5 && now() < until);
    double most = now() - before;
    timer_settime(t, 0, &none, 0);
    if (counted < least * 1000 - 5 || counted > most * 1000 + 5) {
        fail("%ld expirations in %.1f to %.1f ms", counted, least * 1e3, most * 1e3);
        ticks_wrong++;
    }
    begun--;
    return a;
}

static void *comes(void *a) {
    char *at = 0;
    unsigned seed = 7;
    if ((long)a % 50 == 0) touch(&at, &seed, 8), munmap(at, length);
    came++;
    return 0;
}

static void *maker(void *a) {
    pthread_t t;
    begun++;
    for (long k = 0; !ends; k++) {
        int error = pthread_create(&t, 0, comes, (void *)k);
        if (error || pthread_join(t, 0) || came != k + 1) {
            fail("a thread: %ld of %ld came (%s)", (long)came, k + 1, strerror(error));
            made_wrong++;
        }
        usleep(1000);
    }
    begun--;
    return a;
}

static void *executer(void *a) {
    begun++;
    while (!ends) {
        int s = 0;
        pid_t pid = vfork();
        if (!pid) {
            execl("/bin/sh", "sh", "-c", "exit 3", (char *)0);
            _exit(4);
        }
        if (pid < 0 || waitpid(pid, &s, 0) != pid || !WIFEXITED(s) || WEXITSTATUS(s) != 3) {
            fail("a program: %d (%s)", s, strerror(errno));
            made_wrong++;
        }
        usleep(20000);
    }
    begun--;
    return a;
}

static int blocked(int storm) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR2);
    sigaddset(&s, SIGRTMIN + 2);
    sigprocmask(SIG_BLOCK, &s, 0);
    for (int k = 0; k < KINDS; k++) {
        all[k].kind = k;
        make(sleeper, all + k);
    }
    if (storm) {
        while (begun < KINDS) usleep(1000);
        make(timers, 0);
        make(maker, 0);
        make(executer, 0);
        for (long k = 0; k < 3; k++) make(toucher, (void *)k);
        while (begun < KINDS + 3) usleep(1000);
    }
    while (begun < KINDS) usleep(1000);
    ready();
    wait_for_end();
    while (begun > 0) usleep(1000);
    long wrong = ticks_wrong + made_wrong, least = 1 << 30;
    for (int k = 0; k < KINDS; k++) {
        wrong += all[k].wrong;
        if (all[k].rounds < least) least = all[k].rounds;
    }
    semctl(all[SEMOP].queue, 0, IPC_RMID);
    msgctl(all[MESSAGE].queue, IPC_RMID, 0);
    printf("kinds %d rounds %ld wrong %ld\n", KINDS, least, wrong);
    return wrong != 0;
}

/* signals: counts what comes, by value. */

enum { VALUES = 100000 };
static atomic_uchar got[VALUES];
static atomic_long handled, strange;
static int sender;

static void handler(int signal, siginfo_t *info, void *context) {
    int value = info->si_value.sival_int;
    (void)signal, (void)context;
    if (info->si_code != SI_QUEUE || info->si_pid != sender || value < 0 || value >= VALUES) strange++;
    else got[value]++;
    for (volatile int i = 0; i < 2000; i++) {}
    handled++;
}

static void *busy(void *a) {
    int kind = (long)a, word = 0;
    pthread_mutex_lock(&says);
    printf("thread %ld faults busy\n", id());
    pthread_mutex_unlock(&says);
    begun++;
    uint64_t x = 1, y = 1;
    while (!ends) {
        if (kind == 1) { struct timespec t = { 0, 3000000 }; nanosleep(&t, 0); }
        else if (kind == 2) { struct timespec t = { 0, 3000000 }; syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, 0, 0); }
        else for (int i = 0; i < 1000; i++) { x = x * 3 + 1; y = y * 3 + 1; }
        if (x != y) strange++;
    }
    return 0;
}

static int signals(void) {
    struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
    pthread_t t[4];
    sender = getppid();
    sigaction(SIGRTMIN + 1, &a, 0);
    for (long k = 0; k < 4; k++) pthread_create(t + k, 0, busy, (void *)(k % 3));
    while (begun < 4) usleep(1000);
    ready();
    int count = 0;
    char c = 0;
    for (ssize_t r; c != '\n' && (r = read(0, &c, 1)) != 0;)
        if (r == 1 && c != '\n') count = count * 10 + c - '0';
    /* What was sent and is not there yet is on its way. */
    for (int i = 0; i < 20000 && handled < count; i++) usleep(1000);
    ends = 1;
    for (int k = 0; k < 4; k++) pthread_join(t[k], 0);
    int lost = 0, twice = 0;
    for (int i = 0; i < count; i++) { lost += !got[i]; twice += got[i] > 1; }
    printf("handled %ld lost %d twice %d strange %ld\n", (long)handled, lost, twice, (long)strange);
    return lost || twice || strange || handled != count;
}

/* short: ends, or executes itself again, after some milliseconds, with threads that come and go. */

static void *brief(void *a) { usleep(100 * (long)a); return 0; }

static int short_lived(const char *self, const char *path, int again, unsigned seed) {
    unsigned until = 2000 + seed * 7919 % 9000;
    double end = now() + until * 1e-6;
    pthread_t t;
    for (long k = 0; now() < end; k++) {
        if (!pthread_create(&t, 0, brief, (void *)(k % 9))) pthread_detach(t);
        if (k % 4 == 3) usleep(200);
    }
    if (again > 0) {
        char left[20], next[20];
        snprintf(left, 20, "%d", again - 1);
        snprintf(next, 20, "%u", seed + 1);
        execl(self, self, "short", path, left, next, (char *)0);
        _exit(98);
    }
    exit(7);
}

/* Others. */

static void *masked(void *a) {
    sigset_t s;
    sigfillset(&s);
    if (a) pthread_sigmask(SIG_BLOCK, &s, 0);
    begun++;
    for (;;) pause();
    return 0;
}

static int maps(void) {
    pthread_t t;
    signal(SIGTRAP, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    for (long k = 0; k < 3; k++) pthread_create(&t, 0, masked, (void *)k);
    make(toucher, 0);
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGTRAP);
    sigaddset(&s, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &s, 0);
    while (begun < 3) usleep(1000);
    ready();
    struct pollfd input = { 0, POLLIN, 0 };
    while (poll(&input, 1, -1) < 0) {}
    return 0;
}

/* A filter that lets all calls pass, or one that kills at madvise(2). */
static int filter(int kills, int flags) {
    struct sock_filter all[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { kills ? 4 : 1, kills ? all : all + 3 };
    need(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static void *filtered_thread(void *a) {
    need(!filter(1, 0), "seccomp");
    printf("thread %ld faults filtered\n", id());
    ready();
    return toucher(a);
}

/* parent: the thread that waits for pages has a child, and either it is alone, or another sleeps where a signal would end its call. */

static atomic_int interrupted;

static void *polled(void *a) {
    int e = epoll_create1(0);
    struct epoll_event event;
    begun++;
    while (epoll_wait(e, &event, 1, 10) == 0) {}
    if (!ends) interrupted++;
    return a;
}

static int parent(int alone) {
    if (!alone) make(polled, 0);
    while (!alone && !begun) usleep(1000);
    char *at = 0;
    unsigned seed = 1;
    touch(&at, &seed, 64);
    int pid = child();
    ready();
    fcntl(0, F_SETFL, O_NONBLOCK);
    /* Each child lives for 50 ms. */
    for (char c; read(0, &c, 1) != 0;) {
        if (waitpid(pid, 0, WNOHANG) == pid) pid = child();
        touch(&at, &seed, 64);
    }
    ends = 1;
    printf("wrong %d\n", interrupted);
    return interrupted;
}

/* replaced: parts of the mapping are something else, or nothing. */
static int replaced(void) {
    make(toucher, 0);
    ready();
    char c;
    need(read(0, &c, 1) == 1, "read");
    size_t part = length / 4;
    need(mmap(map, part, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map, "anonymous");
    need(!munmap(map + part, part), "munmap");
    /* The same file, and another place in it. */
    need(mmap(map + 2 * part, part, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == map + 2 * part, "elsewhere");
    ready();
    wait_for_end();
    return 0;
}

/* churn: the second half of the mapping is replaced all the time. After each byte of input it rests until the next one. */
static atomic_int wanted, rests, is_file;

static void *churner(void *a) {
    size_t half = length / 2;
    for (;;) {
        for (rests = wanted; wanted; rests = wanted) usleep(100);
        int kind = !is_file;
        void *at = mmap(map + half, half, PROT_READ, kind ? MAP_SHARED | MAP_FIXED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, kind ? file : -1, kind ? half : 0);
        need(at == map + half, "churn");
        is_file = kind;
    }
    return a;
}

static int churn(void) {
    make(toucher, 0);
    make(churner, 0);
    ready();
    for (char c; read(0, &c, 1) == 1;) {
        wanted = 1;
        while (!rests) usleep(100);
        puts(is_file ? "file" : "other");
        fflush(stdout);
        if (read(0, &c, 1) != 1) break;
        wanted = 0;
        while (rests) usleep(100);
    }
    return 0;
}

/* late: all threads get a filter when a byte comes. */
static int late(void) {
    make(toucher, 0);
    ready();
    char c;
    need(read(0, &c, 1) == 1 && !filter(1, SECCOMP_FILTER_FLAG_TSYNC), "seccomp");
    wait_for_end();
    return 0;
}

static int word;

static void *measured(void *a) {
    long kind = (long)a;
    printf("thread %ld faults %s\n", id(), kind == 0 ? "user" : kind == 1 ? "fault" : "futex");
    fflush(stdout);
    begun++;
    volatile unsigned sum = 0;
    unsigned seed = 1;
    char *at = 0;
    for (;;) {
        if (kind == 0) for (int i = 0; i < 1000; i++) sum += i;
        else if (kind == 1) touch(&at, &seed, 64);
        else syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    }
    return 0;
}

/* sequence: a thread that is nearly always inside a restartable sequence. */

#if defined(__has_include)
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define HAS_SEQUENCES 1
#endif
#endif

static volatile long ended_well, aborted;

static void *sequences(void *a) {
#ifdef HAS_SEQUENCES
    need(__rseq_size > 0, "rseq");
    struct rseq *r = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    printf("thread %ld faults sequences\n", id());
    ready();
    while (!ends)
        __asm__ volatile(".pushsection __rseq_cs, \"aw\"\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
                         "leaq 3b(%%rip), %%rax\nmovq %%rax, %0\n"
                         "1: movl $30000000, %%ecx\n5: decl %%ecx\njnz 5b\nincq %1\n"
                         "2: jmp 6f\n.long 0x53053053\n4: incq %2\n6:\n"
                         : "=m"(r->rseq_cs), "+m"(ended_well), "+m"(aborted) : : "rax", "rcx", "cc", "memory");
#else
    ready();
#endif
    return a;
}

int main(int count, char **v) {
    pthread_t t;
    const char *mode = count > 2 ? v[1] : "";
    map_file(v[2]);
    printf("mapping %lx %lx\n", (unsigned long)map, (unsigned long)length);
    if (!strcmp(mode, "blocked")) return blocked(0);
    if (!strcmp(mode, "storm")) return blocked(1);
    if (!strcmp(mode, "signals")) return signals();
    if (!strcmp(mode, "maps")) return maps();
    if (!strcmp(mode, "short")) { if (!getenv("QUIET")) { ready(); setenv("QUIET", "1", 1); } return short_lived(v[0], v[2], atoi(v[3]), atoi(v[4])); }
    if (!strcmp(mode, "replaced")) return replaced();
    if (!strcmp(mode, "churn")) return churn();
    if (!strcmp(mode, "late")) return late();
    if (!strcmp(mode, "parent")) return parent(v[3][0] == 'a');
    if (!strcmp(mode, "filtered") || !strcmp(mode, "forbidden")) { need(!filter(*mode == 'f' && mode[1] == 'o', 0), "seccomp"); make(toucher, 0); }
    if (!strcmp(mode, "protected")) prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(mode, "strict")) { ready(); prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); char c; while (read(0, &c, 1) > 0) {} syscall(SYS_exit, 0); }
    if (!strcmp(mode, "filtered-thread")) { pthread_create(&t, 0, filtered_thread, 0); wait_for_end(); return 0; }
    if (!strcmp(mode, "sequence")) {
        pthread_create(&t, 0, sequences, 0);
        wait_for_end();
        printf("aborted %ld\n", aborted);
        return 0;
    }
    if (!strcmp(mode, "measured")) { pthread_create(&t, 0, measured, (void *)atol(v[3])); while (begun < 1) usleep(1000); }
    ready();
    wait_for_end();
    return 0;
}
