// Children see the heap as it was when they were made, change their own, and leave the parent's alone.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 3000, LEN = 3000 };
static unsigned *block[BLOCKS];

static void fill(unsigned key) {
    for (unsigned i = 0; i < BLOCKS; i++) for (unsigned at = 0; at < LEN / 4; at += 100) block[i][at] = key + i + at;
}

static int holds(unsigned key) {
    for (unsigned i = 0; i < BLOCKS; i++) for (unsigned at = 0; at < LEN / 4; at += 100) if (block[i][at] != key + i + at) return 0;
    return 1;
}

int main(void) {
    for (int i = 0; i < BLOCKS; i++) block[i] = malloc(LEN);
    char *zeros = calloc(1, 1 << 20);
    fill(1000);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (!child) {
            if (!holds(1000)) _exit(1);
            for (int i = 0; i < 1 << 20; i++) if (zeros[i]) _exit(2);
            fill(5000);
            for (int i = 0; i < BLOCKS; i += 2) { free(block[i]); block[i] = malloc(LEN); }
            fill(7000);
            char *more = calloc(1, 3 << 20);
            for (int i = 0; i < 3 << 20; i++) if (more[i]) _exit(3);
            if (!fork()) _exit(holds(7000) ? 0 : 4);
            int status;
            wait(&status);
            _exit(holds(7000) ? WEXITSTATUS(status) : 5);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) { printf("a child ended with status %#x\n", status); return 1; }
        if (!holds(1000)) { puts("a child changed its parent's heap"); return 1; }
        for (int i = round; i < BLOCKS; i += 3) { free(block[i]); block[i] = malloc(LEN); }
        fill(1000);
    }
    if (system("exit 3") != 3 << 8) return 2;
    puts("ok");
}
