/* A program that goes on where a call fails: FILE. Memory, mappings, descriptors and threads are taken away from it at any moment from "begin" on.
   What a call says that it did, it did; nothing stored is lost, nothing ends or hangs. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static uint8_t stored[SIZE / PAGE];

static int store(uint8_t *at, size_t from, size_t to, uint8_t byte) {
    for (size_t page = from; page < to; page++) at[page * PAGE + 1] = stored[page] = byte;
    return 0;
}

static void check(const uint8_t *at) {
    for (size_t page = 0; page < SIZE / PAGE; page++) CHECK(at[page * PAGE + 1] == stored[page]);
}

static void check_file(int fd) {
    uint8_t byte;
    for (size_t page = 0; page < SIZE / PAGE; page++)
        CHECK(pread(fd, &byte, 1, (off_t)(page * PAGE + 1)) == 1 && byte == stored[page]);
}

static void *stores(void *at) {
    store(at, 1000, 1200, 40);
    return NULL;
}

static void scarce(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && write(1, "begin\n", 6) == 6);
    for (int round = 0; round < 3; round++) {
        uint8_t *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) {
            CHECK(errno == ENOMEM);
            continue;
        }
        check(at);
        store(at, 0, SIZE / PAGE, (uint8_t)(10 + round));
        if (msync(at, SIZE, MS_SYNC) == 0) check_file(fd);
        pthread_t thread;
        if (pthread_create(&thread, NULL, stores, at) == 0) CHECK(pthread_join(thread, NULL) == 0);
        check(at);
        if (round == 1) {
            pid_t child = fork();
            if (child == 0) {
                check(at);
                at[7 * PAGE + 1] = 77;
                _exit(0);
            }
            int status;
            if (child > 0) {
                stored[7] = 77;
                CHECK(waitpid(child, &status, 0) == child && status == 0);
            }
            check(at);
        }
        if (round == 2) {
            /* Only the kernel can do this: the file is converted. */
            if (mprotect(at + SIZE / 2, SIZE / 2, PROT_READ) == 0) store(at, 0, 100, 55);
            else CHECK(errno == ENOMEM);
        }
        check(at);
        if (munmap(at, SIZE) != 0) {
            CHECK(errno == ENOMEM);
            check(at);
        }
        check_file(fd);
    }
    uint8_t *at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) check(at);
    CHECK(write(1, "end\n", 4) == 4);
}

static const struct test tests[] = {
    {"scarce", scarce},
};
RUN_ONE_OF(tests)
