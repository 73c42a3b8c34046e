/* Stores of every width and kind, scattered over a mapped file: the same bytes come of them on whatever maps.
 *
 *     stores CASE FILE      the file's bytes, and what was loaded on the way (FILE.loaded), are compared by stores.rs
 */
#include "check.h"

typedef uint8_t v16 __attribute__((vector_size(16), aligned(1)));
struct record { uint64_t key; uint32_t size; uint16_t kind; uint8_t flags[50]; };
struct large { uint8_t bytes[1024]; };

struct worker {
    uint8_t *at;
    size_t from, len;
    uint64_t random, sum;
};

static uint64_t next(struct worker *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static void *(*volatile set)(void *, int, size_t) = memset;
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;

__attribute__((target("avx"))) static void store_32(void *at, uint64_t value) {
    __asm__ volatile("vmovq %1, %%xmm5; vpunpcklqdq %%xmm5, %%xmm5, %%xmm5; vinsertf128 $1, %%xmm5, %%ymm5, %%ymm5;"
                     "vmovdqu %%ymm5, (%0); vzeroupper" : : "r"(at), "r"(value) : "xmm5", "memory");
}

__attribute__((target("avx512f"))) static void store_64(void *at, uint64_t value) {
    __asm__ volatile("vpbroadcastq %1, %%zmm5; vmovdqu64 %%zmm5, (%0); vzeroupper" : : "r"(at), "r"(value) : "xmm5", "memory");
}

static void one_store(struct worker *w, uint8_t *to, uint64_t value, const uint8_t *source) {
    switch (next(w) % 24) {
    case 0: *(volatile uint8_t *)to = (uint8_t)value; break;
    case 1: __asm__ volatile("movw %w1, (%0)" : : "r"(to), "r"(value) : "memory"); break;
    case 2: __asm__ volatile("movl %k1, (%0)" : : "r"(to), "r"(value) : "memory"); break;
    case 3: __asm__ volatile("movq %1, (%0)" : : "r"(to), "r"(value) : "memory"); break;
    case 4: __asm__ volatile("movl $0x12345678, 3(%0)" : : "r"(to) : "memory"); break;
    case 5: __asm__ volatile("movntiq %1, (%0)" : : "r"(to), "r"(value) : "memory"); break;
    case 6: *(v16 *)to = (v16){1, 2, 3, (uint8_t)value}; break;
    case 7: __builtin_cpu_supports("avx") ? store_32(to, value) : (void)set(to, (int)value, 32); break;
    case 8: __builtin_cpu_supports("avx512f") ? store_64(to, value) : (void)set(to, (int)value, 64); break;
    case 9: set(to, (int)value, value % 40); break;
    case 10: set(to, (int)value, value % 9000); break;
    case 11: copy(to, source, value % 40); break;
    case 12: copy(to, source, value % 9000); break;
    /* Overlapping, in the map. */
    case 13: move(to + value % 100, to, value % 3000); break;
    case 14: move(to, to + value % 100, value % 3000); break;
    /* From another page of the map. */
    case 15: copy(to, w->at + w->from + next(w) % (w->len - 64), 64); break;
    case 16: *(struct record *)(to - (uintptr_t)to % 8) = (struct record){value, 7, 3, {(uint8_t)value}}; break;
    case 17: *(struct large *)to = *(const struct large *)source; break;
    case 18: {
        void *at = to;
        uint64_t count = value % 700;
        __asm__ volatile("rep stosq" : "+D"(at), "+c"(count) : "a"(value) : "memory");
        break;
    }
    case 19: {
        void *at = to;
        const void *of = source;
        uint64_t count = value % 5000;
        __asm__ volatile("rep movsb" : "+D"(at), "+S"(of), "+c"(count) : : "memory");
        break;
    }
    /* These load, too. */
    case 20: *(volatile uint32_t *)(to - (uintptr_t)to % 8) += 5; break;
    case 21: __atomic_fetch_add((uint64_t *)(to - (uintptr_t)to % 8), value, __ATOMIC_SEQ_CST); break;
    case 22: (void)__atomic_exchange_n((uint64_t *)(to - (uintptr_t)to % 8), value, __ATOMIC_SEQ_CST); break;
    default: __asm__ volatile("movb $0x5a, %c1(%0)" : : "r"(to), "i"(77) : "memory"); break;
    }
}

/* Scattered stores, some of them several to a page, with loads between them; all within the worker's part. */
static void *work(void *argument) {
    struct worker *w = argument;
    uint8_t source[10000];
    for (size_t i = 0; i < sizeof source; i++) source[i] = (uint8_t)(i * 31 + w->random);
    for (int step = 0; step < 12000; step++) {
        uint64_t value = next(w);
        /* Many end at a page's border or straddle it. */
        size_t offset = w->from + 128 + next(w) % (w->len - 16384);
        if (value % 5 == 0) offset = offset / PAGE * PAGE + PAGE - value % 70;
        one_store(w, w->at + offset, value, source);
        if (value % 3 == 0) one_store(w, w->at + offset / PAGE * PAGE + 200 + value % 3000, next(w), source + value % 500);
        if (value % 7 == 0) w->sum = w->sum * 31 + w->at[w->from + next(w) % w->len];
        if (value % 501 == 0) CHECK(msync(w->at + offset / PAGE * PAGE, PAGE, MS_SYNC) == 0);
    }
    return NULL;
}

static void finish(const char *path, uint8_t *at, uint64_t sum) {
    char name[4096];
    snprintf(name, sizeof name, "%s.loaded", path);
    FILE *out = fopen(name, "w");
    CHECK(out && fprintf(out, "%016llx\n", (unsigned long long)sum) == 17 && fclose(out) == 0);
    CHECK(munmap(at, SIZE) == 0);
}

static void one_thread(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    struct worker worker = {at, 0, SIZE, 88172645463325252ull, 0};
    work(&worker);
    finish(path, at, worker.sum);
}

static void four_threads(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    struct worker workers[4];
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        workers[i] = (struct worker){at, i * SIZE / 4, SIZE / 4, 88172645463325252ull + i, 0};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        sum = sum * 31 + workers[i].sum;
    }
    finish(path, at, sum);
}

/* A child, and what a program that is told of nothing does with the file. */
static void children_and_calls(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    struct worker worker = {at, 0, SIZE, 362436069521288629ull, 0};
    for (int round = 0; round < 20; round++) {
        uint64_t key = next(&worker);
        size_t offset = next(&worker) % (SIZE / PAGE) * PAGE + 512;
        memcpy(at + offset, &key, sizeof key);
        pid_t child = fork();
        if (child == 0) _exit(memcmp(at + offset, &key, sizeof key) != 0 || at[offset + 8] != pattern(offset + 8));
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        offset = next(&worker) % (SIZE / PAGE) * PAGE + 1024;
        memcpy(at + offset, &key, sizeof key);
        uint64_t read_back = 0;
        CHECK(pread(fd, &read_back, 8, (off_t)offset) == 8 && read_back == key);
        at[offset + 100] = 1;
        CHECK(pwrite(fd, "xyz", 3, (off_t)offset + 101) == 3 && at[offset + 101] == 'x' && at[offset + 100] == 1);
        at[offset + 2000] = 9;
        /* Into a page that has a store to be made. */
        CHECK(pread(fd, at + offset + 2001, 5, 10) == 5 && at[offset + 2000] == 9 && at[offset + 2001] == at[10]);
    }
    at[SIZE - 100] = 1;
    CHECK(ftruncate(fd, SIZE - PAGE) == 0 && ftruncate(fd, SIZE) == 0 && at[SIZE - 100] == 0);
    finish(path, at, 0);
}

static const struct test tests[] = {
    {"one_thread", one_thread},
    {"four_threads", four_threads},
    {"children_and_calls", children_and_calls},
};

RUN_ONE_OF(tests)
