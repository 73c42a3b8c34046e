/* Maps that were to be in a cache by name, and that the kernel has: the library says so.
 *
 *     unserved FILE private|protected|cached|plain
 *
 * Maps FILE, of more than 1 MiB, twice in such a way.
 */
#define _GNU_SOURCE
#include <fastmap.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char **argv) {
    struct stat status;
    int fd = argc == 3 ? open(argv[1], O_RDWR) : -1;
    struct fm_cache *cache = fm_cache_create(1 << 20);
    if (fd < 0 || !cache || fstat(fd, &status) != 0)
        return 1;
    size_t length = (size_t)status.st_size;
    for (int again = 0; again < 2; again++) {
        int prot = PROT_READ | (strcmp(argv[2], "protected") == 0 ? PROT_WRITE : 0);
        int flags = strcmp(argv[2], "private") == 0 ? MAP_PRIVATE : MAP_SHARED;
        struct fm_cache *wanted = strcmp(argv[2], "plain") == 0 ? NULL : cache;
        char *map = fm_mmap_in(wanted, NULL, length, prot, flags, fd, 0);
        if (map == MAP_FAILED || map[length - 1] != 1)
            return 2;
        if (strcmp(argv[2], "protected") == 0 && fm_mprotect(map, length / 2, PROT_READ) != 0)
            return 3;
    }
    return 0;
}
