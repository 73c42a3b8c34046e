/* Files in memory: msync(2), and what happens to mappings between two of them. Each case stores to pages and has them written. */
#include "check.h"

/* A first store to each of so many pages. */
static void store(uint8_t *at, size_t first, size_t pages) {
    for (size_t page = first; page < first + pages; page++) at[page * PAGE + page % 100] = 200;
}

static void small(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    store(at, 5, 1);
    CHECK(msync(at + 5 * PAGE, PAGE, MS_SYNC) == 0);
    CHECK(msync(at + 5 * PAGE, 1, MS_SYNC) == 0);
    CHECK(msync(at + 5 * PAGE, PAGE, MS_ASYNC) == 0);
    CHECK(msync(at, 0, MS_SYNC) == 0);
    FAILS(msync(at + 1, PAGE, MS_SYNC), EINVAL);
    FAILS(msync(at, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    FAILS(msync(at, PAGE, 64), EINVAL);
    expect_in_file(path, 5 * PAGE + 5, 200);
}

static void large(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE)), *other = map_all(open(path, O_RDWR));
    CHECK(at != other);
    store(at, 5, 3);
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    store(at, 700, 1);
    /* Through another mapping of the file. */
    CHECK(msync(other, SIZE, MS_SYNC | MS_INVALIDATE) == 0);
    CHECK(other[700 * PAGE] == 200 && other[701 * PAGE] == pattern(701 * PAGE));
}

static void parts(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    store(at, 10, 1);
    CHECK(munmap(at + 10 * PAGE, PAGE) == 0); /* writes it */
    expect_in_file(path, 10 * PAGE + 10, 200);
    store(at, 11, 1);
    FAILS(msync(at + 9 * PAGE, 3 * PAGE, MS_SYNC), ENOMEM); /* pages 9 and 11 */
    /* Other memory in the gap is not written, and what may not be read is not touched. */
    CHECK(mmap(at + 10 * PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + 10 * PAGE);
    CHECK(msync(at + 10 * PAGE, PAGE, MS_SYNC) == 0);
    CHECK(mprotect(at + 20 * PAGE, PAGE, PROT_NONE) == 0); /* writes 9 and 11: a flush that brings a page in */
    /* makes it look as if it were stored to. */
    CHECK(msync(at + 20 * PAGE, PAGE, MS_SYNC) == 0);
    CHECK(mprotect(at + 20 * PAGE, PAGE, PROT_READ) == 0 && at[20 * PAGE] == pattern(20 * PAGE));
    CHECK(msync(at + 20 * PAGE, PAGE, MS_SYNC) == 0);
    CHECK(mprotect(at + 30 * PAGE, PAGE, PROT_READ) == 0 && msync(at + 30 * PAGE, PAGE, MS_SYNC) == 0); /* page 30 */
    CHECK(munmap(at, SIZE) == 0); /* and so page 30 again */
    FAILS(msync(at, PAGE, MS_SYNC), ENOMEM);
}

static void moved(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = mmap(NULL, MIB, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    store(at, 3, 1);
    uint8_t *larger = mremap(at, MIB, SIZE, MREMAP_MAYMOVE); /* writes page 3 */
    CHECK(larger != MAP_FAILED && larger[3 * PAGE + 3] == 200);
    CHECK(msync(larger + SIZE - PAGE, PAGE, MS_SYNC) == 0);
    CHECK(munmap(larger, SIZE) == 0);
    at = map_all(fd);
    store(at, 4, 2);
    /* What the kernel forgets of the mapping is in the file. */
    CHECK(madvise(at, SIZE, MADV_DONTNEED) == 0 && at[4 * PAGE + 4] == 200); /* writes pages 4 and 5 */
    CHECK(munmap(at, SIZE) == 0);
    expect_in_file(path, 5 * PAGE + 5, 200);
}

static void child(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    store(at, 5, 1);
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        store(at, 6, 1);
        CHECK(msync(at, SIZE, MS_SYNC) == 0 && msync(at + 6 * PAGE, PAGE, MS_SYNC) == 0);
        CHECK(munmap(at, MIB) == 0 && at[MIB] == pattern(MIB));
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(at[6 * PAGE + 6] == 200 && msync(at + 5 * PAGE, PAGE, MS_SYNC) == 0);
}

static void cut(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    store(at, 0, 100);
    CHECK(ftruncate(fd, 10 * PAGE) == 0);
    CHECK(msync(at + 50 * PAGE, PAGE, MS_SYNC) == 0); /* nothing is there */
    CHECK(msync(at, SIZE, MS_SYNC) == 0); /* ten pages */
    catch_signal(SIGBUS, 0);
    CHECK(raised_by_load(at + 50 * PAGE) == SIGBUS);
    CHECK(ftruncate(fd, SIZE) == 0 && at[50 * PAGE] == 0);
}

static struct test tests[] = {
    {"small", small}, {"large", large}, {"parts", parts}, {"moved", moved}, {"child", child}, {"cut", cut},
};
RUN_ONE_OF(tests)
