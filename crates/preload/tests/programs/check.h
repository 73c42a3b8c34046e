/* What the programs share: cases by name, checks that say where they failed, and a file of a known pattern. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#define SIZE (8 * MIB)
#define RW (PROT_READ | PROT_WRITE)

#define CHECK(holds)                                                                                  \
    do {                                                                                              \
        if (!(holds)) {                                                                               \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #holds, errno, strerror(errno)); \
            _exit(1);                                                                                 \
        }                                                                                             \
    } while (0)

#define FAILS(call, error)                      \
    do {                                        \
        errno = 0;                              \
        CHECK((long)(call) == -1 && errno == (error)); \
    } while (0)

struct test {
    const char *name;
    void (*run)(const char *path);
};

#define RUN_ONE_OF(tests)                                               \
    int main(int argc, char **argv) {                                   \
        for (size_t at = 0; argc == 3 && at < sizeof tests / sizeof *tests; at++) \
            if (!strcmp(tests[at].name, argv[1])) {                     \
                tests[at].run(argv[2]);                                 \
                return 0;                                               \
            }                                                           \
        fprintf(stderr, "no such case\n");                              \
        return 2;                                                       \
    }

/* The byte of the pattern at an offset of the file. */
static inline uint8_t pattern(size_t offset) { return (uint8_t)(offset / PAGE * 7 + offset % 251 + 1); }

static inline int file_of(const char *path, size_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    static uint8_t page[PAGE];
    for (size_t at = 0; at < size; at += PAGE) {
        for (size_t i = 0; i < PAGE; i++) page[i] = pattern(at + i);
        CHECK(pwrite(fd, page, PAGE, (off_t)at) == PAGE);
    }
    return fd;
}

static inline uint8_t *map_all(int fd) {
    uint8_t *at = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Looks at a byte of each page of a mapping that begins at an offset of the file. */
static inline void expect(const uint8_t *at, size_t offset, size_t len) {
    for (size_t i = 0; i < len; i += PAGE) CHECK(at[i + i / PAGE % PAGE] == pattern(offset + i + i / PAGE % PAGE));
}

/* How the kernel has what is mapped at an address; zero: it is not the file's, so it is the engine's. */
static inline char kind_at(const void *at) {
    char line[512], flags[8];
    unsigned long start, end, inode = 0;
    /* What changes hands while the list is read may be missing in it. */
    for (int looks = 0; looks < 1000; looks++) {
        FILE *maps = fopen("/proc/self/maps", "r");
        int found = 0;
        while (!found && fgets(line, sizeof line, maps))
            found = sscanf(line, "%lx-%lx %7s %*s %*s %lu", &start, &end, flags, &inode) == 4 &&
                    start <= (unsigned long)at && (unsigned long)at < end;
        fclose(maps);
        if (found) return inode == 0 ? 0 : flags[3];
    }
    CHECK(!"it is mapped");
    return 0;
}

/* Whether there is a budget, within which the engine has what it can from the beginning. */
static inline int has_budget(void) { return getenv("FASTMAP_CACHE") != NULL; }

static sigjmp_buf escape;
static volatile sig_atomic_t caught_signal, caught_code;
static void *volatile caught_address;

static inline void jump_out(int signal, siginfo_t *info, void *context) {
    (void)context;
    caught_signal = signal;
    caught_code = info->si_code;
    caught_address = info->si_addr;
    siglongjmp(escape, 1);
}

static inline void catch_signal(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = jump_out, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* Which signal an access raises; zero: none. */
static inline int raised_by_load(const volatile uint8_t *at) {
    caught_signal = 0;
    if (!sigsetjmp(escape, 1)) (void)*at;
    return caught_signal;
}

/* Whether a byte that the program has unmapped is gone: nothing is there, or what a thread of the library has put in its place. */
static inline int is_gone(const volatile uint8_t *at, uint8_t byte) {
    volatile int found = -1;
    if (!sigsetjmp(escape, 1)) found = *at;
    return found != byte;
}

static inline int raised_by_store(volatile uint8_t *at) {
    caught_signal = 0;
    if (!sigsetjmp(escape, 1)) *at = 1;
    return caught_signal;
}

/* Whether a byte of the file, past all mappings of this process, is this: what another program sees. */
static inline void expect_in_file(const char *path, size_t offset, uint8_t byte) {
    char command[1024];
    snprintf(command, sizeof command, "test $(od -An -tu1 -j%zu -N1 %s) -eq %u", offset, path, byte);
    CHECK(system(command) == 0);
}
