/* What fastmap.h promises, seen from C: the same errors as the kernel's own calls, and bytes that are there.
 *
 *     conformance FOLDER [engine]     on a disk that takes direct I/O; prints how much was checked, or what failed
 *                                     engine: with a budget named, so that all that can be is the engine's
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fastmap.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, PAGES = 64, BYTES = PAGE * PAGES, RW = PROT_READ | PROT_WRITE };

/* Results as one number: 0 or an errno. An address that is none of ours to keep is unmapped again. */
static int number(int result) { return result == 0 ? 0 : errno; }

static int ours(void *addr, size_t length, int prot, int flags, int fd, off_t offset) {
    errno = 0;
    void *at = fm_mmap(addr, length, prot, flags, fd, offset);
    if (at == MAP_FAILED)
        return errno;
    return fm_munmap(at, length) == 0 ? 0 : -errno;
}

static int theirs(void *addr, size_t length, int prot, int flags, int fd, off_t offset) {
    errno = 0;
    void *at = mmap(addr, length, prot, flags, fd, offset);
    if (at == MAP_FAILED)
        return errno;
    return munmap(at, length) == 0 ? 0 : -errno;
}

/* The same call of both, which must end alike. */
static void same_at(int line, const char *what, int fm, int kernel) {
    checked++;
    if (fm != kernel) {
        failed++;
        printf("line %d: %s: %d (%s), the kernel: %d (%s)\n", line, what, fm, strerror(abs(fm)), kernel,
               strerror(abs(kernel)));
    }
}
#define SAME_MAP(...) same_at(__LINE__, "mmap(" #__VA_ARGS__ ")", ours(__VA_ARGS__), theirs(__VA_ARGS__))
#define SAME(fm, kernel) (errno = 0, same_at(__LINE__, #fm, number(fm), (errno = 0, number(kernel))))

static char folder[PATH_MAX];

static int make(const char *name, int flags, off_t length) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    char page[PAGE];
    for (off_t at = 0; at < length; at += PAGE) {
        memset(page, 'a' + (int)(at / PAGE % 26), sizeof page);
        if (pwrite(fd, page, PAGE, at) != PAGE)
            abort();
    }
    if (ftruncate(fd, length) != 0)
        abort();
    if (flags == O_RDWR)
        return fd;
    close(fd);
    return open(path, flags);
}

static void errors_of_mmap(int fd) {
    int reader = make("reader", O_RDONLY, BYTES), writer = make("writer", O_WRONLY, BYTES);
    int pipes[2], directory = open(folder, O_RDONLY), zero = open("/dev/zero", O_RDWR), closed = dup(fd);
    if (pipe(pipes) != 0)
        abort();
    close(closed);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, 0, RW, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, 1, RW, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, 1);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, 2048);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, -PAGE);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, LONG_MAX / PAGE * PAGE);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, fd, (off_t)BYTES * 4);
    SAME_MAP(NULL, SIZE_MAX, RW, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, SIZE_MAX / 2, RW, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, (size_t)1 << 47, PROT_READ, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, BYTES, RW, 0, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_PRIVATE, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED_VALIDATE, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED_VALIDATE | 1 << 9, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SAME_MAP(NULL, BYTES, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, BYTES, PROT_NONE, MAP_SHARED, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED | MAP_POPULATE, fd, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED | MAP_LOCKED, fd, 0);
    SAME_MAP((void *)1, BYTES, RW, MAP_SHARED, fd, 0);
    SAME_MAP((void *)4097, BYTES, RW, MAP_SHARED | MAP_FIXED, fd, 0);
    SAME_MAP((void *)-PAGE, BYTES, RW, MAP_SHARED | MAP_FIXED, fd, 0);
    SAME_MAP(NULL, BYTES, PROT_READ, MAP_SHARED, reader, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, reader, 0);
    SAME_MAP(NULL, BYTES, PROT_WRITE, MAP_SHARED, writer, 0);
    SAME_MAP(NULL, BYTES, PROT_READ, MAP_SHARED, writer, 0);
    SAME_MAP(NULL, BYTES, PROT_READ, MAP_SHARED, pipes[0], 0);
    SAME_MAP(NULL, BYTES, PROT_READ, MAP_SHARED, pipes[1], 0);
    SAME_MAP(NULL, BYTES, PROT_READ, MAP_SHARED, directory, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, zero, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, closed, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, -1, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, -100, 0);
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED, INT_MAX, 0);
    close(reader), close(writer), close(directory), close(zero), close(pipes[0]), close(pipes[1]);
}

/* Errors on a range, of a cached map and of a kernel mapping beside it. */
static void errors_on_ranges(int fd) {
    int other = make("kernel", O_RDWR, BYTES), reader = make("reader", O_RDONLY, BYTES);
    char *a = fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0);
    char *b = mmap(NULL, BYTES, RW, MAP_SHARED, other, 0);
    CHECK(a != MAP_FAILED && b != MAP_FAILED && fm_is_cached(a, BYTES));
    unsigned char there[PAGES];
    SAME(fm_munmap(a + 1, PAGE), munmap(b + 1, PAGE));
    SAME(fm_munmap(a, 0), munmap(b, 0));
    SAME(fm_munmap(a, SIZE_MAX), munmap(b, SIZE_MAX));
    SAME(fm_munmap(a, SIZE_MAX - PAGE * 4), munmap(b, SIZE_MAX - PAGE * 4));
    SAME(fm_msync(a, BYTES, MS_SYNC), msync(b, BYTES, MS_SYNC));
    SAME(fm_msync(a, BYTES, MS_ASYNC), msync(b, BYTES, MS_ASYNC));
    SAME(fm_msync(a, BYTES, MS_SYNC | MS_ASYNC), msync(b, BYTES, MS_SYNC | MS_ASYNC));
    SAME(fm_msync(a, BYTES, 64), msync(b, BYTES, 64));
    SAME(fm_msync(a + 5, PAGE, MS_SYNC), msync(b + 5, PAGE, MS_SYNC));
    SAME(fm_msync(a, 0, MS_SYNC), msync(b, 0, MS_SYNC));
    SAME(fm_msync(NULL, BYTES, MS_SYNC), msync(NULL, BYTES, MS_SYNC));
    SAME(fm_madvise(a, BYTES, MADV_NORMAL), madvise(b, BYTES, MADV_NORMAL));
    SAME(fm_madvise(a, BYTES, MADV_RANDOM), madvise(b, BYTES, MADV_RANDOM));
    SAME(fm_madvise(a, BYTES, MADV_SEQUENTIAL), madvise(b, BYTES, MADV_SEQUENTIAL));
    SAME(fm_madvise(a, BYTES, MADV_WILLNEED), madvise(b, BYTES, MADV_WILLNEED));
    SAME(fm_madvise(a, BYTES, MADV_DONTNEED), madvise(b, BYTES, MADV_DONTNEED));
    SAME(fm_madvise(a, BYTES, 12345), madvise(b, BYTES, 12345));
    SAME(fm_madvise(a, BYTES, -1), madvise(b, BYTES, -1));
    SAME(fm_madvise(a + 1, BYTES, MADV_NORMAL), madvise(b + 1, BYTES, MADV_NORMAL));
    SAME(fm_madvise(a, 0, MADV_NORMAL), madvise(b, 0, MADV_NORMAL));
    SAME(fm_madvise(NULL, BYTES, MADV_NORMAL), madvise(NULL, BYTES, MADV_NORMAL));
    CHECK(fm_madvise(a, BYTES, FM_MADV_BACKWARD) == 0 && fm_madvise(b, BYTES, FM_MADV_BACKWARD) == 0);
    CHECK(FAILS(fm_madvise(NULL, BYTES, FM_MADV_BACKWARD), ENOMEM));
    SAME(fm_mprotect(a + 1, PAGE, PROT_READ), mprotect(b + 1, PAGE, PROT_READ));
    SAME(fm_mprotect(a, 0, PROT_READ), mprotect(b, 0, PROT_READ));
    SAME(fm_mprotect(a, BYTES, PROT_READ), mprotect(b, BYTES, PROT_READ));
    SAME(fm_mprotect(a, PAGE, 1 << 20), mprotect(b, PAGE, 1 << 20));
    SAME(fm_mprotect(a, BYTES, RW), mprotect(b, BYTES, RW));
    SAME(fm_mprotect(NULL, PAGE, RW), mprotect(NULL, PAGE, RW));
    CHECK(fm_is_cached(a, BYTES));
    SAME(fm_mincore(a, BYTES, there), mincore(b, BYTES, there));
    SAME(fm_mincore(a + 1, PAGE, there), mincore(b + 1, PAGE, there));
    SAME(fm_mincore(a, BYTES, NULL), mincore(b, BYTES, NULL));
    SAME(fm_mincore(NULL, PAGE, there), mincore(NULL, PAGE, there));
    SAME(fm_mlock(a, PAGE), mlock(b, PAGE));
    SAME(fm_mlock(a + 1, PAGE), mlock(b + 1, PAGE));
    SAME(fm_munlock(a, PAGE * 2), munlock(b, PAGE * 2));
    SAME(fm_mlock(NULL, PAGE), mlock(NULL, PAGE));
    SAME(fm_munlock(NULL, PAGE), munlock(NULL, PAGE));
#define MOVED(call) ((call) == MAP_FAILED ? -1 : 0)
    SAME(MOVED(fm_mremap(a + 1, BYTES, PAGE, 0, NULL)), MOVED(mremap(b + 1, BYTES, PAGE, 0)));
    SAME(MOVED(fm_mremap(a, BYTES, 0, 0, NULL)), MOVED(mremap(b, BYTES, 0, 0)));
    SAME(MOVED(fm_mremap(a, BYTES, BYTES, 64, NULL)), MOVED(mremap(b, BYTES, BYTES, 64)));
    SAME(MOVED(fm_mremap(a, BYTES, BYTES, MREMAP_FIXED, b)), MOVED(mremap(b, BYTES, BYTES, MREMAP_FIXED, a)));
    SAME(MOVED(fm_mremap(a, BYTES, BYTES, MREMAP_FIXED | MREMAP_MAYMOVE, a)),
         MOVED(mremap(b, BYTES, BYTES, MREMAP_FIXED | MREMAP_MAYMOVE, b)));
    SAME(MOVED(fm_mremap(NULL, PAGE, PAGE * 2, MREMAP_MAYMOVE, NULL)), MOVED(mremap(NULL, PAGE, PAGE * 2, MREMAP_MAYMOVE)));
    SAME(MOVED(fm_mremap(a, BYTES, BYTES, 0, NULL)), MOVED(mremap(b, BYTES, BYTES, 0)));
    char *c = fm_mmap(NULL, BYTES, PROT_READ, MAP_SHARED, reader, 0);
    char *d = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, reader, 0);
    SAME(fm_mprotect(c, PAGE, RW), mprotect(d, PAGE, RW));
    SAME(fm_munmap(c, BYTES), munmap(d, BYTES));
    /* A part is the kernel's to protect. */
    CHECK(fm_is_cached(a, BYTES));
    SAME(fm_mprotect(a, PAGE, PROT_READ), mprotect(b, PAGE, PROT_READ));
    SAME(fm_mprotect(a, PAGE, RW), mprotect(b, PAGE, RW));
    CHECK(!fm_is_cached(a, PAGE));
    SAME(fm_munmap(a, BYTES), munmap(b, BYTES));
    SAME(fm_munmap(a, BYTES), munmap(b, BYTES)); /* twice is no error */
    SAME(fm_msync(a, BYTES, MS_SYNC), msync(b, BYTES, MS_SYNC));
    SAME(fm_madvise(a, BYTES, MADV_NORMAL), madvise(b, BYTES, MADV_NORMAL));
    SAME(fm_mprotect(a, BYTES, RW), mprotect(b, BYTES, RW));
    SAME(fm_mincore(a, BYTES, there), mincore(b, BYTES, there));
    close(other), close(reader);
}

static void bytes_that_are_there(int fd) {
    struct fm_cache *cache = fm_cache_create(32 * PAGE);
    struct fm_stats stats;
    CHECK(cache != NULL);
    char *a = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK(a != MAP_FAILED && fm_is_cached(a, BYTES) && !fm_is_cached(a, (size_t)1 << 40) && !fm_is_cached(&a, 8));
    CHECK(fm_cache_destroy(cache) == 0 && FAILS(fm_stats(cache, &stats, sizeof stats), EINVAL));
    for (int i = 0; i < PAGES; i++)
        CHECK(a[i * PAGE] == 'a' + i % 26);
    char buffer[2 * PAGE], byte;
    memset(buffer, 0, sizeof buffer);
    CHECK(fm_read(a + PAGE - 1, buffer, 3) == 0 && memcmp(buffer, "abb", 4) == 0);
    CHECK(fm_write(a + PAGE - 1, "xyz", 3) == 0 && a[PAGE - 1] == 'x' && a[PAGE + 1] == 'z');
    /* System calls on pinned memory, both ways. */
    int file = make("beside", O_RDWR, 0);
    CHECK(fm_pin(a, 3 * PAGE, 0) == 0 && fm_pin(a, 3 * PAGE, 0) == 0);
    CHECK(pwrite(file, a, 3 * PAGE, 0) == 3 * PAGE);
    CHECK(fm_unpin(a, 3 * PAGE, 0) == 0 && fm_unpin(a, 3 * PAGE, 0) == 0);
    CHECK(FAILS(fm_unpin(a, 3 * PAGE, 0), EINVAL) && FAILS(fm_unpin(a, 1, 0), EINVAL));
    CHECK(fm_pin(a + 10 * PAGE + 7, 2 * PAGE, FM_PIN_WRITE) == 0);
    CHECK(FAILS(fm_unpin(a + 10 * PAGE + 7, 2 * PAGE, 0), EINVAL));
    CHECK(pread(file, a + 10 * PAGE + 7, 2 * PAGE, 0) == 2 * PAGE);
    CHECK(fm_unpin(a + 10 * PAGE + 7, 2 * PAGE, FM_PIN_WRITE) == 0);
    CHECK(a[10 * PAGE + 7 + PAGE - 1] == 'x' && a[10 * PAGE + 6] == 'k');
    CHECK(FAILS(fm_pin(a, BYTES, 0), ENOMEM) && FAILS(fm_pin(a, PAGE, 6), EINVAL));
    CHECK(FAILS(fm_pin(NULL, PAGE, 0), EFAULT) && FAILS(fm_pin(a, SIZE_MAX, 0), EFAULT));
    CHECK(fm_msync(a, BYTES, MS_SYNC) == 0);
    CHECK(pread(fd, buffer, 3, PAGE - 1) == 3 && memcmp(buffer, "xyz", 3) == 0);
    /* Prefetching: scattered, across maps and other memory. */
    char *anonymous = mmap(NULL, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct fm_range ranges[] = {{a + 40 * PAGE, 1}, {a + 50 * PAGE + 9, PAGE}, {anonymous, BYTES}, {a + 60 * PAGE, 1}};
    CHECK(fm_madvise(a, BYTES, MADV_DONTNEED) == 0);
    CHECK(fm_prefetch(ranges, 0) == 0 && fm_prefetch(NULL, 0) == 0);
    CHECK(fm_prefetch(ranges, 4) > 0);
    CHECK(fm_prefetch_wait(ranges, 4) == 0);
    unsigned char there[PAGES];
    CHECK(fm_mincore(a, BYTES, there) == 0 && there[40] && there[50] && there[51] && there[60]);
    CHECK(!there[20]);
    CHECK(FAILS(fm_prefetch(NULL, 1), EFAULT) && FAILS(fm_prefetch_wait(NULL, 1), EFAULT));
    CHECK(FAILS(fm_prefetch(ranges, SIZE_MAX), EINVAL));
    struct fm_range wrong[] = {{NULL, PAGE}, {a, SIZE_MAX}};
    CHECK(FAILS(fm_prefetch(wrong, 1), ENOMEM) && FAILS(fm_prefetch(wrong + 1, 1), EINVAL));
    /* Gathered: in any order, again, of maps and other memory. */
    memset(anonymous, 'Z', PAGE);
    struct fm_range rows[] = {{a + 41 * PAGE, 2}, {anonymous + 9, 1}, {a + 41 * PAGE - 1, 2}, {a + 3, 0}, {a + 41 * PAGE, 2}};
    CHECK(fm_madvise(a, BYTES, MADV_DONTNEED) == 0);
    CHECK(fm_gather(rows, 5, buffer, 7) == 0 && memcmp(buffer, "ppZoppp", 7) == 0);
    CHECK(fm_gather(NULL, 0, NULL, 0) == 0 && fm_gather(rows + 3, 1, NULL, 0) == 0);
    CHECK(FAILS(fm_gather(rows, 5, buffer, 6), EINVAL) && strstr(fm_last_error(), "fm_gather: ranges of 7 bytes") != NULL);
    CHECK(FAILS(fm_gather(NULL, 1, buffer, 1), EFAULT) && FAILS(fm_gather(rows, 1, NULL, 2), EFAULT));
    CHECK(FAILS(fm_gather(&(struct fm_range){NULL, 8}, 1, buffer, 8), EFAULT));
    CHECK(FAILS(fm_gather(&(struct fm_range){a, SIZE_MAX}, 1, buffer, 8), EINVAL));
    memset(anonymous, 0, PAGE);
    CHECK(fm_set_readahead(a, 0) == 0 && fm_set_readahead(a, SIZE_MAX) == 0 && fm_set_readahead(anonymous, 1) == 0);
    CHECK(FAILS(fm_set_readahead(NULL, 1), ENOMEM));
    /* Copies that cannot be. */
    CHECK(FAILS(fm_read(NULL, buffer, 1), EFAULT) && FAILS(fm_write(NULL, "", 1), EFAULT));
    CHECK(FAILS(fm_read(a, NULL, 1), EFAULT) && FAILS(fm_write(a, NULL, 1), EFAULT) && fm_read(NULL, NULL, 0) == 0);
    CHECK(FAILS(fm_read(a, buffer, SIZE_MAX), EINVAL) && FAILS(fm_read((void *)-8, buffer, 64), EFAULT));
    CHECK(fm_mprotect(a, BYTES, PROT_READ) == 0 && fm_is_cached(a, BYTES) && fm_read(a, &byte, 1) == 0 && byte == 'a');
    CHECK(FAILS(fm_write(a, "q", 1), EFAULT) && FAILS(fm_pin(a, 1, FM_PIN_WRITE), EFAULT) && a[0] == 'a');
    CHECK(fm_mprotect(a, BYTES, RW) == 0 && fm_write(a, "q", 1) == 0 && a[0] == 'q' && fm_is_cached(a, BYTES));
    CHECK(ftruncate(fd, 20 * PAGE) == 0 && FAILS(fm_read(a + 30 * PAGE, buffer, 1), ENXIO));
    CHECK(FAILS(fm_gather(&(struct fm_range){a + 30 * PAGE, 1}, 1, buffer, 1), ENXIO));
    CHECK(FAILS(fm_pin(a + 30 * PAGE, 1, 0), ENXIO) && FAILS(fm_write(a + 30 * PAGE, "q", 1), ENXIO));
    CHECK(strstr(fm_last_error(), "file") != NULL && strstr(fm_last_error(), "fm_write: ") == fm_last_error());
    CHECK(ftruncate(fd, BYTES) == 0 && fm_read(a + 30 * PAGE, buffer, 1) == 0 && buffer[0] == 0);
    CHECK(fm_write(anonymous + 100, a, 2 * PAGE) == 0 && anonymous[100] == 'q');
    CHECK(fm_read(anonymous + 100, a + 5 * PAGE, 1) == 0 && a[5 * PAGE] == 'q');
    /* A range unmapped under its pin; then pinned anew. */
    CHECK(fm_pin(a + PAGE, PAGE, 0) == 0 && fm_munmap(a + PAGE, PAGE) == 0);
    CHECK(!fm_is_cached(a, 2 * PAGE) && FAILS(fm_read(a + PAGE, &byte, 1), EFAULT));
    CHECK(fm_mmap(NULL, PAGE, RW, MAP_SHARED, fd, PAGE) == a + PAGE && fm_pin(a + PAGE, PAGE, 0) == 0);
    CHECK(write(file, a + PAGE, PAGE) == PAGE);
    CHECK(fm_unpin(a + PAGE, PAGE, 0) == 0 && fm_unpin(a + PAGE, PAGE, 0) == 0 && fm_unpin(a + PAGE, PAGE, 0) == -1);
    /* Other memory over a cached map; not if there will be none. */
    CHECK(fm_mmap(a, PAGE, RW, MAP_PRIVATE | MAP_FIXED, 12345, 0) == MAP_FAILED && errno == EBADF && a[0] == 'q');
    const int over = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(fm_pin(a + 50 * PAGE, PAGE, 0) == 0 && fm_pin(a + 2 * PAGE, PAGE, FM_PIN_WRITE) == 0);
    CHECK(FAILS((intptr_t)fm_mmap(a + 2 * PAGE, PAGE, RW, over, -1, 0), EBUSY) && fm_is_cached(a, BYTES) && a[0] == 'q');
    CHECK(fm_unpin(a + 50 * PAGE, PAGE, 0) == 0);
    CHECK(fm_mmap(a + 2 * PAGE, PAGE, RW, over, -1, 0) == a + 2 * PAGE && !fm_is_cached(a, PAGE));
    CHECK(a[2 * PAGE] == 0 && a[0] == 'q' && (a[2 * PAGE] = 'n', fm_read(a + 2 * PAGE, &byte, 1)) == 0 && byte == 'n');
    CHECK(!fm_is_cached(a, PAGE) && fm_mprotect(a, PAGE, PROT_NONE) == 0 && FAILS(fm_read(a, &byte, 1), EFAULT));
    CHECK(fm_munmap(a, BYTES) == 0);
    CHECK(fm_munmap(a, BYTES) == 0 && fm_munmap(a, BYTES) == 0 && munmap(anonymous, BYTES) == 0);
    CHECK(pread(fd, &byte, 1, 5 * PAGE) == 1 && byte == 'q');
    close(file);
}

/* Whether a cache keeps others from storing to the file: it has a lock on a byte far behind the data. */
static int is_locked_by_cache(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = INT64_MAX - 1, .l_len = 1};
    CHECK(fcntl(fd, F_OFD_GETLK, &lock) == 0);
    return lock.l_type != F_UNLCK;
}

static void caches(int fd) {
    struct fm_cache *cache = fm_cache_create(1 << 20);
    struct fm_stats stats;
    CHECK(fm_cache_create(1) == NULL && errno == EINVAL && strstr(fm_last_error(), "too small") != NULL);
    CHECK(FAILS(fm_cache_resize((struct fm_cache *)&stats, 1 << 20), EINVAL) && FAILS(fm_cache_destroy(NULL), EINVAL));
    CHECK(FAILS(fm_cache_resize(cache, 0), EINVAL) && FAILS(fm_cache_resize(cache, SIZE_MAX), EINVAL));
    char *a = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED | FM_MAP_MANY_WRITERS, fd, 0);
    for (int i = 0; i < PAGES; i++)
        a[i * PAGE] = 1;
    CHECK(fm_stats(cache, &stats, sizeof stats) == 0 && stats.capacity == 1 << 20 && stats.dirty_pages > 0);
    CHECK(fm_pin(a, 20 * PAGE, 0) == 0 && FAILS(fm_cache_resize(cache, 16 * PAGE), EBUSY));
    CHECK(fm_unpin(a, 20 * PAGE, 0) == 0 && fm_cache_resize(cache, 16 * PAGE) == 0);
    CHECK(fm_stats(cache, &stats, sizeof stats) == 0 && stats.resident_pages <= 16 && stats.evicted_pages >= 48);
    CHECK(fm_mmap_in((struct fm_cache *)16384, NULL, BYTES, RW, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(fm_mmap(NULL, BYTES, RW, MAP_PRIVATE | FM_MAP_CACHED, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP);
    CHECK(fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, -1, 0) == MAP_FAILED && errno == EBADF);
    CHECK(!is_locked_by_cache(fd) && fm_munmap(a, BYTES) == 0);
    for (int many = 0; many < 2; many++) {
        a = fm_mmap_in(cache, NULL, BYTES, PROT_READ, MAP_SHARED | (many ? FM_MAP_MANY_WRITERS : 0), fd, 0);
        CHECK(fm_is_cached(a, BYTES) && !is_locked_by_cache(fd) && fm_mprotect(a, BYTES, RW) == 0);
        CHECK(is_locked_by_cache(fd) == !many && fm_munmap(a, BYTES) == 0);
    }
    CHECK(fm_cache_destroy(cache) == 0 && FAILS(fm_cache_destroy(cache), EINVAL));
    CHECK(fm_stats(NULL, &stats, sizeof stats) == 0 && stats.capacity >= 16 * PAGE);
}

/* Stores to absent pages that do not wait: kept, and over an initial value. */
static void stores_that_do_not_wait(void) {
    struct fm_cache *cache = fm_cache_create(256 * PAGE);
    struct fm_stats stats;
    unsigned char line[FM_LINE], other[FM_LINE];
    memset(line, 0xEE, sizeof line);
    memset(other, 0xDD, sizeof other);
    int fd = make("kept", O_RDWR, BYTES), reading = make("kept", O_RDONLY, BYTES);
    volatile char *a = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED | FM_MAP_ASYNC_STORES | FM_MAP_CACHED, fd, 0);
    CHECK((void *)a != MAP_FAILED);
    for (int i = 0; i < PAGES; i++)
        a[i * PAGE + 100] = 'K';
    CHECK(fm_stats(cache, &stats, sizeof stats) == 0 && !fm_is_initial((char *)a));
    for (int i = 0; i < PAGES; i++)
        CHECK(a[i * PAGE + 100] == 'K' && a[i * PAGE + 99] == 'a' + i % 26 && a[i * PAGE + 101] == 'a' + i % 26);
    CHECK(fm_msync((char *)a, BYTES, MS_SYNC) == 0 && fm_synchronise((char *)a, BYTES) == 0);
    char byte;
    CHECK(pread(fd, &byte, 1, 7 * PAGE + 100) == 1 && byte == 'K');
    CHECK(fm_munmap((char *)a, BYTES) == 0);

    a = fm_mmap_in(cache, NULL, BYTES, RW, MAP_SHARED, fd, 0);
    CHECK((void *)a != MAP_FAILED && fm_async_read((char *)a, BYTES, line) == 0);
    CHECK(fm_async_read((char *)a + PAGE, PAGE, line) == 0 && FAILS(fm_async_read((char *)a, BYTES, other), EINVAL));
    CHECK(FAILS(fm_async_read((char *)a, BYTES, NULL), EFAULT) && FAILS(fm_async_read((char *)a + 1, PAGE, line), EINVAL));
    CHECK(FAILS(fm_async_read((char *)a, SIZE_MAX, line), EINVAL) && FAILS(fm_synchronise((char *)a, SIZE_MAX), EINVAL));
    for (int i = 0; i < PAGES; i++)
        for (int at = 0; at < FM_LINE; at++)
            a[i * PAGE + FM_LINE + at] = 'I';
    for (int i = 0; i < PAGES; i++) {
        char *next = (char *)a + i * PAGE + 2 * FM_LINE;
        CHECK(!fm_is_initial(next) || fm_synchronise(next, FM_LINE) == 0);
        CHECK(a[i * PAGE + FM_LINE] == 'I' && a[i * PAGE + 2 * FM_LINE] == 'a' + i % 26);
        CHECK(!fm_is_initial((char *)a + i * PAGE + 2 * FM_LINE) && !fm_is_initial((char *)a + i * PAGE + FM_LINE));
    }
    CHECK(fm_stats(cache, &stats, sizeof stats) == 0 && fm_is_initial(line) == 0 && fm_is_initial(NULL) == 0);
    CHECK(fm_msync((char *)a, BYTES, MS_SYNC) == 0 && fm_munmap((char *)a, BYTES) == 0);
    CHECK(pread(fd, &byte, 1, 9 * PAGE + FM_LINE + 5) == 1 && byte == 'I');
    CHECK(pread(fd, &byte, 1, 9 * PAGE + 4 * FM_LINE) == 1 && byte == 'a' + 9);

    /* While nobody has the file open to write. */
    CHECK(close(fd) == 0);
    char *b = fm_mmap_in(cache, NULL, BYTES, PROT_READ, MAP_SHARED, reading, 0);
    CHECK(b != MAP_FAILED && FAILS(fm_async_read(b, BYTES, line), EINVAL) && fm_synchronise(b, BYTES) == 0);
    CHECK(fm_munmap(b, BYTES) == 0 && fm_cache_destroy(cache) == 0);
    /* Memory of the kernel's stays what it is. */
    char *anonymous = mmap(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fm_async_read(anonymous, PAGE, line) == 0 && !fm_is_initial(anonymous) && fm_synchronise(anonymous, PAGE) == 0);
    /* The flag is none of the kernel's. */
    SAME_MAP(NULL, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << 26, -1, 0);
    CHECK(munmap(anonymous, PAGE) == 0);
    close(reading);
}

/* A child has kernel mappings at the same places, whoever made it know nothing of them. */
static void children(int fd) {
    char *a = fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0);
    char *b = fm_mmap(NULL, BYTES, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && fm_is_cached(a, BYTES));
    memset(a, 'p', 10 * PAGE);
    b[0] = 'p';
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fine = a[9 * PAGE] == 'p' && b[0] == 'p' && !fm_is_cached(a, BYTES);
        a[40 * PAGE] = 'c';
        fine &= fm_cache_create(1 << 20) == NULL && errno == ENOSYS && strstr(fm_last_error(), "fork") != NULL;
        fine &= fm_msync(a, BYTES, MS_SYNC) == 0 && fm_munmap(a, PAGE) == 0;
        char *again = fm_mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 40 * PAGE);
        fine &= again != MAP_FAILED && *again == 'c' && !fm_is_cached(again, PAGE);
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(a[9 * PAGE] == 'p' && a[40 * PAGE] == 'c' ? 0 : 1);
        int status;
        fine &= waitpid(grandchild, &status, 0) == grandchild && status == 0;
        _exit(fine ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* What the child has touched is the kernel's in both, for good. */
    CHECK(a[40 * PAGE] == 'c' && !fm_is_cached(a, BYTES));
    a[0] = 'l';
    CHECK(fm_munmap(a, BYTES) == 0 && fm_munmap(b, BYTES) == 0);
    char byte;
    CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'l');
}

/* A file in memory, made to last by cache line. */
static void direct_maps(int on_disk) {
    char path[] = "/dev/shm/fastmap-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) {
        printf("skipped: no file in /dev/shm\n");
        return;
    }
    unlink(path);
    if (ftruncate(fd, 2 * 1024 * 1024) != 0)
        abort();
    const int lines = MAP_SHARED | FM_MAP_CACHE_LINES;
    CHECK(FAILS((intptr_t)fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_DIRECT, on_disk, 0), EOPNOTSUPP) ||
          FAILS((intptr_t)fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_DIRECT, on_disk, 0), ENOSYS));
    CHECK(FAILS((intptr_t)fm_mmap(NULL, BYTES, RW, MAP_PRIVATE | FM_MAP_DIRECT, fd, 0), EOPNOTSUPP));
    CHECK(FAILS((intptr_t)fm_mmap(NULL, BYTES, RW, lines | FM_MAP_DIRECT | FM_MAP_CACHED, fd, 0), EINVAL));
    SAME_MAP(NULL, BYTES, RW, MAP_SHARED | FM_MAP_DIRECT, fd, 0);
    char *plain = fm_mmap(NULL, 2 * 1024 * 1024, RW, MAP_SHARED | FM_MAP_DIRECT, fd, 0);
    char *at = fm_mmap(NULL, 2 * 1024 * 1024, RW, lines, fd, 0);
    CHECK(plain != MAP_FAILED && at != MAP_FAILED && plain != at && !fm_is_cached(at, 1));
    at[5 * PAGE] = 'x';
    CHECK(plain[5 * PAGE] == 'x');
    uint64_t before = fm_flushed_bytes();
    CHECK(fm_msync(plain, 2 * 1024 * 1024, MS_SYNC) == 0 && fm_flushed_bytes() == before);
    CHECK(fm_msync(at + 5 * PAGE, PAGE, MS_SYNC) == 0 && fm_flushed_bytes() == before + PAGE);
    CHECK(fm_msync(at, 2 * 1024 * 1024, MS_SYNC) == 0 && fm_flushed_bytes() >= before + 2 * PAGE);
    CHECK(FAILS(fm_msync(at + 1, PAGE, MS_SYNC), EINVAL));
    CHECK(FAILS(fm_msync(at, PAGE, 64), EINVAL));
    /* What is unmapped, or may not be read, is the kernel's to tell. */
    CHECK(fm_munmap(at + PAGE, PAGE) == 0 && FAILS(fm_msync(at, 3 * PAGE, MS_SYNC), ENOMEM));
    CHECK(fm_mprotect(at + 4 * PAGE, PAGE, PROT_NONE) == 0 && fm_msync(at + 4 * PAGE, PAGE, MS_SYNC) == 0);
    before = fm_flushed_bytes();
    CHECK(fm_msync(at + 8 * PAGE, PAGE, MS_SYNC) == 0 && fm_flushed_bytes() == before + PAGE);
    pid_t child = fork();
    if (child == 0)
        _exit(fm_msync(at + 8 * PAGE, PAGE, MS_SYNC) != 0 || fm_flushed_bytes() != before + PAGE);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char *moved = fm_mremap(at + 8 * PAGE, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE, NULL);
    before = fm_flushed_bytes();
    CHECK(moved != MAP_FAILED && fm_msync(moved, PAGE, MS_SYNC) == 0 && fm_flushed_bytes() == before + PAGE);
    CHECK(fm_munmap(moved, 64 * PAGE) == 0 && fm_munmap(at, 2 * 1024 * 1024) == 0);
    CHECK(fm_munmap(plain, 2 * 1024 * 1024) == 0 && FAILS(fm_msync(at, PAGE, MS_SYNC), ENOMEM));
    close(fd);
}

/* Whether another process finds the first byte of a file locked. */
static int is_locked(const char *path) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
        /* Only to read it: one that opens it to write would take it from the cache. */
        int fd = open(path, O_RDONLY);
        _exit(fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The program's record locks are its own to give up: no call closes a descriptor of a file that has some. */
static void record_locks(void) {
    char path[PATH_MAX + 64];
    int fd = make("locks", O_RDWR, BYTES);
    snprintf(path, sizeof path, "%s/locks", folder);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && is_locked(path));
    for (int round = 0; round < 3; round++) {
        char *at = fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0);
        CHECK(at != MAP_FAILED && is_locked(path));
        at[5] = (char)round;
        CHECK(fm_msync(at, BYTES, MS_SYNC) == 0 && is_locked(path));
        char *again = fm_mmap(NULL, BYTES, RW, MAP_SHARED | FM_MAP_CACHED, fd, 0);
        CHECK(again == at && fm_munmap(again, BYTES) == 0 && is_locked(path));
        CHECK(fm_munmap(at, BYTES) == 0 && is_locked(path));
        /* For reading, and made writable later: another descriptor is kept for that. */
        char *read_only = fm_mmap(NULL, BYTES, PROT_READ, MAP_SHARED | FM_MAP_CACHED, fd, 0);
        CHECK(read_only != MAP_FAILED && read_only[5] == round && fm_mprotect(read_only, BYTES, RW) == 0);
        read_only[6] = 1;
        CHECK(fm_munmap(read_only, BYTES) == 0 && is_locked(path));
    }
    close(fd);
    CHECK(!is_locked(path));
}

/* How many threads of this process steer. */
static int steering_threads(void) {
    int found = 0;
    DIR *all = opendir("/proc/self/task");
    for (struct dirent *thread; (thread = readdir(all)) != NULL;) {
        char path[PATH_MAX], name[16] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread->d_name);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        found += fscanf(file, "%15s", name) == 1 && strcmp(name, "fastmap-steer") == 0;
        fclose(file);
    }
    closedir(all);
    return found;
}

/* No map of the kernel's is steered unasked. A second call starts no second thread; a child has none of its parent's. */
static void steering(void) {
    int fd = make("steered", O_RDONLY, BYTES);
    char *at = fm_mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED && steering_threads() == 0);
    fm_steer();
    fm_steer();
    /* A thread names itself. */
    for (int tries = 0; tries < 1000 && steering_threads() == 0; tries++)
        usleep(10000);
    CHECK(steering_threads() == 1 && at[PAGE] == 'b');
    pid_t child = fork();
    if (child == 0) {
        int before = steering_threads();
        fm_steer();
        for (int tries = 0; tries < 1000 && steering_threads() == 0; tries++)
            usleep(10000);
        _exit(before != 0 || steering_threads() != 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(fm_munmap(at, BYTES) == 0);
    close(fd);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    snprintf(folder, sizeof folder, "%s", argv[1]);
    CHECK(*fm_last_error() == '\0');
    struct fm_stats own;
    CHECK(argc == 2 || fm_cache_resize(NULL, 16 << 20) == 0);
    CHECK(fm_stats(NULL, &own, sizeof own) == 0 && (argc == 2) == (own.capacity != 16 << 20));
    int fd = make("file", O_RDWR, BYTES);
    errors_of_mmap(fd);
    errors_on_ranges(fd);
    bytes_that_are_there(fd);
    caches(fd);
    stores_that_do_not_wait();
    children(fd);
    direct_maps(fd);
    record_locks();
    steering();
    close(fd);
    printf("%d checks, %d failed\n", checked, failed);
    return failed > 0;
}
