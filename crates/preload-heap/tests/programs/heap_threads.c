// Eight threads allocate, resize and free blocks of all sizes, hand some to one another, and check every byte they wrote; with
// locks, condition variables, semaphores, barriers and read-write locks that live in the heap.
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, SLOTS = 200, STEPS = 4000 };

struct shared {
    // Each on pages of its own: the cache has not room for all.
    struct { char before[5000]; pthread_mutex_t lock; pthread_cond_t changed; char after[5000]; } part[64];
    pthread_rwlock_t rw;
    char between[9000];
    pthread_barrier_t start;
    sem_t turns;
    long counters[64];
    unsigned char *exchange[64];
    size_t exchanged[64];
};

static struct shared *shared;

static uint64_t next(uint64_t *state) { return (*state = *state * 6364136223846793005u + 1442695040888963407u) >> 24; }

static void fill(unsigned char *at, size_t len, unsigned char key) {
    for (size_t i = 0; i < len; i += 97) at[i] = key + i;
    if (len) at[len - 1] = key;
}

static void check(unsigned char *at, size_t len, unsigned char key) {
    if (len && at[len - 1] != key) { puts("a block's last byte is wrong"); abort(); }
    for (size_t i = 0; i + 1 < len; i += 97)
        if (at[i] != (unsigned char)(key + i)) { printf("byte %zu of %zu is wrong\n", i, len); abort(); }
}

static void *work(void *arg) {
    uint64_t state = (uintptr_t)arg * 7919 + 1;
    unsigned char *slot[SLOTS] = {0}, key[SLOTS];
    size_t len[SLOTS];
    pthread_barrier_wait(&shared->start);
    for (int step = 0; step < STEPS; step++) {
        int i = next(&state) % SLOTS;
        size_t want = 1 + next(&state) % (next(&state) % 50 == 0 ? 300000 : next(&state) % 4 ? 600 : 20000);
        switch (next(&state) % 4) {
        case 0:
        case 1:
            if (slot[i]) { check(slot[i], len[i], key[i]); free(slot[i]); }
            if (next(&state) % 4 == 0) {
                slot[i] = calloc(1, want);
                for (size_t at = 0; at < want; at++) if (slot[i][at]) { puts("calloc: not zero"); abort(); }
            } else {
                slot[i] = malloc(want);
            }
            len[i] = want, key[i] = step;
            fill(slot[i], want, key[i]);
            break;
        case 2:
            if (slot[i]) {
                check(slot[i], len[i], key[i]);
                unsigned char first = slot[i][0];
                slot[i] = realloc(slot[i], want);
                if (slot[i][0] != first) { puts("realloc: lost"); abort(); }
                len[i] = want, key[i] = step;
                fill(slot[i], want, key[i]);
            }
            break;
        case 3: {
            // Leave one for others, take what they left.
            int at = next(&state) % 64;
            pthread_mutex_lock(&shared->part[at].lock);
            unsigned char *theirs = shared->exchange[at];
            if (theirs) { check(theirs, shared->exchanged[at], 200); free(theirs); }
            size_t size = 1 + next(&state) % 5000;
            shared->exchange[at] = malloc(size);
            shared->exchanged[at] = size;
            fill(shared->exchange[at], size, 200);
            shared->counters[at]++;
            pthread_cond_broadcast(&shared->part[at].changed);
            pthread_mutex_unlock(&shared->part[at].lock);
            break;
        }
        }
        if (step % 16 == 0) {
            // All at one lock.
            pthread_mutex_lock(&shared->part[step / 16 % 64].lock);
            shared->counters[0]++, shared->counters[0]--;
            pthread_mutex_unlock(&shared->part[step / 16 % 64].lock);
            if (step % 64) pthread_rwlock_rdlock(&shared->rw); else pthread_rwlock_wrlock(&shared->rw);
            pthread_rwlock_unlock(&shared->rw);
            sem_wait(&shared->turns);
            sem_post(&shared->turns);
        }
    }
    for (int i = 0; i < SLOTS; i++) if (slot[i]) { check(slot[i], len[i], key[i]); free(slot[i]); }
    pthread_barrier_wait(&shared->start);
    // Rounds: one after the other, each woken by the one before.
    long me = (long)(uintptr_t)arg;
    for (int round = 0; round < 50; round++) {
        pthread_mutex_lock(&shared->part[5].lock);
        while (shared->counters[63] % THREADS != me) pthread_cond_wait(&shared->part[5].changed, &shared->part[5].lock);
        shared->counters[63]++;
        pthread_cond_broadcast(&shared->part[5].changed);
        pthread_mutex_unlock(&shared->part[5].lock);
        unsigned char *noise = malloc(100000);
        fill(noise, 100000, me);
        check(noise, 100000, me);
        free(noise);
    }
    return 0;
}

int main(void) {
    shared = calloc(1, sizeof *shared);
    for (int i = 0; i < 64; i++) pthread_mutex_init(&shared->part[i].lock, 0), pthread_cond_init(&shared->part[i].changed, 0);
    pthread_rwlock_init(&shared->rw, 0);
    pthread_barrier_init(&shared->start, 0, THREADS);
    sem_init(&shared->turns, 0, 2);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    if (shared->counters[63] != 0 && shared->counters[63] % (50 * THREADS) < 0) abort();
    puts("ok");
}
