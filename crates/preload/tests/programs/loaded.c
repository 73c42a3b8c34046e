/* A library that maps files. */
#include <stddef.h>
#include <sys/mman.h>

void *map_it(int fd, size_t len) { return mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }
