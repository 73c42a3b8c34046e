/* A program that knows nothing of FastMap: it maps a file, stores to pages and calls msync.
 *
 *   store flush FILE ROUNDS   stores to every page and flushes them all; then ROUNDS times stores to one page and flushes that
 *                             page, between two marks
 *   store cut FILE            the same until somebody cuts the power, with a line on standard output after each flush
 *   store forget FILE ROUNDS  as many stores, and no flush
 *   store look FILE ROUND     reads the file: is everything there that was stored up to ROUND?
 *
 * Prints `fact NAME VALUE`; ticks are the time stamp counter's, for one flush. A mark is a SIGURG with the page's address,
 * which nobody hears but a debugger, and a line in the kernel's trace.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef FASTMAP
/* The same, by a program that does know FastMap. */
#include "fastmap.h"
#define mmap fm_mmap
#define msync fm_msync
#define munmap fm_munmap
#endif

enum { PAGE = 4096, WORDS = PAGE / 8 };

static int trace;

static pid_t self;

static void mark(void *page) {
    /* sigqueue(3) would ask for the process and the user each time. */
    siginfo_t info = {.si_code = SI_QUEUE};
    info.si_value.sival_ptr = page;
    syscall(SYS_rt_sigqueueinfo, self, SIGURG, &info);
}

static void note(const char *name) {
    if (trace >= 0 && write(trace, name, strlen(name)) < 0)
        err(1, "trace_marker");
}

/* Which page a round stores to. */
static size_t page_of(uint64_t round, size_t pages) {
    return (round * 0x9e3779b97f4a7c15 >> 33) % pages;
}

/* A page of the round's number, all of it. */
static void store(uint64_t *page, uint64_t round) {
    for (int word = 0; word < WORDS; word++)
        page[word] = round;
}

static void flush(void *start, size_t length) {
    if (msync(start, length, MS_SYNC) != 0)
        err(1, "msync");
}

/* Whether the kernel keeps the file's blocks durable at every fault: VM_SYNC in the mapping's flags. */
static int is_sync(const void *map) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[4096];
    int here = 0, sync = 0;
    unsigned long start, end;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = (uintptr_t)map >= start && (uintptr_t)map < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            sync = strstr(line, " sf") != NULL;
    }
    return sync;
}

static void look(const char *file, uint64_t flushed, uint64_t *map, size_t pages) {
    uint64_t *expected = calloc(pages, sizeof *expected);
    long checked = 0, lost = 0;
    for (uint64_t round = 1; round <= flushed; round++)
        expected[page_of(round, pages)] = round;
    for (size_t page = 0; page < pages; page++)
        for (int word = 0; word < WORDS && expected[page] != 0; word++) {
            /* A later round may have come this far, or not. */
            uint64_t found = map[page * WORDS + word];
            int there = found == expected[page] || (found > flushed && page_of(found, pages) == page);
            checked += sizeof found;
            lost += there ? 0 : sizeof found;
        }
    printf("fact %s_checked %ld\nfact %s_lost %ld\n", file, checked, file, lost);
}

int main(int argc, char **argv) {
    if (argc < 3)
        errx(2, "usage: store flush|cut|forget|look FILE [ROUNDS]");
    const char *what = argv[1], *file = argv[2], *name = strrchr(file, '/') + 1;
    uint64_t rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0)
        err(1, "%s", file);
    uint64_t ticks = 0;
    size_t length = status.st_size, pages = length / PAGE;
    uint64_t *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        err(1, "%s: mmap", file);
    self = getpid();
    trace = open("/sys/kernel/tracing/trace_marker", O_WRONLY | O_CLOEXEC);

    if (strcmp(what, "look") == 0) {
        look(name, rounds, map, pages);
    } else if (strcmp(what, "forget") == 0) {
        for (uint64_t round = 1; round <= rounds; round++)
            store(map + page_of(round, pages) * WORDS, round);
        printf("forgotten\n");
        fflush(stdout);
        pause();
    } else if (strcmp(what, "cut") == 0) {
        for (uint64_t round = 1; round <= rounds; round++) {
            uint64_t *page = map + page_of(round, pages) * WORDS;
            store(page, round);
            flush(page, PAGE);
            printf("flushed %lu\n", round);
            fflush(stdout);
        }
    } else if (strcmp(what, "flush") == 0) {
        for (size_t page = 0; page < pages; page++)
            store(map + page * WORDS, UINT64_MAX);
        flush(map, length);
        for (uint64_t round = 1; round <= rounds; round++) {
            uint64_t *page = map + page_of(round, pages) * WORDS;
            store(page, round);
            note("flush\n");
            mark(page);
            uint64_t before = __builtin_ia32_rdtsc();
            flush(page, PAGE);
            ticks += __builtin_ia32_rdtsc() - before;
            mark(page);
            note("flushed\n");
        }
        printf("fact map_sync %d\n", is_sync(map));
        if (rounds > 0)
            printf("fact ticks %lu\n", ticks / rounds);
    } else {
        errx(2, "%s: no such work", what);
    }
    return munmap(map, length);
}
