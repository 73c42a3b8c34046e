/* For programs that are built with a sanitizer: threads that load and store through a mapping, and, if that is wanted, a leak and an error. */
#include "check.h"

static uint8_t *at;

static void *sum(void *first) {
    long sum = 0;
    for (size_t i = (size_t)first * PAGE; i < SIZE; i += 2 * PAGE) sum += at[i];
    return (void *)sum;
}

static void works(const char *path) {
    at = map_all(file_of(path, SIZE));
    pthread_t threads[2];
    long all = 0, expected = 0;
    for (size_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, sum, (void *)i) == 0);
    for (size_t i = 0; i < 2; i++) {
        void *one;
        CHECK(pthread_join(threads[i], &one) == 0);
        all += (long)one;
    }
    for (size_t i = 0; i < SIZE; i += PAGE) {
        expected += pattern(i);
        at[i] = 2;
    }
    CHECK(msync(at, SIZE, MS_SYNC) == 0);
    printf("sum %s\n", all == expected ? "right" : "wrong");
    fflush(stdout);
}

static void leaks(const char *path) {
    works(path);
    char *volatile lost = malloc(12345);
    lost[0] = 1;
    lost = NULL;
}

static void overflows(const char *path) {
    works(path);
    char *small = malloc(10);
    size_t volatile past = 10;
    ((char volatile *)small)[past] = 1;
    free(small);
}

static long volatile shared;

static void *race(void *unused) {
    for (int i = 0; i < 1000; i++) shared = shared + 1;
    return unused;
}

static void races(const char *path) {
    works(path);
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, race, NULL) == 0);
    for (size_t i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

RUN_ONE_OF(((struct test[]){{"works", works}, {"leaks", leaks}, {"overflows", overflows}, {"races", races}}))
