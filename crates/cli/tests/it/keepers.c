/* A program with a keeper: FILE MS end|wait. The keeper, which outlives it, writes "saved" to FILE so many ms after its end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void keeper(const char *file, int ms, int alive, int told) {
    char byte;
    pid_t own = getpid();
    prctl(PR_SET_NAME, "fastmap-keeper");
    setsid();
    if (write(told, &own, sizeof own) != sizeof own)
        _exit(1);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    if (read(alive, &byte, 1) != 0)
        _exit(1);
    usleep(ms * 1000);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (write(fd, "saved", 5) != 5)
        _exit(1);
    _exit(0);
}

int main(int count, char **words) {
    if (count != 4)
        return 9;
    int alive[2], told[2], ids[2] = {getpid()};
    if (pipe2(alive, O_CLOEXEC) != 0 || pipe(told) != 0)
        return 8;
    /* Nobody's child, as the engine's. */
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0) {
            close(alive[1]);
            keeper(words[1], atoi(words[2]), alive[0], told[1]);
        }
        _exit(0);
    }
    waitpid(between, NULL, 0);
    if (read(told[0], &ids[1], sizeof ids[1]) != sizeof ids[1])
        return 7;
    int noted = open(getenv("FASTMAP_KEEPERS"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (write(noted, ids, sizeof ids) != sizeof ids)
        return 6;
    close(noted);
    printf("stored %d\n", getpid());
    fflush(stdout);
    if (strcmp(words[3], "end") != 0)
        pause();
    return 3;
}
