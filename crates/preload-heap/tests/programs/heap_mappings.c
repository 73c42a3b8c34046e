// Large private mappings: zeros, parts that go, grow, move, are dropped, protected and locked, by what the manual pages say.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define must(what) do { if (!(what)) { printf("line %d: %s (%m)\n", __LINE__, #what); exit(1); } } while (0)
enum { MIB = 1 << 20, PAGE = 4096 };

static unsigned char *map(size_t len) {
    unsigned char *at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED);
    return at;
}

static int all(const unsigned char *at, size_t len, unsigned char value) {
    for (size_t i = 0; i < len; i++) if (at[i] != value) return 0;
    return 1;
}

static sigjmp_buf back;
static void on_fault(int number) { siglongjmp(back, number); }

static int faults(volatile unsigned char *at, int store) {
    int number = sigsetjmp(back, 1);
    if (number) return number;
    if (store) *at = 1; else (void)*at;
    return 0;
}

int main(void) {
    unsigned char *a = map(8 * MIB), *b = map(3 * MIB + 5);
    must(all(a, 8 * MIB, 0) && all(b, 3 * MIB, 0));
    memset(a, 1, 8 * MIB), memset(b, 2, 3 * MIB);
    // The middle goes; what comes next is zeros.
    must(munmap(a + 2 * MIB, 3 * MIB) == 0);
    must(all(a, 2 * MIB, 1) && all(a + 5 * MIB, 3 * MIB, 1));
    for (int i = 0; i < 5; i++) {
        unsigned char *c = map(3 * MIB - i * PAGE);
        must(all(c, 3 * MIB - i * PAGE, 0));
        memset(c, 9, 3 * MIB - i * PAGE);
        must(munmap(c, 3 * MIB - i * PAGE) == 0);
    }
    // Dropped: zeros.
    must(madvise(b + MIB, MIB, MADV_DONTNEED) == 0);
    must(all(b, MIB, 2) && all(b + MIB, MIB, 0) && all(b + 2 * MIB, MIB, 2));
    must(madvise(b, MIB, MADV_FREE) == 0);
    memset(b, 4, PAGE);
    must(all(b, PAGE, 4));
    must(madvise(b, MIB, MADV_WILLNEED) == 0 && madvise(b + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    // Longer, elsewhere, shorter.
    b = mremap(b, 3 * MIB + 5, 9 * MIB, MREMAP_MAYMOVE);
    must(b != MAP_FAILED && all(b, PAGE, 4) && all(b + MIB, MIB, 0) && all(b + 2 * MIB, MIB, 2) && all(b + 4 * MIB, 5 * MIB, 0));
    unsigned char *place = mmap(0, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(mremap(b, 9 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    b = place;
    must(all(b, PAGE, 4) && all(b + 2 * MIB, MIB, 2) && munmap(b, 4 * MIB) == 0);
    must(mremap(a, 2 * MIB, MIB, 0) == a && all(a, MIB, 1));
    // A file, and other memory, over a part of it.
    unsigned char *d = map(2 * MIB);
    memset(d, 7, 2 * MIB);
    must(mmap(d + MIB, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == d + MIB);
    must(all(d, MIB, 7) && all(d + MIB, 64 * PAGE, 0) && all(d + MIB + 64 * PAGE, MIB - 64 * PAGE, 7));
    memset(d + MIB, 8, 64 * PAGE);
    must(all(d + MIB, 64 * PAGE, 8) && mprotect(d + MIB, PAGE, PROT_READ) == 0 && all(d + MIB, PAGE, 8));
    must(munmap(d, 2 * MIB) == 0);
    // Over a part that is locked, or may not be touched: the new memory is nobody else's.
    unsigned char *g = map(4 * MIB), *much = map(16 * MIB);
    memset(g, 9, 4 * MIB);
    must(mlock(g + MIB, 16 * PAGE) == 0 && mprotect(g + MIB + 16 * PAGE, 16 * PAGE, PROT_NONE) == 0);
    must(mmap(g + MIB, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == g + MIB);
    memset(g + MIB, 3, 64 * PAGE);
    for (int round = 0; round < 3; round++) {
        memset(much, round, 16 * MIB);
        must(all(g + MIB, 64 * PAGE, 3) && all(g, MIB, 9) && all(g + MIB + 64 * PAGE, 3 * MIB - 64 * PAGE, 9));
    }
    must(munmap(g, 4 * MIB) == 0 && munmap(much, 16 * MIB) == 0);
    // Guard pages, and memory that is only read, in mappings and in malloc's; locked memory.
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, 0);
    unsigned char *e = map(4 * MIB), *f = aligned_alloc(PAGE, 64 * PAGE), *noise = map(16 * MIB);
    memset(e, 5, 4 * MIB), memset(f, 6, 64 * PAGE);
    must(mprotect(e, 8 * PAGE, PROT_NONE) == 0 && mprotect(f, 8 * PAGE, PROT_READ) == 0);
    must(mlock(e + MIB, 10 * PAGE) == 0);
    for (int round = 0; round < 3; round++) {
        memset(noise, round, 16 * MIB);
        must(faults(e + PAGE, 0) == SIGSEGV && faults(e + PAGE, 1) == SIGSEGV && faults(f + PAGE, 1) == SIGSEGV);
        must(!faults(e + 9 * PAGE, 1) && !faults(f + PAGE, 0) && !faults(f + 9 * PAGE, 1));
        must(all(f, 8 * PAGE, 6) && all(e + MIB, 10 * PAGE, 5) && all(e + 2 * MIB, MIB, 5));
        pid_t child = fork();
        if (!child) {
            must(faults(e + PAGE, 0) == SIGSEGV && faults(f + PAGE, 1) == SIGSEGV && all(f, 8 * PAGE, 6));
            must(mprotect(e, 8 * PAGE, PROT_READ) == 0 && all(e, 8 * PAGE, 5) && all(e + 2 * MIB, MIB, 5));
            must(munmap(noise, 16 * MIB) == 0 && all(map(MIB), MIB, 0));
            _exit(0);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0);
    }
    must(munlock(e + MIB, 10 * PAGE) == 0 && mprotect(e, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    must(all(e, 8 * PAGE, 5) && mprotect(f, 8 * PAGE, PROT_READ | PROT_WRITE) == 0);
    f[0] = 1, e[0] = 1;
    free(f);
    must(munmap(e, 4 * MIB) == 0 && munmap(noise, 16 * MIB) == 0);
    // Code.
    unsigned char *code = map(MIB);
    memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6);
    must(mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0 && ((int (*)(void))code)() == 42);
    puts("ok");
}
