/* Signals around maps: what a program may do with SIGBUS and with masks, and what it is told. */
#include "check.h"
#include <sys/time.h>

static int blocks_sigbus(void) {
    sigset_t now;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0);
    return sigismember(&now, SIGBUS);
}

static void block_all(void) {
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
}

static void handler_before(const char *path) {
    catch_signal(SIGBUS, 0);
    catch_signal(SIGSEGV, 0);
    int fd = file_of(path, 4 * MIB);
    uint8_t *at = map_all(fd);
    expect(at, 0, 4 * MIB);
    for (int round = 0; round < 3; round++) {
        CHECK(raised_by_load(at + 5 * MIB) == SIGBUS && caught_address == at + 5 * MIB);
        CHECK(raised_by_load((uint8_t *)8) == SIGSEGV && caught_address == (void *)8);
        expect(at, 0, 4 * MIB);
    }
    struct sigaction now;
    CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == jump_out && now.sa_flags & SA_SIGINFO);
    CHECK(!(now.sa_flags & SA_NODEFER));
}

static void handler_after(const char *path) {
    int fd = file_of(path, 4 * MIB);
    uint8_t *at = map_all(fd);
    expect(at, 0, 4 * MIB);
    struct sigaction before;
    CHECK(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_handler == SIG_DFL);
    catch_signal(SIGBUS, SA_RESETHAND);
    expect(at, 0, 4 * MIB);
    CHECK(raised_by_store(at + SIZE - 1) == SIGBUS);
    /* It was for one signal only; ordinary misses did not use it up. */
    CHECK(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(signal(SIGBUS, SIG_IGN) == SIG_DFL && signal(SIGBUS, SIG_DFL) == SIG_IGN);
    expect(at, 0, 4 * MIB);
    catch_signal(SIGBUS, SA_NODEFER);
    CHECK(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_flags & SA_NODEFER);
    CHECK(raised_by_load(at + 5 * MIB) == SIGBUS);
    expect(at, 0, 4 * MIB);
}

/* Without a handler the access kills, as it should. */
static void default_action(const char *path) {
    int fd = file_of(path, 4 * MIB);
    pid_t child = fork();
    if (child == 0) {
        uint8_t *at = map_all(fd);
        expect(at, 0, 4 * MIB);
        at[5 * MIB] = 1;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static uint8_t *shared_map;

/* Touches the map in a handler that blocks everything. */
static volatile sig_atomic_t sum_in_handler;
static void touch(int signal) {
    (void)signal;
    int sum = 0;
    for (size_t i = 0; i < SIZE; i += PAGE) sum += shared_map[i];
    shared_map[3] = 33;
    sum_in_handler = sum;
}

static void handlers_touch_maps(const char *path) {
    int fd = file_of(path, SIZE);
    shared_map = map_all(fd);
    struct sigaction action = {.sa_handler = touch}, now;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR1, NULL, &now) == 0 && sigismember(&now.sa_mask, SIGBUS) == 1);
    CHECK(raise(SIGUSR1) == 0 && sum_in_handler != 0 && shared_map[3] == 33);
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, &now) == 0 && sigismember(&now.sa_mask, SIGBUS) == 1);
    CHECK(sigaction(SIGUSR1, NULL, &now) == 0 && sigismember(&now.sa_mask, SIGBUS) == 0);
    /* In the handler of SIGBUS itself, too. */
    CHECK(signal(SIGBUS, touch) == SIG_DFL);
    sum_in_handler = 0;
    CHECK(raise(SIGBUS) == 0 && sum_in_handler != 0);
    expect(shared_map, 0, SIZE);
    CHECK(signal(SIGBUS, SIG_DFL) == touch);
    /* While a mask is in force for one call. */
    sum_in_handler = 0;
    block_all();
    CHECK(raise(SIGUSR1) == 0 && sum_in_handler == 0);
    sigset_t all_but;
    sigfillset(&all_but);
    sigdelset(&all_but, SIGUSR1);
    FAILS(sigsuspend(&all_but), EINTR);
    CHECK(sum_in_handler != 0 && blocks_sigbus());
    sum_in_handler = 0;
    CHECK(raise(SIGUSR1) == 0 && sum_in_handler == 0);
    struct timespec long_enough = {.tv_sec = 20};
    FAILS(pselect(0, NULL, NULL, NULL, &long_enough, &all_but), EINTR);
    CHECK(sum_in_handler != 0);
    sum_in_handler = 0;
    CHECK(raise(SIGUSR1) == 0 && sum_in_handler == 0);
    FAILS(ppoll(NULL, 0, &long_enough, &all_but), EINTR);
    CHECK(sum_in_handler != 0 && blocks_sigbus());
}

static void *touch_all(void *arg) {
    uint8_t *at = arg;
    CHECK(blocks_sigbus() == 1);
    expect(at, 0, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) at[i] = (uint8_t)(i >> 20);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 && blocks_sigbus() == 0);
    return arg;
}

static void blocked_threads(const char *path) {
    CHECK(blocks_sigbus() == 0);
    block_all();
    CHECK(blocks_sigbus() == 1);
    sigset_t none, before;
    sigemptyset(&none);
    CHECK(sigprocmask(SIG_SETMASK, &none, &before) == 0 && sigismember(&before, SIGBUS) == 1 && blocks_sigbus() == 0);
    CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0 && blocks_sigbus() == 1);
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, touch_all, at) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == at);
    CHECK(blocks_sigbus() == 1);
    for (size_t i = 0; i < SIZE; i += PAGE) CHECK(at[i] == (uint8_t)(i >> 20));
}

/* A small alternate stack: the handler of misses must fit it. */
static void *on_small_stack(void *arg) {
    static __thread char memory[8192];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    CHECK(sigaltstack(&stack, NULL) == 0);
    expect(arg, 0, SIZE);
    for (size_t i = 0; i < SIZE; i += PAGE) ((uint8_t *)arg)[i] = pattern(i);
    expect(arg, 0, SIZE);
    return arg;
}

static void small_alternate_stack(const char *path) {
    catch_signal(SIGSEGV, SA_ONSTACK);
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, on_small_stack, at) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    on_small_stack(at);
    CHECK(raised_by_load((uint8_t *)8) == SIGSEGV);
}

/* Threads with stacks that are small on purpose, and alternate stacks that old programs call large enough. */
static void *on_tiny_stacks(void *arg) {
    static __thread char memory[2048];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    expect(arg, 0, SIZE);
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (size_t i = 0; i < SIZE; i += PAGE) ((uint8_t *)arg)[i] = pattern(i);
    expect(arg, 0, SIZE);
    return arg;
}

static void tiny_stacks(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    pthread_t threads[4];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstacksize(&attr, sysconf(_SC_THREAD_STACK_MIN) + 2 * PAGE) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], &attr, on_tiny_stacks, at) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    on_tiny_stacks(at);
}

static uint8_t *volatile touched;
static volatile uint8_t touched_sum;

static void touch_deep(int signal) {
    (void)signal;
    volatile char deep[2600];
    for (size_t i = 0; i < sizeof deep; i++) deep[i] = (char)i;
    for (size_t i = 0; i < SIZE; i += 64 * PAGE) touched_sum += touched[i];
    for (size_t i = 0; i < sizeof deep; i++) CHECK(deep[i] == (char)i);
}

/* A handler on an alternate stack of the usual size touches maps, before its thread has done so. */
static void *handle_on_small_stack(void *arg) {
    stack_t stack = {.ss_sp = arg, .ss_size = 8192};
    CHECK(sigaltstack(&stack, NULL) == 0);
    for (int i = 0; i < 20; i++) CHECK(raise(SIGUSR1) == 0);
    return NULL;
}

static void deep_handlers(const char *path) {
    int fd = file_of(path, SIZE);
    touched = map_all(fd);
    struct sigaction action = {.sa_handler = touch_deep, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    static char stacks[5][8192];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, handle_on_small_stack, stacks[i]) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    handle_on_small_stack(stacks[4]);
}

static void waiting_for_sigbus(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    block_all();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGBUS);
    sigaddset(&set, SIGUSR2);
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        usleep(200000);
        kill(self, SIGBUS);
        _exit(0);
    }
    int got = 0;
    CHECK(sigwait(&set, &got) == 0 && got == SIGBUS);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    expect(at, 0, SIZE);
}

static void old_calls(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    expect(at, 0, SIZE);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    int bit = 1 << (SIGBUS - 1);
    CHECK((sigblock(bit) & bit) == 0 && (sigblock(0) & bit) != 0 && blocks_sigbus());
    CHECK((sigsetmask(0) & bit) != 0 && !blocks_sigbus());
    CHECK(sighold(SIGBUS) == 0 && blocks_sigbus() && sigrelse(SIGBUS) == 0 && !blocks_sigbus());
    CHECK(sigset(SIGBUS, SIG_HOLD) == SIG_DFL && blocks_sigbus());
    CHECK(sigset(SIGBUS, touch) == SIG_HOLD && !blocks_sigbus());
    CHECK(sigset(SIGBUS, SIG_DFL) == touch);
    CHECK(sigignore(SIGBUS) == 0 && signal(SIGBUS, touch) == SIG_IGN);
    struct sigaction now;
    CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_handler == touch && now.sa_flags & SA_RESTART);
    CHECK(siginterrupt(SIGBUS, 1) == 0);
    CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_handler == touch && !(now.sa_flags & SA_RESTART));
    CHECK(sysv_signal(SIGBUS, SIG_DFL) == touch);
    expect(at, 0, SIZE);
    FAILS(sigaction(SIGKILL, &now, NULL), EINVAL);
    FAILS(sigaction(0, &now, NULL), EINVAL);
    FAILS(sigaction(65, NULL, &now), EINVAL);
    FAILS(sigprocmask(77, &now.sa_mask, NULL), EINVAL);
}

/* A program that is executed begins with what this one believes to block. (Without the library, which would hide it.) */
static void passed_on(const char *path) {
    int fd = file_of(path, SIZE);
    block_all();
    uint8_t *at = map_all(fd);
    expect(at, 0, SIZE);
    unsetenv("LD_PRELOAD");
    /* SIGBUS is the seventh bit. */
    char *const look[] = {"grep", "-q", "SigBlk:.*[4-7c-f].$", "/proc/self/status", NULL};
    int status;
    pid_t child = fork();
    if (child == 0) {
        execvp("grep", look);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(posix_spawnp(&child, "grep", NULL, NULL, look, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FAILS(execv("/no/such/program", look), ENOENT);
    CHECK(blocks_sigbus());
    expect(at, 0, SIZE);
}

/* In /proc, SIGBUS is the seventh bit of what is blocked, and of what is ignored. (A shell would unblock it.) */
#define HAS_SIGBUS "[[:space:]]*[0-9a-f]*[4-7c-f][0-9a-f][[:space:]]"
static char *const look_at_both[] = {"grep", "-qz", "SigBlk:" HAS_SIGBUS "*SigIgn:" HAS_SIGBUS, "/proc/self/status", NULL};

/* A child that shares the memory sets its signals to rights, as shells do: it executes its program so, and none of it is its
 * parent's. Until then it has the maps. */
static void vfork_child(const char *path) {
    int fd = file_of(path, 4 * MIB);
    uint8_t *at = map_all(fd);
    expect(at, 0, 4 * MIB);
    unsetenv("LD_PRELOAD");
    catch_signal(SIGBUS, 0);
    struct sigaction action = {.sa_handler = SIG_DFL}, now;
    sigaddset(&action.sa_mask, SIGBUS);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int round = 0; round < 2; round++) {
        int status;
        pid_t child = vfork();
        CHECK(child >= 0);
        if (child == 0) {
            struct sigaction plain = {.sa_handler = SIG_DFL}, old;
            for (int signal = 1; signal < 32; signal++) sigaction(signal, &plain, NULL);
            sigset_t all, before;
            sigfillset(&all);
            if (signal(SIGBUS, SIG_IGN) != SIG_DFL || sigaction(SIGBUS, NULL, &old) != 0 || old.sa_handler != SIG_IGN) _exit(1);
            if (sigaction(SIGUSR1, NULL, &old) != 0 || sigismember(&old.sa_mask, SIGBUS)) _exit(2);
            if (sigprocmask(SIG_SETMASK, &all, &before) != 0 || sigismember(&before, SIGBUS)) _exit(3);
            if (sigprocmask(SIG_SETMASK, NULL, &before) != 0 || !sigismember(&before, SIGBUS)) _exit(4);
            for (size_t i = 0; i < 4 * MIB; i += PAGE)
                if (at[i] != pattern(i)) _exit(5);
            close(fd + 100);
            execv("/no/such/program", look_at_both);
            if (at[MIB] != pattern(MIB)) _exit(6);
            execvp("grep", look_at_both);
            _exit(127);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(!blocks_sigbus());
        CHECK(sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == jump_out && !(now.sa_flags & SA_NODEFER));
        CHECK(sigaction(SIGUSR1, NULL, &now) == 0 && sigismember(&now.sa_mask, SIGBUS) == 1);
        CHECK(raised_by_load(at + 5 * MIB) == SIGBUS && caught_address == at + 5 * MIB);
        expect(at, 0, 4 * MIB);
    }
}

/* A program that is executed ignores what this one does. */
static void ignored(const char *path) {
    uint8_t *at = map_all(file_of(path, SIZE));
    block_all();
    CHECK(signal(SIGBUS, SIG_IGN) == SIG_DFL);
    FAILS(execv("/no/such/program", look_at_both), ENOENT);
    expect(at, 0, SIZE);
    unsetenv("LD_PRELOAD");
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execvp("grep", look_at_both);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(signal(SIGBUS, SIG_DFL) == SIG_IGN);
    expect(at, 0, SIZE);
}

static void *wait_for_ever(void *arg) {
    sigset_t none;
    sigemptyset(&none);
    for (;;) sigsuspend(&none);
    return arg;
}

/* A thread may be cancelled in a call that the library stands in for. */
static void cancelled(const char *path) {
    int fd = file_of(path, SIZE);
    uint8_t *at = map_all(fd);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, at) == 0);
    usleep(50000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    expect(at, 0, SIZE);
}

static sigjmp_buf out_of_call;
static volatile sig_atomic_t in_call, jumps;

static void leave_call(int signal) {
    (void)signal;
    if (!in_call) return;
    in_call = 0;
    jumps++;
    siglongjmp(out_of_call, 1);
}

/* A timer's handler leaves calls on a mapped file for good. What they held keeps nobody waiting: neither munmap(2), nor who maps the file anew. */
static void left_calls(const char *path) {
    static uint8_t buffer[16 * PAGE];
    struct sigaction action = {.sa_handler = leave_call};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int way = 0; way < 4; way++) {
        int fd = file_of(path, SIZE);
        uint8_t *at = map_all(fd);
        struct itimerval often = {{0, 137}, {0, 137}}, never = {{0, 0}, {0, 0}};
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        jumps = 0;
        for (volatile unsigned round = 0; jumps < 300; round++) {
            at[round * 7919 % (SIZE / PAGE) * PAGE] = 'x';
            if (sigsetjmp(out_of_call, 1)) continue;
            in_call = 1;
            off_t place = (off_t)(round % 100 * sizeof buffer);
            if (way == 0) CHECK(pread(fd, buffer, sizeof buffer, place) > 0);
            if (way == 1) CHECK(pwrite(fd, buffer, sizeof buffer, place) > 0);
            if (way == 2) CHECK(fdatasync(fd) == 0);
            if (way == 3) CHECK(msync(at, MIB, MS_SYNC) == 0);
            in_call = 0;
        }
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
        in_call = 0;
        at[SIZE - 1] = 'z';
        CHECK(munmap(at, SIZE) == 0);
        /* Calls on it are as before, and see what was stored. */
        at = map_all(fd);
        CHECK(at[SIZE - 1] == 'z' && pwrite(fd, "y", 1, SIZE - 1) == 1 && at[SIZE - 1] == 'y');
        at[SIZE - 1] = 'w';
        CHECK(pread(fd, buffer, 1, SIZE - 1) == 1 && buffer[0] == 'w');
        CHECK(munmap(at, SIZE) == 0 && close(fd) == 0);
        expect_in_file(path, SIZE - 1, 'w');
    }
}

static struct test tests[] = {
    {"left_calls", left_calls},
    {"handler_before", handler_before},
    {"handler_after", handler_after},
    {"default_action", default_action},
    {"handlers_touch_maps", handlers_touch_maps},
    {"blocked_threads", blocked_threads},
    {"small_alternate_stack", small_alternate_stack},
    {"tiny_stacks", tiny_stacks},
    {"deep_handlers", deep_handlers},
    {"waiting_for_sigbus", waiting_for_sigbus},
    {"old_calls", old_calls},
    {"passed_on", passed_on},
    {"vfork_child", vfork_child},
    {"ignored", ignored},
    {"cancelled", cancelled},
};
RUN_ONE_OF(tests)
