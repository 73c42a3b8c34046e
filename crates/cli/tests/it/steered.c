// What is done for a program where memory is short: steered CASE FILE. Each page of FILE begins with its number.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
// Seconds that anything may take where there is much else to do.
#define LONG 250
#define CHECK(is_so, ...) do { if (!(is_so)) { fprintf(stderr, __VA_ARGS__); fprintf(stderr, " (line %d)\n", __LINE__); exit(1); } } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static size_t pages;

static volatile uint64_t *map(const char *path, int kind, int access) {
    int file = open(path, O_RDONLY);
    struct stat stat;
    CHECK(file >= 0 && !fstat(file, &stat), "%s: %s", path, strerror(errno));
    void *at = mmap(0, stat.st_size, access, kind, file, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    close(file);
    pages = stat.st_size / PAGE;
    return at;
}

// Whether a mapping's VmFlags have one.
static int has_flag(const volatile void *at, const char *flag) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512], *flags;
    int inside = 0, has = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) inside = from <= (unsigned long)at && (unsigned long)at < to;
        else if (inside && (flags = strstr(line, "VmFlags:")) && strstr(flags, flag)) has = 1;
    }
    fclose(file);
    return has;
}

static uint64_t state = 88172645463325252;
static uint64_t any(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void touch(volatile uint64_t *at, size_t page) {
    CHECK(at[page * PAGE / 8] == page, "page %zu holds another's bytes", page);
}

// Touches at random, until the mapping has a flag or the time is over; whether it has.
static int touch_at_random(volatile uint64_t *at, const char *flag, double seconds) {
    for (double end = now() + seconds; now() < end;) {
        for (int i = 0; i < 20; i++) touch(at, any() % pages);
        if (has_flag(at, flag)) return 1;
    }
    return 0;
}

// Walks forward until the kernel is to read ahead again.
static void walk_until_read_ahead(volatile uint64_t *at) {
    size_t page = 0;
    for (double end = now() + LONG; has_flag(at, " rr ");) {
        CHECK(now() < end, "a walk was not told from touches at random in time");
        for (int i = 0; i < 2000; i++, page = (page + 1) % pages) touch(at, page);
    }
}

static void at_random(volatile uint64_t *at) {
    CHECK(touch_at_random(at, " rr ", LONG), "touches at random were not told from others in time");
    walk_until_read_ahead(at);
}

static void in_child(volatile uint64_t *at) {
    pid_t child = fork();
    if (!child) {
        at_random(at);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child");
}

static void walk(volatile uint64_t *at) {
    for (int round = 0; round < 4; round++)
        for (size_t page = 0; page < pages; page++) {
            touch(at, page);
            CHECK(page % 8192 || !has_flag(at, " rr "), "a walk forward is advised random");
        }
}

// For so long that it is told from other walks. What was done is in the report.
static void backward(volatile uint64_t *at) {
    for (double end = now() + 10; now() < end;)
        for (size_t page = pages; page-- > 0;) touch(at, page);
}

// A loop over one and a quarter memories: at the end of a round its beginning is in memory, which the kernel would have dropped.
static void loop(volatile uint64_t *at) {
    static unsigned char in_memory[1 << 20];
    size_t part = pages * 3 / 4, wanted = part / 3, kept;
    CHECK(!munmap((char *)at + part * PAGE, (pages - part) * PAGE), "munmap");
    double end = now() + LONG;
    do {
        CHECK(now() < end, "nothing of a loop was kept in time");
        for (size_t page = 0; page < part; page++) touch(at, page);
        CHECK(!mincore((void *)at, wanted * PAGE, in_memory), "mincore");
        kept = 0;
        for (size_t page = 0; page < wanted; page++) kept += in_memory[page] & 1;
    } while (kept <= wanted * 9 / 10);
}

// A walk that the program advised random becomes the kernel's to read ahead of.
static void overridden(volatile uint64_t *at) {
    CHECK(!madvise((void *)at, pages * PAGE, MADV_RANDOM), "madvise");
    walk_until_read_ahead(at);
}

// The program's own advice stays.
static void own_advice(volatile uint64_t *at) {
    CHECK(!madvise((void *)at, pages * PAGE, MADV_SEQUENTIAL), "madvise");
    CHECK(!touch_at_random(at, " rr ", 5), "the program's own advice was undone");
    CHECK(has_flag(at, " sr "), "the program's own advice is gone");
}

// A child inherits advice, and its walk ends it.
static void inherited(volatile uint64_t *at) {
    CHECK(touch_at_random(at, " rr ", LONG), "touches at random were not told from others in time");
    pid_t child = fork();
    if (!child) {
        CHECK(has_flag(at, " rr "), "nothing was inherited");
        walk_until_read_ahead(at);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child");
}

// Advice moves with a mapping, and a walk ends it there.
static void moved(volatile uint64_t *at) {
    CHECK(touch_at_random(at, " rr ", LONG), "touches at random were not told from others in time");
    void *behind = mmap((char *)at + pages * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(behind != MAP_FAILED, "mmap: %s", strerror(errno));
    at = mremap((void *)at, pages * PAGE, pages * PAGE + (1 << 20), MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED && has_flag(at, " rr "), "mremap: %s", strerror(errno));
    walk_until_read_ahead(at);
}

// A part of a file, before addresses that are reserved for the next part, stays one with it.
static void grown(const char *path) {
    int file = open(path, O_RDONLY);
    struct stat stat;
    CHECK(file >= 0 && !fstat(file, &stat), "%s: %s", path, strerror(errno));
    size_t half = stat.st_size / 2;
    char *at = mmap(0, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pages = half / PAGE;
    CHECK(mmap(at, half, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == at, "mmap: %s", strerror(errno));
    touch_at_random((void *)at, " rr ", 5);
    CHECK(mmap(at + half, half, PROT_READ, MAP_SHARED | MAP_FIXED, file, half) == at + half, "mmap: %s", strerror(errno));
    CHECK(mremap(at, 2 * half, half, 0) == at, "mremap: %s", strerror(errno));
}

// A child, touched at random as well, that outlives the program: what lies on its mapping.
static void left(volatile uint64_t *at) {
    CHECK(touch_at_random(at, " rr ", LONG), "touches at random were not told from others in time");
    pid_t parent = getpid();
    if (fork()) {
        touch_at_random(at, " none ", 3);
        return;
    }
    for (double end = now() + LONG; getppid() == parent;) {
        CHECK(now() < end, "the parent has not ended in time");
        touch_at_random(at, " none ", 0.1);
    }
    for (double end = now() + 5; has_flag(at, " rr ") && now() < end;) usleep(10000);
    fprintf(stderr, has_flag(at, " rr ") ? "left behind\n" : "taken back\n");
    _exit(0);
}

// Advice that the program gives after ours stays.
static void later_advice(volatile uint64_t *at) {
    at_random(at);
    own_advice(at);
}

int main(int count, char **words) {
    CHECK(count == 3, "steered CASE FILE");
    char *name = words[1];
    if (!strcmp(name, "grown")) return grown(words[2]), 0;
    int is_private = !strcmp(name, "private");
    volatile uint64_t *at =
        map(words[2], is_private ? MAP_PRIVATE : MAP_SHARED, is_private ? PROT_READ | PROT_WRITE : PROT_READ);
    if (!strcmp(name, "random") || is_private) at_random(at);
    else if (!strcmp(name, "child")) in_child(at);
    else if (!strcmp(name, "walk")) walk(at);
    else if (!strcmp(name, "backward")) backward(at);
    else if (!strcmp(name, "loop")) loop(at);
    else if (!strcmp(name, "overridden")) overridden(at);
    else if (!strcmp(name, "own_advice")) own_advice(at);
    else if (!strcmp(name, "later_advice")) later_advice(at);
    else if (!strcmp(name, "inherited")) inherited(at);
    else if (!strcmp(name, "moved")) moved(at);
    else if (!strcmp(name, "left")) left(at);
    else CHECK(0, "no case %s", name);
    return 0;
}
