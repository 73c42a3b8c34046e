/* Every call works whoever serves maps, and says the same.
 *
 *     whoever FOLDER kernel|engine      by default; or with a capacity given
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fastmap.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, PAGES = 1500, BYTES = PAGE * PAGES, RW = PROT_READ | PROT_WRITE };

static int by_name;

static char folder[PATH_MAX];

static int make(const char *name) {
    static char bytes[BYTES];
    for (int i = 0; i < PAGES; i++)
        memset(bytes + i * PAGE, 'a' + i % 26, PAGE);
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, bytes, BYTES) != BYTES)
        abort();
    return fd;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

static void every_call(void) {
    int fd = make("calls");
    struct fm_cache *none = NULL;
    char *a = fm_mmap_in(none, NULL, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(a != MAP_FAILED);
    CHECK(fm_is_cached(a, BYTES) == by_name);
    unsigned char there[PAGES];
    char buffer[3 * PAGE], byte;
    for (int round = 0; round < 2; round++) {
        char mark = (char)('A' + round);
        int page = 20 + round * 30;
        CHECK(a[page * PAGE] == 'a' + page % 26);
        a[page * PAGE] = mark;
        CHECK(fm_write(a + page * PAGE + 1, &mark, 1) == 0 && fm_read(a + page * PAGE, buffer, 3) == 0);
        CHECK(buffer[0] == mark && buffer[1] == mark && buffer[2] == 'a' + page % 26);
        CHECK(fm_msync(a, BYTES, MS_SYNC) == 0 && pread(fd, &byte, 1, page * PAGE) == 1 && byte == mark);
        CHECK(fm_msync(a + page * PAGE, PAGE, MS_ASYNC) == 0 && FAILS(fm_msync(a + 1, PAGE, MS_SYNC), EINVAL));
        CHECK(fm_madvise(a, BYTES, MADV_RANDOM) == 0 && fm_madvise(a, BYTES, MADV_NORMAL) == 0);
        CHECK(fm_madvise(a, BYTES, FM_MADV_BACKWARD) == 0 && fm_madvise(a + page * PAGE, PAGE, MADV_DONTNEED) == 0);
        CHECK(FAILS(fm_madvise(a, BYTES, 12345), EINVAL) && a[page * PAGE + 1] == mark);
        struct fm_range ranges[] = {{a + 700 * PAGE, PAGE}, {a + 900 * PAGE + 5, 2 * PAGE}};
        CHECK(fm_prefetch(ranges, 2) >= 0 && fm_prefetch_wait(ranges, 2) == 0);
        CHECK(fm_mincore(a, BYTES, there) == 0 && fm_set_readahead(a, 1 << 20) == 0);
        /* System calls may have what is pinned, whoever has it, all the while. */
        CHECK(fm_pin(a + page * PAGE + 7, 2 * PAGE, FM_PIN_WRITE) == 0);
        for (int i = 0; i < 40; i++) {
            CHECK(pread(fd, a + page * PAGE + 7, 2 * PAGE, 1000 * PAGE) == 2 * PAGE && fm_is_cached(a, BYTES) == by_name);
            nap();
        }
        CHECK(fm_unpin(a + page * PAGE + 7, 2 * PAGE, FM_PIN_WRITE) == 0 && FAILS(fm_unpin(a, PAGE, 0), EINVAL));
        CHECK(a[page * PAGE + 7] == 'a' + 1000 % 26 && a[page * PAGE + 6 + PAGE] == 'a' + 1000 % 26);
        CHECK(fm_mprotect(a, BYTES, PROT_READ) == 0 && FAILS(fm_write(a, "q", 1), EFAULT));
        CHECK(fm_mprotect(a, BYTES, RW) == 0 && fm_write(a + 5, "q", 1) == 0 && a[5] == 'q');
        CHECK(fm_synchronise(a, BYTES) == 0);
    }
    /* It grows, perhaps elsewhere; a part of it goes. */
    CHECK(ftruncate(fd, BYTES + 100 * PAGE) == 0);
    a = fm_mremap(a, BYTES, BYTES + 100 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(a != MAP_FAILED && a[5] == 'q' && a[BYTES + PAGE] == 0);
    a[BYTES + PAGE] = 'g';
    CHECK(fm_munmap(a + 10 * PAGE, PAGE) == 0 && FAILS(fm_read(a + 10 * PAGE, &byte, 1), EFAULT));
    CHECK(FAILS(fm_msync(a, BYTES, MS_SYNC), ENOMEM) && a[11 * PAGE] == 'a' + 11);
    CHECK(fm_munmap(a, BYTES + 100 * PAGE) == 0 && pread(fd, &byte, 1, BYTES + PAGE) == 1 && byte == 'g');
    CHECK(FAILS(fm_read(a, &byte, 1), EFAULT));
    /* Locked memory is the kernel's where the kernel locked it. */
    a = fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(fm_mlock(a + PAGE, PAGE) == 0 && a[PAGE] == 'b' && fm_munlock(a + PAGE, PAGE) == 0);
    CHECK(fm_munmap(a, BYTES) == 0 && close(fd) == 0);
}

static volatile int stop;

struct work {
    char *map;
    int slot;
    uint32_t stored[PAGES];
    int wrong;
};

static void *store_and_load(void *of) {
    struct work *work = of;
    uint32_t random = (uint32_t)work->slot * 2654435761u + 1;
    while (!stop) {
        random = random * 1664525 + 1013904223;
        int page = (int)((random >> 8) % PAGES);
        volatile uint32_t *word = (uint32_t *)(void *)(work->map + page * PAGE) + 1 + work->slot;
        uint32_t expected = work->stored[page] ? work->stored[page] : 0x01010101u * (uint32_t)('a' + page % 26);
        work->wrong += *word != expected;
        *word = ++work->stored[page];
    }
    return NULL;
}

static void threads(void) {
    enum { THREADS = 3 };
    static struct work work[THREADS];
    pthread_t threads[THREADS];
    int fd = make("threads");
    char *a = fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(a != MAP_FAILED);
    for (int i = 0; i < THREADS; i++) {
        work[i].map = a, work[i].slot = i;
        if (pthread_create(&threads[i], NULL, store_and_load, &work[i]) != 0)
            abort();
    }
    for (int round = 0; round < 20; round++) {
        CHECK(fm_msync(a, BYTES, MS_SYNC) == 0);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(work[i].wrong == 0);
    }
    CHECK(fm_munmap(a, BYTES) == 0);
    for (int page = 0; page < PAGES; page++) {
        uint32_t words[1 + THREADS];
        CHECK(pread(fd, words, sizeof words, (off_t)page * PAGE) == sizeof words);
        for (int i = 0; i < THREADS; i++)
            CHECK(work[i].stored[page] == 0 || words[1 + i] == work[i].stored[page]);
    }
    close(fd);
}

/* All maps of a file are served alike: as the first of them is. */
static void by_name_later(void) {
    int fd = make("name");
    struct fm_cache *cache = fm_cache_create(4 << 20);
    char byte;
    for (int round = 0; round < 6; round++) {
        char *a = fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
        CHECK(a != MAP_FAILED && (fm_is_cached(a, BYTES) == by_name));
        a[round] = '1';
        char *c = fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0);
        CHECK(by_name ? c == a && fm_munmap(c, BYTES) == 0 : c == MAP_FAILED && errno == EOPNOTSUPP);
        char *b = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED, fd, 0);
        CHECK(b != MAP_FAILED && b[round] == '1' && fm_is_cached(b, BYTES) == by_name && fm_is_cached(a, BYTES) == by_name);
        CHECK(fm_munmap(b, BYTES) == 0 && a[round] == '1' && fm_munmap(a, BYTES) == 0);
        CHECK(pread(fd, &byte, 1, round) == 1 && byte == '1');
        /* The engine's first: then what is mapped by default is its own, too. */
        a = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED, fd, 0);
        b = fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
        CHECK(a != MAP_FAILED && b == a && fm_is_cached(b, BYTES) && fm_munmap(b, BYTES) == 0 && fm_munmap(a, BYTES) == 0);
    }
    /* The program has another mapping of the file, which is nobody else's business. */
    char *own = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    char *a = by_name ? MAP_FAILED : fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
    if (a != MAP_FAILED) {
        CHECK(fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP);
        char *b = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED, fd, 0);
        CHECK(b != MAP_FAILED && b != a && (b[9] = '9', a[9] == '9' && own[9] == '9'));
        CHECK(!fm_is_cached(a, PAGE) && !fm_is_cached(b, PAGE) && !fm_is_cached(own, PAGE) && own[PAGE] == 'b');
        CHECK(fm_munmap(b, BYTES) == 0 && fm_munmap(a, BYTES) == 0);
    }
    CHECK(munmap(own, BYTES) == 0 && fm_cache_destroy(cache) == 0);
    close(fd);
}

/* Other memory over part of a map; record locks; children. */
static void the_rest(void) {
    int fd = make("rest");
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    const int rounds = 2;
    for (int round = 0; round < rounds; round++) {
        const int touches = round == rounds - 1; /* the file is the kernel's from then on */
        char *a = fm_mmap(NULL, BYTES, RW, MAP_SHARED, fd, 0);
        CHECK(a != MAP_FAILED);
        a[5] = (char)round;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int fine = 1;
            if (touches) {
                char path[PATH_MAX + 64];
                snprintf(path, sizeof path, "%s/rest", folder);
                struct flock mine = lock;
                fine &= fcntl(open(path, O_RDWR), F_SETLK, &mine) != 0; /* its parent's */
                fine &= a[5] == round && a[30 * PAGE] == 'a' + 30 % 26 && !fm_is_cached(a, PAGE);
                a[6] = (char)(round + 1);
                fine &= fm_msync(a, PAGE, MS_SYNC) == 0 && fm_munmap(a, BYTES) == 0;
            }
            _exit(fine ? 0 : 1);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(a[5] == round && (!touches || a[6] == round + 1));
        char *over = fm_mmap(a + 7 * PAGE, 2 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(over == a + 7 * PAGE && over[0] == 0 && a[9 * PAGE] == 'a' + 9);
        over[0] = 'o';
        for (int i = 0; i < 20; i++, nap())
            CHECK(over[0] == 'o' && a[6 * PAGE] == 'a' + 6 && a[9 * PAGE] == 'a' + 9);
        CHECK(fm_munmap(a, BYTES) == 0);
        char byte;
        CHECK(pread(fd, &byte, 1, 7 * PAGE) == 1 && byte == 'a' + 7 && pread(fd, &byte, 1, 5) == 1 && byte == round);
    }
    close(fd);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    snprintf(folder, sizeof folder, "%s", argv[1]);
    by_name = strcmp(argv[2], "engine") == 0;
    if (by_name)
        CHECK(fm_cache_resize(NULL, 16 << 20) == 0);
    every_call();
    threads();
    by_name_later();
    the_rest();
    printf("%d checks, %d failed\n", checked, failed);
    return failed > 0;
}
