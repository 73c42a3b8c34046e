/* A program that knows nothing of FastMap: maps a file, stores to every page of it, and finds in the file what it stored. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 2048

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, PAGES * PAGE)) return perror("map"), 1;
    long *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return perror("map: mmap"), 1;
    for (long page = 0; page < PAGES; page++) map[page * PAGE / sizeof *map] = page + 1;
    if (msync(map, PAGES * PAGE, MS_SYNC)) return perror("map: msync"), 1;
    for (long page = 0, found; page < PAGES; page++)
        if (pread(fd, &found, sizeof found, page * PAGE) != sizeof found || found != page + 1)
            return fprintf(stderr, "map: page %ld is not what was stored\n", page), 1;
    puts("every page is in the file");
    return 0;
}
