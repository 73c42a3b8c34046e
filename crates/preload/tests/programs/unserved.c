/* Mappings that the kernel has though there is a budget, each made twice: the library says why, once a file. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char *map_shared(int fd, int prot) {
    char *at = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void twice(const char *path, int prot, int flags) {
    int fd = file_of(path, SIZE);
    for (int again = 0; again < 2; again++) {
        char *at = mmap(NULL, SIZE, prot, flags, fd, 0);
        CHECK(at != MAP_FAILED && (uint8_t)at[PAGE] == pattern(PAGE));
    }
}

static void stores(const char *path) { twice(path, RW, MAP_PRIVATE); }
static void executable(const char *path) { twice(path, PROT_READ | PROT_EXEC, MAP_SHARED); }
static void low(const char *path) { twice(path, PROT_READ, MAP_SHARED | MAP_32BIT); }
static void again(const char *path) { twice(path, PROT_READ, MAP_SHARED); }

/* Code is loaded so. */
static void code(const char *path) { twice(path, PROT_READ | PROT_EXEC, MAP_PRIVATE); }

static void plain(const char *path) {
    char *at = map_shared(file_of(path, SIZE), RW);
    for (size_t page = 0; page < SIZE; page += PAGE) at[page] = 1;
}

static void small(const char *path) {
    int fd = file_of(path, SIZE);
    for (int again = 0; again < 2; again++)
        CHECK(mmap(NULL, MIB / 2, RW, MAP_SHARED, fd, 0) != MAP_FAILED && mmap(NULL, MIB / 2, RW, MAP_PRIVATE, fd, 0) != MAP_FAILED);
}

static void advice(const char *path) {
    int fd = file_of(path, SIZE);
    for (int again = 0; again < 2; again++)
        CHECK(madvise(map_shared(fd, RW), SIZE, MADV_MERGEABLE) == 0 || errno == EINVAL);
}

static void hole(const char *path) {
    int fd = file_of(path, SIZE);
    for (int again = 0; again < 2; again++) CHECK(madvise(map_shared(fd, RW), PAGE, MADV_REMOVE) == 0);
}

static void part(const char *path) {
    int fd = file_of(path, SIZE);
    for (int again = 0; again < 2; again++) CHECK(mprotect(map_shared(fd, RW), SIZE / 2, PROT_NONE) == 0);
}

static void child(const char *path) {
    int fd = file_of(path, SIZE);
    char *at = map_shared(fd, RW);
    at[0] = 1;
    for (int again = 0; again < 2; again++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK(at[0] == 1);
            at[PAGE] = 2;
            map_shared(fd, RW);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0 && at[PAGE] == 2);
    }
}

static void written(const char *path) {
    int writer = file_of(path, SIZE);
    int told[2];
    CHECK(pipe(told) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char end;
        close(told[1]);
        _exit(read(told[0], &end, 1) == 0 ? 0 : 1);
    }
    close(told[0]);
    close(writer);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    for (int again = 0; again < 2; again++) CHECK((uint8_t)map_shared(fd, PROT_READ)[PAGE] == pattern(PAGE));
    close(told[1]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* The engine leaves before anything is mapped. */
static void left(const char *path) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &all};
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    twice(path, PROT_READ, MAP_SHARED);
}

RUN_ONE_OF(((struct test[]){
    {"stores", stores}, {"executable", executable}, {"low", low}, {"again", again}, {"plain", plain}, {"code", code}, {"small", small}, {"advice", advice},
    {"hole", hole}, {"part", part}, {"child", child}, {"written", written}, {"left", left}}))
