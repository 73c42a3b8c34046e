// What a program sees of the thread that steers it, and what that does: steered CASE FILE. Each page of FILE begins with its number.
#define _GNU_SOURCE
#include <dirent.h>
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

// The number of the thread that steers, or 0.
static int watcher(void) {
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *one; (one = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", one->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fgets(name, sizeof name, file) && !strcmp(name, "fastmap-steer\n")) found = atoi(one->d_name);
        fclose(file);
    }
    closedir(tasks);
    return found;
}

// Waits for a minute at most until there is one, or none.
static int await_watcher(int wanted) {
    for (double end = now() + 60; now() < end; usleep(10000))
        if (!watcher() == !wanted) return 1;
    return 0;
}

static volatile uint64_t *map(const char *path, size_t *pages, int kind, int access) {
    int file = open(path, O_RDONLY);
    struct stat stat;
    CHECK(file >= 0 && !fstat(file, &stat), "%s: %s", path, strerror(errno));
    void *at = mmap(0, stat.st_size, access, kind, file, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    close(file);
    *pages = stat.st_size / PAGE;
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
static int touch_at_random(volatile uint64_t *at, size_t pages, const char *flag, double seconds) {
    for (double end = now() + seconds; now() < end;) {
        for (int i = 0; i < 200; i++) touch(at, any() % pages);
        if (has_flag(at, flag)) return 1;
    }
    return 0;
}

static void small(void) {
    usleep(300000);
    CHECK(!watcher(), "a program that is not to be watched has a watcher");
}

static void small_map(char *path) {
    size_t pages;
    map(path, &pages, MAP_SHARED, PROT_READ);
    small();
}

// Where no thread of its own may steer it, nor its child.
static void touched(char *path) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    pid_t child = fork();
    for (double end = now() + 2; now() < end;)
        for (int i = 0; i < 20; i++) touch(at, any() % pages);
    small();
    if (!child) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child");
}

static void watched(char *path) {
    size_t pages;
    errno = 77;
    map(path, &pages, MAP_SHARED, PROT_READ);
    CHECK(await_watcher(1), "a program that maps a large file is not watched");
    char name[300], line[256];
    snprintf(name, sizeof name, "/proc/self/task/%d/status", watcher());
    FILE *file = fopen(name, "r");
    int blocked = 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "SigBlk:", 7)) blocked = strtoull(line + 7, 0, 16) >> 1 & 1;
    fclose(file);
    CHECK(blocked, "a signal can be delivered to the watcher");
    CHECK(wait(0) == -1 && errno == ECHILD, "the watcher is a child");
    // A pipe that only the watcher could hold open has an end.
    int ends[2];
    char byte;
    CHECK(!pipe(ends), "pipe");
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 0, "a pipe has no end");
    close(ends[0]);
    int lowest = dup(0);
    CHECK(lowest == 3, "the program's descriptors are taken: %d", lowest);
    pid_t child = fork();
    if (!child) _exit(!await_watcher(1));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child of fork is not watched");
    child = fork();
    if (!child) execl("/proc/self/exe", "steered", "small", path, (char *)0);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a program executed in a child is watched");
    child = fork();
    if (!child) abort();
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "abort");
}

static void mapped(char *path) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    for (size_t page = 0; page < pages; page++) touch(at, page);
    CHECK(await_watcher(1), "not watched");
}

// A watcher must not keep what the program gives up.
static void rights(char *path) {
    size_t pages;
    map(path, &pages, MAP_SHARED, PROT_READ);
    CHECK(await_watcher(1), "not watched");
    CHECK(!setgid(65534) && !setuid(65534), "setuid: %s", strerror(errno));
    CHECK(await_watcher(0), "the watcher has rights that the program has given up");
}

static void at_random(char *path, int kind, int access) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, kind, access);
    CHECK(touch_at_random(at, pages, " rr ", LONG), "touches at random were not told from others in time");
    // A walk sets in: the kernel is to read ahead again.
    size_t page = 0;
    for (double end = now() + LONG; has_flag(at, " rr ");) {
        CHECK(now() < end, "a walk was not told from touches at random in time");
        for (int i = 0; i < 2000; i++, page = (page + 1) % pages) touch(at, page);
    }
}

static void walk(char *path) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    for (int round = 0; round < 4; round++)
        for (size_t page = 0; page < pages; page++) {
            touch(at, page);
            CHECK(page % 8192 || !has_flag(at, " rr "), "a walk forward is advised random");
        }
}

// Walks backward until that is advised for, and a moment more; then forward.
static void backward(char *path) {
    size_t pages, count = 0;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    double end = now() + LONG, enough = 0;
    while (!enough || now() < enough)
        for (size_t page = pages; page-- > 0;) {
            touch(at, page);
            if (++count % 2000) continue;
            if (!enough && has_flag(at, " hg ")) enough = now() + 1;
            // What was done is written down a moment later.
            if (enough && now() > enough) break;
            CHECK(now() < end, "nothing was advised in time");
        }
    for (size_t page = 0; has_flag(at, " hg ");) {
        CHECK(now() < end, "a walk forward was not told from one backward in time");
        for (int i = 0; i < 2000; i++, page = (page + 1) % pages) touch(at, page);
    }
}

// A loop over one and a quarter memories: at the end of a round its beginning is in memory, which the kernel would have dropped.
static void loop(char *path) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    static unsigned char in_memory[1 << 20];
    size_t part = pages * 3 / 4, wanted = part / 3;
    CHECK(!munmap((char *)at + part * PAGE, (pages - part) * PAGE), "munmap");
    for (double end = now() + LONG;;) {
        CHECK(now() < end, "nothing of a loop was kept in time");
        for (size_t page = 0; page < part; page++) touch(at, page);
        CHECK(!mincore((void *)at, wanted * PAGE, in_memory), "mincore");
        size_t kept = 0;
        for (size_t page = 0; page < wanted; page++) kept += in_memory[page] & 1;
        if (kept > wanted * 9 / 10) return;
    }
}

// A walk that the program advised random becomes the kernel's to read ahead of.
static void overridden(char *path) {
    size_t pages, page = 0;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    CHECK(!madvise((void *)at, pages * PAGE, MADV_RANDOM), "madvise");
    for (double end = now() + LONG; has_flag(at, " rr ");) {
        CHECK(now() < end, "wrong advice stays");
        for (int i = 0; i < 2000; i++, page = (page + 1) % pages) touch(at, page);
    }
}

// The program's own advice stays.
static void own_advice(char *path) {
    size_t pages;
    volatile uint64_t *at = map(path, &pages, MAP_SHARED, PROT_READ);
    CHECK(!madvise((void *)at, pages * PAGE, MADV_SEQUENTIAL), "madvise");
    CHECK(!touch_at_random(at, pages, " rr ", 5), "the program's own advice was undone");
    CHECK(has_flag(at, " sr "), "the program's own advice is gone");
}

int main(int count, char **words) {
    CHECK(count == 3, "steered CASE FILE");
    char *name = words[1], *path = words[2];
    if (!strcmp(name, "small")) small();
    else if (!strcmp(name, "watched")) watched(path);
    else if (!strcmp(name, "small_map")) small_map(path);
    else if (!strcmp(name, "mapped")) mapped(path);
    else if (!strcmp(name, "touched")) touched(path);
    else if (!strcmp(name, "rights")) rights(path);
    else if (!strcmp(name, "random")) at_random(path, MAP_SHARED, PROT_READ);
    else if (!strcmp(name, "private")) at_random(path, MAP_PRIVATE, PROT_READ | PROT_WRITE);
    else if (!strcmp(name, "walk")) walk(path);
    else if (!strcmp(name, "backward")) backward(path);
    else if (!strcmp(name, "loop")) loop(path);
    else if (!strcmp(name, "overridden")) overridden(path);
    else if (!strcmp(name, "own_advice")) own_advice(path);
    else CHECK(0, "no case %s", name);
    return 0;
}
