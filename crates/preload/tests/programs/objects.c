/* An object at a path, and what a program does with it: PROGRAM CASE PATH. The object is SIZE bytes of the pattern, and TAIL more. The
 * case `verdicts` prints a line for each call; run on an object, and on a plain file of a read-only mount, the lines must be the same. */
#include "check.h"
#include <dirent.h>
#include <libgen.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

#define TAIL 1234ul
#define LEN (SIZE + TAIL)

static char folder[PATH_MAX], name[NAME_MAX + 1];

static int open_it(const char *path) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    return fd;
}

static void expect_all(const uint8_t *at, size_t offset, size_t len) {
    for (size_t i = 0; i < len; i++) CHECK(at[i] == pattern(offset + i));
}

static unsigned seed = 7;
static size_t chance(size_t below) {
    seed = seed * 1103515245 + 12345;
    return (size_t)(seed >> 4) * 4099 % below;
}

/* One line for each call. */
#define R(call)                                                                                     \
    do {                                                                                            \
        errno = 0;                                                                                  \
        long result = (long)(call);                                                                 \
        printf("%s: %ld %s\n", #call, result, result == -1 ? strerrorname_np(errno) : "");          \
    } while (0)
/* One that returns a descriptor or a pointer. */
#define D(call)                                                                                    \
    do {                                                                                            \
        errno = 0;                                                                                  \
        long result = (long)(call);                                                                 \
        printf("%s: %s\n", #call, result < 0 ? strerrorname_np(errno) : "made");                    \
    } while (0)
#define P(call)                                                                                     \
    do {                                                                                            \
        errno = 0;                                                                                  \
        void *result = (void *)(call);                                                              \
        printf("%s: %s\n", #call, result == NULL || result == MAP_FAILED ? strerrorname_np(errno) : "made"); \
    } while (0)

static void facts(const char *path) {
    struct stat a, b, c, d;
    struct statx x;
    int fd = open_it(path), at = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(stat(path, &a) == 0 && lstat(path, &b) == 0 && fstat(fd, &c) == 0 && fstatat(at, name, &d, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x) == 0);
    printf("mode %o, %ld bytes, %ld links\n", a.st_mode, (long)a.st_size, (long)a.st_nlink);
    printf("statx: mode %o, %ld bytes\n", x.stx_mode, (long)x.stx_size);
    CHECK(a.st_ino == b.st_ino && a.st_ino == c.st_ino && a.st_ino == d.st_ino && a.st_ino == x.stx_ino);
    CHECK(a.st_dev == b.st_dev && a.st_dev == c.st_dev && a.st_dev == makedev(x.stx_dev_major, x.stx_dev_minor));
    CHECK(a.st_mtime == c.st_mtime && a.st_mtime == x.stx_mtime.tv_sec && a.st_mode == c.st_mode && a.st_mode == d.st_mode);
    CHECK(a.st_blocks * 512 >= a.st_size && c.st_blocks == a.st_blocks);
    struct statfs fs;
    R(statfs(path, &fs));
    char real[PATH_MAX], *own = realpath(path, NULL);
    CHECK(own != NULL && realpath(path, real) == real && strcmp(real, own) == 0 && strcmp(basename(own), name) == 0);
    free(own);
    close(fd);
    close(at);
}

static void verdicts(const char *path) {
    char other[PATH_MAX + 8], buffer[PATH_MAX], around[PATH_MAX * 2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(around, sizeof around, "%s/./../%s/%s", folder, strrchr(folder, '/') + 1, name);
    int at = open(folder, O_RDONLY | O_DIRECTORY);
    facts(path);

    D(open(path, O_RDONLY));
    D(open(path, O_WRONLY));
    D(open(path, O_RDWR));
    D(open(path, O_RDONLY | O_TRUNC));
    D(open(path, O_RDONLY | O_CREAT, 0600));
    D(open(path, O_RDWR | O_CREAT, 0600));
    D(open(path, O_RDONLY | O_CREAT | O_EXCL, 0600));
    D(open(path, O_RDONLY | O_DIRECTORY));
    D(open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    D(open(path, O_PATH));
    char by_number[64];
    int opened = open(path, O_RDONLY);
    snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", opened);
    D(open(by_number, O_RDONLY));
    D(open(by_number, O_RDWR));
    D(open(by_number, O_WRONLY | O_TRUNC));
    P(fopen(by_number, "a"));
    R(truncate(by_number, 5));
    R(chmod(by_number, 0777));
    R(utimes(by_number, NULL));
    R(linkat(AT_FDCWD, by_number, AT_FDCWD, other, AT_SYMLINK_FOLLOW));
    long attributes = 0x80; /* FS_NOATIME_FL */
    R(ioctl(opened, _IOW('f', 2, long), &attributes));
    close(opened);
    D(openat(at, name, O_RDONLY));
    D(openat(at, name, O_RDWR));
    D(creat(path, 0600));
    D(open(around, O_RDONLY));
    R(chdir(folder));
    D(open(name, O_RDONLY));
    R(access(path, F_OK));
    R(access(path, R_OK));
    R(access(path, W_OK));
    R(access(path, X_OK));
    R(faccessat(at, name, R_OK, 0));
    R(faccessat(at, name, W_OK, 0));
    R(readlink(path, buffer, sizeof buffer));
    R(readlinkat(at, name, buffer, sizeof buffer));
    R(chdir(path));
    P(opendir(path));
    R(truncate(path, 0));
    R(unlink(path));
    R(unlinkat(at, name, 0));
    R(remove(path));
    R(rmdir(path));
    R(rename(path, other));
    R(rename(other, path));
    R(renameat(at, name, at, "other"));
    R(link(path, other));
    R(link(other, path) == -1);
    R(symlink(other, path));
    R(symlinkat(other, at, name));
    R(mkdir(path, 0700));
    R(mkdirat(at, name, 0700));
    R(mkfifo(path, 0600));
    R(mknod(path, S_IFREG | 0600, 0));
    R(chmod(path, 0600));
    R(fchmodat(at, name, 0600, 0));
    R(chown(path, getuid(), -1));
    R(lchown(path, getuid(), -1));
    R(fchownat(at, name, getuid(), -1, 0));
    R(utime(path, NULL));
    R(utimes(path, NULL));
    R(utimensat(at, name, NULL, 0));
    R(getxattr(path, "user.none", buffer, sizeof buffer) == -1);
    R(setxattr(path, "user.one", "1", 1, 0));
    R(removexattr(path, "user.one"));

    int fd = open_it(path);
    R(fchmod(fd, 0600));
    R(fchown(fd, getuid(), -1));
    R(futimens(fd, NULL));
    R(futimes(fd, NULL));
    R(fsetxattr(fd, "user.one", "1", 1, 0));
    R(fremovexattr(fd, "user.one"));
    R(ftruncate(fd, 0));
    R(fallocate(fd, 0, 0, 4096));
    R(posix_fallocate(fd, 0, 4096));
    R(write(fd, "x", 1));
    R(pwrite(fd, "x", 1, 0));
    R(fsync(fd));
    R(flock(fd, LOCK_SH));
    R(flock(fd, LOCK_UN));
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    R(fcntl(fd, F_SETLK, &lock));
    lock.l_type = F_WRLCK;
    R(fcntl(fd, F_SETLK, &lock));
    R(fcntl(fd, F_GETFL) & O_ACCMODE);
    R(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    R(posix_fadvise(fd, 0, 1 << 20, POSIX_FADV_WILLNEED));
    R(readahead(fd, 0, 4096));

    R(read(fd, buffer, 0));
    R(read(fd, buffer, 100));
    R(lseek(fd, 0, SEEK_CUR));
    R(pread(fd, buffer, 100, -1));
    R(pread(fd, buffer, 100, LEN - 10));
    R(pread(fd, buffer, 100, LEN));
    R(pread(fd, buffer, 100, LEN + 100000));
    R(lseek(fd, -10, SEEK_END));
    R(read(fd, buffer, 100));
    R(read(fd, buffer, 100));
    R(lseek(fd, 0, SEEK_CUR));
    R(lseek(fd, 1000, SEEK_END));
    R(read(fd, buffer, 100));
    R(lseek(fd, 0, SEEK_CUR));
    R(lseek(fd, -1, SEEK_SET));
    R(lseek(fd, 5000, SEEK_DATA));
    R(lseek(fd, 5000, SEEK_HOLE));
    R(lseek(fd, LEN - 1, SEEK_DATA));
    R(lseek(fd, LEN, SEEK_DATA));
    R(lseek(fd, LEN, SEEK_HOLE));
    R(lseek(fd, -1, SEEK_DATA));
    R(lseek(fd, LEN - 5000, SEEK_SET));
    struct iovec parts[3] = {{buffer, 1000}, {buffer + 1000, 0}, {other, 10}};
    R(readv(fd, parts, 3));
    R(readv(fd, parts, 0));
    R(preadv(fd, parts, 3, LEN - 500));
    R(preadv(fd, parts, 3, -1));
    R(preadv2(fd, parts, 3, 4000, 0));
    R(preadv2(fd, parts, 3, -1, 0));
    R(preadv2(fd, parts, 3, 0, 1 << 20));
    R(lseek(fd, 0, SEEK_CUR));
    int copy = dup(fd), third = fcntl(fd, F_DUPFD, 100);
    CHECK(dup2(fd, 77) == 77);
    R(read(copy, buffer, 10));
    R(read(third, buffer, 10));
    R(read(77, buffer, 10));
    R(lseek(fd, 0, SEEK_CUR));
    int only_path = open(path, O_PATH);
    R(read(only_path, buffer, 10));
    P(mmap(NULL, 4096, PROT_READ, MAP_SHARED, only_path, 0));

    P(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0));
    P(mmap(NULL, LEN, PROT_READ, MAP_SHARED_VALIDATE, fd, 0));
    P(mmap(NULL, LEN, PROT_READ, MAP_PRIVATE, fd, 0));
    P(mmap(NULL, LEN, RW, MAP_SHARED, fd, 0));
    P(mmap(NULL, LEN, RW, MAP_PRIVATE, fd, 0));
    P(mmap(NULL, LEN, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0));
    P(mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE, fd, 0));
    P(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0));
    P(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 1));
    P(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, -4096));
    P(mmap(NULL, LEN, PROT_READ, 0, fd, 0));
    P(mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 4096));
    P(mmap(NULL, SIZE_MAX & ~(PAGE - 1), PROT_READ, MAP_SHARED, fd, 0));
    uint8_t *map = mmap(NULL, LEN + 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    catch_signal(SIGSEGV, 0);
    catch_signal(SIGBUS, 0);
    R(raised_by_load(map + LEN - 1));
    R(map[LEN]);
    R(raised_by_load(map + LEN + PAGE) == SIGBUS);
    R(raised_by_store(map) == SIGSEGV);
    R(mprotect(map, PAGE, RW) == -1);
    R(madvise(map, LEN, MADV_WILLNEED));
    R(madvise(map, LEN, MADV_RANDOM));
    R(msync(map, LEN, MS_SYNC));
    R(munmap(map, LEN + 2 * PAGE));
    R(raised_by_load(map) == SIGSEGV);

    P(fopen(path, "r"));
    P(fopen(path, "rb"));
    P(fopen(path, "w"));
    P(fopen(path, "a"));
    P(fopen(path, "r+"));
    P(fdopen(dup(fd), "r"));
    P(fdopen(dup(fd), "w"));
    FILE *stream = fopen(path, "r");
    R(fileno(stream) > 2);
    R(fseek(stream, 4000, SEEK_SET));
    R(getc(stream));
    R(ungetc(7, stream));
    R(getc(stream));
    R(ftell(stream));
    R(fread(buffer, 1, 1000, stream));
    R(ftell(stream));
    R(fseek(stream, -5, SEEK_END));
    R(fread(buffer, 1, 1000, stream));
    R(feof(stream));
    R(ferror(stream));
    rewind(stream);
    R(getc(stream));
    R(fputc('x', stream));
    R(fclose(stream));
    R(close(fd));
    R(read(fd, buffer, 1));
}

/* All ways to read have the same bytes. */
static void reading(const char *path) {
    int fd = open_it(path);
    static uint8_t all[LEN + 100];
    for (size_t at = 0; at < LEN;) {
        ssize_t got = read(fd, all + at, 1 + chance(300000));
        CHECK(got > 0);
        at += (size_t)got;
    }
    expect_all(all, 0, LEN);
    CHECK(read(fd, all, 1) == 0);
    for (int i = 0; i < 300; i++) {
        size_t offset = chance(LEN), len = 1 + chance(i % 3 ? 9000 : 400000), expected = len < LEN - offset ? len : LEN - offset;
        size_t off = chance(9);
        CHECK(pread(fd, all + off, len, (off_t)offset) == (ssize_t)expected);
        expect_all(all + off, offset, expected);
        CHECK(lseek(fd, (off_t)offset, SEEK_SET) == (off_t)offset);
        struct iovec parts[4] = {{all, len / 3}, {all + len / 3, 0}, {all + len / 3, len / 2}, {all + len / 3 + len / 2, len - len / 3 - len / 2}};
        CHECK(readv(fd, parts, 4) == (ssize_t)expected && lseek(fd, 0, SEEK_CUR) == (off_t)(offset + expected));
        expect_all(all, offset, expected);
        CHECK(syscall(SYS_pread64, fd, all, len, offset) == (ssize_t)expected);
        expect_all(all, offset, expected);
    }
    /* Programs that move bytes inside the kernel are told to read. */
    int target = open("/tmp", O_TMPFILE | O_RDWR, 0600), pipes[2];
    CHECK(target >= 0 && pipe(pipes) == 0);
    FAILS(sendfile(target, fd, NULL, 4096), EINVAL);
    FAILS(copy_file_range(fd, NULL, target, NULL, 4096, 0), EINVAL);
    FAILS(splice(fd, NULL, pipes[1], NULL, 4096, 0), EINVAL);
    FAILS(flock(fd, LOCK_EX), EBADF);
    /* Into a mapping of the same object, and of a file. */
    CHECK(ftruncate(target, 4 * MIB) == 0);
    uint8_t *into = mmap(NULL, 4 * MIB, RW, MAP_SHARED, target, 0);
    CHECK(into != MAP_FAILED && pread(fd, into + 5, 3 * MIB, 777) == 3 * MIB);
    expect_all(into + 5, 777, 3 * MIB);
}

static void mapping(const char *path) {
    int fd = open_it(path);
    uint8_t *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0), *second = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE, fd, 3 * MIB);
    CHECK(at != MAP_FAILED && second != MAP_FAILED);
    CHECK(close(fd) == 0);
    for (int i = 0; i < 2000; i++) {
        size_t offset = chance(LEN);
        CHECK(at[offset] == pattern(offset));
    }
    expect_all(at, 0, LEN);
    CHECK(at[LEN] == 0);
    expect_all(second, 3 * MIB, MIB);
    fd = open_it(path);
    uint8_t *own = mmap(NULL, LEN, RW, MAP_PRIVATE, fd, 0);
    CHECK(own != MAP_FAILED);
    own[5 * MIB] = (uint8_t)(pattern(5 * MIB) + 1);
    CHECK(own[5 * MIB] != at[5 * MIB]);
    expect_all(own + 5 * MIB + 1, 5 * MIB + 1, MIB);
    /* At a place, over something else. */
    uint8_t *place = mmap(NULL, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mmap(place, MIB / 2, PROT_READ, MAP_SHARED | MAP_FIXED, fd, MIB) == place);
    expect_all(place, MIB, MIB / 2);
    CHECK(place[MIB / 2] == 0);
    CHECK(mmap(place, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == MAP_FAILED && errno == EEXIST);
    /* A system call reads from the mapping. */
    int target = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    static uint8_t back[MIB];
    CHECK(write(target, at + 6 * MIB + 3, MIB) == (ssize_t)MIB && pread(target, back, MIB, 0) == (ssize_t)MIB);
    expect_all(back, 6 * MIB + 3, MIB);
    CHECK(munmap(second, MIB) == 0 && munmap(at, LEN) == 0 && munmap(own, LEN) == 0);
    /* A part goes, the rest stays. */
    at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(munmap(at + MIB, MIB) == 0 && at[0] == pattern(0) && at[2 * MIB] == pattern(2 * MIB));
    CHECK(mprotect(at, LEN, PROT_READ | PROT_WRITE) == -1);
    /* Other memory over a part, locked and touched, and the rest stays; over all of it. */
    CHECK(mlock(at + 3 * MIB, 2 * PAGE) == 0 && at[4 * MIB] == pattern(4 * MIB));
    uint8_t *over = mmap(at + 3 * MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == at + 3 * MIB && over[0] == 0 && over[MIB - 1] == 0);
    memset(over, 5, MIB);
    for (int i = 0; i < 2000; i++) {
        size_t offset = 4 * MIB + chance(LEN - 4 * MIB);
        CHECK(at[offset] == pattern(offset));
    }
    CHECK(at[3 * MIB - 1] == pattern(3 * MIB - 1) && over[0] == 5 && over[MIB - 1] == 5);
    CHECK(mmap(at, LEN, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && at[0] == 0 && at[6 * MIB] == 0);
    at[6 * MIB] = 1;
    CHECK(munmap(at, LEN) == 0);
}

/* Streams have no zeros for what has not come: standard input, too, which `shell` gives. */
static void expect_stream(FILE *stream) {
    for (size_t at = 0; at < LEN; at++) CHECK(getc(stream) == pattern(at));
    CHECK(getc(stream) == EOF && feof(stream));
}
static void from_stdin(const char *path) {
    (void)path;
    CHECK(fileno(stdin) == 0 && getchar() == pattern(0) && ungetc(pattern(0), stdin) == pattern(0));
    expect_stream(stdin);
    rewind(stdin);
    CHECK(getchar() == pattern(0));
}
static void streams(const char *path) {
    FILE *stream = fopen(path, "r");
    CHECK(stream != NULL);
    expect_stream(stream);
    struct stat facts;
    CHECK(fstat(fileno(stream), &facts) == 0 && facts.st_size == (off_t)LEN);
    CHECK(fseeko(stream, 5 * MIB + 17, SEEK_SET) == 0);
    static uint8_t some[MIB];
    CHECK(fread(some, 1, MIB, stream) == MIB && ftello(stream) == (off_t)(6 * MIB + 17));
    expect_all(some, 5 * MIB + 17, MIB);
    CHECK(fclose(stream) == 0);
    stream = fdopen(open_it(path), "r");
    CHECK(stream != NULL && getc(stream) == pattern(0) && fclose(stream) == 0);
    int fd = open_it(path);
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    stream = fopen(link, "r");
    CHECK(stream != NULL);
    expect_stream(stream);
    fclose(stream);
    CHECK(freopen(path, "r", stdin) != NULL);
    expect_stream(stdin);
    fclose(stdin);
}

/* Threads with more than there is room for, by all ways at once. */
static const char *shared_path;
static void *one_thread(void *number) {
    unsigned own = (unsigned)(uintptr_t)number * 7919 + 1;
    int fd = open_it(shared_path);
    uint8_t *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0), some[20000];
    CHECK(at != MAP_FAILED);
    for (int i = 0; i < 400; i++) {
        own = own * 1103515245 + 12345;
        size_t offset = (size_t)(own >> 4) * 4099 % (LEN - sizeof some), len = 1 + own % sizeof some;
        CHECK(at[offset] == pattern(offset));
        CHECK(pread(fd, some, len, (off_t)offset) == (ssize_t)len);
        expect_all(some, offset, len);
    }
    munmap(at, LEN);
    close(fd);
    return NULL;
}
static void threads(const char *path) {
    pthread_t all[8];
    shared_path = path;
    for (uintptr_t i = 0; i < 8; i++) CHECK(pthread_create(&all[i], NULL, one_thread, (void *)i) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(all[i], NULL) == 0);
}

/* Readers that share a position each have bytes of their own; children see maps made before and after. */
static void forks(const char *path) {
    int fd = open_it(path), pipes[2];
    uint8_t *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && at[MIB] == pattern(MIB) && pipe(pipes) == 0);
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            size_t sum = 0;
            static uint8_t some[7000];
            for (ssize_t got; (got = read(fd, some, sizeof some)) != 0;) {
                CHECK(got > 0);
                for (ssize_t j = 0; j < got; j++) sum += some[j];
            }
            CHECK(at[4 * MIB + (size_t)i] == pattern(4 * MIB + (size_t)i));
            expect(at, 0, SIZE);
            int own = open_it(path);
            uint8_t *map = mmap(NULL, MIB, PROT_READ, MAP_SHARED, own, MIB);
            CHECK(map != MAP_FAILED);
            expect_all(map, MIB, MIB);
            /* Advice changes nothing, of what is there and of what is not. */
            CHECK(madvise(at, SIZE, MADV_DONTNEED) == 0 && madvise(map, MIB, MADV_DONTNEED) == 0);
            CHECK(madvise(map, MIB, MADV_FREE) == -1 && madvise(map, MIB, MADV_WIPEONFORK) == -1);
            CHECK(mprotect(map, MIB, PROT_READ | PROT_WRITE) == -1 && errno == EOPNOTSUPP);
            expect_all(map, MIB, MIB);
            expect(at, 0, SIZE);
            int next = dup(own);
            for (int j = 0; j < 50; j++) {
                void *once = mmap(NULL, MIB, PROT_READ, MAP_SHARED, own, 0);
                CHECK(once != MAP_FAILED && munmap(once, MIB) == 0);
            }
            CHECK(close(next) == 0 && dup(own) == next);
            CHECK(write(pipes[1], &sum, sizeof sum) == sizeof sum);
            _exit(0);
        }
    size_t whole = 0, sum = 0, one;
    for (size_t i = 0; i < LEN; i++) whole += pattern(i);
    for (int i = 0, status; i < 4; i++) CHECK(wait(&status) > 0 && status == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(read(pipes[0], &one, sizeof one) == sizeof one);
        sum += one;
    }
    CHECK(sum == whole);
    expect(at, 0, SIZE);
}

/* Programs that are executed have it at the path, and as what they inherit, whatever has been closed before. */
static char own_path[PATH_MAX];
static void execs(const char *path) {
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "%s from_stdin %s < %s && cat < %s | cmp - %s && exec %s reading %s", own_path, path, path, path, path, own_path, path);
    CHECK(system(command) == 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open_it(path);
        CHECK(dup2(fd, 0) == 0);
        closefrom(3);
        for (int i = 3; i < 4096; i++) CHECK(close(i) == -1 && errno == EBADF);
        execl(own_path, own_path, "from_stdin", path, NULL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The lowest numbers are the program's. */
    CHECK(open_it(path) == 3 && open("/dev/null", O_RDONLY) == 4);
    for (int i = 5; i < 700; i++) {
        char link[64], to[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", i);
        CHECK(readlink(link, to, sizeof to - 1) < 0 || strstr(to, "/tier/") == NULL);
    }
}

/* The one that fetches is gone, or does not answer: errors, and SIGBUS, but nobody waits for ever. What is there is there. */
static void fails_with(const char *path, int error) {
    int fd = open_it(path);
    uint8_t *at = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 0), byte, some[8192];
    CHECK(at != MAP_FAILED);
    catch_signal(SIGBUS, 0);
    FAILS(read(fd, &byte, 1), error);
    CHECK(lseek(fd, 0, SEEK_CUR) == 0);
    FAILS(pread(fd, some, sizeof some, 4096), error);
    FILE *stream = fopen(path, "r");
    CHECK(getc(stream) == EOF && ferror(stream) && errno == error);
    for (size_t page = 1; page < 5; page++) CHECK(raised_by_load(at + page * MIB) == SIGBUS && caught_address == at + page * MIB);
    FAILS((long)mmap(NULL, LEN, RW, MAP_PRIVATE, fd, 0), error);
}
static void no_server(const char *path) { fails_with(path, ESHUTDOWN); }
static void no_answer(const char *path) { fails_with(path, ETIMEDOUT); }
static void changed(const char *path) { fails_with(path, ESTALE); }

static struct test tests[] = {
    {"verdicts", verdicts}, {"reading", reading}, {"mapping", mapping}, {"streams", streams}, {"from_stdin", from_stdin}, {"threads", threads},
    {"forks", forks}, {"execs", execs}, {"no_server", no_server}, {"no_answer", no_answer}, {"changed", changed},
};

int main(int argc, char **argv) {
    if (argc != 3 || realpath(argv[0], own_path) == NULL) return 2;
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", argv[2]);
    snprintf(name, sizeof name, "%s", basename(copy));
    snprintf(copy, sizeof copy, "%s", argv[2]);
    snprintf(folder, sizeof folder, "%s", dirname(copy));
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++)
        if (!strcmp(tests[at].name, argv[1])) {
            tests[at].run(argv[2]);
            return 0;
        }
    fprintf(stderr, "no such case\n");
    return 2;
}
