/* A library whose constructor registers what it does around fork(2): before any constructor of the preloaded library. */
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>

uint8_t *atfork_map;
size_t atfork_at;
unsigned atfork_before, atfork_parent, atfork_child;

/* Each looks at a page, and stores to it. */
static void before(void) { atfork_before = atfork_map ? atfork_map[atfork_at]++ : 0; }
static void parent(void) { atfork_parent = atfork_map ? atfork_map[atfork_at]++ : 0; }
static void child(void) { atfork_child = atfork_map ? atfork_map[atfork_at]++ : 0; }

__attribute__((constructor)) static void start(void) { pthread_atfork(before, parent, child); }
