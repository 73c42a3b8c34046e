/* A program with a malloc(3) of its own, whose lock is held while it maps and unmaps files: as allocators do that keep their
 * memory in files. The lock may be taken once: whoever asks for memory while the same thread has it would wait for ever. */
#include "check.h"
#include <malloc.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static _Alignas(64) char memory[256 * MIB];
static size_t used;
static _Atomic long owner;

static void take(void) {
    long self = syscall(SYS_gettid), nobody = 0;
    if (atomic_load(&owner) == self) {
        static const char text[] = "malloc by a thread that has its lock\n";
        (void)!write(2, text, sizeof text - 1);
        _exit(1);
    }
    while (!atomic_compare_exchange_weak(&owner, &nobody, self)) nobody = 0, sched_yield();
}

static void let_go(void) { atomic_store(&owner, 0); }

/* Each block begins with its length. */
static void *aligned(size_t align, size_t size) {
    take();
    size_t at = (used + sizeof(size_t) + align - 1) / align * align;
    if (at + size > sizeof memory) abort();
    used = (at + size + 15) / 16 * 16;
    let_go();
    memcpy(memory + at - sizeof(size_t), &size, sizeof size);
    return memory + at;
}

size_t malloc_usable_size(void *block) {
    size_t size = 0;
    if (block) memcpy(&size, (char *)block - sizeof size, sizeof size);
    return size;
}
void *malloc(size_t size) { return aligned(16, size); }
void *calloc(size_t count, size_t size) { return aligned(16, count * size); }
void *memalign(size_t align, size_t size) { return aligned(align < 16 ? 16 : align, size); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void **to, size_t align, size_t size) { return *to = memalign(align, size), 0; }
void free(void *block) {
    if (block) take(), let_go();
}
void *realloc(void *block, size_t size) {
    size_t before = malloc_usable_size(block);
    void *moved = malloc(size);
    return memcpy(moved, block ? block : moved, before < size ? before : size);
}

static void dirty(uint8_t *at, size_t len) {
    for (size_t i = 0; i < len; i += PAGE) at[i] = (uint8_t)(i / PAGE + 3);
}

/* Everything that can be done to a map, by a thread that has the lock. The first one is made without: it starts threads. */
static void extents(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *kept = map_all(fd);
    char other[512];
    snprintf(other, sizeof other, "%s.other", path);
    int second = file_of(other, SIZE);
    for (int round = 0; round < 20; round++) {
        dirty(kept, SIZE);
        take();
        uint8_t *map = mmap(NULL, SIZE, RW, MAP_SHARED, second, 0);
        let_go();
        CHECK(map != MAP_FAILED);
        dirty(map, SIZE);
        take();
        int done = msync(map, SIZE, MS_SYNC) | madvise(map, SIZE, MADV_WILLNEED) | mprotect(map, MIB, PROT_READ) |
                   mlock(map + MIB, PAGE) | munlock(map + MIB, PAGE) | munmap(map + 2 * MIB, MIB);
        uint8_t *small = mmap(NULL, PAGE, RW, MAP_SHARED, round % 2 ? second : fd, 0);
        uint8_t *moved = mremap(map + 4 * MIB, 4 * MIB, 3 * MIB, MREMAP_MAYMOVE);
        uint8_t *over = mmap(map, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        done |= munmap(map, SIZE) | munmap(small, PAGE);
        let_go();
        CHECK(done == 0 && small != MAP_FAILED && moved == map + 4 * MIB && over == map);
    }
    take();
    int done = munmap(kept, SIZE);
    let_go();
    CHECK(done == 0);
    uint8_t byte;
    CHECK(pread(fd, &byte, 1, 5 * PAGE) == 1 && byte == 8 && pread(second, &byte, 1, 7 * PAGE) == 1 && byte == 10);
}

/* A thread that allocates in this library (each mapping is noted) while others fork: their children find its memory whole. */
static _Atomic int stop;

static void *map_small(void *arg) {
    while (!atomic_load(&stop)) {
        uint8_t *at[64];
        for (int i = 0; i < 64; i++) CHECK((at[i] = mmap(NULL, PAGE, RW, MAP_SHARED, *(int *)arg, 0)) != MAP_FAILED);
        for (int i = 0; i < 64; i++) CHECK(munmap(at[i], PAGE) == 0);
    }
    return arg;
}

static void children(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *map = map_all(fd);
    char other[512];
    snprintf(other, sizeof other, "%s.other", path);
    int second = file_of(other, SIZE);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, map_small, &second) == 0);
    for (int round = 0; round < 40; round++) {
        map[round * PAGE] = 77;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            uint8_t *small = mmap(NULL, PAGE, RW, MAP_SHARED, second, 0);
            _exit(small != MAP_FAILED && munmap(small, PAGE) == 0 && map[round * PAGE] == 77 ? 7 : 1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static const struct test tests[] = {{"extents", extents}, {"children", children}};
RUN_ONE_OF(tests)
