/* When the thread begins that looks after kernel mappings: not in a program of one thread whose mappings are little beside the memory. And
 * what the program itself advises. */
#include "check.h"

static int is_in_turns(void) { return getenv("FASTMAP_TURNS") != NULL; }

/* By a raw call, which the library does not see. */
static unsigned long threads(void) {
    struct stat folder;
    CHECK(syscall(SYS_stat, "/proc/self/task", &folder) == 0);
    return folder.st_nlink - 2;
}

/* Whether there is the thread that looks, in a program that has so many of its own. It has others for its work soon, and its name a
 * moment after it was made. */
static int is_looked_after(unsigned long own) {
    if (threads() == own) return 0;
    for (int looks = 0; system("grep -q fastmap-place /proc/$PPID/task/*/comm") != 0; looks++) {
        CHECK(looks < 1000);
        usleep(1000);
    }
    return 1;
}

static void *wait_for_end(void *end) {
    CHECK(pthread_barrier_wait(end) <= 0);
    return NULL;
}

/* A thread of the program's, and then the thread that looks if there is to be one. */
static void make_a_thread(int is_watched) {
    int is_library = getenv("LD_PRELOAD") != NULL;
    pthread_barrier_t end;
    CHECK(pthread_barrier_init(&end, NULL, 2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_end, &end) == 0);
    CHECK(is_looked_after(2) == (is_library && is_watched));
    pthread_barrier_wait(&end);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A mapping that could not make memory short: the thread waits for one of the program's. */
static void little(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *map = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    CHECK(is_looked_after(1) == is_in_turns());
    expect(map, 0, SIZE);
    CHECK(madvise(map, SIZE, MADV_RANDOM) == 0 && is_looked_after(1) == is_in_turns());
    make_a_thread(1);
    expect(map, 0, SIZE);
}

/* A mapping larger than a quarter of any machine's memory. */
static void much(const char *path) {
    const size_t size = 1ul << 42;
    int fd = file_of(path, SIZE);
    CHECK(ftruncate(fd, size) == 0);
    uint8_t *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    CHECK(is_looked_after(1) == (getenv("LD_PRELOAD") != NULL));
    expect(map, 0, SIZE);
    CHECK(map[size - 1] == 0);
}

/* As much, a little at a time. */
static void adds_up(const char *path) {
    const size_t size = 1ul << 42, part = 1ul << 30;
    int fd = file_of(path, SIZE);
    CHECK(ftruncate(fd, size) == 0);
    for (size_t at = 0; at < size; at += part) {
        uint8_t *map = mmap(NULL, part, PROT_READ, MAP_SHARED, fd, at);
        CHECK(map != MAP_FAILED && munmap(map, part) == 0);
    }
    CHECK(close(fd) == 0 && is_looked_after(1) == (getenv("LD_PRELOAD") != NULL));
}

/* A mapping that begins small, and grows with its file (SQLite's do). */
static void grows(const char *path) {
    int fd = file_of(path, 16 * PAGE);
    uint8_t *map = mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    expect(map, 0, 16 * PAGE);
    const size_t size = 1ul << 42;
    CHECK(ftruncate(fd, size) == 0);
    uint8_t *large = mremap(map, 16 * PAGE, size, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED && close(fd) == 0);
    CHECK(is_looked_after(1) == (getenv("LD_PRELOAD") != NULL));
    expect(large, 0, 16 * PAGE);
    CHECK(large[size - 1] == 0);
}

/* Nothing large is mapped, or nothing of a file: there is never such a thread. */
static void nothing(const char *path) {
    int fd = file_of(path, 16 * PAGE);
    uint8_t *map = mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    uint8_t *heap = mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    heap = mremap(heap, PAGE, 1ul << 34, MREMAP_MAYMOVE);
    CHECK(heap != MAP_FAILED && munmap(heap, 1ul << 34) == 0);
    make_a_thread(is_in_turns());
    expect(map, 0, 16 * PAGE);
}

/* A child made by fork(2) has no such thread, nor makes one. */
static void children(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *map = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        make_a_thread(0);
        expect(map, 0, SIZE);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    make_a_thread(1);
}

/* Whether the kernel serves a mapping of the file with advice that accesses are random. */
static int is_random(const void *map, const char *path) {
    FILE *list = fopen("/proc/self/smaps", "r");
    CHECK(list != NULL);
    char line[1024];
    int is_it = 0, is_random = 0;
    while (fgets(line, sizeof line, list) != NULL) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_it = start <= (unsigned long)map && (unsigned long)map < end && strstr(line, path) != NULL;
        if (is_it && strncmp(line, "VmFlags:", 8) == 0) is_random |= strstr(line, " rr ") != NULL;
    }
    CHECK(fclose(list) == 0);
    return is_random;
}

/* Advice of the program's own wins, until it is taken back. */
static void advice(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *map = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0);
    CHECK(madvise(map, SIZE, MADV_SEQUENTIAL) == 0);
    for (int looks = 0; looks < 100; looks++, usleep(1000)) CHECK(!is_random(map, path));
    CHECK(madvise(map, SIZE, MADV_NORMAL) == 0);
    int learnt = 0;
    for (int looks = 0; looks < (is_in_turns() ? 10000 : 50) && !learnt; looks++, usleep(1000)) learnt = is_random(map, path);
    CHECK(learnt == is_in_turns());
    CHECK(madvise(map, SIZE, MADV_SEQUENTIAL) == 0);
    for (int looks = 0; looks < 100; looks++, usleep(1000)) CHECK(!is_random(map, path));
    /* What moves takes it along. */
    uint8_t *place = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    uint8_t *moved = mremap(map, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    CHECK(moved == place);
    for (int looks = 0; looks < 100; looks++, usleep(1000)) CHECK(!is_random(moved, path));
    expect(moved, 0, SIZE);
}

static const struct test tests[] = {
    {"little", little}, {"much", much}, {"adds_up", adds_up}, {"grows", grows}, {"nothing", nothing}, {"children", children}, {"advice", advice},
};

RUN_ONE_OF(tests)
