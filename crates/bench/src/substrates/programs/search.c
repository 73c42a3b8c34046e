// Binary searches in a sorted file of 64-bit keys.
#include "program.h"

enum { SEARCHES = 256 };

static const uint64_t *keys;
static uint64_t all;

static void make(const char *data, uint64_t bytes) {
    FILE *file = fopen(in(data, "sorted"), "w");
    if (!file) fail(path);
    for (uint64_t at = 0; at < bytes / 8; at++) {
        uint64_t key = at * 4 + mix(at) % 4;
        if (fwrite(&key, sizeof key, 1, file) != 1) fail(path);
    }
    if (fclose(file)) fail(path);
}

static void begin(const char *data) {
    int file = open(in(data, "sorted"), O_RDONLY);
    struct stat facts;
    if (file < 0 || fstat(file, &facts)) fail(path);
    all = (uint64_t)facts.st_size / 8;
    keys = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (keys == MAP_FAILED) fail("mmap");
    close(file);
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0;
    for (uint64_t turn = 0; turn < SEARCHES; turn++) {
        uint64_t wanted = mix(n * SEARCHES + turn) % (all * 4), low = 0, high = all;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (keys[middle] < wanted) low = middle + 1;
            else high = middle;
        }
        sum = sum * 31 + low + (low < all ? keys[low] : 0);
    }
    *ops += SEARCHES;
    return sum;
}
