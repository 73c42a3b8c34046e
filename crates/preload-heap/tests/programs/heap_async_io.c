/* What sets up io_uring(7) and Linux AIO fails on a heap in a file, as on a kernel that has neither: by number, and by the
 * names of liburing and libaio. Not in a child, whose heap is ordinary memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(holds)                                                \
    do {                                                            \
        if (!(holds)) {                                             \
            fprintf(stderr, "%d: %s (errno %d)\n", __LINE__, #holds, errno); \
            _exit(1);                                               \
        }                                                           \
    } while (0)

/* What the kernel says of a call, past the C library; zero: it can. */
static long by_instruction(long number, long a, void *b) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return result < 0 ? -result : 0;
}

static char parameters[120], ring[1024];

static long by_number(long number, void *b) {
    memset(parameters, 0, sizeof parameters);
    return syscall(number, 4L, b) < 0 ? errno : 0;
}

int main(void) {
    /* So that there is one. */
    char *block = malloc(1 << 20);
    memset(block, 1, 1 << 20);
    static unsigned long context;
    long uring = by_instruction(SYS_io_uring_setup, 4, memset(parameters, 0, sizeof parameters));
    long aio = by_instruction(SYS_io_setup, 4, &context);
    context = 0;
    CHECK(by_number(SYS_io_uring_setup, parameters) == ENOSYS && by_number(SYS_io_setup, &context) == ENOSYS);
    const char *libraries[] = {"liburing.so.2", "libaio.so.1"};
    int found = 0;
    for (int i = 0; i < 2; i++) found += dlopen(libraries[i], RTLD_NOW | RTLD_GLOBAL) != NULL;
    int (*init)(unsigned, void *, unsigned) = (int (*)(unsigned, void *, unsigned))dlsym(RTLD_DEFAULT, "io_uring_queue_init");
    int (*init_params)(unsigned, void *, void *) = (int (*)(unsigned, void *, void *))dlsym(RTLD_DEFAULT, "io_uring_queue_init_params");
    int (*setup)(int, void *) = (int (*)(int, void *))dlsym(RTLD_DEFAULT, "io_setup");
    int (*queue_init)(int, void *) = (int (*)(int, void *))dlsym(RTLD_DEFAULT, "io_queue_init");
    CHECK(init && init_params && setup && queue_init);
    CHECK(init(4, ring, 0) == -ENOSYS && init_params(4, ring, parameters) == -ENOSYS);
    CHECK(setup(4, &context) == -ENOSYS && queue_init(4, &context) == -ENOSYS && context == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(by_number(SYS_io_uring_setup, parameters) == uring && by_number(SYS_io_setup, &context) == aio);
        context = 0;
        if (found == 2) CHECK(init(4, ring, 0) == (int)-uring && setup(4, &context) == (int)-aio);
        _exit(block[4096] == 1 ? 7 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    puts("refused");
    return 0;
}
