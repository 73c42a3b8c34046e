// What each program in C is, but for its data: `PROGRAM make DATA BYTES` makes them in a directory, and `PROGRAM run DATA SECONDS PASS`
// passes over them once in order, for at most PASS seconds, says "begin", works for SECONDS, and says "end OPS SECONDS SUM...".
//
// Work comes in batches, the same ones in the same order in every run; each has its sum, so that runs can be compared as far as
// both came.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Makes about so many bytes of data in a directory.
static void make(const char *data, uint64_t bytes);
// Opens them.
static void begin(const char *data);
// The n-th step of a pass over them; 0: there are no more.
static int step(uint64_t n);
// The n-th batch; its operations are added to `ops`.
static uint64_t batch(uint64_t n, uint64_t *ops);

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

// An odd multiplier: a word that is wrong, or at another place, changes the sum.
__attribute__((unused)) static uint64_t sum_of(const void *start, uint64_t bytes) {
    const uint64_t *words = start;
    uint64_t sum = bytes;
    for (uint64_t at = 0; at < bytes / 8; at++) sum = sum * 0x9e3779b97f4a7c15u + words[at];
    return sum;
}

static char path[4096];

__attribute__((unused)) static const char *in(const char *data, const char *name) {
    snprintf(path, sizeof path, "%s/%s", data, name);
    return path;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "make") == 0) {
        make(argv[2], strtoull(argv[3], NULL, 10));
        return 0;
    }
    if (argc != 5 || strcmp(argv[1], "run") != 0) {
        fprintf(stderr, "usage: make DATA BYTES | run DATA SECONDS PASS\n");
        return 2;
    }
    begin(argv[2]);
    double seconds = atof(argv[3]), until = now() + atof(argv[4]);
    for (uint64_t n = 0; now() < until && step(n); n++) {
    }
    puts("begin");
    fflush(stdout);
    uint64_t ops = 0, count = 0, room = 0, *sums = NULL;
    double start = now(), end;
    do {
        if (count == room && !(sums = realloc(sums, (room = room * 2 + 64) * sizeof *sums))) fail("sums");
        sums[count] = batch(count, &ops);
        count++;
        end = now();
    } while (end - start < seconds);
    printf("end %" PRIu64 " %.9f", ops, end - start);
    for (uint64_t n = 0; n < count; n++) printf(" %" PRIx64, sums[n]);
    puts("");
    return 0;
}
