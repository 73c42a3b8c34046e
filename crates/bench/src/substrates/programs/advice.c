// A library to preload. It gives every shared mapping of 1 MiB or more of a file the advice that FASTMAP_BENCH_ADVICE names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void *(*map_t)(void *, size_t, int, int, int, off_t);

static void *advised(const char *name, void *at, size_t length, int access, int flags, int file, off_t offset) {
    static map_t next;
    if (!next) next = (map_t)dlsym(RTLD_NEXT, name);
    void *map = next(at, length, access, flags, file, offset);
    // MAP_SHARED_VALIDATE contains the bit of MAP_SHARED.
    if (map != MAP_FAILED && file >= 0 && flags & MAP_SHARED && length >= 1 << 20) {
        const char *advice = getenv("FASTMAP_BENCH_ADVICE");
        madvise(map, length, advice && strcmp(advice, "sequential") == 0 ? MADV_SEQUENTIAL : MADV_RANDOM);
    }
    return map;
}

void *mmap(void *at, size_t length, int access, int flags, int file, off_t offset) {
    return advised("mmap", at, length, access, flags, file, offset);
}

void *mmap64(void *at, size_t length, int access, int flags, int file, off_t offset) {
    return advised("mmap64", at, length, access, flags, file, offset);
}
