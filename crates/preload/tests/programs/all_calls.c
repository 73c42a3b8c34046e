// All calls on mappings at once: three processes of several threads each map, unmap, protect, move, advise, flush, cut, punch and fork over
// overlapping parts of three files, and read and write them by descriptor. Each thread has a slot of its own in every page, and knows what
// it stored there last: what it loads, or reads, must be that. When all have ended another program, which knows nothing of the library,
// reads the files (`check`). It passes on kernel mmap; under the preload library it must do the same.
// Usage: all_calls stress|check FILE; SEED, STEPS (of each thread, in each round), ROUNDS, THREADS, PROCESSES in the environment.
#include "check.h"
#include <linux/falloc.h>
#include <sys/prctl.h>

enum { FILES = 3, PAGES = 1024, OWN_PAGES = 96, TAIL = 64, MOST_THREADS = 8, MOST_PROCESSES = 3, MAPS = 4 };
enum { SLOTS = MOST_THREADS * MOST_PROCESSES, ALL = PAGES + OWN_PAGES + TAIL };

// What was stored last, by slot, file and page, and of pages of their own by owner; shared by all processes.
struct shadow {
    uint64_t slot[SLOTS][FILES][PAGES];
    uint64_t own[SLOTS][FILES][OWN_PAGES / SLOTS];
    uint32_t tail[FILES]; // length in pages
    pthread_barrier_t begin, end;
};

static struct shadow *shadow;
static int threads, processes, process_number;
static long steps, rounds, first_seed;
static const char *base;
static pthread_barrier_t nobody_maps; // of one process

struct mapping {
    uint8_t *at;
    size_t first, pages;
    int file, may_store;
};

struct worker {
    pthread_t thread;
    int slot;
    uint64_t seed;
    struct mapping maps[MAPS];
    int fd[FILES];
    long round, step;
    int op;
};

#define EXPECT(worker, holds)                                                                                                   \
    do {                                                                                                                        \
        if (!(holds)) {                                                                                                         \
            dprintf(2, "round %ld, slot %d, step %ld, operation %d, line %d: %s (errno %d: %s)\n", (worker)->round, (worker)->slot, \
                    (worker)->step, (worker)->op, __LINE__, #holds, errno, strerror(errno));                                    \
            abort();                                                                                                            \
        }                                                                                                                       \
    } while (0)

static uint64_t random_of(struct worker *w) {
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed;
}

static size_t below(struct worker *w, size_t end) { return end ? random_of(w) % end : 0; }

static void path_of(char *path, size_t room, int file, long round) { snprintf(path, room, "%s.%d.%ld", base, file, round); }

static off_t place(int slot, size_t page) { return (off_t)(page * PAGE + 64 + (size_t)slot * 8); }

static void expect_slot(struct worker *w, struct mapping *m, size_t page) {
    uint64_t found = *(volatile uint64_t *)(m->at + place(w->slot, page));
    uint64_t stored = shadow->slot[w->slot][m->file][m->first + page];
    if (found != stored) dprintf(2, "page %zu of file %d: found %lu, stored %lu\n", m->first + page, m->file, found, stored);
    EXPECT(w, found == stored);
}

static void store_slot(struct worker *w, struct mapping *m, size_t page) {
    uint64_t next = ++shadow->slot[w->slot][m->file][m->first + page];
    *(volatile uint64_t *)(m->at + place(w->slot, page)) = next;
}

static void unmap(struct worker *w, struct mapping *m) {
    if (m->at) EXPECT(w, munmap(m->at, m->pages * PAGE) == 0);
    m->at = NULL;
}

static void map_new(struct worker *w, struct mapping *m, void *over) {
    int file = (int)below(w, FILES);
    // Some reach over the tail, which nobody else touches; some are small, and so the kernel's.
    size_t pages = below(w, 16) == 0 ? 1 + below(w, 200) : 257 + below(w, 500);
    if (over) pages = m->pages, file = m->file;
    size_t first = over ? m->first : below(w, ALL - pages);
    int prot = below(w, 8) ? RW : PROT_READ;
    uint8_t *at = mmap(over, pages * PAGE, prot, MAP_SHARED | (over ? MAP_FIXED : 0), w->fd[file], (off_t)(first * PAGE));
    EXPECT(w, at != MAP_FAILED);
    *m = (struct mapping){at, first, pages, file, prot == RW};
}

// The pages of a mapping that have slots.
static size_t with_slots(struct mapping *m) { return m->first >= PAGES ? 0 : m->first + m->pages > PAGES ? PAGES - m->first : m->pages; }

static void touch(struct worker *w, struct mapping *m, int times) {
    size_t pages = with_slots(m);
    for (int i = 0; pages && i < times; i++) {
        size_t page = below(w, pages);
        expect_slot(w, m, page);
        if (m->may_store && below(w, 2)) store_slot(w, m, page);
    }
}

static void cut_map(struct worker *w, struct mapping *m) {
    size_t cut = 1 + below(w, m->pages);
    if (cut >= m->pages) return unmap(w, m);
    if (below(w, 2)) {
        EXPECT(w, munmap(m->at, cut * PAGE) == 0);
        m->at += cut * PAGE, m->first += cut, m->pages -= cut;
    } else {
        EXPECT(w, munmap(m->at + (m->pages - cut) * PAGE, cut * PAGE) == 0);
        m->pages -= cut;
    }
}

static void move_map(struct worker *w, struct mapping *m) {
    size_t most = ALL - m->first, pages = 1 + below(w, most);
    uint8_t *at = mremap(m->at, m->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    // Parts with other advice or protection are mappings of their own to the kernel.
    EXPECT(w, at != MAP_FAILED || errno == EAGAIN || errno == EFAULT);
    if (at != MAP_FAILED) m->at = at, m->pages = pages;
}

static void protect_map(struct worker *w, struct mapping *m) {
    // A part makes all of the file the kernel's: seldom.
    size_t pages = below(w, 40) ? m->pages : 1 + below(w, m->pages);
    EXPECT(w, mprotect(m->at, pages * PAGE, PROT_READ) == 0);
    if (with_slots(m)) expect_slot(w, m, 0);
    EXPECT(w, mprotect(m->at, pages * PAGE, RW) == 0);
    // Whole by now, or the rest was so before.
    if (pages == m->pages) m->may_store = 1;
}

static void advise_map(struct worker *w, struct mapping *m) {
    static const int advice[] = {MADV_WILLNEED, MADV_DONTNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NORMAL, MADV_COLD, MADV_PAGEOUT};
    size_t from = below(w, m->pages), pages = 1 + below(w, m->pages - from);
    EXPECT(w, madvise(m->at + from * PAGE, pages * PAGE, advice[below(w, 7)]) == 0);
}

static void by_descriptor(struct worker *w) {
    int file = (int)below(w, FILES);
    size_t page = below(w, PAGES);
    uint64_t *last = &shadow->slot[w->slot][file][page], found = 0;
    EXPECT(w, pread(w->fd[file], &found, 8, place(w->slot, page)) == 8);
    if (found != *last) dprintf(2, "page %zu of file %d: read %lu, stored %lu\n", page, file, found, *last);
    EXPECT(w, found == *last);
    if (below(w, 2)) {
        ++*last;
        EXPECT(w, pwrite(w->fd[file], last, 8, place(w->slot, page)) == 8);
    }
}

// A page of its own is written, and punched out: then it is zeros.
static void punch(struct worker *w) {
    int file = (int)below(w, FILES);
    size_t number = below(w, OWN_PAGES / SLOTS), page = PAGES + (size_t)w->slot * (OWN_PAGES / SLOTS) + number;
    uint64_t *last = &shadow->own[w->slot][file][number], found = 0;
    EXPECT(w, pread(w->fd[file], &found, 8, (off_t)(page * PAGE)) == 8 && found == *last);
    if (below(w, 2)) {
        int done = fallocate(w->fd[file], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(page * PAGE), PAGE);
        EXPECT(w, done == 0 || errno == EOPNOTSUPP);
        if (done == 0) *last = 0;
    } else {
        *last = random_of(w);
        EXPECT(w, pwrite(w->fd[file], last, 8, (off_t)(page * PAGE)) == 8);
    }
    for (int i = 0; i < MAPS; i++) {
        struct mapping *m = &w->maps[i];
        if (m->at && m->file == file && m->first <= page && page < m->first + m->pages)
            EXPECT(w, *(volatile uint64_t *)(m->at + (page - m->first) * PAGE) == *last);
    }
}

// One thread of all cuts and extends the files' tails.
static void cut_file(struct worker *w) {
    int file = (int)below(w, FILES);
    uint32_t length = (uint32_t)below(w, TAIL + 1);
    EXPECT(w, ftruncate(w->fd[file], (off_t)((PAGES + OWN_PAGES + length) * PAGE)) == 0);
    shadow->tail[file] = length;
    struct stat stat;
    EXPECT(w, fstat(w->fd[file], &stat) == 0 && stat.st_size == (off_t)((PAGES + OWN_PAGES + length) * PAGE));
    EXPECT(w, ftruncate(w->fd[file], (off_t)(ALL * PAGE)) == 0);
    shadow->tail[file] = TAIL;
    uint8_t zeros[PAGE] = {0}, found[PAGE];
    if (length < TAIL) {
        off_t at = (off_t)((PAGES + OWN_PAGES + length + below(w, TAIL - length)) * PAGE);
        EXPECT(w, pread(w->fd[file], found, PAGE, at) == PAGE && !memcmp(found, zeros, PAGE));
        memset(found, 7, PAGE);
        EXPECT(w, pwrite(w->fd[file], found, PAGE, at) == PAGE);
    }
}

// Parent and child see one file.
static void fork_once(struct worker *w) {
    struct mapping *m = &w->maps[below(w, MAPS)];
    if (!m->at || !with_slots(m) || !m->may_store) return;
    size_t page = below(w, with_slots(m));
    expect_slot(w, m, page);
    uint64_t *last = &shadow->slot[w->slot][m->file][m->first + page];
    pid_t child = fork();
    EXPECT(w, child >= 0);
    if (child == 0) {
        volatile uint64_t *slot = (volatile uint64_t *)(m->at + place(w->slot, page));
        if (*slot != *last) _exit(1);
        *slot = *last + 1;
        _exit(0);
    }
    int status;
    EXPECT(w, waitpid(child, &status, 0) == child);
    EXPECT(w, WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ++*last;
    expect_slot(w, m, page);
}

static void one_step(struct worker *w) {
    struct mapping *m = &w->maps[below(w, MAPS)];
    w->op = (int)below(w, 100);
    if (w->op < 30) {
        if (!m->at) map_new(w, m, NULL);
        if (m->at) touch(w, m, 30);
    } else if (w->op < 45) {
        unmap(w, m);
    } else if (w->op < 55) {
        if (m->at) cut_map(w, m);
    } else if (w->op < 60) {
        if (m->at) move_map(w, m);
    } else if (w->op < 64) {
        if (m->at) protect_map(w, m);
    } else if (w->op < 72) {
        if (m->at) advise_map(w, m);
    } else if (w->op < 78) {
        if (m->at) EXPECT(w, msync(m->at, m->pages * PAGE, below(w, 4) ? MS_ASYNC : MS_SYNC) == 0);
    } else if (w->op < 90) {
        by_descriptor(w);
    } else if (w->op < 94) {
        punch(w);
    } else if (w->op < 96) {
        if (w->slot == 0) cut_file(w);
    } else if (w->op < 97) {
        EXPECT(w, fdatasync(w->fd[below(w, FILES)]) == 0);
    } else if (w->op < 99) {
        if (m->at && below(w, 4) == 0) map_new(w, m, m->at);
    } else if (below(w, 20) == 0) {
        fork_once(w);
    }
}

static void *work(void *argument) {
    struct worker *w = argument;
    for (w->round = 0; w->round < rounds; w->round++) {
        if (w->slot == 0) {
            for (int file = 0; file < FILES; file++) {
                char path[500];
                path_of(path, sizeof path, file, w->round);
                w->fd[file] = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
                static char zeros[1 << 20];
                for (size_t at = 0; at < ALL * PAGE; at += sizeof zeros)
                    EXPECT(w, pwrite(w->fd[file], zeros, sizeof zeros, (off_t)at) == sizeof zeros);
                EXPECT(w, ftruncate(w->fd[file], ALL * PAGE) == 0);
                shadow->tail[file] = TAIL;
            }
            memset(shadow->slot, 0, sizeof shadow->slot);
            memset(shadow->own, 0, sizeof shadow->own);
        }
        pthread_barrier_wait(&shadow->begin);
        // The first process has the files for a while by itself.
        for (w->step = 0; w->step < steps; w->step++) {
            if (w->step == (process_number ? 0 : steps / 2)) {
                pthread_barrier_wait(&shadow->end);
                for (int file = 0; w->slot && process_number && file < FILES; file++) {
                    char path[500];
                    path_of(path, sizeof path, file, w->round);
                    w->fd[file] = open(path, O_RDWR);
                    EXPECT(w, w->fd[file] >= 0);
                }
            }
            if (w->step == 0 && w->slot && !process_number)
                for (int file = 0; file < FILES; file++) {
                    char path[500];
                    path_of(path, sizeof path, file, w->round);
                    w->fd[file] = open(path, O_RDWR);
                    EXPECT(w, w->fd[file] >= 0);
                }
            // Once nobody maps a file any more its next map is the engine's again.
            if (w->step % 25 == 24) {
                for (int i = 0; i < MAPS; i++) unmap(w, &w->maps[i]);
                pthread_barrier_wait(&nobody_maps);
            }
            one_step(w);
        }
        for (int i = 0; i < MAPS; i++) unmap(w, &w->maps[i]);
        for (int file = 0; file < FILES; file++) EXPECT(w, close(w->fd[file]) == 0);
        pthread_barrier_wait(&shadow->end);
        if (w->slot == 0) {
            char command[1200], path[500];
            snprintf(path, sizeof path, "%s.shadow", base);
            int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
            EXPECT(w, fd >= 0 && pwrite(fd, shadow, sizeof *shadow, 0) == sizeof *shadow && close(fd) == 0);
            snprintf(command, sizeof command, "env -u LD_PRELOAD ROUND=%ld /proc/%d/exe check %s", w->round, getpid(), base);
            EXPECT(w, system(command) == 0);
            for (int file = 0; file < FILES; file++) {
                path_of(path, sizeof path, file, w->round);
                EXPECT(w, unlink(path) == 0);
            }
        }
    }
    return NULL;
}

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static void one_process(void) {
    static struct worker workers[MOST_THREADS];
    CHECK(pthread_barrier_init(&nobody_maps, NULL, (unsigned)threads) == 0);
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        w->slot = process_number * threads + i;
        w->seed = (uint64_t)(first_seed * 1000003 + w->slot * 7919 + 1) * 0x9e3779b97f4a7c15u | 1;
        CHECK(pthread_create(&w->thread, NULL, work, w) == 0);
    }
    for (int i = 0; i < threads; i++) CHECK(pthread_join(workers[i].thread, NULL) == 0);
}

static void stress(const char *path) {
    base = path;
    threads = (int)number("THREADS", MOST_THREADS), processes = (int)number("PROCESSES", MOST_PROCESSES);
    steps = number("STEPS", 200), rounds = number("ROUNDS", 1), first_seed = number("SEED", 1);
    CHECK(threads >= 1 && threads <= MOST_THREADS && processes >= 1 && processes <= MOST_PROCESSES);
    shadow = mmap(NULL, sizeof *shadow, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shadow != MAP_FAILED);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shadow->begin, &shared, (unsigned)(threads * processes));
    pthread_barrier_init(&shadow->end, &shared, (unsigned)(threads * processes));
    pid_t children[MOST_PROCESSES];
    for (int i = 1; i < processes; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            // A program of its own, which finds the shadow where it was: only its memory goes on.
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            process_number = i;
            one_process();
            exit(0);
        }
    }
    one_process();
    for (int i = 1; i < processes; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
}

static void check(const char *path) {
    base = path;
    char name[500];
    snprintf(name, sizeof name, "%s.shadow", base);
    int fd = open(name, O_RDONLY);
    shadow = mmap(NULL, sizeof *shadow, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && shadow != MAP_FAILED);
    int lost = 0;
    for (int file = 0; file < FILES; file++) {
        path_of(name, sizeof name, file, number("ROUND", 0));
        int data = open(name, O_RDONLY);
        struct stat stat;
        CHECK(data >= 0 && fstat(data, &stat) == 0 && stat.st_size == ALL * PAGE);
        uint64_t page[PAGE / 8];
        for (size_t at = 0; at < PAGES; at++) {
            CHECK(pread(data, page, PAGE, (off_t)(at * PAGE)) == PAGE);
            for (int slot = 0; slot < SLOTS; slot++) {
                uint64_t found = page[8 + slot], stored = shadow->slot[slot][file][at];
                if (found != stored && lost++ < 20) dprintf(2, "file %d, page %zu, slot %d: has %lu, stored %lu\n", file, at, slot, found, stored);
            }
        }
        for (int slot = 0; slot < SLOTS; slot++)
            for (size_t at = 0; at < OWN_PAGES / SLOTS; at++) {
                uint64_t found;
                CHECK(pread(data, &found, 8, (off_t)((PAGES + (size_t)slot * (OWN_PAGES / SLOTS) + at) * PAGE)) == 8);
                if (found != shadow->own[slot][file][at] && lost++ < 20) dprintf(2, "file %d, own page %zu of slot %d is wrong\n", file, at, slot);
            }
    }
    if (lost) dprintf(2, "%d stores are not in the files\n", lost);
    CHECK(lost == 0);
}

static const struct test tests[] = {{"stress", stress}, {"check", check}};
RUN_ONE_OF(tests)
