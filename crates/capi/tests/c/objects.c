/* What fastmap.h promises of objects: they are mapped as files are, and what goes wrong is an errno and a text.
 *
 *     objects FOLDER URL     FOLDER on a disk that takes direct I/O; its files are served at URL, until there is a file "dead" in it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fastmap.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, BYTES = 3 * (1 << 20) + 1234 };

static char folder[PATH_MAX / 2], tier[PATH_MAX], server[PATH_MAX / 2];
static struct fm_cache *cache;
static unsigned char content[BYTES];

static char *path_of(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void fill(unsigned seed) {
    for (size_t at = 0; at < BYTES; at++)
        content[at] = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
}

static void make(const char *name, size_t length) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, content, length) != (ssize_t)length || close(fd) != 0)
        abort();
}

static struct fm_url_options options(double deadline) {
    struct fm_url_options options = {cache, tier, 64 << 20, deadline};
    return options;
}

static unsigned char *open_part(const char *name, off_t offset, size_t *length, double deadline) {
    char url[PATH_MAX];
    struct fm_url_options how = options(deadline);
    snprintf(url, sizeof url, "%s/%s", server, name);
    return fm_open_url(url, offset, length, &how);
}

static unsigned char *open_whole(const char *name) {
    size_t length = 0;
    unsigned char *at = open_part(name, 0, &length, 0);
    CHECK(at != MAP_FAILED && length == BYTES);
    return at;
}

/* The errno of an open that must fail; what it says names no secret. */
static int refused(const char *url, off_t offset, size_t length, const struct fm_url_options *how) {
    errno = 0;
    void *at = fm_open_url(url, offset, &length, how);
    if (at != MAP_FAILED)
        return 0;
    return strstr(fm_last_error(), "hunter2") || !*fm_last_error() ? -errno : errno;
}

static struct fm_object_stats stats_of(const void *at) {
    struct fm_object_stats stats;
    CHECK(fm_object_stats(at, &stats, sizeof stats) == 0);
    return stats;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void all_of_it_is_there(void) {
    unsigned char *at = open_whole("data");
    CHECK(memcmp(at, content, BYTES) == 0);
    CHECK(fm_is_cached(at, BYTES) == 1);
    struct fm_object_stats stats = stats_of(at);
    CHECK(stats.fetched >= BYTES && stats.requests > 0 && stats.hit >= BYTES && stats.wrong == 0);
    CHECK(fm_munmap(at, BYTES) == 0);
    CHECK(FAILS(fm_object_stats(at, &stats, sizeof stats), EINVAL));
    /* From the local copy, and a part. */
    size_t length = 5000;
    at = open_part("data", 2 * PAGE, &length, INFINITY);
    CHECK(at != MAP_FAILED && length == 5000 && memcmp(at, content + 2 * PAGE, length) == 0);
    stats = stats_of(at + 100);
    CHECK(stats.fetched == 0 && stats.hit >= length);
    CHECK(FAILS(fm_object_stats(at, NULL, sizeof stats), EFAULT) && FAILS(fm_object_stats(at, &stats, 3), EINVAL));
    CHECK(fm_munmap(at, length) == 0);
    /* Of a file, and in the process's own cache. */
    char url[PATH_MAX];
    struct fm_url_options how = {NULL, tier, 0, 0};
    snprintf(url, sizeof url, "file://%s", path_of("data"));
    length = 0;
    at = fm_open_url(url, 0, &length, &how);
    CHECK(at != MAP_FAILED && length == BYTES && memcmp(at, content, BYTES) == 0);
    CHECK(fm_munmap(at, BYTES) == 0);
}

static void it_is_a_map_like_others(void) {
    unsigned char *at = open_whole("data"), row[300], resident[BYTES / PAGE + 1];
    struct fm_range ranges[] = {{at + 100, 100}, {at + BYTES - 100, 100}, {at + 1000000, 100}};
    CHECK(fm_prefetch(ranges, 3) == 3 && fm_prefetch_wait(ranges, 3) == 0);
    CHECK(fm_gather(ranges, 3, row, 300) == 0);
    CHECK(memcmp(row, content + 100, 100) == 0 && memcmp(row + 100, content + BYTES - 100, 100) == 0 &&
          memcmp(row + 200, content + 1000000, 100) == 0);
    CHECK(fm_read(at + 77, row, 300) == 0 && memcmp(row, content + 77, 300) == 0);
    CHECK(fm_pin(at + 5000, 5000, 0) == 0 && memcmp(at + 5000, content + 5000, 5000) == 0 && fm_unpin(at + 5000, 5000, 0) == 0);
    CHECK(fm_mlock(at, PAGE) == 0 && fm_munlock(at, PAGE) == 0);
    CHECK(fm_mincore(at, BYTES, resident) == 0 && (resident[0] & 1));
    const int advice[] = {MADV_RANDOM, MADV_SEQUENTIAL, FM_MADV_BACKWARD, MADV_WILLNEED, MADV_DONTNEED, MADV_NORMAL};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++)
        CHECK(fm_madvise(at, BYTES, advice[i]) == 0 && memcmp(at, content, BYTES) == 0);
    CHECK(fm_set_readahead(at, 0) == 0 && fm_msync(at, BYTES, MS_SYNC) == 0);
    CHECK(FAILS(fm_write(at, row, 1), EFAULT) && FAILS(fm_pin(at, 1, FM_PIN_WRITE), EFAULT));
    CHECK(FAILS(fm_mprotect(at, BYTES, PROT_READ | PROT_WRITE), EACCES));
    CHECK(fm_munmap(at, 16 * PAGE) == 0 && memcmp(at + 16 * PAGE, content + 16 * PAGE, BYTES - 16 * PAGE) == 0);
    CHECK(stats_of(at + 16 * PAGE).hit > 0);
    CHECK(fm_munmap(at + 16 * PAGE, BYTES - 16 * PAGE) == 0);
}

static void mistakes_are_told(void) {
    char url[PATH_MAX], wrong[PATH_MAX + 16];
    size_t length = 0;
    struct fm_url_options how = options(0);
    snprintf(url, sizeof url, "%s/data", server);
    CHECK(fm_open_url(NULL, 0, &length, &how) == MAP_FAILED && errno == EFAULT);
    CHECK(fm_open_url(url, 0, NULL, &how) == MAP_FAILED && errno == EFAULT);
    CHECK(refused("", 0, 0, &how) == EINVAL && refused("ftp://host/x", 0, 0, &how) == EINVAL);
    CHECK(refused("s3://bucket", 0, 0, &how) == EINVAL && refused(path_of("data"), 0, 0, &how) == EINVAL);
    CHECK(refused("http://host/\xff", 0, 0, &how) == EINVAL);
    CHECK(refused("http://user:hunter2@host/x", 0, 0, &how) == EINVAL);
    CHECK(refused(url, 1, 0, &how) == EINVAL && refused(url, -PAGE, 0, &how) == EINVAL);
    CHECK(refused(url, 0, BYTES + 1, &how) == EINVAL && refused(url, LONG_MAX / PAGE * PAGE, 0, &how) == EINVAL);
    CHECK(refused(url, 0, SIZE_MAX, &how) == EINVAL);
    snprintf(wrong, sizeof wrong, "%s/none", server);
    CHECK(refused(wrong, 0, 0, &how) == ENOENT && strstr(fm_last_error(), wrong));
    snprintf(wrong, sizeof wrong, "%s/empty", server);
    CHECK(refused(wrong, 0, 0, &how) == EINVAL);
    how.deadline = -1;
    CHECK(refused(url, 0, 0, &how) == EINVAL);
    how.deadline = NAN;
    CHECK(refused(url, 0, 0, &how) == EINVAL);
    how = options(0);
    how.tier_limit = 1;
    CHECK(refused(url, 0, 0, &how) == EINVAL);
    how = options(0);
    how.tier = "/dev/null/tier";
    CHECK(refused(url, 0, 0, &how) == ENOTDIR);
    how = options(0);
    how.cache = (struct fm_cache *)wrong;
    CHECK(refused(url, 0, 0, &how) == EINVAL);
    CHECK(refused("http://127.0.0.1:1/x", 0, 0, &how) == EINVAL); /* The cache is looked at first. */
    how = options(1);
    CHECK(refused("http://127.0.0.1:1/x?X-Amz-Signature=hunter2", 0, 0, &how) == ETIMEDOUT);
}

static void a_store_that_does_not_answer_is_waited_for_until_the_deadline(void) {
    unsigned char byte;
    size_t length = 0;
    make("slow", BYTES);
    unsigned char *at = open_part("slow", 0, &length, 1);
    CHECK(at != MAP_FAILED);
    make("dead", 0);
    struct fm_range range = {at, 1};
    double begin = now();
    CHECK(FAILS(fm_read(at, &byte, 1), ETIMEDOUT) && strstr(fm_last_error(), "/slow"));
    CHECK(FAILS(fm_pin(at, 1, 0), ETIMEDOUT) && FAILS(fm_gather(&range, 1, &byte, 1), ETIMEDOUT));
    double seconds = now() - begin;
    CHECK(seconds > 0.9 && seconds < 10);
    char url[PATH_MAX];
    struct fm_url_options how = options(1);
    snprintf(url, sizeof url, "%s/other", server);
    CHECK(refused(url, 0, 0, &how) == ETIMEDOUT);
    /* A load has no other way to say it. */
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        close(2);
        byte = *(volatile unsigned char *)at;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    unlink(path_of("dead"));
    CHECK(fm_read(at, &byte, 1) == 0 && byte == content[0] && memcmp(at, content, BYTES) == 0);
    CHECK(fm_munmap(at, length) == 0);
}

static void an_object_that_changes_is_told_and_never_mixed(void) {
    unsigned char byte;
    make("changing", BYTES);
    unsigned char *at = open_whole("changing"), before = content[BYTES - 1];
    CHECK(at[BYTES - 1] == before);
    fill(7);
    make("changing", BYTES);
    CHECK(at[BYTES - 1] == before);
    CHECK(FAILS(fm_read(at, &byte, 1), ESTALE) && strstr(fm_last_error(), "/changing") && strstr(fm_last_error(), "changed"));
    unsigned char *anew = open_whole("changing");
    CHECK(memcmp(anew, content, BYTES) == 0 && at[BYTES - 1] == before);
    CHECK(fm_munmap(at, BYTES) == 0 && fm_munmap(anew, BYTES) == 0);
}

static void children_have_it_too(void) {
    make("shared", BYTES);
    unsigned char *at = open_whole("shared");
    CHECK(memcmp(at, content, BYTES / 2) == 0);
    pid_t child = fork();
    if (child == 0) {
        unsigned char row[20];
        struct fm_range ranges[] = {{at + BYTES - 10, 10}, {at + 5, 10}};
        struct fm_object_stats stats;
        checked = failed = 0;
        CHECK(memcmp(at, content, BYTES) == 0);
        CHECK(fm_gather(ranges, 2, row, 20) == 0 && memcmp(row, content + BYTES - 10, 10) == 0);
        CHECK(fm_read(at + 99, row, 20) == 0 && memcmp(row, content + 99, 20) == 0);
        CHECK(fm_object_stats(at, &stats, sizeof stats) == 0 && stats.requests > 0);
        /* One of its own, whose parts it fetches itself. */
        make("own", BYTES);
        unsigned char *own = open_whole("own");
        CHECK(memcmp(own, content, BYTES) == 0);
        CHECK(stats_of(own).fetched >= BYTES);
        CHECK(fm_munmap(own, BYTES) == 0 && fm_munmap(at, BYTES) == 0);
        fflush(stdout);
        _exit(failed);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(memcmp(at, content, BYTES) == 0);
    CHECK(fm_munmap(at, BYTES) == 0);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 3)
        return 2;
    snprintf(folder, sizeof folder, "%s", argv[1]);
    snprintf(server, sizeof server, "%s", argv[2]);
    snprintf(tier, sizeof tier, "%s/tier", folder);
    cache = fm_cache_create(1 << 20);
    fill(1);
    make("data", BYTES);
    make("empty", 0);
    all_of_it_is_there();
    it_is_a_map_like_others();
    mistakes_are_told();
    children_have_it_too();
    a_store_that_does_not_answer_is_waited_for_until_the_deadline();
    an_object_that_changes_is_told_and_never_mixed();
    CHECK(fm_cache_destroy(cache) == 0);
    printf("%d checks, %d failed\n", checked, failed);
    return failed > 0;
}
