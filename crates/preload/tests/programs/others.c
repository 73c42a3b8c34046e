/* Files that other processes open and map while they are mapped here: to be read, and to be stored to. */
#include "check.h"
#include <stdatomic.h>
#include <sys/file.h>

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
        CHECK(*(volatile uint8_t *)(at + AT) == pattern(AT));
        run_other(ways[way], path);
        CHECK(*(volatile uint8_t *)(at + AT) == 'B');
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

/* This process has the file open to write: there is no lease. */
static void open_here(const char *path) {
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
        CHECK(*(volatile uint8_t *)(at + AT) == 'B');
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
        CHECK(*(volatile uint8_t *)(at + AT) == 'B');
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

/* With the library, if this process has it, and a cache of that size; or without. */
static pid_t start(const char *what, const char *path, const char *cache) {
    CHECK(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
    char library[4096], budget[64];
    snprintf(library, sizeof library, "LD_PRELOAD=%s", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "");
    snprintf(budget, sizeof budget, "FASTMAP_CACHE=%s", cache ? cache : "");
    char *with[] = {library, budget, "FASTMAP_RISK_STORES=1", "FASTMAP_OWN=*", NULL}, *without[] = {NULL};
    pid_t child = vfork();
    if (child == 0) {
        dup2(go[0], 0), dup2(ready[1], 1);
        execle(self, self, what, path, NULL, cache && getenv("LD_PRELOAD") ? with : without);
        _exit(9);
    }
    CHECK(child > 0 && close(go[0]) == 0 && close(ready[1]) == 0);
    return child;
}

/* Stores beside the first, if it may map the file. */
static void second(const char *path) {
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED, open(path, O_RDWR), 0);
    if (at == MAP_FAILED) _exit(errno == EAGAIN ? 7 : 8);
    CHECK(has_all(at, 0, 'A'));
    store_all(at, 100, 'B');
}

static int end_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(close(go[1]) == 0 && close(ready[0]) == 0);
    return WEXITSTATUS(status);
}

/* A file that only this program uses: another one that says the same is refused while this one has it, and misses nothing afterwards. */
static void one_at_a_time(const char *path) {
    close(file_of(path, SIZE));
    uint8_t *at = map_all(open(path, O_RDWR | O_CLOEXEC));
    store_all(at, 0, 'A');
    CHECK(end_of(start("second", path, "1MiB")) == (kind_at(at) == 's' ? 0 : 7));
    store_all(at, 0, 'A');
    CHECK(munmap(at, SIZE) == 0);
    CHECK(end_of(start("second", path, "1MiB")) == 0);
    for (int i = 0; i < 2; i++) expect_all_in_file(path, (size_t)i * 100, "AB"[i]);
}

/* Stores to each page, and is killed at once. */
static void dies(const char *path) {
    volatile uint8_t *at = map_all(open(path, O_RDWR));
    uint8_t next = at[1] + 1;
    for (size_t page = 0; page < SIZE; page += 4096) at[page + 1] = next;
    raise(SIGKILL);
}

/* Who opens or locks the file when a program that stored to it has been killed finds all of it, as with the kernel's mappings. */
static void killed_before(const char *path) {
    close(file_of(path, SIZE));
    uint8_t before, byte;
    int early = open(path, O_RDWR | O_CLOEXEC), status;
    CHECK(pread(early, &before, 1, 1) == 1);
    for (int round = 0; round < 8; round++) {
        pid_t child = start("dies", path, "16MiB");
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(close(go[1]) == 0 && close(ready[0]) == 0);
        struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
        FILE *stream = NULL;
        int fd = early;
        switch (round % 4) {
        case 0: fd = open(path, O_RDONLY | O_CLOEXEC); break;
        case 1: CHECK(flock(fd, LOCK_EX) == 0 && flock(fd, LOCK_UN) == 0); break;
        case 2: CHECK(fcntl(fd, F_SETLKW, &lock) == 0); break;
        default:
            stream = fopen(path, "r");
            CHECK(stream != NULL);
            fd = fileno(stream);
        }
        for (size_t page = 0; page < SIZE; page += 4096)
            CHECK(pread(fd, &byte, 1, (off_t)page + 1) == 1 && byte == (uint8_t)(before + round + 1));
        if (fd == early) continue;
        CHECK((stream ? fclose(stream) : close(fd)) == 0);
    }
}

/* A child made by fork(2) is of this program: what it maps anew agrees with its parent's. */
static void child_maps_anew(const char *path) {
    close(file_of(path, SIZE));
    uint8_t *at = map_all(open(path, O_RDWR));
    int told[2];
    store_all(at, 0, 'A');
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        CHECK(read(told[0], &byte, 1) == 1);
        uint8_t *own = map_all(open(path, O_RDWR));
        CHECK(has_all(own, 0, 'A') && has_all(own, 100, 'B'));
        store_all(own, 200, 'C');
        _exit(0);
    }
    store_all(at, 100, 'B');
    CHECK(write(told[1], "x", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(has_all(at, 0, 'A') && has_all(at, 100, 'B') && has_all(at, 200, 'C'));
}

static void opener(const char *path) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    say_ready_and_wait();
    uint8_t *at = map_all(fd);
    CHECK(has_all(at, 0, 'A'));
    store_all(at, 100, 'B');
}

/* A file that nobody is said to own: it is stored to by two, which agree at once. */
static void shared(const char *path) {
    close(file_of(path, SIZE));
    uint8_t *at = map_all(open(path, O_RDWR | O_CLOEXEC));
    pid_t child = start("opener", path, NULL);
    store_all(at, 0, 'A');
    await_ready();
    say_go();
    CHECK(end_of(child) == 0 && has_all(at, 100, 'B') && kind_at(at) == 's');
}

/* Opens without waiting fail while the lease is given back, and succeed soon. */
static void impatient(const char *path) {
    int fd, tries = 0;
    while ((fd = open(path, O_RDWR | O_NONBLOCK)) < 0) {
        CHECK(errno == EAGAIN && ++tries < 20000);
        usleep(1000);
    }
    CHECK(pwrite(fd, "B", 1, AT) == 1);
}

static void opened_without_waiting(const char *path) {
    uint8_t *at = map_to_read(path, O_RDONLY);
    run_other("impatient", path);
    CHECK(*(volatile uint8_t *)(at + AT) == 'B');
    expect(at, 0, 5 * MIB);
}

/* Many threads read while a plain writer comes again and again: what was there when its open returned, or newer. */
static volatile uint8_t *volatile watched;
static atomic_int at_least, is_over;

static void *reads(void *a) {
    unsigned seed = (unsigned)(uintptr_t)a;
    while (!is_over) {
        int least = at_least;
        size_t page = (size_t)rand_r(&seed) % (SIZE / PAGE);
        CHECK(watched[page * PAGE] >= least);
    }
    return NULL;
}

static void writes_round(const char *path) {
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    CHECK(fd >= 0 && pread(fd, &byte, 1, 0) == 1);
    byte++;
    for (size_t at = 0; at < SIZE; at += PAGE) CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
}

static void never_stale(const char *path) {
    int fd = file_of(path, SIZE);
    for (size_t at = 0; at < SIZE; at += PAGE) CHECK(pwrite(fd, "", 1, (off_t)at) == 1);
    close(fd);
    for (int round = 1; round <= 12; round++) {
        fd = open(path, O_RDONLY);
        watched = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(watched != MAP_FAILED && close(fd) == 0);
        pthread_t threads[3];
        is_over = 0;
        for (uintptr_t i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, reads, (void *)(i + 1)) == 0);
        usleep(round % 3 * 3000);
        run_other("writes_round", path);
        at_least = round;
        usleep(3000);
        is_over = 1;
        for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        for (size_t at = 0; at < SIZE; at += PAGE) CHECK(watched[at] == round);
        CHECK(munmap((void *)watched, SIZE) == 0);
    }
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
    {"second", second},
    {"one_at_a_time", one_at_a_time},
    {"child_maps_anew", child_maps_anew},
    {"dies", dies},
    {"killed_before", killed_before},
    {"opener", opener},
    {"shared", shared},
    {"impatient", impatient},
    {"opened_without_waiting", opened_without_waiting},
    {"writes_round", writes_round},
    {"never_stale", never_stale},
    {"foreign_map", foreign_map},
    {"mapped_elsewhere", mapped_elsewhere},
    {"foreign_pwrite", foreign_pwrite},
    {"foreign_store", foreign_store},
    {"foreign_truncate", foreign_truncate},
    {"foreign_open", foreign_open},
    {"seen_at_once", seen_at_once},
    {"open_here", open_here},
    {"seen_of_strangers", seen_of_strangers},
    {"open_elsewhere", open_elsewhere},
};

__attribute__((constructor)) static void begin(void) {
    static char path[4096];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    self = path;
}

RUN_ONE_OF(tests)
