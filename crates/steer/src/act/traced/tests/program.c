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

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static long id(void) { return syscall(SYS_gettid); }

static void map_file(const char *path) {
    struct stat s;
    file = open(path, O_RDONLY | O_CLOEXEC);
    need(file >= 0 && !fstat(file, &s), path);
    length = s.st_size;
    map = mmap(0, length, PROT_READ, MAP_SHARED, file, 0);
    need(map != MAP_FAILED, "mmap");
}

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static void wait_for_end(void) {
    char c;
    while (read(0, &c, 1) > 0) {}
    ends = 1;
}

/* blocked: threads asleep in system calls. Each checks that its call ends as it would have. */

enum { NANOSLEEP, CLOCK, CLOCK_ABS, POLL, PPOLL, SELECT, PSELECT, FUTEX, FUTEX_ABS, FUTEX_WOKEN, FUTEXES, PIPE, PIPE_V, EVENT, TIMER,
       WAIT4, WAITID, SPIN, FAULT, FIT,
       EPOLL = FIT, EPOLL_P, EPOLL_P2, SEMOP, SIGTIMED, WRITE, RECV, READ_SOCKET, ACCEPT, MESSAGE, AIO, KINDS };
static const char *names[] = { "nanosleep", "clock_nanosleep", "clock_nanosleep absolute", "poll", "ppoll", "select", "pselect6",
    "futex", "futex absolute", "futex woken", "futex_waitv", "read pipe", "readv pipe", "read eventfd", "read timerfd", "wait4", "waitid",
    "spin", "fault", "epoll_wait", "epoll_pwait", "epoll_pwait2", "semtimedop", "rt_sigtimedwait", "write pipe", "recv", "read socket",
    "accept", "msgrcv", "io_getevents" };

struct one {
    int kind, pair[2], descriptor, word, queue;
    sem_t go;
    aio_context_t aio;
    struct sockaddr_un name;
    long rounds, wrong, cut;
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
    case WRITE: for (size_t left = sizeof big; left;) { ssize_t r = read(o->pair[0], drain, left); need(r > 0, "read"); left -= r; } break;
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
    return kind == FUTEX_WOKEN || kind == PIPE || kind == PIPE_V || kind == EVENT || kind == WRITE || kind == ACCEPT || kind == MESSAGE;
}

static void *partner(void *a) {
    struct one *o = a;
    for (;;) {
        while (sem_wait(&o->go)) {}
        partner_acts(o);
    }
    return 0;
}

static int child(void) {
    int pid = fork();
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
        unsigned sum = 0;
        while (now() < until) {
            posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
            for (size_t at = 0; at < length; at += 4096 * 16) sum += ((volatile char *)map)[at] != 1;
            madvise(map, length, MADV_DONTNEED);
        }
        return sum == 0;
    }
    case EPOLL: return epoll_wait(o->descriptor, &event, 1, 50) == 0;
    case EPOLL_P: { sigset_t s; sigemptyset(&s); return epoll_pwait(o->descriptor, &event, 1, 50, &s) == 0; }
    case EPOLL_P2:
        r = syscall(441, o->descriptor, &event, 1, &t, 0, 8);
        if (r == -1 && errno == ENOSYS) { usleep(50000); return 1; }
        return r == 0;
    case SEMOP: { struct sembuf b = { 0, -1, 0 }; return semtimedop(o->queue, &b, 1, &t) == -1 && errno == EAGAIN; }
    case SIGTIMED: { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigtimedwait(&s, 0, &t) == -1 && errno == EAGAIN; }
    case WRITE: sem_post(&o->go); return write(o->pair[1], big, sizeof big) == sizeof big;
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

static void *sleeper(void *a) {
    struct one *o = a;
    prepare(o);
    pthread_mutex_lock(&says);
    printf("thread %ld %s %s\n", id(), o->kind < FIT ? "fit" : "unfit", names[o->kind]);
    pthread_mutex_unlock(&says);
    begun++;
    while (!ends) {
        double began = now();
        int ok = call(o), error = errno;
        double took = now() - began;
        /* Some limits are counted in ticks of the kernel's clock. */
        int early = o->kind != WRITE && took < (o->kind < FIT ? .0495 : .040);
        if (!ok || early) {
            *(ok || o->kind != WRITE ? &o->wrong : &o->cut) += 1;
            fprintf(stderr, "%s: %s after %.1f ms (%s)\n", names[o->kind], ok ? "early" : "failed", took * 1e3, strerror(error));
        }
        o->rounds++;
    }
    begun--;
    return 0;
}

static int blocked(void) {
    pthread_t t;
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR2);
    sigprocmask(SIG_BLOCK, &s, 0);
    for (int k = 0; k < KINDS; k++) {
        all[k].kind = k;
        pthread_create(&t, 0, sleeper, all + k);
    }
    while (begun < KINDS) usleep(1000);
    ready();
    wait_for_end();
    while (begun > 0) usleep(1000);
    long wrong = 0, cut = 0, least = 1 << 30;
    for (int k = 0; k < KINDS; k++) {
        wrong += all[k].wrong;
        cut += all[k].cut;
        if (all[k].rounds < least) least = all[k].rounds;
    }
    semctl(all[SEMOP].queue, 0, IPC_RMID);
    msgctl(all[MESSAGE].queue, IPC_RMID, 0);
    printf("kinds %d rounds %ld cut %ld wrong %ld\n", KINDS, least, cut, wrong);
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
    printf("thread %ld fit busy\n", id());
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

static int filter(void) {
    struct sock_filter allow[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { 1, allow };
    need(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void *filtered_thread(void *a) {
    need(!filter(), "seccomp");
    printf("thread %ld fit filtered\n", id());
    ready();
    for (;;) poll(0, 0, 1000);
    return a;
}

static int word;

static void *measured(void *a) {
    long kind = (long)a;
    printf("thread %ld fit %s\n", id(), kind == 0 ? "user" : kind == 1 ? "fault" : "futex");
    fflush(stdout);
    begun++;
    volatile unsigned sum = 0;
    unsigned seed = 1;
    if (kind == 1) madvise(map, length, MADV_RANDOM);
    for (size_t k = 0;; k++) {
        if (kind == 0) for (int i = 0; i < 1000; i++) sum += i;
        else if (kind == 1) {
            if (k % 256 == 0) { madvise(map, length, MADV_DONTNEED); posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); }
            sum += ((volatile char *)map)[(size_t)rand_r(&seed) % (length / 4096) * 4096];
        } else syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
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
    printf("thread %ld fit sequences\n", id());
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
    if (!strcmp(mode, "blocked")) return blocked();
    if (!strcmp(mode, "signals")) return signals();
    if (!strcmp(mode, "maps")) return maps();
    if (!strcmp(mode, "short")) { if (!getenv("QUIET")) { ready(); setenv("QUIET", "1", 1); } return short_lived(v[0], v[2], atoi(v[3]), atoi(v[4])); }
    if (!strcmp(mode, "filtered")) need(!filter(), "seccomp");
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
