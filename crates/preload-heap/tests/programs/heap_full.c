// A heap that is full says so, loses nothing, and has room again for what was freed.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define must(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
enum { MOST = 100000, LEN = 20000 };
static unsigned char *block[MOST];

static int is_whole(const unsigned char *at, unsigned char value) {
    for (int i = 0; i < LEN; i += 50) if (at[i] != value) return 0;
    return 1;
}

int main(void) {
    int count[2];
    for (int round = 0; round < 2; round++) {
        int filled = 0;
        errno = 0;
        while (filled < MOST && (block[filled] = malloc(LEN))) memset(block[filled], filled, LEN), filled++;
        must(filled > 300 && filled < MOST && errno == ENOMEM);
        must(!calloc(1, LEN * 10) && !realloc(block[0], LEN * 10) && is_whole(block[0], 0));
        char *small = malloc(100);
        must(small);
        for (int i = 0; i < filled; free(block[i]), i++) must(is_whole(block[i], i));
        free(small);
        count[round] = filled;
    }
    must(count[1] >= count[0] - count[0] / 10);
    puts("ok");
}
