// Coroutines on stacks from malloc, more than the cache holds, in several threads: a miss on such a stack is a signal for which
// the stack itself has no room in memory. Also a thread on such a stack, and signals on an alternate stack from malloc.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { MANY = 40, STACK = 64 << 10, DEPTH = 12 };

struct coroutine { ucontext_t own, *back; long sum, number; int over; };

static long deep(struct coroutine *co, int depth) {
    volatile char room[3000];
    memset((char *)room, depth, sizeof room);
    swapcontext(&co->own, co->back);
    long below = depth ? deep(co, depth - 1) : 0;
    swapcontext(&co->own, co->back);
    for (unsigned i = 0; i < sizeof room; i++) if (room[i] != depth) abort();
    return below + depth + co->number;
}

static void begin(unsigned low, unsigned high) {
    struct coroutine *co = (void *)((unsigned long)high << 32 | low);
    co->sum = deep(co, DEPTH);
    co->over = 1;
    swapcontext(&co->own, co->back);
}

static void *run(void *arg) {
    struct coroutine *all = calloc(MANY, sizeof *all);
    ucontext_t here;
    char *noise = malloc(2 << 20);
    for (long i = 0; i < MANY; i++) {
        getcontext(&all[i].own);
        all[i].own.uc_stack.ss_sp = malloc(STACK);
        all[i].own.uc_stack.ss_size = STACK;
        all[i].number = i, all[i].back = &here;
        makecontext(&all[i].own, (void (*)(void))begin, 2, (unsigned)(unsigned long)&all[i], (unsigned)((unsigned long)&all[i] >> 32));
    }
    for (int left = MANY; left;) {
        left = 0;
        for (int i = 0; i < MANY; i++)
            if (!all[i].over) { left++; swapcontext(&here, &all[i].own); }
        memset(noise, left, 2 << 20);
    }
    long sum = 0;
    for (int i = 0; i < MANY; i++) sum += all[i].sum, free(all[i].own.uc_stack.ss_sp);
    return (void *)sum;
    (void)arg;
}

static volatile int signals;
static void on_signal(int number) { signals += number == SIGUSR1; }

int main(void) {
    pthread_t threads[3];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, aligned_alloc(4096, 256 << 10), 256 << 10);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], i ? 0 : &attr, run, 0);
    stack_t alternate = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
    if (sigaltstack(&alternate, 0)) abort();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    char *noise = malloc(4 << 20);
    for (int i = 0; i < 50; i++) memset(noise, i, 4 << 20), raise(SIGUSR1);
    long sum = 0;
    for (int i = 0; i < 3; i++) { void *one; pthread_join(threads[i], &one); sum += (long)one; }
    printf("%ld %d\n", sum, signals);
}
