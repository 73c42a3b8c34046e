/* Handlers of pthread_atfork(3) that touch a map. */
#include "check.h"

extern uint8_t *atfork_map;
extern size_t atfork_at;
extern unsigned atfork_before, atfork_parent, atfork_child;

static void handlers(const char *path) {
    atfork_map = map_all(file_of(path, SIZE));
    for (int round = 0; round < 20; round++) {
        atfork_at = (size_t)(round * 97 % (int)(SIZE / PAGE)) * PAGE;
        uint8_t first = pattern(atfork_at);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(atfork_before == first && atfork_child >= first + 1u ? 7 : 1);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        CHECK(atfork_before == first && atfork_parent >= first + 1u);
    }
}

static const struct test tests[] = {{"handlers", handlers}};
RUN_ONE_OF(tests)
