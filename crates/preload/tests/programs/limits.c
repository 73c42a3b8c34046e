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

static const struct test tests[] = {
    {"file_size", file_size},
};

RUN_ONE_OF(tests)
