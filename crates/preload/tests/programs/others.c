/* Files that other processes open and map while they are mapped here: to be read, and to be stored to. */
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

/* What A has stored, and what B stores beside it, to the same pages. */
enum { STORES = 64 };
static size_t place_of(int store) { return (size_t)store * 30 * PAGE + (size_t)store; }

static void store_all(volatile uint8_t *at, size_t beside, uint8_t byte) {
    for (int i = 0; i < STORES; i++) at[place_of(i) + beside] = byte;
}

static int has_all(const volatile uint8_t *at, size_t beside, uint8_t byte) {
    int found = 0;
    for (int i = 0; i < STORES; i++) found += at[place_of(i) + beside] == byte;
    return found == STORES;
}

static void expect_all_in_file(const char *path, size_t beside, uint8_t byte) {
    uint8_t found;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < STORES; i++)
        CHECK(pread(fd, &found, 1, (off_t)(place_of(i) + beside)) == 1 && found == byte);
    CHECK(close(fd) == 0);
}

/* Another process, which says when it is ready and waits to be told to go on. */
static int go[2], ready[2];

static void await_ready(void) {
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
}

static void say_go(void) { CHECK(write(go[1], "x", 1) == 1); }

static void say_ready_and_wait(void) {
    char byte;
    CHECK(write(1, "x", 1) == 1 && read(0, &byte, 1) == 1);
}

/* With the library, if this process has it, and a cache of that size (`auto`: it begins with kernel mappings); or without. */
static pid_t start(const char *what, const char *path, const char *cache) {
    CHECK(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
    char library[4096], budget[64];
    snprintf(library, sizeof library, "LD_PRELOAD=%s", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "");
    snprintf(budget, sizeof budget, "FASTMAP_CACHE=%s", cache ? cache : "");
    char *with[] = {library, budget, "FASTMAP_RISK_STORES=1", NULL}, *without[] = {NULL};
    pid_t child = vfork();
    if (child == 0) {
        dup2(go[0], 0), dup2(ready[1], 1);
        execle(self, self, what, path, NULL, cache && getenv("LD_PRELOAD") ? with : without);
        _exit(9);
    }
    CHECK(child > 0 && close(go[0]) == 0 && close(ready[1]) == 0);
    return child;
}

static void await_end(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(go[1]) == 0 && close(ready[0]) == 0);
}

/* Knows nothing of the library, opens the file late, and maps it when it is told to. */
static void late_writer(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    say_ready_and_wait();
    uint8_t *at = map_all(fd);
    CHECK(has_all(at, 0, 'A'));
    store_all(at, 100, 'B');
}

/* Its own stores are seen by the other once that has opened the file and time has passed, the other's are at once, and none is lost. */
static void opened_late(const char *path) {
    close(file_of(path, SIZE));
    uint8_t *at = map_all(open(path, O_RDWR | O_CLOEXEC));
    store_all(at, 0, 'A');
    pid_t child = start("late_writer", path, NULL);
    await_ready();
    for (time_t end = time(NULL) + 20; kind_at(at) != 's' && time(NULL) < end;) usleep(1000);
    CHECK(kind_at(at) == 's');
    store_all(at, 200, 'C');
    say_go();
    await_end(child);
    CHECK(has_all(at, 100, 'B'));
    store_all(at, 300, 'D');
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    for (int i = 0; i < 4; i++) expect_all_in_file(path, (size_t)i * 100, "ABCD"[i]);
}

static void late_reader(const char *path) {
    say_ready_and_wait();
    int fd = open(path, O_RDONLY);
    for (time_t end = time(NULL) + 20;; usleep(1000)) {
        uint8_t found;
        int seen = 0;
        for (int i = 0; i < STORES; i++) {
            CHECK(pread(fd, &found, 1, (off_t)place_of(i)) == 1);
            seen += found == 'A';
        }
        if (seen == STORES) return;
        CHECK(time(NULL) < end);
    }
}

static void holder(const char *path) {
    (void)path;
    say_ready_and_wait();
}

/* Who only reads finds what was stored before, long before it is written back by itself; the file stays where it is. A copy of this process's
 * descriptor, which the other has with its birth, is not one that it opens to write. */
static void read_late(const char *path) {
    close(file_of(path, SIZE));
    int copy = open(path, O_RDWR), fd = open(path, O_RDWR);
    int is_known = syscall(SYS_kcmp, getpid(), getpid(), 0, fd, fd) == 0;
    for (int i = 0; !is_known && i < 2; i++) CHECK(fcntl(i ? fd : copy, F_SETFD, FD_CLOEXEC) == 0);
    uint8_t *at = map_all(fd);
    /* One is all that is left of it, and closed. */
    pid_t child = start("holder", path, NULL);
    await_ready();
    CHECK(close(copy) == 0);
    say_go();
    await_end(child);
    for (int round = 0; round < 3; round++) {
        store_all(at, 0, 'o');
        pid_t reader = start("late_reader", path, NULL);
        await_ready();
        store_all(at, 0, 'A');
        say_go();
        await_end(reader);
    }
    CHECK(!has_budget() || kind_at(at) == 0);
}

/* With the library it waits until the file is the kernel's: nothing is missed. */
static void late_mapper(const char *path) {
    int is_inherited = strncmp(path, "descriptor ", 11) == 0;
    uint8_t *at = map_all(is_inherited ? atoi(path + 11) : open(path, O_RDWR));
    CHECK(has_all(at, 0, 'A'));
    store_all(at, 100, 'B');
}

static void mapped_late(const char *path) {
    const char *caches[] = {"1MiB", "auto"};
    for (int round = 0; round < 12; round++) {
        int fd = file_of(path, SIZE), is_inherited = round % 4 >= 2;
        if (!is_inherited) CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
        char name[64];
        snprintf(name, sizeof name, "descriptor %d", fd);
        uint8_t *at = map_all(fd);
        store_all(at, 0, 'A');
        await_end(start("late_mapper", is_inherited ? name : path, caches[round % 2]));
        CHECK(has_all(at, 100, 'B'));
        store_all(at, 200, 'C');
        CHECK(msync(at, SIZE, MS_SYNC) == 0);
        for (int i = 0; i < 3; i++) expect_all_in_file(path, (size_t)i * 100, "ABC"[i]);
        CHECK(munmap(at, SIZE) == 0 && close(fd) == 0 && unlink(path) == 0);
    }
}

/* Looks, in its mapping, for what the other stores after it was mapped. */
static void early_reader(const char *path) {
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
    CHECK(at != MAP_FAILED);
    say_ready_and_wait();
    CHECK(has_all(at, 0, 'A'));
}

/* Somebody has it mapped from before: they agree at once. */
static void mapped_before(const char *path) {
    close(file_of(path, SIZE));
    pid_t child = start("early_reader", path, NULL);
    await_ready();
    uint8_t *at = map_all(open(path, O_RDWR | O_CLOEXEC));
    store_all(at, 0, 'A');
    CHECK(kind_at(at) == 's');
    say_go();
    await_end(child);
}

/* The same of a mapping that may be stored to later only. */
static void protected_late(const char *path) {
    close(file_of(path, SIZE));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    pid_t child = start("early_reader", path, NULL);
    await_ready();
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && mprotect(at, SIZE, RW) == 0);
    store_all(at, 0, 'A');
    say_go();
    await_end(child);
}

/* Two files, with nobody else. */
static void two_files(const char *path) {
    char other[4096];
    snprintf(other, sizeof other, "%s.2", path);
    store_all(map_all(file_of(path, SIZE)), 0, 'A');
    store_all(map_all(file_of(other, SIZE)), 0, 'A');
}

static struct test tests[] = {
    {"two_files", two_files},
    {"late_writer", late_writer},
    {"opened_late", opened_late},
    {"late_reader", late_reader},
    {"holder", holder},
    {"read_late", read_late},
    {"late_mapper", late_mapper},
    {"mapped_late", mapped_late},
    {"early_reader", early_reader},
    {"mapped_before", mapped_before},
    {"protected_late", protected_late},
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
