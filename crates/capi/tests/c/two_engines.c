/* A program with a cache of its own under `fastmap run --cache`: both have an engine in this process.
 *
 *     two_engines OWN OTHER abort|exec
 *
 * Stores 9 to each page of OTHER, by mmap(2), and of OWN, in its cache; then dies, or becomes a program that sleeps.
 */
#include <fastmap.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void store(char *map, size_t length) {
    if (map == MAP_FAILED)
        exit(1);
    for (size_t at = 0; at < length; at += 4096)
        map[at] = 9;
}

int main(int argc, char **argv) {
    struct stat status;
    int own = open(argv[argc - 3], O_RDWR), other = open(argv[argc - 2], O_RDWR);
    struct fm_cache *cache = fm_cache_create(1 << 20);
    if (argc != 4 || own < 0 || other < 0 || !cache || fstat(own, &status) != 0)
        return 1;
    size_t length = (size_t)status.st_size;
    store(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0), length);
    store(fm_mmap_in(cache, NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | FM_MAP_CACHED, own, 0), length);
    if (strcmp(argv[3], "abort") == 0)
        abort();
    execlp("sleep", "sleep", "100", (char *)NULL);
    return 1;
}
