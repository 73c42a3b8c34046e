/* What a program reaches of its own memory by other ways than a load: process_vm_readv(2), process_vm_writev(2), /proc/self/mem. */
#include "check.h"
#include <sys/uio.h>

#define SPAN (256 * PAGE)

static uint8_t copy[SPAN];

static int memory(const char *path, int flags) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

static void vm_reads(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    struct iovec local = {copy, SPAN}, remote = {at + 3 * PAGE + 5, SPAN};
    CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == SPAN);
    for (size_t i = 0; i < SPAN; i++) CHECK(copy[i] == pattern(3 * PAGE + 5 + i));
    /* Lists whose entries do not match, an empty one, memory of another kind. */
    char plain[10] = "plain";
    struct iovec locals[3] = {{copy, 7}, {NULL, 0}, {copy + 100, 3 * PAGE}};
    struct iovec remotes[4] = {{at + 1000 * PAGE, PAGE}, {plain, 6}, {at + 5, 0}, {at + 1500 * PAGE + 9, PAGE}};
    CHECK(process_vm_readv(getpid(), locals, 3, remotes, 4, 0) == 2 * PAGE + 6);
    for (size_t i = 0; i < 7; i++) CHECK(copy[i] == pattern(1000 * PAGE + i));
    for (size_t i = 7; i < PAGE; i++) CHECK(copy[93 + i] == pattern(1000 * PAGE + i));
    CHECK(!strcmp((char *)copy + 93 + PAGE, "plain"));
    for (size_t i = 0; i < PAGE; i++) CHECK(copy[99 + PAGE + i] == pattern(1500 * PAGE + 9 + i));
    /* Both sides in the mapping. */
    struct iovec to = {at + 1700 * PAGE, 2 * PAGE}, from = {at + 1800 * PAGE, 2 * PAGE};
    CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 2 * PAGE && at[1701 * PAGE + 1] == pattern(1801 * PAGE + 1));
}

static void vm_writes(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    memset(copy, 'w', SPAN);
    struct iovec local = {copy, SPAN}, remote = {at + 700 * PAGE + 1, SPAN};
    CHECK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == SPAN);
    CHECK(at[700 * PAGE] == pattern(700 * PAGE) && at[700 * PAGE + SPAN + 1] == pattern(700 * PAGE + SPAN + 1));
    for (size_t i = 1; i <= SPAN; i++) CHECK(at[700 * PAGE + i] == 'w');
    for (size_t page = 0; page < 600; page++) at[page * PAGE] = 1;
    CHECK(msync(at, SIZE, MS_SYNC) == 0 && pread(fd, copy, PAGE, 701 * PAGE) == PAGE && copy[17] == 'w');
}

static void vm_errors(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    CHECK(munmap(at + SIZE - 2 * PAGE, 2 * PAGE) == 0);
    struct iovec local = {copy, 4 * PAGE}, remote = {at + SIZE - 4 * PAGE, 4 * PAGE};
    CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 2 * PAGE);
    CHECK(copy[PAGE] == pattern(SIZE - 3 * PAGE));
    remote.iov_base = at + SIZE - PAGE;
    FAILS(process_vm_readv(getpid(), &local, 1, &remote, 1, 0), EFAULT);
    FAILS(process_vm_readv(getpid(), &local, 1, &remote, 1, 1), EINVAL);
    FAILS(process_vm_readv(getpid(), &local, 1, &remote, 1025, 0), EINVAL);
}

static void reads_of(const uint8_t *at, const char *name) {
    int fd = memory(name, O_RDONLY);
    CHECK(pread(fd, copy, SPAN, (off_t)(at + 40 * PAGE + 7)) == SPAN);
    for (size_t i = 0; i < SPAN; i++) CHECK(copy[i] == pattern(40 * PAGE + 7 + i));
    CHECK(lseek(fd, (off_t)(at + 900 * PAGE), SEEK_SET) == (off_t)(at + 900 * PAGE));
    CHECK(read(fd, copy, 100) == 100 && read(fd, copy + 100, PAGE) == PAGE);
    for (size_t i = 0; i < PAGE + 100; i++) CHECK(copy[i] == pattern(900 * PAGE + i));
    struct iovec entries[2] = {{copy, 3}, {copy + 10, PAGE}};
    CHECK(preadv(fd, entries, 2, (off_t)(at + 1200 * PAGE)) == PAGE + 3 && copy[11] == pattern(1200 * PAGE + 4));
    int again = dup(fd);
    CHECK(pread(again, copy, 1, (off_t)(at + 1300 * PAGE)) == 1 && copy[0] == pattern(1300 * PAGE));
    close(fd);
    close(again);
}

static void mem_reads(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    char own[64];
    snprintf(own, sizeof own, "/proc/%d/mem", getpid());
    reads_of(at, "/proc/self/mem");
    for (size_t page = 0; page < 2048; page += 3) CHECK(at[page * PAGE] == pattern(page * PAGE));
    reads_of(at, own);
    for (size_t page = 1; page < 2048; page += 3) CHECK(at[page * PAGE] == pattern(page * PAGE));
    reads_of(at, "/proc/thread-self/mem");
}

static void mem_writes(const char *path) {
    int file = file_of(path, SIZE);
    uint8_t *at = map_all(file);
    int fd = memory("/proc/self/mem", O_RDWR);
    CHECK(pwrite(fd, "Q", 1, (off_t)(at + 300 * PAGE + 3)) == 1 && at[300 * PAGE + 3] == 'Q');
    memset(copy, 'm', SPAN);
    CHECK(lseek(fd, (off_t)(at + 1000 * PAGE), SEEK_SET) > 0 && write(fd, copy, SPAN) == SPAN);
    for (size_t i = 0; i < SPAN; i += 11) CHECK(at[1000 * PAGE + i] == 'm');
    for (size_t page = 0; page < 900; page++) at[page * PAGE] = 1;
    CHECK(msync(at, SIZE, MS_SYNC) == 0 && pread(file, copy, 2 * PAGE, 1100 * PAGE) == 2 * PAGE && copy[5] == 'm');
    CHECK(pread(file, copy, PAGE, 300 * PAGE) == PAGE && copy[3] == 'Q');
    FAILS(pread(fd, copy, 1, 16), EIO);
}

RUN_ONE_OF(((struct test[]){{"vm_reads", vm_reads}, {"vm_writes", vm_writes}, {"vm_errors", vm_errors}, {"mem_reads", mem_reads},
                            {"mem_writes", mem_writes}}))
