// The common part of all programs in C. A program has two commands:
//
// * `PROGRAM make DATA BYTES` makes its data in the directory DATA.
// * `PROGRAM run DATA SECONDS` prints "begin", works on the data for SECONDS, and prints "end OPS SECONDS SUM...".
//
// `PROGRAM run DATA SECONDS warm` first prints "start", works for SECONDS, and prints "cold OPS SECONDS". Then it works until something
// can be read from standard input. Only then it prints "begin" and goes on as above.
//
// While it works, it prints "at OPS SECONDS" four times a second: the operations and the time so far.
//
// Work comes in batches. Every run makes the same batches in the same order. Each batch has a sum, so two runs can be compared as far as
// both came.
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Makes about so many bytes of data in a directory.
static void make(const char *data, uint64_t bytes);
// Opens the data.
static void begin(const char *data);
// Makes the n-th batch, and adds its operations to `ops`. Returns its sum.
static uint64_t batch(uint64_t n, uint64_t *ops);

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

// The sum of some words. The multiplier is odd, so a word that is wrong or at another place changes the sum.
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

static uint64_t count, *sums;

// Works for `seconds`. If that is 0, works until something can be read from standard input. Returns how long it worked.
static double work(double seconds, uint64_t *ops) {
    static uint64_t room;
    struct pollfd told = {0, POLLIN, 0};
    double start = now(), end, said = start;
    do {
        if (count == room && !(sums = realloc(sums, (room = room * 2 + 64) * sizeof *sums))) fail("sums");
        sums[count] = batch(count, ops);
        count++;
        end = now();
        if (end - said >= 0.25) {
            printf("at %" PRIu64 " %.3f\n", *ops, end - start);
            fflush(stdout);
            said = end;
        }
    } while (seconds > 0 ? end - start < seconds : poll(&told, 1, 0) == 0);
    return end - start;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "make") == 0) {
        make(argv[2], strtoull(argv[3], NULL, 10));
        return 0;
    }
    int warm = argc == 5 && strcmp(argv[4], "warm") == 0;
    if ((argc != 4 && !warm) || strcmp(argv[1], "run") != 0 || !(atof(argv[3]) > 0)) {
        fprintf(stderr, "usage: make DATA BYTES | run DATA SECONDS [warm]\n");
        return 2;
    }
    begin(argv[2]);
    uint64_t ops = 0;
    double seconds = atof(argv[3]);
    if (warm) {
        puts("start");
        fflush(stdout);
        double took = work(seconds, &ops);
        printf("cold %" PRIu64 " %.9f\n", ops, took);
        fflush(stdout);
        work(0, &ops);
        ops = 0;
    }
    puts("begin");
    fflush(stdout);
    double took = work(seconds, &ops);
    printf("end %" PRIu64 " %.9f", ops, took);
    for (uint64_t n = 0; n < count; n++) printf(" %" PRIx64, sums[n]);
    puts("");
    return 0;
}
