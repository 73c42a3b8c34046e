/* Files that other processes write while they are mapped here to be read. */
#include "check.h"
#include <time.h>

static const off_t AT = 5 * MIB + 7;
static const char *self;

/* What another process does: one that knows nothing of the library. */
static void foreign_pwrite(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "B", 1, AT) == 1);
}

static void foreign_store(const char *path) {
    int fd = open(path, O_RDWR);
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    at[AT] = 'B';
}

static void foreign_truncate(const char *path) {
    CHECK(truncate(path, 4 * MIB) == 0 && truncate(path, SIZE) == 0);
}

static void foreign_open(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && write(1, "x", 1) == 1);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    foreign_pwrite(path);
}

static pid_t other(const char *what, const char *path) {
    pid_t child = vfork();
    if (child == 0) {
        char *none[] = {NULL};
        execle(self, self, what, path, NULL, none);
        _exit(9);
    }
    return child;
}

static void run_other(const char *what, const char *path) {
    int status;
    pid_t child = other(what, path);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* What is there once the other has ended: at once, or (`soon`) when its traces have been read. */
static int becomes(const volatile uint8_t *at, uint8_t byte, int soon) {
    for (time_t end = time(NULL) + 40; soon && *at != byte && time(NULL) < end;) usleep(1000);
    return *at == byte;
}

static uint8_t *map_to_read(const char *path, int mode) {
    close(file_of(path, SIZE));
    int fd = open(path, mode);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    expect(at, 0, SIZE);
    return at;
}

/* The file is this user's, and nobody has it open to write: whoever does later waits for a moment, and is seen at once. */
static void seen_at_once(const char *path) {
    const char *ways[] = {"foreign_pwrite", "foreign_store"};
    for (int way = 0; way < 2; way++) {
        uint8_t *at = map_to_read(path, O_RDONLY);
        CHECK(becomes(at + AT, pattern(AT), 0));
        run_other(ways[way], path);
        CHECK(becomes(at + AT, 'B', 0));
        expect(at, 0, 5 * MIB);
        CHECK(munmap(at, SIZE) == 0);
    }
    uint8_t *at = map_to_read(path, O_RDONLY);
    run_other("foreign_truncate", path);
    CHECK(at[AT] == 0 && at[MIB + MIB % PAGE] == pattern(MIB));
    CHECK(munmap(at, SIZE) == 0);
    /* And the program itself. */
    at = map_to_read(path, O_RDONLY);
    int fd = open(path, O_RDWR);
    CHECK(pwrite(fd, "C", 1, AT) == 1 && at[AT] == 'C');
}

/* This process has the file open to write: its own writes are no others'. */
static void seen_soon(const char *path) {
    const char *ways[] = {"foreign_pwrite", "foreign_store"};
    for (int way = 0; way < 2; way++) {
        close(file_of(path, SIZE));
        int fd = open(path, O_RDWR);
        uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        for (int round = 0; round < 20; round++) {
            uint8_t byte = (uint8_t)(round + 1);
            CHECK(pwrite(fd, &byte, 1, AT) == 1 && at[AT] == byte);
        }
        run_other(ways[way], path);
        CHECK(becomes(at + AT, 'B', 1));
        CHECK(munmap(at, SIZE) == 0);
        close(fd);
    }
}

/* A user with no privileges and a file of somebody else's. */
static void seen_of_strangers(const char *path) {
    int fd = file_of(path, SIZE);
    CHECK(fchmod(fd, 0644) == 0);
    close(fd);
    int go[2], done[2];
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        int to_read = open(path, O_RDONLY);
        if (getuid() == 0) CHECK(setgid(65534) == 0 && setuid(65534) == 0);
        uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, to_read, 0);
        CHECK(at != MAP_FAILED);
        expect(at, 0, SIZE);
        CHECK(write(done[1], "x", 1) == 1);
        char byte;
        CHECK(read(go[0], &byte, 1) == 1);
        CHECK(becomes(at + AT, 'B', 1));
        _exit(0);
    }
    char byte;
    CHECK(read(done[0], &byte, 1) == 1);
    run_other("foreign_pwrite", path);
    CHECK(write(go[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Somebody has it open to write from before: it is the kernel's. */
static void open_elsewhere(const char *path) {
    close(file_of(path, SIZE));
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1);
        char *none[] = {NULL};
        execle(self, self, "foreign_open", path, NULL, none);
        _exit(9);
    }
    char byte;
    CHECK(read(from[0], &byte, 1) == 1);
    const int modes[] = {O_RDONLY, O_RDWR};
    uint8_t *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, open(path, modes[i]), 0);
        CHECK(at[i] != MAP_FAILED);
        expect(at[i], 0, SIZE);
    }
    CHECK(write(to[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(at[0][AT] == 'B' && at[1][AT] == 'B');
}

static void foreign_map(const char *path) {
    int fd = open(path, O_RDWR);
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && close(fd) == 0 && write(1, "x", 1) == 1);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    at[AT] = 'B';
}

/* Somebody has it mapped to store to it, and no descriptor any more: it is the kernel's. */
static void mapped_elsewhere(const char *path) {
    close(file_of(path, SIZE));
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1);
        char *none[] = {NULL};
        execle(self, self, "foreign_map", path, NULL, none);
        _exit(9);
    }
    char byte;
    CHECK(read(from[0], &byte, 1) == 1);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    CHECK(at != MAP_FAILED);
    expect(at, 0, SIZE);
    CHECK(write(to[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(at[AT] == 'B');
}

static struct test tests[] = {
    {"foreign_map", foreign_map},
    {"mapped_elsewhere", mapped_elsewhere},
    {"foreign_pwrite", foreign_pwrite},
    {"foreign_store", foreign_store},
    {"foreign_truncate", foreign_truncate},
    {"foreign_open", foreign_open},
    {"seen_at_once", seen_at_once},
    {"seen_soon", seen_soon},
    {"seen_of_strangers", seen_of_strangers},
    {"open_elsewhere", open_elsewhere},
};

__attribute__((constructor)) static void begin(void) {
    static char path[4096];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    self = path;
}

RUN_ONE_OF(tests)
