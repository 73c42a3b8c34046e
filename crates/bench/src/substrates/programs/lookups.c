// Looks keys up in a table as databases lay them out: sorted records of 256 bytes in blocks of 4 KiB, and an index, which is the first
// key of each block, behind them. Every lookup is of a key that is there; some are popular, as with Zipf's law, and lie anywhere.
//
// Each second it says "second SECONDS LOOKUPS", so far, and at its end "latency P50 P99.9 MAX", microseconds, and "peak BYTES".
#include "program.h"
#include <sys/resource.h>

enum { RECORD = 256, WORDS = RECORD / 8, BLOCK = 4096, EACH = BLOCK / RECORD, LOOKUPS = 256 };

static const char *table;
static const uint64_t *first_keys;
static uint64_t blocks, octaves;

// Latencies: 32 buckets to each power of two nanoseconds.
enum { FINE = 32 };
static uint64_t seen[64 * FINE], slowest;
static double began, told;

static uint64_t key_of(uint64_t record) { return record * 4 + mix(record) % 4; }

static void make(const char *data, uint64_t bytes) {
    uint64_t count = bytes / (BLOCK + sizeof *first_keys), block[BLOCK / 8];
    FILE *file = fopen(in(data, "table"), "w");
    if (!file) fail(path);
    for (uint64_t at = 0; at < count; at++) {
        for (uint64_t word = 0; word < BLOCK / 8; word++) block[word] = mix(at * (BLOCK / 8) + word);
        for (uint64_t record = 0; record < EACH; record++) block[record * WORDS] = key_of(at * EACH + record);
        if (fwrite(block, sizeof block, 1, file) != 1) fail(path);
    }
    for (uint64_t at = 0; at < count; at++) {
        uint64_t key = key_of(at * EACH);
        if (fwrite(&key, sizeof key, 1, file) != 1) fail(path);
    }
    if (fclose(file)) fail(path);
}

static void say_latencies(void);

static void begin(const char *data) {
    int file = open(in(data, "table"), O_RDONLY);
    struct stat facts;
    if (file < 0 || fstat(file, &facts)) fail(path);
    blocks = (uint64_t)facts.st_size / (BLOCK + sizeof *first_keys);
    while (blocks * EACH >> (octaves + 1)) octaves++;
    table = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (table == MAP_FAILED) fail("mmap");
    close(file);
    first_keys = (const uint64_t *)(table + blocks * BLOCK);
    atexit(say_latencies);
}

// The n-th key that is asked for: of the most popular record as often as of the two that come next together, the four then, and so on.
static uint64_t asked(uint64_t n) {
    uint64_t octave = mix(n * 2) % (octaves + 1), rank = ((uint64_t)1 << octave) + (mix(n * 2 + 1) & (((uint64_t)1 << octave) - 1));
    return key_of(mix(rank) % (blocks * EACH));
}

static uint64_t look_up(uint64_t key) {
    uint64_t low = 0, high = blocks;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (first_keys[middle] <= key) low = middle;
        else high = middle;
    }
    const uint64_t *record = (const uint64_t *)(table + low * BLOCK);
    for (int at = 0; at < EACH; at++, record += WORDS)
        if (*record == key) return sum_of(record, RECORD);
    fprintf(stderr, "key %" PRIu64 " is not in its block\n", key);
    exit(1);
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0;
    double before = now();
    if (n == 0) began = told = before;
    for (uint64_t turn = 0; turn < LOOKUPS; turn++) {
        sum = sum * 31 + look_up(asked(n * LOOKUPS + turn));
        double after = now();
        uint64_t ns = (uint64_t)((after - before) * 1e9) + 1, shift = ns < FINE ? 0 : 58 - (uint64_t)__builtin_clzll(ns);
        seen[shift * FINE + (ns >> shift)]++;
        if (ns > slowest) slowest = ns;
        before = after;
        ++*ops;
        if (after - told >= 1) {
            printf("second %.3f %" PRIu64 "\n", after - began, *ops);
            fflush(stdout);
            told = after;
        }
    }
    return sum;
}

static double at_most(uint64_t rank) {
    uint64_t at = 0;
    for (uint64_t passed = seen[0]; passed < rank && at + 1 < sizeof seen / sizeof *seen;) passed += seen[++at];
    uint64_t shift = at < 2 * FINE ? 0 : at / FINE - 1;
    uint64_t ns = ((at - shift * FINE + 1) << shift) - 1;
    return (double)(ns < slowest ? ns : slowest) / 1e3;
}

static void say_latencies(void) {
    uint64_t all = 0;
    struct rusage usage;
    for (uint64_t at = 0; at < sizeof seen / sizeof *seen; at++) all += seen[at];
    if (all == 0 || getrusage(RUSAGE_SELF, &usage)) return;
    printf("latency %.3f %.3f %.3f\n", at_most((all + 1) / 2), at_most(all - all / 1000), (double)slowest / 1e3);
    printf("peak %ld\n", usage.ru_maxrss * 1024);
}
