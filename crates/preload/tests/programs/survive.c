/* Stores that a sudden end of the process must not lose. Says "stored" once they are made. */
#include "check.h"

static void store_all(const char *path) {
    uint8_t *map = map_all(file_of(path, SIZE));
    for (size_t i = 0; i < SIZE; i += PAGE) map[i + 1] = (uint8_t)(i / PAGE % 255 + 1);
    puts("stored");
    fflush(stdout);
}

static void waits(const char *path) {
    store_all(path);
    for (;;) pause();
}

/* One that maps it to be read at first. */
static void opens_later(const char *path) {
    uint8_t *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file_of(path, SIZE), 0);
    CHECK(map != MAP_FAILED && map[5 * PAGE] == pattern(5 * PAGE));
    CHECK(mprotect(map, SIZE, RW) == 0);
    for (size_t i = 0; i < SIZE; i += PAGE) map[i + 1] = (uint8_t)(i / PAGE % 255 + 1);
    puts("stored");
    fflush(stdout);
    for (;;) pause();
}

/* Takes all the memory that its group has. */
static void takes_memory(const char *path) {
    store_all(path);
    for (;;) {
        char *more = malloc(MIB);
        if (more) memset(more, 1, MIB);
    }
}

static const struct test tests[] = {
    {"waits", waits},
    {"opens_later", opens_later},
    {"takes_memory", takes_memory},
};

RUN_ONE_OF(tests)
