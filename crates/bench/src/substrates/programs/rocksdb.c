// RocksDB, which reads its tables through maps (allow_mmap_reads). It gets random values of 1000 bytes. Only the library is needed, and no
// header: the calls here are those of rocksdb/c.h.
#include <dlfcn.h>

#include "program.h"

enum { WORDS = 125, GETS = 64 };

typedef void *handle;

static void *library;

static void *call(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "rocksdb: %s\n", dlerror());
        exit(1);
    }
    return found;
}

#define CALL(result, name, ...) ((result(*)(__VA_ARGS__))call("rocksdb_" name))

static handle options, db, reading;
static uint64_t records;
static handle (*get)(handle, handle, const char *, size_t, char **);
static const char *(*value_of)(handle, size_t *);
static void (*release)(handle);

static void check(char *error) {
    if (error) {
        fprintf(stderr, "rocksdb: %s\n", error);
        exit(1);
    }
}

static void load(void) {
    const char *names[] = {"librocksdb.so", "librocksdb.so.7.8", "librocksdb.so.8.9", "librocksdb.so.9.10", "librocksdb.so.6.29", "librocksdb.so.6.11"};
    for (size_t at = 0; !library && at < sizeof names / sizeof *names; at++) library = dlopen(names[at], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "rocksdb: %s\n", dlerror());
        exit(1);
    }
    options = CALL(handle, "options_create", void)();
    CALL(void, "options_set_create_if_missing", handle, unsigned char)(options, 1);
    CALL(void, "options_set_allow_mmap_reads", handle, unsigned char)(options, 1);
    CALL(void, "options_set_compression", handle, int)(options, 0);
}

// The bytes of a key are in such an order that sorted keys are sorted numbers.
static void key_of(uint64_t number, char key[8]) {
    for (int at = 0; at < 8; at++) key[at] = (char)(number >> (56 - 8 * at));
}

static void make(const char *data, uint64_t bytes) {
    load();
    char *error = NULL, key[8];
    uint64_t words[WORDS], count = bytes / 1024;
    db = CALL(handle, "open", handle, const char *, char **)(options, in(data, "db"), &error);
    check(error);
    handle writing = CALL(handle, "writeoptions_create", void)();
    CALL(void, "writeoptions_disable_WAL", handle, int)(writing, 1);
    void (*put)(handle, handle, const char *, size_t, const char *, size_t, char **) = call("rocksdb_put");
    for (uint64_t number = 0; number < count; number++) {
        for (int at = 0; at < WORDS; at++) words[at] = mix(number * WORDS + (uint64_t)at);
        key_of(number, key);
        put(db, writing, key, sizeof key, (const char *)words, sizeof words, &error);
        check(error);
    }
    handle flushing = CALL(handle, "flushoptions_create", void)();
    CALL(void, "flush", handle, handle, char **)(db, flushing, &error);
    check(error);
    CALL(void, "close", handle)(db);
    FILE *to = fopen(in(data, "count"), "w");
    if (!to || fprintf(to, "%" PRIu64 "\n", count) < 0 || fclose(to)) fail(path);
}

static void begin(const char *data) {
    load();
    FILE *from = fopen(in(data, "count"), "r");
    if (!from || fscanf(from, "%" SCNu64, &records) != 1) fail(path);
    fclose(from);
    char *error = NULL;
    db = CALL(handle, "open_for_read_only", handle, const char *, unsigned char, char **)(options, in(data, "db"), 0, &error);
    check(error);
    reading = CALL(handle, "readoptions_create", void)();
    get = call("rocksdb_get_pinned");
    value_of = call("rocksdb_pinnableslice_value");
    release = call("rocksdb_pinnableslice_destroy");
}

static uint64_t batch(uint64_t n, uint64_t *ops) {
    uint64_t sum = 0;
    for (uint64_t turn = 0; turn < GETS; turn++) {
        char *error = NULL, key[8];
        uint64_t words[WORDS];
        size_t length = 0;
        key_of(mix(n * GETS + turn) % records, key);
        handle found = get(db, reading, key, sizeof key, &error);
        check(error);
        const char *value = found ? value_of(found, &length) : NULL;
        if (length != sizeof words) check("a value is not there");
        memcpy(words, value, sizeof words);
        release(found);
        sum = sum * 31 + sum_of(words, sizeof words);
    }
    *ops += GETS;
    return sum;
}
