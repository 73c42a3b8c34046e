/* What mmap(2) and its kin say of mappings, and do to them, a line for each look: run on the kernel and with the library, the lines
 * must be the same. Error numbers and their order, ranges with holes, ranges that are none, signals with their codes and addresses,
 * bytes in memory and in the file: what the Linux Test Project asks in mmap*, munmap*, msync*, madvise*, mremap*, mincore*,
 * mprotect*, mlock*, munlock*, remap_file_pages*, and more.
 *
 * Each group is a process of its own with a file of its own, whose mapping the engine serves before anything is asked; what makes a
 * file the kernel's in one hides it from no other. No group may end by a signal: its statistics say that it was served. */
#include "check.h"
#include <linux/capability.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static int fd;
static char name[600];
static uint8_t *at;
static const char *group;

/* An address, as far as it is the same everywhere. */
static const char *place(const void *address) {
    static char text[64];
    ptrdiff_t offset = (const uint8_t *)address - at;
    if (address == NULL) return "null";
    if (offset >= -(ptrdiff_t)SIZE && offset < (ptrdiff_t)(2 * SIZE)) {
        snprintf(text, sizeof text, "byte %td", offset);
        return text;
    }
    return "elsewhere";
}

static void tell(const char *what, long result, int error) {
    printf("%s: %s: ", group, what);
    if (result == -1) printf("%s\n", strerrorname_np(error));
    else printf("%ld\n", result);
}

/* A call that returns a number. */
#define R(call)                              \
    do {                                     \
        errno = 0;                           \
        long result = (long)(call);          \
        tell(#call, result, errno);          \
    } while (0)

/* One that returns an address, which is said if it is one of the group's own. */
#define A(call)                                                                                              \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        void *result = (void *)(call);                                                                       \
        printf("%s: %s: %s\n", group, #call, result == MAP_FAILED ? strerrorname_np(errno) : place(result)); \
    } while (0)

/* A byte, or the signal that looking at it or storing to it raises. */
static void touch(const char *what, const char *where, volatile uint8_t *address, int (*raised_by)(volatile uint8_t *)) {
    int raised = raised_by(address);
    const char *kind = raised == SIGBUS ? "SIGBUS" : "SIGSEGV";
    if (raised) printf("%s: %s %s: %s, code %d, at %s\n", group, what, where, kind, caught_code, place(caught_address));
    else printf("%s: %s %s: %d\n", group, what, where, *address);
}
static int by_load(volatile uint8_t *address) { return raised_by_load(address); }
#define L(where) touch("load of", #where, where, by_load)
#define S(where) touch("store to", #where, where, raised_by_store)

/* A byte of the file, as read(2) has it. */
static void in_file(const char *where, size_t offset) {
    uint8_t byte = 0;
    long got = pread(fd, &byte, 1, (off_t)offset);
    printf("%s: file at %s: %ld, %d\n", group, where, got, byte);
}
#define F(offset) in_file(#offset, offset)

/* Whether a page is in memory: of those that surely are. */
static void in_memory(const char *where, void *address) {
    unsigned char there = 0;
    int result = mincore(address, PAGE, &there);
    printf("%s: mincore of %s: %d, %d\n", group, where, result, there & 1);
}
#define IN(where) in_memory(#where, where)

static void *anonymous(size_t len) {
    void *room = mmap(NULL, len, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    return room;
}

/* Maps the file for that and looks at some of it, which the engine then has in memory. */
static void begin(int prot) {
    at = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    for (size_t page = 0; page < SIZE / PAGE; page += 64) CHECK(at[page * PAGE] == pattern(page * PAGE));
    catch_signal(SIGSEGV, 0);
    catch_signal(SIGBUS, 0);
}

static void map_arguments(void) {
    begin(RW);
    int reading = open(name, O_RDONLY), writing = open(name, O_WRONLY), folder = open("/", O_RDONLY), closed = dup(fd), pipes[2];
    CHECK(pipe(pipes) == 0 && close(closed) == 0);
    A(mmap(NULL, 0, RW, MAP_SHARED, fd, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, fd, 1));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, fd, 100));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, fd, -(off_t)PAGE));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, -1, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, 900, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, closed, 0));
    A(mmap(NULL, SIZE, RW, 0, fd, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED_VALIDATE | 1 << 9, fd, 0));
    A(mmap(NULL, SIZE_MAX & ~(PAGE - 1), RW, MAP_SHARED, fd, 0));
    A(mmap(NULL, SIZE_MAX, RW, MAP_SHARED, fd, 0));
    A(mmap((void *)100, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    A(mmap((void *)(1ul << 47), SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, reading, 0));
    A(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, reading, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, writing, 0));
    A(mmap(NULL, SIZE, RW, MAP_SHARED, writing, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, writing, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, folder, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, pipes[0], 0));
    L(at + MIB);
    S(at + MIB);
}

/* A call that fails leaves what is at a fixed place. */
static void fixed_and_refused(void) {
    begin(RW);
    at[MIB] = 201;
    int writing = open(name, O_WRONLY);
    A(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, 900, 0));
    A(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, writing, 0));
    A(mmap(at, 0, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    A(mmap(at + 1, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    A(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 17));
    A(mmap(at, SIZE, RW, MAP_PRIVATE | MAP_FIXED, -1, 0));
    A(mmap(at + 1, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    A(mmap(at, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    A(mmap(at + MIB, SIZE, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0));
    L(at + MIB);
    S(at + 2 * MIB);
    F(MIB);
}

static void private_over_part(void) {
    begin(RW);
    at[MIB] = 201, at[2 * MIB] = 202;
    A(mmap(at + MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    L(at + MIB), L(at + 2 * MIB - 1), L(at + 2 * MIB), L(at + MIB - PAGE);
    S(at + MIB);
    F(MIB), F(2 * MIB);
    R(msync(at, SIZE, MS_SYNC));
    R(mprotect(at + MIB, PAGE, PROT_NONE));
    L(at + MIB);
    L(at + MIB + PAGE);
    R(madvise(at + MIB + PAGE, PAGE, MADV_DONTNEED));
    L(at + MIB + PAGE);
    R(munmap(at, SIZE));
    L(at + MIB), L(at);
}

/* What is there is locked: private memory that replaces it is the program's all the same. */
static void private_over_locked(void) {
    begin(RW);
    R(mlock(at + MIB, 16 * PAGE));
    A(mmap(at + MIB, 16 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    memset(at + MIB, 'S', 16 * PAGE);
    at[0] = 77;
    unsigned sum = 0;
    for (int round = 0; round < 3; round++)
        for (size_t page = 0; page < SIZE / PAGE; page++) sum += at[page * PAGE];
    printf("%s: sum of all pages, thrice: %u\n", group, sum);
    R(msync(at, SIZE, MS_SYNC));
    L(at + MIB), L(at + MIB + 15 * PAGE);
    F(0), F(MIB), F(MIB + 15 * PAGE);
    R(munlock(at + MIB, 16 * PAGE));
    /* Past all that is mapped, by the kernel's calls now. */
    R(msync(at, 1UL << 40, MS_SYNC));
    R(msync(at, 1UL << 46, MS_SYNC | MS_INVALIDATE));
    R(msync(at, 1UL << 47, MS_SYNC));
}

static void lock_stays_beside_what_is_mapped_over(void) {
    begin(RW);
    R(mlock(at, 4 * PAGE));
    A(mmap(at + MIB, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    R(madvise(at, PAGE, MADV_DONTNEED));
    R(madvise(at + 4 * PAGE, PAGE, MADV_DONTNEED));
    R(msync(at, PAGE, MS_SYNC | MS_INVALIDATE));
    R(munlock(at, 4 * PAGE));
    R(madvise(at, PAGE, MADV_DONTNEED));
    L(at);
}

static void barrier_in_private_memory_over_part(void) {
    begin(RW);
    A(mmap(at + MIB, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    pthread_barrier_t *barrier = (pthread_barrier_t *)(at + MIB);
    pthread_mutex_t *mutex = (pthread_mutex_t *)(at + MIB + 512);
    R(pthread_barrier_init(barrier, NULL, 1));
    R(pthread_barrier_wait(barrier));
    R(pthread_mutex_init(mutex, NULL));
    R(pthread_mutex_lock(mutex));
    R(pthread_mutex_trylock(mutex));
    R(syscall(SYS_futex, at + MIB + 1024, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0));
    R(syscall(SYS_futex, at + MIB + 1024, 0 /* FUTEX_WAIT */, 5, NULL, NULL, 0));
}

static void whole_map_is_replaced(void) {
    begin(RW);
    at[MIB] = 203;
    A(mmap(at, SIZE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    L(at), L(at + MIB);
    S(at + MIB);
    F(MIB);
    R(msync(at, SIZE, MS_SYNC));
    A(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    L(at + MIB);
    S(at + 2 * MIB);
    F(2 * MIB);
    A(mmap(at, MIB, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 4 * MIB));
    L(at);
    S(at);
    S(at + MIB);
}

static void same_bytes_at_the_same_place(void) {
    begin(RW);
    at[MIB] = 204;
    A(mmap(at, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0));
    L(at + MIB), S(at + MIB);
    A(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0));
    L(at + MIB), S(at + MIB);
    A(mmap(at + PAGE, PAGE, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, PAGE));
    L(at), L(at + PAGE), L(at + 2 * PAGE);
}

static void guard_pages(void) {
    begin(RW);
    A(mmap(at + 4 * PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    L(at + 3 * PAGE), L(at + 4 * PAGE), S(at + 4 * PAGE), L(at + 5 * PAGE);
    R(munmap(at + 4 * PAGE, PAGE));
    L(at + 4 * PAGE), S(at + 4 * PAGE);
    R(munmap(at + 4 * PAGE, PAGE));
    R(mincore(at + 4 * PAGE, PAGE, (unsigned char[1]){0}));
}

static void write_barrier(void) {
    begin(PROT_READ);
    int traps = 0;
    for (size_t page = 0; page < 40; page++) {
        uint8_t *here = at + page % 20 * PAGE + page / 20 * 4 * MIB;
        if (raised_by_store(here) == SIGSEGV) {
            traps++;
            CHECK(caught_code == SEGV_ACCERR && caught_address == here);
            CHECK(mprotect(here, PAGE, RW) == 0 && raised_by_store(here) == 0);
        }
    }
    printf("%s: stores that trapped: %d\n", group, traps);
    S(at), S(at + 30 * PAGE), S(at + 5 * MIB);
    R(mprotect(at, SIZE, PROT_READ));
    S(at), S(at + 30 * PAGE);
    F(0), F(4 * MIB), F(30 * PAGE);
}

static void protect_arguments(void) {
    begin(RW);
    R(mprotect(at + 1, PAGE, PROT_READ));
    R(mprotect(at, 0, PROT_READ));
    R(mprotect(at + 1, 0, PROT_READ));
    R(mprotect(at, SIZE_MAX, PROT_READ));
    R(mprotect(at, SIZE_MAX - PAGE, PROT_READ));
    R(mprotect(at, SIZE, 1 << 20));
    R(mprotect(at, 1UL << 40, 1 << 20));
    R(mprotect(at, SIZE, -1));
    R(mprotect(at, SIZE, RW | PROT_GROWSDOWN));
    R(mprotect(at, SIZE, RW | PROT_GROWSUP));
    R(mprotect(at, SIZE, RW | PROT_GROWSUP | PROT_GROWSDOWN));
    R(mprotect(NULL, PAGE, PROT_READ));
    S(at), S(at + SIZE - 1);
}

static void protect_whole(void) {
    begin(RW);
    at[PAGE] = 205;
    R(mprotect(at, SIZE, PROT_READ));
    L(at + PAGE), S(at + PAGE), S(at + SIZE - 1);
    R(mprotect(at, SIZE, RW));
    L(at + PAGE), S(at + PAGE), S(at + SIZE - 1);
    F(PAGE);
    /* Rounded up, all of it. */
    R(mprotect(at, SIZE - 5, PROT_READ));
    S(at + SIZE - 1);
}

static void protect_none(void) {
    begin(RW);
    at[0] = 206;
    R(mprotect(at, SIZE, PROT_NONE));
    L(at), S(at), L(at + SIZE - 1);
    R(msync(at, SIZE, MS_SYNC));
    F(0);
    R(mprotect(at, SIZE, RW));
    L(at), S(at);
}

static void protect_execute(void) {
    begin(RW);
    R(mprotect(at, PAGE, PROT_READ | PROT_EXEC));
    L(at), S(at), S(at + PAGE);
    R(mprotect(at, SIZE, RW | PROT_EXEC));
    S(at);
}

static void protect_write_only(void) {
    begin(RW);
    R(mprotect(at, SIZE, PROT_WRITE));
    L(at), S(at);
}

static void protect_part(void) {
    begin(PROT_READ);
    R(mprotect(at + 20 * PAGE, PAGE, PROT_NONE));
    R(munmap(at + 40 * PAGE, 4 * PAGE));
    R(mprotect(at, PAGE, RW));
    S(at);
    L(at + 20 * PAGE), S(at + 20 * PAGE);
    L(at + 19 * PAGE), S(at + 19 * PAGE);
    L(at + 41 * PAGE), S(at + 41 * PAGE);
    S(at + 4 * MIB);
    F(0), F(41 * PAGE);
}

static void protect_across_hole(void) {
    begin(RW);
    R(munmap(at + 2 * PAGE, PAGE));
    R(mprotect(at, 4 * PAGE, PROT_READ));
    S(at), S(at + PAGE), S(at + 3 * PAGE);
    R(mprotect(at + 2 * PAGE, PAGE, PROT_READ));
    R(mprotect(at + 2 * PAGE, 2 * PAGE, PROT_READ));
    S(at + 3 * PAGE);
}

static void protect_beyond_the_end(void) {
    begin(RW);
    R(munmap(at + 4 * MIB, 4 * MIB));
    R(mprotect(at, SIZE, PROT_READ));
    S(at);
}

static void protect_of_reader(void) {
    close(fd);
    fd = open(name, O_RDONLY);
    begin(PROT_READ);
    R(mprotect(at, SIZE, RW));
    R(mprotect(at, PAGE, RW));
    R(mprotect(at, PAGE, PROT_WRITE));
    S(at), L(at);
    R(mprotect(at, PAGE, PROT_NONE));
    R(mprotect(at, SIZE, RW));
    L(at), L(at + PAGE), S(at + PAGE);
}

/* A reader's mapping beside a writer's, of the same file. */
static void reader_beside_writer(void) {
    int reading = open(name, O_RDONLY);
    begin(RW);
    uint8_t *other = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, reading, 0);
    printf("%s: at a place of its own: %d\n", group, other != at);
    R(mprotect(other, SIZE, RW));
    R(mprotect(other, PAGE, RW));
    at[PAGE] = 207;
    printf("%s: seen by the other: %d, store there: %d\n", group, other[PAGE], raised_by_store(other));
    R(munmap(other, SIZE));
    L(at + PAGE), S(at);
}

static void writer_after_reader(void) {
    begin(PROT_READ);
    uint8_t *other = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    printf("%s: at a place of its own: %d\n", group, other != at);
    S(at), S(at + MIB);
    other[PAGE] = 208;
    L(at + PAGE);
    R(munmap(at, SIZE));
    L(at);
    printf("%s: the other: %d, %d\n", group, raised_by_store(other + 1), other[PAGE]);
    uint8_t *third = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    other[5 * PAGE] = 209;
    printf("%s: the third: %d %d, store: %d\n", group, third[PAGE], third[5 * PAGE], raised_by_store(third));
    F(5 * PAGE);
}

static void two_alike(void) {
    begin(RW);
    uint8_t *other = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    printf("%s: at a place of its own: %d\n", group, other != at);
    other[PAGE] = 210;
    L(at + PAGE);
    R(mprotect(other, PAGE, PROT_NONE));
    L(at);
    R(munmap(at, SIZE));
    L(at + PAGE);
    printf("%s: the other: %d\n", group, other[PAGE]);
    R(munmap(other, SIZE));
    F(PAGE);
}

/* Other bytes of the file, first read-only, then to be written: the first stays what it is. */
static void parts_beside_one_another(void) {
    begin(PROT_READ);
    R(munmap(at + 2 * MIB, 6 * MIB));
    uint8_t *other = mmap(NULL, 4 * MIB, RW, MAP_SHARED, fd, 4 * MIB);
    CHECK(other != MAP_FAILED);
    printf("%s: the other: %d, store: %d\n", group, other[0], raised_by_store(other));
    S(at), L(at + MIB), S(at + 2 * MIB - PAGE);
    R(mprotect(at, 2 * MIB, PROT_READ));
    S(at);
    R(mprotect(at, 2 * MIB, RW));
    S(at);
    F(0), F(4 * MIB);
}

static void unmap_arguments(void) {
    begin(RW);
    R(munmap(at + 1, PAGE));
    R(munmap(at, 0));
    R(munmap(at, SIZE_MAX));
    R(munmap(at, SIZE_MAX - 4 * PAGE));
    R(munmap(at, 1ul << 47));
    R(munmap(at, 1ul << 60));
    R(munmap((void *)1, PAGE));
    R(munmap(NULL, 0));
    R(munmap((void *)(1ul << 47), PAGE));
    R(munmap((void *)(2 * PAGE), PAGE));
    L(at), S(at + SIZE - 1);
}

static void unmap_whole(void) {
    begin(RW);
    at[PAGE] = 211;
    R(munmap(at, SIZE));
    R(munmap(at, SIZE));
    L(at), S(at + PAGE);
    R(msync(at, SIZE, MS_SYNC));
    R(madvise(at, SIZE, MADV_NORMAL));
    R(mprotect(at, SIZE, RW));
    R(mlock(at, PAGE));
    R(munlock(at, PAGE));
    R(mincore(at, PAGE, (unsigned char[1]){0}));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE));
    A(mremap(at, SIZE_MAX, SIZE, 0));
    F(PAGE);
}

/* A hole in the middle: what each call says of ranges that meet it. */
static void hole(void) {
    begin(RW);
    unsigned char there[SIZE / PAGE];
    at[8 * PAGE] = 212, at[12 * PAGE] = 213;
    R(munmap(at + 10 * PAGE, 2 * PAGE));
    R(msync(at + 8 * PAGE, 5 * PAGE, MS_SYNC));
    R(msync(at + 8 * PAGE, 5 * PAGE, MS_ASYNC));
    R(msync(at + 8 * PAGE, 5 * PAGE, MS_INVALIDATE));
    R(msync(at + 10 * PAGE, PAGE, MS_SYNC));
    R(msync(at + 10 * PAGE, 0, MS_SYNC));
    F(8 * PAGE), F(12 * PAGE);
    R(madvise(at + 10 * PAGE, PAGE, MADV_NORMAL));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_NORMAL));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_RANDOM));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_SEQUENTIAL));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_WILLNEED));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_DONTNEED));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_COLD));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_PAGEOUT));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_DONTDUMP));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_DODUMP));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_HUGEPAGE));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_POPULATE_READ));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_POPULATE_WRITE));
    R(madvise(at + 10 * PAGE, 0, MADV_NORMAL));
    R(posix_madvise(at + 9 * PAGE, 4 * PAGE, POSIX_MADV_NORMAL));
    R(mincore(at + 9 * PAGE, PAGE, there));
    R(mincore(at + 9 * PAGE, 2 * PAGE, there));
    R(mincore(at + 10 * PAGE, PAGE, there));
    R(mincore(at, SIZE, there));
    R(mlock(at + 8 * PAGE, 4 * PAGE));
    R(madvise(at + 8 * PAGE, 2 * PAGE, MADV_DONTNEED));
    R(mlock(at + 10 * PAGE, PAGE));
    R(munlock(at + 8 * PAGE, 4 * PAGE));
    R(madvise(at + 8 * PAGE, 2 * PAGE, MADV_DONTNEED));
    R(munlock(at + 11 * PAGE, PAGE));
    A(mremap(at + 10 * PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    A(mremap(at + 10 * PAGE, PAGE, PAGE, 0));
    R(munmap(at + 10 * PAGE, 2 * PAGE));
    L(at + 9 * PAGE), L(at + 12 * PAGE);
    printf("%s: in the hole: %d %d\n", group, raised_by_load(at + 10 * PAGE), raised_by_store(at + 12 * PAGE - 1));
}

/* Behind the end of the mapping: nothing, or somebody else's memory, but nothing of the file. */
static void behind_the_mapping(void) {
    begin(RW);
    R(munmap(at + 4 * MIB, 4 * MIB));
    int load = raised_by_load(at + 4 * MIB), store = raised_by_store(at + 4 * MIB + PAGE);
    printf("%s: behind the end: %d %d\n", group, load, store);
    R(msync(at, 4 * MIB, MS_SYNC));
    F(4 * MIB + PAGE);
}

static void sync_arguments(void) {
    begin(RW);
    at[0] = 214;
    R(msync(at, SIZE, 0));
    R(msync(at, SIZE, MS_SYNC));
    F(0);
    R(msync(at, SIZE, MS_ASYNC));
    R(msync(at, SIZE, MS_INVALIDATE));
    R(msync(at, SIZE, MS_SYNC | MS_INVALIDATE));
    R(msync(at, SIZE, MS_ASYNC | MS_INVALIDATE));
    R(msync(at, SIZE, MS_SYNC | MS_ASYNC));
    R(msync(at, SIZE, MS_SYNC | MS_ASYNC | MS_INVALIDATE));
    R(msync(at, SIZE, 64));
    R(msync(at, SIZE, -1));
    R(msync(at, SIZE, MS_SYNC + 4));
    R(msync(at + 1, PAGE, MS_SYNC));
    R(msync(at + 1, PAGE, MS_SYNC | MS_ASYNC));
    R(msync(at, 0, MS_SYNC));
    R(msync(at, 1, MS_SYNC));
    R(msync(at, SIZE_MAX, MS_SYNC));
    R(msync(at, SIZE_MAX - 4 * PAGE, MS_SYNC));
    R(msync(NULL, PAGE, MS_SYNC));
    R(msync((void *)-PAGE, PAGE, MS_SYNC));
}

static void sync_of_locked(void) {
    begin(RW);
    at[PAGE] = 215;
    R(mlock(at, 4 * PAGE));
    R(msync(at, PAGE, MS_INVALIDATE));
    R(msync(at, PAGE, MS_SYNC | MS_INVALIDATE));
    R(msync(at, PAGE, MS_ASYNC | MS_INVALIDATE));
    R(msync(at + 3 * PAGE, 2 * PAGE, MS_SYNC | MS_INVALIDATE));
    R(msync(at + 4 * PAGE, PAGE, MS_SYNC | MS_INVALIDATE));
    R(msync(at, PAGE, MS_SYNC));
    R(munlock(at, 2 * PAGE));
    R(msync(at, 2 * PAGE, MS_SYNC | MS_INVALIDATE));
    R(msync(at + 2 * PAGE, PAGE, MS_SYNC | MS_INVALIDATE));
    R(munlockall());
    R(msync(at, SIZE, MS_SYNC | MS_INVALIDATE));
    F(PAGE);
}

static void advice_arguments(void) {
    begin(RW);
    R(madvise(at + 1, PAGE, MADV_NORMAL));
    R(madvise(at + 1, 0, MADV_NORMAL));
    R(madvise(at, PAGE, 1212));
    R(madvise(at, PAGE, -1));
    R(madvise(at, PAGE, 5));
    R(madvise(at, 0, 1212));
    R(madvise(at, 0, MADV_NORMAL));
    R(madvise(at, SIZE_MAX, MADV_NORMAL));
    R(madvise(at, SIZE_MAX - 4 * PAGE, MADV_NORMAL));
    R(madvise(NULL, PAGE, MADV_NORMAL));
    R(madvise(NULL, 0, MADV_NORMAL));
    R(madvise((void *)-PAGE, 2 * PAGE, MADV_NORMAL));
    R(posix_madvise(at, PAGE, 9999));
    R(posix_madvise(at + 1, PAGE, POSIX_MADV_NORMAL));
    R(posix_madvise(at, SIZE, POSIX_MADV_WILLNEED));
    R(posix_madvise(at, SIZE, POSIX_MADV_DONTNEED));
    L(at), S(at);
}

static void advice_that_is_followed(void) {
    begin(RW);
    at[MIB] = 216;
    int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_COLD, MADV_PAGEOUT,
                    MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        printf("%s: advice %d\n", group, advice[i]);
        R(madvise(at, SIZE, advice[i]));
        R(madvise(at + 5 * PAGE, 100, advice[i]));
        L(at + MIB);
    }
    F(MIB);
    R(madvise(at, 16 * PAGE, MADV_POPULATE_READ));
    R(madvise(at, 16 * PAGE, MADV_POPULATE_WRITE));
    IN(at + 3 * PAGE);
}

static void advice_on_reader(void) {
    begin(PROT_READ);
    R(madvise(at, 16 * PAGE, MADV_POPULATE_WRITE));
    R(madvise(at, 16 * PAGE, MADV_POPULATE_READ));
    R(madvise(at, SIZE, MADV_DONTNEED));
    R(madvise(at, SIZE, MADV_WILLNEED));
    L(at);
}

static void advice_past_the_end(void) {
    begin(RW);
    CHECK(ftruncate(fd, 4 * MIB) == 0);
    R(madvise(at, SIZE, MADV_NORMAL));
    R(madvise(at, SIZE, MADV_WILLNEED));
    R(madvise(at, SIZE, MADV_DONTNEED));
    R(madvise(at + 4 * MIB - 4 * PAGE, 4 * PAGE, MADV_POPULATE_READ));
    R(madvise(at + 4 * MIB - 4 * PAGE, 8 * PAGE, MADV_POPULATE_READ));
    R(madvise(at + 4 * MIB, PAGE, MADV_POPULATE_WRITE));
}

static void advice_on_locked(void) {
    begin(RW);
    R(mlock(at + 4 * PAGE, 4 * PAGE));
    R(madvise(at + 4 * PAGE, PAGE, MADV_DONTNEED));
    R(madvise(at, 16 * PAGE, MADV_DONTNEED));
    R(madvise(at + 7 * PAGE, 4 * PAGE, MADV_DONTNEED));
    R(madvise(at + 4 * PAGE, PAGE, MADV_COLD));
    R(madvise(at + 4 * PAGE, PAGE, MADV_PAGEOUT));
    R(madvise(at + 4 * PAGE, PAGE, MADV_WILLNEED));
    R(madvise(at + 4 * PAGE, PAGE, MADV_NORMAL));
    R(madvise(at, 4 * PAGE, MADV_DONTNEED));
    R(madvise(at + 8 * PAGE, 4 * PAGE, MADV_DONTNEED));
    IN(at + 4 * PAGE);
    R(munlock(at + 4 * PAGE, PAGE));
    R(madvise(at + 4 * PAGE, PAGE, MADV_DONTNEED));
    R(madvise(at + 5 * PAGE, PAGE, MADV_DONTNEED));
}

static void removal(void) {
    begin(RW);
    at[100] = 's';
    R(madvise(at, MIB, MADV_REMOVE));
    L(at + 100), L(at + 7 * PAGE), L(at + MIB);
    F(100), F(MIB);
    S(at);
    F(0);
    R(madvise(at + 1, PAGE, MADV_REMOVE));
}

static void removal_of_locked(void) {
    begin(RW);
    R(mlock(at, 4 * PAGE));
    R(madvise(at, 4 * PAGE, MADV_REMOVE));
    L(at + PAGE);
}

static void removal_by_reader(void) {
    close(fd);
    fd = open(name, O_RDONLY);
    begin(PROT_READ);
    R(madvise(at, MIB, MADV_REMOVE));
    L(at + PAGE);
}

static void removal_across_hole(void) {
    begin(RW);
    R(munmap(at + 2 * PAGE, PAGE));
    R(madvise(at, 4 * PAGE, MADV_REMOVE));
    L(at), L(at + 3 * PAGE), L(at + 4 * PAGE);
}

/* Advice that says something of what memory is, and so is not for files, or does something. */
#define ADVICE(which)                                 \
    static void advice_##which(void) {                \
        begin(RW);                                    \
        at[PAGE] = 217;                               \
        R(madvise(at, 4 * PAGE, MADV_##which));       \
        R(madvise(at, 4 * PAGE, MADV_##which));       \
        L(at + PAGE), S(at + 2 * PAGE);               \
        L(at + MIB);                                  \
        F(PAGE);                                      \
    }
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define MADV_GUARD_INSTALLED 102
ADVICE(FREE)
ADVICE(WIPEONFORK)
ADVICE(KEEPONFORK)
ADVICE(MERGEABLE)
ADVICE(UNMERGEABLE)
ADVICE(DONTNEED_LOCKED)
ADVICE(GUARD_INSTALLED)

static void residency(void) {
    begin(RW);
    unsigned char there[SIZE / PAGE];
    at[PAGE] = 1;
    IN(at + PAGE);
    R(mincore(at, SIZE, there));
    R(mincore(at + 1, PAGE, there));
    R(mincore(at, 0, there));
    R(mincore(at, 1, there));
    R(mincore(at, SIZE, NULL));
    R(mincore(at, SIZE, (unsigned char *)-1));
    R(mincore(at, 0, NULL));
    R(mincore(at + 1, PAGE, NULL));
    R(mincore(at, SIZE_MAX, there));
    R(mincore(at, SIZE_MAX / 2, there));
    R(mincore(NULL, PAGE, there));
    const unsigned char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    R(mincore(at, SIZE, (unsigned char *)constant));
    /* The answer goes into the mapping itself. */
    R(mincore(at + MIB, 4 * PAGE, at + 3 * MIB));
    CHECK(at[MIB] == pattern(MIB));
    R(mincore(at + MIB, PAGE, at + 3 * MIB));
    printf("%s: in the mapping: %d\n", group, at[3 * MIB] & 1);
}

static void locking_arguments(void) {
    begin(RW);
    R(mlock(at, 0));
    R(mlock(at + 1, PAGE));
    IN(at + PAGE);
    R(munlock(at + 1, PAGE));
    R(mlock(at, SIZE_MAX));
    R(mlock(at, SIZE_MAX - PAGE));
    R(munlock(at, SIZE_MAX));
    R(munlock(at, 0));
    R(mlock(NULL, PAGE));
    R(munlock(NULL, PAGE));
    R(mlock2(at, PAGE, 0));
    R(mlock2(at, PAGE, MLOCK_ONFAULT));
    R(mlock2(at, PAGE, 8));
    R(mlock2(at, 0, 8));
    R(munlock(at, PAGE));
    R(munlock(at, SIZE));
    R(mlockall(0));
    R(mlockall(8));
    R(munlockall());
    L(at), S(at);
}

/* More than the cache has room for. */
static void locking_all(void) {
    begin(RW);
    at[PAGE] = 218;
    R(mlock(at, SIZE));
    IN(at), IN(at + SIZE - PAGE);
    L(at + PAGE), S(at + MIB);
    R(madvise(at, PAGE, MADV_DONTNEED));
    R(munlock(at, SIZE));
    F(PAGE);
}

static void locking_past_the_end(void) {
    begin(RW);
    CHECK(ftruncate(fd, 4 * MIB) == 0);
    R(mlock(at + 4 * MIB, PAGE));
    R(mlock(at + 4 * MIB - PAGE, 2 * PAGE));
    R(munlock(at, SIZE));
    L(at + 4 * MIB - 1);
}

static void locked_from_the_start(void) {
    begin(RW);
    R(munmap(at, SIZE));
    for (size_t len = 2 * MIB; len <= SIZE; len *= 4) {
        at = mmap(NULL, len, RW, MAP_SHARED | MAP_LOCKED, fd, 0);
        CHECK(at != MAP_FAILED);
        IN(at), IN(at + len - PAGE);
        R(madvise(at, PAGE, MADV_DONTNEED));
        R(msync(at, len, MS_SYNC | MS_INVALIDATE));
        S(at + MIB);
        R(munlock(at, len));
        R(madvise(at, PAGE, MADV_DONTNEED));
        R(munmap(at, len));
    }
    CHECK(ftruncate(fd, MIB) == 0);
    at = mmap(NULL, SIZE, RW, MAP_SHARED | MAP_LOCKED, fd, 0);
    L(at), L(at + MIB);
    R(madvise(at, PAGE, MADV_DONTNEED));
}

static void locked_memory_grows(void) {
    begin(RW);
    R(mlock(at, 64 * PAGE));
    A(mremap(at, SIZE, MIB, 0));
    A(mremap(at, MIB, 2 * SIZE, MREMAP_MAYMOVE));
    uint8_t *moved = mremap(at, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE);
    printf("%s: moved: %d, %d\n", group, moved != MAP_FAILED && moved != at, moved == MAP_FAILED ? 0 : moved[100 * PAGE]);
    R(madvise(moved + 100 * PAGE, PAGE, MADV_DONTNEED));
    L(at), L(at + 64 * PAGE);
}

/* A user without the right to lock more than a limit. */
static void locking_limits(void) {
    begin(RW);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];
    CHECK(syscall(SYS_capget, &header, rights) == 0);
    rights[0].effective &= ~(1u << CAP_IPC_LOCK);
    CHECK(syscall(SYS_capset, &header, rights) == 0);
    struct rlimit limit = {4 * PAGE, 4 * PAGE};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    R(mlock(at, 8 * PAGE));
    R(mlock(at, 2 * PAGE));
    R(munlock(at, 2 * PAGE));
    limit.rlim_cur = limit.rlim_max = 0;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    R(mlock(at, PAGE));
    R(munlock(at, PAGE));
    R(mlock(at, 0));
    L(at);
}

static void remap_arguments(void) {
    begin(RW);
    uint8_t *room = anonymous(SIZE);
    A(mremap(at + 1, SIZE, 2 * SIZE, MREMAP_MAYMOVE));
    A(mremap(at, SIZE, 0, 0));
    A(mremap(at, SIZE, 0, MREMAP_MAYMOVE));
    A(mremap(at, SIZE, SIZE, 64));
    A(mremap(at, SIZE, SIZE, MREMAP_FIXED, room));
    A(mremap(at, SIZE, SIZE, MREMAP_DONTUNMAP));
    A(mremap(at, SIZE, MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, room + 1));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at + MIB));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, at - MIB));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)-PAGE));
    A(mremap(at, SIZE, SIZE_MAX, MREMAP_MAYMOVE));
    A(mremap(at, SIZE, SIZE, 0));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE));
    A(mremap(at, SIZE - 5, SIZE, 0));
    A(mremap(NULL, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    A(mremap((void *)(2 * PAGE), PAGE, PAGE, 0));
    L(at), S(at + SIZE - 1);
    printf("%s: the room: %d\n", group, room[MIB]);
}

static void remap_of_nothing_over_a_map(void) {
    begin(RW);
    at[PAGE] = 219;
    A(mremap((void *)(2 * PAGE), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at));
    L(at + PAGE), S(at);
}

static void remap_shrinks(void) {
    begin(RW);
    at[MIB - 1] = 220, at[MIB] = 221;
    A(mremap(at, SIZE, MIB, 0));
    L(at + MIB - 1);
    printf("%s: cut off: %d %d\n", group, raised_by_load(at + MIB), raised_by_store(at + SIZE - 1));
    R(msync(at, 2 * MIB, MS_SYNC));
    F(MIB - 1), F(MIB);
    A(mremap(at, 100, 50, 0));
    L(at);
}

static void remap_moves(void) {
    begin(RW);
    at[PAGE] = 222;
    uint8_t *room = anonymous(SIZE), *moved = mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    printf("%s: moved: %d %d\n", group, moved == room, room[PAGE]);
    L(at);
    room[PAGE] = 223;
    F(PAGE);
    R(msync(room, SIZE, MS_SYNC));
    A(mremap(at, SIZE, SIZE, MREMAP_MAYMOVE));
}

static void remap_leaves_its_place(void) {
    begin(RW);
    at[PAGE] = 224;
    uint8_t *moved = mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    printf("%s: moved: %d %d\n", group, moved != MAP_FAILED && moved != at, moved == MAP_FAILED ? 0 : moved[PAGE]);
    L(at + PAGE), S(at + 2 * PAGE);
    F(2 * PAGE);
}

static void remap_over_a_map(void) {
    begin(RW);
    at[PAGE] = 225;
    uint8_t *room = anonymous(MIB);
    memset(room, 'r', MIB);
    A(mremap(room, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, at + MIB));
    L(at + PAGE), L(at + MIB), L(at + 2 * MIB - 1), L(at + 2 * MIB);
    F(PAGE), F(MIB);
    S(at + MIB);
    F(MIB);
}

static void remap_over_a_locked_map(void) {
    begin(RW);
    R(mlock(at, 8 * PAGE));
    uint8_t *room = anonymous(MIB);
    memset(room, 'r', MIB);
    A(mremap(room, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at));
    unsigned sum = 0;
    for (size_t page = 4; page < SIZE / PAGE; page++) sum += at[page * PAGE];
    L(at), L(at + 3 * PAGE), L(at + 4 * PAGE);
    R(madvise(at + 4 * PAGE, PAGE, MADV_DONTNEED));
    printf("%s: sum: %u\n", group, sum);
}

static void remap_of_part(void) {
    begin(RW);
    at[PAGE] = 226;
    uint8_t *moved = mremap(at, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE);
    printf("%s: moved: %d %d %d\n", group, moved != at, moved[PAGE], moved[2 * PAGE]);
    L(at), L(at + PAGE), L(at + 2 * PAGE);
    A(mremap(at + 4 * PAGE, 2 * PAGE, 3 * PAGE, 0));
}

static void remap_once_more(void) {
    begin(RW);
    at[PAGE] = 227;
    A(mremap(at, 0, SIZE, 0));
    uint8_t *other = mremap(at, 0, SIZE, MREMAP_MAYMOVE);
    printf("%s: at a place of its own: %d\n", group, other != at);
    other[PAGE] = 228;
    L(at + PAGE);
    R(munmap(other, SIZE));
    L(at + PAGE);
}

static void remap_grows_into_another(void) {
    begin(RW);
    R(munmap(at + 2 * MIB, 6 * MIB));
    A(mmap(at + 2 * MIB, 2 * MIB, RW, MAP_SHARED | MAP_FIXED, fd, 4 * MIB));
    A(mremap(at, 2 * MIB, 3 * MIB, 0));
    L(at + 2 * MIB - PAGE), L(at + 2 * MIB);
    uint8_t *moved = mremap(at, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE);
    printf("%s: moved: %d %d\n", group, moved != at, moved[3 * MIB]);
    L(at + 2 * MIB);
}

static void remap_over_hole(void) {
    begin(RW);
    R(munmap(at + 4 * PAGE, PAGE));
    A(mremap(at, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE));
    A(mremap(at + 4 * PAGE, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE));
    L(at), L(at + 5 * PAGE);
}

static void file_pages(void) {
    begin(RW);
    at[0] = 229;
    R(remap_file_pages(at, PAGE, 0, 2, 0));
    L(at), L(at + PAGE), L(at + 2 * PAGE);
    R(remap_file_pages(at, PAGE, PROT_READ, 2, 0));
    R(remap_file_pages(at + MIB, 2 * PAGE, 0, 0, 0));
    L(at + MIB);
    at[MIB] = 230;
    F(0);
}

static void file_pages_of_nothing(void) {
    begin(RW);
    R(munmap(at + PAGE, PAGE));
    R(remap_file_pages(at + PAGE, PAGE, 0, 2, 0));
    R(remap_file_pages(at, 2 * PAGE, 0, 2, 0));
    L(at);
}

static void past_the_end(void) {
    begin(RW);
    CHECK(ftruncate(fd, 4 * MIB + 10) == 0);
    L(at + 4 * MIB), L(at + 4 * MIB + 9), L(at + 4 * MIB + 10), L(at + 4 * MIB + PAGE - 1);
    L(at + 4 * MIB + PAGE), S(at + 4 * MIB + PAGE + 5), L(at + SIZE - 1);
    CHECK(ftruncate(fd, SIZE) == 0);
    L(at + 4 * MIB + PAGE), L(at + SIZE - 1), L(at + 4 * MIB + 10);
    S(at + SIZE - 1);
    CHECK(ftruncate(fd, 0) == 0);
    L(at), S(at);
    R(msync(at, SIZE, MS_SYNC));
    R(munmap(at, SIZE));
}

static void past_the_end_of_a_part(void) {
    begin(RW);
    R(mprotect(at, PAGE, PROT_READ));
    CHECK(ftruncate(fd, 4 * MIB) == 0);
    L(at + 4 * MIB), S(at + 4 * MIB), L(at + 4 * MIB - 1), S(at);
}

static void past_the_end_of_a_reader(void) {
    begin(PROT_READ);
    S(at), S(at + MIB + 3);
    CHECK(ftruncate(fd, 4 * MIB) == 0);
    L(at + 4 * MIB), S(at + 4 * MIB);
}

/* What the kernel says of a child that touches what it may not. */
static void children(void) {
    begin(RW);
    R(munmap(at + 4 * PAGE, PAGE));
    R(mprotect(at + MIB, PAGE, PROT_NONE));
    fflush(stdout);
    const size_t offsets[] = {0, 4 * PAGE, MIB, MIB + PAGE};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            *(volatile uint8_t *)(at + offsets[i]) = 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        printf("%s: a store at %s: %s %d\n", group, place(at + offsets[i]), WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

/* Memory, mapping and memory side by side. */
static void across_other_memory(void) {
    uint8_t *room = anonymous(SIZE + 4 * MIB);
    memset(room, 5, SIZE + 4 * MIB);
    at = mmap(room + 2 * MIB, SIZE, RW, MAP_SHARED | MAP_FIXED, fd, 0);
    CHECK(at == room + 2 * MIB && at[MIB] == pattern(MIB));
    catch_signal(SIGSEGV, 0);
    R(msync(room, SIZE + 4 * MIB, MS_SYNC));
    R(madvise(room + MIB, 2 * MIB, MADV_NORMAL));
    R(mlock(at - PAGE, 2 * PAGE));
    R(munlock(at - PAGE, 2 * PAGE));
    R(mincore(at - PAGE, 2 * PAGE, (unsigned char[2]){0}));
    R(madvise(at - PAGE, 2 * PAGE, MADV_DONTNEED));
    L(at - PAGE), L(at), L(at - 2 * PAGE);
    R(mprotect(at - PAGE, 2 * PAGE, PROT_READ));
    S(at - PAGE), S(at), S(at + PAGE), S(at - 2 * PAGE);
    R(madvise(at - PAGE, 2 * PAGE, MADV_FREE));
    R(munmap(at - MIB, 2 * MIB));
    L(at - 1), L(at), L(at + MIB), L(at - MIB - 1);
    R(munmap(room, SIZE + 4 * MIB));
    L(at + MIB), L(room);
}

/* The same for a private mapping, of a file that is open for that. */
static void begin_private(int mode) {
    close(fd);
    fd = open(name, mode);
    at = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED);
    for (size_t page = 0; page < SIZE / PAGE; page += 64) CHECK(at[page * PAGE] == pattern(page * PAGE));
    catch_signal(SIGSEGV, 0);
    catch_signal(SIGBUS, 0);
}

static void private_arguments(void) {
    begin_private(O_RDONLY);
    int writing = open("/dev/null", O_WRONLY), folder = open("/", O_RDONLY);
    A(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 1));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, -(off_t)PAGE));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, -1, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, writing, 0));
    A(mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, folder, 0));
    A(mmap(NULL, SIZE_MAX & ~(PAGE - 1), PROT_READ, MAP_PRIVATE, fd, 0));
    A(mmap(at + 1, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
    A(mmap(at, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED, 900, 0));
    A(mmap(at, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 17));
    A(mmap(at + MIB, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0));
    L(at + MIB), S(at + MIB);
    writing = open(name, O_WRONLY);
    A(mmap(at, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED, writing, 0));
    L(at + MIB), S(at + MIB);
}

static void private_protect_whole(void) {
    begin_private(O_RDONLY);
    R(mprotect(at, SIZE, 1 << 20));
    R(mprotect(at, SIZE, RW | PROT_GROWSDOWN));
    R(mprotect(at, SIZE, PROT_READ));
    S(at + PAGE);
    R(mprotect(at, SIZE, RW));
    S(at + PAGE), L(at + PAGE), L(at + 2 * PAGE);
    F(PAGE);
    R(mprotect(at, SIZE, PROT_READ));
    S(at + PAGE), L(at + PAGE);
    R(madvise(at, SIZE, MADV_DONTNEED));
    L(at + PAGE);
}

static void private_protect_part(void) {
    begin_private(O_RDWR);
    R(munmap(at + 40 * PAGE, 4 * PAGE));
    R(mprotect(at + 20 * PAGE, PAGE, RW));
    S(at + 20 * PAGE), S(at + 19 * PAGE), S(at + 21 * PAGE);
    L(at + 20 * PAGE), L(at + 41 * PAGE);
    F(20 * PAGE);
    R(mprotect(at + 39 * PAGE, 2 * PAGE, RW));
    S(at + 39 * PAGE);
    F(39 * PAGE);
}

static void private_protect_none(void) {
    begin_private(O_RDONLY);
    R(mprotect(at, SIZE, PROT_NONE));
    L(at + 5), S(at + 5);
    R(mprotect(at, SIZE, PROT_WRITE));
    S(at + 5), L(at + 5);
    R(mprotect(at, SIZE, PROT_READ | PROT_EXEC));
    L(at + 5), S(at + 5);
    F(5);
}

static void private_written(void) {
    begin_private(O_RDWR);
    R(pwrite(fd, "!", 1, MIB));
    L(at + MIB), L(at + MIB + 1), L(at + MIB - 1);
    int other = open(name, O_RDWR);
    R(pwrite(other, "?", 1, MIB));
    L(at + MIB);
    R(ftruncate(fd, SIZE));
    L(at + 2 * MIB);
}

static void private_past_the_end(void) {
    begin_private(O_RDWR);
    CHECK(ftruncate(fd, 4 * MIB + 10) == 0);
    L(at + 4 * MIB), L(at + 4 * MIB + 9), L(at + 4 * MIB + 10), L(at + 4 * MIB + PAGE - 1);
    L(at + 4 * MIB + PAGE), L(at + SIZE - 1), S(at), S(at + SIZE - 1);
    CHECK(ftruncate(fd, SIZE) == 0);
    L(at + 4 * MIB + PAGE), L(at + SIZE - 1), L(at + 4 * MIB + 10);
    CHECK(ftruncate(fd, 0) == 0);
    L(at);
    R(munmap(at, SIZE));
}

static void private_sync(void) {
    begin_private(O_RDONLY);
    R(msync(at, SIZE, MS_SYNC));
    R(msync(at, SIZE, MS_ASYNC));
    R(msync(at, SIZE, MS_INVALIDATE));
    R(msync(at, SIZE, MS_SYNC | MS_ASYNC));
    R(msync(at, SIZE, 64));
    R(msync(at + 1, PAGE, MS_SYNC));
    R(mlock(at, 4 * PAGE));
    IN(at + 3 * PAGE);
    R(msync(at, PAGE, MS_SYNC | MS_INVALIDATE));
    R(madvise(at, PAGE, MADV_DONTNEED));
    R(munlock(at, 4 * PAGE));
    R(msync(at, PAGE, MS_SYNC | MS_INVALIDATE));
    R(mincore(at, SIZE, (unsigned char[SIZE / PAGE]){0}));
    R(mincore(at + 1, PAGE, (unsigned char[1]){0}));
    L(at);
}

static void private_advice(void) {
    begin_private(O_RDONLY);
    int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_COLD, MADV_PAGEOUT,
                    MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE, 1212};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        printf("%s: advice %d\n", group, advice[i]);
        R(madvise(at, SIZE, advice[i]));
        L(at + MIB);
    }
    R(madvise(at, 16 * PAGE, MADV_POPULATE_READ));
    R(madvise(at, 16 * PAGE, MADV_POPULATE_WRITE));
    IN(at + 3 * PAGE);
    R(madvise(at, PAGE, MADV_REMOVE));
    R(madvise(at, PAGE, MADV_FREE));
    R(madvise(at, PAGE, MADV_WIPEONFORK));
    R(madvise(at, PAGE, MADV_MERGEABLE));
    L(at), S(at);
}

static void private_hole(void) {
    begin_private(O_RDONLY);
    R(munmap(at + 10 * PAGE, 2 * PAGE));
    R(msync(at + 8 * PAGE, 5 * PAGE, MS_SYNC));
    R(madvise(at + 9 * PAGE, 4 * PAGE, MADV_WILLNEED));
    R(mprotect(at + 10 * PAGE, PAGE, RW));
    L(at + 9 * PAGE), L(at + 12 * PAGE);
    printf("%s: in the hole: %d %d\n", group, raised_by_load(at + 10 * PAGE), raised_by_store(at + 12 * PAGE - 1));
    R(munmap(at, SIZE));
    L(at);
}

static void private_remap(void) {
    begin_private(O_RDONLY);
    A(mremap(at, SIZE, 4 * MIB, 0));
    A(mremap(at, 4 * MIB, 5 * MIB, 64));
    A(mremap(at, 0, SIZE, MREMAP_MAYMOVE));
    L(at + 4 * MIB - 1);
    uint8_t *room = anonymous(4 * MIB), *moved = mremap(at, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    printf("%s: moved: %d %d\n", group, moved == room, room[PAGE]);
    L(at + 5);
    at = room;
    R(mprotect(at, PAGE, RW));
    S(at + 5), S(at + PAGE), L(at + 5);
    F(5);
}

/* Other mappings at its place. */
static void private_replaced(void) {
    begin_private(O_RDWR);
    A(mmap(at, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0));
    R(mprotect(at, SIZE, RW));
    S(at + 5), F(5);
    A(mmap(at, SIZE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
    R(mprotect(at, SIZE, RW));
    at[5] = 99;
    L(at + 5), F(5);
    A(mmap(at + MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    L(at + MIB), S(at + MIB), L(at + 5), L(at + 2 * MIB);
    F(MIB);
}

static void private_beside_shared(void) {
    begin_private(O_RDWR);
    R(munmap(at + 4 * MIB, 4 * MIB));
    uint8_t *other = mmap(NULL, 4 * MIB, RW, MAP_SHARED, fd, 4 * MIB);
    CHECK(other != MAP_FAILED);
    other[PAGE] = 150;
    F(4 * MIB + PAGE);
    S(at + 5), L(at + 5);
    R(msync(at, 4 * MIB, MS_SYNC));
    R(mprotect(at, PAGE, RW));
    S(at + 5), S(at + PAGE);
    F(5);
    other[PAGE] = 151;
    F(4 * MIB + PAGE);
    R(munmap(at, 4 * MIB));
    printf("%s: the other: %d\n", group, other[PAGE]);
}

/* The same bytes twice. */
static void private_twice(void) {
    begin_private(O_RDWR);
    uint8_t *other = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("%s: at a place of its own: %d\n", group, other != at);
    R(mprotect(other, SIZE, RW));
    other[PAGE] = 152;
    L(at + PAGE), S(at + PAGE);
    uint8_t *shared = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    shared[PAGE] = 153, shared[2 * PAGE] = 154;
    L(at + PAGE);
    printf("%s: the other: %d %d\n", group, other[PAGE], other[2 * PAGE]);
    R(munmap(at, SIZE));
    L(at);
    printf("%s: the other: %d %d\n", group, other[PAGE], other[2 * PAGE]);
}

static void private_in_children(void) {
    begin_private(O_RDONLY);
    fflush(stdout);
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            if (way == 1 && mprotect(at, SIZE, RW) != 0) _exit(1);
            if (way < 2) *(volatile uint8_t *)(at + MIB) = 155;
            _exit(at[MIB]);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        printf("%s: a child, %d: %s %d\n", group, way, WIFSIGNALED(status) ? "signal" : "exit",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        L(at + MIB);
    }
    F(MIB);
}

#define GROUPS(one)                                                                                                          \
    one(map_arguments) one(fixed_and_refused) one(private_over_part) one(private_over_locked)                                \
    one(lock_stays_beside_what_is_mapped_over) one(barrier_in_private_memory_over_part) one(whole_map_is_replaced)           \
    one(same_bytes_at_the_same_place) one(guard_pages) one(write_barrier) one(protect_arguments) one(protect_whole)          \
    one(protect_none) one(protect_execute) one(protect_write_only) one(protect_part) one(protect_across_hole)                \
    one(protect_beyond_the_end) one(protect_of_reader) one(reader_beside_writer) one(writer_after_reader) one(two_alike)     \
    one(parts_beside_one_another) one(unmap_arguments) one(unmap_whole) one(hole) one(behind_the_mapping) one(sync_arguments) \
    one(sync_of_locked) one(advice_arguments) one(advice_that_is_followed) one(advice_on_reader) one(advice_past_the_end)    \
    one(advice_on_locked) one(removal) one(removal_of_locked) one(removal_by_reader) one(removal_across_hole)                \
    one(advice_FREE) one(advice_WIPEONFORK) one(advice_KEEPONFORK) one(advice_MERGEABLE) one(advice_UNMERGEABLE)             \
    one(advice_DONTNEED_LOCKED) one(advice_GUARD_INSTALLED) one(residency) one(locking_arguments) one(locking_all)           \
    one(locking_past_the_end) one(locked_from_the_start) one(locked_memory_grows) one(locking_limits) one(remap_arguments) one(remap_of_nothing_over_a_map) one(remap_shrinks)   \
    one(remap_moves) one(remap_leaves_its_place) one(remap_over_a_map) one(remap_over_a_locked_map) one(remap_of_part)       \
    one(remap_once_more) one(remap_grows_into_another) one(remap_over_hole) one(file_pages) one(file_pages_of_nothing)       \
    one(past_the_end) one(past_the_end_of_a_part) one(past_the_end_of_a_reader) one(children) one(across_other_memory)       \
    one(private_arguments) one(private_protect_whole) one(private_protect_part) one(private_protect_none)                    \
    one(private_written) one(private_past_the_end) one(private_sync) one(private_advice) one(private_hole)                   \
    one(private_remap) one(private_replaced) one(private_beside_shared) one(private_twice) one(private_in_children)

/* Each group on a file of its own, `FILE.GROUP`; with a name after it only that group. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {
#define ROW(name) {#name, name},
        GROUPS(ROW)};
    for (size_t i = 0; argc > 1 && i < sizeof groups / sizeof *groups; i++) {
        if (argc > 2 && strcmp(argv[2], groups[i].name)) continue;
        printf("== %s\n", groups[i].name);
        fflush(stdout);
        snprintf(name, sizeof name, "%s.%s", argv[1], groups[i].name);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            group = groups[i].name;
            fd = file_of(name, SIZE);
            groups[i].run();
            fflush(stdout);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status) printf("%s: ended with status %x\n", groups[i].name, status);
        unlink(name);
    }
    return argc > 1 ? 0 : 2;
}
