// Many small files of 4 to 64 KiB, 256 in a directory. They are mapped, read and unmapped one after the other.
#include "program.h"

enum { FILES = 16 };

static const char *root;
static uint64_t files;

static const char *name_of(uint64_t file) {
    snprintf(path, sizeof path, "%s/%" PRIu64 "/%" PRIu64, root, file / 256, file % 256);
    return path;
}

static void make(const char *data, uint64_t bytes) {
    static uint64_t words[64 << 7];
    root = data;
    uint64_t made = 0, file = 0;
    for (; made < bytes; file++) {
        uint64_t length = (4 + mix(file) % 16 * 4) << 10;
        for (uint64_t at = 0; at < length / 8; at++) words[at] = (file << 32 | at) * 0x9e3779b97f4a7c15u;
        if (file % 256 == 0) {
            snprintf(path, sizeof path, "%s/%" PRIu64, data, file / 256);
            if (mkdir(path, 0755)) fail(path);
        }
        FILE *to = fopen(name_of(file), "w");
        if (!to || fwrite(words, length, 1, to) != 1 || fclose(to)) fail(path);
        made += length;
    }
    FILE *to = fopen(in(data, "count"), "w");
    if (!to || fprintf(to, "%" PRIu64 "\n", file) < 0 || fclose(to)) fail(path);
}

static void begin(const char *data) {
    root = data;
    FILE *from = fopen(in(data, "count"), "r");
    if (!from || fscanf(from, "%" SCNu64, &files) != 1) fail(path);
    fclose(from);
}

static uint64_t read_one(uint64_t number) {
    int file = open(name_of(number), O_RDONLY);
    struct stat facts;
    if (file < 0 || fstat(file, &facts)) fail(path);
    void *map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) fail("mmap");
    close(file);
    uint64_t sum = sum_of(map, (uint64_t)facts.st_size);
    munmap(map, (size_t)facts.st_size);
    return sum;
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0;
    for (uint64_t turn = 0; turn < FILES; turn++) sum = sum * 31 + read_one((n * FILES + turn) % files);
    *ops += FILES;
    return sum;
}
