/* mmap(2) and its kin, by the manual pages. */
#include "check.h"
#include <sched.h>

static void unmap_whole(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    expect(at, 0, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) at[i] = (uint8_t)(i / PAGE);
    CHECK(munmap(at, SIZE) == 0);
    uint8_t byte;
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(pread(fd, &byte, 1, (off_t)i) == 1 && byte == (uint8_t)(i / PAGE));
    /* Nothing of it is there any more, to be had or to be touched. */
    catch_signal(SIGSEGV, 0);
    CHECK(is_gone(at + PAGE, 1));
    /* Nothing else is there, either, unless a thread of the library is quicker: not each time. */
    for (int tries = 0; raised_by_load(at) != SIGSEGV || caught_code != SEGV_MAPERR; tries++) {
        CHECK(tries < 100);
        at = map_all(fd);
        CHECK(at[PAGE] == 1 && munmap(at, SIZE) == 0);
    }
    at = map_all(fd);
    CHECK(at[PAGE] == 1 && at[5 * PAGE] == 5);
}

static void unmap_part(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    for (size_t i = 0; i < SIZE; i += PAGE) at[i] = 77;
    CHECK(munmap(at + 2 * MIB, 3 * MIB) == 0);
    CHECK(at[0] == 77 && at[2 * MIB - PAGE] == 77 && at[5 * MIB] == 77);
    catch_signal(SIGSEGV, 0);
    CHECK(is_gone(at + 2 * MIB, 77) && is_gone(at + 5 * MIB - PAGE, 77));
    /* Unmapping nothing is no error. */
    CHECK(munmap(at + 2 * MIB, MIB) == 0);
    /* A length is rounded up. */
    CHECK(munmap(at, 1) == 0);
    CHECK(is_gone(at, 77) && raised_by_load(at + PAGE) == 0);
    expect_in_file(path, 3 * MIB, 77);
    CHECK(munmap(at + PAGE, SIZE - PAGE) == 0);
    expect_in_file(path, SIZE - PAGE, 77);
}

static void unmap_across(const char *path) {
    /* Kernel memory, a map, kernel memory, side by side. */
    uint8_t *room = mmap(NULL, SIZE + 4 * MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    memset(room, 5, SIZE + 4 * MIB);
    int fd = file_of(path, SIZE);
    uint8_t *at = mmap(room + 2 * MIB, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0);
    CHECK(at == room + 2 * MIB);
    expect(at, 0, SIZE);
    at[0] = 9;
    CHECK(munmap(room + MIB, 2 * MIB) == 0);
    CHECK(munmap(room + SIZE + MIB, 2 * MIB) == 0);
    expect(at + MIB, MIB, SIZE - 2 * MIB);
    CHECK(room[MIB - 1] == 5 && room[SIZE + 3 * MIB] == 5);
    catch_signal(SIGSEGV, 0);
    expect_in_file(path, 0, 9);
    CHECK(is_gone(room + MIB, 5) && is_gone(at, 9));
    CHECK(is_gone(at + SIZE - 1, pattern(SIZE - 1)) && is_gone(at + SIZE, 5));
    CHECK(munmap(room, SIZE + 4 * MIB) == 0);
    CHECK(is_gone(at + 2 * MIB, pattern(2 * MIB)) && is_gone(room, 5));
}

static void fixed_over(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    at[MIB] = 200;
    at[3 * MIB] = 201;
    /* Anonymous memory over the middle. */
    CHECK(mmap(at + MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + MIB);
    CHECK(at[MIB] == 0 && at[2 * MIB - 1] == 0);
    memset(at + MIB, 1, MIB);
    expect(at, 0, MIB);
    expect(at + 2 * MIB, 2 * MIB, MIB);
    expect_in_file(path, MIB, 200);
    CHECK(at[MIB] == 1 && at[3 * MIB] == 201);
    FAILS(mmap(at, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), EEXIST);
    CHECK(munmap(at, SIZE) == 0);
    catch_signal(SIGSEGV, 0);
    CHECK(is_gone(at + MIB, 1) && is_gone(at, pattern(0)));
}

static void fixed_under(const char *path) {
    uint8_t *room = mmap(NULL, 2 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    int fd = file_of(path, SIZE);
    CHECK(mmap(room + MIB, SIZE - MIB, RW, MAP_SHARED | MAP_FIXED, fd, MIB) == room + MIB);
    expect(room + MIB, MIB, SIZE - MIB);
    /* The same bytes at the same place once more change nothing. */
    room[2 * MIB] = 99;
    CHECK(mmap(room + MIB, SIZE - MIB, RW, MAP_SHARED | MAP_FIXED, fd, MIB) == room + MIB);
    CHECK(room[2 * MIB] == 99);
    /* The file at another place as well: both show the same. */
    uint8_t *other = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(other != MAP_FAILED && other[2 * MIB] == 99);
    other[2 * MIB] = 98;
    room[3 * MIB] = 97;
    CHECK(room[2 * MIB] == 98 && other[3 * MIB] == 97);
    /* Another file over it. */
    char name[512];
    snprintf(name, sizeof name, "%s.other", path);
    int fd2 = file_of(name, SIZE);
    CHECK(mmap(room + MIB, SIZE - MIB, RW, MAP_SHARED | MAP_FIXED, fd2, 0) == room + MIB);
    expect(room + MIB, 0, SIZE - MIB);
    room[MIB] = 96;
    CHECK(other[MIB] == pattern(MIB));
    CHECK(munmap(room, 2 * SIZE) == 0 && munmap(other, SIZE) == 0);
    expect_in_file(path, 2 * MIB, 98);
    expect_in_file(path, 3 * MIB, 97);
    expect_in_file(name, 0, 96);
    unlink(name);
}

static void remap(const char *path) {
    int fd = file_of(path, 2 * SIZE);
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    at[PAGE] = 123;
    uint8_t *larger = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    CHECK(larger != MAP_FAILED && larger[PAGE] == 123);
    larger[PAGE] = pattern(PAGE);
    expect(larger, 0, 2 * SIZE);
    larger[SIZE + MIB] = 45;
    uint8_t *smaller = mremap(larger, 2 * SIZE, MIB, 0);
    CHECK(smaller == larger && smaller[3] == pattern(3));
    catch_signal(SIGSEGV, 0);
    CHECK(is_gone(smaller + MIB, pattern(MIB)));
    expect_in_file(path, SIZE + MIB, 45);
    /* To a place of the program's choice. */
    uint8_t *room = mmap(NULL, 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    smaller[7] = 46;
    CHECK(mremap(smaller, MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    CHECK(room[7] == 46 && is_gone(smaller, pattern(0)));
    room[7] = pattern(7);
    expect(room, 0, 2 * MIB);
    FAILS(mremap(room, 2 * MIB, 0, MREMAP_MAYMOVE), EINVAL);
    FAILS(mremap(room + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EINVAL);
    CHECK(munmap(room, 2 * MIB) == 0);
}

static void protect(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    at[0] = 3;
    CHECK(mprotect(at, MIB, PROT_READ) == 0);
    catch_signal(SIGSEGV, 0);
    CHECK(at[0] == 3);
    CHECK(raised_by_store(at) == SIGSEGV && caught_code == SEGV_ACCERR && caught_address == at);
    CHECK(raised_by_store(at + MIB - 1) == SIGSEGV && raised_by_store(at + MIB) == 0);
    CHECK(mprotect(at, 2 * PAGE, PROT_NONE) == 0);
    CHECK(raised_by_load(at + PAGE) == SIGSEGV && raised_by_load(at + 2 * PAGE) == 0);
    CHECK(mprotect(at, SIZE, RW) == 0);
    CHECK(at[0] == 3 && raised_by_store(at + PAGE) == 0 && at[PAGE] == 1);
    FAILS(mprotect(at + 1, PAGE, PROT_READ), EINVAL);
    CHECK(munmap(at, SIZE) == 0);
    /* A map that may only be read: of a descriptor that may write, it can be made writable. */
    at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at[0] == 3 && raised_by_store(at) == SIGSEGV);
    CHECK(mprotect(at, SIZE, RW) == 0 && raised_by_store(at + 5) == 0);
    CHECK(munmap(at, SIZE) == 0);
    int reading = open(path, O_RDONLY);
    at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, reading, 0);
    FAILS(mprotect(at, SIZE, RW), EACCES);
    CHECK(at[5] == 1 && raised_by_store(at) == SIGSEGV);
}

static void residency(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    unsigned char there[SIZE / PAGE];
    at[PAGE] = 1;
    CHECK(mincore(at, SIZE, there) == 0);
    CHECK(there[1] & 1);
    FAILS(mincore(at + 1, PAGE, there), EINVAL);
    CHECK(munmap(at, SIZE) == 0);
    FAILS(mincore(at, SIZE, there), ENOMEM);
}

static void locking(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    unsigned char there[4];
    CHECK(mlock(at + PAGE, 2 * PAGE) == 0);
    expect(at, 0, SIZE);
    CHECK(mincore(at, 4 * PAGE, there) == 0);
    CHECK((there[1] & 1) && (there[2] & 1));
    CHECK(munlock(at + PAGE, 2 * PAGE) == 0);
    CHECK(mlock2(at, PAGE, 0) == 0 && munlockall() == 0);
    if (mlockall(MCL_CURRENT) == 0) {
        expect(at, 0, SIZE);
        at[9] = 9;
        CHECK(munlockall() == 0);
    }
    CHECK(munmap(at, SIZE) == 0);
}

static void two_maps(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *one = map_all(fd), *other = map_all(fd);
    one[0] = 10;
    CHECK(other[0] == 10);
    other[SIZE - 1] = 11;
    CHECK(one[SIZE - 1] == 11);
    close(fd);
    CHECK(munmap(one, SIZE) == 0);
    CHECK(other[0] == 10);
    other[1] = 12;
    CHECK(munmap(other, SIZE) == 0);
    expect_in_file(path, 0, 10);
    expect_in_file(path, 1, 12);
    expect_in_file(path, SIZE - 1, 11);
}

/* Calls that move a whole mapping at once end with all of it, also if the mapping changes hands meanwhile. */
static void whole_calls(const char *path) {
    char copied_to[4096];
    snprintf(copied_to, sizeof copied_to, "%s.copy", path);
    int fd = file_of(path, SIZE), copy = open(copied_to, O_RDWR | O_CREAT | O_TRUNC, 0600);
    FILE *stream = fopen(copied_to, "r+");
    uint8_t *at = map_all(fd);
    CHECK(copy >= 0 && stream);
    for (int round = 0; round < 24; round++) {
        at[round * PAGE] = (uint8_t)round;
        errno = 0;
        switch (round % 6) {
        case 0: CHECK(pwrite(copy, at, SIZE, 0) == (ssize_t)SIZE); break;
        case 1: CHECK(lseek(copy, 0, SEEK_SET) == 0 && write(copy, at, SIZE) == (ssize_t)SIZE); break;
        case 2: rewind(stream); CHECK(fwrite(at, 8, SIZE / 8, stream) == SIZE / 8 && fflush(stream) == 0 && !ferror(stream)); break;
        case 3: CHECK(pread(copy, at, SIZE, 0) == (ssize_t)SIZE); break;
        case 4: CHECK(lseek(copy, 0, SEEK_SET) == 0 && read(copy, at, SIZE) == (ssize_t)SIZE); break;
        case 5: rewind(stream); CHECK(fread(at, 8, SIZE / 8, stream) == SIZE / 8 && !ferror(stream)); break;
        }
        /* Those that read bring back what the first three have written. */
        int last = round % 6 < 3 ? round : round / 6 * 6 + 2;
        static uint8_t page[PAGE];
        for (size_t i = 0; i < SIZE; i += PAGE) {
            CHECK(pread(copy, page, PAGE, (off_t)i) == PAGE && memcmp(page, at + i, PAGE) == 0);
            size_t number = i / PAGE;
            int changed = number <= (size_t)last && (number % 6 < 3);
            CHECK(page[0] == (changed ? (uint8_t)number : pattern(i)));
        }
    }
    fclose(stream);
    close(copy);
    close(fd);
    CHECK(munmap(at, SIZE) == 0 && unlink(copied_to) == 0);
}

enum { RECORDS = 100000 };
static FILE *shared_stream;

static void *take_records(void *at) {
    uint64_t *next = at;
    while (fread(next, sizeof *next, 1, shared_stream) == 1) next++;
    return next;
}

/* Two threads read records from one stream into mappings: each record comes to one of them, whole. */
static void one_stream(const char *path) {
    char records[4096];
    snprintf(records, sizeof records, "%s.records", path);
    FILE *out = fopen(records, "w");
    for (uint64_t i = 0; i < RECORDS; i++) CHECK(fwrite(&i, sizeof i, 1, out) == 1);
    CHECK(fclose(out) == 0 && (shared_stream = fopen(records, "r")));
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd), *start[2] = {at, at + SIZE / 2};
    at[0] = at[SIZE / 2] = 1;
    pthread_t threads[2];
    void *end[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, take_records, start[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], &end[i]) == 0);
    static uint8_t seen[RECORDS];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 2; i++)
        for (uint64_t *record = (uint64_t *)start[i]; (void *)record < end[i]; record++)
            CHECK(*record < RECORDS && seen[*record]++ == 0);
    for (int i = 0; i < RECORDS; i++) CHECK(seen[i] == 1);
    fclose(shared_stream);
    close(fd);
    CHECK(munmap(at, SIZE) == 0 && unlink(records) == 0);
}

static void private_beside_shared(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *shared = map_all(fd);
    shared[PAGE] = 50;
    uint8_t *private = mmap(NULL, SIZE, RW, MAP_PRIVATE, fd, 0);
    CHECK(private != MAP_FAILED && private[PAGE] == 50);
    private[2 * PAGE] = 51;
    CHECK(shared[2 * PAGE] == pattern(2 * PAGE));
    shared[PAGE] = pattern(PAGE);
    expect(shared, 0, SIZE);
    CHECK(private[2 * PAGE] == 51);
    CHECK(munmap(private, SIZE) == 0);
}

static void past_the_end(const char *path) {
    int fd = file_of(path, 2 * MIB);
    uint8_t *at = map_all(fd);
    catch_signal(SIGBUS, 0);
    expect(at, 0, 2 * MIB);
    CHECK(raised_by_load(at + 2 * MIB) == SIGBUS && caught_code == BUS_ADRERR && caught_address == at + 2 * MIB);
    CHECK(raised_by_store(at + SIZE - 1) == SIGBUS);
    CHECK(ftruncate(fd, 4 * MIB + 10) == 0);
    CHECK(at[2 * MIB] == 0 && at[4 * MIB + 9] == 0);
    at[3 * MIB] = 4;
    CHECK(raised_by_load(at + 4 * MIB + PAGE) == SIGBUS);
    CHECK(ftruncate(fd, SIZE) == 0 && at[SIZE - 1] == 0 && at[3 * MIB] == 4);
    CHECK(munmap(at, SIZE) == 0);
    expect_in_file(path, 3 * MIB, 4);
}

static void offsets(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *late = mmap(NULL, 2 * MIB, RW, MAP_SHARED, fd, 5 * MIB);
    uint8_t *early = mmap(NULL, 2 * MIB + 5, RW, MAP_SHARED, fd, MIB + PAGE);
    CHECK(late != MAP_FAILED && early != MAP_FAILED);
    expect(late, 5 * MIB, 2 * MIB);
    expect(early, MIB + PAGE, 2 * MIB);
    late[0] = 6;
    early[0] = 7;
    CHECK(munmap(early, 2 * MIB + 5) == 0);
    CHECK(late[0] == 6);
    CHECK(munmap(late, 2 * MIB) == 0);
    expect_in_file(path, 5 * MIB, 6);
    expect_in_file(path, MIB + PAGE, 7);
}

static void refused(const char *path) {
    int fd = file_of(path, SIZE);
    FAILS(mmap(NULL, 0, RW, MAP_SHARED, fd, 0), EINVAL);
    FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, fd, 100), EINVAL);
    FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, fd, -(off_t)PAGE), EOVERFLOW);
    FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, -1, 0), EBADF);
    FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, 900, 0), EBADF);
    FAILS(mmap(NULL, SIZE, RW, 0, fd, 0), EINVAL);
    FAILS(mmap((void *)100, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0), EINVAL);
    FAILS(mmap(NULL, SIZE_MAX & ~(PAGE - 1), RW, MAP_SHARED, fd, 0), ENOMEM);
    int reading = open(path, O_RDONLY), writing = open(path, O_WRONLY), folder = open("/", O_RDONLY);
    FAILS(mmap(NULL, SIZE, RW, MAP_SHARED, reading, 0), EACCES);
    FAILS(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, writing, 0), EACCES);
    FAILS(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, folder, 0), ENODEV);
    FAILS(munmap((void *)1, PAGE), EINVAL);
    FAILS(munmap((void *)PAGE, 0), EINVAL);
}

static void syncing(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    at[MIB] = 60;
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    expect_in_file(path, MIB, 60);
    CHECK(msync(at, SIZE, MS_ASYNC) == 0 && msync(at, PAGE, MS_SYNC | MS_INVALIDATE) == 0);
    FAILS(msync(at, SIZE, MS_SYNC | MS_ASYNC), EINVAL);
    FAILS(msync(at + 1, PAGE, MS_SYNC), EINVAL);
    FAILS(msync(at, PAGE, 64), EINVAL);
    int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        at[2 * MIB + i] = (uint8_t)(70 + i);
        CHECK(madvise(at, SIZE, advice[i]) == 0);
        CHECK(at[2 * MIB + i] == 70 + i && at[MIB] == 60);
    }
    CHECK(posix_madvise(at, SIZE, POSIX_MADV_DONTNEED) == 0 && at[2 * MIB] == 70);
    FAILS(madvise(at, SIZE, 9999), EINVAL);
    CHECK(posix_madvise(at, SIZE, 9999) == EINVAL);
    CHECK(munmap(at, SIZE) == 0);
    FAILS(msync(at, SIZE, MS_SYNC), ENOMEM);
}

/* Mappings small and large of one file agree, whichever came first. */
static void large_then_small(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *large = map_all(fd);
    large[PAGE] = 1;
    uint8_t *small = mmap(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(small[PAGE] == 1);
    small[PAGE] = 2;
    CHECK(large[PAGE] == 2);
    CHECK(munmap(large, SIZE) == 0);
    small[PAGE] = 3;
    large = map_all(fd);
    CHECK(large[PAGE] == 3);
    CHECK(munmap(small, 4 * PAGE) == 0 && large[PAGE] == 3);
}

static void small_then_large(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *small = mmap(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    small[PAGE] = 1;
    uint8_t *large = map_all(fd);
    CHECK(large[PAGE] == 1);
    small[PAGE] = 2;
    CHECK(large[PAGE] == 2);
    large[PAGE] = 3;
    CHECK(small[PAGE] == 3);
    CHECK(munmap(small, 4 * PAGE) == 0 && munmap(large, SIZE) == 0);
}

/* A mapping that grows with its file, as SQLite's. */
static void small_grows(const char *path) {
    int fd = file_of(path, 4 * PAGE);
    uint8_t *at = mmap(NULL, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    at[PAGE] = 1;
    for (size_t size = 8 * PAGE; size <= SIZE; size *= 2) {
        CHECK(ftruncate(fd, (off_t)size) == 0);
        at = mremap(at, size / 2, size, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED && at[PAGE] == 1 && at[size - PAGE] == 0);
        at[size / 2] = 5;
    }
    CHECK(munmap(at, SIZE) == 0);
    for (size_t size = 8 * PAGE; size <= SIZE; size *= 2) expect_in_file(path, size / 2, 5);
    expect_in_file(path, PAGE, 1);
}

/* Two small mappings that only read and grow with their file, as those of two SQLite connections. Written by write(2). */
static void readers_grow(const char *path) {
    int fds[2] = {file_of(path, 4 * PAGE), open(path, O_RDWR)};
    const uint8_t *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fds[i], 0);
        CHECK(at[i] != MAP_FAILED && at[i][PAGE] == pattern(PAGE));
    }
    for (size_t size = 8 * PAGE; size <= SIZE; size *= 2) {
        uint8_t byte = (uint8_t)(size / PAGE);
        CHECK(ftruncate(fds[0], (off_t)size) == 0);
        for (int i = 0; i < 2; i++) {
            at[i] = mremap((void *)at[i], size / 2, size, MREMAP_MAYMOVE);
            CHECK(at[i] != MAP_FAILED && at[i][size / 2] == 0 && at[i][size - 1] == 0);
        }
        for (int i = 0; i < 2; i++) CHECK(pwrite(fds[i], &byte, 1, (off_t)(size / 2 + (size_t)i * 9)) == 1);
        for (int i = 0; i < 2; i++) CHECK(at[i][size / 2] == byte && at[i][size / 2 + 9] == byte);
    }
    for (int i = 0; i < 2; i++) CHECK(munmap((void *)at[i], SIZE) == 0);
}

static void executable(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    expect(at, 0, SIZE);
    CHECK(munmap(at, SIZE) == 0);
}

static void private_only(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_PRIVATE, fd, 0);
    expect(at, 0, SIZE);
    at[0] = 200;
    CHECK(munmap(at, SIZE) == 0);
    expect_in_file(path, 0, pattern(0));
}

/* However many small maps the kernel has, a large one of another file is the engine's. */
static void many_small(const char *path) {
    enum { COUNT = 5000 };
    static uint8_t *small[COUNT];
    char other[512];
    snprintf(other, sizeof other, "%s.other", path);
    int fd = file_of(other, 2 * PAGE);
    for (int i = 0; i < COUNT; i++) {
        small[i] = mmap(NULL, PAGE, i % 2 ? RW : PROT_READ, MAP_SHARED, fd, i % 3 ? 0 : PAGE);
        CHECK(small[i] != MAP_FAILED);
    }
    uint8_t *map = map_all(file_of(path, SIZE));
    expect(map, 0, SIZE);
    map[5 * PAGE] = 99;
    /* Half of them go, in no order, and come again. */
    for (int i = 0; i < COUNT; i++) {
        int at = i * 7 % COUNT;
        if (at % 2) CHECK(munmap(small[at], PAGE) == 0);
    }
    for (int i = 1; i < COUNT; i += 2) {
        small[i] = mmap(NULL, PAGE, RW, MAP_SHARED, fd, PAGE);
        CHECK(small[i] != MAP_FAILED && small[i][1] == pattern(PAGE + 1));
    }
    for (int i = 0; i < COUNT; i++) CHECK(munmap(small[i], PAGE) == 0);
    CHECK(map[5 * PAGE] == 99 && munmap(map, SIZE) == 0);
    expect_in_file(path, 5 * PAGE, 99);
}

/* Windows of a file that grows, laid over a reservation of the program's: each at the address that its offset says. */
static void windows(const char *path) {
    enum { WINDOWS = 6 };
    uint8_t *room = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    int fd = file_of(path, 0);
    catch_signal(SIGSEGV, 0);
    /* Not in their order, and not side by side: between them is the program's own memory, and another file's mapping. */
    static const size_t order[WINDOWS] = {3, 9, 4, 0, 20, 5};
    for (int i = 0; i < WINDOWS; i++) {
        size_t from = order[i] * 2 * MIB;
        struct stat stat;
        CHECK(fstat(fd, &stat) == 0);
        if ((size_t)stat.st_size < from + 2 * MIB) CHECK(ftruncate(fd, (off_t)(from + 2 * MIB)) == 0);
        CHECK(mmap(room + from, 2 * MIB, RW, MAP_SHARED | MAP_FIXED, fd, (off_t)from) == room + from);
        for (size_t at = 0; at < 2 * MIB; at += PAGE) CHECK(room[from + at] == 0);
        for (size_t at = 0; at < 2 * MIB; at += PAGE) room[from + at] = (uint8_t)(i + 1);
    }
    char name[512];
    snprintf(name, sizeof name, "%s.other", path);
    int other = file_of(name, 2 * MIB);
    CHECK(mmap(room + 2 * MIB, 2 * MIB, RW, MAP_SHARED | MAP_FIXED, other, 0) == room + 2 * MIB);
    expect(room + 2 * MIB, 0, 2 * MIB);
    CHECK(mprotect(room + 5 * MIB, PAGE, RW) == 0);
    memset(room + 5 * MIB, 77, PAGE);
    CHECK(raised_by_load(room + 5 * MIB + PAGE) == SIGSEGV && raised_by_store(room + 4 * MIB) == SIGSEGV);
    if (has_budget())
        for (int i = 0; i < WINDOWS; i++) CHECK(kind_at(room + order[i] * 2 * MIB) == 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < WINDOWS; i++)
            for (size_t at = 0; at < 2 * MIB; at += PAGE) room[order[i] * 2 * MIB + at + 9] = (uint8_t)(round + i);
        CHECK(fsync(fd) == 0);
        uint8_t bytes[10];
        for (int i = 0; i < WINDOWS; i++) {
            CHECK(pread(fd, bytes, 10, (off_t)(order[i] * 2 * MIB + MIB)) == 10);
            CHECK(bytes[0] == i + 1 && bytes[9] == round + i);
        }
        CHECK(pread(fd, bytes, 1, 10 * MIB + MIB) == 1 && room[5 * MIB + PAGE - 1] == 77);
    }
    /* A larger window over two and what is between them, and one that is only read. */
    CHECK(mmap(room, 12 * MIB, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == room);
    CHECK(room[0] == 4 && room[5 * MIB] == 0 && room[6 * MIB] == 1 && room[8 * MIB] == 3 && room[2 * MIB] == 0);
    if (has_budget()) CHECK(kind_at(room) == 0 && kind_at(room + 2 * MIB) == 0 && kind_at(room + 18 * MIB) == 0);
    CHECK(raised_by_store(room) == SIGSEGV && raised_by_store(room + 5 * MIB) == SIGSEGV);
    room[18 * MIB] = 99;
    /* One of other bytes at a place of its own makes all of them the kernel's. */
    CHECK(mmap(room + 48 * MIB, 2 * MIB, RW, MAP_SHARED | MAP_FIXED, fd, 18 * MIB) == room + 48 * MIB);
    CHECK(room[48 * MIB] == 99);
    room[48 * MIB + PAGE] = 98;
    CHECK(room[18 * MIB + PAGE] == 98 && room[0] == 4 && room[40 * MIB] == 5);
    CHECK(munmap(room, 64 * MIB) == 0);
    catch_signal(SIGSEGV, 0);
    CHECK(is_gone(room, 4) && is_gone(room + 18 * MIB, 99) && is_gone(room + 40 * MIB, 5));
    expect_in_file(path, 18 * MIB + PAGE, 98);
    expect_in_file(name, 5, pattern(5));
    unlink(name);
}

/* Parts of a file that the program appends to, mapped to be read as it grows, to many times its size. */
static void parts_of_what_grows(const char *path) {
    for (int way = 0; way < 3; way++) {
        unlink(path);
        int writer = file_of(path, 0), fd = way == 0 ? writer : open(path, O_RDONLY);
        static uint8_t *part[12], page[PAGE];
        for (size_t i = 0; i < 12; i++) {
            for (size_t at = 0; at < 2 * MIB; at += PAGE) {
                memset(page, (int)(i + at / PAGE), PAGE);
                CHECK(pwrite(writer, page, PAGE, (off_t)(i * 16 * MIB + at)) == PAGE);
            }
            part[i] = mmap(NULL, 2 * MIB, PROT_READ, way == 2 ? MAP_PRIVATE : MAP_SHARED, fd, (off_t)(i * 16 * MIB));
            CHECK(part[i] != MAP_FAILED);
            for (size_t at = 0; at < 2 * MIB; at += PAGE) CHECK(part[i][at + 5] == (uint8_t)(i + at / PAGE));
        }
        if (has_budget())
            for (size_t i = 0; i < 12; i++) CHECK(kind_at(part[i]) == 0);
        for (size_t i = 0; i < 12; i++) CHECK(part[i][MIB] == (uint8_t)(i + 256) && munmap(part[i], 2 * MIB) == 0);
        if (fd != writer) close(fd);
        close(writer);
    }
}

/* What was unmapped in the middle is another's memory: what is stored on both sides of it reaches the file together. */
static void memory_in_a_hole(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    CHECK(munmap(at + 4 * PAGE, PAGE) == 0);
    CHECK(mmap(at + 4 * PAGE, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + 4 * PAGE);
    memset(at + 4 * PAGE, 7, PAGE);
    for (int round = 0; round < 5; round++) {
        at[2 * PAGE] = at[9 * PAGE] = (uint8_t)(200 + round);
        CHECK(fsync(fd) == 0);
        CHECK(at[4 * PAGE] == 7 && at[5 * PAGE - 1] == 7);
        expect_in_file(path, 2 * PAGE, (uint8_t)(200 + round));
        expect_in_file(path, 9 * PAGE, (uint8_t)(200 + round));
    }
    if (has_budget()) CHECK(kind_at(at) == 0 && kind_at(at + 5 * PAGE) == 0);
    CHECK(munmap(at, SIZE) == 0);
    expect_in_file(path, 4 * PAGE, pattern(4 * PAGE));
}

/* MAP_POPULATE: as many pages as the cache holds are there when it returns, or as many as memory does. */
static void populated(const char *path) {
    int fd = file_of(path, SIZE);
    CHECK(fsync(fd) == 0);
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED | MAP_POPULATE, fd, 0);
    CHECK(at != MAP_FAILED);
    unsigned char there[SIZE / PAGE];
    CHECK(mincore(at, SIZE, there) == 0);
    size_t count = 0;
    for (size_t i = 0; i < SIZE / PAGE; i++) count += there[i] & 1;
    /* The least cache of these tests has 1 MiB. */
    CHECK(count >= MIB / PAGE * 3 / 4);
    expect(at, 0, SIZE);
}

/* mseal(2): what is mapped there stays, whoever had it. */
static void sealed(const char *path) {
    const long number = 462;
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    at[5] = 200;
    FAILS(syscall(number, at, SIZE, 1L), EINVAL);
    CHECK(syscall(number, at, SIZE, 0L) == 0);
    at[PAGE + 5] = 201;
    FAILS(munmap(at, SIZE), EPERM);
    FAILS(munmap(at + PAGE, PAGE), EPERM);
    FAILS(mprotect(at, SIZE, PROT_READ), EPERM);
    CHECK(mmap(at, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED && errno == EPERM);
    CHECK(mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EPERM);
    CHECK(at[5] == 200 && at[PAGE + 5] == 201);
    /* Another mapping of the file agrees with it. */
    uint8_t *other = map_all(fd);
    other[2 * PAGE + 5] = 202;
    at[3 * PAGE + 5] = 203;
    CHECK(at[2 * PAGE + 5] == 202 && other[3 * PAGE + 5] == 203 && munmap(other, SIZE) == 0);
}

/* Another process cuts the file. Each touch behind its end raises SIGBUS. */
static void cut_by_others(const char *path) {
    catch_signal(SIGBUS, 0);
    uint8_t *at = map_all(file_of(path, SIZE));
    at[0] = 1;
    char command[1024];
    snprintf(command, sizeof command, "env -u LD_PRELOAD truncate -s 5242885 %s", path);
    CHECK(system(command) == 0);
    for (size_t i = 0; i < 100; i++) CHECK(raised_by_load(at + SIZE - (i + 1) * PAGE) == SIGBUS);
}

/* Windows at random over a reservation, with other memory and another file's among them: each byte is what it should be. */
static void windows_at_random(const char *path) {
    enum { PAGES = 48 * 256, NOTHING = 0, READ, WRITE, MEMORY, OTHER };
    static uint8_t in_file[PAGES], in_memory[PAGES], is[PAGES];
    char name[512];
    snprintf(name, sizeof name, "%s.other", path);
    int fd = file_of(path, 0), other = file_of(name, SIZE);
    CHECK(ftruncate(fd, PAGES * PAGE) == 0);
    const int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    /* Free addresses above it: threads of the library's have their memory there, and not where this unmaps something for a moment. */
    void *above = mmap(NULL, 1024 * MIB, PROT_NONE, reserved, -1, 0);
    uint8_t *room = mmap(NULL, PAGES * PAGE, PROT_NONE, reserved, -1, 0);
    CHECK(room != MAP_FAILED && munmap(above, 1024 * MIB) == 0);
    srand(7);
    catch_signal(SIGSEGV, 0);
    for (int step = 0; step < 1200; step++) {
        size_t from = (size_t)rand() % PAGES, len = 1 + (size_t)rand() % (rand() % 3 ? 1024 : 8);
        if (from + len > PAGES) len = PAGES - from;
        uint8_t *at = room + from * PAGE, what = (uint8_t)(1 + rand() % 250);
        int prot = rand() % 4 ? RW : PROT_READ, unmaps = rand() % 30 != 0;
        switch (rand() % 11) {
        case 0:
        case 1:
        case 2:
            if (len < 300) break;
            CHECK(mmap(at, len * PAGE, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)(from * PAGE)) == at);
            memset(is + from, prot == RW ? WRITE : READ, len);
            break;
        case 3:
            if (unmaps) CHECK(munmap(at, len * PAGE) == 0);
            CHECK(mmap(at, len * PAGE, PROT_NONE, reserved | MAP_FIXED, -1, 0) == at);
            memset(is + from, NOTHING, len);
            break;
        case 4:
            if (len < 900) break;
            if (unmaps) CHECK(munmap(at, len * PAGE) == 0);
            CHECK(mmap(at, len * PAGE, RW, MAP_SHARED | MAP_FIXED, other, 0) == at);
            memset(is + from, OTHER, len);
            break;
        case 5:
            len = len > 8 ? 8 : len;
            if (unmaps) CHECK(munmap(at, len * PAGE) == 0);
            CHECK(mmap(at, len * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
            memset(is + from, MEMORY, len);
            for (size_t page = 0; page < len; page++) at[page * PAGE] = in_memory[from + page] = what;
            break;
        case 6:
            CHECK(fsync(fd) == 0);
            break;
        case 7:
            CHECK(pwrite(fd, &what, 1, (off_t)(from * PAGE)) == 1);
            in_file[from] = what;
            break;
        case 8:
            CHECK(pread(fd, &what, 1, (off_t)(from * PAGE)) == 1 && what == in_file[from]);
            break;
        default:
            for (size_t page = 0; page < len; page++)
                if (is[from + page] == WRITE) at[page * PAGE] = in_file[from + page] = what;
        }
        for (int look = 0; look < 60; look++) {
            size_t page = (size_t)rand() % PAGES;
            if (is[page] == NOTHING && look < 3) CHECK(raised_by_load(room + page * PAGE) == SIGSEGV);
            if (is[page] == READ && look < 9) CHECK(raised_by_store(room + page * PAGE) == SIGSEGV);
            if (is[page] == READ || is[page] == WRITE) CHECK(room[page * PAGE] == in_file[page]);
            if (is[page] == MEMORY) CHECK(room[page * PAGE] == in_memory[page]);
        }
    }
    CHECK(munmap(room, PAGES * PAGE) == 0);
    uint8_t byte;
    for (size_t page = 0; page < PAGES; page++)
        CHECK(pread(fd, &byte, 1, (off_t)(page * PAGE)) == 1 && byte == in_file[page]);
    unlink(name);
}

/* Memory of the program's own behind a window of a file far larger than the cache stays what it is. */
static void beside_a_sparse_window(const char *path) {
    const size_t window = 33 * MIB, own = 3 * MIB;
    int fd = file_of(path, 0);
    CHECK(ftruncate(fd, 2048l * MIB) == 0);
    uint8_t *room = mmap(NULL, window + own, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mmap(room, window, RW, MAP_SHARED | MAP_FIXED, fd, 0) == room);
    uint8_t *mine = mmap(room + window, own, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(mine == room + window);
    memset(mine, 7, own);
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < window; at += PAGE) room[at] = (uint8_t)(round + 1);
    for (size_t at = 0; at < own; at++) CHECK(mine[at] == 7);
    for (size_t at = 0; at < window; at += PAGE) CHECK(room[at] == 2);
}

/* MAP_FIXED_NOREPLACE wins over MAP_FIXED. */
static void fixed_noreplace(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *mine = mmap(NULL, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mine != MAP_FAILED);
    mine[5] = 7;
    FAILS(mmap(mine, SIZE, RW, MAP_SHARED | MAP_FIXED | MAP_FIXED_NOREPLACE, fd, 0), EEXIST);
    CHECK(mine[5] == 7 && munmap(mine, SIZE) == 0);
    uint8_t *at = map_all(fd);
    FAILS(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED | MAP_FIXED_NOREPLACE, fd, 0), EEXIST);
    expect(at, 0, SIZE);
}

static void *map_over(void *argument) {
    uint8_t **at = argument;
    CHECK(unshare(CLONE_FILES) == 0);
    int fd = open((char *)at[1], O_RDWR);
    CHECK(fd >= 0);
    CHECK(mmap(at[0], SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == at[0] && at[0][9] == 200);
    at[0][PAGE] = 201;
    return NULL;
}

/* A thread with descriptors of its own maps over a file's only map. */
static void fixed_in_another_table(const char *path) {
    int fd = file_of(path, SIZE);
    void *at[2] = {map_all(fd), (void *)path};
    ((uint8_t *)at[0])[9] = 200;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, map_over, at) == 0 && pthread_join(thread, NULL) == 0);
    uint8_t byte;
    CHECK(pread(fd, &byte, 1, PAGE) == 1 && byte == 201);
}

/* What the kernel refuses of a file stays refused once the engine has it. */
static void refused_of_the_engines(const char *path) {
    int fd = file_of(path, SIZE), name = open(path, O_PATH);
    uint8_t *at = map_all(fd);
    const int flags[] = {MAP_SYNC, 0x200000}; /* of no file on a disk, and of none at all */
    for (int i = 0; i < 2; i++) FAILS(mmap(NULL, SIZE, RW, MAP_SHARED_VALIDATE | flags[i], fd, 0), EOPNOTSUPP);
    FAILS(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, name, 0), EBADF);
    FAILS(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, name, 0), EBADF);
    uint8_t *again = mmap(NULL, SIZE, RW, MAP_SHARED_VALIDATE | MAP_NORESERVE, fd, 0);
    CHECK(again != MAP_FAILED);
    at[5 * MIB + 7] = 'A';
    CHECK(again[5 * MIB + 7] == 'A');
}

static struct test tests[] = {
    {"refused_of_the_engines", refused_of_the_engines},
    {"beside_a_sparse_window", beside_a_sparse_window},
    {"fixed_noreplace", fixed_noreplace},
    {"fixed_in_another_table", fixed_in_another_table},
    {"windows_at_random", windows_at_random},
    {"windows", windows},
    {"parts_of_what_grows", parts_of_what_grows},
    {"memory_in_a_hole", memory_in_a_hole},
    {"populated", populated},
    {"sealed", sealed},
    {"cut_by_others", cut_by_others},
    {"unmap_whole", unmap_whole},
    {"unmap_part", unmap_part},
    {"unmap_across", unmap_across},
    {"fixed_over", fixed_over},
    {"fixed_under", fixed_under},
    {"remap", remap},
    {"protect", protect},
    {"residency", residency},
    {"locking", locking},
    {"two_maps", two_maps},
    {"whole_calls", whole_calls},
    {"one_stream", one_stream},
    {"private_beside_shared", private_beside_shared},
    {"past_the_end", past_the_end},
    {"offsets", offsets},
    {"refused", refused},
    {"syncing", syncing},
    {"large_then_small", large_then_small},
    {"small_then_large", small_then_large},
    {"small_grows", small_grows},
    {"many_small", many_small},
    {"readers_grow", readers_grow},
    {"executable", executable},
    {"private_only", private_only},
};
RUN_ONE_OF(tests)
