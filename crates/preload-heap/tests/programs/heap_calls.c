// Every function of the family, its alignments, sizes and errors.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define must(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

static int is_zero(const unsigned char *at, size_t len) {
    for (size_t i = 0; i < len; i++) if (at[i]) return 0;
    return 1;
}

int main(void) {
    for (size_t align = 8; align <= 1 << 21; align *= 2)
        for (size_t size = 1; size < 3000000; size = size * 7 + 3) {
            void *a;
            must(posix_memalign(&a, align, size) == 0 && (uintptr_t)a % align == 0);
            must(malloc_usable_size(a) >= size);
            void *b = memalign(align, size), *c = aligned_alloc(align, size);
            must(b && (uintptr_t)b % align == 0 && c && (uintptr_t)c % align == 0);
            memset(a, 1, size), memset(b, 2, size), memset(c, 3, size);
            must(*(char *)a == 1 && ((char *)b)[size - 1] == 2 && ((char *)c)[size / 2] == 3);
            free(b);
            a = realloc(a, size * 2);
            must(a && ((char *)a)[size - 1] == 1);
            free(a), free(c);
        }
    void *odd = &odd;
    errno = 5;
    must(posix_memalign(&odd, 3, 10) == EINVAL && posix_memalign(&odd, 4, 10) == EINVAL && odd == &odd && errno == 5);
    must((uintptr_t)valloc(5000) % 4096 == 0 && malloc_usable_size(pvalloc(5000)) >= 8192);
    // Growing from byte to many pages and back keeps what is there.
    unsigned char *grown = 0;
    for (size_t size = 1; size < 8000000; size = size * 3 / 2 + 1) {
        grown = realloc(grown, size);
        must(grown);
        grown[size - 1] = 77, grown[0] = 11;
        must(malloc_usable_size(grown) >= size);
    }
    for (size_t size = 4000000; size; size /= 3) must((grown = realloc(grown, size)) && grown[0] == (size > 1 ? 11 : grown[0]));
    free(grown);
    // Zeros, from memory that was used before as well.
    for (int round = 0; round < 30; round++) {
        size_t size = 1000 + round * 100003;
        unsigned char *used = malloc(size);
        memset(used, 0xff, size);
        free(used);
        unsigned char *zero = calloc(size / 10, 10);
        must(is_zero(zero, size / 10 * 10));
        memset(zero, 0xee, size / 10 * 10);
        free(zero);
        if (round % 10 == 9) usleep(1100000), free(malloc(100000));
    }
    volatile size_t huge = SIZE_MAX / 4;
    must(!malloc(huge * 2) && errno == ENOMEM);
    errno = 0;
    must(!calloc(huge, 8) && errno == ENOMEM);
    errno = 0;
    void *kept = malloc(2000);
    must(!reallocarray(kept, huge, 8) && errno == ENOMEM);
    must((kept = reallocarray(kept, 1000, 10)) && malloc_usable_size(kept) >= 10000);
    must(!realloc(kept, 0));
    must(malloc(0) && calloc(0, 7) && malloc_usable_size(0) == 0);
    errno = 77;
    free(malloc(5000)), free(0);
    must(errno == 77);
    puts("ok");
}
