// Kyoto Cabinet's file hash, which is mapped whole (msiz). It gets random values of 1000 bytes.
#include <kclangc.h>

#include "program.h"

enum { WORDS = 125, GETS = 64 };

static KCDB *db;
static uint64_t records;

static void check(int done, const char *what) {
    if (!done) {
        fprintf(stderr, "kyoto: %s: %s\n", what, kcdbemsg(db));
        exit(1);
    }
}

static void open_in(const char *data, uint64_t bytes, uint64_t buckets, uint32_t mode) {
    char name[4200];
    snprintf(name, sizeof name, "%s#bnum=%" PRIu64 "#msiz=%" PRIu64, in(data, "hash.kch"), buckets, bytes + bytes / 4);
    db = kcdbnew();
    check(kcdbopen(db, name, mode), name);
}

static void make(const char *data, uint64_t bytes) {
    records = bytes / 1040;
    open_in(data, bytes, records * 2, KCOWRITER | KCOCREATE);
    uint64_t words[WORDS];
    for (uint64_t key = 0; key < records; key++) {
        for (int at = 0; at < WORDS; at++) words[at] = mix(key * WORDS + (uint64_t)at);
        check(kcdbset(db, (char *)&key, sizeof key, (char *)words, sizeof words), "set");
    }
    check(kcdbclose(db), "close");
}

static void begin(const char *data) {
    struct stat facts;
    if (stat(in(data, "hash.kch"), &facts)) fail(path);
    // An existing file keeps its number of buckets.
    open_in(data, (uint64_t)facts.st_size, 1, KCOREADER);
    records = (uint64_t)kcdbcount(db);
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0;
    for (uint64_t turn = 0; turn < GETS; turn++) {
        uint64_t key = mix(n * GETS + turn) % records;
        size_t length = 0;
        char *value = kcdbget(db, (char *)&key, sizeof key, &length);
        check(value && length == WORDS * 8, "get");
        sum = sum * 31 + sum_of(value, length);
        kcfree(value);
    }
    *ops += GETS;
    return sum;
}
