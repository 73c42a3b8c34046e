/* Numbers that become other files: what is remembered of one goes with it. And calls on one file through several descriptors. */
#include "check.h"
#include <dirent.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char *mapped_path;
static char plain_path[4096];
static uint8_t *map;
static int mapped_fd;
static pthread_barrier_t barrier;

/* System calls that nobody sees. */
static long instruction(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

static void close_by_name(int fd) { CHECK(close(fd) == 0); }
static void close_by_number(int fd) { CHECK(syscall(SYS_close, fd) == 0); }
static void close_by_instruction(int fd) { CHECK(instruction(SYS_close, fd, 0, 0, 0) == 0); }
static void close_by_range(int fd) { CHECK(close_range((unsigned)fd, (unsigned)fd, 0) == 0); }
static void close_by_stream(int fd) { CHECK(fclose(fdopen(fd, "r")) == 0); }

static int open_by_name(int fd) { (void)fd; return open(mapped_path, O_RDWR); }
static int open_at(int fd) { (void)fd; return openat(AT_FDCWD, mapped_path, O_RDWR); }
static int open_by_number(int fd) { (void)fd; return (int)syscall(SYS_open, mapped_path, O_RDWR); }
static int open_by_instruction(int fd) { (void)fd; return (int)instruction(SYS_open, (long)mapped_path, O_RDWR, 0, 0); }
static int open_stream(int fd) { (void)fd; return fileno(fopen(mapped_path, "r+")); }
static int copy_anywhere(int fd) { (void)fd; return dup(mapped_fd); }
static int copy_from(int fd) { return fcntl(mapped_fd, F_DUPFD, fd); }
static int copy_to(int fd) { return dup2(mapped_fd, fd); }
static int copy_to_closing(int fd) { return dup3(mapped_fd, fd, O_CLOEXEC); }
static int copy_by_number(int fd) { return (int)syscall(SYS_dup2, mapped_fd, fd); }

static int received(int fd) {
    (void)fd;
    /* Both above the number, which is free. */
    int pair[2], high[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (int i = 0; i < 2; i++) CHECK((high[i] = fcntl(pair[i], F_DUPFD, 100)) >= 100 && close(pair[i]) == 0);
    char byte = 'x';
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct iovec entry = {&byte, 1};
    struct msghdr message = {.msg_iov = &entry, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &mapped_fd, sizeof(int));
    CHECK(sendmsg(high[1], &message, 0) == 1);
    CHECK(recvmsg(high[0], &message, 0) == 1);
    int got;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    CHECK(close(high[0]) == 0 && close(high[1]) == 0);
    return got;
}

/* All that reads sees what was stored just now, and all that is written shows in the map. */
static void expect_mapped(int fd) {
    static unsigned round;
    for (int i = 0; i < 5; i++) {
        round++;
        size_t at = round * 1237 % (SIZE / PAGE) * PAGE + round % PAGE;
        uint8_t value = (uint8_t)round, got = (uint8_t)~value;
        map[at] = value;
        struct iovec entry = {&got, 1};
        switch (i) {
        case 0: CHECK(pread(fd, &got, 1, (off_t)at) == 1); break;
        case 1: CHECK(lseek(fd, (off_t)at, SEEK_SET) == (off_t)at && read(fd, &got, 1) == 1); break;
        case 2: CHECK(preadv(fd, &entry, 1, (off_t)at) == 1); break;
        case 3: CHECK(syscall(SYS_pread64, fd, &got, 1, at) == 1); break;
        case 4: value ^= 0x55, got = value; CHECK(pwrite(fd, &got, 1, (off_t)at) == 1); got = map[at]; break;
        }
        CHECK(got == value);
    }
}

/* A descriptor of the file that nobody maps, used often enough to be remembered. */
static int used(void) {
    int fd = open(plain_path, O_RDWR);
    CHECK(fd >= 0);
    char byte;
    for (int i = 0; i < 3; i++) CHECK(pread(fd, &byte, 1, i) == 1 && byte == 'p' && pwrite(fd, &byte, 1, i) == 1);
    return fd;
}

static void begin(const char *path) {
    mapped_path = path;
    snprintf(plain_path, sizeof plain_path, "%s.plain", path);
    int plain = open(plain_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    char bytes[PAGE];
    memset(bytes, 'p', sizeof bytes);
    CHECK(write(plain, bytes, sizeof bytes) == sizeof bytes && close(plain) == 0);
    mapped_fd = file_of(path, SIZE);
    map = map_all(mapped_fd);
}

static void reused(const char *path) {
    begin(path);
    static void (*const closes[])(int) = {close_by_name, close_by_number, close_by_instruction, close_by_range, close_by_stream};
    static int (*const opens[])(int) = {open_by_name, open_at, open_by_number, open_by_instruction, open_stream,
                                        copy_anywhere, copy_from, copy_to, copy_by_number, received};
    for (size_t by = 0; by < sizeof closes / sizeof *closes; by++)
        for (size_t as = 0; as < sizeof opens / sizeof *opens; as++) {
            /* Both behind our back: not told apart. */
            if (closes[by] == close_by_instruction && opens[as] == open_by_instruction) continue;
            int done = 0;
            /* Another thread may have opened something meanwhile. */
            for (int tries = 0; !done && tries < 100; tries++) {
                int fd = used();
                closes[by](fd);
                int anew = opens[as](fd);
                if ((done = anew == fd)) expect_mapped(anew);
                CHECK(close(anew) == 0);
            }
            CHECK(done);
        }
    static int (*const replaces[])(int) = {copy_to, copy_to_closing, copy_by_number};
    for (size_t as = 0; as < sizeof replaces / sizeof *replaces; as++) {
        int fd = used();
        CHECK(replaces[as](fd) == fd);
        expect_mapped(fd);
        CHECK(close(fd) == 0);
    }
    /* A stream of one file that becomes one of the other. */
    FILE *stream = fopen(plain_path, "r");
    CHECK(stream && fgetc(stream) == 'p');
    CHECK((stream = freopen(mapped_path, "r+", stream)));
    expect_mapped(fileno(stream));
    CHECK(fclose(stream) == 0);
    /* A folder's. */
    int folder = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(fsync(folder) <= 0 && closedir(fdopendir(folder)) == 0);
    CHECK(instruction(SYS_dup2, mapped_fd, folder, 0, 0) == folder);
    expect_mapped(folder);
}

/* A file that comes to be mapped while it is open, and another is mapped all the time. */
static void mapped_later(const char *path) {
    char another[4096];
    snprintf(another, sizeof another, "%s.another", path);
    uint8_t *always = map_all(file_of(another, SIZE));
    expect(always, 0, SIZE);
    begin(path);
    CHECK(munmap(map, SIZE) == 0);
    int other = open(mapped_path, O_RDWR);
    char byte;
    for (int round = 0; round < 20; round++) {
        map = map_all(mapped_fd);
        expect_mapped(other);
        expect_mapped(mapped_fd);
        CHECK(munmap(map, SIZE) == 0);
        for (int i = 0; i < 3; i++) CHECK(pread(other, &byte, 1, i) == 1);
    }
}

static int plain_number;

static void *with_own_table(void *unused) {
    (void)unused;
    CHECK(unshare(CLONE_FILES) == 0);
    CHECK(dup2(mapped_fd, plain_number) == plain_number);
    expect_mapped(plain_number);
    int plain = used();
    CHECK(dup2(plain, plain_number) == plain_number);
    char byte;
    for (int i = 0; i < 3; i++) CHECK(pread(plain_number, &byte, 1, i) == 1 && byte == 'p');
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static int in_child(void *path) {
    char byte;
    if (dup2(open(path, O_RDWR), plain_number) != plain_number) return 1;
    return pread(plain_number, &byte, 1, 0) == 1 ? 0 : 2;
}

/* Other tables: what a number is in one says nothing of another. */
static void tables(const char *path) {
    begin(path);
    plain_number = used();
    pid_t child = fork();
    if (child == 0) _exit(in_child((void *)mapped_path));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char byte;
    CHECK(pread(plain_number, &byte, 1, 0) == 1 && byte == 'p');
    pthread_t thread;
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    int anew = fcntl(mapped_fd, F_DUPFD, 60);
    CHECK(pthread_create(&thread, NULL, with_own_table, NULL) == 0);
    pthread_barrier_wait(&barrier);
    CHECK(pread(plain_number, &byte, 1, 0) == 1 && byte == 'p');
    /* What is this file here is the other one there. */
    CHECK(instruction(SYS_dup2, anew, plain_number, 0, 0) == plain_number);
    expect_mapped(plain_number);
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A child that shares the memory and not the table: it reads the other file at the number of the mapped one. */
static void shared_memory(const char *path) {
    begin(path);
    plain_number = used();
    int status;
    static _Alignas(16) char stack[256 << 10];
    CHECK(dup2(mapped_fd, plain_number) == plain_number);
    pid_t child = clone(in_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, plain_path);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    expect_mapped(plain_number);
}

enum { ROUNDS = 12, BLOCK = 2 * PAGE };
static int reader_fd[2];
static uint8_t times_read[SIZE / BLOCK];

/* Reads what there is at the descriptor's position, block by block, and finds in each page the round that it was stored in. */
static void *reader(void *which) {
    int fd = reader_fd[(size_t)which];
    static _Thread_local uint64_t block[BLOCK / sizeof(uint64_t)];
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        ssize_t got;
        while ((got = read(fd, block, BLOCK)) > 0) {
            CHECK(got == BLOCK);
            CHECK(block[0] == round && block[PAGE / 8] == round && block[1] < SIZE / BLOCK);
            __atomic_fetch_add(&times_read[block[1]], 1, __ATOMIC_RELAXED);
        }
        CHECK(got == 0);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void read_by_two(int first, int second, int expected) {
    reader_fd[0] = first, reader_fd[1] = second;
    CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, reader, (void *)i) == 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t at = 0; at < SIZE; at += PAGE) {
            memcpy(map + at, &round, sizeof round);
            uint64_t number = at / BLOCK;
            if (at % BLOCK == 0) memcpy(map + at + 8, &number, sizeof number);
        }
        memset(times_read, 0, sizeof times_read);
        CHECK(lseek(first, 0, SEEK_SET) == 0 && lseek(second, 0, SEEK_SET) == 0);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        for (size_t i = 0; i < SIZE / BLOCK; i++) CHECK(times_read[i] == expected);
    }
    for (size_t i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_barrier_destroy(&barrier) == 0);
}

/* Two threads read a file that is stored to, through two descriptors: each has all of it. */
static void two_descriptors(const char *path) {
    begin(path);
    int first = open(path, O_RDONLY), second = open(path, O_RDWR);
    read_by_two(first, second, 2);
    read_by_two(first, (int)instruction(SYS_open, (long)path, O_RDONLY, 0, 0), 2);
}

/* And through two with one position: each part of it comes to one of them, as it was stored last. */
static void one_position(const char *path) {
    begin(path);
    int first = open(path, O_RDWR);
    read_by_two(first, first, 1);
    read_by_two(first, dup(first), 1);
    read_by_two(first, fcntl(first, F_DUPFD, 50), 1);
    read_by_two(first, (int)instruction(SYS_dup, first, 0, 0, 0), 1);
}

static struct test tests[] = {
    {"reused", reused},
    {"mapped_later", mapped_later},
    {"tables", tables},
    {"shared_memory", shared_memory},
    {"two_descriptors", two_descriptors},
    {"one_position", one_position},
};

RUN_ONE_OF(tests)
