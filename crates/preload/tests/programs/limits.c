/* What a process may write and store by its limits, and by the room on the disk: as on the kernel's maps. */
#include "check.h"
#include <sys/resource.h>

static void check_all(const char *path, uint8_t byte) {
    int fd = open(path, O_RDONLY);
    uint8_t found;
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(pread(fd, &found, 1, (off_t)i) == 1 && found == byte);
    close(fd);
}

static void store_all(uint8_t *map, uint8_t byte) {
    for (size_t i = 0; i < SIZE; i += PAGE) map[i] = byte;
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* Stores inside a file's length are not held against RLIMIT_FSIZE, whichever way they come to the file; it may be set at any time. */
static void file_size(const char *path) {
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = file_of(path, SIZE);
            if (round == 0) limit_files(MIB);
            uint8_t *map = map_all(fd);
            store_all(map, 1);
            if (round == 1) limit_files(MIB + 1000);
            if (round > 1) limit_files(0);
            store_all(map, 2);
            if (round == 0) CHECK(msync(map, SIZE, MS_SYNC) == 0);
            if (round < 2) CHECK(munmap(map, SIZE) == 0);
            /* Its own writes are: SIGXFSZ is blocked, so that there is an error. */
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGXFSZ);
            CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
            sigpending(&set);
            CHECK(!sigismember(&set, SIGXFSZ));
            FAILS(pwrite(fd, "x", 1, 2 * MIB), EFBIG);
            if (round == 2) _exit(0);
            if (round == 3) kill(getpid(), SIGKILL);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(round == 3 ? WTERMSIG(status) == SIGKILL : status == 0);
        if (round >= 2) {
            /* Whoever maps it to write waits for what is still to be saved. */
            uint8_t *map = map_all(open(path, O_RDWR));
            CHECK(munmap(map, SIZE) == 0);
        }
        check_all(path, 2);
    }
}

static void *map_in_thread(void *path) {
    uint8_t *map = map_all(file_of(path, SIZE));
    store_all(map, 3);
    CHECK(mprotect(map, SIZE / 2, PROT_READ) == 0);
    CHECK(munmap(map, SIZE) == 0);
    return NULL;
}

/* A thread's stack may be small: so is the first thread's by `ulimit -s`, which counts from the next program on. */
static void stack_size(const char *path) {
    if (!getenv("SMALL")) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_STACK, &limit) == 0);
        limit.rlim_cur = 64 << 10;
        CHECK(setrlimit(RLIMIT_STACK, &limit) == 0 && setenv("SMALL", "1", 1) == 0);
        execl("/proc/self/exe", "limits", "stack_size", path, NULL);
        CHECK(0);
    }
    uint8_t *map = map_all(file_of(path, SIZE));
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(map[i] == pattern(i));
    store_all(map, 3);
    CHECK(msync(map, SIZE, MS_SYNC) == 0);
    check_all(path, 3);
    char other[4096];
    snprintf(other, sizeof other, "%s.other", path);
    pthread_attr_t small;
    pthread_t thread;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 32 << 10) == 0);
    for (int round = 0; round < 4; round++) {
        CHECK(pthread_create(&thread, round % 2 ? NULL : &small, map_in_thread, other) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        check_all(other, 3);
    }
    CHECK(unlink(other) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(map[5 * PAGE] == 3 ? 7 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    CHECK(munmap(map, SIZE) == 0);
}

/* A child maps and stores, or is refused a map; it is not killed. */
static void in_child(const char *path, void (*limit)(long), long value, int may_lack) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = file_of(path, SIZE);
        limit(value);
        uint8_t *map = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
        /* What the engine has begun to make may have taken the last. */
        if (map == MAP_FAILED && errno == ENOMEM && may_lack && has_budget()) exit(0);
        CHECK(map != MAP_FAILED);
        store_all(map, 3);
        for (size_t i = 0; i < SIZE; i += PAGE) CHECK(map[i] == 3);
        CHECK(msync(map, SIZE, MS_SYNC) == 0 && munmap(map, SIZE) == 0);
        check_all(path, 3);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void limit_data(long mib) {
    struct rlimit limit = {(rlim_t)mib * MIB, (rlim_t)mib * MIB};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
}

/* Memory is limited (setrlimit(2)): where the engine gets none, the kernel has the file. */
static void memory(const char *path) {
    const long limits[] = {4096, 300, 40, 8, 2};
    for (int i = 0; i < 5; i++) in_child(path, limit_data, limits[i], 1);
}

static void limit_addresses(long mib) {
    struct rlimit limit = {(rlim_t)mib * MIB, (rlim_t)mib * MIB};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* So are addresses (ulimit -v): the engine takes none that the program may need. */
static void addresses(const char *path) {
    in_child(path, limit_addresses, 1 << 20, 0);
    for (long mib = 8192; mib > 420; mib /= 2) in_child(path, limit_addresses, mib, 0);
    for (long mib = 420; mib >= 280; mib -= 4) in_child(path, limit_addresses, mib, 0);
}

/* Leaves room for so many more mappings. */
static void limit_mappings(long left) {
    long most = 0, made = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(file && fscanf(file, "%ld", &most) == 1 && fclose(file) == 0);
    uint8_t *at = mmap(NULL, (size_t)(most + 100) * 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    while (made < most && mprotect(at + (2 * made + 1) * (long)PAGE, PAGE, PROT_READ) == 0) made++;
    for (left = (left + 1) / 2; left > 0; left--) CHECK(mprotect(at + (2 * --made + 1) * (long)PAGE, PAGE, PROT_NONE) == 0);
}

/* There may be few more mappings (vm.max_map_count). */
static void mappings(const char *path) {
    for (long left = 1000; left >= 2; left = left > 40 ? 40 : left - 3) in_child(path, limit_mappings, left, 1);
}

/* Stores to all pages of a file that is there. */
static void stores(const char *path) {
    int fd = open(path, O_RDWR);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0), byte;
    CHECK(at != MAP_FAILED && mprotect(at, SIZE, PROT_READ | PROT_WRITE) == 0);
    for (size_t page = 0; page < SIZE; page += PAGE) at[page] = 7;
    CHECK(msync(at, SIZE, MS_SYNC) == 0 && munmap(at, SIZE) == 0);
    for (size_t page = 0; page < SIZE; page += PAGE) CHECK(pread(fd, &byte, 1, (off_t)page) == 1 && byte == 7);
}

static const struct test tests[] = {
    {"stores", stores},
    {"memory", memory},
    {"addresses", addresses},
    {"mappings", mappings},
    {"file_size", file_size},
    {"stack_size", stack_size},
};

RUN_ONE_OF(tests)
